"""A client over TLS chooses how much work its ciphertext is: no client has the loop, or memory, for that.

And ciphertext is all that it is sent.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import klamm
from klamm.kafka import response_writer
from klamm.kafka.broker import Broker
from klamm.kafka.call import Call
from klamm.kafka.security import tls
from klamm.kafka.security.tls import TlsTransport
from klamm.kafka.security.tls_records import AT_ONCE, TlsRecords
from klamm.kafka.wire.frames import request_frame
from klamm.kafka.wire.messages import API_VERSIONS, FETCH, METADATA
from klamm.kafka.wire.structs import Struct
from klamm.log.ranges import Range
from tests.crash.cases import seed_of
from tests.kafka.authorities import Authority
from tests.kafka.connect import Raw, Served, served
from tests.kafka.libssl import LibsslRaw
from tests.kafka.requests import FetchFrom, fetching
from tests.procs import PATIENCE, until


@pytest.fixture
def server(store: klamm.Store, tmp_path: Path) -> Iterator[Served]:
    keystore = Authority(tmp_path / "authority").server()
    with served(Path(store.path), listeners="SSL://127.0.0.1:0", ssl_keystore_location=str(keystore)) as running:
        yield running


def versions(number: int) -> bytes:
    return b"".join(request_frame(API_VERSIONS, 0, number, None, API_VERSIONS.request()))


def test_records_are_taken_in_order_and_so_many_at_once() -> None:
    chance = random.Random(seed_of())
    for _ in range(200):
        sizes = [chance.choice([0, 1, 22, 300, 16_401]) for _ in range(chance.randrange(1, 100))]
        sent = b"".join(b"\x17\3\3" + size.to_bytes(2, "big") + chance.randbytes(size) for size in sizes)
        ends = [5 * (at + 1) + sum(sizes[: at + 1]) for at in range(len(sizes))]
        records, taken, position = TlsRecords(), b"", 0
        while position < len(sent) or records.has_more:
            received = memoryview(sent)[position : position + chance.choice([1, 4, 5, 100, 32_768])]
            position += len(received)
            if chance.random() < 0.3:
                records.keep(received)
                continue
            before = len(taken)
            taken += bytes(records.take(received))
            assert sum(before < end <= len(taken) for end in ends) <= AT_ONCE + 1, "and the rest of one before"
        assert taken == sent


def test_one_who_sends_a_request_a_record_does_not_keep_the_others_waiting(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 300
    table = server.server.listener.admission.table
    supported = table[API_VERSIONS.key]

    def requests_before_the_other() -> int:
        """Return how many requests of the one are handled before that of the other, which came after all of them."""
        handled = list[object]()

        async def handler(broker: Broker, call: Call) -> Struct | None:
            handled.append(call.session)
            time.sleep(tls.TURN_S / 4)
            return await supported.handler(broker, call)

        is_held, may_go_on = threading.Event(), threading.Event()

        def hold() -> None:
            is_held.set()
            may_go_on.wait(PATIENCE)

        with LibsslRaw(server.address) as flood, LibsslRaw(server.address) as raw:
            for each in (flood, raw):
                each.ask(API_VERSIONS, 0)
            monkeypatch.setitem(table, API_VERSIONS.key, supported._replace(handler=handler))
            server.loop.call_soon_threadsafe(hold)  # both have sent everything when it looks
            assert is_held.wait(PATIENCE)
            flood.send_ciphertext(b"".join(flood.encrypt(versions(number)) for number in range(count)))
            raw.send_bytes(versions(1))
            may_go_on.set()
            raw.receive()
            assert [int.from_bytes(flood.receive()[:4], "big") for _ in range(count)] == list(range(count))
            monkeypatch.setitem(table, API_VERSIONS.key, supported)
        (other,) = (each for each, times in Counter(handled).items() if times == 1)
        assert len(handled) == count + 1
        return handled.index(other)

    for _ in range(5):  # the loop may look at the other one first, which shows nothing
        if before := requests_before_the_other():
            break
    assert before <= 2 * 4, "more than two turns of the other connection"


def test_a_client_that_changes_its_keys_again_and_again_gets_neither_loop_nor_memory(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each change costs the server two derivations of keys, and a message that the client need not read."""
    count, unread, at_once = 5000, list[int](), list[int]()
    flush, take = TlsTransport._flush, TlsRecords.take

    def flushed(self: TlsTransport) -> None:
        flush(self)
        unread.append(self._transport.get_write_buffer_size())

    def taken(self: TlsRecords, data: bytes | memoryview = b"", most: int = AT_ONCE) -> bytes | memoryview:
        records = take(self, data, most)
        at_once.append(len(records))
        return records

    with LibsslRaw(server.address) as raw:
        raw.ask(API_VERSIONS, 0)
        (channel,) = server.server.listener.connections
        given = channel._transport.get_extra_info("socket")
        raw._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        given.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        changes = raw.key_updates(count)
        monkeypatch.setattr(TlsTransport, "_flush", flushed)
        monkeypatch.setattr(TlsRecords, "take", taken)
        sender = threading.Thread(target=raw.send_ciphertext, args=(changes + raw.encrypt(versions(7)),))
        sender.start()
        until(lambda: any(unread), "the client has what it can hold")
        assert int.from_bytes(raw.receive()[:4], "big") == 7
        sender.join(PATIENCE)
    size = len(changes) // count
    assert max(at_once) <= (AT_ONCE + 1) * size
    assert max(unread) <= 2 * AT_ONCE * size, "of what was sent, no more than one turn's answers wait"


