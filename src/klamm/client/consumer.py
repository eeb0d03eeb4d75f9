"""A consumer: reads partitions from where it is told, or where its group stands, as often as it is asked.

One partition after the other gives a chunk of its records; `poll` and `batches` hand out parts of one chunk, so each
Batch is of one partition, and iteration gives its records one by one. A consumer that has read everything sleeps on the
bell until one of its heads moves on; it keeps few files open, however many partitions it has.

One thread reads; `stop` and commits may be called from any. Records of a topic that is added to a pattern, or of a
partition that is added to a topic, are read from the first one on. What a group adds: sharing.py.
"""

from __future__ import annotations

import re
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self, Unpack

from klamm.batch import RECORDS, TUPLES, VALUES
from klamm.client.commits import Commits, What
from klamm.client.cursor import Cursor, Reading
from klamm.client.interrupt import Loop
from klamm.client.membership import IDLE_LOOK_S, Member
from klamm.client.offsets import Offsets
from klamm.client.options import check_count, choice, seconds
from klamm.client.serde import Serde, key_pair, value_pair
from klamm.client.sharing import Sharing
from klamm.client.start import Start, Starting, checked_position, resume_at
from klamm.client.stuck import Stuck
from klamm.client.subscription import Subscription, Topics
from klamm.disk import fork
from klamm.disk.threads import StopFlag
from klamm.errors import Forked, GroupError, InvalidSetting, StoreError, UnknownTopic
from klamm.log.head import wait_any
from klamm.log.reader import reads_committed
from klamm.types import Batch, Committed, Position, RunReport, TopicPartition

if TYPE_CHECKING:
    from concurrent.futures import Future

    from klamm.client.sharing import SharingOptions
    from klamm.log.partition import Partition
    from klamm.store.directory import Core

__all__ = ["Consumer", "check_count", "seconds"]

_FORMS = {"records": RECORDS, "tuples": TUPLES, "values": VALUES}
_POLICIES = ("error", "earliest", "latest")
_MAX_OPEN = 64  # files
_NAP_S = 0.5  # the longest sleep without a look at the catalog
_READ_ONLY_NAP_S = 0.02  # a read-only store cannot listen to the bell
_NEVER = 2**64 - 1  # a seq that no head has


