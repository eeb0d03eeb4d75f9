"""A client of a server: which topics there are, where their logs begin and end, who leads a partition.

A request goes to the broker that leads its partitions; what is for any broker goes to the first that answers. Klamm has
one broker; a cluster of Apache Kafka may have more.

A request that fails because a server is away, or another one leads by now, is sent again for RETRY_TIMEOUT_S: a server
that is killed and started again is a pause, not an error.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from klamm.errors import StoreError, UnknownTopic, Unreachable
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.wire import Api, Struct
from klamm.kafka.wire.messages import LIST_OFFSETS, METADATA, OFFSET_FOR_LEADER_EPOCH
from klamm.spark.server.address import ServerAddress
from klamm.spark.server.connection import Connection, ConnectionLost
from klamm.spark.server.errors import NotNow, check
from klamm.types import TopicId, TopicPartition

__all__ = ["EARLIEST", "LATEST", "RETRY_TIMEOUT_S", "Client", "FoundOffset", "Sent", "TopicInfo", "client_of"]

RETRY_TIMEOUT_S = 60.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
_IDS_SINCE = 10  # of Metadata
_GONE = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INVALID_TOPIC_EXCEPTION)

EARLIEST, LATEST = -2, -1

Result = TypeVar("Result")


class TopicInfo(NamedTuple):
    """A topic, and which broker leads each partition, in which epoch."""

    name: str
    id: TopicId
    leaders: tuple[int, ...]
    leader_epochs: tuple[int, ...]
    is_internal: bool


class FoundOffset(NamedTuple):
    offset: int
    """-1: there is none."""
    leader_epoch: int


class Sent(NamedTuple):
    """A request that was sent, and is to be received."""

    connection: Connection
    number: int


class Client:
    """Thread-safe: one request at a time."""

    def __init__(self, address: ServerAddress) -> None:
        self.address = address
        self.cluster_id = ""
        """As the last response with metadata had it."""
        self._lock = threading.RLock()
        self._connections: dict[tuple[str, int], Connection] = {}
        self._brokers: dict[int, tuple[str, int]] = {}
        self._topics: dict[str, TopicInfo] = {}

    def close(self) -> None:
        with self._lock:
            for connection in self._connections.values():
                connection.close()
            self._connections.clear()

    # ---- requests

    def patiently(self, attempt: Callable[[], Result], timeout_s: float | None = None) -> Result:
        """Call `attempt` until it has a result. Raise Unreachable when it has failed so long; None: RETRY_TIMEOUT_S."""
        timeout_s = RETRY_TIMEOUT_S if timeout_s is None else timeout_s
        deadline_s, pause_s = time.monotonic() + timeout_s, _FIRST_PAUSE_S
        while True:
            try:
                with self._lock:
                    return attempt()
            except (ConnectionLost, NotNow) as error:
                if time.monotonic() > deadline_s:
                    raise Unreachable(
                        f"{self.address}: {error}: tried for {timeout_s:g} s",
                        hint="check that the server runs, that its advertised address can be reached from here, and"
                        " the option security.protocol",
                    ) from None
                self._topics.clear()
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def ask(
        self, api: Api, request: Struct, *, broker: int | None = None, at_least: int = 0, at_most: int | None = None
    ) -> Struct:
        """Send a request once. `broker`: to which, by its number. Raise ConnectionLost."""
        return self.receive(self.send(api, request, broker=broker, at_least=at_least, at_most=at_most))

    def send(
        self, api: Api, request: Struct, *, broker: int | None = None, at_least: int = 0, at_most: int | None = None
    ) -> Sent:
        """Send a request once, like `ask`, and do not wait for its response: `receive` returns it."""
        connection = self._connection(broker)
        try:
            return Sent(connection, connection.send(api, request, at_least=at_least, at_most=at_most))
        except ConnectionLost:
            self._forget(connection)
            raise

    def receive(self, sent: Sent) -> Struct:
        """Return the response to a request. Raise ConnectionLost: it is unknown whether the server has done it."""
        try:
            return sent.connection.receive(sent.number)
        except ConnectionLost:
            self._forget(sent.connection)
            raise

    def knows(self, api: Api) -> bool:
        """Return whether the server has this API, in a version that we know."""
        return self.patiently(lambda: self._connection(None).version(api) is not None)

    def _connection(self, broker: int | None) -> Connection:
        wanted = self.address.hosts if broker is None or broker not in self._brokers else (self._brokers[broker],)
        for each in wanted:
            connection = self._connections.get(each)
            if connection is not None and not connection.is_due:
                return connection
        lost: list[str] = []
        for each in wanted:
            old = self._connections.pop(each, None)
            if old is not None:
                old.close()
            try:
                connection = self._connections[each] = Connection(self.address, *each)
            except ConnectionLost as error:
                lost.append(str(error))
            else:
                return connection
        raise ConnectionLost("; ".join(lost))

    def _forget(self, connection: Connection) -> None:
        self._connections = {name: each for name, each in self._connections.items() if each is not connection}

    # ---- topics

    def topics(self, names: Iterable[str] | None = None) -> dict[str, TopicInfo]:
        """Return the topics that exist of these, or all that the user may see."""
        wanted = None if names is None else list(names)
        return self.patiently(lambda: self._read_topics(wanted))

    def _read_topics(self, names: list[str] | None) -> dict[str, TopicInfo]:
        topic = METADATA.request.Topic
        request = METADATA.request(
            topics=None if names is None else [topic(name=name) for name in names], allow_auto_topic_creation=False
        )
        response = self.ask(METADATA, request, at_least=_IDS_SINCE)
        self._brokers = {each.node_id: (each.host, each.port) for each in response.brokers}
        self.cluster_id = response.cluster_id or ""
        found = {}
        for each in response.topics:
            if each.error_code in _GONE:
                continue
            check(f"{self.address}: {each.name}", each.error_code)
            partitions = sorted(each.partitions, key=lambda partition: partition.partition_index)
            found[each.name] = TopicInfo(
                each.name,
                TopicId(bytes(each.topic_id).hex()),
                tuple(partition.leader_id for partition in partitions),
                tuple(partition.leader_epoch for partition in partitions),
                each.is_internal,
            )
        self._topics.update(found)
        return found

    def leader(self, tp: TopicPartition) -> int:
        """Return which broker leads a partition. Raise UnknownTopic; NotNow if none does."""
        info = self._topics.get(tp.topic)
        if info is None or not tp.partition < len(info.leaders):  # it may have more by now
            info = self._read_topics([tp.topic]).get(tp.topic)
        if info is None or not tp.partition < len(info.leaders):
            raise UnknownTopic(f"{self.address}: there is no {tp.topic}/{tp.partition}")
        if info.leaders[tp.partition] < 0:
            raise NotNow(f"{tp.topic}/{tp.partition} has no leader")
        return info.leaders[tp.partition]

    # ---- offsets

    def offsets(self, times_ms: Mapping[TopicPartition, int], *, committed: bool) -> dict[TopicPartition, FoundOffset]:
        """Return the offset of each partition at a time, EARLIEST or LATEST: of the log as it lies."""
        (found,) = self._by_leader(times_ms, LIST_OFFSETS, [_list_offsets(times_ms, committed)], self._read_offsets)
        return found

    def bounds(self, tps: Iterable[TopicPartition]) -> list[dict[TopicPartition, FoundOffset]]:
        """Return where the logs start, up to where they are stable, and where they end, looked at in this order.

        The three requests are sent together.
        """
        earliest, latest = dict.fromkeys(tps, EARLIEST), dict.fromkeys(tps, LATEST)
        requests = [_list_offsets(earliest, False), _list_offsets(latest, True), _list_offsets(latest, False)]
        return self._by_leader(latest, LIST_OFFSETS, requests, self._read_offsets)

    def _read_offsets(self, response: Struct) -> dict[TopicPartition, FoundOffset]:
        found = {}
        for topic in response.topics:
            for each in topic.partitions:
                check(f"{self.address}: {topic.name}/{each.partition_index}", each.error_code)
                tp = TopicPartition(topic.name, each.partition_index)
                found[tp] = FoundOffset(each.offset, each.leader_epoch)
        return found

    def ends_of_epochs(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, FoundOffset]:
        """Return where a leader epoch ended, and the largest epoch up to it that has records; -1: it is not known."""

        def request(tps: list[TopicPartition]) -> Struct:
            kind = OFFSET_FOR_LEADER_EPOCH.request
            topics = [
                kind.Topic(
                    topic=name,
                    partitions=[
                        kind.Partition(partition=tp.partition, leader_epoch=epochs[tp])
                        for tp in tps
                        if tp.topic == name
                    ],
                )
                for name in dict.fromkeys(tp.topic for tp in tps)
            ]
            return kind(topics=topics)

        def read(response: Struct) -> dict[TopicPartition, FoundOffset]:
            found = {}
            for topic in response.topics:
                for each in topic.partitions:
                    check(f"{self.address}: {topic.topic}/{each.partition}", each.error_code)
                    tp = TopicPartition(topic.topic, each.partition)
                    found[tp] = FoundOffset(each.end_offset, each.leader_epoch)
            return found

        (found,) = self._by_leader(epochs, OFFSET_FOR_LEADER_EPOCH, [request], read)
        return found

    def _by_leader(
        self,
        tps: Iterable[TopicPartition],
        api: Api,
        requests: Sequence[Callable[[list[TopicPartition]], Struct]],
        read: Callable[[Struct], dict[TopicPartition, FoundOffset]],
    ) -> list[dict[TopicPartition, FoundOffset]]:
        """Send each request to the leaders of its partitions, one behind the other, and return what each has found."""

        def attempt() -> list[dict[TopicPartition, FoundOffset]]:
            by_leader: dict[int, list[TopicPartition]] = {}
            for tp in tps:
                by_leader.setdefault(self.leader(tp), []).append(tp)
            sent = [
                [self.send(api, request(led), broker=broker) for broker, led in by_leader.items()]
                for request in requests
            ]
            responses = [[self.receive(each) for each in of_request] for of_request in sent]
            return [complete(of_request) for of_request in responses]

        def complete(responses: list[Struct]) -> dict[TopicPartition, FoundOffset]:
            found: dict[TopicPartition, FoundOffset] = {}
            for response in responses:
                found |= read(response)
            missing = [tp for tp in tps if tp not in found]
            if missing:
                raise StoreError(f"{self.address}: the server's response lacks {missing[0]}")
            return found

        return self.patiently(attempt)


_clients: dict[ServerAddress, tuple[int, Client]] = {}  # of this process, with its number


def client_of(address: ServerAddress) -> Client:
    """Return a client that this process keeps: Spark uses a process for many micro-batches, and for many tasks."""
    process, client = _clients.get(address, (0, None))
    if client is None or process != os.getpid():
        client = Client(address)
        _clients[address] = os.getpid(), client
    return client


def _list_offsets(times_ms: Mapping[TopicPartition, int], committed: bool) -> Callable[[list[TopicPartition]], Struct]:
    """Return what makes a request for some of the partitions."""
    kind = LIST_OFFSETS.request

    def request(tps: list[TopicPartition]) -> Struct:
        topics = [
            kind.Topic(
                name=name,
                partitions=[
                    kind.Partition(partition_index=tp.partition, timestamp=times_ms[tp])
                    for tp in tps
                    if tp.topic == name
                ],
            )
            for name in dict.fromkeys(tp.topic for tp in tps)
        ]
        return kind(replica_id=-1, isolation_level=int(committed), topics=topics, timeout_ms=30_000)

    return request