def test_requests_that_came_in_one_piece_with_one_that_waits_are_answered(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were received long ago, and nothing more comes."""
    monkeypatch.setattr(tls, "TURN_S", PATIENCE)
    waiting = b"".join(request_frame(FETCH, 12, 1, None, FETCH.request(**fetching({("orders", 0): 0}, wait_ms=50))))
    with LibsslRaw(server.address) as raw:
        raw.ask(API_VERSIONS, 0)
        frames = [waiting, *(versions(number) for number in range(2, 12))]
        raw.send_ciphertext(b"".join(map(raw.encrypt, frames)))
        assert [int.from_bytes(raw.receive()[:4], "big") for _ in frames] == list(range(1, 12))


def test_records_leave_a_tls_connection_as_ciphertext_and_a_plain_one_by_sendfile(
    store: klamm.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both at the same time, and with sockets that are full."""
    payload = [bytes([n]) * 500_000 for n in range(20)]
    store.append_many("orders", payload, partition=0, acks=1)
    send_file, descriptors = response_writer._send_file, set[int]()

    def counted(to: socket.socket, part: Range, size: int) -> int:
        descriptors.add(to.fileno())
        return send_file(to, part, size)

    monkeypatch.setattr(response_writer, "_send_file", counted)
    keystore, listeners = Authority(tmp_path / "authority").server(), "SSL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0"
    with served(Path(store.path), listeners=listeners, ssl_keystore_location=str(keystore)) as server:
        plain_address = f"127.0.0.1:{server.server.endpoints[1].port}"
        with LibsslRaw(server.address) as tls_raw, Raw(plain_address) as plain_raw:
            number = plain_raw.send(METADATA, 12, topics=None)
            assert int.from_bytes(plain_raw.receive()[:4], "big") == number
            for raw in (tls_raw, plain_raw):
                raw.send(FETCH, 12, **fetching({("orders", 0): FetchFrom(0, 20 << 20)}))
            channels = server.server.listener.connections
            until(lambda: sum(each.writer.is_busy for each in channels) == 2, "both sockets are full")
            plain_descriptor = {each.writer.fd for each in channels} - {-1}
            responses = [raw.receive() for raw in (tls_raw, plain_raw)]
        assert all(each in response for each in payload for response in responses)
    assert descriptors == plain_descriptor
    ciphertext, position, kinds = b"".join(tls_raw.received), 0, list[int]()
    while position < len(ciphertext):
        kinds.append(ciphertext[position])
        position += 5 + int.from_bytes(ciphertext[position + 3 : position + 5], "big")
    assert position == len(ciphertext) and set(kinds) <= {20, 22, 23}, "there is nothing between its records"
    assert not any(each[:100] in ciphertext for each in payload)
