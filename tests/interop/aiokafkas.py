"""aiokafka, as the tests use it."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from tests.interop.brokers import fresh
from tests.interop.records import Written

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import aiokafka
    import aiokafka.admin
    import aiokafka.errors
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
    from aiokafka.admin import AIOKafkaAdminClient
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor

__all__ = [
    "RangePartitionAssignor",
    "admin",
    "aiokafka",
    "all_of",
    "consumer",
    "eventually",
    "produce",
    "producer",
    "read",
    "record",
]

BOUND = 60.0


@asynccontextmanager
async def producer(address: str, **config: Any) -> AsyncIterator[AIOKafkaProducer]:
    made = AIOKafkaProducer(bootstrap_servers=address, **config)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


async def produce(made: AIOKafkaProducer, topic: str, records: Iterable[Written], partition: int = 0) -> list[Any]:
    """Write the records and wait; where each went, or the first error."""
    futures = [
        await made.send(
            topic, each.value, each.key, partition, timestamp_ms=each.timestamp, headers=list(each.headers) or None
        )
        for each in records
    ]
    return await asyncio.wait_for(asyncio.gather(*futures), BOUND)


@asynccontextmanager
async def consumer(address: str, *topics: str, **config: Any) -> AsyncIterator[AIOKafkaConsumer]:
    settings = {
        "bootstrap_servers": address,
        "group_id": fresh("group"),
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "fetch_max_wait_ms": 100,
        "heartbeat_interval_ms": 100,
        "session_timeout_ms": 6000,
    }
    made = AIOKafkaConsumer(*topics, **{**settings, **config})
    await asyncio.wait_for(made.start(), BOUND)
    try:
        yield made
    finally:
        await made.stop()


def record(message: Any) -> Written:
    return Written(message.key, message.value, tuple(map(tuple, message.headers)), message.timestamp)


async def read(made: AIOKafkaConsumer, count: int) -> list[Any]:
    """The next `count` messages."""
    return [await asyncio.wait_for(made.getone(), BOUND) for _ in range(count)]


async def all_of(address: str, topic: str, count: int, partition: int = 0, **config: Any) -> list[Any]:
    """The first `count` messages of a partition."""
    async with consumer(address, **{"group_id": None, **config}) as made:
        here = TopicPartition(topic, partition)
        made.assign([here])
        await made.seek_to_beginning(here)
        return await read(made, count)


async def eventually(holds: Callable[[], bool], what: str) -> None:
    """Let tasks run until something holds."""
    deadline = time.monotonic() + BOUND
    while not holds():
        assert time.monotonic() < deadline, f"{what}: not within {BOUND} s"
        await asyncio.sleep(0.005)


@asynccontextmanager
async def admin(address: str) -> AsyncIterator[AIOKafkaAdminClient]:
    made = AIOKafkaAdminClient(bootstrap_servers=address)
    await made.start()
    try:
        yield made
    finally:
        await made.close()
