"""klamm.open and what it gives."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import re
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.log import head
from tests.descriptors import descriptors, opened_since
from tests.procs import STRICT, children


@pytest.fixture
def store(store: klamm.Store) -> klamm.Store:
    store.topics.create("orders")
    return store


def everything(store: klamm.Store, topic: str = "orders") -> list[klamm.Record]:
    with store.consumer(topic, wait=0) as consumer:
        return list(consumer)


def values(store: klamm.Store, topic: str = "orders") -> list[bytes]:
    return [record.value for record in everything(store, topic)]


# Opener


def test_a_store_is_made_at_its_first_open_and_found_at_the_next(path: Path) -> None:
    with klamm.open(str(path)) as store:
        store.topics.create("orders")
        store.append("orders", b"hello", key=b"user-1")
        identity = store.store_id
    with klamm.open(path, create=False) as store:
        assert store.store_id == identity and store.path == str(path)
        assert [(record.key, record.value) for record in everything(store)] == [(b"user-1", b"hello")]


def test_two_opens_in_one_process_share_the_directory(store: klamm.Store, path: Path) -> None:
    with klamm.open(path) as other:
        other.append("orders", b"one", acks=1)
        store.append("orders", b"two", acks=1)
        assert values(other) == values(store) == [b"one", b"two"]
    assert store.append("orders", b"three") == 2


@pytest.mark.parametrize("options", [{"create": False}, {"read_only": True}])
def test_opening_what_is_not_there_says_so(path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(klamm.NotAStore, match="nothing here"):
        klamm.open(path, **options)
    assert not path.exists()


def test_a_directory_with_something_else_in_it_is_not_a_store(path: Path) -> None:
    path.mkdir()
    (path / "letters.txt").write_text("Dear Milena")
    with pytest.raises(klamm.NotAStore, match=r"letters\.txt"):
        klamm.open(path)
    assert os.listdir(path) == ["letters.txt"]


def test_a_file_is_not_a_store(path: Path) -> None:
    path.write_text("x")
    with pytest.raises(klamm.NotAStore, match="is a file"):
        klamm.open(path)


def test_a_store_of_a_newer_format_is_refused_and_left_alone(path: Path) -> None:
    klamm.open(path).close()
    database = sqlite3.connect(path / "klamm.db")
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(klamm.NewerFormat):
        klamm.open(path)


def test_what_is_neither_a_directory_nor_an_address_is_refused() -> None:
    for name in ("s3://events", "http://localhost:9092"):
        with pytest.raises(klamm.StoreError, match="neither a directory nor an address"):
            klamm.open(name)


def test_a_path_of_bytes_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="path is a str"):
        klamm.open(b"events")  # type: ignore[call-overload]


def test_a_network_file_system_is_refused_with_the_reason(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("klamm.disk.files.filesystem_of", lambda _: "nfs4")
    with pytest.raises(klamm.UnsupportedFilesystem, match=r"nfs4.*network"):
        klamm.open(path)
    klamm.open(path, force_filesystem=True).close()


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() != 0, reason="only root can become another user")
def test_a_directory_that_cannot_be_written_says_so_and_can_be_read() -> None:
    """In a folder of its own: above tmp_path are folders that pytest closes to other users whenever a run begins."""
    with tempfile.TemporaryDirectory(prefix="klamm-test-") as own:
        path = Path(own) / "events"
        with klamm.open(path) as store:
            store.topics.create("orders")
            store.append("orders", b"hello")
        code = f"""
import os, klamm
with klamm.open({str(path)!r}, read_only=True) as store:  # imports everything, while that is allowed
    list(store.consumer("orders", wait=0))
os.setgid(65534); os.setuid(65534)
try:
    klamm.open({str(path)!r})
except klamm.ReadOnly as error:
    print(error)
with klamm.open({str(path)!r}, read_only=True) as store:
    print([record.value for record in store.consumer("orders", wait=0)])
