"""kafka-python: produce, consume, offsets, transactions, groups, admin."""

from __future__ import annotations

from typing import Any

import pytest

from klamm.kafka.wire.messages import DESCRIBE_GROUPS
from tests.interop.brokers import Broker, fresh
from tests.interop.kafka_pythons import (
    Member,
    admin,
    all_of,
    consumer,
    drive,
    kafka,
    produce,
    producer,
    read,
    record,
)
from tests.interop.records import CODECS, ODD, plain
from tests.procs import until

# kafka-python's tasks may end with an error that nobody asks for, when its objects are collected.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

Part = kafka.TopicPartition
At = kafka.structs.OffsetAndMetadata
errors = kafka.errors


# It can snappy only with a package that it does not bring.
@pytest.mark.parametrize("codec", [codec for codec in CODECS if codec != "snappy" or kafka.codec.has_snappy()])
def test_records_written_with_any_acks_and_codec_come_back(broker: Broker, codec: str) -> None:
    topic, records = broker.topic(), plain(200)
    for acks in (1, "all", 0):
        config = {"acks": acks, "enable_idempotence": False, "compression_type": None if codec == "none" else codec}
        with producer(broker.address, **config) as made:
            produce(made, topic, records)
    messages = all_of(broker.address, topic, 600)
    assert [record(message) for message in messages] == records * 3
    assert [message.offset for message in messages] == list(range(600))


@pytest.mark.parametrize("codec", [None, "gzip"])
def test_records_of_every_kind_come_back_as_they_were(broker: Broker, codec: str | None) -> None:
    topic = broker.topic()
    # It refuses to write those without key and value, and headers that are null.
    records = [each for each in ODD if each[:2] != (None, None) and None not in dict(each.headers).values()]
    with producer(broker.address, compression_type=codec) as made:
        produce(made, topic, records)
    messages = all_of(broker.address, topic, len(records))
    assert [record(message) for message in messages] == records
    assert {message.timestamp_type for message in messages} == {0}


def test_the_time_of_the_append_replaces_the_producers(broker: Broker) -> None:
    topic = broker.topic(message_timestamp_type="LogAppendTime")
    with producer(broker.address) as made:
        produce(made, topic, plain(5))
    messages = all_of(broker.address, topic, 5)
    assert {message.timestamp_type for message in messages} == {1}
    assert all(message.timestamp > 1_750_000_000_000 for message in messages)


def test_a_batch_may_be_as_large_as_the_topic_says_and_no_larger(broker: Broker) -> None:
    topic = broker.topic(max_message_bytes="100000")
    with producer(broker.address, max_request_size=10_000_000) as made:
        (where,) = produce(made, topic, [plain(1)[0]._replace(value=b"x" * 99_900)])
        assert where.offset == 0
        with pytest.raises(errors.MessageSizeTooLargeError):
            produce(made, topic, [plain(1)[0]._replace(value=b"x" * 100_000)])
    (message,) = all_of(broker.address, topic, 1, max_partition_fetch_bytes=1000)
    assert len(message.value) == 99_900


def test_an_idempotent_producer_keeps_order_over_many_requests(broker: Broker) -> None:
    topic, records = broker.topic(), plain(2000)
    with producer(broker.address, enable_idempotence=True, batch_size=2000) as made:
        assert [where.offset for where in produce(made, topic, records)] == list(range(2000))
    assert [record(message) for message in all_of(broker.address, topic, 2000)] == records


def test_a_consumer_goes_where_it_is_sent(broker: Broker) -> None:
    topic = broker.topic(2)
    records = [each._replace(timestamp=1_700_000_000_000 + n) for n, each in enumerate(plain(20))]
    with producer(broker.address) as made:
        produce(made, topic, records)
        produce(made, topic, records, 1)
    here, other = Part(topic, 0), Part(topic, 1)
    with consumer(broker.address) as reader:
        reader.assign([here, other])
        reader.pause(other)
        reader.seek(here, 17)
        assert [message.offset for message in read(reader, 3)] == [17, 18, 19]
        reader.resume(other)
        assert {message.partition for message in read(reader, 20)} == {1}
        reader.seek_to_end(here)
        assert reader.position(here) == 20
        assert reader.beginning_offsets([here, other]) == {here: 0, other: 0}
        assert reader.end_offsets([here, other]) == {here: 20, other: 20}
        found = [reader.offsets_for_times({here: 1_700_000_000_000 + n})[here] for n in (-5, 7, 20)]
        assert [each and (each.offset, each.timestamp) for each in found] == [
            (0, 1_700_000_000_000),
            (7, 1_700_000_000_007),
            None,
        ]
    with consumer(broker.address, auto_offset_reset="none") as reader:
        reader.assign([here])
        reader.seek(here, 1000)
        with pytest.raises(errors.OffsetOutOfRangeError):
            read(reader, 1)


