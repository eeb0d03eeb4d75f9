"""The loop never waits: not for a lock that a stopped process holds, not for a disk, not for SQLite, nor for what takes
long to look into. What would have to wait does so alone.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from klamm.disk import _os
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.wire.codec import Api
from klamm.kafka.wire.frames import read_response
from klamm.kafka.wire.messages import (
    API_VERSIONS,
    CREATE_TOPICS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    LIST_OFFSETS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FOR_LEADER_EPOCH,
    PRODUCE,
)
from klamm.log import head
from klamm.store.directory import Core, acquire, release
from tests.kafka.asking import altered, fetch, offsets, produce, producing, sealed, values
from tests.kafka.dial import Raw, Served, served
from tests.procs import Child, children, until
from tests.serving import serving

SLACK_S = 0.2  # a machine has other things to do; what is held here is held for ever


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
    """In a process of its own: stopped while it holds the append byte, with half of a batch written."""
    with opened(path) as core:
        partition = core.topic("orders").partition(number)
        _os.trap(2, kinds=_os.WRITE, signal=signal.SIGSTOP)
        partition.append(sealed([b"stopped"]))


def stop_in_gate(path: str) -> None:
    with opened(path) as core, core._gate():
        os.kill(os.getpid(), signal.SIGSTOP)


def timed(action: Callable[[], object], times: int = 15) -> float:
    """The median of some."""
    took = []
    for _ in range(times):
        started = time.monotonic()
        action()
        took.append(time.monotonic() - started)
    return statistics.median(took)


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
    before = timed(lambda: elsewhere(raw))
    with children() as start:
        child: Child = start(lambda: stop_in_append(server.broker.core.path))
        assert child.stopped()
        blocked = [server.dial() for _ in range(5)]
        for number, each in enumerate(blocked):
            each.send(PRODUCE, 9, **producing({("orders", 0): sealed([b"blocked %d" % number])}))
        mixed = server.dial()
        mixed.send(PRODUCE, 9, **producing({("orders", 0): sealed([b"mixed"]), ("orders", 1): sealed([b"mixed"])}))
        until(lambda: server.broker.lanes.is_busy(server.broker.core.topic("orders").partition(0)), "they wait")
        assert timed(lambda: elsewhere(raw)) < 10 * before + SLACK_S
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
    until(lambda: len(server.broker.lanes) == 0, "the lane is closed")


def test_a_client_that_leaves_while_its_batch_waits(server: Served, raw: Raw) -> None:
    with children() as start:
        child = start(lambda: stop_in_append(server.broker.core.path))
        assert child.stopped()
        with server.dial() as client:
            client.send(PRODUCE, 9, **producing({("orders", 0): sealed([b"left"])}))
            until(lambda: len(server.broker.lanes) == 1, "it waits")
        until(lambda: server.call(lambda: len(server.server.listener.connections)) == 1, "it is gone")
        child.go_on()
        until(lambda: len(server.broker.lanes) == 0, "it is appended all the same")
    assert values(fetch(raw, "orders", 0)) == [b"first", b"stopped", b"left"]
    assert server.call(lambda: server.server.listener.budget.used) == 0


def stop_before_recovery(path: str) -> None:
    """In a process of its own: stopped while it holds the append byte of a partition that needs recovery."""
    with opened(path) as core:
        core.create_topic("other", 2, {})
        log = core.topic("other").partition(0).log
        log.lock()
        log.set_flags(head.NEEDS_RECOVERY)
        os.kill(os.getpid(), signal.SIGSTOP)
        log.clear_flags(head.NEEDS_RECOVERY)
        log.unlock()


def test_a_recovery_that_waits_keeps_only_its_partition_waiting(server: Served, raw: Raw) -> None:
    """A partition that nobody here has opened, needs recovery, and whose append byte a stopped process holds."""
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
            until(lambda: len(server.broker.lanes) == 1, "they wait")
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
    before = timed(lambda: elsewhere(raw))
    partition = OFFSET_COMMIT.request.Partition(partition_index=0, committed_offset=1)
    commit = OFFSET_COMMIT.request.Topic(name="orders", partitions=[partition])
    fields = {"group_id": "group", "generation_id_or_member_epoch": -1, "member_id": "", "topics": [commit]}
    with children() as start, server.dial() as commits, server.dial() as creates:
        assert commits.ask(OFFSET_COMMIT, 7, **fields).topics[0].partitions[0].error_code == 0
        child = start(lambda: stop_in_gate(server.broker.core.path))
        assert child.stopped()
        commits.send(OFFSET_COMMIT, 7, **fields)
        new = CREATE_TOPICS.request.Topic(name="new", num_partitions=1, replication_factor=1)
        creates.send(CREATE_TOPICS, 7, topics=[new], timeout_ms=60_000)
        assert timed(lambda: elsewhere(raw, acks=-1)) < 10 * before + SLACK_S
        asked = [METADATA.request.Topic(name="orders")]
        assert raw.ask(METADATA, 12, topics=asked).topics[0].error_code == 0
        assert is_unanswered(commits)
        assert is_unanswered(creates)
        child.go_on()
        commits.receive()
        creates.receive()
    assert len(raw.ask(METADATA, 12, topics=[METADATA.request.Topic(name="new")]).topics[0].partitions) == 1


# ---- disks

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int slow(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return strstr(path, getenv("SLOW_PATH")) != NULL;
}
static void wait_for(int fd) {
    if (!slow(fd)) return;
    while (access(getenv("SLOW_FLAG"), F_OK) == 0) usleep(1000);
}
int fdatasync(int fd) { wait_for(fd); return ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(fd); }
int fsync(int fd) { wait_for(fd); return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd); }
"""


