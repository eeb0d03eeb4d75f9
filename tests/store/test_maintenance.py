"""Compaction of a store: on request, in maintain(), in a thread; what check, repair and backup make of it; keys."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.batch import walk
from klamm.errors import CorruptBatch, InvalidRecord, InvalidSetting, ReadOnly, UnknownTopic, readable
from klamm.log import cleaner_checkpoint
from klamm.log.partition import Partition
from klamm.store import backup
from tests.procs import children, threads_named, until

SMALL: dict[str, str | int | float] = {"cleanup.policy": "compact", "segment.bytes": 1000, "index.interval.bytes": 200}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[klamm.Store]:
    with klamm.open(tmp_path / "store") as store:
        store.topics.create("users", settings=SMALL)
        yield store


def log_of(store: klamm.Store, topic: str = "users") -> Partition:
    return store._acquired().topic(topic).partition(0)


def fill(
    store: klamm.Store, count: int = 100, keys: int = 7, topic: str = "users", start: int = 0
) -> dict[bytes, bytes]:
    pairs = [(b"k%d" % (n % keys), b"%d" % n) for n in range(start, start + count)]
    for pair in pairs:
        store.append(topic, pair[1], key=pair[0], acks=1)
    return dict(pairs)


def contents(store: klamm.Store, topic: str = "users") -> dict[bytes, bytes]:
    with store.consumer(topic, wait=0) as consumer:
        return {record.key: record.value for record in consumer}


def count(store: klamm.Store, topic: str = "users") -> int:
    with store.consumer(topic, wait=0) as consumer:
        return sum(1 for _ in consumer)


# ---- on request


def test_a_topic_is_compacted_on_request(store: klamm.Store) -> None:
    want = fill(store)
    told: list[tuple[str, int, int, int]] = []
    report = store["users"].compact(progress=lambda *args: told.append(args))
    assert (report.partitions, report.passes) == (1, 1)
    assert report.records_removed > 80 and report.bytes_after < report.bytes_before
    assert contents(store) == want
    assert told[-1][:2] == ("users", 0) and told[-1][2] == told[-1][3]
    assert store["users"].compact().partitions == 0, "nothing is worth it"
    store.compact(force=True)
    assert count(store) == 7
    assert store.check().breaches == []


def test_what_cannot_be_compacted_says_why(store: klamm.Store, tmp_path: Path) -> None:
    store.topics.create("plain")
    with pytest.raises(InvalidSetting, match="plain: is not compacted"):
        store["plain"].compact()
    with pytest.raises(UnknownTopic):
        store["nobody"].compact()
    with pytest.raises(InvalidSetting, match="memory_bytes"):
        store.compact(memory_bytes=0)
    fill(store)
    with pytest.raises(ZeroDivisionError):
        store.compact(force=True, progress=lambda *_: 1 // 0)
    assert store.compact().partitions == 1, "those that are compacted"
    with klamm.open(tmp_path / "store", read_only=True) as other, pytest.raises(ReadOnly):
        other.compact()


def test_maintain_compacts_what_is_worth_it(store: klamm.Store) -> None:
    fill(store, 5)
    store.maintain()
    assert count(store) == 5
    fill(store, 100)
    store.maintain()
    assert count(store) < 30
    with klamm.open(store.path, maintain_every=None) as other:
        other.maintain()


@pytest.mark.parametrize("damaged", [0, 1])
def test_a_damaged_partition_is_reported_and_the_others_are_maintained(store: klamm.Store, damaged: int) -> None:
    store.topics.create("orders", 2, settings=SMALL)
    for number in range(200):
        store.append("orders", b"%d" % number, key=b"k", partition=number % 2, acks=1)
    directory = Path(store._acquired().topic("orders").partition(damaged).directory)
    first = min(directory.glob("*.log"))
    data = bytearray(first.read_bytes())
    data[70] ^= 1
    first.write_bytes(data)
    with pytest.raises(CorruptBatch, match=f"{directory.name}/{first.name}"):
        store.maintain()
    with store.consumer("orders", partitions=[1 - damaged], wait=0) as consumer:
        assert sum(1 for _ in consumer) < 30


def test_every_start_of_a_consumer_and_a_scan_finds_its_records(store: klamm.Store) -> None:
    fill(store)
    store.compact(force=True)
    offsets = list(range(93, 100))
    for start in (0, 1, 50, 92, 93, 96, 99, 100):
        want = [offset for offset in offsets if offset >= start]
        with store.consumer("users", start={0: start}, wait=0) as consumer:
            assert [record.offset for record in consumer] == want
        for end in (0, 50, 93, 95, 100):
            table = store.scan("users", start=start, end=end).to_table()
            assert table["offset"].to_pylist() == [offset for offset in want if offset < end]
    assert [record.offset for record in store.tail("users", 3)] == [97, 98, 99]
    fill(store, 1, start=100)
    assert [record.offset for record in store.tail("users", 20)] == [*offsets, 100]
    store.topics.alter("users", {"cleanup.policy": "delete"})
    assert count(store) == 8, "gaps stay, whatever the policy is now"
    assert store.check().ok


# ---- in a thread


def test_a_thread_maintains_until_the_store_is_closed(tmp_path: Path) -> None:
    with klamm.open(tmp_path / "store", maintain_every=0.01) as store:
        store.topics.create("users", settings=SMALL)
        want = fill(store)
        until(lambda: count(store) < 30, "a compaction")
        assert contents(store) == want
        until(lambda: _maintainers() == 1, "a thread maintains the store")
    until(lambda: _maintainers() == 0, "the thread of a closed store to end")
    dropped = klamm.open(tmp_path / "store", maintain_every=0.01)
    until(lambda: _maintainers() == 1, "a thread maintains the store")
    del dropped
    gc.collect()
    until(lambda: _maintainers() == 0, "the thread of a dropped store to end")
    for bad in (0, -1, True, "often"):
        with pytest.raises((InvalidSetting, TypeError), match="maintain_every"):
            klamm.open(tmp_path / "store", maintain_every=bad)  # type: ignore[arg-type]


def test_a_forked_child_maintains_for_itself(tmp_path: Path) -> None:
    with klamm.open(tmp_path / "store", maintain_every=0.01) as store:
        store.topics.create("users", settings=SMALL)

        def child() -> None:
            assert _maintainers() == 0
            fill(store)
            until(lambda: count(store) < 30, "a compaction in the child")
            until(lambda: _maintainers() == 1, "a thread maintains the store")
            store.close()
            until(lambda: _maintainers() == 0, "that thread is gone")  # it has said that it ends, which takes a moment

        with children() as start:
            start(child).answer()


def _maintainers() -> int:
    """Count the threads that the system knows by that name: it keeps 15 characters."""
    return len(threads_named("klamm-maintaine"))


# ---- keys


def test_no_record_without_a_key_comes_in_anywhere(store: klamm.Store) -> None:
    pa = pytest.importorskip("pyarrow")
    store.topics.create("wide", partitions=3, settings=SMALL)
    ways: list[Callable[[str], Any]] = [
        lambda topic: store.append(topic, b"1"),
        lambda topic: store.append(topic, b"1", acks=1),
        lambda topic: store.append(topic, b"1", partition=0, headers=[("h", b"1")], acks=0),
        lambda topic: store.append_many(topic, [b"1", b"2"]),
        lambda topic: store.append_many(topic, [(None, b"1")], partition=0),
        lambda topic: store.append_many(topic, ((None, b"1", None, 5) for _ in range(3)), compression="zstd"),
        lambda topic: store.append_table(topic, pa.table({"value": ["1"]})),
        lambda topic: store.append_table(topic, pa.table({"value": ["1"], "key": pa.array([None], pa.string())})),
    ]
    for topic in ("users", "wide"):
        for way in ways:
            for _ in range(2):
                with pytest.raises(InvalidRecord, match="compacted"):
                    way(topic)
        with store.producer() as producer:
            with pytest.raises(InvalidRecord):
                producer.send(topic, b"1")
            with pytest.raises(InvalidRecord):
                producer.send(topic, b"1", partition=0)
            producer.send(topic, b"1", key=b"")
        assert count(store, topic) == 1


def test_records_before_one_without_a_key_are_appended_and_it_is_named(store: klamm.Store) -> None:
    pa = pytest.importorskip("pyarrow")
    with pytest.raises(InvalidRecord, match="record 2 of append_many") as told:
        store.append_many("users", [(b"a", b"1"), (b"b", b"2"), (None, b"3"), (b"c", b"4")])
    assert "2 records" in told.value.__notes__[0]
    with pytest.raises(InvalidRecord, match="row 1 has no key"):
        store.append_table("users", pa.table({"key": ["d", None, "e"], "value": ["5", "6", "7"]}))
    assert sorted(contents(store)) == [b"a", b"b", b"d"]


def test_a_policy_that_changes_is_noticed_by_every_open_store_and_producer(tmp_path: Path) -> None:
    with klamm.open(tmp_path / "store") as store:
        store.topics.create("users")
        store.append("users", b"keyless", acks=1)
        target = store._target("users")
        producer = store.producer(linger_ms=60_000)
        producer.send("users", b"on its way")

        def alter() -> None:
            with klamm.open(tmp_path / "store") as other:
                other.topics.alter("users", {"cleanup.policy": "compact"})

        with children() as start:
            start(alter).answer()
        with pytest.raises(InvalidRecord):
            store.append("users", b"keyless", acks=1)
        with pytest.raises(InvalidRecord):
            target.opened.partition(0).append_one(None, b"1")
        with pytest.raises(InvalidRecord):
            producer.flush()
        producer.close()
        store.append("users", b"1", key=b"a")
        store.compact(force=True)
        with store.consumer("users", wait=0, form="values") as consumer:
            assert list(consumer) == [b"keyless", b"1"], "what was there before stays"


# ---- check, repair, backup


def test_check_knows_where_gaps_may_be(store: klamm.Store) -> None:
    fill(store)
    store.compact(force=True)
    fill(store, 100)
    assert store.check().breaches == []
    log = log_of(store)
    log.checkpoint()
    below = cleaner_checkpoint.load(log.directory).gaps_below
    lost = [base for base in log.segments() if base > below][1]
    Path(log.directory, f"{lost:020}.log").unlink()
    report = store.check()
    assert any("are missing" in breach.message for breach in report.breaches)


def test_check_notices_a_lost_segment_right_behind_the_compacted_ones(store: klamm.Store) -> None:
    fill(store, 7)
    store.compact(force=True)
    fill(store, 50)
    store.compact(force=True)
    fill(store, 50)
    log = log_of(store)
    log.checkpoint()
    below = cleaner_checkpoint.load(log.directory).gaps_below
    Path(log.directory, f"{below:020}.log").unlink()
    assert [breach.message for breach in store.check().breaches if f"offsets {below} to" in breach.message]


def test_a_damaged_cleaned_is_told_and_put_right(store: klamm.Store) -> None:
    want = fill(store)
    store.compact(force=True)
    path = Path(cleaner_checkpoint.path_of(log_of(store).directory))
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    report = store.check()
    assert [breach.path for breach in report.breaches] == [readable(str(path))] and not report.ok
    assert store.check(repair=True).ok
    assert store.check().breaches == []
    assert contents(store) == want
    store.compact(force=True)
    assert contents(store) == want


def test_a_compacted_log_with_damage_is_mended_and_compacted_on(store: klamm.Store) -> None:
    fill(store, 60, keys=60)
    want = fill(store, 40, keys=7, start=60)
    store.compact(force=True)
    log = log_of(store)
    base = next(base for base in log.segments() if Path(log.directory, f"{base:020}.log").stat().st_size)
    path = Path(log.directory, f"{base:020}.log")
    first = walk(path.read_bytes())[0]
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)
    assert not store.check().ok
    report = store.check(repair=True)
    assert report.ok, report.breaches
    assert store.check().breaches == [] and store.check().records == report.records
    left = contents(store)
    assert len(left) == 60 - first.record_count and left.items() >= want.items()
    want = left | fill(store, 3, start=200)
    store.compact(force=True)
    assert contents(store) == want
    assert store.check().breaches == []


def test_an_index_of_a_compacted_segment_is_made_anew(store: klamm.Store) -> None:
    fill(store, 200, keys=60)
    store.compact(force=True)
    log = log_of(store)
    for path in Path(log.directory).glob("*.index"):
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    assert not store.check().ok
    assert store.check(repair=True).ok
    assert store.check().breaches == []


def test_a_copy_of_a_compacted_store_is_whole(store: klamm.Store, tmp_path: Path) -> None:
    want = fill(store)
    store.compact()
    store.backup(tmp_path / "copy")
    with klamm.open(tmp_path / "copy") as copy:
        assert contents(copy) == want == contents(store)
        assert copy.check().breaches == []
        want |= fill(copy, 10, start=1000)
        copy.compact(force=True)
        assert contents(copy) == want
    with klamm.open(tmp_path / "copy", read_only=True) as copy:
        assert contents(copy) == want


@pytest.mark.parametrize("closed", [False, True], ids=["in the active segment", "at its start"])
def test_a_copy_that_a_compaction_overtakes_starts_over(
    store: klamm.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: bool
) -> None:
    """What the compaction takes out is superfluous only with records that the copy would not have."""
    want = fill(store)
    if closed:
        store.compact(force=True)
    note = backup._take_snapshots
    times: list[int] = []

    def noted(*args: Any) -> Any:
        found = note(*args)
        if not times:
            want.update(fill(store, 7, start=500))
            store.compact(force=True)
        times.append(1)
        return found

    monkeypatch.setattr(backup, "_take_snapshots", noted)
    store.backup(tmp_path / "copy")
    assert len(times) == 2
    with klamm.open(tmp_path / "copy") as copy:
        assert contents(copy) == want
        assert copy.check().breaches == []


def test_compact_has_an_asyncio_twin(store: klamm.Store) -> None:
    import asyncio

    fill(store)

    async def run() -> klamm.CompactionReport:
        async with klamm.aio.open(store.path) as other:
            return await other["users"].compact(force=True)

    assert asyncio.run(run()).partitions == 1
    assert count(store) == 7
    assert os.path.exists(cleaner_checkpoint.path_of(log_of(store).directory))
