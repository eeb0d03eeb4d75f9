"""What people do to the files of a store, and what comes of it: nothing goes because klamm.db does not know it."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import klamm
from klamm.cli.main import run
from klamm.disk import _os
from klamm.errors import CorruptBatch, NotAStore, StoreBusy, StoreError
from klamm.store import directory
from tests.descriptors import descriptors, opened_since
from tests.procs import Flag, children


def values(store: klamm.Store, topic: str) -> list[bytes]:
    with store.consumer(topic, wait=0) as consumer:
        return [record.value for record in consumer]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with two topics, the second of which its backup does not have."""
    path = tmp_path / "events"
    with klamm.open(path) as store:
        store.topics.create("orders", 3, {"retention.ms": 1})
        store.append_many("orders", [(b"k", b"%d" % number) for number in range(10)], partition=1)
        store.backup(tmp_path / "backup")
        store.topics.create("invoices", 2)
        store.append("invoices", b"invoice", partition=0)
    return path


def test_a_directory_that_klamm_db_does_not_know_is_left_alone_and_can_be_put_back(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with klamm.open(path) as store:
        store.topics.create("other")
        store.append("other", b"x")
    (known,) = path.glob("topics/other-*")
    shutil.copytree(known, path / "topics" / f"ghost-{'a' * 32}")
    with klamm.open(path) as store, caplog.at_level(logging.WARNING, "klamm"):
        store.maintain()
        store.maintain()
        told = [each.getMessage() for each in caplog.records if "topic missing in klamm.db" in each.getMessage()]
        assert len(told) == 1, "logged once, not at every round"
        assert "ghost" not in store.topics
        report = store.check(repair=True)
        assert report.ok and any("put back as topic ghost" in str(each.repaired) for each in report.breaches)
        assert values(store, "ghost") == [b"x"]


def test_a_topic_whose_files_cannot_be_removed_now_is_deleted_and_a_sweep_removes_them(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk is a reason to delete a topic, and no reason to say that it was not."""
    with klamm.open(path) as store, caplog.at_level(logging.WARNING, "klamm"):
        _os.trap(1, kinds=_os.RENAME, error=errno.ENOSPC)
        try:
            store.topics.delete("invoices")
        finally:
            _os.trap(0)
        assert "invoices: deleted; files that are left are removed by the next sweep" in caplog.text
        assert "invoices" not in store.topics and list(path.glob("topics/invoices-*"))
        store.maintain()
        assert not list(path.glob("topics/invoices-*")) and store.check().ok
    with klamm.open(path) as store:
        assert list(store.topics) == ["orders"]


def test_without_klamm_db_nothing_is_deleted_and_repair_makes_it_again(path: Path) -> None:
    with klamm.open(path) as store:
        store_id = store.store_id
    (path / "klamm.db").unlink()
    for read_only in (False, True):
        with pytest.raises(NotAStore, match=r"klamm\.db: is missing.*klamm check --repair"):
            klamm.open(path, read_only=read_only)
    assert not klamm.check(path).ok
    report = klamm.check(path, repair=True)
    assert report.ok and "klamm.db was missing" in report.breaches[0].message
    with klamm.open(path) as store:
        assert store.store_id == store_id
        assert sorted(store.topics) == ["invoices", "orders"]
        assert len(store.topics.describe("orders").partitions) == 3, "also those that never got a record"
        assert store.topics.describe("orders").settings["retention.ms"] == "-1", "what is not known expires nothing"
        store.maintain()
        assert values(store, "orders") == [b"%d" % number for number in range(10)]
        assert values(store, "invoices") == [b"invoice"]
        assert store.append("orders", b"next", partition=1) == 10
    assert klamm.check(path).ok


def _overwrite(file: Path, position: int, data: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(position)
        opened.write(data)


def _change_a_row(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("UPDATE topics SET created_ms = created_ms + 1 WHERE name = 'orders'")
        connection.commit()


DAMAGE: dict[str, Callable[[Path], object]] = {
    "no database": lambda file: _overwrite(file, 0, b"x" * 100),
    "pages of rubbish": lambda file: _overwrite(file, 100, b"\xa5\x0f" * (file.stat().st_size // 2 - 50)),
    "cut": lambda file: os.truncate(file, file.stat().st_size // 2 + 7),
    "a row that was changed": _change_a_row,
}


@pytest.mark.parametrize("how", ["no database", "pages of rubbish"])
def test_a_damaged_klamm_db_that_cannot_be_read_is_not_left_open(path: Path, how: str) -> None:
    DAMAGE[how](path / "klamm.db")
    before = descriptors()
    with pytest.raises(klamm.StoreError) as caught:
        klamm.open(path, read_only=True)
    assert [name for name in opened_since(before) if "klamm.db" in name] == [], caught.value  # its frames are alive


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_klamm_db_is_set_aside_by_repair_and_made_again(
    path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = path / "klamm.db"
    DAMAGE[how](file)
    damaged = file.read_bytes()
    report = klamm.check(path)
    assert not report.ok and "klamm check --repair" in str(report.breaches[0]), "it says what to do"
    assert file.read_bytes() == damaged
    report = klamm.check(path, repair=True)
    assert report.ok, [str(each) for each in report.breaches]
    (aside,) = (each for each in path.glob("klamm.db.damaged-*") if not each.name.endswith(("-wal", "-shm")))
    assert aside.read_bytes() == damaged
    assert f"set it aside as {aside}" in str(report.breaches[0].repaired)
    for text in (str(report.breaches[0].repaired), caplog.text):
        assert "settings, offsets of groups, numbers of writers, users, ACLs, quotas and lineage are lost" in text
    lost = [str(each.repaired) for each in report.breaches if "its settings are lost" in str(each.repaired)]
    assert len(lost) == 2
    with klamm.open(path) as store:
        assert store.topics.describe("orders").settings["retention.ms"] == "-1", "what is not known expires nothing"
        store.maintain()
        assert values(store, "orders") == [b"%d" % number for number in range(10)]
        assert values(store, "invoices") == [b"invoice"]
        assert store.append("orders", b"next", partition=1) == 10
    assert klamm.check(path).ok


def test_a_damaged_klamm_db_is_not_set_aside_under_a_process_that_uses_it(path: Path) -> None:
    def damage_and_repair() -> list[str]:
        _change_a_row(path / "klamm.db")
        return [str(each) for each in klamm.check(path, repair=True).breaches]

    with klamm.open(path) as store, children() as start:
        (told,) = start(damage_and_repair).answer()
        assert "klamm.db is damaged, but another process has the store open" in told
        assert (path / "klamm.db").exists() and not list(path.glob("klamm.db.damaged-*"))
        assert "close the store in every process" in str(store.check(repair=True).breaches[0])


def test_a_repair_that_was_killed_after_it_set_klamm_db_aside_is_finished_by_the_next(path: Path) -> None:
    _overwrite(path / "klamm.db", 0, b"x" * 100)

    def repair() -> None:
        _os.trap(1, kinds=_os.SYNC, signal=signal.SIGKILL)
        klamm.check(path, repair=True)

    with children() as start:
        start(repair).ended()
    assert not (path / "klamm.db").exists() and list(path.glob("klamm.db.damaged-*"))
    with pytest.raises(NotAStore, match="klamm check --repair"):
        klamm.open(path)
    assert klamm.check(path, repair=True).ok
    with klamm.open(path) as store:
        assert values(store, "orders") == [b"%d" % number for number in range(10)]


def test_klamm_db_from_a_backup_is_refused_until_it_is_repaired(path: Path, tmp_path: Path) -> None:
    with klamm.open(path) as store:
        store.topics.create("gone")
        store.append("gone", b"x")
        ids = store._acquired().catalog.allocate_producer_id()
    shutil.copyfile(tmp_path / "backup" / "klamm.db", path / "klamm.db")
    with pytest.raises(StoreError, match=r"klamm\.db: is older than the logs"):
        klamm.open(path)
    assert klamm.check(path, repair=True).ok
    with klamm.open(path) as store:
        store.maintain()
        assert sorted(store.topics) == ["gone", "invoices", "orders"]
        assert values(store, "invoices") == [b"invoice"] and values(store, "gone") == [b"x"]
        assert store._acquired().catalog.allocate_producer_id() > ids, "a producer id is given out once"


def test_a_topic_that_was_deleted_does_not_come_back_with_an_older_klamm_db(path: Path, tmp_path: Path) -> None:
    with klamm.open(path) as store:
        store.topics.delete("orders")
    shutil.copyfile(tmp_path / "backup" / "klamm.db", path / "klamm.db")
    report = klamm.check(path, repair=True)
    assert report.ok, [str(each) for each in report.breaches]
    with klamm.open(path) as store:
        assert list(store.topics) == ["invoices"]


@pytest.mark.skipif(sys.platform == "win32", reason="a file that is open cannot be removed there")
@pytest.mark.parametrize("name", ["lock", "members", "heads", "klamm.db"])
def test_a_file_that_is_removed_under_a_living_store_lets_no_second_writer_in(
    path: Path, tmp_path: Path, name: str
) -> None:
    opened, removed = Flag(tmp_path / "opened"), Flag(tmp_path / "removed")

    def hold() -> int:
        with klamm.open(path) as store:
            opened.up()
            removed.wait()
            return store.append("orders", b"from the first", partition=1) or 0

    with children() as start:
        first = start(hold)
        opened.wait()
        os.unlink(path / name)
        with pytest.raises((StoreBusy, NotAStore), match=name.replace(".", r"\.")):
            klamm.open(path)
        removed.up()
        assert first.answer() == 10
    if name == "klamm.db":
        assert klamm.check(path, repair=True).ok
    with klamm.open(path) as store:
        assert values(store, "orders") == [b"%d" % number for number in range(10)] + [b"from the first"]
    assert klamm.check(path).ok


@pytest.mark.parametrize("left", [0, 5, 9])
def test_slots_that_heads_has_lost_are_laid_out_again_each_for_its_partition(tmp_path: Path, left: int) -> None:
    path = tmp_path / "store"
    with klamm.open(path) as store:
        store.topics.create("b", 3)
        store.topics.create("a", 2)
        store.topics.add_partitions("b", 6)  # its slots are not all side by side
        for topic, count in (("a", 2), ("b", 6)):
            for number in range(count):
                store.append(topic, b"%d" % number, partition=number)
        topics = store._acquired().catalog.topics()
        wanted = {slot: (topic.id, number) for topic in topics for number, slot in enumerate(topic.partitions)}
    os.truncate(path / "heads", left * 1024)
    with klamm.open(path) as store:
        heads = store._acquired().heads
        assert {slot: heads.identity_of(slot) for slot in wanted} == wanted
        assert sorted(values(store, "a")) == [b"0", b"1"] and len(values(store, "b")) == 6
    assert klamm.check(path).ok


def test_a_flipped_bit_of_what_was_synced_is_damage_and_not_a_tail_after_a_boot(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with klamm.open(path) as store:
        for number in range(30):
            store.append("orders", b"%d" % number, partition=2)
        (log,) = path.glob("topics/orders-*/2/*.log")
        copied = path.parent / "copied"
        shutil.copytree(path, copied)  # without the recovery point that closing leaves
    (log,) = copied.glob("topics/orders-*/2/*.log")
    data = bytearray(log.read_bytes())
    data[500] ^= 1
    log.write_bytes(data)
    with klamm.open(copied) as store, pytest.raises(CorruptBatch, match="had been synced"):
        values(store, "orders")
    assert klamm.check(copied, repair=True).ok
    with klamm.open(copied) as store, caplog.at_level(logging.WARNING, "klamm"):
        assert len(values(store, "orders")) == 10 + 29, "one batch at most"


def test_what_recovery_cut_off_can_be_read_again(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with klamm.open(path) as store:
        (log,) = path.glob("topics/orders-*/1/*.log")
        batch = bytearray(log.read_bytes())
        copied = path.parent / "copied"
        shutil.copytree(path, copied)
    (log,) = copied.glob("topics/orders-*/1/*.log")
    batch[7] = 20  # a whole batch, but not at the offset that follows
    log.write_bytes(log.read_bytes() + batch + b"torn")
    with klamm.open(copied) as store:
        assert values(store, "orders") == [b"%d" % number for number in range(10)]
        (cut,) = store["orders"].cuts()
        assert cut.size == len(batch) + 4
        assert store.check().cuts == [cut]
    assert run(["salvage", "orders", "--store", str(copied)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 10 and '"offset": 20' in lines[0] and '"value": "0"' in lines[0]


def test_a_restored_backup_is_another_life_and_a_stored_position_notices(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Backup at 10, a boot, more records and a position; then the backup is opened instead and written to."""
    monkeypatch.setattr(directory, "boot_id", lambda: b"the second boot!")
    with klamm.open(path) as store:
        partition = store._acquired().topic("orders").partition(1)
        for number in range(10):
            store.append("orders", b"lost %d" % number, partition=1)
        position, epoch = partition.ends().end, partition.ends().leader_epoch
    later = time.time() + 60
    monkeypatch.setattr(time, "time", lambda: later)
    with klamm.open(tmp_path / "backup") as store:
        partition = store._acquired().topic("orders").partition(1)
        for number in range(15):
            store.append("orders", b"new %d" % number, partition=1)
        assert partition.ends().leader_epoch != epoch
        assert position == 20 and partition.end_of_epoch(epoch) == 10, "the position lies beyond what that life left"
        assert partition.end_of_epoch(2**31 - 1) == 10, "and so does one of a life with a wrong clock"
