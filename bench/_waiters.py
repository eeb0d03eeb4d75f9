"""Thousands of consumers in one process: bare sockets with a Fetch outstanding on each, and no client around them.

They run in a process of their own, so that what they cost is not taken for the server's.
"""

from __future__ import annotations

import contextlib
import resource
import select
import socket
import time
from typing import Any

from _processes import _spawn
from klamm.kafka.wire.frames import read_response, request_frame
from klamm.kafka.wire.messages import FETCH

FETCH_VERSION = 12  # the last that names topics
AT_A_TIME = 200  # connections that are made without a pause


def fetch_frame(topic: str, offset: int, wait_ms: int) -> bytes:
    request = FETCH.request
    one = request.Partition(
        partition=0,
        current_leader_epoch=-1,
        fetch_offset=offset,
        last_fetched_epoch=-1,
        log_start_offset=-1,
        partition_max_bytes=1 << 20,
    )
    whole = request(
        replica_id=-1,
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=50 << 20,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[request.Topic(topic=topic, partitions=[one])],
        forgotten_topics_data=[],
        rack_id="",
    )
    return b"".join(request_frame(FETCH, FETCH_VERSION, 1, "waiter", whole))


class Waiters:
    """`count` connections, each with a fetch that waits; a fetch that is answered is followed by the next."""

    def __init__(self, address: str, topic: str, count: int, wait_ms: int, spread_s: float = 0.0) -> None:
        """`spread_s`: over how long their first fetches are spread, so that they do not all end at once."""
        self._pipe, theirs = _spawn.Pipe()
        self._process = _spawn.Process(target=_wait, args=(theirs, address, topic, count, wait_ms, spread_s))
        self._process.start()
        theirs.close()
        self._expect("connected")

    def _expect(self, what: str) -> Any:
        if not self._pipe.poll(300):
            raise RuntimeError(f"the waiters are not {what}")
        said, value = self._pipe.recv()
        if said != what:
            raise RuntimeError(f"the waiters are {said}: {value}")
        return value

    def answers(self) -> int:
        """How many fetches were answered so far."""
        self._pipe.send("answers")
        return int(self._expect("answers"))

    def arrivals(self) -> list[int]:
        """When each had the next record, by perf_counter_ns, after all have it."""
        self._pipe.send("arrivals")
        return list(self._expect("arrivals"))

    def close(self) -> None:
        self._process.kill()
        self._process.join()


def _wait(pipe: Any, address: str, topic: str, count: int, wait_ms: int, spread_s: float) -> None:
    try:
        _serve(pipe, address, topic, count, wait_ms, spread_s)
    except (OSError, RuntimeError, EOFError) as error:
        with contextlib.suppress(OSError):
            pipe.send(("broken", repr(error)))


def _serve(pipe: Any, address: str, topic: str, count: int, wait_ms: int, spread_s: float) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    host, port = address.rsplit(":", 1)
    poller = select.epoll()
    sockets: dict[int, socket.socket] = {}
    offset = 0
    frame = fetch_frame(topic, offset, wait_ms)
    for number in range(count):
        made = socket.create_connection((host, int(port)), timeout=60)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sockets[made.fileno()] = made
        if number % AT_A_TIME == AT_A_TIME - 1:
            time.sleep(0.005)
    begin = time.monotonic()
    for number, (fd, made) in enumerate(sockets.items()):
        if spread_s:
            time.sleep(max(0.0, begin + spread_s * number / count - time.monotonic()))
        made.sendall(frame)
        made.setblocking(False)
        poller.register(fd, select.EPOLLIN)
    pipe.send(("connected", None))
    poller.register(pipe.fileno(), select.EPOLLIN)
    answers = 0
    parts: dict[int, bytes] = {}
    arrivals: list[int] = []
    asked = False  # for arrivals
    empty = 0  # the size of an answer without records
    while True:
        for fd, _ in poller.poll():
            if fd == pipe.fileno():
                if pipe.recv() == "answers":
                    pipe.send(("answers", answers))
                else:
                    asked = True
                continue
            data = parts.pop(fd, b"") + sockets[fd].recv(1 << 16)
            now = time.perf_counter_ns()
            if not data:
                raise RuntimeError("the server has closed a connection")
            if len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
                parts[fd] = data
                continue
            answers += 1
            if len(data) != empty:
                found = _records(data)
                if found:
                    arrivals.append(now)
                    if found != offset:
                        offset, frame = found, fetch_frame(topic, found, wait_ms)
                else:
                    empty = len(data)
            sockets[fd].send(frame)
        if asked and len(arrivals) >= count:
            pipe.send(("arrivals", arrivals))
            asked, arrivals = False, []


_next: dict[bytes, int] = {}


def _records(data: bytes) -> int:
    """The offset after the records of an answer; 0 if it has none."""
    known = _next.get(data)
    if known is None:
        _, response = read_response(FETCH, FETCH_VERSION, data[4:])
        (topic,) = response.responses
        (one,) = topic.partitions
        if response.error_code or one.error_code:
            raise RuntimeError(f"a fetch was refused: {response}")
        known = one.high_watermark if one.records else 0
        _next.clear()
        _next[data] = known
    return known
