from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pandas
import polars
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import klamm
from klamm.arrow import Scan
from klamm.batch import crc32c
from klamm.errors import CorruptBatch, Forked, InvalidSetting, OffsetOutOfRange, StoreError, UnknownTopic
from tests.descriptors import descriptors, opened_since
from tests.procs import children

ALL: list[klamm.Column] = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
IN_ONE_STORE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)


def fill(store: klamm.Store, topic: str = "t", count: int = 1000, partitions: int = 1) -> None:
    store.topics.create(topic, partitions)
    records = [(b"k%d" % n, b"v%d" % n, [("n", b"%d" % n)] if n % 10 == 0 else None, 1000 + n) for n in range(count)]
    for start in range(0, count, 100):
        store.append_many(topic, records[start : start + 100], acks=1)


def test_a_scan_has_the_columns_of_sparks_kafka_source(store: klamm.Store) -> None:
    fill(store, count=11)
    scan = store.scan("t")
    assert scan.schema.names == ALL
    assert scan.schema.field("timestamp").type == pa.timestamp("ms", tz="UTC")
    table = scan.to_table()
    table.validate(full=True)
    assert table.schema == scan.schema
    assert table.to_pylist()[10] == {
        "key": b"k10",
        "value": b"v10",
        "topic": "t",
        "partition": 0,
        "offset": 10,
        "timestamp": datetime.fromtimestamp(1.01, UTC),
        "timestampType": 0,
        "headers": [{"key": "n", "value": b"10"}],
    }


def test_a_scan_of_an_empty_topic_is_an_empty_stream_with_a_schema(store: klamm.Store) -> None:
    store.topics.create("t", 3)
    assert store.scan("t").to_table().num_rows == 0
    assert list(store.scan("t").batches()) == []
    assert store.scan("t").to_table().schema.names == ALL


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_it_reads_what_a_consumer_reads(store: klamm.Store, compression: klamm.Compression) -> None:
    store.topics.create("t", 3)
    with store.producer(compression=compression, acks=1) as producer:
        for n in range(3000):
            producer.send("t", b"%d" % n, key=None if n % 7 == 0 else b"%d" % (n % 50), headers=[("h", None)])
    with store.consumer("t", start="earliest", wait=0) as consumer:
        want = {(r.partition, r.offset): (r.key, r.value, r.timestamp) for r in consumer}
    rows = store.scan("t").to_table().to_pylist()
    assert {
        (r["partition"], r["offset"]): (r["key"], r["value"], round(r["timestamp"].timestamp() * 1000)) for r in rows
    } == want
    assert all(r["headers"] == [{"key": "h", "value": None}] for r in rows)


def test_columns_come_as_asked_for(store: klamm.Store) -> None:
    fill(store, count=5)
    assert store.scan("t", columns=["offset", "key"]).to_table().to_pydict() == {
        "offset": [0, 1, 2, 3, 4],
        "key": [b"k0", b"k1", b"k2", b"k3", b"k4"],
    }
    for name in ALL:
        assert store.scan("t", columns=[name]).to_table().schema.names == [name]
    assert store.scan("t", columns="partition").to_table().num_rows == 5


@pytest.mark.parametrize(
    ("columns", "complaint"), [(["vlaue"], "did you mean 'value'"), (["key", "key"], "at most once"), ([], "none")]
)
def test_columns_that_are_not_there_are_told_at_once(
    store: klamm.Store, columns: list[klamm.Column], complaint: str
) -> None:
    store.topics.create("t")
    with pytest.raises(InvalidSetting, match=complaint):
        store.scan("t", columns=columns)


def test_topics_and_partitions_that_are_not_there_are_told_at_once(store: klamm.Store) -> None:
    store.topics.create("t", 2)
    with pytest.raises(UnknownTopic):
        store.scan("nothing")
    for partitions in (2, [0, 5], -1):
        with pytest.raises(UnknownTopic):
            store.scan("t", partitions=partitions)


def test_a_partition_named_twice_is_read_once(store: klamm.Store) -> None:
    fill(store, "t", 13, 2)
    assert store.scan("t", partitions=[0, 0]).to_table() == store.scan("t", partitions=0).to_table()


@pytest.mark.parametrize("partitions", [True, [0, True], [False], ["0"], "0"])
def test_what_is_not_a_number_of_a_partition_is_told_at_once(store: klamm.Store, partitions: Any) -> None:
    store.topics.create("t", 2)
    with pytest.raises(TypeError, match=r"partitions: .* is invalid"):
        store.scan("t", partitions=partitions)


