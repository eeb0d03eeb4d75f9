"""A server under all attacks at once goes on: its memory stays within its bound, nothing that was acknowledged is lost,
and honest clients get their responses.

Some seconds here; in `make soak` for KLAMM_SOAK_SECONDS (an hour), beside a baseline: then the times count, too.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.crash.cases import seed_of
from tests.kafka.attacks import ATTACKS, Sizes
from tests.kafka.honest import lost_records
from tests.kafka.hostile_load import BOUND_BYTES, Outcome, accepting, cores, limited_server, prepared_store, run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc, affinity")

SECONDS = 4
SOAK_SECONDS = float(os.environ.get("KLAMM_SOAK_SECONDS", "3600"))
FACTOR = 5  # how much longer honest clients may wait, at the 99th percentile
SMALL = Sizes(wide=200, small_batches=20_000, aborted=1000, bombs=6, bomb_bytes=64 << 20, partitions=300, created=20)


def check_held(outcome: Outcome, store: Path) -> None:
    """Fail unless memory stayed within its bound and nothing is lost; the server has ended."""
    assert outcome.peak_bytes - outcome.base_bytes < BOUND_BYTES, outcome.summary()
    for name, seen in outcome.seen.items():
        assert len(seen.latencies_s) > 10, f"{name}: {outcome.summary()}"
        assert lost_records(store, seen) == [], name
    idle = [attack.run.__name__ for attack in ATTACKS if not outcome.rounds[attack.run.__name__]]
    assert idle == [], outcome.summary()


def test_under_all_attacks_memory_is_bounded_nothing_acked_is_lost_and_clients_are_served(
    tmp_path: Path,
) -> None:
    store = prepared_store(tmp_path / "events", SMALL)
    with limited_server(store) as server:
        outcome = run(server, SMALL, seconds=SECONDS, seed=seed_of())
        print(outcome.summary())
        assert server.stop() == 0
        server.check_log()
    check_held(outcome, store)


@pytest.mark.soak
def test_an_hour_of_attacks_delays_honest_clients_fivefold_at_most(tmp_path: Path) -> None:
    sizes, seed = Sizes(), seed_of()
    if cores()[0] == cores()[1]:
        pytest.skip("one core: the load would take the server's time")
    baseline_store = prepared_store(tmp_path / "baseline", sizes)
    with limited_server(baseline_store) as server, accepting() as target:
        baseline = run(server, sizes, seconds=min(120.0, SOAK_SECONDS), seed=seed, target=target)
        print("baseline:", baseline.summary(), flush=True)
    store = prepared_store(tmp_path / "events", sizes)
    with limited_server(store) as server:
        outcome = run(server, sizes, seconds=SOAK_SECONDS, seed=seed)
        print("attacked:", outcome.summary(), flush=True)
        assert server.stop() == 0
        server.check_log()
    check_held(outcome, store)
    slow = {name: outcome.p99_s(name) / baseline.p99_s(name) for name in outcome.seen}
    assert all(ratio <= FACTOR for ratio in slow.values()), slow
