"""The loop never waits: not for a lock that a stopped process holds, not for a disk, not for SQLite, nor for what takes
long to look into. What would have to wait does so alone.
"""

from __future__ import annotations

import os
import random
import signal
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from klamm.batch.header import Header
from klamm.disk import _os
from klamm.kafka.apis import produce as produce_api
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.wire.codec import Api
from klamm.kafka.wire.frames import read_response
from klamm.kafka.wire.messages import (
    API_VERSIONS,
    CREATE_TOPICS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    HEARTBEAT,
    LIST_OFFSETS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FOR_LEADER_EPOCH,
    PRODUCE,
)
from klamm.log import head
from klamm.store.directory import Core, acquire, release
from tests.crash.cases import seed_of
from tests.kafka import waits
from tests.kafka.asking import altered, fetch, offsets, produce, producing, sealed, values
from tests.kafka.dial import Raw, Served, served
from tests.procs import PATIENCE, Child, Flag, children, until
from tests.serving import serving


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "events") as running:
        with running.dial() as raw:
            raw.create("orders", 4, segment_bytes="20000")
            for number in range(4):
                produce(raw, "orders", sealed([b"first"]), number)
        yield running


@contextmanager
def opened(path: str) -> Iterator[Core]:
    core = acquire(path, read_only=False, create=False, force_filesystem=False)
    try:
        yield core
    finally:
        release(core)


def stop_in_append(path: str, number: int = 0) -> None:
    """In a process of its own: stopped while it holds the append lock, with half of a batch written."""
    with opened(path) as core:
        partition = core.topic("orders").partition(number)
        _os.trap(2, kinds=_os.WRITE, signal=signal.SIGSTOP)
        partition.append(sealed([b"stopped"]))


def stop_in_gate(path: str) -> None:
    with opened(path) as core, core._gate():
        os.kill(os.getpid(), signal.SIGSTOP)


def elsewhere(raw: Raw, *, acks: int = 1) -> None:
    """Something with every other partition, and reading from all."""
    for number in (1, 2, 3):
        assert produce(raw, "orders", sealed(1, padding=500), number, acks=acks).error_code == 0
    for number in range(4):
        assert offsets(fetch(raw, "orders", 0, number))[0] == 0


def is_unanswered(raw: Raw) -> bool:
    raw._socket.setblocking(False)
    try:
        raw._socket.recv(1, 2)  # MSG_PEEK
    except BlockingIOError:
        return True
    finally:
        raw._socket.settimeout(30)
    return False


def produced(raw: Raw) -> tuple[int, int]:
    (told,) = read_response(PRODUCE, 9, raw.receive())[1].responses[0].partition_responses
    return told.error_code, told.base_offset


# ---- locks


@pytest.mark.parametrize("how", ["continued", "killed"])
def test_a_writer_stopped_in_its_append_keeps_only_that_partition_waiting(server: Served, raw: Raw, how: str) -> None:
    with children() as start:
        child: Child = start(lambda: stop_in_append(server.broker.core.path))
        assert child.stopped()
        blocked = [server.dial() for _ in range(5)]
        for number, each in enumerate(blocked):
            each.send(PRODUCE, 9, **producing({("orders", 0): sealed([b"blocked %d" % number])}))
        mixed = server.dial()
        mixed.send(PRODUCE, 9, **producing({("orders", 0): sealed([b"mixed"]), ("orders", 1): sealed([b"mixed"])}))
        until(
            lambda: server.broker.partition_executors.is_busy(server.broker.core.topic("orders").partition(0)),
            "they wait",
        )
        elsewhere(raw)
        assert all(is_unanswered(each) for each in (*blocked, mixed))
        child.go_on() if how == "continued" else child.kill()
        assert sorted(produced(each)[0] for each in blocked) == [0] * 5
        told = read_response(PRODUCE, 9, mixed.receive())[1].responses[0].partition_responses
        assert [each.error_code for each in told] == [0, 0]
        for each in (*blocked, mixed):
            each.close()
    found = values(fetch(raw, "orders", 0))
    assert found[0] == b"first"
    assert (b"stopped" in found) == (how == "continued")
    assert {b"mixed", *(b"blocked %d" % n for n in range(5))} <= set(found)
    until(lambda: len(server.broker.partition_executors) == 0, "the lane is closed")


