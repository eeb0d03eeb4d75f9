"""Fetch: which records are sent, in what pieces, when there are some, and what is said when there are none."""

from __future__ import annotations

import errno
import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.batch import decode, parse
from klamm.batch.header import TRANSACTIONAL
from klamm.disk import _os
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.wire.frames import read_response
from klamm.kafka.wire.messages import DELETE_TOPICS, FETCH, METADATA
from klamm.kafka.wire.structs import Struct
from klamm.log import segment
from klamm.log.partition import Partition
from tests.kafka.connect import Raw, Served, served
from tests.kafka.requests import (
    FOREVER_MS,
    FetchFrom,
    batches_of,
    fetch,
    fetch_many,
    fetching,
    offsets,
    produce,
    sealed,
    values,
)
from tests.procs import Flag, children, until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("fetch") / "events") as running:
        yield running


@pytest.fixture
def topic(raw: Raw, request: pytest.FixtureRequest) -> str:
    """One of its own for each test, with three partitions and small segments."""
    name = f"t{abs(hash(request.node.name)) % 10**9}"
    return raw.create(name, 3, segment_bytes="2000", index_interval_bytes="300")


def log_of(server: Served, topic: str, number: int = 0) -> Partition:
    return server.broker.core.topic(topic).partition(number)


def log_bytes(partition: Partition) -> bytes:
    now = partition.snapshot()
    data = b""
    for base in partition.segments():
        found = Path(segment.path_of(partition.directory, base)).read_bytes()
        data += found[: now.position] if base == now.active_base else found
    return data


def follow(raw: Raw, topic: str, offset: int = 0, number: int = 0, **options: Any) -> list[bytes]:
    """All batches from an offset on, as a client reads them."""
    found: list[bytes] = []
    while data := fetch(raw, topic, offset, number, **options).records:
        found += batches_of(data)
        offset = parse(found[-1]).next_offset
    return found


@contextmanager
def delayed(server: Served, topic: str, offset: int, number: int = 0, **options: Any) -> Iterator[Raw]:
    """A connection with a fetch that waits."""
    before = server.call(lambda: len(server.broker.purgatory))
    options.setdefault("wait_ms", 20_000)
    with server.dial() as raw:
        raw.send(FETCH, 12, **fetching({(topic, number): offset}, **options))
        until(lambda: server.call(lambda: len(server.broker.purgatory)) > before, "it waits")
        yield raw


def answer(raw: Raw, version: int = 12) -> Struct:
    found: Struct = read_response(FETCH, version, raw.receive())[1].responses[0].partitions[0]
    return found


# ---- where


def test_below_at_and_above_the_range(raw: Raw, topic: str) -> None:
    produce(raw, topic, sealed(5))
    for offset, code in ((-1, 1), (0, 0), (4, 0), (5, 0), (6, 1), (1 << 62, 1)):
        found = fetch(raw, topic, offset)
        assert found.error_code == code, offset
        assert (found.high_watermark, found.last_stable_offset, found.log_start_offset) == (5, 5, 0)
        assert len(found.records) == 0 or offset < 5
    assert offsets(fetch(raw, topic, 4)) == [0, 1, 2, 3, 4], "the whole batch that holds it"


def test_a_fetch_that_is_out_of_range_does_not_wait(raw: Raw, topic: str) -> None:
    assert fetch(raw, topic, 7, wait_ms=FOREVER_MS).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize("where", [("", 0), ("nowhere", 0), (None, 3), (None, -1)])
def test_what_is_not_there(raw: Raw, topic: str, where: tuple[str | None, int]) -> None:
    name = topic if where[0] is None else where[0]
    found = fetch(raw, name, 0, where[1], wait_ms=20_000)
    assert found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", range(FETCH.min_version, FETCH.max_version + 1))
def test_every_version_of_fetch_returns_the_records(server: Served, raw: Raw, topic: str, version: int) -> None:
    produce(raw, topic, sealed([b"one"]))
    opened = server.broker.topics.find(topic)
    assert opened is not None
    uuid = server.broker.topics.uuid(opened)
    fields = fetching({(topic, 0): 0}, ids={topic: uuid})
    (told,) = raw.ask(FETCH, version, **fields).responses
    assert values(told.partitions[0]) == [b"one"]
    assert (told.topic_id if version >= 13 else told.topic) == (uuid if version >= 13 else topic)


