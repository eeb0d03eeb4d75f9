"""`klamm console`, the process: where it listens, its events, how it ends."""

from __future__ import annotations

import http.client
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import klamm
from tests.console.process import ConsoleProcess
from tests.procs import PATIENCE, until


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[klamm.Store]:
    with klamm.open(tmp_path_factory.mktemp("served") / "events") as opened:
        opened.topics.create("orders", partitions=2)
        yield opened


@pytest.fixture(scope="module")
def served(store: klamm.Store) -> Iterator[ConsoleProcess]:
    console = ConsoleProcess(store.path)
    yield console
    console.close()


class Events:
    """Server-sent events, one after the other."""

    def __init__(self, console: ConsoleProcess, path: str, last_id: str | None = None) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", console.port, timeout=60)
        headers = {} if last_id is None else {"Last-Event-ID": last_id}
        self._connection.request("GET", path, headers=headers)
        self._response = self._connection.getresponse()
        assert self._response.status == 200, self._response.read()
        assert self._response.headers["content-type"].startswith("text/event-stream")

    def next(self) -> tuple[str, Any]:
        """Return the id and the data of the next event."""
        fields: dict[str, str] = {}
        while True:
            line = self._response.readline().decode().rstrip("\n")
            if line and not line.startswith(":"):
                name, _, value = line.partition(": ")
                fields[name] = value
            elif not line and fields:
                return fields["id"], json.loads(fields["data"])

    def close(self) -> None:
        self._response.close()
        self._connection.close()


def test_it_says_where_it_is_and_ends_with_a_signal(tmp_path: Path) -> None:
    klamm.open(tmp_path / "events").close()
    for number in (signal.SIGTERM, signal.SIGINT):
        console = ConsoleProcess(tmp_path / "events")
        assert console.line == f"klamm: console of {tmp_path / 'events'}/ at {console.address}/\n"
        assert console.signal(number) == (0, "")


def test_it_ends_while_a_page_is_followed(store: klamm.Store) -> None:
    console = ConsoleProcess(store.path)
    events = Events(console, "/events/topics/orders/tail")
    events.next()
    code, errors = console.signal(signal.SIGTERM)
    assert code == 0 and "Traceback" not in errors
    events.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_query_ends_with_the_console(store: klamm.Store, number: int) -> None:
    """It is asked for hours of work, which no one waits for any more."""
    console = ConsoleProcess(store.path)
    client = http.client.HTTPConnection("127.0.0.1", console.port, timeout=PATIENCE)
    client.request("GET", "/api/sql?q=select+count(*)+from+range(100000000000)+a,range(100)+b")
    pid = until(lambda: next(iter(_children(console.process.pid)), None), "the query runs")
    code, errors = console.signal(number)
    client.close()
    assert code == (0 if number == signal.SIGTERM else -number) and "Traceback" not in errors
    until(lambda: not Path(f"/proc/{pid}").exists() or None, "the query has ended")


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def test_a_follower_that_comes_back_gets_what_came_since_and_nothing_twice(
    store: klamm.Store, served: ConsoleProcess
) -> None:
    events = Events(served, "/events/topics/orders/tail")
    first_id, first = events.next()
    assert first["shown"] == 0
    store.append("orders", b"seen", partition=0)
    last_id, seen = events.next()
    assert seen["shown"] == 1 and "seen" in seen["rows"] and last_id != first_id
    events.close()
    store.append("orders", b"missed <b>", partition=1)
    again = Events(served, "/events/topics/orders/tail", last_id)
    next_id, missed = again.next()
    assert missed["shown"] == 1 and "missed &lt;b&gt;" in missed["rows"] and "seen" not in missed["rows"]
    ends = [partition.end for partition in store["orders"].info().partitions]
    assert next_id == f"0@{ends[0]},1@{ends[1]}"
    again.close()


def test_a_live_page_is_sent_again_when_it_has_changed(store: klamm.Store, served: ConsoleProcess) -> None:
    events = Events(served, "/events/topics")
    _, before = events.next()
    assert ">live<" not in before
    store.topics.create("live")
    for _ in range(10):
        _, page = events.next()
        if ">live<" in page:
            break
    assert ">live<" in page
    events.close()


def test_the_console_only_reads_unless_it_is_allowed_to_change(store: klamm.Store, served: ConsoleProcess) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    connection.request("GET", "/topics/orders/produce")
    assert connection.getresponse().status == 403
    connection.close()
