"""Ctrl-C ends a loop over a consumer quietly, and not in the middle of a record.

That is for loops that would never end by themselves: a `for` statement over a consumer that waits without limit. While
such a loop runs in the main thread, and the program handles SIGINT in no other way, Ctrl-C

    while the loop waits for records    ends it at once
    while the body of the loop runs     ends it when the body comes back for the next record
    a second time                       raises KeyboardInterrupt, wherever that is

The loop simply ends, as if there were no more records. Elsewhere nothing changes: a read that is bounded raises
KeyboardInterrupt, as Python does, and so does `next()` of an iterator.

A call that is a loop (`consumer.run`) takes SIGTERM like Ctrl-C, for that is how services are stopped; a second one
raises SystemExit(143). A program that handles SIGTERM itself keeps its handler.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from opcode import opmap
from types import CodeType, FrameType
from typing import Any, Self

__all__ = ["Loop"]

_GENERATOR = 0x20  # inspect.CO_GENERATOR, without the import
_FOR, _CACHE = opmap["FOR_ITER"], opmap["CACHE"]
_SIGNALS: dict[int, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}  # and Python's handlers
_running: list[Loop] = []


class Loop:
    """One loop, from its first record to its end. A context manager inside of a generator."""

    __slots__ = ("_code", "_frame", "_is_bounded", "_is_call", "_on_interrupt", "interrupted", "signal_name")

    def __init__(self, on_interrupt: Callable[[], None], *, is_bounded: bool, is_call: bool = False) -> None:
        """Prepare to handle Ctrl-C. `on_interrupt` is called in the handler. `is_bounded`: the loop ends by itself, so
        nothing is handled.

        `is_call`: a function of ours is the loop, and its caller waits for it.
        """
        self._on_interrupt = on_interrupt
        self._is_bounded = is_bounded
        self.interrupted = False
        self.signal_name = ""
        """Which signal has interrupted it."""
        self._frame = 0
        self._code: CodeType | None = None
        self._is_call = is_call

    def __enter__(self) -> Self:
        if self._is_bounded or threading.current_thread() is not threading.main_thread():
            return self
        frame = _caller(sys._getframe(2))
        if not self._is_call and not _is_at_for(frame):
            return self  # next(): what runs between two calls is not the body of a loop
        numbers = _SIGNALS if self._is_call else (signal.SIGINT,)
        ours = [number for number in numbers if signal.getsignal(number) in (_SIGNALS[number], _on_signal)]
        if ours:
            self._frame, self._code = id(frame), frame.f_code
            _running.append(self)
        for number in ours:
            signal.signal(number, _on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        if self in _running:
            _running.remove(self)
            if threading.current_thread() is threading.main_thread():
                for number, default in _SIGNALS.items():
                    needed = any(loop._is_call or number == signal.SIGINT for loop in _running)
                    if not needed and signal.getsignal(number) is _on_signal:
                        signal.signal(number, default)

    def interrupt(self, number: int) -> None:
        self.interrupted = True
        self.signal_name = signal.Signals(number).name
        self._on_interrupt()

    def is_above(self, frame: FrameType | None) -> bool:
        """Return whether `frame` was called from the loop."""
        while frame is not None:
            if id(frame) == self._frame and frame.f_code is self._code:
                return True
            frame = frame.f_back
        return False


def _caller(frame: FrameType) -> FrameType:
    """Return the frame whose loop it is: its body is called from there. Generators on the way only pass records on."""
    while frame.f_code.co_flags & _GENERATOR and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _is_at_for(frame: FrameType) -> bool:
    """Return whether a `for` statement asks for its next item. CPython 3.12 may point behind it, into its cache."""
    code, at = frame.f_code.co_code, frame.f_lasti
    while at > 0 and code[at] == _CACHE:
        at -= 2
    return code[at] == _FOR


def _on_signal(number: int, frame: FrameType | None) -> None:
    here = [loop for loop in _running if loop.is_above(frame) and (number == signal.SIGINT or loop._is_call)]
    again = any(loop.interrupted for loop in here)
    for loop in here:
        loop.interrupt(number)
    if again or not here:
        if number == signal.SIGTERM:
            raise SystemExit(128 + number)
        raise KeyboardInterrupt
