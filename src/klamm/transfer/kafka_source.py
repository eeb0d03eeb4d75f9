"""A Kafka server or cluster, as a source: its committed records, read by librdkafka, in batches with their offsets."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from klamm.batch import Record, records_of
from klamm.cluster.address import client_config, import_confluent_kafka, public_name
from klamm.cluster.cluster_partition import batches_from, out_of_range
from klamm.cluster.kafka_admin import KafkaAdmin
from klamm.cluster.kafka_errors import ELECTING, OUT_OF_RANGE, error_of, translated
from klamm.errors import UnknownTopic, Unreachable
from klamm.transfer.chunk import Chunk, SourceTopic
from klamm.transfer.chunk import records_of as records_of_chunk
from klamm.types import TopicPartition
from klamm.where import Where, fixed, offset_between, time_of

__all__ = ["KafkaSource"]

_AT_ONCE = 5_000  # records
_WAIT_S = 0.2
_SILENCE_S = 60.0  # a server that has records and sends none for so long does not answer


class KafkaSource:
    """See chunk.Source."""

    def __init__(self, address: str) -> None:
        self._kafka = import_confluent_kafka()
        self.name = public_name(address)
        config = client_config(address)
        self._admin = KafkaAdmin(config, self.name)
        self._config = {
            **config,
            "group.id": "klamm-copy",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
        self.source_id = self._admin.cluster_id

    def _consumer(self) -> Any:
        with translated(self.name):
            return self._kafka.Consumer(self._config, logger=self._admin.logger)

    def topic_names(self) -> list[str]:
        return [name for name in self._admin.partition_counts() if not name.startswith("__")]

    def describe(self, names: Sequence[str]) -> list[SourceTopic]:
        counts, settings = self._admin.partition_counts(), self._admin.known_settings(names)
        for name in set(names) - counts.keys():
            raise UnknownTopic(f"{self.name}: Topic {name!r} does not exist")
        return [SourceTopic(name, counts[name], settings[name]) for name in names]

    def start(self, partition: TopicPartition, since: Where) -> int:
        where = fixed(since, time.time_ns() // 1_000_000)
        first, end = self.bounds(partition)
        time_ms = time_of(where)
        if time_ms is not None:
            found = self._admin.offset_at(partition, time_ms)
            return end if found is None else found
        return offset_between(where, partition, first, end)

    def bounds(self, partition: TopicPartition) -> tuple[int, int]:
        ends = self._admin.ends([partition])[partition]
        return ends.start, ends.end

    def read_between(self, partition: TopicPartition, start: int, end: int) -> list[Record]:
        records: list[Record] = []
        for chunk in self.chunks({partition: start}, follow=False, limits={partition: end}):
            if chunk is not None:
                records += records_of_chunk(chunk, start, end)
        return records

    def chunks(
        self,
        positions: Mapping[TopicPartition, int],
        *,
        follow: bool,
        limits: Mapping[TopicPartition, int] | None = None,
    ) -> Iterator[Chunk | None]:
        limits = limits or {partition: self.bounds(partition)[1] for partition in positions}
        reading = dict(positions)
        left = {partition for partition, offset in positions.items() if follow or offset < limits[partition]}
        consumer = self._consumer()
        silent_at = time.monotonic() + _SILENCE_S
        try:
            with translated(self.name):
                consumer.assign([self._kafka.TopicPartition(*partition, reading[partition]) for partition in left])
            while left:
                with translated(self.name):
                    messages = consumer.consume(_AT_ONCE, _WAIT_S)
                heard = False
                for topic, number, found in records_of(messages):
                    if topic is None:  # of a broker that librdkafka connects to again
                        continue
                    heard = True
                    partition = TopicPartition(topic, number)
                    if partition not in left:
                        continue
                    chunk, code = self._take(partition, reading[partition], found)
                    reading[partition] = chunk.end
                    if chunk.end > chunk.start:
                        yield chunk
                    # At its end, maybe before the limit: an open transaction may be in front of it.
                    if not follow and (chunk.end >= limits[partition] or code == "_PARTITION_EOF"):
                        left.discard(partition)
                        consumer.incremental_unassign([self._kafka.TopicPartition(*partition)])
                    elif code in OUT_OF_RANGE:
                        self._read_again(consumer, partition, chunk.end)
                if heard:
                    silent_at = time.monotonic() + _SILENCE_S
                elif left:
                    if not follow and time.monotonic() > silent_at:
                        raise Unreachable(
                            f"{self.name}: sent no records for {_SILENCE_S:g} s",
                            hint="check that enough servers run, and run it again: it goes on where it was",
                        )
                    yield None
        finally:
            consumer.close()

    def _take(self, partition: TopicPartition, start: int, found: Any) -> tuple[Chunk, str]:
        """Return the chunk from `start` on that records or a message of a partition make, and what the message reports:
        librdkafka's name of it; empty for records.
        """
        if isinstance(found, list):
            batches, end = batches_from(found, start)
            return Chunk(partition, start, end, batches), ""
        error = found.error()
        code = str(error.name())
        if code not in ("_PARTITION_EOF", *ELECTING, *OUT_OF_RANGE):
            raise error_of(f"{self.name}: {partition.topic}/{partition.partition}", error)
        return Chunk(partition, start, max(start, found.offset()) if code == "_PARTITION_EOF" else start, ()), code

    def _read_again(self, consumer: Any, partition: TopicPartition, offset: int) -> None:
        """Ask for an offset again that the leader did not have. OffsetOutOfRange if it was removed."""
        ends = self._admin.ends([partition])[partition]
        if not ends.start <= offset <= ends.end:
            raise out_of_range(partition, offset, ends, "since='earliest' (--since earliest) goes on behind the gap")
        with translated(self.name):
            consumer.incremental_unassign([self._kafka.TopicPartition(*partition)])
            consumer.incremental_assign([self._kafka.TopicPartition(*partition, offset)])

    def groups(self, partitions: Sequence[TopicPartition]) -> dict[str, dict[TopicPartition, int]]:
        return self._admin.groups(partitions)

    def close(self) -> None:
        self._admin.close()