def test_a_slow_disk_keeps_only_those_waiting_who_want_to_know(tmp_path: Path) -> None:
    source, shim, flag = tmp_path / "shim.c", tmp_path / "shim.so", tmp_path / "slow"
    source.write_text(SHIM)
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", shim, source, "-ldl"], check=True)
    slowed = serving(tmp_path / "events", LD_PRELOAD=str(shim), SLOW_PATH="/0/0000", SLOW_FLAG=str(flag))
    with slowed as process, Raw(process.address) as raw:
        raw.create("orders", 4)
        for number in range(4):
            assert produce(raw, "orders", sealed([b"first"]), number, acks=-1).error_code == 0
        before = timed(lambda: elsewhere(raw, acks=-1))
        flag.touch()
        waiting = [Raw(process.address) for _ in range(20)]
        for each in waiting:
            each.send(PRODUCE, 9, **producing({("orders", 0): sealed([b"slow"])}, acks=-1))
        until(lambda: len(values(fetch(raw, "orders", 0))) == 21, "they are appended")
        assert timed(lambda: elsewhere(raw, acks=-1)) < 10 * before + SLACK_S
        assert timed(lambda: produce(raw, "orders", sealed([b"quick"]))) < SLACK_S
        assert all(is_unanswered(each) for each in waiting)
        flag.unlink()
        assert sorted(produced(each) for each in waiting) == [(0, number) for number in range(1, 21)]
        for each in waiting:
            each.close()


# ---- what takes long


def longest_answer(address: str, over: threading.Event) -> float:
    """The longest that a request which needs nothing has to wait, until it is over."""
    longest = 0.0
    with Raw(address) as raw:
        while not over.is_set():
            started = time.monotonic()
            raw.ask(API_VERSIONS, 0)
            longest = max(longest, time.monotonic() - started)
    return longest


def test_a_bomb_keeps_nobody_waiting(tmp_path: Path) -> None:
    """Eight kilobytes that become a quarter of a gigabyte, looked into by a thread."""
    block = struct.pack("<I", 1 << 1 | (128 << 10) << 3)[:3] + b"\0"  # 128 KiB of zeros
    last = struct.pack("<I", 1 | 1 << 1 | (128 << 10) << 3)[:3] + b"\0"
    batch = sealed(3)[:61] + b"\x28\xb5\x2f\xfd\x00\x58" + block * 2000 + last
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    bomb = altered(batch, 21, ">h", 4)
    with serving(tmp_path / "events") as process, Raw(process.address) as raw:
        raw.create("orders")
        produce(raw, "orders", sealed(1))
        took: list[float] = []
        over = threading.Event()

        def send() -> None:
            started = time.monotonic()
            assert produce(raw, "orders", bomb).error_code == ErrorCode.INVALID_RECORD
            took.append(time.monotonic() - started)
            over.set()

        sender = threading.Thread(target=send)
        sender.start()
        longest = longest_answer(process.address, over)
        sender.join()
        assert produce(raw, "orders", sealed(1)).error_code == 0
    print("longest", longest, "of", took[0])
    assert longest < 0.6 * took[0] + 0.05


def test_under_load_nobody_waits_long(tmp_path: Path) -> None:
    """Producers of all kinds, readers, an embedded writer; beside them someone who asks for nothing."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    with serving(tmp_path / "events") as process, Raw(process.address) as raw:
        raw.create("orders", 4, segment_bytes="2000000")
        path, address = str(tmp_path / "events"), process.address

        def client(number: int) -> int:
            chance, done, until_s = random.Random(seed + number), 0, time.monotonic() + 0.8
            batches = [
                sealed(chance.choice([1, 100, 2000]), codec=chance.randrange(5), padding=chance.choice([0, 100]))
                for _ in range(6)
            ]
            with Raw(address) as mine:
                while time.monotonic() < until_s:
                    partition = chance.randrange(4)
                    if chance.random() < 0.5:
                        batch = chance.choice(batches)
                        assert produce(mine, "orders", batch, partition, acks=chance.choice([1, -1])).error_code == 0
                    else:
                        fetch(mine, "orders", 0, partition)
                    done += 1
            return done

        def write() -> int:
            until_s, done = time.monotonic() + 0.8, 0
            with opened(path) as core:
                partition = core.topic("orders").partition(0)
                while time.monotonic() < until_s:
                    partition.append(sealed(10))
                    done += 1
                    time.sleep(0)
            return done

        over = threading.Event()
        with children() as start:
            clients = [start(lambda n=n: client(n)) for n in range(3)]  # type: ignore[misc]
            clients.append(start(write))

            def watch() -> None:
                until(lambda: not any(each.running for each in clients), "they end")
                over.set()

            threading.Thread(target=watch).start()
            longest = longest_answer(address, over)
            assert all(each.answer() > 0 for each in clients)
    assert longest < 1, "some turns of the loop, on a machine that has other things to do"
