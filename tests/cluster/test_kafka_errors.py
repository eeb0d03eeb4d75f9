"""What a server that is killed, or that was just elected, responds is asked again; and nothing else is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

import klamm
from klamm.cluster import cluster_engine, cluster_partition, kafka_admin, kafka_errors
from klamm.cluster.kafka_admin import KafkaAdmin
from klamm.cluster.kafka_errors import AWAY, COMMITTING, ELECTING, SPREADING, TRANSIENT, UNSTABLE, error_of
from klamm.cluster.record_stream import RecordStream
from klamm.errors import (
    Fenced,
    GroupBusy,
    InvalidSetting,
    KlammError,
    OffsetOutOfRange,
    StoreError,
    TopicExists,
    UnknownGroup,
    UnknownTopic,
    Unreachable,
)
from klamm.types import TopicPartition
from tests.interop.brokers import Broker, fresh
from tests.procs import PATIENCE, until


def kafka_error(code: str) -> KafkaError:
    return KafkaError(getattr(KafkaError, code))


class Failing:
    """A client of librdkafka, some calls of which fail at first: by every error of a list, one after the other."""

    def __init__(self, client: Any, calls: list[str], codes: Iterable[str], counts: Counter[str]) -> None:
        self._client = client
        self._calls = calls
        self._codes = list(codes)
        self._counts = counts

    def __getattr__(self, name: str) -> Any:
        if name not in self._calls:
            return getattr(self._client, name)

        def call(*arguments: Any, **options: Any) -> Any:
            self._counts[name] += 1
            if self._counts[name] <= len(self._codes):
                raise KafkaException(kafka_error(self._codes[self._counts[name] - 1]))
            return getattr(self._client, name)(*arguments, **options)

        return call


class Scene:
    """A topic of ten records and a group at its fifth, and an administration of which nothing is remembered."""

    def __init__(self, store: klamm.Store) -> None:
        self.topic, self.group = store.topics.create(fresh("orders")).name, fresh("billing")
        store.append_many(self.topic, [b"%d" % n for n in range(10)])
        self.partition = TopicPartition(self.topic, 0)
        self.admin: KafkaAdmin = store._acquired().admin  # type: ignore[attr-defined]  # of a cluster
        self.admin.move_group(self.group, {self.partition: 5})

    def fail(self, monkeypatch: pytest.MonkeyPatch, calls: list[str], codes: Iterable[str]) -> Counter[str]:
        """Let calls fail; return how often each was called."""
        counts: Counter[str] = Counter()
        clients = self.admin._group_clients
        take = clients._take
        monkeypatch.setattr(self.admin, "_client", Failing(self.admin._client, calls, codes, counts))
        monkeypatch.setattr(clients, "_take", lambda group: Failing(take(group), calls, codes, counts))
        return counts


@pytest.fixture
def scene(klamm_broker: Broker) -> Iterator[Scene]:
    with klamm.open(f"kafka://{klamm_broker.address}") as store:
        yield Scene(store)


ASKED: list[tuple[str, tuple[str, ...], Callable[[Scene], Any]]] = [
    ("list_topics", AWAY, lambda s: s.admin.partition_counts()[s.topic] == 1),
    ("describe_topics", AWAY, lambda s: s.admin.describe(s.topic).partitions == 1),
    ("describe_configs", AWAY, lambda s: "retention.ms" in s.admin.settings(s.topic)[1]),
    ("incremental_alter_configs", AWAY, lambda s: s.admin.alter(s.topic, {"retention.ms": "1"}, []) is None),
    ("list_offsets", (*ELECTING, *SPREADING), lambda s: s.admin.end(s.partition) == 10),
    ("delete_records", (*ELECTING, *SPREADING), lambda s: s.admin.delete_records(s.partition, 3) == 3),
    ("list_consumer_groups", TRANSIENT, lambda s: s.group in s.admin.group_names()),
    ("describe_consumer_groups", TRANSIENT, lambda s: s.admin.members(s.group) == ("EMPTY", [])),
    ("committed", UNSTABLE, lambda s: s.admin.offsets(s.group) == {s.partition: 5}),
    ("commit", TRANSIENT, lambda s: s.admin.move_group(s.group, {s.partition: 6}) is None),
]


@pytest.mark.parametrize(("call", "codes", "asks"), ASKED, ids=[each[0] for each in ASKED])
def test_what_a_server_that_moves_responds_is_asked_again(
    call: str, codes: tuple[str, ...], asks: Callable[[Scene], Any], scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_admin, "_RETRY_S", 0)
    counts = scene.fail(monkeypatch, [call], codes)
    assert asks(scene)
    assert counts[call] > len(codes)


@pytest.mark.parametrize(("call", "codes", "asks"), ASKED, ids=[each[0] for each in ASKED])
def test_what_will_not_pass_is_raised_at_once(
    call: str, codes: tuple[str, ...], asks: Callable[[Scene], Any], scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = scene.fail(monkeypatch, [call], ["TOPIC_AUTHORIZATION_FAILED"] * 9)
    with pytest.raises(StoreError, match="TOPIC_AUTHORIZATION_FAILED"):
        asks(scene)
    assert counts[call] == 1


CHANGED: list[tuple[str, Callable[[Scene], Any], type[KlammError]]] = [
    ("create_topics", lambda s: s.admin.create(f"{s.topic}-2", 2, {}, exist_ok=False), TopicExists),
    ("create_partitions", lambda s: s.admin.add_partitions(s.topic, 2), InvalidSetting),
    ("delete_topics", lambda s: s.admin.delete(s.topic), UnknownTopic),
    ("delete_consumer_groups", lambda s: s.admin.delete_group(s.group), UnknownGroup),
]


@pytest.mark.parametrize("is_made", [False, True])
@pytest.mark.parametrize(("call", "change", "error"), CHANGED, ids=[each[0] for each in CHANGED])
def test_a_change_whose_response_was_lost_is_made_once(
    is_made: bool,
    call: str,
    change: Callable[[Scene], Any],
    error: type[KlammError],
    scene: Scene,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client: Any = scene.admin._client
    lost = ["_TIMED_OUT", "_TRANSPORT"]

    def asked(things: Any, **options: Any) -> Any:
        if lost and is_made:
            (response,) = getattr(client, call)(things, **options).values()
            with suppress(KafkaException):
                response.result(PATIENCE)
        if lost:
            raise KafkaException(kafka_error(lost.pop()))
        return getattr(client, call)(things, **options)

    with monkeypatch.context() as patched:
        replaced = SimpleNamespace(list_topics=client.list_topics, describe_topics=client.describe_topics)
        patched.setattr(scene.admin, "_client", replaced)
        patched.setattr(replaced, call, asked, raising=False)
        change(scene)
        assert lost == []
    with pytest.raises(error):  # it is made
        change(scene)


def test_groups_of_a_server_that_does_not_respond_are_not_left_out(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    client: Any = scene.admin._client
    listings = [[kafka_error("_TRANSPORT")], [KafkaException(kafka_error("_TIMED_OUT"))]]

    def list_groups(**options: Any) -> Any:
        if not listings:
            return client.list_consumer_groups(**options)
        partial: Future[Any] = Future()
        partial.set_result(SimpleNamespace(valid=[], errors=listings.pop()))
        return partial

    replaced = SimpleNamespace(list_consumer_groups=list_groups, list_topics=client.list_topics)
    monkeypatch.setattr(scene.admin, "_client", replaced)
    assert scene.group in scene.admin.group_names()


def test_a_group_that_was_not_moved_is_an_error(klamm_broker: Broker, scene: Scene) -> None:
    with pytest.raises(UnknownTopic):
        scene.admin.move_group(scene.group, {TopicPartition(fresh("nothing"), 0): 1})
    with (
        klamm.open(f"kafka://{klamm_broker.address}") as store,
        store.consumer(scene.topic, group=scene.group) as member,
    ):
        until(lambda: member.poll(timeout=0.1) or member.assignment(), "it is a member")
        with pytest.raises(GroupBusy):
            scene.admin.move_group(scene.group, {scene.partition: 1})
    assert scene.admin.offsets(scene.group) == {scene.partition: 5}


def test_every_name_is_one_of_librdkafkas() -> None:
    tables = (AWAY, SPREADING, ELECTING, TRANSIENT, UNSTABLE, COMMITTING, kafka_errors.OUT_OF_RANGE)
    for name in {name for table in (*tables, *kafka_errors._KINDS.values()) for name in table}:
        assert isinstance(getattr(KafkaError, name, None), int), name
    for name in {*ELECTING, *UNSTABLE}:
        assert isinstance(error_of("here", kafka_error(name)), Unreachable), name


# ---- producers


def as_python_complains(cause: BaseException | None) -> SystemError:
    """What `flush` raises if callbacks of deliveries run behind a fatal error."""
    error = SystemError("<function delivered> returned a result with an exception set")
    error.__cause__ = cause
    return error


def failing_stream(raised: Exception) -> Any:
    """A stream whose producer raises at a `flush`."""

    def flush(wait_s: float) -> int:
        raise raised

    stream: Any = RecordStream.__new__(RecordStream)
    stream._core, stream.producer = SimpleNamespace(path="here"), SimpleNamespace(flush=flush)
    stream.reports, stream._failures = SimpleNamespace(outstanding=1), SimpleNamespace(is_broken=False)
    return stream


@pytest.mark.parametrize(
    "raised",
    [
        KafkaException(kafka_error("_FENCED")),
        as_python_complains(KafkaException(kafka_error("_FENCED"))),
        as_python_complains(as_python_complains(KafkaException(kafka_error("_FENCED")))),
    ],
)
def test_a_fatal_error_is_the_one_that_librdkafka_has(raised: Exception) -> None:
    stream = failing_stream(raised)
    with pytest.raises(Fenced, match="here"):
        stream.wait(1.0)
    assert stream.is_broken


@pytest.mark.parametrize("cause", [None, KeyError("of something else")])
def test_what_python_complains_of_is_no_fatal_error_unless_librdkafka_has_one(cause: Exception | None) -> None:
    raised = as_python_complains(cause)
    stream = failing_stream(raised)
    with pytest.raises(SystemError) as found:
        stream.wait(1.0)
    assert found.value is raised and not stream.is_broken


# ---- consumers


class Reported:
    """A message that tells of an error of a partition."""

    def __init__(self, partition: TopicPartition, code: str, offset: int = -1) -> None:
        self._partition, self._code, self._offset = partition, code, offset

    def topic(self) -> str:
        return self._partition.topic

    def partition(self) -> int:
        return self._partition.partition

    def offset(self) -> int:
        return self._offset

    def error(self) -> KafkaError:
        return kafka_error(self._code)

    timestamp = key = value = headers = leader_epoch = error  # a message has them; nobody asks


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Messages that are received before any other."""
    first: list[Any] = []
    receive = cluster_partition.receive

    def received(*arguments: Any) -> list[Any]:
        return [first.pop(0)] if first else receive(*arguments)

    for module in (cluster_engine, cluster_partition):
        monkeypatch.setattr(module, "receive", received)
    return first


