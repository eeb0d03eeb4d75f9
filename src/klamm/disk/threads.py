"""Daemon threads whose start and join an interrupt cannot leave half done.

`threading.Thread.start` and `join` wait on locks in Python code. An interrupt there (Ctrl-C interrupts the main thread,
which starts these) raises RuntimeError, or leaves a thread that looks as if it had never been started. Here both are
one native call.
"""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Callable

from klamm.disk import _os
from klamm.disk._os import StopFlag

__all__ = ["DaemonThread", "StopFlag"]


class DaemonThread:
    """A thread that does not keep the process alive."""

    def __init__(self, target: Callable[..., object], name: str, *arguments: object) -> None:
        """Start it. The system knows it by the first 15 characters of `name`."""
        self.name = name
        self._ended = _thread.allocate_lock()
        self._ended.acquire()
        began = (_do_nothing, _run, (target, arguments, name), self._ended)
        self.ident = _thread.start_new_thread(_os.begin_thread, began)

    @property
    def is_current(self) -> bool:
        return self.ident == _thread.get_ident()

    def is_alive(self) -> bool:
        return self._ended.locked()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until the thread has ended, for at most `timeout` seconds. Return whether it has."""
        with _os.TimedLock(self._ended, timeout) as has_ended:
            return has_ended


def _do_nothing() -> None: ...


def _run(target: Callable[..., object], arguments: tuple[object, ...], name: str) -> None:
    try:
        _os.name_thread(name)
        target(*arguments)
    except SystemExit:
        pass
    except BaseException:  # noqa: BLE001  # as a Thread does
        threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
