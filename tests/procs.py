"""Processes for tests: forked, stopped, killed, and never waited for without a bound."""

from __future__ import annotations

import ctypes
import os
import pickle
import select
import signal
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn, TypeVar

PATIENCE = 60.0  # seconds that nothing here takes, on a machine that has other things to do
_FIRST_PAUSE_S, _PAUSE_S = 0.0005, 0.005  # of `until`: each pause is a tenth longer, since looking takes a core, too

STRICT = ("-W", "error", "-W", "ignore:Binding:DeprecationWarning")
"""Of a Python: warnings are errors, but for one of CPython 3.12.0 to 3.12.3 about SQLite's ?1 (pyproject.toml)."""

T = TypeVar("T")


def until(holds: Callable[[], T | None], what: str, seconds: float = PATIENCE) -> T:
    """The first true answer of `holds`."""
    deadline = time.monotonic() + seconds
    pause_s = _FIRST_PAUSE_S
    while not (answer := holds()):
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.1, _PAUSE_S)
    return answer


def readable(fd: int, seconds: float) -> bool:
    """Whether there is something to read, within that time. (select() knows the first 1,024 descriptors only.)"""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with_parent() -> None:
    """Get SIGKILL when the thread that forked this process ends, so that an interrupted test leaves no process."""
    if _LIBC is not None:
        _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def threads_named(beginning: str) -> list[str]:
    """Return the names of this process's threads, of programs in C, too, that begin so."""
    names = []
    for path in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):  # it has just ended
            names.append(path.read_text().rstrip("\n"))
    return [name for name in names if name.startswith(beginning)]


_SIZE = struct.Struct("q")


class Child:
    """A forked process that runs `action` and returns its result, or its traceback, by a pipe.

    It is killed at the latest when its parent ends. Waiting for it is bounded, and takes in what it writes to the
    pipe: a result may be larger than a pipe. The size comes first: grandchildren may hold the pipe open.

    A lock that another thread holds while this one forks is never released in the child. Klamm's own are seen to; those
    of librdkafka are not, so there must be no client of it then.
    """

    def __init__(self, action: Callable[[], object]) -> None:
        assert not (left := threads_named("rdk:")), (
            f"fork beside threads of librdkafka, whose locks it may keep: {left}"
        )
        self.status: int | None = None
        self._pipe, pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        self._received = bytearray()
        self._ended_pipe = False
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        self.pid = os.fork()
        if not self.pid:
            self._run(action, pipe, parent)
        os.close(pipe)

    def _run(self, action: Callable[[], object], pipe: int, parent: int) -> NoReturn:
        """In the child, which must not go on into the parent's tests, whatever happens."""
        code = 1
        try:
            die_with_parent()
            if os.getppid() != parent:  # it has ended already
                os._exit(code)
            os.close(self._pipe)
            try:
                result, code = pickle.dumps((True, action())), 0
            except BaseException:
                text = traceback.format_exc()
                print(text, file=sys.stderr)
                result = pickle.dumps((False, text))
            sys.stdout.flush()
            sys.stderr.flush()
            with open(pipe, "wb") as file:
                file.write(_SIZE.pack(len(result)) + result)
        finally:
            os._exit(code)

    def _receive(self) -> bool:
        """Take in what is in the pipe. Return whether there was anything."""
        before = len(self._received)
        while not self._ended_pipe:
            try:
                data = os.read(self._pipe, 1 << 20)
            except BlockingIOError:
                break
            self._received += data
            self._ended_pipe = not data
        return len(self._received) > before

    def _look(self, flags: int = 0) -> bool:
        """Whether it has ended; with WUNTRACED, or was stopped."""
        if self.status is None:
            self._receive()
            pid, status = os.waitpid(self.pid, os.WNOHANG | flags)
            if pid and os.WIFSTOPPED(status):
                return True
            if pid:
                self.status = status
        return self.status is not None

    @property
    def running(self) -> bool:
        return not self._look()

    def ended(self, seconds: float = PATIENCE) -> int:
        """Wait until it has ended, and return its status, as os.waitpid returns it."""
        deadline = time.monotonic() + seconds
        while not self._look():
            if time.monotonic() >= deadline:
                raise AssertionError(f"process {self.pid} ends: not within {seconds} s\n{threads_of(self.pid)}")
            if self._ended_pipe:
                time.sleep(0.0002)  # it is about to end
            else:
                readable(self._pipe, min(0.01, seconds))  # wakes when it ends, unless a grandchild has the pipe, too
        assert self.status is not None
        return self.status

    def stopped(self, seconds: float = PATIENCE) -> bool:
        """Wait until SIGSTOP has hit it, or it has ended. Return whether it is stopped."""
        until(lambda: self._look(os.WUNTRACED), f"process {self.pid} stops", seconds)
        return self.status is None

    def _result(self) -> tuple[bool, Any]:
        """Whether `action` returned, and what; or why not."""
        assert self.status is not None
        self._receive()
        if len(self._received) < _SIZE.size:
            return False, ""  # it was killed, or called os._exit
        assert len(self._received) == _SIZE.size + _SIZE.unpack_from(self._received)[0]
        has_returned, result = pickle.loads(memoryview(self._received)[_SIZE.size :])
        return has_returned, result

    @property
    def error(self) -> str:
        """The traceback of `action`; empty if it has returned, or was killed."""
        has_returned, result = self._result()
        return "" if has_returned else result

    def answer(self, seconds: float = PATIENCE) -> Any:
        """Wait for the result of `action`. That it failed, or was killed, is the test's failure, too."""
        status = self.ended(seconds)
        has_returned, result = self._result()
        assert status == 0, f"a child ended by {how_ended(status)}\n{'' if has_returned else result}"
        assert has_returned, "a child ended without an answer"
        return result

    def signal(self, number: int) -> None:
        if self.running:
            os.kill(self.pid, number)

    def go_on(self) -> None:
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.ended()

    def close(self) -> None:
        """Kill it, unless it has ended."""
        self.kill()
        self._receive()
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe, self._ended_pipe = -1, True


