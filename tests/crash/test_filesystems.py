"""Full disks on the file systems that are trusted: no process is killed by a store into a mapped page."""

from __future__ import annotations

import mmap
import os
import shutil
import signal
from array import array
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import klamm
from klamm.disk import copy_on_write, files
from klamm.errors import DiskFull, UnsupportedFilesystem
from tests.crash.mounts import Disk, loop_disk
from tests.procs import children

PARTITIONS = 20
SIZES = {"ext4": 24 << 20, "xfs": 320 << 20, "btrfs": 120 << 20}


@pytest.fixture(params=SIZES)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    with loop_disk(tmp_path / "disk", request.param, SIZES[request.param]) as disk:
        yield disk


def take_all(path: Path) -> None:
    """Allocate every block that is left, without writing to it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    size, step = 0, 32 << 20
    while step >= 4096:
        try:
            os.posix_fallocate(fd, size, step)
            size += step
        except OSError:
            step //= 2
    os.fsync(fd)
    os.close(fd)


def append_while_full(disk: Disk) -> tuple[int, int]:
    """Append to many partitions after the disk became full, pages written back again and again: taken, and refused."""
    with klamm.open(disk.path / "store") as store:
        store.topics.create("t", PARTITIONS)
        for number in range(PARTITIONS):
            store.append("t", b"first", partition=number)
        with store.transaction() as transaction:
            transaction.send("t", b"transactional", partition=0)
        take_all(disk.ballast)
        os.sync()
        taken = refused = 0
        while refused < 5 * PARTITIONS:
            for number in range(PARTITIONS):
                try:
                    store.append("t", b"." * 200, partition=number, acks=1)
                    taken += 1
                except DiskFull:
                    refused += 1
            os.sync()  # clean pages are write-protected: the next store into one asks the file system for a block
        disk.ballast.unlink()
        os.sync()
    return taken, refused


def test_a_full_disk_refuses_appends_and_kills_nobody(disk: Disk) -> None:
    with children() as start:
        taken, _ = start(lambda: append_while_full(disk)).answer()
    with klamm.open(disk.path / "store") as store:
        assert store.check().ok
        with store.consumer("t", wait=0) as consumer:
            assert sum(1 for _ in consumer) == PARTITIONS + 1 + taken
        store.append("t", b"there is room", partition=0)


def test_blocks_ahead_of_a_writer_that_is_killed_on_a_full_disk_are_no_records(disk: Disk) -> None:
    path = disk.path / "store"
    done = memoryview(mmap.mmap(-1, 16)).cast("q")  # records that were acknowledged, bytes ahead of them

    def append_and_die() -> None:
        store = klamm.open(path)
        store.topics.create("t")
        for number in range(10):
            store.append("t", b"%d" % number * 20_000)
        (log,) = path.glob("topics/t-*/0/*.log")
        done[:] = memoryview(array("q", [10, os.path.getsize(log) - store.topics.describe("t").size]))
        take_all(disk.ballast)
        with suppress(DiskFull):
            while True:
                store.append("t", b"." * 20_000)
                done[0] += 1
        os.kill(os.getpid(), signal.SIGKILL)

    with children() as start:
        assert start(append_and_die).ended() == signal.SIGKILL
    disk.ballast.unlink()
    assert (done[1] > 0) is (files.filesystem_of(str(disk.path)) in ("ext4", "xfs"))
    with klamm.open(path) as store:
        assert store.append("t", b"there is room") == done[0]
        with store.consumer("t", wait=0) as consumer:
            assert sum(1 for _ in consumer) == done[0] + 1
        assert store.check().ok


def test_on_btrfs_a_store_needs_a_directory_whose_files_are_not_copied(tmp_path: Path) -> None:
    with loop_disk(tmp_path / "disk", "btrfs", SIZES["btrfs"]) as disk:
        assert files.filesystem_of(str(disk.path)) == "btrfs"
        store = disk.path / "store"
        (disk.path / "empty").mkdir()
        for path in (store, disk.path / "empty"):
            with klamm.open(path) as opened:
                opened.topics.create("t")
                opened.append("t", b"v")
                opened.backup(disk.path / f"{path.name}-backup")
            assert copy_on_write.is_avoided(str(path))
            assert copy_on_write.is_avoided(str(path / "topics"))
            klamm.open(disk.path / f"{path.name}-backup").close()
        shutil.copytree(store, disk.path / "copy")
        with pytest.raises(UnsupportedFilesystem, match="SIGBUS") as caught:
            klamm.open(disk.path / "copy")
        assert "force_filesystem=True" in (caught.value.hint or "")
        klamm.open(disk.path / "copy", force_filesystem=True).close()
