"""`store.sql`: what its rows are, in whatever thread, and what ends a query."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import klamm
from tests.procs import PATIENCE

pytest.importorskip("duckdb")
FOR_HOURS = "select sum(a.range * b.range) from range(10000000) a, range(10000000) b, orders"


@pytest.fixture
def orders(store: klamm.Store) -> klamm.Store:
    store.topics.create("orders", 2)
    store.append_many("orders", [(b"a", b"1"), (b"b", None), (b"a", b"3")], partition=1)
    return store


def test_a_query_imports_no_pandas(orders: klamm.Store) -> None:
    """Where it is installed, pyarrow imports it for pyarrow.scalar(): that takes longer than all else of a query."""
    code = (
        "import sys, klamm\n"
        "with klamm.open(sys.argv[1], read_only=True) as store:\n"
        "    rows = list(store.sql('select topic, partition, count(*) as n from orders group by all'))\n"
        "assert [dict(row) for row in rows] == [{'topic': 'orders', 'partition': 1, 'n': 3}], rows\n"
        "sys.exit('pandas' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code, orders.path], check=True, timeout=PATIENCE)


def test_rows_have_the_types_of_their_columns(orders: klamm.Store) -> None:
    (row,) = orders.sql(
        'select * exclude (timestamp, headers), timestamp is null as no_time from orders where "offset" = 1'
    )
    assert row == {
        "key": b"b",
        "value": None,
        "topic": "orders",
        "partition": 1,
        "offset": 1,
        "timestampType": 0,
        "no_time": False,
    }
    (times,) = orders.sql('select timestamp from orders where "offset" = 0')
    with orders.consumer("orders", wait=0) as consumer:
        assert times["timestamp"] == next(iter(consumer)).datetime


def test_a_result_is_rows_a_table_or_frames(orders: klamm.Store) -> None:
    pytest.importorskip("pandas")
    polars = pytest.importorskip("polars")
    pyarrow = pytest.importorskip("pyarrow")
    result = orders.sql("select key, count(*) as n from orders group by key order by key")
    assert isinstance(result, klamm.SqlResult) and len(result) == 2 and result.columns == ["key", "n"]
    assert [*result] == [*result] == [{"key": b"a", "n": 2}, {"key": b"b", "n": 1}], "again and again"
    assert result.to_table().to_pylist() == pyarrow.table(result).to_pylist() == [*result]
    assert result.to_pandas()["n"].tolist() == result.to_polars()["n"].to_list() == [2, 1]
    assert polars.DataFrame(result)["n"].sum() == 3
    assert repr(result) == "<SqlResult of 2 rows: key, n>" and "<td" in result._repr_html_()
    assert [*orders.sql("select 1 where false")] == []


def test_each_call_sees_what_was_appended_before_and_has_a_database_of_its_own(orders: klamm.Store) -> None:
    count = "select count(*) as n from orders"
    assert [*orders.sql(count)] == [{"n": 3}]
    orders.append("orders", b"4")
    assert [*orders.sql(count)] == [{"n": 4}]
    assert len(orders.sql("create table mine as select 1")) <= 1
    with pytest.raises(klamm.InvalidSetting, match="Topic 'mine' does not exist"):
        orders.sql("select * from mine")


def test_parameters_are_data_and_variables_of_python_are_no_tables(orders: klamm.Store) -> None:
    hostile = "' or 1 = 1 --"
    assert [*orders.sql("select count(*) as n from orders where text(value) = ?", [hostile])] == [{"n": 0}]
    assert [*orders.sql("select $a || $b as joined", {"a": "x", "b": "y"})] == [{"joined": "xy"}]
    for name in ("connection", "query", "self", "hostile", "found"):
        with pytest.raises(klamm.InvalidSetting, match=f"Topic '{name}' does not exist"):
            orders.sql(f"select * from {name}")


def test_wrong_queries_are_errors_of_ours(orders: klamm.Store) -> None:
    for query, told in (
        ("selct 1", "sql: Parser Error"),
        ("select nothing from orders", "sql: Binder Error"),
        ("", "sql: the query is empty"),
        ("select ?", "sql: "),
    ):
        with pytest.raises(klamm.InvalidSetting, match=told):
            orders.sql(query)
    not_text: Any = 7
    with pytest.raises(TypeError, match="a query is a str, not int"):
        orders.sql(not_text)


def test_damage_that_a_query_meets_is_raised_with_its_file(orders: klamm.Store, path: Path) -> None:
    (log,) = path.glob("topics/orders-*/1/*.log")
    data = bytearray(log.read_bytes())
    data[70] ^= 1
    log.write_bytes(data)
    with pytest.raises(klamm.CorruptBatch, match="CRC"):
        orders.sql("select * from orders")


def test_threads_ask_at_the_same_time(orders: klamm.Store) -> None:
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda n=n: found.append([*orders.sql("select count(*) + ? as n from orders", [n])]))
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(row["n"] for (row,) in found) == [3, 4, 5, 6]


@pytest.mark.parametrize("delay_ms", [0, 20, 300])
def test_ctrl_c_ends_a_query_of_the_main_thread_and_the_handler_is_put_back(orders: klamm.Store, delay_ms: int) -> None:
    before = signal.getsignal(signal.SIGINT)
    ctrl_c = threading.Timer(delay_ms / 1000, lambda: os.kill(os.getpid(), signal.SIGINT))

    def ask() -> None:
        ctrl_c.start()
        orders.sql(FOR_HOURS)

    with pytest.raises(KeyboardInterrupt):
        ask()
    ctrl_c.join()
    assert signal.getsignal(signal.SIGINT) is before
    assert [*orders.sql("select count(*) as n from orders")] == [{"n": 3}]


@pytest.mark.parametrize("number", [signal.SIGALRM, signal.SIGINT])
def test_an_exception_of_the_users_own_signal_handler_ends_a_query(orders: klamm.Store, number: int) -> None:
    class Stopped(Exception):
        pass

    def stop(*_: object) -> None:
        raise Stopped

    timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), number))

    before = signal.signal(number, stop)
    try:
        timer.start()
        with pytest.raises((Stopped, KeyboardInterrupt)) as raised:
            orders.sql(FOR_HOURS)
        timer.join()
        assert raised.type is Stopped
        assert signal.getsignal(number) is stop
    finally:
        signal.signal(number, before)
    assert [*orders.sql("select count(*) as n from orders")] == [{"n": 3}]
