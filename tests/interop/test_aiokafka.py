"""aiokafka: groups, admin, and what test_clients.py does not ask of every client."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Awaitable, Callable
from typing import Any

from tests.interop.aiokafkas import (
    admin,
    aiokafka,
    consumer,
    eventually,
    produce,
    producer,
    read,
)
from tests.interop.brokers import Broker, fresh
from tests.interop.records import plain

Part = aiokafka.TopicPartition


def in_a_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(asyncio.wait_for(test(**fixtures), 100))

    return run


@in_a_loop
async def test_a_consumer_seeks_to_the_end_and_knows_the_watermarks(broker: Broker) -> None:
    topic = broker.topic()
    here = Part(topic, 0)
    async with producer(broker.address) as made:
        await produce(made, topic, plain(20))
    async with consumer(broker.address) as reader:
        reader.assign([here])
        await read(reader, 1)
        assert reader.highwater(here) == 20 and reader.last_stable_offset(here) == 20
        await reader.seek_to_end(here)
        assert await reader.position(here) == 20


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
