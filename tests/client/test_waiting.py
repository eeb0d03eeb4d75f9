"""Consumers that wait: woken by other processes, ended by stop and Ctrl-C, surprised by the catalog."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.client.consume.consumer import session_of
from tests.client.conftest import fill
from tests.procs import STRICT, Flag, asleep, children, until

WAIT = 30.0  # seconds that nothing here takes


@contextmanager
def reading(loop: Callable[[], Any]) -> Iterator[dict[str, Any]]:
    """`loop` in a thread; what it gave back or raised, and when it ended."""
    outcome: dict[str, Any] = {}

    def run() -> None:
        try:
            outcome["result"] = loop()
        except BaseException as error:
            outcome["error"] = error
        outcome["at"] = time.monotonic()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield outcome
    thread.join(WAIT)
    assert not thread.is_alive(), "the loop did not end"


def in_wait(consumer: klamm.Consumer) -> None:
    """Until the consumer's thread has come to the end and waits."""
    until(lambda: session_of(consumer).engine.is_waiting, "the consumer waits")
    time.sleep(0.002)  # from the last look at its state into the kernel


def test_a_waiting_consumer_is_woken_by_an_append_of_another_process(orders: klamm.Store) -> None:
    with orders.consumer("orders") as consumer, children() as start:

        def append() -> None:
            for n in range(20):
                orders.append("orders", b"%d" % n, acks=1)
                time.sleep(0.003)
            orders.close()

        child = start(append)
        seen = []
        for record in consumer:
            seen.append(int(record.value))
            if len(seen) == 20:
                break
        assert seen == list(range(20))
        child.answer()


def test_a_consumer_of_a_read_only_store_sees_what_comes(orders: klamm.Store, path: Path) -> None:
    with klamm.open(path, read_only=True) as other, other.consumer("orders") as consumer:
        with reading(lambda: consumer.poll(timeout=WAIT)) as outcome:
            in_wait(consumer)
            orders.append("orders", b"x", acks=1)
        assert [record.value for record in outcome["result"]] == [b"x"]
        with reading(lambda: list(consumer)) as outcome:
            in_wait(consumer)
            consumer.stop()
        assert outcome["result"] == []


def test_a_waiting_consumer_never_sees_what_was_aborted(orders: klamm.Store) -> None:
    """Not even when the marker of the abort is what wakes it."""
    with orders.consumer("orders") as consumer:
        with reading(lambda: [record.value for record in islice(consumer, 5)]) as outcome:
            for n in range(5):
                in_wait(consumer)
                before = orders["orders"].info().partitions[0].end
                with suppress(ZeroDivisionError), orders.transaction(batch_bytes=1) as tx:
                    tx.send("orders", b"aborted")
                    tx.send("orders", b"aborted")
                    raise ZeroDivisionError
                assert orders["orders"].info().partitions[0].end > before + 1, "nothing was written"
                in_wait(consumer)
                orders.append("orders", b"%d" % n, acks=1)
        assert outcome["result"] == [b"0", b"1", b"2", b"3", b"4"]


def test_a_consumer_of_a_read_only_store_ends_while_another_process_waits(orders: klamm.Store, path: Path) -> None:
    """It cannot ring the bell, which lies in memory that it may not write."""

    def wait() -> int:
        with klamm.open(path) as store, store.consumer("orders") as consumer:
            return len(consumer.poll(timeout=WAIT))

    def read() -> int:
        with klamm.open(path, read_only=True) as store, store.consumer("orders", wait=0) as consumer:
            return len(list(consumer))

    with children() as start:
        waiting = start(wait)
        asleep(waiting)
        assert start(read).answer() == 0
        orders.append("orders", b"x", acks=1)
        assert waiting.answer() == 1


def test_wait_is_how_long_a_loop_waits_for_more(orders: klamm.Store) -> None:
    fill(orders, 3)
    with orders.consumer("orders", wait=0.05) as consumer:
        began = time.monotonic()
        assert len(list(consumer)) == 3
        assert time.monotonic() - began >= 0.05


@pytest.mark.parametrize("how", ["iterate", "batches", "poll"])
@pytest.mark.parametrize("topics", [{"topics": "orders"}, {"pattern": "nothing.*"}])
def test_stop_from_another_thread_ends_a_loop_that_would_wait_forever(
    orders: klamm.Store, how: str, topics: dict[str, Any]
) -> None:
    with orders.consumer(**topics) as consumer:
        loops: dict[str, Callable[[], Any]] = {
            "iterate": lambda: list(consumer),
            "batches": lambda: list(consumer.batches()),
            "poll": consumer.poll,
        }
        with reading(loops[how]) as outcome:
            in_wait(consumer)
            consumer.stop()
        assert outcome["result"] == []
        assert list(consumer) == [] and list(consumer.batches()) == []


def test_stop_ends_a_busy_loop_after_the_record_at_hand(orders: klamm.Store) -> None:
    fill(orders, 1000)
    with orders.consumer("orders", wait=0) as consumer:
        for record in consumer:
            if record.offset == 17:
                consumer.stop()
        assert consumer.position("orders", 0).offset == 18


