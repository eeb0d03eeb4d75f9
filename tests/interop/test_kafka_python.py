"""kafka-python: groups, admin, and what test_clients.py does not ask of every client."""

from __future__ import annotations

import pytest

from klamm.kafka.wire.messages import DESCRIBE_GROUPS
from tests.interop.brokers import Broker, fresh
from tests.interop.kafka_pythons import (
    Member,
    admin,
    consumer,
    kafka,
    produce,
    producer,
    read,
)
from tests.interop.records import plain
from tests.procs import until

# kafka-python's tasks may end with an error that nobody asks for, when its objects are collected.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

Part = kafka.TopicPartition
At = kafka.structs.OffsetAndMetadata
errors = kafka.errors


def test_a_consumer_seeks_to_the_end_and_reads_batches_larger_than_its_fetches(broker: Broker) -> None:
    topic = broker.topic()
    here = Part(topic, 0)
    with producer(broker.address) as made:
        produce(made, topic, [plain(1)[0]._replace(value=b"x" * 99_900)])
    with consumer(broker.address, max_partition_fetch_bytes=1000) as reader:
        reader.assign([here])
        assert len(read(reader, 1)[0].value) == 99_900
        reader.seek_to_end(here)
        assert reader.position(here) == 1


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
