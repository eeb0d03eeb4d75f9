"""format("klamm") at an Apache Kafka: it is read like a server of Klamm, and never written to. Without Spark."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Producer

from klamm.errors import Unsupported
from klamm.spark.options import ReadOptions
from klamm.spark.planner import Planner
from klamm.spark.range_reader import Task, forget_store, read, schema_for
from klamm.spark.server.decision import check_server, client_of
from tests.interop.brokers import Broker, fresh


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