def test_a_client_that_leaves_while_its_batch_waits(server: Served, raw: Raw) -> None:
    with children() as start:
        child = start(lambda: stop_in_append(server.broker.core.path))
        assert child.stopped()
        with server.dial() as client:
            client.send(PRODUCE, 9, **producing({("orders", 0): sealed([b"left"])}))
            until(lambda: len(server.broker.partition_executors) == 1, "it waits")
        until(lambda: server.call(lambda: len(server.server.listener.connections)) == 1, "it is gone")
        child.go_on()
        until(lambda: len(server.broker.partition_executors) == 0, "it is appended all the same")
    assert values(fetch(raw, "orders", 0)) == [b"first", b"stopped", b"left"]
    assert server.call(lambda: server.server.listener.budget.used) == 0


def stop_before_recovery(path: str) -> None:
    """In a process of its own: stopped while it holds the append lock of a partition that needs recovery."""
    with opened(path) as core:
        core.create_topic("other", 2, {})
        log = core.topic("other").partition(0).log
        log.lock()
        log.set_flags(head.NEEDS_RECOVERY)
        os.kill(os.getpid(), signal.SIGSTOP)
        log.clear_flags(head.NEEDS_RECOVERY)
        log.unlock()


def test_a_recovery_that_waits_keeps_only_its_partition_waiting(server: Served, raw: Raw) -> None:
    """A partition that nobody here has opened, needs recovery, and whose append lock a stopped process holds."""
    with children() as start:
        child = start(lambda: stop_before_recovery(server.broker.core.path))
        assert child.stopped()
        assert raw.ask(API_VERSIONS, 0).error_code == 0  # and the catalog is read
        with server.dial() as blocked, server.dial() as new:
            blocked.send(PRODUCE, 9, **producing({("other", 0): sealed([b"blocked"])}))
            new.send(PRODUCE, 9, **producing({("other", 1): sealed([b"new"])}))
            try:
                for _ in range(40):  # segments roll, and files are opened
                    elsewhere(raw)
                assert produced(new) == (0, 0)
                assert is_unanswered(blocked)
            finally:
                child.go_on()
            assert produced(blocked)[0] == 0


def listing(topic: str, timestamp: int) -> dict[str, Any]:
    partition = LIST_OFFSETS.request.Partition(partition_index=0, timestamp=timestamp)
    return {"replica_id": -1, "topics": [LIST_OFFSETS.request.Topic(name=topic, partitions=[partition])]}


def of_an_epoch(topic: str) -> dict[str, Any]:
    request = OFFSET_FOR_LEADER_EPOCH.request
    partition = request.Partition(partition=0, current_leader_epoch=-1, leader_epoch=0)
    return {"replica_id": -1, "topics": [request.Topic(topic=topic, partitions=[partition])]}


def deleting(topic: str) -> dict[str, Any]:
    partition = DELETE_RECORDS.request.Partition(partition_index=0, offset=-1)
    topics = [DELETE_RECORDS.request.Topic(name=topic, partitions=[partition])]
    return {"topics": topics, "timeout_ms": 60_000}


def creating(topic: str) -> dict[str, Any]:
    topics = [CREATE_TOPICS.request.Topic(name=topic, num_partitions=1, replication_factor=1)]
    return {"topics": topics, "timeout_ms": 60_000}


def committing() -> dict[str, Any]:
    partition = OFFSET_COMMIT.request.Partition(partition_index=0, committed_offset=1)
    commit = OFFSET_COMMIT.request.Topic(name="orders", partitions=[partition])
    return {"group_id": "group", "generation_id_or_member_epoch": -1, "member_id": "", "topics": [commit]}


STUCK: dict[str, tuple[Callable[[str], None], Api, int, dict[str, Any]]] = {
    "ends of a log": (stop_before_recovery, LIST_OFFSETS, 7, listing("other", -1)),
    "by time": (stop_before_recovery, LIST_OFFSETS, 7, listing("other", 0)),
    "epochs": (stop_before_recovery, OFFSET_FOR_LEADER_EPOCH, 3, of_an_epoch("other")),
    "deletions": (stop_in_append, DELETE_RECORDS, 2, deleting("orders")),
    "the whole topic": (stop_before_recovery, DELETE_TOPICS, 5, {"topic_names": ["other"], "timeout_ms": 60_000}),
}


