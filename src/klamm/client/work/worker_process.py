"""A process that handles records for one worker thread.

It gets the handler, pickled, and then one record after the other through a pipe, and answers each with None or with
the error. It knows nothing of the store. Processes are spawned, never forked: the parent has threads and locks.

    the child dies      its end of the pipe closes: the thread that waits for the answer knows at once
    the parent dies     its end closes: the child ends when its record is done
    Ctrl-C, SIGTERM     may reach both; the child ignores them from its first instruction on, and the parent ends it
    it takes too long   the parent kills it, and starts another one for the next record
"""

from __future__ import annotations

import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from klamm.client.consume.read_engine import ReadFormat
from klamm.client.consume.record_format import converted
from klamm.errors import StoreError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

    from klamm.batch import Record

__all__ = ["CannotStart", "HandlerTimeout", "WorkerProcess", "pickled"]

_TIMEOUT_S = 5.0  # for a process that has nothing to do to end
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_starting = threading.Lock()  # multiprocessing's list of children is not made for several threads


class CannotStart(StoreError):
    """A process could not be started, or not even begin."""


class HandlerTimeout(Exception):
    """The handler of a record took too long, and its process was killed."""


def pickled(handler: Callable[[Any], object], how: ReadFormat) -> bytes:
    """Return what a child needs, pickled."""
    from multiprocessing.reduction import ForkingPickler

    try:
        return bytes(ForkingPickler.dumps((handler, how)))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(
            f"the handler, or its serde, cannot be sent to a process: {error};"
            " expected a function of a module, or an object that can be pickled"
        ) from error


class WorkerProcess:
    """One child, made when it is first needed and again when it has died. For one thread."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._process: SpawnProcess | None = None
        self._connection: Connection[Any, Any] | None = None
        self._is_killed = False  # for good

    def handle(self, record: Record, timeout_s: float | None) -> None:
        """Handle it in the child. Raise what its handler raised, HandlerTimeout, or ChildProcessError if it died."""
        connection = self._connection or self._start()
        try:
            connection.send(record)
            if timeout_s is not None and not connection.poll(timeout_s):
                assert self._process is not None
                self._process.kill()
                self._reap()
                raise HandlerTimeout
            answer = connection.recv()
        except (EOFError, OSError):
            how = self._reap()
            raise ChildProcessError(
                f"the worker process {how} while it handled {record.topic}/{record.partition} at offset {record.offset}"
            ) from None
        if answer is not None:
            raise answer[0] from RuntimeError(f"in the worker process:\n{answer[1]}")

    def _start(self) -> Connection[Any, Any]:
        import multiprocessing

        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs, self._payload), name="klamm-worker")
        with _starting, _signals_blocked():
            try:
                process.start()
            finally:
                theirs.close()
        self._process, self._connection = process, ours
        if self._is_killed:  # `kill` may have come before it was there
            process.kill()
        try:
            problem = ours.recv()
        except (EOFError, OSError):
            problem = f"it {self._reap()}"
        if problem is not None:
            self.end()
            raise CannotStart(
                f"a worker process did not start: {problem}",
                hint="a script that uses processes guards its main part with if __name__ == '__main__'",
            )
        return ours

    def _reap(self) -> str:
        """Return how the child ended."""
        process, connection = self._process, self._connection
        self._process = self._connection = None
        assert process is not None
        assert connection is not None
        connection.close()
        with _starting:
            process.join(_TIMEOUT_S)
            if process.exitcode is None:
                process.kill()
                process.join()
        code = process.exitcode or 0
        process.close()
        return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"

    def end(self) -> None:
        """End the child, once it has nothing to do."""
        if self._process is not None:
            self._reap()

    def kill(self) -> None:
        """End it now, and for good, also while it starts. From any thread.

        The thread that waits for an answer gets ChildProcessError, or CannotStart.
        """
        self._is_killed = True
        process = self._process
        if process is not None:
            try:
                process.kill()
            except ValueError:
                pass  # it has ended, and another thread has closed it


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Start children, within the block, with blocked signals: `serve` unblocks them."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # it is started first, or it would unblock them
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def serve(connection: Connection[Any, Any], payload: bytes) -> None:
    """Handle records, in the child."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: None)  # not SIG_IGN, which programs that a handler starts would inherit
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    with suppress(EOFError, OSError):  # the parent has ended
        _serve(connection, payload)


def _serve(connection: Connection[Any, Any], payload: bytes) -> None:
    try:
        handler, how = pickle.loads(payload)
    except Exception as error:  # noqa: BLE001  # a module that is not there, or anything that it does
        connection.send(f"the handler cannot be loaded: {error!r}")
        return
    connection.send(None)
    while True:
        record = connection.recv()
        answer = None
        try:
            handler(converted(record, how))
        except Exception as error:  # noqa: BLE001  # the parent decides
            answer = _sendable(error), traceback.format_exc()
        connection.send(answer)


def _sendable(error: Exception) -> Exception:
    try:
        again = pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001  # classes may do anything when they are pickled
        again = None
    if type(again) is type(error):
        return error
    return RuntimeError(f"{type(error).__module__}.{type(error).__qualname__}: {error}")
