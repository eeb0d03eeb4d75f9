"""How do the server's rates and the way of one record compare with Redis Streams and NATS JetStream?

Records of 100 B into one stream and out again, on one connection, by a client that costs next to nothing: it sends
bytes that were prepared, and counts responses. At most 8,000 records are in flight, in pieces of 1,000:

    Klamm    `klamm serve`; a Produce request of one batch of 1,000 records; Fetch requests of up to 1 MiB
    Redis    1,000 XADD commands; XREAD with COUNT 1000
    NATS     1,000 messages, each with a reply subject, as JetStream wants it; a push consumer without acknowledgements

Redis and NATS have no batches: each record is a command of its own, which is what their servers' CPU goes to. One
record: a request, its response, no client in between; p50 of each round. The promise is the same on both sides:

    page cache   Klamm: acks=1. Redis: appendonly, appendfsync everysec: written at once, synced each second. NATS: file
                 storage, written at once, synced every two minutes
    on disk      Klamm: acks=all. Redis: appendfsync always. NATS: not before 2.10, and Debian has 2.9

Needs Debian's redis-server and nats-server.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import _harness as harness
import _kafka as kafka
from klamm.batch import Builder, walk
from klamm.kafka.wire.frames import read_response, request_frame
from klamm.kafka.wire.messages import PRODUCE
from tests.kafka.requests import fetch

SIZE = 100
PIECE = 1000  # records
IN_FLIGHT = 8  # pieces
FIRST = 50  # not counted
VALUE = b"v" * SIZE


class Lines:
    """A connection that counts how often a pattern has come."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=kafka.PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def receive(self) -> bytes:
        data = self.socket.recv(1 << 18)
        if not data:
            raise RuntimeError("the server has closed the connection")
        return data

    def wait_for(self, pattern: bytes, count: int, failure: bytes) -> int:
        """Receive until `pattern` has come at least `count` times; return how often it came."""
        seen = 0
        while seen < count:
            data = self._rest + self.receive()
            if failure in data:
                raise RuntimeError(data[:300])
            seen += data.count(pattern)
            end = data.rfind(pattern)
            self._rest = data[max(end + len(pattern) if end >= 0 else 0, len(data) - len(pattern) + 1) :]
        return seen

    def ask(self, request: bytes, *end: bytes) -> bytes:
        """Send a request and return its response, which ends with one of these."""
        self.socket.sendall(request)
        data = b""
        while not data.endswith(end):
            data += self.receive()
        return data


class KlammStream:
    """A topic of one partition."""

    def __init__(self, server: kafka.Server, on_disk: bool) -> None:
        self.server, self.topic = server, server.topic()
        self._acks = "all" if on_disk else "1"
        self._raw = kafka.Raw(server.address)

    def _frame(self, count: int) -> bytes:
        batch = Builder(1 << 20)
        for _ in range(count):
            batch.add(None, VALUE, None, int(time.time() * 1000))
        request = PRODUCE.request
        data = [
            request.Topic(name=self.topic, partition_data=[request.Partition(index=0, records=bytes(batch.seal(0)))])
        ]
        whole = request(acks=-1 if self._acks == "all" else 1, timeout_ms=30_000, topic_data=data)
        return b"".join(request_frame(PRODUCE, 9, 1, "bench", whole))

    def _acknowledged(self) -> None:
        _, response = read_response(PRODUCE, 9, self._raw.receive())
        assert response.responses[0].partition_responses[0].error_code == 0, response

    def produce(self, pieces: int) -> None:
        frame, waiting = self._frame(PIECE), 0
        for _ in range(pieces):
            if waiting == IN_FLIGHT:
                self._acknowledged()
                waiting -= 1
            self._raw.send_bytes(frame)
            waiting += 1
        for _ in range(waiting):
            self._acknowledged()

    def consume(self, count: int) -> None:
        offset = 0
        while offset < count:
            partition = fetch(self._raw, self.topic, offset)
            for header in walk(partition.records):
                offset = header.next_offset

    def one(self, count: int) -> list[float]:
        frame = self._frame(1)
        return timed(lambda: self._raw.send_bytes(frame), self._acknowledged, count)

    def close(self) -> None:
        self._raw.close()
        self.server.delete(self.topic)


