"""Brokers of a cluster of three are killed while producers, a group and copies work: nothing acknowledged is lost."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka.admin
import pytest

import klamm
from klamm.errors import Unreachable
from tests.cluster.cluster_load import ClusterLoad, check_log, check_seen, numbers_of
from tests.cluster.conftest import SHORT_SESSIONS
from tests.crash.cases import seed_of
from tests.interop.brokers import fresh
from tests.interop.kafka_cluster import NODES, KafkaCluster
from tests.procs import PATIENCE, until
from tests.serving import KLAMM

pytestmark = pytest.mark.jvm

SOAK_SECONDS = float(os.environ.get("KLAMM_SOAK_SECONDS", "1800"))
LONG_S = 4 * PATIENCE  # for leaders to be elected and brokers to come back, on a busy machine


def until_slowly(holds: Callable[[], bool], what: str) -> None:
    """Wait for what takes a while to look at."""

    def look() -> bool:
        time.sleep(0.1)
        return holds()

    until(look, what, LONG_S)


class Metadata:
    """What the brokers say of a topic."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": cluster.address, "log_level": 0})

    def partitions(self, topic: str) -> dict[int, Any]:
        time.sleep(0.1)  # callers ask until something holds
        found: dict[int, Any] = self._admin.list_topics(topic, timeout=PATIENCE).topics[topic].partitions
        return found

    def leader(self, topic: str, partition: int = 0) -> int:
        """Return the id of the partition's leader."""
        return until(lambda: max(0, self.partitions(topic)[partition].leader), "there is a leader", LONG_S)

    def is_whole(self, *topics: str) -> bool:
        """Return whether all replicas are in sync."""
        try:
            parts = [part for topic in topics for part in self.partitions(topic).values()]
        except confluent_kafka.KafkaException:
            return False
        return bool(parts) and all(len(part.isrs) == NODES and part.leader > 0 for part in parts)


@pytest.fixture
def whole(cluster: KafkaCluster) -> Iterator[KafkaCluster]:
    """The cluster, all of whose brokers run again when the test has ended."""
    yield cluster
    cluster.revive()
    metadata = Metadata(cluster)
    until(lambda: metadata.is_whole("__consumer_offsets", "__transaction_state"), "replicas are in sync", LONG_S)


class Following:
    """`klamm copy --follow` as a process."""

    def __init__(self, *arguments: str, log: Path) -> None:
        self._log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen([KLAMM, "copy", *arguments, "--follow"], stdout=file, stderr=file)

    def check(self) -> bool:
        assert self.process.poll() is None, self._log.read_text(errors="replace")[-4000:]
        return True

    def end(self) -> None:
        self.check()
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(LONG_S) == 0, self._log.read_text(errors="replace")[-4000:]


@contextmanager
def following(*arguments: str, log: Path) -> Iterator[Following]:
    copy = Following(*arguments, log=log)
    try:
        yield copy
    finally:
        if copy.process.poll() is None:
            copy.process.kill()
        copy.process.wait(PATIENCE)


def contents(store: klamm.Store, topic: str) -> dict[int, list[tuple[Any, ...]]]:
    found: dict[int, list[tuple[Any, ...]]] = {}
    with store[topic].consumer(start="earliest", wait=0) as consumer:
        for record in consumer:
            found.setdefault(record.partition, []).append((record.timestamp, record.key, record.value))
    return found


class Scene:
    """Everything at work: a load on the cluster, a directory that is copied there, and a copy of the load's topic."""

    def __init__(self, cluster: KafkaCluster, directory: Path, seed: int, opened: ExitStack) -> None:
        self.cluster = cluster
        self.address = f"kafka://{cluster.address}{SHORT_SESSIONS}"
        self.metadata = Metadata(cluster)
        self.topic, self.group, self.laptop = fresh("orders"), fresh("billing"), fresh("laptop")
        self.store = opened.enter_context(klamm.open(self.address))
        self.store.topics.create(self.topic, 3, retention_ms=-1)
        self.source = opened.enter_context(klamm.open(directory / "laptop"))
        self.source.topics.create(self.laptop, 2, {"retention.ms": -1})
        self._over = threading.Event()
        self._writer = threading.Thread(target=self._write, daemon=True)
        self.load = opened.enter_context(ClusterLoad(self.address, self.topic, self.group, seed))
        self._writer.start()
        opened.callback(self._stop_writing)
        self.to_cluster = opened.enter_context(
            following(str(directory / "laptop"), self.address, log=directory / "to-cluster.log")
        )
        self._back = directory / "back"
        self.from_cluster = opened.enter_context(
            following(self.address, str(self._back), "--topics", self.topic, log=directory / "from-cluster.log")
        )

    def _write(self) -> None:
        number = 0
        while not self._over.wait(0.02):
            self.source.append(self.laptop, b"%d" % number, key=b"%d" % (number % 7), acks=1)
            number += 1

    def _stop_writing(self) -> None:
        self._over.set()
        self._writer.join(PATIENCE)

    def goes_on(self, count: int = 100) -> None:
        """Wait until more records were acknowledged, handled and copied both ways."""
        acked, handled = self.load.acked() + count, self.load.handled() + count
        until_slowly(lambda: self.load.acked() >= acked, f"{count} more are acknowledged")
        until_slowly(lambda: self.load.handled() >= handled, f"{count} more are handled")
        self.to_cluster.check()
        self.from_cluster.check()

    def kill(self, number: int) -> None:
        self.cluster.node(number).kill()

    def heal(self) -> None:
        """Start the killed brokers, and wait until their replicas are in sync."""
        self.cluster.revive()
        topics = (self.topic, "__consumer_offsets", "__transaction_state")
        until(lambda: self.metadata.is_whole(*topics), "replicas are in sync", LONG_S)

    def check(self) -> None:
        """Come to rest; then assert that nothing was lost, doubled or out of order."""
        load = self.load
        load.stop_producers()
        failed = [each.error for deliveries in load.sent.values() for each in deliveries if each.error is not None]
        assert not failed, failed[0]
        total = sum(map(len, load.sent.values()))
        until_slowly(lambda: load.handled() == total, "the group has read everything")
        load.stop_members()
        with self.store.consumer(self.topic, wait=0) as consumer:
            log = numbers_of(consumer)
        check_log(load, log)
        check_seen(load)
        assert sum(map(len, log.values())) == total
        until(lambda: self.store.groups.describe(self.group).lag == 0, "the group has committed everything", LONG_S)
        self._stop_writing()
        here, wanted = self.store, contents(self.source, self.laptop)
        until_slowly(
            lambda: self.to_cluster.check() and self.laptop in here.topics and contents(here, self.laptop) == wanted,
            "the directory is copied",
        )
        self.to_cluster.end()
        wanted = contents(here, self.topic)
        with klamm.open(self._back) as back:
            until_slowly(
                lambda: self.from_cluster.check() and contents(back, self.topic) == wanted, "the topic is copied"
            )
            self.from_cluster.end()
        assert contents(here, self.laptop) == contents(self.source, self.laptop)


