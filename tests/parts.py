"""Run all tests in parts, several at a time: what `make test` and `make quick` do.

    python tests/parts.py [--quick] [option of pytest …]
    python tests/parts.py [--quick] -k name, or a path: one pytest, with these arguments

A process for each part: librdkafka and the JVM leave threads and descriptors behind, and above the 1,024th descriptor
select() fails for every user of it. One part more at a time than there are cores, since most tests wait: for a disk, a
timeout, a process that was killed; and two more while cores are idle nevertheless.

A failure is printed when it happens, a part when it ends, and a line of progress at least every half minute. A part in
which nothing happens for SILENCE_S is killed and counts as failed. Ctrl-C ends all parts.

Temporary files are in memory (/dev/shm) where there is enough of it, but for parts whose tests need a disk. Those of a
failed part are kept until the next run.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

HERE = Path(__file__).parent
ROOT = HERE.parent
CACHE = ROOT / ".pytest_cache"
NOTHING_CHOSEN = 5  # an exit code of pytest's: no test fits the arguments
AT_ONCE = max(3, (os.cpu_count() or 0) + 1)  # one more than cores: most tests wait, too
IDLE_MORE = 2  # parts that may run beyond that, started one by one while cores are idle
IDLE_S, IDLE_SHARE = 3.0, 0.08  # a further part starts after so long without a start in which that much CPU was idle
STAT = Path("/proc/stat")
PROGRESS_S = 30.0
SLOW_S, SLOWEST = 5.0, 10  # when a part ends, so many of its tests are listed that took longer than that
SILENCE_S = 400.0  # longer than a test may take (pyproject.toml: timeout)
MEMORY = Path("/dev/shm")
MEMORY_FREE = 2 << 30  # bytes that must be free in memory for temporary files to go there
INTERRUPTED = 130


@dataclass(frozen=True)
class Part:
    name: str
    folders: tuple[str, ...] = ()
    """Paths below tests/; a part without any has all that no other part names."""
    quick: bool = True
    """Whether `make quick` runs it."""
    disk: bool = False
    """Whether its tests need temporary files on a disk."""


# Tests of tests/crash that cut, kill at a step or damage, and look at what is left: as good in memory, where a sync
# costs nothing. The page cache survives a kill whatever lies below it, and a power cut is simulated. Those that fork
# for each step come first: a process that has grown by then takes longer to fork.
_LEFTOVERS = (
    *("killed_writer", "killed_compaction", "killed_transaction", "on_disk", "serve_power_cut"),
    *("transaction_power_cut", "power_cut", "missing_files", "damage"),
)

# The longest first, and short ones at the end, so that no core waits for the last part. Tests that import pandas,
# pyarrow and polars are apart from those that fork: the larger a process, the longer each fork of it takes.
PARTS = (
    Part("pipelines", ("spark/pipelines",), quick=False),
    Part("leftovers", tuple(f"crash/test_{name}.py" for name in _LEFTOVERS), quick=False),
    Part("crash", ("crash",), quick=False, disk=True),
    Part("interop", ("interop",), quick=False),
    Part("cluster", ("cluster",), quick=False),
    Part("spark", ("spark",), quick=False),
    Part("others"),
    Part("kafka", ("kafka",)),
    Part("client", ("client",)),
    Part("cli", ("cli",)),
    Part("console", ("console", "browser")),
    Part("log", ("disk", "log")),
    Part("store", ("store",)),
    Part("batch", ("batch", "arrow")),
    Part("aio", ("aio",)),
)
QUICK_TESTS = ("-m", "not soak and not jvm")


def folders_of(part: Part, parts: Sequence[Part] = PARTS) -> list[str]:
    """Arguments of pytest that choose the tests of a part."""
    others = [folder for other in parts for folder in other.folders if other != part]
    return [
        *(str(HERE / folder) for folder in part.folders or ["."]),
        *(f"--ignore={HERE / folder}" for folder in others),
    ]


def has_room(directory: Path) -> bool:
    """Return whether there is enough space, and programs can be run there: containers often forbid that."""
    if not os.access(directory, os.W_OK):
        return False
    return shutil.disk_usage(directory).free >= MEMORY_FREE and not os.statvfs(directory).f_flag & os.ST_NOEXEC


class Temporary:
    """Directories for the temporary files of this run: one in memory, if there is enough, and one on disk."""

    def __init__(self) -> None:
        self.disk = self._make(Path(tempfile.gettempdir()))
        self.memory = self._make(MEMORY) if has_room(MEMORY) else self.disk

    @staticmethod
    def _make(parent: Path) -> Path:
        """Make a directory, and remove those of runs that have ended."""
        for path in parent.glob(f"klamm-tests-{os.getuid()}-*"):
            if not Path(f"/proc/{path.name.rpartition('-')[2]}").exists():
                shutil.rmtree(path, ignore_errors=True)
        made = parent / f"klamm-tests-{os.getuid()}-{os.getpid()}"
        made.mkdir(exist_ok=True)
        return made

    def of(self, part: Part) -> Path:
        made = (self.disk if part.disk else self.memory) / part.name
        made.mkdir()
        return made

    def close(self) -> None:
        """Remove both, unless a part that failed has left files there."""
        for path in {self.memory, self.disk}:
            if not any(each.is_dir() for each in path.iterdir()):
                shutil.rmtree(path)


class Run:
    """One part, as it runs: a pytest and what it has reported so far."""

    def __init__(self, part: Part, arguments: list[str], temporary: Temporary) -> None:
        self.part = part
        self.collected = self.ended = self.failed = 0
        self.test: str | None = None
        self.begin = self.heard = time.monotonic()
        self.seconds = self.cpu_seconds = 0.0
        self.code: int | None = None
        self.temporary = temporary.of(part)
        events = self.temporary.with_suffix(".events")
        events.touch()
        self._events: IO[bytes] = events.open("rb")
        self._rest = b""
        self._output = self.temporary.with_suffix(".output")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.progress", f"--progress={events}"]
        # A cache for each part: they would overwrite each other's failures. With --lf, parts without any run nothing.
        command += ["-o", f"cache_dir={CACHE / part.name}", "--last-failed-no-failures=none"]
        command += [f"--basetemp={self.temporary / 'tests'}", "-o", "tmp_path_retention_policy=failed"]
        command += [f"--durations={SLOWEST}", f"--durations-min={SLOW_S}"]
        with self._output.open("wb") as output:  # not a pipe: processes that outlive a test may hold it open
            self.process = subprocess.Popen(
                [*command, *arguments],
                cwd=ROOT,
                env={**os.environ, "TMPDIR": str(self.temporary)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        """What pytest has printed, without its dots."""
        lines = self._output.read_text(errors="replace").splitlines(keepends=True)
        return "".join(line for line in lines if not re.fullmatch(r"([.FEsxX]+ *\[ *\d+%\]|[.FEsxX]+|)\n", line))

    def look(self) -> list[str]:
        """Take in what has happened since the last look. Return the failures, as text to print."""
        failures = []
        ended = self._wait(0)
        *lines, self._rest = (self._rest + self._events.read()).split(b"\n")
        for line in lines:
            event = json.loads(line)
            self.heard = time.monotonic()
            if "collected" in event:
                self.collected = event["collected"]
            elif "start" in event:
                self.test = event["start"]
            elif "end" in event:
                self.test = None
                self.ended += 1
                self.failed += event["failed"]
            else:
                failures.append(f"{f' {self.part.name}: ' + event['failure'] + ' ':_^120}\n{event['text']}")
        if not ended and time.monotonic() - self.heard > SILENCE_S:
            failures.append(self._give_up())
        return failures

    def _wait(self, seconds: float) -> bool:
        """Wait so long at most for pytest to end; return whether it has."""
        deadline = time.monotonic() + seconds
        while self.code is None:
            pid, status, usage = os.wait4(self.process.pid, os.WNOHANG)
            if pid:
                self.process.returncode = self.code = os.waitstatus_to_exitcode(status)
                self.seconds = time.monotonic() - self.begin
                self.cpu_seconds = usage.ru_utime + usage.ru_stime
                self._kill_group()  # what it has left running
            elif time.monotonic() >= deadline:
                break
            else:
                time.sleep(0.05)
        return self.code is not None

    def _give_up(self) -> str:
        """Kill a part that hangs, and return where it did. The tracebacks of its threads are in its output."""
        self.process.send_signal(signal.SIGABRT)
        self._wait(10)
        self.kill()
        where = self.test or ("between tests" if self.collected else "collecting tests")
        return f"{f' {self.part.name}: hangs: {where} ':_^120}\nnothing has happened for {SILENCE_S:.0f} s"

    def interrupt(self) -> None:
        if self.code is None:
            self.process.send_signal(signal.SIGINT)

    def kill(self, wait_s: float = 0) -> None:
        """Kill pytest and its process group."""
        if not self._wait(wait_s):
            self._kill_group()
            self._wait(60)

    def _kill_group(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def progress(self) -> str:
        """Say where it is: how many tests, how long, and which test if that one takes long."""
        slow = ""
        if self.test and (seconds := time.monotonic() - self.heard) > PROGRESS_S:
            slow = f", {seconds:.0f} s in {self.test}"
        failed = f", {self.failed} failed" if self.failed else ""
        seconds = time.monotonic() - self.begin
        return f"{self.part.name} {self.ended}/{self.collected or '?'} in {seconds:.0f} s{failed}{slow}"

    def close(self) -> None:
        """Remove the temporary files, unless the part failed."""
        self._events.close()
        if not self.code or self.code == NOTHING_CHOSEN:
            shutil.rmtree(self.temporary, ignore_errors=True)


def say(text: str) -> None:
    """Write text and newline in one piece, at once."""
    sys.stdout.write(text.rstrip("\n") + "\n")
    sys.stdout.flush()


class Idle:
    """How busy the machine has been since the last start of a part. Where that is not known (STAT), it is busy."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self._begin = time.monotonic()
        self._before = self._ticks()

    @staticmethod
    def _ticks() -> tuple[int, int]:
        """Return how long all cores have been idle, and altogether."""
        try:
            with STAT.open() as file:
                ticks = list(map(int, file.readline().split()[1:9]))  # the rest is part of these
        except OSError:
            return 0, 0
        return ticks[3] + ticks[4], sum(ticks)  # idle, and idle while a disk is busy

    def is_long(self) -> bool:
        """Return whether cores were idle for the last IDLE_S, and begin the next ones."""
        if time.monotonic() - self._begin < IDLE_S:
            return False
        idle, total = (now - before for now, before in zip(self._ticks(), self._before, strict=True))
        self.begin()
        return idle > IDLE_SHARE * total


