"""Looking at groups, moving them, and taking them elsewhere."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import klamm
from tests.client.conftest import fill
from tests.client.groups import shared, turn


@pytest.fixture
def billing(store: klamm.Store) -> klamm.Store:
    """The store: `users` of 2 partitions with 100 records each, a second apart; group `billing` stands at 40 and 60."""
    store.topics.create("users", partitions=2)
    for number in (0, 1):
        store.append_many("users", [(None, b"x", None, 1000 * n) for n in range(100)], partition=number, acks=1)
    commit(store, "billing", {("users", 0): 40, ("users", 1): 60})
    return store


def commit(store: klamm.Store, group: str, offsets: dict[tuple[str, int], int], metadata: str = "") -> None:
    with store.consumer(sorted({topic for topic, _ in offsets}), group=group) as consumer:
        turn([consumer])
        consumer.commit(dict(offsets), metadata=metadata)


def offsets(store: klamm.Store, group: str = "billing") -> dict[tuple[str, int], int | None]:
    found = store.groups.describe(group).offsets
    return {(each.topic, each.partition): each.committed and each.committed.offset for each in found}


# Looking


def test_a_group_tells_its_members_and_how_far_they_are_behind(billing: klamm.Store) -> None:
    assert list(billing.groups) == ["billing"]
    info = billing.groups.describe("billing")
    assert (info.name, info.state, info.door, info.members, info.lag) == ("billing", "empty", "klamm", (), 100)
    with (
        billing.consumer("users", group="billing", member="m") as first,
        billing.consumer(pattern="us.*", group="billing") as second,
    ):
        shared([first, second], 2)
        info = billing.groups.describe("billing")
        assert info.state == "active"
        assert [member.name for member in info.members] == ["m", None]
        assert [member.topics for member in info.members] == [("users",), ("users",)]
        assert [list(member.assignment) for member in info.members] == [first.assignment(), second.assignment()]
        while turn([first, second]):
            pass
        first.commit(metadata="all of it")
        ((_, done),) = first.assignment()
        found = billing.groups.describe("billing").offsets[done]
        assert found == klamm.GroupOffset("users", done, klamm.Committed(100, 0, "all of it"), 100, 0, 0)
    assert billing.groups.describe("billing").members == ()


def test_markers_are_not_behind_anybody(orders: klamm.Store) -> None:
    with orders.transaction() as tx:
        tx.send("orders", b"x")
    commit(orders, "g", {("orders", 0): 1})  # past the record; the marker is at 1
    (found,) = orders.groups.describe("g").offsets
    assert (found.end, found.lag, found.lag_ms) == (2, 0, 0)
    with orders.transaction() as tx:
        tx.send("orders", b"y")
        tx.abort()
    assert orders.groups.describe("g").lag == 0
    orders.append("orders", b"z")
    assert orders.groups.describe("g").lag > 0


def test_lag_in_time_is_the_age_of_the_first_record_that_is_not_read(orders: klamm.Store) -> None:
    now_ms = time.time_ns() // 1_000_000
    orders.append_many("orders", [(None, b"x", None, now_ms - age) for age in (90_000, 60_000, 10_000)], acks=1)
    ages = []
    for offset in range(4):
        commit(orders, "g", {("orders", 0): offset})
        (found,) = orders.groups.describe("g").offsets
        assert found.lag == 3 - offset
        ages.append(found.lag_ms)
    assert ages[3] == 0
    for age, least in zip(ages, (90_000, 60_000, 10_000), strict=False):
        assert age is not None and least <= age < least + 60_000


def test_a_member_that_has_committed_nothing_is_behind_by_everything(orders: klamm.Store) -> None:
    fill(orders, 10)
    with orders.consumer("orders", group="g"):
        (found,) = orders.groups.describe("g").offsets
    assert (found.committed, found.end, found.lag) == (None, 10, 10)


def test_a_group_that_is_not_there_is_unknown(billing: klamm.Store) -> None:
    for action in (billing.groups.describe, billing.groups.delete, billing.groups.export):
        with pytest.raises(klamm.UnknownGroup, match="billing"):
            action("biling")
    with pytest.raises(klamm.UnknownGroup):
        billing.groups.plan_reset("other", to="earliest")


# Moving


@pytest.mark.parametrize(
    ("to", "after"),
    [
        ("earliest", [0, 0]),
        ("latest", [100, 100]),
        (50, [50, 50]),
        ("@70", [70, 70]),
        (1000, [100, 100]),
        ({"by": -10}, [30, 50]),
        ({"by": 50}, [90, 100]),
        ({"by": -1000}, [0, 0]),
        (("last", 5), [95, 95]),
        (("timestamp", 20_500), [21, 21]),
        (datetime.fromtimestamp(33, UTC), [33, 33]),
        (timedelta(days=1), [100, 100]),
        ({"like": "other"}, [7, None]),
        ({0: 5}, [5, None]),
        ("users/1@5", [None, 5]),
        ({("users", 1): 5}, [None, 5]),
    ],
)
def test_a_group_goes_where_the_plan_says(billing: klamm.Store, to: Any, after: list[int | None]) -> None:
    commit(billing, "other", {("users", 0): 7})
    target = to if isinstance(to, dict) and to.keys() <= {"by", "like"} else {"to": to}
    plan = billing.groups.plan_reset("billing", **target)
    before = [40, 60]
    wanted = [(number, before[number], after[number]) for number in (0, 1) if after[number] is not None]
    assert [(move.partition, move.before, move.after) for move in plan] == wanted
    assert offsets(billing) == {("users", 0): 40, ("users", 1): 60}  # nothing has moved yet
    billing.groups.apply(plan)
    for number in (0, 1):
        assert offsets(billing)["users", number] == (before[number] if after[number] is None else after[number])


def test_a_plan_can_be_for_some_topics_or_partitions_and_for_a_new_group(billing: klamm.Store) -> None:
    billing.topics.create("orders")
    assert [move[1:5] for move in billing.groups.plan_reset("billing", {"users": [1]}, to=0)] == [("users", 1, 60, 0)]
    plan = billing.groups.plan_reset("new", ["orders", "users"], to="latest")
    assert [move[:5] for move in plan] == [
        ("new", "orders", 0, None, 0),
        ("new", "users", 0, None, 100),
        ("new", "users", 1, None, 100),
    ]
    billing.groups.apply(plan)
    assert billing.groups.describe("new").lag == 0
    with pytest.raises(klamm.UnknownTopic):
        billing.groups.plan_reset("billing", {"users": [7]}, to=0)
    with pytest.raises(klamm.InvalidSetting):
        billing.groups.plan_reset("billing", to="newest")


def test_a_group_with_members_or_that_has_moved_is_not_reset(billing: klamm.Store) -> None:
    plan = billing.groups.plan_reset("billing", to="earliest")
    with billing.consumer("users", group="billing"):
        with pytest.raises(klamm.GroupBusy, match="the group is not empty: members: 1"):
            billing.groups.apply(plan)
        with pytest.raises(klamm.GroupBusy):
            billing.groups.delete("billing")
    commit(billing, "billing", {("users", 1): 61})
    with pytest.raises(klamm.GroupBusy, match="moved"):
        billing.groups.apply(plan)
    assert offsets(billing) == {("users", 0): 40, ("users", 1): 61}  # nor the other half of it


def test_a_deleted_group_starts_anew(billing: klamm.Store) -> None:
    billing.groups.delete("billing")
    assert list(billing.groups) == []
    with billing.consumer("users", group="billing", wait=0) as consumer:
        assert sum(1 for _ in consumer) == 200


# Elsewhere


def test_a_group_is_exported_as_json_and_imported_under_any_name(billing: klamm.Store) -> None:
    commit(billing, "billing", {("users", 0): 41}, metadata="note")
    data = json.loads(json.dumps(billing.groups.export("billing")))
    billing.groups.import_(data, "copy")
    assert offsets(billing, "copy") == offsets(billing) == {("users", 0): 41, ("users", 1): 60}
    found = billing.groups.describe("copy").offsets[0].committed
    assert found is not None and found.metadata == "note"
    billing.groups.delete("billing")
    billing.groups.import_(data)
    assert list(billing.groups) == ["billing", "copy"]
    with billing.consumer("users", group="copy"), pytest.raises(klamm.GroupBusy):
        billing.groups.import_(data, "copy")
    for wrong in ({}, {**data, "format": 2}, {**data, "offsets": [{"topic": "users"}]}):
        with pytest.raises(klamm.InvalidSetting):
            billing.groups.import_(wrong)


def test_epochs_of_another_store_mean_nothing_here(billing: klamm.Store, tmp_path: Path) -> None:
    with billing.consumer("users", group="billing") as consumer:
        consumer.commit(consumer.poll(5))
    data = billing.groups.export("billing")
    epochs = {each["leader_epoch"] for each in data["offsets"]}
    assert 0 in epochs
    with klamm.open(tmp_path / "other") as other:
        with pytest.raises(klamm.UnknownTopic):
            other.groups.import_(data)
        other.topics.create("users", partitions=2)
        other.groups.import_(data)
        assert {each["leader_epoch"] for each in other.groups.export("billing")["offsets"]} == {-1}


# Settings of the store


def test_settings_of_a_store_are_kept_and_checked(store: klamm.Store, path: Path) -> None:
    store.alter({"group.max.size": "5"})
    with klamm.open(path, read_only=True) as reading:
        assert reading.settings()["group.max.size"] == "5"
        with pytest.raises(klamm.ReadOnly):
            reading.alter({"group.max.size": 6})
    for wrong in ({"group.max.size": 0}, {"group.max.size": "many"}, {"group.max": 5}):
        with pytest.raises(klamm.InvalidSetting):
            store.alter(wrong)
    with pytest.raises(TypeError):
        store.alter([("group.max.size", 5)])  # type: ignore[arg-type]
    assert store.alter(reset=["group.max.size"])["group.max.size"] == "1000"
