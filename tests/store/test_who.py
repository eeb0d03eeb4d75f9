"""Which process holds which lock of a store: names instead of numbers, and nothing that is not held."""

from __future__ import annotations

import math
import os
from datetime import timedelta
from pathlib import Path

import pytest

import klamm
from klamm.disk import _os, holders
from klamm.errors import InvalidSetting
from klamm.types import LockInfo
from tests.procs import Flag, children

pytestmark = [
    pytest.mark.skipif(not _os.HAS_BYTE_LOCKS, reason="one process at a time"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning"),
]


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = str(tmp_path / "store")
    with klamm.open(path) as store:
        store.topics.create("orders", partitions=2)
        store.append("orders", b"x")
    return path


def rows(locks: list[LockInfo], pid: int | None) -> set[tuple[str, str | None]]:
    assert {(each.state, each.is_stopped) for each in locks if each.pid == pid} <= {("holds", False), ("holds", None)}
    return {(each.lock, each.of) for each in locks if each.pid == pid}


def work(path: str, ready: Flag, end: Flag) -> None:
    with klamm.open(path) as store, store.consumer("orders", group="bills", member="m1", wait=0) as consumer:
        consumer.poll(timeout=0)
        with store.transaction("loader") as tx:
            tx.send("orders", b"y", partition=0)
            ready.up()
            end.wait()


def test_who_names_members_partitions_transactions_and_processes(path: str, tmp_path: Path) -> None:
    ready, end = Flag(tmp_path / "ready"), Flag(tmp_path / "end")
    expected = {
        ("open", None),
        ("member of group", "bills: m1"),
        ("partition of group", "bills: orders/0"),
        ("partition of group", "bills: orders/1"),
    }
    with children() as start:
        child = start(lambda: work(path, ready, end))
        ready.wait()
        with klamm.open(path, read_only=True) as store:
            locks = store.who()
            found = rows(locks, child.pid)
            assert expected <= found
            assert {lock for lock, _ in found} <= {lock for lock, _ in expected} | {"transactional producer"}
            assert ("transactional producer", "loader") in found
            assert all(each.since_ms is not None and each.command for each in locks)
            assert rows(locks, os.getpid()) == set(), "a store that is opened for reading holds nothing"
        end.up()
        child.answer()
        with klamm.open(path, read_only=True) as store:
            assert store.who() == []


def test_a_process_that_cannot_be_seen_is_listed_without_its_pid(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready, end = Flag(tmp_path / "ready"), Flag(tmp_path / "end")
    with children() as start:
        child = start(lambda: work(path, ready, end))
        ready.wait()
        monkeypatch.setattr(holders, "held_ranges", lambda path, pids=None: [])
        with klamm.open(path, read_only=True) as store:
            found = rows(store.who(), None)
        assert {("open", None), ("member of group", "bills: m1"), ("partition of group", "bills: orders/1")} <= found
        end.up()
        child.answer()


@pytest.mark.parametrize("bad", [-1, "1000", math.nan, True])
def test_a_busy_timeout_is_a_duration(path: str, bad: object) -> None:
    with pytest.raises((InvalidSetting, TypeError), match="busy_timeout"):
        klamm.open(path, busy_timeout=bad)  # type: ignore[call-overload]


def test_a_busy_timeout_without_limit_is_infinite(path: str) -> None:
    with klamm.open(path, busy_timeout=timedelta(seconds=1.5)) as store:
        lock = store._acquired().lock
        assert lock is not None and lock.timeout_ms == 1500
        with klamm.open(path, busy_timeout=math.inf):
            assert lock.timeout_ms == -1


def test_the_last_open_of_a_process_that_names_a_busy_timeout_decides(path: str) -> None:
    with klamm.open(path, busy_timeout=0.1) as store, klamm.open(path) as other:
        lock = store._acquired().lock
        assert lock is not None and lock is other._acquired().lock
        assert lock.timeout_ms == 100
        with klamm.open(path, busy_timeout=math.inf):
            assert lock.timeout_ms == -1
    with klamm.open(path) as store:
        lock = store._acquired().lock
        assert lock is not None and lock.timeout_ms == 30_000
