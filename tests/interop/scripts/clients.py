"""The same, through clients: what reaches a program after its library has made its own of the answers."""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tests.interop import confluents, kafka_pythons
from tests.interop.kafka_pythons import kafka
from tests.interop.records import ODD, plain
from tests.interop.scripts import ScriptContext, script


def name_of(action: Any) -> str:
    """How it fails, by name; or "well"."""
    try:
        action()
    except KafkaException as error:
        return str(error.args[0].name())
    except kafka.errors.KafkaError as error:
        return type(error).__name__
    return "well"


@script
def records_through_librdkafka(context: ScriptContext) -> None:
    topic = context.topic(retention_ms="-1")
    sent = confluents.produce(confluents.producer(context.address), topic, ODD)
    context.note("written", [message.offset() for message in sent])
    for isolation in ("read_committed", "read_uncommitted"):
        found = confluents.all_of(context.address, topic, len(ODD), isolation_level=isolation)
        context.note(isolation, [(message.offset(), *confluents.record(message)) for message in found])


@script
def errors_through_librdkafka(context: ScriptContext) -> None:
    topic = context.topic(max_message_bytes="1000")
    made = confluents.producer(context.address)
    large = [plain(1)[0]._replace(value=b"x" * 2000)]
    context.note("too large", name_of(lambda: confluents.produce(made, topic, large)))
    with confluents.consumer(context.address, auto_offset_reset="error") as reader:
        reader.assign([TopicPartition(topic, 0, 55)])
        context.note("out of range", name_of(lambda: confluents.read(reader, 1)))
    with confluents.consumer(context.address, allow_auto_create_topics=False) as reader:
        reader.subscribe([context.name("missing")])
        context.note("not there", name_of(lambda: confluents.read(reader, 1)))
    with confluents.consumer(context.address) as reader:
        there = TopicPartition(topic, 0)
        context.note("watermarks", list(reader.get_watermark_offsets(there, timeout=20)))
        lost = TopicPartition(context.name("missing2"), 0)
        failed = name_of(lambda: reader.get_watermark_offsets(lost, timeout=20))
        context.note("watermarks of nothing", failed)
        context.note(
            "times", [each.offset for each in reader.offsets_for_times([TopicPartition(topic, 0, 5)], timeout=20)]
        )


@script
def fenced_through_librdkafka(context: ScriptContext) -> None:
    topic, name = context.topic(), context.name("txn")
    first, second = (confluents.producer(context.address, transactional_id=name) for _ in range(2))
    first.init_transactions(20)
    first.begin_transaction()
    confluents.produce(first, topic, plain(2))
    second.init_transactions(20)
    context.note("the first", name_of(lambda: first.commit_transaction(20)))
    second.begin_transaction()
    context.note("the second", name_of(lambda: second.commit_transaction(20)))


@script
def administration_through_librdkafka(context: ScriptContext) -> None:
    admin = AdminClient({"bootstrap.servers": context.address})

    def ends(futures: dict[Any, Any]) -> str:
        (future,) = futures.values()
        return name_of(lambda: future.result(20))

    topic = context.topic(2)
    context.note("again", ends(admin.create_topics([NewTopic(topic, 1, 1)])))
    context.note("fewer partitions", ends(admin.create_partitions([NewPartitions(topic, 1)])))
    context.note("unknown setting", ends(admin.create_topics([NewTopic(context.name("t"), 1, 1, config={"odd": "1"})])))
    context.note("delete what is not there", ends(admin.delete_topics([context.name("missing")])))
    context.note("delete no group", ends(admin.delete_consumer_groups([context.name("nobody")])))
    context.note("delete too much", ends(admin.delete_records([TopicPartition(topic, 0, 99)])))
    assert KafkaError.OFFSET_OUT_OF_RANGE


@script
def errors_through_kafka_python(context: ScriptContext) -> None:
    topic = context.topic(max_message_bytes="1000")
    here = kafka.TopicPartition(topic, 0)
    with kafka_pythons.producer(context.address) as made:
        large = [plain(1)[0]._replace(value=b"x" * 2000)]
        context.note("too large", name_of(lambda: kafka_pythons.produce(made, topic, large)))
    with kafka_pythons.consumer(context.address, auto_offset_reset="none") as reader:
        reader.assign([here])
        context.note("no offset", name_of(lambda: reader.poll(timeout_ms=30_000)))
        reader.seek(here, 55)
        context.note("out of range", name_of(lambda: kafka_pythons.read(reader, 1)))
        context.note("partitions", sorted(reader.partitions_for_topic(topic)))
        context.note("no topic", reader.partitions_for_topic("no good"))
    with kafka_pythons.admin(context.address) as admin:
        context.note("again", name_of(lambda: admin.create_topics({topic: {"num_partitions": 1}})))
        context.note("bad name", name_of(lambda: admin.create_topics({"no good": {"num_partitions": 1}})))
        context.note("not there", name_of(lambda: admin.delete_topics([context.name("missing")])))