def run_parts(parts: Sequence[Part], arguments: list[str]) -> list[Run]:
    """Run the parts, and return how each went."""
    waiting, running, done = list(parts), list[Run](), list[Run]()
    temporary = Temporary()
    said = time.monotonic()
    idle = Idle()
    try:
        while waiting or running:
            while waiting and (len(running) < AT_ONCE or (len(running) < AT_ONCE + IDLE_MORE and idle.is_long())):
                part = waiting.pop(0)
                running.append(Run(part, [*folders_of(part), *arguments], temporary))
                idle.begin()
            time.sleep(0.1)
            for run in running:
                for failure in run.look():
                    say(failure)
            for run in [run for run in running if run.code is not None]:
                for failure in run.look():
                    say(failure)
                running.remove(run)
                done.append(run)
                run.close()
                kept = f"its temporary files are in {run.temporary}" if run.temporary.exists() else ""
                say(f"---- {run.part.name}: {run.seconds:.0f} s ({run.cpu_seconds:.0f} s CPU)\n{run.output}{kept}")
                said = time.monotonic()
            if running and time.monotonic() - said > PROGRESS_S:
                later = f"; later: {', '.join(part.name for part in waiting)}" if waiting else ""
                say(f"test: {'; '.join(run.progress() for run in running)}{later}")
                said = time.monotonic()
    finally:
        for run in running:  # Ctrl-C, and what else ends us
            run.interrupt()
        for run in running:
            run.kill(5)
            shutil.rmtree(run.temporary, ignore_errors=True)
        temporary.close()
    return done


