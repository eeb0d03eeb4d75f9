"""Run mutants: what `make mutants` does.

    python -m tests.mutants.run [--native | --only-native] [-k TEXT] [--jobs N] [--no-baseline]

Each worker has a copy of the tree. For a mutant it changes the files there, builds the native modules they are part of,
runs the mutant's tests until one fails, and puts everything back. First the same tests run on the copy as it is: a test
that fails without a mutant notices nothing. Ends with 1 if that is so, or if a mutant survives.
"""

from __future__ import annotations

import argparse
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

from tests.mutants.mutant import ROOT, Mutant, all_mutants, extensions_of

TEST_TIMEOUT_S = 60
MUTANT_TIMEOUT_S = 900
PASSED, FAILED = 0, 1
"""Exit codes of pytest: all passed; a test failed. Others mean that the tests did not run."""


class Result(NamedTuple):
    mutant: Mutant
    noticed_by: str | None
    """Node id of the test that failed, without parameters; None if the mutant survived."""
    seconds: float
    output: str


class Copy:
    """A copy of the working tree in which one mutant at a time is applied."""

    def __init__(self, directory: Path) -> None:
        self.root = directory
        for file in _tracked():
            (directory / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, directory / file)
        for built in (ROOT / "src").rglob("_*.so"):
            shutil.copy2(built, directory / built.relative_to(ROOT))

    def run(self, tests: Iterable[str], *options: str) -> tuple[int, str]:
        """Run pytest on `tests` and return its exit code and output."""
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--timeout={TEST_TIMEOUT_S}"]
        environment = {**os.environ, "PYTHONPATH": f"{self.root / 'src'}{os.pathsep}{self.root}"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # what is compiled once serves all mutants
        with tempfile.TemporaryFile("w+", errors="replace") as file:  # a process that outlives a test keeps a pipe open
            process = subprocess.Popen(
                [*command, *options, *tests],
                cwd=self.root,
                env=environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = process.wait(MUTANT_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                code = FAILED
            finally:
                _end_group(process)
            file.seek(0)
            return code, file.read()

    def test(self, mutant: Mutant) -> Result:
        """Apply `mutant`, run its tests and undo it."""
        begin = time.monotonic()
        broken = mutant.broken(self.root)
        before = {file: (self.root / file).read_bytes() for file in broken}
        modules = extensions_of(broken)
        built = {path: path.read_bytes() for name in modules for path in self._built(name)}
        try:
            for file, text in broken.items():
                self._write(file, text.encode())
            if modules:
                self._build(modules)
            code, output = self.run(mutant.tests, "-x", "--tb=short")
        finally:
            for file, data in before.items():
                self._write(file, data)
            for path, data in built.items():
                path.write_bytes(data)
        if code not in (PASSED, FAILED):
            raise RuntimeError(
                f"{mutant.name}: its tests could not be run (pytest ended with {code}):\n{output[-3000:]}"
            )
        return Result(mutant, _failed_test(output) if code == FAILED else None, time.monotonic() - begin, output)

    def _write(self, file: str, data: bytes) -> None:
        path = self.root / file
        path.write_bytes(data)
        # bytecode is valid for a second and a size of the source, and a mutant may have both of its predecessor
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()

    def _built(self, module: str) -> list[Path]:
        path = self.root / "src" / Path(*module.split("."))
        return list(path.parent.glob(f"{path.name}.*.so"))

    def _build(self, modules: list[str]) -> None:
        for path in [path for name in modules for path in self._built(name)]:
            path.unlink()
        command = [sys.executable, "-c", "from setuptools import setup; setup()", "-q", "build_ext", "--inplace"]
        built = subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=False)
        if built.returncode:
            raise RuntimeError(f"the mutant does not compile:\n{built.stdout[-2000:]}{built.stderr[-2000:]}")


def _tracked() -> list[str]:
    """Return the files that are, or would be, committed."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [line for line in listed.stdout.splitlines() if (ROOT / line).is_file()]


def _end_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def _failed_test(output: str) -> str:
    failed = re.search(r"^(?:FAILED|ERROR) (tests/\S+::\w+)", output, re.MULTILINE)
    return failed[1] if failed else "timeout"


def run_all(mutants: list[Mutant], jobs: int, *, with_baseline: bool) -> list[Result]:
    """Run `mutants`, `jobs` at a time, printing a line for each. Return the results in the order of `mutants`."""
    results: dict[str, Result] = {}
    with tempfile.TemporaryDirectory(prefix="klamm-mutants-") as directory:
        copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for number in range(jobs):
            copies.put(Copy(Path(directory) / str(number)))
        if with_baseline:
            copy = copies.get()
            _check_baseline(copy, mutants)
            copies.put(copy)
        stop = threading.Event()

        def test(mutant: Mutant) -> Result | None:
            copy = copies.get()
            try:
                return None if stop.is_set() else copy.test(mutant)
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(jobs) as pool:
            running = [pool.submit(test, mutant) for mutant in mutants]
            try:
                for future in as_completed(running):
                    if (result := future.result()) is not None:
                        results[result.mutant.name] = result
                        _print_result(len(results), len(mutants), result)
            finally:
                stop.set()
    return [results[mutant.name] for mutant in mutants]


def _check_baseline(copy: Copy, mutants: list[Mutant]) -> None:
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    begin = time.monotonic()
    code, output = copy.run(tests, "--tb=short")
    if code != PASSED:
        print(output[-5000:])
        raise SystemExit("mutants: the tests fail without a mutant (pytest's output is above)")
    print(f"mutants: their tests pass on the code as it is ({time.monotonic() - begin:.0f} s)", flush=True)


def _print_result(number: int, count: int, result: Result) -> None:
    verdict = f"killed by {result.noticed_by}" if result.noticed_by else "SURVIVED"
    print(f"[{number}/{count}] {result.mutant.name}: {verdict} ({result.seconds:.1f} s)", flush=True)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__.splitlines()[0])
    parser.add_argument("--native", action="store_true", help="also those that need a build")
    parser.add_argument("--only-native", action="store_true", help="only those that need a build")
    parser.add_argument("-k", metavar="TEXT", default="", help="only those whose name or files contain TEXT")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time [default: 2]")
    parser.add_argument("--no-baseline", action="store_true", help="do not run the tests without a mutant first")
    options = parser.parse_args(arguments)
    mutants = [
        mutant
        for mutant in all_mutants()
        if (options.native or mutant.is_native == options.only_native)
        and (options.k in mutant.name or any(options.k in file for file in mutant.files))
    ]
    if not mutants:
        print("mutants: none was chosen")
        return 1
    begin = time.monotonic()
    results = run_all(mutants, options.jobs, with_baseline=not options.no_baseline)
    survivors = [result.mutant.name for result in results if not result.noticed_by]
    killed = len(results) - len(survivors)
    print(f"mutants: {killed} of {len(results)} killed in {time.monotonic() - begin:.0f} s")
    for name in survivors:
        print(f"mutants: survived: {name}")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
