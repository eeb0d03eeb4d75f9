"""Calls that say "on disk" when they return, and what must be there afterwards: recorded by test_on_disk.py.

    on_disk.py ROOT calls       each of CALLS once, on the store ROOT/store that `prepare` has filled
    on_disk.py ROOT backup      of that store
    on_disk.py ROOT repair      of that store, after `damage`
    on_disk.py ROOT journal     three changes of a pipeline's folder
    on_disk.py ROOT micro-batches    three of a streaming query, into a store that `prepare_micro_batches` has made

Each notes in the trace that a call has returned, and what it returned. Each call of CALLS has topics and groups of its
own, so that no call syncs what another one should have.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import klamm
from klamm.batch import parse, walk
from klamm.batch.header import HEADER_SIZE
from klamm.errors import UnknownGroup
from klamm.log import _head
from klamm.spark import batches as spark_batches
from klamm.spark import staged_files as staging
from klamm.store.wire_groups import WireGroups
from tests.crash.stores import without_maintenance
from tests.crash.workload import log_of, note, sealed

SMALL = {"segment.bytes": 700, "index.interval.bytes": 200}
VALUES = [b"%d" % number + b"." * 50 for number in range(30)]
APPENDED = ("appended", "many", "tabled", "produced", "one", "two", "published")
TOPICS = ("trimmed", "grown", "altered", "doomed")
_open: list[Any] = []  # producers that are still open when the power is cut


class Call(NamedTuple):
    make: Callable[[klamm.Store], Any]
    check: Callable[[klamm.Store, Any], None]
    """Gets the store after the cut, and what `make` returned."""


def values(store: klamm.Store, topic: str) -> list[bytes]:
    with store.consumer(topic, start="earliest", wait=0, form="values") as consumer:
        return sorted(consumer)


def prepare(path: str) -> None:
    """Make the store, and close it."""
    with klamm.open(path) as store:
        for topic in TOPICS:
            store.topics.create(topic, 2, SMALL)
        store.topics.create("failing", 1, SMALL)
        for topic in APPENDED:  # no segment of these gets full: the maintenance thread syncs those, sooner or later
            store.topics.create(topic, 2)
        for topic in ("dead", "planned", "restored"):
            store.topics.create(topic, 1)
        for topic in ("trimmed", "doomed", "failing"):
            store.append_many(topic, VALUES, partition=0)
        store.append_many("dead", VALUES[:5])
        with store.consumer("dead", group="dead", wait=0) as consumer:
            consumer.run(_fail, workers=1, on_error="dead-letter", retries=0)
        for group in ("exported", "moved", "gone", "gone over the wire"):
            store.groups.reset(group, "trimmed", to="earliest")


def _fail(record: object) -> None:
    raise ValueError("no")


# ---- appending


def _append(store: klamm.Store) -> int | None:
    return store.append("appended", VALUES[0])


def _append_many(store: klamm.Store) -> None:
    store.append_many("many", VALUES)


def _append_table(store: klamm.Store) -> None:
    import pyarrow as pa

    store.append_table("tabled", pa.table({"value": pa.array(VALUES, pa.binary())}))


def _flush(store: klamm.Store) -> None:
    producer = store.producer(acks="all")
    _open.append(producer)
    for value in VALUES:
        producer.send("produced", value)
    producer.flush()


def _transaction(store: klamm.Store) -> None:
    with store.transaction() as transaction:
        for topic in ("one", "two"):
            for value in VALUES:
                transaction.send(topic, value)


def _has(*topics: str, count: int = len(VALUES)) -> Callable[[klamm.Store, Any], None]:
    def check(store: klamm.Store, _: Any) -> None:
        for topic in topics:
            assert values(store, topic) == sorted(VALUES[:count]), topic

    return check


# ---- topics and settings


def _create(store: klamm.Store) -> None:
    store.topics.create("created", 3, {"retention.ms": 4711})


def _is_created(store: klamm.Store, _: Any) -> None:
    topic = store.topics.describe("created")
    assert (len(topic.partitions), topic.settings) == (3, {"retention.ms": "4711"})


def _alter_topic(store: klamm.Store) -> None:
    store.topics.alter("altered", {"retention.ms": 4711})


def _is_altered(store: klamm.Store, _: Any) -> None:
    assert store.topics.describe("altered").settings["retention.ms"] == "4711"


def _grow(store: klamm.Store) -> None:
    store.topics.add_partitions("grown", 5)


def _has_grown(store: klamm.Store, _: Any) -> None:
    assert len(store.topics.describe("grown").partitions) == 5


def _delete_topic(store: klamm.Store) -> None:
    store.topics.delete("doomed")


def _is_deleted(store: klamm.Store, _: Any) -> None:
    assert "doomed" not in store.topics


def _delete_records(store: klamm.Store) -> int:
    return store["trimmed"].delete_records({0: 17})[0]


def _starts_at(store: klamm.Store, start: int) -> None:
    assert log_of(store, "trimmed/0").ends().start == start == 17


def _alter_store(store: klamm.Store) -> None:
    store.alter({"group.max.size": 4711})


def _store_is_altered(store: klamm.Store, _: Any) -> None:
    assert store.settings()["group.max.size"] == "4711"


# ---- groups


def _import_group(store: klamm.Store) -> dict[str, Any]:
    exported = store.groups.export("exported")
    for row in exported["offsets"]:
        row["offset"] = 7
    store.groups.import_(exported, "imported")
    return exported


def _is_imported(store: klamm.Store, exported: dict[str, Any]) -> None:
    assert store.groups.export("imported")["offsets"] == exported["offsets"] != []


def _reset_offsets(store: klamm.Store) -> None:
    store.groups.reset("moved", "trimmed", to="latest")


def _is_reset(store: klamm.Store, _: Any) -> None:
    offsets = {row["partition"]: row["offset"] for row in store.groups.export("moved")["offsets"]}
    assert offsets == {0: len(VALUES), 1: 0}


def _delete_group(store: klamm.Store) -> None:
    store.groups.delete("gone")


def _delete_wire_group(store: klamm.Store) -> None:
    assert WireGroups(store._acquired()).delete(["gone over the wire"]) == [None]


def _is_forgotten(name: str) -> Callable[[klamm.Store, Any], None]:
    def check(store: klamm.Store, _: Any) -> None:
        try:
            store.groups.export(name)
        except UnknownGroup:
            return
        raise AssertionError(f"{name}: the group has come back")

    return check


# ---- numbers that are given out once


def _reserve_generations(store: klamm.Store) -> int:
    """Return the first generation that is not reserved."""
    return WireGroups(store._acquired()).reserve_generations(1000) + 1000


def _next_generation_is_new(store: klamm.Store, free: int) -> None:
    assert WireGroups(store._acquired()).reserve_generations(1) >= free


def _new_producer_id(store: klamm.Store) -> int:
    return store._acquired().catalog.allocate_producer_id()


def _next_producer_id_is_new(store: klamm.Store, taken: int) -> None:
    assert store._acquired().catalog.allocate_producer_id() > taken


# ---- dead letters


def _handle(store: klamm.Store) -> None:
    """Fail every record of a topic, with a group that commits after each."""
    with store.consumer("failing", group="g", wait=0) as consumer:
        consumer.run(_fail, workers=1, on_error="dead-letter", retries=0, commit_every=0)


def letters_are_there(store: klamm.Store) -> int:
    """Check that each record before the group's offset has its letter, on disk. Return how many there are."""
    try:
        done = sum(row["offset"] for row in store.groups.export("g")["offsets"])
    except UnknownGroup:
        done = 0
    letters = list(store.dead_letters("failing.dlq")) if "failing.dlq" in store.topics else []
    offsets = [letter.origin.offset for letter in letters if letter.origin is not None]
    assert set(offsets) >= set(range(done)), f"the group is at {done}, and only {offsets} have letters"
    assert [letter.record.value for letter in letters] == VALUES[: len(letters)]
    return len(letters)