def test_committed_offsets_are_where_the_next_consumer_begins(broker: Broker) -> None:
    topic, group = broker.topic(), fresh("group")
    here = Part(topic, 0)
    with producer(broker.address) as made:
        produce(made, topic, plain(10))
    with consumer(broker.address, topic, group_id=group) as first:
        read(first, 4)
        first.commit()
    answers: list[Any] = []
    with consumer(broker.address, topic, group_id=group) as second:
        assert [message.offset for message in read(second, 3)] == [4, 5, 6]
        second.commit_async({here: At(7, "so far", -1)}, callback=lambda *said: answers.append(said))
        drive([second], lambda: bool(answers), "the commit is answered")
        assert not isinstance(answers[0][1], Exception)
        assert second.committed(here, metadata=True)[:2] == (7, "so far")
    with consumer(broker.address, topic, group_id=group) as third:
        assert read(third, 1)[0].offset == 7


def test_a_topic_is_created_by_whoever_writes_to_it(broker: Broker) -> None:
    topic = fresh("auto")
    with producer(broker.address) as made:
        produce(made, topic, plain(3))
    assert len(all_of(broker.address, topic, 3)) == 3


# Transactions


def values(broker: Broker, topic: str, count: int, isolation: str) -> list[bytes]:
    return [message.value for message in all_of(broker.address, topic, count, isolation_level=isolation)]


def test_what_is_committed_is_read_and_what_is_aborted_is_not(broker: Broker) -> None:
    topic = broker.topic()
    with producer(broker.address, transactional_id=fresh("txn")) as made:
        made.init_transactions()
        for word, end in [
            ("a", made.commit_transaction),
            ("b", made.abort_transaction),
            ("c", made.commit_transaction),
        ]:
            made.begin_transaction()
            produce(made, topic, plain(3, word))
            end()
    committed = [each.value for word in "ac" for each in plain(3, word)]
    assert values(broker, topic, 6, "read_committed") == committed
    everything = [each.value for word in "abc" for each in plain(3, word)]
    assert values(broker, topic, 9, "read_uncommitted") == everything


def test_offsets_and_results_of_a_transaction_come_together(broker: Broker) -> None:
    source, target, group = broker.topic(word="source"), broker.topic(word="target"), fresh("group")
    here = Part(source, 0)
    with producer(broker.address) as made:
        produce(made, source, plain(10))
    with (
        producer(broker.address, transactional_id=fresh("txn")) as made,
        consumer(broker.address, source, group_id=group, isolation_level="read_committed") as reader,
    ):
        made.init_transactions()

        def transform(count: int) -> None:
            made.begin_transaction()
            for message in read(reader, count):
                made.send(target, message.value.upper(), partition=0)
            made.send_offsets_to_transaction({here: At(reader.position(here), "", -1)}, reader.group_metadata())

        # It does not ask for stable offsets: those of a transaction may come a moment after its end.
        transform(4)
        made.commit_transaction()
        until(lambda: reader.committed(here) == 4, "4 is committed")
        transform(3)
        made.abort_transaction()
        assert reader.committed(here) == 4
        reader.seek(here, 4)
        transform(6)
        made.commit_transaction()
        until(lambda: reader.committed(here) == 10, "10 is committed")
    assert values(broker, target, 10, "read_committed") == [each.value.upper() for each in plain(10)]


def test_a_second_producer_of_the_same_id_fences_the_first(broker: Broker) -> None:
    topic, name = broker.topic(), fresh("txn")
    with (
        producer(broker.address, transactional_id=name) as first,
        producer(broker.address, transactional_id=name) as two,
    ):
        first.init_transactions()
        first.begin_transaction()
        produce(first, topic, plain(2, "first"))
        two.init_transactions()
        with pytest.raises(errors.KafkaError) as failed:
            first.commit_transaction()
        assert type(failed.value).__name__ in ("ProducerFencedError", "InvalidProducerEpochError")
        two.begin_transaction()
        produce(two, topic, plain(2, "second"))
        two.commit_transaction()
    assert values(broker, topic, 2, "read_committed") == [each.value for each in plain(2, "second")]


# Groups


def shared(count: int, *members: Member) -> bool:
    """Whether all partitions are with somebody, each once, and all have about as many."""
    held = [member.parts for member in members]
    fair = max(map(len, held)) - min(map(len, held)) <= 1
    return fair and sorted(part for parts in held for part in parts) == list(range(count))


def test_members_share_the_partitions_while_they_come_and_go(broker: Broker) -> None:
    topic, group = broker.topic(6), fresh("group")
    with Member(broker.address, topic, group) as first:
        until(lambda: shared(6, first), "one has all")
        with Member(broker.address, topic, group) as second:
            until(lambda: shared(6, first, second), "two share")
            with Member(broker.address, topic, group) as third:
                until(lambda: shared(6, first, second, third), "three share")
            until(lambda: shared(6, first, second), "two share again")
        until(lambda: shared(6, first), "one has all again")


def test_a_static_member_stays_a_member_while_it_is_away(broker: Broker) -> None:
    # This client rebalances by itself whenever it learns about topics: so the generation may change all the same.
    topic, group = broker.topic(4), fresh("group")
    names = [{"group_instance_id": name, "session_timeout_ms": 20_000} for name in ("stays", "restarts")]

    def members() -> list[str]:
        (told,) = broker.raw.ask(DESCRIBE_GROUPS, 5, groups=[group]).groups
        return sorted(member.group_instance_id for member in told.members)

    with Member(broker.address, topic, group, **names[0]) as stays:
        with Member(broker.address, topic, group, **names[1]) as restarts:
            until(lambda: shared(4, stays, restarts), "two share")
        assert members() == ["restarts", "stays"]
        with Member(broker.address, topic, group, **names[1]) as restarts:
            until(lambda: shared(4, stays, restarts), "two share again")
            assert members() == ["restarts", "stays"]


