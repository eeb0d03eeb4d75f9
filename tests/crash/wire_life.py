"""What a role of wire_workload.py is given: clients of a server, calls whose errors are looked up, polls.

Each error is looked up in client_errors.py and written down (`met`). What might hide a fault is written down before the
process dies of it, and counted by test_wire_histories.py:

    went_back   librdkafka began again where it had begun before, though it had read further
    hung        a call did not return within HANGS_S, whatever timeout it was given; or (by the nemesis) a process did
                not end
    crashed     (by the nemesis) librdkafka ended its process by SIGSEGV or SIGABRT
"""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer

from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.wire.messages import METADATA
from tests.crash.client_errors import Action
from tests.crash.history import Recorder, now
from tests.crash.jepsen_workload import IN, Life
from tests.interop.raw import ConnectionEnded, Raw
from tests.messages import offset_of, place_of, value_of
from tests.procs import until

PATIENCE_S = 60.0
API_S = 2.0  # the timeout that blocking calls are given
HANGS_S = 10.0
STRATEGIES = ["range", "roundrobin", "cooperative-sticky"]
SERVER_LIVES = "server-lives"  # a file: how often a server was started


class MustAbort(Exception):
    """The transaction has failed: see Action.ABORT."""


class MustEnd(Exception):
    """This life ends, and another one takes its place: see Action.END."""


class MustAsk(Exception):
    """The producer is in a state that it did not tell: see Action.ASK."""


