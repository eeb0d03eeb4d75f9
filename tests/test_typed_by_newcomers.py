"""What people type first, and what they find in an error: each line of it works, or says what to type instead."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import klamm
from tests.procs import children


@pytest.fixture
def store(store: klamm.Store) -> klamm.Store:
    store.topics.create("orders")
    return store


def records(store: klamm.Store[Any, Any], topic: str = "orders", **options: Any) -> list[klamm.Record]:
    with store.consumer(topic, wait=0, **options) as consumer:
        return list(consumer)


def values(store: klamm.Store[Any, Any], topic: str = "orders", **options: Any) -> list[Any]:
    return [record.value for record in records(store, topic, **options)]


# A value that is not bytes


def test_the_hint_for_a_value_that_is_not_bytes_works_as_it_is_written(store: klamm.Store) -> None:
    with pytest.raises(
        TypeError, match=r'value is str, expected bytes or None \(a serde makes bytes of it: serde="json"\)'
    ):
        store.append("orders", "hello")  # type: ignore[call-overload]
    assert store.append("orders", "hello", serde="json") == 0
    assert store.append("orders", {"a": 1}, serde="json", key="user-1") == 1
    assert store.append("orders", "hello", serde="str", acks=1) == 2
    assert store.append_many("orders", [{"a": 1}, [1, 2], None, "text"], serde="json").count == 4
    assert store.append_many("orders", [("k", {"a": 2}, {"h": "x"}, 5)], serde="json", acks=1).count == 1
    written = [(record.key, record.value, record.timestamp == 5) for record in records(store)]
    assert written == [
        (None, b'"hello"', False),
        (b"user-1", b'{"a":1}', False),
        (None, b"hello", False),
        (None, b'{"a":1}', False),
        (None, b"[1,2]", False),
        (None, None, False),
        (None, b'"text"', False),
        (b"k", b'{"a":2}', True),
    ]


def test_a_store_may_have_a_serde_for_all_of_its_doors(store: klamm.Store, path: Path) -> None:
    store.topics.create("users", 3, {"cleanup.policy": "compact"})
    store.topics.create("tens")
    with klamm.open(path, serde="json") as typed:
        typed.append("orders", {"n": 1}, key="a")
        typed.append("orders", {"n": 1}, key="a", acks=1)
        typed.append_many("orders", [("a", {"n": 2}), ("b", {"n": 3})])
        with typed.producer() as producer:
            producer.send("orders", {"n": 4}, key="c")
        with typed.transaction() as tx:
            tx.send("orders", {"n": 5}, key="d")
        expected = [
            ("a", {"n": 1}),
            ("a", {"n": 1}),
            ("a", {"n": 2}),
            ("b", {"n": 3}),
            ("c", {"n": 4}),
            ("d", {"n": 5}),
        ]
        assert [(record.key, record.value) for record in records(typed)] == expected
        assert [record.value for record in typed.tail("orders", 2)] == [{"n": 4}, {"n": 5}]
        with typed.pipe("orders", lambda record: record.value["n"] * 10, to="tens") as pipe:
            assert pipe.run(wait=0).outputs == 6
        assert values(typed, "tens") == [10, 10, 20, 30, 40, 50] and values(store, "tens")[0] == b"10"
        (path.parent / "seed.jsonl").write_text('{"key": "e", "value": "60"}\n')
        klamm.testing.seed(typed, path.parent / "seed.jsonl", topic="tens")
        assert values(typed, "tens")[-1] == 60
        typed.append("users", {"name": "Alice"}, key="alice")
        with typed.table("users") as users:
            assert users["alice"] == {"name": "Alice"}
        assert values(pickle.loads(pickle.dumps(typed)))[0] == {"n": 1}
        assert values(store)[0] == b'{"n":1}', "the serde is of an open store, not of the directory"


def test_a_call_may_have_another_serde_than_its_store(store: klamm.Store, path: Path) -> None:
    with klamm.open(path, serde="json", key_serde="bytes") as typed:
        typed.append("orders", b"\xff", serde="bytes", key=b"\xfe")
        typed.append("orders", 1, key="text", key_serde="str")
        typed.append("orders", [1], key=b"k")
        raw = records(typed, serde="bytes")
        assert [(record.key, record.value) for record in raw] == [(b"\xfe", b"\xff"), (b"text", b"1"), (b"k", b"[1]")]
        assert values(typed, start=1) == [1, [1]]
        with pytest.raises(TypeError, match="key is str"):
            typed.append("orders", 1, key="text")


def test_a_serde_of_ones_own_is_a_pair_of_callables(store: klamm.Store) -> None:
    hexadecimal = (lambda number: b"%x" % number, lambda data: int(data, 16))
    store.append("orders", 255, serde=hexadecimal)
    assert values(store) == [b"ff"] and values(store, serde=hexadecimal) == [255]
    with pytest.raises(klamm.InvalidSetting, match="there is no serde 'jsn'"):
        klamm.open(store.path, serde="jsn")  # type: ignore[call-overload]


@pytest.mark.parametrize("partitions", [1, 3])
def test_records_before_one_that_the_serde_refuses_are_appended(store: klamm.Store, partitions: int) -> None:
    store.topics.create("wide", partitions)
    given: list[Any] = [{"n": n} for n in range(40_000)]
    given[30_000] = {1, 2}
    with pytest.raises(TypeError, match="set is not JSON serializable") as refused:
        store.append_many("wide", given, serde="json", acks=1)
    assert "record 30000 of append_many to wide" in refused.value.__notes__
    assert any(entry.name == "default" for entry in refused.traceback), "the serde's own frames are there"
    assert sorted(record.json()["n"] for record in records(store, "wide")) == [*range(30_000)]


# Headers


@pytest.mark.parametrize(
    "headers",
    [{"trace": b"1", "user": "ü", "none": None}, [("trace", bytearray(b"1")), ("user", "ü"), ("none", None)]],
    ids=["mapping", "pairs"],
)
def test_headers_are_a_mapping_or_pairs_and_values_may_be_text(store: klamm.Store, headers: Any) -> None:
    store.append("orders", b"", headers=headers)
    store.append_many("orders", [(None, b"", headers)])
    with store.producer() as producer:
        producer.send("orders", b"", headers=headers)
    with store.transaction() as tx:
        tx.send("orders", b"", headers=headers)
    expected = (("trace", b"1"), ("user", "ü".encode()), ("none", None))
    assert [tuple(record.headers) for record in records(store)] == [expected] * 4


def test_headers_of_a_record_are_looked_up_by_name(store: klamm.Store) -> None:
    store.append("orders", b"", headers=[("trace", b"1"), ("via", b"a"), ("via", b"b"), ("none", None)])
    store.append("orders", b"")
    first, second = records(store)
    headers = first.headers
    assert isinstance(headers, klamm.Headers) and headers["trace"] == b"1"
    assert headers["via"] == b"b", "the last one, as Kafka's lastHeader"
    assert headers.get_all("via") == [b"a", b"b"] and headers.get_all("nothing") == []
    assert headers["none"] is None and headers.get("none", b"default") is None
    assert headers.get("nothing") is None and headers.get("nothing", b"default") == b"default"
    assert "via" in headers and "nothing" not in headers and len(headers) == 4
    assert [name for name, _ in headers] == ["trace", "via", "via", "none"]
    assert dict(headers) == {"trace": b"1", "via": b"b", "none": None}
    assert second.headers == () and not second.headers and "trace" not in second.headers
    with pytest.raises(KeyError, match="nothing"):
        headers["nothing"]
    assert pickle.loads(pickle.dumps(first)).headers == headers
    assert klamm.Record("orders", 0, 0, 0, None, b"", {"a": b"1"}).headers["a"] == b"1"
    store.append("orders", b"", headers=headers)
    assert records(store)[-1].headers == headers, "headers of a record can be sent on"


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        ("trace", "headers are str, expected a mapping or"),
        (5, "headers are int, expected a mapping or"),
        ([("trace", 1)], "the value of header 'trace' is int, expected bytes, str or None"),
        ({1: b""}, "a header's name is int, expected str"),
        ([b"x"], "a header is b'x', expected a"),
    ],
)
def test_headers_that_are_none_are_refused(store: klamm.Store, headers: Any, told: str) -> None:
    with pytest.raises(TypeError, match=told):
        store.append("orders", b"", headers=headers)


# Records


def test_a_record_has_its_value_as_json_and_as_text_and_its_time(store: klamm.Store) -> None:
    when = datetime(2024, 2, 29, 10, 30, 0, 5000, tzinfo=UTC)
    store.append("orders", '{"name": "Zoë", "n": [1, 2.5, null]}'.encode(), timestamp=when)
    store.append("orders", None)
    record, tombstone = records(store)
    assert record.json() == {"name": "Zoë", "n": [1, 2.5, None]}
    assert record.text == '{"name": "Zoë", "n": [1, 2.5, null]}'
    assert record.datetime == when and record.datetime.tzinfo is UTC
    assert tombstone.json() is None and tombstone.text is None
    assert [each.text for each in records(store, serde="str")] == [record.text, None]


def test_a_value_that_is_not_what_is_asked_for_says_where_it_is(store: klamm.Store) -> None:
    store.append("orders", b"\xff{")
    (record,) = records(store)
    with pytest.raises(ValueError) as refused:
        record.json()
    assert "orders/0, offset 0: the value is not JSON" in refused.value.__notes__
    with pytest.raises(UnicodeDecodeError) as refused:
        record.text  # noqa: B018
    assert "orders/0, offset 0: the value is not UTF-8" in refused.value.__notes__
    store.append("orders", b"[1]")
    (made,) = records(store, start=1, serde="json")
    with pytest.raises(TypeError, match="orders/0, offset 1: value is list, made by the consumer's serde"):
        made.json()
    with pytest.raises(TypeError, match=r"use record\.value"):
        made.text  # noqa: B018


# Options

ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "consumer": ("orders",),
    "pipe": ("orders", print),
    "producer": (),
    "scan": ("orders",),
    "transaction": (),
}


@pytest.mark.parametrize(
    ("call", "options", "told"),
    [
        ("consumer", {"group_id": "g"}, r"consumer\(\) has no option 'group_id' \(did you mean 'group'\?\)"),
        (
            "consumer",
            {"isolation_level": ""},
            r"consumer\(\) has no option 'isolation_level' \(did you mean 'isolation'",
        ),
        (
            "producer",
            {"compresion": "zstd"},
            r"producer\(\) has no option 'compresion' \(did you mean 'compression'\?\)",
        ),
        ("producer", {"bootstrap": ""}, r"producer\(\) has no option 'bootstrap' \(there are acks, batch_bytes"),
        ("transaction", {"timeout_ms": 5}, r"transaction\(\) has no option 'timeout_ms' \(did you mean 'timeout'"),
        ("consumer", {"since": "1h"}, r"consumer\(\) has no option 'since' \(did you mean 'start'\?\)"),
        ("scan", {"last": 10}, r"scan\(\) has no option 'last' \(did you mean 'start'\?\)"),
        ("scan", {"until": "1h"}, r"scan\(\) has no option 'until' \(did you mean 'end'\?\)"),
        ("producer", {"since": "1h"}, r"producer\(\) has no option 'since' \(there are acks"),
        ("pipe", {"too": "x"}, r"pipe\(\) has no option 'too' \(did you mean 'to'\?\)"),
        ("scan", {"colums": ["key"]}, r"scan\(\) has no option 'colums' \(did you mean 'columns'\?\)"),
    ],
)
def test_a_wrong_option_names_the_call_and_the_nearest_option(
    store: klamm.Store, call: str, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(TypeError, match=told):
        getattr(store, call)(*ARGUMENTS[call], **options)


def test_a_consumer_without_topics_says_what_to_name(store: klamm.Store) -> None:
    with pytest.raises(klamm.InvalidSetting, match=r'no topics are given \(name the topics to read: "orders"'):
        store.consumer()
    with pytest.raises(klamm.InvalidSetting, match=r'the list of topics is empty \(name the topics to read: "orders"'):
        store.consumer([])
    with pytest.raises(klamm.InvalidSetting, match=r"topics and pattern are both given \(give one of them\)"):
        store.consumer("orders", pattern="o.*")


# Frames and SQL


def test_a_scan_becomes_a_frame(store: klamm.Store) -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("polars")
    store.append_many("orders", [(b"a", b"1"), (b"b", None)])
    scan = store.scan("orders", columns=["key", "value", "offset"])
    assert scan.to_pandas().to_dict("list") == {"key": [b"a", b"b"], "value": [b"1", None], "offset": [0, 1]}
    assert scan.to_polars().to_dict(as_series=False) == {"key": [b"a", b"b"], "value": [b"1", None], "offset": [0, 1]}


def test_a_store_is_asked_in_sql(store: klamm.Store) -> None:
    pytest.importorskip("duckdb")
    store.append_many("orders", [("a", {"n": 1}), ("b", {"n": 2}), ("a", {"n": 3})], serde="json")
    query = "select text(key) as who, sum((text(value) ->> 'n')::int) as n from orders group by who order by who"
    found = store.sql(query)
    assert list(found) == [{"who": "a", "n": 4}, {"who": "b", "n": 2}]
    assert found.columns == ["who", "n"] and len(found) == 2
    assert store.sql("select text(value) as v from latest.orders where key = $key", {"key": b"a"}).to_pandas()["v"][
        0
    ] == ('{"n":3}')
    assert store.sql("select count(*) as n from orders where key = ?", [b"a"]).to_polars()["n"].to_list() == [2]
    assert list(store.sql("select 1 as a, 2 as a")) == [{"a": 1, "a_1": 2}]
    assert list(store.sql("create table t as select 2 as b; select b from t")) == [{"b": 2}]
    with pytest.raises(klamm.InvalidSetting, match=r"Topic 'ordres' does not exist \(did you mean 'orders'\?\)"):
        store.sql("select * from ordres")
    with pytest.raises(klamm.InvalidSetting, match="the query is empty"):
        store.sql(" ; ")


# Errors


def test_whatever_is_closed_raises_one_class(store: klamm.Store, path: Path) -> None:
    pytest.importorskip("pyarrow")
    with klamm.open(path) as other:
        producer, consumer, group = other.producer(), other.consumer("orders"), other.consumer("orders", group="g")
        other.append("orders", b"", acks=1)  # from now on by the shortest way
        partition = other._acquired().topic("orders").partition(0)
        scan = other.scan("orders")
        core = other._acquired()
    closed: list[Any] = [
        lambda: other.append("orders", b""),
        lambda: other.append("orders", b"", acks=1),
        lambda: other.append_many("orders", [b""]),
        lambda: list(other.topics),
        lambda: "orders" in other,
        lambda: other["orders"].append(b"", acks=1),
        lambda: other.consumer("orders"),
        other.producer,
        other.transaction,
        lambda: list(other.groups),
        lambda: list(other.tail("orders")),
        lambda: producer.send("orders", b""),
        producer.flush,
        lambda: consumer.poll(timeout=0),
        lambda: consumer.position("orders", 0),
        lambda: group.poll(timeout=0),
        group.commit,
        scan.to_table,
    ]
    for use in closed:
        with pytest.raises(klamm.Closed, match="is closed"):
            use()
    store.close()  # and with it the last share of the directory in this process
    for use in (
        lambda: partition.append_one(None, b""),
        core.check_open,
        core.catalog.topics,
    ):
        with pytest.raises(klamm.Closed, match="is closed"):
            use()


def test_what_is_from_before_a_fork_is_not_called_closed(store: klamm.Store) -> None:
    partition = store._acquired().topic("orders").partition(0)
    partition.append_one(None, b"of the parent")

    def use() -> str:
        try:
            partition.append_one(None, b"of the child")
        except klamm.KlammError as error:
            return type(error).__name__
        return "appended"

    with children() as start:
        assert start(use).answer() == "Forked"
    assert values(store) == [b"of the parent"]


@pytest.mark.parametrize("name", [["orders"], 5, None, b"orders"])
def test_what_is_not_a_name_is_a_type_error_of_every_call_that_takes_one(store: klamm.Store, name: Any) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store[name],
        lambda: store.append(name, b""),
        lambda: store.append_many(name, [b""]),
        lambda: store.scan(name),
        lambda: store.table(name),
        lambda: store.pipe(name, print, to="orders"),
        lambda: store.topics.create(name),
        lambda: store.topics.describe(name),
        lambda: store.topics.alter(name),
        lambda: store.topics.delete(name),
        lambda: store.dead_letters(name),
        lambda: store.redrive(name),
        lambda: store.purge_dead_letters(name),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=f"a topic's name is a str, not {type(name).__name__}"):
            call()
    if name in (5, b"orders"):
        with pytest.raises(TypeError, match="topics are a name, several, or"):
            store.consumer(name)
    if not isinstance(name, list):
        with pytest.raises(TypeError, match="to: the name of a topic, or several, not"):
            store.pipe("orders", print, to=name)
    with pytest.raises(TypeError, match=r"expected what groups\.export returned"):
        store.groups.import_(name)


def test_errors_are_those_of_python_too(store: klamm.Store) -> None:
    with pytest.raises(ValueError) as invalid:
        store.producer(linger_ms=-1)
    assert isinstance(invalid.value, klamm.InvalidSetting) and not isinstance(invalid.value, klamm.TopicError)
    with pytest.raises(LookupError) as unknown:
        store.topics.describe("ordres")
    assert isinstance(unknown.value, klamm.UnknownTopic) and isinstance(unknown.value, klamm.TopicError)
    with pytest.raises(LookupError):
        store.append("orders", b"", partition=7)
    with pytest.raises(LookupError) as unknown_group:
        store.groups.describe("biling")
    assert isinstance(unknown_group.value, klamm.UnknownGroup)
    for error in (invalid.value, unknown.value, unknown_group.value):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), again.hint) == (type(error), str(error), error.hint)


@pytest.mark.parametrize(
    ("package", "call", "extra"),
    [
        ("pyarrow", "store.scan('orders')", "arrow"),
        ("pyarrow", "store.sql('select 1')", "arrow"),
        ("duckdb", "store.sql('select 1')", "sql"),
        ("pandas", "store.scan('orders').to_pandas()", "pandas"),
        ("polars", "store.scan('orders').to_polars()", "polars"),
        ("rocksdict", "store.table('orders')", "table"),
        ("pyspark", "__import__('klamm.spark').spark.session()", "spark"),
    ],
)
def test_a_missing_package_is_an_import_error_that_says_what_to_install(
    store: klamm.Store, package: str, call: str, extra: str
) -> None:
    if package not in ("pyarrow", "rocksdict", "pyspark", "duckdb"):
        pytest.importorskip("pyarrow")
    if "sql" in call:
        pytest.importorskip("duckdb")
    script = f"""
import pickle, sys
sys.modules[{package!r}] = None
import klamm
store = klamm.open(sys.argv[1], create=False)
try:
    {call}
except ImportError as error:
    assert isinstance(error, klamm.NotInstalled) and isinstance(error, klamm.KlammError), error
    again = pickle.loads(pickle.dumps(error))
    assert (again.name, str(again)) == (error.name, str(error))
    print(error.name, error)
"""
    done = subprocess.run([sys.executable, "-c", script, store.path], capture_output=True, text=True)
    assert done.stdout == f"{package} {package} is not installed (pip install 'klamm[{extra}]')\n", done.stderr
