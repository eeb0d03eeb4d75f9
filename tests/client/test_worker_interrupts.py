"""A worker of `consumer.run` that an exception from outside ends: nobody waits for it, and its record is not done."""

from __future__ import annotations

import klamm
from klamm.client.consume.consumer import session_of
from klamm.client.work.run_options import RunSettings
from klamm.client.work.workers import _Run
from klamm.types import TopicPartition
from tests.interrupts import Interrupted, interrupt_at


def interrupted_worker(consumer: klamm.Consumer, batch: klamm.Batch, point: int) -> tuple[_Run, list[int], bool]:
    """A run whose worker was interrupted at a point, the offsets it has handled, and whether it got that far."""
    handled: list[int] = []

    def handle(record: klamm.Record) -> None:
        handled.append(record.offset)
        if len(handled) == len(batch):
            working._tasks.end()

    working = _Run(session_of(consumer), handle, RunSettings(workers=1))
    working._hand_out(batch)
    try:
        with interrupt_at(point) as tracer:
            working._workers.work(0)  # type: ignore[attr-defined]  # they are threads
    except Interrupted:  # before the worker had taken anything
        return working, handled, True
    return working, handled, tracer.passed >= point


def test_an_exception_from_outside_ends_a_worker_and_nobody_waits_for_it(orders: klamm.Store) -> None:
    """At every point where CPython may raise one: a handler's timeout may come when the handler has returned."""
    orders.append_many("orders", [b"1", b"2", b"3"])
    point, is_reached = 0, True
    kept = []  # else the collector of garbage would run, and be interrupted
    with orders.consumer("orders", wait=0) as consumer:
        batch = consumer.poll(max_records=3)
        while is_reached:
            point += 1
            working, handled, is_reached = interrupted_worker(consumer, batch, point)
            kept.append(working)
            tasks = working._tasks
            assert not tasks.running(), f"point {point}: the reader would wait for it"
            done = [task.record.offset for task in working._progress[TopicPartition("orders", 0)].tasks if task.done]
            assert set(done) <= set(handled)
    assert point > 20 and len(done) == 3 and tasks.error is None
