"""A catalog in a directory, behind the real klamm.db lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from klamm.disk.locks import DB_LOCK, LockFile
from klamm.store.catalog import Catalog, SlotRequest


def lock_of(directory: Path | str) -> Callable[[], AbstractContextManager[None]]:
    lock = LockFile(str(Path(directory) / "lock"))
    return lambda: lock.hold(DB_LOCK)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "klamm.db")


@pytest.fixture
def catalog(tmp_path: Path, path: str) -> Iterator[Catalog]:
    made = Catalog.create(path, lock_of(tmp_path), "the-store")
    yield made
    made.close()


def nothing(wanted: SlotRequest, topic_id: str, number: int) -> tuple[int, ...]:
    """For topics whose heads no test looks at."""
    fresh = range(wanted.fresh, wanted.fresh + wanted.how_many)
    return (*wanted.free, *fresh)[: wanted.how_many]
