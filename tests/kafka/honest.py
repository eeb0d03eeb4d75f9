"""Honest clients of a server, which know what they were promised: each request has a response without an error, and
what was acknowledged is there.

Each runs until `end`, in a process of its own, and returns how long each of its requests took.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import klamm
from klamm.kafka.wire.messages import LEAVE_GROUP, METADATA
from tests.kafka.connect import Raw
from tests.kafka.member import Client
from tests.kafka.requests import fetch, produce, sealed, values
from tests.procs import PATIENCE

__all__ = ["CLIENTS", "TOPIC", "Connect", "Seen", "follow", "lost_records", "write_to_disk", "write_to_memory"]

TOPIC = "orders"
PAUSE_S = 0.004  # between requests: clients that have other things to do, too
ROUNDS_OF_MEMBER = 10  # of its requests, between two heartbeats


@dataclass
class Seen:
    """What one client has seen."""

    latencies_s: list[float] = field(default_factory=list)
    acked: dict[int, bytes] = field(default_factory=dict)
    """Offset and value of each record that was acknowledged."""
    partition: int = 0

    def timed(self, ask: Callable[[], object]) -> None:
        started = time.perf_counter()
        ask()
        self.latencies_s.append(time.perf_counter() - started)
        time.sleep(PAUSE_S)


Connect = Callable[[str, str, float], Raw]
"""Makes a connection: address, client id, seconds of patience."""


def _write(address: str, end: float, partition: int, acks: int, connect: Connect) -> Seen:
    seen = Seen(partition=partition)
    with connect(address, "honest", PATIENCE) as raw:

        def send() -> None:
            value = b"%d-%d" % (partition, time.monotonic_ns())
            made = produce(raw, TOPIC, sealed([value]), partition, acks=acks)
            assert made.error_code == 0, made
            assert made.base_offset not in seen.acked
            seen.acked[made.base_offset] = value

        while time.monotonic() < end:
            seen.timed(send)
    return seen


def write_to_disk(address: str, end: float, connect: Connect = Raw) -> Seen:
    return _write(address, end, 0, -1, connect)


def write_to_memory(address: str, end: float, connect: Connect = Raw) -> Seen:
    return _write(address, end, 1, 1, connect)


def follow(address: str, end: float, connect: Connect = Raw) -> Seen:
    """Read what `write_to_memory` writes, each record once and in order; the time is from sending to arrival."""
    seen = Seen()
    with connect(address, "honest", PATIENCE) as raw:
        offset = start = fetch(raw, TOPIC, 0, 1).high_watermark
        while time.monotonic() < end:
            for value in values(fetch(raw, TOPIC, offset, 1, wait_ms=500)):
                assert value is not None
                sent_ns = int(value.split(b"-")[1])
                seen.latencies_s.append((time.monotonic_ns() - sent_ns) / 1e9)
                offset += 1
    assert offset > start
    return seen


def take_part(address: str, end: float) -> Seen:
    """A member of a group that commits, looks at its offsets and at its topic, and is never put out of the group."""
    seen, offset = Seen(), 0
    asked = [METADATA.request.Topic(name=TOPIC)]
    with Client(address) as client:
        member = client.become_member(group="honest", session_timeout_ms=int(PATIENCE * 1000))
        while time.monotonic() < end:
            for _ in range(ROUNDS_OF_MEMBER):
                offset += 1

                def commit() -> None:
                    assert client.commit({(TOPIC, 0): offset}, member, group="honest") == [0]  # noqa: B023

                def look() -> None:
                    assert client.offsets("honest") == {(TOPIC, 0): offset}  # noqa: B023
                    (topic,) = client.ask(METADATA, 12, topics=asked, allow_auto_topic_creation=False).topics
                    assert topic.error_code == 0

                seen.timed(commit)
                seen.timed(look)
            assert client.heartbeat(member, "honest") == 0
        client.ask(LEAVE_GROUP, 2, group_id="honest", member_id=member.member_id)
    return seen


CLIENTS: tuple[Callable[[str, float], Seen], ...] = (write_to_disk, write_to_memory, follow, take_part)


def lost_records(store: Path, seen: Seen) -> list[int]:
    """Return the offsets of acknowledged records that are not in the store, or are others there."""
    options: dict[str, Any] = {"start": "earliest", "partitions": [seen.partition], "wait": 0}
    with klamm.open(store) as opened, opened.consumer(TOPIC, **options) as consumer:
        found = {record.offset: record.value for record in consumer}
    return [offset for offset, value in seen.acked.items() if found.get(offset) != value]
