"""Klamm for asyncio.

    async with klamm.aio.open("events/") as store:
        orders = await store.topics.create("orders")
        await orders.append(b"hello", key=b"user-1")
        async with orders.consumer() as consumer:
            async for record in consumer:
                print(record)

Everything is as in `klamm`; what may block runs in a thread. Producers and consumers: client/aio.py.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self, Unpack

from klamm import api
from klamm.client.aio import Consumer, Opening, Producer, Transaction
from klamm.client.consume.tail import topic_history
from klamm.client.serde import Serdes
from klamm.types import (
    Appended,
    CompactionReport,
    Cut,
    GroupInfo,
    Lineage,
    LockInfo,
    OffsetMove,
    TopicInfo,
    TransactionInfo,
)

if TYPE_CHECKING:
    from klamm.arrow.sql_result import SqlResult
    from klamm.batch import Record
    from klamm.client.consume.consumer_options import ConsumerOptions
    from klamm.client.produce.producer_options import ProducerOptions, TransactionOptions
    from klamm.client.serde import Serde
    from klamm.client.subscription import TopicSelection
    from klamm.store.backup import Copied
    from klamm.store.check import Report
    from klamm.where import WhereLike

__all__ = ["Consumer", "Groups", "Producer", "Store", "Topic", "Topics", "Transaction", "Transactions", "open"]


def open(path: str | os.PathLike[str], **options: Any) -> Opening[Store]:  # noqa: A001  # as klamm.open
    """Open the store in a directory: `store = await open(…)`, or `async with open(…) as store`."""

    async def start() -> Store:
        return Store(await asyncio.to_thread(api.open, path, **options))

    return Opening(start)


class Topics:
    """The topics of a store: `store.topics`. `async for` gives their names."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._sync = store.sync.topics

    async def __aiter__(self) -> AsyncIterator[str]:
        for name in await asyncio.to_thread(list, self._sync):
            yield name

    async def create(
        self,
        name: str,
        partitions: int = 1,
        settings: Mapping[str, Any] | None = None,
        *,
        exist_ok: bool = False,
        **named: Any,
    ) -> Topic:
        await asyncio.to_thread(self._sync.create, name, partitions, settings, exist_ok=exist_ok, **named)
        return self._store[name]

    async def describe(self, name: str) -> TopicInfo:
        return await asyncio.to_thread(self._sync.describe, name)

    async def alter(
        self, name: str, settings: Mapping[str, Any] | None = None, *, reset: Iterable[str] = (), **named: Any
    ) -> TopicInfo:
        return await asyncio.to_thread(self._sync.alter, name, settings, reset=reset, **named)

    async def add_partitions(self, name: str, total: int) -> TopicInfo:
        return await asyncio.to_thread(self._sync.add_partitions, name, total)

    async def delete(self, name: str) -> None:
        await asyncio.to_thread(self._sync.delete, name)


