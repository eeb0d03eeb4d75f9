"""Requests that take long: they take turns, and those that bring no records are bounded in size."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import klamm
from klamm.cli import serve as serve_command
from klamm.errors import InvalidSetting
from klamm.kafka import admission as admission_module
from klamm.kafka import large_requests
from klamm.kafka.admission import LOOP_ELEMENTS, Admission
from klamm.kafka.apis import configs as configs_module
from klamm.kafka.apis import fetch as fetch_module
from klamm.kafka.audit import Audit
from klamm.kafka.call import Call
from klamm.kafka.large_requests import LARGE_FRAME, PIECE, LargeRequests
from klamm.kafka.pools import PartitionExecutors
from klamm.kafka.settings import SERVER_SETTINGS, ServerSettings
from klamm.kafka.wire.codec import Api
from klamm.kafka.wire.decoder import MAX_ELEMENTS
from klamm.kafka.wire.frames import read_response, request_frame
from klamm.kafka.wire.messages import (
    CREATE_TOPICS,
    DELETE_GROUPS,
    DESCRIBE_CONFIGS,
    DESCRIBE_GROUPS,
    DESCRIBE_LOG_DIRS,
    DESCRIBE_PRODUCERS,
    DESCRIBE_TOPIC_PARTITIONS,
    DESCRIBE_TRANSACTIONS,
    FETCH,
    FIND_COORDINATOR,
    INCREMENTAL_ALTER_CONFIGS,
    INIT_PRODUCER_ID,
    JOIN_GROUP,
    LIST_GROUPS,
    LIST_TRANSACTIONS,
    METADATA,
    OFFSET_FETCH,
    OFFSET_FOR_LEADER_EPOCH,
)
from klamm.kafka.wire.structs import Struct
from klamm.store.wire_groups import WireGroups
from tests.kafka.connect import ConnectionEnded, Served, served
from tests.kafka.member import Client, hold_writes
from tests.kafka.memory_channel import MemoryChannel
from tests.kafka.requests import FetchFrom, fetch, fetching, produce, produce_many, sealed, values
from tests.procs import until

LIMIT = 5 << 20


def joining(metadata_bytes: int) -> bytes:
    """A JoinGroup with so many bytes of metadata."""
    protocol = JOIN_GROUP.request.Protocol(name="range", metadata=bytes(metadata_bytes))
    request = JOIN_GROUP.request(
        group_id="g",
        session_timeout_ms=60_000,
        rebalance_timeout_ms=1000,
        protocol_type="consumer",
        protocols=[protocol],
    )
    return b"".join(request_frame(JOIN_GROUP, 3, 1, "x", request))


# ---- how large they are


def test_a_request_without_records_is_read_up_to_its_limit(tmp_path: Path) -> None:
    base = len(joining(0)) - 4
    with served(tmp_path / "events", control_request_max_bytes=LIMIT) as server:
        with server.dial() as raw:
            raw.send_bytes(joining(LIMIT - base))
            raw.receive()
        with server.dial() as raw:
            raw.send_bytes(joining(LIMIT - base + 1)[:1000])  # the rest never comes, and is not waited for
            with pytest.raises(ConnectionEnded):
                raw.receive()


def test_a_request_of_which_the_api_comes_later_than_the_size_is_bounded_too(tmp_path: Path) -> None:
    whole = joining(LIMIT)
    with served(tmp_path / "events", control_request_max_bytes=LIMIT) as server, server.dial() as raw:
        for piece in (whole[:4], whole[4:5], whole[5:6]):
            before = server.broker.metrics.bytes_in
            raw.send_bytes(piece)
            until(lambda: server.broker.metrics.bytes_in > before, "it has arrived")  # noqa: B023
        with pytest.raises(ConnectionEnded):
            raw.receive()


def test_a_request_that_arrives_in_one_piece_is_bounded_too(tmp_path: Path) -> None:
    limit = 64 << 10

    def is_refused(size: int) -> bool:
        client = MemoryChannel(server.server.listener, server.server.endpoints[0])
        client.receive(joining(size))
        is_closed = client.is_closed
        client.close()
        return is_closed

    with served(tmp_path / "events", control_request_max_bytes=limit, group_max_bytes=limit) as server:
        assert server.call(lambda: is_refused(limit - 1000)) is False
        assert server.call(lambda: is_refused(limit)) is True


def test_a_request_with_records_may_be_larger(tmp_path: Path) -> None:
    with served(tmp_path / "events", control_request_max_bytes=LIMIT) as server, server.dial() as raw:
        raw.create("orders", max_message_bytes=str(8 << 20))
        assert produce(raw, "orders", sealed([bytes(6 << 20)])).error_code == 0


def test_the_limit_has_space_for_what_a_group_may_hold() -> None:
    with pytest.raises(InvalidSetting, match=r"control\.request\.max\.bytes: is less than group\.max\.bytes"):
        ServerSettings.of({"control.request.max.bytes": 1 << 20})


def test_a_request_has_so_many_elements(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    limit = LOOP_ELEMENTS + 1000

    def finding(count: int) -> dict[str, Any]:
        return {"key_type": 0, "coordinator_keys": [f"{number}" for number in range(count)]}

    with served(tmp_path / "events", request_max_elements=limit) as server:
        with server.dial() as raw:
            assert len(raw.ask(FIND_COORDINATOR, 6, **finding(limit)).coordinators) == limit
            with pytest.raises(ConnectionEnded):
                raw.ask(FIND_COORDINATOR, 6, **finding(limit + 1))
        assert server.broker.metrics.malformed == 1
    assert "too many elements in all (request.max.elements)" in caplog.text


def test_no_request_may_have_more_elements_than_a_message() -> None:
    setting = SERVER_SETTINGS["request.max.elements"]
    assert (setting.low, setting.high) == (LOOP_ELEMENTS, MAX_ELEMENTS)


def test_partitions_that_do_not_exist_take_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread each: a request that named 65,536 of them kept the server busy for half a minute."""
    started: list[object] = []
    run = PartitionExecutors.run

    def watched(self: PartitionExecutors, key: object, job: Callable[[], Any]) -> Any:
        started.append(key)
        return run(self, key, job)

    monkeypatch.setattr(PartitionExecutors, "run", watched)
    with served(tmp_path / "events") as server, server.dial() as raw:
        raw.create("orders")
        started.clear()
        request = OFFSET_FOR_LEADER_EPOCH.request
        partitions = [request.Partition(partition=number, leader_epoch=0) for number in (-1, 0, 1, 2)]
        (topic,) = raw.ask(
            OFFSET_FOR_LEADER_EPOCH, 4, topics=[request.Topic(topic="orders", partitions=partitions)]
        ).topics
        assert [each.error_code for each in topic.partitions] == [3, 0, 3, 3]
    assert len(started) <= 1


