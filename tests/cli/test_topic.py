"""`klamm topic`: create, list, show, set, purge, delete."""

from __future__ import annotations

from pathlib import Path

import pytest

import klamm
from tests.cli.conftest import Cli

T0 = 1_700_000_000_000


def test_create_makes_the_store_too(cli: Cli, home: Path) -> None:
    made = cli("topic", "create", "orders", "retention.ms=3600000", "cleanup.policy=compact", "-p", 3).rows
    settings = {"retention.ms": "3600000", "cleanup.policy": "compact"}
    assert made == [{"topic": "orders", "partitions": 3, "offsets": 0, "size": 0, "settings": settings}]
    assert "orders" in cli("topic", "create", "orders", code=1).err
    with klamm.open(home, create=False) as store:
        assert len(store.topics.describe("orders").partitions) == 3


def test_what_cannot_be_made_leaves_no_store_behind(cli: Cli, home: Path) -> None:
    assert "contains one or more characters other than ASCII alphanumerics" in cli("topic", "create", "a/b", code=1).err
    assert "expected name=value" in cli("topic", "create", "t", "retention.ms", code=2).err
    assert "retention.ms" in cli("topic", "create", "t", "retention.mss=1", code=2).err
    assert "retention.ms" in cli("topic", "create", "t", "retention.ms=soon", code=2).err
    assert "--partitions" in cli("topic", "create", "t", "--partitions", 0, code=2).err
    assert not home.exists()


def test_list_tells_of_every_topic(cli: Cli, store: klamm.Store) -> None:
    assert cli("topic", "list").out == b""
    store.topics.create("b")
    store.topics.create("a.b-c", 2, {"retention.ms": 1})
    store.append_many("b", [b"x"] * 3)
    rows = {row["topic"]: row for row in cli("topic", "list").rows}
    assert rows["b"]["offsets"] == 3 and rows["b"]["size"] > 0
    assert rows["a.b-c"] == {
        "topic": "a.b-c",
        "partitions": 2,
        "offsets": 0,
        "size": 0,
        "settings": {"retention.ms": "1"},
    }


def test_show_tells_of_its_partitions(cli: Cli, store: klamm.Store) -> None:
    made = store.topics.create("orders", 2).info()
    store.append_many("orders", [b"x"] * 3, partition=1)
    (shown,) = cli("topic", "show", "orders").rows
    assert shown["topic"] == "orders" and shown["id"] == made.id and shown["created"].endswith("Z")
    assert [(each["partition"], each["start"], each["end"]) for each in shown["partitions"]] == [(0, 0, 0), (1, 0, 3)]
    assert shown["partitions"][1]["size"] > 0 and shown["partitions"][1]["leader_epoch"] >= 0
    assert "did you mean 'orders'?" in cli("topic", "show", "ordres", code=1).err


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({}, "records for 7 days"),
        ({"retention.ms": 5_400_000, "retention.bytes": 2**20}, "records for 1.5 hours, at most 1.0 MiB a partition"),
        ({"retention.ms": -1}, "everything"),
        ({"cleanup.policy": "compact"}, "the latest record of each key"),
        ({"cleanup.policy": "compact,delete"}, "records for 7 days, of each key the latest only"),
    ],
)
def test_show_says_what_is_kept(cli: Cli, store: klamm.Store, settings: dict[str, int | str], kept: str) -> None:
    store.topics.create("orders", settings=settings)
    assert cli("topic", "show", "orders").rows[0]["keeps"] == kept


def test_a_setting_in_milliseconds_takes_a_duration(cli: Cli, store: klamm.Store) -> None:
    cli("topic", "create", "orders", "retention.ms=7d", "segment.ms=1h30m")
    assert store.topics.describe("orders").settings == {"retention.ms": "604800000", "segment.ms": "5400000"}
    told = cli("topic", "set", "orders", "retention.ms=1 week", code=2).err
    assert (
        "retention.ms: '1 week' is invalid (expected a whole number" in told
        and "a duration such as '90s' or '7d'" in told
    )


