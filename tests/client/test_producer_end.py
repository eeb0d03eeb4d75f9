"""Producers: callbacks of deliveries, and the end, by which nothing that was sent is lost."""

from __future__ import annotations

import contextlib
import pickle
import subprocess
import sys
import threading
import time
import weakref
from typing import Any

import pytest

import klamm
from tests.client.conftest import held, partition_of, values_in
from tests.procs import asleep, children, threads_named, until

WAIT = 30  # seconds that nothing here takes


# Callbacks


def test_callbacks_are_called_once_and_may_send_more(orders: klamm.Store) -> None:
    message: list[int | None] = []

    def note(delivery: klamm.Delivery) -> None:
        message.append(delivery.offset)
        if len(message) < 50:
            producer.send("orders", b"x").add_done_callback(note)

    with orders.producer(acks=1, linger_ms=1) as producer:
        producer.send("orders", b"x").add_done_callback(note)
        until(lambda: len(message) >= 50, "fifty callbacks")
    assert message == list(range(50))


def test_each_callback_of_a_batch_is_called_whatever_another_raises(orders: klamm.Store) -> None:
    seen: list[int | None] = []
    with orders.producer(acks=1, linger_ms=60_000) as producer:
        first, second, third = (producer.send("orders", b"%d" % n) for n in range(3))
        first.add_done_callback(lambda _: 1 / 0)
        second.add_done_callback(lambda delivery: seen.append(delivery.offset))
        third.add_done_callback(lambda delivery: seen.append(delivery.offset))
        producer.flush()
    assert seen == [1, 2]


def test_an_interrupt_in_a_callback_is_raised_and_every_batch_is_answered(store: klamm.Store) -> None:
    def interrupt(_: klamm.Delivery) -> None:
        raise KeyboardInterrupt

    store.topics.create("users", partitions=3)
    with store.producer(acks=1, linger_ms=60_000) as producer:
        deliveries = [producer.send("users", b"x", partition=number) for number in range(3)]
        deliveries[0].add_done_callback(interrupt)
        with pytest.raises(KeyboardInterrupt):
            producer.flush()
        assert [delivery.result(WAIT) for delivery in deliveries] == [0, 0, 0]


@pytest.mark.parametrize("acks", [1, "all"])
@pytest.mark.parametrize("way", ["flush", "close"])
def test_callbacks_were_called_when_flush_or_close_returns(orders: klamm.Store, acks: Any, way: str) -> None:
    entered, is_open = threading.Event(), threading.Event()
    seen: list[int | None] = []

    def slow(delivery: klamm.Delivery) -> None:
        entered.set()
        assert is_open.wait(WAIT)
        seen.append(delivery.offset)

    producer = orders.producer(acks=acks, linger_ms=1)
    first = producer.send("orders", b"x")
    first.add_done_callback(slow)
    first.add_done_callback(lambda delivery: seen.append(delivery.offset))
    assert entered.wait(WAIT) and first.done  # another thread is in the callback
    try:
        with pytest.raises(TimeoutError, match="not everything was delivered"):
            producer.flush(0.01)
    finally:
        threading.Timer(0.05, is_open.set).start()
    (producer.flush if way == "flush" else producer.close)(WAIT)
    assert seen == [0, 0]
    producer.close()


@pytest.mark.parametrize("acks", [1, "all"])
@pytest.mark.parametrize("way", ["flush", "close", "store.close"])
def test_what_waits_for_deliveries_is_refused_in_a_callback(orders: klamm.Store, acks: Any, way: str) -> None:
    message: list[str] = []

    def wait(_: klamm.Delivery) -> None:
        try:
            {"flush": producer.flush, "close": producer.close, "store.close": orders.close}[way]()
        except klamm.StoreError as error:
            message.append(str(error))

    with orders.producer(acks=acks, linger_ms=1) as producer:
        delivery = producer.send("orders", b"x")
        delivery.add_done_callback(wait)
        assert delivery.result(WAIT) == 0
        until(lambda: message, "the callback is called")
        assert message[0].startswith(f"{way}() in a callback of a delivery would wait for itself")
        assert producer.send("orders", b"y").result(WAIT) == 1
        producer.flush(WAIT)


def test_a_callback_that_raises_harms_nobody(orders: klamm.Store, caplog: pytest.LogCaptureFixture) -> None:
    with orders.producer(acks=1, linger_ms=1) as producer:
        producer.send("orders", b"x").add_done_callback(lambda _: 1 / 0)
        producer.flush()
        assert producer.send("orders", b"y").result(WAIT) == 1
    assert "ZeroDivisionError" in caplog.text


