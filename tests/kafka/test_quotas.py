"""Quotas: the machine by a clock of its own; clients that are throttled, and others that are not."""

from __future__ import annotations

import itertools
import random
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.kafka import quotas
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.quotas import BURST_S, Bucket, ClientQuotas
from klamm.kafka.wire.frames import read_response, request_frame
from klamm.kafka.wire.messages import (
    API_VERSIONS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    FETCH,
    METADATA,
    PRODUCE,
)
from klamm.store.quotas import MAX_NAME_BYTES, Entity, Quotas, make_entity
from klamm.store.users import Users
from tests.crash.cases import seed_of
from tests.interop.raw import ConnectionEnded, Raw
from tests.kafka.connect import Served, served
from tests.kafka.requests import fetching, producing, sealed
from tests.kafka.sasl_client import log_in
from tests.procs import readable, until

ANYONE = make_entity([("user", "ANONYMOUS")])
ADDRESS = make_entity([("ip", "127.0.0.1")])


def entity(**parts: str | None) -> Entity:
    return make_entity([(kind.replace("_", "-"), name) for kind, name in parts.items()])


# ---- the machine


@pytest.mark.parametrize("connections", [1, 3])
@pytest.mark.parametrize("rate", [1_000.0, 1e6, 1e9])
def test_a_bucket_throttles_to_its_rate(rate: float, connections: int) -> None:
    """Requests of all sizes, on connections that each wait as long as they are told."""
    chance = random.Random(seed_of())
    bucket = Bucket(rate, BURST_S, 0.0)
    due = [0.0] * connections
    taken = 0.0
    while True:
        now = min(due)
        if now > 60:
            break
        amount = chance.uniform(0, rate / 2)
        taken += amount
        due[due.index(now)] = now + bucket.take(amount, now)
    assert 0.9 * rate * 60 <= taken <= 1.1 * rate * 60


def test_a_bucket_gives_back_what_was_not_used_up_to_its_burst() -> None:
    bucket = Bucket(100, 1.0, 0.0)
    assert bucket.take(100, 0.0) == 0
    assert bucket.take(50, 0.0) == 0.5
    assert bucket.wait(0.25) == 0.25
    assert bucket.take(0, 0.1) == 0.25, "a clock that goes back changes nothing"
    assert bucket.take(100, 60.0) == 0
    assert bucket.take(1, 60.0) == 0.01
    bucket.set_rate(10, 1.0, 60.0)
    assert bucket.wait(60.0) == 0.1
    assert Bucket(100, 1.0, 0.0).try_take(1000, 0.0) == 9.0


LEVELS = [
    entity(user="alice", client_id="app"),
    entity(user="alice", client_id=None),
    entity(user="alice"),
    entity(user=None, client_id="app"),
    entity(user=None, client_id=None),
    entity(user=None),
    entity(client_id="app"),
    entity(client_id=None),
]
"""In Kafka's order."""


@pytest.mark.parametrize("first", range(len(LEVELS)))
def test_the_quota_that_counts_is_the_first_in_kafkas_order(first: int) -> None:
    machine = ClientQuotas()
    machine.set({level: {"producer_byte_rate": 1.0 + at} for at, level in list(enumerate(LEVELS))[first:]}, 0.0)
    bucket = machine.of_client("alice", "app", 0.0).produce
    assert bucket is not None and bucket.rate == 1.0 + first


@pytest.mark.parametrize("level", range(len(LEVELS)))
def test_clients_share_a_bucket_if_they_are_the_same_to_the_quota(level: int) -> None:
    machine = ClientQuotas()
    machine.set({LEVELS[level]: {"consumer_byte_rate": 1.0}}, 0.0)
    buckets = {
        each: machine.of_client(*each, 0.0).fetch for each in itertools.product(("alice", "bob"), ("app", "other"))
    }
    kinds = dict(LEVELS[level])
    for (one, first), (other, second) in itertools.combinations(buckets.items(), 2):
        if first is not None and second is not None:
            is_same = all(one[at] == other[at] for at, kind in enumerate(("user", "client-id")) if kind in kinds)
            assert (first is second) == is_same
    assert buckets["alice", "app"] is not None
    for (user, client_id), bucket in buckets.items():
        fits = kinds.get("user", user) in (user, None) and kinds.get("client-id", client_id) in (client_id, None)
        assert (bucket is not None) == fits


