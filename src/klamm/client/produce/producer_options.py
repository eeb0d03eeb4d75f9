"""What can be said when a producer is made, or a transaction, for those who pass it on: Store, and klamm.aio's.

`Producer.__init__` and `Transaction.__init__` have the defaults; a test keeps the names the same.
"""

from __future__ import annotations

from typing import TypedDict

from klamm.batch import Partitioner
from klamm.client.options import Acks
from klamm.client.serde import Serde
from klamm.times import Duration

__all__ = ["ProducerOptions", "SendingOptions", "TransactionOptions"]


class SendingOptions(TypedDict, total=False):
    serde: Serde | None
    key_serde: Serde | None
    compression: str | None
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