def test_what_is_not_there_is_told_with_what_to_do(cli: Cli, store: klamm.Store, tmp_path: Path) -> None:
    assert "klamm topic list shows" in cli("topic", "show", "zzz", code=1).err
    assert "klamm group list shows" in cli("group", "show", "zzz", code=1).err
    (tmp_path / "file").write_text("")
    assert "file: is a file, and a store is a directory" in cli("topic", "list", "-s", tmp_path / "file", code=1).err
    assert "nowhere: no such directory" in cli("topic", "list", "-s", tmp_path / "nowhere", code=1).err


def test_set_changes_settings_and_partitions(cli: Cli, store: klamm.Store) -> None:
    store.topics.create("orders", 1, {"retention.ms": 5})
    (row,) = cli("topic", "set", "orders", "cleanup.policy=compact", "--reset", "retention.ms", "--partitions", 4).rows
    assert row["settings"] == {"cleanup.policy": "compact"} and row["partitions"] == 4
    assert "nothing to set (expected name=value" in cli("topic", "set", "orders", code=2).err
    assert (
        "currently has 4 partition(s); 2 would not be an increase."
        in cli("topic", "set", "orders", "--partitions", 2, code=2).err
    )
    assert "did you mean 'retention.ms'?" in cli("topic", "set", "orders", "retention.m=1", code=2).err
    assert store.topics.describe("orders").settings == {"cleanup.policy": "compact"}


def test_purge_shows_its_plan_and_does_nothing_without_yes(cli: Cli, store: klamm.Store) -> None:
    store.topics.create("orders", 2)
    store.append_many("orders", [b"x"] * 5, partition=0)
    told = cli("topic", "purge", "orders", code=2).err
    assert "orders/0: offsets 0 to 4" in told and "orders/1" not in told and "--yes does it" in told
    assert store.topics.describe("orders").count == 5
    assert cli("topic", "purge", "orders", "--yes").rows == [{"topic": "orders", "partition": 0, "start": 5}]
    assert store.topics.describe("orders").count == 0
    assert cli("topic", "purge", "orders", "-y").err == "nothing to delete\n"
    assert store.append("orders", b"x", partition=0) == 5


def test_purge_before_an_offset_or_a_time(cli: Cli, store: klamm.Store) -> None:
    store.topics.create("orders", 2)
    for number in range(2):
        store.append_many("orders", [(None, b"x", [], T0 + n * 1000) for n in range(10)], partition=number)
    cli("topic", "purge", "orders", "--before", 3, "--partition", 1, "--yes")
    assert [each.start for each in store.topics.describe("orders").partitions] == [0, 3]
    cli("topic", "purge", "orders", "--before", "2023-11-14T22:13:25Z", "-y")
    assert [each.start for each in store.topics.describe("orders").partitions] == [5, 5]
    cli("topic", "purge", "orders", "--before", 99, "-p", 0, "-y")
    assert [each.start for each in store.topics.describe("orders").partitions] == [10, 5]
    assert cli("topic", "purge", "orders", "--before", "30000d", "-y").err == "nothing to delete\n"
    assert "there is no partition 2 (it has 0 to 1)" in cli("topic", "purge", "orders", "-p", 2, code=1).err
    assert "--before: 'long ago' is invalid" in cli("topic", "purge", "orders", "--before", "long ago", code=2).err


def test_delete_says_what_goes_and_does_nothing_without_yes(cli: Cli, store: klamm.Store) -> None:
    store.topics.create("orders")
    store.append_many("orders", [b"x"] * 3)
    told = cli("topic", "delete", "orders", code=2).err
    assert "The topic orders would be deleted, for good: 3 offsets" in told and "nothing was done" in told
    assert list(store.topics) == ["orders"]
    assert cli("topic", "delete", "orders", "--yes").rows == [{"topic": "orders", "deleted": True}]
    assert list(store.topics) == []
    assert "orders" in cli("topic", "delete", "orders", "-y", code=1).err