def test_stop_before_the_loop_ends_it_at_once(orders: klamm.Store) -> None:
    fill(orders, 5)
    with orders.consumer("orders") as consumer:
        consumer.stop()
        assert list(consumer) == []


def test_stop_at_any_moment_is_not_missed(orders: klamm.Store) -> None:
    for n in range(100):
        with orders.consumer("orders", start="latest") as consumer:
            with reading(lambda consumer=consumer: list(consumer)) as outcome:  # type: ignore[misc]
                time.sleep(n * 0.00001)
                began = time.monotonic()
                consumer.stop()
            assert outcome["at"] - began < 0.4, "it waited for its next look"


def test_closing_the_store_ends_a_loop_in_another_thread(path: Path) -> None:
    store = klamm.open(path)
    store.topics.create("orders")
    consumer = store.consumer("orders")
    with reading(lambda: list(consumer)) as outcome:
        in_wait(consumer)
        store.close()
    assert outcome["result"] == []


# The catalog changes


def test_a_partition_that_is_added_is_read_from_its_first_record(orders: klamm.Store) -> None:
    for start in ("earliest", "latest", 0):
        orders.topics.create(f"topic-{start}")
        with orders.consumer(f"topic-{start}", start=start) as consumer:
            with reading(lambda consumer=consumer: next(iter(consumer))) as outcome:  # type: ignore[misc]
                in_wait(consumer)
                orders.topics.add_partitions(f"topic-{start}", 3)
                orders.append(f"topic-{start}", b"x", partition=2, acks=1)
            assert (outcome["result"].partition, outcome["result"].value) == (2, b"x")
            assert len(consumer.assignment()) == 3


def test_a_topic_that_comes_to_match_a_pattern_is_read_and_one_that_goes_is_not(store: klamm.Store) -> None:
    with store.consumer(pattern=re.compile("orders-.*"), start="latest") as consumer:
        assert consumer.assignment() == []
        with reading(lambda: next(iter(consumer))) as outcome:
            in_wait(consumer)
            store.topics.create("users")
            store.topics.create("orders-de")
            store.append("orders-de", b"x", acks=1)
        assert outcome["result"].topic == "orders-de"
        store.topics.create("orders-fr")
        store.append("orders-fr", b"y", acks=1)
        store.topics.delete("orders-de")
        assert consumer.poll(timeout=0)[0].topic == "orders-fr"
        assert consumer.assignment() == [("orders-fr", 0)]


@pytest.mark.parametrize("recreated", [False, True])
def test_a_named_topic_that_is_deleted_is_unknown_to_its_consumer(orders: klamm.Store, recreated: bool) -> None:
    fill(orders, 5)
    with orders.consumer("orders") as consumer:
        assert len(consumer.poll()) == 5
        with reading(consumer.poll) as outcome:
            in_wait(consumer)
            orders.topics.delete("orders")
            if recreated:
                orders.topics.create("orders")
        assert isinstance(outcome["error"], klamm.UnknownTopic)
        with pytest.raises(klamm.UnknownTopic):
            consumer.poll()


def test_a_topic_deleted_while_it_is_read_is_unknown_not_corrupt(store: klamm.Store) -> None:
    store.topics.create("orders", settings={"segment.bytes": 10_000})
    for _ in range(30):
        store.append_many("orders", [bytes(100)] * 50, acks=1)
    with store.consumer("orders", wait=0, max_bytes=4096) as consumer:
        consumer.poll()
        store.topics.delete("orders")
        with pytest.raises(klamm.UnknownTopic):
            list(consumer)


# Ctrl-C

SCRIPT = """
import sys, time, klamm
store = klamm.open(sys.argv[1])
{body}
print("after the loop", flush=True)
"""


