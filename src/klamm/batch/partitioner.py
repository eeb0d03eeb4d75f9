"""The partitioner: choose the partition of a record.

    with a key     murmur2 of its bytes, as in Kafka's Java client: a key goes to the same partition from any client
    without one    sticky: the records of one batch go to one partition, the next batch goes to the next one
    your own       any callable (key, partition count) -> partition

The sticky choice depends on when a batch is closed, so `RecordAccumulator` makes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from klamm.batch._kernel import checked_partition, murmur2, partition_for

__all__ = ["Partitioner", "checked_partition", "murmur2", "partition_for"]

Partitioner: TypeAlias = Callable[[bytes | None, int], int]
"""Key and number of partitions -> partition."""
