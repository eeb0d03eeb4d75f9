"""Spark's own Kafka connector against klamm serve: batch, streaming, and real-time mode."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import klamm
from tests.procs import until
from tests.serving import serving
from tests.spark.conftest import connector_is_here

pytest.importorskip("pyspark")

pytestmark = [
    pytest.mark.skipif(not connector_is_here(), reason="`make tools` fetches Spark's Kafka connector"),
    pytest.mark.timeout(300),
]


def values(store: klamm.Store, topic: str) -> list[int]:
    with store.consumer(topic, start="earliest", wait=0) as consumer:
        return sorted(int(record.value) for record in consumer)


def test_batch_stream_and_real_time_mode(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "events"
    with klamm.open(path) as store, serving(path) as server:
        for topic in ("orders", "batch", "stream", "live"):
            store.topics.create(topic, 2)
        store.append_many("orders", [(b"%d" % n, b"%d" % n) for n in range(1000)], acks=1)
        options = {"kafka.bootstrap.servers": server.address}

        read = spark.read.format("kafka").options(**options, subscribe="orders").load()
        assert read.count() == 1000
        read.write.format("kafka").options(**options, topic="batch").save()
        assert values(store, "batch") == list(range(1000))

        reader = spark.readStream.format("kafka").options(**options, subscribe="orders", startingOffsets="earliest")
        writer = reader.load().select("key", "value").writeStream.format("kafka").options(**options, topic="stream")
        writer = writer.option("checkpointLocation", str(tmp_path / "stream")).trigger(availableNow=True)
        writer.start().awaitTermination()
        assert values(store, "stream") == list(range(1000))

        live = spark.readStream.format("kafka").options(**options, subscribe="orders", startingOffsets="latest").load()
        # Its tasks all run at the same time, one a partition: two, as there are cores.
        query = (
            live.select("key", "value")
            .writeStream.format("kafka")
            .options(**options, topic="live", checkpointLocation=str(tmp_path / "live"))
            .outputMode("update")
            .trigger(realTime="5 minutes")
            .start()
        )
        try:
            with store.consumer("live", start="earliest") as consumer:

                def round_trip(value: bytes, timeout_ms: float) -> float | None:
                    """Milliseconds from `orders` through Spark to `live`; None if it takes longer."""
                    begin = time.perf_counter()
                    store.append("orders", value, acks=1)
                    while (took := (time.perf_counter() - begin) * 1000) < timeout_ms:
                        if value in [record.value for record in consumer.poll(timeout=(timeout_ms - took) / 1000)]:
                            return (time.perf_counter() - begin) * 1000
                        assert query.isActive, query.exception()
                    return None

                # Nobody is told when the query begins to listen.
                until(lambda: round_trip(b"%d" % time.monotonic_ns(), 500), "a record goes through", 200)
                took = [round_trip(b"%d" % number, 100_000) for number in range(30)]
            print("ms:", [each and round(each, 1) for each in took])
            assert None not in took, "a micro-batch would take five minutes"
        finally:
            query.stop()
