"""A full disk: a clear error, nothing acked is lost, and everything works again when there is room."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import klamm
from klamm.errors import DiskFull, KlammError
from klamm.store import directory
from tests.crash.mounts import BLOCK, Disk, small_disk
from tests.crash.oracle import read, read_all
from tests.crash.workload import log_of, sealed
from tests.rig import run_child

SETTINGS = {"segment.bytes": "6000", "index.interval.bytes": "500"}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with small_disk(tmp_path / "small", 3 << 20) as disk:
        yield disk


def append(store: klamm.Store, name: str, value: str) -> int:
    """The next offset, when it is on disk."""
    log = log_of(store, name)
    end = log.append(sealed([value])) + 1
    log.sync(end)
    return end


def append_until_full(store: klamm.Store, name: str) -> list[str]:
    values: list[str] = []
    while True:
        try:
            append(store, name, value := f"{len(values)}" + "." * 700)
        except DiskFull:
            return values
        values.append(value)


def test_appending_to_a_full_disk_is_refused_and_goes_on_when_there_is_room(disk: Disk) -> None:
    with klamm.open(disk.path / "store") as store:
        store.topics.create("orders", 2, SETTINGS)
        append(store, "orders/1", "first")
        disk.fill(leave=20 * BLOCK)
        values = append_until_full(store, "orders/0")
        assert len(values) > 20
        log = log_of(store, "orders/0")
        for _ in range(3):
            with pytest.raises(DiskFull, match="no space left on the device"):
                append(store, "orders/0", "x" * 5000)
        assert read_all(log) == (0, values), "a refused batch left a trace"
        disk.release()
        values.append("there is room")
        assert append(store, "orders/0", "there is room") == len(values)
        assert read_all(log) == (0, values)
    with klamm.open(disk.path / "store") as store:
        assert read_all(log_of(store, "orders/0")) == (0, values)
        assert read_all(log_of(store, "orders/1")) == (0, ["first"])
        assert not store.check().breaches


def test_a_full_disk_refuses_topics_and_leaves_the_others_alone(disk: Disk) -> None:
    with klamm.open(disk.path / "store") as store:
        store.topics.create("orders", 1, SETTINGS)
        append(store, "orders/0", "first")
        disk.fill()
        with pytest.raises(DiskFull):
            store.topics.create("more", 100)
        assert list(store.topics) == ["orders"]
        assert read_all(log_of(store, "orders/0")) == (0, ["first"])
        disk.release()
        store.topics.create("more", 100)
        assert append(store, "more/99", "first") == 1
        assert append(store, "orders/0", "second") == 2
        assert not store.check().breaches


def test_a_store_on_a_full_disk_can_only_be_read(disk: Disk) -> None:
    with klamm.open(disk.path / "store") as store:
        store.topics.create("orders", 1, SETTINGS)
        append(store, "orders/0", "first")
    disk.fill()
    with klamm.open(disk.path / "store", read_only=True) as store:
        assert read_all(log_of(store, "orders/0")) == (0, ["first"])
    with pytest.raises(DiskFull):
        klamm.open(disk.path / "store")


def test_a_store_cannot_be_made_on_a_full_disk_and_can_be_later(disk: Disk) -> None:
    disk.fill()
    with pytest.raises(DiskFull):
        klamm.open(disk.path / "store")
    disk.release()
    with klamm.open(disk.path / "store") as store:
        store.topics.create("orders")
        assert append(store, "orders/0", "first") == 1


# With room for any number of blocks: something else fails each time.


def live(path: Path, told: Callable[..., None]) -> None:
    """Open, create, append, produce, roll, leave a recovery point; tell what was acked."""
    with klamm.open(path) as store:
        told("opened")
        if "orders" not in store.topics:
            store.topics.create("orders", 2, SETTINGS)
        told("topic", "orders")
        store.topics.create("more", 5)
        told("topic", "more")
        for number in range(12):
            for name in ("orders/0", "orders/1", "more/4"):
                value = f"{name} {number}" + "." * 900
                told("acked", name, append(store, name, value), value)
        log = log_of(store, "orders/0")
        log.append(sealed(["produced"], epoch=0, sequence=0))
        log.checkpoint()
        log.cleanup.delete_before(3)
        store.topics.delete("more")
        told("gone", "more")


def attempt(disk: Disk, path: Path, notes: Path, *, other_boot: bool) -> bool:
    """Live with little room, then with enough: whether there was too little."""

    def told(*facts: object) -> None:
        with notes.open("a") as file:
            file.write(json.dumps(facts) + "\n")

    def run() -> None:
        if other_boot:
            directory.boot_id = lambda: b"another boot id."
        try:
            live(path, told)
        except DiskFull:
            os._exit(3)
        except KlammError as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            raise

    notes.write_text("")
    status = run_child(run)
    assert os.WIFEXITED(status) and os.WEXITSTATUS(status) in (0, 3), f"it ended with status {status:#x}"
    disk.release()
    heard = [json.loads(line) for line in notes.read_text().splitlines()]
    topics = {note[1] for note in heard if note[0] == "topic"} - {note[1] for note in heard if note[0] == "gone"}
    with klamm.open(path) as store:
        assert topics <= set(store.topics), "a topic is gone"
        acked = [note[1:] for note in heard if note[0] == "acked" and note[1].split("/")[0] in store.topics]
        for name, end, value in acked:
            log = log_of(store, name)
            if end > log.ends().start:
                assert read(log, end - 1)[0] == value, f"{name}: offset {end - 1} was acked, and is another record"
        if "orders" in store.topics:
            end = log_of(store, "orders/1").ends().end
            assert append(store, "orders/1", "there is room") == end + 1
        assert not store.check().breaches
    return os.WEXITSTATUS(status) == 3


@pytest.mark.parametrize("there", ["new", "there", "other boot"])
def test_with_room_for_any_number_of_blocks_nothing_acked_is_lost(disk: Disk, tmp_path: Path, there: str) -> None:
    refused = 0
    for blocks in range(0, 90, 3):
        path = disk.path / f"store{blocks}"
        if there != "new":
            with klamm.open(path) as store:
                store.topics.create("orders", 2, SETTINGS)
                append(store, "orders/0", "first")
        disk.fill(leave=blocks * BLOCK)
        refused += attempt(disk, path, tmp_path / "notes", other_boot=there == "other boot")
        for directory_path, _, names in os.walk(path):
            for name in names:
                os.unlink(f"{directory_path}/{name}")
    assert 5 < refused < 30
