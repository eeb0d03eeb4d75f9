"""Make the golden stores of today's format: stores as they were written then are opened by every later Klamm.

    python -m tests.golden.make

writes, once for each format of klamm.db and `heads`, and never again, as a killed process left them and with what a
reader finds in them:

    tests/golden/<format>.tar.xz            a store that has been used in all ways that leave something in its logs
    tests/golden/<format>-server.tar.xz     one whose klamm.db has rows for a server: users, ACLs, quotas, transactions
                                            of clients; and numbers of writers and lineage
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tarfile
import tempfile
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

import klamm
from klamm.kafka.error_codes import ErrorCode
from klamm.log import head
from klamm.store import once
from klamm.store.acl import Acl, Operation, PatternType, Permission, ResourceType
from klamm.store.acls import Acls
from klamm.store.database import FORMAT_VERSION
from klamm.store.joint_decision import Decision
from klamm.store.once import WriterNumber
from klamm.store.quotas import Quotas, make_entity
from klamm.store.users import Users
from tests.kafka import producing
from tests.procs import Flag, children
from tests.serving import serving

HERE = Path(__file__).parent
FOUND = "found.json"
STORE = "store"
SERVER = "-server"
"""How the names end of stores with rows for a server."""
NUMBERS = [
    WriterNumber("job", "", 7, "seven"),
    WriterNumber("job", "elsewhere", 8),
    WriterNumber("query q", "topic t", 3, "offsets 0a1b records 17/2 run r", "where it ended"),
]
ACLS = [
    Acl(ResourceType.TOPIC, "t", PatternType.LITERAL, "User:alice", "*", Operation.READ, Permission.ALLOW),
    Acl(ResourceType.TOPIC, "secret.", PatternType.PREFIXED, "User:*", "::1", Operation.ALL, Permission.DENY),
    Acl(ResourceType.GROUP, "*", PatternType.LITERAL, "User:bob", "10.0.0.7", Operation.DELETE, Permission.ALLOW),
]


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


def rows_in(path: Path) -> dict[str, Any]:
    """Return what a reader finds of a store that `fill_for_a_server` has made."""
    with klamm.open(path) as store:
        catalog = store._acquired().catalog
        lineage = []
        for partition in range(2):
            with store.consumer({"t": [partition]}, wait=0, start="earliest") as read:
                lineage += [[record.text, _lineage_of(store, record)] for record in read]
        with catalog.database.reading() as execute:
            numbers = [once.find(execute, each.writer, each.target) for each in NUMBERS]
        return {
            "users": [
                [user, each.mechanism, each.iterations, each.fits("golden")]
                for user, each in Users(catalog).credentials()
            ],
            "acls": [[part.name if isinstance(part, IntEnum) else part for part in acl] for acl in Acls(catalog).all()],
            "quotas": [[dict(entity), values] for entity, values in Quotas(catalog).all().items()],
            "numbers": [
                [each.writer, each.target, each.number, each.fingerprint, each.note] for each in numbers if each
            ],
            "lineage": lineage,
        }


def _lineage_of(store: klamm.Store, record: klamm.Record) -> list[Any]:
    found = store.lineage(record)
    assert found is not None
    inputs = [[each.group, each.topic, each.partition, each.start, each.end] for each in found.inputs]
    outputs = [[each.topic, each.partition, each.start, each.end] for each in found.outputs]
    return [found.producer_id, found.epoch, found.name, found.ended_ms, inputs, outputs]


def fill_for_a_server(path: Path, written: Flag) -> None:
    """Leave rows in every table that a server has, and two open transactions of clients."""
    with klamm.open(path) as store:
        catalog = store._acquired().catalog
        store.topics.create("t", 3, settings={"retention.ms": "-1"})
        store.alter({"lineage.retention.ms": 10**15})
        Users(catalog).add("alice", "golden")
        Users(catalog).add("bob", "golden", ["SCRAM-SHA-512"])
        Acls(catalog).add(ACLS)
        quotas = Quotas(catalog)
        quotas.alter([(make_entity([("user", "alice"), ("client-id", None)]), {"producer_byte_rate": 1e6})])
        quotas.alter([(make_entity([("ip", "10.0.0.7")]), {"connection_creation_rate": 5})])
        store.topics.create("in", settings={"retention.ms": "-1"})
        store.append_many("in", [b"0", b"1", b"2"])
        for number in NUMBERS[:2]:
            with store.consumer("in", group="embedded", wait=0) as consumer, consumer.transaction("mover") as tx:
                batch = consumer.poll(max_records=1)
                tx.once(number.writer, number.number, target=number.target, fingerprint=number.fingerprint)
                tx.send("t", f"{number}".encode(), partition=0)
                tx.commit_offsets(batch)
        with producing.serving(store) as coordinator:
            tasks = [producing.Client(store, coordinator, f"query q/t/{number}-0", bumps=True) for number in (0, 1)]
            for partition, task in enumerate(tasks):
                assert task.init() is task.send(partition, value=b"of a task") is ErrorCode.NONE
            assert tasks[0].commit_offsets("wire", 2, 2) is ErrorCode.NONE
            producers = {task.name: (task.producer_id, task.epoch) for task in tasks}
            code, decided = coordinator.decide(Decision("query q", "query q/t/", producers, True, NUMBERS[2]))
            assert code is ErrorCode.NONE and decided is not None and not decided.conflict
            for name, bumps in (("billing", True), ("older", False)):
                client = producing.Client(store, coordinator, name, bumps=bumps)
                assert client.init() is client.send(2, value=b"open") is ErrorCode.NONE
                assert client.commit_offsets("wire", 3, 2) is ErrorCode.NONE
            written.up()
            signal.pause()


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


class _Kind(NamedTuple):
    fill: Callable[[Path, Path], None]
    """The store, and a directory beside it."""
    end: Callable[[Path, Flag], None]
    """In a process that is killed once the flag is up."""
    look: Callable[[Path], dict[str, Any]]


def _fill_all(path: Path, scratch: Path) -> None:
    fill(path)
    fill_over_the_wire(path, scratch / "server")


KINDS = {
    "": _Kind(_fill_all, leave_a_transaction_open, found_in),
    SERVER: _Kind(lambda path, scratch: None, fill_for_a_server, rows_in),
}


def main() -> None:
    targets = {suffix: HERE / f"{name_of_format()}{suffix}.tar.xz" for suffix in KINDS}
    missing = {suffix: target for suffix, target in targets.items() if not target.exists()}
    if not missing:
        sys.exit(f"{targets['']} is there already: a golden store is made once")
    for suffix, target in missing.items():
        make(KINDS[suffix], target)
        print(target)


def make(kind: _Kind, target: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        path, written = scratch / STORE, Flag(scratch / "written")
        kind.fill(path, scratch)
        with children() as start:
            child = start(lambda: kind.end(path, written))
            written.wait()
            child.kill()
        copy, found = scratch / "copy", scratch / FOUND
        shutil.copytree(path, copy)
        found.write_text(json.dumps(kind.look(copy), indent=0))
        with tarfile.open(target, "w:xz") as archive:
            archive.add(path, STORE, filter=_of_nobody)
            archive.add(found, FOUND, filter=_of_nobody)


if __name__ == "__main__":
    main()
