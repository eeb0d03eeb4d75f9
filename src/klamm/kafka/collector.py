"""The Prometheus collector: the server's counters, and the state of topics and groups, read from the store.

Everything here runs in the thread of the scrape. The loop is asked for one thing, its groups. The store is read as
any process reads it: heads without a lock, offsets out of SQLite.

Promises
  COL1  A scrape gives at most MAX_PARTITIONS partitions and MAX_OFFSETS offsets of groups, the first by name. How many
        it left out is a metric itself.
  COL2  A scrape opens no partition that waits for its recovery, for that reads its log: it appears once it was used.
  COL3  A store that cannot be read, or a loop that does not answer, costs the part that needs it, not the scrape;
        `klamm_scrape_complete` is 0 then.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

import klamm
from klamm.errors import KlammError
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.metrics import BOUNDS, Metrics
from klamm.log import head
from klamm.types import TopicId

if TYPE_CHECKING:
    from klamm.kafka.broker import Broker
    from klamm.log.partition import Partition
    from klamm.store.catalog import Topic

__all__ = ["MAX_OFFSETS", "MAX_PARTITIONS", "METRICS", "ServerCollector", "registry"]

MAX_PARTITIONS = 2_000
MAX_OFFSETS = 5_000
_LOOP_TIMEOUT_S = 2.0
_log = logging.getLogger("klamm")


class Row(NamedTuple):
    """One line of the table of metrics. Counters get `_total` behind their name when they are scraped."""

    name: str
    kind: str  # "counter", "gauge", "histogram" or "info"
    labels: tuple[str, ...]
    doc: str


_TOPIC = ("topic", "partition")

# fmt: off
_ROWS = [
    Row("klamm", "info", (), "Version, store and address."),
    Row("klamm_connections", "gauge", (), "Open connections."),
    Row("klamm_connections_opened", "counter", (), "Connections accepted."),
    Row("klamm_connections_refused", "counter", (), "Connections beyond max.connections, closed at once."),
    Row("klamm_connections_closed_idle", "counter", (), "Connections closed after connections.max.idle.ms."),
    Row("klamm_logins", "counter", ("mechanism", "outcome"), "Logins by SASL: success or failure."),
    Row("klamm_login_timeouts", "counter", (), "Connections closed because they had not logged in within"
        " connection.setup.timeout.ms."),
    Row("klamm_unauthenticated_requests", "counter", (), "Connections closed because of a request before the login, or"
        " after it had expired."),
    Row("klamm_denials", "counter", ("operation", "resource_type"), "What clients were not allowed to do, by ACLs."),
    Row("klamm_tls_handshakes", "counter", ("outcome",), "TLS handshakes: success, failure or timeout."),
    Row("klamm_tls_reloads", "counter", ("outcome",), "Certificates that were loaded because their files had changed:"
        " success or failure."),
    Row("klamm_throttled", "counter", ("quota",), "Responses after which the client had to wait, and connections"
        " refused, by the quota."),
    Row("klamm_throttle_seconds", "counter", ("quota",), "Seconds that clients were told to wait, by the quota."),
    Row("klamm_audit_events", "counter", (), "Events in the audit log."),
    Row("klamm_audit_dropped", "counter", (), "Events that are not in the audit log: its queue was full, or its"
        " topic could not be appended to."),
    Row("klamm_malformed_frames", "counter", (), "Malformed requests: too large, truncated or unparsable."),
    Row("klamm_failed_requests", "counter", (), "Requests that failed by an internal error; see the log."),
    Row("klamm_received_bytes", "counter", (), "Bytes of requests."),
    Row("klamm_sent_bytes", "counter", (), "Bytes of responses."),
    Row("klamm_appended_batches", "counter", (), "Batches appended for producers."),
    Row("klamm_appended_records", "counter", (), "Records in those batches."),
    Row("klamm_request_seconds", "histogram", ("api",), "Duration of requests, from the last byte read to the response;"
        " a fetch that waits for records takes as long as it waits."),
    Row("klamm_request_errors", "counter", ("api", "error"), "Errors in responses, of the whole and of its parts, by"
        " Kafka's name of the error."),
    Row("klamm_fetch_waits", "counter", (), "Fetches that had to wait for records."),
    Row("klamm_delayed_fetches", "gauge", (), "Fetches waiting for records."),
    Row("klamm_fetch_sessions", "gauge", (), "Open fetch sessions."),
    Row("klamm_fetch_session_partitions", "gauge", (), "Partitions of all fetch sessions together."),
    Row("klamm_fetch_session_evictions", "counter", (), "Fetch sessions evicted."),
    Row("klamm_queued_bytes", "gauge", (), "Memory for requests that are being read now, or wait for their turn;"
        " bounded by queued.max.request.bytes."),
    Row("klamm_groups", "gauge", ("state",), "Groups whose members are clients of this server, by Kafka's name of their"
        " state."),
    Row("klamm_group_members", "gauge", (), "Members of all these groups."),
    Row("klamm_partition_start_offset", "gauge", _TOPIC, "First offset in the log."),
    Row("klamm_partition_end_offset", "gauge", _TOPIC, "One past the last offset."),
    Row("klamm_partition_bytes", "gauge", _TOPIC, "The size of the log."),
    Row("klamm_group_offset", "gauge", ("group", *_TOPIC), "Committed offset of a group, embedded or over Kafka."),
    Row("klamm_group_lag", "gauge", ("group", *_TOPIC), "Offsets between the committed offset and the end."),
    Row("klamm_left_out", "gauge", ("what",), "Partitions and offsets beyond what one scrape gives, or that wait for"
        " their recovery."),
    Row("klamm_scrape_complete", "gauge", (), "0 if the store could not be read or the server did not respond."),
]
# fmt: on
METRICS: dict[str, Row] = {row.name: row for row in _ROWS}


def registry(broker: Broker, address: str) -> CollectorRegistry:
    """Return the server's metrics, and those of its process."""
    made = CollectorRegistry()
    made.register(ServerCollector(broker, address))
    ProcessCollector(registry=made)
    return made