def test_each_kind_of_quota_is_looked_up_by_itself() -> None:
    machine = ClientQuotas()
    machine.set({entity(user="alice"): {"producer_byte_rate": 1}, entity(user=None): {"request_percentage": 50}}, 0.0)
    found = machine.of_client("alice", "", 0.0)
    assert found.produce is not None and found.request is not None
    assert (found.produce.rate, found.request.rate) == (1, 0.5)
    assert found.fetch is None and found.mutation is None


def test_a_change_of_a_quota_does_not_forgive_debts() -> None:
    machine = ClientQuotas()
    machine.set({ANYONE: {"producer_byte_rate": 10}}, 0.0)
    bucket = machine.of_client("ANONYMOUS", "", 0.0).produce
    assert bucket is not None and bucket.take(110, 0.0) == 10
    machine.set({ANYONE: {"producer_byte_rate": 20}}, 0.0)
    bucket = machine.of_client("ANONYMOUS", "", 0.0).produce
    assert bucket is not None and bucket.wait(0.0) == 5
    machine.set({}, 0.0)
    assert not machine.is_active and machine.of_client("ANONYMOUS", "", 0.0).produce is None


def test_the_default_of_the_server_is_the_last_that_counts() -> None:
    machine = ClientQuotas(5)
    assert machine.is_active
    bucket = machine.of_client("alice", "app", 0.0).mutation
    assert bucket is not None and (bucket.rate, bucket.burst) == (5, 55)
    machine.set({entity(client_id=None): {"controller_mutation_rate": 7}}, 0.0)
    bucket = machine.of_client("alice", "app", 0.0).mutation
    assert bucket is not None and bucket.rate == 7


def test_clients_with_ever_new_ids_take_no_more_memory_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "MAX_BUCKETS", 20)
    machine = ClientQuotas()
    machine.set({entity(client_id=None): {"producer_byte_rate": 1}}, 0.0)
    for number in range(100):
        bucket = machine.of_client("alice", f"id-{number}", 0.0).produce
        assert bucket is not None
        bucket.take(10, 0.0)
        assert len(machine._buckets) <= 21 and len(machine._clients) <= 20
    shared = machine.of_client("alice", "id-99", 0.0).produce
    assert shared is not None and shared.wait(0.0) > 100, "those beyond it share a bucket"
    fresh = machine.of_client("alice", "another", 10_000.0).produce
    assert fresh is not shared and len(machine._buckets) < 20, "old ones are forgotten when their debt is paid"


def test_a_long_client_id_takes_no_more_memory_than_one_that_a_quota_may_have() -> None:
    """Clients send it before they log in."""
    machine = ClientQuotas()
    machine.set({entity(client_id=None): {"producer_byte_rate": 1}}, 0.0)
    longest = "x" * MAX_NAME_BYTES
    assert machine.of_client("alice", longest, 0.0) != machine.of_client("alice", longest + "x", 0.0)
    machine.of_client("alice", "x" * 32_767, 0.0)
    assert {len(client_id) for _, client_id in machine._clients} == {MAX_NAME_BYTES, MAX_NAME_BYTES + 1}


# ---- clients

RATE = 200_000


def set_quotas(server: Served, quotas: dict[Entity, dict[str, float | None]]) -> None:
    """As `klamm quota` does, but the server sees it at once."""
    server.broker.quota_table.alter(quotas.items())
    server.run(server.broker.reload_quotas())


def produce_once(raw: Raw, size: int = 50_000, acks: int = 1, codec: int = 0, client_id: str = "x") -> tuple[int, int]:
    """Return how many bytes were sent, and for how long the client has to wait, in milliseconds."""
    fields = producing({("orders", 0): sealed(1, padding=size, codec=codec)}, acks=acks)
    frame = b"".join(request_frame(PRODUCE, 9, 1, client_id, PRODUCE.request(**fields)))
    raw.send_bytes(frame)
    if not acks:
        return len(frame), 0
    response = read_response(PRODUCE, 9, raw.receive())[1]
    assert response.responses[0].partition_responses[0].error_code == 0
    return len(frame), response.throttle_time_ms


