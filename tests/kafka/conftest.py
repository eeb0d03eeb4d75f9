"""A store with one topic, its server, and clients. Tests that want another store or server make their own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import klamm
from tests.kafka.connect import Raw, Served, served
from tests.kafka.member import Client

ROOT = Path(__file__).parents[2]


@pytest.fixture
def disk_path() -> Iterator[Path]:
    """A directory on a disk: temporary files may be in memory, where the kernel forgets nothing and tells nothing."""
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as path:
        yield Path(path)


@pytest.fixture
def store(store: klamm.Store) -> klamm.Store:
    store.topics.create("orders", partitions=4)
    return store


@pytest.fixture
def server(store: klamm.Store) -> Iterator[Served]:
    with served(Path(store.path)) as running:
        yield running


@pytest.fixture
def raw(server: Served) -> Iterator[Raw]:
    with server.dial() as local_address:
        yield local_address


@pytest.fixture
def client(server: Served) -> Iterator[Client]:
    with Client(server.address) as local_address:
        yield local_address
