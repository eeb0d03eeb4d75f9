"""Changes of the catalog: a reader that is told of them, and of them alone, knows what one that reads all knows."""

from __future__ import annotations

import inspect
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import klamm
from klamm.errors import NotAStore
from klamm.store import deletion
from klamm.store.catalog import Catalog
from klamm.store.directory import Core, OpenTopic
from klamm.store.settings import Settings
from klamm.store.topic_changes import TopicReader, different_rows
from klamm.types import TopicId
from tests.crash.cases import seed_of
from tests.kafka.requests import sealed
from tests.procs import children
from tests.store.open_transactions import core_of


@pytest.fixture
def core(tmp_path: Path) -> Iterator[Core]:
    with klamm.open(tmp_path / "events") as store:
        yield core_of(store)


CHANGES: dict[str, Callable[[Core], object]] = {
    "create_topic": lambda core: core.catalog.create_topic("new", 1, {}, core.lay_out),
    "adopt_topic": lambda core: core.catalog.adopt_topic("old", TopicId("ab" * 16), [None], Settings()),
    "add_partitions": lambda core: core.catalog.add_partitions("a", 2, core.lay_out),
    "alter_settings": lambda core: core.catalog.alter_settings("a", {"retention.ms": 5}),
    "delete_topic": lambda core: core.catalog.delete_topic("a"),
    "alter": lambda core: core.catalog.alter({"group.max.size": 7}),
}
NUMBERS: dict[str, Callable[[Core], object]] = {
    "allocate_producer_id": lambda core: core.catalog.allocate_producer_id(),
    "count_boot": lambda core: core.catalog.count_boot(),
    "cut_free_slots": lambda core: core.catalog.cut_free_slots(),
    "skip_numbers": lambda core: core.catalog.skip_numbers(1),
}
"""What is counted as a change, but read by no other process."""


def test_whatever_changes_the_catalog_is_named_here() -> None:
    methods = inspect.getmembers(Catalog, inspect.isfunction)
    changing = {name for name, method in methods if "self.on_change(" in inspect.getsource(method)}
    assert changing == set(CHANGES)


@pytest.mark.parametrize("name", [*CHANGES, *NUMBERS])
def test_the_catalog_itself_tells_other_processes_of_a_change_that_they_read(core: Core, name: str) -> None:
    """A caller that had to do it could forget it: `store.alter` did, and AlterConfigs of a broker."""
    core.create_topic("a", 1, {})
    version, changes = core.heads.catalog_version, core.heads.changes
    (CHANGES | NUMBERS)[name](core)
    assert core.heads.catalog_version == version + (name in CHANGES)
    assert core.heads.changes == changes + 1


def names(topics: list[OpenTopic]) -> list[str]:
    return sorted(topic.name for topic in topics)


