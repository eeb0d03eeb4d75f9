"""A store with one topic of one partition, which several crash tests start from."""

from __future__ import annotations

import pytest

import klamm


@pytest.fixture
def store(store: klamm.Store) -> klamm.Store:
    store.topics.create("orders")
    return store
