"""A store with everything that a log may hold, and what is in the copies of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.types import TopicPartition
from tests.serving import Serving, serving

ORDERS = [TopicPartition("orders", 0), TopicPartition("orders", 1)]


def fill(store: klamm.Store) -> None:
    """Everything that a log may hold: transactions of both ends, tombstones, headers, codecs, gaps."""
    orders = store.topics.create("orders", 2, {"retention.ms": -1, "message.timestamp.after.max.ms": 2**60})
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        orders.append_many([(b"k%d" % n, b"%s %d" % (codec.encode(), n)) for n in range(50)], compression=codec)
    transact(store, "commit")
    transact(store, "abort")
    orders.append(None, key=b"gone", headers={"why": b"x", "none": None})
    orders.append(b"", key=b"", timestamp=1)
    with orders.consumer(group="billing", wait=0) as consumer:
        consumer.poll(30)
        consumer.commit()
    store.topics.create("empty", 3)


def transact(store: klamm.Store, end: str) -> None:
    with store.transaction(batch_bytes=64) as tx:  # so that records are in the log before it is aborted
        for number in range(8):
            tx.send("orders", b"%s %d" % (end.encode(), number), key=b"t%d" % number)
        if end == "abort":
            tx.abort()


def contents(store: klamm.Store, topic: str = "orders", *, with_offsets: bool = True) -> dict[int, list[Any]]:
    """What each partition holds, in its order."""
    found: dict[int, list[Any]] = {}
    with store[topic].consumer(start="earliest", wait=0) as consumer:
        for record in consumer:
            about = (record.timestamp, record.key, record.value, tuple(record.headers))
            found.setdefault(record.partition, []).append((record.offset, *about) if with_offsets else about)
    return found


def contents_at(path: Path, **options: Any) -> dict[int, list[Any]]:
    with klamm.open(path, create=False) as store:
        return contents(store, **options)


def committed(store: klamm.Store, group: str = "billing") -> dict[int, int]:
    """The committed offset of each partition."""
    offsets = store.groups.describe(group).offsets
    return {each.partition: each.committed.offset for each in offsets if each.committed is not None}


@pytest.fixture
def source(tmp_path: Path) -> Iterator[klamm.Store]:
    with klamm.open(tmp_path / "source") as store:
        fill(store)
        yield store


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path / "store") as made:
        yield made