@pytest.mark.parametrize(("acks", "codec"), [(1, 0), (-1, 0), (1, 1)], ids=["ordinary", "synced", "compressed"])
def test_a_producer_is_throttled_to_its_rate(server: Served, raw: Raw, acks: int, codec: int) -> None:
    set_quotas(server, {ANYONE: {"producer_byte_rate": RATE if not codec else 1000}})
    rate = RATE if not codec else 1000
    produce_once(raw, 10)  # what is done once is done
    began = time.monotonic()
    sent = waited_ms = last = 0
    while sent < (1.6 + BURST_S) * rate:
        asked = time.monotonic()
        size, last = produce_once(raw, acks=acks, codec=codec)
        sent += size
        waited_ms += last
        assert raw_is_muted(server) or time.monotonic() >= asked + last / 1000
    took_s = time.monotonic() - began
    assert sent <= rate * (BURST_S + took_s + last / 1000) * 1.1, "no more than the rate"
    assert waited_ms / 1000 <= (sent - BURST_S * rate) / rate + 0.2, "no longer than it has to"
    assert server.broker.metrics.throttled[("producer_byte_rate",)] > 0
    assert server.broker.metrics.throttle_seconds[("producer_byte_rate",)] == pytest.approx(waited_ms / 1000, abs=0.1)


def raw_is_muted(server: Served) -> bool:
    return server.call(lambda: any(channel._muted is not None for channel in server.server.listener.connections))


def test_nothing_is_read_of_a_throttled_client_and_others_are_served(server: Served, raw: Raw) -> None:
    set_quotas(server, {entity(client_id="greedy"): {"producer_byte_rate": 1000}})
    with server.dial() as other:
        assert produce_once(raw, 20_000, client_id="greedy")[1] >= 15_000
        raw.send(API_VERSIONS, 0)
        for _ in range(5):
            assert produce_once(other, 20_000, client_id="modest")[1] == 0
            assert other.ask(METADATA, 12, topics=[]).throttle_time_ms == 0
        assert not readable(raw._socket.fileno(), 0)
        assert raw_is_muted(server)
    set_quotas(server, {entity(client_id="greedy"): {"producer_byte_rate": None}})
    assert not server.broker.quotas.is_active


def end_of(server: Served) -> int:
    return server.broker.core.topic("orders").partition(0).ends().end


def is_held(server: Served) -> bool:
    """Whether a request waits for a debt that is not its connection's."""
    connections = server.server.listener.connections
    return server.call(lambda: any(each._muted is not None and not each.reader.is_empty for each in connections))


def forgive(server: Served) -> None:
    """End all debts, and what waits for them."""

    def go_on() -> None:
        for channel in server.server.listener.connections:
            channel._stop_waiting()
            channel.go_on()

    set_quotas(server, {ANYONE: {"producer_byte_rate": None}})
    server.call(go_on)


@pytest.mark.parametrize("acks", [1, -1], ids=["ordinary", "synced"])
@pytest.mark.parametrize("way", ["whole", "in parts", "behind another"])
def test_a_producer_in_debt_waits_on_another_connection_too(server: Served, raw: Raw, way: str, acks: int) -> None:
    """Else it could connect again for each request."""
    set_quotas(server, {ANYONE: {"producer_byte_rate": 1000}})
    assert produce_once(raw, 20_000)[1] > 15_000
    end = end_of(server)
    fields = producing({("orders", 0): sealed(1, padding=20_000)}, acks=acks)
    frame = b"".join(request_frame(PRODUCE, 9, 7, "another", PRODUCE.request(**fields)))
    with server.dial() as other:
        if way == "in parts":
            other.send_bytes(frame[:1000])
            connections = server.server.listener.connections
            until(lambda: server.call(lambda: any(each.reader.has_partial for each in connections)), "a part is here")
            other.send_bytes(frame[1000:])
        elif way == "behind another":
            other.send_bytes(b"".join(request_frame(API_VERSIONS, 0, 6, "x", API_VERSIONS.request())) + frame)
            assert read_response(API_VERSIONS, 0, other.receive())[0] == 6
        else:
            other.send_bytes(frame)
        until(lambda: is_held(server), "the request waits")
        number = other.send(API_VERSIONS, 0)
        assert end_of(server) == end and not readable(other._socket.fileno(), 0)
        assert server.broker.metrics.throttled[("producer_byte_rate",)] == 2
        forgive(server)
        answered, response = read_response(PRODUCE, 9, other.receive())
        assert answered == 7 and response.responses[0].partition_responses[0].error_code == 0
        assert read_response(API_VERSIONS, 0, other.receive())[0] == number
    assert end_of(server) == end + 1