class RedisStream:
    """A stream, written with one field."""

    ADD = b"*5\r\n$4\r\nXADD\r\n$%d\r\n%s\r\n$1\r\n*\r\n$1\r\nv\r\n$%d\r\n%s\r\n"
    FIELD = b"$1\r\nv\r\n"
    TAIL = len(b"$100\r\n") + SIZE + 2  # what follows FIELD in an entry

    def __init__(self, server: kafka.Server, on_disk: bool) -> None:
        self._lines = Lines(server.address)
        self.key = f"bench-{secrets.token_hex(4)}".encode()
        self._lines.ask(f"CONFIG SET appendfsync {'always' if on_disk else 'everysec'}\r\n".encode(), b"+OK\r\n")
        self._add = self.ADD % (len(self.key), self.key, SIZE, VALUE)

    def produce(self, pieces: int) -> None:
        pipeline(self._lines, self._add * PIECE, pieces, b"$", b"-ERR")

    def consume(self, count: int) -> None:
        last, seen = b"0", 0
        while seen < count:
            self._lines.socket.sendall(b"XREAD COUNT %d STREAMS %s %s\r\n" % (PIECE, self.key, last))
            wanted = min(PIECE, count - seen)
            data, found = b"", 0
            while found < wanted or len(data) < data.rfind(self.FIELD) + len(self.FIELD) + self.TAIL:
                more = self._lines.receive()
                data += more
                found = data.count(self.FIELD)
            end = data.rfind(self.FIELD) - len(b"\r\n*2\r\n")
            last = data[data.rfind(b"\n", 0, end) + 1 : end]
            seen += found

    def one(self, count: int) -> list[float]:
        return timed(lambda: self._lines.socket.sendall(self._add), self._lines.receive, count)

    def close(self) -> None:
        self._lines.ask(b"DEL %s\r\n" % self.key, b":1\r\n")
        self._lines.socket.close()


class NatsStream:
    """A JetStream stream in files, of one subject."""

    def __init__(self, server: kafka.Server, on_disk: bool) -> None:
        assert not on_disk
        self._lines = Lines(server.address)
        self.name = f"bench-{secrets.token_hex(4)}"
        self._lines.receive()  # INFO
        self._lines.socket.sendall(b'CONNECT {"verbose":false,"pedantic":false}\r\nSUB answers 1\r\n')
        self._ask("STREAM.CREATE." + self.name, name=self.name, subjects=[self.name], storage="file")
        self._put = b"PUB %s answers %d\r\n%s\r\n" % (self.name.encode(), SIZE, VALUE)

    def _ask(self, what: str, **fields: object) -> None:
        body = json.dumps(fields).encode()
        answer = self._lines.ask(b"PUB $JS.API.%s answers %d\r\n%s\r\n" % (what.encode(), len(body), body), b"}\r\n")
        if b'"error"' in answer:
            raise RuntimeError(answer)

    def produce(self, pieces: int) -> None:
        pipeline(self._lines, self._put * PIECE, pieces, b"MSG answers", b'"error"')

    def consume(self, count: int) -> None:
        self._lines.socket.sendall(b"SUB delivered 2\r\n")
        config = {"deliver_subject": "delivered", "ack_policy": "none", "deliver_policy": "all"}
        body = json.dumps({"stream_name": self.name, "config": config}).encode()
        name = self.name.encode()
        self._lines.socket.sendall(b"PUB $JS.API.CONSUMER.CREATE.%s answers %d\r\n%s\r\n" % (name, len(body), body))
        self._lines.wait_for(b"MSG %s 2 " % name, count, b'"error"')
        self._lines.ask(b"UNSUB 2\r\nPING\r\n", b"PONG\r\n")

    def one(self, count: int) -> list[float]:
        return timed(lambda: self._lines.socket.sendall(self._put), self._lines.receive, count)

    def close(self) -> None:
        self._ask("STREAM.DELETE." + self.name)
        self._lines.socket.close()


def pipeline(lines: Lines, piece: bytes, pieces: int, pattern: bytes, failure: bytes) -> None:
    """Send a piece so often, and wait for a response to each of its records."""
    sent = answered = 0
    while answered < pieces * PIECE:
        if sent < pieces and sent * PIECE - answered <= (IN_FLIGHT - 1) * PIECE:
            lines.socket.sendall(piece)
            sent += 1
        else:
            answered += lines.wait_for(pattern, 1, failure)


def timed(send, receive, count: int) -> list[float]:
    """Return microseconds of each request."""
    times = []
    for _ in range(count + FIRST):
        before = time.perf_counter_ns()
        send()
        receive()
        times.append((time.perf_counter_ns() - before) / 1000)
    return times[FIRST:]


# ---- servers


class Peer(kafka.Server):
    """A server that speaks another protocol."""

    def wait(self) -> None:
        end = time.monotonic() + kafka.PATIENCE_S
        while True:
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{self.name} does not listen: {self.log.read_text(errors='replace')[-4000:]}")
            with contextlib.suppress(OSError), Lines(self.address):
                return
            time.sleep(0.01)


