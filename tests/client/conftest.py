"""A store in a directory, and ways to fill and read it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import klamm


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events"


@pytest.fixture
def store(path: Path) -> Iterator[klamm.Store]:
    with klamm.open(path) as opened:
        yield opened


@pytest.fixture
def orders(store: klamm.Store) -> klamm.Store:
    """The store, with a topic `orders` of one partition."""
    store.create_topic("orders")
    return store


def values_in(store: klamm.Store, topic: str = "orders", **options: Any) -> list[Any]:
    """The values of everything in a topic, partition after partition."""
    with store.consumer(topic, wait_ms=0, form="values", **options) as consumer:
        return [value for batch in consumer.batches() for value in batch]


def fill(store: klamm.Store, count: int, topic: str = "orders", **options: Any) -> list[bytes]:
    values = [b"%d" % n for n in range(count)]
    store.append_many(topic, values, acks=1, **options)
    return values