"""
        for each in [Path(own), path, *path.rglob("*")]:
            each.chmod(0o755 if each.is_dir() else 0o644)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert "cannot be written" in done.stdout and "b'hello'" in done.stdout, done.stdout + done.stderr


def test_a_read_only_store_reads_and_refuses_every_write(store: klamm.Store, path: Path) -> None:
    store.append("orders", b"hello")
    with klamm.open(path, read_only=True) as reading:
        assert values(reading) == [b"hello"] and list(reading.topics) == ["orders"] and reading.read_only
        writes: list[Any] = [
            lambda: reading.append("orders", b"x"),
            lambda: reading.append("orders", b"x", acks=1),
            lambda: reading.append_many("orders", [b"x"]),
            reading.producer,
            lambda: reading.topics.create("users"),
            lambda: reading.topics.delete("orders"),
            lambda: reading.topics.alter("orders", {"retention.ms": 1}),
            lambda: reading.topics.add_partitions("orders", 2),
            lambda: reading["orders"].delete_records({0: 1}),
            reading.maintain,
        ]
        for write in writes:
            with pytest.raises(klamm.ReadOnly):
                write()
    assert values(store) == [b"hello"]


def test_a_closed_store_says_so_and_closing_twice_is_nothing(path: Path) -> None:
    store = klamm.open(path)
    orders = store.topics.create("orders")
    orders.append(b"x", acks=1)
    store.close()
    store.close()
    assert store.closed and "closed" in repr(store)
    uses: list[Callable[[], object]] = [
        lambda: store.append("orders", b"x"),
        lambda: store.append("orders", b"x", acks=1),
        lambda: list(store.topics),
        lambda: orders.append(b"x", acks=1),
        lambda: store["orders"],
    ]
    for use in uses:
        with pytest.raises(klamm.StoreError, match="closed"):
            use()


@pytest.mark.parametrize("where", ["if True:", "def main():"])
def test_a_program_that_ends_without_closing_has_sent_everything(path: Path, where: str) -> None:
    code = f"""
import klamm
main = int
{where}
    store = klamm.open({str(path)!r})
    store.topics.create("orders")
    producer = store.producer(linger_ms=60_000)
    for n in range(100):
        producer.send("orders", b"%d" % n)