# ---- whose turn it is


def test_in_a_round_of_the_loop_one_is_handled_and_others_go_first() -> None:
    """LRQ1: what has arrived meanwhile is handled between two of them."""
    handled: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        requests = LargeRequests(loop)

        def count_rounds() -> None:
            handled.append("|")
            if len(requests) or len(handled) < 3:
                loop.call_soon(count_rounds)

        for name in "abc":
            requests.run(lambda name=name: handled.append(name))  # type: ignore[misc]
        loop.call_soon(count_rounds)
        while len(requests):
            await asyncio.sleep(0)

    asyncio.run(main())
    assert "".join(handled).rstrip("|").split("|") == ["a", "b", "c"]


def test_one_that_goes_on_later_has_a_round_of_its_own() -> None:
    """LRQ1, for those that are tasks."""
    handled: list[str] = []

    async def handle(requests: LargeRequests) -> None:
        await requests.wait()
        handled.append("a")
        requests.run(lambda: handled.append("c"))
        await requests.wait()
        handled.append("d")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        requests = LargeRequests(loop)
        task = loop.create_task(handle(requests))
        loop.call_soon(requests.run, lambda: handled.append("b"))

        def count_rounds() -> None:
            handled.append("|")
            if not task.done():
                loop.call_soon(count_rounds)

        loop.call_soon(count_rounds)
        await task

    asyncio.run(main())
    assert [each for each in "".join(handled).split("|") if each] == ["a", "b", "c", "d"]


