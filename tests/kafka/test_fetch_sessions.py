"""Fetch sessions: what a client with one knows is what a client without one is told; who may have one, and how many."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from klamm.batch import parse
from klamm.batch.header import TRANSACTIONAL
from klamm.kafka import fetch_sessions
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.fetch_sessions import EVICTION_MS, FetchSession, FetchSessions
from klamm.kafka.purgatory import Subscription
from klamm.kafka.wire.messages import CREATE_PARTITIONS, DELETE_RECORDS, DELETE_TOPICS, FETCH
from klamm.kafka.wire.structs import Struct
from klamm.log.partition import Partition
from tests.kafka.connect import Raw, Served, served
from tests.kafka.requests import FOREVER_MS, FetchFrom, batches_of, fetch_many, fetching, produce, sealed, values
from tests.kafka.session_client import SessionClient, Where
from tests.procs import children, until

E = ErrorCode


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("sessions") / "events") as running:
        yield running


@pytest.fixture
def topic(raw: Raw, request: pytest.FixtureRequest) -> str:
    """One of its own for each test, with three partitions."""
    return raw.create(f"t{abs(hash(request.node.name)) % 10**9}", 3)


def ends(answered: Struct) -> tuple[int, int, int, int]:
    return answered.error_code, answered.high_watermark, answered.last_stable_offset, answered.log_start_offset


def all_of(topic: str, count: int = 3) -> dict[Where, FetchFrom | int]:
    return {(topic, number): 0 for number in range(count)}


def sessions_of(server: Served) -> tuple[int, int]:
    return server.call(lambda: (len(server.broker.fetch_sessions), server.broker.fetch_sessions.partitions))


def waiting(server: Served) -> int:
    return server.call(lambda: len(server.broker.purgatory))


def ask(
    raw: Raw, wanted: dict[Where, FetchFrom | int], session_id: int, epoch: int, version: int = 12, **more: Any
) -> Struct:
    forgotten = [FETCH.request.ForgottenTopic(topic=name, partitions=[n]) for name, n in more.pop("forget", ())]
    ids = {"session_id": session_id, "session_epoch": epoch, "forgotten_topics_data": forgotten}
    return raw.ask(FETCH, version, **fetching(wanted, **more), **ids)


# ---- what is told


def test_an_incremental_response_has_what_is_new_and_nothing_else(raw: Raw, topic: str) -> None:
    client = SessionClient(raw, all_of(topic))
    assert sorted(client.poll()) == [(topic, 0), (topic, 1), (topic, 2)]
    assert client.poll() == {}
    produce(raw, topic, sealed([b"one"]), 1)
    (found,) = client.poll().items()
    assert (found[0], values(found[1])) == ((topic, 1), [b"one"])
    again = client.poll()
    assert values(again[topic, 1]) == [b"one"], "the offset is as it was: so are the records"
    client.wanted[topic, 1] = 1
    assert client.poll() == {}, "its high watermark is known"
    produce(raw, topic, sealed(2), 0)
    produce(raw, topic, sealed(2), 2)
    assert sorted(client.poll()) == [(topic, 0), (topic, 2)]


def test_an_error_is_told_in_each_response_and_then_that_it_is_over(raw: Raw, topic: str) -> None:
    client = SessionClient(raw, {(topic, 0): 5, (topic, 1): 0})
    assert client.poll()[topic, 0].error_code == E.OFFSET_OUT_OF_RANGE
    for _ in range(2):
        ((where, told),) = client.poll(wait_ms=FOREVER_MS).items()
        assert (where, told.error_code) == ((topic, 0), E.OFFSET_OUT_OF_RANGE)
    client.wanted[topic, 0] = 0
    ((where, told),) = client.poll().items()
    assert (where, ends(told)) == ((topic, 0), (0, 0, 0, 0))
    assert client.poll() == {}


def test_epochs_are_looked_at_in_a_session_too(raw: Raw, topic: str) -> None:
    client = SessionClient(raw, {(topic, 0): FetchFrom(0, leader_epoch=0), (topic, 1): 0})
    client.poll()
    client.wanted[topic, 0] = FetchFrom(0, leader_epoch=1)
    assert client.poll(wait_ms=FOREVER_MS)[topic, 0].error_code == E.UNKNOWN_LEADER_EPOCH
    client.wanted[topic, 0] = FetchFrom(1, last_epoch=0)
    assert client.poll(wait_ms=FOREVER_MS)[topic, 0].diverging_epoch.end_offset == 0
    assert list(client.poll(wait_ms=FOREVER_MS)) == [(topic, 0)], "until the client goes where it should"
    client.wanted[topic, 0] = FetchFrom(0, last_epoch=0)
    client.poll()
    assert client.poll() == {}


def test_what_is_forgotten_is_not_told_and_what_is_added_is(raw: Raw, topic: str) -> None:
    client = SessionClient(raw, {(topic, 0): 0, (topic, 1): 0})
    client.poll()
    del client.wanted[topic, 0]
    produce(raw, topic, sealed(1), 0)
    assert client.poll() == {}
    client.wanted |= {(topic, 2): 0, (topic, 0): 1}
    assert [(where, ends(told)) for where, told in client.poll().items()] == [
        ((topic, 2), (0, 0, 0, 0)),
        ((topic, 0), (0, 1, 1, 0)),
    ]
    assert client.poll() == {}


def test_records_of_open_transactions_are_no_reason_to_wake_a_client_that_reads_committed_ones(
    server: Served, raw: Raw, topic: str
) -> None:
    partition = server.broker.core.topic(topic).partition(0)
    client = SessionClient(raw, all_of(topic), committed=True)
    client.poll()
    client.send(wait_ms=500)
    until(lambda: waiting(server) == 1, "it waits")
    partition.append(transactional(0))
    ((where, told),) = client.receive().items()
    assert (where, ends(told), len(told.records)) == ((topic, 0), (0, 1, 0, 0), 0), "when its time is over"
    assert client.poll() == {}
    client.send(wait_ms=FOREVER_MS)
    until(lambda: waiting(server) == 1, "it waits")
    assert partition.append_marker(7, 0, commit=True, same_epoch=True) == 1
    ((where, told),) = client.receive().items()
    assert (where, ends(told), len(batches_of(told.records))) == ((topic, 0), (0, 2, 2, 0), 2)
    client.wanted[topic, 0] = 2
    assert client.poll() == {}


@pytest.mark.parametrize("wait_ms", [0, 100])
def test_another_isolation_level_is_looked_at_again(server: Served, raw: Raw, topic: str, wait_ms: int) -> None:
    server.broker.core.topic(topic).partition(0).append(transactional(0))
    client = SessionClient(raw, all_of(topic))
    assert len(client.poll(committed=True)[topic, 0].records) == 0
    assert client.poll(committed=True) == {}
    assert len(client.poll(wait_ms=wait_ms)[topic, 0].records) > 0


def test_partitions_take_turns(raw: Raw, topic: str) -> None:
    """As in Kafka: one whose records an incremental response had is the last next time."""
    for number in range(3):
        for _ in range(3):
            produce(raw, topic, sealed(1, padding=100), number)
    client = SessionClient(raw, all_of(topic), max_bytes=1)
    client.read()
    turns = [[number for _, number in client.read()] for _ in range(8)]
    assert turns == [[0], [1], [2], [0], [1], [2], [1], [2]]


def transactional(sequence: int) -> bytearray:
    return sealed(1, producer_id=7, producer_epoch=0, base_sequence=sequence, attributes=TRANSACTIONAL)


@pytest.mark.parametrize("seed", range(6))
def test_a_client_with_a_session_knows_what_one_without_is_told(
    server: Served, raw: Raw, topic: str, seed: int
) -> None:
    """FES4, with appends of all kinds, transactions, deletions, seeks, partitions that come and go, limits."""
    chance = random.Random(seed)
    everywhere = [(topic, number) for number in range(5)]  # two of them are not there yet
    committed = chance.random() < 0.5
    options = {"committed": committed}
    logs: dict[int, Partition] = {number: server.broker.core.topic(topic).partition(number) for number in range(3)}
    sequences = dict.fromkeys(range(5), 0)
    in_transaction: set[int] = set()
    client = SessionClient(raw, dict.fromkeys(everywhere[:4], 0), **options)
    with server.dial() as other:
        for _ in range(120):
            number = chance.choice(list(logs))
            deed = chance.randrange(9)
            if deed <= 2:
                produce(other, topic, sealed(chance.randrange(1, 4), padding=chance.choice([0, 50, 40_000])), number)
            elif deed == 3:
                logs[number].append(transactional(sequences[number]))
                sequences[number] += 1
                in_transaction.add(number)
            elif deed == 4 and number in in_transaction:
                logs[number].append_marker(7, 0, commit=chance.random() < 0.5, same_epoch=True)
                in_transaction.discard(number)
            elif deed == 5 and logs[number].ends().stable:
                upto = DELETE_RECORDS.request.Partition(
                    partition_index=number, offset=chance.randrange(logs[number].ends().stable)
                )
                one = DELETE_RECORDS.request.Topic(name=topic, partitions=[upto])
                other.ask(DELETE_RECORDS, 2, topics=[one], timeout_ms=10_000)
            elif deed == 6:
                where = chance.choice(everywhere)
                client.wanted.pop(where, None) if chance.random() < 0.5 else client.wanted.setdefault(where, 0)
            elif deed == 7:
                where = chance.choice(list(client.wanted) or everywhere)
                client.wanted[where] = chance.randrange(-1, 20)
            elif len(logs) == 3 and chance.random() < 0.2:
                grown = CREATE_PARTITIONS.request.Topic(name=topic, count=5, assignments=None)
                other.ask(CREATE_PARTITIONS, 3, topics=[grown], timeout_ms=10_000, validate_only=False)
                logs |= {more: server.broker.core.topic(topic).partition(more) for more in (3, 4)}
            most = chance.choice([1, 1000, 1 << 20])
            with_session = client.poll(max_bytes=most)
            without = fetch_many(other, client.wanted, **options)
            assert set(client.known) == set(without)
            for where, told in without.items():
                assert ends(client.known[where]) == ends(told), (seed, where)
                if len(told.records):
                    most -= len(with_session[where].records) if where in with_session else 0
                    if where not in with_session:
                        assert most <= 40_100, (seed, where, "there was space for it")
                        continue
                    mine, all_there = with_session[where].records, told.records
                    assert bytes(all_there).startswith(bytes(mine))
                elif where in with_session:
                    assert len(with_session[where].records) == 0
            for where, told in with_session.items():
                if len(told.records) and chance.random() < 0.7:
                    client.wanted[where] = parse(batches_of(told.records)[-1]).next_offset
                elif told.error_code == E.OFFSET_OUT_OF_RANGE:
                    client.wanted[where] = told.log_start_offset


def test_a_topic_that_is_deleted_and_made_again_is_another_one(raw: Raw) -> None:
    raw.create("again", 2)
    produce(raw, "again", sealed([b"old"]))
    client = SessionClient(raw, all_of("again", 2))
    client.read()
    raw.ask(DELETE_TOPICS, 5, topic_names=["again"], timeout_ms=10_000)
    found = client.poll(wait_ms=FOREVER_MS)
    assert [found[where].error_code for where in sorted(found)] == [E.UNKNOWN_TOPIC_OR_PARTITION] * 2
    raw.create("again", 1)
    found = client.poll()
    assert found["again", 0].error_code == E.OFFSET_OUT_OF_RANGE, "the new one has no offset 1"
    assert found["again", 1].error_code == E.UNKNOWN_TOPIC_OR_PARTITION
    client.wanted = {("again", 0): 0}
    produce(raw, "again", sealed([b"new"]))
    assert values(client.poll()["again", 0]) == [b"new"]


# ---- waiting


def test_a_session_that_waits_is_woken_by_each_of_its_partitions(server: Served, raw: Raw, topic: str) -> None:
    """Again and again: by the server, by other processes, and by what came while it did not wait."""
    path = server.broker.core.path
    with server.dial() as mine:
        client = SessionClient(mine, all_of(topic))
        client.poll()
        for turn in range(12):
            number = turn % 3
            client.send(wait_ms=FOREVER_MS)
            until(lambda: waiting(server) == 1, "it waits")
            produce(raw, topic, sealed([b"%d" % turn]), number)
            assert (topic, number) in client.receive()
            if turn % 4 == 3:  # it moves while nobody waits
                produce(raw, topic, sealed([b"more"]), number)
            client.wanted[topic, number] = log_end(server, topic, number)

        def write() -> None:
            import klamm

            with klamm.open(path) as store:
                store.append(topic, b"embedded", partition=1)

        with children() as start:
            client.send(wait_ms=FOREVER_MS)
            until(lambda: waiting(server) == 1, "it waits")
            child = start(write)
            assert (topic, 1) in client.receive()
            child.answer()


def log_end(server: Served, topic: str, number: int) -> int:
    return server.broker.core.topic(topic).partition(number).ends().end


def test_what_moves_before_an_added_partition_waits_wakes_it(server: Served, raw: Raw, topic: str) -> None:
    with server.dial() as mine:
        client = SessionClient(mine, {(topic, 0): 0})
        client.poll()
        client.wanted[topic, 1] = 0
        client.send(wait_ms=200)
        assert list(client.receive()) == [(topic, 1)], "it is new"
        client.send(wait_ms=FOREVER_MS)
        until(lambda: waiting(server) == 1, "it waits")
        produce(raw, topic, sealed([b"x"]), 1)
        assert list(client.receive()) == [(topic, 1)]


def test_a_session_that_waits_costs_what_moved_and_not_what_it_has(
    server: Served, raw: Raw, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PUR4 and the idle poll: of 3 partitions none is looked at while nothing happens."""
    from klamm.kafka.apis import fetch as fetch_api

    looked: list[int] = []
    joined: list[int] = []
    look, join = fetch_api._FetchRequest._partition, server.broker.purgatory.join
    monkeypatch.setattr(
        fetch_api._FetchRequest,
        "_partition",
        lambda self, wanted, *rest: looked.append(wanted.index) or look(self, wanted, *rest),
    )
    monkeypatch.setattr(server.broker.purgatory, "join", lambda each: joined.append(len(each.missing)) or join(each))
    with server.dial() as mine:
        client = SessionClient(mine, all_of(topic))
        client.poll()
        client.poll(wait_ms=1)
        looked.clear()
        joined.clear()
        for _ in range(5):
            assert client.poll(wait_ms=1) == {}
        assert (looked, joined) == ([], [0] * 5)
        produce(raw, topic, sealed([b"x"]), 1)
        client.read()
        client.poll(wait_ms=1)
        assert set(looked) == {1}
        assert joined[5:] in ([0], [1])


