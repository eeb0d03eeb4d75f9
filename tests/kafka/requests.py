"""Produce and Fetch by hand, for tests of the door: one partition a call unless said otherwise."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from klamm.batch import RECORDS, Builder, Record, crc32c, decode, walk
from klamm.batch.header import HEADER_SIZE
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.wire.messages import FETCH, PRODUCE
from klamm.kafka.wire.structs import Struct
from tests.kafka.connect import Raw

__all__ = [
    "FOREVER_MS",
    "FetchFrom",
    "altered",
    "batches_of",
    "fetch",
    "fetch_many",
    "fetching",
    "offsets",
    "produce",
    "produce_many",
    "producing",
    "sealed",
    "values",
]

NOW = time.time_ns() // 1_000_000  # else retention takes them

FOREVER_MS = 600_000  # a fetch that waits for so long fails: clients here give up before

PRODUCE_VERSION = 12  # the latest by name
FETCH_VERSION = 12


def sealed(given: int | Iterable[Any] = 1, *, codec: int = 0, padding: int = 0, **identity: int) -> bytearray:
    """A batch of so many records, or of these values, or of these (key, value, ...)."""
    builder = Builder(300 << 20)
    for each in [b"%d" % n + b"." * padding for n in range(given)] if isinstance(given, int) else given:
        builder.add(*(each if isinstance(each, tuple) else (None, each, None, NOW)))
    return bytearray(builder.seal(codec, **identity))


def altered(batch: bytes | bytearray, position: int, layout: str, value: int, *, crc: bool = True) -> bytearray:
    """A field of the header changed, and its checksum with it."""
    batch = bytearray(batch)
    struct.pack_into(layout, batch, position, value)
    if crc:
        struct.pack_into(">I", batch, 17, crc32c(batch[21:]))
    return batch


def producing(
    batches: Mapping[tuple[str, int], Any], *, acks: int = 1, ids: Mapping[str, bytes] = {}
) -> dict[str, Any]:
    """The fields of a request."""
    topics: dict[str, list[Struct]] = {}
    for (topic, index), batch in batches.items():
        records = None if batch is None else bytes(batch)
        topics.setdefault(topic, []).append(PRODUCE.request.Partition(index=index, records=records))
    data = [
        PRODUCE.request.Topic(name=name, topic_id=ids.get(name, bytes(16)), partition_data=partitions)
        for name, partitions in topics.items()
    ]
    return {"acks": acks, "timeout_ms": 30_000, "topic_data": data}


def produce_many(
    raw: Raw, batches: Mapping[tuple[str, int], Any], *, acks: int = 1, version: int = PRODUCE_VERSION
) -> dict[tuple[str, int], Struct]:
    answered = raw.ask(PRODUCE, version, **producing(batches, acks=acks))
    return {(topic.name, each.index): each for topic in answered.responses for each in topic.partition_responses}


def produce(
    raw: Raw, topic: str, batch: Any, partition: int = 0, *, acks: int = 1, version: int = PRODUCE_VERSION
) -> Struct:
    return produce_many(raw, {(topic, partition): batch}, acks=acks, version=version)[topic, partition]


class FetchFrom(NamedTuple):
    """A partition of a Fetch request: from where on, and how much."""

    offset: int
    max_bytes: int = 1 << 20
    leader_epoch: int = -1
    last_epoch: int = -1


def fetching(
    places: Mapping[tuple[str, int], FetchFrom | int],
    *,
    wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 50 << 20,
    committed: bool = False,
    ids: Mapping[str, bytes] = {},
) -> dict[str, Any]:
    """The fields of a request."""
    topics: dict[str, list[Struct]] = {}
    for (topic, number), place in places.items():
        place = place if isinstance(place, FetchFrom) else FetchFrom(place)
        topics.setdefault(topic, []).append(
            FETCH.request.Partition(
                partition=number,
                current_leader_epoch=place.leader_epoch,
                fetch_offset=place.offset,
                last_fetched_epoch=place.last_epoch,
                partition_max_bytes=place.max_bytes,
            )
        )
    asked = [
        FETCH.request.Topic(topic=name, topic_id=ids.get(name, bytes(16)), partitions=partitions)
        for name, partitions in topics.items()
    ]
    return {
        "max_wait_ms": wait_ms,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "isolation_level": int(committed),
        "topics": asked,
    }


def fetch_many(
    raw: Raw, places: Mapping[tuple[str, int], FetchFrom | int], *, version: int = FETCH_VERSION, **options: Any
) -> dict[tuple[str, int], Struct]:
    answered = raw.ask(FETCH, version, **fetching(places, **options))
    assert answered.error_code == 0
    return {(topic.topic, each.partition_index): each for topic in answered.responses for each in topic.partitions}


def fetch(
    raw: Raw,
    topic: str,
    offset: int,
    partition: int = 0,
    *,
    partition_max_bytes: int = 1 << 20,
    leader_epoch: int = -1,
    last_epoch: int = -1,
    **options: Any,
) -> Struct:
    place = FetchFrom(offset, partition_max_bytes, leader_epoch, last_epoch)
    return fetch_many(raw, {(topic, partition): place}, **options)[topic, partition]


def batches_of(data: Any) -> list[bytes]:
    """Whole batches, each as it is."""
    found, at = [], 0
    for header in walk(data):
        found.append(bytes(data[at : at + header.size]))
        at += header.size
    assert at == len(data), f"{len(data) - at} bytes are no whole batch"
    return found


def _records(answered: Struct) -> list[Record]:
    assert answered.error_code == ErrorCode.NONE, ErrorCode(answered.error_code)
    return decode(answered.records, form=RECORDS) if len(answered.records) >= HEADER_SIZE else []


def values(answered: Struct) -> Sequence[bytes | None]:
    return [record.value for record in _records(answered)]


def offsets(answered: Struct) -> list[int]:
    return [record.offset for record in _records(answered)]