def start_redis(directory: str) -> Peer:
    port = kafka.free_port()
    settings = {"port": port, "bind": "127.0.0.1", "dir": directory, "appendonly": "yes", "save": ""}
    settings |= {"auto-aof-rewrite-percentage": 0, "daemonize": "no"}
    command = [str(word) for name, value in settings.items() for word in (f"--{name}", value)]
    return Peer("Redis", ["redis-server", *command], port, Path(directory, "redis.log"))


def start_nats(directory: str) -> Peer:
    port = kafka.free_port()
    file = Path(directory, "nats.conf")
    file.write_text(f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{directory}/store" }}\n')
    return Peer("NATS", ["nats-server", "-c", str(file)], port, Path(directory, "nats.log"))


STREAMS = {"klamm": KlammStream, "redis": RedisStream, "nats": NatsStream}
STARTS = {"klamm": kafka.start_klamm, "redis": start_redis, "nats": start_nats}


def versions() -> dict[str, str]:
    """Return the names of the peers that are installed."""
    found = {}
    for name, program, shown in (("redis", "redis-server", "Redis"), ("nats", "nats-server", "NATS")):
        if shutil.which(program) is None:
            raise SystemExit(f"there is no {program} to compare with: apt-get install redis-server nats-server")
        said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
        number = re.search(r"v=?(\d+(?:\.\d+)+)", said)
        assert number
        found[name] = f"{shown} {number[1]}"
    return found


@contextlib.contextmanager
def servers() -> Iterator[dict[str, kafka.Server]]:
    with harness.folder() as path, contextlib.ExitStack() as stack:
        started = {}
        for name, start in STARTS.items():
            os.mkdir(f"{path}/{name}")
            started[name] = start(f"{path}/{name}")
            stack.callback(started[name].stop)
        for server in started.values():
            server.wait()
        yield started


def rates(name: str, server: kafka.Server, on_disk: bool, pieces: int) -> tuple[kafka.Load, kafka.Load]:
    """Return what it took to put records into a new stream, and to get them out."""
    stream = STREAMS[name](server, on_disk)
    loads = []
    for work in (lambda: stream.produce(pieces), lambda: stream.consume(pieces * PIECE)):
        cpu, begin = server.cpu(), time.perf_counter()
        work()
        loads.append(kafka.Load(pieces * PIECE, time.perf_counter() - begin, server.cpu() - cpu))
    stream.close()
    return loads[0], loads[1]


def one_record(name: str, server: kafka.Server, on_disk: bool, count: int) -> list[float]:
    stream = STREAMS[name](server, on_disk)
    times = stream.one(count)
    stream.close()
    return times


def main() -> None:
    options = harness.arguments(
        __doc__.splitlines()[0], pieces=(500, "of 1,000 records a round"), count=(2000, "of one")
    )
    pieces, count = (20, 20) if options.quick else (options.pieces, options.count)
    peers = versions()
    with servers() as started:
        for on_disk, names in ((False, ["klamm", "redis", "nats"]), (True, ["klamm", "redis"])):
            promise = "on disk" if on_disk else "page cache"
            if options.only not in promise:
                continue
            sides = {name: started[name] for name in names}
            loads = harness.interleave(
                {name: lambda n=name, s=server, d=on_disk: rates(n, s, d, pieces) for name, server in sides.items()},
                options.rounds,
            )
            for peer in names[1:]:
                for at, way in enumerate(("produce", "consume")):
                    if on_disk and way == "consume":
                        continue  # reads do not depend on it
                    ours, theirs = ([load[at] for load in loads[name]] for name in ("klamm", peer))
                    question = f"{way} 100 B, {promise}"
                    kafka.answer_rate(question, ours, peers[peer], theirs)
                    kafka.answer_cpu(f"{question}, the server's CPU", ours, peers[peer], theirs, 0.5)
            times = harness.interleave(
                {
                    name: lambda n=name, s=server, d=on_disk: one_record(n, s, d, count)
                    for name, server in sides.items()
                },
                options.rounds,
            )
            p50 = {name: [harness.percentile(run, 50) for run in runs] for name, runs in times.items()}
            for peer in names[1:]:
                harness.answer(
                    f"one record, {promise}",
                    p50["klamm"],
                    peers[peer],
                    p50[peer],
                    harness.at_most(1),
                    unit="µs p50",
                    count=count,
                )


if __name__ == "__main__":
    main()
