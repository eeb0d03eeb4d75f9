"""Run mutants: what `make mutants` does.

    python -m tests.mutants.run [--native | --only-native] [-k TEXT] [--from N] [--jobs N] [--no-baseline] [--no-record]

Each worker has a copy of the tree. For a mutant it changes the files there, builds the native modules they are part of,
runs the mutant's tests until one fails, and puts everything back. First the same tests run on the copy as it is: a test
that fails without a mutant notices nothing. Ends with 1 if that is so, or if a mutant survives.

A mutant that hangs is noticed: pytest ends a test after TEST_TIMEOUT_S, unless it waits in native code, which runs no
signal handler. So the processes of a run that writes no line for HUNG_S are killed, and the last test counts as failed.

The tests that noticed are written into docs/internals/mutants.md, each at once, and a line about the run into
tests/soak.jsonl at its end. One that was interrupted (Ctrl-C, SIGTERM) keeps what it has found; `--from` goes on there.
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
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

from tests import ledger
from tests.mutants import report
from tests.mutants.mutant import ROOT, Mutant, all_mutants, extensions_of

TEST_TIMEOUT_S = 120
HUNG_S = TEST_TIMEOUT_S + 30
MUTANT_TIMEOUT_S = 900
PASSED, FAILED = 0, 1
"""Exit codes of pytest: all passed; a test failed. Others mean that the tests did not run."""
BUILD_FAILED = 100
_POLL_S = 0.2


class BaselineFailed(Exception):
    """Tests fail without a mutant."""


class Result(NamedTuple):
    mutant: Mutant
    noticed_by: str | None
    """Node id of the test that failed, without parameters; None if the mutant survived."""
    is_timeout: bool
    """Whether that test failed because it took longer than TEST_TIMEOUT_S or hung: a mutant may let it wait forever."""
    seconds: float
    output: str


class Copy:
    """A copy of the working tree in which one mutant at a time is applied."""

    def __init__(self, directory: Path, stop: threading.Event) -> None:
        self.root = directory
        self.stop = stop
        for file in _tracked():
            (directory / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, directory / file)
        for built in (ROOT / "src").rglob("_*.so"):
            shutil.copy2(built, directory / built.relative_to(ROOT))
        project = directory / "pyproject.toml"
        project.write_text(project.read_text().replace('"-O3"', '"-O1", "-g0"'))  # a build in a third of the time

    def run(self, tests: Iterable[str], *options: str, limit_s: float | None = MUTANT_TIMEOUT_S) -> tuple[int, str]:
        """Run pytest on `tests` and return its exit code and output."""
        command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "--tb=short"]
        environment = {**os.environ, "PYTHONPATH": f"{self.root / 'src'}{os.pathsep}{self.root}"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # what is compiled once serves all mutants
        return run_bounded(
            [*command, *options, *tests],
            limit_s,
            HUNG_S if limit_s is not None else None,
            self.stop,
            cwd=self.root,
            env=environment,
        )

    def test(self, mutant: Mutant) -> Result:
        """Apply `mutant`, run its tests and undo it."""
        begin = time.monotonic()
        code, output = self._run_broken(mutant)
        if code < 0:  # a signal: the mutant crashed the interpreter in a test
            code = FAILED
        noticed_by = _failed_test(output) if code == FAILED else None
        if code not in (PASSED, FAILED):
            output += (
                f"\nmutants: the tests of {mutant.name!r} could not be run: pytest, or the build, ended with {code}"
            )
        return Result(mutant, noticed_by, bool(_TIMEOUT.search(output)), time.monotonic() - begin, output)

    def _run_broken(self, mutant: Mutant) -> tuple[int, str]:
        broken = mutant.broken(self.root)
        before = {file: (self.root / file).read_bytes() for file in broken}
        modules = extensions_of(broken)
        built = {path: path.read_bytes() for name in modules for path in self._built(name)}
        try:
            for file, text in broken.items():
                self._write(file, text.encode())
            if modules and (failed := self._build(modules)):
                return failed
            return self.run(mutant.tests, "-x", f"--timeout={TEST_TIMEOUT_S}")
        finally:
            for file, data in before.items():
                self._write(file, data)
            for path, data in built.items():
                path.write_bytes(data)

    def _write(self, file: str, data: bytes) -> None:
        path = self.root / file
        path.write_bytes(data)
        # bytecode is valid for a second and a size of the source, and a mutant may have both of its predecessor
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()

    def _built(self, module: str) -> list[Path]:
        path = self.root / "src" / Path(*module.split("."))
        return list(path.parent.glob(f"{path.name}.*.so"))

    def _build(self, modules: list[str]) -> tuple[int, str] | None:
        """Build `modules`. Return None, or how it failed: an exit code that is none of pytest's, and the output."""
        for path in [path for name in modules for path in self._built(name)]:
            path.unlink()
        command = [sys.executable, "-c", "from setuptools import setup; setup()", "-q", "build_ext", "--inplace"]
        built = subprocess.run(command, cwd=self.root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return (BUILD_FAILED, built.stdout) if built.returncode else None


_HUNG = "mutants: killed, for it wrote no line for"
_TIMEOUT = re.compile(rf"Timeout \(?>\d|^\++ Timeout \++$|^{_HUNG} ", re.MULTILINE)


def run_bounded(
    command: list[str], limit_s: float | None, hung_s: float | None, stop: threading.Event, **options: Any
) -> tuple[int, str]:
    """Run a command and return its exit code and output. After `limit_s`, after `hung_s` without output, and when
    `stop` is set, its processes are killed, and the code is FAILED.
    """
    begin = time.monotonic()
    with tempfile.TemporaryFile("w+", errors="replace") as file:  # a process that outlives a test keeps a pipe open
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True, **options)
        size, changed = 0, begin
        code, why = None, ""
        try:
            while code is None and not why:
                try:
                    code = process.wait(_POLL_S)
                except subprocess.TimeoutExpired:
                    now = time.monotonic()
                    if (written := os.fstat(file.fileno()).st_size) != size:
                        size, changed = written, now
                    if stop.is_set():
                        why = "mutants: killed, for the run was interrupted"
                    elif hung_s is not None and now - changed > hung_s:
                        why = f"{_HUNG} {hung_s:g} s"
                    elif limit_s is not None and now - begin > limit_s:
                        why = f"mutants: killed after {limit_s:g} s"
        finally:
            _end_group(process)
        file.seek(0)
        return (FAILED if code is None else code), f"{file.read()}\n{why}"


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
    """Return the node id, without parameters, of the test that failed, or of the one that ran when pytest was ended."""
    if failed := re.search(r"^(?:FAILED|ERROR) (tests/\S+::\w+)", output, re.MULTILINE):
        return failed[1]
    return re.findall(r"^(tests/\S+?::\w+)", output, re.MULTILINE)[-1]


