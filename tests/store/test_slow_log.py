"""What the store logs about a write of klamm.db is logged when the write lock is released. A log may be slow (a full
pipe, a busy disk), and every process waits for that lock.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import klamm
from klamm.disk import locks
from klamm.store.wire_groups import WireGroups
from tests.store.open_transactions import core_of
from tests.store.test_transactions import begin


@pytest.fixture
def store(tmp_path: Path) -> Iterator[klamm.Store]:
    with klamm.open(tmp_path / "events") as opened:
        opened.topics.create("t", 1)
        yield opened


@contextmanager
def lines_logged(store: klamm.Store) -> Iterator[dict[str, bool]]:
    """What is logged meanwhile, and whether the write lock of klamm.db was held."""
    core = core_of(store)
    found: dict[str, bool] = {}

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            assert core.lock is not None
            is_held = core.lock._mutexes[locks.DB_LOCK].holding_thread is not None
            found[record.getMessage()] = found.get(record.getMessage(), False) or is_held

    handler, logger = Handler(), logging.getLogger("klamm")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield found
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)


def test_an_abort_is_logged_when_the_write_lock_is_released(store: klamm.Store) -> None:
    mine = begin(store, 0, name="abandoned")
    core_of(store).transactions.let_go(mine)
    with lines_logged(store) as lines:
        core_of(store).transactions.resolve()
    assert lines == {f"Aborting transaction {mine.producer_id}/0 of transactional id abandoned": False}


def test_a_group_whose_row_is_damaged_is_logged_when_the_write_lock_is_released(store: klamm.Store) -> None:
    groups = WireGroups(core_of(store))
    group = groups.persist("g", b"members")
    assert group is not None
    core_of(store).groups.leave_door(group)
    database = core_of(store).catalog.database
    with database.db_lock(), database.transaction() as execute:
        execute("UPDATE wire_groups SET state = ? WHERE group_number = ?", (b"damaged", group.number))
    with lines_logged(store) as lines:
        assert groups.resume() == []
    assert lines == {"group 'g': state dropped: the row is damaged": False}