# The end, and what cannot be done


def test_a_closed_producer_says_so(orders: klamm.Store) -> None:
    producer = orders.producer()
    producer.close()
    producer.close()
    with pytest.raises(klamm.StoreError, match="producer is closed"):
        producer.send("orders", b"x")
    with pytest.raises(klamm.StoreError, match="producer is closed"):
        producer.flush()


def test_closing_the_store_flushes_its_producers(path: Any) -> None:
    with klamm.open(path) as store:
        store.topics.create("orders")
        producer = store.producer(linger_ms=60_000)
        producer.send("orders", b"x")
    with klamm.open(path) as store:
        assert values_in(store) == [b"x"]
    with pytest.raises(klamm.StoreError, match="closed"):
        producer.send("orders", b"y")


class Gate:
    """A serializer in which a `send` waits."""

    def __init__(self) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()
        self.calls = 0

    def __call__(self, value: bytes) -> bytes:
        self.calls += 1
        self.entered.set()
        assert self.opened.wait(WAIT)
        return value


def send_in_thread(sends: Any, gate: Gate) -> tuple[threading.Thread, list[Any]]:
    """A thread that is in the serializer of its `send`, and the outcome: a Delivery, or an error."""
    outcome: list[Any] = []

    def send() -> None:
        try:
            outcome.append(sends.send("orders", b"late"))
        except klamm.KlammError as error:
            outcome.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    assert gate.entered.wait(WAIT)
    return thread, outcome


@pytest.mark.parametrize("way", ["close", "store.close"])
def test_a_send_that_comes_too_late_raises_and_is_not_lost_silently(path: Any, way: str) -> None:
    gate = Gate()
    store = klamm.open(path)
    store.topics.create("orders")
    producer = store.producer(serde=(gate, None), acks=1)
    thread, outcome = send_in_thread(producer, gate)
    {"close": producer.close, "store.close": store.close}[way]()
    gate.opened.set()
    thread.join(WAIT)
    store.close()
    assert isinstance(outcome[0], klamm.StoreError), outcome
    assert "producer is closed" in str(outcome[0])


def test_a_send_to_a_transaction_that_the_store_has_closed_raises(path: Any) -> None:
    gate = Gate()
    store = klamm.open(path)
    store.topics.create("orders")
    thread, outcome = send_in_thread(store.transaction(serde=(gate, None)), gate)
    store.close()
    gate.opened.set()
    thread.join(WAIT)
    assert isinstance(outcome[0], klamm.TransactionError), outcome


def test_a_send_whose_topic_changes_meanwhile_is_delivered(orders: klamm.Store) -> None:
    gate = Gate()
    with orders.producer(serde=(gate, None), acks=1, linger_ms=60_000) as producer:
        thread, outcome = send_in_thread(producer, gate)
        orders.topics.add_partitions("orders", 3)
        gate.opened.set()
        producer.send("orders", b"with three partitions")
        thread.join(WAIT)
        producer.flush()
        assert outcome[0].result(0) is not None
    assert sorted(values_in(orders)) == [b"late", b"with three partitions"]


