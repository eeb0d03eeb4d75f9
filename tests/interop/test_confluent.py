"""confluent-kafka (librdkafka): what test_clients.py does not ask of every client."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from tests.interop.brokers import Broker, fresh
from tests.interop.confluents import all_of, consumer, drive, produce, producer, read, record
from tests.interop.records import plain
from tests.messages import offset_of


def test_a_record_of_a_megabyte_fits_by_default_and_is_read_with_a_small_fetch_size(broker: Broker) -> None:
    topic = broker.topic()
    large = [plain(1)[0]._replace(value=bytes([n]) * 1_000_000) for n in range(3)]
    produce(producer(broker.address, acks="all", message_max_bytes=1_048_000), topic, large)
    messages = all_of(broker.address, topic, 3, fetch_message_max_bytes=1000)
    assert [record(message) for message in messages] == large


# Where a consumer reads


def test_a_paused_partition_is_not_read_and_others_are(broker: Broker) -> None:
    topic = broker.topic(2)
    made = producer(broker.address)
    for partition in (0, 1):
        produce(made, topic, plain(10), partition)
    with consumer(broker.address) as reader:
        parts = [TopicPartition(topic, n, 0) for n in (0, 1)]
        reader.assign(parts)
        reader.pause(parts[:1])
        assert {message.partition() for message in read(reader, 10)} == {1}
        produce(made, topic, plain(5), 1)
        assert {message.partition() for message in read(reader, 5)} == {1}
        reader.resume(parts[:1])
        assert {message.partition() for message in read(reader, 10)} == {0}


def error_code(message: Message) -> int:
    error = message.error()
    assert error is not None, f"a record: {message.value()!r}"
    return error.code()


def test_without_an_offset_a_consumer_begins_where_it_is_told(broker: Broker) -> None:
    topic = broker.topic()
    made = producer(broker.address)
    produce(made, topic, plain(5))
    with consumer(broker.address, enable_partition_eof=True, auto_offset_reset="latest") as reader:
        reader.assign([TopicPartition(topic, 0)])
        end = reader.poll(20)
        assert end is not None and error_code(end) == KafkaError._PARTITION_EOF and end.offset() == 5
    with consumer(broker.address, auto_offset_reset="earliest") as reader:
        reader.assign([TopicPartition(topic, 0, 1000)])  # out of range: back to where it resets to
        assert [message.offset() for message in read(reader, 5)] == [0, 1, 2, 3, 4]
    with consumer(broker.address, auto_offset_reset="error") as reader:
        reader.assign([TopicPartition(topic, 0, 1000)])
        with pytest.raises(KafkaException) as failed:
            read(reader, 1)
        assert failed.value.args[0].code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)


def test_offsets_are_committed_automatically(broker: Broker) -> None:
    topic, group = broker.topic(), fresh("group")
    produce(producer(broker.address), topic, plain(10))
    with consumer(broker.address, group_id=group, enable_auto_commit=True, auto_commit_interval_ms=100) as reader:
        reader.subscribe([topic])
        read(reader, 10)
        here = [TopicPartition(topic, 0)]
        drive([reader], lambda: reader.committed(here, timeout=10)[0].offset == 10, "10 is committed")


# Topics that are not there


def test_a_topic_that_is_not_there_is_an_error_for_a_consumer(broker: Broker) -> None:
    with consumer(broker.address, allow_auto_create_topics=False) as reader:
        reader.subscribe([fresh("missing")])
        with pytest.raises(KafkaException) as failed:
            read(reader, 1)
        assert failed.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_a_partition_that_is_not_there_is_an_error(broker: Broker) -> None:
    topic = broker.topic(2)
    with pytest.raises(KafkaException) as failed:
        produce(producer(broker.address), topic, plain(1), 7)
    assert failed.value.args[0].code() in (KafkaError._UNKNOWN_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART)


# Transactions


def transactional(broker: Broker, name: str | None = None, **config: object) -> Producer:
    made = producer(broker.address, transactional_id=name or fresh("txn"), **config)
    made.init_transactions(20)
    return made


def values(broker: Broker, topic: str, isolation: str) -> list[bytes | None]:
    """All values of partition 0, up to where this isolation sees an end."""
    found: list[bytes | None] = []
    with consumer(broker.address, isolation_level=isolation, enable_partition_eof=True) as reader:
        reader.assign([TopicPartition(topic, 0, 0)])
        while (message := reader.poll(20)) is not None:
            if message.error():
                assert error_code(message) == KafkaError._PARTITION_EOF
                return found
            found.append(message.value())
    raise AssertionError("no end of the partition")


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_records_of_an_open_transaction_are_not_read(broker: Broker, codec: str) -> None:
    topic = broker.topic()
    made = transactional(broker, compression_type=codec)
    for word, end in [("a", made.commit_transaction), ("b", made.abort_transaction), ("c", made.commit_transaction)]:
        made.begin_transaction()
        produce(made, topic, plain(3, word))
        end(20)
    made.begin_transaction()
    produce(made, topic, plain(2, "open"))
    # The marker that ends a transaction may come a moment after the answer; then its records are read, or not.
    committed = [each.value for word in "ac" for each in plain(3, word)]
    assert values(broker, topic, "read_committed") == committed
    everything = [each.value for word in "abc" for each in plain(3, word)] + [each.value for each in plain(2, "open")]
    assert values(broker, topic, "read_uncommitted") == everything
    made.abort_transaction(20)
    assert values(broker, topic, "read_committed") == committed


def test_a_transaction_of_several_partitions_and_topics(broker: Broker) -> None:
    topics = [broker.topic(3), broker.topic(2)]
    made = transactional(broker)
    made.begin_transaction()
    for topic, count in zip(topics, (3, 2), strict=True):
        for partition in range(count):
            produce(made, topic, plain(4), partition)
    made.commit_transaction(20)
    for topic, count in zip(topics, (3, 2), strict=True):
        for partition in range(count):
            assert len(all_of(broker.address, topic, 4, partition, isolation_level="read_committed")) == 4


def test_a_transaction_that_lasts_too_long_is_aborted(broker: Broker) -> None:
    for timeout_ms in (1000, 5000, 20_000):
        topic = broker.topic()
        made = transactional(broker, transaction_timeout_ms=timeout_ms, message_timeout_ms=timeout_ms)
        made.begin_transaction()
        try:
            produce(made, topic, plain(2, "late"))
            break
        except KafkaException:  # too long already
            if timeout_ms == 20_000:
                raise

    def stable(reader: Consumer) -> bool:
        # Nothing of it was committed: a reader of what is committed comes to the end when it has been aborted.
        message = reader.poll(0.2)
        return message is not None and error_code(message) == KafkaError._PARTITION_EOF and offset_of(message) > 2

    with consumer(broker.address, isolation_level="read_committed", enable_partition_eof=True) as reader:
        reader.assign([TopicPartition(topic, 0, 0)])
        deadline = threading.Event()
        timer = threading.Timer(30, deadline.set)
        timer.start()
        while not stable(reader):
            assert not deadline.is_set(), "not aborted within 30 s"
        timer.cancel()
    with pytest.raises(KafkaException) as failed:
        made.commit_transaction(20)
    assert failed.value.args[0].fatal() or failed.value.args[0].txn_requires_abort()
