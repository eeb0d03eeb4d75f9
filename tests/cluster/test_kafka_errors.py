"""What a server that is killed, or that was just elected, responds is asked again; and nothing else is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

import klamm
from klamm.cluster import cluster_engine, cluster_partition, kafka_admin, kafka_errors
from klamm.cluster.kafka_admin import KafkaAdmin
from klamm.cluster.kafka_errors import AWAY, COMMITTING, ELECTING, SPREADING, TRANSIENT, UNSTABLE, error_of
from klamm.errors import GroupBusy, OffsetOutOfRange, StoreError, UnknownTopic, Unreachable
from klamm.types import TopicPartition
from tests.interop.brokers import Broker, fresh
from tests.procs import until


def kafka_error(code: str) -> KafkaError:
    return KafkaError(getattr(KafkaError, code))


class Failing:
    """An admin client whose calls fail at first: each by every error of a list, one after the other."""

    def __init__(self, client: Any, codes: list[str]) -> None:
        self._client = client
        self._codes = codes
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            self.calls[name] += 1
            if self.calls[name] <= len(self._codes):
                raise KafkaException(kafka_error(self._codes[self.calls[name] - 1]))
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
    ("list_consumer_group_offsets", UNSTABLE, lambda s: s.admin.offsets(s.group) == {s.partition: 5}),
    ("alter_consumer_group_offsets", TRANSIENT, lambda s: s.admin.move_group(s.group, {s.partition: 6}) is None),
]


@pytest.mark.parametrize(("call", "codes", "asks"), ASKED, ids=[each[0] for each in ASKED])
def test_what_a_server_that_moves_responds_is_asked_again(
    call: str, codes: tuple[str, ...], asks: Callable[[Scene], Any], scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_admin, "_RETRY_S", 0)
    client: Any = scene.admin._client
    failing = Failing(client, [*dict.fromkeys(codes)])
    monkeypatch.setattr(scene.admin, "_client", SimpleNamespace(list_topics=client.list_topics))
    monkeypatch.setattr(scene.admin._client, call, getattr(failing, call), raising=False)
    assert asks(scene)
    assert failing.calls[call] >= len(set(codes)) + 1


@pytest.mark.parametrize(("call", "codes", "asks"), ASKED, ids=[each[0] for each in ASKED])
def test_what_will_not_pass_is_raised_at_once(
    call: str, codes: tuple[str, ...], asks: Callable[[Scene], Any], scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = Failing(scene.admin._client, ["TOPIC_AUTHORIZATION_FAILED"] * 9)
    monkeypatch.setattr(scene.admin, "_client", failing)
    with pytest.raises(StoreError, match="TOPIC_AUTHORIZATION_FAILED"):
        asks(scene)
    assert failing.calls[call] <= 3  # the ends of a partition are three questions


def test_topics_and_groups_are_not_made_or_deleted_twice(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = Failing(scene.admin._client, ["_TRANSPORT"] * 9)
    monkeypatch.setattr(scene.admin, "_client", failing)
    for change in (
        lambda: scene.admin.create(fresh("orders"), 1, {}),
        lambda: scene.admin.delete(scene.topic),
        lambda: scene.admin.add_partitions(scene.topic, 2),
        lambda: scene.admin.delete_group(scene.group),
    ):
        with pytest.raises(Unreachable):
            change()
    assert set(failing.calls.values()) == {1} and len(failing.calls) == 4


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

    monkeypatch.setattr(scene.admin, "_client", SimpleNamespace(list_consumer_groups=list_groups))
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
