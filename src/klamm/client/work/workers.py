"""One reader, many workers: `consumer.run(handler, workers=8)`.

The thread that calls `run` reads and commits; workers, threads or processes, only handle records. Each record is
handled at least once: its offset is committed after its handler returned, or after its dead letter is on disk.

    order="key"          records of one key, in one partition, are handled one after the other, in the order of the log;
                         records without a key in any order
    order="partition"    all records of a partition are

Promises
  WRK1  What is committed for a partition is the lowest offset that is not done; everything before it is done.
  WRK2  A partition that is taken away is committed first: what waits is dropped, and what runs gets `grace` to end.
        What comes of a record after its partition was given up or lost does not count: it is neither committed, nor
        tried again, nor a dead letter of this run.
  WRK3  At most `queue` records, and those of one poll, are read and not done.
  WRK4  When `run` ends, in whatever way, the consumer's position is at what is not done: no reader skips a record.
  WRK5  A worker process that dies is an error of the record it had, and is replaced.
  WRK6  A handler that hangs holds up a worker and its own chain. After `timeout` its record has failed. Without one,
        after `max_poll_interval_ms`, the member gives all its partitions to the others of its group, and joins again
        when the handler has returned.

Workers are threads, or processes (thread_workers.py), or coroutines if the handler is an `async def`
(async_workers.py). What becomes of their records is in outcomes.py:

    on_error="stop"           what runs ends, what is done is committed, and the error is raised
    on_error="retry"          the record is tried `retries` more times, after `backoff`, then twice that, up to
                              `max_backoff`; its chain waits, others go on. Then as "stop"
    on_error="dead-letter"    like "retry", but then it becomes a dead letter (dead_letters.py), and the chain goes on

Keys and values go through the consumer's serde in the worker; a value that the serde refuses is such an error, too.

Ctrl-C and SIGTERM end a run in the main thread: what runs gets `grace` to end, and what is done is committed. A second
one ends it at once: KeyboardInterrupt, or SystemExit with 143.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from klamm.batch import RECORDS
from klamm.client.consume.interrupt import Loop
from klamm.client.consume.read_engine import ReadFormat
from klamm.client.options import check_options, is_async
from klamm.client.work.dead_letters import DeadLetterBox
from klamm.client.work.outcomes import Outcomes
from klamm.client.work.run_options import RunOptions, RunSettings
from klamm.client.work.tasks import Task, Tasks
from klamm.client.work.thread_workers import ThreadWorkers
from klamm.client.work.worker_context import WorkerContext
from klamm.errors import InvalidSetting, NotOwner, ReadOnly, StoreError
from klamm.types import Batch, Position, RunReport, TopicPartition

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from klamm.batch import Record
    from klamm.client.consume.session import Session

__all__ = ["run"]

Handler = Callable[[Any], object]

_LOOK_S = 0.1  # how often a reader that waits for workers looks at its group, and at `stop`
_MAX_POLL = 500  # records
_log = logging.getLogger("klamm")


class Workers(Protocol):
    """The interface of workers, which handle records: thread_workers.py, async_workers.py."""

    def start(self) -> None: ...
    def next_deadline(self) -> float | None: ...
    def look_after(self) -> None: ...
    def is_worker(self) -> bool: ...
    def end(self) -> None: ...
    def kill(self) -> None: ...


class _Progress:
    """The progress of one partition."""

    __slots__ = ("committed", "position", "tasks")

    def __init__(self, position: Position) -> None:
        self.tasks: deque[Task] = deque()
        self.position = self.committed = position

    def complete(self) -> None:
        """Take in what is done."""
        tasks = self.tasks
        while tasks and tasks[0].done:
            task = tasks.popleft()
            self.position = Position(task.next_offset, task.record.leader_epoch)


def _no_hurry() -> int:
    return 0


def run(
    session: Session,
    handler: Handler,
    workers: int,
    *,
    loop: AbstractEventLoop | None = None,
    urgency: Callable[[], int] = _no_hurry,
    **options: Unpack[RunOptions],
) -> RunReport:
    """See the top of this module. `loop`: where coroutines run; None: in one of their own.

    `urgency` is for callers that signals do not reach: 1 ends the run as Ctrl-C does, 2 does not wait for handlers.
    """
    check_options("consumer.run()", options, [*RunOptions.__annotations__, "workers"])
    return _Run(session, handler, RunSettings(workers=workers, **options), loop, urgency).run()


class _Run:
    def __init__(
        self,
        session: Session,
        handler: Handler,
        settings: RunSettings,
        loop: AbstractEventLoop | None = None,
        urgency: Callable[[], int] = _no_hurry,
    ) -> None:
        if not callable(handler):
            raise TypeError(f"handler is a callable, not {type(handler).__name__}")
        self._urgency = urgency
        self._session = session
        self._format: ReadFormat = session.read_format
        self._settings = settings
        self._by_key = settings.order == "key"
        self._commit_every_s: float = settings.commit_every
        self._tasks = Tasks()
        self._progress: dict[TopicPartition, _Progress] = {}
        self._mutex = threading.Lock()
        self._committed_at = time.monotonic()
        self._reported: RunReport | None = None
        core, sharing = session.core, session.sharing
        if settings.on_error == "dead-letter" and core.read_only:
            raise ReadOnly(f"{core.path}: opened for reading only; a dead letter could not be written")
        if sharing is not None and not sharing.commits.can_be_run:
            raise InvalidSetting(
                "run commits what workers have done, which goes with a group's own offsets and without auto-commit",
                hint="say group=…, and neither offsets nor enable_auto_commit",
            )
        self._sharing = sharing
        self._member = session.member
        group = None if self._member is None else self._member.group
        box = DeadLetterBox(core, settings.dead_letter_topic, group)
        self._outcomes = Outcomes(settings, self._tasks, box, self._owns)
        # A handler that runs longer than this hangs. One that has a timeout is ended by that, if it can be.
        self._hang_s = float("inf") if self._member is None else max(self._member.interval_s, settings.timeout or 0.0)
        self._workers = self._make_workers(handler, loop)

    def _make_workers(self, handler: Any, loop: AbstractEventLoop | None) -> Workers:
        context = WorkerContext(handler, self._format, self._settings, self._tasks, self._outcomes, self._session.wake)
        if not is_async(handler):
            return ThreadWorkers(context)
        if self._settings.processes:
            raise InvalidSetting(
                "processes: an async handler runs in one event loop", hint="leave processes=True out, or use a def"
            )
        from klamm.client.work.async_workers import AsyncWorkers

        return AsyncWorkers(context, loop)

    def _owns(self, tp: TopicPartition) -> bool:
        """Return whether what comes of a partition's records is ours: the watchdog may have given it up just now."""
        return self._member is None or self._member.owns(*tp)

    # ---- the reader

    def run(self) -> RunReport:
        clean = False
        self._begin()
        try:
            with Loop(self._session.wake, is_bounded=False, is_call=True) as loop:
                self._workers.start()
                try:
                    with self._unless_closed():
                        self._read(loop)
                except Exception as error:  # noqa: BLE001  # what runs is finished, then it is raised
                    self._tasks.fail(None, error)
                self._tasks.end()
                self._finish_running(loop)
                self._commit()
                self._workers.end()  # here, so that a signal does not end the process before them
                clean = True
        finally:
            self._tasks.end()
            if not clean:  # a second signal: handlers are not waited for
                self._workers.kill()
                self._tasks.close()
            self._finish()
        if self._tasks.error is not None:
            raise self._tasks.error
        return self._outcomes.report()

    def _finish_running(self, loop: Loop) -> None:
        """Wait up to `grace` for running handlers; results of the others do not count."""
        if loop.interrupted:
            _log.info("%s: handlers that run have %g s to end", loop.signal_name, self._settings.grace)
        deadline = time.monotonic() + self._settings.grace
        self._wait(lambda: not self._tasks.running(), lambda: time.monotonic() >= deadline or self._urgency() > 1)
        self._warn_of_running(None)
        self._tasks.close()

    def _begin(self) -> None:
        """Make the consumer read bytes from now on; workers apply serdes."""
        self._session.check_usable()
        self._session.use(ReadFormat(RECORDS, None, None))
        if self._sharing is not None:
            self._sharing.runner = self

    def _finish(self) -> None:
        """Move the consumer to what is not done, and let it read as before."""
        session = self._session
        if self._sharing is not None:
            self._sharing.runner = None
        if not session.is_usable:
            return
        session.use(self._format)
        with self._mutex:
            for progress in self._progress.values():
                progress.complete()
            done = {tp: progress.position for tp, progress in self._progress.items()}
        session.move({**session.engine.positions(), **done})

    @contextmanager
    def _unless_closed(self) -> Iterator[None]:
        """Take an error for the end of the run if another thread has closed the consumer."""
        try:
            yield
        except StoreError:
            if not self._session.is_closing:
                raise

    def _read(self, loop: Loop) -> None:
        """Read until nothing comes for `wait`, and all is done; or until `stop`, a signal, or an error."""
        tasks, wait_s = self._tasks, self._session.wait_s
        until = None if wait_s is None else time.monotonic() + wait_s

        def over() -> bool:
            return loop.interrupted or self._session.is_stopped or tasks.error is not None or self._urgency() > 0

        queue = self._settings.queue
        while not over():
            self._workers.look_after()
            if self._withdraw_if_hung(over):
                continue
            room = queue - tasks.count
            if room <= 0:
                self._wait(lambda: tasks.count < queue, lambda: over() or self._is_hung())
                continue
            batch = self._poll(over, min(room, _MAX_POLL), until)
            if batch:
                self._hand_out(batch)
                until = None if wait_s is None else time.monotonic() + wait_s
            elif until is not None and time.monotonic() >= until:
                self._wait(lambda: not tasks.count, lambda: over() or self._is_hung())
                if not self._is_hung():
                    return
            self._commit_if_due()

    def _poll(self, give_up: Callable[[], bool], count: int, until: float | None) -> Batch[Any] | None:
        """Return the next records; None when it is time to commit, or to look after workers."""
        now = time.monotonic()
        seconds = None if until is None else max(0.0, until - now)
        if self._tasks.count or any(progress.tasks for progress in self._progress.values()):
            due = min(self._committed_at + self._commit_every_s, now + self._hang_s)
            deadline = self._workers.next_deadline()
            left = max(0.001, (due if deadline is None else min(due, deadline)) - now)
            seconds = left if seconds is None else min(seconds, left)
        return self._session.next_batch(count, seconds, give_up)

    def _hand_out(self, batch: Batch[Any]) -> None:
        tp = TopicPartition(batch.topic, batch.partition)
        ends = [record.offset for record in batch[1:]] + [batch.end]
        tasks = [Task(record, tp, self._chain(tp, record), end) for record, end in zip(batch, ends, strict=True)]
        with self._mutex:
            progress = self._progress.get(tp)
            if progress is None:
                progress = self._progress[tp] = _Progress(Position(batch.begin))
            progress.tasks.extend(tasks)
        self._tasks.put(tasks)

    def _chain(self, tp: TopicPartition, record: Record) -> Any:
        if not self._by_key:
            return tp
        return None if record.key is None else (tp, record.key)

    def _wait(self, over: Callable[[], bool], give_up: Callable[[], bool]) -> None:
        """Wait for workers; commit what is done, and stay a member of the group."""
        while not self._tasks.wait(over, self._look_s()) and not give_up():
            self._workers.look_after()
            self._commit_if_due()
            self._stay_member()

    def _look_s(self) -> float:
        """Return how long to wait for workers before the group, and their time limits, are looked after."""
        most = _LOOK_S if self._member is None else min(_LOOK_S, self._member.interval_s / 4)
        deadline = self._workers.next_deadline()
        return most if deadline is None else min(most, max(0.001, deadline - time.monotonic()))

    # ---- handlers that hang

    def _is_hung(self) -> bool:
        begun = self._tasks.running_since()
        return begun is not None and time.monotonic() - begun > self._hang_s

    def _withdraw_if_hung(self, over: Callable[[], bool]) -> bool:
        """Leave the group while a handler hangs, so that others have its partitions. Return whether one did."""
        hung = self._tasks.taken_before(time.monotonic() - self._hang_s)
        if self._sharing is None or not hung:
            return False
        self._commit()
        self._sharing.withdraw(self._session, f"a handler runs for more than {self._hang_s:g} s: {hung[0][1]}")
        while not self._tasks.wait(lambda: not self._tasks.running(), _LOOK_S) and self._is_hung() and not over():
            self._workers.look_after()
        return True

    def _stay_member(self) -> None:
        """Do what a poll does before it reads: a member that does not poll for long loses its partitions."""
        if self._sharing is not None and not self._session.is_closing and not self._is_hung():
            with self._unless_closed():
                self._sharing.poll_begins(self._session)

    # ---- progress

    def _commit_if_due(self) -> None:
        if time.monotonic() >= self._committed_at + self._commit_every_s:
            self._commit()

    def _report(self) -> None:
        report = self._outcomes.report()
        if self._settings.on_progress is not None and report != self._reported:
            self._reported = report
            self._settings.on_progress(report)

    def _commit(self, tps: Iterable[TopicPartition] | None = None) -> None:
        """Commit what is done, in all partitions or in those."""
        if tps is None:
            self._committed_at = time.monotonic()
            self._report()
        done: dict[TopicPartition, Position] = {}
        with self._mutex:
            for tp in list(self._progress) if tps is None else tps:
                progress = self._progress.get(tp)
                if progress is not None:
                    progress.complete()
                    if progress.position != progress.committed:
                        done[tp] = progress.committed = progress.position
        member = self._member
        while done and member is not None:
            try:
                with self._unless_closed():
                    self._session.commits.commit(done, "")
                return
            except NotOwner:  # its new owner handles it again
                done = {tp: position for tp, position in done.items() if member.owns(*tp)}

    def revoked(self, tps: Iterable[TopicPartition]) -> None:
        """Finish what runs of them within `grace`, and commit: another member has them when this returns."""
        tps = list(tps)
        tasks = self._tasks
        tasks.drop(tps)
        if not self.is_worker():  # a handler that closes the consumer would wait for itself
            deadline = time.monotonic() + self._settings.grace
            while not tasks.wait(lambda: not tasks.running(tps), self._look_s()):
                if time.monotonic() >= deadline or self._is_hung():
                    break
                self._workers.look_after()
                if self._member is not None:
                    self._member.polled()  # the watchdog would give up the other partitions, too
            self._warn_of_running(tps)
        self._commit(tps)
        self.lost(tps)

    def is_worker(self) -> bool:
        return self._workers.is_worker()

    def lost(self, tps: Iterable[TopicPartition]) -> None:
        """Forget them: another member has them, or may."""
        tps = list(tps)
        self._tasks.forget(tps)
        with self._mutex:
            for tp in tps:
                self._progress.pop(tp, None)

    def _warn_of_running(self, tps: list[TopicPartition] | None) -> None:
        """Log which handlers have not ended within `grace`."""
        for _, task in self._tasks.taken_before(time.monotonic()):
            if tps is None or task.tp in tps:
                _log.warning("%s: the handler has not ended within %g s; not done", task, self._settings.grace)