def test_a_connection_that_has_waited_for_its_debt_does_not_wait_for_those_of_others(server: Served, raw: Raw) -> None:
    """Each hears in its response how long to wait, and a request that is sent then is handled at once."""
    set_quotas(server, {ANYONE: {"producer_byte_rate": 1000}})
    with server.dial() as other:
        assert produce_once(raw, 10)[1] == produce_once(other, 10)[1] == 0
        assert produce_once(raw, 5000)[1] < produce_once(other, 5000)[1]
    assert server.broker.metrics.throttled[("producer_byte_rate",)] == 2, "after their responses, and not before"


@pytest.mark.parametrize("parts", [1, 2])
def test_what_a_client_that_left_had_waiting_is_forgotten(server: Served, raw: Raw, parts: int) -> None:
    """It may have sent it again elsewhere."""
    set_quotas(server, {ANYONE: {"producer_byte_rate": 1000}})
    produce_once(raw, 20_000)
    end, listener = end_of(server), server.server.listener
    frame = b"".join(request_frame(PRODUCE, 9, 7, "x", PRODUCE.request(**producing({("orders", 0): sealed(1)}))))
    with server.dial() as other:
        if parts == 2:
            other.send_bytes(frame[:20])
            until(lambda: server.call(lambda: any(each.reader.has_partial for each in listener.connections)), "half")
        other.send_bytes(frame[20:] if parts == 2 else frame)
        until(lambda: is_held(server), "the request waits")
    until(lambda: len(listener.connections) == 1, "the client is gone")
    assert listener.budget.used == listener.budget.ahead == 0
    forgive(server)
    assert produce_once(raw, 10)[1] == 0 and end_of(server) == end + 1


