"""What hostile clients do to a server: one function a recipe, each one round of it, on connections of its own.

A round ends by itself: when its responses are there, when the server closes the connection, or after PATIENCE_S. So the
same rounds can be aimed at a port that only accepts (`tests/kafka/hostile_load.py`).
"""

from __future__ import annotations

import functools
import random
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import zstandard

import klamm
from klamm.batch import CODECS
from klamm.batch.header import TRANSACTIONAL
from klamm.kafka.wire.codec import Api
from klamm.kafka.wire.frames import request_frame
from klamm.kafka.wire.messages import (
    ADD_PARTITIONS_TO_TXN,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_CONFIGS,
    DESCRIBE_GROUPS,
    END_TXN,
    FETCH,
    INIT_PRODUCER_ID,
    JOIN_GROUP,
    METADATA,
    PRODUCE,
    SYNC_GROUP,
)
from tests.kafka.connect import Raw
from tests.kafka.requests import FetchFrom, altered, fetching, producing, sealed
from tests.store.open_transactions import log_of

__all__ = ["ATTACKS", "Attack", "Sizes", "prepare"]

MIB = 1 << 20
PATIENCE_S = 1.0
FOREVER = 2**31 - 1
HIDDEN = 61  # bytes of a batch's header


class Sizes(NamedTuple):
    """How large the attacked topics are, and how much of each recipe one round does."""

    wide: int = 2500
    """Partitions of `wide`, each with a record of 40,000 bytes."""
    small_batches: int = 200_000
    aborted: int = 20_000
    bombs: int = 60
    bomb_bytes: int = 255 * MIB
    partitions: int = 10_000
    """Of a topic that is created and deleted."""
    created: int = 100
    """Topics that one Metadata request asks for."""


def prepare(store: klamm.Store, sizes: Sizes) -> None:
    """Create what the recipes attack."""
    bounded = {"retention.bytes": 64 * MIB, "segment.bytes": 16 * MIB}
    store.topics.create("wide", sizes.wide)
    for number in range(sizes.wide):
        store.append("wide", bytes(40_000), partition=number, acks=1)
    store.topics.create("small", 1, {"segment.bytes": 40 * MIB})
    for number in range(sizes.small_batches):
        store.append("small", b"%20d" % number, acks=1)
    store.topics.create("aborted", 1)
    partition = log_of(store, topic="aborted")
    for number in range(sizes.aborted):
        identity = {"producer_id": number, "producer_epoch": 0, "base_sequence": 0, "attributes": TRANSACTIONAL}
        partition.append(sealed([b"taken back"], **identity))
        partition.append_marker(number, 1, commit=False)
    for name in ("victim", "bombs", "ids", "transactions"):
        store.topics.create(name, 1, bounded)
    store.topics.create("expiring", 1, {"retention.ms": 3_600_000, "segment.bytes": MIB})


@contextmanager
def connected(address: str, count: int = 1, *, deaf: bool = False) -> Iterator[list[Raw]]:
    """Connections of one attacker; `deaf`: it reads nothing, and has no room for what it is sent."""
    with ExitStack() as stack:
        clients = []
        for _ in range(count):
            clients.append(stack.enter_context(Raw(address, "hostile", PATIENCE_S)))
            if deaf:
                clients[-1]._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        yield clients


@functools.cache
def frame_of(make: Callable[..., tuple[Api, int, dict[str, Any]]], *arguments: Any) -> bytes:
    """The bytes of a request, made once: an attacker has them ready."""
    api, version, fields = make(*arguments)
    return b"".join(request_frame(api, version, 1, "hostile", api.request(**fields)))


def shoot(address: str, frame: bytes, *, times: int = 1) -> None:
    """Send it so often, and wait for the responses."""
    with connected(address) as (raw,):
        raw.send_bytes(frame * times)
        for _ in range(times):
            raw.receive()


# ---- A1: a header that says the records are old


def _false_timestamp() -> tuple[Api, int, dict[str, Any]]:
    now_ms = time.time_ns() // 1_000_000
    batch = altered(sealed([(None, b"kept", None, now_ms)]), 35, ">q", 5)
    return PRODUCE, 9, producing({("expiring", 0): batch}, acks=-1)


def false_timestamps(address: str, chance: random.Random, sizes: Sizes) -> None:
    shoot(address, frame_of(_false_timestamp), times=10)


# ---- A2, A3: seeks


def seeks(address: str, chance: random.Random, sizes: Sizes) -> None:
    with connected(address) as (raw,):
        for _ in range(50):
            place = FetchFrom(chance.randrange(sizes.small_batches), 2000)
            raw.ask(FETCH, 12, **fetching({("small", 0): place}))


# ---- A4: small requests, large responses


