"""Fetches that wait: woken by whoever appends, in slices, and nothing is left of them."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import klamm
from klamm.kafka import large_requests
from klamm.kafka.apis import fetch as fetch_api
from klamm.kafka.large_requests import LargeRequests
from klamm.kafka.wire.frames import read_response
from klamm.kafka.wire.messages import API_VERSIONS, FETCH
from klamm.kafka.wire.structs import Struct
from tests.kafka.connect import ConnectionEnded, Raw, Served, served
from tests.kafka.requests import FOREVER_MS, FetchFrom, fetch, fetching, offsets, produce, sealed, values
from tests.procs import PATIENCE, children, until


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "events") as running:
        with running.dial() as raw:
            raw.create("orders", 3)
        yield running


def waiting(server: Served) -> int:
    return server.call(lambda: len(server.broker.purgatory))


@contextmanager
def delayed(
    server: Served, count: int, *, number: int = 0, wait_ms: int = 20_000, offset: int = 0
) -> Iterator[list[Raw]]:
    """Each has waited when the block begins; those who were to wait for long still do."""
    metrics = server.server.metrics
    with ExitStack() as stack:
        before = metrics.fetch_waits
        clients = [stack.enter_context(server.dial()) for _ in range(count)]
        for client in clients:
            client.send(FETCH, 12, **fetching({("orders", number): offset}, wait_ms=wait_ms))
        until(lambda: metrics.fetch_waits == before + count, "they wait")
        server.call(lambda: None)  # and the last is parked
        yield clients


def read(client: Raw) -> list[bytes | None]:
    return list(values(read_response(FETCH, 12, client.receive())[1].responses[0].partitions[0]))


def test_a_producer_does_not_wait_for_five_hundred_that_are_woken(server: Served, raw: Raw) -> None:
    """Its answer is sent before any of theirs is."""
    produce(raw, "orders", sealed(1), 1)
    with delayed(server, 500) as clients:
        started = time.monotonic()
        assert produce(raw, "orders", sealed([b"x"])).error_code == 0
        answered = time.monotonic()
        for client in clients:
            assert read(client) == [b"x"]
        last = time.monotonic()
    assert answered - started < (last - started) / 2 + 0.02
    assert waiting(server) == 0


def test_others_are_answered_while_many_are_woken(server: Served, raw: Raw) -> None:
    """The loop sees to other things between two slices."""
    turns: list[int] = []
    with delayed(server, 300) as clients:

        def woken() -> None:
            """In the loop, which so sees the append when all are to be woken, and not before."""
            partition = server.broker.core.topic("orders").partition(0)
            partition.append(sealed([b"x"]))
            server.broker.purgatory.wake_soon(partition)

            def count() -> None:
                left = len(server.broker.purgatory._ready)
                turns.append(left)
                if left:
                    server.loop.call_soon(count)

            server.loop.call_soon(count)

        server.call(woken)
        for client in clients:
            assert read(client) == [b"x"]
    assert max(before - after for before, after in itertools.pairwise(turns)) <= 64
    assert len(turns) >= 5


def test_an_append_elsewhere_wakes_nobody_for_good(server: Served, raw: Raw) -> None:
    with delayed(server, 20) as clients:
        produce(raw, "orders", sealed([b"other"]), 1)
        assert waiting(server) == 20
        produce(raw, "orders", sealed([b"x"]))
        assert [read(client) for client in clients] == [[b"x"]] * 20


def test_many_whose_time_is_over_at_once(server: Served, raw: Raw) -> None:
    with delayed(server, 200, wait_ms=1500) as clients:
        assert [read(client) for client in clients] == [[]] * 200
    assert waiting(server) == 0
    assert server.call(lambda: len(server.broker.purgatory._ticks)) == 0


def test_nothing_is_kept_of_those_who_were_answered_or_left(server: Served, raw: Raw) -> None:
    """However long they were willing to wait."""
    with delayed(server, 10, wait_ms=2**31 - 1) as clients:
        produce(raw, "orders", sealed([b"x"]))
        assert [read(client) for client in clients] == [[b"x"]] * 10
    with delayed(server, 10, wait_ms=2**31 - 1, offset=1):
        pass
    until(lambda: waiting(server) == 0, "they are gone")
    assert server.call(lambda: (len(server.broker.purgatory._ticks), len(server.broker.purgatory._ready))) == (0, 0)
    assert server.call(lambda: sum(map(len, server.broker.purgatory._waiting.values()))) == 0


def test_who_is_gone_before_it_can_wait_is_not_kept(server: Served) -> None:
    """Its partition has to be opened first, and it leaves meanwhile."""
    with klamm.open(server.broker.core.path) as store:
        for number in range(30):
            store.topics.create(f"t{number}", partitions=5)
    for number in range(30):
        with server.dial() as client:
            places = {(f"t{number}", each): 0 for each in range(5)}
            client.send(FETCH, 12, **fetching(places, wait_ms=2**31 - 1))
    until(lambda: server.call(lambda: len(server.server.listener.connections)) == 0, "they are gone")
    until(lambda: server.call(lambda: not len(server.broker.tasks)), "nothing is under way")
    until(lambda: waiting(server) == 0, "nobody waits")


def test_partitions_nobody_waits_for_are_not_watched_any_more(server: Served, raw: Raw) -> None:
    with delayed(server, 3, number=0), delayed(server, 3, number=1):
        assert server.call(lambda: len(server.broker.purgatory._bell_thread)) == 2
        server.call(server.broker.purgatory._sweep)
        assert server.call(lambda: len(server.broker.purgatory._bell_thread)) == 2
    until(lambda: waiting(server) == 0, "they are gone")
    server.call(server.broker.purgatory._sweep)
    assert server.call(lambda: len(server.broker.purgatory._bell_thread)) == 0
    with delayed(server, 3, number=1) as clients:
        produce(raw, "orders", sealed([b"again"]), 1)
        assert [read(client) for client in clients] == [[b"again"]] * 3


def test_one_that_cannot_be_tried_takes_nobody_with_it(
    server: Served, raw: Raw, caplog: pytest.LogCaptureFixture
) -> None:
    with delayed(server, 1) as (bad,), delayed(server, 5) as clients:

        def spoil() -> None:
            first = next(iter(server.broker.purgatory._by_session.values()))

            def attempt(is_due: bool) -> None:
                raise ZeroDivisionError

            first.fetching = SimpleNamespace(attempt=attempt)

        server.call(spoil)
        with caplog.at_level(logging.ERROR):
            produce(raw, "orders", sealed([b"x"]))
            with pytest.raises(ConnectionEnded):
                bad.receive()
            assert [read(client) for client in clients] == [[b"x"]] * 5
    assert len(caplog.records) == 1
    assert waiting(server) == 0
    with delayed(server, 2, offset=1, wait_ms=300) as later:
        assert [read(client) for client in later] == [[], []], "time goes on, too"


def test_what_comes_while_a_thread_looks_is_not_missed(
    server: Served, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread has found too little; before the loop hears of it, more is appended."""
    looked, may_end = threading.Event(), threading.Event()
    attempt = fetch_api._FetchRequest.attempt_in_thread

    def slow(fetching: fetch_api._FetchRequest, is_due: bool) -> Struct | None:
        response = attempt(fetching, is_due)
        looked.set()
        assert may_end.wait(PATIENCE)
        return response

    monkeypatch.setattr(fetch_api._FetchRequest, "attempt_in_thread", slow)
    with server.dial() as client:
        client.send(FETCH, 12, **fetching({("orders", 0): 0}, wait_ms=FOREVER_MS, min_bytes=200))
        until(lambda: waiting(server) == 1, "it waits")
        produce(raw, "orders", sealed([b"little"]))
        assert looked.wait(PATIENCE)
        produce(raw, "orders", sealed([bytes(200)]))
        server.call(lambda: None)  # it was tried again, and was still in the thread
        may_end.set()
        assert read(client) == [b"little", bytes(200)]


