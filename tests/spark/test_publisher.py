"""What was staged becomes one transaction, once; killed at any step, by anybody, as often as one likes. No Spark."""

from __future__ import annotations

import errno
import os
import random
import resource
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

import klamm
from klamm.arrow.encoding import Encoder, Rows, Shape
from klamm.disk import _os
from klamm.errors import BatchConflict, CorruptBatch, DiskFull, StoreError, UnknownTopic
from klamm.spark import publisher
from klamm.spark import staged_files as staging
from klamm.spark.batches import BatchId
from klamm.spark.publisher import core_of, publish
from klamm.spark.sink import WritePlan, _Stager
from klamm.spark.sink_options import WriteOptions
from klamm.spark.staged_batches import StagedTopic, StagingFile, TaskCommit
from klamm.spark.staged_files import StagedName
from klamm.store import directory, once, scratch
from tests.crash.cases import seed_of
from tests.crash.stores import without_maintenance
from tests.procs import children

QUERY = "0b1c8ab6-5b3e-4bd5-9d9d-5a3e0b0f8a11"


@pytest.fixture(autouse=True)
def _let_go() -> Iterator[None]:
    yield
    _let_go_of_all()


def _let_go_of_all() -> None:
    for store in publisher._stores.values():
        store.close()
    publisher._stores.clear()


def store_of(path: Path) -> klamm.Store:
    """The one that a process of Spark's keeps open."""
    core_of(str(path))
    return publisher._stores[str(path)]


def stage(
    store: klamm.Store, rows: list[tuple[bytes | None, bytes]], *, batch: int = 0, task: int = 0, topic: str = "orders"
) -> TaskCommit:
    """As a task does it."""
    info = store.topics.describe(topic)
    directory = staging.prepare(store.path, store.store_id)
    name = StagedName(QUERY, batch, task, 0).new()
    file = StagingFile(f"{directory}/{name}")
    tps: set[int] = set()

    def emit(partition: int, sealed: memoryview, count: int) -> None:
        tps.add(partition)
        file.add(0, partition, sealed)

    encoder = Encoder(Shape(topic, len(info.partitions), 1 << 20, False), emit)
    keys, values = pa.array([key for key, _ in rows], pa.binary()), pa.array([value for _, value in rows], pa.binary())
    encoder.take(Rows.of(pa.record_batch([keys, values], names=["key", "value"])))
    encoder.give_all()
    file.finish()
    topics = (StagedTopic(topic, info.id, tuple(sorted(tps))),)
    return TaskCommit(QUERY, batch, task, name, file.size, len(rows), topics)


def batch_id(number: int = 0, plan: str = "offsets a", topic: str = "orders") -> BatchId:
    return BatchId(f"query {QUERY}", f"topic {topic}", number, plan, f'{{"in": {{"0": {number}}}}}')


def put(store: klamm.Store, staged: list[TaskCommit], batch: int = 0, plan: str = "offsets a", **more: Any) -> bool:
    directory = staging.directory_of(store.path, store.store_id)
    return publish(core_of(store.path), staged, directory, batch_id(batch, plan)._replace(**more), durable=True)


def contents(store: klamm.Store, topic: str = "orders") -> dict[int, list[tuple[Any, Any]]]:
    """By partition, in order."""
    found: dict[int, list[tuple[Any, Any]]] = {}
    with store.consumer(topic, start="earliest", wait=0) as consumer:
        for record in consumer:
            found.setdefault(record.partition, []).append((record.key, record.value))
    return found


def rows_of(task: int, count: int = 50) -> list[tuple[bytes | None, bytes]]:
    return [(b"user-%d" % (n % 7), b"%d/%d" % (task, n)) for n in range(count)]


@pytest.fixture
def expected(tmp_path: Path) -> Callable[[list[tuple[bytes | None, bytes]]], dict[int, list[tuple[Any, Any]]]]:
    """What an embedded producer makes of the same records."""

    def find(rows: list[tuple[bytes | None, bytes]]) -> dict[int, list[tuple[Any, Any]]]:
        with klamm.open(tmp_path / f"other-{len(list(tmp_path.iterdir()))}") as other:
            other.topics.create("orders", 3)
            other.append_many("orders", rows, acks=1)
            return contents(other)

    return find


def test_rows_of_all_tasks_are_there_in_order_and_where_a_producer_would_put_them(
    store: klamm.Store, expected: Any
) -> None:
    store.topics.create("orders", 3)
    staged = [stage(store, rows_of(task), task=task) for task in (2, 0, 1)]
    assert put(store, staged)
    assert contents(store) == expected(rows_of(0) + rows_of(1) + rows_of(2))
    assert klamm.check(store.path).ok


