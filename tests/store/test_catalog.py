"""The catalog: topics come and go whole, slots and ids are given once, and damage is an error."""

from __future__ import annotations

import random
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from klamm.errors import (
    DiskFull,
    InvalidSetting,
    InvalidTopic,
    KlammError,
    NewerFormat,
    NotAStore,
    ReadOnly,
    StoreError,
    TopicExists,
    UnknownTopic,
)
from klamm.store import catalog as catalog_module
from klamm.store.catalog import Catalog, SlotRequest, Topic
from klamm.store.database import FORMAT_VERSION
from klamm.store.rows import crc as crc_of
from klamm.store.settings import Settings
from tests.crash.cases import seed_of
from tests.store.conftest import lock_of, nothing

# Topics


def test_a_topic_comes_back_as_it_was_made(catalog: Catalog, tmp_path: Path, path: str) -> None:
    made = catalog.create_topic("orders", 3, {"retention.ms": 5}, nothing)
    assert made.partitions == (1, 2, 3)
    assert (made.name, made.settings.retention_ms, made.directory) == ("orders", 5, f"orders-{made.id}")
    assert catalog.topic("orders") == made
    with closing(Catalog(path, lock_of(tmp_path))) as other:
        assert other.topics() == [made]
        assert other.store_id == catalog.store_id == "the-store"
        assert other.format_version == FORMAT_VERSION


def test_slots_are_laid_out_before_anybody_can_see_the_topic(catalog: Catalog, tmp_path: Path, path: str) -> None:
    laid_out: list[SlotRequest] = []

    def prepare(wanted: SlotRequest, topic_id: str, number: int) -> tuple[int, ...]:
        with closing(Catalog(path, lock_of(tmp_path), read_only=True)) as other:
            assert "orders" not in [topic.name for topic in other.topics()]
        laid_out.append(wanted)
        return nothing(wanted, topic_id, number)

    topic = catalog.create_topic("orders", 2, {}, prepare)
    assert laid_out == [SlotRequest((), 1, 2)]
    assert catalog.topics() == [topic]


def test_a_topic_whose_slots_cannot_be_laid_out_is_not_there(catalog: Catalog) -> None:
    def prepare(*_: object) -> tuple[int, ...]:
        raise DiskFull("heads: no space left on the device")

    with pytest.raises(DiskFull):
        catalog.create_topic("orders", 2, {}, prepare)
    assert catalog.topics() == []
    assert catalog.create_topic("orders", 2, {}, nothing).partitions == (1, 2)
    with pytest.raises(DiskFull):
        catalog.add_partitions("orders", 4, prepare)
    assert catalog.topic("orders").partitions == (1, 2)


def test_slots_of_a_deleted_topic_are_given_again_once_its_tombstone_is_gone(catalog: Catalog) -> None:
    first = catalog.create_topic("orders", 2, {}, nothing)
    assert catalog.delete_topic("orders") == first
    second = catalog.create_topic("orders", 2, {}, nothing)
    assert second.partitions == (3, 4)
    assert second.id != first.id
    assert catalog.slots_of(first.id) == {0: 1, 1: 2}
    catalog.forget_deleted(first.id)
    assert catalog.slots_of(first.id) == {}
    assert catalog.create_topic("users", 3, {}, nothing).partitions == (1, 2, 5)
    assert catalog.check() == []


def test_a_topic_that_was_made_anew_is_not_deleted_in_the_place_of_the_old_one(catalog: Catalog) -> None:
    first = catalog.create_topic("orders", 1, {}, nothing)
    catalog.delete_topic("orders", first.id)
    second = catalog.create_topic("orders", 1, {}, nothing)
    with pytest.raises(UnknownTopic, match="orders: the topic was deleted and re-created"):
        catalog.delete_topic("orders", first.id)
    assert catalog.topics() == [second]


