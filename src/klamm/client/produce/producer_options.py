"""The options of a producer, and of a transaction, but for their serdes: for overloads of the calls that make them.

`Producer.__init__` and `Transaction.__init__` have the defaults; a test keeps the names the same.
"""

from __future__ import annotations

from typing import TypedDict

from klamm.batch import Partitioner
from klamm.choices import Acks, Compression
from klamm.times import Duration

__all__ = ["ProducerOptions", "SendingOptions", "TransactionOptions"]


class SendingOptions(TypedDict, total=False):
    compression: Compression | None
    compression_level: int | None
    batch_bytes: int
    partitioner: Partitioner | None


class ProducerOptions(SendingOptions, total=False):
    acks: Acks
    linger_ms: float
    buffer_memory: int
    max_block_ms: float
    idempotent: bool


class TransactionOptions(SendingOptions, total=False):
    timeout: Duration