class ServerCollector(Collector):
    """Reads when it is scraped, keeps nothing."""

    def __init__(self, broker: Broker, address: str) -> None:
        self._broker = broker
        self._core = broker.core
        self._address = address

    def describe(self) -> Iterable[Metric]:
        """Return nothing: else registering this would scrape it."""
        return []

    def collect(self) -> Iterator[Metric]:
        info = {"version": klamm.__version__, "store_id": self._broker.cluster_id, "address": self._address}
        yield InfoMetricFamily("klamm", METRICS["klamm"].doc, value=info)
        yield from _counters(self._broker.metrics)
        sessions = self._broker.fetch_sessions
        yield _gauge("klamm_fetch_sessions", len(sessions))
        yield _gauge("klamm_fetch_session_partitions", sessions.partitions)
        yield _counter("klamm_fetch_session_evictions", sessions.evictions)
        certificates = self._broker.certificates
        loaded, failed = (0, 0) if certificates is None else (certificates.reloads, certificates.failed_reloads)
        yield _labelled("klamm_tls_reloads", {("success",): loaded, ("failure",): failed})
        complete = True
        for part in (self._groups, self._store):
            try:
                yield from part()
            except (KlammError, OSError, sqlite3.Error, TimeoutError, RuntimeError) as error:
                complete = False
                _log.warning("metrics: %s", str(error) or type(error).__name__)
        yield _gauge("klamm_scrape_complete", int(complete))

    # ---- of the loop

    def _groups(self) -> list[Metric]:
        async def count() -> tuple[dict[str, int], int]:
            states: dict[str, int] = {}
            members = 0
            for listing in self._broker.group_coordinator.list_groups():
                states[listing.state] = states.get(listing.state, 0) + 1
                described = self._broker.group_coordinator.describe(listing.group_id)
                members += len(described.members) if described is not None else 0
            return states, members

        counting = count()
        try:
            requested = asyncio.run_coroutine_threadsafe(counting, self._broker.loop)
        except RuntimeError:  # the loop is closed
            counting.close()
            raise
        states, members = requested.result(_LOOP_TIMEOUT_S)
        groups = _family("klamm_groups")
        for state, number in sorted(states.items()):
            groups.add_metric([state], number)
        return [groups, _gauge("klamm_group_members", members)]

    # ---- of the store

    def _store(self) -> Iterator[Metric]:
        topics = {topic.id: topic for topic in self._core.catalog.topics()}
        starts, ends, sizes = (_family(f"klamm_partition_{what}") for what in ("start_offset", "end_offset", "bytes"))
        given = left_out = 0
        for topic in sorted(topics.values()):
            for number in range(len(topic.partitions)):
                partition = self._partition(topic, number) if given < MAX_PARTITIONS else None
                if partition is None:
                    left_out += 1
                    continue
                try:
                    start, end, *_ = partition.ends()
                    size = partition.log_size()
                except (KlammError, FileNotFoundError):  # deleted since, or damaged: using it raises
                    left_out += 1
                    continue
                given += 1
                labels = [topic.name, str(number)]
                starts.add_metric(labels, start)
                ends.add_metric(labels, end)
                sizes.add_metric(labels, size)
        yield from (starts, ends, sizes)
        offsets, lags, hidden = self._offsets(topics)
        yield from (offsets, lags)
        not_given = _family("klamm_left_out")
        not_given.add_metric(["partitions"], left_out)
        not_given.add_metric(["group_offsets"], hidden)
        yield not_given

    def _offsets(self, topics: dict[TopicId, Topic]) -> tuple[GaugeMetricFamily, GaugeMetricFamily, int]:
        offsets, lags = _family("klamm_group_offset"), _family("klamm_group_lag")
        given = left_out = 0
        for name in self._core.groups.names():
            group = self._core.groups.find(name)
            rows = {} if group is None else self._core.groups.offsets(group.number)
            for (topic_id, number), row in sorted(rows.items()):
                topic = topics.get(topic_id)
                if topic is None:
                    continue
                partition = self._partition(topic, number) if given < MAX_OFFSETS else None
                if partition is None:
                    left_out += 1
                    continue
                try:
                    start, end, *_ = partition.ends()
                except KlammError:
                    continue
                given += 1
                labels = [name, topic.name, str(number)]
                offsets.add_metric(labels, row.offset)
                lags.add_metric(labels, max(0, end - max(start, row.offset)))
        return offsets, lags, left_out

    def _partition(self, topic: Topic, number: int) -> Partition | None:
        """Return the partition; None if it is gone, or waits for its recovery."""
        if number >= len(topic.partitions) or self._core.heads.flags_of(topic.partitions[number]) & head.NEEDS_RECOVERY:
            return None
        try:
            return self._core.topic(topic.name).partition(number)
        except KlammError:
            return None