def test_what_would_be_in_the_way_of_a_new_topic_is_told_without_making_it(catalog: Catalog) -> None:
    catalog.create_topic("or.ders", 1, {}, nothing)
    assert catalog.check_new("users", 3, {"retention.ms": 5}).retention_ms == 5
    for name, partitions, overrides, error in (
        ("or.ders", 1, {}, TopicExists),
        ("or_ders", 1, {}, InvalidTopic),
        ("a/b", 1, {}, InvalidTopic),
        ("users", 0, {}, InvalidSetting),
        ("users", 1, {"retention.ms": "soon"}, InvalidSetting),
    ):
        with pytest.raises(error):
            catalog.check_new(name, partitions, overrides)
    assert [topic.name for topic in catalog.topics()] == ["or.ders"]


def test_partitions_can_only_become_more(catalog: Catalog) -> None:
    catalog.create_topic("orders", 2, {}, nothing)
    catalog.create_topic("users", 1, {}, nothing)
    assert catalog.add_partitions("orders", 4, nothing).partitions == (1, 2, 4, 5)
    assert catalog.topic("orders").partitions == (1, 2, 4, 5)
    for total in (1, 4):
        with pytest.raises(
            InvalidSetting, match=rf"The topic orders currently has 4 partition\(s\); {total} would not be an increase"
        ):
            catalog.add_partitions("orders", total, nothing)


@pytest.mark.parametrize("count", [0, -1, 10_001])
def test_a_number_of_partitions_out_of_range_is_refused(catalog: Catalog, count: int) -> None:
    with pytest.raises(InvalidSetting, match=f"orders: partitions: {count} is invalid .expected 1 to 10000"):
        catalog.create_topic("orders", count, {}, nothing)


@pytest.mark.parametrize("count", [True, "3", 1.0, None])
def test_a_number_of_partitions_is_an_int(catalog: Catalog, count: int) -> None:
    with pytest.raises(TypeError, match="partitions is an int"):
        catalog.create_topic("orders", count, {}, nothing)


def test_a_store_full_of_slots_says_so(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_module, "MAX_SLOTS", 5)
    catalog.create_topic("a", 3, {}, nothing)
    with pytest.raises(InvalidSetting, match="b: partitions: 2 more are too many for this store"):
        catalog.create_topic("b", 2, {}, nothing)
    assert catalog.create_topic("b", 1, {}, nothing).partitions == (4,)


def test_a_taken_name_is_refused(catalog: Catalog) -> None:
    catalog.create_topic("orders", 1, {}, nothing)
    with pytest.raises(TopicExists, match=r"^Topic 'orders' already exists\."):
        catalog.create_topic("orders", 1, {}, nothing)


@pytest.mark.parametrize(("first", "second"), [("a.b", "a_b"), ("a_b", "a.b"), ("a._b", "a__b")])
def test_names_that_differ_only_in_dots_and_underscores_collide(catalog: Catalog, first: str, second: str) -> None:
    catalog.create_topic(first, 1, {}, nothing)
    with pytest.raises(InvalidTopic, match=f"Topic '{second}' collides with existing topic: {first}"):
        catalog.create_topic(second, 1, {}, nothing)
    catalog.delete_topic(first)
    catalog.create_topic(second, 1, {}, nothing)


def test_reserved_names_are_for_klamm_itself(catalog: Catalog) -> None:
    with pytest.raises(InvalidTopic):
        catalog.create_topic("__klamm-offsets", 1, {}, nothing)
    assert catalog.create_topic("__klamm-offsets", 1, {}, nothing, internal=True).name == "__klamm-offsets"


def test_an_unknown_topic_is_an_error_that_names_the_nearest(catalog: Catalog) -> None:
    catalog.create_topic("orders", 1, {}, nothing)
    with pytest.raises(UnknownTopic, match=r"Topic 'order' does not exist .did you mean 'orders'"):
        catalog.topic("order")
    for call in (catalog.delete_topic, lambda name: catalog.alter_settings(name, {})):
        with pytest.raises(UnknownTopic):
            call("nope")
    with pytest.raises(UnknownTopic):
        catalog.add_partitions("nope", 3, nothing)


