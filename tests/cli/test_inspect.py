"""`klamm inspect`: a segment file as it lies on disk."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import klamm
from klamm.batch import crc32c
from tests.cli.conftest import Cli

T0 = 1_700_000_000_000


def segment(home: Path) -> Path:
    (found,) = home.glob("topics/orders-*/0/*.log")
    return found


@pytest.fixture
def orders(store: klamm.Store) -> klamm.Store:
    store.topics.create("orders")
    return store


def test_a_line_a_batch(cli: Cli, home: Path, orders: klamm.Store) -> None:
    orders.append_many("orders", [(b"k", b"v", [], T0 + n) for n in range(3)])
    orders.append_many("orders", [(b"k", b"v" * 500, [], T0)], compression="zstd")
    one, two = cli("inspect", segment(home)).rows
    assert one == {
        "position": 0,
        "base_offset": 0,
        "next_offset": 3,
        "records": 3,
        "bytes": two["position"],
        "codec": "none",
        "base_timestamp": T0,
        "max_timestamp": T0 + 2,
        "log_append_time": False,
        "producer_id": -1,
        "producer_epoch": -1,
        "base_sequence": -1,
        "leader_epoch": one["leader_epoch"],
        "transactional": False,
        "control": None,
    }
    assert two["codec"] == "zstd" and two["base_offset"] == 3
    assert two["position"] + two["bytes"] == segment(home).stat().st_size


def test_records_of_each_batch_too(cli: Cli, home: Path, orders: klamm.Store) -> None:
    rows = [(b"\xff", b"v" * 500, [("h", b"1")], T0), (b"k", None, [], T0 + 1)]
    orders.append_many("orders", rows, compression="gzip")
    batch, one, two = cli("inspect", segment(home), "--records").rows
    assert batch["records"] == 2 and batch["codec"] == "gzip"
    assert one == {
        "position": 0,
        "offset": 0,
        "timestamp": T0,
        "key": {"base64": "/w=="},
        "value": "v" * 500,
        "headers": [["h", "1"]],
    }
    assert two["offset"] == 1 and two["value"] is None


def test_control_batches_say_commit_or_abort(cli: Cli, home: Path, orders: klamm.Store) -> None:
    with orders.transaction() as transaction:
        transaction.send("orders", b"kept")
    dropped = orders.transaction(batch_bytes=1)
    for _ in range(3):
        dropped.send("orders", b"dropped")
    dropped.abort()
    rows = cli("inspect", segment(home), "--records").rows
    batches = [row for row in rows if "control" in row]
    kinds = [row["control"] for row in batches]
    assert kinds[:2] == [None, "commit"] and kinds[-1] == "abort" and set(kinds[2:-1]) == {None}
    assert all(row["transactional"] and row["producer_id"] >= 0 for row in batches)
    assert {row["value"] for row in rows if "value" in row} == {"kept", "dropped"}


def test_a_part_of_it(cli: Cli, home: Path, orders: klamm.Store) -> None:
    for _ in range(5):
        orders.append_many("orders", [b"v"] * 10)
    assert [row["base_offset"] for row in cli("inspect", segment(home), "--from", 25).rows] == [20, 30, 40]
    assert [row["base_offset"] for row in cli("inspect", segment(home), "-n", 2).rows] == [0, 10]
    assert [row["base_offset"] for row in cli("inspect", segment(home), "--from", 10, "--limit", 1).rows] == [10]


def test_damage_is_shown_where_it_is_and_ends_with_3(cli: Cli, home: Path, orders: klamm.Store, tmp_path: Path) -> None:
    for n in range(3):
        orders.append_many("orders", [b"value %d" % n])
    copy = tmp_path / segment(home).name
    shutil.copy(segment(home), copy)
    data = bytearray(copy.read_bytes())
    data[data.index(b"value 1")] ^= 1
    copy.write_bytes(data)
    first, damage, last = cli("inspect", copy, code=3).rows
    assert (first["base_offset"], last["base_offset"]) == (0, 2)
    assert damage["position"] == first["bytes"] and f"up to byte {last['position']}" in damage["damaged"]
    copy.write_bytes(segment(home).read_bytes()[:-5])
    assert "incomplete" in cli("inspect", copy, code=3).rows[-1]["damaged"]


def test_records_that_cannot_be_decoded_are_damage_although_the_crc_is_right(
    cli: Cli, home: Path, orders: klamm.Store, tmp_path: Path
) -> None:
    orders.append("orders", b"value")
    orders.append("orders", b"later")
    copy = tmp_path / segment(home).name
    data = bytearray(segment(home).read_bytes())
    size = cli("inspect", segment(home)).rows[0]["bytes"]
    data[61] ^= 0x7F  # the length of the first record
    data[17:21] = crc32c(data[21:size]).to_bytes(4, "big")
    copy.write_bytes(data)
    assert len(cli("inspect", copy).rows) == 2
    batch, damage, _, later = cli("inspect", copy, "--records", code=3).rows
    assert damage["position"] == batch["position"] == 0 and damage["damaged"].startswith("DAMAGED: ")
    assert later["value"] == "later"


def test_blocks_that_were_allocated_ahead_are_no_damage(cli: Cli, home: Path, orders: klamm.Store) -> None:
    for _ in range(30):
        orders.append("orders", b"v" * 4000)
    *batches, rest = cli("inspect", segment(home)).rows
    assert len(batches) == 30 and rest["position"] == batches[-1]["position"] + batches[-1]["bytes"]
    assert rest["unwritten"] == segment(home).stat().st_size - rest["position"] > 0


def test_an_empty_file_one_that_is_not_there_and_one_that_is_no_segment(cli: Cli, tmp_path: Path) -> None:
    empty = tmp_path / "00000000000000000000.log"
    empty.touch()
    assert cli("inspect", empty).out == b""
    assert "No such file" in cli("inspect", tmp_path / "00000000000000000007.log", code=1).err
    assert "is not named like a segment" in cli("inspect", tmp_path / "klamm.db", code=2).err
