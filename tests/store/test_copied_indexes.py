"""Indexes in a store that was copied, by whatever tool: a seek costs what it costs in the original."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import klamm
from klamm.disk import _os
from klamm.log.index import Index
from klamm.log.partition import Partition
from tests.procs import until

SETTINGS: dict[str, str | int | float] = {"segment.bytes": 40_000, "index.interval.bytes": 1000, "retention.ms": -1}
RECORDS = 3000


def cp(source: Path, target: Path) -> None:
    subprocess.run(["cp", "-r", source, target], check=True)


def rsync(source: Path, target: Path) -> None:
    if shutil.which("rsync") is None:
        pytest.skip("rsync is not installed")
    subprocess.run(["rsync", "-r", f"{source}/", target], check=True)


def tar(source: Path, target: Path) -> None:
    target.mkdir()
    packed = target.with_suffix(".tar")
    subprocess.run(["tar", "-C", source, "-cf", packed, "."], check=True)
    subprocess.run(["tar", "-C", target, "-xf", packed], check=True)


def file_by_file(source: Path, target: Path) -> None:
    """With new inodes and new times, in any order."""
    for path in sorted(source.rglob("*"), reverse=True):
        if path.is_file():
            copy = target / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())


@pytest.fixture
def original(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    with klamm.open(path) as store:
        store.topics.create("orders", settings=SETTINGS)
        for number in range(RECORDS):
            store.append("orders", b"%d" % number + b"." * 40, acks=1, timestamp=1_000_000 + number)
    return path


def log_of(store: klamm.Store) -> Partition:
    return store._acquired().topic("orders").partition(0)


def reads(log: Partition) -> int:
    """Reads that seeks all over the log take, by offset and by time."""
    least = 1 << 60
    for _ in range(3):  # another thread may read, too, the first time
        _os.trap(1 << 60, kinds=_os.READ)
        for offset in range(7, RECORDS, 100):
            with log.reader(offset) as reader:
                assert reader.read(1)
            assert log.offset_at(1_000_000 + offset) == offset
        least = min(least, _os.steps_taken())
        _os.trap(0)
    return least


def are_valid(log: Partition) -> bool:
    found = []
    for base in log.segments()[:-1]:
        with Index(log.directory, base) as index:
            found.append(index.is_valid)
    assert len(found) > 5
    return all(found)


@pytest.mark.parametrize("copy", [cp, rsync, tar, file_by_file])
def test_a_seek_in_a_copy_reads_as_little_as_in_the_original(
    original: Path, tmp_path: Path, copy: Callable[[Path, Path], None]
) -> None:
    with klamm.open(original) as store:
        want = reads(log_of(store))
    copy(original, tmp_path / "copy")
    with klamm.open(tmp_path / "copy") as store:
        assert are_valid(log_of(store))
        assert reads(log_of(store)) <= 1.2 * want
        assert store.check().breaches == []


def test_indexes_that_were_removed_are_made_again_in_the_background(original: Path) -> None:
    with klamm.open(original) as store:
        want = reads(log_of(store))
    for path in original.rglob("*.index"):
        path.unlink()
    with klamm.open(original) as store:
        log = log_of(store)
        assert not are_valid(log)
        with log.reader(1234) as reader:
            assert reader.read(1)
        until(lambda: are_valid(log), "every closed segment has its index")
        assert reads(log) <= 1.2 * want
        assert store.check().breaches == []


def test_maintenance_makes_missing_indexes_again(original: Path) -> None:
    for path in original.rglob("*.index"):
        path.unlink()
    with klamm.open(original) as store:
        store.maintain()
        assert are_valid(log_of(store))


def test_a_store_that_may_only_be_read_is_read_without_indexes(original: Path) -> None:
    for path in original.rglob("*.index"):
        path.unlink()
    with klamm.open(original, read_only=True) as store:
        log = log_of(store)
        with log.reader(1234) as reader:
            assert reader.read(1)
        assert log.offset_at(1_000_000 + 77) == 77
    assert not list(original.rglob("*.index"))
