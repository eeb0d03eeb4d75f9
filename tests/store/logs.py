"""Stores with something in them, for tests of copies and checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from klamm.batch import TUPLES, Builder, decode
from klamm.log.partition import Partition
from klamm.store import directory
from klamm.store.directory import Core
from klamm.store.settings import Value


@contextmanager
def opened(path: Path | str, *, read_only: bool = False) -> Iterator[Core]:
    core = directory.acquire(str(path), read_only=read_only, create=True, force_filesystem=True)
    try:
        yield core
    finally:
        directory.release(core)


def make_topic(core: Core, name: str, partitions: int = 1, settings: Mapping[str, Value] | None = None) -> None:
    """Kept for ever unless `settings` say otherwise: the records below are of 1970."""
    core.catalog.create_topic(name, partitions, {"retention.ms": -1, **(settings or {})}, core.lay_out)


def batch(values: list[bytes], timestamp: int = 1000, producer: tuple[int, int, int] = (-1, -1, -1)) -> bytearray:
    """A sealed batch; `producer` is id, epoch, first sequence."""
    builder = Builder(1 << 20)
    assert builder.extend_values(values, 0, timestamp) == len(values)
    producer_id, epoch, sequence = producer
    return bytearray(builder.seal(0, None, producer_id, epoch, sequence))


def fill(partition: Partition, count: int, first: int = 0) -> None:
    """`count` batches of three records that say which they are."""
    for number in range(first, first + count):
        partition.append(batch([b"%d-%d" % (number, n) for n in range(3)], 1000 + number))


def contents(partition: Partition) -> list[bytes]:
    """All values, in order."""
    values: list[bytes] = []
    start = partition.ends().start
    with partition.reader(start) as reader:
        while data := reader.read():
            found = decode(data, form=TUPLES, from_offset=start, topic="t", partition=0)
            values += [value for _, value in found]
    return values