def _all_letters_are_there(store: klamm.Store, _: Any) -> None:
    assert letters_are_there(store) == len(VALUES)


def _redrive(store: klamm.Store) -> int:
    return store.redrive("dead.dlq")


def _is_redriven(store: klamm.Store, count: int) -> None:
    assert count == 5
    assert list(store.dead_letters("dead.dlq")) == []
    assert values(store, "dead") == sorted(VALUES[:5] * 2)


# ---- Spark, without Spark

_BATCH = spark_batches.BatchId("query 1", "topic published", 0, "offsets a")


def _publish(store: klamm.Store) -> None:
    """Do what a task of a write does, and the driver with what the task has staged."""
    from klamm.spark.publisher import publish
    from klamm.spark.staged_batches import StagedTopic, StagingFile, TaskCommit

    directory = staging.prepare(store.path, store.store_id)
    file = StagingFile(f"{directory}/0")
    for partition in (0, 1):
        file.add(0, partition, memoryview(sealed([value.decode() for value in VALUES[partition::2]])))
    file.finish()
    topics = (StagedTopic("published", store.topics.describe("published").id, (0, 1)),)
    staged = TaskCommit("query 1", 0, 0, "0", file.size, len(VALUES), topics)
    assert publish(store._acquired(), [staged], directory, _BATCH, durable=True)


