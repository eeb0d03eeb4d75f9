"""A store with a topic of three partitions, its transaction coordinator, and clients of both kinds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import klamm
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.transaction_coordinator import TransactionCoordinator
from tests.kafka.producing import Client, serving

NONE = ErrorCode.NONE


@pytest.fixture
def store(path: Path) -> Iterator[klamm.Store]:
    with klamm.open(path) as opened:
        opened.topics.create("t", 3)
        yield opened


@pytest.fixture
def coordinator(store: klamm.Store) -> Iterator[TransactionCoordinator]:
    with serving(store) as made:
        yield made


@pytest.fixture(params=[False, True], ids=["older", "kip-890"])
def client(request: pytest.FixtureRequest, store: klamm.Store, coordinator: TransactionCoordinator) -> Client:
    made = Client(store, coordinator, bumps=request.param)
    assert made.init() is NONE
    return made


@pytest.fixture
def older(store: klamm.Store, coordinator: TransactionCoordinator) -> Client:
    made = Client(store, coordinator, bumps=False)
    assert made.init() is NONE
    return made


@pytest.fixture
def newer(store: klamm.Store, coordinator: TransactionCoordinator) -> Client:
    made = Client(store, coordinator, bumps=True)
    assert made.init() is NONE
    return made