class Topic:
    """A handle on a topic: `store["orders"]`. Nothing is looked up before its first call."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._sync = api.Topic(store.sync, name)

    def __repr__(self) -> str:
        return f"<aio {self._sync!r}>"

    @property
    def name(self) -> str:
        return self._sync.name

    async def append(self, value: Any, **options: Any) -> int | None:
        return await asyncio.to_thread(self._sync.append, value, **options)

    async def append_many(self, records: Iterable[Any], **options: Any) -> Appended:
        return await asyncio.to_thread(self._sync.append_many, records, **options)

    async def append_table(self, table: Any, **options: Any) -> Appended:
        return await asyncio.to_thread(self._sync.append_table, table, **options)

    def consumer(self, **options: Unpack[ConsumerOptions]) -> Opening[Consumer]:
        return self._store.consumer(self.name, **options)

    def tail(
        self,
        n: int | None = None,
        *,
        start: WhereLike | None = None,
        follow: bool = False,
        serde: Serde | None = None,
        key_serde: Serde | None = None,
    ) -> AsyncIterator[Any]:
        return self._store.tail(self.name, n, start=start, follow=follow, serde=serde, key_serde=key_serde)

    async def offset_at(self, partition: int, when: int | datetime) -> int | None:
        return await asyncio.to_thread(self._sync.offset_at, partition, when)

    async def info(self) -> TopicInfo:
        return await asyncio.to_thread(self._sync.info)

    async def settings(self) -> dict[str, str]:
        return await asyncio.to_thread(self._sync.settings)

    async def alter(
        self, settings: Mapping[str, Any] | None = None, *, reset: Iterable[str] = (), **named: Any
    ) -> TopicInfo:
        return await asyncio.to_thread(self._sync.alter, settings, reset=reset, **named)

    async def add_partitions(self, total: int) -> TopicInfo:
        return await asyncio.to_thread(self._sync.add_partitions, total)

    async def delete(self) -> None:
        await asyncio.to_thread(self._sync.delete)

    async def delete_records(self, before: Mapping[int, int]) -> dict[int, int]:
        return await asyncio.to_thread(self._sync.delete_records, before)

    async def compact(self, **options: Any) -> CompactionReport:
        return await asyncio.to_thread(self._sync.compact, **options)

    async def cuts(self) -> list[Cut]:
        return await asyncio.to_thread(self._sync.cuts)


class Groups:
    """The consumer groups of a store: `store.groups`. `async for` gives their names."""

    def __init__(self, store: Store) -> None:
        self._sync = store.sync.groups

    async def __aiter__(self) -> AsyncIterator[str]:
        for name in await asyncio.to_thread(list, self._sync):
            yield name

    async def describe(self, name: str) -> GroupInfo:
        return await asyncio.to_thread(self._sync.describe, name)

    async def plan_reset(
        self,
        group: str,
        topics: Any = None,
        *,
        to: WhereLike | None = None,
        by: int | None = None,
        like: str | None = None,
    ) -> list[OffsetMove]:
        return await asyncio.to_thread(self._sync.plan_reset, group, topics, to=to, by=by, like=like)

    async def reset(
        self,
        group: str,
        topics: Any = None,
        *,
        to: WhereLike | None = None,
        by: int | None = None,
        like: str | None = None,
    ) -> list[OffsetMove]:
        return await asyncio.to_thread(self._sync.reset, group, topics, to=to, by=by, like=like)

    async def apply(self, plan: Iterable[OffsetMove]) -> None:
        await asyncio.to_thread(self._sync.apply, plan)

    async def delete(self, name: str) -> None:
        await asyncio.to_thread(self._sync.delete, name)

    async def export(self, name: str) -> dict[str, Any]:
        return await asyncio.to_thread(self._sync.export, name)

    async def import_(self, data: Mapping[str, Any], name: str | None = None) -> None:
        await asyncio.to_thread(self._sync.import_, data, name)


class Transactions:
    """The transactions that are not over: `store.transactions`. `async for` gives TransactionInfos."""

    def __init__(self, store: Store) -> None:
        self._sync = store.sync.transactions

    async def __aiter__(self) -> AsyncIterator[TransactionInfo]:
        for info in await asyncio.to_thread(list, self._sync):
            yield info

    async def abort(self, producer_id: int) -> bool:
        return await asyncio.to_thread(self._sync.abort, producer_id)


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

    # ---- what is in it

    @property
    def topics(self) -> Topics:
        return Topics(self)

    @property
    def groups(self) -> Groups:
        return Groups(self)

    @property
    def transactions(self) -> Transactions:
        return Transactions(self)

    def __getitem__(self, name: str) -> Topic:
        return Topic(self, name)

    async def settings(self) -> dict[str, str]:
        return await asyncio.to_thread(self._sync.settings)

    async def alter(
        self, settings: Mapping[str, Any] | None = None, *, reset: Iterable[str] = (), **named: Any
    ) -> dict[str, str]:
        return await asyncio.to_thread(self._sync.alter, settings, reset=reset, **named)

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

    def consumer(self, topics: TopicSelection | None = None, **options: Unpack[ConsumerOptions]) -> Opening[Consumer]:
        async def start() -> Consumer:
            return Consumer(await asyncio.to_thread(self._sync.consumer, topics, **options))

        return Opening(start)

    def transaction(
        self,
        name: str | None = None,
        *,
        consumers: Consumer | Iterable[Consumer] = (),
        **options: Unpack[TransactionOptions],
    ) -> Opening[Transaction]:
        several = (consumers,) if isinstance(consumers, Consumer) else consumers

        async def start() -> Transaction:
            taking_part = [each._sync if isinstance(each, Consumer) else each for each in several]
            return Transaction(await asyncio.to_thread(self._sync.transaction, name, consumers=taking_part, **options))

        return Opening(start)

    async def lineage(self, record: Record) -> Lineage | None:
        return await asyncio.to_thread(self._sync.lineage, record)

    async def tail(
        self,
        topic: str,
        n: int | None = None,
        *,
        start: WhereLike | None = None,
        follow: bool = False,
        serde: Serde | None = None,
        key_serde: Serde | None = None,
    ) -> AsyncIterator[Any]:
        serdes = Serdes(serde, key_serde).over(self._sync._serdes)
        core = self._sync._acquired()
        history = await asyncio.to_thread(topic_history, core, topic, n, start, *serdes)
        while (batch := await asyncio.to_thread(next, history.batches, None)) is not None:
            for record in batch:
                yield record
        if follow:
            async with self.consumer(topic, start=history.ends, serde=serde, key_serde=key_serde) as consumer:
                async for record in consumer:
                    yield record

    async def sql(self, query: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None) -> SqlResult:
        return await asyncio.to_thread(self._sync.sql, query, parameters)

    # ---- keeping house

    async def maintain(self) -> None:
        await asyncio.to_thread(self._sync.maintain)

    async def compact(self, **options: Any) -> CompactionReport:
        return await asyncio.to_thread(self._sync.compact, **options)

    async def backup(self, destination: str | os.PathLike[str]) -> Copied:
        return await asyncio.to_thread(self._sync.backup, destination)

    async def check(self, *, repair: bool = False) -> Report:
        return await asyncio.to_thread(self._sync.check, repair=repair)

    async def who(self) -> list[LockInfo]:
        return await asyncio.to_thread(self._sync.who)

    async def close(self) -> None:
        await asyncio.to_thread(self._sync.close)