def test_what_is_appended_for_a_client_that_has_left_counts(
    server: Served, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_quotas(server, {ANYONE: {"producer_byte_rate": 1000}})
    gate, codec = threading.Event(), server.broker.codec

    def held(function: Any, *args: Any) -> Any:
        assert gate.wait(30)
        return function(*args)

    monkeypatch.setattr(server.broker, "codec", lambda function, *args: codec(held, function, *args))
    end = end_of(server)
    with server.dial() as other:
        batch = sealed([random.Random(7).randbytes(100_000)], codec=1)
        other.send(PRODUCE, 9, **producing({("orders", 0): batch}))
        listener = server.server.listener
        until(lambda: server.call(lambda: any(each.has_request for each in listener.connections)), "it is handled")
    until(lambda: len(listener.connections) == 1, "the client is gone")
    gate.set()
    until(lambda: end_of(server) == end + 1, "it is appended")
    until(lambda: server.broker.metrics.throttled.get(("producer_byte_rate",)) == 1, "it counts")


def test_a_producer_that_wants_no_response_is_throttled_too(server: Served, raw: Raw) -> None:
    set_quotas(server, {ANYONE: {"producer_byte_rate": 10_000}})
    produce_once(raw, 30_000, acks=0)
    until(lambda: raw_is_muted(server), "the client is throttled")


def test_a_throttled_client_that_leaves_is_forgotten_and_the_server_stops(server: Served) -> None:
    set_quotas(server, {ANYONE: {"producer_byte_rate": 1}})
    with server.dial() as raw:
        assert produce_once(raw, 50_000)[1] > 10_000_000
    set_quotas(server, {ANYONE: {"producer_byte_rate": None}})
    began = time.monotonic()
    server.run(server.server.stop(drain_s=60))
    assert time.monotonic() - began < 50, "it does not wait for a throttled connection"


def test_a_consumer_is_throttled_to_its_rate(server: Served, raw: Raw) -> None:
    for _ in range(60):
        produce_once(raw, 20_000)
    set_quotas(server, {ANYONE: {"consumer_byte_rate": RATE}})
    began = time.monotonic()
    received = offset = last = 0
    while received < 2.5 * RATE:
        raw.send(FETCH, 12, **fetching({("orders", 0): offset}))
        frame = raw.receive()
        received += len(frame)
        response = read_response(FETCH, 12, frame)[1]
        last = response.throttle_time_ms
        if response.responses:
            (partition,) = response.responses[0].partitions
            assert partition.error_code == 0
            assert len(partition.records) <= RATE, "no more than comes in a second"
            offset += len(partition.records) // 20_000
    took_s = time.monotonic() - began
    assert received <= RATE * (BURST_S + took_s + last / 1000) * 1.1
    assert server.broker.metrics.throttled[("consumer_byte_rate",)] > 0


def test_a_consumer_in_debt_gets_no_records_on_another_connection_either(server: Served, raw: Raw) -> None:
    produce_once(raw, 50_000)
    set_quotas(server, {ANYONE: {"consumer_byte_rate": 1000}})
    fields = fetching({("orders", 0): 0})
    first = raw.ask(FETCH, 12, **fields)
    assert len(first.responses[0].partitions[0].records) > 50_000 and first.throttle_time_ms > 40_000
    with server.dial() as other:
        second = other.ask(FETCH, 12, **fields)
        assert second.responses == [] and second.error_code == 0 and second.session_id == 0
        assert second.throttle_time_ms > 40_000


def test_requests_are_throttled_by_the_time_that_they_take(server: Served, raw: Raw) -> None:
    set_quotas(server, {ANYONE: {"request_percentage": 0.01}})
    bucket = server.call(lambda: server.broker.quotas.of_client("ANONYMOUS", "raw", server.loop.time()).request)
    assert bucket is not None and bucket.rate == 0.0001
    throttled = 0
    for _ in range(100):
        throttled = raw.ask(METADATA, 12, topics=None).throttle_time_ms
        assert throttled <= 1000, "as in Kafka"
        if throttled:
            break
    assert throttled
    assert server.broker.metrics.throttled[("request_percentage",)] == 1


def guarded(tmp_path: Path) -> Any:
    with klamm.open(tmp_path / "events") as store:
        store.topics.create("orders")
        for name in ("alice", "bob"):
            Users(store._acquired().catalog).add(name, "x", ["SCRAM-SHA-256"])
    return served(tmp_path / "events", listeners="SASL_PLAINTEXT://127.0.0.1:0", sasl_enabled_mechanisms="PLAIN")


def test_what_strangers_send_takes_from_no_quota(tmp_path: Path) -> None:
    """Before the login, all are nobody: a flood of one would have all others wait who log in."""
    with guarded(tmp_path) as server, server.dial() as raw:
        set_quotas(server, {entity(user=None): {"request_percentage": 0.01}})
        for _ in range(100):
            assert raw.ask(API_VERSIONS, 3).throttle_time_ms == 0
        assert log_in(raw, "alice", "x", "PLAIN").error_code == 0
        assert server.broker.metrics.throttled == {}


def test_two_users_have_their_rates_and_do_not_disturb_one_another(tmp_path: Path) -> None:
    """Each is throttled to its own rate, ±10 %, while the other is, too."""
    rates = {"alice": 400_000, "bob": 100_000}
    with guarded(tmp_path) as server:
        set_quotas(server, {entity(user=name): {"producer_byte_rate": rate} for name, rate in rates.items()})

        def measure(user: str, results: dict[str, float]) -> None:
            with server.dial() as raw:
                assert log_in(raw, user, "x", "PLAIN").error_code == 0
                size = rates[user] // 4
                while not produce_once(raw, size)[1]:
                    pass  # until what may be at once is used up
                produce_once(raw, size)  # from now on, each waits for the debt of the one before it
                began, sent = time.monotonic(), 0
                while time.monotonic() - began < 2:
                    sent += produce_once(raw, size)[0]
                results[user] = sent / (time.monotonic() - began)

        for _ in range(10):  # a busy machine may delay the last response of one that is slow
            results: dict[str, float] = {}
            threads = [threading.Thread(target=measure, args=(user, results)) for user in rates]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            shares = {user: results[user] / rate for user, rate in rates.items()}
            assert max(shares.values()) <= 1.1, "never more than the rate"
            if min(shares.values()) >= 0.9:
                break
        assert min(shares.values()) >= 0.9, shares


def create(raw: Raw, *names: str, version: int = 7, count: int = 1) -> tuple[list[int], int]:
    topic = CREATE_TOPICS.request.Topic
    topics = [topic(name=name, num_partitions=count, replication_factor=1) for name in names]
    response = raw.ask(CREATE_TOPICS, version, topics=topics, timeout_ms=10_000)
    return [each.error_code for each in response.topics], response.throttle_time_ms


def test_changes_of_topics_are_bounded(server: Served) -> None:
    """KIP-599: what comes while there is debt is refused; old versions wait instead."""
    set_quotas(server, {ANYONE: {"controller_mutation_rate": 0.5}})  # 5.5 at once
    with server.dial() as raw:
        codes, throttle_time_ms = create(raw, "a", "b", "c", count=50)
    assert codes == [0, ErrorCode.THROTTLING_QUOTA_EXCEEDED, ErrorCode.THROTTLING_QUOTA_EXCEEDED]
    assert 40_000 < throttle_time_ms <= 89_000, "44.5 beyond what may be at once, at 2 s each"
    with server.dial() as raw:
        (topic,) = raw.ask(DELETE_TOPICS, 6, topics=[DELETE_TOPICS.request.Topic(name="a")], timeout_ms=1000).responses
        assert topic.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    with server.dial() as raw:
        more = [CREATE_PARTITIONS.request.Topic(name="a", count=51, assignments=None)]
        (topic,) = raw.ask(CREATE_PARTITIONS, 3, topics=more, timeout_ms=1000).results
        assert topic.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    with server.dial() as raw:
        name = METADATA.request.Topic(name="auto")
        response = raw.ask(METADATA, 12, topics=[name], allow_auto_topic_creation=True)
        assert response.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert response.throttle_time_ms > 0
    with server.dial() as raw:
        codes, throttle_time_ms = create(raw, "d", version=5)
        assert codes == [0] and throttle_time_ms > 40_000, "it does not know the error"
    with server.dial() as raw:
        response = raw.ask(DELETE_TOPICS, 4, topic_names=["a"], timeout_ms=1000)
        assert response.responses[0].error_code == 0 and response.throttle_time_ms > 140_000
    set_quotas(server, {ANYONE: {"controller_mutation_rate": None}})


def test_a_server_may_bound_changes_of_topics_of_users_without_a_quota(tmp_path: Path) -> None:
    with served(tmp_path / "events", quota_controller_mutation_default=1) as server:
        with server.dial() as raw:
            assert create(raw, "a", count=100)[0] == [0]
        with server.dial() as raw:
            assert create(raw, "b")[0] == [ErrorCode.THROTTLING_QUOTA_EXCEEDED]


def test_connections_of_an_address_are_bounded_by_their_rate(server: Served) -> None:
    set_quotas(server, {ADDRESS: {"connection_creation_rate": 3}})
    began, accepted = time.monotonic(), 0
    with ExitStack() as opened:
        while accepted < 3 + 3 * (time.monotonic() - began):
            raw = opened.enter_context(server.dial())
            try:
                assert raw.ask(API_VERSIONS, 0).error_code == 0
            except (ConnectionEnded, ConnectionError):  # closed before it has asked, or after
                break
            accepted += 1
        else:
            pytest.fail(f"{accepted} connections were accepted")
        assert accepted >= 3 and server.broker.metrics.connections == accepted
    assert server.broker.metrics.throttled[("connection_creation_rate",)] == 1
    set_quotas(server, {ADDRESS: {"connection_creation_rate": None}})


def test_connections_that_are_closed_late_leave_room_for_others(tmp_path: Path) -> None:
    with served(tmp_path / "events", max_connections=20) as server, ExitStack() as opened:
        set_quotas(server, {ADDRESS: {"connection_creation_rate": 1}})
        for _ in range(15):  # of which one a second is accepted
            opened.enter_context(server.dial())
        until(lambda: server.broker.metrics.refused >= 4, "they are refused")
        assert server.call(lambda: len(server.server.listener._delayed)) <= 2


def test_a_change_of_quotas_that_cannot_be_read_at_once_is_read_later(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> Any:
        raise OSError("the disk does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(server.broker.quota_table, "all", broken)
        with pytest.raises(OSError, match="does not answer"):
            set_quotas(server, {ANYONE: {"producer_byte_rate": 1000}})
        assert not server.broker.quotas.is_active
    server.run(server.broker.reload_quotas())
    assert server.broker.quotas.is_active


def test_quotas_that_another_process_sets_count_soon(store: klamm.Store, server: Served, raw: Raw) -> None:
    Quotas(store._acquired().catalog).alter([(ANYONE, {"producer_byte_rate": 1.0})])
    until(lambda: server.broker.quotas.is_active, "the server has read them")
    assert produce_once(raw, 10)[1] > 0
