"""Topics and tables in a store, and ways to fill and read it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import klamm


@pytest.fixture
def orders(store: klamm.Store) -> klamm.Store:
    """The store, with a topic `orders` of one partition."""
    store.topics.create("orders")
    return store


@pytest.fixture
def shop(store: klamm.Store) -> klamm.Store:
    """The store, with a topic `orders` of two partitions, and `invoices` and `refunds`."""
    store.topics.create("orders", 2)
    for name in "invoices", "refunds":
        store.topics.create(name)
    return store


def values_in(store: klamm.Store, topic: str = "orders", **options: Any) -> list[Any]:
    """The values of everything in a topic, partition after partition."""
    with store.consumer(topic, wait=0, form="values", **options) as consumer:
        return [value for batch in consumer.batches() for value in batch]


def fill(store: klamm.Store, count: int, topic: str = "orders", **options: Any) -> list[bytes]:
    values = [b"%d" % n for n in range(count)]
    store.append_many(topic, values, acks=1, **options)
    return values


@pytest.fixture
def users(store: klamm.Store) -> Iterator[klamm.Table]:
    """A table, of a topic `users` of three partitions."""
    store.topics.create("users", partitions=3)
    with store.table("users") as table:
        yield table


def put(store: klamm.Store, changes: dict[bytes, bytes | None], topic: str = "users") -> None:
    """Append what is to be in a table; None deletes."""
    store.append_many(topic, list(changes.items()), acks=1)


def directory_of(store: klamm.Store, topic: str = "users") -> Path:
    """Where a topic's table is kept."""
    return Path(store.path) / "tables" / f"{topic}-{store.topics.describe(topic).id}"


def partition_of(store: klamm.Store, topic: str = "orders", number: int = 0) -> Any:
    return store._acquired().topic(topic).partition(number)


@contextmanager
def held(partition: Any) -> Iterator[None]:
    """As if another process were in the middle of an append."""
    partition.log.lock()
    try:
        yield
    finally:
        partition.log.unlock()
