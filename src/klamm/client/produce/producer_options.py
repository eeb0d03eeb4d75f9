"""The keyword arguments of producers and transactions, as types: for the signatures of `store.producer(…)`,
`store.transaction(…)` and their siblings, which pass them on.

`serde` and `key_serde` are not among them: each overload of those methods has its own types for them. The defaults are
those of `Producer.__init__` and `Transaction.__init__`; a test compares the names.
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