main()
"""
    subprocess.run([sys.executable, *STRICT, "-c", code], check=True, timeout=30)
    with klamm.open(path) as store:
        assert values(store) == [b"%d" % n for n in range(100)]


def test_a_store_that_is_dropped_lets_go_of_its_descriptors(path: Path) -> None:
    klamm.open(path).close()
    before = descriptors()
    for _ in range(5):
        klamm.open(path)
    assert not opened_since(before)


# Processes


def test_a_store_lives_for_as_long_as_what_is_read_or_written_through_it(path: Path) -> None:
    with klamm.open(path) as store:
        store.topics.create("orders")
    with klamm.open(path).transaction() as tx:
        tx.send("orders", b"0", headers=[("klamm.dlq.error", b"x")])
    klamm.open(path).producer().send("orders", b"1").result(30)
    assert [record.value for record in klamm.open(path).tail("orders")] == [b"0", b"1"]
    assert [letter.record.value for letter in klamm.open(path).dead_letters("orders")] == [b"0", b"1"]
    assert klamm.open(path).scan("orders").to_table().num_rows == 2


def test_a_check_of_an_open_store_tells_its_progress(store: klamm.Store) -> None:
    store.append("orders", b"x" * 1000)
    told: list[tuple[int, int]] = []
    assert store.check(progress=lambda done, total: told.append((done, total))).ok
    assert told and all(0 <= done <= total and total > 1000 for done, total in told)


def test_a_store_pickles_as_its_path(store: klamm.Store, path: Path) -> None:
    with pickle.loads(pickle.dumps(store)) as other:
        assert other.path == store.path and other.append("orders", b"x") == 0
    with klamm.open(path, read_only=True) as reading, pickle.loads(pickle.dumps(reading)) as other:
        assert other.read_only and values(other) == [b"x"]


def _append_some(store: klamm.Store, name: str, count: int) -> None:
    for n in range(count):
        store.append("orders", f"{name} {n}".encode(), acks=1)
    with store.producer(acks=1) as producer:
        for n in range(count, 2 * count):
            producer.send("orders", f"{name} {n}".encode())
    store.close()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_of_multiprocessing_append_to_the_store_they_are_given(store: klamm.Store, method: str) -> None:
    store.append("orders", b"before")
    context: Any = multiprocessing.get_context(method)
    processes = [context.Process(target=_append_some, args=(store, f"p{n}", 50)) for n in range(3)]
    for process in processes:
        process.start()
    for n in range(50):
        store.append("orders", b"parent %d" % n, acks=1)
    for process in processes:
        process.join(30)
        assert process.exitcode == 0
    found = [value.decode() for value in values(store)]
    assert len(found) == 1 + 50 + 3 * 100
    for name, count in [("parent", 50), ("p0", 100), ("p1", 100), ("p2", 100)]:
        assert [value for value in found if value.startswith(name)] == [f"{name} {n}" for n in range(count)]


def test_a_forked_child_opens_the_store_anew_while_other_threads_append(store: klamm.Store) -> None:
    stop = threading.Event()

    def keep_appending() -> None:
        while not stop.is_set():
            store.append("orders", b"thread", acks=1)

    def in_child() -> list[int | None]:
        return [store.append("orders", b"child"), store.append("orders", b"child", acks=1)]

    threads = [threading.Thread(target=keep_appending) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        with children() as start:
            for _ in range(8):
                first, second = start(in_child).answer()
                assert first < second
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    records = everything(store)
    assert [record.offset for record in records] == list(range(len(records)))
    assert sum(record.value == b"child" for record in records) == 16


def test_a_process_sees_topics_settings_and_deletions_of_another(store: klamm.Store, path: Path) -> None:
    store.append("orders", b"x" * 2000)  # so that this process has everything about the topic at hand

    def change() -> None:
        with klamm.open(path) as other:
            other.topics.alter("orders", {"max.message.bytes": 1000})
            other.topics.create("users", partitions=2)

    def delete_and_make_anew() -> None:
        with klamm.open(path) as other:
            other.topics.delete("users")
            other.topics.delete("orders")
            other.topics.create("orders", partitions=2)

    with children() as start:
        start(change).answer()
        with pytest.raises(klamm.RecordTooLarge, match=r"maximum configured value of 1000"):
            store.append("orders", b"x" * 2000, acks=1)
        assert store.append("users", b"y", partition=1) == 0
        start(delete_and_make_anew).answer()
    with pytest.raises(klamm.UnknownTopic, match="users"):
        store.append("users", b"y", acks=1)
    assert store.append("orders", b"new", partition=1, acks=1) == 0
    assert values(store) == [b"new"]


# Topics


def test_a_topic_tells_its_partitions_and_settings(store: klamm.Store) -> None:
    made = store.topics.create("users", partitions=3, settings={"retention.ms": 3_600_000, "segment.bytes": "1048576"})
    info = made.info()
    assert info.settings == {"retention.ms": "3600000", "segment.bytes": "1048576"}
    assert [partition.number for partition in info.partitions] == [0, 1, 2]
    store.append_many("users", [b"a", b"b"], partition=1)
    users = store.topics.describe("users")
    assert (users.partitions[1].start, users.partitions[1].end, users.partitions[1].count) == (0, 2, 2)
    assert users.count == 2 and users.size == users.partitions[1].size > 61
    assert users.id == info.id != store.topics.describe("orders").id
    assert list(store.topics) == ["orders", "users"]


def test_creating_a_topic_twice_is_an_error_unless_it_may_exist(store: klamm.Store) -> None:
    with pytest.raises(klamm.TopicExists):
        store.topics.create("orders", partitions=5)
    assert len(store.topics.create("orders", partitions=5, exist_ok=True).info().partitions) == 1


@pytest.mark.parametrize("name", ["", ".", "a/b", "käse", "x" * 250, "__klamm-mine"])
def test_names_kafka_refuses_are_refused(store: klamm.Store, name: str) -> None:
    with pytest.raises(klamm.InvalidTopic):
        store.topics.create(name)


def test_an_unknown_setting_names_the_nearest(store: klamm.Store) -> None:
    with pytest.raises(klamm.InvalidSetting, match=r"retention\.ms"):
        store.topics.create("users", settings={"retention.mss": 5})
    assert list(store.topics) == ["orders"]


def test_settings_are_altered_and_reset(store: klamm.Store) -> None:
    store.topics.alter("orders", {"retention.ms": 1000, "segment.bytes": 4096})
    info = store.topics.alter("orders", {"segment.bytes": 8192}, reset=["retention.ms"])
    assert info.settings == {"segment.bytes": "8192"}


def test_partitions_only_become_more(store: klamm.Store) -> None:
    store.append("orders", b"x", acks=1)
    assert len(store.topics.add_partitions("orders", 4).partitions) == 4
    assert store.append("orders", b"y", partition=3, acks=1) == 0
    with pytest.raises(klamm.InvalidSetting):
        store.topics.add_partitions("orders", 2)


def test_an_unknown_topic_or_partition_says_so(store: klamm.Store) -> None:
    uses: list[Any] = [
        lambda: store.append("order", b"x"),
        lambda: store.append("order", b"x", acks=1),
        lambda: store.append_many("order", [b"x"]),
        lambda: store.topics.describe("order"),
        lambda: store.topics.delete("order"),
        lambda: store.topics.alter("order", {}),
        lambda: store.topics.add_partitions("order", 3),
        lambda: store.consumer("order"),
        lambda: store.tail("order"),
        lambda: store["order"].delete_records({0: 1}),
        lambda: store["order"].offset_at(0, 0),
    ]
    for use in uses:
        with pytest.raises(klamm.UnknownTopic, match="did you mean 'orders'"):
            use()
    for use in (
        lambda: store.append("orders", b"x", partition=1),
        lambda: store.append_many("orders", [b"x"], partition=-1),
        lambda: store.consumer("orders", partitions=[0, 7]),
        lambda: store["orders"].delete_records({3: 0}),
        lambda: store["orders"].offset_at(9, 0),
    ):
        with pytest.raises(klamm.UnknownTopic, match="no partition"):
            use()


def test_a_deleted_topic_is_gone_with_its_files_and_its_name_is_free(store: klamm.Store, path: Path) -> None:
    store.append("orders", b"old")
    store.topics.delete("orders")
    assert list(store.topics) == [] and os.listdir(path / "topics") == []
    with pytest.raises(klamm.UnknownTopic):
        store.append("orders", b"x", acks=1)
    store.topics.create("orders")
    assert store.append("orders", b"new") == 0 and values(store) == [b"new"]


def test_whoever_holds_a_partition_of_a_deleted_topic_is_refused(store: klamm.Store) -> None:
    store.append("orders", b"old")
    held = store._acquired().topic("orders").partition(0)
    with store.consumer("orders", wait=0) as consumer:
        store.topics.delete("orders")
        assert held.log.flags & head.DELETED
        with pytest.raises(klamm.UnknownTopic):
            held.append_one(None, b"new")
        with pytest.raises(klamm.UnknownTopic):
            consumer.poll()


def test_what_a_killed_deleter_left_is_swept(store: klamm.Store, path: Path) -> None:
    store.append("orders", b"old")
    directory = next((path / "topics").iterdir())
    info = store.topics.describe("orders")
    store.close()
    with klamm.open(path) as again:
        again._acquired().catalog.delete_topic("orders")  # and killed here
        assert directory.exists()
        again.maintain()
        assert os.listdir(path / "topics") == []
        again.topics.create("orders")
        again.append("orders", b"new")
    (path / "topics" / f"{info.id}.deleted" / "0").mkdir(parents=True)  # or killed while removing
    with klamm.open(path) as again:
        assert len(os.listdir(path / "topics")) == 1 and values(again) == [b"new"]


# Looking up, forgetting, maintenance


def test_offset_at_finds_the_first_record_of_a_time(store: klamm.Store) -> None:
    store.append_many("orders", [(None, b"x", None, 1000 * n) for n in range(100)])
    assert store["orders"].offset_at(0, 0) == 0
    assert store["orders"].offset_at(0, 4_500) == 5
    assert store["orders"].offset_at(0, datetime.fromtimestamp(7, UTC)) == 7
    assert store["orders"].offset_at(0, 1_000_000) is None


def test_delete_records_moves_the_start_and_never_the_offsets(store: klamm.Store) -> None:
    store.append_many("orders", [b"%d" % n for n in range(10)])
    assert store["orders"].delete_records({0: 4}) == {0: 4}
    assert values(store) == [b"4", b"5", b"6", b"7", b"8", b"9"]
    with pytest.raises(klamm.OffsetOutOfRange) as caught:
        store["orders"].delete_records({0: 11})
    assert (caught.value.start, caught.value.end) == (4, 10)
    assert store.append("orders", b"10") == 10


def test_maintain_removes_what_retention_says(store: klamm.Store) -> None:
    old = int((datetime.now(UTC) - timedelta(days=2)).timestamp() * 1000)
    store.append_many("orders", [(None, b"old", None, old)] * 10)
    store.maintain()
    assert store.topics.describe("orders").count == 10
    store.topics.alter("orders", {"retention.ms": 24 * 3600 * 1000})
    store.maintain()
    assert store.topics.describe("orders").partitions[0].start == 10
    assert store.append("orders", b"new") == 10 and values(store) == [b"new"]


def test_tail_gives_the_last_records_of_all_partitions_by_time(store: klamm.Store) -> None:
    store.topics.create("users", partitions=3)
    for n in range(30):
        store.append("users", b"%d" % n, timestamp=1000 + n, acks=1)
    assert [record.value for record in store.tail("users", 5)] == [b"25", b"26", b"27", b"28", b"29"]
    assert len(list(store.tail("users"))) == 10
    assert [int(record.value) for record in store.tail("users", 1000, serde="str")] == list(range(30))
    assert list(store.tail("users", 0)) == [] and list(store.tail("orders")) == []
    with pytest.raises(klamm.InvalidSetting):
        store.tail("users", -1)


def test_tail_that_follows_goes_on_with_what_comes(store: klamm.Store) -> None:
    store.append_many("orders", [b"0", b"1", b"2"])
    following = store.tail("orders", 2, follow=True)
    assert [next(following).value, next(following).value] == [b"1", b"2"]
    store.append("orders", b"3")
    assert next(following).value == b"3"


def test_tail_starts_where_it_is_told(store: klamm.Store) -> None:
    store.topics.create("users", partitions=3)
    for n in range(30):
        store.append("users", b"%d" % n, partition=n % 3, timestamp=1000 + n, acks=1)

    def tail(*arguments: Any, **options: Any) -> list[int]:
        return [int(record.value) for record in store.tail("users", *arguments, **options)]

    assert tail(3, start=("timestamp", 1020)) == [27, 28, 29]
    assert tail(3, start=("timestamp", 1028)) == [28, 29]
    assert sorted(tail(start=("timestamp", 1020))) == [*range(20, 30)]
    assert sorted(tail(start=8)) == [*range(24, 30)]
    assert tail(start="latest") == tail(0, start="earliest") == []
    store.append("users", b"30", partition=0, acks=1)
    assert tail(start=11) == []  # the end of one partition, behind the others
    with pytest.raises(klamm.OffsetOutOfRange, match=r"offset 12 is not in \[0, 1[01]\)"):
        tail(start=12)
    store["users"].delete_records({0: 9})
    assert sorted(tail(start=8)) == [25, 26, 27, 28, 29, 30]


def test_tail_finds_the_last_records_among_offsets_that_have_none(store: klamm.Store) -> None:
    for n in range(5):
        store.append("orders", b"%d" % n, acks=1)
    for _ in range(400):  # markers, and what was aborted
        with store.transaction() as tx:
            tx.send("orders", b"aborted")
            tx.abort()
    assert [record.value for record in store.tail("orders", 3)] == [b"2", b"3", b"4"]
    assert list(store.tail("orders", 3, start=5)) == []


def test_tail_that_follows_leaves_out_nothing_of_a_transaction_that_was_open(store: klamm.Store) -> None:
    store.append("orders", b"0")
    with store.transaction(batch_bytes=1) as tx:
        tx.send("orders", b"1")
        assert store.topics.describe("orders").partitions[0].end == 2
        following = store.tail("orders", follow=True)
        assert next(following).value == b"0"
    assert next(following).value == b"1"


def test_backup_and_check_are_at_hand(store: klamm.Store, tmp_path: Path) -> None:
    store.append_many("orders", [b"%d" % n for n in range(100)])
    store.backup(tmp_path / "copy")
    with klamm.open(tmp_path / "copy") as copy:
        assert values(copy) == values(store)
        assert copy.check().ok
    assert store.check().ok and klamm.check(store.path).ok


def test_errors_say_what_to_do_now() -> None:
    error = klamm.RecordTooLarge("too large", hint="send less")
    assert str(error) == "too large (send less)"
    assert re.match("No such|too large", error.message) and isinstance(error, klamm.KlammError)


def test_arrow_is_at_hand_in_both_directions(store: klamm.Store) -> None:
    import pyarrow as pa

    done = store.append_table("orders", pa.table({"key": [b"a", None], "value": [b"1", b"2"]}), compression="zstd")
    assert done.count == 2 and values(store) == [b"1", b"2"]
    assert pa.table(store.scan("orders", columns=["offset", "value"], start=1)).to_pydict() == {
        "offset": [1],
        "value": [b"2"],
    }
    with pytest.raises(klamm.UnknownTopic):
        store.scan("nothing")