def test_one_whose_client_goes_keeps_no_other_waiting() -> None:
    """LRQ2."""
    handled: list[str] = []

    async def main() -> None:
        requests = LargeRequests(asyncio.get_running_loop())
        gone = asyncio.get_running_loop().create_task(requests.wait())
        await asyncio.sleep(0)
        gone.cancel()
        requests.run(lambda: handled.append("next"))
        while len(requests):
            await asyncio.sleep(0)

    asyncio.run(main())
    assert handled == ["next"]


def test_one_whose_client_is_gone_goes_on_no_more() -> None:
    async def main() -> None:
        call = SimpleNamespace(is_large=False, is_gone=False)
        turn = LargeRequests(asyncio.get_running_loop()).turn(call)  # type: ignore[arg-type]
        await turn.next()
        call.is_gone = True
        with pytest.raises(asyncio.CancelledError):
            await turn.next()
        requests = LargeRequests(asyncio.get_running_loop())
        await requests.turn(call, to_the_end=True).next()  # type: ignore[arg-type]  # it changes something

    asyncio.run(main())


def test_what_was_done_for_a_client_that_is_gone_is_in_the_audit_log(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(large_requests, "TURN_S", 0.0)
    recorded: list[object] = []

    def record(self: Audit, call: Call, response: Struct) -> Iterator[None]:
        recorded.append(response)
        yield

    monkeypatch.setattr(Audit, "responded", record)
    resource = INCREMENTAL_ALTER_CONFIGS.request.Resource(resource_type=4, resource_name="x" * LARGE_FRAME)
    with served(tmp_path / "events", audit_topic="audit") as server:
        wait = LargeRequests.wait

        async def disconnect(self: LargeRequests) -> None:
            for connection in list(server.server.listener.connections):
                connection.close()
            await wait(self)

        monkeypatch.setattr(LargeRequests, "wait", disconnect)
        with server.dial() as raw, pytest.raises(ConnectionEnded):
            raw.ask(INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource])
        until(lambda: len(recorded) == 1, "it is recorded")


def test_one_that_fails_is_followed_by_the_next() -> None:
    """LRQ2."""
    handled: list[str] = []

    def fail() -> None:
        handled.append("failed")
        raise ValueError

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        requests = LargeRequests(asyncio.get_running_loop())
        requests.run(fail)
        requests.run(lambda: handled.append("next"))
        while len(requests):
            await asyncio.sleep(0)

    asyncio.run(main())
    assert handled == ["failed", "next"]


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """What has waited for its turn, in servers of this process."""
    found: list[Callable[[], None]] = []
    run = LargeRequests.run

    def record(self: LargeRequests, handle: Callable[[], None]) -> None:
        if getattr(handle, "func", None) is not large_requests._wake:  # those that go on have waited before
            found.append(handle)
        run(self, handle)

    monkeypatch.setattr(LargeRequests, "run", record)
    return found


def test_requests_that_name_or_list_many_partitions_take_turns(
    turns: list[Callable[[], None]], store: klamm.Store, server: Served
) -> None:
    store.topics.create("wide", 600)
    with server.dial() as raw:
        named = [METADATA.request.Topic(name="wide")]
        assert len(raw.ask(METADATA, 12, topics=named, allow_auto_topic_creation=False).topics[0].partitions) == 600
        assert len(turns) == 1
        topics = raw.ask(METADATA, 12, topics=None, allow_auto_topic_creation=False).topics
        assert {topic.name: len(topic.partitions) for topic in topics} == {"orders": 4, "wide": 600}
        assert len(turns) == 2
        wide = [DESCRIBE_TOPIC_PARTITIONS.request.Topic(name="wide")]
        described = raw.ask(DESCRIBE_TOPIC_PARTITIONS, 0, topics=wide, response_partition_limit=1000)
        assert len(described.topics[0].partitions) == 600
        assert len(turns) == 3
        places = {("wide", number): FetchFrom(0, 100) for number in range(600)}
        fetched = raw.ask(FETCH, 12, **fetching(places))
        assert len(fetched.responses[0].partitions) == 600
        assert len(turns) == 4
        (directory,) = raw.ask(DESCRIBE_LOG_DIRS, 4, topics=None).results
        assert sum(len(topic.partitions) for topic in directory.topics) == 604
        assert len(turns) == 5