def test_only_what_changed_is_read(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(100):
        core.create_topic(f"topic{number}", 2, {})
    reader = TopicReader(core)
    assert len(reader.read().changed) == 100
    parsed: list[str] = []
    original = Catalog.parse_topic
    monkeypatch.setattr(
        Catalog, "parse_topic", lambda self, row, *rest: parsed.append(row[1]) or original(self, row, *rest)
    )
    assert reader.read()[1:] == ([], [])
    core.create_topic("new", 3, {"retention.ms": 5})
    changes = reader.read()
    assert (names(changes.changed), changes.gone, changes.version) == (["new"], [], core.heads.catalog_version)
    assert changes.changed[0].count == 3
    core.catalog.alter_settings("topic7", {"retention.ms": 9})
    (altered,) = reader.read().changed
    assert (altered.name, altered.topic.settings.retention_ms) == ("topic7", 9)
    core.catalog.add_partitions("topic8", 4, core.lay_out)
    (grown,) = reader.read().changed
    assert (grown.name, grown.count) == ("topic8", 4)
    assert set(parsed) == {"new", "topic7", "topic8"}


def test_a_topic_that_is_deleted_and_made_again_is_another(core: Core) -> None:
    core.create_topic("a", 1, {})
    core.create_topic("b", 1, {})
    reader = TopicReader(core)
    before = {topic.name: topic for topic in reader.read().changed}
    deletion.delete_topic(core, "a")
    changes = reader.read()
    assert (changes.changed, changes.gone) == ([], [before["a"]])
    deletion.delete_topic(core, "b")
    core.create_topic("b", 2, {})
    changes = reader.read()
    assert changes.gone == [before["b"]]
    assert names(changes.changed) == ["b"] and changes.changed[0] is not before["b"]


def test_logs_of_topics_that_have_not_changed_are_appended_to_at_once(core: Core) -> None:
    """They need no other settings, and so no thread that loads them."""
    core.create_topic("a", 1, {})
    reader = TopicReader(core)
    (topic,) = reader.read().changed
    partition = topic.partition(0)
    partition.append(sealed(1))
    assert partition.append_now(sealed(1)) == 1
    core.create_topic("b", 1, {})
    assert partition.append_now(sealed(1)) is None, "its settings may have changed"
    reader.read()
    assert partition.append_now(sealed(1)) == 2


def test_what_another_thread_has_read_since_is_not_confirmed(core: Core) -> None:
    """A setting is changed, read by a thread that appends, and changed back before the reader looks."""
    core.create_topic("a", 1, {"retention.ms": 1})
    reader = TopicReader(core)
    (topic,) = reader.read().changed
    core.catalog.alter_settings("a", {"retention.ms": 2})
    assert core.topic("a") is topic and topic.topic.settings.retention_ms == 2
    core.catalog.alter_settings("a", {"retention.ms": 1})
    assert reader.read().changed == [topic]
    assert topic.topic.settings.retention_ms == 1


def test_a_damaged_row_is_an_error_every_time(core: Core) -> None:
    core.create_topic("a", 1, {})
    core.create_topic("b", 1, {})
    reader = TopicReader(core)
    reader.read()
    with closing(sqlite3.connect(f"{core.path}/klamm.db")) as connection, connection:
        connection.execute("UPDATE topics SET settings = '{\"retention.ms\": 7}' WHERE name = 'b'")
    core.changed()
    for _ in range(2):
        with pytest.raises(NotAStore, match="checksum"):
            reader.read()
    with closing(sqlite3.connect(f"{core.path}/klamm.db")) as connection, connection:
        connection.execute("UPDATE topics SET id = 'x' || char(31) || 'y' WHERE name = 'b'")
    for _ in range(2):
        with pytest.raises(NotAStore):
            reader.read()


def test_it_knows_what_one_who_reads_everything_knows(core: Core, tmp_path: Path) -> None:
    seed = seed_of()
    chance = random.Random(seed)
    reader = TopicReader(core)
    known: dict[str, OpenTopic] = {}
    for turn in range(60):
        for _ in range(chance.randrange(4)):
            name = f"t{chance.randrange(8)}"
            exists = name in [topic.name for topic in core.catalog.topics()]
            what = chance.randrange(4)
            if not exists:
                core.create_topic(name, chance.randrange(1, 4), {"retention.ms": chance.randrange(3)})
            elif what == 0:
                deletion.delete_topic(core, name)
            elif what == 1:
                core.catalog.add_partitions(name, core.topic(name).count + 1, core.lay_out)
            else:
                core.catalog.alter_settings(name, {"retention.ms": chance.randrange(3)})
            if chance.random() < 0.2 and name in [topic.name for topic in core.catalog.topics()]:
                core.topic(name).partition(0)
        changes = reader.read()
        for topic in changes.gone:
            assert known.pop(topic.name) is topic, f"turn {turn}, seed {seed}"
        known |= {topic.name: topic for topic in changes.changed}
        version, everything = core.all_topics()
        assert {topic.name: topic.topic for topic in everything} == {name: known[name].topic for name in known}
        assert all(known[topic.name] is topic for topic in everything), f"turn {turn}, seed {seed}"
        assert version == changes.version
        assert all(topic.version == version for topic in everything), f"turn {turn}, seed {seed}"


def test_what_another_process_does_is_seen(core: Core) -> None:
    core.create_topic("a", 1, {})
    reader = TopicReader(core)
    reader.read()
    path = core.path

    def create() -> None:
        with klamm.open(path) as store:
            store.topics.create("b")
            store.topics.delete("a")

    with children() as start:
        start(create).answer()
    changes = reader.read()
    assert (names(changes.changed), names(changes.gone)) == (["b"], ["a"])


def test_a_setting_of_the_store_that_topics_take_over_changes_them_all(core: Core) -> None:
    for number in range(3):
        core.create_topic(f"topic{number}", 1, {} if number else {"producer.id.expiration.ms": 7000})
    reader = TopicReader(core)
    reader.read()
    core.catalog.alter({"producer.id.expiration.ms": 5000})
    changed = {each.name: each.topic.settings["producer.id.expiration.ms"] for each in reader.read().changed}
    assert changed["topic1"] == changed["topic2"] == "5000"
    assert reader.read().changed == []


@given(st.lists(st.text("ab", min_size=1, max_size=3), unique=True), st.lists(st.text("ab", min_size=1), unique=True))
def test_rows_that_differ_are_found_wherever_they_are(old: list[str], new: list[str]) -> None:
    for rows in (new, old + new[:1], new[:1] + old, old[1:], old[:-1], old[:2] + new[:1] + old[3:], old[::-1]):
        after = list(dict.fromkeys(rows))
        assert different_rows("\x1e".join(old), "\x1e".join(after)) == (set(old) - set(after), set(after) - set(old))
