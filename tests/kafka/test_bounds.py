"""What one client, or many, can make the server hold or do: each bound at its edge."""

from __future__ import annotations

import logging
import socket
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.batch import CODECS
from klamm.kafka.apis.produce import Slow, check
from klamm.kafka.error_codes import ErrorCode as E
from klamm.kafka.limited_log import LINES_PER_S, LimitedLog
from klamm.kafka.repeats import distinct, merge_partitions
from klamm.kafka.unread import Unread
from klamm.kafka.wire.messages import (
    API_VERSIONS,
    DESCRIBE_CONFIGS,
    DESCRIBE_GROUPS,
    DESCRIBE_PRODUCERS,
    FETCH,
    INIT_PRODUCER_ID,
    JOIN_GROUP,
    LEAVE_GROUP,
    METADATA,
    OFFSET_FETCH,
    PRODUCE,
    SYNC_GROUP,
)
from klamm.kafka.wire.structs import Struct
from tests.kafka.connect import ConnectionEnded, Raw, Served, served
from tests.kafka.requests import FetchFrom, altered, fetch_many, fetching, produce, sealed, values
from tests.procs import until
from tests.serving import serving

MIB = 1 << 20


@contextmanager
def deaf(server: Served) -> Iterator[Raw]:
    """A client that reads nothing unless it is told to."""
    with server.dial() as raw:
        raw._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        yield raw


def add_wide(path: Path, topic: str, partitions: int) -> None:
    """Add a topic, of which no partition is opened: `Raw.create` asks each for its offsets."""
    with klamm.open(path) as store:
        store.topics.create(topic, partitions)


# ---- what is named again and again