def test_settings_are_altered_and_reset(catalog: Catalog) -> None:
    catalog.create_topic("orders", 1, {"retention.ms": 5, "segment.bytes": 1000}, nothing)
    catalog.alter_settings("orders", {"retention.bytes": "7"}, ["retention.ms"])
    assert catalog.topic("orders").settings.to_dict() == {"retention.bytes": "7", "segment.bytes": "1000"}
    with pytest.raises(InvalidSetting, match=r"orders: retention\.bytes: 'x' is invalid"):
        catalog.alter_settings("orders", {"retention.bytes": "x", "segment.bytes": 20})
    assert catalog.topic("orders").settings.to_dict() == {"retention.bytes": "7", "segment.bytes": "1000"}


def test_a_change_by_another_process_is_seen_at_once(catalog: Catalog, tmp_path: Path, path: str) -> None:
    catalog.create_topic("orders", 1, {}, nothing)
    with closing(Catalog(path, lock_of(tmp_path))) as other:
        assert other.topic("orders").settings == Settings()
        before = other.database.version()
        assert other.database.version() == before
        catalog.alter_settings("orders", {"retention.ms": 9}, ())
        assert other.database.version() != before
        assert other.topic("orders").settings.retention_ms == 9
        catalog.delete_topic("orders")
        with pytest.raises(UnknownTopic):
            other.topic("orders")


class TwoProcesses(RuleBasedStateMachine):
    """Two catalogs on one file, used in turn, against a dictionary."""

    names = st.sampled_from(["a", "b", "a.b", "a_b"])
    changes = st.dictionaries(st.sampled_from(["retention.ms", "segment.ms"]), st.integers(1, 9))

    @initialize(directory=st.just(None))
    def open(self, directory: None) -> None:
        import tempfile

        self.directory = tempfile.TemporaryDirectory()
        path = f"{self.directory.name}/klamm.db"
        first = Catalog.create(path, lock_of(self.directory.name), "store")
        self.catalogs = [first, Catalog(path, lock_of(self.directory.name))]
        self.model: dict[str, Topic] = {}
        self.deleted: list[Topic] = []
        self.slots: list[int] = []
        self.ids: set[str] = set()

    def lay_out(self, wanted: SlotRequest, topic_id: str, number: int) -> tuple[int, ...]:
        slots = nothing(wanted, topic_id, number)
        taken = {slot for topic in (*self.model.values(), *self.deleted) for slot in topic.partitions}
        assert not taken & set(slots), "a slot of a topic that is there, or not yet removed"
        self.slots = list(slots)
        return slots

    @rule(which=st.integers(0, 1), name=names, count=st.integers(1, 3), changes=changes)
    def create(self, which: int, name: str, count: int, changes: dict[str, int]) -> None:
        clash = [other for other in self.model if other.replace(".", "_") == name.replace(".", "_")]
        if clash:
            with pytest.raises(TopicExists if clash == [name] else InvalidTopic):
                self.catalogs[which].create_topic(name, count, changes, self.lay_out)
            return
        topic = self.catalogs[which].create_topic(name, count, changes, self.lay_out)
        assert topic.id not in self.ids
        assert topic.partitions == tuple(self.slots)
        assert topic.settings == Settings.of(changes)
        self.ids.add(topic.id)
        self.model[name] = topic

    @rule(which=st.integers(0, 1), name=names, more=st.integers(1, 2))
    def grow(self, which: int, name: str, more: int) -> None:
        if name in self.model:
            old = self.model[name]
            topic = self.catalogs[which].add_partitions(name, len(old.partitions) + more, self.lay_out)
            assert topic == old._replace(partitions=old.partitions + tuple(self.slots))
            self.model[name] = topic

    @rule(which=st.integers(0, 1), name=names, changes=changes)
    def alter(self, which: int, name: str, changes: dict[str, int]) -> None:
        if name in self.model:
            old = self.model[name]
            topic = self.catalogs[which].alter_settings(name, changes)
            assert topic == old._replace(settings=old.settings.changed(changes))
            self.model[name] = topic

    @rule(which=st.integers(0, 1), name=names)
    def delete(self, which: int, name: str) -> None:
        if name in self.model:
            self.deleted.append(self.model.pop(name))
            assert self.catalogs[which].delete_topic(name) == self.deleted[-1]
        else:
            with pytest.raises(UnknownTopic):
                self.catalogs[which].delete_topic(name)

    @rule(which=st.integers(0, 1))
    def remove_a_tombstone(self, which: int) -> None:
        if self.deleted:
            topic = self.deleted.pop(0)
            assert self.catalogs[which].slots_of(topic.id) == dict(enumerate(topic.partitions))
            self.catalogs[which].forget_deleted(topic.id)

    @invariant()
    def both_see_the_same(self) -> None:
        if not hasattr(self, "model"):
            return
        for catalog in self.catalogs:
            assert catalog.topics() == sorted(self.model.values())
            assert [catalog.topic(name) for name in self.model] == list(self.model.values())

    def teardown(self) -> None:
        if hasattr(self, "model"):
            assert self.catalogs[0].check() == []
            for catalog in self.catalogs:
                catalog.close()
            self.directory.cleanup()


