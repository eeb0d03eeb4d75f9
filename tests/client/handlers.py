"""Handlers that worker processes can import, and what they leave behind for the test to see."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from tests.procs import Flag


class Noting:
    """Notes pid and value of each record in a file; ends its process once at the value `fatal`."""

    def __init__(self, directory: Path, fatal: bytes | None = None, always: bool = False) -> None:
        self.directory = directory
        self.fatal = fatal
        self.always = always

    def __call__(self, record: Any) -> None:
        died = Flag(self.directory / "died")
        if record.value == self.fatal and (self.always or not died):
            died.up()
            os.kill(os.getpid(), signal.SIGKILL)
        with open(self.directory / "notes", "ab") as notes:  # short appends are whole
            notes.write(b"%d %d %s\n" % (os.getpid(), record.offset, record.value))

    def notes(self) -> list[tuple[int, int, bytes]]:
        lines = (self.directory / "notes").read_bytes().splitlines()
        return [(int(pid), int(offset), value) for pid, offset, value in (line.split(b" ", 2) for line in lines)]


class Holding(Noting):
    """Waits in each record until it is let go."""

    def __call__(self, record: Any) -> None:
        super().__call__(record)
        Flag(self.directory / "go").wait()


class CannotBePickled(Exception):
    def __init__(self) -> None:
        super().__init__("first", lambda: None)


def refuse(record: Any) -> None:
    if record.value == b"strange":
        raise CannotBePickled
    raise ValueError(f"no {record.value!r}")


class LoadsNot:
    """Pickles, and then does not load."""

    def __call__(self, record: Any) -> None: ...

    def __reduce__(self) -> Any:
        return _explode, ()


def _explode() -> None:
    raise ImportError("this module is not there")
