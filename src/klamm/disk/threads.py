"""Threads that an interrupt cannot leave half started.

`threading.Thread.start` and `join` wait on locks in Python code; an interrupt there (Ctrl-C comes to the main thread,
which starts these) raises RuntimeError, or leaves a thread that looks as if it had never been started. Here both are
one native call.
"""

from __future__ import annotations

import _thread
import sys
import threading
import time
from collections.abc import Callable

from klamm.disk import _os

__all__ = ["DaemonThread", "StopFlag"]


class StopFlag:
    """What tells a thread to end, and wakes it: a threading.Event that no interrupt leaves locked."""

    def __init__(self) -> None:
        self._monitor = _os.Monitor()
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        with self._monitor:
            self._monitor.notify_all()

    def wait(self, timeout_s: float) -> bool:
        """Return whether it is set, as soon as it is, or after that time."""
        deadline = time.monotonic() + timeout_s
        with self._monitor:
            while not self._is_set and (left := deadline - time.monotonic()) > 0:
                self._monitor.wait(left)
        return self._is_set


class DaemonThread:
    """A thread that does not keep the process alive."""

    def __init__(self, target: Callable[..., object], name: str, *arguments: object) -> None:
        """Start it. The system knows it by the first 15 characters of `name`."""
        self.name = name
        self._ended = _thread.allocate_lock()
        self._ended.acquire()
        self.ident = _thread.start_new_thread(_run, (target, arguments, name, self._ended))

    @property
    def is_current(self) -> bool:
        return self.ident == _thread.get_ident()

    def is_alive(self) -> bool:
        return self._ended.locked()

    def join(self, timeout: float | None = None) -> bool:
        """Return when it has ended, or after `timeout` seconds: whether it has."""
        if not self._ended.acquire(True, -1 if timeout is None else max(0.0, timeout)):
            return False
        self._ended.release()
        return True


def _run(target: Callable[..., object], arguments: tuple[object, ...], name: str, ended: _thread.LockType) -> None:
    try:
        _os.name_thread(name)
        target(*arguments)
    except SystemExit:
        pass
    except BaseException:  # noqa: BLE001  # as a Thread does
        threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
    finally:
        ended.release()
