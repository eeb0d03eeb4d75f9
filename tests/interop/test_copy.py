"""`klamm copy` to and from an Apache Kafka."""

from __future__ import annotations

from pathlib import Path

import pytest

import klamm
from tests.interop.brokers import Broker, fresh

pytestmark = pytest.mark.jvm


def contents(store: klamm.Store, topic: str) -> dict[int, list[tuple[object, ...]]]:
    found: dict[int, list[tuple[object, ...]]] = {}
    with store[topic].consumer(start="earliest", wait=0) as consumer:
        for record in consumer:
            about = (record.timestamp, record.key, record.value, tuple(record.headers))
            found.setdefault(record.partition, []).append(about)
    return found


def next_record(store: klamm.Store, topic: str, group: str) -> tuple[object, ...]:
    """What the group gets next in the partition that it has committed an offset of."""
    (offset_of,) = [each for each in store.groups.describe(group).offsets if each.committed is not None]
    assert offset_of.committed is not None
    with store[topic].consumer(partitions=[offset_of.partition], start=offset_of.committed.offset, wait=0) as consumer:
        record = consumer.poll(1)[0]
    return offset_of.partition, record.key, record.value


def test_a_topic_goes_to_an_apache_kafka_and_comes_back(apache_broker: Broker, tmp_path: Path) -> None:
    name, group = fresh("orders"), fresh("group")
    address = f"kafka://{apache_broker.address}"
    with klamm.open(tmp_path / "source") as source, klamm.open(tmp_path / "back") as back:
        topic = source.topics.create(name, 2, {"retention.ms": "-1", "segment.bytes": str(1 << 20)})
        for codec in ("none", "gzip", "zstd"):
            topic.append_many([(b"k%d" % n, b"%d" % n) for n in range(200)], compression=codec)
            with source.transaction(batch_bytes=64) as tx:
                tx.send(name, b"aborted" * 100)  # more than a batch: in the log before it is aborted
                tx.abort()
            topic.append(None, key=b"gone", headers={"why": b"x", "none": None})
        with topic.consumer(group=group, wait=0) as consumer:
            consumer.poll(77)
            consumer.commit()
        first = klamm.copy(source, address, topics=name)
        topic.append_many([(b"k%d" % n, b"more") for n in range(50)])
        again = klamm.copy(source, address, topics=name)
        assert first.groups == [group] and again.offsets == 50
        klamm.copy(address, back, topics=name)
        assert contents(back, name) == contents(source, name)
        assert back[name].info().settings == source[name].info().settings
        klamm.copy(address, back, topics=name)
        assert next_record(back, name, group) == next_record(source, name, group)
        assert back.check().breaches == []