def test_a_slow_serializer_is_called_once_and_its_record_waits_for_linger_ms_only(
    orders: klamm.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not wait until a thread that sleeps looks around."""
    monkeypatch.setattr("klamm.client.produce.producer._IDLE_S", 10.0 * WAIT)
    calls: list[bytes] = []

    def to_bytes(value: bytes) -> bytes:
        calls.append(value)
        time.sleep(0.03)
        return value

    with orders.producer(serde=(to_bytes, None), acks=1, linger_ms=2) as producer:
        for n in range(10):
            producer.send("orders", b"%d" % n).result(WAIT)
    assert len(calls) == 10


@pytest.mark.parametrize("way", ["close", "store.close"])
def test_every_send_that_returns_while_others_close_is_delivered(path: Any, way: str) -> None:
    sent: list[klamm.Delivery] = []

    def send_some() -> None:
        with contextlib.suppress(klamm.StoreError):
            while True:
                sent.append(producer.send("orders", {"n": list(range(50)), "text": "x" * 200}))

    with klamm.open(path) as store:
        store.topics.create("orders")
    for _ in range(25):
        with klamm.open(path) as store:
            producer = store.producer(serde="json", acks=1)
            threads = [threading.Thread(target=send_some) for _ in range(4)]
            for thread in threads:
                thread.start()
            until(lambda: sent, "the first send")
            {"close": producer.close, "store.close": store.close}[way]()
            for thread in threads:
                thread.join(WAIT)
            assert all(delivery.done for delivery in sent)
        with klamm.open(path) as store:
            assert store.topics.describe("orders").count > max(delivery.result(0) or 0 for delivery in sent)
        sent.clear()


AT_EXIT = """
import atexit, sys, threading
sent = []
atexit.register(lambda: print(sum(not delivery.done for delivery in sent), len(sent)))
import klamm
store = klamm.open(sys.argv[1])
producer = store.producer(serde="json", acks=1)
def send():
    try:
        while True:
            sent.append(producer.send("orders", {"n": list(range(50))}))
    except klamm.StoreError:
        pass
for _ in range(4):
    threading.Thread(target=send, daemon=True).start()
while len(sent) < 1000:
    pass
"""


def test_every_send_that_returns_while_the_process_ends_is_delivered(orders: klamm.Store) -> None:
    for _ in range(3):
        child = subprocess.run([sys.executable, "-c", AT_EXIT, orders.path], capture_output=True, text=True, timeout=60)
        assert child.returncode == 0 and child.stderr == ""
        pending, sent = map(int, child.stdout.split())
        assert sent >= 1000 and pending == 0


def test_who_closes_second_waits_for_the_deliveries_too(orders: klamm.Store) -> None:
    producer = orders.producer(acks=1, linger_ms=60_000)
    delivery = producer.send("orders", b"x")
    ended: list[bool] = []

    def close() -> None:
        producer.close()
        ended.append(delivery.done)

    with held(partition_of(orders)):
        threads = [threading.Thread(target=close) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            asleep(thread)
        assert ended == []
    for thread in threads:
        thread.join(WAIT)
    assert ended == [True, True]


def test_a_producer_made_while_its_store_is_closed_is_closed_too(path: Any) -> None:
    store = klamm.open(path)
    store.topics.create("orders")
    made: list[klamm.Producer] = []
    first = store.producer(linger_ms=60_000)
    first.send("orders", b"x").add_done_callback(lambda _: made.append(store.producer()))
    store.close()
    assert len(made) == 1
    with pytest.raises(klamm.StoreError, match="producer is closed"):
        made[0].send("orders", b"y")
    with pytest.raises(klamm.StoreError, match="store is closed"):
        store.producer()


def producer_threads() -> int:
    return len(threads_named("klamm-producer"))


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_a_dropped_producer_leaves_no_thread_and_what_was_sent_is_delivered(orders: klamm.Store) -> None:
    before = producer_threads()
    deliveries = [orders.producer(linger_ms=n % 3).send("orders", b"%d" % n) for n in range(30)]
    for delivery in deliveries:
        delivery.result(WAIT)
    until(lambda: producer_threads() <= before, "the threads end")
    kept = [orders.producer(linger_ms=1)]
    kept[0].send("orders", b"30").result(WAIT)
    dropped = weakref.ref(kept[0])
    until(lambda: kept[0]._anchor.producer is None, "its thread sleeps")
    kept.clear()
    until(lambda: dropped() is None, "nothing else refers to it")
    until(lambda: producer_threads() <= before, "the thread of one that was asleep ends")
    assert sorted(map(int, values_in(orders))) == list(range(31))


def test_a_dropped_producer_delivers_before_its_store_is_closed(path: Any) -> None:
    with klamm.open(path) as store:
        store.topics.create("orders")
        store.producer(linger_ms=60_000).send("orders", b"x")
    with klamm.open(path) as store:
        assert values_in(store) == [b"x"]


def test_a_producer_does_not_pickle(orders: klamm.Store) -> None:
    with orders.producer() as producer, pytest.raises(TypeError, match="pickle the store"):
        pickle.dumps(producer)


def test_a_producer_from_before_a_fork_raises_in_the_child_and_goes_on_in_the_parent(orders: klamm.Store) -> None:
    with orders.producer(acks=1, linger_ms=60_000) as producer, children() as start:
        producer.send("orders", b"parent")

        def in_child() -> str:
            for use in (lambda: producer.send("orders", b"child"), producer.flush):
                with pytest.raises(klamm.Forked):
                    use()
            producer.close()
            with orders.producer() as mine:
                mine.send("orders", b"child")
            orders.close()
            return "fine"

        assert start(in_child).answer() == "fine"
        producer.send("orders", b"parent again")
    assert values_in(orders) == [b"child", b"parent", b"parent again"]


def test_a_producer_that_is_idle_wakes_rarely_and_its_thread_ends_with_it(orders: klamm.Store) -> None:
    with orders.producer(acks=1) as producer:
        producer.send("orders", b"x").result(WAIT)
        own = producer._thread
        assert own is not None and own.is_alive()
    assert not own.is_alive()
