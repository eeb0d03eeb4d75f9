"""confluent-kafka: what an administrator does."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.interop.brokers import Broker, fresh
from tests.interop.confluents import all_of, drive, group_consumer, produce, producer, read
from tests.interop.records import plain
from tests.procs import until


@pytest.fixture(scope="module")
def admin(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.address})


def only(futures: dict[Any, Any]) -> Any:
    """The one result, or its error."""
    (future,) = futures.values()
    return future.result(20)


def refused(futures: dict[Any, Any]) -> int:
    with pytest.raises(KafkaException) as failed:
        only(futures)
    return int(failed.value.args[0].code())


def test_topics_are_created_described_extended_and_deleted(admin: AdminClient) -> None:
    name = fresh("topic")
    assert (
        only(admin.create_topics([NewTopic(name, 2, 1, config={"retention.ms": "1234567"})], request_timeout=20))
        is None
    )
    described = until(lambda: _described(admin, name, 2), f"{name} is there")
    assert described.name == name and not described.is_internal
    assert [(part.id, part.leader.id, len(part.isr)) for part in described.partitions] == [(0, 1, 1), (1, 1, 1)]
    assert only(admin.create_partitions([NewPartitions(name, 5)], request_timeout=20)) is None
    until(lambda: _described(admin, name, 5), "five partitions")
    listed = admin.list_topics(timeout=20)
    assert len(listed.topics[name].partitions) == 5
    assert only(admin.delete_topics([name], request_timeout=20)) is None
    until(lambda: name not in admin.list_topics(timeout=20).topics, "it is gone")


def _described(admin: AdminClient, name: str, partitions: int) -> Any:
    try:
        found = only(admin.describe_topics(TopicCollection([name]), request_timeout=20))
    except KafkaException:
        return None
    return found if len(found.partitions) == partitions else None


def test_what_cannot_be_created_is_told_why(admin: AdminClient, broker: Broker) -> None:
    name = broker.topic(3)
    assert refused(admin.create_topics([NewTopic(name, 1, 1)])) == KafkaError.TOPIC_ALREADY_EXISTS
    assert refused(admin.create_topics([NewTopic("no spaces", 1, 1)])) == KafkaError.TOPIC_EXCEPTION
    assert refused(admin.create_topics([NewTopic(fresh("t"), 0, 1)])) == KafkaError.INVALID_PARTITIONS
    wrong = NewTopic(fresh("t"), 1, 1, config={"retention.ms": "soon"})
    assert refused(admin.create_topics([wrong])) == KafkaError.INVALID_CONFIG
    assert refused(admin.create_partitions([NewPartitions(name, 2)])) == KafkaError.INVALID_PARTITIONS
    assert refused(admin.create_partitions([NewPartitions(fresh("t"), 2)])) == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert refused(admin.delete_topics([fresh("t")])) == KafkaError.UNKNOWN_TOPIC_OR_PART
    dry = fresh("t")
    assert only(admin.create_topics([NewTopic(dry, 1, 1)], validate_only=True)) is None
    assert dry not in admin.list_topics(timeout=20).topics


def configs(admin: AdminClient, resource: ConfigResource) -> dict[str, Any]:
    found: dict[str, Any] = only(admin.describe_configs([resource], request_timeout=20))
    return found


def test_configs_of_a_topic_are_described_and_changed(admin: AdminClient, broker: Broker) -> None:
    topic = ConfigResource(ResourceType.TOPIC, broker.topic(retention_ms="1000000"))

    def value(name: str) -> tuple[str, bool]:
        entry = configs(admin, topic)[name]
        return entry.value, entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value

    assert value("retention.ms") == ("1000000", True)
    assert value("cleanup.policy") == ("delete", False)
    change = ConfigResource(
        ResourceType.TOPIC,
        topic.name,
        incremental_configs=[
            ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE),
            ConfigEntry("segment.bytes", "1048576", incremental_operation=AlterConfigOpType.SET),
            ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND),
        ],
    )
    assert only(admin.incremental_alter_configs([change])) is None
    until(lambda: value("segment.bytes") == ("1048576", True), "the change is seen")
    assert value("retention.ms") == ("604800000", False)
    assert sorted(value("cleanup.policy")[0].split(",")) == ["compact", "delete"]
    wrong = ConfigEntry("segment.bytes", "tiny", incremental_operation=AlterConfigOpType.SET)
    change = ConfigResource(ResourceType.TOPIC, topic.name, incremental_configs=[wrong])
    assert refused(admin.incremental_alter_configs([change])) == KafkaError.INVALID_CONFIG
    assert value("segment.bytes") == ("1048576", True)
    # The older way replaces all.
    whole = ConfigResource(ResourceType.TOPIC, topic.name, set_config={"max.message.bytes": "5000"})
    with pytest.deprecated_call():
        assert only(admin.alter_configs([whole])) is None
    until(lambda: value("max.message.bytes") == ("5000", True), "the change is seen")
    assert value("segment.bytes")[1] is False


def test_configs_of_a_topic_that_is_not_there(admin: AdminClient) -> None:
    missing = ConfigResource(ResourceType.TOPIC, fresh("t"))
    assert refused(admin.describe_configs([missing])) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_configs_of_the_broker(admin: AdminClient) -> None:
    found = configs(admin, ConfigResource(ResourceType.BROKER, "1"))
    assert found["num.partitions"].value == "1"
    assert found["auto.create.topics.enable"].value == "true"


def test_the_cluster_is_one_node_and_it_leads(admin: AdminClient, broker: Broker) -> None:
    cluster = admin.describe_cluster(request_timeout=20).result(20)
    (node,) = cluster.nodes
    assert (node.id, f"{node.host}:{node.port}") == (1, broker.address)
    assert cluster.controller.id == 1 and cluster.cluster_id
    assert admin.list_topics(timeout=20).cluster_id == cluster.cluster_id


def test_records_before_an_offset_are_deleted(admin: AdminClient, broker: Broker) -> None:
    topic = broker.topic()
    produce(producer(broker.address), topic, plain(10))
    assert only(admin.delete_records([TopicPartition(topic, 0, 4)])).low_watermark == 4
    assert refused(admin.delete_records([TopicPartition(topic, 0, 11)])) == KafkaError.OFFSET_OUT_OF_RANGE
    assert [message.offset() for message in all_of(broker.address, topic, 6)] == [4, 5, 6, 7, 8, 9]
    assert only(admin.delete_records([TopicPartition(topic, 0, -1)])).low_watermark == 10


def test_offsets_are_listed(admin: AdminClient, broker: Broker) -> None:
    topic = broker.topic()
    records = [each._replace(timestamp=1_700_000_000_000 + (n * 7) % 10) for n, each in enumerate(plain(10))]
    produce(producer(broker.address), topic, records)
    here = TopicPartition(topic, 0)
    wanted = {
        OffsetSpec.earliest(): 0,
        OffsetSpec.latest(): 10,
        OffsetSpec.max_timestamp(): 7,
        OffsetSpec.for_timestamp(1_700_000_000_008): 4,
    }
    for spec, offset in wanted.items():
        asked = admin.list_offsets({here: spec}, isolation_level=IsolationLevel.READ_COMMITTED)
        assert only(asked).offset == offset, spec


def test_groups_are_listed_described_and_deleted(admin: AdminClient, broker: Broker) -> None:
    topic, group = broker.topic(2), fresh("group")
    produce(producer(broker.address), topic, plain(10))

    def state() -> Any:
        return only(admin.describe_consumer_groups([group])).state

    with group_consumer(broker.address, group, client_id="named") as consumer:
        consumer.subscribe([topic])
        read(consumer, 10)
        consumer.commit(asynchronous=False)
        drive([consumer], lambda: state() == ConsumerGroupState.STABLE, "the group is stable")
        described = only(admin.describe_consumer_groups([group]))
        (member,) = described.members
        assert (member.client_id, described.partition_assignor, described.is_simple_consumer_group) == (
            "named",
            "range",
            False,
        )
        assert sorted(part.partition for part in member.assignment.topic_partitions) == [0, 1]
        assert described.coordinator.id == 1
        listed = admin.list_consumer_groups(request_timeout=20).result(20)
        (mine,) = [each for each in listed.valid if each.group_id == group]
        assert (mine.state, mine.is_simple_consumer_group) == (ConsumerGroupState.STABLE, False)
        assert refused(admin.delete_consumer_groups([group])) == KafkaError.NON_EMPTY_GROUP
    until(lambda: state() == ConsumerGroupState.EMPTY, "the group is empty")
    by_state = admin.list_consumer_groups(states={ConsumerGroupState.STABLE}).result(20)
    assert group not in {each.group_id for each in by_state.valid}
    assert only(admin.delete_consumer_groups([group])) is None
    assert refused(admin.delete_consumer_groups([group])) == KafkaError.GROUP_ID_NOT_FOUND


def test_offsets_of_a_group_are_listed_altered_and_deleted(admin: AdminClient, broker: Broker) -> None:
    topic, group = broker.topic(2), fresh("group")
    produce(producer(broker.address), topic, plain(10))

    def offsets(*asked: TopicPartition) -> dict[int, int]:
        wanted = [ConsumerGroupTopicPartitions(group, list(asked) or None)]
        found = only(admin.list_consumer_group_offsets(wanted))
        return {part.partition: part.offset for part in found.topic_partitions}

    with group_consumer(broker.address, group) as consumer:
        consumer.subscribe([topic])
        read(consumer, 10)
        consumer.commit(asynchronous=False)
        change = [ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 3)])]
        (part,) = only(admin.alter_consumer_group_offsets(change)).topic_partitions
        assert part.error.code() == KafkaError.UNKNOWN_MEMBER_ID
    assert offsets()[0] == 10
    until(lambda: not only(admin.describe_consumer_groups([group])).members, "the group is empty")
    only(admin.alter_consumer_group_offsets(change))
    assert offsets(TopicPartition(topic, 0)) == {0: 3}
    only(admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 1, 0)])]))
    assert offsets() == {0: 3, 1: 0}
    assert offsets(TopicPartition(topic, 1), TopicPartition(topic, 7)) == {1: 0, 7: -1001}
