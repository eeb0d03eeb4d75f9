"""Timestamps of batches that clients send: the header's is computed, and records too far from now are refused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import klamm
from klamm.batch import crc32c, parse
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.wire.messages import DESCRIBE_CONFIGS, LIST_OFFSETS
from tests.kafka.connect import Raw, Served, served
from tests.kafka.requests import NOW, altered, batches_of, fetch, produce, sealed

HOUR = 3600 * 1000
MAX_TIMESTAMP = 35


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("timestamps") / "events") as running:
        with running.dial() as raw:
            raw.create("hour", 1, retention_ms=str(HOUR))
            raw.create("orders")
            raw.create("strict", 1, message_timestamp_before_max_ms="120000", message_timestamp_after_max_ms="120000")
            raw.create("stamped", 1, message_timestamp_type="LogAppendTime")
        yield running


def now_ms() -> int:
    """Not when this module was imported: that may be minutes ago."""
    return time.time_ns() // 1_000_000


def offset_at(raw: Raw, topic: str, timestamp: int) -> int:
    wanted = LIST_OFFSETS.request.Partition(partition_index=0, timestamp=timestamp)
    asked = [LIST_OFFSETS.request.Topic(name=topic, partitions=[wanted])]
    (found,) = raw.ask(LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=asked).topics
    return int(found.partitions[0].offset)


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("claimed", [5, -1, NOW - 1, NOW + 7, (1 << 63) - 1, -(1 << 63)])
def test_the_max_timestamp_of_a_batch_is_computed_from_its_records(raw: Raw, codec: int, claimed: int) -> None:
    stamps = [NOW - 2000, NOW, NOW - 1000]
    batch = sealed([(None, b"v", None, stamp) for stamp in stamps], codec=codec)
    base = produce(raw, "orders", altered(batch, MAX_TIMESTAMP, ">q", claimed)).base_offset
    assert base >= 0
    (stored,) = batches_of(fetch(raw, "orders", base).records)
    assert parse(stored).max_timestamp == NOW
    assert parse(stored).crc == crc32c(stored[21:])
    assert stored[8:12] + stored[16:] == batch[8:12] + batch[16:], "and nothing else is another"


def test_a_false_max_timestamp_neither_deletes_acknowledged_records_nor_hides_them_nor_keeps_them(
    server: Served, raw: Raw
) -> None:
    partition = server.broker.core.topic("hour").partition(0)
    for claimed in (5, (1 << 63) - 1):
        batch = altered(sealed([(None, b"v", None, NOW)]), MAX_TIMESTAMP, ">q", claimed)
        assert produce(raw, "hour", batch, acks=-1).error_code == 0
    assert partition.cleanup.expire() == []
    assert partition.ends()[:2] == (0, 2), "no acknowledged record is gone"
    assert offset_at(raw, "hour", NOW - 1000) == 0
    assert partition.snapshot().max_timestamp == NOW, "and none keeps its segment forever"


@pytest.mark.parametrize("codec", [0, 4])
@pytest.mark.parametrize("ahead", [HOUR + 60_000, 1 << 61])
def test_a_record_too_far_ahead_is_refused_by_its_index(raw: Raw, codec: int, ahead: int) -> None:
    before = fetch(raw, "orders", 0).high_watermark
    now = now_ms()
    stamps = [now, now + ahead, now + HOUR - 60_000, now + ahead]
    response = produce(raw, "orders", sealed([(None, b"v", None, stamp) for stamp in stamps], codec=codec))
    assert (response.error_code, response.base_offset) == (ErrorCode.INVALID_TIMESTAMP, -1)
    assert "message.timestamp.after.max.ms" in response.error_message
    assert [each.batch_index for each in response.record_errors] == [1, 3]
    assert fetch(raw, "orders", 0).high_watermark == before


def test_a_topic_may_limit_the_past_too_and_records_without_a_timestamp_are_not_checked(raw: Raw) -> None:
    assert produce(raw, "orders", sealed([(None, b"v", None, 1)])).error_code == 0, "any past, unless it is limited"
    now = now_ms()
    old = produce(raw, "strict", sealed([(None, b"v", None, now), (None, b"v", None, 1)]))
    assert old.error_code == ErrorCode.INVALID_TIMESTAMP
    assert "message.timestamp.before.max.ms" in old.error_message
    assert [each.batch_index for each in old.record_errors] == [1]
    assert produce(raw, "strict", sealed([(None, b"v", None, now + 240_000)])).error_code == old.error_code
    none = altered(altered(sealed([(None, b"v", None, now)]), 27, ">q", -1), MAX_TIMESTAMP, ">q", -1)
    assert produce(raw, "strict", none).error_code == 0


def test_a_topic_with_append_time_takes_any_timestamp(raw: Raw) -> None:
    for stamp in (1, NOW + 99 * HOUR):
        response = produce(raw, "stamped", sealed([(None, b"v", None, stamp)]))
        assert response.error_code == 0
        (stored,) = batches_of(fetch(raw, "stamped", response.base_offset).records)
        assert parse(stored).max_timestamp == response.log_append_time_ms


def test_the_limits_are_shown_with_kafkas_defaults_and_can_be_set(raw: Raw) -> None:
    asked = [DESCRIBE_CONFIGS.request.Resource(resource_type=2, resource_name=name) for name in ("orders", "strict")]
    results = raw.ask(DESCRIBE_CONFIGS, 4, resources=asked).results
    shown = [{each.name: (each.value, each.read_only) for each in result.configs} for result in results]
    assert shown[0]["message.timestamp.after.max.ms"] == ("3600000", False)
    assert shown[0]["message.timestamp.before.max.ms"] == (str((1 << 63) - 1), False)
    assert shown[1]["message.timestamp.before.max.ms"] == ("120000", False)


def test_check_reports_a_batch_whose_max_timestamp_lies(path: Path) -> None:
    with klamm.open(path) as store:
        store.topics.create("t")
        log = store._acquired().topic("t").partition(0)
        log.append(sealed([(None, b"v", None, NOW)]))
        assert store.check().ok
        log.append(altered(sealed([(None, b"v", None, NOW)]), MAX_TIMESTAMP, ">q", 5))
        (breach,) = store.check().breaches
        assert f"max_timestamp is 5, but the largest of its records is {NOW}" in breach.message
