"""Replies that a thread sends when a log is synced: after the sync, once, and never to a socket that was given up."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from klamm.disk import _os
from klamm.log.head import Reply, Syncer
from tests.procs import PATIENCE, readable, until
from tests.rig import Rig, batch


class Wire(NamedTuple):
    """A syncer, and a connection."""

    fd: int
    syncer: Syncer[str]
    server: socket.socket
    client: socket.socket

    def start(self) -> None:
        """A thread, which ends with the test."""
        threading.Thread(target=self.syncer.run, daemon=True).start()

    def reply(self, data: bytes = b"done") -> Reply:
        return Reply(self.server.fileno(), data)


@pytest.fixture
def wire() -> Iterator[Wire]:
    server, client = socket.socketpair()
    made = Wire(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC), Syncer(-1), server, client)
    made = made._replace(syncer=Syncer(made.fd))
    client.settimeout(PATIENCE)
    server.setblocking(False)
    yield made
    made.syncer.stop()
    _os.trap(0)
    for each in (server, client):
        each.close()


def test_a_reply_is_sent_when_its_log_is_synced_and_the_loop_is_not_woken(rig: Rig, wire: Wire) -> None:
    partition = rig.partition(1)
    wire.start()
    for number in range(20):
        partition.append(batch(0, number))
        reply = wire.reply(b"%d" % number)
        wire.syncer.submit(partition.log, number + 1, f"{number}", reply)
        assert wire.client.recv(100) == b"%d" % number
        assert partition.log.flushed_offset == number + 1
        until(lambda reply=reply: wire.syncer.want(reply), "it is done")  # type: ignore[misc]
        assert wire.syncer.take() == [(f"{number}", 0)]
        assert reply.sent == len(b"%d" % number)
        assert reply.ended > 0
    assert not readable(wire.fd, 0) or os.eventfd_read(wire.fd) < 20, (
        "`want` may have come before the end, once in a while"
    )


def test_the_loop_is_not_woken_for_a_reply_that_was_sent(rig: Rig, wire: Wire) -> None:
    partition = rig.partition(1)
    partition.append(batch(0, 0))
    wire.start()
    wire.syncer.submit(partition.log, 1, "quiet", wire.reply())
    assert wire.client.recv(100) == b"done"
    other = rig.partition(2)
    wire.syncer.submit(other.log, 0, "loud")
    assert readable(wire.fd, PATIENCE)
    assert os.eventfd_read(wire.fd) == 1, "for the second alone: one thread does both, in order"
    assert sorted(wire.syncer.take()) == [("loud", 0), ("quiet", 0)]


def test_the_loop_is_woken_for_a_reply_if_it_waits(rig: Rig, wire: Wire) -> None:
    partition = rig.partition(1)
    partition.append(batch(0, 0))
    reply = wire.reply()
    wire.syncer.submit(partition.log, 1, "wanted", reply)
    assert not wire.syncer.want(reply)
    wire.start()
    assert readable(wire.fd, PATIENCE)
    assert wire.client.recv(100) == b"done"
    assert wire.syncer.want(reply)
    assert wire.syncer.take() == [("wanted", 0)]


def test_nothing_is_sent_of_a_reply_that_was_withdrawn(rig: Rig, wire: Wire) -> None:
    partition = rig.partition(1)
    partition.append(batch(0, 0))
    reply = wire.reply()
    wire.syncer.submit(partition.log, 1, "withdrawn", reply)
    wire.syncer.withdraw(reply)
    wire.start()
    assert readable(wire.fd, PATIENCE)
    assert wire.syncer.take() == [("withdrawn", 0)]
    assert reply.sent == 0
    assert not readable(wire.client.fileno(), 0)


def test_nothing_is_sent_where_the_sync_failed(rig: Rig, wire: Wire) -> None:
    partition = rig.partition(1)
    partition.append(batch(0, 0))
    partition.sync(1)
    partition.append(batch(0, 1))
    _os.trap(1, kinds=_os.SYNC, error=errno.EIO)
    reply = wire.reply()
    wire.syncer.submit(partition.log, 2, "failed", reply)
    wire.start()
    assert readable(wire.fd, PATIENCE)
    assert wire.syncer.take() == [("failed", -errno.EIO)]
    assert reply.sent == 0
    assert not readable(wire.client.fileno(), 0)


def test_the_loop_is_woken_to_send_what_the_socket_did_not_take(rig: Rig, wire: Wire) -> None:
    partition = rig.partition(1)
    partition.append(batch(0, 0))
    large = bytes(16 << 20)
    reply = wire.reply(large)
    wire.syncer.submit(partition.log, 1, "large", reply)
    wire.start()
    assert readable(wire.fd, PATIENCE)
    assert wire.syncer.take() == [("large", 0)]
    assert 0 < reply.sent < len(large)
    again = wire.reply()
    wire.syncer.submit(partition.log, 1, "full", again)
    until(lambda: wire.syncer.take() == [("full", 0)], "it is done")
    assert again.sent == 0


def test_connections_are_closed_while_threads_send(rig: Rig, wire: Wire) -> None:
    """After `withdraw` the descriptor can be another's: what has it next gets none of the replies."""
    partition = rig.partition(1)
    partition.append(batch(0, 0))
    for _ in range(2):
        wire.start()
    again = 0
    for number in range(300):
        server, client = socket.socketpair()
        reply = Reply(server.fileno(), b"for the first")
        wire.syncer.submit(partition.log, 1, f"{number}", reply)
        wire.syncer.withdraw(reply)
        descriptor = server.fileno()
        server.close()
        client.close()
        next_server, next_client = socket.socketpair()
        again += descriptor in (next_server.fileno(), next_client.fileno())  # unless a thread has just opened a file
        until(lambda reply=reply: wire.syncer.want(reply), "it is done")  # type: ignore[misc]
        assert not readable(next_server.fileno(), 0)
        assert not readable(next_client.fileno(), 0)
        next_server.close()
        next_client.close()
    assert again > 200
