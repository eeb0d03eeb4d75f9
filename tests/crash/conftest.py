"""What several crash tests start from: a store with one topic of one partition."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import klamm


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "events")


@pytest.fixture
def store(path: str) -> Iterator[klamm.Store]:
    with klamm.open(path) as opened:
        opened.create_topic("orders")
        yield opened
