"""Stores of three kinds under the same tests: a directory, `klamm serve`, and three brokers of Apache Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import klamm
from tests.interop.brokers import _apache_ahead, fresh, klamm_broker  # noqa: F401
from tests.interop.java_tools import need_kafka
from tests.interop.kafka_cluster import KafkaCluster

SHORT_SESSIONS = "?session.timeout.ms=6000&heartbeat.interval.ms=200"
KINDS = [
    "directory",
    "server",
    pytest.param("cluster", marks=pytest.mark.jvm),
]


@pytest.fixture(scope="session")
def _cluster_ahead(request: pytest.FixtureRequest) -> Iterator[list[KafkaCluster]]:
    """Begin to start the cluster as soon as a test of this folder runs, if a later one needs it."""
    begun: list[KafkaCluster] = []
    if any("cluster" in _fixtures_of(item) for item in request.session.items):
        try:
            need_kafka()
            begun.append(KafkaCluster())
        except pytest.skip.Exception:
            pass  # those who need it will say so
    yield begun
    for cluster in begun:
        cluster.stop()


def _fixtures_of(item: pytest.Item) -> set[str]:
    """Return what a test needs, be it named in a parameter."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return {*getattr(item, "fixturenames", ()), *(value for value in parameters.values() if isinstance(value, str))}


@pytest.fixture(scope="session")
def cluster(_cluster_ahead: list[KafkaCluster]) -> KafkaCluster:
    """Three brokers, whose topics have three replicas, two of which are in sync. All run when a test begins."""
    need_kafka()
    (made,) = _cluster_ahead
    made.wait()
    with klamm.open(f"kafka://{made.address}") as store:  # Kafka makes its own topics when it is first asked
        topic = store.topics.create(fresh("warm"))
        with store.transaction() as tx:
            tx.send(topic.name, b"warm")
        with topic.consumer(group=fresh("warm"), wait=0) as consumer:
            assert len(list(consumer)) == 1
            consumer.commit()
    return made


@pytest.fixture(params=KINDS)
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """What `klamm.open` opens."""
    if request.param == "directory":
        return str(tmp_path / "events")
    broker = request.getfixturevalue("klamm_broker" if request.param == "server" else "cluster")
    return f"kafka://{broker.address}{SHORT_SESSIONS}"


@pytest.fixture
def store(address: str) -> Iterator[klamm.Store]:
    with klamm.open(address) as opened:
        yield opened


@pytest.fixture
def topic(store: klamm.Store) -> klamm.Topic:
    """A topic of four partitions, which keeps records however old they say they are."""
    return store.topics.create(fresh("orders"), 4, retention_ms=-1)
