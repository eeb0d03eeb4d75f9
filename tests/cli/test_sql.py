"""`klamm sql`: topics as tables of DuckDB."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

import klamm
from klamm.arrow.database import Database
from tests.cli.conftest import Cli

pytest.importorskip("duckdb")
T0 = 1_700_000_000_000


@pytest.fixture
def topics(store: klamm.Store) -> klamm.Store:
    store.topics.create("orders", 2)
    rows = [(b"a", b'{"n": 1}', [("h", b"x")], T0), (b"b", b'{"n": 2}', [], T0 + 1), (b"a", b'{"n": 3}', [], T0 + 2)]
    store.append_many("orders", rows, partition=1)
    for name in ("my-topic", "my.dotted.topic", "select", "Mixed"):
        store.topics.create(name)
        store.append(name, name.encode())
    store.topics.create("empty")
    return store


def test_a_query_gives_a_line_of_json_a_row(cli: Cli, topics: klamm.Store) -> None:
    query = "select text(key) as k, count(*) as n, sum((text(value) ->> '$.n')::int) as s from orders group by 1"
    rows = cli("sql", f"{query} order by 1").rows
    assert rows == [{"k": "a", "n": 2, "s": 4}, {"k": "b", "n": 1, "s": 2}]


def test_a_topic_has_all_columns_of_its_records(cli: Cli, topics: klamm.Store) -> None:
    (row,) = cli("sql", 'select * from orders where "offset" = 0').rows
    assert row == {
        "key": "a",
        "value": '{"n": 1}',
        "topic": "orders",
        "partition": 1,
        "offset": 0,
        "timestamp": "2023-11-14T22:13:20+00:00",
        "timestampType": 0,
        "headers": [{"key": "h", "value": "x"}],
    }


@pytest.mark.parametrize("name", ["my-topic", "my.dotted.topic", "select", "Mixed"])
def test_topics_with_odd_names_are_tables_in_quotes(cli: Cli, topics: klamm.Store, name: str) -> None:
    assert cli("sql", f'select text(value) as v from "{name}"').rows == [{"v": name}]
    topics.append(name, b"new", key=b"k")
    assert cli("sql", f'select text(value) as v from latest."{name}"').rows == [{"v": "new"}]


def test_latest_is_what_compaction_would_leave(cli: Cli, store: klamm.Store) -> None:
    store.topics.create("users", 2)
    rows = [(b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (None, b"no key"), (b"b", None), (b"c", b"3")]
    # Times run backwards: the offset counts.
    store.append_many("users", [(*row, [], T0 - n) for n, row in enumerate(rows)], partition=0)
    store.append("users", b"4", key=b"c", partition=1, timestamp=T0 + 1)  # it moved, when partitions were added
    found = cli("sql", "select text(key) as k, text(value) as v from latest.users order by 1").rows
    assert found == [{"k": "a", "v": "2"}, {"k": "c", "v": "4"}]


def test_topics_join_each_other_and_themselves(cli: Cli, topics: klamm.Store) -> None:
    query = 'select count(*) as n from orders a join orders b on a.key = b.key, "my-topic"'
    assert cli("sql", query).rows == [{"n": 5}]


def test_topics_that_differ_by_case_alone_are_refused_rather_than_mixed_up(cli: Cli, topics: klamm.Store) -> None:
    topics.topics.create("Orders")
    told = cli("sql", 'select * from "Orders"', code=2).err
    assert "Orders and orders differ by case alone" in told and "store.scan" in told
    assert cli("sql", 'select count(*) as n from "my-topic"').rows == [{"n": 1}]


def test_an_empty_topic_has_no_rows(cli: Cli, topics: klamm.Store) -> None:
    assert cli("sql", "select * from empty").out == b""
    assert cli("sql", "select count(*) as n from latest.empty").rows == [{"n": 0}]


def test_values_are_as_json_has_them(cli: Cli, topics: klamm.Store) -> None:
    query = """select '\\xFF'::blob as b, text('\\xFF'::blob) as t, 1.5::decimal(3,1) as d, 'nan'::double as f,
        date '2026-11-15' as day, true as yes, null as nothing, [1, 2] as l, {'a': 1} as s, map {1: 'x'} as m"""
    (row,) = cli("sql", query).rows
    assert row == {
        "b": {"base64": "/w=="},
        "t": None,
        "d": "1.5",
        "f": "nan",
        "day": "2026-11-15",
        "yes": True,
        "nothing": None,
        "l": [1, 2],
        "s": {"a": 1},
        "m": {"1": "x"},
    }


def test_columns_of_one_name_are_all_there(cli: Cli, topics: klamm.Store) -> None:
    assert cli("sql", "select 1 as a, 2 as a, 3 as a").rows == [{"a": 1, "a_1": 2, "a_2": 3}]


def test_every_row_comes_in_a_pipe(cli: Cli, topics: klamm.Store) -> None:
    assert [row["n"] for row in cli("sql", "select range as n from range(2500)").rows] == [*range(2500)]


def test_every_query_of_several_is_answered(cli: Cli, topics: klamm.Store) -> None:
    several = "select 1 as a; create table t as select 2 as b; select * from t; select count(*) as n from orders;"
    assert cli("sql", several).rows == [{"a": 1}, {"b": 2}, {"n": 3}]


def test_topics_are_listed_as_tables(cli: Cli, topics: klamm.Store) -> None:
    assert [row["name"] for row in cli("sql", "show tables").rows] == sorted(topics)


@pytest.mark.parametrize("delay_ms", [0, 2, 10, 50, 500])
def test_ctrl_c_ends_a_query_whenever_it_comes_and_the_next_one_is_answered(topics: klamm.Store, delay_ms: int) -> None:
    database = Database(topics._acquired(), whole=True)
    for_hours = "select sum(a.range * b.range) from range(10000000) a, range(10000000) b, orders"
    ended = threading.Event()

    def press() -> None:
        """Press once; again after a while, for CPython drops what is raised in a callback of a weak reference."""
        wait_s = delay_ms / 1000
        while not ended.wait(wait_s):
            os.kill(os.getpid(), signal.SIGINT)
            wait_s = 10.0

    ctrl_c = threading.Thread(target=press)

    def ask() -> None:
        try:
            ctrl_c.start()
            database.ask(for_hours, lambda connection: connection.execute(for_hours).fetchall())
        finally:
            ended.set()

    with pytest.raises(KeyboardInterrupt):
        ask()
    ctrl_c.join()
    count = "select count(*) from orders"
    assert database.ask(count, lambda connection: connection.execute(count).fetchall()) == [(3,)]


def test_a_query_comes_from_stdin(cli: Cli, topics: klamm.Store) -> None:
    assert cli("sql", stdin=b"select 1 as one;\n").rows == [{"one": 1}]
    assert cli("sql", stdin=b"create table t as select 7 as x; select x from t").rows == [{"x": 7}]


def test_a_wrong_query_is_one_line(cli: Cli, topics: klamm.Store) -> None:
    told = cli("sql", "select nothing from orders", code=2).err
    assert "sql: Binder Error" in told and told.count("\n") == 1
    assert "Topic 'ordres' does not exist (did you mean 'orders'?)" in cli("sql", "select * from ordres", code=2).err
    assert cli("sql", "selct 1", code=2).err.startswith('klamm: sql: Parser Error: syntax error at or near "selct" (')
    assert "there is no query" in cli("sql", stdin=b"", code=2).err
    assert "Parser Error" in cli("sql", "selec", code=2).err


def test_the_option_store_names_the_store_to_query(
    cli: Cli, topics: klamm.Store, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KLAMM_STORE")
    assert cli("sql", "select count(*) as n from orders", "--store", home).rows == [{"n": 3}]