def summarize(done: Sequence[Run], seconds: float) -> int:
    """Print how long each part took and which failed; return the exit code."""
    chosen = [run for run in done if run.code != NOTHING_CHOSEN]
    took = ", ".join(f"{run.part.name} {run.seconds:.0f} s ({run.cpu_seconds:.0f} s CPU)" for run in chosen)
    cpu_seconds = sum(run.cpu_seconds for run in chosen)
    say(f"---- {took}; in all {seconds:.0f} s ({cpu_seconds:.0f} s CPU), {sum(run.ended for run in chosen)} tests")
    failed = [run.part.name for run in chosen if run.code]
    if failed or not chosen:
        say(f"test: failed: {', '.join(failed) or 'no test was chosen'}")
        return 1
    return 0


def main(arguments: list[str], parts: Sequence[Part] = PARTS) -> int:
    quick = "--quick" in arguments
    arguments = [argument for argument in arguments if argument != "--quick"]
    chosen = [part for part in parts if part.quick or not quick]
    if quick:
        arguments = [*QUICK_TESTS, *arguments]
    if any(not argument.startswith("-") or argument.startswith("-k") for argument in arguments[2 * quick :]):
        others = [f"--ignore={HERE / folder}" for part in parts if part not in chosen for folder in part.folders]
        return subprocess.run([sys.executable, "-m", "pytest", *others, *arguments]).returncode
    begin = time.monotonic()
    return summarize(run_parts(chosen, arguments), time.monotonic() - begin)


def interruptible(run: Callable[[], int]) -> int:
    """Let SIGTERM end it as Ctrl-C does; either way parts are ended, too."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return run()
    except KeyboardInterrupt:
        say("test: interrupted")
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(interruptible(lambda: main(sys.argv[1:])))
