"""format("klamm") in batch queries, in a real Spark."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import klamm
import pyspark_klamm
from klamm.arrow.scan import Scan
from klamm.errors import KlammError, NotAStore, OffsetOutOfRange, UnknownTopic
from klamm.spark import internals, range_reader
from klamm.spark.internals import arrow_schema
from klamm.spark.offsets import TopicIdPartition
from klamm.spark.options import ReadOptions
from klamm.spark.planner import Planner, Range
from klamm.spark.range_reader import Task
from klamm.spark.source import BatchReader, KlammSource, check_spark_version, plain_errors
from klamm.store.directory import acquire

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Load = Callable[..., Any]
T0 = 1_700_000_000_123
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
HEADERS = [("h", b"1"), ("h", None)]


@pytest.fixture
def load(spark: SparkSession, store: klamm.Store) -> Load:
    """A DataFrame of the store."""

    def loaded(subscribe: str | None = "orders", **options: Any) -> Any:
        reader = spark.read.format("klamm")
        if subscribe is not None:
            reader = reader.option("subscribe", subscribe)
        return reader.options(**{name: str(value) for name, value in options.items()}).load(store.path)

    return loaded


def rows(frame: Any, *columns: str) -> list[tuple[Any, ...]]:
    """What it reads, in the order of the log."""
    table = frame.toArrow().sort_by([("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")])
    picked = [table.column(name).to_pylist() for name in columns or table.column_names]
    return list(zip(*picked, strict=True))


# In Spark


def test_every_kind_of_topic_is_read_as_the_store_has_it(load: Load, store: klamm.Store) -> None:
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        store.topics.create(f"t-{codec}")
        many = [(b"k%d" % n, b"v" * n, HEADERS if n % 2 else None, T0 + n) for n in range(50)]
        store.append_many(f"t-{codec}", many, compression=codec, acks=1)
    store.topics.create("t-nulls", partitions=2)
    nulls = [(None, b"v", None, T0), (b"k", None, [], T0), (None, None, None, T0), (b"", b"", HEADERS, 0)]
    store.append_many("t-nulls", nulls, partition=1, acks=1)
    store.topics.create("t-stamped", settings={"message.timestamp.type": "LogAppendTime"})
    store.append("t-stamped", b"now", timestamp=5, acks=1)
    store.topics.create("t-empty")
    store.topics.create("t-compacted", settings={"cleanup.policy": "compact"})
    for n in range(60):
        store.append("t-compacted", b"%d" % n, key=b"k%d" % (n % 7), acks=1)
    store["t-compacted"].compact(force=True)
    store.topics.create("t-transactions")
    with store.transaction() as transaction:
        transaction.send("t-transactions", b"kept")
    with suppress(ZeroDivisionError), store.transaction() as transaction:
        transaction.send("t-transactions", b"aborted" * 10)
        raise ZeroDivisionError

    frame = load(None, subscribePattern="t-.*", includeHeaders="true")
    assert [(field.name, field.dataType.simpleString()) for field in frame.schema] == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
        ("headers", "array<struct<key:string,value:binary>>"),
    ]
    expected = []
    for topic in store.topics:
        for row in store.scan(topic).to_table().to_pylist():
            headers = [(pair["key"], pair["value"]) for pair in row.pop("headers")]
            expected.append((*row.values(), headers))
    read = rows(frame)
    found = [(*row[:7], [(pair["key"], pair["value"]) for pair in row[7] or []]) for row in read]
    assert found == expected
    assert len(found) == 4 * 50 + 4 + 1 + 7 + 1
    by_topic = {topic: [row for row in read if row[2] == topic] for topic in store.topics}
    assert [row[1] for row in by_topic["t-transactions"]] == [b"kept"]
    assert [row[7] is None for row in by_topic["t-nulls"]] == [True, True, True, False]  # as Spark's Kafka source
    assert by_topic["t-gzip"][1][5] == datetime.fromtimestamp((T0 + 1) / 1000, UTC)
    (stamped,) = by_topic["t-stamped"]
    assert stamped[6] == 1 and stamped[5].year > 2020


def test_columns_and_schema_prune(load: Load, spark: SparkSession, store: klamm.Store) -> None:
    store.topics.create("orders")
    store.append_many("orders", [(b"k", b"v%d" % n) for n in range(3)], acks=1)
    frame = load(columns="offset, value")
    assert frame.columns == ["offset", "value"]
    assert sorted(tuple(row) for row in frame.collect()) == [(0, b"v0"), (1, b"v1"), (2, b"v2")]
    reader = spark.read.format("klamm").schema("value binary, partition int").option("subscribe", "orders")
    assert {tuple(row) for row in reader.load(store.path).collect()} == {(b"v0", 0), (b"v1", 0), (b"v2", 0)}
    # The same format in SQL.
    spark.sql(f"create temporary view o using klamm options (path '{store.path}', subscribe 'orders')")
    try:
        assert spark.sql("select max(offset), count(*) from o where value > 'v0'").collect() == [(2, 2)]
    finally:
        spark.catalog.dropTempView("o")


def test_ranges_tasks_and_an_empty_topic(load: Load, store: klamm.Store) -> None:
    store.topics.create("orders", partitions=2)
    assert load().count() == 0
    for _ in range(10):
        store.append_many("orders", [(None, b"v")] * 10, partition=0, acks=1)
    frame = load(startingOffsets='{"orders": {"0": 15, "1": -2}}', endingOffsets='{"orders": {"0": 85, "1": -1}}')
    assert [row[0] for row in rows(frame, "offset")] == list(range(15, 85))
    split = load(minPartitions=5)
    assert split.rdd.getNumPartitions() == 5
    assert [row[0] for row in rows(split, "offset")] == list(range(100))


def test_filters_are_pushed_down_where_spark_allows_it(load: Load, spark: SparkSession, store: klamm.Store) -> None:
    store.topics.create("orders", partitions=4)
    for number in range(4):
        store.append_many("orders", [(None, b"v", None, T0 + n) for n in range(100)], partition=number, acks=1)
    narrow = f"partition = 2 and offset >= 10 and offset < 20 and timestamp >= timestamp_millis({T0 + 15})"
    expected = [(2, offset) for offset in range(15, 20)]
    before = spark.conf.get(PUSHDOWN)
    assert before is not None
    try:
        spark.conf.set(PUSHDOWN, "false")  # Spark's default: it reads everything, and filters
        assert load().where(narrow).rdd.getNumPartitions() == 4
        assert rows(load().where(narrow), "partition", "offset") == expected
        spark.conf.set(PUSHDOWN, "true")
        frame = load().where(narrow)
        assert frame.rdd.getNumPartitions() == 1
        assert rows(frame, "partition", "offset") == expected
        assert load().count() == 400  # no filter at all
    finally:
        spark.conf.set(PUSHDOWN, before)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"path": "nowhere"}, "klamm.errors.NotAStore:"),
    ({"subscribe": "order"}, "klamm.errors.UnknownTopic: Topic 'order' does not exist (did you mean 'orders'?)"),
    ({"startingOfset": "x"}, "klamm.errors.InvalidSetting: format klamm has no option 'startingofset' (did you mean"),
    ({"startingOffsets": '{"orders": {"0": 9}}'}, "klamm.errors.OffsetOutOfRange: orders/0: offsets 9 to 1 are not"),
    ({"schema": "key string"}, "klamm.errors.InvalidSetting: the schema's column key is string, not binary"),
    ({"schema": "key binary", "includeHeaders": "true"}, "klamm.errors.InvalidSetting: the schema has no column head"),
    ({"schema": "valu binary"}, "klamm.errors.InvalidSetting: there is no column 'valu' (did you mean 'value'?)"),
]


@pytest.mark.parametrize(("given", "said"), WRONG, ids=lambda value: str(value)[:30])
def test_bad_input_is_told_before_a_job_is_started(
    spark: SparkSession, store: klamm.Store, tmp_path: Path, given: dict[str, Any], said: str
) -> None:
    from pyspark.errors import AnalysisException

    store.topics.create("orders")
    store.append("orders", b"v", acks=1)
    given = {"subscribe": "orders"} | given
    schema = given.pop("schema", None)
    path = tmp_path / given.pop("path", "events")
    reader = spark.read.format("klamm").options(**given)
    spark.sparkContext.setJobGroup(said, said)
    with pytest.raises(AnalysisException) as caught:
        (reader if schema is None else reader.schema(schema)).load(str(path)).collect()
    first = str(caught.value).splitlines()[0]
    assert said in first and "Traceback" not in str(caught.value)
    assert list(spark.sparkContext.statusTracker().getJobIdsForGroup(said)) == []


# In a task, without Spark


@contextmanager
def planned(store: klamm.Store, **given: str) -> Iterator[tuple[BatchReader, list[Any]]]:
    source = KlammSource({"path": store.path, "subscribe": "orders"} | given)
    reader = source.reader(source.schema())
    assert isinstance(reader, BatchReader)
    yield reader, reader.partitions()


def offsets_of(reader: BatchReader, tasks: list[Any]) -> list[Any]:
    return [offset for task in tasks for batch in reader.read(task) for offset in batch.column("offset").to_pylist()]


def fill(store: klamm.Store, count: int = 3000, segment_bytes: int | None = None) -> None:
    settings = {} if segment_bytes is None else {"segment.bytes": segment_bytes}
    store.topics.create("orders", settings=settings)
    for start in range(0, count, 100):
        store.append_many("orders", [(None, b"v" * 100) for _ in range(start, start + 100)], acks=1)


def test_records_that_expire_between_plan_and_task(store: klamm.Store, caplog: pytest.LogCaptureFixture) -> None:
    fill(store)
    with planned(store) as (strict, tasks), planned(store, failOnDataLoss="false") as (lenient, others):
        store["orders"].delete_records({0: 1234})
        with pytest.raises(OffsetOutOfRange, match="data loss: orders/0: offsets 0 to 1233 are gone"):
            offsets_of(strict, tasks)
        assert offsets_of(lenient, others) == list(range(1234, 3000))
        assert "offsets 0 to 1233 are gone" in caplog.text


@pytest.mark.parametrize("fail", ["true", "false"])
def test_records_that_expire_while_a_task_reads(
    store: klamm.Store, monkeypatch: pytest.MonkeyPatch, fail: str, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(range_reader, "BATCH_ROWS", 100)
    monkeypatch.setattr("klamm.arrow.scan._READ_BYTES", 30_000)
    fill(store, segment_bytes=100_000)
    with planned(store, failOnDataLoss=fail) as (reader, tasks):
        batches = reader.read(tasks[0])
        seen: list[Any] = next(batches).column("offset").to_pylist()
        store["orders"].delete_records({0: 2500})
        if fail == "true":
            with pytest.raises(OffsetOutOfRange, match=r"data loss: orders/0: offsets \d+ to 2499 are gone"):
                list(batches)
            return
        seen += [offset for batch in batches for offset in batch.column("offset").to_pylist()]
        assert seen == sorted(set(seen)) and seen[-1] == 2999 and set(range(2500, 3000)) <= set(seen)
        last = max(offset for offset in seen if offset < 2500)
        assert seen[: last + 1] == list(range(last + 1))
        assert f"offsets {last + 1} to 2499 are gone" in caplog.text


def test_a_topic_made_anew_between_plan_and_task(store: klamm.Store) -> None:
    fill(store, 100)
    with planned(store) as (strict, tasks), planned(store, failOnDataLoss="false") as (lenient, others):
        store.topics.delete("orders")
        fill(store, 200)
        with pytest.raises(UnknownTopic, match=r"data loss: orders/0: offsets 0 to 99 are gone; .* re-created"):
            offsets_of(strict, tasks)
        assert offsets_of(lenient, others) == []


def test_a_task_that_sees_another_store_or_less_of_it(store: klamm.Store, tmp_path: Path) -> None:
    fill(store, 100)
    tp = TopicIdPartition("orders", store.topics.describe("orders").id, 0)
    task = Task(store.path, store.store_id, Range(tp, 0, 100), "read_committed", True)
    schema = arrow_schema(KlammSource({"path": store.path, "subscribe": "orders"}).schema())
    assert sum(batch.num_rows for batch in range_reader.read(task, schema)) == 100
    with pytest.raises(NotAStore, match="is another store"):
        list(range_reader.read(task._replace(store_id="x"), schema))
    with pytest.raises(NotAStore, match="every worker has to see"):
        list(range_reader.read(task._replace(path=str(tmp_path / "nowhere")), schema))
    with pytest.raises(OffsetOutOfRange, match="the query has come to offset 101, but the log ends at 100"):
        list(range_reader.read(task._replace(range=Range(tp, 0, 101)), schema))


def test_a_task_opens_the_store_that_has_taken_the_place_of_the_one_it_has_open(tmp_path: Path) -> None:
    """Both are copies of one store, and have as many records; those of the second take more bytes."""
    path, base = tmp_path / "events", tmp_path / "base"
    with klamm.open(base) as store:
        store.topics.create("orders")
    path.mkdir()
    for value in (b"old", b"a newer one"):
        for found in path.iterdir():  # the directory itself stays, and has the same number
            shutil.rmtree(found) if found.is_dir() else found.unlink()
        shutil.copytree(base, path, dirs_exist_ok=True)
        with klamm.open(path) as store:
            store.append("orders", value)
        source = KlammSource({"path": str(path), "subscribe": "orders"})
        reader = source.reader(source.schema())
        batches = [batch for task in reader.partitions() for batch in reader.read(task)]
        assert [each for batch in batches for each in batch.column("value").to_pylist()] == [value]  # type: ignore[union-attr]


def test_only_the_bytes_of_a_range_are_read(store: klamm.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, 20_000)
    monkeypatch.setattr("klamm.arrow.scan._READ_BYTES", 16_384)
    total = sum(part.size for part in store.topics.describe("orders").partitions)
    read_bytes: list[int] = []
    original = Scan.batches

    def counted(self: Any) -> Any:
        for batch in original(self):
            read_bytes.append(batch.nbytes)
            yield batch

    monkeypatch.setattr(Scan, "batches", counted)
    options = ReadOptions.parse({"path": store.path, "subscribe": "orders"}, streaming=False)
    reader = KlammSource({"path": store.path, "subscribe": "orders"})
    batch_reader = BatchReader(reader.schema(), options)
    from pyspark.sql.datasource import GreaterThanOrEqual, LessThan

    assert batch_reader.pushFilters([GreaterThanOrEqual(("offset",), 10_000), LessThan(("offset",), 10_100)]) == []
    (task,) = batch_reader.partitions()
    before = _io_bytes()
    assert offsets_of(batch_reader, [task]) == list(range(10_000, 10_100))
    assert _io_bytes() - before < total // 10
    assert sum(read_bytes) < total // 50


def _io_bytes() -> int:
    """What this process has asked files for."""
    return int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])


def test_a_time_that_spark_cannot_hold(store: klamm.Store) -> None:
    store.topics.create("orders", settings={"message.timestamp.after.max.ms": (1 << 63) - 1})
    store.append("orders", b"v", timestamp=(1 << 62), acks=1)
    with planned(store) as (reader, tasks), pytest.raises(KlammError, match="beyond what Spark can hold"):
        offsets_of(reader, tasks)
    with planned(store, columns="offset") as (reader, tasks):
        assert offsets_of(reader, tasks) == [0]


@pytest.mark.parametrize("name", ["SECRET", "SOCK_PATH", "SOCK_DIR"])
def test_a_process_of_sparks_is_known_and_settled(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internals, "_frozen", 0)
    gc.unfreeze()  # what tests/conftest.py froze
    with plain_errors():
        pass
    assert not internals.is_worker() and gc.get_freeze_count() == 0
    monkeypatch.setenv(f"PYTHON_WORKER_FACTORY_{name}", "x")
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
    try:
        with plain_errors():
            pass
        assert gc.get_freeze_count() > 10_000, "Spark collects garbage after every task"
        with pytest.raises(KlammError), plain_errors():
            raise KlammError("ours")
        assert os.environ["SPARK_HIDE_TRACEBACK"] == "1"
    finally:
        gc.unfreeze()


def test_a_spark_that_is_too_old() -> None:
    with pytest.raises(KlammError, match=r"this is pyspark 4.0.3; format klamm needs 4.1 \(pip install"):
        check_spark_version("4.0.3")
    check_spark_version("4.1.0")
    check_spark_version("5.0.0.dev1")


def test_a_store_that_cannot_be_written_is_planned_up_to_what_is_on_disk(
    store: klamm.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from klamm.errors import ReadOnly
    from klamm.spark import planner as planner_module

    fill(store, 100)
    store.append("orders", b"on disk")  # acks="all"
    store.append("orders", b"not yet", acks=1)

    def refusing(path: str, *, read_only: bool, **more: Any) -> Any:
        if not read_only:
            raise ReadOnly("cannot be written")
        return acquire(path, read_only=read_only, **more)

    monkeypatch.setattr(planner_module, "acquire", refusing)
    planner = Planner(ReadOptions.parse({"path": store.path, "subscribe": "orders"}, streaming=False))
    try:
        assert [(each.start, each.end) for each in planner.batch()] == [(0, 101)]
    finally:
        planner.close()


# Without Spark


def test_a_broken_installation_is_told_by_the_format_and_breaks_no_other(tmp_path: Path) -> None:
    """Spark imports pyspark_klamm whichever Python source is looked for."""
    broken = tmp_path / "klamm"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('undefined symbol: klamm_ring')")
    program = """
import sys
from pyspark_klamm import DefaultSource
assert DefaultSource.name() == "klamm" and "klamm" not in sys.modules
try:
    DefaultSource({})
except ImportError as error:
    print(error)
"""
    home = str(Path(pyspark_klamm.__file__).parents[1])
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), home])}
    run = subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, text=True, timeout=120)
    assert "klamm cannot be imported on this machine: undefined symbol: klamm_ring (pip install" in run.stdout, run
    assert isinstance(pyspark_klamm.DefaultSource({}), KlammSource)