def test_a_thread_makes_the_response_to_a_fetch_of_many_partitions(
    monkeypatch: pytest.MonkeyPatch, store: klamm.Store, server: Served
) -> None:
    store.topics.create("wide", 257)
    threads: list[str] = []
    look_at = fetch_module._FetchRequest._look_at

    def record(self: Any, *arguments: Any) -> bool:
        threads.append(threading.current_thread().name.partition("_")[0])
        return look_at(self, *arguments)

    with server.dial() as raw:
        for number in range(257):  # opened, with records in memory
            assert produce(raw, "wide", sealed([b"x"]), number).error_code == 0
            fetch(raw, "wide", 0, number)
        monkeypatch.setattr(fetch_module._FetchRequest, "_look_at", record)
        for count, thread in ((256, "server"), (257, "klamm-disk")):
            places: dict[tuple[str, int], FetchFrom | int] = {
                ("wide", number): FetchFrom(0, 100) for number in range(count)
            }
            fetched = raw.ask(FETCH, 12, **fetching(places))
            assert len(fetched.responses[0].partitions) == count
            assert threads.pop() == thread and not threads


@pytest.mark.parametrize("acks", [1, -1])
def test_partitions_of_a_produce_that_a_thread_has_decoded_take_turns(
    monkeypatch: pytest.MonkeyPatch, server: Served, acks: int
) -> None:
    """Others are answered between its partitions, and it waits for their syncs as any other."""
    waits, wait = list[object](), LargeRequests.wait

    async def record(self: LargeRequests) -> None:
        waits.append(self)
        await wait(self)

    numbers = (9, 0, 1, 2, 3)  # the first one is not there, so the native way leaves it all
    batches = {("orders", number): sealed([b"%d" % number]) for number in numbers}
    with server.dial() as raw:
        monkeypatch.setattr(LargeRequests, "wait", record)
        monkeypatch.setattr(large_requests, "TURN_S", 0.0)
        monkeypatch.setattr(admission_module, "LOOP_ELEMENTS", 4)
        answered = produce_many(raw, batches, acks=acks)
        assert len(waits) >= len(numbers)
        monkeypatch.undo()
        assert [answered["orders", number].error_code for number in numbers] == [3, 0, 0, 0, 0]
        assert [values(fetch(raw, "orders", 0, number)) for number in numbers[1:]] == [[b"%d" % n] for n in range(4)]


NAMES = [f"name-{number}" for number in range(40)]


def describing_configs() -> dict[str, Any]:
    names = ["orders", *(f"missing-{number}" for number in range(40))]
    make = DESCRIBE_CONFIGS.request.Resource
    resources = [make(resource_type=2, resource_name=name, configuration_keys=None) for name in names]
    return {"resources": resources, "include_documentation": True}


def describing_producers() -> dict[str, Any]:
    make = DESCRIBE_PRODUCERS.request.Topic
    return {"topics": [make(name=name, partition_indexes=[0, 1, 2, 9]) for name in ("orders", "missing")]}


