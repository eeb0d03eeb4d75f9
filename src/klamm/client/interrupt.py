"""Ctrl-C ends a loop over a consumer quietly, and not in the middle of a record.

While such a loop runs in the main thread, and nobody else handles SIGINT, Ctrl-C

    while the loop waits for records    ends it at once
    while the body of the loop runs     ends it when the body comes back for the next record
    a second time                       raises KeyboardInterrupt, wherever that is

The loop simply ends, as if there were no more records. Outside of such loops nothing changes.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Self

__all__ = ["Loop"]

_GENERATOR = 0x20  # inspect.CO_GENERATOR, without the import
_running: list[Loop] = []


class Loop:
    """One loop, from its first record to its end. A context manager inside of a generator."""

    __slots__ = ("_frame", "_on_interrupt", "interrupted", "waiting")

    def __init__(self, on_interrupt: Callable[[], None]) -> None:
        """`on_interrupt` is called in the handler."""
        self._on_interrupt = on_interrupt
        self.interrupted = False
        self.waiting = False
        self._frame = 0

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            handler = signal.getsignal(signal.SIGINT)
            if handler in (signal.default_int_handler, _on_interrupt):
                self._frame = id(_caller(sys._getframe(2)))
                _running.append(self)
                signal.signal(signal.SIGINT, _on_interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        if self in _running:
            _running.remove(self)
            in_main_thread = threading.current_thread() is threading.main_thread()
            if not _running and in_main_thread and signal.getsignal(signal.SIGINT) is _on_interrupt:
                signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt(self) -> None:
        self.interrupted = True
        self._on_interrupt()

    def is_above(self, frame: FrameType | None) -> bool:
        """Whether `frame` was called from the loop."""
        while frame is not None:
            if id(frame) == self._frame:
                return True
            frame = frame.f_back
        return False


def _caller(frame: FrameType) -> FrameType:
    """Whose loop it is: its body is what is called from there. Generators on the way only pass records on."""
    while frame.f_code.co_flags & _GENERATOR and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _on_interrupt(number: int, frame: FrameType | None) -> None:
    here = [loop for loop in _running if loop.is_above(frame)]
    again = any(loop.interrupted for loop in here)
    for loop in here:
        loop.interrupt()
    if again or not here or any(loop.waiting for loop in here):
        raise KeyboardInterrupt