def test_a_batch_that_comes_again_is_skipped_and_logged(store: klamm.Store, caplog: pytest.LogCaptureFixture) -> None:
    store.topics.create("orders", 3)
    assert put(store, [stage(store, rows_of(0), batch=4)], 4)
    before = contents(store)
    assert not caplog.records
    assert not put(store, [stage(store, rows_of(0), batch=4)], 4)
    (record,) = caplog.records
    assert record.getMessage().startswith(f"Skipping query {QUERY}: batch 4 to topic orders: it is in the log already")
    assert not put(store, [], 4), "one that has no rows this time"
    assert contents(store) == before
    assert put(store, [stage(store, rows_of(1), batch=5)], 5)
    assert sum(map(len, contents(store).values())) == 100


@pytest.mark.parametrize("rows", [50, 0])
@pytest.mark.parametrize("races", [False, True])
def test_a_batch_that_was_planned_otherwise_under_a_number_of_the_log_is_an_error(
    store: klamm.Store, monkeypatch: pytest.MonkeyPatch, rows: int, races: bool
) -> None:
    store.topics.create("orders", 3)
    assert put(store, [stage(store, rows_of(0), batch=4)], 4)
    before = contents(store)
    if races:
        if not rows:
            return  # without rows there is no decision to race with
        monkeypatch.setattr(publisher, "is_published", lambda *_: False)  # it looked before batch 4 was decided
    staged = [stage(store, rows_of(1, rows), batch=4)] if rows else []
    for number, plan, said in (
        (4, "offsets b", "batch 4 is in the log (topic orders), but was planned again with other offsets (there/4)"),
        (3, "offsets a", "batch 3 (there/3) comes after 4, which is in the log (topic orders)"),
        (4, "records a", "batch 4 is in the log (topic orders) with other records"),
    ):
        with pytest.raises(BatchConflict) as caught:
            put(store, staged, number, plan, file=f"there/{number}")
        assert said in str(caught.value)
        assert 'startingOffsets={"in": {"0": 4}}' in str(caught.value)
    assert contents(store) == before
    assert [each.state for each in store.transactions if each.state == "ongoing"] == []
    assert put(store, [stage(store, rows_of(1), batch=5)], 5, "offsets b")  # nothing is left in its way


def test_other_records_under_a_number_of_the_log_are_skipped_if_that_is_wanted_but_not_another_plan(
    store: klamm.Store,
) -> None:
    store.topics.create("orders", 3)
    assert put(store, [stage(store, rows_of(0))], 0, "records a")
    with pytest.raises(BatchConflict, match="onConflict=skip"):
        put(store, [stage(store, rows_of(1))], 0, "records b")
    assert not put(store, [stage(store, rows_of(1))], 0, "records b", may_differ=True)
    assert not put(store, [stage(store, rows_of(1))], 0, "offsets b", may_differ=True)
    assert put(store, [stage(store, rows_of(0))], 1, "offsets a")
    with pytest.raises(BatchConflict) as caught:
        put(store, [stage(store, rows_of(1))], 1, "offsets b", may_differ=True)
    assert "onConflict" not in str(caught.value)
    assert sum(map(len, contents(store).values())) == 100


def test_other_records_of_the_same_plan_are_the_same_batch_in_another_run_and_another_write_in_the_same_one(
    store: klamm.Store,
) -> None:
    store.topics.create("orders", 3)
    assert put(store, [stage(store, rows_of(0))], 0, "offsets a records 1/50 run x")
    assert not put(store, [stage(store, rows_of(0))], 0, "offsets a records 1/50 run x"), "tried again"
    assert not put(store, [stage(store, rows_of(1))], 0, "offsets a records 2/50 run y"), "done again"
    with pytest.raises(
        BatchConflict, match=r"used already for another write of this micro-batch .*txnAppId of its own"
    ):
        put(store, [stage(store, rows_of(1))], 0, "offsets a records 2/50 run x")
    with pytest.raises(BatchConflict, match="planned again"):
        put(store, [stage(store, rows_of(0))], 0, "offsets b records 1/50 run y")
    assert not put(store, [stage(store, rows_of(0))], 0, "records 1/50"), "its plan cannot be read this time"
    assert len(contents(store)) and sum(map(len, contents(store).values())) == 50


