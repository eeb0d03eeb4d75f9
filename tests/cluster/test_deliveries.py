"""What a producer of a server or a cluster says of the records that it was given, and when."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

import klamm
from klamm.batch import Delivery, walk
from klamm.cluster.record_stream import RecordStream
from klamm.errors import Aborted, Closed, Fenced, KlammError, StoreError
from tests.interop.brokers import Broker, fresh
from tests.procs import PATIENCE, until

COUNT = 5_000  # more than a `flush` hears of by itself


@pytest.fixture
def store(klamm_broker: Broker) -> Iterator[klamm.Store]:
    with klamm.open(f"kafka://{klamm_broker.address}") as opened:
        yield opened


@pytest.fixture
def topic(store: klamm.Store) -> str:
    return store.topics.create(fresh("orders"), 4).name


def test_every_delivery_has_the_offset_of_its_record_though_others_write_there_too(
    store: klamm.Store, topic: str
) -> None:
    def write(number: int, sent: list[Delivery]) -> None:
        with store.producer() as producer:
            for n in range(COUNT):
                sent.append(producer.send(topic, b"%d-%d" % (number, n), key=b"%d" % (n % 7)))

    by_writer: list[list[Delivery]] = [[], []]
    threads = [threading.Thread(target=write, args=(number, sent)) for number, sent in enumerate(by_writer)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    with store.consumer(topic, wait=0) as consumer:
        found = {(record.partition, record.offset): (record.value, record.timestamp) for record in consumer}
    assert len(found) == 2 * COUNT
    for number, sent in enumerate(by_writer):
        for n, delivery in enumerate(sent):
            assert found[delivery.partition, delivery.result() or 0] == (b"%d-%d" % (number, n), delivery.timestamp)


@pytest.mark.parametrize("count", [1, COUNT])
def test_a_flush_returns_when_the_callbacks_were_called(store: klamm.Store, topic: str, count: int) -> None:
    told: list[Delivery] = []

    def slow(delivery: Delivery) -> None:
        time.sleep(0.02)  # a `flush` that does not wait for it is long over then
        told.append(delivery)

    with store.producer() as producer:
        sent = [producer.send(topic, b"x", key=b"k") for _ in range(count)]
        sent[-1].add_done_callback(slow)
        producer.flush()
        assert told == [sent[-1]]


def test_a_flush_in_a_callback_is_an_error_in_whichever_thread(store: klamm.Store, topic: str) -> None:
    told: list[str] = []

    def wait_for_itself(_: Delivery) -> None:
        try:
            producer.flush()
        except StoreError as error:
            told.append(error.message)

    with store.producer(linger_ms=1) as producer:
        for n in range(1, 21):
            producer.send(topic, b"x").add_done_callback(wait_for_itself)
            producer.flush()
            assert len(told) == n and "in a callback" in told[-1]


def test_a_flush_waits_no_longer_than_it_says_and_does_not_wait_for_the_linger(store: klamm.Store, topic: str) -> None:
    with store.producer(linger_ms=100_000) as producer:
        sent = [producer.send(topic, b"x", key=b"k") for _ in range(COUNT)]
        producer.flush(PATIENCE)
        assert all(delivery.done for delivery in sent)


def test_batches_are_as_large_as_librdkafka_makes_them_unless_a_size_is_given(
    store: klamm.Store, klamm_broker: Broker
) -> None:
    counts = []
    sizes: list[dict[str, int]] = [{}, {"batch_bytes": 20_000}]
    for size in sizes:
        topic = store.topics.create(fresh("orders")).name
        options: Any = {"linger_ms": 100_000, **size}
        with store.producer(**options) as producer:
            for _ in range(2_000):
                producer.send(topic, bytes(100))
        assert klamm_broker.store is not None
        with klamm.open(klamm_broker.store) as directory:
            partition = directory._acquired().topic(topic).partition(0)
            counts.append(len(list(walk(partition.reader(0).read(1 << 20)))))
    assert counts[0] == 1 and counts[1] >= 10


def test_every_record_of_a_producer_that_another_has_fenced_is_known_to_have_failed(
    store: klamm.Store, klamm_broker: Broker, topic: str
) -> None:
    name = fresh("tx")
    older = store.transaction(name)
    sent = [older.send(topic, b"before")]
    with klamm.open(f"kafka://{klamm_broker.address}") as other:
        newer = other.transaction(name)
        with suppress(KlammError):  # once librdkafka knows
            for _ in range(COUNT):
                sent.append(older.send(topic, b"after"))
        with pytest.raises((Fenced, Aborted)):
            older.commit()
        newer.send(topic, b"newer")
        newer.commit()
    until(lambda: all(delivery.done for delivery in sent), "each is known to have failed")
    assert all(isinstance(delivery.error, KlammError) for delivery in sent)
    with store.consumer(topic, wait=0) as consumer:
        assert [record.value for record in consumer] == [b"newer"]


def test_a_commit_says_that_another_has_fenced_it_though_its_records_are_not_reported(
    store: klamm.Store, klamm_broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka tells one thread, which may be the one that listens, and may keep records until they time out."""

    def keep(stream: RecordStream, timeout_s: float | None) -> bool:
        time.sleep(0.05)
        return False

    name = fresh("tx")
    older = store.transaction(name)
    with klamm.open(f"kafka://{klamm_broker.address}") as other:
        newer = other.transaction(name)
        sent = older.send(topic, b"after")
        with monkeypatch.context() as patch:
            patch.setattr(RecordStream, "wait", keep)
            with pytest.raises(Fenced):
                older.commit()
        newer.send(topic, b"newer")
        newer.commit()
    until(lambda: sent.done, "it is known to have failed")
    assert isinstance(sent.error, KlammError)


def test_a_record_that_comes_when_another_thread_has_closed_the_stream_is_an_error(
    store: klamm.Store, topic: str
) -> None:
    stream: Any = store._acquired().elsewhere.stream(-1, lingers=True)
    stream.send(topic, b"in time").result(PATIENCE)
    stream.close()
    with pytest.raises(Closed):
        stream.send(topic, b"late")
    with pytest.raises(Closed):
        store.append_many(topic, [b"late"] * 3)


def test_an_option_of_producers_in_an_address_is_one_of_producers_alone(klamm_broker: Broker) -> None:
    with klamm.open(f"kafka://{klamm_broker.address}?enable.gapless.guarantee=true") as store:
        topic = store.topics.create(fresh("orders")).name
        assert store.append(topic, b"x") == 0
