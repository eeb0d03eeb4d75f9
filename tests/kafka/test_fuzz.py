"""Frames of real clients, changed in every way, and random ones; before a login and after it: none raises, and nothing
is left of them.

Some thousands here, without the loop's reads; in `make soak` for KLAMM_SOAK_SECONDS (an hour), with memory that must
stay flat. KLAMM_SEED repeats what was sent.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.kafka.apis import TABLE
from klamm.kafka.wire.frames import request_frame
from klamm.kafka.wire.messages import API_VERSIONS
from klamm.store.users import Users
from tests.crash.cases import seed_of, tell_seed
from tests.kafka.connect import Raw, Served, served
from tests.kafka.memory_channel import MemoryChannel
from tests.kafka.recorded import load
from tests.kafka.requests import produce, sealed
from tests.kafka.test_hostile import fields_of, mutated
from tests.kafka.test_limits import rss

SOAK_SECONDS = float(os.environ.get("KLAMM_SOAK_SECONDS", "3600"))
FRAMES = 4_000
AT_ONCE = 100  # so many are sent within the patience of a test, also on a machine that has other things to do
PER_CONNECTION = 20
MIB = 1 << 20
LOGIN_APIS = {17, 18, 36}


@cache
def seeds() -> list[bytes]:
    """Frames of four clients and kcat, and of each API that they do not use; without their sizes."""
    recorded = [request.frame for request in load()]
    for row in TABLE.values():
        for version in {row.min_version, row.max_version}:
            request = row.api.request(**fields_of(row.api))
            recorded.append(b"".join(request_frame(row.api, version, 7, "x", request))[4:])
    return recorded


def frame_of(chance: random.Random, frames: list[bytes]) -> bytes:
    kind = chance.random()
    if kind < 0.1:
        body = chance.randbytes(chance.choice([0, 1, 7, 8, 40, 400]))
        return len(body).to_bytes(4, "big") + body
    whole = chance.choice(frames)
    if kind < 0.2:  # the header of one, the rest of another
        other = chance.choice(frames)
        whole = whole[: chance.randrange(len(whole) + 1)] + other[chance.randrange(len(other) + 1) :]
    framed = len(whole).to_bytes(4, "big") + whole
    return framed if kind > 0.95 or not whole else mutated(chance, framed)


async def attack(server: Served, chance: random.Random, count: int, *, is_logged_in: bool) -> int:
    """Send so many frames, on connections of a SASL listener; return how many bytes were responded."""
    frames = seeds()
    if not is_logged_in:  # most of those would only close the connection
        frames = [each for each in frames if each[1] in LOGIN_APIS] * 3 + frames
    listener, endpoint = server.server.listener, server.server.endpoints[0]
    received = sent = 0
    while sent < count:
        client = MemoryChannel(listener, endpoint)
        if is_logged_in:
            client.log_in("alice")
        for _ in range(PER_CONNECTION):
            client.receive(frame_of(chance, frames))
            sent += 1
            for _ in range(5):
                await asyncio.sleep(0)
            received += client.drain()
            if client.is_closed:
                break
        client.close()
        await asyncio.sleep(0)
    return received


def make_store(path: Path) -> None:
    with klamm.open(path) as store:
        store.topics.create("orders", partitions=2)
        Users(store._acquired().catalog).add("alice", "wonderland")


def settings() -> dict[str, Any]:
    return {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        "connection.failed.authentication.delay.ms": 0,
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,PLAIN",
        "audit.topic": "audit",
        "default.partitions": 1,
    }


def fuzz(path: Path, chance: random.Random, count: int, caplog: pytest.LogCaptureFixture) -> None:
    make_store(path)
    with served(path, **settings()) as server:
        listener, metrics = server.server.listener, server.broker.metrics
        with caplog.at_level(logging.WARNING):
            for is_logged_in in (False, True):
                for _ in range(0, count // 2, AT_ONCE):
                    server.run(attack(server, chance, AT_ONCE, is_logged_in=is_logged_in))
        loud = [record for record in caplog.records if record.levelno > logging.WARNING]
        assert loud == [], loud[0].getMessage()
        assert metrics.failed == 0
        assert metrics.malformed > 0 and metrics.unauthenticated_requests > 0
        deadline = time.monotonic() + 30
        while server.call(lambda: len(listener.connections)) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.call(lambda: (len(listener.connections), listener.budget.used, listener.budget.ahead)) == (
            0,
            0,
            0,
        )
        with Raw(f"127.0.0.1:{server.server.endpoints[1].port}") as raw:
            assert raw.ask(API_VERSIONS, 0).error_code == 0
            raw.create("still-here")
            assert produce(raw, "still-here", sealed(1)).error_code == 0


def test_there_are_requests_of_four_clients() -> None:
    assert {request.client for request in load()} >= {"aiokafka", "confluent-kafka", "java", "kafka-python"}
    assert all(len(request.frame) >= 8 for request in load())


def test_no_frame_raises_before_a_login_or_after_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fuzz(tmp_path / "events", random.Random(seed_of()), FRAMES, caplog)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_no_frame_raises_for_an_hour_and_memory_stays_flat(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    seed = seed_of()
    until, sizes, number = time.monotonic() + SOAK_SECONDS, [], 0
    while time.monotonic() < until or number < 4:
        tell_seed(seed + number)  # of this round, which is the first one with that KLAMM_SEED
        fuzz(tmp_path / f"events-{number}", random.Random(seed + number), 10 * FRAMES, caplog)
        caplog.clear()
        number += 1
        gc.collect()
        sizes.append(rss(os.getpid()))
    warm = sizes[min(3, len(sizes) - 1)]
    assert max(sizes[3:]) - warm < 64 * MIB, [size // MIB for size in sizes]
