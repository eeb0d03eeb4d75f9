"""What cannot be done is a page that says so, with the status that programs expect, and never a bare 500."""

from __future__ import annotations

import threading
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from typing import Any

import pytest

import klamm
from klamm import errors
from klamm.console import child, downloads
from klamm.console.app import json_problem
from klamm.console.child import ChildCache, ChildResult
from klamm.console.errors import RequestError
from klamm.console.pages import groups, sql, topic
from klamm.errors import KlammError, NotInstalled
from tests.console.visitor import Visitor
from tests.procs import PATIENCE

HTML = "text/html,application/xhtml+xml"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.InvalidTopic("x"), 400),
        (errors.ReadOnly("x"), 403),
        (errors.UnknownTopic("x"), 404),
        (errors.OffsetOutOfRange("x", offset=9, start=0, end=5), 404),
        (errors.GroupBusy("x"), 409),
        (errors.Fenced("x"), 409),
        (errors.NotInstalled("x"), 501),
        (errors.StoreBusy("x"), 503),
        (errors.DiskFull("x"), 503),
        (errors.CorruptBatch("x"), 500),
    ],
)
def test_an_error_has_the_status_that_programs_expect(error: KlammError, status: int) -> None:
    assert json_problem(error).status_code == status


def test_a_store_that_cannot_be_read_is_a_page_that_says_so(store: klamm.Store, visitor: Visitor) -> None:
    store.close()
    for address in ("/", "/groups", "/topics/orders", "/nothing"):
        page = visitor.get(address)
        assert page.headers["content-type"].startswith("text/html")
        assert page.status == (404 if address == "/nothing" else 503) and "Overview" in page.words, page.words
    assert "closed" in visitor.get("/groups").words and "closed" in visitor.get("/api/groups").json["error"]


def test_an_error_that_no_page_expects_is_a_page_and_is_logged(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> list[Any]:
        raise ValueError("<what no page expects>")

    monkeypatch.setattr(groups, "read_groups", fail)
    visitor.expected = ValueError  # raised again, for the log
    page, data = visitor.get("/groups"), visitor.get("/api/groups")
    assert (page.status, data.status) == (500, 500)
    assert "ValueError: <what no page expects>" in page.words and "Overview" in page.words
    assert data.json["error"] == "ValueError: <what no page expects>"


def test_a_hint_is_a_command_and_not_python(looker: Visitor) -> None:
    assert "klamm topic list shows those that are there" in looker.get("/topics/nothing").words
    assert looker.get("/api/groups/show?group=nothing").json["hint"] == "klamm group list shows those that are there"


# ---- exports


def test_an_export_that_is_too_large_or_takes_too_long_says_what_to_run(
    looker: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "MOST_BYTES", 100)
    for form in ("jsonl", "csv"):
        answer = looker.get(f"/topics/orders/export?format={form}")
        assert answer.status == 413 and "more than 100 B" in answer.json["error"]
        assert f"klamm export orders --to orders.{form}" in answer.json["hint"]
    monkeypatch.undo()
    monkeypatch.setattr(downloads, "MOST_S", -1.0)
    for query in ("format=parquet", "format=parquet&key=nothing", "key=nothing"):
        answer = looker.get(f"/topics/orders/export?{query}")
        assert answer.status == 413 and "takes longer" in answer.json["error"]


def test_no_more_exports_are_written_than_there_are_places(looker: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    places = threading.BoundedSemaphore(1)
    monkeypatch.setattr(downloads, "PLACES", places)
    monkeypatch.setattr(downloads, "_WAIT_S", 0.01)
    with places:
        assert looker.get("/topics/orders/export").status == 503
    assert looker.get("/topics/orders/export?format=nothing").status == 400
    assert looker.get("/topics/orders/export").status == 200


def test_an_export_that_fails_is_a_page_in_a_browser(looker: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "MOST_BYTES", 100)
    page = looker.get("/topics/orders/export?key=k1", accept=HTML)
    assert page.status == 413 and "more than 100 B" in page.words and "Value contains" in page.words
    assert 'href="/api/topics/orders?key=k1"' in page.text
    assert looker.get("/topics/nothing/export", accept=HTML).status == 404


# ---- packages that are not installed


def without(*packages: str) -> Any:
    def find(name: str) -> ModuleSpec | None:
        return None if name in packages else find_spec(name)

    return find


def test_a_console_without_duckdb_says_how_to_install_it(looker: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql, "find_spec", without("duckdb"))
    page = looker.get("/sql")
    assert page.status == 200 and "DuckDB, which is not installed: pip install 'klamm[sql]'" in page.words
    assert "<textarea" not in page.text
    asked = looker.get("/api/sql?q=select+1")
    assert asked.status == 501 and asked.json["hint"] == "pip install 'klamm[sql]'"
    monkeypatch.undo()
    assert "<textarea" in looker.get("/sql").text


def test_a_console_without_pyarrow_says_how_to_install_it(looker: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "format=parquet" in looker.get("/topics/orders").text

    def missing() -> None:
        raise NotInstalled.package("pyarrow", "'klamm[arrow]'")

    monkeypatch.setattr(topic, "find_spec", without("pyarrow"))
    monkeypatch.setattr("klamm.api.export.import_pyarrow", missing)
    page = looker.get("/topics/orders")
    assert "Parquet: pip install 'klamm[arrow]'" in page.words and "format=parquet" not in page.text
    page = looker.get("/topics/orders/export?format=parquet", accept=HTML)
    assert page.status == 501 and "pip install 'klamm[arrow]'" in page.words


# ---- commands in child processes


def test_commands_do_not_wait_for_each_other_and_the_same_one_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []
    begun, may_end = threading.Event(), threading.Event()

    def run(arguments: list[str], **_: object) -> ChildResult:
        runs.append(arguments[0])
        if arguments[0] == "slow":
            begun.set()
            assert may_end.wait(PATIENCE)
        return ChildResult([arguments[0]], False, 0)

    monkeypatch.setattr(child, "run_child", run)
    cache, rows = ChildCache(), list[Any]()
    threads = [threading.Thread(target=lambda: rows.append(cache.run("slow"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert begun.wait(PATIENCE)
    assert cache.run("quick") == ["quick"] and rows == []
    may_end.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert rows == [["slow"], ["slow"]] and sorted(runs) == ["quick", "slow"]


def test_a_command_that_failed_is_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes: list[Any] = [RequestError(400, "no"), MemoryError(), ChildResult(["row"], False, 0)]

    def run(*_: object, **__: object) -> ChildResult:
        outcome = outcomes.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        assert isinstance(outcome, ChildResult)
        return outcome

    monkeypatch.setattr(child, "run_child", run)
    cache = ChildCache()
    with pytest.raises(RequestError, match="no"):
        cache.run("list")
    with pytest.raises(MemoryError):
        cache.run("list")
    assert cache.run("list") == cache.run("list") == ["row"]
