"""A server with all of its guards, under what strangers and a user without rights do: memory within its bound, nothing
that was acknowledged is lost, honest clients are served; descriptors and threads as before.

Some seconds here; in `make soak` for KLAMM_SOAK_SECONDS (an hour), beside 10,000 idle connections and a baseline.
"""

from __future__ import annotations

import os
import resource
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from tests.crash.cases import seed_of
from tests.interop.raw import ConnectionEnded, Raw
from tests.kafka.attacks import Sizes
from tests.kafka.authorities import Authority
from tests.kafka.honest import follow, lost_records, write_to_disk, write_to_memory
from tests.kafka.hostile_load import (
    BOUND_BYTES,
    MIB,
    Outcome,
    accepting,
    cores,
    limited_server,
    name_of,
    prepared_store,
    run,
)
from tests.kafka.sasl_client import log_in
from tests.kafka.secured_load import USERS, connect, guard_store, recipes_of, settings_of, wrapped
from tests.procs import children, until
from tests.serving import Serving

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc, affinity")

SECONDS = 4
SOAK_SECONDS = float(os.environ.get("KLAMM_SOAK_SECONDS", "3600"))
FACTOR = 5
SIZES = Sizes(wide=1, small_batches=1, aborted=1, bomb_bytes=64 << 20)
IDLE = 10_000
IDLE_BYTES = 400 * MIB
"""What 10,000 idle connections with TLS may take: securing.md."""


@contextmanager
def guarded(path: Path, authority: Authority, open_files: int) -> Iterator[tuple[Serving, str]]:
    """The server, and the address of its listener."""
    settings = {**settings_of(authority), "max.connections": open_files * 3 // 4}
    with limited_server(path, "--config", "/dev/null", settings=settings, open_files=open_files) as server:
        yield server, f"localhost:{server.address.rpartition(':')[2]}"


def attacked(server: Serving, authority: Authority, address: str, seconds: float, target: str | None = None) -> Outcome:
    clients = [partial(each, connect=partial(connect, authority, "alice")) for each in HONEST]
    return run(
        server, SIZES, seconds=seconds, seed=seed_of(), target=target, address=address, clients=clients,
        recipes=recipes_of(authority),
    )  # fmt: skip


HONEST = (write_to_disk, write_to_memory, follow)


def check_held(outcome: Outcome, store: Path, authority: Authority, *, more_bytes: int = 0, least: int = 10) -> None:
    assert outcome.peak_bytes - outcome.base_bytes < BOUND_BYTES + more_bytes, outcome.summary()
    for name, seen in outcome.seen.items():
        assert len(seen.latencies_s) > least, f"{name}: {outcome.summary()}"
        assert lost_records(store, seen) == [], name
    assert all(outcome.rounds[name_of(each.run)] for each in recipes_of(authority)), outcome.summary()


def counts(server: Serving) -> tuple[int, int]:
    """Return how many descriptors and threads a server has."""
    where = Path(f"/proc/{server.pid}")
    return len(list((where / "fd").iterdir())), len(list((where / "task").iterdir()))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority(tmp_path / "authority")
    made.server()
    return made


def test_with_all_guards_on_attacks_cost_no_honest_client_its_records(tmp_path: Path, authority: Authority) -> None:
    store = prepared_store(tmp_path / "events", SIZES)
    guard_store(store)
    with guarded(store, authority, 4096) as (server, address):
        outcome = attacked(server, authority, address, SECONDS)
        print(outcome.summary())
        most = counts(server)
        until(
            lambda: counts(server)[0] < 150 and counts(server)[1] < 80, f"descriptors and threads are few, not {most}"
        )
        assert server.stop() == 0
        server.check_log()
    check_held(outcome, store, authority, least=2)  # of a server that has little of a busy machine


def connect_patiently(address: str, context: ssl.SSLContext) -> Raw:
    """Return a connection that has logged in. Under a flood of handshakes the server closes some that take too long; a
    client tries again.
    """
    until = time.monotonic() + 120
    while True:
        with ExitStack() as stack, suppress(*(ConnectionEnded, OSError) if time.monotonic() < until else ()):
            raw = stack.enter_context(wrapped(Raw(address, "idle", 60), context))
            assert log_in(raw, "alice", USERS["alice"], "PLAIN").error_code == 0
            stack.pop_all()
            return raw


def sit(address: str, authority: Authority, count: int, end: float) -> int:
    """Have so many connections that have logged in, and do nothing; return how many are still open in the end."""
    with ExitStack() as stack:
        context = authority.context()
        sitting = []
        for _ in range(count):
            sitting.append(stack.enter_context(connect_patiently(address, context)))
        time.sleep(max(0.0, end - time.monotonic()))
        for raw in sitting:
            raw._socket.setblocking(False)
        still = 0
        for raw in sitting:
            try:
                still += bool(raw._socket.recv(1))
            except OSError:
                still += 1
        return still


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_an_hour_of_attacks_with_all_guards_on_and_ten_thousand_connections(
    tmp_path: Path, authority: Authority
) -> None:
    open_files = min(16_384, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    if open_files < 16_384:
        pytest.skip("needs 16,384 open files (ulimit -Hn)")
    if cores()[0] == cores()[1]:
        pytest.skip("one core: the load would take the server's time")
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))
    baseline_store = prepared_store(tmp_path / "baseline", SIZES)
    guard_store(baseline_store)
    with guarded(baseline_store, authority, open_files) as (server, address), accepting() as target:
        baseline = attacked(server, authority, address, min(120.0, SOAK_SECONDS), target)
        print("baseline:", baseline.summary(), flush=True)
    store = prepared_store(tmp_path / "events", SIZES)
    guard_store(store)
    samples: list[tuple[int, int]] = []
    with guarded(store, authority, open_files) as (server, address), children() as start:
        is_over = threading.Event()

        def sample() -> None:
            while not is_over.wait(5.0):
                samples.append(counts(server))

        end = time.monotonic() + SOAK_SECONDS
        idle = [start(partial(sit, address, authority, IDLE // 4, end)) for _ in range(4)]
        sampler = threading.Thread(target=sample)
        sampler.start()
        try:
            outcome = attacked(server, authority, address, SOAK_SECONDS)
        finally:
            is_over.set()
            sampler.join()
        print(
            "attacked:",
            outcome.summary(),
            "descriptors and threads:",
            samples[:: max(1, len(samples) // 20)],
            flush=True,
        )
        assert sum(child.answer(120) for child in idle) == IDLE
        assert server.stop() == 0
        server.check_log()
    check_held(outcome, store, authority, more_bytes=IDLE_BYTES)
    half = len(samples) // 2
    for which in (0, 1):
        assert max(each[which] for each in samples[half:]) <= max(each[which] for each in samples[:half]) + 200, samples
    slow = {name: outcome.p99_s(name) / baseline.p99_s(name) for name in outcome.seen}
    assert all(ratio <= FACTOR for ratio in slow.values()), slow
