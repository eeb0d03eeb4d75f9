"""Handlers that hang, or end when their partition is another member's: what `run` does about them, and by when."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.client.consume.consumer import session_of
from klamm.client.work.worker_process import CannotStart, WorkerProcess, pickled
from tests.client.conftest import fill
from tests.client.handlers import Holding, Noting
from tests.client.test_workers import committed, running
from tests.procs import until


@contextmanager
def let_go() -> Iterator[threading.Event]:
    """Something handlers hang on, until the block is left."""
    go = threading.Event()
    try:
        yield go
    finally:
        go.set()


def two_partitions(store: klamm.Store) -> None:
    store.topics.add_partitions("orders", 2)
    for number in range(2):
        store.append("orders", b"x", partition=number, acks=1)


# ---- what a hung handler holds up (B5, B10 of the review)


def test_a_hung_handler_gives_its_partitions_to_the_others_of_its_group(orders: klamm.Store) -> None:
    """One partition and two members: no rebalance is due, and yet the second gets it."""
    fill(orders, 3)
    with let_go() as go:
        first = orders.consumer("orders", group="g", max_poll_interval_ms=300)
        begun: list[int] = []

        def hang(record: klamm.Record) -> None:
            begun.append(record.offset)
            assert go.wait(60)

        with running(first, hang, 1):
            until(lambda: begun, "the first handler hangs")
            second = orders.consumer("orders", group="g", max_poll_interval_ms=60_000)
            again: list[int] = []
            with running(second, lambda record: again.append(record.offset), 1, order="partition"):
                until(lambda: len(again) == 3, "the second has handled everything")
                until(lambda: committed(orders, "g") == 3, "and committed it")
                second.stop()
            first.stop()
            go.set()
        assert again == [0, 1, 2]


@pytest.mark.parametrize("retries", [0, 1])
def test_a_record_that_fails_after_its_partition_was_lost_is_not_the_losers(orders: klamm.Store, retries: int) -> None:
    """Neither tried again nor made a dead letter: its new owner has handled it."""
    two_partitions(orders)
    tries: list[int] = []
    with let_go() as go:

        def hang_and_fail(record: klamm.Record) -> None:
            tries.append(record.partition)
            assert go.wait(60)
            raise ValueError("too late")

        first = orders.consumer("orders", group="g", max_poll_interval_ms=200)
        with running(first, hang_and_fail, 2, on_error="dead-letter", retries=retries) as outcome:
            until(lambda: len(tries) == 2, "both hang")
            again: list[int] = []
            second = orders.consumer("orders", group="g", max_poll_interval_ms=60_000)
            with running(second, lambda record: again.append(record.partition)):
                until(lambda: len(again) == 2, "the second does it")
                until(lambda: committed(orders, "g", 0) == committed(orders, "g", 1) == 1, "and commits it")
                go.set()
                until(lambda: len(first.assignment()) == 1, "the first has its share again")
                first.stop()
                second.stop()
    assert sorted(again) == [0, 1]
    assert len(tries) == 2
    assert "orders.dlq" not in orders.topics
    assert outcome["report"] == klamm.RunReport(0, 0, 0, 0, lost=2)


def test_a_rebalance_waits_for_a_hung_handler_no_longer_than_grace(orders: klamm.Store) -> None:
    two_partitions(orders)
    begun: list[int] = []
    with let_go() as go:

        def hang(record: klamm.Record) -> None:
            begun.append(record.partition)
            assert go.wait(60)

        first = orders.consumer("orders", group="g", max_poll_interval_ms=60_000)
        with running(first, hang, 2, grace=0.3) as outcome:
            until(lambda: len(begun) == 2, "both hang")
            second = orders.consumer("orders", group="g", max_poll_interval_ms=60_000)
            again: list[int] = []
            with running(second, lambda record: again.append(record.partition)):
                until(lambda: again, "the second has its share")
                assert len(first.assignment()) == 1  # and the first the other one, though its handler hangs, too
                go.set()
                until(lambda: committed(orders, "g", 0) == committed(orders, "g", 1) == 1, "both are committed")
                first.stop()
                second.stop()
        assert len(begun) == 2 and len(again) == 1
        assert (outcome["report"].done, outcome["report"].lost) == (1, 1)


def test_partitions_that_are_lost_while_a_run_gives_them_back_are_told_once_as_lost(orders: klamm.Store) -> None:
    two_partitions(orders)
    message: list[tuple[str, Any]] = []

    class SlowRunner:
        """Takes so long to finish that the watchdog gives everything up."""

        def revoked(self, places: Any) -> None:
            until(lambda: not any(member.owns(*place) for place in places), "the watchdog has given them up")

        def lost(self, places: Any) -> None:
            pass

        def is_worker(self) -> bool:
            return False

    with orders.consumer(
        "orders",
        group="g",
        wait=0,
        max_poll_interval_ms=300,
        on_revoked=lambda places: message.append(("revoked", places)),
        on_lost=lambda places: message.append(("lost", places)),
    ) as first:
        first.poll()
        assert len(first.assignment()) == 2
        session = session_of(first)
        assert session.sharing is not None and session.member is not None
        member, session.sharing.runner = session.member, SlowRunner()
        with orders.consumer("orders", group="g", wait=0) as second:
            second.poll()
            first.poll()
            first.poll()
        session.sharing.runner = None
        while_run = message.copy()
    assert while_run == [("lost", [("orders", 0), ("orders", 1)])]


def test_a_slow_handler_within_its_timeout_stays_in_the_group(orders: klamm.Store) -> None:
    fill(orders, 1)
    lost: list[Any] = []
    with orders.consumer("orders", group="g", wait=0, max_poll_interval_ms=1000, on_lost=lost.append) as consumer:
        assert consumer.run(lambda record: time.sleep(2.2), 1, timeout=30).done == 1
    assert lost == [] and committed(orders, "g") == 1


# ---- timeouts


def test_a_record_whose_handler_takes_too_long_has_failed(orders: klamm.Store) -> None:
    orders.append_many("orders", [(b"a", b"%d" % n) for n in range(4)], acks=1)
    seen: list[bytes] = []
    with let_go() as go:

        def handle(record: klamm.Record) -> None:
            if record.value == b"1":
                assert go.wait(60)
                raise ValueError("what a thread that was left behind does counts for nothing")
            seen.append(record.value)

        options: Any = {"on_error": "dead-letter", "retries": 1, "backoff": 0.001}
        with orders.consumer("orders", group="g", wait=0) as consumer:
            report = consumer.run(handle, 2, timeout=2, **options)
        assert report == klamm.RunReport(3, 2, 1, 2)
        assert seen == [b"0", b"2", b"3"]  # the key goes on, in order
    [letter] = orders.dead_letters("orders.dlq")
    assert (letter.error, letter.attempts, letter.record.value) == ("TimeoutError", 2, b"1")
    assert letter.reason == "orders/0 at offset 1: the handler took longer than 2 s"
    assert committed(orders, "g") == 4


def test_threads_that_hang_are_no_more_than_workers(orders: klamm.Store) -> None:
    fill(orders, 100)
    begun: list[int] = []
    with let_go() as go:

        def hang(record: klamm.Record) -> None:
            begun.append(record.offset)
            assert go.wait(60)

        with orders.consumer("orders", wait=0) as consumer:
            with pytest.raises(TimeoutError, match="took longer than") as caught:
                consumer.run(hang, 3, timeout=0.05, on_error="dead-letter", retries=0)
            assert "4 handlers hang in threads" in "".join(caught.value.__notes__)
            assert 6 <= len(begun) <= 7


def test_a_handler_that_ends_after_the_run_counts_for_nothing(orders: klamm.Store) -> None:
    """It was left behind after `grace`; what it does then is neither done nor a dead letter."""
    fill(orders, 2)
    ended, calls = threading.Semaphore(0), []
    with let_go() as go:

        def hang(record: klamm.Record) -> None:
            calls.append(record.offset)
            try:
                assert go.wait(60)
                if record.offset:
                    raise ValueError
            finally:
                ended.release()

        hooks: Any = {"on_done": calls.append, "on_failed": calls.append}
        consumer = orders.consumer("orders", group="g")
        with running(consumer, hang, 2, grace=0.1, on_error="dead-letter", retries=0, **hooks) as outcome:
            until(lambda: len(calls) == 2, "both hang")
            consumer.stop()
        assert outcome["report"] == klamm.RunReport(0, 0, 0)
        assert consumer.position("orders", 0).offset == 0
        go.set()
        assert ended.acquire(timeout=30) and ended.acquire(timeout=30)
        until(lambda: not [t for t in threading.enumerate() if t.name.startswith("klamm-worker")], "its threads end")
    assert sorted(calls) == [0, 1] and committed(orders, "g") == 0
    assert "orders.dlq" not in orders.topics
    consumer.close()


def test_a_thread_that_was_replaced_cannot_end_the_run(orders: klamm.Store) -> None:
    fill(orders, 2)
    threads: list[threading.Thread] = []
    with let_go() as go:

        def handle(record: klamm.Record) -> None:
            if record.offset == 0:
                threads.append(threading.current_thread())
                assert go.wait(60)
                raise SystemExit("too late")

        def release(attempt: klamm.Attempt) -> None:
            go.set()
            until(lambda: not threads[0].is_alive(), "the thread that was replaced ends")

        options: Any = {"on_error": "dead-letter", "retries": 0, "on_dead_letter": release}
        with orders.consumer("orders", wait=0) as consumer:
            assert consumer.run(handle, 1, timeout=2, **options) == klamm.RunReport(1, 1, 1, 1)


def test_a_process_whose_handler_takes_too_long_is_killed(orders: klamm.Store, tmp_path: Path) -> None:
    fill(orders, 2)
    handler = Holding(tmp_path)  # for as long as there is no file `go`
    with orders.consumer("orders", group="g", wait=0) as consumer:
        options: Any = {"on_error": "dead-letter", "retries": 0, "backoff": 0.001}
        report = consumer.run(handler, 1, processes=True, timeout=1, **options)
    assert report == klamm.RunReport(0, 2, 2, 2)
    assert [letter.error for letter in orders.dead_letters("orders.dlq")] == ["TimeoutError"] * 2
    pids = {pid for pid, _, _ in handler.notes()}
    assert len(pids) == 2 and not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert committed(orders, "g") == 2


def test_a_process_that_is_killed_while_it_starts_does_not_handle_anything(orders: klamm.Store, tmp_path: Path) -> None:
    """At the end of a run, say: the thread that starts it may be anywhere."""
    fill(orders, 1)
    with orders.consumer("orders", wait=0) as consumer:
        [record] = consumer.poll()
        process = WorkerProcess(pickled(Noting(tmp_path), session_of(consumer).read_format))
    process.kill()
    with pytest.raises(CannotStart, match="killed by signal 9"):
        process.handle(record, None)
    assert not (tmp_path / "notes").exists()
