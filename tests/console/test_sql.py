"""SQL in the console: rows, limits, what a query cannot do, and queries that are kept as files."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import urlencode

import pytest

import klamm
from klamm.console import child
from klamm.console.child import run_child
from klamm.console.errors import RequestError
from klamm.console.pages import sql
from tests.console.visitor import Answer, Visitor

duckdb = pytest.importorskip("duckdb")


def ask(visitor: Visitor, query: str, path: str = "/api/sql") -> Answer:
    return visitor.get(f"{path}?{urlencode({'q': query})}")


def test_topics_are_tables_and_rows_are_shown_with_bars(looker: Visitor) -> None:
    query = "select text(key) as k, count(*) as n from orders group by 1 order by 1"
    data = ask(looker, query).json
    assert "rows" in data, data
    assert data["rows"] == [{"k": f"k{n}", "n": 12} for n in range(5)] and not data["is_cut"]
    page = ask(looker, query, "/sql")
    assert "k4 12 100%" in page.words and "5 rows in" in page.words


def test_a_column_of_times_becomes_a_chart(looker: Visitor) -> None:
    page = ask(looker, 'select timestamp, "offset" from orders where partition = 0', "/sql")
    assert 'class="chart"' in page.text and "data-chart" in page.text


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("select * from read_text('/etc/passwd')", "disabled"),
        ("copy (select 1) to '{path}/stolen.csv'", "disabled"),
        ("set memory_limit='99GB'", "locked"),
    ],
)
def test_a_query_reads_topics_and_nothing_else(looker: Visitor, tmp_path: Path, query: str, problem: str) -> None:
    answer = ask(looker, query.replace("{path}", str(tmp_path)))
    assert answer.status == 400 and problem in answer.json["error"], answer.text
    assert list(tmp_path.iterdir()) == []


def test_a_query_that_needs_more_memory_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    limits = sql._LIMITS.replace(f"{sql.MEMORY >> 20}MiB", "20MiB")
    assert "20MiB" in limits
    with duckdb.connect() as connection:
        connection.execute(limits)
        with pytest.raises(duckdb.OutOfMemoryException):
            connection.execute("create table t as select range a, hash(range) h from range(1500000)")
    assert list(tmp_path.iterdir()) == []


def test_a_query_changes_nothing_of_the_store(tmp_path: Path) -> None:
    """Whoever opens a store for writing ends the transactions of processes that were killed: a query does not."""
    code = """
import os, sys, klamm
store = klamm.open(sys.argv[1])
store.topics.create("t")
store.transaction(batch_bytes=1).__enter__().send("t", b"x")
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "events")], check=True, timeout=60)
    with klamm.open(tmp_path / "events", read_only=True) as store:
        assert ask(Visitor(store, store.path), "select count(*) as n from t").json["rows"] == [{"n": 0}]
        assert [transaction.state for transaction in store.transactions] == ["ongoing"]


def test_a_query_that_takes_too_long_is_ended(looker: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql, "TIMEOUT_S", 1.0)
    answer = ask(looker, "select count(*) from range(100000000000) a, range(1000) b")
    assert answer.status == 400 and "longer than 1 s" in answer.json["error"]


def test_more_rows_than_are_shown_are_cut(shared: klamm.Store) -> None:
    arguments = ["sql", "select * from range(5000)", "--store", shared.path, "-o", "json"]
    result = run_child(arguments, memory_bytes=4 << 30, timeout_s=60, most_rows=10)
    assert len(result.rows) == 10 and result.is_cut


def test_a_row_that_is_too_long_is_not_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child never ends its line: who reads whole lines waits until it is killed."""
    monkeypatch.setattr(child, "_START", "import time\nprint('x' * 2000, end='', flush=True)\ntime.sleep(600)")
    with pytest.raises(RequestError, match="the first row has more than 1,000 bytes"):
        run_child(["sql"], memory_bytes=1 << 30, timeout_s=30, most_bytes=1000)


def test_no_more_children_run_than_there_are_places(monkeypatch: pytest.MonkeyPatch) -> None:
    places = threading.BoundedSemaphore(1)
    monkeypatch.setattr(child, "PLACES", places)
    monkeypatch.setattr(child, "_WAIT_S", 0.01)
    monkeypatch.setattr(child, "_START", "print(1)")
    with places, pytest.raises(RequestError) as refused:
        run_child(["sql"], memory_bytes=1 << 30, timeout_s=5)
    assert refused.value.status == 503
    for _ in range(2):  # a place is given back
        assert run_child(["sql"], memory_bytes=1 << 30, timeout_s=30).rows == [1]


def test_a_child_without_enough_memory_fails_and_says_so(shared: klamm.Store) -> None:
    with pytest.raises(RequestError):
        run_child(["info", shared.path], memory_bytes=30 << 20, timeout_s=60)


def test_a_query_is_kept_as_a_file_beside_the_store(store: klamm.Store, editor: Visitor, visitor: Visitor) -> None:
    token = editor.csrf("/topics/orders/produce")
    answer = editor.post("/sql", {"csrf": token, "name": "by key", "q": "select 1 as one"})
    assert answer.status == 303
    assert Path(f"{store.path}.queries/by key.sql").read_text() == "select 1 as one\n"
    assert visitor.get("/api/sql").json["queries"] == {"by key": "select 1 as one\n"}
    assert "by key" in visitor.get("/sql").words
    long = {"csrf": token, "name": "long", "q": f"select '{'x' * 20_000}'"}
    assert "more than 20,000 bytes" in editor.post("/sql", long).words
    for name in ("../evil", "", ".hidden", "a/b", "x" * 99):
        assert editor.post("/sql", {"csrf": token, "name": name, "q": "select 1"}).status == 400
    assert [file.name for file in Path(f"{store.path}.queries").iterdir()] == ["by key.sql"]


def test_there_is_no_sql_with_a_mask(shared: klamm.Store) -> None:
    answer = ask(Visitor(shared, mask=("pin",)), "select 1")
    assert answer.status == 403 and "--mask" in answer.json["error"]
