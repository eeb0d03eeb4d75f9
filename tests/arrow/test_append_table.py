from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import klamm
from klamm.batch import partition_for
from klamm.errors import InvalidSetting, RecordTooLarge, UnknownTopic
from klamm.types import Appended
from tests.batch.strategies import header_lists, payloads, timestamps

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
rows_of = st.lists(st.tuples(payloads, payloads, header_lists, timestamps), max_size=40)


def records(store: klamm.Store, topic: str = "t") -> dict[int, list[Any]]:
    """All records, by partition."""
    found: dict[int, list[Any]] = {}
    with store.consumer(topic, start="earliest", wait=0) as consumer:
        for record in consumer:
            found.setdefault(record.partition, []).append(record)
    return found


def values(store: klamm.Store, topic: str = "t") -> list[bytes | None]:
    return [record.value for found in records(store, topic).values() for record in found]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(rows=rows_of, partitions=st.integers(1, 4), chunk=st.integers(1, 20), acks=st.sampled_from([1, "all"]))
def test_every_row_is_appended_once_in_its_partition_and_in_order(
    store: klamm.Store, rows: list[tuple[Any, ...]], partitions: int, chunk: int, acks: Any
) -> None:
    topic = f"t{time.monotonic_ns()}"
    store.topics.create(topic, partitions, {"message.timestamp.after.max.ms": (1 << 63) - 1})
    table = pa.table(
        {
            "key": pa.array([r[0] for r in rows], pa.binary()),
            "value": pa.array([r[1] for r in rows], pa.binary()),
            "headers": pa.array([[{"key": k, "value": v} for k, v in r[2]] for r in rows], HEADERS),
            "timestamp": pa.array([r[3] for r in rows], pa.timestamp("ms", "UTC")),
        }
    )
    appended = store.append_table(topic, table.to_reader(max_chunksize=chunk), acks=acks)
    assert appended.count == len(rows)
    found = records(store, topic)
    assert {number: [r.offset for r in these] for number, these in found.items()} == {
        number: [offset for each in ranges for offset in each] for number, ranges in appended.ranges.items()
    }
    got = {number: [(r.key, r.value, r.headers, r.timestamp) for r in these] for number, these in found.items()}
    for number, these in got.items():
        keyed = [row for row in these if row[0] is not None]
        assert keyed == [row for row in rows if row[0] is not None and partition_for(row[0], partitions) == number]
    keyless = [row for these in got.values() for row in these if row[0] is None]
    assert sorted(keyless, key=repr) == sorted((row for row in rows if row[0] is None), key=repr)


def test_a_large_table_is_split_into_batches_that_the_topic_takes(store: klamm.Store) -> None:
    store.topics.create("t", 3, {"max.message.bytes": 20_000})
    count = 50_000
    table = pa.table({"key": [b"%d" % (n % 100) for n in range(count)], "value": [b"%060d" % n for n in range(count)]})
    assert store.append_table("t", table, acks=1).count == count
    found = records(store)
    assert sorted(found) == [0, 1, 2]
    for number, these in found.items():
        want = [n for n in range(count) if partition_for(b"%d" % (n % 100), 3) == number]
        assert [int(r.value) for r in these] == want


def test_rows_without_a_key_fill_one_partitions_batch_and_then_the_next(store: klamm.Store) -> None:
    store.topics.create("t", 3, {"max.message.bytes": 10_000})
    store.append_table("t", pa.table({"value": [b"%0100d" % n for n in range(1000)]}), acks=1)
    found = records(store)
    assert sorted(found) == [0, 1, 2]
    assert all(len(these) > 200 for these in found.values())
    assert sorted(int(value or b"") for value in values(store)) == list(range(1000))


@pytest.mark.parametrize(
    "array",
    [
        pa.array([b"a", None, b"c"], pa.binary()),
        pa.array([b"a", None, b"c"], pa.large_binary()),
        pa.array(["a", None, "c"], pa.string()),
        pa.array(["a", None, "c"], pa.large_string()),
        pa.array([b"a", None, b"c"], pa.binary(1)),
        pa.array([b"a", None, b"c"], pa.binary_view()),
        pa.array(["a", None, "c"], pa.string_view()),
        pa.array(["a", None, "c"]).dictionary_encode(),
        pa.array([b"x", b"y", b"a", None, b"c", b"z"])[2:5],
        pa.array(["x", "a", None, "c"], pa.large_string())[1:],
    ],
    ids=lambda array: f"{array.type}+{array.offset}",
)
def test_every_kind_of_text_and_bytes_is_taken(store: klamm.Store, array: pa.Array) -> None:
    store.topics.create("t")
    store.append_table("t", pa.table({"key": array, "value": array}), acks=1)
    assert [(r.key, r.value) for r in records(store)[0]] == [(b"a", b"a"), (None, None), (b"c", b"c")]


