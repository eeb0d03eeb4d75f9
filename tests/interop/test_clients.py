"""What every client does: produce, consume, commit offsets, write in transactions. One test, three clients."""

from __future__ import annotations

import pytest

from tests.interop.brokers import Broker, fresh
from tests.interop.clients import CLIENTS, Client, Refused
from tests.interop.records import ODD, plain
from tests.procs import until

# kafka-python's tasks may end with an error that nobody asks for, when its objects are collected.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

each_client = pytest.mark.parametrize("client", CLIENTS, ids=[client.name for client in CLIENTS])


def with_codecs(*codecs: str) -> pytest.MarkDecorator:
    """Parametrize with each client and each of the codecs; "odd" is the client's `odd_codec`."""
    cases = [
        (client, client.odd_codec if codec == "odd" else codec)
        for client in CLIENTS
        for codec in codecs
        if codec == "odd" or codec in client.codecs
    ]
    return pytest.mark.parametrize(
        ("client", "codec"), cases, ids=[f"{client.name}-{codec}" for client, codec in cases]
    )


@with_codecs("none", "gzip", "snappy", "lz4", "zstd")
def test_records_written_with_any_acks_and_codec_come_back(broker: Broker, client: Client, codec: str) -> None:
    topic, records = broker.topic(), plain(200)
    for number, acks in enumerate(("1", "all", "0")):
        with client.writer(broker.address, acks=acks, codec=codec) as writer:
            found = writer.produce(topic, records)
            if acks == "0":  # without an answer, what is still on its way when the connection ends may be lost
                messages = client.all_of(broker.address, topic, 600)
            else:
                assert [where.offset for where in found] == list(range(number * 200, number * 200 + 200))
    assert [message.record for message in messages] == records * 3
    assert [message.offset for message in messages] == list(range(600))


@with_codecs("none", "odd")
def test_records_of_every_kind_come_back_as_they_were(broker: Broker, client: Client, codec: str) -> None:
    topic, records = broker.topic(), [record for record in ODD if client.can_write(record)]
    with client.writer(broker.address, codec=codec) as writer:
        writer.produce(topic, records)
    messages = client.all_of(broker.address, topic, len(records))
    assert [message.record for message in messages] == records
    assert not any(message.has_append_time for message in messages)


@with_codecs("none", "lz4")
def test_the_time_of_the_append_replaces_the_producers(broker: Broker, client: Client, codec: str) -> None:
    topic = broker.topic(message_timestamp_type="LogAppendTime")
    with client.writer(broker.address, codec=codec) as writer:
        found = writer.produce(topic, [record._replace(timestamp=1_700_000_000_000) for record in plain(5)])
    messages = client.all_of(broker.address, topic, 5)
    assert all(message.has_append_time for message in messages)
    times = [message.record.timestamp for message in messages]
    assert all(time > 1_750_000_000_000 for time in times)
    assert [where.timestamp for where in found] == times


@each_client
def test_a_batch_may_be_as_large_as_the_topic_says_and_no_larger(broker: Broker, client: Client) -> None:
    topic = broker.topic(max_message_bytes="100000")
    with client.writer(broker.address, max_request_bytes=10_000_000) as writer:
        (where,) = writer.produce(topic, [plain(1)[0]._replace(value=b"x" * 99_900)])
        assert where.offset == 0
        with pytest.raises(Refused, match="MESSAGE_TOO_LARGE"):
            writer.produce(topic, [plain(1)[0]._replace(value=b"x" * 100_000)])
    (message,) = client.all_of(broker.address, topic, 1)
    assert message.record.value == b"x" * 99_900


@with_codecs("none", "odd")
def test_an_idempotent_producer_keeps_order_over_many_requests(broker: Broker, client: Client, codec: str) -> None:
    topic, records = broker.topic(2), plain(2000)
    with client.writer(broker.address, batch_records=50, codec=codec) as writer:
        for partition in (0, 1):
            found = writer.produce(topic, records, partition)
            assert [where.offset for where in found] == list(range(2000))
    assert [message.record for message in client.all_of(broker.address, topic, 2000, 1)] == records


@each_client
def test_a_consumer_goes_where_it_is_sent(broker: Broker, client: Client) -> None:
    topic = broker.topic(2)
    records = [record._replace(timestamp=1_700_000_000_000 + n) for n, record in enumerate(plain(20))]
    here, other = (topic, 0), (topic, 1)
    with client.writer(broker.address) as writer:
        writer.produce(topic, records)
        writer.produce(topic, records, 1)
    with client.reader(broker.address) as reader:
        reader.assign({here: 5, other: 0})
        reader.pause(other)
        assert [message.offset for message in reader.read(1)] == [5]
        assert reader.position(here) == 6
        reader.seek(here, 17)
        assert [(message.partition, message.offset) for message in reader.read(3)] == [(0, 17), (0, 18), (0, 19)]
        assert reader.position(here) == 20
        reader.resume(other)
        assert {message.partition for message in reader.read(20)} == {1}
        assert reader.bounds(here) == reader.bounds(other) == (0, 20)
        found = [reader.offset_at(here, 1_700_000_000_000 + n) for n in (-5, 7, 19, 20)]
        assert found == [0, 7, 19, None]
    with client.reader(broker.address, auto_offset_reset="none") as reader:
        reader.assign({here: 1000})
        with pytest.raises(Refused, match="OFFSET_OUT_OF_RANGE"):
            reader.read(1)