def _joining(group: str, size: int) -> tuple[Api, int, dict[str, Any]]:
    protocol = JOIN_GROUP.request.Protocol(name="range", metadata=bytes(size))
    fields = {"group_id": group, "session_timeout_ms": 1_800_000, "rebalance_timeout_ms": 1000}
    return JOIN_GROUP, 3, {**fields, "protocol_type": "consumer", "protocols": [protocol]}


def described_groups(address: str, chance: random.Random, sizes: Sizes) -> None:
    """A member with all the metadata that a group may have, described again and again, and not read."""
    group = f"described-{chance.randrange(8)}"
    with connected(address) as (raw,):
        api, version, fields = _joining(group, 3 * MIB)
        joined = raw.ask(api, version, **fields)
        given = SYNC_GROUP.request.Assignment(member_id=joined.member_id, assignment=bytes(3 * MIB))
        member = {"group_id": group, "member_id": joined.member_id, "generation_id": joined.generation_id}
        raw.ask(SYNC_GROUP, 2, **member, assignments=[given])
    with connected(address, 4, deaf=True) as clients:
        for client in clients:
            client.send(DESCRIBE_GROUPS, 3, groups=[group] * 25)
        time.sleep(PATIENCE_S)


def _described_configs() -> tuple[Api, int, dict[str, Any]]:
    make = DESCRIBE_CONFIGS.request.Resource
    resources = [make(resource_type=2, resource_name="victim", configuration_keys=None)] * 20_000
    return DESCRIBE_CONFIGS, 4, {"resources": resources, "include_synonyms": True, "include_documentation": True}


def described_configs(address: str, chance: random.Random, sizes: Sizes) -> None:
    shoot(address, frame_of(_described_configs))


# ---- A5: groups that hold on to what their members said


def large_members(address: str, chance: random.Random, sizes: Sizes) -> None:
    for _ in range(3):
        with connected(address) as (raw,):
            api, version, fields = _joining(f"large-{chance.randrange(1000)}", chance.choice([MIB, 50 * MIB]))
            raw.ask(api, version, **fields)


# ---- A6: requests that take long


def _one_partition_often() -> tuple[Api, int, dict[str, Any]]:
    one = FETCH.request.Partition(partition=0, fetch_offset=0, partition_max_bytes=1)
    topic = FETCH.request.Topic(topic="victim", partitions=[one] * 60_000)
    return FETCH, 4, {**fetching({}, wait_ms=FOREVER, min_bytes=FOREVER), "topics": [topic]}


def sleeping_fetches(address: str, chance: random.Random, sizes: Sizes) -> None:
    with connected(address, 2) as clients:
        for client in clients:
            client.send_bytes(frame_of(_one_partition_often))
        time.sleep(PATIENCE_S)


def _all_topics() -> tuple[Api, int, dict[str, Any]]:
    return METADATA, 1, {"topics": None}


def pipelined_metadata(address: str, chance: random.Random, sizes: Sizes) -> None:
    with connected(address) as (raw,):
        raw.send_bytes(frame_of(_all_topics) * 1000)
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            raw.receive()


def _many_empty_records() -> tuple[Api, int, dict[str, Any]]:
    return PRODUCE, 9, producing({("victim", 0): sealed([b""] * 500_000)})


def large_batches(address: str, chance: random.Random, sizes: Sizes) -> None:
    shoot(address, frame_of(_many_empty_records))


# ---- A7: batches that decompress to a lot


def _bomb(size: int) -> tuple[Api, int, dict[str, Any]]:
    batch = bytearray(sealed([b""]))
    batch[HIDDEN:] = zstandard.ZstdCompressor(level=1).compress(bytes(size))
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    return PRODUCE, 9, producing({("bombs", 0): altered(batch, 21, ">h", CODECS["zstd"])})


def bombs(address: str, chance: random.Random, sizes: Sizes) -> None:
    frame = frame_of(_bomb, sizes.bomb_bytes)
    with connected(address, sizes.bombs) as clients:
        for client in clients:
            client.send_bytes(frame)
        for client in clients:
            client.receive()


# ---- A8: records that are not read


def deaf_readers(address: str, chance: random.Random, sizes: Sizes) -> None:
    places: dict[tuple[str, int], FetchFrom | int] = {
        ("wide", number): FetchFrom(0, MIB) for number in range(sizes.wide)
    }
    fields = fetching(places, max_bytes=FOREVER)
    with connected(address, 4, deaf=True) as clients:
        for client in clients:
            client.send(FETCH, 12, **fields)
        time.sleep(PATIENCE_S)


# ---- A9: producer ids


def producer_ids(address: str, chance: random.Random, sizes: Sizes) -> None:
    first = 1_000_000 + chance.randrange(1 << 40)
    frames = []
    for number in range(200):
        batch = sealed(1, producer_id=first + number, producer_epoch=0, base_sequence=0)
        request = PRODUCE.request(**producing({("ids", 0): batch}))
        frames.append(b"".join(request_frame(PRODUCE, 9, number, "hostile", request)))
    with connected(address) as (raw,):
        raw.send_bytes(b"".join(frames))
        for _ in frames:
            raw.receive()