def test_nothing_is_left_of_a_session_whose_connection_is_closed(server: Served, raw: Raw, topic: str) -> None:
    before = sessions_of(server)
    purgatory = server.broker.purgatory
    registered = server.call(lambda: sum(map(len, purgatory._waiting.values())))
    for leaves_while_it_waits in (True, False):
        with server.dial() as mine:
            client = SessionClient(mine, all_of(topic))
            client.poll()
            client.poll(wait_ms=1)
            assert sessions_of(server) == (before[0] + 1, before[1] + 3)
            if leaves_while_it_waits:
                client.send(wait_ms=FOREVER_MS)
                until(lambda: waiting(server) == 1, "it waits")
        until(lambda: sessions_of(server) == before, "it is gone")
    with server.dial() as mine:  # or before it has a session
        mine.send(FETCH, 12, **fetching(all_of(topic), wait_ms=FOREVER_MS), session_id=0, session_epoch=0)
        until(lambda: waiting(server) == 1, "it waits")
    until(lambda: waiting(server) == 0, "it is gone")
    assert sessions_of(server) == before
    assert server.call(lambda: sum(map(len, purgatory._waiting.values()))) == registered


# ---- ids and epochs


def test_the_rules_of_ids_and_epochs(raw: Raw, topic: str) -> None:
    wanted = all_of(topic)
    assert ask(raw, wanted, 0, -1).session_id == 0, "none is asked for"
    assert ask(raw, {}, 0, 3).error_code == E.FETCH_SESSION_ID_NOT_FOUND
    assert ask(raw, {}, 7, 1).error_code == E.FETCH_SESSION_ID_NOT_FOUND
    first = ask(raw, wanted, 0, 0).session_id
    assert first > 0
    assert (ask(raw, {}, first, 1).session_id, ask(raw, {}, first, 2).session_id) == (first, first)
    for wrong in (1, 2, 4, -2):
        told = ask(raw, {}, first, wrong)
        assert (told.error_code, told.session_id) == (E.INVALID_FETCH_SESSION_EPOCH, 0)
    assert ask(raw, {}, first, 3).error_code == 0, "an error does not count"
    assert ask(raw, {}, first, 4, version=13).error_code == E.FETCH_SESSION_TOPIC_ID_ERROR
    assert ask(raw, {}, first, 4).error_code == 0
    second = ask(raw, wanted, first, 0).session_id
    assert second not in (0, first)
    assert ask(raw, {}, first, 5).error_code == E.FETCH_SESSION_ID_NOT_FOUND
    assert ask(raw, wanted, second, -1).session_id == 0, "it ends"
    assert ask(raw, {}, second, 1).error_code == E.FETCH_SESSION_ID_NOT_FOUND