@each_client
def test_committed_offsets_are_where_the_next_consumer_begins(broker: Broker, client: Client) -> None:
    topic, group = broker.topic(), fresh("group")
    here = (topic, 0)
    with client.writer(broker.address) as writer:
        writer.produce(topic, plain(10))
    with client.reader(broker.address, topic, group_id=group) as first:
        first.read(4)
        first.commit_read(here)
    with client.reader(broker.address, topic, group_id=group) as second:
        assert second.committed(here) == 4
        assert [message.offset for message in second.read(3)] == [4, 5, 6]
        second.commit(here, 7, "so far")
        assert second.committed(here) == 7
        assert second.committed_metadata(here) in ("so far", None)
    with client.reader(broker.address, group_id=group) as third:
        third.assign({here: None})
        assert [message.offset for message in third.read(1)] == [7]
    with client.reader(broker.address, topic, group_id=group, auto_commit_ms=100) as fourth:
        assert [message.offset for message in fourth.read(3)] == [7, 8, 9]
    with client.reader(broker.address, topic, group_id=group) as fifth:
        assert fifth.committed(here) == 10


@each_client
def test_a_topic_is_created_by_the_producer_that_writes_to_it(broker: Broker, client: Client) -> None:
    topic = fresh("auto")
    with client.writer(broker.address) as writer:
        writer.produce(topic, plain(3))
    assert len(client.all_of(broker.address, topic, 3)) == 3


# Transactions


def values(broker: Broker, client: Client, topic: str, count: int, isolation: str) -> list[bytes | None]:
    messages = client.all_of(broker.address, topic, count, isolation_level=isolation)
    return [message.record.value for message in messages]


@with_codecs("none", "lz4")
def test_what_is_committed_is_read_and_what_is_aborted_is_not(broker: Broker, client: Client, codec: str) -> None:
    topic = broker.topic()
    with client.writer(broker.address, transactional_id=fresh("txn"), codec=codec) as writer:
        for word, end in [("a", writer.commit), ("b", writer.abort), ("c", writer.commit)]:
            writer.begin()
            writer.produce(topic, plain(3, word))
            end()
    committed = [record.value for word in "ac" for record in plain(3, word)]
    assert values(broker, client, topic, 6, "read_committed") == committed
    everything = [record.value for word in "abc" for record in plain(3, word)]
    assert values(broker, client, topic, 9, "read_uncommitted") == everything


@each_client
def test_offsets_and_results_of_a_transaction_come_together(broker: Broker, client: Client) -> None:
    source, target, group = broker.topic(word="source"), broker.topic(word="target"), fresh("group")
    here = (source, 0)
    with client.writer(broker.address) as writer:
        writer.produce(source, plain(10))
    config = {"group_id": group, "isolation_level": "read_committed"}
    with (
        client.writer(broker.address, transactional_id=fresh("txn")) as writer,
        client.reader(broker.address, source, **config) as reader,
    ):

        def transform(count: int) -> None:
            writer.begin()
            records = [message.record for message in reader.read(count)]
            writer.produce(target, [record._replace(value=(record.value or b"").upper()) for record in records])
            writer.send_position(reader, here)

        def expect_committed(offset: int) -> None:
            if not client.reads_stable_offsets:  # those of a transaction may then come a moment after its end
                until(lambda: reader.committed(here) == offset, f"{offset} is committed")
            assert reader.committed(here) == offset

        transform(4)
        writer.commit()
        expect_committed(4)
        transform(3)
        writer.abort()
        assert reader.committed(here) == 4
        reader.seek(here, 4)
        transform(6)
        writer.commit()
        expect_committed(10)
    expected = [(record.value or b"").upper() for record in plain(10)]
    assert values(broker, client, target, 10, "read_committed") == expected


@each_client
def test_a_second_producer_of_the_same_id_fences_the_first(broker: Broker, client: Client) -> None:
    topic, name = broker.topic(), fresh("txn")
    with client.writer(broker.address, transactional_id=name) as first:
        first.begin()
        first.produce(topic, plain(2, "first"))
        with client.writer(broker.address, transactional_id=name) as second:  # aborts what the first has begun
            with pytest.raises(Refused, match="PRODUCER_FENCED"):
                first.commit()
            second.begin()
            second.produce(topic, plain(2, "second"))
            second.commit()
    expected = [record.value for record in plain(2, "second")]
    assert values(broker, client, topic, 2, "read_committed") == expected
