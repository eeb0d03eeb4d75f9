"""Group commit: concurrent writes of threads to klamm.db share one SQLite transaction and one sync.

A thread queues its write and waits for its turn to commit. The thread that has the turn writes everything queued so
far; the other threads find their writes done. So all writes that arrive during one sync share the next one.

Promises
  GCM1  When `run` returns, its write is committed, and on disk if it is `durable` (or shares the commit with one).
  GCM2  Each write has its own outcome: one that raises is undone, the others of its group are not. Only an error that
        keeps SQLite from committing (a full disk) fails all of them. A function may be called again, after its writes
        were undone: a savepoint for each would cost more than the writes, so a group is first tried without.
  GCM3  Writes happen in the order in which they were queued.
  GCM4  An interrupt (Ctrl-C) is raised in the thread that it comes to, and nowhere else: if that thread was committing
        the writes of others, these are committed by the next one, unless they are already. Whether its own write is
        committed it cannot know.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from klamm.errors import KlammError

if TYPE_CHECKING:
    from klamm.store._section import Section
    from klamm.store.database import Database, Execute

__all__ = ["GroupCommit"]

Result = TypeVar("Result")

_MAX_WRITES = 256  # in one transaction: other processes want the write lock of klamm.db as well


class _Write(Generic[Result]):
    __slots__ = ("durable", "error", "function", "is_done", "result")

    def __init__(self, function: Callable[[Execute], Result], durable: bool) -> None:
        self.function = function
        self.durable = durable
        self.is_done = False
        self.result: Result
        self.error: BaseException | None = None


class _Undone(Exception):
    """A write of the group raised: roll the transaction back."""


class GroupCommit:
    """Group commit for the threads of one process."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queue: deque[_Write[Any]] = deque()
        self._turn = threading.Lock()
        self._tried: tuple[Section, list[_Write[Any]]] | None = None  # the last transaction, and its writes

    def run(self, function: Callable[[Execute], Result], *, durable: bool = True) -> Result:
        """Call `function` in a SQLite transaction, under the write lock of klamm.db, and return its result."""
        write = _Write(function, durable)
        try:
            self._queue.append(write)
            with self._turn:
                while not write.is_done:  # others may be before it, more than one transaction takes
                    self._commit_next()
        except BaseException:
            write.is_done = True  # no thread waits for it any more
            raise
        if write.error is not None:
            raise write.error
        return write.result

    def _commit_next(self) -> None:
        """Commit what is queued, in the turn of this thread. Writes leave the queue when they are done, not before: an
        interrupt may come between any two steps, and the next thread finds them there.
        """
        if self._tried is not None:
            section, tried = self._tried
            for write in tried if section.is_committed else ():  # its thread was interrupted right after that
                write.is_done = True
        queue = self._queue
        queued = [queue[index] for index in range(min(len(queue), _MAX_WRITES))]
        if writes := [write for write in queued if not write.is_done]:
            self._commit(writes)
        self._tried = None
        while queue and queue[0].is_done:
            queue.popleft()

    def _commit(self, writes: list[_Write[Any]]) -> None:
        try:
            try:
                self._try(writes, self._call)
            except _Undone:
                if len(writes) > 1:
                    self._try(writes, self._call_with_savepoint)
        except Exception as error:  # noqa: BLE001  # raised by `run` of each
            for write in writes:
                write.error = error
        for write in writes:
            write.is_done = True

    def _try(self, writes: list[_Write[Any]], call: Callable[[Execute, _Write[Any]], None]) -> None:
        database = self._database
        is_durable = True in [write.durable for write in writes]  # a generator, dropped, would swallow an interrupt
        with database.db_lock():
            section = database.transaction(durable=is_durable)
            self._tried = section, writes
            with section as execute:
                for write in writes:
                    write.error = None
                    call(execute, write)

    @staticmethod
    def _call(execute: Execute, write: _Write[Any]) -> None:
        try:
            write.result = write.function(execute)
        except KlammError as error:
            write.error = error
            raise _Undone from None

    @staticmethod
    def _call_with_savepoint(execute: Execute, write: _Write[Any]) -> None:
        execute("SAVEPOINT one_of_a_group")
        try:
            write.result = write.function(execute)
        except KlammError as error:
            write.error = error
            execute("ROLLBACK TO one_of_a_group")
        execute("RELEASE one_of_a_group")
