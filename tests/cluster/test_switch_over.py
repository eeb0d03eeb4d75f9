"""The steps of docs/guide/from-laptop-to-cluster.md: programs that work move from a directory to three brokers."""

from __future__ import annotations

import itertools
import re
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka.admin
import pytest

import klamm
from tests.interop.brokers import fresh
from tests.interop.kafka_cluster import NODES, KafkaCluster
from tests.procs import PATIENCE, until
from tests.serving import KLAMM

pytestmark = pytest.mark.jvm

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "from-laptop-to-cluster.md"
PARTITIONS = 3
KEYS = 7
LONG_S = 4 * PATIENCE


def given_by_guide(pattern: str) -> str:
    """Return what the guide says to type."""
    found = re.search(f"`({pattern})`", GUIDE.read_text())
    assert found, f"the guide does not say {pattern!r}"
    return found[1]


class Program:
    """A producer and a consumer of a group: programs of which only the address changes."""

    def __init__(self, topic: str, group: str) -> None:
        self.topic, self.group = topic, group
        self.numbers = itertools.count()
        self.sent = 0
        self.seen: list[tuple[bytes, int]] = []
        self.is_slow = False
        """Whether the consumer handles nothing for now, so that it has not read everything when it is stopped."""
        self._threads: dict[str, tuple[threading.Thread, threading.Event]] = {}
        self._errors: list[BaseException] = []

    def start(self, address: str) -> None:
        for name, run in (("producer", self._produce), ("consumer", self._consume)):
            over = threading.Event()
            thread = threading.Thread(target=self._guarded, args=(run, address, over), daemon=True)
            self._threads[name] = thread, over
            thread.start()

    def stop(self, name: str) -> None:
        thread, over = self._threads[name]
        over.set()
        thread.join(2 * PATIENCE)
        assert not thread.is_alive()
        self.check()

    def check(self) -> bool:
        if self._errors:
            raise self._errors[0]
        return True

    def _guarded(self, run: Callable[[str, threading.Event], None], address: str, over: threading.Event) -> None:
        try:
            run(address, over)
        except BaseException as error:
            self._errors.append(error)

    def _produce(self, address: str, over: threading.Event) -> None:
        with klamm.open(address) as store, store.producer() as producer:
            while not over.is_set():
                number = next(self.numbers)
                producer.send(self.topic, b"%d" % number, key=b"%d" % (number % KEYS))
                self.sent = number + 1
                time.sleep(0.002)

    def _consume(self, address: str, over: threading.Event) -> None:
        with klamm.open(address) as store, store.consumer(self.topic, group=self.group) as consumer:
            while not over.is_set():
                if self.is_slow:
                    time.sleep(0.01)
                    continue
                batch = consumer.poll(timeout=0.1)
                self.seen += [(record.key, int(record.value)) for record in batch]
                if batch:
                    consumer.commit(batch)


@pytest.fixture
def commands() -> Iterator[Callable[..., Any]]:
    """Starts commands of `klamm`, and kills those that still run in the end."""
    started: list[subprocess.Popen[str]] = []

    def start(command: str, events: Path, address: str) -> subprocess.Popen[str]:
        name, *arguments = shlex.split(command)
        assert name == "klamm"
        filled = [
            str(events) if each == "events/" else f"kafka://{address}" if each.startswith("kafka://") else each
            for each in arguments
        ]
        started.append(subprocess.Popen([KLAMM, *filled], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=PATIENCE)


def ended(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=LONG_S)
    assert process.returncode == 0, output
    return output


def test_programs_switch_over_with_each_record_once(
    cluster: KafkaCluster, commands: Callable[..., Any], tmp_path: Path
) -> None:
    events, address = tmp_path / "events", cluster.address
    name, group = fresh("orders"), fresh("billing")
    follow = given_by_guide(r"klamm copy events/ kafka://\S+ --follow")
    create = given_by_guide(r"store\.topics\.create\([^`]+\)")
    program = Program(name, group)
    with klamm.open(events) as store:
        store.topics.create(name, PARTITIONS, retention_ms=-1)
    program.start(str(events))
    until(lambda: program.check() and program.sent > 200 and len(program.seen) > 50, "the programs work", LONG_S)

    with klamm.open(f"kafka://{address}") as store:  # three brokers have come
        made = eval(create.replace('"orders", 12', f"{name!r}, {PARTITIONS}"), {"store": store})
        assert made.info().settings["min.insync.replicas"] == "2"
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": address})
        replicas = admin.list_topics(name, timeout=PATIENCE).topics[name].partitions.values()
        assert [len(each.replicas) for each in replicas] == [NODES] * PARTITIONS

        copy = commands(follow, events, address)
        until(lambda: copy.poll() is None and made.info().count > 100, "the copy follows", LONG_S)
        program.is_slow, before = True, program.sent
        until(lambda: program.check() and program.sent > before + 200, "producers go on", LONG_S)

        program.stop("producer")
        copy.send_signal(signal.SIGINT)
        ended(copy)
        once = follow.removesuffix(" --follow")
        ended(commands(once, events, address))
        program.stop("consumer")
        handled = len(program.seen)
        ended(commands(once, events, address))
        with klamm.open(events) as old:
            lag = old.groups.describe(group).lag
        assert lag == program.sent - handled > 0
        assert store.groups.describe(group).lag >= lag  # and what only markers have

        program.is_slow, moved_at = False, program.sent
        program.start(f"kafka://{address}")
        until(lambda: program.check() and program.sent > moved_at + 200, "producers work on the cluster", LONG_S)
        program.stop("producer")
        until(lambda: program.check() and len(program.seen) >= program.sent, "the group has read everything", LONG_S)
        program.stop("consumer")

        with made.consumer(start="earliest", wait=0) as consumer:
            records = list(consumer)
    numbers = list(range(program.sent))
    assert sorted(int(record.value) for record in records) == numbers
    assert sorted(number for _, number in program.seen) == numbers
    for key in (b"%d" % n for n in range(KEYS)):
        of_key = [n for n in numbers if b"%d" % (n % KEYS) == key]
        assert [int(record.value) for record in records if record.key == key] == of_key
        assert [number for seen_key, number in program.seen if seen_key == key] == of_key