def test_an_epoch_after_the_last_is_1(server: Served, raw: Raw, topic: str) -> None:
    session = ask(raw, all_of(topic), 0, 0).session_id

    def late() -> None:
        (only,) = [each for each in server.broker.fetch_sessions._by_owner.values() if each.id == session]
        only.epoch = 2**31 - 1

    server.call(late)
    assert ask(raw, {}, session, 2**31 - 1).error_code == 0
    assert ask(raw, {}, session, 1).error_code == 0


def test_a_session_without_partitions_ends(server: Served, raw: Raw, topic: str) -> None:
    before = sessions_of(server)[0]
    session = ask(raw, {(topic, 0): 0}, 0, 0).session_id
    told = ask(raw, {}, session, 1, forget=[(topic, 0)], wait_ms=FOREVER_MS)
    assert (told.error_code, told.session_id, told.responses) == (0, 0, [])
    assert sessions_of(server)[0] == before
    assert ask(raw, {}, session, 2).error_code == E.FETCH_SESSION_ID_NOT_FOUND


def test_a_session_is_its_connections_own(server: Served, raw: Raw, topic: str) -> None:
    """FES1. Another connection neither uses nor ends it."""
    session = ask(raw, all_of(topic), 0, 0).session_id
    with server.dial() as other:
        assert ask(other, {}, session, 1).error_code == E.FETCH_SESSION_ID_NOT_FOUND
        ask(other, {}, session, -1)
        ask(other, {}, session, 0)
    assert ask(raw, {}, session, 1).error_code == 0


