"""Fetch sessions (KIP-227): the server remembers the partitions of a consumer, and requests and responses name those
that changed.

    session_id, session_epoch     the request is
    any, 0                        full; it asks for a session, and ends the one that it names
    any, -1                       full; it asks for none, and ends the one that it names
    n, m > 0                      incremental: the m-th after the full request that session n began with

A fetch without a session is one that ends with its response: the same code handles both.

What a session has to look at is `pending`: partitions that are new or were asked for from another offset, whose heads
have moved (log/_watch.pxi: a comparison of numbers for each), and those that had an error or more records than were
sent. All others have nothing that the client does not know, so that an idle consumer costs the same however many
partitions it has.

Promises
  FES1  A session belongs to its connection, which has one at a time, and ends with it. On another connection it is not
        found: what its client may read is what was checked there.
  FES2  There are at most `max.incremental.fetch.session.cache.slots` sessions, with at most
        `max.incremental.fetch.session.cache.partitions` partitions together, and MAX_SESSION_PARTITIONS in one. A
        client that gets no session has session 0, and names its partitions each time.
  FES3  A session that was not used for EVICTION_MS gives way to a new one; one that is older than that gives way to a
        larger one, as in Kafka.
  FES4  A partition that is not in an incremental response has no records before its limit, no error, and the high
        watermark, last stable offset and log start offset of the last response that it was in.
  FES5  What was looked up for a client without a session is kept for its next request, which mostly names the same
        partitions: for at most as many connections as there may be sessions.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING

from klamm.kafka.purgatory import Subscription
from klamm.log.head import WatchedLogs

if TYPE_CHECKING:
    from klamm.kafka._fetch import OrdinaryFetch
    from klamm.kafka.wire.structs import Struct
    from klamm.log.partition import Partition
    from klamm.log.ranges import Ranges

__all__ = ["EVICTION_MS", "MAX_SESSION_PARTITIONS", "FetchPartition", "FetchSession", "FetchSessions", "next_epoch"]

EVICTION_MS = 120_000
MAX_SESSION_PARTITIONS = 10_000
"""Each fetch compares a number of each: a bound for what a request of a few bytes may cost."""
_MAX_ID = 2**31 - 1

_LAST_EPOCH = 2**31 - 1  # of incremental requests; 1 is the next

TopicKey = str | bytes
"""A topic as clients name it: by name, or by id from version 13 on."""


def next_epoch(epoch: int) -> int:
    """Return the epoch of the request after that one."""
    return 1 if epoch == _LAST_EPOCH else epoch + 1


class FetchPartition:
    """One partition of a session: what is wanted of it, and what the client knows."""

    __slots__ = (
        "error",
        "index",
        "last_epoch",
        "leader_epoch",
        "max_bytes",
        "offset",
        "partition",
        "place",
        "ranges",
        "rests",
        "sent",
        "topic",
        "turn",
    )

    def __init__(self, topic: TopicKey, index: int, turn: int) -> None:
        self.topic = topic
        self.index = index
        self.turn = turn
        """Partitions are looked at in this order; one whose records an incremental response had is the last then."""
        self.partition: Partition | None = None
        self.ranges: Ranges | None = None
        self.place = -1
        """In the session's watch."""
        self.error = 0
        """Why there is no partition."""
        self.rests = False
        """Whether it had no records and no error when it was last looked at: nothing changes until its head moves."""
        self.sent: tuple[int, int, int] | None = None
        """High watermark, last stable offset and log start offset that the client knows; None: nothing, or an error."""

    def want(self, offset: int, max_bytes: int, leader_epoch: int, last_epoch: int) -> None:
        self.offset = offset
        self.max_bytes = max_bytes
        self.leader_epoch = leader_epoch
        self.last_epoch = last_epoch


