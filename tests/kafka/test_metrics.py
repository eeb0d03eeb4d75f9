"""What a server counts, and how it is scraped: real servers, real clients, real scrapes."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

import klamm
from klamm.kafka import collector, monitor
from klamm.kafka.collector import METRICS, ServerCollector
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.metrics import BOUNDS, Metrics
from klamm.kafka.service import Service
from klamm.kafka.settings import ServerSettings
from klamm.kafka.wire.messages import CREATE_TOPICS, METADATA, OFFSET_COMMIT
from klamm.log import head
from tests.kafka.connect import Raw, Served
from tests.kafka.requests import fetch, produce
from tests.procs import until
from tests.serving import Serving, serving


def ask(address: str, target: str, method: str = "GET") -> tuple[int, str]:
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=30)
    try:
        connection.request(method, target)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(text: str) -> Samples:
    families = text_string_to_metric_families(text)
    return {
        (each.name, tuple(sorted(each.labels.items()))): each.value for family in families for each in family.samples
    }


def scrape(address: str) -> Samples:
    status, text = ask(address, "/metrics")
    assert status == 200
    return samples(text)


def value(found: Samples, name: str, **labels: str) -> float | None:
    return found.get((name, tuple(sorted(labels.items()))))


@contextmanager
def measured(path: Path) -> Iterator[tuple[Serving, str]]:
    """A server, and where its metrics are."""
    with serving(path, "--metrics", "0") as server:
        yield server, server.ready()["metrics"]


def send(address: str, values: list[bytes], topic: str = "orders") -> None:
    producer = Producer({"bootstrap.servers": address})
    for each in values:
        producer.produce(topic, each)
    assert producer.flush(20) == 0


def with_service(path: Path, act: Callable[[Service], Awaitable[Any]], **settings: Any) -> Any:
    """Run something beside a server in this process."""

    async def run() -> Any:
        service = Service(path, ServerSettings.of({"kafka": 0, "metrics": 0, **settings}))
        await service.start()
        try:
            return await act(service)
        finally:
            await service.stop()

    return asyncio.run(run())


def scraped(service: Service) -> Awaitable[Samples]:
    return asyncio.to_thread(scrape, service.metrics)


# Counting


@given(st.lists(st.floats(0, 100), max_size=50))
def test_every_request_is_in_the_bucket_it_belongs_to(seconds: list[float]) -> None:
    metrics = Metrics()
    for each in seconds:
        metrics.observe("Fetch", each)
    if seconds:
        timings = metrics.requests["Fetch"]
        assert timings.count == len(seconds) and timings.seconds == pytest.approx(sum(seconds))
        for place, bound in enumerate(BOUNDS):
            assert sum(timings.buckets[: place + 1]) == sum(each <= bound for each in seconds)


def test_errors_are_counted_by_api_and_code() -> None:
    metrics = Metrics()
    for code in (3, 3, 6):
        metrics.error("Produce", code)
    assert metrics.errors == {("Produce", 3): 2, ("Produce", 6): 1}


# Scraping


def test_what_clients_do_is_in_the_metrics(path: Path) -> None:
    with measured(path) as (server, metrics):
        before = scrape(metrics)
        assert value(before, "klamm_appended_records_total") == 0
        send(server.address, [b"%d" % n for n in range(100)])
        settings = {"bootstrap.servers": server.address, "group.id": "g", "auto.offset.reset": "earliest"}
        consumer = Consumer({**settings, "enable.auto.commit": False})
        consumer.subscribe(["orders"])
        found: list[Any] = []

        def polled() -> bool:
            found.extend(consumer.consume(100, 0.1))
            return len(found) >= 100

        until(polled, "all records come")
        consumer.commit(message=found[59], asynchronous=False)
        after = scrape(metrics)
        assert value(after, "klamm_appended_records_total") == 100
        assert 1 <= (value(after, "klamm_appended_batches_total") or 0) <= 100
        assert (value(after, "klamm_connections") or 0) >= 2
        assert (value(after, "klamm_connections_opened_total") or 0) >= 2
        assert (value(after, "klamm_received_bytes_total") or 0) > 100
        assert (value(after, "klamm_sent_bytes_total") or 0) > 100
        assert value(after, "klamm_partition_start_offset", topic="orders", partition="0") == 0
        assert value(after, "klamm_partition_end_offset", topic="orders", partition="0") == 100
        assert (value(after, "klamm_partition_bytes", topic="orders", partition="0") or 0) > 100
        assert value(after, "klamm_group_offset", group="g", topic="orders", partition="0") == 60
        assert value(after, "klamm_group_lag", group="g", topic="orders", partition="0") == 40
        assert value(after, "klamm_groups", state="Stable") == 1
        assert value(after, "klamm_group_members") == 1
        assert value(after, "klamm_scrape_complete") == 1
        produced = value(after, "klamm_request_seconds_count", api="Produce")
        assert produced is not None and produced >= 1
        assert value(after, "klamm_request_seconds_bucket", api="Produce", le="+Inf") == produced
        assert (value(after, "process_resident_memory_bytes") or 0) > 0
        consumer.close()
        until(lambda: value(scrape(metrics), "klamm_connections") == 0, "the clients are gone")


def test_a_fetch_that_waits_is_counted_as_delayed(path: Path) -> None:
    with measured(path) as (server, metrics):
        send(server.address, [b"a"])
        consumer = Consumer({"bootstrap.servers": server.address, "group.id": "g", "fetch.wait.max.ms": 5000})
        consumer.subscribe(["orders"])

        def waits() -> bool:
            consumer.poll(0.01)
            found = scrape(metrics)
            return value(found, "klamm_delayed_fetches") == 1 and (value(found, "klamm_fetch_waits_total") or 0) > 0

        until(waits, "a fetch waits")
        consumer.close()


def test_every_metric_of_the_table_is_scraped_and_no_other(path: Path) -> None:
    async def act(service: Service) -> set[str]:
        metrics = service.server.broker.metrics
        metrics.observe("Fetch", 0.1)
        metrics.error("Fetch", 1)
        given = ServerCollector(service.server.broker, service.address).collect()
        return {family.name for family in await asyncio.to_thread(list, given)}

    assert with_service(path, act) == set(METRICS)


def test_errors_of_parts_are_counted_whatever_was_asked(server: Served, raw: Raw) -> None:
    partition = OFFSET_COMMIT.request.Partition(partition_index=0, committed_offset=1)
    commit = OFFSET_COMMIT.request.Topic(name="nowhere", partitions=[partition])
    raw.ask(OFFSET_COMMIT, 7, group_id="g", generation_id_or_member_epoch=-1, member_id="", topics=[commit, commit])
    raw.ask(METADATA, 12, topics=[METADATA.request.Topic(name="nowhere")], allow_auto_topic_creation=False)
    new = CREATE_TOPICS.request.Topic(name="orders", num_partitions=1, replication_factor=1)
    raw.ask(CREATE_TOPICS, 7, topics=[new], timeout_ms=30_000)
    fetch(raw, "orders", 5)
    produce(raw, "orders", b"")
    assert raw.ask(METADATA, 12, topics=[METADATA.request.Topic(name="orders")]).topics[0].error_code == 0
    assert server.call(lambda: dict(server.server.metrics.errors)) == {
        ("OffsetCommit", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION): 2,
        ("Metadata", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION): 1,
        ("CreateTopics", ErrorCode.TOPIC_ALREADY_EXISTS): 1,
        ("Fetch", ErrorCode.OFFSET_OUT_OF_RANGE): 1,
        ("Produce", ErrorCode.INVALID_RECORD): 1,
    }


def test_errors_bear_the_names_that_kafka_gives_them(path: Path) -> None:
    async def act(service: Service) -> None:
        service.server.broker.metrics.error("Fetch", 1)
        service.server.broker.metrics.error("Fetch", 9999)
        found = await scraped(service)
        assert value(found, "klamm_request_errors_total", api="Fetch", error="OFFSET_OUT_OF_RANGE") == 1
        assert value(found, "klamm_request_errors_total", api="Fetch", error="9999") == 1

    with_service(path, act)


def test_lag_covers_groups_of_embedded_consumers(path: Path) -> None:
    with klamm.open(path) as store:
        store.topics.create("orders")
        store.append_many("orders", [b"a", b"b", b"c"])
        with store.consumer("orders", group="embedded", wait=0) as consumer:
            consumer.commit(next(iter(consumer.batches(max_records=1))))

        async def act(service: Service) -> None:
            found = await scraped(service)
            assert value(found, "klamm_group_offset", group="embedded", topic="orders", partition="0") == 1
            assert value(found, "klamm_group_lag", group="embedded", topic="orders", partition="0") == 2

        with_service(path, act)


def test_a_scrape_is_bounded_and_says_what_it_left_out(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "MAX_PARTITIONS", 3)
    monkeypatch.setattr(collector, "MAX_OFFSETS", 2)
    with klamm.open(path) as store:
        store.topics.create("a", partitions=2)
        store.topics.create("b", partitions=4)
        store.append_many("a", [b"1", b"2"], partition=0)
        for number in range(4):
            store.groups.reset(f"g{number}", "a", to="earliest")

        async def act(service: Service) -> None:
            found = await scraped(service)
            given = [labels for name, labels in found if name == "klamm_partition_end_offset"]
            assert [dict(labels)["topic"] for labels in given] == ["a", "a", "b"]
            assert value(found, "klamm_left_out", what="partitions") == 3
            assert len([name for name, _ in found if name == "klamm_group_lag"]) == 2
            assert value(found, "klamm_left_out", what="group_offsets") == 6

        with_service(path, act)


def test_a_scrape_recovers_nothing(path: Path) -> None:
    with klamm.open(path) as store:
        store.topics.create("orders")
        store.append("orders", b"a")

    async def act(service: Service) -> None:
        core = service.server.broker.core
        slot = core.catalog.topic("orders").partitions[0]
        core.heads.mark_all(head.NEEDS_RECOVERY)
        found = await scraped(service)
        assert value(found, "klamm_left_out", what="partitions") == 1
        assert core.heads.flags_of(slot) & head.NEEDS_RECOVERY
        assert core.topic("orders").partition(0).ends().end == 1  # somebody uses it
        found = await scraped(service)
        assert value(found, "klamm_partition_end_offset", topic="orders", partition="0") == 1

    with_service(path, act)


def test_a_loop_that_does_not_answer_costs_its_part_of_the_scrape_only(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector, "_LOOP_TIMEOUT_S", 0.05)

    async def act(service: Service) -> None:
        given = ServerCollector(service.server.broker, service.address).collect()
        found = {family.name: family.samples for family in given}  # here, so the loop cannot answer
        assert found["klamm_scrape_complete"][0].value == 0
        assert "klamm_connections" in found and "klamm_partition_bytes" in found and "klamm_groups" not in found

    with_service(path, act)


# The HTTP server


def test_health_and_status_tell_how_the_server_is_doing(path: Path) -> None:
    async def act(service: Service) -> None:
        assert service.monitor is not None
        assert await asyncio.to_thread(ask, service.metrics, "/healthz") == (200, "ready\n")
        code, text = await asyncio.to_thread(ask, service.metrics, "/status")
        status = json.loads(text)
        assert code == 200 and status["state"] == "ready" and status["version"] == klamm.__version__
        assert status["store_id"] == service.store_id and status["address"] == service.address
        assert status["connections"] == 0 and status["uptime_s"] >= 0
        service.monitor.draining()
        assert await asyncio.to_thread(ask, service.metrics, "/healthz") == (503, "draining\n")
        assert (await asyncio.to_thread(ask, service.metrics, "/metrics"))[0] == 200

    with_service(path, act)


def test_before_the_server_is_ready_it_says_not_yet() -> None:
    early = monitor.Monitor("127.0.0.1", 0)
    try:
        assert ask(early.address, "/healthz") == (503, "starting\n")
        assert ask(early.address, "/metrics") == (503, "starting\n")
        assert json.loads(ask(early.address, "/status")[1])["state"] == "starting"
    finally:
        early.close()
    with pytest.raises(ConnectionRefusedError):
        ask(early.address, "/healthz")


def test_other_paths_and_methods_are_refused_and_head_has_no_body() -> None:
    listening = monitor.Monitor("::1", 0)
    try:
        assert listening.address.startswith("[::1]:")
        assert ask(listening.address, "/")[0] == 404
        assert ask(listening.address, "/healthz?verbose=1")[0] == 503
        assert ask(listening.address, "/healthz", "HEAD") == (503, "")
        assert ask(listening.address, "/healthz", "POST")[0] == 501
    finally:
        listening.close()


def test_whoever_asks_and_says_nothing_keeps_nobody_from_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "_MAX_ASKERS", 3)
    listening = monitor.Monitor("127.0.0.1", 0)
    host, _, port = listening.address.partition(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(2)]
    try:
        assert ask(listening.address, "/healthz")[0] == 503
        silent.append(socket.create_connection((host, int(port))))
        with socket.create_connection((host, int(port)), timeout=30) as beyond:
            assert beyond.recv(1) == b""
        silent.pop().close()
        until(lambda: _answers(listening.address), "there is a place again")
    finally:
        for each in silent:
            each.close()
        listening.close()


def _answers(address: str) -> bool:
    try:
        return ask(address, "/healthz")[0] == 503
    except OSError:
        return False


def test_a_server_that_cannot_start_takes_its_monitor_along(path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        service = Service(path, ServerSettings.of({"kafka": taken.getsockname()[1], "metrics": 0}))
        with pytest.raises(OSError, match="cannot listen"):
            asyncio.run(service.start())
    with pytest.raises(ConnectionRefusedError):
        ask(service.metrics, "/healthz")
