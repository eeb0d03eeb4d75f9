"""A consumer without a group: reads partitions from where it is told, as often as it is asked.

One partition after the other gives a chunk of its records; `poll` and `batches` hand out parts of one chunk, so each
Batch is of one partition, and iteration gives its records one by one. A consumer that has read everything sleeps on the
bell until one of its heads moves on; it keeps few files open, however many partitions it has.

One thread reads; `stop` may be called from any. Records of a topic that is added to a pattern, or of a partition
that is added to a topic, are read from the first one on.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

from klamm.batch import RECORDS, TUPLES, VALUES
from klamm.client.cursor import Cursor, Reading
from klamm.client.interrupt import Loop
from klamm.client.serde import Serde, key_pair, value_pair
from klamm.client.start import Start, Starting, checked_position, resume_at
from klamm.client.subscription import Subscription, Topics
from klamm.disk import fork
from klamm.errors import Forked, InvalidSetting, StoreError, UnknownTopic
from klamm.log.head import wait_any
from klamm.types import Batch, Position

if TYPE_CHECKING:
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
        start: Start = "earliest",
        last: int | None = None,
        wait_ms: float | None = None,
        serde: Serde | None = None,
        key_serde: Serde | None = None,
        form: str = "records",
        on_out_of_range: str = "error",
        max_bytes: int = 1 << 20,
        spin_us: int = 20,
    ) -> None:
        self._core = core
        self._heads = core.heads
        self._subscription = Subscription(topics, pattern, partitions)
        self._starting = Starting(start if last is None else ("last", last))
        self._wait_s = seconds("wait_ms", wait_ms)
        self._how = Reading(
            _choice("form", form, _FORMS),
            key_pair(key_serde, serde).from_bytes,
            value_pair(serde).from_bytes,
            max_bytes,
            str(_choice("on_out_of_range", on_out_of_range, {each: each for each in _POLICIES})),
        )
        self._spin_us = spin_us
        self._cursors: dict[tuple[str, int], Cursor] = {}
        self._with_files: dict[Cursor, None] = {}
        self._hot: deque[Cursor] = deque()  # may have something to read; the first one is being read
        self._awake: list[Cursor] = []  # all that are not paused, in the order of the two lists below
        self._logs: list[Any] = []
        self._seqs: list[int] = []
        self._iterating: Cursor | None = None
        self._current: Iterator[Any] | None = None  # what a loop goes on with; None: it is to look again
        self._loop: Loop | None = None
        self._stopped = False
        self._nudged = False
        self._stop_event = threading.Event()
        self._closed = False
        self._forked = False
        self._version = -1
        self._refresh(new=False)
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
        if not cursor.has_more():
            self._hot.rotate(-1)
        return batch

    def _halt(self) -> None:
        """Let a loop over records look again before its next record."""
        self._current = None

    def _begin_iteration(self, cursor: Cursor) -> Iterator[Any]:
        """What `cursor` has read, one by one; to be given up when `_current` is something else."""
        self._iterating = cursor
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
            left = _NAP_S if until is None else min(_NAP_S, until - time.monotonic())
            if left <= 0:
                return False
            self._sleep(left)
            if self._heads.catalog_version != self._version:
                self._refresh(new=True)
            if self._look():
                return True
        return False

    def _look(self) -> bool:
        """Whether there is something to read: heads that moved since their cursor came to the end."""
        hot, seqs = self._hot, self._seqs
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
            self._stop_event.wait(min(seconds, _READ_ONLY_NAP_S))
        elif not self._stopped:
            wait_any(self._logs, self._seqs, int(seconds * 1e6), self._spin_us)
        if loop is not None:
            loop.waiting = False

    def stop(self) -> None:
        """End the loop that reads, quietly, and every later one. May be called from any thread."""
        self._stopped = True
        self._halt()
        self._stop_event.set()
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
        for place, partition in wanted.items():
            known = self._cursors.get(place)
            if known is None or known.partition is not partition:
                position = self._starting.position_in(partition, new=new)
                self._cursors[place] = Cursor(partition, position)
        for place in [place for place in self._cursors if place not in wanted]:
            self._forget(self._cursors.pop(place))
        self._version = version
        self._arrange()

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

    def assignment(self) -> list[tuple[str, int]]:
        """The (topic, partition)s it reads, paused ones included."""
        return sorted(self._cursors)

    # ---- moving

    def position(self, topic: str, partition: int) -> Position:
        """The next offset that is handed out, with the leader epoch of what was handed out last."""
        return self._cursor(topic, partition).position

    def positions(self) -> dict[tuple[str, int], Position]:
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
        self._arrange()

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
        if self._closed:
            return
        if not self._forked:
            self.stop()
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


def _choice(name: str, value: object, known: Mapping[str, Any]) -> Any:
    if not isinstance(value, str) or value not in known:
        raise InvalidSetting(f"{name}: {value!r} does not fit", hint=f"want {' or '.join(map(repr, known))}")
    return known[value]


def check_count(max_records: Any) -> None:
    if not isinstance(max_records, int):
        raise TypeError(f"max_records is an int, not {type(max_records).__name__}")
    if max_records < 1:
        raise InvalidSetting(f"max_records: {max_records} does not fit", hint="want at least 1")


def seconds(name: str, ms: Any) -> float | None:
    if ms is None:
        return None
    if type(ms) is not int and type(ms) is not float:
        raise TypeError(f"{name} is a number of milliseconds or None, not {type(ms).__name__}")
    if not ms >= 0:
        raise InvalidSetting(f"{name}: {ms} does not fit", hint="want milliseconds, or None to wait for ever")
    return float(ms) / 1000