def _counters(metrics: Metrics) -> Iterator[Metric]:
    yield _gauge("klamm_connections", metrics.connections)
    yield _counter("klamm_connections_opened", metrics.connections_total)
    yield _counter("klamm_connections_refused", metrics.refused)
    yield _counter("klamm_connections_closed_idle", metrics.closed_idle)
    yield _labelled("klamm_logins", metrics.logins)
    yield _labelled("klamm_denials", metrics.denials)
    yield _labelled("klamm_tls_handshakes", {(outcome,): count for outcome, count in metrics.tls_handshakes.items()})
    yield _counter("klamm_login_timeouts", metrics.login_timeouts)
    yield _counter("klamm_unauthenticated_requests", metrics.unauthenticated_requests)
    yield _labelled("klamm_throttled", metrics.throttled)
    yield _labelled("klamm_throttle_seconds", metrics.throttle_seconds)
    yield _counter("klamm_audit_events", metrics.audit_events)
    yield _counter("klamm_audit_dropped", metrics.audit_dropped)
    yield _counter("klamm_malformed_frames", metrics.malformed)
    yield _counter("klamm_failed_requests", metrics.failed)
    yield _counter("klamm_received_bytes", metrics.bytes_in)
    yield _counter("klamm_sent_bytes", metrics.bytes_out)
    yield _counter("klamm_appended_batches", metrics.batches_in)
    yield _counter("klamm_appended_records", metrics.records_in)
    yield _counter("klamm_fetch_waits", metrics.fetch_waits)
    yield _gauge("klamm_delayed_fetches", metrics.delayed_fetches)
    yield _gauge("klamm_queued_bytes", metrics.queued_bytes)
    row = METRICS["klamm_request_seconds"]
    histogram = HistogramMetricFamily(row.name, row.doc, labels=row.labels)
    for api, timings in list(metrics.requests.items()):
        buckets: list[tuple[str, float]] = []
        seen = 0
        for bound, count in zip([*map(str, BOUNDS), "+Inf"], list(timings.buckets), strict=True):
            seen += count
            buckets.append((bound, seen))
        histogram.add_metric([api], buckets, timings.seconds)
    yield histogram
    row = METRICS["klamm_request_errors"]
    errors = CounterMetricFamily(row.name, row.doc, labels=row.labels)
    for (api, code), count in list(metrics.errors.items()):
        errors.add_metric([api, _name_of(code)], count)
    yield errors


def _name_of(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


def _counter(name: str, value: float) -> Metric:
    return CounterMetricFamily(name, METRICS[name].doc, value=value)


def _labelled(name: str, counts: Mapping[Any, float]) -> Metric:
    row = METRICS[name]
    family = CounterMetricFamily(row.name, row.doc, labels=row.labels)
    for labels, count in list(counts.items()):
        family.add_metric(labels, count)
    return family


def _gauge(name: str, value: float) -> Metric:
    return GaugeMetricFamily(name, METRICS[name].doc, value=value)


def _family(name: str) -> GaugeMetricFamily:
    row = METRICS[name]
    return GaugeMetricFamily(row.name, row.doc, labels=row.labels)
