"""A partition of a cluster: its ends, times, and its records as batches."""

from __future__ import annotations

import time
from bisect import bisect_left
from contextlib import AbstractContextManager
from operator import attrgetter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

from klamm.batch import Record, batches_of, records_of
from klamm.cluster.address import consumer_options, import_confluent_kafka
from klamm.cluster.kafka_errors import ELECTING, OUT_OF_RANGE, error_of, translated
from klamm.errors import OffsetOutOfRange, UnknownTopic, Unreachable
from klamm.log.partition import Ends
from klamm.store.settings import Settings
from klamm.types import TopicPartition

if TYPE_CHECKING:
    from klamm.cluster.cluster_core import ClusterCore
    from klamm.store.directory import OpenTopic

__all__ = ["ClusterPartition", "batches_from", "not_before", "out_of_range", "reading_config", "receive"]

_BATCH_BYTES = 64 << 10
_AT_ONCE = 5_000  # messages
_SLICE_S = 0.2
_SILENCE_S = 30.0  # a cluster that has records and sends none for so long does not answer
_offset_of = attrgetter("offset")


def reading_config(core: ClusterCore, group: str = "klamm-reader", *, committed: bool = True) -> dict[str, Any]:
    """Return the options of a consumer that is assigned its partitions and commits nothing."""
    return {
        "fetch.wait.max.ms": 100,  # a partition that is assigned waits for the fetch that is under way
        "fetch.queue.backoff.ms": 5,
        "queued.max.messages.kbytes": 16_384,
        **consumer_options(core.config),
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed" if committed else "read_uncommitted",
    }


def receive(consumer: Any, most: int, wait_s: float) -> list[Any]:
    """Return the messages that are there; wait for the first, and not, as `consume` does, until there are so many."""
    first = consumer.poll(wait_s)
    return [] if first is None else [first, *consumer.consume(most, 0)]


def not_before(records: list[Record], offset: int) -> list[Record]:
    """Return the records from `offset` on: librdkafka may read a part again, after the leader has changed."""
    if records[0].offset >= offset:
        return records
    return records[bisect_left(records, offset, key=_offset_of) :]


def batches_from(records: list[Record], offset: int) -> tuple[list[memoryview], int]:
    """Return the records from `offset` on as batches, in which offsets follow one another, and the offset behind."""
    records = not_before(records, offset)
    return batches_of(records, _BATCH_BYTES), records[-1].offset + 1 if records else offset


def out_of_range(partition: TopicPartition, offset: int, ends: Ends, hint: str) -> OffsetOutOfRange:
    """Return the error for an offset that a partition does not have, any more or yet."""
    return OffsetOutOfRange(
        f"{partition.topic}/{partition.partition}: offset {offset} is not in [{ends.start}, {ends.end})",
        offset=offset,
        start=ends.start,
        end=ends.end,
        hint=hint,
    )


class ClusterPartition:
    """A partition of a cluster, as the layers above ask it of a log; for any thread."""

    def __init__(self, core: ClusterCore, opened: OpenTopic, number: int) -> None:
        self._core = core
        self._opened = opened
        self.topic = opened.name
        self.number = number
        self.name = TopicPartition(opened.name, number)
        self.directory = f"{core.path}: {opened.name}/{number}"
        self.cleanup = SimpleNamespace(delete_before=lambda offset: core.admin.delete_records(self.name, offset))

    def __repr__(self) -> str:
        return f"<ClusterPartition {self.topic}/{self.number} of {self._core.path}>"

    @staticmethod
    def check(opened: OpenTopic, number: object) -> None:
        """Raise UnknownTopic if the topic has no such partition."""
        if not isinstance(number, int) or not 0 <= number < opened.count:
            raise UnknownTopic(
                f"{opened.name}: there is no partition {number!r}", hint=f"it has {opened.count}, numbered from 0"
            )

    @property
    def settings(self) -> Settings:
        return self._opened.topic.settings

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def ends(self) -> Ends:
        """Return where the log begins and ends now."""
        return self._core.admin.ends([self.name])[self.name]

    def log_size(self) -> int:
        """Return 0: librdkafka does not tell the size of a log."""
        return 0

    def offset_at(self, timestamp_ms: int) -> int | None:
        return self._core.admin.offset_at(self.name, timestamp_ms)

    def end_of_epoch(self, epoch: int) -> int:
        """Return an offset that no log reaches: what a cluster has acknowledged is not taken back."""
        return 2**63 - 1

    def reader(self, offset: int, *, committed: bool = True) -> Reader:
        """Return what reads from an offset up to where the log ends now."""
        return Reader(self._core, self.name, offset, committed=committed)


class Reader(AbstractContextManager["Reader"]):
    """Reads a partition as batches, up to where it ended when the first were read."""

    def __init__(self, core: ClusterCore, name: TopicPartition, offset: int, *, committed: bool) -> None:
        self._core = core
        self._name = name
        self._committed = committed
        self._consumer: Any = None
        self._end = 0
        self.offset = offset

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _open(self) -> None:
        ends = self._check_range(self.offset)
        self._end = ends.stable if self._committed else ends.end
        config = reading_config(self._core, committed=self._committed)
        with translated(self._core.path):
            self._consumer = import_confluent_kafka().Consumer(config, logger=self._core.admin.logger)
        self._read_from(self.offset)

    def _check_range(self, offset: int) -> Ends:
        """Return the ends of the partition. OffsetOutOfRange if it does not have the offset."""
        ends = self._core.admin.ends([self._name])[self._name]
        if not ends.start <= offset <= ends.end:
            raise out_of_range(self._name, offset, ends, "start at an offset in that range, or at 'earliest'")
        return ends

    def _read_from(self, offset: int) -> None:
        with translated(self._core.path):
            self._consumer.assign([import_confluent_kafka().TopicPartition(*self._name, offset)])

    def read(self, size: int) -> memoryview:
        """Return about so many bytes of batches, and move `offset` behind them; none at the end."""
        if self._consumer is None:
            self._open()
        batches: list[memoryview] = []
        position, silent_at = self.offset, time.monotonic() + _SILENCE_S
        while position < self._end and sum(map(len, batches)) < size:
            with translated(self._core.path):
                received = receive(self._consumer, _AT_ONCE, _SLICE_S if position == self.offset else 0)
            if not received and position > self.offset:
                break
            for topic, _, found in records_of(received):
                if isinstance(found, list):
                    more, position = batches_from(found, position)
                    batches += more
                elif topic is not None:
                    position = self._take_error(found.error(), found.offset(), position)
            if received:
                silent_at = time.monotonic() + _SILENCE_S
            elif time.monotonic() > silent_at:
                raise Unreachable(f"{self._core.path}: {self._name.topic} was not sent for {_SILENCE_S:g} s")
        self.offset = position
        return memoryview(b"".join(batches))

    def _take_error(self, error: Any, offset: int, position: int) -> int:
        """Return the position behind what librdkafka reports; raise if that ends the reading."""
        if error.name() == "_PARTITION_EOF":
            return max(position, offset)
        if error.name() in OUT_OF_RANGE:
            self._check_range(position)
            self._read_from(position)
        elif error.name() not in ELECTING:
            raise error_of(f"{self._core.path}: {self._name.topic}/{self._name.partition}", error)
        return position
