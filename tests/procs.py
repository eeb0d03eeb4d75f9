"""Processes for tests: forked, stopped, killed, and never waited for without a bound."""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

PATIENCE = 60.0  # seconds that nothing here takes, on a machine that has other things to do

T = TypeVar("T")


def until(holds: Callable[[], T], what: str, seconds: float = PATIENCE) -> T:
    """The first true answer of `holds`."""
    deadline = time.monotonic() + seconds
    while not (answer := holds()):
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.0005)
    return answer


def readable(fd: int, seconds: float) -> bool:
    """Whether there is something to read, within that time. (select() knows the first 1,024 descriptors only.)"""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


class Child:
    """A forked process that runs `action` and hands its answer back. Killed at the latest when the test ends."""

    def __init__(self, action: Callable[[], object]) -> None:
        self._answer, answer = os.pipe()
        self.status: int | None = None
        sys.stdout.flush()
        self.pid = os.fork()
        if not self.pid:
            code = 1
            try:
                os.close(self._answer)
                os.write(answer, pickle.dumps(action()))
                code = 0
            except BaseException:
                traceback.print_exc(file=sys.stderr)
            finally:
                os._exit(code)
        os.close(answer)

    def _look(self, flags: int = 0) -> bool:
        if self.status is None:
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
        """How it ended, as os.waitpid says it."""
        until(self._look, f"process {self.pid} ends", seconds)
        assert self.status is not None
        return self.status

    def stopped(self, seconds: float = PATIENCE) -> bool:
        """Wait until SIGSTOP has hit it, or it has ended. Whether it is stopped."""
        until(lambda: self._look(os.WUNTRACED), f"process {self.pid} stops", seconds)
        return self.status is None

    def answer(self, seconds: float = PATIENCE) -> Any:
        """What `action` gave back. That it failed, or was killed, is the test's failure, too."""
        status = self.ended(seconds)
        assert os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0, f"a child ended with {status:#x}"
        with open(self._answer, "rb", closefd=False) as file:
            return pickle.load(file)

    def signal(self, number: int) -> None:
        if self.running:
            os.kill(self.pid, number)

    def go_on(self) -> None:
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.ended()

    def close(self) -> None:
        self.kill()
        if self._answer >= 0:
            os.close(self._answer)
            self._answer = -1


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


__all__ = ["PATIENCE", "Child", "Flag", "asleep", "children", "readable", "until"]
