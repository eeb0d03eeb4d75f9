"""Topics and groups of a Kafka server or cluster, by librdkafka's admin client.

What a server that was killed leaves without a response is asked again, a change as well as a question. The first try
may have made the change: so a later one that finds it made is content.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

from klamm.cluster.address import client_options, consumer_options, import_confluent_kafka
from klamm.cluster.group_clients import GroupClients
from klamm.cluster.kafka_errors import AWAY, ELECTING, REFUSED, SPREADING, TRANSIENT, UNSTABLE, name_of, translated
from klamm.cluster.own_changes import SPREAD_S
from klamm.cluster.own_commits import OwnCommits
from klamm.errors import GroupBusy, NotOwner, TopicExists, UnknownGroup, UnknownTopic, Unreachable
from klamm.log.partition import Ends
from klamm.store.settings import SETTINGS
from klamm.types import TopicPartition

__all__ = ["GroupMemberInfo", "KafkaAdmin", "TopicDescription", "as_offset"]

_TIMEOUT_S = 30.0
_CONNECT_S = 10.0
_LOOK_S = 0.5  # how soon it is seen that a server refuses a login
_RETRY_S = 0.05
_MARKER_PAUSE_S = 0.005
_ASK_S = 5.0  # of one question for all topics
_MOVING_S = 60.0  # so long another leader, coordinator or controller may take to take over
_ONCE_S = 10.0  # of one question; librdkafka waits as long for a controller that was killed

T = TypeVar("T")


class TopicDescription(NamedTuple):
    """A topic as the cluster has it."""

    name: str
    id: str
    partitions: int
    has_leaders: bool
    """Whether each partition has one."""


class GroupMemberInfo(NamedTuple):
    """A member of a group."""

    id: str
    name: str | None
    assignment: tuple[TopicPartition, ...]
    client_id: str
    host: str


class KafkaAdmin:
    """The administration of one server or cluster."""

    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        self._kafka = import_confluent_kafka()
        self.name = name
        self.own_commits = OwnCommits()
        self._config = dict(config)
        self._lookup: Any = None
        self._lookup_mutex = threading.Lock()
        self.logger = logging.getLogger("klamm.librdkafka")  # for what it would print to stderr
        self.logger.addHandler(logging.NullHandler())
        self._group_clients = GroupClients(self._config, name, self.logger)
        self._connect()

    def _connect(self) -> None:
        """Ask for the first time. A server that refuses the login tells librdkafka, which tries again and again."""
        refusals: list[Any] = []
        options = {**client_options(self._config), "error_cb": refusals.append}

        def ask(left_s: float) -> str:
            try:
                return str(self._client.list_topics(timeout=left_s).cluster_id)
            except self._kafka.KafkaException:
                self._client.poll(0)  # calls back
                for error in refusals:
                    if error.name() in REFUSED:
                        raise self._kafka.KafkaException(error) from None
                raise

        with translated(self.name):
            self._client = self._kafka.admin.AdminClient(options, logger=self.logger)
        self.cluster_id = self._asked(self.name, ask, timeout_s=_CONNECT_S, each_s=_LOOK_S)

    # ---- asking

    def _asked(
        self,
        name: str,
        ask: Callable[[float], T],
        codes: Iterable[str] = AWAY,
        *,
        timeout_s: float = _TIMEOUT_S,
        each_s: float = _ONCE_S,
    ) -> T:
        """Ask, and again while that fails by one of these codes. `each_s`: for one question, which may wait for a
        server that was killed.

        librdkafka asks the leader, coordinator or controller that it knows, and learns of others when it asks for all
        topics. So that is done in between.
        """
        deadline = time.monotonic() + timeout_s
        spread_until = time.monotonic() + SPREAD_S
        codes = tuple(codes)
        with translated(name):
            while True:
                try:
                    return ask(max(0.1, min(each_s, deadline - time.monotonic())))
                except self._kafka.KafkaException as error:
                    code = name_of(error)
                    if code not in codes or time.monotonic() > (spread_until if code in SPREADING else deadline):
                        raise
                except TimeoutError:
                    if time.monotonic() > deadline:
                        raise
                time.sleep(_RETRY_S)
                with suppress(self._kafka.KafkaException):  # no server responds: the next question says so
                    self._client.list_topics(timeout=min(each_s, _ASK_S))

    def _changed(self, name: str, change: Callable[[float], object], made: str) -> None:
        """Make a change by the controller or a coordinator. `made`: the error of one that was made before."""
        tries = 0

        def ask(left_s: float) -> None:
            nonlocal tries
            tries += 1
            try:
                change(left_s)
            except self._kafka.KafkaException as error:
                if tries == 1 or name_of(error) != made:
                    raise

        self._asked(name, ask, TRANSIENT, timeout_s=_MOVING_S)

    def _elected(self, ask: Callable[[float], T], timeout_s: float = _MOVING_S) -> T:
        """Ask leaders something, and again while others are elected."""
        return self._asked(self.name, ask, (*ELECTING, *SPREADING), timeout_s=timeout_s)

    def _coordinated(self, group: str, ask: Callable[[float], T], codes: Iterable[str] = TRANSIENT) -> T:
        """Ask the coordinator of a group something, and again while another takes over."""
        name = f"{self.name}: group {group!r}"
        return self._asked(name, ask, codes, timeout_s=_MOVING_S, each_s=_ASK_S)

    # ---- topics

    def known_settings(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """Return the settings of topics that were set and that Klamm knows."""
        return {
            name: {key: value for key, value in self._dynamic(entries).items() if key in SETTINGS}
            for name, entries in self._configs(list(names)).items()
        }

    def settings(self, name: str) -> tuple[dict[str, str], dict[str, str]]:
        """Return the settings of a topic: those that were set, and all of them."""
        entries = self._configs([name])[name]
        return self._dynamic(entries), {each.name: each.value for each in entries if each.value is not None}

    def _configs(self, names: list[str]) -> dict[str, list[Any]]:
        kinds = self._kafka.admin
        resources = [kinds.ConfigResource(kinds.ResourceType.TOPIC, name) for name in names]

        def ask(left_s: float) -> dict[str, list[Any]]:
            asked = self._client.describe_configs(resources, request_timeout=left_s)
            return {each.name: list(response.result(left_s + _ASK_S).values()) for each, response in asked.items()}

        return self._asked(self.name, ask) if resources else {}

    def _dynamic(self, entries: list[Any]) -> dict[str, str]:
        dynamic = self._kafka.admin.ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        return {each.name: each.value for each in entries if each.source == dynamic}

    def partition_counts(self) -> dict[str, int]:
        """Return how many partitions each topic has."""
        known = self._asked(self.name, lambda left_s: self._client.list_topics(timeout=left_s)).topics
        return {name: len(topic.partitions) for name, topic in known.items()}

    def describe(self, name: str) -> TopicDescription:
        """Return a topic. UnknownTopic if there is none of that name."""
        collection = self._kafka.TopicCollection([name])

        def ask(left_s: float) -> Any:
            return self._client.describe_topics(collection, request_timeout=left_s)[name].result(left_s + _ASK_S)

        found = self._asked(f"{self.name}: topic {name!r}", ask)
        has_leaders = all(each.leader is not None and each.leader.id >= 0 for each in found.partitions)
        return TopicDescription(name, str(found.topic_id), len(found.partitions), has_leaders)

    def ends(
        self, partitions: Iterable[tuple[str, int]], *, timeout_s: float = _MOVING_S
    ) -> dict[TopicPartition, Ends]:
        """Return the ends of partitions; again for those whose leader is being elected, and until this store's own
        commits can be read.
        """
        wanted = [TopicPartition(*each) for each in partitions]
        found: dict[TopicPartition, Ends] = {}
        while True:
            found |= self._elected(partial(self._ends, wanted), timeout_s)
            wanted = [each for each in wanted if self.own_commits.is_hidden(each, found[each])]
            if not wanted:
                return found
            time.sleep(_MARKER_PAUSE_S)

    def _ends(self, wanted: list[TopicPartition], timeout_s: float) -> dict[TopicPartition, Ends]:
        specs, level = self._kafka.admin.OffsetSpec, self._kafka.IsolationLevel
        asked = [
            self._client.list_offsets(
                {self._kafka.TopicPartition(*each): spec for each in wanted},
                isolation_level=isolation,
                request_timeout=timeout_s,
            )
            for spec, isolation in (
                (specs.earliest(), level.READ_UNCOMMITTED),
                (specs.latest(), level.READ_UNCOMMITTED),
                (specs.latest(), level.READ_COMMITTED),
            )
            if wanted
        ]
        found: dict[TopicPartition, list[Any]] = {each: [] for each in wanted}
        for responses in asked:
            for partition, response in responses.items():
                end = response.result(timeout_s)
                if end.offset < 0:  # a leader that has just been elected does not know it yet
                    raise self._kafka.KafkaException(
                        self._kafka.KafkaError(self._kafka.KafkaError.OFFSET_NOT_AVAILABLE)
                    )
                found[TopicPartition(partition.topic, partition.partition)].append(end)
        return {
            partition: Ends(
                start.offset,
                end.offset,
                stable.offset,
                end.offset,
                -1 if end.leader_epoch is None else end.leader_epoch,
            )
            for partition, (start, end, stable) in found.items()
        }

    def end(self, partition: TopicPartition) -> int:
        """Return the offset behind the last record of a partition."""
        return self.ends([partition])[partition].end

    def offset_at(self, partition: TopicPartition, time_ms: int) -> int | None:
        """Return the first offset whose record has that time or a later one; None if there is none."""
        with self._lookup_mutex:
            if self._lookup is None:  # the admin client takes times of 32 bits
                options = {**consumer_options(self._config), "group.id": "klamm-reader"}
                with translated(self.name):
                    self._lookup = self._kafka.Consumer(options, logger=self.logger)
            return self._elected(lambda left_s: self._offset_at(partition, time_ms, left_s))

    def _offset_at(self, partition: TopicPartition, time_ms: int, timeout_s: float) -> int | None:
        (found,) = self._lookup.offsets_for_times([self._kafka.TopicPartition(*partition, time_ms)], timeout_s)
        if found.error is not None:
            raise self._kafka.KafkaException(found.error)
        return int(found.offset) if found.offset >= 0 else None

    def close(self) -> None:
        """Close what has connections of its own."""
        self._group_clients.close()
        with self._lookup_mutex:
            lookup, self._lookup = self._lookup, None
        if lookup is not None:
            lookup.close()

    def create(
        self,
        name: str,
        partitions: int,
        settings: Mapping[str, str],
        *,
        replication_factor: int = -1,
        exist_ok: bool = True,
    ) -> None:
        """Create a topic, and wait for the leaders of its partitions. -1: as many replicas as brokers make by default.

        With `exist_ok` one that is there is left as it is.
        """
        topic = self._kafka.admin.NewTopic(name, partitions, replication_factor, config=dict(settings))

        def change(left_s: float) -> None:
            self._client.create_topics([topic], request_timeout=left_s)[name].result(left_s + _ASK_S)

        try:
            self._changed(f"{self.name}: topic {name!r}", change, "TOPIC_ALREADY_EXISTS")
        except TopicExists:
            if not exist_ok:
                raise
            return
        self._await_topic(name, partitions)

    def _await_topic(self, name: str, partitions: int) -> None:
        """Wait until every partition has a leader; servers learn of a topic one after the other."""
        deadline = time.monotonic() + _TIMEOUT_S
        while time.monotonic() < deadline:
            if self.partition_counts().get(name, 0) >= partitions:
                with suppress(UnknownTopic):  # this is answered by another server
                    about = self.describe(name)
                    if about.partitions >= partitions and about.has_leaders:
                        return
            time.sleep(_RETRY_S)
        raise Unreachable(f"{self.name}: topic {name!r} was made, and has no leaders after {_TIMEOUT_S:g} s")

    def alter(self, name: str, changes: Mapping[str, str], resets: Iterable[str]) -> None:
        """Change settings of a topic, and leave the others."""
        kinds = self._kafka.admin
        operation = kinds.AlterConfigOpType
        entries = [
            *(kinds.ConfigEntry(key, value, incremental_operation=operation.SET) for key, value in changes.items()),
            *(kinds.ConfigEntry(key, None, incremental_operation=operation.DELETE) for key in resets),
        ]
        if not entries:
            return
        resource = kinds.ConfigResource(kinds.ResourceType.TOPIC, name, incremental_configs=entries)

        def ask(left_s: float) -> None:
            for response in self._client.incremental_alter_configs([resource], request_timeout=left_s).values():
                response.result(left_s + _ASK_S)

        self._asked(f"{self.name}: topic {name!r}", ask)

    def delete(self, name: str) -> None:
        """Delete a topic, and wait until the cluster does not list it any more."""

        def change(left_s: float) -> None:
            self._client.delete_topics([name], request_timeout=left_s)[name].result(left_s + _ASK_S)

        self._changed(f"{self.name}: topic {name!r}", change, "UNKNOWN_TOPIC_OR_PART")
        deadline = time.monotonic() + _TIMEOUT_S
        while name in self.partition_counts() and time.monotonic() < deadline:
            time.sleep(_RETRY_S)

    def add_partitions(self, name: str, total: int) -> None:
        """Grow a topic to `total` partitions."""
        more = self._kafka.admin.NewPartitions(name, total)

        def change(left_s: float) -> None:
            self._client.create_partitions([more], request_timeout=left_s)[name].result(left_s + _ASK_S)

        self._changed(f"{self.name}: topic {name!r}", change, "INVALID_PARTITIONS")
        self._await_topic(name, total)

    def delete_records(self, partition: TopicPartition, before: int) -> int:
        """Delete the records of a partition before an offset; return where it starts now."""
        asked = [self._kafka.TopicPartition(*partition, before)]

        def ask(left_s: float) -> int:
            (response,) = self._client.delete_records(asked, request_timeout=left_s).values()
            return int(response.result(left_s + _ASK_S).low_watermark)

        return self._elected(ask)

    # ---- groups

    def group_names(self) -> list[str]:
        """Return the names of all consumer groups."""

        def ask(left_s: float) -> Any:
            listed = self._client.list_consumer_groups(request_timeout=left_s).result(left_s + _ASK_S)
            for error in listed.errors:  # of some servers: their groups are not among those of the others
                raise error if isinstance(error, self._kafka.KafkaException) else self._kafka.KafkaException(error)
            return listed.valid

        valid = self._asked(self.name, ask, TRANSIENT, timeout_s=_MOVING_S, each_s=_ASK_S)
        return sorted(group.group_id for group in valid)

    def groups(self, partitions: Iterable[TopicPartition]) -> dict[str, dict[TopicPartition, int]]:
        """Return what each group has committed of these partitions; groups without that are left out."""
        wanted = list(partitions)
        offsets = {group: self.offsets(group, wanted) for group in self.group_names()}
        return {group: stored for group, stored in offsets.items() if stored}

    def offsets(self, group: str, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """Return the committed offsets of a group; none if there is no such group."""
        return {partition: each.offset for partition, each in self.committed(group, partitions).items()}

    def committed(self, group: str, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, Any]:
        """Return what a group has committed, as librdkafka's TopicPartitions; nothing if there is no such group.

        What open transactions have moved is waited for. By default all partitions are asked for, by name: else the
        cluster leaves out those where a transaction commits the first offset.
        """
        if partitions is None:
            counts = self.partition_counts()
            partitions = [TopicPartition(topic, number) for topic in counts for number in range(counts[topic])]
        wanted = [self._kafka.TopicPartition(*each) for each in partitions]

        def ask(left_s: float) -> list[Any]:
            with self._group_clients.of(group) as client:
                stored: list[Any] = client.committed(wanted, timeout=left_s)
            self._check_each(stored)
            return stored

        stored = self._coordinated(group, ask, UNSTABLE) if wanted else []
        return {TopicPartition(each.topic, each.partition): each for each in stored if each.offset >= 0}

    def _check_each(self, partitions: Iterable[Any]) -> None:
        """Raise the first error that a partition has."""
        for each in partitions:
            if each.error is not None:
                raise self._kafka.KafkaException(each.error)

    def members(self, group: str) -> tuple[str, list[GroupMemberInfo]]:
        """Return the state of a group ("EMPTY", "STABLE", "DEAD", …), and its members."""

        def ask(left_s: float) -> Any:
            asked = self._client.describe_consumer_groups([group], request_timeout=left_s)
            return asked[group].result(left_s + _ASK_S)

        try:
            found = self._coordinated(group, ask)
        except UnknownGroup:
            return "DEAD", []
        members = [
            GroupMemberInfo(
                each.member_id,
                each.group_instance_id or None,
                tuple(
                    sorted(
                        TopicPartition(p.topic, p.partition)
                        for p in (each.assignment.topic_partitions if each.assignment else ())
                    )
                ),
                each.client_id or "",
                (each.host or "").removeprefix("/"),
            )
            for each in found.members
        ]
        return str(found.state.name), members

    def move_group(self, group: str, offsets: Mapping[TopicPartition, Any]) -> None:
        """Set the committed offsets of a group: numbers, or (offset, leader epoch, metadata). GroupBusy if it has
        members.
        """
        wanted = []
        for partition, offset in offsets.items():
            number, epoch, metadata = offset if isinstance(offset, tuple) else (offset, -1, "")
            wanted.append(as_offset(partition, number, epoch, metadata))

        def ask(_: float) -> None:
            with self._group_clients.of(group) as client:
                self._check_each(client.commit(offsets=wanted, asynchronous=False) or ())

        try:
            self._coordinated(group, ask)
        except (GroupBusy, NotOwner) as error:
            raise GroupBusy(f"{self.name}: group {group!r} has members", hint="stop its consumers first") from error

    def delete_group(self, group: str) -> None:
        """Delete a group and its offsets. GroupBusy if it has members, UnknownGroup if there is none."""

        def change(left_s: float) -> None:
            self._client.delete_consumer_groups([group], request_timeout=left_s)[group].result(left_s + _ASK_S)

        self._changed(f"{self.name}: group {group!r}", change, "GROUP_ID_NOT_FOUND")


def as_offset(partition: TopicPartition, offset: int, leader_epoch: int = -1, metadata: str = "") -> Any:
    """Return an offset as librdkafka takes it."""
    about: dict[str, Any] = {"metadata": metadata} if metadata else {}
    if leader_epoch >= 0:
        about["leader_epoch"] = leader_epoch
    return import_confluent_kafka().TopicPartition(*partition, offset, **about)