# ---- A10, A11: topics


def _created(name: str, partitions: int) -> dict[str, Any]:
    topic = CREATE_TOPICS.request.Topic(name=name, num_partitions=partitions, replication_factor=1)
    return {"topics": [topic], "timeout_ms": 1000, "validate_only": False}


def short_lived_topics(address: str, chance: random.Random, sizes: Sizes) -> None:
    name = f"short-{chance.randrange(1 << 40)}"
    with Raw(address, "hostile", 10) as raw:
        raw.ask(CREATE_TOPICS, 5, **_created(name, sizes.partitions))
        raw.ask(DELETE_TOPICS, 3, topic_names=[name], timeout_ms=1000)


def created_by_metadata(address: str, chance: random.Random, sizes: Sizes) -> None:
    """Topics that one Metadata request creates; they are deleted, so that the next round is like this one."""
    names = [f"wished-{number}" for number in range(sizes.created)]
    topics = [METADATA.request.Topic(name=name) for name in names]
    with Raw(address, "hostile", 10) as raw:
        raw.ask(METADATA, 9, topics=topics, allow_auto_topic_creation=True)
        raw.ask(DELETE_TOPICS, 3, topic_names=names, timeout_ms=1000)


def catalog_changes(address: str, chance: random.Random, sizes: Sizes) -> None:
    with Raw(address, "hostile", 10) as raw:
        for number in range(5):
            name = f"changing-{number}"
            raw.ask(CREATE_TOPICS, 5, **_created(name, 1))
            raw.ask(DELETE_TOPICS, 3, topic_names=[name], timeout_ms=1000)


# ---- B1, B2, B3: fetches at the edge


def fetches_at_the_edge(address: str, chance: random.Random, sizes: Sizes) -> None:
    with connected(address) as (raw,):
        raw.ask(FETCH, 12, **fetching({("small", 0): 0}, min_bytes=5000, max_bytes=3000, wait_ms=2000))
        for _ in range(5):
            raw.ask(FETCH, 12, **fetching({("aborted", 0): FetchFrom(0, 1000)}, committed=True))


# ---- transactions


def transactions(address: str, chance: random.Random, sizes: Sizes) -> None:
    name = f"hostile-{chance.randrange(8)}"
    with connected(address) as (raw,):
        made = raw.ask(INIT_PRODUCER_ID, 4, transactional_id=name, transaction_timeout_ms=10_000)
        if made.error_code:
            return
        identity = {"producer_id": made.producer_id, "producer_epoch": made.producer_epoch}
        topic = ADD_PARTITIONS_TO_TXN.request.Topic(name="transactions", partitions=[0])
        for number in range(5):
            raw.ask(
                ADD_PARTITIONS_TO_TXN,
                3,
                v3_and_below_transactional_id=name,
                v3_and_below_producer_id=made.producer_id,
                v3_and_below_producer_epoch=made.producer_epoch,
                v3_and_below_topics=[topic],
            )
            batch = sealed(1, base_sequence=number, attributes=TRANSACTIONAL, **identity)
            raw.ask(PRODUCE, 9, transactional_id=name, **producing({("transactions", 0): batch}, acks=-1))
            raw.ask(END_TXN, 3, transactional_id=name, committed=bool(number % 2), **identity)


# ---- connections


def half_requests(address: str, chance: random.Random, sizes: Sizes) -> None:
    with connected(address, 100) as clients:
        for client in clients:
            client.send_bytes((60 * MIB).to_bytes(4, "big") + chance.randbytes(5000))
        time.sleep(PATIENCE_S)


def noise(address: str, chance: random.Random, sizes: Sizes) -> None:
    whole = frame_of(_false_timestamp)
    for _ in range(20):
        with connected(address) as (raw,):
            frame = bytearray(whole)
            for _ in range(4):
                frame[chance.randrange(4, len(frame))] = chance.randrange(256)
            raw.send_bytes(bytes(frame))
            raw._socket.settimeout(0.05)
            try:
                raw.receive()
            except (OSError, EOFError):
                pass


class Attack(NamedTuple):
    run: Callable[[str, random.Random, Sizes], None]
    pause_s: float = 0.5
    """How long the attacker rests between rounds."""


ATTACKS = tuple(
    Attack(run)
    for run in (
        false_timestamps,
        seeks,
        described_groups,
        described_configs,
        large_members,
        sleeping_fetches,
        pipelined_metadata,
        large_batches,
        bombs,
        deaf_readers,
        producer_ids,
        short_lived_topics,
        created_by_metadata,
        catalog_changes,
        fetches_at_the_edge,
        transactions,
        half_requests,
        noise,
    )
)