def test_a_connection_has_one_session(server: Served, raw: Raw, topic: str) -> None:
    before = sessions_of(server)
    first, second = (ask(raw, all_of(topic), 0, 0).session_id for _ in range(2))
    assert sessions_of(server) == (before[0] + 1, before[1] + 3)
    assert ask(raw, {}, first, 1).error_code == E.FETCH_SESSION_ID_NOT_FOUND
    assert ask(raw, {}, second, 1).error_code == 0
    assert ask(raw, all_of(topic), 0, -1).session_id == 0
    assert ask(raw, {}, second, 2).error_code == 0, "a fetch without a session leaves it alone"


# ---- bounds


def session_of(count: int) -> FetchSession:
    session = FetchSession(uses_ids=False)
    part = [SimpleNamespace(partition=n, fetch_offset=0, partition_max_bytes=1, current_leader_epoch=-1,
                            last_fetched_epoch=-1) for n in range(count)]  # fmt: skip
    topics: Any = [SimpleNamespace(topic="t", partitions=part)]
    for _ in session.update(topics, 0):
        pass
    return session


@pytest.fixture
def ended() -> list[Subscription]:
    return []


@pytest.fixture
def cache(ended: list[Subscription]) -> FetchSessions:
    return FetchSessions(3, 20, ended.append)