@pytest.mark.parametrize("what", STUCK)
def test_those_who_wait_for_a_stopped_process_take_no_thread_from_the_others(
    server: Served, raw: Raw, what: str
) -> None:
    stop, api, version, fields = STUCK[what]
    with children() as start, ExitStack() as dialled:
        child = start(lambda: stop(server.broker.core.path))
        assert child.stopped()
        blocked = [dialled.enter_context(server.dial()) for _ in range(8)]
        for each in blocked:
            each.send(api, version, **fields)
        try:
            until(lambda: len(server.broker.partition_executors) == 1, "they wait")
            (made,) = raw.ask(CREATE_TOPICS, 7, **creating("new")).topics
            assert made.error_code == 0
            (found,) = raw.ask(LIST_OFFSETS, 7, **listing("orders", 0)).topics
            assert (found.partitions[0].error_code, found.partitions[0].offset) == (0, 0)
            assert produce(raw, "new", sealed(1), acks=-1).error_code == 0
            assert all(is_unanswered(each) for each in blocked)
        finally:
            child.go_on()
        for each in blocked:
            each.receive()


# ---- SQLite


def test_with_the_gate_held_records_go_on_and_what_needs_it_waits(server: Served, raw: Raw) -> None:
    fields = committing()
    with children() as start, server.dial() as commits, server.dial() as creates:
        assert commits.ask(OFFSET_COMMIT, 7, **fields).topics[0].partitions[0].error_code == 0
        child = start(lambda: stop_in_gate(server.broker.core.path))
        assert child.stopped()
        commits.send(OFFSET_COMMIT, 7, **fields)
        new = CREATE_TOPICS.request.Topic(name="new", num_partitions=1, replication_factor=1)
        creates.send(CREATE_TOPICS, 7, topics=[new], timeout_ms=60_000)
        elsewhere(raw, acks=-1)
        asked = [METADATA.request.Topic(name="orders")]
        assert raw.ask(METADATA, 12, topics=asked).topics[0].error_code == 0
        assert is_unanswered(commits)
        assert is_unanswered(creates)
        child.go_on()
        commits.receive()
        creates.receive()
    assert len(raw.ask(METADATA, 12, topics=[METADATA.request.Topic(name="new")]).topics[0].partitions) == 1


# ---- disks


def test_a_slow_disk_keeps_only_those_waiting_who_want_to_know(tmp_path: Path) -> None:
    held = Flag(tmp_path / "held")
    environment = waits.hold(held, tmp_path / "seen", path="/0/0000", calls="sync")
    with serving(tmp_path / "events", environment=environment) as process, Raw(process.address) as raw:
        raw.create("orders", 4)
        for number in range(4):
            assert produce(raw, "orders", sealed([b"first"]), number, acks=-1).error_code == 0
        held.up()
        waiting = [Raw(process.address) for _ in range(20)]
        for each in waiting:
            each.send(PRODUCE, 9, **producing({("orders", 0): sealed([b"slow"])}, acks=-1))
        until(lambda: len(values(fetch(raw, "orders", 0))) == 21, "they are appended")
        until((tmp_path / "seen").exists, "a sync waits for the disk")
        elsewhere(raw, acks=-1)
        assert produce(raw, "orders", sealed([b"quick"])).error_code == 0
        assert all(is_unanswered(each) for each in waiting)
        held.down()
        assert sorted(produced(each) for each in waiting) == [(0, number) for number in range(1, 21)]
        for each in waiting:
            each.close()


# ---- what takes long


