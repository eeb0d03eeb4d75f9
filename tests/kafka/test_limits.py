"""Limits: of connections, of one request, of all requests together, of time."""

from __future__ import annotations

import gc
import os
import resource
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import klamm
from klamm.disk import _os
from klamm.kafka.wire.frames import read_response, request_frame
from klamm.kafka.wire.messages import API_VERSIONS, FETCH, PRODUCE
from klamm.store.directory import acquire
from tests.kafka.connect import ConnectionEnded, Raw, Served, served
from tests.kafka.requests import fetching, produce, produce_many, producing, sealed
from tests.procs import children, readable, until
from tests.serving import serving

MIB = 1 << 20


def request_of(size: int, topic: str = "orders", number: int = 0) -> bytes:
    fields = producing({(topic, number): sealed(1, padding=size)})
    return b"".join(request_frame(PRODUCE, 9, 1, "x", PRODUCE.request(**fields)))


def is_closed(raw: Raw) -> bool:
    return readable(raw._socket.fileno(), 0) and raw._socket.recv(1, socket.MSG_PEEK) == b""


@contextmanager
def local_address(server: Served, count: int) -> Iterator[list[Raw]]:
    with ExitStack() as stack:
        yield [stack.enter_context(server.dial()) for _ in range(count)]


# ---- of one request


def test_a_request_that_is_too_large_closes_the_connection_before_it_comes(tmp_path: Path) -> None:
    with served(tmp_path / "events", socket_request_max_bytes=5000) as server, server.dial() as raw:
        raw.create("orders")
        base = len(request_of(0)) - 4
        for size, taken in ((5000, True), (5001, False), (2**31 - 1, False), (2**31, False), (2**32 - 1, False)):
            with server.dial() as one:
                if taken:
                    whole = request_of(size - base - 4)
                    one.send_bytes(whole)
                    assert abs(len(whole) - 4 - size) <= 4
                    assert (
                        read_response(PRODUCE, 9, one.receive())[1].responses[0].partition_responses[0].error_code == 0
                    )
                else:
                    one.send_bytes(size.to_bytes(4, "big"))
                    with pytest.raises(ConnectionEnded):
                        one.receive()
        assert raw.ask(API_VERSIONS, 0).error_code == 0


def test_a_promise_costs_nothing(tmp_path: Path) -> None:
    """Hundreds that promise 100 MB each and send five bytes: neither memory nor the budget is gone, nor others kept."""
    with serving(tmp_path / "events") as process, Raw(process.address) as raw:
        raw.create("orders", 1, max_message_bytes="10000000")
        produce(raw, "orders", sealed(1, padding=2 * MIB))
        before = rss(process.pid)
        promising = [Raw(process.address) for _ in range(400)]
        for each in promising:
            each.send_bytes((100 * MIB).to_bytes(4, "big") + b"\0")
        raw.ask(API_VERSIONS, 0)
        assert rss(process.pid) - before < 400 * 64 * 1024
        begun = [Raw(process.address) for _ in range(4)]
        for each in begun:
            each.send_bytes((100 * MIB).to_bytes(4, "big") + bytes(2 * MIB))
        raw.ask(API_VERSIONS, 0)
        assert rss(process.pid) - before < 400 * 64 * 1024 + len(begun) * 16 * MIB, "memory for what has arrived"
        for size in (100_000, 3 * MIB, 9 * MIB):
            whole = request_of(size)
            raw.send_bytes(whole[:10])
            raw.send_bytes(whole[10:])
            told = read_response(PRODUCE, 9, raw.receive())[1]
            assert told.responses[0].partition_responses[0].error_code == 0
        for each in promising + begun:
            each.close()


def rss(pid: int) -> int:
    found = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(found.split()[1]) * 1024


# ---- of all together