def threads_of(pid: int) -> str:
    """Return what each thread of a process waits in, as far as the kernel tells: a line a thread."""
    lines = []
    for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
        facts = []
        for name in ("comm", "wchan", "syscall"):
            with suppress(OSError):
                facts.append((task / name).read_text().strip())
        lines.append(f"  {task.name} {' '.join(facts)}")
    return "\n".join(lines)


def how_ended(status: int) -> str:
    """What os.waitpid returns, in words."""
    code = os.waitstatus_to_exitcode(status)
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


@contextmanager
def children() -> Iterator[Callable[[Callable[[], object]], Child]]:
    """Children that do not outlive the block."""
    made: list[Child] = []

    def start(action: Callable[[], object]) -> Child:
        made.append(Child(action))
        return made[-1]

    try:
        yield start
    finally:
        for child in made:
            child.close()


def asleep(who: Child | threading.Thread) -> None:
    """Wait until the process, or the thread of this one, sleeps in the kernel, and still does a moment later."""
    number = who.pid if isinstance(who, Child) else who.native_id
    state = Path(f"/proc/{number}/stat" if isinstance(who, Child) else f"/proc/self/task/{number}/stat")

    def sleeps() -> bool:
        for _ in range(3):
            if state.read_text().rsplit(") ", 1)[1][0] != "S":
                return False
            time.sleep(0.003)
        return True

    until(sleeps, f"{number} sleeps")


class Flag:
    """Something one process says and others wait for: a file that is there or not."""

    def __init__(self, path: os.PathLike[str] | str) -> None:
        self.path = os.fspath(path)

    def __bool__(self) -> bool:
        return os.path.exists(self.path)

    def up(self) -> None:
        with open(self.path, "wb"):
            pass

    def down(self) -> None:
        os.unlink(self.path)

    def wait(self, seconds: float = PATIENCE) -> None:
        until(lambda: bool(self), self.path, seconds)


__all__ = [
    "PATIENCE",
    "Child",
    "Flag",
    "asleep",
    "children",
    "die_with_parent",
    "how_ended",
    "readable",
    "threads_named",
    "threads_of",
    "until",
]
