"""Aborted transactions in a store that is looked through, mended and copied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.batch import Builder
from klamm.batch.header import TRANSACTIONAL
from klamm.errors import readable
from klamm.log import aborted, segment
from klamm.log.partition import Partition


def transactional(value: bytes, epoch: int, sequence: int) -> bytearray:
    builder = Builder(1 << 20)
    builder.add(None, value, None, 0)
    return bytearray(
        builder.seal(producer_id=7, producer_epoch=epoch, base_sequence=sequence, attributes=TRANSACTIONAL)
    )


@pytest.fixture
def log(tmp_path: Path) -> Partition:
    """Three transactions, the second aborted, over some segments."""
    store = klamm.open(tmp_path / "store")
    store.topics.create("t", settings={"segment.bytes": 200, "retention.ms": -1})
    partition = store._acquired().topic("t").partition(0)
    for epoch in range(3):
        for sequence in range(4):
            partition.append(transactional(b"%d" % epoch, epoch, sequence))
        partition.append_marker(7, epoch + 1, commit=epoch != 1)
    partition._store = store  # type: ignore[attr-defined]  # it is closed with the last one who knows it
    return partition


def values(store: klamm.Store) -> list[bytes]:
    with store.consumer("t", start="earliest", wait=0, form="values") as consumer:
        return list(consumer)


WANT = [b"0"] * 4 + [b"2"] * 4


def store_of(log: Partition) -> klamm.Store:
    return log._store  # type: ignore[attr-defined]


@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_a_lost_or_damaged_entry_is_found_and_made_anew(log: Partition, damage: str) -> None:
    store = store_of(log)
    log.checkpoint()
    (base,) = segment.bases(log.directory, aborted.SUFFIX)
    path = Path(segment.path_of(log.directory, base, aborted.SUFFIX))
    data = path.read_bytes()
    assert store.check().ok and values(store) == WANT
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(data[:-1] if damage == "cut" else data[:8] + b"\xff" + data[9:])
    report = store.check()
    assert any("A1" in breach.promise and breach.path == readable(str(path)) for breach in report.breaches)
    assert store.check(repair=True).ok
    assert store.check().breaches == []
    assert path.read_bytes() == data and values(store) == WANT


def test_a_copy_leaves_out_what_was_aborted_too(log: Partition, tmp_path: Path) -> None:
    store = store_of(log)
    log.checkpoint()
    store.backup(tmp_path / "copy")
    with klamm.open(tmp_path / "copy", read_only=True) as copy:
        assert values(copy) == WANT
    with klamm.open(tmp_path / "copy") as copy:
        assert values(copy) == WANT and copy.check().breaches == []


def test_a_scan_leaves_out_what_was_aborted_and_what_is_open_unless_asked(log: Partition) -> None:
    store = store_of(log)

    def scanned(**options: Any) -> list[Any]:
        return store.scan("t", columns=["value"], **options).to_table()["value"].to_pylist()

    assert scanned() == WANT
    everything = [b"0"] * 4 + [b"1"] * 4 + [b"2"] * 4
    assert scanned(isolation="read_uncommitted") == everything
    log.append(transactional(b"3", 3, 0))
    assert scanned() == WANT
    assert scanned(isolation="read_uncommitted") == [*everything, b"3"]
    log.append_marker(7, 4, commit=False)  # the last thing in the log was aborted
    assert scanned() == scanned(batch_rows=1) == WANT
    with pytest.raises(klamm.InvalidSetting, match="isolation"):
        store.scan("t", isolation="serializable")  # type: ignore[arg-type]
