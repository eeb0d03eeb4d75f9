"""Read pipes and terminals so that Ctrl-C always ends it.

CPython looks for signals between bytecodes, and a read that was interrupted returns. A signal that comes after the last
look and before the read begins does neither: the read waits for input that may never come. So wait in short turns.
"""

from __future__ import annotations

import io
import os
import select
import sys
from typing import IO, Any

__all__ = ["interruptible"]

_TURN_S = 0.2


class _InTurns(io.RawIOBase):
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not select.select([self._descriptor], [], [], _TURN_S)[0]:
            pass
        data = os.read(self._descriptor, len(buffer))
        buffer[: len(data)] = data
        return len(data)


def interruptible(file: IO[bytes]) -> IO[bytes]:
    """Return a file that reads what `file` would, in turns. `file` stays open, and must outlive it."""
    try:
        descriptor = file.fileno()
    except (OSError, io.UnsupportedOperation):
        return file  # not one of the system's
    return file if sys.platform == "win32" else io.BufferedReader(_InTurns(descriptor))
