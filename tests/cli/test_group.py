"""`klamm group`: list, show, reset, delete, export, import."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import klamm
from tests.cli.conftest import Cli

T0 = 1_700_000_000_000


@pytest.fixture
def orders(store: klamm.Store) -> klamm.Store:
    """Ten records in each of two partitions; the group billing has read three of the first."""
    store.topics.create("orders", 2)
    for number in range(2):
        store.append_many("orders", [(None, b"%d" % n, [], T0 + n * 1000) for n in range(10)], partition=number)
    store.groups.reset("billing", {"orders": [0]}, to=3)
    return store


def offsets(store: klamm.Store, group: str = "billing") -> dict[int, int]:
    found = store.groups.describe(group).offsets
    return {each.partition: each.committed.offset for each in found if each.committed is not None}


def test_list_tells_how_far_they_are_behind(cli: Cli, store: klamm.Store) -> None:
    assert cli("group", "list").out == b""


def test_a_group_is_listed_and_shown_with_its_lag(cli: Cli, orders: klamm.Store) -> None:
    (row,) = cli("group", "list").rows
    assert row == {"group": "billing", "state": "empty", "door": "klamm", "members": 0, "topics": ["orders"], "lag": 7}
    (shown,) = cli("group", "show", "billing").rows
    assert shown["group"] == "billing" and shown["members"] == [] and shown["lag"] == 7
    (place,) = shown["offsets"]
    assert (place["topic"], place["partition"], place["committed"], place["end"], place["lag"]) == (
        "orders",
        0,
        3,
        10,
        7,
    )
    assert "Consumer group 'biling' does not exist" in cli("group", "show", "biling", code=1).err


def test_members_are_shown_with_what_they_have(cli: Cli, orders: klamm.Store) -> None:
    with orders.consumer("orders", group="billing", member="one", wait=0) as consumer:
        assert consumer.poll()
        (shown,) = cli("group", "show", "billing").rows
        assert shown["state"] == "active"
        assert shown["members"] == [{"member": "one", "partitions": ["orders/0", "orders/1"]}]
        assert cli("group", "list").rows[0]["members"] == 1
        assert "billing" in cli("group", "reset", "billing", "--to", "earliest", "--yes", code=1).err
        assert "billing" in cli("group", "delete", "billing", "--yes", code=1).err


@pytest.mark.parametrize(
    ("target", "after"),
    [
        (["--to", "earliest"], 0),
        (["--to", "latest"], 10),
        (["--to", "5"], 5),
        (["--to", "@99"], 10),
        (["--to", "2023-11-14T22:13:26Z"], 6),
        (["--to", "2023-11-15T00:13:26+02:00"], 6),
        (["--to", "1m"], 10),
        (["--to", "last 3"], 7),
        (["--by", "2"], 5),
        (["--by", "-2"], 1),
        (["--by", "-50"], 0),
    ],
    ids=str,
)
def test_a_reset_moves_the_committed_offsets_of_a_group(
    cli: Cli, orders: klamm.Store, target: list[str], after: int
) -> None:
    rows = cli("group", "reset", "billing", *target, "--yes").rows
    assert rows == [{"topic": "orders", "partition": 0, "before": 3, "after": after}]
    assert offsets(orders) == {0: after}


def test_reset_shows_a_plan_and_does_nothing_without_yes(cli: Cli, orders: klamm.Store) -> None:
    told = cli("group", "reset", "billing", "--to", "latest", code=2).err
    assert "billing is moved in 1 partition:" in told and "orders/0: 3 → 10" in told
    assert offsets(orders) == {0: 3}
    assert cli("group", "reset", "billing", "--to", 3).err == "nothing to do: the group is there already\n"


def test_reset_gives_a_new_group_offsets_if_topics_are_named(cli: Cli, orders: klamm.Store) -> None:
    assert (
        "name its topics (klamm group reset -t)" in cli("group", "reset", "new", "--to", "earliest", "-y", code=1).err
    )
    told = cli("group", "reset", "new", "-t", "orders", "--to", 4, code=2).err
    assert "orders/0: – → 4" in told and "orders/1: – → 4" in told
    rows = cli("group", "reset", "new", "--topic", "orders", "--to", 4, "-y").rows
    assert [row["before"] for row in rows] == [None, None]
    assert offsets(orders, "new") == {0: 4, 1: 4}
    assert (
        "has no offsets that could be moved so" in cli("group", "reset", "newer", "-t", "orders", "--by", 1, code=1).err
    )


def test_reset_of_one_partition_and_like_another_group(cli: Cli, orders: klamm.Store) -> None:
    cli("group", "reset", "billing", "-t", "orders", "-p", 1, "--to", 8, "-y")
    assert offsets(orders) == {0: 3, 1: 8}
    cli("group", "reset", "copy", "-t", "orders", "--like", "billing", "-y")
    assert offsets(orders, "copy") == {0: 3, 1: 8}
    assert "needs one --topic" in cli("group", "reset", "billing", "--partition", 1, "--to", "latest", code=2).err
    assert "Consumer group 'nobody' does not exist" in cli("group", "reset", "billing", "--like", "nobody", code=1).err


def test_reset_of_a_group_that_was_mistyped_tells_the_nearest(cli: Cli, orders: klamm.Store) -> None:
    told = cli("group", "reset", "biling", "--to", "latest", "-y", code=1).err
    assert "Consumer group 'biling' does not exist (did you mean 'billing'?)" in told
    assert "name its topics" in cli("group", "reset", "zzz", "--to", "latest", "-y", code=1).err


def test_reset_wants_one_place_to_go(cli: Cli, orders: klamm.Store) -> None:
    assert (
        "no target given, or several (use one of --to, --by and --like)" in cli("group", "reset", "billing", code=2).err
    )
    assert "no target given, or several" in cli("group", "reset", "billing", "--to", "latest", "--by", 1, code=2).err
    assert "--to: 'noon' is invalid" in cli("group", "reset", "billing", "--to", "noon", code=2).err


def test_a_deleted_group_has_no_offsets(cli: Cli, orders: klamm.Store) -> None:
    assert "with its offsets in 1 partition" in cli("group", "delete", "billing", code=2).err
    assert list(orders.groups) == ["billing"]
    assert cli("group", "delete", "billing", "--yes").rows == [{"group": "billing", "deleted": True}]
    assert list(orders.groups) == []
    assert "does not exist" in cli("group", "delete", "billing", "-y", code=1).err


def test_an_exported_group_is_imported_elsewhere_and_under_another_name(
    cli: Cli, orders: klamm.Store, tmp_path: Path
) -> None:
    exported = cli("group", "export", "billing")
    Path("billing.json").write_bytes(exported.out)
    assert exported.rows[0]["group"] == "billing" and len(exported.rows[0]["offsets"]) == 1
    said = cli("group", "import", "billing.json", "--as", "copy")
    assert said.rows == [{"group": "copy", "offsets": 1}] and offsets(orders, "copy") == {0: 3}
    with klamm.open(tmp_path / "other") as other:
        other.topics.create("orders", 2)
        other.append_many("orders", [b"x"] * 10, partition=0)
        cli("group", "import", "--store", tmp_path / "other", stdin=exported.out)
        assert offsets(other) == {0: 3}


def test_an_import_into_a_group_that_is_there_asks_first(cli: Cli, orders: klamm.Store) -> None:
    Path("billing.json").write_bytes(cli("group", "export", "billing").out)
    orders.groups.reset("billing", {"orders": [0]}, to=9)
    told = cli("group", "import", "billing.json", code=2).err
    assert "billing has offsets in 1 partition; those of the export replace them" in told
    assert offsets(orders) == {0: 9}
    cli("group", "import", "billing.json", "--yes")
    assert offsets(orders) == {0: 3}
    with orders.consumer("orders", group="billing", wait=0) as consumer:
        consumer.poll()
        assert "billing" in cli("group", "import", "billing.json", "--yes", code=1).err


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("no JSON", "not an export of a group: Expecting value"),
        ("[]", "not an export of a group: expected an object, not list"),
        ("{}", "'format' is missing"),
        ('{"format": 1, "group": "g", "store_id": "s", "offsets": 3}', "not an export of a group"),
        ('{"format": 1, "group": "g", "store_id": "s", "offsets": [{"topic": "orders"}]}', "'partition' is missing"),
        ('{"format": 99}', "format 99 is not known"),
    ],
)
def test_what_is_no_export_is_refused(cli: Cli, orders: klamm.Store, text: str, complaint: str) -> None:
    Path("wrong.json").write_text(text)
    said = cli("group", "import", "wrong.json", code=1 if "export of" in complaint else 2)
    assert complaint in said.err and list(orders.groups) == ["billing"]
    assert json.loads(cli("group", "export", "billing").out)["offsets"][0]["offset"] == 3
