"""A consumer: reads partitions from a given position, or from its group's, and waits for new records.

Each batch is of one partition; partitions take turns. Iteration gives records one by one. A consumer is a face of a
Session (consume/session.py): it checks options, runs loops, and lets Ctrl-C end them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Never, Self, Unpack

from klamm.batch import BAD_RAISE, BAD_RAW, BAD_SKIP, RECORDS, TUPLES, VALUES
from klamm.choices import BadRecordPolicy, Form, Isolation, OffsetReset, options_of
from klamm.client.consume.interrupt import Loop
from klamm.client.consume.read_engine import ReadFormat
from klamm.client.consume.session import AT_ONCE, Session
from klamm.client.groups.commits import What
from klamm.client.groups.offsets import Offsets
from klamm.client.options import check_count, check_options, choice
from klamm.client.serde import Serde, key_pair, value_pair
from klamm.client.subscription import Subscription, TopicSelection, open_partitions
from klamm.errors import GroupError, InvalidSetting, StoreError, UnknownTopic
from klamm.log.reader import reads_committed
from klamm.store.directory import Core
from klamm.store.handle import StoreHandle
from klamm.times import Duration, to_seconds, to_timeout
from klamm.types import Batch, Committed, Position, RunReport, TopicPartition
from klamm.typevars import T
from klamm.where import Where, WhereLike, checked_position, fixed, is_named, is_positions, position_in

if TYPE_CHECKING:
    from concurrent.futures import Future

    from klamm.batch import Partitioner
    from klamm.choices import Compression, RunErrorPolicy, RunOrder
    from klamm.client.consume.read_engine import Records
    from klamm.client.groups.group_session import GroupOptions
    from klamm.client.transaction import Transaction
    from klamm.client.work.outcomes import Attempt
    from klamm.client.work.run_options import ErrorTypes

__all__ = ["Consumer", "session_of", "session_that_read"]

_FORMS = dict(zip(options_of(Form), (RECORDS, TUPLES, VALUES), strict=True))
_RESETS = options_of(OffsetReset)
_BAD_RECORDS = dict(zip(options_of(BadRecordPolicy), (BAD_RAISE, BAD_SKIP, BAD_RAW), strict=True))


class Consumer(StoreHandle, Generic[T], by="store.consumer(…)", of=Core):
    """Reads topics; made by `store.consumer()`.

    One thread reads; `stop`, `close` and commits may be called from any.
    """

    def __init__(
        self,
        core: Core,
        topics: TopicSelection | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        partitions: Iterable[int] | None = None,
        start: WhereLike | None = None,
        wait: Duration | None = None,
        serde: Serde | None = None,
        key_serde: Serde | None = None,
        form: Form = "records",
        auto_offset_reset: OffsetReset | None = None,
        on_bad_record: BadRecordPolicy = "raise",
        max_bytes: int = 1 << 20,
        spin: Duration = 20e-6,
        isolation: Isolation = "read_committed",
        group: str | None = None,
        offsets: Offsets | None = None,
        store: Any = None,
        **sharing: Unpack[GroupOptions],
    ) -> None:
        if group is not None and start is not None:
            raise InvalidSetting(
                "start: a group starts at its committed offsets", hint="see auto_offset_reset, and store.groups.reset"
            )
        if auto_offset_reset is not None:
            choice("auto_offset_reset", auto_offset_reset, dict.fromkeys(_RESETS))
        self._store = store  # whose consumer it is, kept from being dropped
        self._current: Iterator[T] | None = None  # what a loop goes on with; None: it is to look again
        self._session = Session(
            core,
            Subscription(topics, pattern, partitions),
            Where("earliest" if start is None else start, name="start"),
            ReadFormat(
                choice("form", form, _FORMS),
                key_pair(key_serde, serde).from_bytes,
                value_pair(serde).from_bytes,
                choice("on_bad_record", on_bad_record, _BAD_RECORDS),
            ),
            wait_s=to_timeout("wait", wait),
            max_bytes=max_bytes,
            auto_offset_reset=auto_offset_reset,
            committed=reads_committed(isolation),
            spin_us=round(to_seconds("spin", spin) * 1e6),
            group=group,
            offsets=offsets,
            **sharing,
        )

    def __repr__(self) -> str:
        session = self._session
        state = ", closed" if session.is_closed else ""
        return f"<Consumer of {session.core.path}: {len(session.engine.positions())} partitions{state}>"

    def __reduce__(self) -> str:
        raise TypeError("a consumer cannot be pickled; pickle the store, and make a consumer from it there")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- reading

    def poll(self, max_records: int = 500, *, timeout: Duration | None = None, **unknown: Never) -> Batch[T]:
        """Return the next records of one partition, at most `max_records`; an empty Batch if none came in time.

        Without `timeout` it waits as long as the consumer's `wait` says.
        """
        if unknown:
            check_options("consumer.poll()", unknown, ("max_records", "timeout"))
        if type(max_records) is not int or max_records < 1:
            check_count(max_records)
        session = self._session
        wait_s = session.wait_s if timeout is None else to_timeout("timeout", timeout)
        batch = session.next_batch(max_records, wait_s)
        return Batch() if batch is None else batch

    def batches(self, max_records: int = 500) -> Iterator[Batch[T]]:
        """Yield the batches of one `poll` after the other, until none comes for `wait`, or `stop`, or Ctrl-C."""
        check_count(max_records)
        return self._batches(max_records)

    def _batches(self, max_records: int) -> Iterator[Batch[T]]:
        session = self._session
        session.check_usable()
        with Loop(self._halt, is_bounded=session.wait_s is not None) as loop:
            while not loop.interrupted and not session.is_stopped:
                records = self._next_of(loop, max_records)
                if records is None:
                    return
                yield records.batch()

    def _next_of(self, loop: Loop, max_records: int) -> Records | None:
        """Return the next records of a loop; None if it ends: none came in time, or another thread has closed it."""
        session = self._session
        try:
            return session.next_records(max_records, session.wait_s, lambda: loop.interrupted)
        except StoreError:
            if session.is_closing:
                return None
            raise

    def __iter__(self) -> Iterator[T]:
        """Yield record by record, until nothing comes for `wait`, or `stop`, or Ctrl-C."""
        session = self._session
        session.check_usable()
        with Loop(self._halt, is_bounded=session.wait_s is not None) as loop:

            def is_over() -> bool:
                return loop.interrupted or session.is_stopped

            while not is_over():
                records = self._next_of(loop, AT_ONCE)
                if records is None:
                    return
                current = self._current = iter(records)
                if is_over():  # since the records were read; if it ends later, `_current` tells
                    return
                if session.member is None:
                    for record in current:
                        yield record
                        if self._current is not current:
                            break
                else:
                    yield from self._of_member(current, session.next_look())

    def _of_member(self, records: Iterator[T], due: float) -> Iterator[T]:
        """Yield records while the group needs no work."""
        for record in records:
            yield record
            if self._current is not records or time.monotonic() >= due:
                break

    def _halt(self) -> None:
        """Make a loop look again before its next record, or at once if it waits."""
        self._current = None
        self._session.wake()

    def stop(self) -> None:
        """End the loop that reads, quietly, and every later one. May be called from any thread."""
        self._session.stop()
        self._current = None

    # ---- positions

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions it reads, paused ones included."""
        return sorted(self._session.engine.positions())

    def _assigned(self, topic: str | None, partition: int | None) -> list[TopicPartition]:
        """Return the partitions that are meant: one, those of a topic, or all."""
        self._session.check_usable()
        known = self._session.engine.positions()
        found = [name for name in known if topic in (None, name.topic) and partition in (None, name.partition)]
        if not found and (known or topic is not None):
            raise self._not_assigned(str(topic) if partition is None else f"{topic}/{partition}")
        return found

    def _not_assigned(self, what: str) -> UnknownTopic:
        has_none = not self._session.engine.positions()
        hint = "the first poll of a group assigns them" if has_none else "see consumer.assignment()"
        return UnknownTopic(f"{what} is not assigned to this consumer", hint=hint)

    def position(self, topic: str, partition: int) -> Position:
        """Return the next offset that is handed out, with the leader epoch of what was handed out last."""
        self._session.check_usable()
        handed = self._session.engine.handed_out(TopicPartition(topic, partition))
        if handed is None:
            raise self._not_assigned(f"{topic}/{partition}")
        return handed.position

    def positions(self) -> dict[TopicPartition, Position]:
        """Return all of them; `start=` takes such a mapping."""
        return dict(sorted(self._session.engine.positions().items()))

    def seek(self, topic: str, partition: int, offset: int | Position, leader_epoch: int | None = None) -> None:
        """Continue at `offset`. With the leader epoch stored beside it: where that epoch ended, if that was earlier."""
        (name,) = self._assigned(topic, partition)
        self._current = None
        self._session.resume_at(
            {name: checked_position(offset if isinstance(offset, tuple) else (offset, leader_epoch))}
        )

    def seek_to(self, start: WhereLike) -> None:
        """Continue, in every partition, at what `start` means for a new consumer; a mapping moves what it names."""
        session = self._session
        session.check_usable()
        where = fixed(Where(start, name="start"), session.core.heads.wall_ms())
        names = [name for name in session.engine.positions() if not is_positions(where) or is_named(where, *name)]
        self._current = None
        session.move(
            {name: position_in(where, partition) for name, partition in open_partitions(session.core, names).items()}
        )

    def pause(self, topic: str | None = None, partition: int | None = None) -> None:
        """Read nothing more from that partition, or from the topic's, or from any, until `resume`."""
        names = self._assigned(topic, partition)
        self._current = None
        self._session.engine.pause(names)

    def resume(self, topic: str | None = None, partition: int | None = None) -> None:
        """Continue where it was paused."""
        names = self._assigned(topic, partition)
        self._current = None
        self._session.engine.resume(names)

    # ---- committing

    def commit(self, what: What = None, *, metadata: str = "") -> None:
        """Remember how far the group has come: everything handed out so far, or what is given.

        A batch, a record, or {(topic, partition): offset or Position}. NotOwner if a partition is another member's by
        now; then nothing of it is committed. From any thread.
        """
        self._session.commits.commit(what, metadata)

    def commit_async(self, what: What = None, *, metadata: str = "") -> Future[None]:
        """Like `commit`, in a thread, in the order of the calls. `close` waits for it."""
        return self._session.commits.commit_async(what, metadata)

    def committed(self, topic: str, partition: int) -> Committed | None:
        """Return what the group has committed there, whichever member did; None if nothing."""
        return self._session.commits.committed(topic, partition)

    def transaction(
        self,
        name: str | None = None,
        *,
        timeout: Duration = 60,
        serde: Serde | None = None,
        key_serde: Serde | None = None,
        compression: Compression | None = None,
        compression_level: int | None = None,
        batch_bytes: int = 64 << 10,
        partitioner: Partitioner | None = None,
        **unknown: Never,
    ) -> Transaction[Any, Any]:
        """Begin a transaction of the store in which this consumer takes part; see `store.transaction`.

        If it is aborted, the consumer goes back to where its group is: the next poll gives the same records again.
        """
        check_options("consumer.transaction()", unknown, Consumer.transaction.__kwdefaults__ or ())
        if self._store is None:
            raise GroupError("this consumer was not made by store.consumer()", hint="use store.transaction()")
        transaction: Transaction[Any, Any] = self._store.transaction(
            name,
            consumers=self,
            timeout=timeout,
            serde=serde,
            key_serde=key_serde,
            compression=compression,
            compression_level=compression_level,
            batch_bytes=batch_bytes,
            partitioner=partitioner,
        )
        return transaction

    def run(
        self,
        handler: Callable[[T], object],
        workers: int = 8,
        *,
        processes: bool = False,
        queue: int = 1000,
        timeout: Duration | None = None,
        grace: Duration = 30.0,
        on_error: RunErrorPolicy = "stop",
        retries: int | None = 3,
        retry_on: ErrorTypes | None = None,
        give_up_on: ErrorTypes = (),
        backoff: Duration = 0.1,
        max_backoff: Duration = 10.0,
        dead_letter_topic: str | None = None,
        order: RunOrder = "key",
        commit_every: Duration = 1.0,
        on_done: Callable[[Attempt], object] | None = None,
        on_failed: Callable[[Attempt], object] | None = None,
        on_dead_letter: Callable[[Attempt], object] | None = None,
        on_progress: Callable[[RunReport], object] | None = None,
        **unknown: Never,
    ) -> RunReport:
        """Handle the records with workers, in order within a key, and commit what is done: see client/work/workers.py.

        Ctrl-C and SIGTERM end it when handlers that run have ended.
        """
        from klamm.client.work.workers import run

        return run(
            self._session,
            handler,
            workers,
            processes=processes,
            queue=queue,
            timeout=timeout,
            grace=grace,
            on_error=on_error,
            retries=retries,
            retry_on=retry_on,
            give_up_on=give_up_on,
            backoff=backoff,
            max_backoff=max_backoff,
            dead_letter_topic=dead_letter_topic,
            order=order,
            commit_every=commit_every,
            on_done=on_done,
            on_failed=on_failed,
            on_dead_letter=on_dead_letter,
            on_progress=on_progress,
            **unknown,
        )

    def close(self) -> None:
        """End, and close what is open. A loop in another thread ends, too, after the record that it is at."""
        self.stop()
        self._session.close()


def session_of(consumer: Consumer[Any]) -> Session:
    """Return what a consumer stands on, for the other modules of this package."""
    return consumer._session


def session_that_read(batch: Batch[Any]) -> Session | None:
    """Return what can commit a batch; None if it was read without a group, or its consumer is gone."""
    return None if batch._source is None else batch._source[0]()
