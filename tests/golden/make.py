"""Make the golden store of today's format: stores as they were written then are opened by every later Klamm.

    python -m tests.golden.make

writes tests/golden/<format>.tar.xz, once for each format of klamm.db and `heads`, and never again. In it: a store that
has been used in all ways that leave something on disk, as a killed process left it, and what a reader finds in it.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import klamm
from klamm.log import head
from klamm.store.database import FORMAT_VERSION
from tests.procs import Flag, children
from tests.serving import serving

HERE = Path(__file__).parent
FOUND = "found.json"
STORE = "store"


def name_of_format() -> str:
    return f"klamm.db-{FORMAT_VERSION}-heads-{head.FORMAT}"


def found_in(path: Path) -> dict[str, Any]:
    """Return what a reader finds: topics, their settings and records, and what groups have not read yet."""
    with klamm.open(path) as store:
        topics = {}
        for name in store.topics:
            info = store.topics.describe(name)
            partitions = []
            for each in info.partitions:
                records = {}
                for isolation in ("read_committed", "read_uncommitted"):
                    with store.consumer({name: [each.number]}, wait=0, start="earliest", isolation=isolation) as read:
                        records[isolation] = [[r.offset, _text(r.key), _text(r.value), r.timestamp] for r in read]
                partitions.append({"start": each.start, "end": each.end, **records})
            topics[name] = {"id": info.id, "settings": dict(info.settings), "partitions": partitions}
        groups = {}
        for group, topic in (("readers", "orders"), ("wire-readers", "wire")):
            with store.consumer(topic, group=group, wait=0) as consumer:
                groups[group] = sorted([each.partition, each.offset] for each in consumer)
        return {"topics": topics, "groups": groups, "transactions": len(store.transactions)}


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode()


def fill(path: Path) -> None:
    """Use a new store in all ways that leave something on disk."""
    with klamm.open(path) as store:
        small = {"segment.bytes": "1024", "index.interval.bytes": "200"}
        store.topics.create("orders", partitions=3, settings={**small, "retention.ms": "-1"})
        store.topics.create("users", settings={**small, "cleanup.policy": "compact", "min.compaction.lag.ms": "0"})
        store.topics.create("gone", partitions=2)
        store.topics.create("empty", partitions=2, settings={"retention.ms": "-1"})
        for number in range(90):
            store.append("orders", f"order {number}".encode(), key=f"{number % 7}".encode(), acks=1)
        for number in range(200):
            store.append("users", f"user {number}".encode(), key=f"{number % 11}".encode(), acks=1)
        store.append("gone", b"x")
        store.topics.delete("gone")
        store["users"].compact()
        store["orders"].delete_records({0: 5})
        store.topics.alter("empty", {"max.message.bytes": "2000"})
        with store.consumer("orders", group="readers", wait=0) as consumer:
            consumer.commit(consumer.poll(max_records=20))
        for number in range(6):
            try:
                with store.transaction("loader") as tx:
                    tx.send("orders", f"transaction {number}".encode(), key=b"t")
                    if number % 2:
                        raise KeyError(number)
            except KeyError:
                pass
        store.alter({"lineage.retention.ms": 10**12})
        with store.transaction("job") as tx:
            tx.once("job", 7, fingerprint="seven")
            tx.send("orders", b"once", key=b"t")
        with store.consumer("orders", group="named", member="first", wait=0) as consumer:
            consumer.commit(consumer.poll(max_records=3))
        with store.producer() as producer:
            for number in range(10):
                producer.send("orders", f"sent {number}".encode(), key=f"{number}".encode())


def fill_over_the_wire(path: Path, where: Path) -> None:
    from confluent_kafka import Consumer, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient, NewTopic

    with serving(path, where=where) as server:
        address: dict[str, str | int | float | bool] = {"bootstrap.servers": server.address}
        admin = AdminClient(address)
        admin.create_topics([NewTopic("wire", 2, config={"retention.ms": "-1"})])["wire"].result(30)
        producer = Producer({**address, "transactional.id": "wire-loader"})
        producer.init_transactions(30)
        for number in range(4):
            producer.begin_transaction()
            for partition in range(2):
                producer.produce("wire", f"wire {number}", key=f"{number}", partition=partition)
            producer.flush(30)
            (producer.abort_transaction if number == 1 else producer.commit_transaction)(30)
        consumer = Consumer({**address, "group.id": "wire-readers", "enable.auto.commit": False})
        consumer.commit(offsets=[TopicPartition("wire", 0, 3)], asynchronous=False)
        consumer.close()
        assert server.stop() == 0


def leave_a_transaction_open(path: Path, written: Flag) -> None:
    with klamm.open(path) as store:
        store.append("orders", b"before", key=b"t")
        store.topics.create("long", settings={"retention.ms": "-1"})
        for number in range(30):  # so many that blocks are allocated ahead of them
            store.append("long", f"{number}".encode() * 2000)
        with store.transaction("killed", batch_bytes=2000) as tx:
            for number in range(400):  # more than a batch, so that some are written
                tx.send("orders", f"never committed {number}".encode(), key=b"t")
            store.append("orders", b"behind an open transaction", key=b"t")
            written.up()
            signal.pause()


def _of_nobody(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def main() -> None:
    target = HERE / f"{name_of_format()}.tar.xz"
    if target.exists():
        sys.exit(f"{target} is there already: a golden store is made once")
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, STORE)
        fill(path)
        fill_over_the_wire(path, Path(scratch, "server"))
        written = Flag(Path(scratch, "written"))
        with children() as start:
            child = start(lambda: leave_a_transaction_open(path, written))
            written.wait()
            child.kill()
        copy, found = Path(scratch, "copy"), Path(scratch, FOUND)
        shutil.copytree(path, copy)
        found.write_text(json.dumps(found_in(copy), indent=0))
        with tarfile.open(target, "w:xz") as archive:
            archive.add(path, STORE, filter=_of_nobody)
            archive.add(found, FOUND, filter=_of_nobody)
    print(target)


if __name__ == "__main__":
    main()
