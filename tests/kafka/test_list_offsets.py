"""ListOffsets and OffsetForLeaderEpoch: where a log begins, ends, or was at some time, in every version."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import klamm
from klamm.kafka.error_codes import ErrorCode as E
from klamm.kafka.wire.messages import LIST_OFFSETS, OFFSET_FOR_LEADER_EPOCH
from klamm.kafka.wire.structs import Struct
from klamm.log import head
from tests.kafka.connect import Raw, Served, served

LATEST, EARLIEST, YOUNGEST, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
UNCOMMITTED, COMMITTED = 0, 1
NOTHING = (0, -1, -1, -1)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[klamm.Store]:
    with klamm.open(tmp_path / "events") as store:
        store.topics.create("orders", partitions=2)
        for timestamp in (100, 300, 200, 300, 250):  # offsets 0 to 4 of partition 0
            store.append("orders", b"x", partition=0, timestamp=timestamp)
        yield store


def listed(
    raw: Raw, *wanted: tuple[int, int], version: int = 11, isolation: int = UNCOMMITTED, epoch: int = -1
) -> list[tuple[int, int, int, int]]:
    """For partitions and times: error, offset, timestamp, epoch."""
    request = LIST_OFFSETS.request
    partitions = [
        request.Partition(partition_index=number, timestamp=timestamp, current_leader_epoch=epoch)
        for number, timestamp in wanted
    ]
    topic = request.Topic(name="orders", partitions=partitions)
    answer = raw.ask(LIST_OFFSETS, version, replica_id=-1, isolation_level=isolation, topics=[topic])
    (found,) = answer.topics
    assert found.name == "orders" and answer.throttle_time_ms == 0
    assert [each.partition_index for each in found.partitions] == [number for number, _ in wanted]
    return [(each.error_code, each.offset, each.timestamp, each.leader_epoch) for each in found.partitions]


def at(raw: Raw, timestamp: int, *, version: int = 11, isolation: int = UNCOMMITTED) -> tuple[int, int, int, int]:
    (found,) = listed(raw, (0, timestamp), version=version, isolation=isolation)
    return found


def restart(server: Served, number: int = 0) -> None:
    """As if the machine had gone down: the next one who uses the partition recovers it."""
    partition = server.broker.core.topic("orders").partition(number)
    partition._boot_count = 0  # epochs are counted from 1 then, and not by the clock
    partition.log.set_flags(head.NEEDS_RECOVERY)


# ---- ListOffsets


@pytest.mark.parametrize("version", range(1, 12))
def test_where_a_log_begins_and_ends_and_was_at_a_time(store: klamm.Store, raw: Raw, version: int) -> None:
    epoch = 0 if version >= 4 else -1
    store["orders"].delete_records({0: 1})
    wanted = [(0, EARLIEST), (1, EARLIEST)]
    assert listed(raw, *wanted, version=version) == [(0, 1, -1, epoch), (0, 0, -1, epoch)]
    assert listed(raw, (0, LATEST), (1, LATEST), version=version) == [(0, 5, -1, epoch), (0, 0, -1, epoch)]
    for time, offset, stamp in ((0, 1, 300), (200, 1, 300), (300, 1, 300)):
        assert at(raw, time, version=version) == (0, offset, stamp, epoch)
    store["orders"].delete_records({0: 2})
    for time, offset, stamp in ((0, 2, 200), (100, 2, 200), (200, 2, 200), (201, 3, 300), (300, 3, 300)):
        assert at(raw, time, version=version) == (0, offset, stamp, epoch)
    assert at(raw, 301, version=version) == NOTHING
    assert listed(raw, (1, 0), version=version) == [NOTHING]


@pytest.mark.parametrize("version", range(1, 12))
def test_times_that_mean_something_else_are_known_since_their_version(raw: Raw, version: int) -> None:
    refused = (E.UNSUPPORTED_VERSION, -1, -1, -1)
    assert at(raw, YOUNGEST, version=version) == ((0, 1, 300, 0) if version >= 7 else refused)
    assert at(raw, EARLIEST_LOCAL, version=version) == ((0, 0, -1, 0) if version >= 8 else refused)
    assert at(raw, LATEST_TIERED, version=version) == (NOTHING if version >= 9 else refused)
    assert at(raw, PENDING_UPLOAD, version=version) == (NOTHING if version >= 11 else refused)
    assert at(raw, -7, version=version) == refused


def test_the_youngest_record_is_found_wherever_it_lies(store: klamm.Store, raw: Raw) -> None:
    assert listed(raw, (0, YOUNGEST), (1, YOUNGEST)) == [(0, 1, 300, 0), NOTHING]
    store.append("orders", b"x", partition=0, timestamp=301)
    assert at(raw, YOUNGEST) == (0, 5, 301, 0)
    store.append("orders", b"x", partition=0, timestamp=7)
    store["orders"].delete_records({0: 6})
    assert at(raw, YOUNGEST) == (0, 6, 7, 0)


def test_what_a_reader_of_committed_records_cannot_read_is_not_found(store: klamm.Store, raw: Raw) -> None:
    with store.transaction(batch_bytes=1) as open_one:
        open_one.send("orders", b"x", partition=0, timestamp=400)
        open_one.send("orders", b"x", partition=0, timestamp=500)
        end = at(raw, LATEST)[1]
        assert end >= 6
        store.append("orders", b"x", partition=0, timestamp=600)
        assert at(raw, LATEST)[1] == end + 1
        assert at(raw, LATEST, isolation=COMMITTED) == (0, 5, -1, 0)
        assert at(raw, EARLIEST, isolation=COMMITTED) == (0, 0, -1, 0)
        assert at(raw, 350) == (0, 5, 400, 0) and at(raw, 600) == at(raw, YOUNGEST) == (0, end, 600, 0)
        assert at(raw, 350, isolation=COMMITTED) == NOTHING
        assert at(raw, YOUNGEST, isolation=COMMITTED) == NOTHING
        assert at(raw, 300, isolation=COMMITTED) == (0, 1, 300, 0)
    assert at(raw, 350, isolation=COMMITTED) == at(raw, 350) == (0, 5, 400, 0)
    assert at(raw, LATEST, isolation=COMMITTED) == at(raw, LATEST)
    error, offset, _, _ = at(raw, YOUNGEST, isolation=COMMITTED)
    assert (error, offset) == (0, at(raw, LATEST)[1] - 1)  # the marker


@pytest.mark.parametrize("version", range(1, 12))
def test_a_partition_that_is_not_there_is_told(raw: Raw, version: int) -> None:
    request = LIST_OFFSETS.request
    unknown = (E.UNKNOWN_TOPIC_OR_PARTITION, -1, -1, -1)
    for time in (LATEST, EARLIEST, 5):
        assert listed(raw, (2, time), (-1, time), version=version) == [unknown, unknown]
        topic = request.Topic(name="nobody", partitions=[request.Partition(partition_index=0, timestamp=time)])
        (found,) = raw.ask(LIST_OFFSETS, version, replica_id=-1, topics=[topic]).topics
        assert found.partitions[0].error_code == E.UNKNOWN_TOPIC_OR_PARTITION


def test_a_partition_that_is_there_twice_is_refused(raw: Raw) -> None:
    refused = (E.INVALID_REQUEST, -1, -1, -1)
    assert listed(raw, (0, LATEST), (1, LATEST), (0, EARLIEST)) == [refused, (0, 0, -1, 0), refused]


def test_many_partitions_are_answered_in_the_order_they_were_asked_for(raw: Raw) -> None:
    wanted = [(1, YOUNGEST), (0, 250)]
    assert listed(raw, *wanted) == [NOTHING, (0, 1, 300, 0)]
    assert listed(raw, (0, 200), (2, 5), (1, LATEST)) == [
        (0, 1, 300, 0),
        (E.UNKNOWN_TOPIC_OR_PARTITION, -1, -1, -1),
        (0, 0, -1, 0),
    ]


@pytest.mark.parametrize("time", [LATEST, EARLIEST, YOUNGEST, 100])
def test_a_client_that_knows_another_epoch_is_told(store: klamm.Store, server: Served, raw: Raw, time: int) -> None:
    restart(server)
    store.append("orders", b"x", partition=0)  # epoch 1
    assert listed(raw, (0, time), epoch=0) == [(E.FENCED_LEADER_EPOCH, -1, -1, -1)]
    assert listed(raw, (0, time), epoch=2) == [(E.UNKNOWN_LEADER_EPOCH, -1, -1, -1)]
    assert listed(raw, (0, time), epoch=1)[0][0] == listed(raw, (0, time), epoch=-1)[0][0] == 0
    if time != YOUNGEST:
        assert listed(raw, (0, time), epoch=0, version=3)[0][0] == 0  # which has no room for an epoch


def test_each_offset_is_told_with_the_epoch_it_belongs_to(store: klamm.Store, server: Served, raw: Raw) -> None:
    restart(server)
    store.append("orders", b"x", partition=0, timestamp=1000)
    restart(server)
    store.append("orders", b"x", partition=0, timestamp=2000)
    assert at(raw, EARLIEST) == (0, 0, -1, 0) and at(raw, LATEST) == (0, 7, -1, 2)
    assert at(raw, 100) == (0, 0, 100, 0)
    assert at(raw, 1000) == (0, 5, 1000, 1) and at(raw, YOUNGEST) == (0, 6, 2000, 2)
    store["orders"].delete_records({0: 5})
    assert at(raw, EARLIEST) == at(raw, EARLIEST_LOCAL) == (0, 5, -1, 1)


def test_a_partition_that_nobody_has_opened_is_opened(tmp_path: Path) -> None:
    with klamm.open(tmp_path / "events") as store:
        store.topics.create("orders", partitions=2)
        store.append_many("orders", [(None, b"x")] * 3, partition=0, timestamp=100)
    with served(tmp_path / "events") as server, server.dial() as raw:
        (topic,) = server.broker.topics.all()
        assert topic.opened() == []
        assert listed(raw, (0, LATEST), (1, EARLIEST)) == [(0, 3, -1, 0), (0, 0, -1, 0)]
        assert len(topic.opened()) == 2
        assert at(raw, 100) == (0, 0, 100, 0)


def test_the_end_of_an_open_log_is_told_while_every_thread_is_busy(server: Served, raw: Raw) -> None:
    assert at(raw, LATEST) == (0, 5, -1, 0)  # open from now on
    release = threading.Event()
    try:
        for run in (server.broker.catalog, server.broker.disk):
            server.call(lambda run=run: [run(release.wait) for _ in range(16)] and None)  # type: ignore[misc]
        assert listed(raw, (0, LATEST), (9, LATEST))[0] == (0, 5, -1, 0)
        assert at(raw, EARLIEST) == (0, 0, -1, 0)
    finally:
        release.set()


# ---- OffsetForLeaderEpoch


def ended(raw: Raw, number: int, epoch: int, version: int = 4, current: int = -1, topic: str = "orders") -> Struct:
    request = OFFSET_FOR_LEADER_EPOCH.request
    wanted = request.Partition(partition=number, current_leader_epoch=current, leader_epoch=epoch)
    (found,) = raw.ask(
        OFFSET_FOR_LEADER_EPOCH, version, replica_id=-1, topics=[request.Topic(topic=topic, partitions=[wanted])]
    ).topics
    assert found.topic == topic
    (partition,) = found.partitions
    assert partition.partition == number
    return partition


@pytest.mark.parametrize("version", range(2, 5))
def test_where_an_epoch_ended(store: klamm.Store, server: Served, raw: Raw, version: int) -> None:
    def told(epoch: int, number: int = 0) -> tuple[int, int, int]:
        found = ended(raw, number, epoch, version)
        return found.error_code, found.leader_epoch, found.end_offset

    assert told(0) == (0, 0, 5) and told(0, 1) == (0, 0, 0)
    assert told(1) == told(-1) == (0, -1, -1)
    restart(server)
    server.broker.core.topic("orders").partition(0)._recover()  # epoch 1 gets no record
    restart(server)
    store.append("orders", b"x", partition=0)
    assert told(0) == (0, 0, 5) and told(1) == (0, 0, 5) and told(2) == (0, 2, 6)
    assert told(3) == told(-1) == (0, -1, -1)


@pytest.mark.parametrize("version", range(2, 5))
def test_who_asks_for_the_end_of_an_epoch_is_checked(
    store: klamm.Store, server: Served, raw: Raw, version: int
) -> None:
    restart(server)
    store.append("orders", b"x", partition=0)  # epoch 1
    for current, code in ((0, E.FENCED_LEADER_EPOCH), (2, E.UNKNOWN_LEADER_EPOCH), (1, 0), (-1, 0)):
        found = ended(raw, 0, 0, version, current)
        want = (code, -1, -1) if code else (0, 0, 5)
        assert (found.error_code, found.leader_epoch, found.end_offset) == want
    for number, topic in ((2, "orders"), (-1, "orders"), (0, "nobody")):
        found = ended(raw, number, 0, version, topic=topic)
        assert (found.error_code, found.end_offset) == (E.UNKNOWN_TOPIC_OR_PARTITION, -1)