def run_all(
    mutants: list[Mutant], jobs: int, *, with_baseline: bool, on_result: Callable[[Result], None]
) -> list[Result]:
    """Run `mutants`, `jobs` at a time. Call `on_result` with each result, and return them in the order of `mutants`;
    after an interrupt, those that there are.
    """
    results: dict[str, Result] = {}
    stop = threading.Event()
    with tempfile.TemporaryDirectory(prefix="klamm-mutants-") as directory:
        made = [Copy(Path(directory) / str(number), stop) for number in range(jobs)]
        if with_baseline:
            _check_baseline(made, mutants)
        copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for copy in made:
            copies.put(copy)

        def test(mutant: Mutant) -> Result | None:
            copy = copies.get()
            try:
                if stop.is_set():
                    return None
                result = copy.test(mutant)
                return None if stop.is_set() else result
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(jobs) as pool:
            running = [pool.submit(test, mutant) for mutant in mutants]
            try:
                for future in as_completed(running):
                    if (result := future.result()) is not None:
                        results[result.mutant.name] = result
                        on_result(result)
            except KeyboardInterrupt:
                print("mutants: interrupted", flush=True)
            finally:
                stop.set()
    return [results[mutant.name] for mutant in mutants if mutant.name in results]


def _check_baseline(copies: list[Copy], mutants: list[Mutant]) -> None:
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    shares = [tests[number :: len(copies)] for number in range(min(len(copies), len(tests)))]
    begin = time.monotonic()
    with ThreadPoolExecutor(len(copies)) as pool:
        ended = list(pool.map(lambda copy, share: copy.run(share, limit_s=None), copies, shares))
    failed = [output for code, output in ended if code != PASSED]
    if failed:
        raise BaselineFailed("\n".join(output[-5000:] for output in failed))
    print(f"mutants: their tests pass on the code as it is ({time.monotonic() - begin:.0f} s)", flush=True)


def _print_result(number: str, result: Result) -> None:
    verdict = f"killed by {result.noticed_by}{', timed out' * result.is_timeout}" if result.noticed_by else "SURVIVED"
    print(f"[{number}] {result.mutant.name}: {verdict} ({result.seconds:.1f} s)", flush=True)
    if not result.noticed_by:
        print(result.output[-3000:], flush=True)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__.splitlines()[0])
    parser.add_argument("--native", action="store_true", help="also those that need a build")
    parser.add_argument("--only-native", action="store_true", help="only those that need a build")
    parser.add_argument("-k", metavar="TEXT", default="", help="only those whose name or files contain TEXT")
    parser.add_argument("--from", dest="first", metavar="N", type=int, default=1, help="begin with the N-th of these")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time [default: 2]")
    parser.add_argument("--no-baseline", action="store_true", help="do not run the tests without a mutant first")
    parser.add_argument(
        "--no-record", action="store_true", help="write neither docs/internals/mutants.md nor soak.jsonl"
    )
    options = parser.parse_args(arguments)
    chosen = [
        mutant
        for mutant in all_mutants()
        if (options.native or mutant.is_native == options.only_native)
        and (options.k in mutant.name or any(options.k in file for file in mutant.files))
    ]
    mutants = chosen[options.first - 1 :]
    if not mutants:
        print("mutants: none was chosen")
        return 1
    begin = time.monotonic()
    failures, killed = ["the tests without a mutant"], None

    def record(result: Result) -> None:
        _print_result(f"{chosen.index(result.mutant) + 1}/{len(chosen)}", result)
        if result.noticed_by and not options.no_record:
            report.write({result.mutant.name: result.noticed_by})

    try:
        results = run_all(mutants, options.jobs, with_baseline=not options.no_baseline, on_result=record)
    except BaselineFailed as error:
        print(f"{error}\nmutants: the tests fail without a mutant (pytest's output is above)")
    else:
        survivors = [result for result in results if not result.noticed_by]
        failures, killed = [result.mutant.name for result in survivors], len(results) - len(survivors)
        print(f"mutants: {killed} of {len(results)} killed in {time.monotonic() - begin:.0f} s")
        for name in failures:
            print(f"mutants: survived: {name}")
        if len(results) < len(mutants):
            failures.append(f"interrupted after {len(results)} of {len(mutants)}")
    code = 1 if failures else 0
    if not options.no_record:
        ledger.append(
            "mutants",
            arguments,
            is_partial=bool(options.k) or options.first > 1 or not options.native,
            seconds=time.monotonic() - begin,
            passed=killed,
            failures=failures,
            exit_code=code,
        )
    return code


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell lets what it runs in the background ignore the first
        signal.signal(number, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
