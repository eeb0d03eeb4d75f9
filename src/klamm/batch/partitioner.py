"""The partitioner: choose the partition of a record.

    with a key     murmur2 of its bytes, as Kafka's Java client has it: the same key, the same partition, from anywhere
    without one    sticky: the records of one batch go to one partition, the next batch goes to the next one
    your own       any callable (key, partition count) -> partition

Sticky placement needs to know when a batch is closed, so it lives where batches are made (`RecordAccumulator`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from klamm.batch._kernel import checked_partition, murmur2, partition_for

__all__ = ["Partitioner", "checked_partition", "murmur2", "partition_for"]

Partitioner: TypeAlias = Callable[[bytes | None, int], int]
"""Key and number of partitions -> partition."""
