"""Logs that are compacted, for tests: what was appended, and what must be left of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from klamm.batch import RECORDS, Builder, decode, walk
from klamm.batch.header import TRANSACTIONAL
from klamm.log import segment
from klamm.log.partition import Partition
from tests.log.logs import records
from tests.rig import index_of

DAY = 24 * 3600 * 1000


class Sent(NamedTuple):
    """A record as it was appended."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...] = ()


def sealed(given: Iterable[Sequence[Any]], *, codec: int = 0, **identity: int) -> bytearray:
    """A batch of (key, value[, headers[, timestamp]])."""
    builder = Builder(64 << 20)
    for record in given:
        builder.add(*record)
    return bytearray(builder.seal(codec, **identity))


def in_transaction(producer: int, epoch: int, given: Iterable[Sequence[Any]], sequence: int = 0) -> bytearray:
    return sealed(given, producer_id=producer, producer_epoch=epoch, base_sequence=sequence, attributes=TRANSACTIONAL)


def append(partition: Partition, given: Iterable[Sequence[Any]], **options: int) -> list[Sent]:
    """Append a batch: its records, as they must be read."""
    batch = sealed(given, **options)
    base = partition.append(batch)
    found = decode(batch, form=RECORDS)
    return [Sent(base + n, r.key, r.value, r.timestamp, tuple(r.headers)) for n, r in enumerate(found)]


def put(partition: Partition, *pairs: tuple[bytes | None, bytes | None]) -> list[Sent]:
    """Each pair in a batch of its own."""
    return [sent for number, pair in enumerate(pairs) for sent in append(partition, [(*pair, None, 1000 + number)])]


def seen(partition: Partition, start: int | None = None, max_bytes: int = 1 << 20) -> list[Sent]:
    """What a reader gets."""
    start = partition.ends().start if start is None else start
    return [Sent(r.offset, r.key, r.value, r.timestamp, tuple(r.headers)) for r in records(partition, start, max_bytes)]


def latest(sent: Iterable[Sent]) -> list[Sent]:
    """The latest of each key, and whatever has no key."""
    last = {record.key: record.offset for record in sent}
    return [record for record in sent if record.key is None or last[record.key] == record.offset]


def roll(partition: Partition) -> None:
    partition.log.lock()
    try:
        partition.log.roll()
    finally:
        partition.log.unlock()


def sizes(partition: Partition) -> list[int]:
    return [Path(segment.path_of(partition.directory, base)).stat().st_size for base in partition.segments()]


def indexes_are_true(partition: Partition) -> int:
    """Every entry points at a batch, or at the end of its segment, and tells the truth. How many there are."""
    count = 0
    found = partition.segments()
    for base, following in zip(found, [*found[1:], partition.snapshot().next_offset], strict=True):
        positions, at, youngest = {}, 0, -1
        for header in walk(Path(segment.path_of(partition.directory, base)).read_bytes()):
            positions[at] = (header.base_offset, youngest)
            at += header.size
            youngest = max(youngest, header.max_timestamp)
        positions[at] = (following, youngest)
        with index_of(partition, base) as index:
            for number in range(index.count):
                entry = index.entry(number)
                assert entry is not None
                assert positions[entry.position] == (entry.offset, entry.max_timestamp)
                count += 1
    return count


__all__ = [
    "DAY",
    "Sent",
    "append",
    "in_transaction",
    "indexes_are_true",
    "latest",
    "put",
    "roll",
    "sealed",
    "seen",
    "sizes",
]
