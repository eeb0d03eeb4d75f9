"""An attempt of a task has a request under way while it encodes the next. Without Spark."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import klamm
from klamm.batch import Builder
from klamm.errors import KlammError, RecordTooLarge
from klamm.kafka.wire import Api, Struct
from klamm.kafka.wire.messages import API_VERSIONS, END_TXN, PRODUCE
from klamm.spark.server.address import ServerAddress
from klamm.spark.server.attempt import Attempt
from klamm.spark.server.client import Client, Sent
from klamm.spark.server.decision import Scope, commit
from tests.crash.cases import seed_of
from tests.interop.proxy import Proxy
from tests.procs import until

SCOPE = Scope("query q", "topic orders")
LIMIT = 100_000
pytestmark = pytest.mark.usefixtures("clients")


@pytest.fixture
def proxy(store: klamm.Store) -> Iterator[Proxy]:
    store.topics.create("orders", 2, {"max.message.bytes": LIMIT})
    with klamm.server(store) as address, Proxy(address) as found:
        yield found


def attempt_at(proxy: Proxy, store: klamm.Store) -> Attempt:
    made = Attempt(ServerAddress.parse({"server": proxy.address}), SCOPE.transactional_id(0, 0), 60_000)
    made.name_topic(0, "orders", store.topics.describe("orders").id)
    return made


def batch_of(*values: bytes) -> memoryview:
    builder = Builder(1 << 20)
    for value in values:
        builder.add(None, value)
    return memoryview(bytes(builder.seal()))


def decide(attempt: Attempt) -> None:
    assert attempt.transaction is not None
    assert commit(attempt._client, SCOPE, [attempt.transaction], [], None)


def contents(store: klamm.Store) -> dict[int, list[bytes]]:
    """By partition, in their order."""
    found: dict[int, list[bytes]] = {0: [], 1: []}
    with store.consumer("orders", start="earliest", wait=0) as consumer:
        for record in consumer:
            found[record.partition].append(bytes(record.value))
    return found


def is_open(store: klamm.Store) -> bool:
    partitions = store._acquired().topic("orders").partitions()
    return any(partition.ends().stable < partition.ends().end for partition in partitions)


def test_rows_are_encoded_while_the_server_is_slow_and_two_requests_are_in_memory(
    store: klamm.Store, proxy: Proxy
) -> None:
    attempt = attempt_at(proxy, store)
    proxy.held.add(PRODUCE.key)
    encoded: list[int] = []
    in_memory: list[int] = []

    def write() -> None:
        for number in range(20):
            attempt.add(0, number % 2, batch_of(b"%d" % number))
            encoded.append(number)
            in_memory.append(len(attempt._waiting) + len(attempt._unanswered))
        attempt.finish()

    writer = threading.Thread(target=write)
    writer.start()
    until(lambda: proxy.holds == 1 and len(encoded) == 4, "two are under way, and two are encoded")
    proxy.release()
    writer.join(60)
    assert not writer.is_alive() and max(in_memory) == 4
    decide(attempt)
    assert contents(store) == {partition: [b"%d" % n for n in range(partition, 20, 2)] for partition in range(2)}


@pytest.mark.parametrize("refused", range(3))
def test_a_server_that_refuses_one_of_three_requests_gets_none_after_it_and_nothing_is_read(
    store: klamm.Store, proxy: Proxy, refused: int
) -> None:
    attempt = attempt_at(proxy, store)

    def write() -> None:
        for number in range(3):  # each is sent when the next is there
            attempt.add(0, 0, batch_of(bytes(LIMIT + 1) if number == refused else b"v"))
        attempt.finish()

    with pytest.raises(RecordTooLarge, match=r"orders/0: .*MESSAGE_TOO_LARGE"):
        write()
    assert len(proxy.of(PRODUCE)) == refused + 1 and is_open(store) == (refused > 0)
    attempt.discard()
    assert not is_open(store) and contents(store) == {0: [], 1: []}
    with pytest.raises(KlammError):
        decide(attempt)


@pytest.mark.parametrize("rounds", [3, pytest.param(200, marks=pytest.mark.soak)])
def test_a_connection_that_is_closed_with_a_request_under_way_loses_nothing_and_doubles_nothing(
    store: klamm.Store, proxy: Proxy, rounds: int
) -> None:
    """Before or after the server has it; its response is lost in any case."""
    dice = random.Random(seed_of())
    wanted: dict[int, list[bytes]] = {0: [], 1: []}
    for _ in range(rounds):
        attempt = attempt_at(proxy, store)
        seen = len(proxy.of(PRODUCE))  # when the connection was last cut
        for number in range(12):
            partition = dice.randrange(2)
            is_cut = dice.random() < 0.4
            if is_cut:
                attempt._complete()
                proxy.muted.add(PRODUCE.key)
            value, before = b"%d" % number, len(proxy.of(PRODUCE))
            attempt.add(0, partition, batch_of(value))
            wanted[partition].append(value)
            if is_cut:
                if attempt._under_way and before > seen and dice.random() < 0.7:
                    until(lambda least=before: len(proxy.of(PRODUCE)) > least, "the server is sent it")  # type: ignore[misc]
                proxy.cut()
                proxy.muted.clear()
                seen = len(proxy.of(PRODUCE))
        attempt.finish()
        decide(attempt)
    assert contents(store) == wanted and not is_open(store)
    assert klamm.check(store.path).ok


def test_an_attempt_that_fails_with_a_request_under_way_is_aborted_behind_it(
    store: klamm.Store, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the request could begin a transaction after the end, by a connection of its own."""
    attempt = attempt_at(proxy, store)
    attempt.add(0, 0, batch_of(b"0"))
    attempt.add(0, 0, batch_of(b"1"))
    calls: list[str] = []
    receive, ask = Client.receive, Client.ask

    def seen_receive(self: Client, sent: Sent) -> Struct:
        calls.append("receive")
        return receive(self, sent)

    def seen_ask(self: Client, api: Api, request: Struct, **options: Any) -> Struct:
        calls.append(api.name)
        return ask(self, api, request, **options)

    monkeypatch.setattr(Client, "receive", seen_receive)
    monkeypatch.setattr(Client, "ask", seen_ask)
    attempt.discard()
    assert calls[:2] == ["receive", END_TXN.name]
    assert len(proxy.of(PRODUCE)) == 1 and not is_open(store) and contents(store) == {0: [], 1: []}


def test_attempts_of_one_process_have_one_connection_and_see_partitions_that_were_added(
    store: klamm.Store, proxy: Proxy
) -> None:
    partitions = 2
    for number in range(3):
        if number == 2:
            partitions = 3
            store.topics.add_partitions("orders", partitions)
        attempt = attempt_at(proxy, store)
        attempt.add(0, partitions - 1, batch_of(b"%d" % number))
        attempt.finish()
        decide(attempt)
    assert len(proxy.of(API_VERSIONS)) == 1
    with store.consumer("orders", start="earliest", wait=0) as consumer:
        assert [(record.partition, bytes(record.value)) for record in consumer] == [(1, b"0"), (1, b"1"), (2, b"2")]
