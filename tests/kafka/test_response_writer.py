"""Responses of many pieces: whose turn it is, and what waits for what. Without a loop: a test takes the steps."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from klamm.kafka import response_writer
from klamm.kafka.response_writer import TURN_S, ResponseWriter
from klamm.kafka.security.tls import TlsResponseWriter
from klamm.kafka.unread import Unread
from klamm.log.ranges import Range, SegmentFile

MIB = 1 << 20
RESPONSE = b"".join(number.to_bytes(4, "big") for number in range(MIB // 4))


class Rig:
    """What a writer is given: a transport that takes everything, a clock that goes on whenever it is read, a loop."""

    def __init__(self, kind: type[ResponseWriter], given: socket.socket) -> None:
        self.sent = b""
        self.now = 0.0
        self.steps: list[Callable[[], None]] = []
        self.reads: list[Future[None]] = []
        unread = {name: Unread(100 * MIB, name) for name in ("unread_bytes", "unread_ranges")}
        loop = SimpleNamespace(call_soon=self.steps.append)
        listener: Any = SimpleNamespace(
            metrics=SimpleNamespace(bytes_out=0),
            now=self.tell_time,
            broker=SimpleNamespace(loop=loop, disk=self.read),
            **unread,
        )
        self.closed: list[str] = []
        transport: Any = self
        self.writer = kind(transport, given, listener, self.closed.append, self.on_turn)

    def tell_time(self) -> float:
        self.now += TURN_S / 4
        return self.now

    def read(self, *_: object) -> Future[None]:
        self.reads.append(Future())
        return self.reads[-1]

    def write(self, data: bytes) -> None:
        self.sent += data

    def on_turn(self) -> None:
        self.writer.send_on()


@pytest.fixture
def given() -> Iterator[socket.socket]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        yield ours


@pytest.fixture
def part(tmp_path: Path) -> Range:
    (tmp_path / "records").write_bytes(RESPONSE)
    return Range(SegmentFile(str(tmp_path / "records"), 0), 0, len(RESPONSE), 0, -1)


@pytest.mark.parametrize("is_file", [False, True])
def test_a_client_that_reads_as_fast_as_we_send_has_the_loop_for_a_turn(
    given: socket.socket, part: Range, is_file: bool
) -> None:
    rig = Rig(TlsResponseWriter, given)
    rig.writer.send([b"head", part if is_file else RESPONSE], 2 * MIB)
    longest = len(rig.sent)
    while rig.steps:
        assert rig.writer.is_busy
        before = len(rig.sent)
        rig.steps.pop(0)()
        longest = max(longest, len(rig.sent) - before)
        assert len(rig.steps) <= 1
    assert rig.sent == b"head" + RESPONSE
    assert longest < 8 * 16 * 1024, "a piece takes a quarter of a turn"
    assert not rig.writer.is_busy and not rig.closed
    rig.writer.close()


@pytest.mark.parametrize("kind", [ResponseWriter, TlsResponseWriter])
def test_what_a_thread_has_read_waits_until_the_socket_takes_more(
    given: socket.socket, part: Range, kind: type[ResponseWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else all of it would be in memory: over TLS, what OpenSSL sends by itself may fill the socket meanwhile."""
    monkeypatch.setattr(response_writer, "is_cached", lambda *_: False)
    rig = Rig(kind, given)
    rig.writer.send([b"", part], MIB)
    (reading,) = rig.reads
    rig.writer.pause()
    reading.set_result(None)
    assert not rig.sent and not rig.steps and rig.writer.is_busy
    rig.writer.resume()
    rig.writer.send_on()
    assert len(part) < len(RESPONSE), "it goes on"
    rig.writer.close()