def test_a_fetch_of_an_unknown_topic_id_is_refused(raw: Raw, topic: str) -> None:
    (told,) = raw.ask(FETCH, 13, **fetching({(topic, 0): 0}, ids={topic: b"?" * 16})).responses
    assert told.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_a_fetch_of_nothing_does_not_wait(raw: Raw) -> None:
    assert raw.ask(FETCH, 12, **fetching({}, wait_ms=FOREVER_MS)).responses == []


def test_a_fetch_with_another_leader_epoch_is_refused_or_told_where_it_diverges(raw: Raw, topic: str) -> None:
    produce(raw, topic, sealed(3))
    assert fetch(raw, topic, 0, leader_epoch=0).error_code == 0
    assert fetch(raw, topic, 3, leader_epoch=1, wait_ms=20_000).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert fetch(raw, topic, 0, leader_epoch=0, last_epoch=0).diverging_epoch is None
    diverged = fetch(raw, topic, 4, last_epoch=0, wait_ms=20_000).diverging_epoch
    assert (diverged.epoch, diverged.end_offset) == (0, 3)
    future = fetch(raw, topic, 3, last_epoch=1, wait_ms=20_000)
    assert (future.error_code, future.diverging_epoch) == (ErrorCode.OFFSET_OUT_OF_RANGE, None)


@pytest.mark.parametrize("version", [FETCH.min_version, 12, 15])
def test_a_fetch_of_a_replica_is_refused(raw: Raw, topic: str, version: int) -> None:
    """There are no others; Kafka refuses a broker so that has no replica of the partition."""
    produce(raw, topic, sealed(3))
    ids = {topic: raw.ask(METADATA, 12, topics=[METADATA.request.Topic(name=topic)]).topics[0].topic_id}
    who = {"replica_id": 1} if version < 15 else {"replica_state": FETCH.request.ReplicaState(replica_id=1)}
    for leader_epoch, code in ((-1, ErrorCode.NOT_LEADER_OR_FOLLOWER), (0, ErrorCode.UNKNOWN_LEADER_EPOCH)):
        wanted = fetching({(topic, 0): FetchFrom(0, leader_epoch=leader_epoch)}, ids=ids, wait_ms=FOREVER_MS)
        (told,) = raw.ask(FETCH, version, **wanted, **who).responses
        has_epoch = version >= 9
        assert told.partitions[0].error_code == (code if has_epoch else ErrorCode.NOT_LEADER_OR_FOLLOWER)
        assert not told.partitions[0].records


# ---- how much


def test_the_first_batch_however_large_and_then_no_more_than_asked_for(raw: Raw, topic: str) -> None:
    for _ in range(4):
        produce(raw, topic, sealed(1, padding=300))
    size = len(sealed(1, padding=300))
    for max_bytes, count in ((-1, 1), (0, 1), (1, 1), (size, 1), (2 * size - 1, 1), (2 * size, 2), (3 * size + 5, 3)):
        assert len(offsets(fetch(raw, topic, 0, partition_max_bytes=max_bytes))) == count
        assert len(offsets(fetch(raw, topic, 0, max_bytes=max_bytes))) == count


def test_partitions_share_what_may_be_sent(raw: Raw, topic: str) -> None:
    size = len(sealed(1, padding=300))
    for number in range(3):
        for _ in range(4):
            produce(raw, topic, sealed(1, padding=300), number)
    places: dict[tuple[str, int], FetchFrom | int] = {(topic, number): 0 for number in (2, 0, 1)}

    def counts(**options: Any) -> list[int]:
        return [len(offsets(each)) for each in fetch_many(raw, places, **options).values()]

    assert counts(max_bytes=1) == [1, 0, 0], "the first that has something, in the order they are asked for"
    assert counts(max_bytes=2 * size) == [2, 0, 0]
    assert counts(max_bytes=5 * size) == [4, 1, 0]
    places = {(topic, 2): 4, (topic, 0): FetchFrom(0, 2 * size), (topic, 1): FetchFrom(0, 1)}
    assert counts(max_bytes=10 * size) == [0, 2, 0]
    assert counts() == [0, 2, 0]


