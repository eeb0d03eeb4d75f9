"""A member of a group: its place, the partitions it owns, and the watchdog that gives them up for it.

A member holds a lock byte while it lives and one for each partition it owns (store/groups.py), so there is no leader,
no heartbeat and no generation: a killed member's bytes are free at once, and the next member that looks takes them.
Between batches a member looks who lives (asking the kernel) and what they want (their rows), works out its share
(assignment.py), gives back what is too much and takes what is free. It looks at most every 100 ms, every 200 ms while
it waits, and at once when the store's `groups_version` moves: joining, leaving and giving back move it.

    poll thread    look → on_revoked → give_back → take → on_assigned
    watchdog       no poll for max_poll_interval_ms: gives everything up, the place as well. The next poll finds what
                   was lost, says so (on_lost), and joins again
    commit         under `mutex`: owned, and stays owned until the commit is written

Promises
  MEM1  A partition is in `_owned` while its byte is held, the member's byte in `_member_lock`: both change in one
        native call under `mutex`. An interrupt leaves a member that has some of its bytes, or none, and knows which.
  MEM2  Nothing is given up while a commit of it is being written: the watchdog waits for `mutex`, too.
  MEM3  A named member that is gone keeps its share for `rejoin_ms`, counted by each of the others from when it saw it
        gone. A second one that lives under its name is refused.
  MEM4  In a forked child nothing is held, and nothing let go: LockFile._in_child has closed the descriptor.
  MEM5  A consumer that is forgotten without `close` leaves: the watchdog holds the member, and a weak reference to it.

The order of locks is mutex, klamm.db lock, Database's mutex. No code of the user runs under `mutex`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Iterable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, NamedTuple

from klamm.client.groups.assignment import Assignor, Share, assigned, pools, share
from klamm.client.subscription import wanted_of
from klamm.disk._os import HeldBytes
from klamm.disk.locks import OWNED, group_lock_base
from klamm.disk.threads import DaemonThread
from klamm.errors import KlammError
from klamm.types import TopicId, TopicPartition

if TYPE_CHECKING:
    from klamm.client.subscription import Subscription
    from klamm.store.directory import Core
    from klamm.store.groups import JoinResult, MemberRow

__all__ = ["Member"]

LOOK_S = 0.1  # between two looks while there are batches
IDLE_LOOK_S = 0.2  # and while there are none
_MEMBER_LOCK = "member"
_log = logging.getLogger("klamm")


class _Owned(NamedTuple):
    topic_id: TopicId
    slot: int


class Member:
    """One consumer's membership."""

    def __init__(
        self,
        core: Core,
        group: str,
        subscription: Subscription,
        *,
        name: str | None,
        rejoin_ms: int,
        assignor: Assignor | None,
        max_poll_interval_ms: int,
    ) -> None:
        self.mutex = threading.RLock()
        self.group = group
        self.name = name
        self.id = name if name is not None else f"{os.getpid()}-{os.urandom(6).hex()}"
        self._core = core
        self._heads = core.heads
        self._groups = core.groups
        self._subscription = subscription
        self._rejoin_ms = rejoin_ms
        self._assignor = assignor
        self.interval_s = max_poll_interval_ms / 1000
        self._member_lock: HeldBytes[str, JoinResult] = HeldBytes(core.members)  # one, or none
        self._owned: HeldBytes[TopicPartition, _Owned] = HeldBytes(core.members)  # in the order they were taken
        self._lost: list[TopicPartition] = []  # by the watchdog, and not told yet
        self._closed = False
        self._version = -1  # of groups, at the last look
        self._catalog_version = -1
        self._topics: dict[str, tuple[TopicId, tuple[int, ...]]] = {}  # by name: id and slots
        self._live: set[int] = set()
        self._rows: list[MemberRow] = []
        self._gone: dict[tuple[int, int], int] = {}  # named members: (place, joined_ms), when they were first missed
        self._shares: list[Share] = []
        self._planned = False  # whether the shares are those of now
        self._hungry = False  # there is something to take that was not free
        self._looked = 0.0
        self._cost_s = 0.0  # of asking the kernel, which grows with the members; a large group asks less often
        self._polled = time.monotonic()
        self._messages: SimpleQueue[None] = SimpleQueue()  # its put may be called by a collector of garbage
        self.group_number = -1
        self._join()

    @property
    def _joined(self) -> JoinResult | None:
        return self._member_lock.get(_MEMBER_LOCK)

    def owns(self, topic: str, partition: int) -> bool:
        """Return whether this member owns the partition now; under `mutex`, also until the mutex is released."""
        return (topic, partition) in self._owned

    def owned(self) -> list[TopicPartition]:
        return list(self._owned)

    def topic_id(self, name: TopicPartition) -> TopicId:
        """Return the id of the topic of a partition it owns. Under `mutex`."""
        return self._owned[name].topic_id

    # ---- coming and going

    def _join(self) -> None:
        limit = self._core.catalog.settings().group_max_size
        with self.mutex:
            if self._closed:  # by another thread; a poll ends soon
                return
            self._version, self._planned = -1, False
            subscription = self._subscription.spelled()
            try:
                self._groups.join(
                    self.group, self.id, self.name, subscription, self._rejoin_ms, limit, self._take_member_lock
                )
            except BaseException:
                self._member_lock.release_all()
                raise

    def _take_member_lock(self, byte: int, joined: JoinResult) -> bool:
        """Take the lock of a member index. Called under the mutex, and the write lock of klamm.db."""
        self.group_number = joined.group.number
        return self._member_lock.take(_MEMBER_LOCK, byte, joined)

    def watch(self, consumer: object) -> None:
        """Start the watchdog; it ends when the member has left, or `consumer` is no more."""
        messages = self._messages
        alive = weakref.ref(consumer, lambda _: messages.put(None))
        try:
            DaemonThread(self._watch, f"klamm-group-{self.group}", alive)
        except BaseException:
            self.leave()
            raise

    def _watch(self, consumer: weakref.ref[object]) -> None:
        while not self._closed:
            left = self.interval_s if self._joined is None else self._polled + self.interval_s - time.monotonic()
            if left > 0:
                try:
                    self._messages.get(timeout=min(left, 3600))
                except Empty:
                    continue
            try:
                if consumer() is None:
                    self.leave()
                elif self._polled + self.interval_s <= time.monotonic():
                    self._give_up()
            except (KlammError, OSError) as error:  # the bytes are free all the same
                _log.warning("group %s: %s", self.group, error)

    def _give_up(self) -> None:
        with self.mutex:
            if self._joined is None or self._closed or self._polled + self.interval_s > time.monotonic():
                return
            self._withdraw(f"no poll for {self.interval_s:g} s")

    def withdraw(self, why: str) -> list[TopicPartition]:
        """Give up all partitions and the member index, until the next poll. Return the partitions."""
        with self.mutex:
            if self._joined is not None and not self._closed:
                self._withdraw(why)
            lost, self._lost = self._lost, []
        return lost

    def _withdraw(self, why: str) -> None:
        _log.warning("group %s: %s; its partitions are given up: %s", self.group, why, sorted(self._owned))
        self._lost += self._owned
        self._vacate()

    def leave(self) -> None:
        """Leave the group for good."""
        with self.mutex:
            try:
                self._vacate()
            finally:
                self._closed = True
                self._messages.put(None)

    def _vacate(self) -> None:
        """Release the partitions first, then the member index, whose row goes last. Called under the mutex."""
        joined = self._joined
        try:
            self._owned.release_all()
        finally:
            self._member_lock.release_all()
        if joined is not None and not self._core.closed:
            self._groups.left(joined, keep_row=self.name is not None)

    # ---- the poll thread

    def polled(self) -> None:
        """Reset the poll watchdog."""
        self._polled = time.monotonic()

    def is_due(self, *, idle: bool = False) -> bool:
        """Return whether the next look at the group is due."""
        heads = self._heads
        if heads.groups_version != self._version or heads.catalog_version != self._catalog_version:
            return True
        if self._joined is None or not self._planned:
            return True
        return time.monotonic() - self._looked >= max(IDLE_LOOK_S if idle else LOOK_S, 20 * self._cost_s)

    @property
    def version(self) -> int:
        """Of the groups, as it was at the last look."""
        return max(self._version, 0)

    def take_lost(self) -> list[TopicPartition]:
        """Return what was lost since the last call; join again if the membership was lost, too."""
        with self.mutex:
            self._polled = time.monotonic()
            if self._joined is None:
                self._join()
            lost, self._lost = self._lost, []
        return lost

    def look(self) -> tuple[list[TopicPartition], list[TopicPartition]]:
        """Find the members that live, the owned partitions that are deleted, and those to give back."""
        self._looked = time.monotonic()
        changed = self._look_at_topics()
        changed |= self._look_at_members()
        gone = [
            tp
            for tp, (topic_id, slot) in self._owned.items()
            if (known := self._topics.get(tp[0])) is None or known[0] != topic_id or slot not in known[1]
        ]
        joined = self._joined
        if joined is None:  # the watchdog came in between: the next look joins again
            return [], []
        if changed:
            self._planned = False
        if not self._planned:  # also after an assignor that raised
            self._shares = self._plan(joined.member_index)
            self._planned = self._hungry = True
        surplus = [tp for each in self._shares for tp in each.give if tp in self._owned]
        return gone, [tp for tp in surplus if tp not in gone]

    def _look_at_topics(self) -> bool:
        version = self._heads.catalog_version
        if version == self._catalog_version:
            return False
        topics = {topic.name: (topic.id, topic.partitions) for topic in self._core.catalog.topics()}
        self._catalog_version = version
        changed = topics != self._topics
        self._topics = topics
        return changed

    def _look_at_members(self) -> bool:
        version = self._heads.groups_version  # before the look: what comes later is another change
        begun = time.monotonic()
        live = self._groups.live_member_indexes(self.group_number)
        self._cost_s = time.monotonic() - begun
        if version == self._version and live == self._live and not self._gone:
            return False
        rows = self._groups.rows(self.group_number)
        counted = [row._replace(owned=None) for row in rows if row.member_index in live or self._is_awaited(row)]
        present = {(row.member_index, row.joined_ms) for row in rows if row.member_index not in live}
        self._gone = {key: since for key, since in self._gone.items() if key in present}
        changed = counted != self._rows or self._version == -1
        self._version, self._live, self._rows = version, live, counted
        return changed

    def _is_awaited(self, row: MemberRow) -> bool:
        """Return whether a member that is gone may come back, so that its share is left alone."""
        if row.name is None:
            return False
        now = self._heads.boot_ms()
        since = self._gone.setdefault((row.member_index, row.joined_ms), now)
        if now - since < row.rejoin_ms:
            return True
        self._groups.expire(self.group_number, row)
        return False

    def _plan(self, me: int) -> list[Share]:
        topics = {name: len(slots) for name, (_, slots) in self._topics.items()}
        wanted = {row.member_index: wanted_of(row.topics, topics) for row in self._rows}
        ids = {row.member_index: row.id for row in self._rows}
        shares: list[Share] = []
        orphans = dict.fromkeys(self._owned)  # what is of no pool of ours
        for members, partitions in pools(wanted, topics).items():
            if me in members:
                owned = self._owned_of(partitions)
                for tp in owned:
                    orphans.pop(tp, None)
                if self._assignor is None:
                    shares.append(share(partitions, members, me, owned))
                else:
                    names = [ids[member] for member in members]
                    shares.append(assigned(self._assignor, partitions, names, self.id, owned))
        return [*shares, Share(list(orphans), [], 0)]

    def _owned_of(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        known = set(partitions)
        return [tp for tp in list(self._owned) if tp in known]

    def give_back(self, tps: Iterable[TopicPartition]) -> None:
        """Release partitions, for other members to take."""
        with self.mutex:
            given = [tp for tp in tps if tp in self._owned]
            for tp in given:
                self._owned.release(tp)
            self._hungry = True  # they may be ours again, if no other member takes them
        if given:
            self._groups.changed()

    def save_owned(self) -> None:
        """Record the partitions that it owns, for others to see."""
        with self.mutex:
            if self._joined is not None:
                self._groups.save_owned(self._joined, self._owned)

    def take(self) -> list[TopicPartition]:
        """Take what is free, up to this member's share, and return it."""
        if not self._hungry:
            return []
        busy = self._groups.owned_slots(self.group_number)
        lock_base = group_lock_base(self.group_number) + OWNED
        taken: list[TopicPartition] = []
        hungry = False
        with self.mutex:
            if self._joined is None or self._closed:
                return []
            for each in self._shares:
                has = len(self._owned_of(each.order))
                for tp in each.order:
                    if has >= each.quota:
                        break
                    topic_id, slots = self._topics[tp[0]]
                    slot = slots[tp[1]]
                    if tp in self._owned or slot in busy:
                        continue
                    if self._owned.take(tp, lock_base + slot, _Owned(topic_id, slot)):
                        taken.append(tp)
                        has += 1
                hungry |= has < each.quota
            self._hungry = hungry
        return taken