def test_nothing_acknowledged_is_lost_when_the_leader_is_killed(whole: KafkaCluster, tmp_path: Path) -> None:
    with ExitStack() as opened:
        scene = Scene(whole, tmp_path, seed_of(), opened)
        scene.goes_on()
        scene.kill(scene.metadata.leader(scene.topic))
        scene.goes_on()
        scene.heal()
        scene.check()


@pytest.mark.soak  # librdkafka, which is to have a new producer id, uses a core until brokers are back
def test_with_two_brokers_down_an_append_is_refused_and_nothing_acknowledged_is_lost(whole: KafkaCluster) -> None:
    name = fresh("orders")
    address = f"kafka://{whole.address}"
    metadata = Metadata(whole)
    with klamm.open(address) as store:
        topic = store.topics.create(name, 1, retention_ms=-1)
        acked = [topic.append(b"%d" % n) for n in range(20)]
        assert acked == list(range(20))
    survivor = metadata.leader(name)
    downed = [number for number in range(1, NODES + 1) if number != survivor]
    with klamm.open(f"{address}?message.timeout.ms=4000") as store, store.producer() as producer:
        store.append(name, b"20")
        assert producer.send(name, b"21").result() == 21
        for number in downed:
            whole.node(number).kill()
        with pytest.raises(Unreachable) as raised:
            store.append(name, b"not acknowledged")
        assert "min.insync.replicas" in raised.value.message
        delivery = producer.send(name, b"nor this")
        with pytest.raises(Unreachable):
            producer.flush(LONG_S)
        assert isinstance(delivery.error, Unreachable)
        whole.revive()
        until(lambda: metadata.is_whole(name), "replicas are in sync", LONG_S)
        assert store.append(name, b"last") > 21
        with store.consumer(name, wait=0) as consumer:
            values = [record.value for record in consumer]
    assert values[:22] == [b"%d" % n for n in range(22)] and values[-1] == b"last"
    assert set(values[22:-1]) <= {b"not acknowledged", b"nor this"} and len(set(values)) == len(values)


@pytest.mark.soak
def test_brokers_are_killed_for_long(whole: KafkaCluster, tmp_path: Path) -> None:
    seed = seed_of()
    dice = random.Random(seed)
    until_s = time.monotonic() + SOAK_SECONDS
    rounds = 0
    while time.monotonic() < until_s:
        directory = tmp_path / str(rounds)
        directory.mkdir()
        with ExitStack() as opened:
            scene = Scene(whole, directory, seed + rounds, opened)
            for _ in range(4):
                scene.goes_on()
                kind = dice.choice(["leader", "any", "pause", "two"])
                print(f"round {rounds}: {kind}", flush=True)
                if kind == "pause":  # longer than its session: it is fenced, and comes back as another
                    node = dice.choice(whole.nodes)
                    os.kill(node.pid, signal.SIGSTOP)
                    time.sleep(dice.uniform(0.5, 8))
                    os.kill(node.pid, signal.SIGCONT)
                elif kind == "two":
                    for number in dice.sample(range(1, NODES + 1), 2):
                        scene.kill(number)
                    time.sleep(dice.uniform(0, 15))
                else:
                    leader = scene.metadata.leader(scene.topic, dice.randrange(3))
                    scene.kill(leader if kind == "leader" else dice.randint(1, NODES))
                    scene.goes_on()
                scene.heal()
            scene.check()
        rounds += 1
    assert rounds
