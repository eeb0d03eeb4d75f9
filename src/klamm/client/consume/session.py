"""A subscription that is being read: an engine, and what is done between its batches. Consumers, loops of asyncio and
workers stand on it.

    before a batch     the catalog may have changed: partitions come and go · a group is looked after (group_session.py)
    while it waits     the same, every 0.5 s, in a group every 0.2 s, or as soon as either changes

One thread reads; `stop`, `wake`, `close` and commits may come from any. Records of a topic that is added to a pattern,
or of a partition that is added to a topic, are read from the first one on.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from klamm.client.consume.engines import open_engine
from klamm.client.consume.read_engine import TURN_S
from klamm.client.groups.group_session import GroupSession
from klamm.client.groups.membership import IDLE_LOOK_S
from klamm.client.subscription import open_partitions
from klamm.disk import fork
from klamm.disk._os import TimedLock
from klamm.errors import Closed, Forked, GroupError, StoreError
from klamm.types import Batch, Position, TopicPartition
from klamm.where import fixed, position_in, resume_at

if TYPE_CHECKING:
    from klamm.client.consume.read_engine import ReadFormat, Records
    from klamm.client.groups.commits import Commits
    from klamm.client.groups.group_session import GroupOptions
    from klamm.client.groups.membership import Member
    from klamm.client.groups.offsets import Offsets
    from klamm.client.subscription import Subscription
    from klamm.store.directory import Core
    from klamm.where import Where

__all__ = ["AT_ONCE", "Session"]

AT_ONCE = 500
"""Records that a loop takes; then the group is looked after."""
_AT_ONCE_S = 0.1  # and in a group, after so long
_WAIT_S = 0.5  # the longest wait of the engine


class Abortable(Protocol):
    """A transaction."""

    def abort(self) -> None: ...


def _never() -> bool:
    return False


class Session:
    """Made by a consumer; see the top of this module."""

    def __init__(
        self,
        core: Core,
        subscription: Subscription,
        start: Where,
        read_format: ReadFormat,
        *,
        wait_s: float | None,
        max_bytes: int,
        auto_offset_reset: str | None,
        committed: bool,
        spin_us: int,
        group: str | None,
        offsets: Offsets | None,
        **sharing: Unpack[GroupOptions],
    ) -> None:
        self.core = core
        self.wait_s = wait_s  # how long a loop waits for records; None: without limit
        self.is_stopped = False
        self.is_closing = self.is_closed = False
        self._closing = threading.RLock()  # of the thread that closes it; others that close it wait for that
        self._reader = 0  # the thread that reads just now
        self._is_forked = False
        self.transaction: Abortable | None = None  # the open one that it takes part in
        self._rewind_due: tuple[dict[TopicPartition, int], bool] | None = None  # begun, and not done
        self._subscription = subscription
        self._start = fixed(start, core.heads.wall_ms())
        self.read_format = read_format
        self._version = core.heads.catalog_version
        # What a group shared when this member came; partitions that are not in it have come since.
        self._first = frozenset(() if group is None else subscription.partitions(core))
        self.engine = open_engine(
            core,
            read_format,
            max_bytes=max_bytes,
            auto_offset_reset=auto_offset_reset,
            committed=committed,
            spin_us=spin_us,
        )
        self.engine.seen.catalog = self._version
        self._me = weakref.ref(self)
        make_group_session = GroupSession if core.elsewhere is None else core.elsewhere.group_session
        shared: GroupSession = make_group_session(
            core,
            subscription,
            self.engine,
            group=group,
            offsets=offsets,
            auto_offset_reset=auto_offset_reset,
            **sharing,
        )
        self.sharing = None if group is None and offsets is None else shared
        self.member: Member | None = shared.member  # None without a group
        self._look_s = _WAIT_S if self.member is None else IDLE_LOOK_S
        try:
            if self.member is None:
                self._refresh(is_new=False)
            else:
                self.member.watch(self)
        except BaseException:
            self.engine.close()
            raise
        fork.register(self, Session._in_child)

    @property
    def commits(self) -> Commits:
        """The progress of its group, or of the user's own offsets."""
        self.check_usable()
        if self.sharing is None:
            raise GroupError(
                "this consumer has no group, so there is nowhere to commit",
                hint="say group=… when making it, or keep consumer.positions() yourself",
            )
        return self.sharing.commits

    # ---- reading

    def next_batch(
        self, max_records: int, timeout_s: float | None, give_up: Callable[[], bool] = _never
    ) -> Batch[Any] | None:
        """Return the next records of one partition; None if there are none in time, at `stop`, or when `give_up()`.

        A caller that makes `give_up` true calls `wake`.
        """
        records = self.next_records(max_records, timeout_s, give_up)
        return None if records is None else records.batch()

    def next_records(
        self, max_records: int, timeout_s: float | None, give_up: Callable[[], bool] = _never
    ) -> Records | None:
        """Like `next_batch`, but each record counts as handed out when it is iterated."""
        if self.is_closed or self._is_forked:
            self.check_usable()
        self._reader = threading.get_ident()
        try:
            records = self._next(max_records, timeout_s, give_up)
            if records is not None and self.sharing is not None:
                records.source = self._me, self.sharing.commits.deliver(records.partition, records.begin)
        except StoreError:
            if self.is_closing:  # by another thread, during this call
                return None
            raise
        finally:
            self._reader = 0
        return records

    def _next(self, max_records: int, timeout_s: float | None, give_up: Callable[[], bool]) -> Records | None:
        self.poll_begins()
        deadline = None if not timeout_s else time.monotonic() + timeout_s
        is_last = timeout_s == 0
        while True:
            is_last = is_last or self.is_stopped or give_up()
            wait_s = 0 if is_last else self._look_s
            if deadline is not None and not is_last:
                wait_s = min(wait_s, max(0, deadline - time.monotonic()))
                is_last = wait_s == 0
            records = self.engine.next_records(max_records, wait_s)
            if records is not None or is_last:
                return records
            self._refresh_if_due()
            if self.sharing is not None:
                self.sharing.waits(self)

    def poll_begins(self) -> None:
        """Record that what was returned before is processed; look after the catalog and the group."""
        self._refresh_if_due()
        if self.sharing is not None:
            if self._rewind_due is not None:
                self._go_back(*self._rewind_due)
            self.sharing.poll_begins(self)

    def next_look(self) -> float:
        """Return when a loop that has just got records is to poll again, by time.monotonic(), however slow it is."""
        return math.inf if self.member is None else time.monotonic() + min(_AT_ONCE_S, self.member.interval_s / 4)

    # ---- which partitions

    def _refresh_if_due(self) -> None:
        if self.core.heads.catalog_version != self._version:
            self._refresh(is_new=True)
        if self.member is not None:
            self.engine.seen.groups = self.member.version

    def _refresh(self, *, is_new: bool) -> None:
        """Look at the catalog: topics and partitions may have come or gone. `is_new`: they were not there before."""
        version = self.core.heads.catalog_version
        wanted = self._subscription.partitions(self.core)
        if self.member is None:  # a member finds out itself what is to be shared
            known = self.engine.positions()
            fresh = {
                name: partition
                for name, partition in wanted.items()
                if name not in known or not self.engine.reads(name, partition)
            }
            stored = self.sharing.commits.load(fresh) if self.sharing is not None else {}
            starts = {
                name: position_in(self._start, partition, is_new=is_new)
                for name, partition in fresh.items()
                if name not in stored
            }
            if self.sharing is not None:
                self.sharing.commits.begins(starts)
            resumed = {name: resume_at(fresh[name], position) for name, position in stored.items()}
            if fresh:
                self.engine.assign({**starts, **resumed})
            gone = known.keys() - wanted.keys()
            if gone:
                self.engine.unassign(gone)
        self._version = self.engine.seen.catalog = version

    def is_new(self, name: TopicPartition) -> bool:
        """Return whether the partition did not exist when the session began."""
        return name not in self._first

    # ---- moving

    def move(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Continue at other positions: what was returned and not committed is given up."""
        self.check_usable()
        self.engine.move(positions)
        if self.sharing is not None:
            self.sharing.commits.moved(positions)

    def resume_at(self, stored: Mapping[TopicPartition, Position]) -> None:
        """Continue at positions that were stored, or where their leader epochs ended before them."""
        known = self.engine.positions()
        partitions = open_partitions(self.core, [name for name in stored if name in known])
        self.move({name: resume_at(partition, stored[name]) for name, partition in partitions.items()})

    def rewind(self, *, reload: bool = False) -> None:
        """Return again what was returned and not committed; with `reload`, continue where the group is by now.

        If that raises, the next poll does it before it reads.
        """
        if self.sharing is None or self.is_closed:
            return
        self._rewind_due = dict(self.sharing.commits.since), reload
        self._go_back(*self._rewind_due)

    def _go_back(self, since: dict[TopicPartition, int], reload: bool) -> None:
        assert self.sharing is not None
        stored = self.sharing.commits.load(since) if reload else {}
        self.resume_at({**{name: Position(offset) for name, offset in since.items()}, **stored})
        self._rewind_due = None

    def use(self, read_format: ReadFormat) -> None:
        """Make records into another form from now on."""
        self.engine.use(read_format)
        self.read_format = read_format

    # ---- the end

    def wake(self) -> None:
        """Make the waiting thread check whether it is to give up. From any thread."""
        if not self._is_forked:
            self.engine.interrupt()

    def stop(self) -> None:
        """End the loop that reads, and every later one. From any thread."""
        self.is_stopped = True
        self.wake()

    def close(self) -> None:
        """End, and close what is open. A loop in another thread ends, too.

        If another thread is closing it, wait until that is done, at most TURN_S; not if that one waits for this one.
        """
        with TimedLock(self._closing, 0 if self._is_waited_for() else TURN_S) as may_close:
            if may_close and not self.is_closing:
                self._close()

    def _is_waited_for(self) -> bool:
        """Return whether this thread reads (and calls a serde, or a callback), or handles a record."""
        runner = None if self.sharing is None else self.sharing.runner
        return self._reader == threading.get_ident() or (runner is not None and runner.is_worker())

    def _close(self) -> None:
        self.is_closing = True
        try:
            if not self._is_forked:
                self.stop()
                if self.sharing is not None:
                    self.sharing.close()
        finally:
            self.is_closed = True
            if not self._is_forked:
                self.engine.close()

    @property
    def is_usable(self) -> bool:
        """Whether it was not closed, nor made before a fork."""
        return not (self.is_closed or self._is_forked)

    def check_usable(self) -> None:
        """Raise if it was closed, or made before a fork."""
        if self._is_forked:
            raise Forked(
                "this consumer was made before the fork", hint="make another with store.consumer() in the child"
            )
        if self.is_closed:
            raise Closed("the consumer is closed", hint="make another with store.consumer()")

    def _in_child(self) -> None:
        self._is_forked = True
        self._closing = threading.RLock()  # the thread that has the other one is not in this process
