"""Stores of three kinds under the same tests: a directory, `klamm serve`, and a real Apache Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import klamm
from tests.interop.brokers import _apache_ahead, apache_broker, fresh, klamm_broker  # noqa: F401

KINDS = [
    "directory",
    "server",
    pytest.param("apache", marks=pytest.mark.jvm),
]


@pytest.fixture(params=KINDS)
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """What `klamm.open` opens."""
    if request.param == "directory":
        return str(tmp_path / "events")
    broker = request.getfixturevalue("klamm_broker" if request.param == "server" else "apache_broker")
    return f"kafka://{broker.address}?session.timeout.ms=6000&heartbeat.interval.ms=200"


@pytest.fixture
def store(address: str) -> Iterator[klamm.Store]:
    with klamm.open(address) as opened:
        yield opened


@pytest.fixture
def topic(store: klamm.Store) -> klamm.Topic:
    """A topic of four partitions, which keeps records however old they say they are."""
    return store.topics.create(fresh("orders"), 4, retention_ms=-1)
