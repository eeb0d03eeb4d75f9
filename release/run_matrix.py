"""Run the quick tests on other Pythons: what `make matrix` does.

    python release/run_matrix.py [python3.12 /opt/python3.13/bin/python …] [-- option of pytest …]

Each gets a copy of the working tree, .tools/matrix/<version>, with an environment of its own: the packages of
requirements.lock, and Klamm compiled for it. The tests are those of `make quick`. Without arguments these are all that
are found of python3.12, python3.13 and python3.14: in PATH, or among those that pyenv has installed.

A Python that does not start is named and skipped, and so is a free-threaded build, which Klamm refuses. The exit code
is 0 if one ran and none failed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MATRIX = ROOT / ".tools" / "matrix"
DEFAULT = ("python3.12", "python3.13", "python3.14")
VERSION = (
    "import sys, sysconfig; print('%d.%d' % sys.version_info[:2], bool(sysconfig.get_config_var('Py_GIL_DISABLED')))"
)


def main(arguments: list[str]) -> int:
    """Run the quick tests on each of these, and return the exit code."""
    pythons, options = arguments, []
    if "--" in arguments:
        at = arguments.index("--")
        pythons, options = arguments[:at], arguments[at + 1 :]
    ended: dict[str, int] = {}
    for python in pythons or DEFAULT:
        version = usable_version(python)
        if version is not None:
            ended[version] = run_quick(python, version, options)
    for version, code in ended.items():
        print(f"matrix: Python {version}: {'passed' if code == 0 else f'failed with exit code {code}'}")
    if not ended:
        print('matrix: nothing ran (make matrix PYTHONS="/path/to/python3.12 /path/to/python3.13")')
    return 0 if ended and not any(ended.values()) else 1


def usable_version(python: str) -> str | None:
    """Return the version of a Python, such as 3.13; None, and say why, if the tests cannot run on it."""
    path = find_python(python)
    answer = subprocess.run([path, "-c", VERSION], capture_output=True, text=True) if path else None
    if answer is None or answer.returncode:
        why = answer.stderr.strip().splitlines()[:1] if answer else []
        print(f"matrix: {python}: {'does not start' if answer else 'not found'}: skipped", *why)
        return None
    version, is_free_threaded = answer.stdout.split()
    if is_free_threaded == "True":
        print(f"matrix: {python}: a free-threaded build, which Klamm does not support: skipped")
        return None
    return str(version)


def find_python(name: str) -> str | None:
    """Return the path of a Python, given by a path or a name such as python3.12: in PATH, else pyenv's newest."""
    path = shutil.which(name)
    if path is not None and Path(path).parent.name != "shims":  # of pyenv's, that start a version only where it is set
        return path
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = {directory: directory / "bin" / name for directory in versions.glob(f"{name.removeprefix('python')}.*")}
    usable = [directory for directory, program in found.items() if os.access(program, os.X_OK)]
    if not usable:
        return None
    return str(found[max(usable, key=lambda directory: [int(part) for part in re.findall(r"\d+", directory.name)])])


def run_quick(python: str, version: str, options: list[str]) -> int:
    """Copy the working tree, compile it for this Python and run `make quick` there."""
    copy = MATRIX / version
    print(f"matrix: Python {version}: make quick in .tools/matrix/{version}", flush=True)
    copy_tree(copy)
    command = ["make", "quick", f"PYTHON={find_python(python)}", f"ARGS={' '.join(options)}"]
    return subprocess.run(command, cwd=copy).returncode


def copy_tree(copy: Path) -> None:
    """Let `copy` have the files of the working tree; what was compiled and installed there stays."""
    names = list_files(ROOT)
    if (copy / ".git").exists():  # a file that is gone here must not be tested there
        for name in set(list_files(copy)) - set(names):
            (copy / name).unlink(missing_ok=True)
    for name in names:
        source, target = ROOT / name, copy / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.is_file() or target.read_bytes() != source.read_bytes():  # else it would be compiled again
                shutil.copy2(source, target)
    subprocess.run(["git", "init", "-q"], cwd=copy, check=True)  # tests ask git which files there are


def list_files(tree: Path) -> list[str]:
    """Return the files of a tree that git does not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=tree, capture_output=True, check=True, text=True)
    return [name for name in listed.stdout.split("\0") if name]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
