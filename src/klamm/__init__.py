"""Klamm: a durable, replayable event log in a directory, shared by processes, without a daemon.

    store = klamm.open("events/")
    store.create_topic("orders")
    store.append("orders", b"hello", key=b"user-1")

`klamm.aio` has the same for asyncio.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from klamm.api import Store, check, open  # noqa: A004  # klamm.open is meant
from klamm.batch import Delivery, Record
from klamm.client import Consumer, Producer
from klamm.errors import (
    BufferFull,
    CorruptBatch,
    DiskFull,
    Fenced,
    Forked,
    InvalidSetting,
    InvalidTopic,
    KlammError,
    LogError,
    NewerFormat,
    NotAStore,
    OffsetOutOfRange,
    OutOfOrderSequence,
    ReadOnly,
    RecordTooLarge,
    StoreBusy,
    StoreError,
    SyncFailed,
    TopicError,
    TopicExists,
    TransactionError,
    UnknownTopic,
    UnsupportedFilesystem,
)
from klamm.types import Appended, Batch, PartitionInfo, Position, TopicInfo

if TYPE_CHECKING:
    from klamm import aio

__all__ = [
    "Appended",
    "Batch",
    "BufferFull",
    "Consumer",
    "CorruptBatch",
    "Delivery",
    "DiskFull",
    "Fenced",
    "Forked",
    "InvalidSetting",
    "InvalidTopic",
    "KlammError",
    "LogError",
    "NewerFormat",
    "NotAStore",
    "OffsetOutOfRange",
    "OutOfOrderSequence",
    "PartitionInfo",
    "Position",
    "Producer",
    "ReadOnly",
    "Record",
    "RecordTooLarge",
    "Store",
    "StoreBusy",
    "StoreError",
    "SyncFailed",
    "TopicError",
    "TopicExists",
    "TopicInfo",
    "TransactionError",
    "UnknownTopic",
    "UnsupportedFilesystem",
    "__version__",
    "aio",
    "check",
    "open",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "aio":  # asyncio is imported when somebody wants it
        import importlib

        return importlib.import_module("klamm.aio")
    raise AttributeError(f"module 'klamm' has no attribute {name!r}")
