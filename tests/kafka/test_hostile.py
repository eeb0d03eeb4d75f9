"""Frames that were right once: whatever is changed in them, there is an answer or the connection ends, one line in the
log at most, and the server goes on.
"""

from __future__ import annotations

import logging
import random
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from klamm.kafka.apis import TABLE
from klamm.kafka.call import SupportedApi
from klamm.kafka.wire import messages
from klamm.kafka.wire.frames import read_response, request_frame
from tests.crash.cases import seed_of
from tests.kafka.connect import ConnectionEnded, Raw, Served, served
from tests.kafka.requests import fetch, fetching, produce, producing, sealed, values
from tests.procs import until

FRAMES = 200
AT_ONCE = 20  # connections


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = tmp_path_factory.mktemp("hostile") / "events"
    with served(path, default_partitions=1, transaction_max_timeout_ms=60_000) as running:
        with running.dial() as raw:
            raw.create("orders", 2)
            produce(raw, "orders", sealed(10))
        yield running


def fields_of(api: Any) -> dict[str, Any]:
    """Something sensible to begin with."""
    request = api.request
    match api.name:
        case "Produce":
            return producing({("orders", 0): sealed(3), ("orders", 1): sealed(2, codec=1)})
        case "Fetch":
            return fetching({("orders", 0): 0, ("orders", 1): 0}, wait_ms=10)
        case "Metadata":
            return {"topics": [request.Topic(name="orders")]}
        case "ListOffsets":
            asked = request.Partition(partition_index=0, timestamp=-1)
            return {"replica_id": -1, "topics": [request.Topic(name="orders", partitions=[asked])]}
        case "JoinGroup":
            return {
                "group_id": "group",
                "session_timeout_ms": 6000,
                "rebalance_timeout_ms": 10,
                "member_id": "",
                "protocol_type": "consumer",
                "protocols": [request.Protocol(name="range", metadata=b"")],
            }
        case "CreateTopics":
            return {"topics": [request.Topic(name="new", num_partitions=1, replication_factor=1)], "timeout_ms": 10}
        case "InitProducerId":
            return {"transactional_id": None, "transaction_timeout_ms": 1000}
        case "FindCoordinator":
            return {"key": "group", "key_type": 0, "coordinator_keys": ["group"]}
    return {}


def mutated(chance: random.Random, data: bytes) -> bytes:
    """Some bytes of the payload changed, removed or added; its size is right, most of the time."""
    body = bytearray(data[4:])
    for _ in range(chance.choice([1, 1, 1, 2, 5])):
        at = chance.randrange(8 if len(body) > 8 and chance.random() < 0.9 else 0, len(body) or 1)
        match chance.randrange(6):
            case 0:
                body[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                body[at : at + 1] = bytes([body[at] ^ 1 << chance.randrange(8)]) if at < len(body) else b""
            case 2:
                del body[at : at + chance.randrange(1, 9)]
            case 3:
                body[at:at] = chance.randbytes(chance.randrange(1, 9))
            case 4:
                body[at : at + 4] = chance.choice(
                    [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0", b"\0\0\0\0"]
                )
            case 5:
                del body[at:]
    size = len(body) if chance.random() < 0.95 else chance.randrange(2 * len(body) + 2)
    return size.to_bytes(4, "big") + body


def until_over(raw: Raw) -> int:
    """How many frames come until the connection ends."""
    count = 0
    try:
        while True:
            raw.receive()
            count += 1
    except (ConnectionEnded, OSError):
        return count


@pytest.mark.parametrize("row", TABLE.values(), ids=lambda row: row.api.name)
def test_a_mutated_frame_is_answered_or_ends_its_connection_and_nothing_else(
    server: Served, row: SupportedApi, caplog: pytest.LogCaptureFixture
) -> None:
    seed = seed_of()
    chance = random.Random(seed)
    failed = server.server.metrics.failed
    with caplog.at_level(logging.INFO):
        for start in range(0, FRAMES, AT_ONCE):
            local_address = []
            for _ in range(start, start + AT_ONCE):
                version = chance.randrange(row.min_version, row.max_version + 1)
                whole = b"".join(request_frame(row.api, version, 7, "x", row.api.request(**fields_of(row.api))))
                raw = Raw(server.address, patience=10)
                raw.send_bytes(mutated(chance, whole))
                raw._socket.shutdown(socket.SHUT_WR)
                local_address.append(raw)
            for raw in local_address:
                assert until_over(raw) <= 2
                raw.close()
    assert server.server.metrics.failed == failed, [record.getMessage() for record in caplog.records]
    loud = [record for record in caplog.records if record.levelno > logging.WARNING]
    assert loud == [], loud[0].getMessage()
    with server.dial() as raw:
        base = produce(raw, "orders", sealed([b"still here"])).base_offset
        assert values(fetch(raw, "orders", base)) == [b"still here"]


def test_nothing_is_left_of_them(server: Served) -> None:
    listener = server.server.listener
    until(lambda: server.call(lambda: len(listener.connections)) == 0, "no connections")
    assert server.call(lambda: listener.budget.used) == 0
    assert server.call(lambda: len(listener.budget)) == 0
    until(lambda: server.call(lambda: len(server.broker.purgatory)) == 0, "nobody is parked")


def test_every_request_with_nothing_in_it(server: Served) -> None:
    """All defaults, in every version of every supported API: an answer that can be read."""
    for row in TABLE.values():
        for version in range(row.min_version, row.max_version + 1):
            with Raw(server.address, patience=10) as raw:
                if row.api is messages.PRODUCE:
                    told = raw.ask(row.api, version, acks=1)
                elif row.api is messages.JOIN_GROUP:
                    told = raw.ask(row.api, version, group_id="", session_timeout_ms=6000)
                else:
                    raw.send(row.api, version)
                    told = read_response(row.api, version, raw.receive())[1]
                assert told is not None