def test_many_half_sent_requests_stay_within_the_budget_and_all_are_answered(tmp_path: Path) -> None:
    limit, size, count = 4 * MIB, MIB, 40
    with served(tmp_path / "events", queued_max_request_bytes=limit) as server:
        budget = server.server.listener.budget
        with server.dial() as raw:
            raw.create("orders", 1, max_message_bytes="10000000")
            produce(raw, "orders", sealed(1))
            whole = request_of(size)
            with local_address(server, count) as clients:
                rest = []
                for client in clients:
                    client._socket.setblocking(False)
                    sent = 0
                    while sent < size // 2:
                        try:
                            sent += client._socket.send(whole[sent : size // 2])
                        except BlockingIOError:
                            break  # the server reads no more of it
                    rest.append(whole[sent:])
                until(lambda: server.call(lambda: len(budget)) > 5, "some wait")
                assert server.call(lambda: budget.most) <= limit + len(whole)
                assert produce(raw, "orders", sealed(1)).error_code == 0, "small ones are not kept"
                for client in clients:
                    client._socket.settimeout(20)
                pending = list(zip(clients, rest, strict=True))
                pending.reverse()
                with children() as start:

                    def send() -> None:
                        for client, data in pending:
                            if not os.fork():
                                client.send_bytes(data)
                                os._exit(0)

                    start(send).answer()
                    for client in clients:
                        told = read_response(PRODUCE, 9, client.receive())[1]
                        assert told.responses[0].partition_responses[0].error_code == 0
            assert server.call(lambda: budget.most) <= limit + len(whole)
        until(lambda: server.call(lambda: budget.used) == 0, "all is given back")
        assert len(budget) == 0


def test_a_request_larger_than_the_budget(tmp_path: Path) -> None:
    with served(tmp_path / "events", queued_max_request_bytes=MIB) as server, server.dial() as raw:
        raw.create("orders", 1, max_message_bytes="10000000")
        for _ in range(3):
            assert produce(raw, "orders", sealed(1, padding=5 * MIB)).error_code == 0
        assert server.call(lambda: server.server.listener.budget.used) == 0


def test_clients_that_leave_while_they_wait_for_the_budget(tmp_path: Path) -> None:
    with served(tmp_path / "events", queued_max_request_bytes=MIB) as server:
        budget = server.server.listener.budget
        with server.dial() as raw:
            raw.create("orders", 1, max_message_bytes="10000000")
            whole = request_of(4 * MIB)
            with local_address(server, 20) as clients:
                for client in clients:
                    client._socket.setblocking(False)
                    client._socket.send(whole[: MIB // 2])
                until(lambda: server.call(lambda: len(budget)) > 5, "some wait")
            until(lambda: server.call(lambda: budget.used) == 0, "all is given back")
            assert len(budget) == 0
            assert produce(raw, "orders", sealed(1, padding=3 * MIB)).error_code == 0


def test_what_is_sent_behind_a_request_that_waits_counts(tmp_path: Path) -> None:
    limit, count, behind = MIB, 50, 150
    with served(tmp_path / "events", queued_max_request_bytes=limit) as server, server.dial() as raw:
        raw.create("orders")
        raw.create("large", 1, max_message_bytes="10000000")
        fields = fetching({("orders", 0): 0}, wait_ms=600_000)
        asked = [b"".join(request_frame(FETCH, 12, 0, "x", FETCH.request(**fields)))]
        more = API_VERSIONS.request()
        asked += [b"".join(request_frame(API_VERSIONS, 0, n, "x" * 500, more)) for n in range(1, behind)]
        listener = server.server.listener
        with local_address(server, count) as clients:
            for client in clients:
                client._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MIB)
                client.send_bytes(b"".join(asked))
            until(lambda: server.call(lambda: len(server.broker.purgatory)) == count, "all wait")
            persisted = server.call(lambda: sum(each.reader.behind_bytes for each in listener.connections))
            assert persisted == server.call(lambda: listener.budget.ahead)
            assert limit <= persisted <= limit + len(listener.buffer) + count * 1024
            assert produce(raw, "large", sealed(1, padding=3 * MIB)).error_code == 0, "nobody waits for them"
            assert produce(raw, "orders", sealed(1)).error_code == 0
            for client in clients:
                assert [int.from_bytes(client.receive()[:4], "big") for _ in asked] == list(range(behind))
        until(lambda: server.call(lambda: len(listener.connections)) == 1, "they are gone")
        assert server.call(lambda: (listener.budget.used, listener.budget.ahead)) == (0, 0)


def test_requests_that_are_stuck_count(tmp_path: Path) -> None:
    """Large ones for a partition whose append lock a stopped process holds: no more than the budget and one."""
    limit, size = 4 * MIB, MIB
    with served(tmp_path / "events", queued_max_request_bytes=limit) as server, server.dial() as raw:
        raw.create("orders", 2, max_message_bytes="10000000")
        for number in range(2):
            produce(raw, "orders", sealed(1), number)
        with children() as start:
            holder = start(lambda: stop_in_append(server.broker.core.path))
            assert holder.stopped()
            whole = request_of(size)
            budget = server.server.listener.budget
            with local_address(server, 20) as clients:
                for client in clients:
                    client._socket.setblocking(False)
                    client._socket.send(whole)
                until(lambda: server.call(lambda: len(budget)) > 2, "some wait")
                assert server.call(lambda: budget.most) <= limit + len(whole)
                assert produce(raw, "orders", sealed(1), 1).error_code == 0
                holder.go_on()
                until(lambda: len(server.broker.partition_executors) == 0, "they are appended")
        until(lambda: server.call(lambda: budget.used) == 0, "all is given back")


def stop_in_append(path: str, topic: str = "orders", number: int = 0) -> None:
    """In a process of its own: stopped when it holds the append lock, and has written half of its batch."""
    core = acquire(path, read_only=False, create=False, force_filesystem=False)
    partition = core.topic(topic).partition(number)
    _os.trap(2, kinds=_os.WRITE, signal=signal.SIGSTOP)
    partition.append(sealed([b"stopped"]))


# ---- of connections


def test_a_connection_too_many_is_closed_at_once(tmp_path: Path) -> None:
    with served(tmp_path / "events", max_connections=5) as server, local_address(server, 5) as clients:
        for client in clients:
            assert client.ask(API_VERSIONS, 0).error_code == 0
        for _ in range(3):
            with server.dial() as more, pytest.raises(ConnectionEnded):
                more.ask(API_VERSIONS, 0)
        assert server.server.metrics.refused == 3
        clients[0].close()

        def welcome() -> bool:
            with server.dial() as again:
                try:
                    return bool(again.ask(API_VERSIONS, 0).error_code == 0)
                except (ConnectionEnded, OSError):
                    return False

        until(welcome, "there is room again")
        assert clients[1].ask(API_VERSIONS, 0).error_code == 0


def test_a_connection_too_many_of_one_address_is_closed_at_once(tmp_path: Path) -> None:
    with served(tmp_path / "events", max_connections_per_ip=3) as server, local_address(server, 3) as clients:
        for client in clients:
            assert client.ask(API_VERSIONS, 0).error_code == 0
        with server.dial() as more, pytest.raises(ConnectionEnded):
            more.ask(API_VERSIONS, 0)
        assert server.server.metrics.refused == 1
        clients[0].close()
        until(lambda: server.server.metrics.connections == 2, "it is gone")
        with server.dial() as again:
            assert again.ask(API_VERSIONS, 0).error_code == 0


def test_a_connection_has_one_request_in_flight(tmp_path: Path) -> None:
    """So all requests together are bounded by max.connections, and their bytes by queued.max.request.bytes."""
    with served(tmp_path / "events") as server, server.dial() as raw:
        raw.create("orders")
        for _ in range(3):
            raw.send(FETCH, 12, **fetching({("orders", 0): 0}, wait_ms=20_000))
        until(lambda: server.call(lambda: len(server.broker.purgatory)) == 1, "the first waits")
        until(lambda: server.call(lambda: server.server.listener.budget.ahead) > 0, "the others are not decoded yet")
        assert server.call(lambda: len(server.broker.purgatory)) == 1


def test_connections_leave_open_files_to_the_store(tmp_path: Path) -> None:
    with klamm.open(tmp_path / "events") as store:
        store.topics.create("orders", partitions=20)
    with serving(tmp_path / "events", open_files=200) as process, ExitStack() as stack:
        clients = [stack.enter_context(Raw(process.address)) for _ in range(100)]
        for client in clients:
            assert client.ask(API_VERSIONS, 0).error_code == 0
        for _ in range(150):
            with Raw(process.address) as more, pytest.raises(ConnectionEnded):
                more.ask(API_VERSIONS, 0)
        batches = {("orders", number): sealed(1) for number in range(20)}
        answered = produce_many(clients[0], batches, acks=-1)
        assert {each.error_code for each in answered.values()} == {0}
        assert "connection rejected: limit of 100 connections reached (of 200 open files (ulimit -n)" in process.stderr


def test_a_thousand_idle_connections_take_little_memory(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 4096:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    with serving(tmp_path / "events") as process, Raw(process.address) as raw:
        raw.create("orders")
        produce(raw, "orders", sealed(1))
        before = rss(process.pid)
        gc.disable()
        clients = [Raw(process.address) for _ in range(1000)]
        for client in clients:
            client.send(FETCH, 12, **fetching({("orders", 0): 1}, wait_ms=20_000))
        assert raw.ask(API_VERSIONS, 0).error_code == 0
        assert rss(process.pid) - before < 1000 * 48 * 1024
        produce(raw, "orders", sealed(1))
        for client in clients:
            assert read_response(FETCH, 12, client.receive())[1].responses[0].partitions[0].high_watermark == 2
            client.close()
        gc.enable()


# ---- of time


def test_the_idle_are_closed_and_nobody_else(tmp_path: Path) -> None:
    with served(tmp_path / "events") as server, server.dial() as active:
        active.create("orders")
        listener = server.server.listener
        with local_address(server, 6) as (idle, half, waiting, two_bytes, asked, trickling):
            half.send_bytes(request_of(100)[:50])
            trickling.send_bytes(request_of(100)[:50])
            two_bytes.send_bytes(b"\0\0")
            asked.ask(API_VERSIONS, 0)
            waiting.send(FETCH, 12, **fetching({("orders", 0): 0}, wait_ms=20_000))
            until(lambda: server.call(lambda: len(server.broker.purgatory)) == 1, "it waits")
            until(
                lambda: server.call(lambda: sum(each.reader.behind_bytes > 0 for each in listener.connections)) == 1,
                "two",
            )
            until(
                lambda: server.call(lambda: sum(each.reader.has_partial for each in listener.connections)) == 2, "half"
            )
            mark = server.call(listener.now)
            trickling.send_bytes(b"x")
            active.ask(API_VERSIONS, 0)
            server.call(lambda: listener.close_idle(mark))
            for client in (idle, half, two_bytes, asked, trickling, waiting):
                with pytest.raises(ConnectionEnded):
                    client.receive()
            assert active.ask(API_VERSIONS, 0).error_code == 0
            assert server.server.metrics.closed_idle == 6
            until(
                lambda: server.call(lambda: len(server.broker.purgatory)) == 0,
                "nothing waits for a client that is gone",
            )


def test_the_idle_are_closed_when_their_time_has_come(tmp_path: Path) -> None:
    with served(tmp_path / "events", connections_max_idle_ms=200) as server:
        started = time.monotonic()
        with server.dial() as idle, pytest.raises(ConnectionEnded):
            idle.receive()
        assert time.monotonic() - started > 0.15


def test_who_does_not_read_its_answer_is_closed_in_the_end(tmp_path: Path) -> None:
    with klamm.open(tmp_path / "events") as store:
        store.topics.create("orders", 1, {"max.message.bytes": 10_000_000})
        store.append_many("orders", [bytes(8 * MIB)] * 4, acks=1)
    with served(tmp_path / "events", connections_max_idle_ms=400) as server, server.dial() as deaf:
        deaf.send(FETCH, 12, **fetching({("orders", 0): 0}, max_bytes=1 << 30))
        until(lambda: server.server.metrics.closed_idle == 1, "it is closed")
        assert server.call(lambda: len(server.server.listener.connections)) == 0
        assert server.server.metrics.bytes_out > 0, "it was answered"