TestTwoProcesses = TwoProcesses.TestCase
TestTwoProcesses.settings = settings(max_examples=25, stateful_step_count=15)


def test_threads_share_a_catalog(catalog: Catalog) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for i in range(5):
                catalog.create_topic(f"t{number}-{i}", 2, {}, nothing)
                assert catalog.topic(f"t{number}-{i}").name in [topic.name for topic in catalog.topics()]
        except BaseException as error:  # reported by the main thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    topics = catalog.topics()
    assert len(topics) == 40
    assert sorted(slot for topic in topics for slot in topic.partitions) == list(range(1, 81))


# Producer ids


def test_producer_ids_grow_and_never_repeat(tmp_path: Path, path: str) -> None:
    given: list[int] = []
    for _ in range(3):
        with (
            closing(Catalog.create(path, lock_of(tmp_path), "x")) as one,
            closing(Catalog(path, lock_of(tmp_path))) as two,
        ):
            mine = [one.allocate_producer_id() for _ in range(1500)]
            assert mine == sorted(mine)
            given += mine + [two.allocate_producer_id() for _ in range(10)]
    assert len(set(given)) == len(given)
    assert min(given) == 0


# Damage


def test_rows_that_were_tampered_with_are_errors(catalog: Catalog, path: str) -> None:
    catalog.create_topic("orders", 2, {"retention.ms": 5}, nothing)
    for change in [
        "UPDATE partitions SET slot = 7 WHERE slot = 2",
        "DELETE FROM partitions WHERE number = 1",
        "UPDATE partitions SET number = 3 WHERE number = 1",
        "UPDATE topics SET settings = '{}'",
        "UPDATE topics SET settings = 'x'",
        "UPDATE topics SET name = 'others'",
        "DELETE FROM partitions",
    ]:
        with tampered(path, change):
            with pytest.raises(NotAStore, match=r"klamm\.db: topic 'o\w+' is damaged"):
                catalog.topics()
            assert catalog.check() != []
    for change in ["UPDATE meta SET value = 1 WHERE key = 'next_slot'", "DELETE FROM meta"]:
        with tampered(path, change):
            with pytest.raises(NotAStore, match="next_slot is missing or wrong"):
                catalog.create_topic("users", 1, {}, nothing)
            assert catalog.check() != []
    with tampered(path, "DELETE FROM topics"):
        assert any("a topic that" in problem or "is not there" in problem for problem in catalog.check())
    assert catalog.check() == []


def test_a_setting_that_this_version_does_not_know_was_set_by_a_newer_one(catalog: Catalog, path: str) -> None:
    topic = catalog.create_topic("orders", 1, {}, nothing)
    text = '{"flush.ms": "5"}'
    crc = crc_of(topic.id, topic.name, text, topic.created_ms, *topic.partitions)
    with (
        tampered(path, f"UPDATE topics SET settings = '{text}', crc = {crc}"),
        pytest.raises(NewerFormat, match=r"topic 'orders': flush\.ms: there is no such setting"),
    ):
        catalog.topic("orders")


