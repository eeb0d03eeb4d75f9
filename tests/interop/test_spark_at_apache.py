"""format("klamm") and pipelines at an Apache Kafka: it is read like a server of Klamm, and never written to. Without
Spark.
"""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from klamm.errors import InvalidSetting, Unsupported
from klamm.spark.options import ReadOptions
from klamm.spark.pipelines import archive, deduplicate, quality
from klamm.spark.pipelines.journal import Journal
from klamm.spark.planner import Planner
from klamm.spark.range_reader import Task, forget_store, read, schema_for
from klamm.spark.server.client import client_of
from klamm.spark.server.decision import check_server
from tests.interop.brokers import Broker, fresh
from tests.procs import until
from tests.spark.pipelines.test_without_spark import rows_of


def test_committed_records_are_read_and_writing_is_refused(apache_broker: Broker) -> None:
    topic = apache_broker.topic(2)
    producer = Producer({"bootstrap.servers": apache_broker.address, "transactional.id": fresh("spark")})
    producer.init_transactions(60)
    wanted = []
    for number in range(6):
        producer.begin_transaction()
        for n in range(20):
            producer.produce(topic, b"%d %d" % (number, n), partition=n % 2)
        if number % 2:
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)
            wanted += [b"%d %d" % (number, n) for n in range(20)]
    chosen = ReadOptions.parse({"server": apache_broker.address, "subscribe": topic}, streaming=False)
    with closing(Planner(chosen)) as planner:
        ranges, store_id = planner.batch(), planner.store_id
        initial = planner.initial()
        assert planner.between(initial, planner.latest(initial)) == ranges
    found: list[Any] = []
    for each in ranges:
        task = Task(chosen.path, store_id, each, chosen.isolation, True, chosen.server)
        for batch in read(task, schema_for(chosen.columns)):
            found += batch.column("value").to_pylist()
    forget_store()
    assert sorted(found) == sorted(wanted)
    assert chosen.server is not None
    client = client_of(chosen.server)
    with pytest.raises(Unsupported, match=r"it is not klamm serve .*nothing was written"):
        check_server(client)
    client.close()


def test_a_topic_is_archived_once_and_pipelines_that_write_to_it_are_refused(
    apache_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, out = apache_broker.topic(2), tmp_path / "out"
    where = f"kafka://{apache_broker.address}"
    producer = Producer({"bootstrap.servers": apache_broker.address, "compression.type": "zstd"})

    def send(first: int) -> None:
        for n in range(first, first + 20):
            producer.produce(topic, b"%d" % n, key=b"k%d" % (n % 3), partition=n % 2, timestamp=1_700_000_000_000 + n)
        producer.flush(60)

    send(0)
    report = archive(None, where, topic, out, max_offsets=15)
    assert (report.rows_written, report.batches) == (20, 2)
    send(20)
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "commit", _die)
        with pytest.raises(KeyboardInterrupt):
            archive(None, where, topic, out)
    send(40)
    assert archive(None, where, topic, out).rows_written == 40
    rows = sorted((row[0], row[1], row[3], row[4]) for row in rows_of(out))
    assert rows == [(p, n, b"k%d" % ((2 * n + p) % 3), b"%d" % (2 * n + p)) for p in range(2) for n in range(30)]
    kept = json.loads((out / "_klamm" / "topic.json").read_text())
    assert (kept["partitions"], kept["starts"]) == (2, [0, 0])
    assert quality(None, where, topic).records == 60

    once: Any = {"by": "key", "within": "1m", "checkpoint": tmp_path / "once"}
    spark: Any = object()  # what is refused needs none
    with pytest.raises(Unsupported, match="is not klamm serve, so results could be there twice, or in part"):
        deduplicate(spark, where, topic, fresh("once"), **once)
    with pytest.raises(Unsupported, match="so dead letters could be there twice"):
        archive(spark, where, topic, tmp_path / "typed", schema="id INT")
    assert [each.name for each in tmp_path.iterdir()] == ["out"]

    admin = AdminClient({"bootstrap.servers": apache_broker.address})
    admin.delete_topics([topic])[topic].result(60)
    until(lambda: topic not in admin.list_topics(timeout=60).topics, "the topic is gone")
    admin.create_topics([NewTopic(topic, 2)])[topic].result(60)
    until(lambda: topic in admin.list_topics(timeout=60).topics, "the topic is there again")
    with pytest.raises(InvalidSetting, match="it was deleted and re-created"):
        archive(None, where, topic, out)


def _die(*_: object, **__: object) -> None:
    raise KeyboardInterrupt