def run_and_interrupt(
    path: Path, body: str, *, again: bool = False, after: str = "ready"
) -> subprocess.CompletedProcess[str]:
    """Run `body` in a process, and send it SIGINT when it has printed `after`; `again`: until it ends."""
    code = SCRIPT.format(body=body)
    process = subprocess.Popen(
        [sys.executable, *STRICT, "-c", code, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        seen = ""
        for line in process.stdout:
            seen += line
            if line.startswith(after):
                break
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        if again:  # two that come at the same time are one
            until(lambda: ends_soon(process) or process.send_signal(signal.SIGINT), "it ends")
        out, err = process.communicate(timeout=WAIT)
    finally:
        process.kill()
        process.wait()
    return subprocess.CompletedProcess([], process.returncode, seen + out, err)


def ends_soon(process: subprocess.Popen[str]) -> bool:
    try:
        process.wait(0.05)
    except subprocess.TimeoutExpired:
        return False
    return True


@pytest.mark.parametrize(
    "loop", ["for each in consumer", "for each in consumer.batches()", "for each in store.tail('orders', follow=True)"]
)
def test_ctrl_c_ends_a_waiting_loop_quietly(orders: klamm.Store, path: Path, loop: str) -> None:
    fill(orders, 3)
    body = f"""
consumer = store.consumer("orders")
{loop}:
    print("ready", flush=True)
"""
    done = run_and_interrupt(path, body)
    assert done.returncode == 0 and done.stderr == "" and done.stdout.endswith("after the loop\n")


def test_ctrl_c_lets_the_body_of_the_loop_finish_its_record(orders: klamm.Store, path: Path) -> None:
    fill(orders, 1000)
    body = """
import os, signal
told, tell = os.pipe()
os.set_blocking(tell, False)
signal.set_wakeup_fd(tell)
with store.consumer("orders") as consumer:
    for record in consumer:
        print("ready", flush=True)
        os.read(told, 1)  # until the signal has come
        print("finished", record.offset, consumer.position("orders", 0).offset, flush=True)
"""
    done = run_and_interrupt(path, body)
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout == "ready\nfinished 0 1\nafter the loop\n"


def test_a_second_ctrl_c_is_a_keyboard_interrupt(orders: klamm.Store, path: Path) -> None:
    fill(orders, 10)
    body = """
for record in store.consumer("orders"):
    print("ready", flush=True)
    time.sleep(20)
"""
    done = run_and_interrupt(path, body, again=True)
    assert done.returncode != 0 and "KeyboardInterrupt" in done.stderr


@pytest.mark.parametrize(
    "body",
    [
        "print('ready', flush=True); time.sleep(20)",
        "iterator = iter(consumer); next(iterator)\nprint('ready', flush=True); time.sleep(20)",
        "for record in consumer: break\nprint('ready', flush=True); time.sleep(20)",
        "consumer.poll(); print('ready', flush=True); consumer.poll()",
    ],
    ids=["no loop", "an iterator that is only held", "after a loop", "poll"],
)
def test_ctrl_c_is_a_keyboard_interrupt_outside_of_a_loop(orders: klamm.Store, path: Path, body: str) -> None:
    fill(orders, 3)
    done = run_and_interrupt(path, f"consumer = store.consumer('orders')\n{body}", again="iterator" in body)
    assert done.returncode != 0 and "KeyboardInterrupt" in done.stderr


def test_a_loop_leaves_the_handler_of_sigint_as_it_was(orders: klamm.Store) -> None:
    fill(orders, 10)
    before = signal.getsignal(signal.SIGINT)
    with orders.consumer("orders") as consumer:
        for _ in consumer:
            assert signal.getsignal(signal.SIGINT) is not before
            break
        assert signal.getsignal(signal.SIGINT) is before
        iterator = iter(consumer)
        next(iterator)  # what runs between two calls is not the body of a loop
        assert signal.getsignal(signal.SIGINT) is before
    with orders.consumer("orders", wait=0) as bounded:
        for _ in bounded:
            assert signal.getsignal(signal.SIGINT) is before
    assert signal.getsignal(signal.SIGINT) is before


def test_a_handler_of_ones_own_is_left_alone(orders: klamm.Store) -> None:
    fill(orders, 10)
    got: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: got.append(number))
    try:
        with orders.consumer("orders", wait=0) as consumer:
            for record in consumer:
                if record.offset == 3:
                    os.kill(os.getpid(), signal.SIGINT)
            assert record.offset == 9
        assert got == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


# Processes


def test_a_consumer_in_one_process_reads_what_producers_in_others_send(store: klamm.Store, tmp_path: Path) -> None:
    store.topics.create("users", partitions=4)
    go = Flag(tmp_path / "go")

    def produce(name: int) -> None:
        go.wait()
        with store.producer(acks=1, linger_ms=1) as producer:
            for n in range(2000):
                producer.send("users", b"%d %d" % (name, n), key=b"%d" % name)
        store.close()

    with children() as start:
        running = [start(lambda name=name: produce(name)) for name in range(3)]  # type: ignore[misc]
        found: list[bytes] = []
        with store.consumer("users", form="values", wait=WAIT) as consumer:
            go.up()
            for batch in consumer.batches():
                found += batch
                if len(found) == 6000:
                    break
        for child in running:
            child.answer()
    for name in range(3):
        assert [each for each in found if each.startswith(b"%d " % name)] == [b"%d %d" % (name, n) for n in range(2000)]


def test_readers_and_other_partitions_do_not_wait_for_a_stopped_writer(store: klamm.Store, tmp_path: Path) -> None:
    store.topics.create("users", partitions=2)
    store.append_many("users", [b"%d" % n for n in range(10)], partition=0, acks=1)
    holds = Flag(tmp_path / "holds")

    def stop_in_the_middle() -> None:
        log = store._acquired().topic("users").partition(0).log
        log.lock()
        holds.up()
        os.kill(os.getpid(), signal.SIGSTOP)
        log.unlock()
        store.close()

    with children() as start:
        child = start(stop_in_the_middle)
        holds.wait()
        assert child.stopped()
        store.topics.alter("users", {"retention.ms": 1_000_000})
        with store.consumer("users", wait=0) as consumer:
            assert len(list(consumer)) == 10
        with store.producer(acks="all", linger_ms=0, max_block_ms=0) as producer:
            waits = producer.send("users", b"10", partition=0)
            assert producer.send("users", b"other", partition=1).result(WAIT) == 0
            assert not waits.done
            child.go_on()
            assert waits.result(WAIT) == 10
        child.answer()
