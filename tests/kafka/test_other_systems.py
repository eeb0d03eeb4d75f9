"""The server where the system has less than Linux: no RWF_NOWAIT and preadv (macOS, a C library without preadv2), no
eventfd (macOS), no sendfile and pread (Windows).

The server is a process of its own, with a Python that has lost these attributes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from klamm.kafka.wire.messages import API_VERSIONS, FETCH
from tests.interop import confluents
from tests.interop.records import NOW, Written
from tests.kafka import waits
from tests.kafka.connect import Raw
from tests.kafka.requests import fetch, fetching, produce, sealed
from tests.procs import Flag, until
from tests.serving import Serving, serving

MISSING = {
    "no RWF_NOWAIT": ["RWF_NOWAIT"],
    "macOS": ["RWF_NOWAIT", "preadv", "eventfd"],
    "Windows": ["RWF_NOWAIT", "preadv", "pread", "eventfd", "sendfile"],
}


@contextmanager
def serving_without(missing: list[str], tmp_path: Path, **environment: str) -> Iterator[Serving]:
    """A server whose `os` has none of `missing`."""
    startup = tmp_path / "startup"
    startup.mkdir()
    lines = ["import os", *(f"del os.{name}" for name in missing)]
    (startup / "sitecustomize.py").write_text("\n".join(lines))
    with serving(tmp_path / "events", environment={"PYTHONPATH": str(startup), **environment}) as server:
        yield server
        assert "failed" not in server.stderr


@pytest.mark.parametrize("system", MISSING)
def test_a_client_produces_and_consumes_where_the_system_has_less_than_linux(system: str, tmp_path: Path) -> None:
    written = [Written(b"key", b"%d" % n * size, (), NOW) for n, size in enumerate((1, 1000, 100_000, 700_000, 10))]
    with serving_without(MISSING[system], tmp_path) as server:
        with Raw(server.address) as raw:
            raw.create("orders")
        producer = confluents.producer(server.address)
        confluents.produce(producer, "orders", written)
        with confluents.consumer(server.address) as consumer:
            consumer.subscribe(["orders"])
            found = confluents.read(consumer, len(written))
            assert [(each.key(), each.value()) for each in found] == [(each.key, each.value) for each in written]
            confluents.produce(producer, "orders", [Written(b"key", b"later", (), NOW)])  # wakes a fetch that waits
            assert [each.value() for each in confluents.read(consumer, 1)] == [b"later"]
        assert server.stop() == 0


@pytest.mark.parametrize("system", MISSING)
def test_a_slow_reader_gets_megabytes_where_the_system_has_less_than_linux(system: str, tmp_path: Path) -> None:
    batch = bytes(sealed(20, padding=900_000))
    with serving_without(MISSING[system], tmp_path) as server, Raw(server.address) as raw, Raw(server.address) as slow:
        raw.create("orders", max_message_bytes=str(50 << 20))
        produce(raw, "orders", batch)
        slow.send(FETCH, 12, **fetching({("orders", 0): 0}))
        assert raw.ask(API_VERSIONS, 0).error_code == 0  # its socket is full, and others are served
        assert batch[61:] in slow.receive()
        assert fetch(slow, "orders", 0).records[61:] == batch[61:]


@pytest.mark.parametrize("size", [10_000, 100_000])
@pytest.mark.parametrize("system", MISSING)
def test_a_read_that_waits_for_the_disk_keeps_only_its_own_client_waiting(
    system: str, size: int, tmp_path: Path
) -> None:
    """Where no read can say that it would wait, a thread reads; never the loop."""
    held, seen = Flag(tmp_path / "held"), tmp_path / "seen"
    environment = waits.hold(held, seen, path=".log", calls="read")
    batch = bytes(sealed(1, padding=size))
    with (
        serving_without(MISSING[system], tmp_path, **environment) as server,
        Raw(server.address) as raw,
        Raw(server.address) as reader,
    ):
        raw.create("orders")
        produce(raw, "orders", batch)
        held.up()
        reader.send(FETCH, 12, **fetching({("orders", 0): 0}))
        until(seen.exists, "the read waits")
        assert raw.ask(API_VERSIONS, 0).error_code == 0
        held.down()
        assert batch[61:] in reader.receive()
