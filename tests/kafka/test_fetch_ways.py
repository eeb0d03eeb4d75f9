"""Two ways of a Fetch, past the codecs and through them: clients cannot tell them apart."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from klamm.kafka._fetch import OrdinaryFetch
from klamm.kafka.apis import fetch as fetch_module
from klamm.kafka.apis.fetch import _IdlePoll
from klamm.kafka.broker import Broker
from klamm.kafka.call import Call, OrdinaryHandler, SupportedApi
from klamm.kafka.fetch_sessions import FetchSession
from klamm.kafka.session import Session
from klamm.kafka.wire.frames import read_response
from klamm.kafka.wire.messages import FETCH
from klamm.kafka.wire.structs import Struct
from tests.crash.cases import seed_of
from tests.interop.raw import ConnectionEnded
from tests.kafka.connect import Raw, Served, served
from tests.kafka.requests import FOREVER_MS, FetchFrom, fetch, fetching, produce, sealed, values
from tests.procs import until

VERSIONS = range(FETCH.min_version, FETCH.max_version + 1)
IDS = 13


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("fetch") / "events") as running:
        with running.dial() as raw:
            raw.create("orders", 4, segment_bytes="4096")
            raw.create("other", 1)
            for number in range(3):
                for count in range(40):
                    produce(raw, "orders", sealed(count % 5 + 1, padding=50), number)
            produce(raw, "other", sealed([bytes(60_000)]))  # sent from its file
        yield running


@contextmanager
def through_the_codecs(server: Served, raw: Raw) -> Iterator[list[bool]]:
    """No request of this client is ordinary. Gives, for each request that its row handles, whether it is this one's."""
    admission = server.server.listener.admission
    row, ordinary = admission.table[FETCH.key], admission._ordinary[FETCH.key]
    port = raw._socket.getsockname()[1]
    handled: list[bool] = []

    async def handler(broker: Broker, call: Call) -> Struct | None:
        handled.append(call.session.peer_port == port)
        return await row.handler(broker, call)

    def not_ordinary(broker: Broker, session: Session, frame: memoryview) -> tuple[Any, ...] | None:
        return () if session.peer_port == port else ordinary(broker, session, frame)

    def use(row: SupportedApi, ordinary: OrdinaryHandler) -> None:
        admission.table[FETCH.key], admission._ordinary[FETCH.key] = row, ordinary

    server.call(lambda: use(row._replace(handler=handler), not_ordinary))
    try:
        yield handled
    finally:
        server.call(lambda: use(row, ordinary))


def a_request(chance: random.Random, ids: dict[str, bytes], version: int) -> dict[str, Any]:
    known = [("orders", 0), ("orders", 1), ("orders", 2), ("orders", 3), ("other", 0)]
    unknown = [("orders", 4), ("nothing", 0), ("orders", -1)] if chance.random() < 0.2 else []
    chosen = chance.sample(known, chance.randint(1, len(known))) + unknown
    where = {
        place: FetchFrom(
            chance.choice([-1, 0, 1, 7, 60, 119, 120, 121, 10**6]),
            chance.choice([0, 1, 300, 5000, 1 << 20]),
            chance.choice([-1, -1, -1, 0, 1]),
            chance.choice([-1, -1, -1, 0, 3]) if chance.random() < 0.3 else -1,
        )
        for place in chosen
    }
    wait_ms = chance.choice([0, 0, 0, 1])
    return fetching(
        where,
        wait_ms=wait_ms,
        min_bytes=chance.choice([0, 1, 10**6]),
        max_bytes=chance.choice([0, 100, 3000, 50 << 20]),
        committed=chance.random() < 0.5,
        ids=ids,
    )


def ids_of(server: Served) -> dict[str, bytes]:
    topics = server.broker.topics
    return {each.name: topics.uuid(each) for each in topics.all()}


@pytest.mark.parametrize("version", VERSIONS)
def test_any_request_has_the_same_response_either_way(server: Served, version: int) -> None:
    chance, ids = random.Random(seed_of() + version), server.call(lambda: ids_of(server))
    with server.dial() as one, server.dial() as other, through_the_codecs(server, other) as handled:
        for _ in range(25):
            request = a_request(chance, ids, version)
            assert one.send(FETCH, version, **request) == other.send(FETCH, version, **request)
            assert one.receive() == other.receive(), request
    assert handled.count(True) == 25
    assert handled.count(False) < 25, "some are ordinary"


@pytest.mark.parametrize("version", [7, 12, 17])
def test_any_session_has_the_same_responses_either_way(server: Served, version: int) -> None:
    chance, ids = random.Random(seed_of() + version), server.call(lambda: ids_of(server))
    with server.dial() as one, server.dial() as other, through_the_codecs(server, other) as handled:
        sessions = {one: 0, other: 0}
        for epoch in range(40):
            request = a_request(chance, ids, version)
            if epoch and chance.random() < 0.4:
                request["topics"] = []
            told = []
            for client, session_id in sessions.items():
                client.send(FETCH, version, **request, session_id=session_id, session_epoch=epoch)
                told.append(read_response(FETCH, version, client.receive())[1])
                sessions[client] = told[-1].session_id or session_id
                told[-1].session_id = bool(told[-1].session_id)
            assert told[0] == told[1], request
            if epoch % 10 == 5:
                produce(one, "orders", sealed(1), 3)
    assert handled.count(True) == 40
    assert handled.count(False) < 30, "most are ordinary"