class FetchSession:
    """The partitions of one consumer."""

    __slots__ = (
        "_turns",
        "_watch",
        "_watched",
        "catalog_version",
        "created_ms",
        "epoch",
        "id",
        "isolation_level",
        "new",
        "partitions",
        "pending",
        "size",
        "subscription",
        "used_ms",
        "uses_ids",
    )

    def __init__(self, *, uses_ids: bool) -> None:
        self.uses_ids = uses_ids
        """Whether its topics are named by id."""
        self.id = 0
        self.epoch = 1
        """Of the next request."""
        self.partitions: dict[tuple[TopicKey, int], FetchPartition] = {}
        self.pending: set[FetchPartition] = set()
        """What the next attempt has to look at."""
        self.catalog_version = -1
        """As of which its partitions were looked up; -1: they were not."""
        self.new: dict[FetchPartition, None] = {}
        """Partitions that have not been looked up in the catalog."""
        self.isolation_level = 0
        self.subscription = Subscription()
        self.size = self.created_ms = self.used_ms = 0
        self._watch = WatchedLogs()
        self._watched: dict[int, FetchPartition] = {}
        self._turns = 0

    def next_turn(self) -> int:
        self._turns += 1
        return self._turns

    def update(self, topics: Iterable[Struct], isolation_level: int) -> Iterator[None]:
        """Add partitions, or ask for other offsets of those that it has: of one when this is advanced."""
        self._read_at(isolation_level)
        for topic in topics:
            yield
            key = topic.topic_id if self.uses_ids else topic.topic
            for requested in topic.partitions:
                yield
                self._partition(key, requested.partition).want(
                    requested.fetch_offset,
                    requested.partition_max_bytes,
                    requested.current_leader_epoch,
                    requested.last_fetched_epoch,
                )

    def update_ordinary(self, request: OrdinaryFetch) -> None:
        """Like `update`, by a request that was read natively."""
        self._read_at(request.isolation_level)
        for number in range(len(request)):
            self._partition(*request.partition(number)).want(*request.wants(number))

    def _read_at(self, isolation_level: int) -> None:
        if isolation_level != self.isolation_level:
            self.isolation_level = isolation_level
            self.pending.update(self.partitions.values())

    def _partition(self, key: TopicKey, index: int) -> FetchPartition:
        """Return a partition that is asked for."""
        wanted = self.partitions.get((key, index))
        if wanted is None:
            wanted = self.partitions[key, index] = FetchPartition(key, index, self.next_turn())
            self.new[wanted] = None
        self.pending.add(wanted)
        return wanted

    def forget(self, topics: Iterable[Struct], leave: Callable[[Subscription, Partition], None]) -> Iterator[None]:
        """Remove partitions, one when this is advanced; `leave` takes the subscription off each."""
        for topic in topics:
            yield
            key = topic.topic_id if self.uses_ids else topic.topic
            for index in topic.partitions:
                yield
                wanted = self.partitions.pop((key, index), None)
                if wanted is not None:
                    self.new.pop(wanted, None)
                    self.pending.discard(wanted)
                    self.set_partition(wanted, None, None, leave)

    def set_partition(
        self,
        wanted: FetchPartition,
        partition: Partition | None,
        ranges: Ranges | None,
        leave: Callable[[Subscription, Partition], None],
    ) -> None:
        """Set the requested partition, as the catalog has it now."""
        if partition is wanted.partition:
            return
        if wanted.partition is not None:
            self._watch.remove(wanted.place)
            del self._watched[wanted.place]
            leave(self.subscription, wanted.partition)
        wanted.partition, wanted.ranges = partition, ranges
        if partition is not None:
            wanted.place = self._watch.add(partition.log)
            self._watched[wanted.place] = wanted
            self.subscription.add(partition)

    def look(self) -> bool:
        """Add partitions whose heads have moved to the pending ones; return whether there are any."""
        places = self._watch.moved()
        if places:
            self.pending.update([self._watched[place] for place in places])
        return bool(self.pending)

    def in_turn(self) -> list[FetchPartition]:
        """Return the pending partitions in the order in which they may have records."""
        return sorted(self.pending, key=attrgetter("turn"))


