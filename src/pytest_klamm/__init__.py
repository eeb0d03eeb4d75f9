"""Fixtures for tests that need a Kafka server: installed with klamm, found by pytest itself.

    def test_orders_are_billed(klamm_server):
        producer = confluent_kafka.Producer({"bootstrap.servers": klamm_server.address})
        …
        assert klamm_server.store.topics.describe("invoices").partitions[0].end == 1

Every pytest run on a machine that has klamm imports this file, whether or not it uses it. So it is a package of its
own (one inside of klamm would import that), and imports klamm when a test asks for a server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from klamm import Store

__all__ = ["KlammServer", "klamm_server", "klamm_server_session", "klamm_store"]


class KlammServer:
    """A server and its store. As a str, it is the address."""

    def __init__(self, address: str, store: Store, run_due_work: Callable[[], None]) -> None:
        self.address = address
        """Where clients dial: "127.0.0.1:40123"."""
        self.store = store
        """The same files, without the network: what `klamm.open` gives."""
        self._run_due_work = run_due_work

    @property
    def bootstrap_servers(self) -> str:
        """The address, by the name that Kafka's clients have for it."""
        return self.address

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0]

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def seed(self, path: str | Path, *, topic: str | None = None) -> dict[str, int]:
        """Topics and records of a file, YAML or JSON lines: see klamm.testing.seed."""
        from klamm import testing

        return testing.seed(self.store, path, topic=topic)

    def advance(self, **by: float) -> datetime:
        """Set the clock of store and server ahead, as in `advance(days=8)`: see klamm.testing.advance.

        The server has done what is due when this returns. It heard of no client in that time: members of groups whose
        session was shorter are removed, and rejoin by themselves.
        """
        from klamm import testing

        shown = testing.advance(self.store, **by)
        self._run_due_work()
        return shown

    def __str__(self) -> str:
        return self.address

    def __repr__(self) -> str:
        return f"<KlammServer {self.address} of {self.store.path}>"


@contextmanager
def _serving(path: Path, settings: dict[str, Any]) -> Iterator[KlammServer]:
    import klamm

    with klamm.open(path) as store:
        server = klamm.server(store, **settings)
        with server as address:
            yield KlammServer(address, store, server.run_due_work)


def _seed(request: pytest.FixtureRequest, store: Store) -> None:
    """By @pytest.mark.klamm_seed("orders.yaml"); those of a module come before those of a test."""
    from klamm import testing

    for marker in reversed(list(request.node.iter_markers("klamm_seed"))):
        for path in marker.args:
            testing.seed(store, request.path.parent / path, **marker.kwargs)


@pytest.fixture
def klamm_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KlammServer]:
    """A Kafka server of the test's own, with an empty store below tmp_path.

    Settings come from @pytest.mark.klamm_server(default_partitions=3); those of a test win over those of its module.
    """
    settings: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers("klamm_server"))):
        if marker.args:
            raise pytest.UsageError("klamm_server: settings have names: @pytest.mark.klamm_server(name=value)")
        settings.update(marker.kwargs)
    with _serving(tmp_path / "klamm", settings) as server:
        _seed(request, server.store)
        yield server


@pytest.fixture
def klamm_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store of the test's own, empty but for what @pytest.mark.klamm_seed names, below tmp_path."""
    import klamm

    with klamm.open(tmp_path / "klamm-store") as store:
        _seed(request, store)
        yield store


@pytest.fixture(scope="session")
def klamm_server_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KlammServer]:
    """One Kafka server for all tests of a run that ask for it: give topics and groups names of each test's own."""
    with _serving(tmp_path_factory.mktemp("klamm") / "store", {}) as server:
        yield server


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "klamm_seed(*paths, topic=None): files of topics, for klamm_server and klamm_store; see klamm.testing",
    )
    config.addinivalue_line(
        "markers", "klamm_server(**settings): settings of the fixture klamm_server, as klamm.server takes them"
    )
