"""Compaction on Spark: the same files as the built-in one leaves, whoever is killed, and whatever goes on meanwhile."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.disk.locks import LockFile
from klamm.errors import InvalidRecord, InvalidSetting, NotAStore, StoreBusy, UnknownTopic
from klamm.log import compaction, head, segment
from klamm.store.directory import acquire, release
from tests.crash.cases import seed_of
from tests.procs import until
from tests.spark.pipelines import guide
from tests.spark.processes import driver

pytest.importorskip("pyspark")

from pyspark import cloudpickle

from klamm.spark.pipelines import compact_pipeline as pipeline
from klamm.spark.pipelines.compact_pipeline import compact

DRIVER = Path(__file__).parent / "compact_driver.py"
SETTINGS: dict[str, str | int | float] = {
    "cleanup.policy": "compact",
    "segment.bytes": 6000,
    "delete.retention.ms": 1000,
}


@contextmanager
def core_of(store: klamm.Store) -> Iterator[Any]:
    core = acquire(store.path, read_only=False, create=False, force_filesystem=False)
    try:
        yield core
    finally:
        release(core)


def directories(store: klamm.Store, topic: str) -> list[Path]:
    with core_of(store) as core:
        return [Path(each.directory) for each in core.topic(topic).partitions()]


def files(store: klamm.Store, topic: str = "users") -> list[dict[str, bytes]]:
    """What compaction may change, of each partition."""
    return [
        {path.name: path.read_bytes() for path in each.iterdir() if ".log" in path.suffixes or "cleaner" in path.name}
        for each in directories(store, topic)
    ]


def records(store: klamm.Store, topic: str = "users") -> list[tuple[Any, ...]]:
    with store.consumer(topic, start="earliest", wait=0) as consumer:
        found = [(r.partition, r.offset, r.key, r.value, r.timestamp, r.headers) for r in consumer]
    return sorted(found, key=lambda record: record[:2])


def latest(given: list[tuple[Any, ...]]) -> dict[Any, Any]:
    return {(record[0], record[2]): record[3:] for record in given if record[2] is not None}


class Clock:
    """The same for both ways: tombstones get a time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ms = int(time.time() * 1000)
        clock = self

        class Timed(compaction.Pass):
            def __init__(self, *args: Any, **more: Any) -> None:
                horizon_ms = clock.ms + int(SETTINGS["delete.retention.ms"])
                super().__init__(*args, **{**more, "clock_ms": clock.ms, "horizon_ms": horizon_ms})

        monkeypatch.setattr(compaction, "Pass", Timed)


def write(store: klamm.Store, dice: random.Random, rounds: int, topic: str = "users") -> None:
    """Plain records, tombstones, and transactions across segments, committed and aborted."""
    for _ in range(rounds):
        keys = 10**6 if dice.random() < 0.3 else 60  # some transactions leave something behind, others do not
        given = [
            (b"k%d" % dice.randrange(keys), None if dice.random() < 0.2 else b"v%d" % dice.randrange(10**9) * 9)
            for _ in range(dice.randrange(1, 80))
        ]
        if dice.random() < 0.5:
            store.append_many(topic, given, compression=dice.choice(["none", "zstd"]))
            continue
        try:
            with store.transaction(batch_bytes=400) as transaction:
                for key, value in given:
                    transaction.send(topic, value, key=key, headers=[("h", b"1")])
                if dice.random() < 0.3:
                    raise LookupError
        except LookupError:
            pass


