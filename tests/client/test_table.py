"""Tables: the latest value of each key, shared by processes that come, go and are killed."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import klamm
from klamm.client.table import materialised, rocksdb
from klamm.client.table.rocksdb import RocksTable
from klamm.client.table.table import Table
from klamm.client.table.table_updater import PartitionProgress, TableUpdater
from klamm.log import cleaner_checkpoint
from tests.client.conftest import directory_of, put
from tests.procs import PATIENCE, until


def read_by(table: Table) -> int:
    """How many records this process has read to bring the table up to date."""
    return table._shared.updater.count


# As a mapping


def test_reads_see_what_was_committed_before_them(store: klamm.Store, users: Table) -> None:
    for n in range(300):
        store.append("users", b"%d" % n, key=b"alice", acks=1)
        assert users[b"alice"] == b"%d" % n
        assert users.get(b"alice") == b"%d" % n
    store.append("users", None, key=b"alice", acks=1)
    assert b"alice" not in users
    with pytest.raises(KeyError):
        users[b"alice"]
    assert users.get(b"alice") is None and users.get(b"alice", b"nobody") == b"nobody"
    assert len(users) == 0 and not users


def test_all_ways_to_read_agree_and_are_in_the_order_of_keys(store: klamm.Store, users: Table) -> None:
    model = {b"al%d" % n: b"%d" % n for n in range(100)} | {b"": b"empty", b"\xff": b"1", b"\xff\xff": b"2", b"b": b""}
    put(store, dict(model))
    ordered = sorted(model.items())
    assert list(users) == list(users.keys()) == [key for key, _ in ordered]
    assert list(users.items()) == ordered
    assert list(users.values()) == [value for _, value in ordered]
    assert dict(users) == model and len(users) == len(users.items()) == len(model) and users
    assert (b"al7", b"7") in users.items() and b"al7" in users
    for prefix in (b"", b"al", b"al1", b"\xff", b"\xff\xff", b"zzz"):
        assert list(users.prefix(prefix)) == [pair for pair in ordered if pair[0].startswith(prefix)], prefix
    for start, stop in [(b"al2", b"al4"), (None, b"al5"), (b"al9", None), (b"al4", b"al2"), (b"", b""), (None, None)]:
        want = [pair for pair in ordered if (start or b"") <= pair[0] and (stop is None or pair[0] < stop)]
        assert list(users.range(start, stop)) == want, (start, stop)


def test_an_iteration_sees_the_table_as_it_was_when_it_began(store: klamm.Store, users: Table) -> None:
    put(store, {b"a": b"1", b"b": b"1"})
    iteration = iter(users.items())
    put(store, {b"a": b"2", b"b": None, b"c": b"2"})
    assert users[b"c"] == b"2"
    assert list(iteration) == [(b"a", b"1"), (b"b", b"1")]


def test_serdes_apply_to_keys_and_values(store: klamm.Store) -> None:
    store.topics.create("users")
    with store.producer(serde="json") as producer:
        producer.send("users", {"age": 7}, key="alice")
        producer.send("users", {"age": 8}, key="alan")
    with store.table("users", serde="json") as users:
        assert users["alice"] == {"age": 7} and "bob" not in users and users.get("bob", 1) == 1
        assert list(users.items()) == [("alan", {"age": 8}), ("alice", {"age": 7})]
        assert list(users.prefix("ali")) == [("alice", {"age": 7})]
        assert list(users.values()) == [{"age": 8}, {"age": 7}] and list(users) == ["alan", "alice"]


def test_what_is_put_is_appended_and_every_later_read_sees_it(store: klamm.Store, users: Table, path: Path) -> None:
    users[b"alice"] = b"1"
    assert users[b"alice"] == b"1" and users.put(b"alice", b"2") == 1 and users[b"alice"] == b"2"
    assert users.put(b"bob", b"1", acks=1) == users.delete(b"bob", acks=1) - 1
    del users[b"alice"]
    assert dict(users) == {} and users.delete(b"nobody") >= 0
    with pytest.raises(KeyError, match="nobody"):
        del users[b"nobody"]
    written = sorted(store.consumer("users", wait=0), key=lambda record: (record.key, record.offset))
    assert [(record.key, record.value) for record in written] == [
        (b"alice", b"1"),
        (b"alice", b"2"),
        (b"alice", None),
        (b"bob", b"1"),
        (b"bob", None),
        (b"nobody", None),
    ]
    with store.table("users", serde="json") as documents, klamm.open(path, serde="json", key_serde="str") as typed:
        documents["carol"] = {"age": 7}
        assert users[b"carol"] == b'{"age":7}' and documents["carol"] == {"age": 7}
        with typed.table("users") as same:
            same["dave"] = [1]
        del documents["dave"]
        assert list(documents) == ["carol"]


def test_what_cannot_be_put_is_refused(store: klamm.Store, users: Table) -> None:
    wrong: Any = None
    with pytest.raises(TypeError, match=r"use table\.delete\(key\)"):
        users[b"alice"] = wrong
    for write in (lambda: users.put(wrong, b"1"), lambda: users.delete(wrong)):
        with pytest.raises(TypeError, match="a table has no key None"):
            write()
    with pytest.raises(TypeError, match="key is str"):
        users["alice"] = b"1"  # type: ignore[index]
    reading = klamm.open(store.path, read_only=True)
    with reading, reading.table("users") as table, pytest.raises(klamm.ReadOnly):
        table[b"alice"] = b"1"
    users.close()
    with pytest.raises(klamm.Closed, match="the table is closed"):
        users.put(b"alice", b"1")
    assert store["users"].info().partitions[0].end == 0


def test_records_without_a_key_are_left_out_and_other_keys_are_refused(store: klamm.Store, users: Table) -> None:
    store.append_many("users", [(None, b"no key"), (b"k", b"v"), (None, b"no key either")], acks=1)
    assert dict(users) == {b"k": b"v"}
    assert users[bytearray(b"k")] == users[memoryview(b"k")] == b"v"
    wrong: Any
    for wrong in ("k", 1, None):
        with pytest.raises(TypeError, match="a key is bytes"):
            users[wrong]
        with pytest.raises(TypeError, match="a key is bytes"):
            users.prefix(wrong)


def test_changes_go_on_where_the_table_was(store: klamm.Store, users: Table) -> None:
    put(store, {b"a": b"1", b"b": b"1"})
    assert sorted((change.key, change.value) for change in users.changes()) == [(b"a", b"1"), (b"b", b"1")]
    seen = users.offsets()
    assert list(users.changes(seen)) == []
    put(store, {b"a": None, b"c": b"1"})
    store.append("users", b"no key", acks=1)
    changes = list(users.changes(seen))
    assert sorted((change.key, change.value) for change in changes) == [(b"a", None), (b"c", b"1")]
    assert all(change.offset >= seen[change.partition].offset for change in changes)


def test_partitions_that_are_added_are_read(store: klamm.Store, users: Table) -> None:
    put(store, {b"a": b"1"})
    assert users[b"a"] == b"1"
    store.topics.add_partitions("users", 70)  # more than it keeps open
    for number in range(70):
        store.append("users", b"%d" % number, key=b"k%d" % number, partition=number, acks=1)
    assert len(users) == 71 and users[b"k69"] == b"69"


# Within a process


def test_tables_of_a_process_share_one_handle_until_the_last_is_closed(store: klamm.Store, users: Table) -> None:
    put(store, {b"a": b"1"})
    with store.table("users", serde="str") as other:
        assert other._shared is users._shared and other["a"] == "1" and users[b"a"] == b"1"
    with pytest.raises(klamm.StoreError, match="closed"):
        other["a"]
    assert users[b"a"] == b"1" and users.maintains
    shared = users._shared
    store.close()
    for use in (lambda: users[b"a"], lambda: users.get(b"a", wait=0), users.items().__iter__, users.offsets):
        with pytest.raises(klamm.StoreError, match="closed"):
            use()
    assert shared.closed and shared._thread is None and not materialised._open


def test_a_table_that_was_dropped_is_closed(store: klamm.Store) -> None:
    store.topics.create("users")
    table = store.table("users")
    shared = table._shared
    del table
    until(lambda: shared.closed and not materialised._open, "it is closed")
    with store.table("users") as table:
        assert len(table) == 0 and table.maintains


def test_threads_that_wait_for_another_wait_while_it_gets_further(
    store: klamm.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.topics.create("users")
    store.append_many("users", ((b"%d" % n, b"x" * 1000) for n in range(20_000)), acks=1)
    table = store.table("users", wait=0.5)
    apply = TableUpdater.apply

    def slow(self: TableUpdater, place: PartitionProgress, rocksdb: RocksTable) -> None:
        apply(self, place, rocksdb)
        time.sleep(0.05)

    monkeypatch.setattr(TableUpdater, "apply", slow)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: len(table), range(4))) == [20_000] * 4
    monkeypatch.undo()
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with table._shared._mutex:
            held.set()
            over.wait(PATIENCE)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(PATIENCE)
    put(store, {b"a": b"1"})
    with pytest.raises(klamm.StoreBusy, match="another thread is at it, and gets no further"):
        table[b"a"]
    over.set()
    holder.join()
    assert table[b"a"] == b"1"


def test_threads_may_read_while_others_append(store: klamm.Store, users: Table) -> None:
    failures: list[BaseException] = []

    def work(name: bytes) -> None:
        try:
            for n in range(200):
                store.append("users", b"%d" % n, key=name, acks=1)
                assert users[name] == b"%d" % n
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(b"t%d" % n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == [] and len(users) == 4


def test_the_thread_of_the_maintainer_applies_what_nobody_asks_for(store: klamm.Store, users: Table) -> None:
    put(store, {b"a": b"1"})
    until(lambda: users.get(b"a", wait=0) == b"1", "it is applied")


def test_without_rocksdict_the_error_says_what_to_install(store: klamm.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.topics.create("users")
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(klamm.KlammError, match=r"pip install 'klamm\[table\]'"):
        store.table("users")


# Opened again


def test_opening_again_reads_only_what_came_since(path: Path) -> None:
    with klamm.open(path) as store:
        store.topics.create("users", partitions=2)
        put(store, {b"%d" % n: b"v" for n in range(5000)})
        with store.table("users") as users:
            assert len(users) == 5000 and read_by(users) == 5000
        with store.table("users") as users:
            assert len(users) == 5000 and read_by(users) == 0
        put(store, {b"new": b"1", b"0": None})
    with klamm.open(path) as store, store.table("users") as users:
        assert users[b"new"] == b"1" and len(users) == 5000
        assert read_by(users) == 2


KEYS = st.binary(max_size=3) | st.sampled_from([b"a", b"ab", b"abc", b"b"])
STEPS = st.lists(
    st.tuples(st.just("put"), st.dictionaries(KEYS, st.none() | st.binary(max_size=4), min_size=1, max_size=8))
    | st.tuples(st.sampled_from(["reopen table", "reopen store", "read", "range"]), KEYS),
    max_size=25,
)


@settings(max_examples=15)
@given(STEPS)
def test_a_table_is_a_dict_whatever_is_put_deleted_and_opened_again(steps: list[tuple[str, Any]]) -> None:
    model: dict[bytes, bytes] = {}
    with tempfile.TemporaryDirectory() as path:
        store = klamm.open(path)
        store.topics.create("users", partitions=2)
        users = store.table("users")
        for what, given_ in steps:
            if what == "put":
                put(store, given_)
                for key, value in given_.items():
                    model.pop(key, None)
                    if value is not None:
                        model[key] = value
            elif what == "read":
                assert users.get(given_) == model.get(given_)
            elif what == "range":
                assert list(users.prefix(given_)) == sorted(
                    pair for pair in model.items() if pair[0].startswith(given_)
                )
                assert list(users.range(given_)) == sorted(pair for pair in model.items() if pair[0] >= given_)
            else:
                users.close()
                if what == "reopen store":
                    store.close()
                    store = klamm.open(path)
                users = store.table("users")
        assert list(users.items()) == sorted(model.items())
        store.close()


# When the log is not what it was


def copy_with_a_cut(store: klamm.Store, to: Path, size: int) -> None:
    """The store as a power cut may leave it: a log that lost its unsynced tail, a table that did not."""
    shutil.copytree(store.path, to)
    log = to / "topics" / f"users-{store.topics.describe('users').id}" / "0" / f"{0:020}.log"
    os.truncate(log, size)


def test_what_the_log_lost_in_a_power_cut_is_not_in_the_table(
    store: klamm.Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store.topics.create("users")
    put(store, {b"a": b"1", b"b": b"1"})
    size = store.topics.describe("users").size
    put(store, {b"a": b"lost", b"c": b"lost", b"b": None})
    with store.table("users") as users:
        assert dict(users) == {b"a": b"lost", b"c": b"lost"}
    copy_with_a_cut(store, tmp_path / "copy", size)
    with klamm.open(tmp_path / "copy") as cut:
        for n in range(5):  # the offsets of what was lost are used again, and more
            cut.append("users", b"%d" % n, key=b"d", acks=1)
        with cut.table("users") as users:
            assert dict(users) == {b"a": b"1", b"b": b"1", b"d": b"4"}
        assert "rebuilding the table" in caplog.text
        with cut.table("users") as users:
            assert dict(users) == {b"a": b"1", b"b": b"1", b"d": b"4"} and read_by(users) == 0
            assert len(rocksdb.generations(str(directory_of(cut)))) == 1  # the lost one was removed


def test_a_table_that_has_nothing_of_what_was_lost_is_kept(store: klamm.Store, tmp_path: Path) -> None:
    store.topics.create("users")
    put(store, {b"a": b"1", b"b": b"1"})
    with store.table("users") as users:
        assert len(users) == 2
    size = store.topics.describe("users").size
    put(store, {b"c": b"lost"})
    copy_with_a_cut(store, tmp_path / "copy", size)
    with klamm.open(tmp_path / "copy") as cut:
        put(cut, {b"d": b"1"})
        with cut.table("users") as users:
            assert dict(users) == {b"a": b"1", b"b": b"1", b"d": b"1"} and read_by(users) == 1


def test_records_that_went_before_they_were_seen_make_the_table_anew(store: klamm.Store) -> None:
    store.topics.create("users")
    put(store, {b"a": b"1", b"b": b"1"})
    with store.table("users") as users:
        assert len(users) == 2
    put(store, {b"a": None, b"c": b"1", b"d": b"1"})
    store["users"].delete_records({0: 4})
    with store.table("users") as users:
        assert dict(users) == {b"d": b"1"}  # all that the log has; that "a" was deleted nobody can know
    store["users"].delete_records({0: 5})
    with store.table("users") as users:
        assert dict(users) == {b"d": b"1"}  # it was seen


@pytest.mark.parametrize("kind", ["CURRENT", "MANIFEST", "everything"])
def test_a_damaged_table_is_rebuilt(store: klamm.Store, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    store.topics.create("users")
    put(store, {b"%d" % n: b"v" for n in range(100)})
    with store.table("users") as users:
        assert len(users) == 100
    for file in (directory_of(store) / "1").iterdir():
        if kind in file.name or kind == "everything":
            file.write_bytes(b"\0" * 50)
    with store.table("users") as users:
        assert len(users) == 100 and read_by(users) == 100
    assert "rebuilding the table" in caplog.text


def test_a_table_of_a_newer_klamm_is_refused_and_left_as_it_is(store: klamm.Store) -> None:
    store.topics.create("users")
    put(store, {b"a": b"1"})
    newer = patch.object(rocksdb, "_FORMAT", b"2")
    with newer, store.table("users") as users:
        assert len(users) == 1
    with pytest.raises(klamm.NewerFormat, match=r"/1: the table has format 2, this Klamm knows formats up to 1"):
        store.table("users")
    with newer, store.table("users") as users:
        assert len(users) == 1 and read_by(users) == 0
        with pytest.raises(klamm.NewerFormat), patch.object(rocksdb, "_FORMAT", b"1"):
            rocksdb.open_follower(str(directory_of(store) / "1"))


def test_a_removed_table_is_made_anew(store: klamm.Store) -> None:
    store.topics.create("users")
    put(store, {b"a": b"1"})
    with store.table("users") as users:
        assert len(users) == 1
    shutil.rmtree(Path(store.path) / "tables")
    with store.table("users") as users:
        assert len(users) == 1


def test_a_compacted_topics_table_that_stood_still_for_too_long_is_made_anew(store: klamm.Store) -> None:
    store.topics.create("users", settings={"cleanup.policy": "compact", "delete.retention.ms": 0})
    put(store, {b"a": b"1", b"c": b"1"})
    with store.table("users") as users:
        assert len(users) == 2
    put(store, {b"a": None, b"b": b"1"})
    store["users"].compact(force=True)  # the tombstone's time begins; it is over when both clocks have passed it
    core = store._acquired()
    horizon_ms = cleaner_checkpoint.load(core.topic("users").partition(0).directory).last_horizon
    until(lambda: core.heads.expiry_ms() >= horizon_ms, "the tombstone's time is over")
    store["users"].compact(force=True)
    with store.consumer("users", wait=0) as consumer:
        assert {record.key for record in consumer} == {b"b", b"c"}, "the tombstone is gone"
    with store.table("users") as users:
        assert dict(users) == {b"b": b"1", b"c": b"1"} and read_by(users) == 2


def test_a_table_follows_its_topic_while_that_is_compacted(store: klamm.Store) -> None:
    store.topics.create("users", 2, {"cleanup.policy": "compact", "segment.bytes": 2000})
    model: dict[bytes, bytes | None] = {}
    with store.table("users") as users:
        for number in range(20):
            changes = {b"%d" % (n * number % 30): b"%d" % number if n % 3 else None for n in range(20)}
            put(store, changes)
            model.update(changes)
            store["users"].compact(force=number % 5 == 0)
            assert dict(users) == {key: value for key, value in model.items() if value is not None}
    with store.table("users") as users:
        assert dict(users) == {key: value for key, value in model.items() if value is not None}


def test_a_deleted_topic_takes_its_table_with_it(store: klamm.Store, users: Table) -> None:
    put(store, {b"a": b"1"})
    assert users[b"a"] == b"1"
    directory = directory_of(store)
    store.topics.delete("users")
    for use in (lambda: users[b"a"], lambda: users.get(b"a", wait=0), lambda: len(users)):
        with pytest.raises(klamm.UnknownTopic):
            use()
    with users._shared._mutex, ThreadPoolExecutor(1) as other, pytest.raises(klamm.UnknownTopic):
        other.submit(users.get, b"a", wait=0).result()  # it waits for no thread that is at the table, and is told
    until(lambda: not directory.exists(), "the table is removed")
    store.topics.create("users")
    put(store, {b"b": b"1"})
    with pytest.raises(klamm.UnknownTopic):
        users[b"b"]
    with store.table("users") as another:
        assert dict(another) == {b"b": b"1"}


def test_what_a_killed_process_left_of_a_deleted_table_is_swept(store: klamm.Store) -> None:
    store.topics.create("users")
    left = Path(store.path) / "tables" / f"gone-{'0' * 32}" / "1"
    left.mkdir(parents=True)
    store.maintain()
    assert not left.exists() and list((Path(store.path) / "tables").iterdir()) == []


def test_backup_leaves_tables_out_and_check_does_not_mind_them(
    store: klamm.Store, users: Table, tmp_path: Path
) -> None:
    put(store, {b"a": b"1"})
    assert users[b"a"] == b"1"
    assert store.check().ok
    store.backup(tmp_path / "backup")
    assert not (tmp_path / "backup" / "tables").exists()
    with klamm.open(tmp_path / "backup") as backup, backup.table("users") as table:
        assert dict(table) == {b"a": b"1"}
    assert klamm.check(tmp_path / "backup").ok


def test_a_read_only_store_makes_a_table_of_its_own(
    store: klamm.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    store.topics.create("users", partitions=2)
    put(store, {b"a": b"1"})
    with klamm.open(store.path, read_only=True) as read_only, read_only.table("users") as users:
        assert users[b"a"] == b"1"
        put(store, {b"a": b"2"})
        assert users[b"a"] == b"2"
        assert not (Path(store.path) / "tables").exists()
        assert list((tmp_path / "temporary").iterdir())
    assert not list((tmp_path / "temporary").iterdir())


def test_a_table_that_could_not_be_written_recovers(store: klamm.Store, users: Table) -> None:
    put(store, {b"a": b"1"})
    assert users[b"a"] == b"1"
    users._shared._db.failed = True  # the disk was full
    put(store, {b"b": b"1"})
    assert dict(users) == {b"a": b"1", b"b": b"1"}
    assert read_by(users) == 2