@pytest.mark.parametrize(
    "code", ["NOT_LEADER_FOR_PARTITION", "_TRANSPORT", "OFFSET_OUT_OF_RANGE", "_AUTO_OFFSET_RESET"]
)
def test_a_reader_goes_on_where_it_was_when_a_leader_does_not_know_better(
    code: str, scene: Scene, klamm_broker: Broker, reported: list[Any]
) -> None:
    with klamm.open(f"kafka://{klamm_broker.address}") as store:
        for reset in ("earliest", "latest", None):
            reported[:] = [Reported(scene.partition, code)]
            with store.consumer(scene.topic, start=4, auto_offset_reset=reset, wait=0) as consumer:
                assert [record.offset for record in consumer] == [4, 5, 6, 7, 8, 9]
            assert reported == []
        reported[:] = [Reported(scene.partition, code)]
        with store._acquired().topic(scene.topic).partition(0).reader(4) as reader:
            assert len(reader.read(1 << 20)) and reader.offset == 10


def test_what_was_removed_under_a_reader_is_an_error(scene: Scene, klamm_broker: Broker, reported: list[Any]) -> None:
    with klamm.open(f"kafka://{klamm_broker.address}") as store:
        with store._acquired().topic(scene.topic).partition(0).reader(2) as reader:
            reader._open()  # type: ignore[attr-defined]  # of a cluster
            scene.admin.delete_records(scene.partition, 5)
            reported[:] = [Reported(scene.partition, "_AUTO_OFFSET_RESET")]
            with pytest.raises(OffsetOutOfRange):
                reader.read(1 << 20)
        reported[:] = [Reported(scene.partition, "TOPIC_AUTHORIZATION_FAILED")]
        with (
            store._acquired().topic(scene.topic).partition(0).reader(5) as reader,
            pytest.raises(StoreError, match="TOPIC_AUTHORIZATION_FAILED"),
        ):
            reader.read(1 << 20)


