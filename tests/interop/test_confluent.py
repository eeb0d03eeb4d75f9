"""confluent-kafka (librdkafka): produce, consume, offsets, transactions."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)

from tests.interop.brokers import Broker, fresh
from tests.interop.confluents import all_of, consumer, drive, produce, producer, read, record
from tests.interop.records import CODECS, ODD, plain


@pytest.mark.parametrize("codec", CODECS)
def test_records_written_with_any_acks_and_codec_come_back(broker: Broker, codec: str) -> None:
    topic, records = broker.topic(), plain(200)
    offset = 0
    for acks in ("1", "all", "0"):
        reports = produce(producer(broker.address, acks=acks, compression_type=codec), topic, records)
        if acks != "0":  # without an answer, nobody knows the offsets, nor when they are written
            assert [report.offset() for report in reports] == list(range(offset, offset + 200))
        offset += 200
    messages = all_of(broker.address, topic, 600)
    assert [record(message) for message in messages] == records * 3
    assert [message.offset() for message in messages] == list(range(600))


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_records_of_every_kind_come_back_as_they_were(broker: Broker, codec: str) -> None:
    topic = broker.topic()
    produce(producer(broker.address, compression_type=codec), topic, ODD)
    messages = all_of(broker.address, topic, len(ODD))
    assert [record(message) for message in messages] == ODD
    assert {message.timestamp()[0] for message in messages} == {TIMESTAMP_CREATE_TIME}


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_the_time_of_the_append_replaces_the_producers(broker: Broker, codec: str) -> None:
    topic = broker.topic(message_timestamp_type="LogAppendTime")
    reports = produce(producer(broker.address, compression_type=codec), topic, plain(5))
    times = [message.timestamp() for message in all_of(broker.address, topic, 5)]
    assert {kind for kind, _ in times} == {TIMESTAMP_LOG_APPEND_TIME}
    assert all(time > 1_750_000_000_000 for _, time in times)
    assert [report.timestamp() for report in reports] == times


def test_a_batch_may_be_as_large_as_the_topic_says_and_no_larger(broker: Broker) -> None:
    topic = broker.topic(max_message_bytes="100000")
    made = producer(broker.address, message_max_bytes=10_000_000)
    (fits,) = produce(made, topic, [plain(1)[0]._replace(value=b"x" * 99_900)])
    assert fits.offset() == 0
    with pytest.raises(KafkaException) as failed:
        produce(made, topic, [plain(1)[0]._replace(value=b"x" * 100_000)])
    assert failed.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
    (message,) = all_of(broker.address, topic, 1)
    assert len(message.value()) == 99_900


def test_a_record_of_a_megabyte_fits_by_default_and_is_read_with_a_small_fetch_size(broker: Broker) -> None:
    topic = broker.topic()
    large = [plain(1)[0]._replace(value=bytes([n]) * 1_000_000) for n in range(3)]
    produce(producer(broker.address, acks="all", message_max_bytes=1_048_000), topic, large)
    messages = all_of(broker.address, topic, 3, fetch_message_max_bytes=1000)
    assert [record(message) for message in messages] == large


@pytest.mark.parametrize("codec", ["none", "snappy"])
def test_an_idempotent_producer_keeps_order_over_many_requests(broker: Broker, codec: str) -> None:
    topic, records = broker.topic(2), plain(3000)
    made = producer(broker.address, enable_idempotence=True, batch_num_messages=50, compression_type=codec)
    for partition in (0, 1):
        reports = produce(made, topic, records, partition)
        assert [report.offset() for report in reports] == list(range(3000))
    assert [record(message) for message in all_of(broker.address, topic, 3000, 1)] == records


# Where a consumer reads


def test_a_consumer_goes_where_it_is_sent(broker: Broker) -> None:
    topic, records = (
        broker.topic(),
        [each._replace(timestamp=1_700_000_000_000 + n) for n, each in enumerate(plain(20))],
    )
    produce(producer(broker.address), topic, records)
    with consumer(broker.address) as made:
        here = TopicPartition(topic, 0)
        made.assign([TopicPartition(topic, 0, 5)])
        assert read(made, 1)[0].offset() == 5
        assert [each.offset for each in made.position([here])] == [6]
        made.seek(TopicPartition(topic, 0, 17))
        assert [message.offset() for message in read(made, 3)] == [17, 18, 19]
        assert made.get_watermark_offsets(here, timeout=10) == (0, 20)
        asked = [TopicPartition(topic, 0, 1_700_000_000_000 + n) for n in (-5, 7, 19, 20)]
        found = [made.offsets_for_times([each], timeout=10)[0].offset for each in asked]
        assert found == [0, 7, 19, -1]


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


def test_without_an_offset_a_consumer_begins_where_it_is_told(broker: Broker) -> None:
    topic = broker.topic()
    made = producer(broker.address)
    produce(made, topic, plain(5))
    with consumer(broker.address, enable_partition_eof=True, auto_offset_reset="latest") as reader:
        reader.assign([TopicPartition(topic, 0)])
        end = reader.poll(20)
        assert end is not None and end.error().code() == KafkaError._PARTITION_EOF and end.offset() == 5
    with consumer(broker.address, auto_offset_reset="earliest") as reader:
        reader.assign([TopicPartition(topic, 0, 1000)])  # out of range: back to where it resets to
        assert [message.offset() for message in read(reader, 5)] == [0, 1, 2, 3, 4]
    with consumer(broker.address, auto_offset_reset="error") as reader:
        reader.assign([TopicPartition(topic, 0, 1000)])
        with pytest.raises(KafkaException) as failed:
            read(reader, 1)
        assert failed.value.args[0].code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)


def test_committed_offsets_are_where_the_next_consumer_begins(broker: Broker) -> None:
    topic, group = broker.topic(), fresh("group")
    produce(producer(broker.address), topic, plain(10))
    with consumer(broker.address, group_id=group) as first:
        first.subscribe([topic])
        last = read(first, 4)[-1]
        (kept,) = first.commit(last, asynchronous=False)
        assert (kept.offset, kept.error) == (4, None)
    done = threading.Event()
    answers = []

    def committed(error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        answers.append((error, [each.offset for each in partitions]))
        done.set()

    with consumer(broker.address, group_id=group, on_commit=committed) as second:
        second.subscribe([topic])
        assert [message.offset() for message in read(second, 3)] == [4, 5, 6]
        second.commit(offsets=[TopicPartition(topic, 0, 7, "so far")], asynchronous=True)
        drive([second], done.is_set, "the commit is answered")
        assert answers == [(None, [7])]
        (kept,) = second.committed([TopicPartition(topic, 0)], timeout=10)
        assert (kept.offset, kept.metadata) == (7, "so far")
    with consumer(broker.address, group_id=group) as third:
        third.assign([TopicPartition(topic, 0)])
        assert read(third, 1)[0].offset() == 7


def test_offsets_are_committed_automatically(broker: Broker) -> None:
    topic, group = broker.topic(), fresh("group")
    produce(producer(broker.address), topic, plain(10))
    with consumer(broker.address, group_id=group, enable_auto_commit=True, auto_commit_interval_ms=100) as reader:
        reader.subscribe([topic])
        read(reader, 10)
        here = [TopicPartition(topic, 0)]
        drive([reader], lambda: reader.committed(here, timeout=10)[0].offset == 10, "10 is committed")


# Topics that are not there


def test_a_topic_is_created_by_whoever_writes_to_it(broker: Broker) -> None:
    topic = fresh("auto")
    produce(producer(broker.address), topic, plain(3))
    assert len(all_of(broker.address, topic, 3)) == 3


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
    found = []
    with consumer(broker.address, isolation_level=isolation, enable_partition_eof=True) as reader:
        reader.assign([TopicPartition(topic, 0, 0)])
        while (message := reader.poll(20)) is not None:
            if message.error():
                assert message.error().code() == KafkaError._PARTITION_EOF
                return found
            found.append(message.value())
    raise AssertionError("no end of the partition")


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_what_is_committed_is_read_and_what_is_aborted_is_not(broker: Broker, codec: str) -> None:
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


def test_offsets_and_results_of_a_transaction_come_together(broker: Broker) -> None:
    source, target, group = broker.topic(word="source"), broker.topic(word="target"), fresh("group")
    produce(producer(broker.address), source, plain(10))
    here = [TopicPartition(source, 0)]
    made = transactional(broker)
    with consumer(broker.address, group_id=group, isolation_level="read_committed") as reader:
        reader.subscribe([source])

        def transform(count: int) -> None:
            made.begin_transaction()
            for message in read(reader, count):
                made.produce(target, message.value().upper(), partition=0)
            made.send_offsets_to_transaction(reader.position(here), reader.consumer_group_metadata(), 20)

        transform(4)
        made.commit_transaction(20)
        assert reader.committed(here, timeout=20)[0].offset == 4
        transform(3)
        made.abort_transaction(20)
        assert reader.committed(here, timeout=20)[0].offset == 4
        reader.seek(TopicPartition(source, 0, 4))
        transform(6)
        made.commit_transaction(20)
        assert reader.committed(here, timeout=20)[0].offset == 10
    assert values(broker, target, "read_committed") == [each.value.upper() for each in plain(10)]


def test_a_second_producer_of_the_same_id_fences_the_first(broker: Broker) -> None:
    topic, name = broker.topic(), fresh("txn")
    first = transactional(broker, name)
    first.begin_transaction()
    produce(first, topic, plain(2, "first"))
    second = transactional(broker, name)  # aborts what the first has begun
    with pytest.raises(KafkaException) as failed:
        first.commit_transaction(20)
    assert failed.value.args[0].code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED)
    assert failed.value.args[0].fatal()
    second.begin_transaction()
    produce(second, topic, plain(2, "second"))
    second.commit_transaction(20)
    assert values(broker, topic, "read_committed") == [each.value for each in plain(2, "second")]


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
        return message is not None and message.error().code() == KafkaError._PARTITION_EOF and message.offset() > 2

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
