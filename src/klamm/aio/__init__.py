"""Klamm for asyncio.

    async with klamm.aio.open("events/") as store:
        orders = await store.topics.create("orders")
        await orders.append(b"hello", key=b"user-1")
        async with orders.consumer() as consumer:
            async for record in consumer:
                print(record)

Everything else is as in `klamm`. Calls that may block run in the store's own threads: threads.py.
"""

from __future__ import annotations

from klamm.aio.consumer import Consumer
from klamm.aio.functions import check, open  # noqa: A004  # as klamm.open
from klamm.aio.groups import Groups
from klamm.aio.pipe import Pipe
from klamm.aio.producer import Producer
from klamm.aio.scan import Scan
from klamm.aio.store import Store
from klamm.aio.table import Table
from klamm.aio.topic import Topic
from klamm.aio.topics import Topics
from klamm.aio.transaction import Transaction
from klamm.aio.transactions import Transactions

__all__ = [
    "Consumer",
    "Groups",
    "Pipe",
    "Producer",
    "Scan",
    "Store",
    "Table",
    "Topic",
    "Topics",
    "Transaction",
    "Transactions",
    "check",
    "open",
]


def __dir__() -> list[str]:
    return sorted(__all__)
