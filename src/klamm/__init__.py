"""Klamm: a durable, replayable event log in a directory, shared by processes, without a daemon.

    store = klamm.open("events/")
    store.create_topic("orders")
    store.append("orders", b"hello", key=b"user-1")

`klamm.aio` has the same for asyncio; `klamm.server` lets Kafka clients in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from klamm.api import Store, check, open  # noqa: A004  # klamm.open is meant
from klamm.batch import Delivery, Record
from klamm.client import Consumer, Offsets, Producer
from klamm.errors import (
    Aborted,
    BatchConflict,
    BufferFull,
    CommitGap,
    CorruptBatch,
    DiskFull,
    Fenced,
    Forked,
    GroupBusy,
    GroupError,
    InvalidRecord,
    InvalidSetting,
    InvalidTimestamp,
    InvalidTopic,
    KlammError,
    LogError,
    NewerFormat,
    NotAStore,
    NotOwner,
    OffsetOutOfRange,
    OnceMismatch,
    OutOfOrderSequence,
    ReadOnly,
    RecordTooLarge,
    StoreBusy,
    StoreError,
    SyncFailed,
    TopicError,
    TopicExists,
    TransactionError,
    UnknownGroup,
    UnknownTopic,
    UnsupportedFilesystem,
)
from klamm.types import (
    Appended,
    Batch,
    Committed,
    CompactionReport,
    GroupInfo,
    GroupMember,
    GroupOffset,
    InputRange,
    Lineage,
    LockInfo,
    OffsetMove,
    OutputRange,
    PartitionInfo,
    Position,
    RunReport,
    TopicInfo,
    TransactionInfo,
)

if TYPE_CHECKING:
    from klamm import aio, testing
    from klamm.client.dead_letters import DeadLetter
    from klamm.client.sql_offsets import SqlOffsets
    from klamm.client.table import Table
    from klamm.client.transaction import Transaction
    from klamm.kafka.background import server

__all__ = [
    "Aborted",
    "Appended",
    "Batch",
    "BatchConflict",
    "BufferFull",
    "CommitGap",
    "Committed",
    "CompactionReport",
    "Consumer",
    "CorruptBatch",
    "DeadLetter",
    "Delivery",
    "DiskFull",
    "Fenced",
    "Forked",
    "GroupBusy",
    "GroupError",
    "GroupInfo",
    "GroupMember",
    "GroupOffset",
    "InputRange",
    "InvalidRecord",
    "InvalidSetting",
    "InvalidTimestamp",
    "InvalidTopic",
    "KlammError",
    "Lineage",
    "LockInfo",
    "LogError",
    "NewerFormat",
    "NotAStore",
    "NotOwner",
    "OffsetMove",
    "OffsetOutOfRange",
    "Offsets",
    "OnceMismatch",
    "OutOfOrderSequence",
    "OutputRange",
    "PartitionInfo",
    "Position",
    "Producer",
    "ReadOnly",
    "Record",
    "RecordTooLarge",
    "RunReport",
    "SqlOffsets",
    "Store",
    "StoreBusy",
    "StoreError",
    "SyncFailed",
    "Table",
    "TopicError",
    "TopicExists",
    "TopicInfo",
    "Transaction",
    "TransactionError",
    "TransactionInfo",
    "UnknownGroup",
    "UnknownTopic",
    "UnsupportedFilesystem",
    "__version__",
    "aio",
    "check",
    "open",
    "server",
    "testing",
]

__version__ = "0.1.0"


# Imported when somebody wants them, so that `import klamm` is quick for everybody else.
_LATER = {
    "DeadLetter": "klamm.client.dead_letters",
    "SqlOffsets": "klamm.client.sql_offsets",
    "Table": "klamm.client.table",
    "Transaction": "klamm.client.transaction",
    "server": "klamm.kafka.background",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name in ("aio", "testing"):
        return importlib.import_module(f"klamm.{name}")
    if name in _LATER:
        found = globals()[name] = getattr(importlib.import_module(_LATER[name]), name)
        return found
    raise AttributeError(f"module 'klamm' has no attribute {name!r}")
