"""Klamm for asyncio.

    async with klamm.aio.open("events/") as store:
        await store.append("orders", b"hello", key=b"user-1")
        async with store.consumer("orders") as orders:
            async for record in orders:
                print(record)

Everything is as in `klamm`; what may block runs in a thread. Producers and consumers: client/aio.py.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self, Unpack

from klamm import api
from klamm.client.aio import Consumer, Opening, Producer, Transaction
from klamm.client.tail import last_records
from klamm.types import Appended, CompactionReport, GroupInfo, Lineage, LockInfo, OffsetMove, TopicInfo, TransactionInfo

if TYPE_CHECKING:
    from klamm.batch import Record
    from klamm.client.consumer_options import ConsumerOptions
    from klamm.client.producer_options import ProducerOptions, TransactionOptions
    from klamm.client.serde import Serde
    from klamm.client.subscription import Topics
    from klamm.store.backup import Copied
    from klamm.store.check import Report

__all__ = ["Consumer", "Producer", "Store", "Transaction", "open"]


def open(path: str | os.PathLike[str], **options: Any) -> Opening[Store]:  # noqa: A001  # as klamm.open
    """Open the store in a directory: `store = await open(…)`, or `async with open(…) as store`."""

    async def start() -> Store:
        return Store(await asyncio.to_thread(api.open, path, **options))

    return Opening(start)


class Store:
    """A directory of topics. Made by `klamm.aio.open`."""

    def __init__(self, store: api.Store) -> None:
        self._sync = store

    def __repr__(self) -> str:
        return f"<aio {self._sync!r}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def sync(self) -> api.Store:
        """The store itself, for what is quick or runs in threads of its own."""
        return self._sync

    @property
    def path(self) -> str:
        return self._sync.path

    # ---- topics

    async def create_topic(
        self, name: str, partitions: int = 1, settings: Mapping[str, Any] | None = None, *, exist_ok: bool = False
    ) -> TopicInfo:
        return await asyncio.to_thread(self._sync.create_topic, name, partitions, settings, exist_ok=exist_ok)

    async def topics(self) -> list[str]:
        return await asyncio.to_thread(self._sync.topics)

    async def topic(self, name: str) -> TopicInfo:
        return await asyncio.to_thread(self._sync.topic, name)

    async def alter_topic(
        self, name: str, settings: Mapping[str, Any] | None = None, *, reset: Iterable[str] = ()
    ) -> TopicInfo:
        return await asyncio.to_thread(self._sync.alter_topic, name, settings, reset=reset)

    async def add_partitions(self, name: str, total: int) -> TopicInfo:
        return await asyncio.to_thread(self._sync.add_partitions, name, total)

    async def delete_topic(self, name: str) -> None:
        await asyncio.to_thread(self._sync.delete_topic, name)

    # ---- appending and reading; options as those of klamm.Store

    async def append(self, topic: str, value: Any, **options: Any) -> int | None:
        return await asyncio.to_thread(self._sync.append, topic, value, **options)

    async def append_many(self, topic: str, records: Iterable[Any], **options: Any) -> Appended:
        return await asyncio.to_thread(self._sync.append_many, topic, records, **options)

    async def append_table(self, topic: str, table: Any, **options: Any) -> Any:
        return await asyncio.to_thread(self._sync.append_table, topic, table, **options)

    def producer(self, **options: Unpack[ProducerOptions]) -> Opening[Producer]:
        async def start() -> Producer:
            return Producer(await asyncio.to_thread(self._sync.producer, **options))

        return Opening(start)

    def consumer(self, topics: Topics | None = None, **options: Unpack[ConsumerOptions]) -> Opening[Consumer]:
        async def start() -> Consumer:
            return Consumer(await asyncio.to_thread(self._sync.consumer, topics, **options))

        return Opening(start)

    def transaction(self, name: str | None = None, **options: Unpack[TransactionOptions]) -> Opening[Transaction]:
        async def start() -> Transaction:
            return Transaction(await asyncio.to_thread(self._sync.transaction, name, **options))

        return Opening(start)

    async def transactions(self) -> list[TransactionInfo]:
        return await asyncio.to_thread(self._sync.transactions)

    async def who(self) -> list[LockInfo]:
        return await asyncio.to_thread(self._sync.who)

    async def lineage(self, record: Record) -> Lineage | None:
        return await asyncio.to_thread(self._sync.lineage, record)

    async def abort_transaction(self, producer_id: int) -> bool:
        return await asyncio.to_thread(self._sync.abort_transaction, producer_id)

    async def tail(
        self,
        topic: str,
        n: int = 10,
        *,
        follow: bool = False,
        serde: Serde | None = None,
        key_serde: Serde | None = None,
    ) -> AsyncIterator[Any]:
        async with self.consumer(topic, start="latest", serde=serde, key_serde=key_serde) as consumer:
            core, ends = self._sync._acquired(), consumer.positions()
            for record in await asyncio.to_thread(last_records, core, ends, n, serde, key_serde):
                yield record
            if follow:
                async for record in consumer:
                    yield record

    # ---- groups, and settings of the store

    async def groups(self) -> list[str]:
        return await asyncio.to_thread(self._sync.groups)

    async def group(self, name: str) -> GroupInfo:
        return await asyncio.to_thread(self._sync.group, name)

    async def plan_reset(self, group: str, topics: Any = None, *, to: Any) -> list[OffsetMove]:
        return await asyncio.to_thread(self._sync.plan_reset, group, topics, to=to)

    async def reset_offsets(self, plan: Iterable[OffsetMove]) -> None:
        await asyncio.to_thread(self._sync.reset_offsets, plan)

    async def delete_group(self, name: str) -> None:
        await asyncio.to_thread(self._sync.delete_group, name)

    async def export_group(self, name: str) -> dict[str, Any]:
        return await asyncio.to_thread(self._sync.export_group, name)

    async def import_group(self, data: Mapping[str, Any], name: str | None = None) -> None:
        await asyncio.to_thread(self._sync.import_group, data, name)

    async def settings(self) -> dict[str, str]:
        return await asyncio.to_thread(self._sync.settings)

    async def alter(self, settings: Mapping[str, Any] | None = None, *, reset: Iterable[str] = ()) -> dict[str, str]:
        return await asyncio.to_thread(self._sync.alter, settings, reset=reset)

    async def offset_at(self, topic: str, partition: int, when: int | datetime) -> int | None:
        return await asyncio.to_thread(self._sync.offset_at, topic, partition, when)

    # ---- keeping house

    async def delete_records(self, topic: str, before: Mapping[int, int]) -> dict[int, int]:
        return await asyncio.to_thread(self._sync.delete_records, topic, before)

    async def maintain(self) -> None:
        await asyncio.to_thread(self._sync.maintain)

    async def compact(self, topic: str | None = None, **options: Any) -> CompactionReport:
        return await asyncio.to_thread(self._sync.compact, topic, **options)

    async def backup(self, destination: str | os.PathLike[str]) -> Copied:
        return await asyncio.to_thread(self._sync.backup, destination)

    async def check(self, *, repair: bool = False) -> Report:
        return await asyncio.to_thread(self._sync.check, repair=repair)

    async def close(self) -> None:
        await asyncio.to_thread(self._sync.close)
