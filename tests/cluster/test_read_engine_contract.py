"""What a reading engine promises (E1 to E5 in client/consume/read_engine.py), of the one that reads a cluster.

The tests are those of tests/client/test_read_engine.py, apart from E3: which partitions have records to take turns with
is decided by what the servers have sent.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import klamm
from klamm.client.consume.read_engine import ReadEngine, ReadFormat
from klamm.cluster import cluster_engine
from klamm.cluster.cluster_core import ClusterCore
from klamm.cluster.cluster_engine import ClusterEngine
from klamm.types import TopicPartition
from tests.client import test_read_engine as contract
from tests.client.test_read_engine import (
    PLAIN,
    World,
    test_a_bad_record_is_raised_each_time_until_it_is_passed_and_those_before_it_are_not_lost,
    test_a_bad_record_is_skipped_or_stays_bytes,
    test_a_call_waits_for_the_reading_thread_no_longer_than_it_says,
    test_a_move_ends_the_iteration_of_records_that_were_returned_before_it,
    test_a_move_reaches_a_thread_that_waits,
    test_a_partition_that_is_assigned_again_is_read_from_its_new_position,
    test_a_position_seen_by_another_thread_is_never_ahead_of_what_was_handed_out,
    test_a_wait_ends_with_records_or_with_its_time,
    test_an_engine_is_not_used_inside_of_a_serde,
    test_an_interrupt_ends_a_wait_and_is_not_lost_if_it_comes_before,
    test_another_form_holds_for_what_was_not_handed_out,
    test_close_does_not_wait_for_ever_and_the_reading_thread_closes_what_is_open,
    test_close_ends_a_wait_and_later_calls_raise,
    test_close_in_a_serde_ends_the_call_it_is_in,
    test_nothing_is_returned_of_a_partition_that_is_paused,
    test_partitions_come_and_go_while_a_thread_waits,
    test_records_count_as_handed_out_one_by_one_or_all_at_once,
    test_what_was_not_handed_out_is_returned_again,
    test_with_a_timeout_of_0_everything_that_is_there_is_returned,
)
from tests.interop.brokers import fresh
from tests.procs import until

__all__ = [
    "test_a_bad_record_is_raised_each_time_until_it_is_passed_and_those_before_it_are_not_lost",
    "test_a_bad_record_is_skipped_or_stays_bytes",
    "test_a_call_waits_for_the_reading_thread_no_longer_than_it_says",
    "test_a_move_ends_the_iteration_of_records_that_were_returned_before_it",
    "test_a_move_reaches_a_thread_that_waits",
    "test_a_partition_that_is_assigned_again_is_read_from_its_new_position",
    "test_a_position_seen_by_another_thread_is_never_ahead_of_what_was_handed_out",
    "test_a_wait_ends_with_records_or_with_its_time",
    "test_an_engine_is_not_used_inside_of_a_serde",
    "test_an_interrupt_ends_a_wait_and_is_not_lost_if_it_comes_before",
    "test_another_form_holds_for_what_was_not_handed_out",
    "test_close_does_not_wait_for_ever_and_the_reading_thread_closes_what_is_open",
    "test_close_ends_a_wait_and_later_calls_raise",
    "test_close_in_a_serde_ends_the_call_it_is_in",
    "test_nothing_is_returned_of_a_partition_that_is_paused",
    "test_partitions_come_and_go_while_a_thread_waits",
    "test_records_count_as_handed_out_one_by_one_or_all_at_once",
    "test_what_was_not_handed_out_is_returned_again",
    "test_with_a_timeout_of_0_everything_that_is_there_is_returned",
]

COUNT = 3  # partitions


class Cluster:
    """A topic of a server or a cluster."""

    def __init__(self, store: klamm.Store) -> None:
        self._store = store
        store.topics.create(contract.TOPIC, COUNT)

    def append(self, number: int, values: list[bytes]) -> None:
        self._store.append_many(contract.TOPIC, values, partition=number)  # acks=1 is not readable yet

    def engine(self, read_format: ReadFormat = PLAIN, *, turn_s: float = 30.0) -> ReadEngine:
        core = self._store._acquired()
        assert isinstance(core, ClusterCore)
        return ClusterEngine(core, read_format, turn_s=turn_s)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Read a server and a cluster; but how calls of threads wait for each other is the engine's alone."""
    kinds = (
        ["server"] if "call" in metafunc.fixturenames else ["server", pytest.param("cluster", marks=pytest.mark.jvm)]
    )
    metafunc.parametrize("kind", kinds)


@pytest.fixture
def opened(kind: str, request: pytest.FixtureRequest) -> Iterator[klamm.Store]:
    broker = request.getfixturevalue("klamm_broker" if kind == "server" else "cluster")
    with klamm.open(f"kafka://{broker.address}") as store:
        yield store


@pytest.fixture
def world(opened: klamm.Store, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(contract, "TOPIC", fresh("orders"))
    monkeypatch.setattr(contract, "COUNT", COUNT)
    return Cluster(opened)


def test_partitions_whose_records_were_received_take_turns(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_engine, "CHUNK_RECORDS", 4)
    engine = world.engine()
    assert isinstance(engine, ClusterEngine)
    for number in range(COUNT):
        world.append(number, contract.values(0, 40))
    engine.assign(contract.starts(*range(COUNT)))
    cursors = engine._cursors

    def receive() -> bool:
        assert engine.next_records(1, 0) is not None  # and is put back by the next call: nobody has iterated it
        return all(cursor.received == 40 for cursor in cursors.values())

    until(receive, "all is received")
    order = []
    while (records := engine.next_records(1000, 0)) is not None:
        batch = records.batch()
        order.append(batch.partition)
        assert len(batch) <= 4
    assert len(order) == COUNT * 10
    for n in range(0, len(order), COUNT):
        assert sorted(order[n : n + COUNT]) == list(range(COUNT)), order
    assert {cursor.handed.position.offset for cursor in engine._cursors.values()} == {40}
    assert engine.handed_out(TopicPartition(contract.TOPIC, COUNT)) is None
    engine.close()