def test_queries_of_one_id_that_write_to_different_topics_do_not_skip_for_each_other(store: klamm.Store) -> None:
    for topic in ("orders", "copies"):
        store.topics.create(topic, 3)
    assert put(store, [stage(store, rows_of(0))])
    assert put(store, [stage(store, rows_of(0), topic="copies")], 0, "offsets b", target="topic copies")
    assert contents(store, "copies") == contents(store)
    assert not put(store, [stage(store, rows_of(0), topic="copies")], 0, "offsets b", target="topic copies")


def test_a_row_of_an_older_format_stands_for_the_batch_of_its_number(store: klamm.Store) -> None:
    store.topics.create("orders", 3)
    database = core_of(store.path).catalog.database
    with database.db_lock(), database.transaction() as execute:
        once.write(execute, once.WriterNumber(f"query {QUERY}", "", 4))
    assert klamm.check(store.path).ok
    assert not put(store, [stage(store, rows_of(0))], 4)
    with pytest.raises(BatchConflict, match="batch 3 comes after 4"):
        put(store, [stage(store, rows_of(0))], 3)
    assert put(store, [stage(store, rows_of(0))], 5)
    assert once.last(database, f"query {QUERY}") is None
    assert once.last(database, f"query {QUERY}", "topic orders") == 5


