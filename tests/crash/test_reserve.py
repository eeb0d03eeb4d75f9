"""A full store after a boot: it can be opened, read and purged, and appended to again, by the blocks of its reserve."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import klamm
from klamm.disk import reserve
from klamm.errors import DiskFull
from klamm.store import directory
from tests.crash.mounts import Disk, small_disk
from tests.crash.stores import values
from tests.procs import children, until

SETTINGS = {"segment.bytes": 20_000, "retention.ms": -1}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with small_disk(tmp_path / "small", 12 << 20) as disk:
        yield disk


def reserve_of(disk: Disk) -> int:
    """How large the reserve is; 0: there is none."""
    path = disk.path / "store" / reserve.NAME
    return path.stat().st_size if path.exists() else 0


def fill(disk: Disk) -> list[bytes]:
    """Fill a store and its disk to the last block; what is in its first topic."""
    with suppress(DiskFull), klamm.open(disk.path / "store") as store:  # closing it cannot leave a recovery point
        store.topics.create("orders", settings=SETTINGS)
        store.topics.create("others", settings=SETTINGS)
        store.append("orders", b"first")
        with store.transaction() as transaction:
            transaction.send("orders", b"second")
        until(lambda: reserve_of(disk) == reserve.SIZE, "there is a reserve")
        disk.fill(leave=200_000)
        while True:
            try:
                store.append("orders", b"." * 3000, acks=1)
            except DiskFull:
                break
        found = values(store)
    disk.fill()
    assert disk.free() == 0
    return found


def purge(path: Path, how: str) -> tuple[int, int]:
    """In a process of its own, after a boot: open, read, delete, append. How many records there were, and are left."""
    directory.boot_id = lambda: b"another boot, 16"
    with klamm.open(path) as store:
        before = len(values(store))
        if how == "delete_records":
            store["orders"].delete_records({0: before - 1})
        elif how == "retention":
            store.topics.alter("orders", {"retention.bytes": 30_000})
            store.maintain()
        else:
            store.topics.delete("orders")
            store.maintain()
            store.topics.create("orders")
        store.append_many("orders", [b"after"] * 10)
        found = values(store)
        assert found[-10:] == [b"after"] * 10
        assert store.check().ok
        return before, len(found)


@pytest.mark.parametrize("how", ["delete_records", "retention", "delete_topic"])
def test_a_full_store_is_opened_read_purged_and_appended_to_after_a_boot(disk: Disk, how: str) -> None:
    records = fill(disk)
    with children() as start:
        before, after = start(lambda: purge(disk.path / "store", how)).answer()
    assert before == len(records)
    assert after < before
    disk.release()
    with klamm.open(disk.path / "store") as store:
        store.maintain()
        assert reserve_of(disk) == reserve.SIZE, "it is filled again"


def test_a_full_store_is_read_only_after_a_boot_without_its_reserve(disk: Disk) -> None:
    records = fill(disk)
    (disk.path / "store" / reserve.NAME).unlink()
    disk.fill()

    def look() -> int:
        directory.boot_id = lambda: b"another boot, 16"
        with klamm.open(disk.path / "store", read_only=True) as store:
            return len(values(store))

    with children() as start:
        assert start(look).answer() == len(records)


def test_the_reserve_is_lent_only_when_there_is_no_room_and_taken_back_when_there_is(disk: Disk) -> None:
    path = str(disk.path)
    assert reserve.refill(path)
    assert not reserve.lend(path)
    disk.fill(leave=reserve.SIZE)
    assert not reserve.lend(path)
    disk.fill()
    assert reserve.lend(path)
    assert disk.free() >= reserve.SIZE
    assert not reserve.lend(path), "it was given"
    disk.fill()
    assert not reserve.refill(path)
    disk.release()
    assert reserve.refill(path)


def test_a_full_store_that_is_open_is_purged_by_its_reserve(disk: Disk) -> None:
    with klamm.open(disk.path / "store") as store:
        store.topics.create("orders", settings=SETTINGS)
        store.append_many("orders", [b"." * 3000] * 100)
        until(lambda: reserve_of(disk) == reserve.SIZE, "there is a reserve")
        disk.fill()
        with pytest.raises(DiskFull):
            store.append_many("orders", [b"." * 3000] * 10)
        store["orders"].delete_records({0: 95})
        store.append_many("orders", [b"after"] * 10)
        assert values(store)[-10:] == [b"after"] * 10
