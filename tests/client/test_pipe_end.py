"""How a pipe ends: by itself, by `stop`, `close` and signals, after the record that is at hand."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from datetime import timedelta

import pytest

import klamm
from tests.client.test_pipe import caught_up, fill, in_thread, numbers, same
from tests.procs import children, until

pytestmark = pytest.mark.usefixtures("shop")


def test_run_waits_for_more_and_ends_when_none_comes(store: klamm.Store) -> None:
    with store.pipe("orders", same, to="invoices") as pipe:
        thread = in_thread(lambda: fill(store, 3))
        caught_up(store, pipe, 3, wait=timedelta(milliseconds=50))
        thread.join()


def test_stop_ends_a_run_that_waits_and_commits_what_is_done(store: klamm.Store) -> None:
    with store.pipe("orders", same, to="invoices") as pipe:
        thread = in_thread(pipe.run)
        fill(store, 3)
        until(lambda: numbers(store) == [0, 1, 2], "all is read")
        pipe.stop()
        thread.join(60)
        assert not thread.is_alive()
        assert pipe.run() == klamm.PipeReport(0, 0, 0)


def test_stop_in_the_function_commits_the_record_that_is_at_hand(store: klamm.Store) -> None:
    def third(order: klamm.Record) -> bytes:
        if order.value == b"2":
            pipe.stop()
        return same(order)

    store.append_many("orders", [b"%d" % n for n in range(6)], partition=0)
    with store.pipe("orders", third, to="invoices") as pipe:
        assert pipe.run().records == 3
    with store.pipe("orders", same, to="invoices") as pipe:
        assert pipe.run(wait=0).records == 3
    assert numbers(store) == list(range(6))


@pytest.mark.parametrize("closes", ["pipe", "store"])
@pytest.mark.parametrize("inside", [True, False], ids=["in the function", "in another thread"])
def test_a_close_while_it_runs_ends_it_and_nothing_is_lost_or_done_twice(
    store: klamm.Store, closes: str, inside: bool
) -> None:
    fill(store, 9)
    with klamm.open(store.path) as mine:
        begun = threading.Event()

        def close(order: klamm.Record) -> bytes:
            if order.value == b"4":
                begun.set()
                if inside:
                    pipe.close() if closes == "pipe" else mine.close()
                else:
                    until(lambda: pipe._is_closing, "it is closed")
            return same(order)

        pipe = mine.pipe("orders", close, to="invoices")
        thread = in_thread(pipe.run)
        assert begun.wait(60)
        if not inside:
            pipe.close() if closes == "pipe" else mine.close()
        thread.join(60)
        assert not thread.is_alive()
        with pytest.raises(klamm.StoreError, match="the pipe is closed"):
            pipe.run()
        mine.close()
        with store.pipe("orders", same, to="invoices") as other:
            other.run(wait=0)
        assert numbers(store) == list(range(9))


def test_a_pipe_runs_in_one_thread(store: klamm.Store) -> None:
    with store.pipe("orders", same, to="invoices") as pipe:
        thread = in_thread(pipe.run)
        until(lambda: pipe._thread, "it runs")
        with pytest.raises(klamm.StoreError, match="the pipe is running"):
            pipe.run()
        pipe.stop()
        thread.join()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_run_after_the_record_that_is_at_hand(store: klamm.Store, number: signal.Signals) -> None:
    fill(store, 6)

    def run() -> int:
        def strikes(order: klamm.Record) -> bytes:
            if order.value == b"4":
                os.kill(os.getpid(), number)
            return same(order)

        with store.pipe("orders", strikes, to="invoices", max_records=100) as pipe:
            done = pipe.run().records
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        return done

    with children() as start:
        done = start(run).answer()
    assert len(numbers(store)) == done and 4 in numbers(store)
    with store.pipe("orders", same, to="invoices") as pipe:
        assert pipe.run(wait=0).records == 6 - done
    assert numbers(store) == list(range(6))


def test_a_signal_ends_a_run_that_waits_and_a_second_one_does_not_wait_for_the_function(store: klamm.Store) -> None:
    fill(store, 3)

    def run(order: Callable[[klamm.Record], object]) -> None:
        with store.pipe("orders", order, to="invoices") as pipe:
            pipe.run()

    def hangs(order: klamm.Record) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)

    def in_hanging() -> None:
        with pytest.raises(SystemExit) as caught:
            run(hangs)
        assert caught.value.code == 128 + signal.SIGTERM

    with children() as start:
        start(in_hanging).answer()
        child = start(lambda: run(same))
        until(lambda: numbers(store) == [0, 1, 2], "all is read")
        child.signal(signal.SIGTERM)
        child.answer()