def test_there_are_as_many_sessions_as_the_setting_says(cache: FetchSessions, ended: list[Subscription]) -> None:
    opened = [cache.open(owner, session_of(2), now_ms=0) for owner in "abc"]
    assert len({*opened, 0}) == 4
    late = session_of(9)
    assert cache.open("d", late, now_ms=EVICTION_MS) == 0
    assert ended == [late.subscription]
    assert len(cache) == 3
    cache.close("b")
    assert cache.open("d", late, now_ms=1) > 0
    assert (len(cache), cache.partitions) == (3, 2 + 2 + 9)


def test_a_session_that_gives_way_while_its_request_takes_turns_is_over(cache: FetchSessions) -> None:
    session = session_of(2)
    assert cache.open("a", session, now_ms=0)
    cache.close("a")
    assert not cache.use("a", session, now_ms=1)
    assert cache.open("a", session_of(3), now_ms=2)
    assert not cache.use("a", session, now_ms=3)
    assert (len(cache), cache.partitions) == (1, 3)


def test_partitions_of_all_sessions_are_bounded(cache: FetchSessions) -> None:
    assert cache.open("a", session_of(15), now_ms=0)
    assert cache.open("b", session_of(6), now_ms=0) == 0
    growing = session_of(5)
    assert cache.open("b", growing, now_ms=0)
    assert cache.use("b", growing, now_ms=1)
    growing.partitions |= session_of(7).partitions
    assert not cache.use("b", growing, now_ms=2), "it ends"
    assert (len(cache), cache.partitions) == (1, 15)