def test_another_controller_is_learned_of_before_it_is_asked_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka waits for the controller that it knows, and asks for all topics by itself only once in minutes."""
    client: Any = scene.admin._client
    asked: list[str] = []

    def alter(things: Any, **options: Any) -> Any:
        asked.append("alter")
        if asked.count("alter") == 1:
            raise KafkaException(kafka_error("_TIMED_OUT"))
        return client.incremental_alter_configs(things, **options)

    def list_topics(**options: Any) -> Any:
        asked.append("list")
        return client.list_topics(**options)

    replaced = SimpleNamespace(incremental_alter_configs=alter, list_topics=list_topics)
    monkeypatch.setattr(scene.admin, "_client", replaced)
    scene.admin.alter(scene.topic, {"retention.ms": "1"}, [])
    assert asked == ["alter", "list", "alter"]


def test_an_error_of_one_partition_loses_no_record_of_another_that_came_with_it(
    scene: Scene, klamm_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive = cluster_partition.receive
    pending: list[Any] = []

    def received(*arguments: Any) -> list[Any]:
        found = receive(*arguments)
        if pending and any(message.error() is None for message in found):
            found.insert(0, pending.pop())
        return found

    monkeypatch.setattr(cluster_engine, "receive", received)
    with klamm.open(f"kafka://{klamm_broker.address}") as store:
        topic = store.topics.create(fresh("two"), 2).name
        for number in range(2):
            store.append_many(topic, [b"%d" % n for n in range(10)], partition=number)
        pending.append(Reported(TopicPartition(topic, 1), "TOPIC_AUTHORIZATION_FAILED"))
        with store.consumer(topic, wait=0) as consumer:
            with pytest.raises(StoreError, match="TOPIC_AUTHORIZATION_FAILED"):
                list(consumer)
            assert sorted((record.partition, record.offset) for record in consumer) == [
                (number, n) for number in range(2) for n in range(10)
            ]


@pytest.fixture
def doubled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Half of what is received is received again: librdkafka's position may go back when a leader has changed."""
    receive = cluster_partition.receive
    again = 0

    def received(*arguments: Any) -> list[Any]:
        nonlocal again
        found = receive(*arguments)
        again += len(found) // 2
        return [*found, *found[len(found) // 2 :]]

    for module in (cluster_engine, cluster_partition):
        monkeypatch.setattr(module, "receive", received)
    yield
    assert again


@pytest.mark.usefixtures("doubled")
@pytest.mark.parametrize("by_scan", [False, True], ids=["consumer", "scan"])
def test_what_librdkafka_reads_again_is_handed_out_once(klamm_broker: Broker, *, by_scan: bool) -> None:
    with klamm.open(f"kafka://{klamm_broker.address}") as store:
        topic = store.topics.create(fresh("again"))
        store.append_many(topic.name, [b"%d" % n for n in range(20)])
        if by_scan:
            offsets = topic.scan().to_table()["offset"].to_pylist()
        else:
            with topic.consumer(wait=0) as consumer:
                offsets = [record.offset for record in consumer]
        assert offsets == list(range(20))
