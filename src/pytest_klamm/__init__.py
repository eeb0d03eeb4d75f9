"""Fixtures for tests that need a Kafka server: installed with klamm, found by pytest itself.

    def test_orders_are_billed(klamm_server):
        producer = confluent_kafka.Producer({"bootstrap.servers": klamm_server.address})
        …
        assert klamm_server.store.topic("invoices").partitions[0].end == 1

Every pytest run on a machine that has klamm imports this file, whether or not it uses it. So it is a package of its
own (one inside of klamm would import that), and imports klamm when a test asks for a server.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from klamm import Store

__all__ = ["KlammServer", "klamm_server", "klamm_server_session"]


class KlammServer:
    """A server and its store. As a str, it is the address."""

    def __init__(self, address: str, store: Store) -> None:
        self.address = address
        """Where clients dial: "127.0.0.1:40123"."""
        self.store = store
        """The same files, without the network: what `klamm.open` gives."""

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

    def __str__(self) -> str:
        return self.address

    def __repr__(self) -> str:
        return f"<KlammServer {self.address} of {self.store.path}>"


@contextmanager
def _serving(path: Path, settings: dict[str, Any]) -> Iterator[KlammServer]:
    import klamm

    with klamm.open(path) as store, klamm.server(store, **settings) as address:
        yield KlammServer(address, store)


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
        yield server


@pytest.fixture(scope="session")
def klamm_server_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KlammServer]:
    """One Kafka server for all tests of a run that ask for it: give topics and groups names of each test's own."""
    with _serving(tmp_path_factory.mktemp("klamm") / "store", {}) as server:
        yield server


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "klamm_server(**settings): settings of the fixture klamm_server, as klamm.server takes them"
    )