@pytest.mark.timeout(300)
def test_spark_leaves_the_same_files_as_the_built_in_compaction(
    spark: Any, store: klamm.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(seed_of())
    clock = Clock(monkeypatch)
    monkeypatch.setattr(pipeline, "_AT_ONCE", 5)
    runs: list[dict[int, list[int]]] = []
    original = pipeline._Job._run

    def counted(self: Any, stale: Any, counts: Any, wanted: Any, open_ids: dict[int, list[int]]) -> Any:
        runs.append(open_ids)
        return original(self, stale, counts, wanted, open_ids)

    monkeypatch.setattr(pipeline._Job, "_run", counted)
    store.topics.create("users", 2, settings={**SETTINGS, "cleanup.policy": "delete"})
    store.append_many("users", [(None, b"no key"), (b"", b"an empty one")])
    store.topics.alter("users", {"cleanup.policy": "compact"})
    removed = []
    for number, (rounds, later_ms) in enumerate([(30, 0), (10, 500), (0, 2000)]):
        write(store, dice, rounds)
        clock.ms += later_ms
        before = latest(records(store))
        store.backup(tmp_path / f"copy{number}")
        report = compact(spark, store.path, "users", force=True)
        with klamm.open(tmp_path / f"copy{number}") as copy:
            built_in = copy["users"].compact(force=True)
            assert files(store) == files(copy), f"round {number}"
            assert records(store) == records(copy)
        assert report.details["records_removed"] == built_in.records_removed
        assert (report.rows_written, report.details["segments"]) == (built_in.records_left, built_in.segments)
        assert report.details["bytes_after"] == built_in.bytes_after
        after = latest(records(store))
        assert {key for key in before if before[key][0] is not None} <= after.keys()
        assert all(after[key] == before[key] for key in after)
        removed.append(report.details["records_removed"])
    assert min(removed) > 0, removed
    assert any(open_ids and 0 not in open_ids for open_ids in runs), "a transaction lies in two segments"
    assert [record for record in records(store) if record[2] is None]
    assert klamm.check(store.path).ok


def test_writers_and_readers_go_on_meanwhile(spark: Any, store: klamm.Store) -> None:
    store.topics.create("users", 2, settings=SETTINGS)
    store.append_many("users", [(b"k%d" % (n % 50), b"%d" % n * 9) for n in range(2000)])
    over, written = threading.Event(), threading.Event()
    sent = dict.fromkeys(range(50), b"")
    seen: list[tuple[int, int]] = []
    last: dict[bytes, bytes] = {}

    def append() -> None:
        for n in range(2000, 10**9):
            if over.wait(0.001):  # else, where files are in memory, the log grows faster than Spark compacts it
                written.set()
                return
            sent[n % 50] = b"%d" % n * 9
            store.append("users", sent[n % 50], key=b"k%d" % (n % 50))

    def follow() -> None:
        with store.consumer("users", start="earliest", wait=0.02) as consumer:
            while True:
                ending = written.is_set()
                for record in consumer:
                    seen.append((record.partition, record.offset))
                    last[record.key] = record.value
                if ending:
                    return

    threads = [threading.Thread(target=each) for each in (append, follow)]
    for thread in threads:
        thread.start()
    try:
        until(lambda: len(seen) > 2000, "the reader reads")
        report = compact(spark, store.path, "users", force=True)
    finally:
        over.set()
        for thread in threads:
            thread.join(30)
    assert report.details["segments"] > 0 and report.details["records_removed"] > 1000
    for partition in range(2):
        offsets = [offset for number, offset in seen if number == partition]
        assert offsets == sorted(set(offsets))
    assert last == {b"k%d" % n: value for n, value in sent.items()}
    assert {key: value[0] for (_, key), value in latest(records(store)).items()} == last
    assert klamm.check(store.path).ok


def test_a_worker_that_is_killed_in_a_task_is_made_up_for(
    spark: Any, store: klamm.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Clock(monkeypatch)
    store.topics.create("users", settings=SETTINGS)
    write(store, random.Random(3), 20)
    store.backup(tmp_path / "copy")
    trap = str(tmp_path / "trap")
    Path(trap).touch()
    original = pipeline._filter_segment

    def dying(plan: Any, counts: Any, open_ids: Any, given: Any) -> Any:
        made = original(plan, counts, open_ids, given)
        try:
            os.unlink(trap)
        except FileNotFoundError:
            return made
        os.kill(os.getpid(), signal.SIGKILL)
        return None

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        monkeypatch.setattr(pipeline, "_filter_segment", dying)
        compact(spark, store.path, "users", force=True)
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    assert not os.path.exists(trap)
    with klamm.open(tmp_path / "copy") as copy:
        copy["users"].compact(force=True)
        assert files(store) == files(copy), "and nothing is left over"


def pause(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait, and say whether it still runs."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return True
    return False


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=pytest.mark.soak)])
def test_a_driver_that_is_killed_leaves_what_the_next_compaction_of_either_kind_completes(
    spark: Any, store: klamm.Store, tmp_path: Path, kills: int
) -> None:
    dice = random.Random(seed_of())
    store.topics.create("users", settings={**SETTINGS, "delete.retention.ms": 10**12})
    for number in range(kills):
        write(store, dice, 20)
        before = latest(records(store))
        (directory,) = directories(store, "users")
        with driver(DRIVER, store.path, "users") as process:
            deadline = time.monotonic() + 200
            while not segment.cleaned_temp_paths(str(directory)) and time.monotonic() < deadline:
                assert pause(process, 0.01), "it ended, and nobody has seen it filter"
            pause(process, dice.random())
        assert latest(records(store)) == before
        assert klamm.check(store.path).ok
        store.backup(tmp_path / f"copy{number}")
        assert compact(spark, store.path, "users", force=True).details["partitions"] == 1
        with klamm.open(tmp_path / f"copy{number}") as copy:
            copy["users"].compact(force=True)
            assert records(store) == records(copy)
            assert [sorted(each) for each in files(store)] == [sorted(each) for each in files(copy)]
        assert latest(records(store)) == before
        assert klamm.check(store.path).ok