def test_a_partition_is_fetched_once_however_often_it_is_named(server: Served, raw: Raw) -> None:
    produce(raw, "orders", sealed([b"one"]))
    one = FETCH.request.Partition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    other = FETCH.request.Partition(partition=1, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = [FETCH.request.Topic(topic="orders", partitions=[one] * 1000 + [other] + [one])] * 3
    fields = {**fetching({}), "topics": topics}
    response = raw.ask(FETCH, 12, **fields)
    assert [each.partition_index for topic in response.responses for each in topic.partitions] == [0, 1]
    assert values(response.responses[0].partitions[0]) == [b"one"]


def test_a_fetch_that_names_one_partition_60_000_times_costs_a_produce_nothing(server: Served, raw: Raw) -> None:
    """The recipe of a client that sleeps and makes every small produce of the others take seconds."""
    one = FETCH.request.Partition(partition=0, fetch_offset=0, partition_max_bytes=1)
    fields = fetching({}, wait_ms=2**31 - 1, min_bytes=2**31 - 1)
    with server.dial() as attacker:
        topic = FETCH.request.Topic(topic="orders", partitions=[one] * 60_000)
        attacker.send(FETCH, 4, **{**fields, "topics": [topic]})
        until(lambda: server.call(lambda: len(server.broker.purgatory)) == 1, "it waits")
        (delayed,) = server.call(lambda: list(server.broker.purgatory._by_session.values()))
        assert len(delayed.subscription.joined) == 1


def test_a_partition_that_is_produced_to_twice_is_refused_the_second_time(raw: Raw) -> None:
    batches = [PRODUCE.request.Partition(index=0, records=bytes(sealed([value]))) for value in (b"first", b"second")]
    topic = PRODUCE.request.Topic(name="orders", partition_data=batches)
    (told,) = raw.ask(PRODUCE, 9, acks=1, timeout_ms=1000, topic_data=[topic]).responses
    assert [each.error_code for each in told.partition_responses] == [E.NONE, E.INVALID_REQUEST]
    assert values(fetch_many(raw, {("orders", 0): 0})["orders", 0]) == [b"first"]


def test_configs_are_described_once_however_often_they_are_asked_for(raw: Raw) -> None:
    resource = DESCRIBE_CONFIGS.request.Resource(resource_type=2, resource_name="orders", configuration_keys=None)
    other = DESCRIBE_CONFIGS.request.Resource(resource_type=4, resource_name="1", configuration_keys=None)
    asked = {"resources": [resource] * 20_000 + [other], "include_synonyms": True, "include_documentation": True}
    number = raw.send(DESCRIBE_CONFIGS, 4, **asked)
    frame = raw.receive()
    assert int.from_bytes(frame[:4], "big") == number
    assert len(frame) < 100_000, "20,000 times the same would be 89 MB"
    results = raw.ask(DESCRIBE_CONFIGS, 4, **asked).results
    assert [(each.resource_type, each.resource_name) for each in results] == [(2, "orders"), (4, "1")]


def test_groups_and_producers_are_described_once(raw: Raw) -> None:
    assert [each.group_id for each in raw.ask(DESCRIBE_GROUPS, 3, groups=["g", "h", "g"]).groups] == ["g", "h"]
    topic = DESCRIBE_PRODUCERS.request.Topic(name="orders", partition_indexes=[1, 0, 1, 1])
    (found,) = raw.ask(DESCRIBE_PRODUCERS, 0, topics=[topic]).topics
    assert [each.partition_index for each in found.partitions] == [1, 0]


def test_offsets_are_fetched_once(raw: Raw) -> None:
    topic = OFFSET_FETCH.request.GroupTopic(name="orders", partition_indexes=[0, 0, 2])
    group = OFFSET_FETCH.request.Group(group_id="g", topics=[topic, topic])
    other = OFFSET_FETCH.request.Group(group_id="h", topics=[topic])
    first, second = raw.ask(OFFSET_FETCH, 8, groups=[group, other, group]).groups
    assert (first.group_id, second.group_id) == ("g", "h")
    assert [each.partition_index for topic in first.topics for each in topic.partitions] == [0, 2]
    old = OFFSET_FETCH.request.Topic(name="orders", partition_indexes=[3, 3, 1])
    (found,) = raw.ask(OFFSET_FETCH, 5, group_id="g", topics=[old]).topics
    assert [each.partition_index for each in found.partitions] == [3, 1]


def test_the_first_of_each_is_left_in_order() -> None:
    assert distinct([3, 1, 3, 2, 1]) == [3, 1, 2]
    assert distinct([]) == [] and distinct(None) is None and distinct(["a"]) == ["a"]
    make = DESCRIBE_CONFIGS.request.Resource
    entries = [make(resource_type=kind, resource_name="t") for kind in (2, 4, 2)]
    assert distinct(entries, "resource_type", "resource_name") == entries[:2]
    topics: list[Struct] = [
        DESCRIBE_PRODUCERS.request.Topic(name=name, partition_indexes=numbers)
        for name, numbers in (("a", [1, 2]), ("b", [1]), ("a", [2, 3, 3]), ("b", [1, 1]), ("c", []))
    ]
    merged = merge_partitions(topics, "partition_indexes")
    assert merged is not None
    assert [(each.name, each.partition_indexes) for each in merged] == [
        ("a", [1, 2]),
        ("b", [1]),
        ("a", [3]),
        ("c", []),
    ]
    assert merge_partitions(None, "partition_indexes") is None


# ---- responses


def test_a_response_that_is_too_large_is_not_sent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with served(tmp_path / "events", socket_response_max_bytes=64 * 1024) as server, server.dial() as raw:
        add_wide(tmp_path / "events", "small", 1000)
        assert len(raw.ask(METADATA, 1, topics=None).topics[0].partitions) == 1000
        add_wide(tmp_path / "events", "large", 3000)
        with server.dial() as other, pytest.raises(ConnectionEnded):
            other.ask(METADATA, 1, topics=None)
        assert raw.ask(API_VERSIONS, 0).error_code == 0
    assert "where 65536 are sent" in caplog.text


def test_responses_that_are_not_read_are_bounded_and_the_oldest_goes(tmp_path: Path) -> None:
    with (
        served(tmp_path / "events", queued_max_response_bytes=MIB) as server,
        server.dial() as raw,
        ExitStack() as stack,
    ):
        add_wide(tmp_path / "events", "orders", 10_000)
        unread = server.server.listener.unread_bytes
        clients = [stack.enter_context(deaf(server)) for _ in range(6)]
        for client in clients:
            for _ in range(60):  # more than the buffers of the sockets take
                client.send(METADATA, 1, topics=None)
            until(lambda: server.call(lambda: len(unread)) >= 1, "its response waits")
            assert len(raw.ask(METADATA, 1, topics=None).topics[0].partitions) == 10_000, "others are served"
            assert server.call(lambda: unread.used) <= MIB
        until(lambda: server.call(lambda: len(server.server.listener.connections)) < 7, "the oldest was closed")


def test_a_response_that_is_not_read_is_in_memory_once(tmp_path: Path) -> None:
    """The transport has a piece of it, not a copy."""
    with served(tmp_path / "events") as server, server.dial() as client:
        add_wide(tmp_path / "events", "orders", 10_000)
        for _ in range(60):  # more than the buffers of the sockets take
            client.send(METADATA, 1, topics=None)
        until(lambda: server.call(lambda: len(server.server.listener.unread_bytes)) == 1, "its response waits")
        (channel,) = server.call(lambda: list(server.server.listener.connections))
        assert server.call(channel._transport.get_write_buffer_size) <= 16 * 1024
        responses = {client.receive()[4:] for _ in range(60)}  # without their numbers
        assert len(responses) == 1, "nothing is lost between pieces, or sent twice"


def test_a_fetch_response_has_as_many_bytes_as_the_server_allows(tmp_path: Path) -> None:
    with served(tmp_path / "events", fetch_max_bytes=10_000) as server, server.dial() as raw:
        raw.create("orders", 4)
        for number in range(4):
            for _ in range(6):
                produce(raw, "orders", sealed([bytes(900)]), number)
        everything: dict[tuple[str, int], FetchFrom | int] = {("orders", number): 0 for number in range(4)}
        found = fetch_many(raw, everything, max_bytes=2**31 - 1, min_bytes=2**31 - 1, wait_ms=60_000)
        assert 9000 < sum(len(each.records) for each in found.values()) <= 10_000
        one = fetch_many(raw, {("orders", 0): 0}, max_bytes=3000, min_bytes=3000, wait_ms=60_000)["orders", 0]
        assert 2000 < len(one.records) < 3000, "what there is counts, not what fits"
        produce(raw, "orders", sealed([bytes(50_000)]))
        assert len(fetch_many(raw, {("orders", 0): 6}, max_bytes=2**31 - 1)["orders", 0].records) > 50_000, "the first"


def test_what_is_held_beyond_the_limit_closes_the_oldest_holders() -> None:
    unread, closed = Unread(100, "some.setting"), list[str]()

    def hold(name: str, amount: int) -> None:
        unread.hold(name, amount, lambda why: closed.append(f"{name}: {why}"))

    hold("a", 50)
    hold("b", 50)
    assert closed == [] and unread.used == 100
    hold("c", 1)
    assert len(closed) == 1 and closed[0].startswith("a: ") and "some.setting" in closed[0]
    unread.release("b")
    unread.release("b")
    assert (unread.used, len(unread)) == (1, 1)
    hold("d", 101)
    assert (unread.used, len(unread), len(closed)) == (0, 0, 3), "one that is too large goes, too"


def large_partitions(path: Path, count: int) -> None:
    with klamm.open(path) as store:
        store.topics.create("orders", count, {"max.message.bytes": 8 * MIB})
        for number in range(count):
            store.append("orders", bytes(6 * MIB), partition=number, acks=1)


def test_a_fetch_holds_few_files_open_and_those_that_are_not_read_are_bounded(tmp_path: Path) -> None:
    large_partitions(tmp_path / "events", 5)
    everything = {("orders", number): FetchFrom(0, 8 * MIB) for number in range(5)}
    with served(tmp_path / "events", max_open_ranges=32) as server, server.dial() as raw, ExitStack() as stack:
        found = fetch_many(raw, everything, max_bytes=1 << 30, min_bytes=1 << 30, wait_ms=60_000)
        assert [len(found["orders", number].records) > 0 for number in range(5)] == [True, True, False, False, False]
        ranges = server.server.listener.unread_ranges
        for number in range(20):
            client = stack.enter_context(deaf(server))
            client.send(FETCH, 12, **fetching(everything, max_bytes=1 << 30))
            until(lambda n=number: server.call(lambda: len(ranges)) >= min(n + 1, 16), "it waits")  # type: ignore[misc]
        until(lambda: server.call(lambda: len(server.server.listener.connections)) == 17, "the oldest are closed")
        assert server.call(lambda: ranges.used) == 32


# ---- groups


def joining(group: str, size: int) -> dict[str, Any]:
    protocol = JOIN_GROUP.request.Protocol(name="range", metadata=bytes(size))
    return {
        "group_id": group,
        "session_timeout_ms": 1_800_000,
        "rebalance_timeout_ms": 1000,
        "protocol_type": "consumer",
        "protocols": [protocol],
    }


def test_what_the_members_of_a_group_say_is_bounded(tmp_path: Path) -> None:
    with served(tmp_path / "events", group_max_bytes=10_000) as server, server.dial() as raw:
        assert raw.ask(JOIN_GROUP, 3, **joining("g", 9996)).error_code == E.GROUP_MAX_SIZE_REACHED
        first = raw.ask(JOIN_GROUP, 3, **joining("g", 9995))
        assert first.error_code == 0
        again = {**joining("g", 9995), "member_id": first.member_id}
        assert raw.ask(JOIN_GROUP, 3, **again).error_code == 0, "what it said before does not count twice"
        with server.dial() as other:
            assert other.ask(JOIN_GROUP, 3, **joining("g", 0)).error_code == E.GROUP_MAX_SIZE_REACHED
            assert other.ask(JOIN_GROUP, 3, **joining("h", 0)).error_code == 0


def test_what_a_leader_assigns_is_bounded(tmp_path: Path) -> None:
    with served(tmp_path / "events", group_max_bytes=10_000) as server, server.dial() as raw:
        joined = raw.ask(JOIN_GROUP, 3, **joining("g", 10))
        fields = {"group_id": "g", "member_id": joined.member_id, "generation_id": joined.generation_id}
        for size, code in ((10_001, E.GROUP_MAX_SIZE_REACHED), (10_000, E.NONE)):
            given = SYNC_GROUP.request.Assignment(member_id=joined.member_id, assignment=bytes(size))
            assert raw.ask(SYNC_GROUP, 2, **fields, assignments=[given]).error_code == code


def test_the_number_of_groups_is_bounded(tmp_path: Path) -> None:
    with served(tmp_path / "events", max_groups=3) as server, server.dial() as raw:
        codes = [raw.ask(JOIN_GROUP, 3, **joining(f"g{number}", 10)).error_code for number in range(4)]
        assert codes == [E.NONE] * 3 + [E.GROUP_MAX_SIZE_REACHED]


def test_the_number_of_transactional_ids_is_bounded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with served(tmp_path / "events", max_transactional_ids=2) as server, server.dial() as raw:
        made = [
            raw.ask(INIT_PRODUCER_ID, 4, transactional_id=name, transaction_timeout_ms=1000)
            for name in ("a", "b", "c", "a", None)
        ]
        assert [each.error_code for each in made] == [E.NONE, E.NONE, E.POLICY_VIOLATION, E.NONE, E.NONE]
        assert made[2].producer_id == -1
    assert "InitProducerId of transactional id 'c' rejected: max.transactional.ids is reached" in caplog.text


def test_what_all_groups_hold_is_bounded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with served(tmp_path / "events", groups_max_bytes=100_000) as server, server.dial() as raw:
        joined = [raw.ask(JOIN_GROUP, 3, **joining(f"g{number}", 20_000)) for number in range(6)]
        assert [each.error_code for each in joined] == [E.NONE] * 4 + [E.GROUP_MAX_SIZE_REACHED] * 2
        assert "JoinGroup to group g4 rejected: groups.max.bytes is reached" in caplog.text
        memory = server.broker.group_coordinator._groups.memory
        left = 100_000 - memory.used
        member = {"group_id": "g0", "member_id": joined[0].member_id, "generation_id": joined[0].generation_id}
        for size, code in ((left + 1, E.GROUP_MAX_SIZE_REACHED), (left, E.NONE)):
            given = SYNC_GROUP.request.Assignment(member_id=joined[0].member_id, assignment=bytes(size))
            assert raw.ask(SYNC_GROUP, 2, **member, assignments=[given]).error_code == code
        assert memory.used == 100_000
        again = {**joining("g1", 20_000), "member_id": joined[1].member_id}
        assert raw.ask(JOIN_GROUP, 3, **again).error_code == 0, "what it said before does not count twice"
        assert raw.ask(JOIN_GROUP, 3, **joining("h", 0)).error_code == E.GROUP_MAX_SIZE_REACHED
        raw.ask(LEAVE_GROUP, 2, group_id="g0", member_id=joined[0].member_id)
        assert raw.ask(JOIN_GROUP, 3, **joining("h", 20_000)).error_code == 0, "there is space again"


def test_ids_of_members_that_never_join_count_too(tmp_path: Path) -> None:
    with served(tmp_path / "events", groups_max_bytes=100_000) as server, server.dial() as raw:
        raw.client_id = "c" * 10_000
        codes = [raw.ask(JOIN_GROUP, 4, **joining("g", 10)).error_code for _ in range(12)]
        assert codes[:3] == [E.MEMBER_ID_REQUIRED] * 3 and codes[-1] == E.GROUP_MAX_SIZE_REACHED


def test_joins_of_megabytes_are_not_retained(tmp_path: Path) -> None:
    with serving(tmp_path / "events") as process:
        for number in range(4):
            with Raw(process.address) as raw:
                assert raw.ask(JOIN_GROUP, 3, **joining(f"g{number}", 7 * MIB)).error_code == E.GROUP_MAX_SIZE_REACHED


# ---- batches


def test_a_large_batch_is_checked_by_a_thread_and_its_size_first() -> None:
    base = len(sealed([b""]))
    fits = sealed([bytes(64 * 1024 - base - 4)])
    assert len(fits) == 64 * 1024
    assert check(fits, 9, quick=True).header.record_count == 1
    more = sealed([bytes(64 * 1024 - base - 3)])
    with pytest.raises(Slow):
        check(more, 9, quick=True)
    assert check(more, 9).header.record_count == 1


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_a_batch_is_not_decompressed_as_a_whole(tmp_path: Path, codec: str) -> None:
    """A record of 200 MB that comes as a megabyte at most is taken, and the server has a few of them in memory."""
    with serving(tmp_path / "events") as process, Raw(process.address) as raw:
        raw.create("orders", cleanup_policy="compact", message_timestamp_before_max_ms="86400000")
        now = int(time.time() * 1000)
        assert produce(raw, "orders", sealed([(b"k", bytes(2 * MIB), None, now)], codec=CODECS[codec])).error_code == 0
        before = peak_memory(process.pid)
        batch = sealed([(b"k", bytes(200 * MIB), None, now)], codec=CODECS[codec])
        assert len(batch) < MIB
        assert produce(raw, "orders", batch).error_code == 0
        assert peak_memory(process.pid) - before < 32 * MIB


def peak_memory(pid: int) -> int:
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().split("\n") if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def test_a_batch_of_which_too_much_is_needed_at_a_time_is_refused(tmp_path: Path) -> None:
    from cramjam import snappy

    with served(tmp_path / "events", decompression_max_bytes=2 * MIB) as server, server.dial() as raw:
        raw.create("orders")
        for size, code in ((2 * MIB - 100, E.NONE), (2 * MIB + 100, E.MESSAGE_TOO_LARGE)):
            batch = sealed([bytes(size)])
            body = bytes(snappy.compress_raw(bytes(batch[61:])))
            batch[61:] = body
            struct.pack_into(">i", batch, 8, len(batch) - 12)
            told = produce(raw, "orders", altered(batch, 21, ">h", CODECS["snappy"]))
            assert told.error_code == code
        assert "have to be decompressed at a time, where 2097152 are allowed" in told.error_message
        assert produce(raw, "orders", sealed([bytes(9 * MIB)], codec=CODECS["snappy"])).error_code == E.NONE, (
            "in blocks"
        )


def test_a_batch_that_is_too_large_is_refused_for_that_though_it_is_corrupt(raw: Raw) -> None:
    batch = altered(sealed([bytes(2 * MIB)]), 17, ">I", 0, crc=False)
    assert produce(raw, "orders", batch).error_code == E.MESSAGE_TOO_LARGE
    assert produce(raw, "orders", altered(sealed(1), 17, ">I", 0, crc=False)).error_code == E.CORRUPT_MESSAGE


# ---- connections


def test_an_address_has_so_many_connections(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with served(tmp_path / "events", max_connections_per_ip=3) as server, ExitStack() as stack:
        clients = [stack.enter_context(server.dial()) for _ in range(3)]
        for client in clients:
            assert client.ask(API_VERSIONS, 0).error_code == 0
        with server.dial() as more, pytest.raises(ConnectionEnded):
            more.ask(API_VERSIONS, 0)
        assert "limit of 3 connections of an address reached" in caplog.text
        clients[0].close()
        until(lambda: server.call(lambda: len(server.server.listener.connections)) == 2, "it is gone")
        with server.dial() as again:
            assert again.ask(API_VERSIONS, 0).error_code == 0


def test_dead_peers_are_found(server: Served, raw: Raw) -> None:
    def keeps_alive() -> list[int]:
        sockets = [each._transport.get_extra_info("socket") for each in server.server.listener.connections]
        return [each.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) for each in sockets]

    raw.ask(API_VERSIONS, 0)
    assert server.call(keeps_alive) == [1]


def test_a_server_that_others_can_reach_says_so(tmp_path: Path) -> None:
    with serving(tmp_path / "events", "--host", "0.0.0.0") as process:
        assert process.address
        until(lambda: "beyond this machine: there is no authentication" in process.stderr, "it warns")
    with serving(tmp_path / "others") as process:
        assert process.address
        assert "beyond this machine" not in process.stderr


# ---- topics


def test_a_request_creates_so_many_topics(tmp_path: Path) -> None:
    with served(tmp_path / "events", auto_create_topics_max=3) as server, server.dial() as raw:
        topics = [METADATA.request.Topic(name=f"t{number}") for number in range(5)]
        answered = raw.ask(METADATA, 12, topics=topics, allow_auto_topic_creation=True).topics
        assert [each.error_code for each in answered] == [E.NONE] * 3 + [E.UNKNOWN_TOPIC_OR_PARTITION] * 2
        answered = raw.ask(METADATA, 12, topics=topics, allow_auto_topic_creation=True).topics
        assert [each.error_code for each in answered] == [E.NONE] * 5, "the rest with the next"


# ---- the log


def test_lines_of_the_log_are_so_many_a_second(caplog: pytest.LogCaptureFixture) -> None:
    now = [10.0]
    log = LimitedLog(logging.getLogger("klamm.kafka"), "things", lambda: now[0])
    for _ in range(LINES_PER_S + 7):
        log.warning("line %d", 1)
    assert len(caplog.records) == LINES_PER_S
    now[0] = 11.0
    log.warning("line %d", 2)
    assert [each.message for each in caplog.records[LINES_PER_S:]] == [
        "7 more lines about things were left out",
        "line 2",
    ]
