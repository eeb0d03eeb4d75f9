"""Ctrl-C at every point where CPython may run a signal handler, one after the other.

A handler runs when a Python function is entered, when a call has returned, and when a loop jumps back: there the
interpreter looks whether a signal, or an exception of another thread, is pending. `interrupt_at(n)` raises
KeyboardInterrupt at the n-th of these points, so a test can go through all, where real signals hit some by luck.

What a handler raises in a callback of a weak reference is printed and dropped by CPython, so those are left out; the
garbage collector, which calls them at any time, does not run meanwhile.

Native code runs no handler: what comes while it runs is raised when it returns. `struck_at(n, how)` lets a signal come
at the n-th step that others can observe (disk/os.h), where tests of kills send SIGKILL.
"""

from __future__ import annotations

import ctypes
import dis
import gc
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import CodeType, FrameType
from typing import Any

from klamm.disk import _os

__all__ = ["HOWS", "Injected", "Interrupted", "interrupt_at", "points_of", "steps_of", "struck_at"]

_CALLS = {dis.opmap[name] for name in ("CALL", "CALL_FUNCTION_EX", "JUMP_BACKWARD") if name in dis.opmap}


class Interrupted(KeyboardInterrupt):
    """Raised by `interrupt_at`; where it was raised is in its traceback."""


@cache
def _handlers(code: CodeType) -> list[tuple[int, int, int]]:
    """Return the exception table of `code`: first and last offset of each entry, and its handler."""
    return [(entry.start, entry.end, entry.target) for entry in dis._parse_exception_table(code)]  # type: ignore[attr-defined]


def _handler_at(code: CodeType, offset: int) -> int:
    return next((target for start, end, target in _handlers(code) if start <= offset < end), -1)


class _Tracer:
    def __init__(self, point: int, within: str = "") -> None:
        self.point, self.within = point, within
        self.passed = 0
        self._last: dict[FrameType, int] = {}  # offset of the last instruction

    def trace(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        code = frame.f_code
        if code.co_filename == weakref.__file__ and code.co_name == "remove":
            return None
        if event == "call":
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            self._last[frame] = -1
            if code.co_filename != __file__:
                self._pass(frame)
        elif event == "opcode":
            last, self._last[frame] = self._last.get(frame, -1), frame.f_lasti
            # A handler that runs after an instruction raises at that instruction. Here it raises at the next one, which
            # must have the same handler: behind the last call of a `with` block it has another, and is left out.
            after_call = last >= 0 and code.co_code[last] in _CALLS
            if after_call and _handler_at(code, last) == _handler_at(code, frame.f_lasti):
                self._pass(frame)
        elif event == "return":
            self._last.pop(frame, None)
        return self.trace

    def _pass(self, frame: FrameType) -> None:
        if self.within not in frame.f_code.co_filename:
            return
        self.passed += 1
        if self.passed == self.point:
            self._last.clear()
            raise Interrupted(f"{frame.f_code.co_qualname}, line {frame.f_lineno}")


@contextmanager
def interrupt_at(point: int, *, within: str = "") -> Iterator[_Tracer]:
    """Raise Interrupted at the `point`-th point of what the block calls; 0: only count them, as `passed`.

    `within`: a part of the paths of files; other code is not interrupted.
    """
    tracer = _Tracer(point, within)
    collects = gc.isenabled()
    gc.disable()
    sys.settrace(tracer.trace)
    try:
        yield tracer
    finally:
        sys.settrace(None)
        if collects:
            gc.enable()


def points_of(action: Callable[[], object]) -> int:
    """How many points `action` has."""
    with interrupt_at(0) as tracer:
        action()
    return tracer.passed


class Injected(Exception):
    """Raised where no statement of the program raises it: by a signal handler, or by another thread."""


def _raise(number: int, frame: object) -> None:
    raise Injected("by a signal handler")


def _raise_as_another_thread(number: int, frame: object) -> None:
    """What another thread does to raise something in this one, as timeouts of some libraries do."""
    ident, kind = ctypes.c_ulong(threading.get_ident()), ctypes.py_object(Injected)
    assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, kind) == 1


HOWS = {
    "ctrl-c": (signal.SIGINT, signal.default_int_handler),
    "signal handler": (signal.SIGUSR1, _raise),
    "another thread": (signal.SIGUSR1, _raise_as_another_thread),
}
"""Ways in which an exception comes from outside."""


@contextmanager
def struck_at(step: int, how: str) -> Iterator[None]:
    """Let an exception come from outside at the `step`-th step of the block. In the main thread."""
    number, handler = HOWS[how]
    before = signal.signal(number, handler)
    try:
        _os.trap(step, signal=number)
        yield
    finally:
        _os.trap(0)
        signal.signal(number, before)


def steps_of(action: Callable[[], object], kinds: int = _os.ALL) -> int:
    """How many steps `action` has."""
    _os.trap(1 << 60, kinds=kinds)
    try:
        action()
        return int(_os.steps_taken())
    finally:
        _os.trap(0)
