"""A process that handles records for one worker thread.

It gets the handler, pickled, and then one record after the other through a pipe, and answers each with None or with
the error. It knows nothing of the store. Processes are spawned, never forked: the parent has threads and locks.

    the child dies      its end of the pipe closes: the thread that waits for the answer knows at once
    the parent dies     its end closes: the child ends when its record is done
    Ctrl-C              reaches both; the child ignores it, for the parent says when it is over
"""

from __future__ import annotations

import pickle
import signal
import threading
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from klamm.client.consume.read_engine import ReadFormat
from klamm.client.record_format import converted
from klamm.errors import StoreError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

    from klamm.batch import Record

__all__ = ["CannotStart", "WorkerProcess", "pickled"]

_PATIENCE_S = 5.0  # for a process that has nothing to do to end
_starting = threading.Lock()  # multiprocessing's list of children is not made for several threads


class CannotStart(StoreError):
    """A process could not be started, or not even begin."""


def pickled(handler: Callable[[Any], object], how: ReadFormat) -> bytes:
    """What a child needs to know."""
    from multiprocessing.reduction import ForkingPickler

    try:
        return bytes(ForkingPickler.dumps((handler, how)))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(
            f"the handler, or its serde, cannot be sent to a process: {error};"
            " want a function of a module, or an object that can be pickled"
        ) from error


class WorkerProcess:
    """One child, made when it is first needed and again when it has died. For one thread."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._process: SpawnProcess | None = None
        self._connection: Connection[Any, Any] | None = None

    def handle(self, record: Record) -> None:
        """Let the child handle it; raises what its handler raised, or ChildProcessError if the child died."""
        connection = self._connection or self._start()
        try:
            connection.send(record)
            answer = connection.recv()
        except (EOFError, OSError):
            how = self._buried()
            raise ChildProcessError(
                f"the worker process {how} while it handled {record.topic}/{record.partition} at offset {record.offset}"
            ) from None
        if answer is not None:
            raise answer[0] from RuntimeError(f"in the worker process:\n{answer[1]}")

    def _start(self) -> Connection[Any, Any]:
        import multiprocessing

        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, self._payload), name="klamm-worker")
        with _starting:
            try:
                self._process.start()
            finally:
                theirs.close()
        self._connection = ours
        try:
            problem = ours.recv()
        except (EOFError, OSError):
            problem = f"it {self._buried()}"
        if problem is not None:
            self.end()
            raise CannotStart(
                f"a worker process did not start: {problem}",
                hint="a script that uses processes guards its main part with if __name__ == '__main__'",
            )
        return ours

    def _buried(self) -> str:
        """How the child ended."""
        process, connection = self._process, self._connection
        self._process = self._connection = None
        assert process is not None
        assert connection is not None
        connection.close()
        with _starting:
            process.join(_PATIENCE_S)
            if process.exitcode is None:
                process.kill()
                process.join()
        code = process.exitcode or 0
        process.close()
        return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"

    def end(self) -> None:
        """Let it end, once it has nothing to do."""
        if self._process is not None:
            self._buried()

    def kill(self) -> None:
        """End it now. From any thread; the one that waits for an answer then gets ChildProcessError."""
        process = self._process
        if process is not None:
            try:
                process.kill()
            except ValueError:
                pass  # buried meanwhile


def serve(connection: Connection[Any, Any], payload: bytes) -> None:
    """What the child does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        handler, how = pickle.loads(payload)
    except Exception as error:  # noqa: BLE001  # a module that is not there, or anything that it does
        connection.send(f"the handler cannot be loaded: {error!r}")
        return
    connection.send(None)
    while True:
        try:
            record = connection.recv()
        except (EOFError, OSError):
            return
        try:
            handler(converted(record, how))
            answer = None
        except Exception as error:  # noqa: BLE001  # it is the parent's to judge
            answer = _sendable(error), traceback.format_exc()
        try:
            connection.send(answer)
        except OSError:
            return


def _sendable(error: Exception) -> Exception:
    try:
        again = pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001  # classes may do anything when they are pickled
        again = None
    if type(again) is type(error):
        return error
    return RuntimeError(f"{type(error).__module__}.{type(error).__qualname__}: {error}")
