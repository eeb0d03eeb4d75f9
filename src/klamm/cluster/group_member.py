"""A member of a group of a cluster, by librdkafka's own group protocol.

It is a consumer of librdkafka that subscribes, commits and fetches nothing: its partitions are paused when it gets
them. What reads them is the engine of the session, which is told by the group session (ClusterGroupSession), as in a
directory. So the group is one that any Kafka client can be a member of, with the assignor "cooperative-sticky".

    poll thread    look: poll librdkafka → lost → on_lost · revoked → on_revoked, which may commit → unassigned
                   · assigned → taken by the next `take`
    librdkafka     heartbeats; leaves the group when `look` was not called for max.poll.interval.ms
    commit         by the generation in which the member is: NotOwner if the group has gone on without it

Promises
  CLM1  What was revoked is handed to its callback before other members get it: librdkafka waits for the callback.
  CLM2  No commit of a partition that the group gave to others is taken: the cluster compares generations.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from klamm.cluster.address import consumer_options, import_confluent_kafka
from klamm.cluster.kafka_admin import as_offset
from klamm.cluster.kafka_errors import COMMITTING, UNSTABLE, error_of, name_of, translated
from klamm.errors import UnknownTopic, Unsupported
from klamm.store.groups import OffsetRow
from klamm.types import TopicId, TopicPartition

if TYPE_CHECKING:
    from klamm.client.groups.assignment import Assignor
    from klamm.client.subscription import Subscription
    from klamm.cluster.cluster_core import ClusterCore

__all__ = ["ClusterMember"]

_LOOK_S = 0.05  # between two looks while there are batches
_COMMIT_S = 60.0  # how long a coordinator is asked while another takes over
_ASK_S = 5.0  # of one question
_RETRY_S = 0.05
_SESSION_MS = 45_000  # librdkafka's default
_log = logging.getLogger("klamm")

Told = Callable[[list[TopicPartition]], object]


class ClusterMember:
    """One consumer's membership: what client/groups/membership.Member is in a directory."""

    def __init__(
        self,
        core: ClusterCore,
        group: str,
        subscription: Subscription,
        *,
        name: str | None,
        rejoin_ms: int,
        assignor: Assignor | None,
        max_poll_interval_ms: int,
    ) -> None:
        if assignor is not None:
            raise Unsupported(
                f"{core.path}: an assignor of one's own is for a store in a directory", hint="leave it out"
            )
        _check_numbers(core, subscription)
        self.mutex = threading.RLock()
        self.group = group
        self.name = name
        self.interval_s = max_poll_interval_ms / 1000
        self.version = 0
        self._core = core
        self._kafka = kafka = import_confluent_kafka()
        self._subscription = subscription
        self._topics: list[str] = []
        self._catalog_version = -1
        self._owned: dict[TopicPartition, TopicId] = {}
        self._assigned: list[TopicPartition] = []  # and not taken yet
        self._lost: list[TopicPartition] = []
        self._on_revoked: Told = _ignore
        self._on_lost: Told = _ignore
        self._failed: BaseException | None = None  # in a callback
        self._looked = 0.0
        self._polling = threading.RLock()
        self._is_subscribed = self._closed = False
        self.has_joined = False
        """Whether the group has given it partitions, be they none."""
        self.was_awaited = False
        """Whether a poll has waited for that."""
        session_ms = int(core.config.get("session.timeout.ms", min(_SESSION_MS, max_poll_interval_ms)))
        config = {
            "session.timeout.ms": session_ms,
            "heartbeat.interval.ms": max(1, min(3_000, session_ms // 3)),
            **consumer_options(core.config),
            "group.id": group,
            "max.poll.interval.ms": max(max_poll_interval_ms, session_ms),
            "partition.assignment.strategy": "cooperative-sticky",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "latest",
        }
        if name is not None:
            config |= {"group.instance.id": name, "session.timeout.ms": max(session_ms, rejoin_ms)}
            config["max.poll.interval.ms"] = max(config["max.poll.interval.ms"], config["session.timeout.ms"])
        with translated(f"{core.path}: group {group!r}"):
            self._consumer = kafka.Consumer(config, logger=core.admin.logger)
        self.group_number = core.groups.register(self)
        self._subscribe()

    # ---- what it owns

    def owns(self, topic: str, partition: int) -> bool:
        """Return whether this member has the partition now, as far as it knows."""
        return (topic, partition) in self._owned

    def owned(self) -> list[TopicPartition]:
        return list(self._owned)

    def partitions(self) -> list[TopicPartition]:
        """Return all partitions that the group shares."""
        counts = [(topic, self._core.topic(topic).count) for topic in self._topics]
        return [TopicPartition(topic, number) for topic, count in counts for number in range(count)]

    def topic_id(self, name: TopicPartition) -> TopicId:
        """Return the id of the topic of a partition it owns. Under `mutex`."""
        return self._owned[name]

    # ---- coming and going

    def _subscribe(self) -> None:
        """Subscribe to the topics that there are now: the first time, or when others match."""
        version = self._core.heads.catalog_version
        topics = sorted({name.topic for name in self._subscription.partitions(self._core)})
        self._catalog_version = version
        if topics == self._topics and self._is_subscribed:
            return
        self._topics, self._is_subscribed = topics, True
        with translated(f"{self._core.path}: group {self.group!r}"):
            if topics:
                self._consumer.subscribe(topics, on_assign=self._assign, on_revoke=self._revoke, on_lost=self._lose)
            else:
                self._consumer.unsubscribe()

    def watch(self, consumer: object) -> None:
        """Do nothing: librdkafka leaves the group when it is not polled."""

    def withdraw(self, why: str) -> list[TopicPartition]:
        """Leave the group until the next look. Return the partitions that were given up."""
        _log.warning("group %s: %s; its partitions are given up: %s", self.group, why, sorted(self._owned))
        with self.mutex:
            lost = [*self._lost, *self._owned]
            self._owned, self._lost, self._assigned = {}, [], []
        with self._polling:
            self._is_subscribed = False
            self._consumer.unsubscribe()
            self._pump()
        return lost

    def leave(self) -> None:
        """Leave the group, for good."""
        if self._closed:
            return
        self._closed = True
        self._core.groups.forget(self.group_number)
        with self._polling:
            self._on_revoked = self._on_lost = _ignore
            self._consumer.close()
        with self.mutex:
            self._owned = {}

    # ---- librdkafka's callbacks, in the poll thread

    def _assign(self, consumer: Any, partitions: list[Any]) -> None:
        make = self._kafka.TopicPartition
        fresh = [make(each.topic, each.partition, 0) for each in partitions]
        consumer.incremental_assign(fresh)
        if fresh:
            consumer.pause(fresh)
        self._assigned += [TopicPartition(each.topic, each.partition) for each in partitions]
        self.has_joined = True

    def _revoke(self, consumer: Any, partitions: list[Any]) -> None:
        self._tell(self._on_revoked, partitions)
        consumer.incremental_unassign(partitions)

    def _lose(self, consumer: Any, partitions: list[Any]) -> None:
        self._tell(self._on_lost, partitions)
        consumer.incremental_unassign(partitions)

    def _tell(self, told: Told, partitions: list[Any]) -> None:
        """Call back for partitions that were owned; what it raises is raised by `look`."""
        gone = [TopicPartition(each.topic, each.partition) for each in partitions]
        self._assigned = [each for each in self._assigned if each not in gone]
        owned = [each for each in gone if each in self._owned]
        try:
            if owned:
                told(owned)
        except BaseException as error:  # noqa: BLE001  # librdkafka is in between
            self._failed = self._failed or error
        finally:
            self.give_back(owned)

    # ---- the poll thread

    def polled(self) -> None:
        """Do nothing: librdkafka counts from the last look."""

    def is_due(self, *, idle: bool = False) -> bool:
        """Return whether the next look at the group is due."""
        return time.monotonic() - self._looked >= _LOOK_S

    def look_at(self, on_revoked: Told, on_lost: Told) -> None:
        """Let librdkafka call back: partitions are revoked, lost or assigned."""
        with self._polling:
            if self._closed:
                return
            if not self._is_subscribed or self._core.heads.catalog_version != self._catalog_version:
                self._subscribe()
            self._on_revoked, self._on_lost = on_revoked, on_lost
            try:
                self._pump()
            finally:
                self._on_revoked = self._on_lost = _ignore
                self._looked = time.monotonic()
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def _pump(self) -> None:
        name = f"{self._core.path}: group {self.group!r}"
        with translated(name):
            message = self._consumer.poll(0)
        error = None if message is None else message.error()
        if error is not None:
            code = error.name()
            if code in ("TOPIC_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED") or error.fatal():
                raise error_of(name, error)
            _log.debug("%s: %s", name, error)

    def take_lost(self) -> list[TopicPartition]:
        lost, self._lost = self._lost, []
        return lost

    def take(self) -> list[TopicPartition]:
        """Take what was assigned, and return it. Topics that are gone by now are left alone."""
        assigned, self._assigned = self._assigned, []
        taken = []
        for each in assigned:
            try:
                topic_id = self._core.topic(each.topic).topic.id
            except UnknownTopic:
                continue
            with self.mutex:
                self._owned[each] = topic_id
            taken.append(each)
        return taken

    def put_back(self, tps: Iterable[TopicPartition]) -> None:
        """Take back what was taken and cannot be read yet: the next `take` returns what is still assigned of it."""
        self.give_back(tps)
        self._assigned += tps

    def give_back(self, tps: Iterable[TopicPartition]) -> None:
        """Own them no more."""
        with self.mutex:
            for tp in tps:
                self._owned.pop(TopicPartition(*tp), None)

    def save_owned(self) -> None:
        """Do nothing: the cluster knows."""

    # ---- committing

    def group_metadata(self) -> Any:
        """Return what a transaction needs, to commit offsets of the group as this member."""
        return self._consumer.consumer_group_metadata()

    def committed(self) -> dict[TopicPartition, Any]:
        """Return what the group has committed, as librdkafka's TopicPartitions; what open transactions have moved is
        waited for. While the coordinator moves, it is asked again.

        By the consumer: librdkafka's admin client ends the process when the coordinator that it asks is killed.
        """
        wanted = [self._kafka.TopicPartition(*each) for each in self.partitions()]
        deadline = time.monotonic() + _COMMIT_S
        while wanted:
            try:
                stored = self._consumer.committed(wanted, timeout=_ASK_S)
                failed = [each.error for each in stored if each.error is not None]
                if not failed:
                    return {TopicPartition(each.topic, each.partition): each for each in stored if each.offset >= 0}
                error = failed[0]
            except self._kafka.KafkaException as raised:
                error = raised.args[0]
            if error.name() not in UNSTABLE or time.monotonic() > deadline:
                raise error_of(f"{self._core.path}: group {self.group!r}", error)
            time.sleep(_RETRY_S)
        return {}

    def commit(self, offsets: dict[TopicPartition, OffsetRow]) -> None:
        """Commit offsets, all or none that are this member's to commit. NotOwner if the group has gone on without it.

        While the coordinator moves, or the group agrees on its next generation, it is tried again.
        """
        wanted = [self.as_offset(tp, row) for tp, row in offsets.items()]
        deadline = time.monotonic() + _COMMIT_S
        while True:
            try:
                failed = [
                    each.error for each in self._consumer.commit(offsets=wanted, asynchronous=False) or () if each.error
                ]
                if not failed:
                    return
                error = failed[0]
            except self._kafka.KafkaException as raised:
                error = raised.args[0]
                if name_of(raised) == "_NO_OFFSET":
                    return
            if error.name() not in COMMITTING or self._closed or time.monotonic() > deadline:
                raise error_of(f"{self._core.path}: group {self.group!r}", error)
            time.sleep(_RETRY_S)

    def as_offset(self, tp: TopicPartition, row: OffsetRow) -> Any:
        """Return an offset as librdkafka takes it."""
        return as_offset(tp, row.offset, row.leader_epoch, row.metadata)


def _ignore(_: list[TopicPartition]) -> None:
    """Partitions of a member that leaves."""


def _check_numbers(core: ClusterCore, subscription: Subscription) -> None:
    named = subscription.spelled().get("topics") or {}
    if any(numbers is not None for numbers in named.values()):
        raise Unsupported(
            f"{core.path}: a group of a cluster shares whole topics",
            hint="leave partitions= out, or read those partitions without a group",
        )
