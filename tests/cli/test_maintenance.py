"""`klamm check`, `compact`, `backup`: looking after a store, and damage that is found."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import klamm
from tests.cli.conftest import Cli, everything


@pytest.fixture
def damaged(home: Path) -> Path:
    """A store in which a byte of the second of three batches was turned."""
    with klamm.open(home) as store:
        store.topics.create("orders")
        for n in range(3):
            store.append_many("orders", [(b"k", b"value %d" % n)] * 10)
    (segment,) = home.glob("topics/orders-*/0/*.log")
    data = bytearray(segment.read_bytes())
    data[data.index(b"value 1")] ^= 1
    segment.write_bytes(data)
    return segment


def test_check_of_a_good_store(cli: Cli, store: klamm.Store) -> None:
    store.topics.create("orders", 2)
    store.append_many("orders", [b"x"] * 5)
    (row,) = cli("check").rows
    assert row == {**row, "topics": 1, "partitions": 2, "records": 5, "ok": True} and row["size"] > 0


def test_damage_ends_check_with_3_and_says_where(cli: Cli, home: Path, damaged: Path) -> None:
    said = cli("check", home, code=3)
    breach, summary = said.rows
    assert breach["path"] == str(damaged) and breach["position"] > 0 and "CRC" in breach["what"]
    assert breach["repaired"] is None and summary["ok"] is False
    assert "keep a copy, by cp -r; then klamm check --repair" in said.err  # `klamm backup` refuses damage


def test_repair_asks_first_and_then_all_is_well(cli: Cli, home: Path, damaged: Path) -> None:
    question = cli("check", "--repair", code=2).err
    assert "would be repaired: torn tails and damaged batches moved aside" in question
    assert "made again, without settings, offsets of groups, numbers of writers, users, ACLs, quotas" in question
    cli("check", code=3)
    *breaches, summary = cli("check", "--repair", "--yes").rows
    assert summary["ok"] and all(each["repaired"] for each in breaches) and breaches
    assert cli("check", "--store", home).rows[-1]["ok"] is True
    values = [row[4] for row in everything(home, "orders")]
    assert values == [b"value 0"] * 10 + [b"value 2"] * 10


def test_what_was_cut_off_is_printed_as_records_and_can_be_imported(cli: Cli, home: Path, damaged: Path) -> None:
    assert cli("salvage").rows == []
    cli("check", "--repair", "--yes")
    assert cli("salvage").rows == []  # no batch of it is whole
    (cut,) = home.glob("topics/orders-*/0/*.cut-*")
    cut.write_bytes(cut.read_bytes().replace(b"walue 1", b"value 1"))
    rows = cli("salvage", "orders").rows
    assert {row["value"] for row in rows} == {"value 1"} and len(rows) == 10
    assert cli("salvage", "-o", "table").text.splitlines()[0].endswith("orders/0/10  k  value 1")
    assert cli("salvage", "orders", "-o", r"%v\n").out == b"value 1\n" * 10
    (row,) = cli("salvage", "--files").rows
    assert row["path"] == str(cut) and row["size"] == cut.stat().st_size
    cli("import", "again", "--create", stdin=cli("salvage").out)
    assert [record[4] for record in everything(home, "again")] == [b"value 1"] * 10


def test_a_catalog_that_cannot_be_read_is_damage_too(cli: Cli, home: Path, store: klamm.Store) -> None:
    store.close()
    for beside in home.glob("klamm.db-*"):
        beside.unlink()
    (home / "klamm.db").write_bytes(b"no database at all" * 100)
    said = cli("check", code=3)
    assert said.rows[0]["what"] and said.rows[-1]["ok"] is False
    assert "klamm.db" in cli("topic", "list", code=1).err


def test_reading_damage_ends_with_3(cli: Cli, damaged: Path) -> None:
    assert "CRC" in cli("tail", "orders", "--from", 0, code=3).err
    for command in (
        ("export", "orders", "--to", "o.jsonl"),
        ("export", "orders", "--to", "o.parquet"),
        ("export", "--sql", "select * from orders", "--to", "q.csv"),
        ("export", "--sql", "select * from orders", "--to", "q.parquet"),
        ("sql", "select count(*) from orders"),
        ("backup", "copy"),
    ):
        told = cli(*command, code=3).err
        assert re.search(r"00\.log: byte \d+: CRC is .* \(klamm check tells", told) and len(told.splitlines()) == 1
    assert not list(Path().glob("*.*"))


def test_path_and_option_are_one_too_many(cli: Cli, home: Path, store: klamm.Store) -> None:
    assert "PATH and --store each name a store" in cli("check", home, "--store", "other", code=2).err
    assert "PATH and --store each name a store" in cli("compact", home, "-s", "other", code=2).err


def test_compact_leaves_the_latest_of_each_key(cli: Cli, home: Path, store: klamm.Store) -> None:
    for name in ("users", "others"):
        store.topics.create(name, 1, {"cleanup.policy": "compact"})
        store.append_many(name, [(b"k%d" % (n % 3), b"%d" % n) for n in range(300)])
    (row,) = cli("compact", "--topic", "users", "--force").rows
    assert row["partitions"] == 1 and row["records_removed"] == 297 and row["bytes_after"] < row["bytes_before"]
    assert [record[4] for record in everything(home, "users")] == [b"297", b"298", b"299"]
    assert len(everything(home, "others")) == 300
    assert cli("compact", home, "--force").rows[0]["records_removed"] == 297
    assert cli("compact").rows[0]["partitions"] == 0


def test_compact_of_a_topic_that_is_not_compacted(cli: Cli, store: klamm.Store) -> None:
    store.topics.create("orders")
    told = cli("compact", "-t", "orders", code=2).err
    assert "orders: is not compacted" in told and "klamm topic set TOPIC cleanup.policy=compact makes it so" in told
    assert "nothing" in cli("compact", "-t", "nothing", code=1).err


def test_backup_is_a_store_of_its_own(cli: Cli, home: Path, tmp_path: Path, store: klamm.Store) -> None:
    store.topics.create("orders", 2)
    store.append_many("orders", [(b"%d" % n, b"%d" % n) for n in range(100)])
    (row,) = cli("backup", tmp_path / "copy").rows
    assert row == {"destination": str(tmp_path / "copy"), "topics": 1, "partitions": 2, "size": row["size"]}
    store.append("orders", b"later")
    assert len(everything(tmp_path / "copy", "orders")) == 100
    assert "already exists" in cli("backup", tmp_path / "copy", code=1).err
    assert "lies inside of the store" in cli("backup", home / "copy", "--store", home, code=1).err


def test_progress_of_check_and_backup_counts_bytes_up_to_all(home: Path, tmp_path: Path, store: klamm.Store) -> None:
    store.topics.create("orders", 2, {"segment.bytes": 1 << 20})
    for _ in range(40):
        store.append_many("orders", [b"x" * 1000] * 100, acks=1)
    size = store.topics.describe("orders").size
    ahead = 2 << 20  # blocks ahead of the commit, of two partitions: a check counts them
    for most, act in (
        (size + ahead, lambda on_progress: klamm.check(home, progress=on_progress)),
        (size, lambda on_progress: store.backup(tmp_path / "copy", progress=on_progress)),
    ):
        ticks: list[tuple[int, int]] = []
        act(lambda done, total, ticks=ticks: ticks.append((done, total)))
        assert len(ticks) >= 4 and ticks == sorted(ticks)
        (total,) = {total for _, total in ticks}
        assert size <= total <= most and 0.5 * size < ticks[-1][0] <= size
