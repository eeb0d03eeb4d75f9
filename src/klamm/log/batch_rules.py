"""The rules of a topic for a batch before it is appended: size, codec, keys, timestamps.

max.message.bytes          RecordTooLarge, also if another codec makes it larger
cleanup.policy=compact     each record has a key, or InvalidRecord
message.timestamp.*        see timestamps.py; with LogAppendTime the batch gets the time of its append
compression.type           a batch of another codec is compressed again; `producer`: it stays as it is

Most topics only limit the size (`are_plain`), which the caller checks itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.batch import CODECS, RecordScan, Scan, parse, patch, recompress
from klamm.errors import InvalidRecord, RecordTooLarge
from klamm.log import timestamps

if TYPE_CHECKING:
    from klamm.log.log_settings import LogSettings
    from klamm.log.partition import Partition

__all__ = ["BatchRules", "codec_of"]

_NAMES = {**CODECS, "uncompressed": 0}  # as Kafka calls it


def codec_of(settings: LogSettings) -> tuple[int, int | None] | None:
    """Return the codec and level for batches of a topic; None: each batch keeps its producer's."""
    name = settings.compression_type
    if name == "producer":
        return None
    level = settings.compression_levels.get(name)
    return _NAMES[name], level


class BatchRules:
    """The rules of one topic, as of one version of its settings. Each call takes the partition that holds them."""

    __slots__ = ("are_plain", "codec", "is_keyed", "level", "max_bytes", "reads_records", "stamps")

    def __init__(self, settings: LogSettings) -> None:
        self.max_bytes = settings.max_message_bytes
        self.is_keyed = "compact" in settings.cleanup_policy
        self.stamps = settings.message_timestamp_type == "LogAppendTime"
        self.reads_records = self.is_keyed or settings.timestamp_limits_ms[0] < timestamps.NO_LIMIT
        """Whether what is in a batch has to be looked at."""
        self.codec, self.level = codec_of(settings) or (-1, None)
        self.are_plain = not (self.stamps or self.reads_records or self.codec >= 0)

    def prepare(
        self, partition: Partition, batch: bytearray | memoryview, size: int, *, is_checked: bool = False
    ) -> tuple[bytearray | memoryview, int]:
        """Return the batch to append, in the first bytes of a buffer: the given one, or one compressed again.

        The given one gets its timestamp in any case. `is_checked`: its records were checked already.
        """
        self._check_size(partition, size)
        if self.reads_records and not is_checked:
            self.check_records(partition, batch, size)
        if self.stamps:
            patch.stamp(batch, size, partition.heads.wall_ms())
        if self.has_codec(batch):
            return batch, size
        batch = recompress(memoryview(batch)[:size], self.codec, self.level)
        self._check_size(partition, len(batch))
        return batch, len(batch)

    def has_codec(self, batch: bytearray | memoryview) -> bool:
        """Return whether the batch may stay compressed as it is."""
        return self.codec < 0 or parse(batch).codec == self.codec

    def _check_size(self, partition: Partition, size: int) -> None:
        if size > self.max_bytes:
            raise RecordTooLarge(
                f"The record batch size in the append to {partition.topic}-{partition.number} is {size} bytes which"
                f" exceeds the maximum configured value of {self.max_bytes}.",
                hint="send smaller records, or raise the topic's max.message.bytes",
            )

    def check_records(self, partition: Partition, batch: bytearray | memoryview | bytes, size: int) -> None:
        """Check keys and timestamps: of batches from clients, and of our own, in case the settings have changed."""
        found = RecordScan(memoryview(batch)[:size])
        if self.is_keyed and found.unkeyed:
            raise InvalidRecord(
                f"{partition.topic}/{partition.number}: a record without a key, and the topic is compacted",
                indexes=found.unkeyed,
                hint="give it a key: compaction keeps the latest record of each",
            )
        if not self.accepts(partition, found.result):
            raise timestamps.refusal(partition, memoryview(batch)[:size])

    def accepts(self, partition: Partition, scan: Scan) -> bool:
        """Return whether the topic accepts the keys and timestamps of a batch."""
        earliest, latest = partition.timestamp_bounds()
        return (scan[0] or not self.is_keyed) and earliest <= scan[1] and scan[2] <= latest
