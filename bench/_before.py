"""An earlier commit of Klamm, built beside this one, for scripts that compare with it.

The commit is exported into build/before/<commit> and its native modules are compiled there, once, with the packages of
this one's environment. A program is then run on either by PYTHONPATH, so both sides run the same script.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["HERE", "Tree", "Worker", "build", "lines_of"]

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent


class Tree(NamedTuple):
    """Sources whose native modules are compiled."""

    name: str
    path: Path

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": f"{self.path}/src"}


HERE = Tree("this commit", ROOT)


def build(commit: str) -> Tree:
    """Return the tree of a commit of this repository, compiled; RuntimeError if it is not there."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--verify", f"{commit}^{{commit}}"]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    if asked.returncode:
        raise RuntimeError(f"{commit}: no such commit here: {asked.stderr.strip()}")
    sha = asked.stdout.strip()
    tree = Tree(f"commit {sha[:7]}", ROOT / "build" / "before" / sha)
    if not (tree.path / "built").exists():
        tree.path.mkdir(parents=True, exist_ok=True)
        with subprocess.Popen(["git", "-C", ROOT, "archive", sha], stdout=subprocess.PIPE) as archive:
            subprocess.run(["tar", "-x", "-C", tree.path], stdin=archive.stdout, check=True)
        compile_natives = "import setuptools; setuptools.setup()"
        command = [sys.executable, "-W", "ignore", "-c", compile_natives, "-q", "build_ext", "--inplace"]
        subprocess.run(command, cwd=tree.path, check=True, stdout=sys.stderr)
        (tree.path / "built").touch()
    return tree


def lines_of(tree: Tree, script: str, *arguments: str) -> dict[str, dict[str, Any]]:
    """Run a script of this folder on a tree and return what it answers, by question."""
    command = [sys.executable, "-W", "ignore", str(BENCH / f"{script}.py"), *arguments]
    run = subprocess.run(command, env=tree.environment, stdout=subprocess.PIPE, text=True, check=True)
    return {line["question"]: line for line in map(json.loads, run.stdout.splitlines())}


class Worker:
    """A process on a tree that runs one of the programs of `_appender.py`, a line for each thing it is asked."""

    def __init__(self, tree: Tree, *arguments: object) -> None:
        command = [sys.executable, "-W", "ignore", str(BENCH / "_appender.py"), *map(str, arguments)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, env=tree.environment, stdin=pipe, stdout=pipe, text=True, bufsize=1)
        assert self.answer() == "ready"

    def ask(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a process of the benchmark died: {self._process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        """Let it end: it does when nothing more is asked."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