@pytest.mark.parametrize("seed", range(4))
def test_all_of_a_log_by_random_fetches_is_its_bytes(server: Served, raw: Raw, topic: str, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(80):
        size = chance.choice([0, 10, 500, 1500, 40_000])
        produce(raw, topic, sealed(chance.randrange(1, 4), padding=size // 2, codec=chance.choice([0, 0, 3])))
    partition = log_of(server, topic)
    assert len(partition.segments()) > 10
    found, offset = b"", 0
    while offset < partition.ends().end:
        told = fetch(
            raw,
            topic,
            offset,
            partition_max_bytes=chance.choice([1, 100, 3000, 100_000, 1 << 20]),
            max_bytes=chance.choice([1, 5000, 1 << 20]),
            committed=chance.random() < 0.5,
        )
        assert told.error_code == 0
        data = told.records
        found += data
        offset = parse(batches_of(data)[-1]).next_offset
    assert found == log_bytes(partition)


def test_small_answers_and_those_sent_as_files(server: Served, raw: Raw) -> None:
    """Either side of the bound, in one answer, in any order; and much larger than a socket takes."""
    topic = raw.create("sizes", 6)
    sizes = [100, 32_000, 33_500, 900_000, 50, 900_000]
    for number, size in enumerate(sizes):
        for _ in range(4):
            produce(raw, topic, sealed(1, padding=size), number)
    for order in ([0, 1, 2, 3, 4, 5], [3, 0, 5, 1, 4, 2], [5, 3]):
        found = fetch_many(raw, {(topic, number): FetchFrom(0, 1 << 30) for number in order})
        for number in order:
            assert found[topic, number].records == log_bytes(log_of(server, topic, number))
            assert offsets(found[topic, number]) == [0, 1, 2, 3]


def test_hundreds_of_small_partitions_are_one_answer(server: Served, raw: Raw) -> None:
    topic = raw.create("many", 120)
    for number in range(120):
        assert produce(raw, topic, sealed(1, padding=20_000), number).error_code == 0
    found = fetch_many(raw, {(topic, number): 0 for number in range(120)})
    assert all(len(offsets(each)) == 1 for each in found.values())


# ---- when


def test_a_fetch_waits_for_a_producer_on_the_wire(server: Served, raw: Raw, topic: str) -> None:
    with delayed(server, topic, 0) as waiting:
        produce(raw, topic, sealed([b"now"]))
        assert values(answer(waiting)) == [b"now"]


def test_a_fetch_waits_for_its_time(server: Served, raw: Raw, topic: str) -> None:
    for wait_ms in (1, 50, 300):
        started = time.monotonic()
        found = fetch(raw, topic, 0, wait_ms=wait_ms)
        took = time.monotonic() - started
        assert (found.error_code, len(found.records)) == (0, 0)
        assert took >= wait_ms / 1000


def test_a_fetch_does_not_wait_when_it_must_not(raw: Raw, topic: str) -> None:
    assert fetch(raw, topic, 0, wait_ms=0).records == b""
    assert fetch(raw, topic, 0, wait_ms=FOREVER_MS, min_bytes=0).records == b""
    produce(raw, topic, sealed(1))
    assert len(offsets(fetch(raw, topic, 0, wait_ms=FOREVER_MS))) == 1


def test_a_fetch_does_not_wait_at_the_end_of_a_segment_when_the_next_one_has_more(raw: Raw, topic: str) -> None:
    """Segments of 2,000 bytes, batches of 500: what is left of a segment is always less than is wanted."""
    for _ in range(40):
        produce(raw, topic, sealed(1, padding=400))
    for committed in (False, True):
        offset, fetches = 0, 0
        while offset < 36:
            found = fetch(raw, topic, offset, wait_ms=FOREVER_MS, min_bytes=3000, committed=committed)
            offset = offsets(found)[-1] + 1
            fetches += 1
        assert fetches > 5


def test_a_fetch_at_the_end_of_the_last_segment_waits_for_more(server: Served, raw: Raw, topic: str) -> None:
    """Also when the last segment is empty yet, so that the one before ends with the log."""
    for _ in range(4):
        produce(raw, topic, sealed(1, padding=400))
    partition = log_of(server, topic)
    with partition.log.append_lock():
        partition.log.roll()
    assert partition.segments()[-1] == partition.ends().end == 4
    for committed in (False, True):
        with delayed(server, topic, 0, min_bytes=4000, committed=committed):
            assert server.call(lambda: len(server.broker.purgatory)) == 1
        until(lambda: not server.call(lambda: len(server.broker.purgatory)), "its client is gone")


def test_a_fetch_that_wants_more_than_it_may_get_is_answered_with_what_it_may_get(raw: Raw, topic: str) -> None:
    for _ in range(3):
        produce(raw, topic, sealed(1, padding=400))
    size = len(sealed(1, padding=400))
    found = fetch(raw, topic, 0, wait_ms=FOREVER_MS, min_bytes=5000, max_bytes=2 * size)
    assert offsets(found) == [0, 1]


def test_aborted_transactions_are_listed_for_the_records_that_are_sent_and_no_others(
    server: Served, raw: Raw, topic: str
) -> None:
    partition = log_of(server, topic)
    for number in range(50):
        partition.append(sealed(1, producer_id=7, producer_epoch=number, base_sequence=0, attributes=TRANSACTIONAL))
        partition.append_marker(7, number + 1, commit=False)
    offset = 0
    while offset < 100:
        found = fetch(raw, topic, offset, partition_max_bytes=500, committed=True)
        end = parse(batches_of(found.records)[-1]).next_offset
        assert [each.first_offset for each in found.aborted_transactions] == list(range(offset - offset % 2, end, 2))
        offset = end


def test_a_fetch_waits_for_as_many_bytes_as_it_wants(server: Served, raw: Raw, topic: str) -> None:
    size = len(sealed([b"x"]))
    with delayed(server, topic, 0, min_bytes=3 * size) as waiting:
        for _ in range(2):
            produce(raw, topic, sealed([b"x"]))
        assert server.call(lambda: len(server.broker.purgatory)) == 1
        produce(raw, topic, sealed([b"x"]))
        assert offsets(answer(waiting)) == [0, 1, 2]


def test_too_few_bytes_are_sent_when_time_is_over(raw: Raw, topic: str) -> None:
    produce(raw, topic, sealed([b"x"]))
    assert values(fetch(raw, topic, 0, wait_ms=100, min_bytes=1 << 20)) == [b"x"]


def test_a_fetch_of_many_partitions_waits_for_any(server: Served, raw: Raw, topic: str) -> None:
    with server.dial() as waiting:
        for number in (2, 0, 1):
            places: dict[tuple[str, int], FetchFrom | int] = {
                (topic, each): log_of(server, topic, each).ends().end for each in range(3)
            }
            waiting.send(FETCH, 12, **fetching(places, wait_ms=20_000))
            until(lambda: server.call(lambda: len(server.broker.purgatory)) == 1, "it waits")
            produce(raw, topic, sealed([b"%d" % number]), number)
            _, told = read_response(FETCH, 12, waiting.receive())
            assert [values(each) for each in told.responses[0].partitions] == [
                [b"%d" % number] if each == number else [] for each in range(3)
            ]


def test_an_append_of_another_process_wakes_a_fetch(server: Served, tmp_path: Path, raw: Raw, topic: str) -> None:
    path, rounds = server.broker.core.path, 15
    turns = [Flag(tmp_path / f"{n}") for n in range(rounds)]

    def write() -> None:
        with klamm.open(path) as store:
            for number, turn in enumerate(turns):
                turn.wait()
                store.append(topic, b"%d" % number, partition=0)

    with children() as start:
        child = start(write)
        for number, turn in enumerate(turns):
            with delayed(server, topic, number, wait_ms=FOREVER_MS) as waiting:
                turn.up()
                assert values(answer(waiting)) == [b"%d" % number]
        child.answer()


# ---- transactions


def test_a_read_committed_fetch_ends_at_the_last_stable_offset_and_names_aborted_transactions(
    server: Served, raw: Raw, topic: str
) -> None:
    def committed(offset: int = 0) -> Struct:
        return fetch(raw, topic, offset, committed=True)

    with klamm.open(server.broker.core.path) as store:
        store.append(topic, b"0", partition=0)
        first = store.transaction(batch_bytes=1)
        first.__enter__()
        first.send(topic, b"aborted", partition=0)
        until(lambda: fetch(raw, topic, 1).high_watermark == 2, "it is in the log")
        assert (committed().last_stable_offset, committed().high_watermark) == (1, 2)
        assert values(committed()) == [b"0"]
        assert (committed(1).error_code, committed(1).records) == (0, b"")
        assert values(fetch(raw, topic, 0)) == [b"0", b"aborted"]
        assert fetch(raw, topic, 0).aborted_transactions is None
        with delayed(server, topic, 1, committed=True) as waiting:
            store.append(topic, b"2", partition=0)
            with store.transaction() as second:
                second.send(topic, b"3", partition=0)
            assert values(fetch(raw, topic, 2))[0] == b"2"
            assert server.call(lambda: len(server.broker.purgatory)) == 1
            first.__exit__(ValueError, ValueError(), None)
            told = answer(waiting)
            assert [each.first_offset for each in told.aborted_transactions] == [1]
            assert told.records[:8] == (1).to_bytes(8, "big")
    found = committed()
    assert found.last_stable_offset == found.high_watermark == 6
    assert [each.first_offset for each in found.aborted_transactions] == [1]
    assert values(found) == [b"0", b"aborted", b"2", b"3"], "the client leaves out what is named"
    assert committed(3).aborted_transactions != []
    assert fetch(raw, topic, 6, committed=True).aborted_transactions == []


# ---- files that change


def test_a_fetch_below_the_log_start_offset_is_out_of_range(server: Served, raw: Raw, topic: str) -> None:
    for number in range(30):
        produce(raw, topic, sealed([b"%d" % number], padding=0), 0)
        produce(raw, topic, sealed(1, padding=300))
    before = follow(raw, topic)
    partition = log_of(server, topic)
    partition.cleanup.delete_before(20)
    found = fetch(raw, topic, 19)
    assert (found.error_code, found.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 20)
    assert follow(raw, topic, 20) == before[20:]


def test_compaction_while_it_is_read(server: Served, raw: Raw) -> None:
    """Who reads sees each key's latest record, and offsets that grow, however often files are replaced."""
    topic = raw.create(
        "compacting", 1, cleanup_policy="compact", segment_bytes="1000", min_cleanable_dirty_ratio="0.01"
    )
    over = threading.Event()
    partition = log_of(server, topic)
    latest = {}
    wrong: list[str] = []

    def compact() -> None:
        while not over.is_set():
            partition.checkpoint()
            partition.cleanup.compact()

    def read() -> None:
        chance = random.Random(1)
        with server.dial() as mine:
            while not over.is_set():
                offset, end = 0, partition.ends().end
                while offset < end:
                    for _ in range(3):  # files may be replaced under a look-up: then a response may be empty, once
                        found = fetch(mine, topic, offset, partition_max_bytes=chance.choice([1, 500, 5000, 100_000]))
                        if found.error_code or found.records:
                            break
                    if found.error_code or not found.records:
                        wrong.append(f"offset {offset} of {end}: {found.error_code}, {len(found.records)} bytes")
                        return
                    following = parse(batches_of(found.records)[-1]).next_offset
                    assert following > offset
                    offset = following

    threads = [threading.Thread(target=compact), threading.Thread(target=read), threading.Thread(target=read)]
    for thread in threads:
        thread.start()
    try:
        for number in range(300):
            key = b"%d" % (number % 7)
            latest[key] = b"%d" % number
            assert produce(raw, topic, sealed([(key, latest[key])])).error_code == 0
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert wrong == []
    partition.checkpoint()
    partition.cleanup.compact()
    left = follow(raw, topic, partition_max_bytes=700)
    assert left == batches_of(log_bytes(partition))
    assert len(left) < 200


def test_a_deleted_topic_answers_who_waits(server: Served, raw: Raw, topic: str) -> None:
    with delayed(server, topic, 0) as by_wire:
        raw.ask(DELETE_TOPICS, 5, topic_names=[topic], timeout_ms=10_000)
        assert answer(by_wire).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    again = raw.create(f"{topic}again")
    with delayed(server, again, 0) as by_another, children() as start:

        def delete() -> None:
            with klamm.open(server.broker.core.path) as store:
                store.topics.delete(again)

        start(delete).answer()
        assert answer(by_another).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert fetch(raw, again, 0).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_records_that_are_not_in_memory_are_fetched_as_they_are_on_disk(tmp_path: Path) -> None:
    """On a disk, not in memory: what the kernel has dropped is read by a thread, and is right."""
    with served(tmp_path / "events") as server, server.dial() as raw:
        topic = raw.create("cold", 2)
        for size in (100, 20_000, 100_000, 500_000):
            for number in range(2):
                produce(raw, topic, sealed(1, padding=size), number, acks=-1)
        partitions = [log_of(server, topic, number) for number in range(2)]
        expected = [log_bytes(each) for each in partitions]
        for max_bytes in (1, 30_000, 200_000, 1 << 20):
            for each in partitions:
                fd = os.open(segment.path_of(each.directory, 0), os.O_RDONLY)
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(fd)
            found = fetch_many(raw, {(topic, number): FetchFrom(0, max_bytes) for number in range(2)})
            for number, data in enumerate(expected):
                records = found[topic, number].records
                assert data.startswith(records)
                assert records or number
            assert fetch_many(raw, {(topic, 0): 0, (topic, 1): 0})[topic, 1].records == expected[1]


def test_a_disk_that_cannot_be_read_is_an_error_of_its_partition(server: Served, raw: Raw, topic: str) -> None:
    for number in range(2):
        produce(raw, topic, sealed(3), number)
    assert offsets(fetch(raw, topic, 0, 1)) == [0, 1, 2]
    _os.trap(1, kinds=_os.OPEN, error=errno.EIO, repeat=True)
    try:
        found = fetch_many(raw, {(topic, 0): 0, (topic, 1): 0})
    finally:
        _os.trap(0)
    assert found[topic, 0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert offsets(found[topic, 1]) == [0, 1, 2]
    assert offsets(fetch(raw, topic, 0)) == [0, 1, 2]


def test_partitions_nobody_has_used_yet(tmp_path: Path) -> None:
    with klamm.open(tmp_path / "events") as store:
        store.topics.create("orders", partitions=3)
        store.append("orders", b"value", partition=1)
    with served(tmp_path / "events") as server, server.dial() as raw:
        found = fetch_many(raw, {("orders", number): 0 for number in (0, 1, 7)})
        assert [(each.error_code, len(each.records) > 0) for each in found.values()] == [
            (0, False),
            (0, True),
            (3, False),
        ]


def test_batches_whose_offsets_have_gaps_are_sent_as_they_lie(server: Served, raw: Raw) -> None:
    topic = raw.create("gaps", 1, segment_bytes="2000", retention_ms="-1")
    log = log_of(server, topic)
    wanted = [*range(5, 900, 7), (1 << 31) + 900, (1 << 31) + 903]

    def restore() -> None:
        """In another process: with what this imports, every later fork of this one would take longer."""
        from klamm.arrow.restore_writer import RestoreWriter
        from tests.arrow.test_restore_writer import rows

        with klamm.open(server.broker.core.path) as store:
            placer = RestoreWriter(store._acquired().topic(topic).partition(0))
            placer.take(rows(*wanted))
            placer.skip_to((1 << 31) + 1000)

    with children() as start:
        start(restore).answer()
    sent = follow(raw, topic)
    assert b"".join(sent) == log_bytes(log)
    assert [each.offset for data in sent for each in decode(data)] == wanted
    assert offsets(fetch(raw, topic, wanted[-2]))[-2:] == wanted[-2:]
