"""Clients of a server and processes with its store open, on the same topics, all killed and stopped at random, the
server too: their histories show no anomaly. See checker.py, wire_workload.py, wire_nemesis.py.

A short run here; in `make soak` round after round, for KLAMM_SOAK_SECONDS. KLAMM_SEED repeats the dice, though not the
moments. Roles that do it wrong, and servers that are broken, show that the checker would notice.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message

from klamm.kafka.apis import produce
from klamm.kafka.broker import NotOpened
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.group_coordinator import GroupCoordinator
from tests.crash import rounds, wire_workload
from tests.crash.cases import memory_directory, seed_of
from tests.crash.checker import Anomaly, check
from tests.crash.history import ENDING
from tests.crash.jepsen_workload import IN, Life, plain, reader, transactional, transformer, worker
from tests.crash.nemesis import Restless, Roles
from tests.crash.rounds import soak
from tests.crash.session_reader import session_reader
from tests.crash.wire_life import PATIENCE_S, WireLife
from tests.crash.wire_nemesis import WireNemesis
from tests.crash.wire_tally import Tally
from tests.crash.wire_workload import (
    dirty_wire_reader,
    wire_idempotent,
    wire_plain,
    wire_reader,
    wire_transactional,
    wire_transformer,
    wire_worker,
)
from tests.messages import value_of

ROUND_SECONDS = 40.0

WRITERS: Roles = [(wire_plain, 1), (wire_idempotent, 1), (wire_transactional, 2), (plain, 1), (transactional, 1)]
READERS: Roles = [
    (wire_reader, 1),
    (dirty_wire_reader, 1),
    (session_reader, 2),
    (wire_worker, 2),
    (wire_transformer, 2),
    (reader, 1),
]
MORE_READERS: Roles = [
    *READERS[:3],
    (wire_worker, 3),
    (wire_transformer, 3),
    (reader, 1),
    (worker, 2),
    (transformer, 2),
]


def judged(nemesis: WireNemesis, seconds: float, total: Tally) -> list[Anomaly]:
    """Run the nemesis and return the anomalies. `total` counts what might hide some, in this run and those before."""
    history = nemesis.run(seconds)
    anomalies = check(history)
    for anomaly in anomalies[:20]:
        print(anomaly)
    committed = sum(1 for event in history.of("committed") if event.process.startswith("wire"))
    stored = sum(1 for event in history.of("stored") if event.process.startswith("wire"))
    print(f"{nemesis.kills} kills, {nemesis.server_kills} of servers; {committed} transactions, {stored} commits")
    assert committed and stored
    tally = Tally()
    for each in tally, total:
        each.add(history)
        assert each.exceeded() == [], each
    print(total, flush=True)
    return anomalies


def test_kills_of_servers_and_clients_leave_no_anomaly(tmp_path: Path) -> None:
    with memory_directory(tmp_path) as memory:
        nemesis = WireNemesis(tmp_path, memory / "store", seed_of(), WRITERS, READERS, least_kills=6)
        assert judged(nemesis, 4, Tally()) == []
        assert nemesis.kills > 5 and nemesis.server_kills


@pytest.mark.soak
def test_hundreds_of_kills_of_servers_and_clients_leave_no_anomaly(tmp_path: Path) -> None:
    total = Tally()
    soak(
        tmp_path,
        lambda directory, store, seed: WireNemesis(directory, store, seed, WRITERS, MORE_READERS),
        lambda nemesis: judged(nemesis, ROUND_SECONDS, total),
    )


# ---- a run that does not come to rest


def no_commit_is_in_time() -> None:
    """In a server."""
    GroupCoordinator.check_commit = lambda *_, **__: ErrorCode.REQUEST_TIMED_OUT  # type: ignore[method-assign]


class Patient(WireNemesis):
    """Waits until a worker has been refused a commit."""

    def _have_begun(self) -> bool:
        workers = self.directory.glob(f"wire_worker-*{ENDING}")
        return super()._have_begun() and any(b"REQUEST_TIMED_OUT" in path.read_bytes() for path in workers)


def test_a_run_that_does_not_come_to_rest_says_how_groups_stand_and_what_roles_did_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire_workload, "SESSION_MS", 10_000)
    roles: tuple[Roles, Roles] = [(wire_plain, 1)], [(wire_worker, 1)]
    with memory_directory(tmp_path) as memory:
        nemesis = Patient(
            tmp_path, memory / "store", seed_of(), *roles, break_server=no_commit_is_in_time, patience_ms=0, rest_s=0.2
        )
        with pytest.raises(Restless) as raised:
            nemesis.run(0)
    for line in (
        r"groups have read everything, or more than before: not within 0\.2 s",
        r"group wire-workers: \w+, door kafka, lag [1-9]\d*",
        r"  in/\d: 0 committed of [1-9]\d*, lag [1-9]\d*",
        r"wire_worker-0-0: \d+ events",
        r"  \d+\.\d s ago: met {'call': .*REQUEST_TIMED_OUT.*",
        r"group wire-workers at the server: STABLE, assigned by '.+'",
        r"  member wire_worker-0-.* \(.+\): has in/0, in/1, in/2",
        r".* Stabilized group wire-workers generation \d+ with 1 members",
    ):
        assert re.search(f"^{line}$", str(raised.value), re.MULTILINE), f"{line}\n{raised.value}"


# ---- roles that do it wrong, and a server that does


def careless(life: Life) -> None:
    """Takes for acknowledged what it has sent without acks."""
    assert isinstance(life, WireLife)
    life.record("started", role="producer")
    partitions, producer = life.wire_partitions(), life.producer(acks=0, enable_idempotence=False, retries=0)

    def report(_: KafkaError | None, message: Message) -> None:
        life.record("sent", topic=IN, ids=[value_of(message).decode()], places=[[message.partition(), None]])

    while life.writes_on():
        for name in life.names(3):
            life.record("sending", topic=IN, ids=[name], tx=None)
            producer.produce(IN, name.encode(), partition=life.dice.randrange(partitions), on_delivery=report)
        producer.flush(PATIENCE_S)


def hasty(life: Life) -> None:
    """Commits what it has not processed."""
    wire_worker(life, hasty=True)


def produce_answers_before_it_appends() -> None:
    """In a server: the records are there a little later."""
    take = produce._ProduceRequest._take

    def promise(self: Any, partition_response: Any, opened: Any, requested: Any) -> None:
        try:
            partition = self.broker.partition(opened, requested.index)
        except NotOpened:
            take(self, partition_response, opened, requested)
            return
        partition_response.base_offset = partition.ends().end
        self.broker.loop.call_later(0.02, partition.append_now, bytearray(requested.records))

    produce._ProduceRequest._take = promise  # type: ignore[method-assign]


def found_out(directory: Path, kinds: set[str], writers: Roles, readers: Roles, **options: Any) -> None:
    often: dict[str, Any] = {"pause_s": 0.2, "server_share": 0.5, **options}

    def make(own: Path, store: Path, seed: int) -> WireNemesis:
        return WireNemesis(own, store, seed, writers, readers, **often)

    rounds.found_out(directory, kinds, make, rounds=20, seconds=1)


def test_a_client_that_does_not_wait_for_answers_is_found_out(tmp_path: Path) -> None:
    found_out(tmp_path, {"lost"}, [(careless, 3)], [])


def test_a_member_that_commits_before_it_processes_is_found_out(tmp_path: Path) -> None:
    found_out(tmp_path, {"unprocessed"}, [(wire_plain, 1)], [(hasty, 2)], server_share=0.1)


def test_a_server_that_answers_before_it_appends_is_found_out(tmp_path: Path) -> None:
    """What it promises to one, it promises to others as well; and if it is killed in between, to nobody."""
    writers: Roles = [(wire_plain, 2), (plain, 1)]
    kinds = {"lost", "two values", "restless"}  # restless: it appends when everybody has gone
    found_out(tmp_path, kinds, writers, [], break_server=produce_answers_before_it_appends)