def test_one_session_is_bounded(monkeypatch: pytest.MonkeyPatch, cache: FetchSessions) -> None:
    monkeypatch.setattr(fetch_sessions, "MAX_SESSION_PARTITIONS", 4)
    assert cache.open("a", session_of(5), now_ms=0) == 0
    assert cache.open("a", session_of(4), now_ms=0) > 0


def test_the_longest_unused_gives_way_and_then_a_smaller_one_that_is_old(cache: FetchSessions) -> None:
    sessions = {owner: session_of(size) for owner, size in (("a", 2), ("b", 4), ("c", 1))}
    for owner, session in sessions.items():
        cache.open(owner, session, now_ms=0)
    cache.use("a", sessions["a"], now_ms=EVICTION_MS)
    cache.use("b", sessions["b"], now_ms=10)
    assert cache.open("d", session_of(1), now_ms=EVICTION_MS) == 0, "none is unused for long"
    assert cache.open("d", session_of(1), now_ms=EVICTION_MS + 1) > 0
    assert [cache.find(owner, each.id) is not None for owner, each in sessions.items()] == [True, True, False]
    assert cache.open("e", session_of(2), now_ms=EVICTION_MS + 5) == 0, "not smaller, or not old"
    assert cache.open("e", session_of(3), now_ms=EVICTION_MS + 5) > 0
    assert [cache.find(owner, each.id) is not None for owner, each in sessions.items()] == [False, True, False]
    assert (cache.evictions, len(cache)) == (2, 3)


def test_what_is_kept_for_clients_without_a_session_is_bounded_and_theirs(
    cache: FetchSessions, ended: list[Subscription]
) -> None:
    kept = {owner: session_of(2) for owner in "abcd"}
    for owner, session in kept.items():
        cache.keep(owner, b"names", session)
        assert session.subscription.is_standing
        assert cache.kept(owner, b"names", uses_ids=False) is session
    assert (len(cache), cache.partitions) == (0, 0), "they are no sessions"
    assert cache.kept("a", b"names", uses_ids=False) is None, "there are three at most"
    assert ended == [kept["a"].subscription]
    for other in ({"names": b"others", "uses_ids": False}, {"names": b"names", "uses_ids": True}):
        assert cache.kept("b", **other) is None  # type: ignore[arg-type]
    cache.keep("b", b"names", kept["b"])
    assert len(ended) == 1, "it is kept already"
    cache.keep("b", b"others", session_of(1))
    assert ended[1:] == [kept["b"].subscription]
    cache.close("c")
    assert ended[2:] == [kept["c"].subscription]
    assert cache.kept("c", b"names", uses_ids=False) is None


def test_a_server_gives_no_more_sessions_than_its_settings_say(tmp_path: Any) -> None:
    settings = {
        "max.incremental.fetch.session.cache.slots": 2,
        "max.incremental.fetch.session.cache.partitions": 5,
    }
    with served(tmp_path / "events", **settings) as server, server.dial() as a, server.dial() as b, server.dial() as c:
        topic = a.create("t", 6)
        assert ask(a, all_of(topic, 6), 0, 0).session_id == 0
        first = ask(a, all_of(topic, 2), 0, 0).session_id
        assert first > 0
        assert ask(b, all_of(topic, 3), 0, 0).session_id > 0
        assert ask(c, all_of(topic, 0), 0, 0).session_id == 0
        told = ask(a, {(topic, 5): 0}, first, 1)
        assert (told.session_id, len(told.responses[0].partitions)) == (0, 1), "there is no space for one more: it ends"
        assert ask(a, {}, first, 2).error_code == E.FETCH_SESSION_ID_NOT_FOUND
        assert ask(c, all_of(topic, 2), 0, 0).session_id > 0
