"""Quotas with real clients: what they get is the rate, ±10 %. It is no more in the time that it took, and they are told
to wait no longer than that needs: a machine that is slow makes neither wrong.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ThrottleEvent, TopicPartition

import klamm
from klamm.kafka.quotas import BURST_S, Bucket
from klamm.kafka.wire.messages import API_VERSIONS, METADATA
from tests.interop.confluents import consumer, producer, read
from tests.interop.raw import ConnectionEnded, Raw
from tests.kafka.connect import Served, served
from tests.kafka.test_quotas import ADDRESS, ANYONE, set_quotas

RATE = 400_000
SIZE = 20_000
NEEDED = 1.5 * RATE  # beyond what may be at once, so that clients wait for half a second
EXACTLY = 1.1


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    with klamm.open(tmp_path / "events") as store:
        store.topics.create("orders")
    with served(tmp_path / "events") as running:
        yield running


class Told:
    """How long a client was told to wait, and how long it took from the beginning."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.waits: list[float] = []

    def __call__(self, event: ThrottleEvent) -> None:
        self.waits.append(event.throttle_time)

    def check(self, amount: float, rate: float) -> None:
        took_s = time.monotonic() - self.began
        last = self.waits[-1] if self.waits else 0.0
        assert amount <= rate * (BURST_S + took_s + last) * EXACTLY, "no more than the rate"
        assert sum(self.waits) <= max(0.0, amount / rate - BURST_S) * EXACTLY, "no longer than it has to"


def values(count: int) -> list[bytes]:
    chance = random.Random(7)
    return [chance.randbytes(SIZE) for _ in range(count)]


def test_a_producer_gets_its_rate(server: Served) -> None:
    set_quotas(server, {ANYONE: {"producer_byte_rate": RATE}})
    told = Told()
    made = producer(server.address, throttle_cb=told, linger_ms=0, batch_num_messages=1)
    sent = values(int(NEEDED / SIZE) + 1)
    for value in sent:
        made.produce("orders", value, partition=0)
        assert made.flush(60) == 0
    taken = server.broker.metrics.bytes_in
    assert sum(map(len, sent)) <= taken
    told.check(taken, RATE)


def test_a_consumer_gets_its_rate(server: Served) -> None:
    made = producer(server.address)
    for value in values(int(NEEDED / SIZE) + 1):
        made.produce("orders", value, partition=0)
    assert made.flush(60) == 0
    set_quotas(server, {ANYONE: {"consumer_byte_rate": RATE}})
    before, told = server.broker.metrics.bytes_out, Told()
    settings: dict[str, Any] = {"throttle_cb": told, "fetch_message_max_bytes": 2 * SIZE, "fetch_max_bytes": 2 * SIZE}
    settings["message_max_bytes"] = 2 * SIZE
    with consumer(server.address, **settings) as reader:
        reader.assign([TopicPartition("orders", 0, 0)])
        read(reader, int(NEEDED / SIZE) + 1)
        taken = server.broker.metrics.bytes_out - before
        told.check(taken, RATE)


def test_requests_get_their_share_of_the_time(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which nothing on the wire says how much it was: what is taken of the bucket is."""
    percent, taken, take = 2.0, list[float](), Bucket.take

    def counted(self: Bucket, amount: float, now: float) -> float:
        taken.append(amount)
        return take(self, amount, now)

    monkeypatch.setattr(Bucket, "take", counted)
    set_quotas(server, {ANYONE: {"request_percentage": percent}})
    told, rate = Told(), percent / 100
    with server.dial() as raw:
        while sum(told.waits) < 0.3:
            wait_ms = raw.ask(METADATA, 12, topics=None).throttle_time_ms
            if wait_ms:
                assert wait_ms <= 1000, "as in Kafka, whatever its debt"
                told.waits.append(wait_ms / 1000)
    told.waits = [each - 0.001 for each in told.waits]  # of which each was rounded up
    took_s = time.monotonic() - told.began
    if max(told.waits) < 0.99:  # else more was taken at once than a second pays for
        assert sum(taken) <= rate * (BURST_S + took_s + told.waits[-1]) * EXACTLY, "no more than the rate"
    assert sum(told.waits) <= (sum(taken) / rate - BURST_S) * EXACTLY, "no longer than it has to"


def test_connections_get_their_rate(server: Served) -> None:
    """Each one that is refused is closed as late as the next one may come."""
    rate = 20.0
    set_quotas(server, {ADDRESS: {"connection_creation_rate": rate}})
    began, accepted, refused = time.monotonic(), 0, 0
    with ExitStack() as opened:
        while accepted < rate * (BURST_S + 0.4):
            try:
                raw = opened.enter_context(Raw(server.address))
                assert raw.ask(API_VERSIONS, 0).error_code == 0
                accepted += 1
            except (ConnectionEnded, ConnectionError):  # closed before it has asked, or after
                refused += 1
        took_s = time.monotonic() - began
    assert accepted <= (rate * (BURST_S + took_s)) * EXACTLY, "no more than the rate"
    assert refused <= accepted - rate * BURST_S + 2, "a client that has waited is let in"