def test_a_column_of_nulls_is_tombstones(store: klamm.Store) -> None:
    store.topics.create("t")
    table = pa.table({"key": ["a", "b"], "value": pa.nulls(2), "timestamp": pa.nulls(2), "partition": pa.nulls(2)})
    store.append_table("t", table, acks=1)
    assert [(r.key, r.value) for r in records(store)[0]] == [(b"a", None), (b"b", None)]


@pytest.mark.parametrize(
    "array",
    [
        pa.array([1_700_000_000_123, None]),
        pa.array([1_700_000_000_123, None], pa.timestamp("ms")),
        pa.array([1_700_000_000_123_456, None], pa.timestamp("us", "UTC")),
        pa.array([1_700_000_000_123_456_789, None], pa.timestamp("ns", "Europe/Berlin")),
    ],
    ids=lambda array: str(array.type),
)
def test_times_of_any_unit_become_milliseconds_and_null_is_now(store: klamm.Store, array: pa.Array) -> None:
    store.topics.create("t")
    before = int(time.time() * 1000)
    store.append_table("t", pa.table({"value": ["a", "b"], "timestamp": array}), acks=1)
    first, second = records(store)[0]
    assert first.timestamp == 1_700_000_000_123
    assert before <= second.timestamp <= int(time.time() * 1000)


def test_one_timestamp_can_be_given_for_all(store: klamm.Store) -> None:
    store.topics.create("t")
    store.append_table("t", pa.table({"value": ["a"]}), timestamp=datetime(2024, 1, 1, tzinfo=UTC), acks=1)
    assert records(store)[0][0].timestamp == 1_704_067_200_000


@pytest.mark.parametrize(
    "array",
    [
        pa.array([[{"key": "h", "value": b"1"}, {"key": "i", "value": None}], [], None], HEADERS),
        pa.array([[("h", b"1"), ("i", None)], [], None], pa.map_(pa.string(), pa.binary())),
        pa.array(
            [[{"key": "h", "value": "1"}, {"key": "i", "value": None}], [], None],
            pa.large_list(pa.struct([("key", pa.string()), ("value", pa.string())])),
        ),
        pa.array(
            [[{"key": "x", "value": b"x"}], [{"key": "h", "value": b"1"}, {"key": "i", "value": None}], [], None],
            HEADERS,
        )[1:],
    ],
    ids=lambda array: f"{array.type}+{array.offset}",
)
def test_headers_may_be_lists_of_structs_or_maps(store: klamm.Store, array: pa.Array) -> None:
    store.topics.create("t")
    store.append_table("t", pa.table({"value": ["a", "b", "c"], "headers": array}), acks=1)
    assert [r.headers for r in records(store)[0]] == [(("h", b"1"), ("i", None)), (), ()]


def test_a_partition_can_be_given_for_each_row_or_for_all(store: klamm.Store) -> None:
    store.topics.create("t", 3)
    table = pa.table({"value": ["a", "b", "c"], "partition": pa.array([2, 0, None], pa.int16())})
    store.append_table("t", table, partition=1, acks=1)
    assert {n: [r.value for r in these] for n, these in records(store).items()} == {2: [b"a"], 0: [b"b"], 1: [b"c"]}
    store.append_table("t", pa.table({"value": ["d"], "key": ["k"]}), partition=2, acks=1)
    assert records(store)[2][1].value == b"d"
    with pytest.raises(UnknownTopic, match="no partition 3"):
        store.append_table("t", pa.table({"value": ["a"], "partition": [3]}))
    with pytest.raises(UnknownTopic):
        store.append_table("t", pa.table({"value": ["a"]}), partition=7)


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
def test_batches_may_be_compressed(store: klamm.Store, compression: klamm.Compression) -> None:
    store.topics.create("t")
    store.append_table("t", pa.table({"value": ["abc" * 100] * 500}), compression=compression, acks=1)
    assert values(store) == [b"abc" * 100] * 500
    assert store.topics.describe("t").size < 20_000


def in_duckdb(table: pa.Table) -> Any:
    return duckdb.from_arrow(table)