class FetchSessions:
    """The fetch sessions of one server, on its loop."""

    def __init__(self, max_sessions: int, max_partitions: int, end: Callable[[Subscription], None]) -> None:
        """Prepare. `end` is called with the subscription of a session that is over."""
        self._max_sessions = max_sessions
        self._max_partitions = max_partitions
        self._end = end
        self._by_owner: OrderedDict[object, FetchSession] = OrderedDict()  # the longest unused first
        self._kept: dict[object, tuple[bytes, FetchSession]] = {}  # with what its request named; the oldest first
        self.partitions = 0
        """Of all sessions together."""
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._by_owner)

    def find(self, owner: object, session_id: int) -> FetchSession | None:
        """Return the session of a connection, if that is its id."""
        session = self._by_owner.get(owner)
        return session if session is not None and session.id == session_id else None

    def poll(
        self, owner: object, request: OrdinaryFetch, *, uses_ids: bool, catalog_version: int, now_ms: int
    ) -> FetchSession | None:
        """Return the session that an incremental request without partitions goes on with, if none of its partitions is
        known to have something new. Else None, and nothing is changed.
        """
        session = self._by_owner.get(owner)
        if (
            session is None
            or session.id != request.session_id
            or session.epoch != request.session_epoch
            or session.uses_ids != uses_ids
            or session.isolation_level != request.isolation_level
            or session.catalog_version != catalog_version
            or session.pending
            or session.new
        ):
            return None
        session.epoch = next_epoch(session.epoch)
        session.used_ms = now_ms
        self._by_owner.move_to_end(owner)
        return session

    def open(self, owner: object, session: FetchSession, *, now_ms: int) -> int:
        """Open this session for a connection, in place of another. Return its id, or 0 if there is no space for it."""
        self.close(owner)
        if not self._has_space(session, now_ms):
            self._end(session.subscription)
            return 0
        session.id = random.randrange(1, _MAX_ID + 1)
        session.size = len(session.partitions)
        session.created_ms = session.used_ms = now_ms
        session.subscription.is_standing = True
        self.partitions += session.size
        self._by_owner[owner] = session
        return session.id

    def use(self, owner: object, session: FetchSession, *, now_ms: int) -> bool:
        """Record that a request has changed the session. Return False if it has given way to another one, or its
        partitions have no space: it ends.
        """
        if self._by_owner.get(owner) is not session:
            return False
        self.partitions -= session.size
        session.size = 0
        session.used_ms = now_ms
        self._by_owner.move_to_end(owner)
        is_cached = bool(session.partitions) and self._has_space(session, now_ms, is_new=False)
        if is_cached:
            session.size = len(session.partitions)
            self.partitions += session.size
        else:
            self.close(owner)
        return is_cached

    def close(self, owner: object) -> None:
        """End the session of a connection, if it has one."""
        self.drop(owner)
        session = self._by_owner.pop(owner, None)
        if session is not None:
            self.partitions -= session.size
            self._end(session.subscription)

    def kept(self, owner: object, names: bytes, *, uses_ids: bool) -> FetchSession | None:
        """Return what was kept for the next request without a session, if it names the same."""
        kept = self._kept.get(owner)
        return kept[1] if kept is not None and kept[0] == names and kept[1].uses_ids == uses_ids else None

    def keep(self, owner: object, names: bytes, session: FetchSession) -> None:
        """Keep it until a request names other partitions, the connection is closed, or there are too many."""
        if owner in self._kept and self._kept[owner][1] is session:
            return
        self.drop(owner)
        if len(self._kept) >= self._max_sessions:
            self.drop(next(iter(self._kept)))
        session.subscription.is_standing = True
        self._kept[owner] = names, session

    def drop(self, owner: object) -> None:
        """Keep nothing for a connection."""
        kept = self._kept.pop(owner, None)
        if kept is not None:
            self._end(kept[1].subscription)

    def _has_space(self, session: FetchSession, now_ms: int, *, is_new: bool = True) -> bool:
        """Return whether the session fits, after others have given way for which it is time."""
        size = len(session.partitions)
        if size > MAX_SESSION_PARTITIONS:
            return False
        others: Iterator[object] | None = None
        while len(self._by_owner) + is_new > self._max_sessions or self.partitions + size > self._max_partitions:
            if others is None:
                others = iter(self._giving_way(session, now_ms))
            owner = next(others, None)
            if owner is None:
                return False
            self.evictions += 1
            self.close(owner)
        return True

    def _giving_way(self, session: FetchSession, now_ms: int) -> list[object]:
        """Return the connections whose sessions give way: the longest unused, then old ones, the smallest first."""
        others = [(owner, other) for owner, other in self._by_owner.items() if other is not session]
        unused = [owner for owner, other in others if now_ms - other.used_ms > EVICTION_MS]
        old = [
            (other.size, owner)
            for owner, other in others[len(unused) :]
            if now_ms - other.created_ms > EVICTION_MS and other.size < len(session.partitions)
        ]
        return unused + [owner for _, owner in sorted(old, key=itemgetter(0))]