class WireLife(Life):
    """What a role is given that talks to a server. It has the store as well, for those that open it."""

    def __init__(self, directory: Path, store: str, slot: str, life: int, seed: int, patience_ms: int, port: int):
        super().__init__(directory, store, slot, life, seed, patience_ms)
        self.address = f"127.0.0.1:{port}"
        self.strategy = random.Random(seed).choice(STRATEGIES)  # of whole groups
        self.membership = b""  # of the last assignment: group, member and generation, as librdkafka spells them
        self.positions: dict[tuple[str, int], int] = {}  # where to go on, as far as that is known
        self.begun: dict[tuple[str, int], int] = {}  # the last commit of a partition, until it is stored
        self.failed: set[tuple[str, int]] = set()  # partitions of which that has failed
        faulthandler.register(signal.SIGUSR1, all_threads=True)  # the nemesis asks one that hangs where it is
        self._polled: list[Message] = []  # not written down yet
        self._since = 0

    @property
    def number(self) -> int:
        return int(self.slot.rpartition("-")[2])

    def server_lives(self) -> str:
        """Return how often a server was started."""
        path = self.directory / SERVER_LIVES
        return path.read_text() if path.exists() else ""

    def wire_partitions(self) -> int:
        """Return how many partitions the topics have, as the server says it: by hand, for a client of librdkafka that
        was made while its server was away may never connect.
        """

        def count() -> int:
            try:
                with Raw(self.address, self.name, patience=5) as raw:
                    topics = [METADATA.request.Topic(name=IN)]
                    (topic,) = raw.ask(METADATA, 12, topics=topics, allow_auto_topic_creation=False).topics
            except (ConnectionEnded, OSError):
                return 0
            assert topic.error_code == 0, f"{self.name}: {ErrorCode(topic.error_code).name}"
            return len(topic.partitions)

        return until(count, f"{self.name} sees the topic", PATIENCE_S)

    # ---- clients

    def settings(self, **more: Any) -> dict[str, Any]:
        """Names with _ for dots. Servers come back soon, so clients look soon."""
        usual = {
            "bootstrap.servers": self.address,
            "client.id": self.name,
            "log_level": 0,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 100,
            "retry.backoff.ms": 20,
            "topic.metadata.refresh.fast.interval.ms": 20,
        }
        if debug := os.environ.get("KLAMM_WIRE_DEBUG"):
            usual |= {"log_level": 7, "debug": debug}
        calls = ("on_", "error_")
        named = {name if name.startswith(calls) else name.replace("_", "."): value for name, value in more.items()}
        return usual | named

    def producer(self, **settings: Any) -> Producer:
        def on_event(error: KafkaError) -> None:
            self.look_up("event", error, only=Action.GO_ON)

        return Producer(self.settings(linger_ms=self.dice.choice([0, 1, 5]), error_cb=on_event, **settings))

    def consumer(self, **settings: Any) -> Consumer:
        return Consumer(self.settings(enable_auto_commit=False, fetch_wait_max_ms=100, check_crcs=True, **settings))

    # ---- calls

    def call(self, name: str, do: Callable[..., Any], *given: Any) -> Any:
        """Return what `do` returns, None if it failed and the role goes on. MustAbort, MustEnd: as the table says."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                with self.bounded(name):
                    return do(*given)
            except KafkaException as error:
                action = self.look_up(name, error.args[0])
                if action is not Action.AGAIN:
                    self.follow(action)
                    return None
                if time.monotonic() > deadline:
                    raise
            except SystemError as error:  # of the client's binding: "exception <class 'str'> is not a BaseException"
                self.record("crashed", call=name, error=str(error))
                os.kill(os.getpid(), signal.SIGKILL)

    def follow(self, action: Action) -> None:
        if action is Action.ABORT:
            raise MustAbort
        if action is Action.END:
            raise MustEnd
        if action is Action.ASK:
            raise MustAsk
        assert action is Action.GO_ON, action

    @contextmanager
    def bounded(self, call: str) -> Iterator[None]:
        """librdkafka may wait forever for the coordinator of a group, if that goes away in the right moment, whatever
        timeout it was given. Such a process is killed as any other.
        """

        def give_up() -> None:
            self.record("hung", call=call)
            faulthandler.dump_traceback(all_threads=True)
            os.kill(os.getpid(), signal.SIGKILL)

        killer = threading.Timer(HANGS_S, give_up)
        killer.daemon = True
        killer.start()
        try:
            yield
        finally:
            killer.cancel()

    # ---- polls

    def wire_poll(self, consumer: Consumer) -> list[Message]:
        """Return the next records, without those of partitions that were revoked or lost in the meantime."""
        self._since = now()
        most, wait_s = self.dice.choice([1, 10, 50, 500]), 0.02
        polled: list[tuple[Message, int]] = []
        while len(polled) < most and (message := consumer.poll(wait_s)) is not None:
            error = message.error()
            if error is None:
                self._step(message)
                polled.append((message, self.left[place_of(message)]))
                self._polled.append(message)
                wait_s = 0.0
            else:
                self.follow(self.look_up("poll", error))
        self.tell_polls()
        return [message for message, left in polled if left == self.left[place_of(message)]]

    def _step(self, message: Message) -> None:
        """Now and then librdkafka begins again where it once began, though it knows better, and is told nothing else:
        so its own slip is not written down as ours. It is not allowed to begin elsewhere than at a committed offset:
        then the server would have said that there is none, or that it is out of range, and that is an error here.
        """
        place = place_of(message)
        if offset_of(message) < self.positions.get(place, 0):
            begin, end = offset_of(message), self.positions[place]
            self.record("went_back", topic=place[0], partition=place[1], begin=begin, end=end)
            os.kill(os.getpid(), signal.SIGKILL)
        self.positions[place] = offset_of(message) + 1

    def tell_polls(self) -> None:
        """Write down what was polled: before anything else happens to its partitions."""
        polled, self._polled = self._polled, []
        record_messages(self.record, self._since, polled)


def record_messages(record: Recorder, since: int, messages: list[Message]) -> None:
    """Write down a poll of each partition: from its first record to its last."""
    for (topic, partition), each in by_place(messages).items():
        record(
            "polled",
            since=since,
            topic=topic,
            partition=partition,
            begin=each[0].offset(),
            end=offset_of(each[-1]) + 1,
            records=[[offset_of(message), value_of(message).decode()] for message in each],
        )


def by_place(messages: list[Message]) -> dict[tuple[str, int], list[Message]]:
    found: dict[tuple[str, int], list[Message]] = {}
    for message in messages:
        found.setdefault(place_of(message), []).append(message)
    return found


__all__ = [
    "API_S",
    "HANGS_S",
    "PATIENCE_S",
    "SERVER_LIVES",
    "STRATEGIES",
    "MustAbort",
    "MustAsk",
    "MustEnd",
    "WireLife",
    "by_place",
    "place_of",
    "record_messages",
]