@IN_ONE_STORE
@given(data=st.data())
def test_any_range_and_any_size_of_batches_gives_exactly_its_rows(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    store = shared_store(tmp_path_factory)
    start, end = data.draw(st.integers(0, 1000)), data.draw(st.integers(0, 1100))
    batch_rows, batch_bytes = data.draw(st.integers(1, 1500)), data.draw(st.integers(1, 20_000))
    scan = store.scan(
        "t", start=start, end=end, columns=["offset", "value"], batch_rows=batch_rows, batch_bytes=batch_bytes
    )
    got = []
    for batch in scan.batches():
        batch.validate(full=True)
        assert 0 < batch.num_rows <= batch_rows
        got += batch.to_pylist()
    assert got == [{"offset": n, "value": b"v%d" % n} for n in range(start, min(end, 1000))]


_stores: list[klamm.Store] = []


def shared_store(factory: pytest.TempPathFactory) -> klamm.Store:
    """One for all examples."""
    if not _stores:
        _stores.append(klamm.open(factory.mktemp("scan") / "store"))
        fill(_stores[0])
    return _stores[0]


def test_offsets_may_be_given_for_each_partition(store: klamm.Store) -> None:
    store.topics.create("t", 3)
    for partition in range(3):
        store.append_many("t", [(None, b"%d" % n) for n in range(10)], partition=partition, acks=1)

    def offsets(**options: Any) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for row in store.scan("t", columns=["partition", "offset"], **options).to_table().to_pylist():
            found.setdefault(row["partition"], []).append(row["offset"])
        return found

    assert offsets(start={1: 8}, end={0: 1, 2: 2}) == {0: [0], 1: [8, 9], 2: [0, 1]}
    assert offsets(partitions=1, start=7) == {1: [7, 8, 9]}
    assert offsets(partitions=[2, 0], start=9) == {2: [9], 0: [9]}
    assert offsets(start="latest") == {}
    assert offsets(end="earliest") == {}
    assert len(offsets(start="earliest", end="latest")[2]) == 10


def test_times_choose_by_the_records_timestamps(store: klamm.Store) -> None:
    fill(store)

    def offsets(**options: Any) -> list[Any]:
        return store.scan("t", columns=["offset"], **options).to_table()["offset"].to_pylist()

    def at(ms: int) -> datetime:
        return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=ms)

    assert offsets(start=at(1500), end=at(1503)) == [500, 501, 502]
    assert offsets(start=at(5000)) == []
    assert offsets(end=at(0)) == []
    assert offsets(start=timedelta(minutes=1)) == []
    store.append("t", b"now", acks=1)
    assert offsets(start="1h30m") == offsets(start=timedelta(hours=1)) == offsets(start="90s") == [1000]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"start": "1h-"}, InvalidSetting),
        ({"end": timedelta(-1)}, InvalidSetting),
        ({"start": "first"}, InvalidSetting),
        ({"start": -1}, InvalidSetting),
        ({"start": 1.5}, TypeError),
        ({"end": {0: "x"}}, TypeError),
        ({"start": datetime(2020, 1, 1)}, ValueError),  # noqa: DTZ001  # without a zone is what is refused
        ({"batch_rows": 0}, InvalidSetting),
        ({"batch_bytes": 1 << 40}, InvalidSetting),
    ],
)
def test_bounds_that_make_no_sense_are_told_at_once(
    store: klamm.Store, options: dict[str, Any], error: type[Exception]
) -> None:
    store.topics.create("t")
    with pytest.raises(error):
        store.scan("t", **options)


def test_a_start_that_is_gone_or_never_was_is_out_of_range(store: klamm.Store) -> None:
    fill(store)
    store["t"].delete_records({0: 300})
    assert store.scan("t").to_table().num_rows == 700
    for start in (299, 1001):
        with pytest.raises(OffsetOutOfRange) as caught:
            store.scan("t", start=start).to_table()
        assert (caught.value.start, caught.value.end) == (300, 1000)
    assert store.scan("t", start=1000).to_table().num_rows == 0
    assert store.scan("t", end=9999).to_table().num_rows == 700


def test_each_stream_is_fresh_and_of_one_moment(store: klamm.Store) -> None:
    fill(store, count=100)
    scan = store.scan("t", columns=["offset"], batch_rows=10)
    stream = scan.batches()
    next(stream)
    store.append_many("t", [(None, b"later")] * 50, acks=1)
    assert sum(batch.num_rows for batch in stream) == 90
    assert scan.to_table().num_rows == 150
    assert scan.reader().read_all().num_rows == 150


def test_a_stream_ends_in_every_partition_where_it_ended_when_the_stream_began(store: klamm.Store) -> None:
    store.topics.create("t", 2)
    for number in (0, 1):
        store.append_many("t", [(None, b"first")] * 10, partition=number)
    stream = store.scan("t", columns=["partition", "value"], batch_rows=5).batches()
    rows = next(stream).to_pylist()
    for number in (0, 1):
        store.append_many("t", [(None, b"later")] * 10, partition=number)
    rows += [row for batch in stream for row in batch.to_pylist()]
    assert rows == [{"partition": number, "value": b"first"} for number in (0, 1) for _ in range(10)]


def test_duckdb_reads_it_by_the_name_of_the_variable(store: klamm.Store) -> None:
    fill(store)
    orders = store.scan("t")
    for _ in range(2):  # a fresh stream each time
        asked = duckdb.sql("select count(*), max(value), sum(len(headers)) from orders where partition = 0")
        assert asked is not None
        found = asked.fetchall()
        assert found == [(1000, b"v999", 100)]
    assert orders is not None