def test_of_two_drivers_that_commit_one_batch_at_the_same_time_the_second_appends_nothing_visible(
    store: klamm.Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store.topics.create("orders", 3)
    first, second = stage(store, rows_of(0)), stage(store, rows_of(0))
    monkeypatch.setattr(publisher, "is_published", lambda *_: False)  # both have looked before either has decided
    assert put(store, [first])
    before = contents(store)
    assert not caplog.records
    assert not put(store, [second])
    assert [record.getMessage().partition(": it")[0] for record in caplog.records] == [f"Skipping {batch_id()}"]
    assert contents(store) == before
    assert put(store, [stage(store, rows_of(1), batch=1)], 1)  # nothing is left in its way
    assert [each.state for each in store.transactions if each.state == "ongoing"] == []


@pytest.mark.parametrize("some", [14, pytest.param(10_000, marks=pytest.mark.soak)])
def test_killed_at_any_step_and_done_again_it_is_there_once(tmp_path: Path, expected: Any, some: int) -> None:
    seed = seed_of()
    rows = rows_of(0) + rows_of(1)
    wanted = expected(rows)

    def once(path: Path, step: int | None) -> int:
        with klamm.open(path) as store:
            staged = [stage(store, rows_of(task), task=task) for task in (0, 1)]
            list(store.topics)
            directory = staging.directory_of(store.path, store.store_id)
        core = core_of(str(path))
        without_maintenance(core)
        if step is not None:
            _os.trap(step, signal=signal.SIGKILL)
        else:
            _os.trap(1 << 30)
        publish(core, staged, directory, batch_id(), durable=True)
        return _os.steps_taken()

    def fresh(name: str) -> Path:
        with klamm.open(tmp_path / name) as store:
            store.topics.create("orders", 3)
        return tmp_path / name

    with children() as start:
        steps = start(lambda: once(fresh("whole"), None)).answer()
        assert steps > 10
        print(steps, "steps")
        seen: set[bool] = set()
        chosen = random.Random(seed).sample(range(1, steps + 1), min(some, steps))
        for step in sorted({1, *chosen, steps}):
            path = fresh(f"killed-{step}")
            child = start(partial(once, path, step))
            if not os.WIFSIGNALED(child.ended()):  # ids are random, and with them how many words a table stores
                assert child.answer() < step
            with klamm.open(path) as store:
                there = contents(store)
                assert there in ({}, wanted), f"killed at step {step}: a part of it is visible"
                seen.add(bool(there))
            again = start(partial(once, path, None))
            again.answer()
            with klamm.open(path) as store:
                assert contents(store) == wanted, f"killed at step {step}, then done again"
                assert klamm.check(path).ok
        assert seen == {True, False}


def test_after_a_full_disk_nothing_is_visible_and_the_next_try_is_whole(store: klamm.Store, expected: Any) -> None:
    store.topics.create("orders", 3)
    staged = [stage(store, rows_of(0))]
    core_of(store.path)
    _os.trap(2, kinds=_os.WRITE, error=errno.ENOSPC)
    try:
        with pytest.raises(DiskFull):
            put(store, staged)
    finally:
        _os.trap(0)
    assert contents(store) == {}
    assert put(store, staged)
    assert contents(store) == expected(rows_of(0))


@pytest.mark.parametrize("damage", ["cut", "flipped", "gone", "frame"])
def test_a_staged_file_that_is_not_what_the_task_wrote_fails_the_whole_batch(store: klamm.Store, damage: str) -> None:
    store.topics.create("orders", 3)
    good, bad = stage(store, rows_of(0), task=0), stage(store, rows_of(1), task=1)
    path = Path(staging.directory_of(store.path, store.store_id)) / str(bad.file)
    data = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    else:
        data[{"flipped": len(data) - 3, "frame": 5, "cut": 0}[damage]] ^= 1
        path.write_bytes(data[: len(data) // 2] if damage == "cut" else data)
    with pytest.raises(StoreError if damage == "gone" else CorruptBatch, match="staged"):
        put(store, [good, bad])
    assert contents(store) == {}


def test_a_topic_made_anew_meanwhile_is_not_written_to(store: klamm.Store) -> None:
    store.topics.create("orders", 3)
    staged = stage(store, rows_of(0))
    store.topics.delete("orders")
    with pytest.raises(UnknownTopic):
        put(store, [staged])
    store.topics.create("orders", 3)
    with pytest.raises(UnknownTopic, match="re-created"):
        put(store, [staged])
    assert contents(store) == {}


def test_a_batch_larger_than_memory_goes_from_the_file_into_the_log(tmp_path: Path) -> None:
    value = random.Random(1).randbytes(100_000)

    def grown() -> int:
        with klamm.open(tmp_path / "events") as store:
            store.topics.create("orders", 1)
            staged = stage(store, [(None, value)])
            path = Path(staging.directory_of(store.path, store.store_id)) / str(staged.file)
            one = path.read_bytes()
            with path.open("ab") as file:
                for _ in range(999):
                    file.write(one)
            put(store, [stage(store, [(None, value)], batch=0)], 0)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            large = TaskCommit(QUERY, 1, 0, staged.file, len(one) * 1000, 1000, staged.topics)
            assert put(store, [large], 1)
            assert store.topics.describe("orders").partitions[0].size > 100_000_000
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before

    with children() as start:
        assert start(grown).answer() < 16 * 1024, "KiB"


def test_a_process_uses_one_producer_id_for_many_batches(store: klamm.Store) -> None:
    store.topics.create("orders", 1)
    for batch in range(20):
        assert put(store, [stage(store, rows_of(batch, 3), batch=batch)], batch)
    log = core_of(store.path).topic("orders").partition(0)
    assert len(log.producers()) == 1
    assert len(store.transactions) <= 2


def test_a_store_that_was_made_anew_at_the_same_path_is_opened_anew(tmp_path: Path) -> None:
    for number in range(2):
        with klamm.open(tmp_path / "events") as store:
            store.topics.create("orders", 1)
            assert put(store, [stage(store, rows_of(0))])
            assert len(contents(store)[0]) == 50
        (tmp_path / "events").rename(tmp_path / f"away{number}")  # not removed: its maintenance thread may write there


def test_a_process_that_has_the_store_open_does_not_harm_an_older_copy_that_is_put_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's processes keep it open between two queries."""
    path = tmp_path / "events"
    with klamm.open(path) as store:
        store.topics.create("orders", 1)
        assert put(store, [stage(store, rows_of(0))])
        store.backup(tmp_path / "backup")
    assert put(store_of(path), [stage(store_of(path), rows_of(1), batch=1)], 1)
    path.rename(tmp_path / "away")
    (tmp_path / "backup").rename(path)
    core_of(str(path))  # closes the one that was there before
    monkeypatch.setattr(directory, "boot_id", lambda: b"after a reboot  ")
    _let_go_of_all()
    with klamm.open(path) as store:
        assert len(contents(store)[0]) == 50 and store.check().ok
    assert put(store_of(path), [stage(store_of(path), rows_of(2), batch=1)], 1, "offsets b")
    assert len(contents(store_of(path))[0]) == 100


# What is left behind


def age(path: Path, age_ms: int) -> None:
    os.utime(path, (time.time() - age_ms / 1000,) * 2)


def test_staged_files_are_swept_a_day_after_the_last_of_their_batch_was_written(store: klamm.Store) -> None:
    store.topics.create("orders", 3)
    directory = Path(staging.directory_of(store.path, store.store_id))
    old, young = (
        [directory / str(stage(store, rows_of(0), batch=batch, task=task).file) for task in range(2)]
        for batch in range(2)
    )
    for path in (*old, young[0]):
        age(path, scratch.OLD_MS + 60_000)
    age(young[1], scratch.OLD_MS - 600_000)
    store.maintain()
    assert sorted(directory.iterdir()) == sorted(young)


def test_nothing_of_a_batch_is_swept_while_one_of_its_tasks_runs_though_it_has_no_row_yet(store: klamm.Store) -> None:
    """Its other tasks were done more than a day ago."""
    store.topics.create("orders", 3)
    schema = StructType([StructField("value", BinaryType())])
    plan = WritePlan(schema, WriteOptions.parse({"path": store.path, "topic": "orders"}, streaming=True))
    directory = Path(plan.directory)
    done = stage(store, rows_of(0))

    def rows() -> Iterator[pa.RecordBatch]:
        for path in directory.iterdir():
            age(path, scratch.OLD_MS + 60_000)
        assert scratch.sweep(core_of(store.path)) == 0
        yield pa.record_batch([pa.array([b"late"])], names=["value"])

    late = _Stager(plan, StagedName(QUERY, 0, 1, 0)).run(rows())
    assert put(store, [done, late])
    assert sum(map(len, contents(store).values())) == 51
    empty = _Stager(plan, StagedName(QUERY, 1, 0, 0)).run(iter([]))
    assert (empty.file, empty.size, empty.rows) == (None, 0, 0)
    for path in directory.iterdir():
        age(path, scratch.OLD_MS + 60_000)
    store.maintain()
    assert list(directory.iterdir()) == [], "the tasks are done"


def test_files_of_earlier_batches_and_lost_attempts_go_with_the_commit_of_a_later_one(store: klamm.Store) -> None:
    store.topics.create("orders", 3)
    directory = staging.directory_of(store.path, store.store_id)
    names = [stage(store, rows_of(0), batch=batch).file for batch in (0, 1, 1, 2)]
    Path(directory, "something else").touch()
    staging.remove_of(directory, QUERY, 1)
    assert sorted(os.listdir(directory)) == sorted([str(names[-1]), "something else"])


def test_what_cannot_be_removed_fails_no_batch_and_is_removed_by_maintenance_later(
    store: klamm.Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store.topics.create("orders", 3)
    directory = Path(staging.prepare(store.path, store.store_id))
    file = directory / StagedName(QUERY, 0, 0, 0).new()
    file.mkdir()  # unlink fails, whoever calls it
    job = directory / "job"
    job.symlink_to(tmp_path)  # so does rmtree
    staging.remove_of(str(directory), QUERY, 0)
    staging.remove_job(str(job))
    assert file.exists() and job.exists()
    assert {record.levelname for record in caplog.records} == {"WARNING"}
    for path, record in zip((file, job), caplog.records, strict=True):
        assert str(path) in record.getMessage()
    job.unlink()
    job.mkdir()
    for path in (file, job):
        age(path, scratch.OLD_DIRECTORY_MS + 60_000)
    store.maintain()
    assert os.listdir(directory) == []


def test_the_directory_of_a_job_is_kept_for_thirty_days(store: klamm.Store) -> None:
    """Nothing is in it before the first task starts, and what comes before that may take long."""
    job = Path(staging.prepare(store.path, store.store_id)) / "job"
    job.mkdir()
    age(job, 30 * 24 * 3_600_000 - 600_000)
    store.maintain()
    assert job.exists()
    age(job, 30 * 24 * 3_600_000 + 60_000)
    store.maintain()
    assert not job.exists()


def test_a_store_with_a_staging_directory_is_still_a_store(tmp_path: Path) -> None:
    with klamm.open(tmp_path / "events") as store:
        store.topics.create("orders", 1)
        stage(store, rows_of(0))
        store.backup(tmp_path / "copy")
        assert klamm.check(store.path).ok
    assert not (tmp_path / "copy" / "staging").exists()


# Rows of klamm.db


def test_a_damaged_row_is_an_error(store: klamm.Store) -> None:
    store.topics.create("orders", 1)
    assert put(store, [stage(store, rows_of(0))])
    database = core_of(store.path).catalog.database
    with database.db_lock(), database.transaction() as execute:
        execute("UPDATE once SET number = 5")
    with pytest.raises(klamm.NotAStore, match="damaged"):
        put(store, [stage(store, rows_of(0), batch=1)], 1)
    assert "once: the row of" in klamm.check(store.path).breaches[0].message
