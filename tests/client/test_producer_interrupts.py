"""Ctrl-C in a producer's calls: what was sent is delivered once, whatever point it comes at."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Literal

import pytest

import klamm
from tests.crash.workload import log_of
from tests.interrupts import Interrupted, interrupt_at
from tests.procs import PATIENCE

COUNT = 12  # records; every third one fills a batch


def send(producer: klamm.Producer, sent: list[klamm.Delivery]) -> None:
    for number in range(COUNT):
        sent.append(producer.send("orders", b"%02d" % number + bytes(30)))


@contextmanager
def append_lock_of(store: klamm.Store) -> Iterator[None]:
    """Hold the partition's append lock in another thread: batches that are full wait."""
    log = log_of(store, "orders/0").log
    is_held, is_over = threading.Event(), threading.Event()

    def hold() -> None:
        with log.append_lock():
            is_held.set()
            is_over.wait(PATIENCE)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert is_held.wait(PATIENCE)
        yield
    finally:
        is_over.set()
        thread.join(PATIENCE)


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("acks", [1, "all"])
def test_an_interrupt_at_any_point_of_send_loses_no_batch_and_doubles_none(
    tmp_path: Path, acks: Literal[1, "all"], waits: bool
) -> None:
    points = 1
    point = 0
    with klamm.open(tmp_path / "events") as store:
        store.topics.create("orders")
        end = 0
        while point < points:
            point += 1
            sent: list[klamm.Delivery] = []
            with store.producer(acks=acks, linger_ms=60_000, batch_bytes=200) as producer:
                try:
                    with append_lock_of(store) if waits else nullcontext(), interrupt_at(point) as passed:
                        send(producer, sent)
                    points = point + (passed.passed >= point)  # it was dropped: by a finalizer, say
                except Interrupted:
                    points = point + 1
                producer.flush(30)
                assert [delivery.done for delivery in sent] == [True] * len(sent), point
            offsets = [delivery.offset for delivery in sent]
            with store.consumer("orders", start={0: end}, wait=0) as consumer:
                found = [(record.offset, record.value[:2]) for record in consumer]
            expected = [b"%02d" % number for number in range(COUNT)]
            # The record that was being sent may be there, too: its delivery was not returned.
            assert [value for _, value in found] in (expected[: len(sent)], expected[: len(sent) + 1]), point
            assert offsets == [offset for offset, _ in found][: len(sent)], point
            end += len(found)
        assert point > 50