def test_polars_pandas_and_pyarrow_read_it(store: klamm.Store) -> None:
    fill(store)
    scan = store.scan("t", columns=["key", "value", "offset", "timestamp"])
    frame = polars.DataFrame(scan)
    assert frame.shape == (1000, 4)
    assert frame["value"][999] == b"v999"
    table = pa.table(scan)
    assert table.num_rows == 1000
    in_pandas = table.to_pandas()
    assert isinstance(in_pandas, pandas.DataFrame)
    assert in_pandas["timestamp"][0] == pandas.Timestamp("1970-01-01 00:00:01", tz="UTC")


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_memory_stays_bounded_however_long_the_log_is(store: klamm.Store) -> None:
    store.topics.create("t")
    for _ in range(100):
        store.append_many("t", [(None, b"x" * 1000)] * 1000, acks=1)
    scan = store.scan("t", batch_rows=1000)
    for batch in scan.batches():
        del batch
    gc.collect()
    before, most, rows = resident_bytes(), 0, 0
    for batch in scan.batches():
        rows += batch.num_rows
        most = max(most, resident_bytes())
    assert rows == 100_000
    assert most - before < 20 << 20  # of a log of 100 MB


def test_a_stream_that_is_left_early_leaves_no_thread_and_no_file_behind(store: klamm.Store) -> None:
    store.topics.create("t")
    for _ in range(20):
        store.append_many("t", [(None, b"x" * 1000)] * 900, acks=1)
    before = descriptors()
    threads = set(threading.enumerate())
    for _ in range(5):
        stream = store.scan("t", batch_rows=100).batches()
        for _ in range(20):
            next(stream)
        assert isinstance(stream, Generator)
        stream.close()
    reader = store.scan("t", batch_rows=2000).reader()
    reader.read_next_batch()
    reader.read_next_batch()
    del reader, stream
    gc.collect()
    assert not opened_since(before)
    assert set(threading.enumerate()) <= threads


def test_damage_is_told_with_where_it_lies_and_rows_before_it_are_read(store: klamm.Store, tmp_path: Path) -> None:
    fill(store, count=300)
    [log] = (tmp_path / "events").glob("topics/*/0/*.log")
    data = bytearray(log.read_bytes())
    second = data.index((100).to_bytes(8, "big") + data[8:9])
    data[second + 61] = 0  # the first record's size; then the CRC is made right
    size = 12 + int.from_bytes(data[second + 8 : second + 12], "big")
    data[second + 17 : second + 21] = crc32c(data[second + 21 : second + size]).to_bytes(4, "big")
    log.write_bytes(data)
    stream = store.scan("t", batch_rows=30, columns=["offset"]).batches()
    assert [next(stream)["offset"].to_pylist() for _ in range(3)] == [[*range(n, n + 30)] for n in (0, 30, 60)]
    with pytest.raises(CorruptBatch, match="t/0") as caught:
        next(stream)
    assert caught.value.next_offset == 200
    assert store.scan("t", end=100).to_table().num_rows == 100
    assert store.scan("t", start=200).to_table().num_rows == 100


def test_a_closed_store_cannot_be_scanned(tmp_path: Path) -> None:
    store = klamm.open(tmp_path / "store")
    fill(store, count=10)
    scan = store.scan("t")
    store.close()
    with pytest.raises(StoreError):
        scan.to_table()


def test_a_read_only_store_can_be_scanned(tmp_path: Path) -> None:
    with klamm.open(tmp_path / "store") as store:
        fill(store, count=10)
    with klamm.open(tmp_path / "store", read_only=True) as store:
        assert store.scan("t").to_table().num_rows == 10


def in_child(act: Callable[[], bool]) -> bool:
    with children() as start:
        return start(act).answer()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("piece", [1 << 20, 4 << 20], ids=["while it reads ahead", "before it reads ahead"])
def test_after_a_fork_the_child_scans_anew_and_a_stream_from_before_raises(
    store: klamm.Store, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr("klamm.arrow.scan._READ_BYTES", piece)
    store.topics.create("t")
    for _ in range(5):
        store.append_many("t", [(None, b"x" * 1000)] * 900, acks=1)
    scan = store.scan("t", batch_rows=500)
    stream = scan.batches()
    for _ in range(4):
        next(stream)

    def from_before() -> bool:
        try:
            for _ in stream:
                pass
        except Forked:
            return True
        return False

    assert in_child(lambda: scan.to_table().num_rows == 4500)
    assert in_child(from_before)
    assert sum(batch.num_rows for batch in stream) == 2500


def test_without_pyarrow_it_says_what_to_install(tmp_path: Path) -> None:
    script = """
import sys
sys.modules["pyarrow"] = None
import klamm
store = klamm.open(sys.argv[1])
store.topics.create("t")
try:
    store.scan("t")
except klamm.KlammError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "s")], capture_output=True, text=True)
    assert "pip install 'klamm[arrow]'" in done.stdout, done.stderr


def test_a_scan_prints_what_it_is(store: klamm.Store) -> None:
    store.topics.create("t")
    assert repr(store.scan("t", columns=["key", "value"])) == "<Scan t: key, value>"
    assert isinstance(store.scan("t"), Scan)
