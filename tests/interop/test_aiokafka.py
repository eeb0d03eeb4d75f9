"""aiokafka: produce, consume, offsets, transactions, groups, admin."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.interop.aiokafkas import (
    admin,
    aiokafka,
    all_of,
    consumer,
    eventually,
    produce,
    producer,
    read,
    record,
)
from tests.interop.brokers import Broker, fresh
from tests.interop.records import CODECS, ODD, plain

Part = aiokafka.TopicPartition
errors = aiokafka.errors


def in_a_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(asyncio.wait_for(test(**fixtures), 100))

    return run


@pytest.mark.parametrize("codec", CODECS)
@in_a_loop
async def test_records_written_with_any_acks_and_codec_come_back(broker: Broker, codec: str) -> None:
    topic, records = broker.topic(), plain(200)
    for acks in (1, "all", 0):
        async with producer(broker.address, acks=acks, compression_type=None if codec == "none" else codec) as made:
            await produce(made, topic, records)
    messages = await all_of(broker.address, topic, 600)
    assert [record(message) for message in messages] == records * 3
    assert [message.offset for message in messages] == list(range(600))


@pytest.mark.parametrize("codec", [None, "snappy"])
@in_a_loop
async def test_records_of_every_kind_come_back_as_they_were(broker: Broker, codec: str | None) -> None:
    topic = broker.topic()
    # It refuses to write those without key and value.
    records = [each for each in ODD if each[:2] != (None, None)]
    async with producer(broker.address, compression_type=codec) as made:
        await produce(made, topic, records)
    messages = await all_of(broker.address, topic, len(records))
    assert [record(message) for message in messages] == records
    assert {message.timestamp_type for message in messages} == {0}


@in_a_loop
async def test_the_time_of_the_append_replaces_the_producers(broker: Broker) -> None:
    topic = broker.topic(message_timestamp_type="LogAppendTime")
    async with producer(broker.address) as made:
        reports = await produce(made, topic, plain(5))
    messages = await all_of(broker.address, topic, 5)
    assert {message.timestamp_type for message in messages} == {1}
    assert [message.timestamp for message in messages] == [report.timestamp for report in reports]
    assert all(message.timestamp > 1_750_000_000_000 for message in messages)


@in_a_loop
async def test_a_batch_may_be_as_large_as_the_topic_says_and_no_larger(broker: Broker) -> None:
    topic = broker.topic(max_message_bytes="100000")
    async with producer(broker.address, max_request_size=10_000_000) as made:
        (where,) = await produce(made, topic, [plain(1)[0]._replace(value=b"x" * 99_900)])
        assert where.offset == 0
        with pytest.raises(errors.MessageSizeTooLargeError):
            await produce(made, topic, [plain(1)[0]._replace(value=b"x" * 100_000)])
    (message,) = await all_of(broker.address, topic, 1)
    assert len(message.value) == 99_900


@in_a_loop
async def test_an_idempotent_producer_keeps_order_over_many_requests(broker: Broker) -> None:
    topic, records = broker.topic(), plain(2000)
    async with producer(broker.address, enable_idempotence=True, max_batch_size=2000) as made:
        assert [where.offset for where in await produce(made, topic, records)] == list(range(2000))
    assert [record(message) for message in await all_of(broker.address, topic, 2000)] == records


@in_a_loop
async def test_a_consumer_goes_where_it_is_sent(broker: Broker) -> None:
    topic = broker.topic(2)
    records = [each._replace(timestamp=1_700_000_000_000 + n) for n, each in enumerate(plain(20))]
    async with producer(broker.address) as made:
        await produce(made, topic, records)
        await produce(made, topic, records, 1)
    here, other = Part(topic, 0), Part(topic, 1)
    async with consumer(broker.address) as reader:
        reader.assign([here, other])
        reader.pause(other)
        reader.seek(here, 17)
        assert [message.offset for message in await read(reader, 3)] == [17, 18, 19]
        reader.resume(other)
        assert {message.partition for message in await read(reader, 20)} == {1}
        assert reader.highwater(here) == 20 and reader.last_stable_offset(here) == 20
        await reader.seek_to_end(here)
        assert await reader.position(here) == 20
        assert await reader.beginning_offsets([here, other]) == {here: 0, other: 0}
        assert await reader.end_offsets([here, other]) == {here: 20, other: 20}
        found = [(await reader.offsets_for_times({here: 1_700_000_000_000 + n}))[here] for n in (-5, 7, 20)]
        assert [each and (each.offset, each.timestamp) for each in found] == [
            (0, 1_700_000_000_000),
            (7, 1_700_000_000_007),
            None,
        ]
    async with consumer(broker.address, auto_offset_reset="none") as reader:
        reader.assign([here])
        reader.seek(here, 1000)
        with pytest.raises(errors.OffsetOutOfRangeError):
            await read(reader, 1)


@in_a_loop
async def test_committed_offsets_are_where_the_next_consumer_begins(broker: Broker) -> None:
    topic, group = broker.topic(), fresh("group")
    here = Part(topic, 0)
    async with producer(broker.address) as made:
        await produce(made, topic, plain(10))
    async with consumer(broker.address, topic, group_id=group) as first:
        await read(first, 4)
        await first.commit({here: (4, "so far")})
    async with consumer(broker.address, topic, group_id=group) as second:
        assert await second.committed(here) == 4
        assert [message.offset for message in await read(second, 3)] == [4, 5, 6]
        await second.commit()
    config = {"group_id": group, "enable_auto_commit": True, "auto_commit_interval_ms": 100}
    async with consumer(broker.address, topic, **config) as third:
        assert [message.offset for message in await read(third, 3)] == [7, 8, 9]
    async with consumer(broker.address, topic, group_id=group) as fourth:
        assert await fourth.committed(here) == 10


@in_a_loop
async def test_a_topic_is_created_by_whoever_writes_to_it(broker: Broker) -> None:
    topic = fresh("auto")
    async with producer(broker.address) as made:
        await produce(made, topic, plain(3))
    assert len(await all_of(broker.address, topic, 3)) == 3


# Transactions


async def values(broker: Broker, topic: str, count: int, isolation: str) -> list[bytes]:
    return [message.value for message in await all_of(broker.address, topic, count, isolation_level=isolation)]


@in_a_loop
async def test_what_is_committed_is_read_and_what_is_aborted_is_not(broker: Broker) -> None:
    topic = broker.topic()
    async with producer(broker.address, transactional_id=fresh("txn")) as made:
        async with made.transaction():
            await produce(made, topic, plain(3, "a"))
        await made.begin_transaction()
        await produce(made, topic, plain(3, "b"))
        await made.abort_transaction()
        async with made.transaction():
            await produce(made, topic, plain(3, "c"))
    committed = [each.value for word in "ac" for each in plain(3, word)]
    assert await values(broker, topic, 6, "read_committed") == committed
    everything = [each.value for word in "abc" for each in plain(3, word)]
    assert await values(broker, topic, 9, "read_uncommitted") == everything


@in_a_loop
async def test_offsets_and_results_of_a_transaction_come_together(broker: Broker) -> None:
    source, target, group = broker.topic(word="source"), broker.topic(word="target"), fresh("group")
    here = Part(source, 0)
    async with producer(broker.address) as made:
        await produce(made, source, plain(10))
    async with (
        producer(broker.address, transactional_id=fresh("txn")) as made,
        consumer(broker.address, source, group_id=group, isolation_level="read_committed") as reader,
    ):

        async def transform(count: int) -> None:
            await made.begin_transaction()
            for message in await read(reader, count):
                await made.send(target, message.value.upper(), partition=0)
            await made.send_offsets_to_transaction({here: await reader.position(here)}, group)

        # It does not ask for stable offsets: those of a transaction may come a moment after its end.
        await transform(4)
        await made.commit_transaction()
        while await reader.committed(here) != 4:
            await asyncio.sleep(0.01)
        await transform(3)
        await made.abort_transaction()
        assert await reader.committed(here) == 4
        reader.seek(here, 4)
        await transform(6)
        await made.commit_transaction()
        while await reader.committed(here) != 10:
            await asyncio.sleep(0.01)
    assert await values(broker, target, 10, "read_committed") == [each.value.upper() for each in plain(10)]


@in_a_loop
async def test_a_second_producer_of_the_same_id_fences_the_first(broker: Broker) -> None:
    topic, name = broker.topic(), fresh("txn")
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(producer(broker.address, transactional_id=name))
        await first.begin_transaction()
        await produce(first, topic, plain(2, "first"))
        second = await stack.enter_async_context(producer(broker.address, transactional_id=name))
        with pytest.raises(errors.ProducerFenced):
            await first.commit_transaction()
        async with second.transaction():
            await produce(second, topic, plain(2, "second"))
    assert await values(broker, topic, 2, "read_committed") == [each.value for each in plain(2, "second")]


# Groups


def shared(count: int, *members: Any) -> bool:
    """Whether all partitions are with somebody, each once, and all have about as many."""
    held = [[part.partition for part in member.assignment()] for member in members]
    fair = max(map(len, held)) - min(map(len, held)) <= 1
    return fair and sorted(part for parts in held for part in parts) == list(range(count))


@in_a_loop
async def test_members_share_the_partitions_while_they_come_and_go(broker: Broker) -> None:
    topic, group = broker.topic(6), fresh("group")
    async with consumer(broker.address, topic, group_id=group) as first:
        await eventually(lambda: shared(6, first), "one has all")
        async with consumer(broker.address, topic, group_id=group) as second:
            await eventually(lambda: shared(6, first, second), "two share")
            async with consumer(broker.address, topic, group_id=group) as third:
                await eventually(lambda: shared(6, first, second, third), "three share")
            await eventually(lambda: shared(6, first, second), "two share again")
        await eventually(lambda: shared(6, first), "one has all again")


@in_a_loop
async def test_a_static_member_that_comes_back_gets_what_it_had(broker: Broker) -> None:
    topic, group = broker.topic(4), fresh("group")
    names = [
        {"group_instance_id": name, "group_id": group, "session_timeout_ms": 20_000} for name in ("stays", "restarts")
    ]
    async with consumer(broker.address, topic, **names[0]) as stays:
        async with consumer(broker.address, topic, **names[1]) as restarts:
            await eventually(lambda: shared(4, stays, restarts), "two share")
            had, kept = restarts.assignment(), stays.assignment()
        async with consumer(broker.address, topic, **names[1]) as restarts:
            await eventually(lambda: restarts.assignment() == had, "it has what it had")
            assert stays.assignment() == kept


@in_a_loop
async def test_topics_that_match_a_pattern_are_subscribed_to_when_they_appear(broker: Broker) -> None:
    word = fresh("pattern")
    topics = {broker.topic(2, word=word), broker.topic(1, word=word)}
    async with consumer(broker.address, metadata_max_age_ms=200) as reader:
        reader.subscribe(pattern=f"^{re.escape(word)}-.*")
        await eventually(lambda: {part.topic for part in reader.assignment()} == topics, "both are assigned")
        topics.add(broker.topic(1, word=word))
        await eventually(lambda: {part.topic for part in reader.assignment()} == topics, "the third, too")


# Admin


@in_a_loop
async def test_topics_are_created_described_extended_and_deleted(broker: Broker) -> None:
    name = fresh("topic")
    async with admin(broker.address) as made:

        async def sees(count: int) -> bool:
            (found,) = await made.describe_topics([name])
            return len(found["partitions"]) == count

        async def seen(count: int) -> None:
            for _ in range(1000):
                if await sees(count):
                    return
                await asyncio.sleep(0.01)
            raise AssertionError(f"no {count} partitions")

        new = aiokafka.admin.NewTopic(name, 2, 1, topic_configs={"retention.ms": "1234567"})
        await made.create_topics([new])
        await seen(2)
        await made.create_partitions({name: aiokafka.admin.NewPartitions(5)})
        await seen(5)
        resource = aiokafka.admin.config_resource.ConfigResource
        kind = aiokafka.admin.config_resource.ConfigResourceType.TOPIC
        (described,) = await made.describe_configs([resource(kind, name)])
        assert "1234567" in str(described)
        await made.alter_configs([resource(kind, name, configs={"retention.ms": "7654321"})])
        (described,) = await made.describe_configs([resource(kind, name)])
        assert name in await made.list_topics()
        await made.delete_topics([name])
        while name in await made.list_topics():  # to describe it would make it again
            await asyncio.sleep(0.01)
        cluster = await made.describe_cluster()
        assert [f"{node['host']}:{node['port']}" for node in cluster["brokers"]] == [broker.address]


@in_a_loop
async def test_groups_offsets_and_records_are_administered(broker: Broker) -> None:
    topic, group = broker.topic(), fresh("group")
    here = Part(topic, 0)
    async with producer(broker.address) as made:
        await produce(made, topic, plain(10))
    async with admin(broker.address) as asks:
        async with consumer(broker.address, topic, group_id=group) as member:
            await read(member, 10)
            await member.commit()
            (answer,) = await asks.describe_consumer_groups([group])
            assert "Stable" in str(answer)
            assert group in {name for name, _ in await asks.list_consumer_groups()}
        offsets = await asks.list_consumer_group_offsets(group)
        assert offsets[here].offset == 10
        assert await asks.find_coordinator(group) == 1
        deleted = await asks.delete_records({here: aiokafka.admin.records_to_delete.RecordsToDelete(before_offset=4)})
        assert deleted == {here: 4}
