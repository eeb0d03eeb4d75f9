"""The fixtures that come with Klamm: for pytest, wherever it is installed."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

import klamm
from pytest_klamm import KlammServer


def send(address: str, value: bytes, topic: str = "orders") -> None:
    producer = Producer({"bootstrap.servers": address})
    producer.produce(topic, value)
    assert producer.flush(20) == 0


def run(tmp_path: Path, code: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Somebody else's tests, in a pytest of their own."""
    (tmp_path / "test_theirs.py").write_text(textwrap.dedent(code))
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\nfilterwarnings = error\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)


def test_it_is_a_server_with_an_empty_store_of_the_tests_own(klamm_server: KlammServer, tmp_path: Path) -> None:
    assert isinstance(klamm_server.store, klamm.Store) and list(klamm_server.store.topics) == []
    assert Path(klamm_server.store.path).is_relative_to(tmp_path)
    assert klamm_server.address == klamm_server.bootstrap_servers == str(klamm_server)
    assert f"{klamm_server.host}:{klamm_server.port}" == klamm_server.address
    assert klamm_server.address in repr(klamm_server)
    send(klamm_server.address, b"a")
    assert klamm_server.store.topics.describe("orders").partitions[0].end == 1


@pytest.mark.klamm_server(default_partitions=3, node_id=9)
class TestMarked:
    def test_a_marker_gives_settings(self, klamm_server: KlammServer) -> None:
        assert list(AdminClient({"bootstrap.servers": str(klamm_server)}).list_topics(timeout=10).brokers) == [9]
        send(klamm_server.address, b"a")
        assert len(klamm_server.store.topics.describe("orders").partitions) == 3

    @pytest.mark.klamm_server(default_partitions=2)
    def test_the_marker_of_a_test_wins_over_that_of_its_class(self, klamm_server: KlammServer) -> None:
        send(klamm_server.address, b"a")
        assert len(klamm_server.store.topics.describe("orders").partitions) == 2
        assert list(AdminClient({"bootstrap.servers": str(klamm_server)}).list_topics(timeout=10).brokers) == [9]


def test_topics_come_from_files_that_a_marker_names(tmp_path: Path) -> None:
    (tmp_path / "orders.yaml").write_text("orders: [one coffee]\nprices: {partitions: 2}\n")
    (tmp_path / "more.jsonl").write_text('{"key": "alice", "value": "two teas"}\n')
    done = run(
        tmp_path,
        """
        import pytest

        pytestmark = pytest.mark.klamm_seed("orders.yaml")

        @pytest.mark.klamm_seed("more.jsonl", topic="orders")
        def test_of_a_server(klamm_server, klamm_store):
            for store in (klamm_server.store, klamm_store):
                assert [record.value for record in store.tail("orders", 9)] == [b"one coffee", b"two teas"]
                assert len(store.topics.describe("prices").partitions) == 2
            assert klamm_server.store.store_id != klamm_store.store_id

        def test_of_another(klamm_store, tmp_path):
            assert [record.value for record in klamm_store.tail("orders", 9)] == [b"one coffee"]

        @pytest.mark.klamm_seed("missing.yaml")
        def test_of_a_file_that_is_not_there(klamm_store):
            pass
        """,
    )
    assert "2 passed, 1 error" in done.stdout and "missing.yaml: cannot be read: No such file" in done.stdout, (
        done.stdout
    )


def test_who_does_not_use_it_does_not_import_klamm(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
        import sys

        def test_nothing_of_klamm_is_there():
            assert "pytest_klamm" in sys.modules
            assert [name for name in sys.modules if name.split(".")[0] == "klamm"] == []
        """,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_fixtures_and_marker_are_there_without_configuration(tmp_path: Path) -> None:
    shown = run(tmp_path, "def test_none(): pass", "--fixtures").stdout
    assert all(name in shown for name in ("klamm_server ", "klamm_server_session", "klamm_store"))
    assert "@pytest.mark.klamm_server(**settings)" in run(tmp_path, "def test_none(): pass", "--markers").stdout


def test_each_test_has_a_server_of_its_own_and_a_session_has_one(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
        seen = []

        def look(server, session):
            assert list(server.store.topics) == []
            server.store.topics.create("orders")
            session.store.topics.create("shared", exist_ok=True)
            seen.append((server.store.store_id, session.address))

        def test_one(klamm_server, klamm_server_session):
            look(klamm_server, klamm_server_session)

        def test_two(klamm_server, klamm_server_session):
            look(klamm_server, klamm_server_session)
            assert seen[0][0] != seen[1][0] and seen[0][1] == seen[1][1]
        """,
    )
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout + done.stderr


def test_a_setting_that_does_not_exist_is_the_tests_error(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
        import pytest

        @pytest.mark.klamm_server(kafak=1)
        def test_one(klamm_server): pass

        @pytest.mark.klamm_server(3)
        def test_two(klamm_server): pass
        """,
    )
    assert done.returncode == 1 and "2 errors" in done.stdout
    assert "did you mean 'kafka'?" in done.stdout and "settings have names" in done.stdout