@pytest.mark.parametrize(
    ("api", "version", "request_fields", "steps"),
    [
        (DESCRIBE_CONFIGS, 4, describing_configs(), 41),
        (OFFSET_FETCH, 9, {"groups": [OFFSET_FETCH.request.Group(group_id="name-1", topics=None)]}, 4),
        (OFFSET_FETCH, 9, {"groups": [OFFSET_FETCH.request.Group(group_id=name, topics=[]) for name in NAMES]}, 60),
        (OFFSET_FETCH, 5, {"group_id": "name-1", "topics": None}, 4),
        (DESCRIBE_GROUPS, 6, {"groups": NAMES}, 40),
        (FIND_COORDINATOR, 6, {"key_type": 0, "coordinator_keys": NAMES}, 40),
        (METADATA, 12, {"topics": None}, 3),
        (METADATA, 12, {"topics": [METADATA.request.Topic(name="orders")]}, 3),
        (LIST_GROUPS, 4, {}, 40),
        (DESCRIBE_PRODUCERS, 0, describing_producers(), 8),
        (DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": NAMES}, 40),
        (LIST_TRANSACTIONS, 0, {}, 40),
    ],
    ids=lambda value: value.name if isinstance(value, Api) else "",
)
def test_what_is_told_without_number_is_made_and_encoded_in_turns(
    monkeypatch: pytest.MonkeyPatch,
    server: Served,
    api: Api,
    version: int,
    request_fields: dict[str, Any],
    steps: int,
) -> None:
    """While a response to ten thousand things is made, other clients get theirs."""
    with Client(server.address) as committer:
        for name in NAMES:
            assert committer.commit({("orders", number): 1 for number in range(4)}, group=name) == [0] * 4
    with server.dial() as raw:
        for name in NAMES:
            fields = {"transactional_id": name, "transaction_timeout_ms": 60_000}
            assert raw.ask(INIT_PRODUCER_ID, 4, **fields, producer_id=-1, producer_epoch=-1).error_code == 0
        at_once = raw.ask(api, version, **request_fields)
        waits, wait = list[object](), LargeRequests.wait

        async def record(self: LargeRequests) -> None:
            waits.append(self)
            await wait(self)

        monkeypatch.setattr(LargeRequests, "wait", record)
        monkeypatch.setattr(large_requests, "TURN_S", 0.0)
        assert raw.ask(api, version, **request_fields) == at_once
        assert len(waits) >= 2 * steps, "for each in the handler, and in the encoder"


def test_a_response_that_is_too_large_is_given_up_before_it_is_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(large_requests, "TURN_S", 0.0)
    made: list[object] = []
    config = configs_module._config

    def record(*arguments: Any) -> Struct:
        made.append(arguments)
        return config(*arguments)

    monkeypatch.setattr(configs_module, "_config", record)
    make = DESCRIBE_CONFIGS.request.Resource
    with served(tmp_path / "events", socket_response_max_bytes=64 * 1024) as server, server.dial() as raw:
        names = [f"topic-{number}" for number in range(20)]
        new = [
            CREATE_TOPICS.request.Topic(name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[])
            for name in names
        ]
        raw.ask(CREATE_TOPICS, 4, topics=new, timeout_ms=30_000)
        resources = [make(resource_type=2, resource_name=name, configuration_keys=None) for name in names]
        with server.dial() as other, pytest.raises(ConnectionEnded):  # it takes more than the least
            other.ask(DESCRIBE_CONFIGS, 4, resources=resources, include_documentation=True)
        made.clear()
        monkeypatch.setattr(configs_module, "_CONFIG_BYTES", 1000)
        with server.dial() as other, pytest.raises(ConnectionEnded):
            other.ask(DESCRIBE_CONFIGS, 4, resources=resources)
        assert 64 * 1024 < 1000 * len(made) < 64 * 1024 + 1000 * 100, "the rest was not looked at"
        monkeypatch.undo()
        assert raw.ask(DESCRIBE_CONFIGS, 4, resources=resources[:5]).results[4].error_code == 0
    assert "where 65536 are sent" in caplog.text


def test_other_requests_do_not(turns: list[Callable[[], None]], server: Served) -> None:
    with server.dial() as raw:
        assert produce(raw, "orders", sealed([bytes(100_000)])).error_code == 0
        raw.ask(FETCH, 12, **fetching({("orders", 0): 0}))
        raw.ask(METADATA, 12, topics=None, allow_auto_topic_creation=False)
    assert turns == []


def test_a_malformed_one_closes_its_connection(server: Served) -> None:
    with server.dial() as raw:
        whole = bytearray(joining(10_000))
        whole[-10_004:-10_000] = b"\xff\xff\xff\xf0"  # the size of its metadata
        raw.send_bytes(bytes(whole))
        with pytest.raises(ConnectionEnded):
            raw.receive()


def test_one_that_cannot_be_decoded_for_a_fault_of_ours_closes_its_connection_and_no_other(
    monkeypatch: pytest.MonkeyPatch, server: Served
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("a fault")

    with server.dial() as raw, server.dial() as other:
        monkeypatch.setattr(Admission, "decode_now", fail)
        raw.send_bytes(joining(10_000))
        with pytest.raises(ConnectionEnded):
            raw.receive()
        monkeypatch.undo()
        assert produce(other, "orders", sealed([b"x"])).error_code == 0


# ---- the interpreter


def test_a_server_process_keeps_its_loop_waiting_for_less() -> None:
    before, interval = gc.get_threshold(), sys.getswitchinterval()
    try:
        serve_command._let_the_loop_run()
        assert sys.getswitchinterval() < interval
        assert gc.get_threshold()[0] > before[0] and gc.get_freeze_count()
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
        sys.setswitchinterval(interval)


# ---- what they have threads do


def test_many_groups_are_deleted_in_pieces_and_commits_of_others_come_in_between(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that writes, and the write lock of klamm.db, are not one client's for seconds."""
    order: list[tuple[str, int]] = []
    for name in ("delete", "commit"):
        function = getattr(WireGroups, name)

        def watched(self: WireGroups, items: Any, name: str = name, function: Any = function) -> Any:
            order.append((name, len(items)))
            return function(self, items)

        monkeypatch.setattr(WireGroups, name, watched)
    names = [f"group-{number}" for number in range(2 * PIECE + 1)]
    with server.dial() as deleter, server.dial() as raw, Client(server.address) as committer:
        assert [each.error_code for each in raw.ask(DESCRIBE_GROUPS, 6, groups=names).groups] == [69] * len(names)
        assert committer.commit({("orders", 0): 4}, group=names[-1]) == [0]
        order.clear()
        waiting = server.broker.pools._write._work_queue.qsize
        go_on = hold_writes(server)
        deleter.send(DELETE_GROUPS, 2, groups_names=names)
        until(lambda: waiting() == 1, "the first piece waits")
        committer.begin_commit({("orders", 0): 5}, group="mine")
        until(lambda: waiting() == 2, "the commit waits")
        go_on.set()
        results = read_response(DELETE_GROUPS, 2, deleter.receive())[1].results
        assert committer.committed() == [0]
    assert [each.group_id for each in results] == names
    assert [each.error_code for each in results] == [69] * (2 * PIECE) + [0]
    assert order == [("delete", PIECE), ("commit", 1), ("delete", PIECE), ("delete", 1)]


@pytest.mark.parametrize("is_described", [True, False], ids=["described", "fetched"])
def test_many_groups_are_read_in_pieces(server: Served, monkeypatch: pytest.MonkeyPatch, is_described: bool) -> None:
    sizes: list[int] = []
    name = "find" if is_described else "offsets"
    function = getattr(WireGroups, name)

    def watched(self: WireGroups, items: Any) -> Any:
        sizes.append(len(items))
        return function(self, items)

    monkeypatch.setattr(WireGroups, name, watched)
    names = [f"group-{number}" for number in range(PIECE + 2)]
    with server.dial() as raw:
        if is_described:
            found = [each.group_id for each in raw.ask(DESCRIBE_GROUPS, 5, groups=names).groups]
        else:
            groups = [OFFSET_FETCH.request.Group(group_id=each, topics=None) for each in names]
            found = [each.group_id for each in raw.ask(OFFSET_FETCH, 9, groups=groups).groups]
    assert found == names and sizes == [PIECE, 2]