# Admin


def test_topics_are_created_described_extended_and_deleted(broker: Broker) -> None:
    name = fresh("topic")
    with admin(broker.address) as made:
        made.create_topics({name: {"num_partitions": 2, "configs": {"retention.ms": "1234567"}}})
        until(lambda: name in made.list_topics(), "it is there")
        with pytest.raises(errors.TopicAlreadyExistsError):
            made.create_topics({name: {"num_partitions": 2}})
        (described,) = made.describe_topics([name])
        assert [each["partition_index"] for each in described["partitions"]] == [0, 1]
        made.create_partitions({name: 5})
        until(lambda: len(made.describe_topics([name])[0]["partitions"]) == 5, "five partitions")
        resource = kafka.admin.ConfigResource("TOPIC", name)
        assert made.describe_configs([resource])["topic"][name]["retention.ms"]["value"] == "1234567"
        change = kafka.admin.ConfigResource("TOPIC", name, configs={"retention.ms": ("SET", "7654321")})
        made.alter_configs([change])
        until(
            lambda: made.describe_configs([resource])["topic"][name]["retention.ms"]["value"] == "7654321",
            "the change is seen",
        )
        made.delete_topics([name])
        until(lambda: name not in made.list_topics(), "it is gone")
        with pytest.raises(errors.UnknownTopicOrPartitionError):
            made.delete_topics([name])


def test_records_are_deleted_and_offsets_listed(broker: Broker) -> None:
    topic = broker.topic()
    here = Part(topic, 0)
    with producer(broker.address) as made:
        produce(made, topic, plain(10))
    with admin(broker.address) as made:
        assert made.delete_records({here: 4})[here]["low_watermark"] == 4
        spec = kafka.admin.OffsetSpec
        found = [made.list_partition_offsets({here: each})[here].offset for each in (spec.EARLIEST, spec.LATEST)]
        assert found == [4, 10]


def test_the_cluster_is_one_node(broker: Broker) -> None:
    with admin(broker.address) as made:
        cluster = made.describe_cluster()
        (node,) = cluster["brokers"]
        assert f"{node['host']}:{node['port']}" == broker.address
        assert cluster["controller_id"] == node["broker_id"] == 1
        assert made.describe_log_dirs()


def test_groups_and_their_offsets_are_administered(broker: Broker) -> None:
    topic, group = broker.topic(2), fresh("group")
    here, other = Part(topic, 0), Part(topic, 1)
    with producer(broker.address) as made:
        produce(made, topic, plain(10))
    with admin(broker.address) as made:
        with consumer(broker.address, topic, group_id=group) as member:
            read(member, 10)
            member.commit()
            described = made.describe_groups([group])[group]
            assert described["group_state"] == "Stable" and len(described["members"]) == 1
            assert group in {each["group_id"] for each in made.list_groups()}
            assert "NonEmptyGroup" in str(made.delete_groups([group])[group])
        until(lambda: made.describe_groups([group])[group]["group_state"] == "Empty", "the group is empty")
        assert made.list_group_offsets(group)[group][here].offset == 10
        made.alter_group_offsets(group, {here: At(3, "", -1), other: At(0, "", -1)})
        assert {part: at.offset for part, at in made.list_group_offsets(group)[group].items()} == {here: 3, other: 0}
        made.delete_group_offsets(group, [here])
        left = made.list_group_offsets(group)[group]
        assert here not in left or left[here].offset == -1
        made.delete_groups([group])
        assert group not in {each["group_id"] for each in made.list_groups()}


def test_transactions_and_producers_are_listed_and_described(broker: Broker) -> None:
    topic, name = broker.topic(), fresh("txn")
    here = Part(topic, 0)
    with producer(broker.address, transactional_id=name) as made, admin(broker.address) as asks:
        made.init_transactions()
        made.begin_transaction()
        produce(made, topic, plain(3))

        def state() -> str:
            return str(asks.describe_transactions([name])[name].state).upper().rpartition(".")[2]

        assert state() == "ONGOING"
        described = asks.describe_transactions([name])[name]
        assert list(described.topic_partitions) == [here]
        listed = [each for node in asks.list_transactions().values() for each in node if each.transactional_id == name]
        assert [each.producer_id for each in listed] == [described.producer_id]
        (writes,) = asks.describe_producers([here])[here].active_producers
        assert (writes.producer_id, writes.last_sequence, writes.current_transaction_start_offset) == (
            described.producer_id,
            2,
            0,
        )
        made.commit_transaction()
        until(lambda: state().replace("_", "") == "COMPLETECOMMIT", "the commit is complete")
        with pytest.raises(errors.KafkaError):
            asks.describe_transactions([fresh("txn")])
