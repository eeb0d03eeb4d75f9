"""One reader, many workers: `consumer.run(handler, workers=8)`.

The thread that calls `run` reads and commits; workers, threads or processes, only handle records. Each record is
handled at least once: its offset is committed after its handler returned, or after its dead letter is on disk.

    order="key"          records of one key, in one partition, are handled one after the other, in the order of the log;
                         records without a key in any order
    order="partition"    all records of a partition are

Promises
  W1  What is committed for a partition is the lowest offset that is not done; whatever stands behind it is done.
  W2  A partition that is taken away is committed first: what waits is dropped, what runs is waited for. One that was
      lost is dropped, and whatever its records still come to is forgotten.
  W3  At most `queue` records, and those of one poll, are read and not done.
  W4  When `run` ends, by whatever way, the consumer stands at what is not done: nothing is skipped by whoever reads on.
  W5  A worker process that dies is an error of the record it had. Nobody waits for it.

When a handler raises:

    on_error="stop"           what runs ends, what is done is committed, and the error is raised
    on_error="retry"          the record is tried `retries` more times, after backoff_ms, then twice that, and so on up
                              to max_backoff_ms; its chain waits, and nobody else. Then as "stop"
    on_error="dead-letter"    the same, but then it becomes a dead letter (dead_letters.py), and the chain goes on

Keys and values go through the consumer's serde in the worker; what does not suit it is such an error, too.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from klamm.batch import RECORDS
from klamm.client.consume.read_engine import ReadFormat
from klamm.client.dead_letters import DeadLetterBox, attempts_before
from klamm.client.interrupt import Loop
from klamm.client.record_format import converted
from klamm.client.tasks import Task, Tasks
from klamm.client.worker_process import CannotStart, WorkerProcess, pickled
from klamm.disk.threads import DaemonThread
from klamm.errors import InvalidSetting, NotOwner, ReadOnly, StoreError
from klamm.types import Batch, Position, RunReport, TopicPartition

if TYPE_CHECKING:
    from klamm.batch import Record
    from klamm.client.consume.session import Session

__all__ = ["run"]

Handler = Callable[[Any], object]

_POLICIES = ("stop", "retry", "dead-letter")
_ORDERS = ("key", "partition")
_LOOK_S = 0.1  # how often a reader that waits for workers looks at its group, and at `stop`
_MAX_POLL = 500  # records


@dataclass(slots=True)
class _Counts:
    done: int = 0
    failed: int = 0
    dead_lettered: int = 0


class _Progress:
    """How far one partition is done."""

    __slots__ = ("committed", "position", "tasks")

    def __init__(self, position: Position) -> None:
        self.tasks: deque[Task] = deque()
        self.position = self.committed = position

    def settle(self) -> None:
        tasks = self.tasks
        while tasks and tasks[0].done:
            task = tasks.popleft()
            self.position = Position(task.next_offset, task.record.leader_epoch)


def run(
    session: Session,
    handler: Handler,
    workers: int = 8,
    *,
    processes: bool = False,
    queue: int = 1000,
    on_error: str = "stop",
    retries: int | None = 3,
    backoff_ms: float = 100,
    max_backoff_ms: float = 10_000,
    dead_letter_topic: str | None = None,
    order: str = "key",
    commit_every_ms: float = 1000,
) -> RunReport:
    """See the top of this module."""
    if not callable(handler):
        raise TypeError(f"handler is a callable, not {type(handler).__name__}")
    _whole("workers", workers, 1)
    _whole("queue", queue, 1)
    if retries is not None:
        _whole("retries", retries, 0)
    for name, value in [
        ("backoff_ms", backoff_ms),
        ("max_backoff_ms", max_backoff_ms),
        ("commit_every_ms", commit_every_ms),
    ]:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise TypeError(f"{name} is a number, not {type(value).__name__}")
        if not value >= 0:
            raise InvalidSetting(f"{name}: {value} does not fit", hint="want milliseconds")
    for name, text, known in [("on_error", on_error, _POLICIES), ("order", order, _ORDERS)]:
        if text not in known:
            raise InvalidSetting(f"{name}: {text!r} does not fit", hint=f"want {' or '.join(map(repr, known))}")
    return _Run(
        session,
        handler,
        workers,
        processes,
        queue,
        on_error,
        retries,
        backoff_ms / 1000,
        max_backoff_ms / 1000,
        dead_letter_topic,
        order == "key",
        commit_every_ms / 1000,
    ).run()


class _Run:
    def __init__(
        self,
        session: Session,
        handler: Handler,
        workers: int,
        processes: bool,
        queue: int,
        on_error: str,
        retries: int | None,
        backoff_s: float,
        max_backoff_s: float,
        dead_letter_topic: str | None,
        by_key: bool,
        commit_every_s: float,
    ) -> None:
        self._session = session
        self._handler = handler
        self._format: ReadFormat = session.read_format
        self._queue = queue
        self._on_error = on_error
        self._retries = retries
        self._backoff_s = backoff_s
        self._max_backoff_s = max_backoff_s
        self._by_key = by_key
        self._commit_every_s = commit_every_s
        self._tasks = Tasks()
        self._progress: dict[TopicPartition, _Progress] = {}
        self._mutex = threading.Lock()
        self._killing = False
        self._counts = _Counts()
        self._committed_at = time.monotonic()
        core, sharing = session.core, session.sharing
        if on_error == "dead-letter" and core.read_only:
            raise ReadOnly(f"{core.path}: opened for reading only; a dead letter could not be written")
        if sharing is not None and not sharing.commits.can_be_run:
            raise InvalidSetting(
                "run commits what workers have done, which goes with a group's own offsets and without auto-commit",
                hint="say group=…, and neither offsets nor enable_auto_commit",
            )
        self._sharing = sharing
        self._member = session.member
        self._box = DeadLetterBox(core, dead_letter_topic, None if self._member is None else self._member.group)
        self._children = [WorkerProcess(pickled(handler, self._format)) for _ in range(workers)] if processes else []
        self._threads = [
            threading.Thread(target=self._work, args=(number,), name=f"klamm-worker-{number}", daemon=True)
            for number in range(workers)
        ]

    # ---- workers

    def _work(self, number: int) -> None:
        try:
            self._handle_tasks(number)
        except BaseException as error:  # noqa: BLE001  # SystemExit, a handler's timeout that came late: `run` raises it
            self._tasks.fail(number, error)
        if self._tasks.error is not None:
            self._session.wake()

    def _handle_tasks(self, number: int) -> None:
        tasks = self._tasks
        child = self._children[number] if self._children else None
        while (task := tasks.take(number)) is not None:
            try:
                if child is not None:
                    child.handle(task.record)
                else:
                    self._handler(converted(task.record, self._format))
            except CannotStart:
                raise
            except Exception as error:  # noqa: BLE001  # the policy says what becomes of it
                if self._killing and isinstance(error, ChildProcessError):
                    return
                self._failed(number, task, error)
            else:
                with self._mutex:
                    self._counts.done += 1
                tasks.done(number)

    def _failed(self, number: int, task: Task, error: Exception) -> None:
        record, tasks = task.record, self._tasks
        task.attempts += 1
        with self._mutex:
            self._counts.failed += 1
        retrying = self._on_error != "stop" and (self._retries is None or task.attempts <= self._retries)
        if retrying:
            tasks.again(number, min(self._max_backoff_s, self._backoff_s * 2.0 ** min(task.attempts - 1, 64)))
            return
        error.add_note(f"while handling {record.topic}/{record.partition} at offset {record.offset}")
        if self._on_error != "dead-letter":
            raise error
        self._box.put(record, task.attempts + attempts_before(record), error)  # raises if there is no place for it
        with self._mutex:
            self._counts.dead_lettered += 1
        tasks.done(number)

    def _start_workers(self) -> None:
        """In a thread of its own: Thread.start waits in Python code, and an interrupt comes to the main thread."""
        try:
            for thread in self._threads:
                thread.start()
        except RuntimeError as error:  # the system has no more threads
            self._tasks.fail(None, error)

    # ---- the reader

    def run(self) -> RunReport:
        clean = False
        self._begin()
        try:
            with Loop(self._session.wake, is_bounded=False, is_call=True) as loop:
                DaemonThread(self._start_workers, "klamm-workers").join()
                try:
                    with self._unless_closed():
                        self._read(loop)
                except Exception as error:  # noqa: BLE001  # what runs is finished, then it is raised
                    self._tasks.fail(None, error)
                self._tasks.end()
                self._wait(lambda: not self._tasks.running(), lambda: False)
                self._commit()
            clean = True
        finally:
            self._tasks.end()
            self._end_workers(clean)
            self._finish()
        if self._tasks.error is not None:
            raise self._tasks.error
        counts = self._counts
        return RunReport(counts.done, counts.failed, counts.dead_lettered)

    def _begin(self) -> None:
        """From now on the consumer reads bytes; workers see to serdes."""
        self._session.check_usable()
        self._session.use(ReadFormat(RECORDS, None, None))
        if self._sharing is not None:
            self._sharing.runner = self

    def _finish(self) -> None:
        """The consumer stands at what is not done, and reads as before."""
        session = self._session
        if self._sharing is not None:
            self._sharing.runner = None
        if not session.is_usable:
            return
        session.use(self._format)
        with self._mutex:
            for progress in self._progress.values():
                progress.settle()
            done = {place: progress.position for place, progress in self._progress.items()}
        session.move({**session.engine.positions(), **done})

    @contextmanager
    def _unless_closed(self) -> Iterator[None]:
        """Somebody may close the consumer meanwhile: that ends the run, and is no error."""
        try:
            yield
        except StoreError:
            if not self._session.is_closing:
                raise

    def _read(self, loop: Loop) -> None:
        """Until nothing comes for `wait_ms`, and all is done; or until somebody ends it."""
        tasks, wait_s = self._tasks, self._session.wait_s
        until = None if wait_s is None else time.monotonic() + wait_s

        def over() -> bool:
            return loop.interrupted or self._session.is_stopped or tasks.error is not None

        while not over():
            room = self._queue - tasks.count
            if room <= 0:
                self._wait(lambda: tasks.count < self._queue, over)
                continue
            batch = self._poll(over, min(room, _MAX_POLL), until)
            if batch:
                self._hand_out(batch)
                until = None if wait_s is None else time.monotonic() + wait_s
            elif until is not None and time.monotonic() >= until:
                self._wait(lambda: not tasks.count, over)
                return
            self._commit_if_due()

    def _poll(self, give_up: Callable[[], bool], count: int, until: float | None) -> Batch | None:
        """The next records; none when it is time to commit what workers have done meanwhile."""
        now = time.monotonic()
        seconds = None if until is None else max(0.0, until - now)
        if self._tasks.count or any(progress.tasks for progress in self._progress.values()):
            due = max(0.001, self._committed_at + self._commit_every_s - now)
            seconds = due if seconds is None else min(seconds, due)
        return self._session.next_batch(count, seconds, give_up)

    def _hand_out(self, batch: Batch) -> None:
        place = TopicPartition(batch.topic, batch.partition)
        ends = [record.offset for record in batch[1:]] + [batch.end]
        tasks = [Task(record, place, self._chain(place, record), end) for record, end in zip(batch, ends, strict=True)]
        with self._mutex:
            progress = self._progress.get(place)
            if progress is None:
                progress = self._progress[place] = _Progress(Position(batch.begin))
            progress.tasks.extend(tasks)
        self._tasks.put(tasks)

    def _chain(self, place: TopicPartition, record: Record) -> Any:
        if not self._by_key:
            return place
        return None if record.key is None else (place, record.key)

    def _wait(self, over: Callable[[], bool], give_up: Callable[[], bool]) -> None:
        """For workers; meanwhile what is done is committed, and the group hears of us."""
        while not self._tasks.wait(over, _LOOK_S) and not give_up():
            self._commit_if_due()
            self._stay_member()

    def _stay_member(self) -> None:
        """What a poll does before it reads: whoever is not heard of for long loses its partitions."""
        if self._sharing is not None and not self._session.is_closing:
            with self._unless_closed():
                self._sharing.poll_begins(self._session)

    # ---- progress

    def _commit_if_due(self) -> None:
        if time.monotonic() >= self._committed_at + self._commit_every_s:
            self._commit()

    def _commit(self, places: Iterable[TopicPartition] | None = None) -> None:
        """What is done, in all partitions or in those."""
        if places is None:
            self._committed_at = time.monotonic()
        done: dict[TopicPartition, Position] = {}
        with self._mutex:
            for place in list(self._progress) if places is None else places:
                progress = self._progress.get(place)
                if progress is not None:
                    progress.settle()
                    if progress.position != progress.committed:
                        done[place] = progress.committed = progress.position
        member = self._member
        while done and member is not None:
            try:
                with self._unless_closed():
                    self._session.commits.commit(done, "")
                return
            except NotOwner:  # its new owner does it again
                done = {place: position for place, position in done.items() if member.owns(*place)}

    def revoked(self, places: Iterable[TopicPartition]) -> None:
        """They go to somebody else when this returns."""
        places = list(places)
        tasks = self._tasks
        tasks.drop(places)
        if threading.current_thread() not in self._threads:  # a handler that closes the consumer
            while not tasks.wait(lambda: not tasks.running(places), 60.0):
                pass
        self._commit(places)
        self.lost(places)

    def lost(self, places: Iterable[TopicPartition]) -> None:
        """They are somebody else's already."""
        places = list(places)
        self._tasks.drop(places)
        with self._mutex:
            for place in places:
                self._progress.pop(place, None)

    # ---- the end

    def _end_workers(self, clean: bool) -> None:
        """`clean`: all of them have nothing to do."""
        if not clean:  # a second Ctrl-C: nobody waits for handlers
            self._killing = True
            for child in self._children:
                child.kill()
            return
        for thread in self._threads:
            if thread.ident is not None:  # else it could not be started
                thread.join()
        for child in self._children:
            child.end()


def _whole(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} is a whole number, not {type(value).__name__}")
    if value < least:
        raise InvalidSetting(f"{name}: {value} does not fit", hint=f"want at least {least}")
