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

from klamm.batch import codecs, walk
from klamm.batch.header import CONTROL, Header
from klamm.disk import _os
from klamm.disk.page_cache import is_cached
from klamm.kafka import response_writer
from klamm.kafka.apis import produce as produce_api
from klamm.kafka.apis.produce import Checked, Rules
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.wire.codec import Api
from klamm.kafka.wire.frames import read_response
from klamm.kafka.wire.messages import (
    API_VERSIONS,
    CREATE_TOPICS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    FETCH,
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
from tests.kafka.connect import Raw, Served, served
from tests.kafka.requests import FOREVER_MS, altered, fetch, fetching, offsets, produce, producing, sealed, values
from tests.log.compacted import in_transaction
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
def opened(path: str, *, create: bool = False) -> Iterator[Core]:
    core = acquire(path, read_only=False, create=create, force_filesystem=False)
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


def stop_in_db_lock(path: str) -> None:
    with opened(path) as core, core._db_lock():
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
    until(lambda: len(server.broker.partition_executors) == 0, "the executor is closed")


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
    with children() as start, ExitStack() as local_address:
        child = start(lambda: stop(server.broker.core.path))
        assert child.stopped()
        blocked = [local_address.enter_context(server.dial()) for _ in range(8)]
        for each in blocked:
            each.send(api, version, **fields)
        try:
            until(lambda: len(server.broker.partition_executors) == 1, "they wait")
            (made,) = raw.ask(CREATE_TOPICS, 7, **creating("new")).topics
            assert made.error_code == 0
            (found,) = raw.ask(LIST_OFFSETS, 7, **listing("orders", 0)).topics
            assert (found.partitions[0].error_code, found.partitions[0].offset) == (0, 0)
            assert produce(raw, "new", sealed(1), acks=-1).error_code == 0
            # A topic is deleted before its heads are marked: the first waits there, and others find no such topic.
            is_enough = any if api is DELETE_TOPICS else all
            assert is_enough(is_unanswered(each) for each in blocked)
        finally:
            child.go_on()
        for each in blocked:
            each.receive()


# ---- SQLite


def test_while_the_klamm_db_lock_is_held_records_go_on_and_requests_that_need_it_wait(server: Served, raw: Raw) -> None:
    fields = committing()
    with children() as start, server.dial() as commits, server.dial() as creates:
        assert commits.ask(OFFSET_COMMIT, 7, **fields).topics[0].partitions[0].error_code == 0
        child = start(lambda: stop_in_db_lock(server.broker.core.path))
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


def drop_from_memory(path: Path) -> bool:
    """Have the kernel forget a file; return whether it has."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return not is_cached(fd, os.fstat(fd).st_size, 0)
    finally:
        os.close(fd)


def test_a_thread_reads_what_the_kernel_does_not_have_before_it_is_sent(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    load = response_writer._load

    def held(*given: Any) -> None:
        begun.set()
        assert go_on.wait(PATIENCE)
        load(*given)

    batch = bytes(sealed(1, padding=300_000))
    with server.dial() as raw, server.dial() as reader:
        raw.create("large")
        produce(raw, "large", batch)
        monkeypatch.setattr(response_writer, "is_cached", lambda *range_of_a_file: False)
        monkeypatch.setattr(response_writer, "_load", held)
        reader.send(FETCH, 12, **fetching({("large", 0): 0}))
        assert begun.wait(PATIENCE)
        assert raw.ask(API_VERSIONS, 0).error_code == 0
        go_on.set()
        assert batch[61:] in reader.receive()


@pytest.mark.soak  # the kernel does not always forget a file when it is asked to
def test_a_thread_reads_what_is_not_in_memory_before_it_is_sent(disk_path: Path) -> None:
    tmp_path = disk_path
    held, seen = Flag(tmp_path / "held"), tmp_path / "seen"
    environment = waits.hold(held, seen, path=".log", calls="read")
    batch = bytes(sealed(1, padding=300_000))
    with (
        serving(tmp_path / "events", environment=environment) as process,
        Raw(process.address) as raw,
        Raw(process.address) as reader,
    ):
        raw.create("orders")
        produce(raw, "orders", batch, acks=-1)
        fetch(reader, "orders", 0)  # from now on it is known where the records lie
        (log,) = (tmp_path / "events").glob("topics/*/0/*.log")
        if not drop_from_memory(log):
            pytest.skip("this file system is in memory")
        held.up()
        reader.send(FETCH, 12, **fetching({("orders", 0): 0}))
        until(seen.exists, "a thread reads")
        assert raw.ask(API_VERSIONS, 0).error_code == 0
        held.down()
        assert batch[61:] in reader.receive()


def test_consumers_may_be_kept_from_records_that_are_not_on_disk(tmp_path: Path) -> None:
    """With fetch.flushed.only, a fetch has them synced and waits for that; without it, they are seen at once."""
    held = Flag(tmp_path / "held")
    environment = waits.hold(held, tmp_path / "seen", path="/0/0000", calls="sync")
    with (
        serving(tmp_path / "events", "--set", "fetch.flushed.only=true", environment=environment) as process,
        Raw(process.address) as raw,
    ):
        raw.create("orders")
        assert produce(raw, "orders", sealed([b"synced"]), acks=-1).error_code == 0
        held.up()
        assert produce(raw, "orders", sealed([b"not yet"]), acks=1).error_code == 0
        found = fetch(raw, "orders", 0)
        assert (values(found), found.high_watermark, found.last_stable_offset) == ([b"synced"], 1, 1)
        (latest,) = raw.ask(LIST_OFFSETS, 7, **listing("orders", -1)).topics
        assert latest.partitions[0].offset == 1
        with Raw(process.address) as waiting:
            waiting.send(FETCH, 12, **fetching({("orders", 0): 1}, wait_ms=FOREVER_MS))
            until((tmp_path / "seen").exists, "the fetch has it synced")
            assert values(fetch(raw, "orders", 1)) == [] and is_unanswered(waiting)
            held.down()
            (partition,) = read_response(FETCH, 12, waiting.receive())[1].responses[0].partitions
            assert (values(partition), partition.high_watermark) == ([b"not yet"], 2)


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

    def held(records: Any, version: int, rules: Rules, *, quick: bool = False) -> Checked:
        if not quick:  # it is, on the loop
            begun.set()
            assert may_end.wait(PATIENCE)
        return check(records, version, rules, quick=quick)

    monkeypatch.setattr(produce_api, "check", held)
    with server.dial() as sender:
        sender.send(PRODUCE, 9, **producing({("orders", 0): bomb}))
        assert begun.wait(PATIENCE)
        elsewhere(raw)
        assert produce(raw, "orders", sealed(1)).error_code == 0  # not even those who want the same partition
        assert is_unanswered(sender)
        may_end.set()
        assert produced(sender)[0] == ErrorCode.INVALID_RECORD


def test_the_records_of_a_batch_are_read_once(server: Served, raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that is compacted, and does not take every timestamp, has a look at them, too: not by decompressing."""
    raw.create("keys", cleanup_policy="compact", message_timestamp_before_max_ms="86400000")
    now = int(time.time() * 1000)
    small, large = [(b"k", b"v", None, now)], [(b"k", bytes(3 << 20), None, now)]
    produce(raw, "keys", sealed(small))
    decompressed: list[str] = []
    for name in ("decompress", "pieces"):
        original = getattr(codecs, name)

        def counted(*args: Any, original: Any = original, **options: Any) -> Any:
            decompressed.append(threading.current_thread().name)
            return original(*args, **options)

        monkeypatch.setattr(codecs, name, counted)
    assert produce(raw, "keys", sealed(small, codec=4)).error_code == 0
    assert len(decompressed) == 1
    decompressed.clear()
    assert produce(raw, "keys", sealed(large, codec=4)).error_code == 0
    assert len(decompressed) == 2 and decompressed[1].startswith("klamm-codec"), "first the loop tries"
    decompressed.clear()
    old = [(b"k", bytes(3 << 20), None, now - 90_000_000)]
    assert produce(raw, "keys", sealed(old, codec=4)).error_code == ErrorCode.INVALID_TIMESTAMP
    assert decompressed[0] == "server" and "server" not in decompressed[1:]


def fill_with_transactions(path: Path, chance: random.Random) -> tuple[list[Header], int]:
    """Make a log of many segments with aborted transactions and an open one: its batches, and where that begins."""
    with opened(str(path), create=True) as core:
        core.create_topic("orders", 1, {"segment.bytes": 20_000, "index.interval.bytes": 500})
        partition = core.topic("orders").partition(0)
        for number in range(300):
            if number % 20 == 0:
                partition.append(in_transaction(7, number, [(b"k", b"aborted")]))
                partition.append_marker(7, number + 1, commit=False)
            partition.append(sealed(chance.choice([1, 3]), padding=chance.choice([10, 400])))
        stable = partition.ends().end
        partition.append(in_transaction(8, 0, [(b"k", b"open")]))
        partition.append(sealed(5))
        with partition.reader(0, committed=False) as reader:
            return list(walk(b"".join(iter(lambda: bytes(reader.read()), b"")))), stable


def test_seeks_and_clients_that_catch_up_read_no_file_on_the_loop(disk_path: Path) -> None:
    """From any offset on, through segments, past aborted transactions, up to an open one."""
    tmp_path = disk_path
    chance = random.Random(seed_of())
    stored, stable = fill_with_transactions(tmp_path / "events", chance)
    watched, seen = Flag(tmp_path / "watched"), tmp_path / "seen"
    seen.touch()
    environment = waits.watch(watched, seen, reads_of="/topics/")
    with serving(tmp_path / "events", environment=environment) as process, Raw(process.address) as raw:

        def read(offset: int, size: int, committed: bool) -> int:
            """Batches from an offset on; where they end."""
            response = fetch(raw, "orders", offset, partition_max_bytes=size, committed=committed)
            limit = response.last_stable_offset if committed else response.high_watermark
            expected = [each for each in stored if offset < each.next_offset <= limit]
            got = list(walk(response.records))
            assert got and [each.base_offset for each in got] == [each.base_offset for each in expected[: len(got)]]
            aborted = {each.producer_epoch - bool(each.attributes & CONTROL) for each in got if each.producer_id == 7}
            assert len(response.aborted_transactions or ()) == committed * len(aborted)
            return got[-1].next_offset

        watched.up()
        for committed, end in ((False, stored[-1].next_offset), (True, stable)):
            for _ in range(60):
                read(chance.randrange(end), chance.choice([100, 3000, 1 << 20]), committed)
            offset = 0
            while offset < end:
                offset = read(offset, 2000, committed)
        watched.down()
        assert Counter(seen.read_text().split("\n")[:-1]) == {}


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
                        end = fetch(mine, "orders", 0, partition).high_watermark
                        for size in (1000, 100_000, 1 << 20):
                            place = chance.randrange(end + 1)
                            got = fetch(mine, "orders", place, partition, partition_max_bytes=size)
                            assert place == end or place in offsets(got)

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