@pytest.mark.parametrize(
    "make",
    [
        lambda table: table,
        lambda table: table.to_batches()[0],
        pa.Table.to_reader,
        polars.from_arrow,
        pa.Table.to_pandas,
        in_duckdb,
    ],
    ids=["table", "record batch", "reader", "polars", "pandas", "duckdb"],
)
def test_whatever_speaks_arrow_is_taken(store: klamm.Store, make: Any) -> None:
    store.topics.create("t")
    table = pa.table({"key": ["k1", "k2"], "value": ["v1", "v2"]})
    store.append_table("t", make(table), acks=1)
    assert [(r.key, r.value) for r in records(store)[0]] == [(b"k1", b"v1"), (b"k2", b"v2")]


def test_a_scan_can_be_appended_to_another_topic_with_everything_it_has(store: klamm.Store) -> None:
    store.topics.create("t", 2)
    store.topics.create("copy", 2)
    rows = [(b"%d" % n, b"v%d" % n, [("h", b"%d" % n)], 1000 + n) for n in range(500)]
    store.append_many("t", rows, acks=1)
    store.append_table("copy", store.scan("t"), acks=1)

    def plain(topic: str) -> dict[int, list[Any]]:
        return {
            n: [(r.key, r.value, r.headers, r.timestamp) for r in these] for n, these in records(store, topic).items()
        }

    assert plain("copy") == plain("t")


@pytest.mark.parametrize(
    ("table", "error", "complaint"),
    [
        ({"key": ["a"]}, InvalidSetting, "no column 'value'"),
        ({"vlaue": ["a"]}, InvalidSetting, "did you mean 'value'"),
        ({"value": ["a"], "price": [1]}, InvalidSetting, "no column 'price'"),
        ({"value": [1]}, TypeError, "column 'value' is int64"),
        ({"value": ["a"], "key": [1.5]}, TypeError, "column 'key' is double"),
        ({"value": ["a"], "timestamp": ["x"]}, TypeError, "column 'timestamp' is string"),
        ({"value": ["a"], "timestamp": [-5]}, ValueError, "column 'timestamp': -5 in row 0 is negative"),
        ({"value": ["a"], "partition": [-1]}, ValueError, "column 'partition': -1 in row 0 is negative"),
        ({"value": ["a"], "headers": ["x"]}, TypeError, "column 'headers' is string"),
        ({"value": ["a"], "headers": pa.array([[None]], HEADERS)}, ValueError, "a header is null"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_and_nothing_is_appended(
    store: klamm.Store, table: dict[str, Any], error: type[Exception], complaint: str
) -> None:
    store.topics.create("t")
    with pytest.raises(error, match=complaint):
        store.append_table("t", pa.table(table))
    assert store.topics.describe("t").count == 0


@pytest.mark.parametrize("table", [[1, 2], "text", None, {"value": ["a"]}])
def test_what_is_no_table_is_a_type_error(store: klamm.Store, table: Any) -> None:
    store.topics.create("t")
    with pytest.raises(TypeError, match="a table is"):
        store.append_table("t", table)


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_row_that_is_too_large_stops_it_and_the_rows_before_are_appended(store: klamm.Store, partitions: int) -> None:
    store.topics.create("t", partitions, {"max.message.bytes": 1000})
    rows = [b"%d" % n for n in range(100)]
    rows[60] = b"x" * 1000
    table = pa.table({"key": [b"k%d" % n for n in range(100)], "value": rows})
    with pytest.raises(RecordTooLarge, match="row 60 ") as caught:
        store.append_table("t", table.to_reader(max_chunksize=25))
    assert "60 rows of this append_table were appended" in caught.value.__notes__[0]
    assert sorted(int(value or b"") for value in values(store)) == list(range(60))


def test_an_error_in_the_stream_leaves_the_rows_before_it_appended(store: klamm.Store) -> None:
    store.topics.create("t")
    schema = pa.schema([("value", pa.string())])

    def batches() -> Any:
        yield pa.record_batch({"value": ["a", "b"]}, schema=schema)
        raise ValueError("the source dried up")

    with pytest.raises(ValueError, match="dried up"):
        store.append_table("t", pa.RecordBatchReader.from_batches(schema, batches()))
    assert values(store) == [b"a", b"b"]


def test_an_empty_table_appends_nothing(store: klamm.Store) -> None:
    store.topics.create("t")
    empty = pa.table({"value": pa.array([], pa.binary()), "key": pa.array([], pa.string())})
    assert store.append_table("t", empty) == Appended("t", 0, {})