def test_one_who_cleans_keeps_others_out_and_is_kept_out(
    spark: Any, store: klamm.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "_TIMEOUT_MS", 30)
    store.topics.create("users", settings=SETTINGS)
    store.append_many("users", [(b"k", b"%d" % n) for n in range(100)])
    told: list[tuple[int, int | None]] = []
    busy = []
    with core_of(store) as core:
        (partition,) = core.topic("users").partitions()
        byte = head.clean_byte(partition.slot)
        another = LockFile(f"{store.path}/lock")

        def progress(done: int, total: int | None) -> None:
            told.append((done, total))
            try:
                with another.hold(byte, timeout_ms=0):
                    busy.append(False)
            except StoreBusy:
                busy.append(partition.cleanup.compact(force=True, wait=False) is None)

        with another.hold(byte), pytest.raises(StoreBusy, match="users/0: is being cleaned by another process"):
            compact(spark, store.path, "users", force=True)
        compact(spark, store.path, "users", force=True, progress=progress)
        another.close()
    assert busy[:-1] and all(busy[:-1]) and not busy[-1], "the last is told when all is done"
    assert told == sorted(told) and told[-1][0] == told[-1][1]
    assert [record[1] for record in records(store)] == [99]
    assert compact(spark, store.path, "users").details["partitions"] == 0, "there is nothing that is worth it"


def test_what_progress_raises_ends_it_and_nothing_is_left_over(spark: Any, store: klamm.Store) -> None:
    store.topics.create("users", settings=SETTINGS)
    write(store, random.Random(5), 20)
    before = latest(records(store))

    def refuse(done: int, total: int | None) -> None:
        if total is not None and done > total // 2:
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        compact(spark, store.path, "users", force=True, progress=refuse)
    (directory,) = directories(store, "users")
    assert segment.cleaned_temp_paths(str(directory)) == []
    assert latest(records(store)) == before


def test_what_cannot_be_compacted_is_said_before_a_job_starts(store: klamm.Store, tmp_path: Path) -> None:
    """There is no session: nobody asks for one."""
    spark: Any = None
    store.topics.create("orders", 2)
    store.append_many("orders", [(None, b"%d" % n) for n in range(40)], partition=1)
    with pytest.raises(InvalidSetting, match=r"orders: is not compacted: its cleanup\.policy is 'delete'"):
        compact(spark, store.path, "orders")
    store.topics.alter("orders", {"cleanup.policy": "compact"})
    with pytest.raises(InvalidRecord, match=r"orders: none of its 40 records \(partitions 1\) has a key"):
        compact(spark, store.path, "orders")
    with pytest.raises(UnknownTopic, match="order"):
        compact(spark, store.path, "order")
    with pytest.raises(NotAStore):
        compact(spark, tmp_path, "orders")
    store.topics.create("empty", settings={"cleanup.policy": "compact"})
    assert compact(spark, store.path, "empty", force=True).rows_read == 0


def test_the_example_of_the_guide_works(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = guide.run("pipeline-compact.md")
    names["store"].close()
    assert (names["report"].rows_read, names["report"].rows_written) == (5000, 100)
