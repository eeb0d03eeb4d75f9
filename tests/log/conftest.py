"""A rig for each test, and no trap left behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from klamm.disk import _os
from tests.crash.cases import memory_directory
from tests.rig import Rig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """In memory: whether syncs reach a disk is asked elsewhere, by power cuts."""
    with memory_directory(tmp_path) as path:
        yield Rig(path, slots=1000)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """For hypothesis: a slot for each example, not a folder."""
    with memory_directory(tmp_path_factory.mktemp("logs")) as path:
        yield Rig(path, slots=20_000)


@pytest.fixture(autouse=True)
def _no_trap() -> Iterator[None]:
    yield
    _os.trap(0)
