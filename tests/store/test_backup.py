"""A backup is one moment of the store, whole, whatever happens meanwhile."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.disk import _os
from klamm.errors import CorruptBatch, DiskFull, NotAStore, StoreError, readable
from klamm.log import aborted, segment
from klamm.log.index import Index
from klamm.store import backup as backup_module
from klamm.store.backup import backup
from tests.procs import until
from tests.rig import dies, killed_at
from tests.store.logs import batch, contents, fill, make_topic, opened

SMALL = {"segment.bytes": 500, "index.interval.bytes": 100}


def test_a_backup_holds_what_the_store_held(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as core:
        make_topic(core, "orders", 3, SMALL)
        make_topic(core, "empty", 2)
        for number in (0, 2):
            fill(core.topic("orders").partition(number), 20 + number)
        wanted = [contents(core.topic("orders").partition(number)) for number in range(3)]
        copied = backup(core, str(tmp_path / "copy"))
        assert (copied.topics, copied.partitions) == (2, 5)
        assert copied.size == sum(partition.log_size() for partition in core.topic("orders").partitions())
        store_id, topics = core.catalog.store_id, core.catalog.topics()
        epoch = core.topic("orders").partition(0).ends().leader_epoch
        fill(core.topic("orders").partition(0), 5, 20)  # the copy does not see it
    with opened(tmp_path / "copy") as core:
        assert (core.catalog.store_id, core.catalog.topics()) == (store_id, topics)
        partitions = core.topic("orders").partitions()
        assert [contents(partition) for partition in partitions] == wanted
        assert [partition.ends().end for partition in partitions] == [60, 0, 66]
        assert partitions[0].ends().leader_epoch > epoch  # records after the backup may have been read by somebody
        fill(partitions[0], 1, 20)
        assert contents(partitions[0])[-3:] == [b"20-0", b"20-1", b"20-2"]


def test_a_fresh_backup_can_be_opened_for_reading_only(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as core:
        make_topic(core, "orders", 1, SMALL)
        fill(core.topic("orders").partition(0), 10)
        backup(core, str(tmp_path / "copy"))
    with opened(tmp_path / "copy", read_only=True) as core:
        assert len(contents(core.topic("orders").partition(0))) == 30


def test_copied_segments_have_indexes_of_their_own(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as core:
        make_topic(core, "orders", 1, SMALL)
        fill(core.topic("orders").partition(0), 20)
        directory = readable(core.topic("orders").partition(0).directory)
        backup(core, str(tmp_path / "copy"))
    copied = directory.replace("/store/topics/", "/copy/topics/")
    bases = segment.bases(copied)
    assert bases == segment.bases(directory) and len(bases) > 3
    for base in bases[:-1]:
        with Index(copied, base) as index:
            assert index.closing(os.stat(segment.path_of(copied, base)).st_size) is not None


def test_bytes_beyond_the_commit_are_not_copied(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as core:
        make_topic(core, "orders")
        partition = core.topic("orders").partition(0)
        fill(partition, 5)
        path = segment.path_of(partition.directory, 0)
        with open(path, "ab") as file:
            file.write(bytes(batch([b"never committed"])))
        backup(core, str(tmp_path / "copy"))
        assert (
            os.stat(readable(path).replace("/store/topics/", "/copy/topics/")).st_size == partition.snapshot().position
        )
    with opened(tmp_path / "copy") as core:
        assert len(contents(core.topic("orders").partition(0))) == 15


def test_everything_is_synced_in_the_store_before_it_is_copied(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as core:
        make_topic(core, "orders")
        partition = core.topic("orders").partition(0)
        fill(partition, 5)
        assert partition.ends().flushed == 0
        backup(core, str(tmp_path / "copy"))
        assert partition.ends().flushed == 15


def test_idempotent_producers_are_still_known_in_the_copy(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as core:
        make_topic(core, "orders", 1, SMALL)
        partition = core.topic("orders").partition(0)
        for sequence in range(30):
            partition.append(batch([b"x" * 40], producer=(7, 0, sequence)))
        backup(core, str(tmp_path / "copy"))
    with opened(tmp_path / "copy") as core:
        partition = core.topic("orders").partition(0)
        assert partition.append(batch([b"x" * 40], producer=(7, 0, 29))) == 29  # repeated: it is there already
        assert partition.append(batch([b"x" * 40], producer=(7, 0, 30))) == 30


def test_what_producers_did_after_the_copied_moment_is_not_in_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "store") as core:
        make_topic(core, "orders")
        partition = core.topic("orders").partition(0)
        partition.append(batch([b"x"], producer=(7, 0, 0)))
        note = backup_module._take_snapshots

        def noting(*arguments: object) -> object:
            noted = note(*arguments)  # type: ignore[arg-type]
            partition.append(batch([b"y"], producer=(7, 0, 1)))
            partition.checkpoint()  # a snapshot that knows too much
            return noted

        monkeypatch.setattr(backup_module, "_take_snapshots", noting)
        backup(core, str(tmp_path / "copy"))
    assert all(int(path.stem) <= 1 for path in (tmp_path / "copy" / "topics").rglob("*.snapshot"))
    with opened(tmp_path / "copy") as core:
        partition = core.topic("orders").partition(0)
        assert partition.append(batch([b"x"], producer=(7, 0, 0))) == 0
        assert partition.append(batch([b"y"], producer=(7, 0, 1))) == 1
        assert contents(partition) == [b"x", b"y"]


def test_a_log_that_was_deleted_from_starts_there_in_the_copy(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as core:
        make_topic(core, "orders", 2, SMALL)
        first, second = core.topic("orders").partitions()
        fill(first, 20)
        fill(second, 20)
        first.cleanup.delete_before(32)
        second.cleanup.delete_before(60)
        backup(core, str(tmp_path / "copy"))
        wanted = contents(first)
    with opened(tmp_path / "copy") as core:
        first, second = core.topic("orders").partitions()
        assert (first.ends().start, first.ends().end) == (32, 60)
        assert contents(first) == wanted
        assert (second.ends().start, second.ends().end) == (60, 60)
        fill(second, 1, 20)
        assert contents(second) == [b"20-0", b"20-1", b"20-2"]


@pytest.mark.parametrize("after", [0, 1, 2])
def test_retention_in_the_middle_of_a_copy_leaves_no_hole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    with opened(tmp_path / "store") as core:
        make_topic(core, "orders", 1, SMALL)
        partition = core.topic("orders").partition(0)
        fill(partition, 20)
        wanted = contents(partition)
        copy_file, calls = backup_module._copy_file, [0]

        def copying(source: str, target: str, end: int, *more: Any) -> int:
            if calls[0] == after:
                partition.cleanup.delete_before(60)
            calls[0] += 1
            return copy_file(source, target, end, *more)

        monkeypatch.setattr(backup_module, "_copy_file", copying)
        backup(core, str(tmp_path / "copy"))
    with opened(tmp_path / "copy") as core:
        partition = core.topic("orders").partition(0)
        ends = partition.ends()
        assert ends.end == 60
        assert contents(partition) == wanted[ends.start :]


def test_a_topic_deleted_in_the_middle_of_a_copy_is_not_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path / "store") as core:
        make_topic(core, "orders", 2, SMALL)
        make_topic(core, "users", 1, SMALL)
        for name, number in (("orders", 0), ("orders", 1), ("users", 0)):
            fill(core.topic(name).partition(number), 10)
        copy_file = backup_module._copy_file

        def copying(source: str, target: str, end: int, *more: Any) -> int:
            if "/orders-" in source and "/1/" in source and os.path.exists(source):
                topic = core.topic("orders")
                for partition in topic.partitions():
                    partition.mark_deleted()
                core.catalog.delete_topic("orders")
                subprocess.run(["rm", "-r", readable(topic.directory)], check=True)
            return copy_file(source, target, end, *more)

        monkeypatch.setattr(backup_module, "_copy_file", copying)
        assert backup(core, str(tmp_path / "copy")).topics == 1
    with opened(tmp_path / "copy") as core:
        assert [topic.name for topic in core.catalog.topics()] == ["users"]
        assert len(os.listdir(tmp_path / "copy" / "topics")) == 1
        assert len(contents(core.topic("users").partition(0))) == 30


def test_damage_is_not_copied_in_silence(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as core:
        make_topic(core, "orders", 1, SMALL)
        partition = core.topic("orders").partition(0)
        fill(partition, 20)
        path = Path(segment.path_of(partition.directory, 15))
        data = bytearray(path.read_bytes())
        data[100] ^= 1
        path.write_bytes(data)
        with pytest.raises(CorruptBatch, match=r"0015\.log: byte \d+: ") as refused:
            backup(core, str(tmp_path / "copy"))
        assert refused.value.path == readable(str(path))
        assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("what", ["a file", "a directory with something in it"])
def test_a_destination_that_is_not_empty_is_refused_and_left_alone(tmp_path: Path, what: str) -> None:
    copy = tmp_path / "copy"
    if what == "a file":
        copy.write_text("mine")
    else:
        copy.mkdir()
        (copy / "mine").write_text("mine")
    with opened(tmp_path / "store") as core, pytest.raises(StoreError, match="not an empty directory"):
        backup(core, str(copy))
    assert (copy if what == "a file" else copy / "mine").read_text() == "mine"


def test_a_destination_inside_of_the_store_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as core, pytest.raises(StoreError, match="inside of the store"):
        backup(core, str(tmp_path / "store" / "copy"))


def test_a_disk_that_fills_up_leaves_nothing_behind(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as core:
        make_topic(core, "orders")  # one segment: no maintenance task beside us takes the step
        fill(core.topic("orders").partition(0), 10)
        core.topic("orders").partition(0).sync(30)
        (tmp_path / "copy").mkdir()
        _os.trap(1, kinds=_os.WRITE, error=28)
        try:
            with pytest.raises(DiskFull):
                backup(core, str(tmp_path / "copy"))
        finally:
            _os.trap(0)
        assert os.listdir(tmp_path / "copy") == []
        backup(core, str(tmp_path / "copy"))


def test_a_backup_that_was_killed_anywhere_is_whole_or_no_store(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as core:
        make_topic(core, "orders", 1, SMALL)
        fill(core.topic("orders").partition(0), 10)

    def copy_and_die(step: int) -> None:
        with opened(tmp_path / "store") as core:
            core.topic("orders").partition(0)
            killed_at(step, lambda: backup(core, str(tmp_path / f"copy-{step}")))()

    last = 1
    while dies(partial(copy_and_die, last)):
        last += 3
    assert last > 30
    whole = 0
    for step in range(1, last + 1, 3):
        copy = tmp_path / f"copy-{step}"
        if not copy.exists() or not os.listdir(copy):
            continue
        if "klamm.db" not in os.listdir(copy):
            with pytest.raises(NotAStore, match="is not a store"), opened(copy):
                pass
            continue
        with opened(copy) as core:
            assert len(contents(core.topic("orders").partition(0))) == 30
            whole += 1
    assert 0 < whole < last / 3 - 5


def test_copies_of_a_store_in_use_are_prefixes_of_it(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as core:
        make_topic(core, "orders", 2, {"segment.bytes": 10_000})
        partitions = core.topic("orders").partitions()
        stop = threading.Event()
        written = [0, 0]

        def write(which: int) -> None:
            while not stop.is_set():
                fill(partitions[which], 1, written[which])
                written[which] += 1
                time.sleep(0.0005)

        threads = [threading.Thread(target=write, args=(which,)) for which in (0, 1)]
        for thread in threads:
            thread.start()
        try:
            for number in range(5):
                known = written[0]
                until(lambda known=known: written[0] > known, "it goes on")  # type: ignore[misc]
                backup(core, str(tmp_path / f"copy-{number}"))
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        wanted = [contents(partition) for partition in partitions]
    ends = []
    for number in range(5):
        with opened(tmp_path / f"copy-{number}") as core:
            for partition, values in zip(core.topic("orders").partitions(), wanted, strict=True):
                found = contents(partition)
                assert found == values[: len(found)] and len(found) == partition.ends().end
            ends.append(core.topic("orders").partition(0).ends().end)
    assert ends == sorted(ends) and ends[-1] > ends[0]


def test_a_backup_has_no_aborted_record_though_a_list_of_them_is_missing(store: klamm.Store, tmp_path: Path) -> None:
    store.topics.create("aborted", settings={"segment.bytes": 4096})
    for number in range(30):
        with suppress(KeyError), store.transaction(batch_bytes=500) as tx:
            for _ in range(2):  # which fill a batch: what is not appended needs no abort
                tx.send("aborted", b"%d" % number + b"." * 300)
            if number % 5:
                raise KeyError
    log = store._acquired().topic("aborted").partition(0)
    bases = segment.bases(log.directory, aborted.SUFFIX)
    assert len(bases) > 3
    os.unlink(segment.path_of(log.directory, bases[1], aborted.SUFFIX))
    store.backup(tmp_path / "copy")
    with klamm.open(tmp_path / "copy") as copy, copy.consumer("aborted", wait=0) as consumer:
        assert [int(record.value.partition(b".")[0]) for record in consumer] == sorted(2 * [0, 5, 10, 15, 20, 25])
