"""Brokers that clients are tried against, each started once for all tests.

`klamm_broker` is `klamm serve`, a process of its own; `apache_broker` a real Apache Kafka; `broker` is the first, or,
with KLAMM_INTEROP=apache, the second: a test that fails there is wrong about Kafka.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from klamm.kafka.wire.messages import DESCRIBE_GROUPS, FIND_COORDINATOR, INIT_PRODUCER_ID
from tests.interop.java_tools import Tool, need_kafka, start_tool
from tests.interop.kafka_broker import KafkaBroker
from tests.interop.one_jvm import Ran, ToolJvm
from tests.interop.raw import Raw
from tests.procs import until
from tests.serving import SHORT_SESSIONS, serving

__all__ = ["Broker", "apache_broker", "broker", "coordinating", "fresh", "klamm_broker", "run_tool", "tools"]

# What SHORT_SESSIONS are to `klamm serve`.
APACHE_SETTINGS = {
    "group.min.session.timeout.ms": "100",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}


def fresh(word: str) -> str:
    """A name that nobody has used."""
    return f"{word}-{secrets.token_hex(5)}"


@dataclass
class Broker:
    kind: str
    address: str
    store: Path | None = None
    """Where its files are, if it is ours."""
    guarded: str = ""
    """Where clients have to log in, and have the rights that ACLs give them."""
    _raw: list[Raw] = field(default_factory=list)

    @property
    def raw(self) -> Raw:
        """A connection for the tests' own errands."""
        if not self._raw:
            self._raw.append(Raw(self.address, client_id="tests"))
        return self._raw[0]

    def topic(self, partitions: int = 1, *, word: str = "topic", **configs: str) -> str:
        """A new topic; settings with _ for the dots. It keeps records, however old they say they are."""
        configs = {"retention_ms": "-1", **configs}
        with Raw(self.address, client_id="tests") as raw:
            return raw.create(fresh(word), partitions, **configs)

    def close(self) -> None:
        for raw in self._raw:
            raw.close()


class _Apache:
    """The one Apache Kafka of a session, begun before it is needed."""

    running: KafkaBroker | None = None

    @classmethod
    def begin(cls) -> KafkaBroker:
        if cls.running is None:
            cls.running = KafkaBroker(
                is_guarded=True, **{name.replace(".", "_"): value for name, value in APACHE_SETTINGS.items()}
            )
        return cls.running


@pytest.fixture(scope="session")
def _apache_ahead(request: pytest.FixtureRequest) -> Iterator[None]:
    """Begin to start it as soon as a test of this folder runs, if a later one needs it."""
    wanted = any("apache_broker" in getattr(item, "fixturenames", ()) for item in request.session.items)
    if wanted:
        try:
            need_kafka()
            _Apache.begin()
        except pytest.skip.Exception:
            pass  # those who need it will say so
    yield
    if _Apache.running is not None:
        _Apache.running.stop()
        _Apache.running = None


@pytest.fixture(scope="session")
def apache_broker(_apache_ahead: None) -> Iterator[Broker]:
    need_kafka()
    made = coordinating(_Apache.begin())
    yield made
    made.close()


def coordinating(server: KafkaBroker) -> Broker:
    """Return an Apache Kafka once its coordinators are ready, too."""
    server.wait()
    made = Broker("apache", server.address, guarded=server.guarded)
    for kind in (0, 1):  # it makes its own topics when it is first asked for a coordinator
        asked = {"key_type": kind, "coordinator_keys": ["warm"]}
        until(lambda: made.raw.ask(FIND_COORDINATOR, 4, **asked).coordinators[0].error_code == 0, "it coordinates")  # noqa: B023
        loaded = {"transactional_id": None if kind == 0 else "warm", "transaction_timeout_ms": 1000}
        until(lambda: made.raw.ask(INIT_PRODUCER_ID, 4, **loaded).error_code == 0, "it is ready")  # noqa: B023
        until(lambda: made.raw.ask(DESCRIBE_GROUPS, 5, groups=["warm"]).groups[0].error_code == 0, "it is ready")
    return made


@pytest.fixture(scope="session")
def klamm_broker(_apache_ahead: None) -> Iterator[Broker]:
    with (
        tempfile.TemporaryDirectory(prefix="klamm-", ignore_cleanup_errors=True) as directory,
        serving(Path(directory) / "store", *SHORT_SESSIONS) as server,
    ):
        made = Broker("klamm", server.address, server.store)
        with Raw(server.address) as raw:  # producer id 0, by which scripts would know a response without one
            raw.ask(INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout_ms=1000)
        yield made
        made.close()
        assert server.process.poll() is None, f"klamm serve has ended\n{server.stderr[-8000:]}"
        assert server.stop() == 0, server.stderr[-8000:]
        server.check_log()


@pytest.fixture(scope="session")
def broker(request: pytest.FixtureRequest) -> Broker:
    """The one that clients are tried against."""
    kind = os.environ.get("KLAMM_INTEROP", "klamm")
    made: Broker = request.getfixturevalue(f"{kind}_broker")
    return made


@pytest.fixture(scope="session")
def _tool_jvm() -> Iterator[ToolJvm]:
    need_kafka()
    made = ToolJvm()
    yield made
    made.close()


@pytest.fixture
def run_tool(_tool_jvm: ToolJvm) -> Callable[..., Ran]:
    """Runs Java tools that end by themselves, in one JVM for all tests."""
    return _tool_jvm.run


@pytest.fixture
def tools() -> Iterator[Any]:
    """Starts Java tools as processes, and kills those that still run in the end."""
    need_kafka()
    started: list[Tool] = []

    def start(name: str, *arguments: str, **options: Any) -> Tool:
        started.append(start_tool(name, *arguments, **options))
        return started[-1]

    yield start
    for tool in started:
        tool.close()
