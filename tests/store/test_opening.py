"""A partition is opened while topics change: it has the settings that its process knows, and takes appends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.store.directory import Core


def do_first(monkeypatch: pytest.MonkeyPatch, name: str, action: Callable[[Core], object]) -> None:
    """Do that once, when this method of Core is called the next time."""
    method, actions = getattr(Core, name), [action]

    def instead(self: Core, *arguments: Any) -> Any:
        while actions:
            actions.pop()(self)
        return method(self, *arguments)

    monkeypatch.setattr(Core, name, instead)


def test_an_append_goes_on_though_another_thread_has_read_the_topics_while_the_partition_was_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change_and_read(core: Core) -> None:
        core.create_topic("users", 1, {})
        core.all_topics()

    with klamm.open(tmp_path / "events") as store:
        store.topics.create("orders")
        do_first(monkeypatch, "_made", change_and_read)
        assert store.append("orders", b"1", acks=1) == 0


def test_settings_that_change_before_a_partition_is_opened_are_honoured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with klamm.open(tmp_path / "events") as store:
        store.topics.create("orders")
        do_first(
            monkeypatch, "open_partition", lambda core: core.catalog.alter_settings("orders", {"segment.records": 3})
        )
        partition = store._acquired().topic("orders").partition(0)
        partition.append_one(None, b"1", -1)
        assert partition.settings.segment_records == 3