@pytest.mark.parametrize("version", [7, 12, 17])
def test_polls_of_an_idle_session_have_the_same_responses_either_way(
    server: Served, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is new in it, or something comes while the poll waits, or what is asked is not the next poll."""
    chance, ids = random.Random(seed_of() + version), server.call(lambda: ids_of(server))
    made: list[OrdinaryFetch] = []

    def idle_poll(broker: Broker, request: OrdinaryFetch, session: FetchSession) -> _IdlePoll:
        made.append(request)
        return _IdlePoll(broker, request, session)

    monkeypatch.setattr(fetch_module, "_IdlePoll", idle_poll)
    with server.dial() as one, server.dial() as other, through_the_codecs(server, other):
        sessions = {one: 0, other: 0}
        epoch, end, committed = 0, int(fetch(one, "orders", 0, 3).high_watermark), False

        def send(**fields: Any) -> None:
            for client, session_id in sessions.items():
                client.send(FETCH, version, **{"session_id": session_id, "session_epoch": epoch, **fields})

        def receive() -> Struct:
            frames = {client: client.receive() for client in sessions}
            responses = {client: read_response(FETCH, version, frame)[1] for client, frame in frames.items()}
            for client, response in responses.items():
                sessions[client] = response.session_id or sessions[client]
                response.session_id = bool(response.session_id)
            assert responses[one] == responses[other]
            assert len(frames[one]) == len(frames[other])
            return responses[one]

        events = ["idle", "append", "committed", "epoch", "id", "catalog", "min"] * 3
        for event in ["begin", *chance.sample(events, len(events))]:
            if event == "begin":
                ends = {("orders", number): 120 for number in range(3)} | {("orders", 3): end}
                send(**fetching(ends, ids=ids))
                assert len(receive().responses[0].partitions) == 4
                epoch = 1
                continue
            committed ^= event == "committed"
            poll = fetching({}, wait_ms=FOREVER_MS if event == "append" else 1, committed=committed)
            if event == "min":
                poll["min_bytes"] = 0
            if event == "catalog":
                with server.dial() as raw:
                    raw.create(f"made-{version}-{epoch}", 1)
                server.call(lambda: None)
            if event in ("epoch", "id"):
                wrong = {"session_epoch": epoch + 1} if event == "epoch" else {"session_id": 2**31 - 1}
                send(**poll, **wrong)
                assert receive().error_code, event
                continue
            expected_waits = server.server.metrics.fetch_waits + 2
            send(**poll)
            epoch += 1
            if event == "append":
                until(lambda: server.server.metrics.fetch_waits == expected_waits, "both wait")  # noqa: B023
                with server.dial() as raw:
                    produce(raw, "orders", sealed([b"%d" % epoch]), 3)
                (topic,) = receive().responses
                assert [values(each) for each in topic.partitions] == [[b"%d" % epoch]]
                end += 1
                send(**fetching({("orders", 3): end}, wait_ms=1, committed=committed, ids=ids))
                epoch += 1
                receive()
            else:
                response = receive()
                assert (response.error_code, response.responses) == (0, []), event
    assert len(made) >= 6, "of the idle ones, and of those that wait for a record"


def test_a_client_that_names_the_same_partitions_again_waits_for_each_of_them(server: Served) -> None:
    """What was looked up for its last request is used again."""
    with server.dial() as reads, server.dial() as writes:
        ends = {number: int(fetch(reads, "orders", 0, number).high_watermark) for number in range(4)}
        for turn in range(12):
            number = turn * 3 % 4
            places = {("orders", index): end for index, end in ends.items()}
            reads.send(FETCH, 12, **fetching(places, wait_ms=FOREVER_MS))
            until(lambda: server.call(lambda: len(server.broker.purgatory)) == 1, "it waits")
            produce(writes, "orders", sealed([b"%d" % turn]), number)
            _, response = read_response(FETCH, 12, reads.receive())
            found = {each.partition_index: values(each) for each in response.responses[0].partitions}
            assert found == {index: [b"%d" % turn] if index == number else [] for index in range(4)}
            ends[number] += 1


def test_an_ordinary_fetch_that_fails_while_it_waits_closes_its_connection_and_no_other(
    server: Served, caplog: pytest.LogCaptureFixture
) -> None:
    with server.dial() as fails, server.dial() as writes:
        end = int(fetch(fails, "orders", 0, 3).high_watermark)
        fails.send(FETCH, 12, **fetching({("orders", 3): end}, wait_ms=FOREVER_MS))
        until(lambda: server.call(lambda: len(server.broker.purgatory)) == 1, "it waits")

        def no_ranges() -> None:
            (delayed,) = server.broker.purgatory._by_session.values()
            delayed.fetching.max_bytes = None  # type: ignore[attr-defined]

        server.call(no_ranges)
        produce(writes, "orders", sealed([b"more"]), 3)
        with pytest.raises(ConnectionEnded):
            fails.receive()
        assert server.call(lambda: len(server.broker.purgatory)) == 0
        assert values(fetch(writes, "orders", end, 3)) == [b"more"]
    assert "Fetch v12 failed; the connection is closed" in caplog.text
