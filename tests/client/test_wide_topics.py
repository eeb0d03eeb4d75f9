"""Topics of thousands of partitions: what is asked of them costs as much as they have partitions, and no more."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import klamm

NARROW, WIDE = 40, 400


def calls_of(action: Callable[[], object]) -> int:
    """Count the calls of Python functions: unlike seconds, they are the same each time."""
    count = 0

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


def first_poll(store: klamm.Store) -> None:
    with store.consumer("wide", group="new", wait=0) as consumer:
        consumer.poll()


def tail(store: klamm.Store) -> None:
    assert len([*store.tail("wide", 3)]) == 3


ACTIONS: dict[str, Callable[[klamm.Store], object]] = {
    "first poll of a group": first_poll,
    "group": lambda store: store.groups.describe("g"),
    "plan_reset": lambda store: store.groups.plan_reset("g", "wide", to="latest"),
    "reset_offsets": lambda store: store.groups.reset("g", "wide", to="earliest"),
    "export and import": lambda store: store.groups.import_(store.groups.export("g"), "copy"),
    "tail": tail,
}


@pytest.mark.parametrize("action", ACTIONS)
def test_ten_times_as_many_partitions_cost_about_ten_times_as_much(tmp_path: Path, action: str) -> None:
    costs = []
    for count in (NARROW, WIDE):
        with klamm.open(tmp_path / str(count)) as store:
            store.topics.create("wide", partitions=count)
            for number in range(count):
                store.append("wide", b"x", partition=number, acks=0)
            store.groups.reset("g", "wide", to="latest")
            ACTIONS[action](store)  # modules, and what is kept
            costs.append(calls_of(lambda store=store: ACTIONS[action](store)))  # type: ignore[misc]
    assert costs[1] < 20 * costs[0], f"{costs[0]} calls for {NARROW} partitions, {costs[1]} for {WIDE}"
