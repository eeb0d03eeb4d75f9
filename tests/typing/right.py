# pyright: strict
"""Programs as users write them, which `mypy --strict` and pyright (strict) accept: test_typing.py. Never run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

import klamm
from klamm import aio


@dataclass
class Order:
    item: str
    count: int

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_bytes(data: bytes) -> Order:
        return Order(**json.loads(data))


def int_to_bytes(number: int) -> bytes:
    return b"%d" % number


ORDERS = (Order.to_bytes, Order.from_bytes)
NUMBERS = (int_to_bytes, int)


# ---- what a store is of


def stores() -> None:
    assert_type(klamm.open("events"), klamm.Store[bytes, bytes])
    assert_type(klamm.open("events", serde="bytes", read_only=True), klamm.Store[bytes, bytes])
    assert_type(klamm.open("events", serde="json"), klamm.Store[str, Any])
    assert_type(klamm.open("events", serde="str", busy_timeout=timedelta(seconds=1)), klamm.Store[str, str])
    assert_type(klamm.open("events", serde=ORDERS), klamm.Store[bytes, Order])
    assert_type(klamm.open("events", serde=ORDERS, key_serde="str"), klamm.Store[str, Order])
    assert_type(klamm.open("events", serde=ORDERS, key_serde=NUMBERS), klamm.Store[int, Order])
    assert_type(klamm.open("events", serde="json", key_serde=NUMBERS), klamm.Store[int, Any])
    assert_type(klamm.open("events", key_serde="str"), klamm.Store[str, bytes])
    assert_type(klamm.open("events", serde="json", key_serde="bytes"), klamm.Store[Any, Any])


def bare_names_are_of_bytes(
    store: klamm.Store, topic: klamm.Topic, record: klamm.Record, batch: klamm.Batch, consumer: klamm.Consumer
) -> None:
    assert_type(store, klamm.Store[bytes, bytes])
    assert_type(topic, klamm.Topic[bytes, bytes])
    assert_type(record, klamm.Record[bytes, bytes])
    assert_type(batch, klamm.Batch[klamm.Record[bytes, bytes]])
    assert_type(consumer, klamm.Consumer[klamm.Record[bytes, bytes]])
    assert_type(store["orders"], klamm.Topic[bytes, bytes])
    assert_type(store.topics.create("orders"), klamm.Topic[bytes, bytes])


def a_serde_by_a_variable(name: klamm.SerdeName, serde: klamm.Serde, store: klamm.Store) -> None:
    for record in store.consumer("orders", serde=serde, wait=0):
        print(record.value)
    klamm.open("events", serde=name)


# ---- reading


def records(store: klamm.Store) -> None:
    for plain in store.consumer("orders", wait=0):
        assert_type(plain, klamm.Record[bytes, bytes])
        assert_type(plain.value, bytes | Any)
        print(plain.value.decode(), plain.offset + 1, plain.text, plain.datetime.astimezone(UTC))
        if plain.key is not None:
            print(plain.key.hex())
        trace = plain.headers.get("trace")
        assert_type(trace, bytes | None)
    for doc in store.consumer("orders", serde="json", wait=0):
        assert_type(doc, klamm.Record[str, Any])
        print(doc.value["item"], doc.key.upper())
    for text in store.consumer("orders", serde="str", group="g", auto_offset_reset="latest"):
        assert_type(text.value, str | Any)
    for order in store.consumer("orders", serde=ORDERS, on_bad_record="skip"):
        assert_type(order, klamm.Record[bytes, Order])
        print(order.value.count + 1)
    for keyed in store.consumer("orders", serde=ORDERS, key_serde="str"):
        assert_type(keyed, klamm.Record[str, Order])
    for numbered in store.consumer("orders", serde=ORDERS, key_serde=NUMBERS):
        assert_type(numbered, klamm.Record[int, Order])
    for read in store.consumer("orders", serde=(None, Order.from_bytes)):
        assert_type(read, klamm.Record[bytes, Order])
    for raw in store.consumer("orders", serde="json", on_bad_record="raw"):
        assert_type(raw, klamm.Record[Any, Any])  # key and value may be bytes


def of_a_store_with_a_serde(store: klamm.Store[str, Order]) -> None:
    for own in store.consumer("orders"):
        assert_type(own, klamm.Record[str, Order])
    for handled in store["orders"].consumer(wait=0, start="1h"):
        assert_type(handled, klamm.Record[str, Order])
    for other in store["orders"].consumer(serde="json"):
        assert_type(other, klamm.Record[str, Any])
    for bare in store.consumer("orders", serde="bytes"):  # the store may have a key_serde of its own
        assert_type(bare, klamm.Record[Any, Any])
    for last in store.tail("orders", 5):
        assert_type(last, klamm.Record[str, Order])
    assert_type(store.table("orders"), klamm.Table[str, Order])
    assert_type(store.producer(), klamm.Producer[str, Order])


def forms(store: klamm.Store) -> None:
    for key, value in store.consumer("orders", form="tuples"):
        assert_type(key, bytes | Any)
        assert_type(value, bytes | Any)
    for key, value in store["orders"].consumer(serde="str", form="tuples"):
        assert_type(key, str | Any)
        assert_type(value, str | Any)
    for value in store.consumer("orders", form="values", isolation="read_uncommitted"):
        assert_type(value, bytes | Any)
    for order in store.consumer("orders", form="values", serde=ORDERS):
        assert_type(order, Order | Any)


def batches(store: klamm.Store) -> None:
    with store.consumer("orders", serde=ORDERS, group="g", enable_auto_commit=True) as consumer:
        batch = consumer.poll(100, timeout=0.5)
        assert_type(batch, klamm.Batch[klamm.Record[bytes, Order]])
        assert_type(batch[0], klamm.Record[bytes, Order])
        assert_type(batch[:10], klamm.Batch[klamm.Record[bytes, Order]])
        consumer.commit(batch[:10])
        consumer.commit({("orders", 0): 5})
        for later in consumer.batches():
            assert_type(later, klamm.Batch[klamm.Record[bytes, Order]])


def tails_tables_scans(store: klamm.Store) -> None:
    assert_type(store.tail("orders", 5, follow=True), Iterator[klamm.Record[bytes, bytes]])
    assert_type(store["orders"].tail(serde="json"), Iterator[klamm.Record[str, Any]])
    users = store.table("users", serde=ORDERS, key_serde="str", wait=1)
    assert_type(users, klamm.Table[str, Order])
    users["ada"] = Order("coffee", 1)
    assert_type(users.put("ada", Order("tea", 2), acks=1), int)
    del users["ada"]
    assert_type(users.delete("ada"), int)
    assert_type(users["alice"], Order)
    assert_type(users.get("alice"), Order | None)
    assert_type(users.get("alice", 0), Order | int)
    for key, order in users.items():
        assert_type(key, str)
        assert_type(order, Order)
    for change in users.changes():
        assert_type(change, klamm.Record[str, Order])
    scan = store.scan("orders", columns=["key", "value"], isolation="read_uncommitted", batch_rows=100)
    assert_type(scan, klamm.Scan)


def where(store: klamm.Store) -> None:
    starts: list[klamm.WhereLike] = ["earliest", "1h", 5, datetime.now(UTC), timedelta(hours=1), klamm.last(3)]
    for start in starts:
        store.consumer("orders", start=start, wait=timedelta(seconds=1))


# ---- writing


def appends(store: klamm.Store) -> None:
    assert_type(store.append("orders", b"x"), int)
    assert_type(store.append("orders", b"x", acks=1, key=b"k", partition=0), int)
    assert_type(store.append("orders", b"x", acks=0), None)
    assert_type(store["orders"].append(bytearray(b"x"), key=memoryview(b"k")), int)
    store.append("orders", None, key=b"deleted")
    store.append("orders", {"a": 1}, serde="json", key="k", timestamp=datetime.now(UTC))
    store.append("orders", "text", serde="str")
    store.append("orders", Order("coffee", 2), serde=ORDERS)
    store.append("orders", Order("coffee", 2), serde=ORDERS, key=5, key_serde=NUMBERS)
    store.append("orders", b"x", key=5, key_serde=NUMBERS)


def headers(store: klamm.Store, given: klamm.GivenHeaders) -> None:
    store.append("orders", b"x", headers={"trace": b"1", "user": "ada", "none": None})
    store.append("orders", b"x", headers=[("trace", b"1"), ("user", "ada")])
    store.append("orders", b"x", headers=given)
    texts = {"user": "ada"}
    store["orders"].append(b"x", headers=texts)


def appends_many(store: klamm.Store) -> None:
    done = store.append_many("orders", [b"a", b"b"], compression="zstd")
    assert_type(done, klamm.Appended)
    store.append_many("orders", [(b"k", b"v"), (None, b"v")])
    store.append_many("orders", [(b"k", b"v", {"h": b"1"}), (b"k", None, None)])
    store.append_many("orders", ((b"k", b"%d" % n, None, n) for n in range(5)), acks=1)
    store.append_many("orders", [{"a": 1}, ("k", {"a": 2})], serde="json")
    store["orders"].append_many([Order("a", 1), Order("b", 2)], serde=ORDERS)
    store["orders"].append_many([("k", Order("a", 1))], serde=ORDERS, key_serde="str")


def producers(store: klamm.Store) -> None:
    with store.producer(linger_ms=5, acks=1, compression="lz4", idempotent=True) as producer:
        assert_type(producer, klamm.Producer[bytes, bytes])
        delivery = producer.send("orders", b"x", key=b"k", headers={"a": "b"})
        assert_type(delivery, klamm.Delivery)
        producer.send("orders", memoryview(b"x"))
    with store.producer(serde=ORDERS, key_serde="str") as typed:
        assert_type(typed, klamm.Producer[str, Order])
        typed.send("orders", Order("coffee", 1), key="ada")
        typed.send("orders", None, key="ada")
    with store.producer(serde="json") as free:
        free.send("orders", {"anything": [1, 2]}, key="ada")


def transactions(store: klamm.Store) -> None:
    consumer = store.consumer("orders", group="g")
    with store.transaction("name", consumers=consumer, timeout=5, serde=ORDERS) as tx:
        assert_type(tx, klamm.Transaction[bytes, Order])
        tx.send("invoices", Order("coffee", 1))
        tx.commit_offsets(consumer)
        if tx.state == "open":
            tx.abort()
    with consumer.transaction(compression="zstd") as tx:
        tx.commit_offsets(consumer.poll())


# ---- workers, pipes


def handle(record: klamm.Record[bytes, Order]) -> None:
    print(record.value.item)


async def handle_later(record: klamm.Record[bytes, Order]) -> None:
    await asyncio.sleep(record.value.count)


def run(store: klamm.Store, on_failed: Callable[[klamm.Attempt], object]) -> None:
    consumer = store.consumer("orders", group="g", serde=ORDERS)
    report = consumer.run(handle, workers=4, on_error="dead-letter", retries=5, on_failed=on_failed, order="key")
    assert_type(report, klamm.RunReport)
    consumer.run(handle_later, timeout=timedelta(seconds=5), retry_on=[OSError], backoff=0.5)


def pipes(store: klamm.Store) -> None:
    def count(record: klamm.Record[str, Any], state: klamm.State) -> klamm.Output:
        state.value = (state.value or 0) + 1
        return klamm.to("invoices", state.value)

    with store.pipe("orders", count, to=["invoices"], state="counts", serde="json", on_error="dead-letter") as pipe:
        assert_type(pipe.run(wait=0), klamm.PipeReport)


# ---- what a program writes down: every name is exported


class Shop:
    """Holds what it uses, each with its type."""

    def __init__(self, store: klamm.Store[str, Order]) -> None:
        self.store: klamm.Store[str, Order] = store
        self.orders: klamm.Topic[str, Order] = store["orders"]
        self.reader: klamm.Consumer[klamm.Record[str, Order]] = self.orders.consumer()
        self.sender: klamm.Producer[str, Order] = store.producer()
        self.users: klamm.Table[str, Order] = store.table("users")

    def take(self, batch: klamm.Batch[klamm.Record[str, Order]]) -> list[Order]:
        return [record.value for record in batch]


def note_partitions(partitions: list[klamm.TopicPartition]) -> None:
    print(partitions[0].topic)


def options(
    acks: klamm.Acks,
    compression: klamm.Compression,
    isolation: klamm.Isolation,
    reset: klamm.OffsetReset,
    on_bad_record: klamm.BadRecordPolicy,
    form: klamm.Form,
    assignor: klamm.Assignor,
    on_assigned: klamm.RebalanceCallback,
    partitioner: klamm.Partitioner,
    offsets: klamm.Offsets,
    columns: list[klamm.Column],
    duration: klamm.Duration,
    topics: klamm.TopicSelection,
    store: klamm.Store,
) -> None:
    store.producer(acks=acks, compression=compression, partitioner=partitioner)
    assert_type(store.append("orders", b"x", acks=acks), int | None)
    store.consumer(
        topics,
        isolation=isolation,
        auto_offset_reset=reset,
        on_bad_record=on_bad_record,
        form=form,
        assignor=assignor,
        on_assigned=on_assigned,
        on_revoked=note_partitions,
        offsets=offsets,
        wait=duration,
    )
    store.scan("orders", columns=columns)


def errors(store: klamm.Store) -> None:
    try:
        store.append("orders", b"x")
    except klamm.UnknownTopic as error:
        print(error.hint)
    except klamm.KlammError as error:
        print(error.message)


def groups(store: klamm.Store) -> None:
    info = store.groups.describe("g")
    if info.state == "active":
        print(info.lag)
    for lock in store.who():
        if lock.state == "waits":
            print(lock.pid)


# ---- asyncio


async def asynchronously() -> None:
    async with aio.open("events", threads=4) as store:
        assert_type(store, aio.Store[bytes, bytes])
        assert_type(await store.append("orders", b"x", key=b"k"), int)
        assert_type(await store.append("orders", b"x", acks=0), None)
        await store["orders"].append(Order("coffee", 1), serde=ORDERS)
        await store.append_many("orders", [(b"k", b"v")], compression="zstd")
        async with store.consumer("orders", serde=ORDERS, group="g") as consumer:
            assert_type(consumer, aio.Consumer[klamm.Record[bytes, Order]])
            async for record in consumer:
                assert_type(record, klamm.Record[bytes, Order])
            batch = await consumer.poll()
            assert_type(batch, klamm.Batch[klamm.Record[bytes, Order]])
            async for later in consumer.batches():
                assert_type(later, klamm.Batch[klamm.Record[bytes, Order]])
            await consumer.run(handle_later, on_error="retry")
        async for record in store.consumer("orders", serde=ORDERS, wait=0):
            assert_type(record, klamm.Record[bytes, Order])
        async with store["orders"].consumer(form="values", serde="str") as values:
            async for value in values:
                assert_type(value, str | Any)
        async for last in store.tail("orders", 5, serde="json"):
            assert_type(last, klamm.Record[str, Any])
        async with store.producer(serde=ORDERS, key_serde="str") as producer:
            assert_type(producer, aio.Producer[str, Order])
            await producer.send("orders", Order("coffee", 1), key="ada")
        async with store.transaction(serde="str") as tx:
            await tx.send("orders", "text")
        users = await store.table("users", serde=ORDERS, key_serde="str")
        assert_type(users, aio.Table[str, Order])
        assert_type(await users.put("ada", Order("tea", 2)), int)
        assert_type(await users.delete("ada", acks=1), int)
        assert_type(await users.get("ada"), Order | None)
        async for key, order in users.items():
            assert_type(key, str)
            assert_type(order, Order)


async def with_a_serde(store: aio.Store[str, Order]) -> None:
    orders: aio.Topic[str, Order] = store["orders"]
    await orders.append(Order("coffee", 1), key="ada")
    consumer: aio.Consumer[klamm.Record[str, Order]] = await orders.consumer()
    assert_type(await consumer.poll(), klamm.Batch[klamm.Record[str, Order]])
    assert_type(await store.topics.create("users"), aio.Topic[str, Order])
