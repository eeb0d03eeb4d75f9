"""Connections: requests in any pieces, answers in order, and clients that behave in any way."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.kafka import channel
from klamm.kafka.admission import LOOP_ELEMENTS, Admission
from klamm.kafka.broker import Broker
from klamm.kafka.call import Call
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.wire.codec import Api
from klamm.kafka.wire.frames import read_response, request_frame
from klamm.kafka.wire.messages import API_VERSIONS, FETCH, LIST_OFFSETS, METADATA, PRODUCE
from klamm.kafka.wire.structs import Struct
from tests.crash.cases import seed_of
from tests.kafka.connect import ConnectionEnded, Raw, Served, served
from tests.kafka.requests import FetchFrom, batches_of, fetch, fetching, produce, producing, sealed, values
from tests.procs import PATIENCE, until
from tests.serving import serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("connection") / "events") as running:
        with running.dial() as raw:
            raw.create("orders", 2)
            raw.create("large", 1, max_message_bytes="20000000")
        yield running


def frame(api: Api, version: int, number: int, **fields: Any) -> bytes:
    return b"".join(request_frame(api, version, number, "test", api.request(**fields)))


def versions(number: int) -> bytes:
    return frame(API_VERSIONS, 3, number, client_software_name="test", client_software_version="1")


def end_of(raw: Raw, topic: str = "orders", number: int = 0) -> int:
    asked = LIST_OFFSETS.request.Topic(
        name=topic, partitions=[LIST_OFFSETS.request.Partition(partition_index=number, timestamp=-1)]
    )
    return int(raw.ask(LIST_OFFSETS, 5, replica_id=-1, topics=[asked]).topics[0].partitions[0].offset)


def connections(server: Served) -> int:
    return server.call(lambda: len(server.server.listener.connections))


# ---- in pieces


def test_a_request_cut_at_every_byte(raw: Raw) -> None:
    whole = frame(PRODUCE, 9, 7, **producing({("orders", 0): sealed([b"cut"])}))
    before = end_of(raw)
    for at in range(1, len(whole)):
        raw.send_bytes(whole[:at])
        raw.send_bytes(whole[at:])
        number, told = read_response(PRODUCE, 9, raw.receive())
        assert (number, told.responses[0].partition_responses[0].base_offset) == (7, before + at - 1)


def test_what_looks_like_a_request_inside_of_another_is_none(server: Served) -> None:
    """The first two bytes of a size, alone: the bytes that follow begin with the rest of it."""
    with server.dial() as raw:
        before = server.broker.metrics.bytes_in
        raw.send_bytes(b"\0\0")
        until(lambda: server.broker.metrics.bytes_in == before + 2, "they have arrived")
        raw.send_bytes(versions(1))
        with pytest.raises(ConnectionEnded):  # a request of 0 bytes
            raw.receive()


def test_two_requests_cut_at_every_byte(raw: Raw) -> None:
    """The first is answered whatever is there of the second."""
    both = versions(1) + versions(2)
    for at in range(1, len(both)):
        raw.send_bytes(both[:at])
        if at >= len(both) // 2:
            assert raw.receive()[:4] == b"\0\0\0\1"
        raw.send_bytes(both[at:])
        if at < len(both) // 2:
            assert raw.receive()[:4] == b"\0\0\0\1"
        assert raw.receive()[:4] == b"\0\0\0\2"


def test_requests_that_come_byte_by_byte_are_answered(raw: Raw) -> None:
    for byte in versions(9) + frame(METADATA, 12, 10, topics=None):
        raw.send_bytes(bytes([byte]))
    assert read_response(API_VERSIONS, 3, raw.receive())[0] == 9
    assert read_response(METADATA, 12, raw.receive())[0] == 10


@pytest.mark.parametrize("size", [200_000, 256 * 1024, 300_000, 1_100_000, 9_000_000])
def test_frames_larger_than_the_receive_buffer(raw: Raw, size: int) -> None:
    batch = sealed(1, padding=size)
    for piece in (1 << 30, 70_000):
        data = frame(PRODUCE, 9, 5, **producing({("large", 0): batch})) + versions(6)
        for at in range(0, len(data), piece):
            raw.send_bytes(data[at : at + piece])
        (told,) = read_response(PRODUCE, 9, raw.receive())[1].responses
        assert told.partition_responses[0].error_code == 0
        assert raw.receive()[:4] == b"\0\0\0\6"
        found = fetch(raw, "large", told.partition_responses[0].base_offset, partition_max_bytes=1)
        assert batches_of(found.records)[0][16:] == batch[16:]


def test_random_requests_in_random_pieces(raw: Raw) -> None:
    seed = seed_of()
    chance = random.Random(seed)
    data, expected = b"", []
    for number in range(150):
        kind = chance.randrange(4)
        if kind == 0:
            size = chance.choice([0, 100, 10_000, 300_000])
            data += frame(PRODUCE, 9, number, **producing({("orders", 1): sealed(1, padding=size)}))
        elif kind == 1:
            data += frame(FETCH, 12, number, **fetching({("orders", 1): FetchFrom(0, 50_000)}, wait_ms=5))
        elif kind == 2:
            data += frame(METADATA, 12, number, topics=None)
        else:
            data += versions(number)
        expected.append(number)

    def send() -> None:
        at = 0
        while at < len(data):
            size = chance.choice([1, 3, 100, 5000, 200_000, 1 << 20])
            raw.send_bytes(data[at : at + size])
            at += size

    sender = threading.Thread(target=send)
    sender.start()
    assert [int.from_bytes(raw.receive()[:4], "big") for _ in expected] == expected
    sender.join()


# ---- many at once


def test_many_requests_in_one_send_are_answered_in_order(raw: Raw) -> None:
    count = 5000
    sender = threading.Thread(target=raw.send_bytes, args=(b"".join(versions(n) for n in range(count)),))
    sender.start()
    assert [int.from_bytes(raw.receive()[:4], "big") for _ in range(count)] == list(range(count))
    sender.join()


def test_one_who_sends_thousands_does_not_keep_the_others_waiting(
    server: Served, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, handled = 300, list[object]()
    table = server.server.listener.admission.table
    supported = table[API_VERSIONS.key]

    async def handler(broker: Broker, call: Call) -> Struct | None:
        handled.append(call.session)
        time.sleep(channel.TURN_S / 4)
        return await supported.handler(broker, call)

    may_go_on = threading.Event()
    with server.dial() as flood:
        monkeypatch.setitem(table, API_VERSIONS.key, supported._replace(handler=handler))  # of all servers here
        server.loop.call_soon_threadsafe(may_go_on.wait, PATIENCE)  # both have sent everything when it looks
        flood.send_bytes(b"".join(versions(n) for n in range(count)))
        raw.send_bytes(versions(1))
        may_go_on.set()
        raw.receive()
        for _ in range(count):
            flood.receive()
    (other,) = (each for each, times in Counter(handled).items() if times == 1)
    assert len(handled) == count + 1
    assert handled.index(other) <= 2 * 4, "more than two turns of the other connection"


def test_requests_behind_a_fetch_that_waits(server: Served, raw: Raw) -> None:
    """They are handled when it is answered, not before; and all of them, though nothing more comes in."""
    end = end_of(raw)
    with server.dial() as waiting:
        waiting.send_bytes(
            frame(FETCH, 12, 1, **fetching({("orders", 0): end}, wait_ms=20_000))
            + b"".join(versions(n) for n in range(2, 200))
            + frame(PRODUCE, 9, 200, **producing({("orders", 0): sealed(1)}))
        )
        until(lambda: server.call(lambda: len(server.broker.purgatory)) == 1, "it waits")
        waiting.send_bytes(b"".join(versions(n) for n in range(201, 3000)))
        assert end_of(raw) == end
        produce(raw, "orders", sealed([b"wakes"]))
        number, told = read_response(FETCH, 12, waiting.receive())
        assert (number, values(told.responses[0].partitions[0])) == (1, [b"wakes"])
        assert [int.from_bytes(waiting.receive()[:4], "big") for _ in range(2998)] == list(range(2, 3000))
    assert end_of(raw) == end + 2


def test_requests_behind_one_that_finds_the_catalog_changed(server: Served, raw: Raw) -> None:
    """Who comes first looks at the catalog again; what is behind must not be forgotten."""
    for turn in range(5):
        with klamm.open(server.broker.core.path) as store:
            store.topics.create(f"new-{turn}")
        raw.send_bytes(b"".join(versions(n) for n in range(50)))
        assert [int.from_bytes(raw.receive()[:4], "big") for _ in range(50)] == list(range(50))


def test_large_answers_that_are_read_late(server: Served, raw: Raw) -> None:
    """Megabytes by sendfile, through a socket that is full again and again."""
    topic = raw.create("late")
    for _ in range(12):
        assert produce(raw, topic, sealed(1, padding=900_000)).error_code == 0
    fetched = frame(FETCH, 12, 1, **fetching({(topic, 0): FetchFrom(0, 1 << 30)}))
    with server.dial() as late:
        late.send_bytes(fetched * 6 + versions(2))
        chance = random.Random(3)
        for _ in range(6):
            data = b""
            size = int.from_bytes(late._exactly(4), "big")
            while len(data) < size:
                data += late._exactly(min(size - len(data), chance.choice([1, 1000, 400_000, 2_000_000])))
            _, told = read_response(FETCH, 12, data)
            assert len(batches_of(told.responses[0].partitions[0].records)) == 12
        assert late.receive()[:4] == b"\0\0\0\2"


# ---- who leaves


def test_clients_that_leave_at_any_moment(server: Served, raw: Raw) -> None:
    reset = struct.pack("ii", 1, 0)
    large = frame(PRODUCE, 9, 1, **producing({("large", 0): sealed(1, padding=2_000_000)}))
    sent = {
        "nothing": b"",
        "half a size": b"\0\0",
        "half a request": versions(1)[:-3],
        "half a large one": large[:1_500_000],
        "one that waits": frame(FETCH, 12, 1, **fetching({("orders", 0): end_of(raw)}, wait_ms=2**31 - 1)),
        "a large answer": frame(FETCH, 12, 1, **fetching({("large", 0): FetchFrom(0, 1 << 30)})) * 3,
        "some and a half": versions(1) * 20 + versions(1)[:9],
    }
    for data in sent.values():
        for how in ("close", "reset", "half"):
            client = Raw(server.address)
            client.send_bytes(data)
            if how == "reset":
                client._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            elif how == "half":
                client._socket.shutdown(socket.SHUT_WR)
                client._socket.settimeout(10)
                while client._socket.recv(1 << 20):
                    pass
            client.close()
    until(lambda: connections(server) == 1, "they are gone")
    until(lambda: server.call(lambda: len(server.broker.purgatory)) == 0, "nobody waits")
    assert server.call(lambda: len(server.broker.purgatory._ticks)) == 0, "nothing is left of who waited"
    assert server.call(lambda: server.server.listener.budget.used) == 0
    assert raw.ask(API_VERSIONS, 0).error_code == 0


def test_a_half_closed_client_gets_what_it_has_asked_for(server: Served) -> None:
    with server.dial() as raw:
        raw.send_bytes(versions(1) + versions(2))
        raw._socket.shutdown(socket.SHUT_WR)
        assert raw.receive()[:4] == b"\0\0\0\1"
        assert raw.receive()[:4] == b"\0\0\0\2"
        with pytest.raises(ConnectionEnded):
            raw.receive()


def rss(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise AssertionError


def test_clients_that_never_read_cost_little(tmp_path: Path) -> None:
    """Of a server process of its own: 60 clients, each with 20 answers of 3 MB to come, or thousands of small ones."""
    with serving(tmp_path / "events") as process, Raw(process.address) as raw:
        topic = raw.create("orders", 100)
        for _ in range(4):
            produce(raw, topic, sealed(1, padding=800_000))
        for number in range(1, 100):
            produce(raw, topic, sealed(1, padding=30_000), number)
        large = frame(FETCH, 12, 1, **fetching({(topic, 0): FetchFrom(0, 1 << 30)}))
        wide = frame(FETCH, 12, 1, **fetching({(topic, number): 0 for number in range(1, 100)}))
        small = frame(METADATA, 12, 1, topics=None)
        warm = [Raw(process.address) for _ in range(10)]
        for client in warm:
            client.send_bytes(wide)
            client.receive()
            client.close()
        before = rss(process.pid)
        idle = []
        for data in (large, wide, small):
            for _ in range(20):
                client = Raw(process.address)
                client._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client._socket.settimeout(0.02)
                try:
                    client.send_bytes(data * (20 if data is not small else 3000))
                except TimeoutError:
                    pass  # it does not read on
                idle.append(client)
        raw.ask(API_VERSIONS, 0)
        grown = rss(process.pid) - before
        for client in idle:
            client.close()
        assert produce(raw, topic, sealed(1)).error_code == 0
    assert grown < 60 * (256 + 512) * 1024, f"{grown >> 10} KiB"


# ---- what is no request


def garbage() -> dict[str, bytes]:
    return {
        "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + random.Random(1).randbytes(500),
        "zeros": bytes(100),
        "a negative size": b"\xff\xff\xff\xff" + bytes(100),
        "a header cut short": b"\0\0\0\4\0\0\0\0",
        "random": b"\0\0\0\x40" + random.Random(1).randbytes(64),
        "no such API": b"\0\0\0\x0a" + struct.pack(">hhih", 9999, 0, 1, -1),
        "a version of the future": b"\0\0\0\x0a" + struct.pack(">hhih", 0, 99, 1, -1),
        "a client id that ends nowhere": b"\0\0\0\x0a" + struct.pack(">hhih", 3, 1, 1, 500),
    }


@pytest.mark.parametrize("what", garbage())
def test_garbage_closes_the_connection_with_one_line(
    server: Served, raw: Raw, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "klamm.kafka"), server.dial() as bad:
        bad.send_bytes(garbage()[what])
        with pytest.raises(ConnectionEnded):
            bad.receive()
        until(lambda: caplog.records, "it is told")
        time.sleep(0)
    (line,) = caplog.records
    assert line.levelno == logging.WARNING
    assert "127.0.0.1" in line.getMessage()
    assert what not in ("HTTP", "TLS") or f"it speaks {what}" in line.getMessage()
    assert raw.ask(API_VERSIONS, 0).error_code == 0


def test_a_flood_of_garbage_is_not_a_flood_of_lines(server: Served, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "klamm.kafka"):
        started = time.monotonic()
        for _ in range(150):
            with server.dial() as bad:
                bad.send_bytes(b"GET / HTTP/1.1\r\n\r\n")
                with pytest.raises(ConnectionEnded):
                    bad.receive()
        took = time.monotonic() - started
    assert len(caplog.records) <= 22 * (int(took) + 2)


def test_versions_of_the_future_are_told_what_there_is(server: Served) -> None:
    with server.dial() as raw:
        raw.send_bytes(b"\0\0\0\x0a" + struct.pack(">hhih", 18, 99, 77, -1))
        number, told = read_response(API_VERSIONS, 0, raw.receive())
        assert (number, told.error_code) == (77, ErrorCode.UNSUPPORTED_VERSION)
        assert {each.api_key for each in told.api_keys} >= {0, 1, 3, 18}
        assert raw.ask(API_VERSIONS, 3, client_software_name="x", client_software_version="y").error_code == 0


# ---- the end


def test_a_server_stops_at_once_though_consumers_wait_and_ask_again(tmp_path: Path) -> None:
    with served(tmp_path / "events") as server, server.dial() as raw:
        raw.create("orders")
        over = threading.Event()

        def consume() -> None:
            with server.dial() as mine:
                try:
                    while not over.is_set():
                        fetch(mine, "orders", 0, wait_ms=20_000)
                except (ConnectionEnded, OSError):
                    pass

        threads = [threading.Thread(target=consume) for _ in range(5)]
        for thread in threads:
            thread.start()
        until(lambda: server.call(lambda: len(server.broker.purgatory)) == 5, "they wait")
        server.run(server.server.stop(drain_s=10 * PATIENCE))  # so long it would wait for one that is not released
        over.set()
        for thread in threads:
            thread.join()


def test_a_request_of_many_elements_is_decoded_by_a_thread(
    server: Served, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the loop, other clients would wait for that."""
    threads: list[str] = []
    decode = Admission.decode

    def watched(header: Any, row: Any, frame: memoryview, *bound: int) -> Any:
        request = decode(header, row, frame, *bound)
        threads.append(threading.current_thread().name)
        return request

    monkeypatch.setattr(Admission, "decode", staticmethod(watched))
    offset = produce(raw, "orders", sealed([b"one"])).base_offset
    one = FETCH.request.Partition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    for count, is_quick in ((LOOP_ELEMENTS - 1, True), (LOOP_ELEMENTS, False)):  # and the topic is one, too
        threads.clear()
        topics = [FETCH.request.Topic(topic="orders", partitions=[one] * count)]
        response = raw.ask(FETCH, 12, **{**fetching({}), "topics": topics})
        assert values(response.responses[0].partitions[0]) == [b"one"]
        assert [name.partition("_")[0] for name in threads] == (["server"] if is_quick else ["klamm-decode"])
    whole = b"".join(request_frame(FETCH, 12, 1, "x", FETCH.request(**{**fetching({}), "topics": topics})))
    before = server.call(lambda: server.server.listener.metrics.malformed)
    raw.send_bytes((len(whole) - 5).to_bytes(4, "big") + whole[4:-1])
    with pytest.raises(ConnectionEnded):
        raw.receive()
    assert server.call(lambda: server.server.listener.metrics.malformed) == before + 1
    assert server.call(lambda: server.server.listener.budget.used) == 0


@pytest.mark.parametrize("is_at_once", [True, False])
def test_a_client_whose_request_is_cancelled_does_not_wait_forever(
    server: Served, raw: Raw, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, is_at_once: bool
) -> None:
    """None should be, but of a client that is gone; whatever it is that a handler waits for, others are served."""
    table = server.server.listener.admission.table

    async def handler(broker: Broker, call: Call) -> Struct | None:
        future: asyncio.Future[None] = broker.loop.create_future()
        if is_at_once:
            future.cancel()
        else:
            broker.loop.call_soon(future.cancel)
        await future
        return None

    supported = table[API_VERSIONS.key]
    with monkeypatch.context() as patch:
        patch.setitem(table, API_VERSIONS.key, supported._replace(handler=handler))  # of all servers here
        raw.send_bytes(versions(1))
        with pytest.raises(ConnectionEnded):
            raw.receive()
    with server.dial() as other:
        assert other.ask(API_VERSIONS, 0).error_code == 0
    assert "ApiVersions v3 failed; the connection is closed" in caplog.text
    assert "Fatal error" not in caplog.text
