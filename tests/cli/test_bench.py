"""`klamm bench`: measures, tells, and leaves everything as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

import klamm
from tests.cli.conftest import Cli
from tests.serving import serving


def test_producers_and_consumers_of_a_directory_that_is_gone_afterwards(cli: Cli, tmp_path: Path) -> None:
    sent, read = cli(
        *("bench", tmp_path / "new", "--producers", 2, "--consumers", 2, "--partitions", 2, "-n", 3000),
        *("--size", 20, "--acks", "all", "--compression", "lz4", "--seconds", 60),
    ).rows
    assert (sent["who"], sent["records"], read["who"], read["records"]) == ("2 producers", 6000, "2 consumers", 12_000)
    for row in (sent, read):
        assert row["seconds"] >= 0 and row["records_per_s"] > 0 and row["cpu_s"] > 0
        assert row["bytes_per_s"] == pytest.approx(row["records_per_s"] * 20, rel=0.01)
    assert sent["p50_ms"] is None and 0 <= read["p50_ms"] <= read["p99_ms"]
    assert not (tmp_path / "new").exists()


def test_a_store_keeps_what_it_had_and_nothing_else(cli: Cli, store: klamm.Store) -> None:
    store.topics.create("orders")
    store.append("orders", b"short")
    (row,) = cli("bench", "--count", 1000, "--consumers", 0).rows
    assert row["who"] == "1 producer" and row["records"] == 1000
    assert list(store.topics) == ["orders"] and store.topics.describe("orders").count == 1
    cli("bench", "--topic", "orders", "-n", 500)
    assert store.topics.describe("orders").count == 501
    (row,) = cli("bench", "-t", "orders", "--producers", 0).rows
    assert row["who"] == "1 consumer" and row["records"] == 501 and row["p50_ms"] is None


def test_the_time_is_up_before_the_records_are(cli: Cli, store: klamm.Store) -> None:
    (row,) = cli("bench", "-n", 10**12, "--seconds", "200ms", "--consumers", 0).rows
    assert 0 < row["records"] < 10**12


def test_a_server_beside_the_store_it_serves(cli: Cli, home: Path) -> None:
    with serving(home) as server:
        rows = cli("bench", f"kafka://{server.address}", "-n", 2000, "--partitions", 2, "--compression", "gzip").rows
        assert [(row["who"], row["records"]) for row in rows] == [("1 producer", 2000), ("1 consumer", 2000)]
        assert 0 <= rows[1]["p50_ms"] <= rows[1]["p99_ms"]
        assert cli("topic", "list").out == b""  # the store is open there, and its topic of this bench is gone
        cli("topic", "create", "orders")
        cli("send", "orders", "from a command")
        (row,) = cli("bench", f"kafka://{server.address}", "-t", "orders", "--producers", 0).rows
        assert row["records"] == 1


def test_a_store_that_is_served_is_used_by_commands_at_the_same_time(cli: Cli, home: Path) -> None:
    from tests.cli.test_serve import consume, produce

    with serving(home) as server:
        produce(server.address, [b"%d" % n for n in range(20)])
        assert [row["value"] for row in cli("tail", "orders", "-n", 2).rows] == ["18", "19"]
        cli("send", "orders", "from a command")
        assert consume(server.address, 21)[-1] == b"from a command"
        assert cli("sql", "select count(*) as n from orders").rows == [{"n": 21}]
        assert cli("group", "list").rows[0]["group"] == "readers"
        assert cli("group", "show", "readers").rows[0]["door"] == "kafka"
        assert cli("check").rows[-1]["ok"] is True
        cli("backup", home.parent / "copy")
        assert cli("topic", "show", "orders", "-s", home.parent / "copy").rows[0]["partitions"][0]["end"] == 21
        cli("topic", "delete", "orders", "--yes")
        assert server.stop() == 0


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["--acks", "0"], 2, "expected all or 1"),
        (["--producers", "0", "--consumers", "0"], 2, "nothing to do"),
        (["--producers", "0"], 2, "there are no producers"),
        (["--compression", "rar"], 2, "rar"),
        (["http://localhost"], 2, "is neither a directory nor kafka://host:port"),
        (["--topic", "nothing"], 1, "nothing"),
        (["--size", "7"], 2, "--size"),
        (["--seconds", "soon"], 2, "--seconds: 'soon' is invalid (expected a duration: 500ms, 90s, 15m, 2h)"),
        (["--seconds", "99ms"], 2, "--seconds: '99ms' is invalid (expected at least 100ms)"),
    ],
)
def test_what_cannot_be_measured_is_said(
    cli: Cli, store: klamm.Store, arguments: list[str], code: int, complaint: str
) -> None:
    store.topics.create("orders")
    assert complaint in cli("bench", *arguments, code=code).err
    assert list(store.topics) == ["orders"]


def test_what_goes_wrong_in_a_worker_is_one_line(cli: Cli, store: klamm.Store) -> None:
    store.topics.create("orders", 1, {"max.message.bytes": 100})
    told = cli("bench", "-t", "orders", "--size", 5000, "-n", 10, "--consumers", 0, code=1).err
    assert "1 worker failed" in told and told.count("\n") == 1


def test_without_a_store_or_a_target_nothing_is_made(cli: Cli, home: Path) -> None:
    assert "no such directory (klamm bench PATH makes a store for it" in cli("bench", code=1).err
    assert not home.exists()