@contextmanager
def tampered(path: str, change: str) -> Iterator[None]:
    """`change` made to the rows, and unmade afterwards."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        saved = {
            table: connection.execute(f"SELECT * FROM {table}").fetchall() for table in ("meta", "topics", "partitions")
        }
        connection.execute(change)
        yield
        for table, rows in saved.items():
            connection.execute(f"DELETE FROM {table}")
            connection.executemany(f"INSERT INTO {table} VALUES ({','.join('?' * len(rows[0]))})", rows)


def small_database(directory: Path) -> bytes:
    with closing(Catalog.create(str(directory / "klamm.db"), lock_of(directory), "the-store")) as catalog:
        for number in range(6):
            catalog.create_topic(f"topic-{number}", 3, {"retention.ms": number}, nothing)
        catalog.delete_topic("topic-2")
    assert not (directory / "klamm.db-wal").exists()
    return (directory / "klamm.db").read_bytes()


def look(directory: Path) -> list[Topic] | None:
    """What an opener sees; None: an error of ours."""
    try:
        with closing(Catalog(str(directory / "klamm.db"), nullcontext)) as catalog:
            return catalog.topics()
    except KlammError:
        return None


@pytest.mark.parametrize("count", [400, pytest.param(20_000, marks=pytest.mark.soak)])
def test_a_flipped_bit_is_an_error_or_hides_a_topic_but_never_changes_one(tmp_path: Path, count: int) -> None:
    whole = small_database(tmp_path)
    topics = look(tmp_path)
    assert topics is not None and len(topics) == 5
    chance = random.Random(count)
    for _ in range(count):
        data = bytearray(whole)
        data[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        (tmp_path / "klamm.db").write_bytes(data)
        seen = look(tmp_path)
        assert seen is None or set(seen) <= set(topics)


def test_a_topic_that_an_index_lacks_is_damage_and_its_name_is_not_given_again(tmp_path: Path) -> None:
    """Its name is in the row and in two indexes; one of these is damaged at a time."""
    whole = small_database(tmp_path)
    name, hidden = b"topic-4", 0
    for at in [at for at in range(len(whole)) if whole[at : at + len(name)] == name]:
        data = bytearray(whole)
        data[at + len(name) - 1] ^= 8
        (tmp_path / "klamm.db").write_bytes(data)
        with closing(Catalog(str(tmp_path / "klamm.db"), nullcontext)) as catalog:
            found: object = None
            with suppress(NotAStore):
                found = catalog.topic("topic-4")
            with pytest.raises((TopicExists, NotAStore)) if data.count(name) > 1 else nullcontext():
                catalog.create_topic("topic-4", 1, {}, nothing)
            hidden += found is None
    assert hidden


def roots_of(directory: Path, table: str) -> list[int]:
    """Return where the first pages of a table and of its indexes begin."""
    with closing(sqlite3.connect(directory / "klamm.db")) as connection:
        size = connection.execute("PRAGMA page_size").fetchone()[0]
        pages = connection.execute("SELECT rootpage FROM sqlite_master WHERE tbl_name = ?", (table,)).fetchall()
    return [(page - 1) * size for (page,) in pages]


@pytest.mark.parametrize("count", [300, pytest.param(20_000, marks=pytest.mark.soak)])
def test_a_topic_that_a_flipped_bit_hides_is_damage_and_not_unknown(tmp_path: Path, count: int) -> None:
    whole = small_database(tmp_path)
    topic = {each.name: each for each in look(tmp_path) or ()}["topic-4"]
    starts = roots_of(tmp_path, "topics")
    assert len(starts) == 3
    chance = random.Random(seed_of())
    hidden = 0
    for number in range(count):
        data = bytearray(whole)
        start = starts[number % len(starts)]
        # Half of them in the header and the list of cells, where one bit hides a row.
        used = [at for at in range(4096) if data[start + at]] if number % 2 else range(18)
        data[start + chance.choice(used)] ^= 1 << chance.randrange(8)
        (tmp_path / "klamm.db").write_bytes(data)
        try:
            with closing(Catalog(str(tmp_path / "klamm.db"), nullcontext)) as catalog:
                assert catalog.topic("topic-4") == topic
        except NotAStore:
            hidden += 1
    assert hidden


def test_a_topic_that_another_creates_between_the_two_looks_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_database(tmp_path)
    path = str(tmp_path / "klamm.db")
    unknown = Catalog._unknown
    with closing(Catalog(path, nullcontext)) as catalog, closing(Catalog(path, nullcontext)) as another:

        def create_first(self: Catalog, *args: Any) -> UnknownTopic | NotAStore:
            another.create_topic("orders.dlq", 1, {}, nothing)
            return unknown(self, *args)

        monkeypatch.setattr(Catalog, "_unknown", create_first)
        with pytest.raises(UnknownTopic, match=r"'orders\.dlq' does not exist"):
            catalog.topic("orders.dlq")
        assert catalog.topic("orders.dlq") == another.topic("orders.dlq")


@pytest.mark.parametrize("count", [60, pytest.param(2_000, marks=pytest.mark.soak)])
def test_a_database_cut_anywhere_is_an_error_or_whole(tmp_path: Path, count: int) -> None:
    whole = small_database(tmp_path)
    topics = look(tmp_path)
    chance = random.Random(count)
    for size in [0, 1, 15, 16, 99, 100, 4095, 4096, 4097, *(chance.randrange(len(whole)) for _ in range(count))]:
        (tmp_path / "klamm.db").write_bytes(whole[:size])
        seen = look(tmp_path)
        assert seen is None or seen == topics


def test_a_full_disk_refuses_and_loses_nothing(catalog: Catalog) -> None:
    catalog.create_topic("before", 1, {}, nothing)
    connection = catalog.database._connection
    assert connection is not None
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(DiskFull, match=r"klamm\.db: .*full"):
        catalog.create_topic("during", 5000, {}, nothing)
    assert [topic.name for topic in catalog.topics()] == ["before"]
    connection.execute("PRAGMA max_page_count = 100000")
    assert catalog.create_topic("after", 5000, {}, nothing).partitions[0] == 2


# Copies, closing, reading only


def test_a_backup_is_a_catalog_with_the_same_topics(catalog: Catalog, tmp_path: Path) -> None:
    for number in range(20):
        catalog.create_topic(f"topic-{number}", 2, {}, nothing)
    copy = tmp_path / "copy"
    copy.mkdir()
    with catalog.database.db_lock():
        catalog.backup(str(copy / "klamm.db"))
    with closing(Catalog(str(copy / "klamm.db"), lock_of(copy))) as restored:
        assert restored.topics() == catalog.topics()
        assert restored.store_id == catalog.store_id
        assert restored.check() == []
        assert restored.create_topic("more", 1, {}, nothing).partitions == (41,)


def test_a_closed_catalog_says_so(catalog: Catalog) -> None:
    catalog.close()
    catalog.close()
    with pytest.raises(StoreError, match="the store is closed"):
        catalog.topics()


def test_a_read_only_catalog_reads_what_others_write_and_refuses_to(
    catalog: Catalog, tmp_path: Path, path: str
) -> None:
    with closing(Catalog(path, lock_of(tmp_path), read_only=True)) as reader:
        assert reader.topics() == []
        catalog.create_topic("orders", 1, {}, nothing)
        assert reader.topic("orders").name == "orders"
        for write in (
            lambda: reader.create_topic("users", 1, {}, nothing),
            lambda: reader.add_partitions("orders", 2, nothing),
            lambda: reader.alter_settings("orders", {}),
            lambda: reader.delete_topic("orders"),
            reader.allocate_producer_id,
        ):
            with pytest.raises(ReadOnly, match="opened for reading only"):
                write()
