"""Groups between the doors: members at one at a time, offsets for both, and nothing forgotten by a restart."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

import klamm
from klamm.batch import Builder
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.wire.messages import INIT_PRODUCER_ID, PRODUCE
from klamm.kafka.wire.structs import Struct
from tests.interop.both_doors import PASSING, QUICK
from tests.interop.confluents import group_consumer
from tests.interop.raw import Raw
from tests.messages import value_of
from tests.procs import Flag, children, until
from tests.serving import Serving

GROUP, TOPIC = "movers", "numbers"


@pytest.fixture
def store(server: Serving) -> Iterator[klamm.Store]:
    with klamm.open(server.store) as opened:
        opened.topics.create(TOPIC)
        opened.append_many(TOPIC, [b"%d" % n for n in range(100)], partition=0, acks=1)
        yield opened


@contextmanager
def wire_member(server: Serving, **settings: Any) -> Iterator[Consumer]:
    usual: dict[str, Any] = {"bootstrap.servers": server.address, "group.id": GROUP, "auto.offset.reset": "earliest"}
    usual |= {"enable.auto.commit": False, "session.timeout.ms": 20_000, "heartbeat.interval.ms": 100, **QUICK}
    made = Consumer({**usual, **settings})
    try:
        made.subscribe([TOPIC])
        yield made
    finally:
        made.close()


def embedded_member(store: klamm.Store) -> klamm.Consumer:
    """As soon as the server knows that its members have gone."""

    def join() -> klamm.Consumer | None:
        try:
            return store.consumer(TOPIC, group=GROUP)
        except klamm.GroupBusy:
            return None

    return until(join, "an embedded member may join")


def first_offset(member: Consumer) -> int:
    """Of the first record that it is given; maybe after refusals from before the door stood open."""

    def given() -> Message | None:
        message = member.poll(0.1)
        error = None if message is None else message.error()
        if error is not None and error.code() not in (*PASSING, ErrorCode.INCONSISTENT_GROUP_PROTOCOL):
            raise KafkaException(error)
        return message if error is None else None

    offset = until(given, "it is given a record").offset()
    assert isinstance(offset, int)
    return offset


def refusal(member: Consumer) -> int:
    """The error that a consumer reports; maybe after records that it was given before."""

    def reported() -> KafkaError | None:
        message = member.poll(0.1)
        error: KafkaError | None = None if message is None else message.error()
        return None if error is None or error.code() in PASSING else error

    return int(until(reported, "it is told why it may not join").code())


def standing(store: klamm.Store) -> tuple[int, str]:
    """Of the group, as an embedded process sees it: offset and metadata."""
    (found,) = store.groups.describe(GROUP).offsets
    assert (found.topic, found.partition) == (TOPIC, 0) and found.committed is not None
    return found.committed.offset, found.committed.metadata.rstrip("\0")  # which confluent-kafka sends with it


def test_a_group_moves_from_door_to_door_and_goes_on_where_it_stands(server: Serving, store: klamm.Store) -> None:
    with store.consumer(TOPIC, group=GROUP) as member:
        batch = member.poll(10, timeout=10)
        assert batch.begin == 0 and batch.end == 10
        member.commit(batch)
        with wire_member(server) as outside:
            assert refusal(outside) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            assert not outside.assignment()
            member.commit(member.poll(5, timeout=10))
            member.close()
            assert first_offset(outside) == 15, "who polls on gets in when the others have gone"
            outside.commit(offsets=[TopicPartition(TOPIC, 0, 25)], asynchronous=False)
            with pytest.raises(klamm.GroupBusy, match="Kafka server"):
                store.consumer(TOPIC, group=GROUP)
    with embedded_member(store) as member:
        assert member.poll(10, timeout=10).begin == 25
        member.commit()
        server.restart("stop")
        with wire_member(server) as outside:
            assert refusal(outside) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        batch = member.poll(5, timeout=10)
        assert batch.begin == 35, "the refused one did not disturb it"
        member.commit(batch)
    with wire_member(server) as outside:
        assert first_offset(outside) == 40


def test_members_in_another_process_that_is_killed_leave_the_door_open(
    server: Serving, store: klamm.Store, tmp_path: Path
) -> None:
    committed = Flag(tmp_path / "committed")

    def run() -> None:
        with klamm.open(server.store) as opened, opened.consumer(TOPIC, group=GROUP) as member:
            member.commit(member.poll(7, timeout=10))
            committed.up()
            time.sleep(60)

    with children() as fork:
        child = fork(run)
        committed.wait()
        with wire_member(server) as outside:
            assert refusal(outside) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            child.kill()
            assert first_offset(outside) == 7


def test_a_killed_server_leaves_the_door_open(server: Serving, store: klamm.Store) -> None:
    with wire_member(server) as outside:
        assert first_offset(outside) == 0
        outside.commit(offsets=[TopicPartition(TOPIC, 0, 30)], asynchronous=False)
        server.kill()
        with store.consumer(TOPIC, group=GROUP) as member:
            assert member.poll(10, timeout=10).begin == 30
            member.commit()
            server.start()
            assert refusal(outside) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            with pytest.raises(KafkaException):
                outside.commit(offsets=[TopicPartition(TOPIC, 0, 2)], asynchronous=False)
            assert standing(store) == (40, "")


def test_offsets_are_the_same_at_both_doors(server: Serving, store: klamm.Store) -> None:
    """Those of groups without members: whoever assigns partitions to himself, at either door."""
    alone = Consumer({"bootstrap.servers": server.address, "group.id": GROUP, **QUICK})
    try:
        alone.commit(offsets=[TopicPartition(TOPIC, 0, 12, "from the wire")], asynchronous=False)
        assert standing(store) == (12, "from the wire")
        with store.consumer(TOPIC, group=GROUP) as member:
            batch = member.poll(10, timeout=10)
            assert batch.begin == 12
            member.commit(batch, metadata="from the store")
            (found,) = alone.committed([TopicPartition(TOPIC, 0)])
            assert (found.offset, found.metadata) == (22, "from the store")
            with pytest.raises(KafkaException) as failed:  # while somebody is a member, nobody else commits
                alone.commit(offsets=[TopicPartition(TOPIC, 0, 3)], asynchronous=False)
            assert failed.value.args[0].code() == ErrorCode.UNKNOWN_MEMBER_ID
        alone.commit(offsets=[TopicPartition(TOPIC, 0, 3)], asynchronous=False)
        assert standing(store) == (3, "")
    finally:
        alone.close()


def test_the_server_shows_members_of_the_other_door(server: Serving, store: klamm.Store) -> None:
    admin = AdminClient({"bootstrap.servers": server.address, **QUICK})

    def described() -> tuple[str, int]:
        found = admin.describe_consumer_groups([GROUP])[GROUP].result(30)
        return found.state.name, len(found.members)

    with store.consumer(TOPIC, group=GROUP) as member:
        member.commit(member.poll(10, timeout=10))
        assert described() == ("STABLE", 1)
        with pytest.raises(KafkaException) as failed:
            admin.delete_consumer_groups([GROUP])[GROUP].result(30)
        assert failed.value.args[0].code() == ErrorCode.NON_EMPTY_GROUP
    assert described() == ("EMPTY", 0)
    wanted = ConsumerGroupTopicPartitions(GROUP)
    (listed,) = admin.list_consumer_group_offsets([wanted])[GROUP].result(30).topic_partitions
    assert (listed.topic, listed.partition, listed.offset) == (TOPIC, 0, 10)


# ---- restarts


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_restart_forgets_no_group_and_no_offset(server: Serving, store: klamm.Store, how: str) -> None:
    with wire_member(server) as outside:
        assert first_offset(outside) == 0
        outside.commit(offsets=[TopicPartition(TOPIC, 0, 33, "here")], asynchronous=False)
    server.restart(how)
    admin = AdminClient({"bootstrap.servers": server.address, **QUICK})
    groups = [each.group_id for each in admin.list_consumer_groups().result(30).valid]
    assert groups == [GROUP]
    wanted = ConsumerGroupTopicPartitions(GROUP)
    (listed,) = admin.list_consumer_group_offsets([wanted])[GROUP].result(30).topic_partitions
    assert (listed.offset, listed.metadata) == (33, "here")
    with wire_member(server) as outside:
        assert first_offset(outside) == 33


def _batch(producer_id: int, epoch: int, sequence: int, *values: bytes) -> bytes:
    builder = Builder(1 << 20)
    builder.extend_values(list(values))
    return bytes(builder.seal(producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence))


def _send(raw: Raw, batch: bytes) -> Struct:
    request = PRODUCE.request
    data = [request.Topic(name=TOPIC, partition_data=[request.Partition(index=0, records=batch)])]
    answer = raw.ask(PRODUCE, 9, acks=-1, timeout_ms=10_000, topic_data=data)
    (partition,) = answer.responses[0].partition_responses
    return partition


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_restart_forgets_no_producer(server: Serving, store: klamm.Store, how: str) -> None:
    """What is sent again is known again, gaps are gaps, and no id is given twice."""
    with Raw(server.address) as raw:
        first = raw.ask(INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout_ms=60_000)
        batch = _batch(first.producer_id, first.producer_epoch, 0, b"once", b"twice")
        assert _send(raw, batch).base_offset == 100
    server.restart(how)
    with Raw(server.address) as raw:
        assert _send(raw, batch).base_offset == 100
        late = _send(raw, _batch(first.producer_id, first.producer_epoch, 5, b"gap"))
        assert late.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert _send(raw, _batch(first.producer_id, first.producer_epoch, 2, b"next")).base_offset == 102
        second = raw.ask(INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout_ms=60_000)
        assert second.producer_id != first.producer_id
    assert store.topics.describe(TOPIC).partitions[0].end == 103


@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_consumers_go_on_after_a_restart_and_nobody_is_asked_to_rebalance(
    server: Serving, store: klamm.Store, how: str, strategy: str
) -> None:
    store.topics.create("shared", partitions=4)
    heard: list[tuple[str, int, list[int]]] = []
    values: list[list[bytes]] = [[], []]

    def told(what: str, number: int) -> Callable[..., None]:
        return lambda _, parts: heard.append((what, number, sorted(part.partition for part in parts)))

    def publish(prefix: str) -> set[bytes]:
        written = [f"{prefix}{number}".encode() for number in range(40)]
        for partition in range(4):
            store.append_many("shared", written[partition::4], partition=partition, acks=1)
        return set(written)

    def poll() -> None:
        for number, each in enumerate(consumers):
            message = each.poll(0.02)
            if message is not None and not message.error():
                values[number].append(value_of(message))

    with contextlib.ExitStack() as stack:
        consumers = []
        for number in range(2):
            # Longer than a server takes to come back: else a client gives up what it has by itself.
            config = {"partition_assignment_strategy": strategy, "session_timeout_ms": 45_000}
            made = stack.enter_context(group_consumer(server.address, "steady", **config))
            made.subscribe(["shared"], **{f"on_{what}": told(what, number) for what in ("assign", "revoke", "lost")})
            consumers.append(made)
        until(lambda: poll() or [len(each.assignment()) for each in consumers] == [2, 2], "they share")
        written = publish("before")
        until(lambda: poll() or len(values[0]) + len(values[1]) >= 40, "all is read")
        for each in consumers:
            each.commit(asynchronous=False)
        before = list(heard)
        server.restart(how)
        written |= publish("after")
        until(lambda: poll() or len(values[0]) + len(values[1]) >= 80, "the rest is read")
        for each in consumers:
            each.commit(asynchronous=False)
        assert heard == before
        assert sorted(values[0] + values[1]) == sorted(written)
        assert [len(each.assignment()) for each in consumers] == [2, 2]
    assert sum(each.committed.offset for each in store.groups.describe("steady").offsets if each.committed) == 80
