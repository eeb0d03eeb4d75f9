"""What does a check of ACLs cost, for each request to the Kafka door?

A store with --acls ACLs: of a thousand users, for topics by name and by prefix. `a check` is what a handler asks for
each topic of a request (`Session.may`): decisions are remembered until ACLs change. `the first check` is one that is
not remembered. Beside both: looking at each ACL, as it would be without an index. Microseconds of CPU of one check.
`a request` is the CPU that the server's loop takes for a Produce request with one small batch, with an authorizer and
beside it without.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import _harness as harness
import klamm
from klamm.batch import Builder
from klamm.kafka.server import Server
from klamm.kafka.settings import STANDARD_AUTHORIZER, ServerSettings
from klamm.kafka.wire.frames import request_frame
from klamm.kafka.wire.messages import METADATA, PRODUCE
from klamm.store.acl import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from klamm.store.acls import Acls

USERS = 1000
HOST = "127.0.0.1"
WANT_US = 2.0


def some_acls(count: int) -> list[Acl]:
    """Return rules as people have them: a prefix for each team, names, all topics for a few."""
    acls = [rule("User:ANONYMOUS", "orders", PatternType.LITERAL)]
    for number in range(count - 1):
        user, kind = f"User:user-{number % USERS}", number // USERS % 3
        name = ("*", f"team-{number % 97}.", f"team-{number % 97}.topic-{number}")[kind]
        acls.append(rule(user, name, PatternType.PREFIXED if kind == 1 else PatternType.LITERAL, number))
    return acls


def rule(user: str, name: str, pattern: PatternType, number: int = 1) -> Acl:
    operation = (Operation.READ, Operation.WRITE)[number % 2]
    return Acl(ResourceType.TOPIC, name, pattern, user, "*", operation, Permission.ALLOW)


class Serving:
    """A server in a thread, and one client."""

    def __init__(self, path: str, **settings: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.server = Server(path, ServerSettings.of({"kafka": 0, **settings}))
        self.run(self.server.start())
        self.socket = socket.create_connection((HOST, self.server.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.ask(b"".join(request_frame(METADATA, 9, 1, "bench", METADATA.request(topics=None))))

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def cpu_ns(self) -> int:
        async def used() -> int:
            return time.thread_time_ns()

        return int(self.run(used()))

    def ask(self, frame: bytes) -> bytes:
        self.socket.sendall(frame)
        data = b""
        while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
            data += self.socket.recv(1 << 20)
        return data

    def close(self) -> None:
        self.socket.close()
        self.run(self.server.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


def produce_frame() -> bytes:
    builder = Builder(1 << 20)
    builder.add(None, bytes(100), None, time.time_ns() // 1_000_000)
    part = PRODUCE.request.Partition(index=0, records=bytes(builder.seal()))
    topic = PRODUCE.request.Topic(name="orders", partition_data=[part])
    return b"".join(request_frame(PRODUCE, 9, 1, "bench", PRODUCE.request(acks=1, timeout_ms=1000, topic_data=[topic])))


def checks(check: Callable[[], bool], count: int) -> float:
    """Return the CPU of one, in µs."""
    began = time.thread_time_ns()
    for _ in range(count):
        check()
    return (time.thread_time_ns() - began) / count / 1000


def requests(serving: Serving, frame: bytes, count: int) -> float:
    assert b"orders" in serving.ask(frame)
    began = serving.cpu_ns()
    for _ in range(count):
        serving.ask(frame)
    return (serving.cpu_ns() - began) / count / 1000


def main() -> None:
    options = harness.arguments(
        __doc__.splitlines()[0], acls=(10_000, "rules of the store"), count=(20_000, "checks and requests a round")
    )
    size, count = (500, 200) if options.quick else (options.acls, options.count)
    with harness.folder() as path:
        with klamm.open(f"{path}/guarded") as store, klamm.open(f"{path}/open") as other:
            for each in (store, other):
                each.topics.create("orders")
            acls = some_acls(size)
            Acls(store._acquired().catalog).add(acls)
        guarded = Serving(f"{path}/guarded", authorizer_class_name=STANDARD_AUTHORIZER)
        opened = Serving(f"{path}/open")
        authorizer = guarded.server.broker.authorizer
        assert authorizer is not None
        (channel,) = guarded.server.listener.connections
        what = Operation.WRITE, ResourceType.TOPIC, "orders"
        chosen = AclFilter(ResourceType.TOPIC, "orders", PatternType.MATCH, "User:ANONYMOUS", None, Operation.WRITE)
        assert channel.session.may(*what)
        frame, index = produce_frame(), authorizer.index
        runs = harness.interleave(
            {
                "check": lambda: checks(lambda: channel.session.may(*what), count),
                "first": lambda: checks(lambda: index.allows("User:ANONYMOUS", HOST, *what), count),
                "scan": lambda: checks(lambda: bool(sum(map(chosen.matches, acls))), max(2, count // 5000)),
                "request": lambda: requests(guarded, frame, count),
                "unguarded": lambda: requests(opened, frame, count),
            },
            options.rounds,
        )
        guarded.close()
        opened.close()
    want = harness.at_most(WANT_US, "figure")
    more = {"unit": "µs", "acls": size}
    harness.answer("a check of ACLs", runs["check"], "looking at each ACL", runs["scan"], want, **more)
    harness.answer("the first check of ACLs", runs["first"], "looking at each ACL", runs["scan"], None, **more)
    extra = harness.median([a - b for a, b in zip(runs["request"], runs["unguarded"], strict=True)])
    harness.answer(
        "a request with ACLs",
        runs["request"],
        "without an authorizer",
        runs["unguarded"],
        None,
        difference=harness.digits(extra),
        **more,
    )


if __name__ == "__main__":
    main()
