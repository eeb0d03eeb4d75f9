"""`klamm.server`: a server in a thread, for as long as a block lasts."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

import klamm
from tests.messages import value_of
from tests.procs import STRICT, children, until


def send(address: str, *values: bytes, topic: str = "orders") -> None:
    producer = Producer({"bootstrap.servers": address})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(20) == 0


def values(store: klamm.Store, topic: str = "orders") -> list[bytes]:
    with store.consumer(topic, wait=0, form="values") as consumer:
        return list(consumer)


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("klamm")}


def test_it_gives_an_address_that_clients_can_dial(path: Path) -> None:
    with klamm.server(path) as address:
        host, _, port = address.partition(":")
        assert host == "127.0.0.1" and int(port) > 0
        send(address, b"a", b"b")
    with klamm.open(path, create=False) as store:
        assert values(store) == [b"a", b"b"]


def test_after_the_block_nobody_listens_and_no_thread_is_left(path: Path) -> None:
    with klamm.server(path) as address:
        host, _, port = address.partition(":")
        send(address, b"a")
        assert "klamm-server" in threads()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))
    until(lambda: not threads(), "its threads end")


def test_it_serves_beside_embedded_use_of_the_same_store(path: Path) -> None:
    with klamm.open(path) as store, klamm.server(path) as address:
        store.topics.create("orders")
        store.append("orders", b"embedded")
        send(address, b"wire")
        assert values(store) == [b"embedded", b"wire"]
        consumer = Consumer({"bootstrap.servers": address, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["orders"])
        found: list[bytes] = []

        def polled() -> bool:
            found.extend(value_of(message) for message in consumer.consume(10, 0.1))
            return len(found) == 2

        until(polled, "both records come")
        consumer.close()
        assert found == [b"embedded", b"wire"]


def test_an_open_store_can_be_served_and_stays_open(path: Path) -> None:
    with klamm.open(path) as store:
        with klamm.server(store, default_partitions=2) as address:
            send(address, b"a")
        assert len(store.topics.describe("orders").partitions) == 2
        assert values(store) == [b"a"]
        with klamm.server(store) as address:
            send(address, b"b")
        assert sorted(values(store)) == [b"a", b"b"]


def test_what_keeps_it_from_starting_is_raised_here(path: Path, tmp_path: Path) -> None:
    with pytest.raises(klamm.InvalidSetting, match="did you mean 'kafka'"):
        klamm.server(path, kafak=1).__enter__()
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="cannot listen"):
        klamm.server(path, kafka=taken.getsockname()[1]).__enter__()
    (tmp_path / "file").write_text("x")
    with pytest.raises(klamm.NotAStore):
        klamm.server(tmp_path / "file").__enter__()
    with klamm.server(path) as address, pytest.raises(klamm.StoreBusy, match=address):
        klamm.server(path).__enter__()
    until(lambda: not threads(), "its threads end")


def test_an_exception_in_the_block_closes_it_and_goes_on(path: Path) -> None:
    with pytest.raises(ZeroDivisionError), klamm.server(path):
        _ = 1 // 0
    with klamm.server(path) as address:
        send(address, b"a")


def test_two_stores_can_be_served_at_a_time(tmp_path: Path) -> None:
    with klamm.server(tmp_path / "one") as one, klamm.server(tmp_path / "two") as two:
        assert one != two
        send(one, b"1")
        send(two, b"2")
    with klamm.open(tmp_path / "two") as store:
        assert values(store) == [b"2"]


def test_it_goes_inside_of_a_running_loop(path: Path) -> None:
    async def inside() -> None:
        with klamm.server(path) as address:
            await asyncio.to_thread(send, address, b"a")

    asyncio.run(inside())


def test_a_program_that_never_leaves_the_block_can_end(path: Path) -> None:
    code = "import sys, klamm; block = klamm.server(sys.argv[1]); print(block.__enter__()); sys.exit(0)"
    done = subprocess.run([sys.executable, *STRICT, "-c", code, path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    with klamm.server(path) as address:
        send(address, b"a")


def test_a_forked_child_can_serve_a_store_of_its_own(path: Path, tmp_path: Path) -> None:
    def child() -> None:
        with klamm.server(tmp_path / "childs") as address:
            send(address, b"a")

    with klamm.open(path) as store, children() as start:
        store.topics.create("orders")
        start(child).answer()