class Consumer:
    """Reads topics; made by `store.consumer()`. For one thread, apart from `stop`."""

    def __init__(
        self,
        core: Core,
        topics: Topics | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        partitions: Iterable[int] | None = None,
        start: Start | None = None,
        last: int | None = None,
        wait_ms: float | None = None,
        serde: Serde | None = None,
        key_serde: Serde | None = None,
        form: str = "records",
        on_out_of_range: str = "error",
        max_bytes: int = 1 << 20,
        spin_us: int = 20,
        isolation: str = "read_committed",
        group: str | None = None,
        offsets: Offsets | None = None,
        **sharing: Unpack[SharingOptions],
    ) -> None:
        self._core = core
        self._store: object = None  # whose consumer it is, kept from being dropped
        self._heads = core.heads
        self._subscription = Subscription(topics, pattern, partitions)
        if group is not None and (start is not None or last is not None):
            raise InvalidSetting(
                "start: a group starts where it stands", hint="see auto_offset_reset, and store.reset_offsets"
            )
        self._starting = Starting(("last", last) if last is not None else "earliest" if start is None else start)
        self._wait_s = seconds("wait_ms", wait_ms)
        self._how = Reading(
            choice("form", form, _FORMS),
            key_pair(key_serde, serde).from_bytes,
            value_pair(serde).from_bytes,
            max_bytes,
            str(choice("on_out_of_range", on_out_of_range, {each: each for each in _POLICIES})),
        )
        self._spin_us = spin_us
        self._committed = reads_committed(isolation)
        self._cursors: dict[TopicPartition, Cursor] = {}
        self._with_files: dict[Cursor, None] = {}
        self._hot: deque[Cursor] = deque()  # may have something to read; the first one is being read
        self._awake: list[Cursor] = []  # all that are not paused, in the order of the two lists below
        self._logs: list[Any] = []
        self._seqs: list[int] = []
        self._stuck = Stuck(core)
        self._iterating: Cursor | None = None
        self._current: Iterator[Any] | None = None  # what a loop goes on with; None: it is to look again
        self._loop: Loop | None = None
        self._stopped = False
        self._nudged = False
        self._stop_flag = StopFlag()
        self._closing = self._closed = False
        self._forked = False
        self._version = -1
        version = self._heads.catalog_version
        # What a group shared when this member came; partitions that are not in it have come since.
        self._there = frozenset(() if group is None else self._subscription.partitions(core))
        self._nap_s = _NAP_S
        self._me = weakref.ref(self)
        shared = Sharing(core, self._subscription, self._cursors, group=group, offsets=offsets, **sharing)
        self._sharing = None if group is None and offsets is None else shared
        self._member: Member | None = shared.member  # None without a group
        if self._member is None:
            self._refresh(new=False)
        else:
            self._version = version
            self._nap_s = IDLE_LOOK_S
            self._member.watch(self)
        fork.register(self)

    def __repr__(self) -> str:
        return f"<Consumer of {self._core.path}: {len(self._cursors)} partitions{', closed' if self._closed else ''}>"

    def __reduce__(self) -> str:
        raise TypeError("a consumer cannot be pickled; pickle the store, and make a consumer from it there")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- reading

    def poll(self, max_records: int = 500, timeout_ms: float | None = None) -> Batch:
        """The next records of one partition, at most `max_records`; an empty Batch if none came in time.

        Without `timeout_ms` it waits as long as the consumer's `wait_ms` says.
        """
        if type(max_records) is not int or max_records < 1:
            check_count(max_records)
        cursor = self._ready(self._wait_s if timeout_ms is None else seconds("timeout_ms", timeout_ms))
        return Batch() if cursor is None else self._hand_out(cursor, max_records)

    def batches(self, max_records: int = 500) -> Iterator[Batch]:
        """One `poll` after the other, until nothing comes for `wait_ms`, or `stop`, or Ctrl-C."""
        check_count(max_records)
        return self._batches(max_records)

    def _batches(self, max_records: int) -> Iterator[Batch]:
        with Loop(self._halt) as loop:
            while not loop.interrupted and not self._stopped:
                cursor = self._ready_in(loop)
                if cursor is None:
                    return
                yield self._hand_out(cursor, max_records)

    def __iter__(self) -> Iterator[Any]:
        """Record by record, until nothing comes for `wait_ms`, or `stop`, or Ctrl-C."""
        with Loop(self._halt) as loop:
            while not loop.interrupted and not self._stopped:
                cursor = self._ready_in(loop)
                if cursor is None:
                    return
                current = self._begin_iteration(cursor)
                try:
                    for record in current:
                        yield record
                        if self._current is not current:
                            break
                finally:
                    if self._current in (current, None):  # else: another loop has taken over
                        self._end_iteration()

    def _hand_out(self, cursor: Cursor, max_records: int) -> Batch:
        batch = cursor.take(max_records)
        if self._sharing is not None:
            self._sharing.commits.hand_out((cursor.topic, cursor.number), batch.begin)
            batch._source = self._me, cursor.tenure
        if not cursor.has_more():
            self._hot.rotate(-1)
        return batch

    def _halt(self) -> None:
        """Let a loop over records look again before its next record."""
        self._current = None

    def _begin_iteration(self, cursor: Cursor) -> Iterator[Any]:
        """What `cursor` has read, one by one; to be given up when `_current` is something else."""
        self._iterating = cursor
        if self._sharing is not None:
            self._sharing.commits.hand_out((cursor.topic, cursor.number), cursor.position.offset)
        current = self._current = cursor.iterate()
        return current

    def _end_iteration(self) -> None:
        """What the iteration has given is handed out; the rest is for whoever asks next."""
        cursor, self._iterating = self._iterating, None
        self._current = None
        if cursor is not None:
            cursor.end_iteration()
            if not cursor.has_more() and self._hot and self._hot[0] is cursor:
                self._hot.rotate(-1)

    def _ready_in(self, loop: Loop) -> Cursor | None:
        """The same as `_ready`, but Ctrl-C ends the loop."""
        self._loop = loop
        try:
            return self._ready(self._wait_s)
        except KeyboardInterrupt:
            if loop.interrupted:
                return None
            raise
        finally:
            self._loop = None
            loop.waiting = False

    def _ready(self, wait_s: float | None) -> Cursor | None:
        """A cursor that has records to hand out; None if there is none within `wait_s`."""
        if self._closed or self._forked:
            self._check_usable()
        if self._iterating is not None:
            self._end_iteration()
        if self._heads.catalog_version != self._version:
            self._refresh(new=True)
        if self._sharing is not None:
            self._sharing.poll_begins(self)
        hot, how = self._hot, self._how
        until: float | None = None
        while True:
            while hot:
                cursor = hot[0]
                if cursor.has_more():
                    return cursor
                if cursor.fill(how):
                    self._bound_files(cursor)
                    return cursor
                hot.popleft()
                self._seqs[cursor.place] = cursor.seq
            if self._look():
                continue
            if wait_s == 0:
                return None
            if until is None and wait_s is not None:
                until = time.monotonic() + wait_s
            if not self._wait(until):
                return None

    # ---- waiting

    def _wait(self, until: float | None) -> bool:
        """Until a head has moved; False if none has in time, or at `stop`."""
        while not self._stopped and not self._nudged:
            left = self._nap_s if until is None else min(self._nap_s, until - time.monotonic())
            if left <= 0:
                return False
            self._sleep(left)
            if self._heads.catalog_version != self._version:
                self._refresh(new=True)
            if self._sharing is not None:
                self._sharing.waits(self)
            if self._look():
                return True
        return False

    def _look(self) -> bool:
        """Whether there is something to read: heads that moved since their cursor came to the end."""
        hot, seqs = self._hot, self._seqs
        self._stuck.look(self._awake)
        if not hot:
            for cursor in self._awake:
                if cursor.log.seq != seqs[cursor.place]:
                    hot.append(cursor)
        return bool(hot)

    def _sleep(self, seconds: float) -> None:
        loop = self._loop
        if loop is not None:
            loop.waiting = True
            if loop.interrupted:
                raise KeyboardInterrupt
        if self._core.read_only or not self._logs:
            self._stop_flag.wait(min(seconds, _READ_ONLY_NAP_S))
        elif not self._stopped:
            groups = -1 if self._member is None else self._member.version
            wait_any(self._logs, self._seqs, int(seconds * 1e6), self._spin_us, groups)
        if loop is not None:
            loop.waiting = False

    def stop(self) -> None:
        """End the loop that reads, quietly, and every later one. May be called from any thread."""
        self._stopped = True
        self._halt()
        self._stop_flag.set()
        self._interrupt_sleep()

    def _nudge(self) -> None:
        """Let the thread that waits return without records, once. For those who give up waiting."""
        self._nudged = True
        self._interrupt_sleep()

    def _interrupt_sleep(self) -> None:
        seqs, logs = self._seqs, self._logs
        if seqs and not self._forked and not self._core.read_only:
            seqs[0] = _NEVER  # that is what the waiting thread compares with, after the bell
            logs[0].ring()

    # ---- which partitions

    def _refresh(self, *, new: bool) -> None:
        """Look at the catalog: topics and partitions may have come or gone. `new`: what comes was not there before."""
        version = self._heads.catalog_version
        wanted = self._subscription.partitions(self._core)
        if self._member is None:
            known = self._cursors
            fresh = {
                each: wanted[each] for each in wanted if each not in known or known[each].partition is not wanted[each]
            }
            stored = self._sharing.commits.load(fresh) if self._sharing is not None else {}
            starts = {
                place: self._starting.position_in(partition, new=new)
                for place, partition in fresh.items()
                if place not in stored
            }
            if self._sharing is not None:
                self._sharing.commits.begins(starts)
            for place, partition in fresh.items():
                position = starts.get(place) or resume_at(partition, stored[place])
                self._cursors[place] = Cursor(partition, position, committed=self._committed)
            self._remove([place for place in known if place not in wanted])
        self._version = version  # a member finds out itself what is to be shared

    def _add(self, found: Mapping[Partition, Position]) -> None:
        """Read these partitions, too."""
        for partition, position in found.items():
            self._cursors[partition.topic, partition.number] = Cursor(partition, position, committed=self._committed)
        self._arrange()

    def _remove(self, places: Iterable[TopicPartition]) -> None:
        """Read these no more."""
        for place in places:
            cursor = self._cursors.pop(place, None)
            if cursor is not None:
                self._forget(cursor)
        self._arrange()

    def _is_new(self, place: TopicPartition) -> bool:
        """Whether the partition was not there when the consumer was made."""
        return place not in self._there

    def _arrange(self) -> None:
        """After cursors came, went, paused or were moved: all that can be read are looked at again."""
        self._awake = [cursor for cursor in self._cursors.values() if not cursor.paused]
        self._logs = [cursor.log for cursor in self._awake]
        self._seqs = [_NEVER] * len(self._awake)
        for place, cursor in enumerate(self._awake):
            cursor.place = place
        self._hot.clear()
        self._hot.extend(sorted(self._awake, key=lambda cursor: not cursor.has_more()))  # what is read already, first

    def _forget(self, cursor: Cursor) -> None:
        self._with_files.pop(cursor, None)
        cursor.reader.close()

    def _bound_files(self, cursor: Cursor) -> None:
        if cursor not in self._with_files:
            self._with_files[cursor] = None
            if len(self._with_files) > _MAX_OPEN:
                oldest = next(iter(self._with_files))
                del self._with_files[oldest]
                oldest.reader.close()  # it keeps its place

    def _cursor(self, topic: str, partition: int) -> Cursor:
        self._check_usable()
        cursor = self._cursors.get((topic, partition))
        if cursor is None:
            raise UnknownTopic(
                f"{topic}/{partition} is not assigned to this consumer", hint="see consumer.assignment()"
            )
        return cursor

    def assignment(self) -> list[TopicPartition]:
        """The (topic, partition)s it reads, paused ones included."""
        return sorted(self._cursors)

    # ---- moving

    def position(self, topic: str, partition: int) -> Position:
        """The next offset that is handed out, with the leader epoch of what was handed out last."""
        return self._cursor(topic, partition).position

    def positions(self) -> dict[TopicPartition, Position]:
        """All of them; `start=` takes such a mapping."""
        return {place: cursor.position for place, cursor in sorted(self._cursors.items())}

    def seek(self, topic: str, partition: int, offset: int | Position, leader_epoch: int | None = None) -> None:
        """Go on at `offset`. With the leader epoch stored beside it: where that epoch ended, if that was earlier."""
        cursor = self._cursor(topic, partition)
        wanted = checked_position(offset if isinstance(offset, tuple) else (offset, leader_epoch))
        self._move({cursor: resume_at(cursor.partition, wanted)})

    def seek_to(self, start: Start) -> None:
        """Go on, in every partition, at what `start` means for a new consumer; a mapping moves what it names."""
        self._check_usable()
        starting = Starting(start)
        self._move(
            {
                cursor: starting.position_in(cursor.partition, new=False)
                for place, cursor in self._cursors.items()
                if not isinstance(start, Mapping) or starting.names(*place)
            }
        )

    def _move(self, to: dict[Cursor, Position]) -> None:
        self._end_iteration()
        for cursor, position in to.items():
            cursor.seek(position)
        if self._sharing is not None:
            self._sharing.commits.moved((cursor.topic, cursor.number) for cursor in to)
        self._arrange()

    def _put_back(self, to: Mapping[TopicPartition, Position]) -> None:
        found = {self._cursors[place]: position for place, position in to.items() if place in self._cursors}
        self._move({cursor: resume_at(cursor.partition, position) for cursor, position in found.items()})

    def _rewind(self) -> None:
        """Hand out again what was handed out and not committed. For the thread that reads, after an abort."""
        if self._sharing is not None and not self._closed:
            since = dict(self._sharing.commits.since)
            self._end_iteration()
            self._put_back({place: Position(offset) for place, offset in since.items()})

    # ---- committing

    @property
    def _polled_by(self) -> int:
        """The thread that polled last; 0: none, or it has no group."""
        return 0 if self._sharing is None else self._sharing.polled_by

    def commit(self, what: What = None, *, metadata: str = "") -> None:
        """Remember how far the group has come: everything handed out so far, or what is given.

        A batch, a record, or {(topic, partition): offset or Position}. NotOwner if a partition is another member's by
        now; then nothing of it is committed. From any thread.
        """
        self._commits.commit(what, metadata)

    def commit_async(self, what: What = None, *, metadata: str = "") -> Future[None]:
        """The same in a thread, in the order of the calls. `close` waits for it."""
        return self._commits.commit_async(what, metadata)

    def committed(self, topic: str, partition: int) -> Committed | None:
        """What the group has committed there, whichever member did; None if nothing."""
        return self._commits.committed(topic, partition)

    @property
    def _commits(self) -> Commits:
        self._check_usable()
        if self._sharing is None:
            raise GroupError(
                "this consumer has no group, so there is nowhere to commit",
                hint="say group=… when making it, or keep consumer.positions() yourself",
            )
        return self._sharing.commits

    def run(self, handler: Callable[[Any], object], workers: int = 8, **options: Any) -> RunReport:
        """Let workers handle the records, in order within a key, and commit what is done: see client/workers.py."""
        from klamm.client.workers import run

        return run(self, handler, workers, **options)

    def pause(self, topic: str | None = None, partition: int | None = None) -> None:
        """Read nothing more from that partition, or from the topic's, or from any, until `resume`."""
        self._set_paused(True, topic, partition)

    def resume(self, topic: str | None = None, partition: int | None = None) -> None:
        """Go on where it was paused."""
        self._set_paused(False, topic, partition)

    def _set_paused(self, paused: bool, topic: str | None, partition: int | None) -> None:
        self._check_usable()
        found = [
            cursor
            for (name, number), cursor in self._cursors.items()
            if topic in (None, name) and partition in (None, number)
        ]
        if not found and self._cursors:
            raise UnknownTopic(
                f"{topic}/{partition} is not assigned to this consumer", hint="see consumer.assignment()"
            )
        self._end_iteration()
        for cursor in found:
            cursor.paused = paused
        self._arrange()

    # ---- the end

    def close(self) -> None:
        """End, and close what is open. A loop in another thread ends, too."""
        if self._closed or self._closing:
            return
        self._closing = True
        try:
            if not self._forked:
                self.stop()
                if self._sharing is not None:
                    self._sharing.close()
        finally:
            self._closed = True
        for cursor in list(self._with_files):
            cursor.reader.close()

    def _check_usable(self) -> None:
        if self._forked:
            raise Forked(
                "this consumer was made before the fork", hint="make another with store.consumer() in the child"
            )
        if self._closed:
            raise StoreError("the consumer is closed", hint="make another with store.consumer()")

    def before_fork(self) -> None:
        """Nothing: the child does not use it."""

    def after_fork(self) -> None:
        """Nothing: the parent goes on."""

    def in_child(self) -> None:
        self._forked = True