def test_a_batch_that_takes_long_to_decompress_keeps_only_its_own_client_waiting(
    server: Served, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight kilobytes that become a quarter of a gigabyte: a thread looks into them."""
    block = struct.pack("<I", 1 << 1 | (128 << 10) << 3)[:3] + b"\0"  # 128 KiB of zeros
    last = struct.pack("<I", 1 | 1 << 1 | (128 << 10) << 3)[:3] + b"\0"
    batch = sealed(3)[:61] + b"\x28\xb5\x2f\xfd\x00\x58" + block * 2000 + last
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    bomb = altered(batch, 21, ">h", 4)
    begun, may_end = threading.Event(), threading.Event()
    check = produce_api.check

    def held(records: Any, version: int, max_bytes: int, *, quick: bool = False) -> Header:
        if not quick:  # it is, on the loop
            begun.set()
            assert may_end.wait(PATIENCE)
        return check(records, version, max_bytes, quick=quick)

    monkeypatch.setattr(produce_api, "check", held)
    with server.dial() as sender:
        sender.send(PRODUCE, 9, **producing({("orders", 0): bomb}))
        assert begun.wait(PATIENCE)
        elsewhere(raw)
        assert produce(raw, "orders", sealed(1)).error_code == 0  # not even those who want the same partition
        assert is_unanswered(sender)
        may_end.set()
        assert produced(sender)[0] == ErrorCode.INVALID_RECORD


def test_under_load_the_loop_makes_no_call_that_may_wait(tmp_path: Path) -> None:
    """Producers of all kinds, readers, commits, new topics, an embedded writer."""
    seed = seed_of()
    watched, seen = Flag(tmp_path / "watched"), tmp_path / "seen"
    seen.touch()
    with serving(tmp_path / "events", environment=waits.watch(watched, seen)) as process, Raw(process.address) as raw:
        raw.create("orders", 4, segment_bytes="2000000")
        watched.up()
        path, address = str(tmp_path / "events"), process.address

        def client(number: int) -> None:
            chance = random.Random(seed + number)
            batches = [
                sealed(chance.choice([1, 100, 2000]), codec=chance.randrange(5), padding=chance.choice([0, 100]))
                for _ in range(6)
            ]
            with Raw(address) as mine:
                mine.create(f"topic{number}")
                for _ in range(50):
                    partition, what = chance.randrange(4), chance.random()
                    if what < 0.5:
                        batch = chance.choice(batches)
                        assert produce(mine, "orders", batch, partition, acks=chance.choice([1, -1])).error_code == 0
                    elif what < 0.6:
                        committed = mine.ask(OFFSET_COMMIT, 7, **committing()).topics[0].partitions[0]
                        assert committed.error_code == 0
                    else:
                        fetch(mine, "orders", 0, partition)

        def write() -> None:
            with opened(path) as core:
                partition = core.topic("orders").partition(0)
                for _ in range(200):
                    partition.append(sealed(10))
                    time.sleep(0)

        with children() as start:
            clients = [start(lambda n=n: client(n)) for n in range(3)]  # type: ignore[misc]
            clients.append(start(write))
            for each in clients:
                each.answer()
        watched.down()
        assert Counter(seen.read_text().split("\n")[:-1]) == {}


# ---- threads of one kind are not taken from another


@contextmanager
def busy(server: Served, *places: str) -> Iterator[None]:
    """All threads of these places are busy, and more work waits for each."""
    release = threading.Event()
    try:
        for place in places:
            run = getattr(server.broker, place)
            server.call(lambda run=run: [run(release.wait, PATIENCE) for _ in range(32)] and None)  # type: ignore[misc]
        yield
    finally:
        release.set()


def create_elsewhere(server: Served, name: str) -> None:
    """In another process: the server has to read its catalog again."""

    def create() -> None:
        with opened(server.broker.core.path) as core:
            core.create_topic(name, 1, {})

    with children() as start:
        start(create).answer()


def test_decompression_and_cold_reads_do_not_delay_the_catalog(server: Served, raw: Raw) -> None:
    with busy(server, "codec", "disk"):
        create_elsewhere(server, "new")
        assert raw.ask(API_VERSIONS, 0).error_code == 0
        assert raw.ask(METADATA, 12, topics=[METADATA.request.Topic(name="new")]).topics[0].error_code == 0


def test_what_names_no_new_topic_does_not_wait_for_the_catalog(server: Served, raw: Raw) -> None:
    (found,) = raw.ask(METADATA, 12, topics=[METADATA.request.Topic(name="orders")]).topics
    fields = producing({("orders", 0): sealed([b"by id"])}, ids={"orders": found.topic_id})
    beat = {"group_id": "g", "generation_id": 1, "member_id": "m"}
    with busy(server, "catalog"), server.dial() as waiting:
        create_elsewhere(server, "new")
        waiting.send(METADATA, 12, topics=[METADATA.request.Topic(name="new")])
        assert raw.ask(API_VERSIONS, 0).error_code == 0
        assert raw.ask(HEARTBEAT, 3, **beat).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert raw.ask(PRODUCE, 13, **fields).responses[0].partition_responses[0].error_code == 0
        assert is_unanswered(waiting)
    with server.dial() as other:  # and the catalog was read meanwhile, or is now
        assert other.ask(METADATA, 12, topics=[METADATA.request.Topic(name="new")]).topics[0].error_code == 0


def test_a_change_of_the_catalog_is_read_though_no_request_waits_for_it(server: Served, raw: Raw) -> None:
    create_elsewhere(server, "new")
    assert raw.ask(API_VERSIONS, 0).error_code == 0
    until(lambda: server.call(lambda: server.broker.topics.is_fresh), "it is read")
