"""Mistakes, each on a line that ends in `# wrong`: both checkers refuse those lines, and no others: test_typing.py."""

from __future__ import annotations

import klamm
from klamm import aio


def to_number(data: bytes) -> int:
    return int(data)


def from_number(number: int) -> bytes:
    return b"%d" % number


NUMBERS = (from_number, to_number)


def choices(store: klamm.Store) -> None:
    store.append("orders", b"x", acks=2)  # wrong
    store.append("orders", b"x", acks="one")  # wrong
    store.append_many("orders", [b"x"], compression="zip")  # wrong
    store.producer(compression="zstandard")  # wrong
    store.producer(acks="none")  # wrong
    store.consumer("orders", isolation="serializable")  # wrong
    store.consumer("orders", auto_offset_reset="none")  # wrong
    store.consumer("orders", on_bad_record="ignore")  # wrong
    store.consumer("orders", form="dicts")  # wrong
    store.consumer("orders", serde="yaml")  # wrong
    store.consumer("orders", serde="json", key_serde="yaml")  # wrong
    store.tail("orders", serde="text")  # wrong
    store.table("orders", serde=b"json")  # wrong
    store.scan("orders", columns=["values"])  # wrong
    store.scan("orders", isolation="committed")  # wrong
    store.pipe("orders", print, to="invoices", on_error="retry")  # wrong
    store.consumer("orders").run(print, on_error="skip")  # wrong
    store.consumer("orders").run(print, order="topic")  # wrong
    klamm.open("events", serde="yaml")  # wrong


def options(store: klamm.Store) -> None:
    klamm.open("events", readonly=True)  # wrong
    store.append("orders", b"x", ack=1)  # wrong
    store.append_many("orders", [b"x"], compress="zstd")  # wrong
    store.producer(linger=5)  # wrong
    store.consumer("orders", grup="g")  # wrong
    store["orders"].consumer(grup="g")  # wrong
    store["orders"].consumer(pattern="orders")  # wrong
    store.transaction(acks=1)  # wrong
    store.scan("orders", colums=["key"])  # wrong
    store.pipe("orders", print, onto="invoices")  # wrong
    store.consumer("orders").run(print, worker=8)  # wrong
    store.tail("orders", lines=5)  # wrong
    store.table("orders", timeout=5)  # wrong


def kinds_of_options(store: klamm.Store) -> None:
    klamm.open(b"events")  # wrong
    klamm.open("events", busy_timeout="5s")  # wrong
    store.consumer("orders", wait="5s")  # wrong
    store.consumer("orders", group=5)  # wrong
    store.consumer("orders", serde="json", group=5)  # wrong
    store.consumer("orders", on_assigned="call")  # wrong
    store.producer(batch_bytes="64k")  # wrong
    store.append("orders", b"x", partition="0")  # wrong
    store.append("orders", b"x", headers={"n": 1})  # wrong
    store.append("orders", b"x", headers=5)  # wrong
    store.append("orders", b"x", headers={"trace": 1.5, "user": "ada"})  # wrong
    store.append("orders", b"x", timestamp="now")  # wrong
    store.append(b"orders", b"x")  # wrong
    store["orders"].tail("5")  # wrong
    store["orders"].compact(force="yes", memory_bytes=None)  # wrong


def values_without_their_serde(store: klamm.Store, texts: klamm.Store[str, str]) -> None:
    store.append("orders", "text")  # wrong
    store.append("orders", {"a": 1})  # wrong
    store.append("orders", 5, acks=1)  # wrong
    store.append("orders", b"x", key=5)  # wrong
    store["orders"].append("text")  # wrong
    store.append("orders", b"x", serde="str")  # wrong
    store.append("orders", "text", serde="bytes")  # wrong
    store.append("orders", "five", serde=NUMBERS)  # wrong
    store.append_many("orders", ["text"])  # wrong
    store.append_many("orders", [(b"k", 5)])  # wrong
    store.append_many("orders", [5], serde="str")  # wrong
    store.append_many("orders", ["five"], serde=NUMBERS)  # wrong
    store.producer().send("orders", "text")  # wrong
    store.producer(serde=NUMBERS).send("orders", "five")  # wrong
    store.producer(serde="str").send("orders", b"x")  # wrong
    store.transaction().send("orders", {"a": 1})  # wrong
    texts.append("orders", b"x")  # wrong
    texts["orders"].append(5)  # wrong
    texts.producer().send("orders", b"x")  # wrong