def test_what_comes_just_before_it_is_watched_is_not_missed(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fetch has looked, somebody appends, and only then the fetch begins to wait."""
    place, put = server.broker.core.topic("orders").partition(0), server.broker.purgatory.put

    def late(*given: Any, **named: Any) -> Any:
        place.append(sealed([b"just before"]))
        return put(*given, **named)

    monkeypatch.setattr(server.broker.purgatory, "put", late)
    with server.dial() as client:
        for offset in range(3):  # then its partition may be watched already
            assert values(fetch(client, "orders", offset, wait_ms=FOREVER_MS)) == [b"just before"]


def test_no_wake_up_is_lost(server: Served) -> None:
    """A consumer that follows two writers, one here and one in another process, never waits for its time."""
    path, count = server.broker.core.path, 300

    def write() -> None:
        with klamm.open(path) as store:
            for number in range(count):
                store.append("orders", b"embedded %d" % number, partition=2)

    def produce_all() -> None:
        with server.dial() as mine:
            for number in range(count):
                produce(mine, "orders", sealed([b"wire %d" % number]), 2)

    with children() as start, server.dial() as reader:
        child, thread = start(write), threading.Thread(target=produce_all)
        thread.start()
        offset = 0
        while offset < 2 * count:
            found = fetch(reader, "orders", offset, 2, wait_ms=FOREVER_MS)
            offset = offsets(found)[-1] + 1
        thread.join()
        child.answer()


def test_pipelined_fetches_wait_one_after_the_other(server: Served, raw: Raw) -> None:
    with server.dial() as client:
        for offset in range(50):
            client.send(FETCH, 12, **fetching({("orders", 0): offset}, wait_ms=20_000))
        for number in range(50):
            until(lambda: waiting(server) == 1, "it waits")
            produce(raw, "orders", sealed([b"%d" % number]))
            assert read(client) == [b"%d" % number]
        assert client.ask(API_VERSIONS, 0).error_code == 0


def test_nothing_is_left_of_a_fetch_whose_client_goes_while_it_takes_turns(
    monkeypatch: pytest.MonkeyPatch, server: Served
) -> None:
    with server.dial() as raw:
        raw.create("wide", 300)
    purgatory = server.broker.purgatory
    monkeypatch.setattr(large_requests, "TURN_S", 0.0)
    wait, has_left = LargeRequests.wait, threading.Event()

    async def disconnect(self: LargeRequests) -> None:
        if sum(map(len, purgatory._waiting.values())) > 150:  # in the middle of them
            for connection in list(server.server.listener.connections):
                connection.close()
            has_left.set()
        await wait(self)

    monkeypatch.setattr(LargeRequests, "wait", disconnect)
    places = {("wide", number): FetchFrom(0, 100) for number in range(300)}
    with server.dial() as raw, pytest.raises(ConnectionEnded):
        raw.ask(FETCH, 12, **fetching(places, wait_ms=60_000))
    assert has_left.is_set()
    until(lambda: server.call(lambda: sum(map(len, purgatory._waiting.values()))) == 0, "it is put down nowhere")
