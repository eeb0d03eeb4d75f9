from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import klamm


@pytest.fixture
def store(tmp_path: Path) -> Iterator[klamm.Store]:
    with klamm.open(tmp_path / "store") as opened:
        yield opened