def fields(store: klamm.Store, consumer: klamm.Consumer[klamm.Record[str, int]]) -> None:
    for plain in store.consumer("orders"):
        plain.value.encode()  # wrong
        plain.valeu  # wrong
        number: int = plain.value  # wrong
        plain.offset = 5  # wrong
        plain.offset.upper()  # wrong
    for text in store.consumer("orders", serde="str"):
        text.value.decode()  # wrong
    for doc in store.consumer("orders", serde="json"):
        doc.key.decode()  # wrong
    for numbered in store["orders"].consumer(serde=NUMBERS):
        numbered.value.upper()  # wrong
    for typed in consumer:
        typed.value.upper()  # wrong
        typed.key.decode()  # wrong
    for value in store.consumer("orders", form="values"):
        value.offset  # wrong
    for pair in store.consumer("orders", form="tuples"):
        pair.value  # wrong
    for last in store.tail("orders", serde="str"):
        last.value.decode()  # wrong
    batch = consumer.poll()
    batch.topics  # wrong
    batch[0].value.upper()  # wrong
    store.table("users", serde=NUMBERS)[b"ada"].upper()  # wrong
    store.table("users", serde="json")[5]  # wrong


def tables(users: klamm.Table[str, int]) -> None:
    users["ada"] = "five"  # wrong
    users[5] = 5  # wrong
    users["ada"] = None  # wrong
    users.put("ada", "five")  # wrong
    users.put("ada", 5, acks=0)  # wrong
    users.delete(5)  # wrong
    del users[5]  # wrong


def handler(record: klamm.Record[str, int]) -> None:
    print(record)


def takes_text(store: klamm.Store[str, str]) -> None:
    print(store)


def handed_on(store: klamm.Store) -> None:
    store.consumer("orders").run(handler)  # wrong
    takes_text(store)  # wrong
    numbers = klamm.open("events", serde=NUMBERS)
    takes_text(numbers)  # wrong
    first: klamm.Record[str, str] = store.consumer("orders").poll()[0]  # wrong
    topic: klamm.Topic[str, str] = store["orders"]  # wrong
    offset: str = store.append("orders", b"x")  # wrong
    store.append("orders", b"x", acks=0) + 1  # wrong
    store.consumers  # wrong
    klamm.Kafka  # wrong


async def asynchronously(store: aio.Store, typed: aio.Store[str, int]) -> None:
    await store.append("orders", "text")  # wrong
    await store.append("orders", b"x", acks=2)  # wrong
    await store["orders"].append({"a": 1})  # wrong
    await store.append_many("orders", ["text"])  # wrong
    await store.consumer("orders", grup="g")  # wrong
    await store.consumer("orders", isolation="serializable")  # wrong
    await store.pipe("orders", print, on_error="retry")  # wrong
    store.scan("orders", colums=["key"])  # wrong
    await typed.append("orders", "five")  # wrong
    async with store.producer() as producer:
        await producer.send("orders", "text")  # wrong
    async with typed.consumer("orders") as consumer:
        async for record in consumer:
            record.value.upper()  # wrong
            record.key.decode()  # wrong
        consumer.run(handler, worker=8)  # wrong
    for record in store.consumer("orders"):  # wrong
        pass
    store.append("orders", b"x") + 1  # wrong
    aio.open("events", serde="yaml")  # wrong
