"""connections.max.idle.ms: Apache Kafka and Klamm close the same connections."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest

from klamm.kafka.wire.messages import API_VERSIONS, FETCH
from tests.interop.java_tools import need_kafka
from tests.interop.kafka_broker import KafkaBroker
from tests.interop.raw import Raw
from tests.kafka.requests import fetching
from tests.procs import PATIENCE, until
from tests.serving import serving

IDLE_MS = 3000
Limited = Callable[[Path], AbstractContextManager[str]]


@contextmanager
def klamm_with_limit(path: Path) -> Iterator[str]:
    with serving(path, "--set", f"connections.max.idle.ms={IDLE_MS}") as process:
        yield process.address


@contextmanager
def kafka_with_limit(path: Path) -> Iterator[str]:
    need_kafka()
    broker = KafkaBroker(connections_max_idle_ms=str(IDLE_MS))
    try:
        broker.wait()
        yield broker.address
    finally:
        broker.stop()


def closed_after(raw: Raw, since: float) -> float:
    """Wait until the server closes the connection, which sends nothing before."""
    raw._socket.settimeout(PATIENCE)
    assert raw._socket.recv(1) == b""
    return time.monotonic() - since


@pytest.mark.parametrize(
    "broker", [klamm_with_limit, pytest.param(kafka_with_limit, marks=pytest.mark.jvm)], ids=["klamm", "kafka"]
)
def test_a_fetch_that_waits_does_not_keep_its_connection_open(broker: Limited, tmp_path: Path) -> None:
    with broker(tmp_path / "events") as address, ExitStack() as dialled:

        def creates() -> bool:
            try:
                with Raw(address) as raw:
                    raw.create("orders")
            except (AssertionError, OSError):
                return False  # it begins
            return True

        until(creates, "the topic is there", PATIENCE)
        idle, waiting = (dialled.enter_context(Raw(address)) for _ in range(2))
        for raw in (idle, waiting):
            raw.ask(API_VERSIONS, 0)
        began = time.monotonic()
        waiting.send(FETCH, 11, **fetching({("orders", 0): 0}, wait_ms=10 * IDLE_MS))
        for raw in (idle, waiting):
            assert IDLE_MS / 1000 * 0.8 < closed_after(raw, began) < IDLE_MS / 1000 * 5