def _is_published(store: klamm.Store, _: Any) -> None:
    assert values(store, "published") == sorted(VALUES)
    assert spark_batches.is_committed(store._acquired().catalog.database, _BATCH)


def _plan(store: klamm.Store) -> int:
    """Return the offset up to which Spark was told to read: Spark keeps it, and without a leader epoch."""
    from klamm.spark.options import ReadOptions
    from klamm.spark.planner import Planner

    store.append_many("planned", VALUES, acks=1)
    planner = Planner(ReadOptions.parse({"path": store.path, "subscribe": "planned"}, streaming=False))
    _open.append(planner)
    (planned,) = planner.batch()
    return planned.end


def _is_planned(store: klamm.Store, end: int) -> None:
    assert log_of(store, "planned/0").ends().end == end == len(VALUES)


def _restore(store: klamm.Store) -> None:
    """Do what a task of `restore` does with the rows of an archive."""
    import pyarrow as pa

    from klamm.spark.pipelines.restore_pipeline import _restore_partition

    rows = pa.record_batch(
        {
            "partition": pa.array([0] * len(VALUES), pa.int32()),
            "offset": pa.array(range(10, 10 + len(VALUES)), pa.int64()),
            "key": pa.nulls(len(VALUES), pa.binary()),
            "value": pa.array(VALUES, pa.binary()),
            "headers": pa.nulls(len(VALUES), pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
            "timestamp": pa.array([1_700_000_000_000_000] * len(VALUES), pa.timestamp("us", "UTC")),
        }
    )
    topic = store.topics.describe("restored")
    (told,) = _restore_partition(store.path, store.store_id, "restored", topic.id, (10,), iter([rows]))
    assert told.to_pydict() == {"partition": [0], "seen": [len(VALUES)], "appended": [len(VALUES)]}


def _claim(store: klamm.Store) -> None:
    from klamm.spark.pipelines.pipeline_directory import PipelineDirectory

    PipelineDirectory.take(f"{store.path}/../new/folder", {"pipeline": "archive"}, {"option": 1})


def _is_claimed(store: klamm.Store, _: Any) -> None:
    from klamm.spark.pipelines.pipeline_directory import PipelineDirectory

    claimed = {"identity": {"pipeline": "archive"}, "options": {"option": 1}, "resetting": False, "retired": False}
    assert PipelineDirectory.read(f"{store.path}/../new/folder") == claimed


CALLS = {
    "producer id": Call(_new_producer_id, _next_producer_id_is_new),  # first: a process takes many at once
    "append": Call(_append, _has("appended", count=1)),
    "append_many": Call(_append_many, _has("many")),
    "append_table": Call(_append_table, _has("tabled")),
    "flush of a producer": Call(_flush, _has("produced")),
    "commit of a transaction": Call(_transaction, _has("one", "two")),
    "create_topic": Call(_create, _is_created),
    "alter_topic": Call(_alter_topic, _is_altered),
    "add_partitions": Call(_grow, _has_grown),
    "delete_topic": Call(_delete_topic, _is_deleted),
    "delete_records": Call(_delete_records, _starts_at),
    "alter": Call(_alter_store, _store_is_altered),
    "import_group": Call(_import_group, _is_imported),
    "reset_offsets": Call(_reset_offsets, _is_reset),
    "delete_group": Call(_delete_group, _is_forgotten("gone")),
    "DeleteGroups": Call(_delete_wire_group, _is_forgotten("gone over the wire")),
    "reserve_generations": Call(_reserve_generations, _next_generation_is_new),
    "dead letters": Call(_handle, _all_letters_are_there),
    "redrive": Call(_redrive, _is_redriven),
    "write by Spark": Call(_publish, _is_published),
    "read by Spark": Call(_plan, _is_planned),
    "restore": Call(_restore, _has("restored")),
    "folder of a pipeline": Call(_claim, _is_claimed),
}

# ---- operations on many files


def run_calls(root: str) -> None:
    store = klamm.open(f"{root}/store")
    for name, call in CALLS.items():
        note(calling=name)
        note(returned=name, result=call.make(store))


def run_backup(root: str) -> None:
    """Copy a store that has records which are not synced, into a directory whose parents are not there either."""
    store = klamm.open(f"{root}/store")
    store.append_many("many", VALUES, acks=1)
    store.backup(f"{root}/backups/today/copy")
    note(returned="backup")


def run_aborts(root: str) -> None:
    """Abort transactions, each in a segment of its own that was synced before, and leave recovery points.

    Without a recovery point the whole log is read; with one, newer .aborted files have to have their names.
    """
    store = klamm.open(f"{root}/store")
    store.topics.create("orders", 1, {"segment.bytes": 4000})
    without_maintenance(store._acquired())
    note(ready=True)
    for number in range(2):
        store.append("orders", b"kept", key=bytes(4000))  # it fills a segment
        store.append("orders", b"kept")
        with suppress(KeyError), store.transaction("mover", batch_bytes=200) as tx:
            for _ in range(20):
                tx.send("orders", b"aborted")
            raise KeyError
        log_of(store, "orders/0").checkpoint()
        note(returned=number)


class Damaged(NamedTuple):
    """A store with damage of every kind that a repair puts right, and what was good."""

    good: dict[int, bytes]  # by offset, in orders/0
    bad: list[bytes]  # damaged bytes, which are to be kept

    def is_repaired(self, path: Path) -> None:
        with klamm.open(path, create=False) as store:
            with store.consumer("orders", start="earliest", wait=0) as consumer:
                assert {record.offset: record.value for record in consumer} == self.good
            assert values(store, "indexed") == sorted(VALUES)
            report = store.check()
            assert report.ok, report.breaches
        aside = b"".join(path.read_bytes() for path in path.glob("topics/orders-*/0/*.cut-*"))
        for data in self.bad:
            assert data in aside, "damaged bytes were not kept"
        (orphan,) = path.glob("orphans/*/0/0")
        assert orphan.read_bytes() == ORPHAN


ORPHAN = b"records of a topic that no catalog has"


def prepare_damaged(path: Path) -> Damaged:
    """Make a store and damage it."""
    with klamm.open(path) as store:
        for topic in ("orders", "indexed"):
            store.topics.create(topic, 1, SMALL)
            for value in VALUES:
                store.append(topic, value)
    (log,) = path.glob("topics/orders-*/0")
    segments = sorted(log.glob("*.log"))
    assert len(segments) >= 6
    good = dict(enumerate(VALUES))
    bad = []

    def flip(segment: Path, position: int) -> None:
        """Damage the batch at `position`, which has one record."""
        data = bytearray(segment.read_bytes())
        header = parse(memoryview(data)[position:])
        data[position + HEADER_SIZE + 3] ^= 0xFF
        segment.write_bytes(data)
        bad.append(bytes(data[position : position + header.size]))
        del good[header.base_offset]

    sizes = [header.size for header in walk(segments[1].read_bytes())]
    flip(segments[1], sizes[0])  # in the middle
    data = bytearray(segments[2].read_bytes())
    data[3] ^= 0xFF  # of a base offset, which no checksum covers: nothing is lost
    segments[2].write_bytes(data)
    for header in walk(segments[4].read_bytes()):
        del good[header.base_offset]
    segments[4].unlink()
    last = segments[-1].read_bytes()
    flip(segments[-1], len(last) - [header.size for header in walk(last)][-1])  # at the end
    lying = sorted(path.glob("topics/indexed-*/0/*.index"))[1]
    lying.write_bytes(lying.read_bytes()[:64] + _head.index_entry(11, 7, 0))
    orphan = path / "topics" / "stray" / "0"
    orphan.mkdir(parents=True)
    (orphan / "0").write_bytes(ORPHAN)
    return Damaged(good, bad)


def run_repair(root: str) -> None:
    report = klamm.check(f"{root}/store", repair=True)
    note(returned="repair", found=len(report.breaches), left=sum(not each.repaired for each in report.breaches))


CHANGES = (  # of a folder: files that come, by their sub-folders, and those that go
    ({"date=1": ["a", "b"]}, ()),
    ({"date=1": ["ab"], "date=2": ["c"]}, ("date=1/00000001-0000.parquet", "date=1/00000001-0001.parquet")),
    ({"date=2": ["d"]}, ()),
)
FOLDERS: tuple[dict[str, str], ...] = (  # what it holds after each change
    {},
    {"date=1/00000001-0000.parquet": "a", "date=1/00000001-0001.parquet": "b"},
    {"date=1/00000002-0000.parquet": "ab", "date=2/00000002-0001.parquet": "c"},
    {
        "date=1/00000002-0000.parquet": "ab",
        "date=2/00000002-0001.parquet": "c",
        "date=2/00000003-0000.parquet": "d",
    },
)


def run_journal(root: str) -> None:
    """Do what `archive` does in each micro-batch. Spark syncs nothing: neither its checkpoint nor the staged files."""
    from klamm.spark.checkpoint import sync_plan
    from klamm.spark.pipelines.journal import Journal
    from klamm.spark.pipelines.pipeline_directory import PipelineDirectory

    claim = PipelineDirectory.take(f"{root}/folder", {"pipeline": "archive"}, {})
    journal = Journal(claim)
    for batch, (folders, removes) in enumerate(CHANGES):
        os.makedirs(f"{claim.checkpoint}/offsets", exist_ok=True)
        _write(f"{claim.checkpoint}/offsets/{batch}", "the plan")
        staged, stage = {}, journal.stage(f"batch-{batch}")
        for folder, texts in folders.items():
            path = f"{stage}/{folder}"
            os.makedirs(path)
            staged[folder] = [f"{path}/part-{number}.parquet" for number in range(len(texts))]
            for name, text in zip(staged[folder], texts, strict=True):
                _write(name, text)
        sync_plan(claim.checkpoint, batch)
        note(committing=batch)
        journal.commit(staged, removes, batch=batch, ends={0: batch})
        note(returned="commit", batch=batch)


QUERY = "0b1c8ab6-5b3e-4bd5-9d9d-5a3e0b0f8a11"
METADATA = json.dumps({"id": QUERY})


def plan_of(number: int) -> str:
    """Return a plan as Spark writes it."""
    return f'v1\n{{"batchTimestampMs":{number}}}\n{{"in":{{"0":{number * 10}}}}}'


def prepare_micro_batches(path: str) -> None:
    with klamm.open(path) as store:
        store.topics.create("out", 1)


def run_micro_batches(root: str) -> None:
    """Do what Spark does with the sink in each micro-batch of a new query. Spark syncs nothing of its checkpoint."""
    import pyarrow as pa
    from pyspark.sql.types import BinaryType, StructField, StructType

    from klamm.spark.internals import MicroBatch
    from klamm.spark.sink import StreamWriter, _Stager
    from klamm.spark.staged_files import StagedName

    checkpoint = f"{root}/queries/checkpoint"
    os.makedirs(f"{checkpoint}/offsets")
    _write(f"{checkpoint}/metadata", METADATA)
    options = {"path": f"{root}/store", "topic": "out", "checkpointLocation": f"file:{checkpoint}"}
    schema = StructType([StructField("value", BinaryType())])
    for number in range(3):
        _write(f"{checkpoint}/offsets/{number}", plan_of(number))
        writer = StreamWriter(schema, options, False)
        rows = pa.record_batch({"value": pa.array([b"%d" % number], pa.binary())})
        staged = _Stager(writer._plan, StagedName(QUERY, number, 0, 0)).run(iter([rows]))
        note(committing=number)
        writer.commit([replace(staged, micro_batch=MicroBatch(QUERY, number, None))], number)
        note(returned="commit", batch=number)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


PROGRAMS = {
    "calls": run_calls,
    "backup": run_backup,
    "aborts": run_aborts,
    "repair": run_repair,
    "journal": run_journal,
    "micro-batches": run_micro_batches,
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[2]](sys.argv[1])
    os._exit(0)  # without closing, which would sync
