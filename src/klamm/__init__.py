"""Klamm: a durable, replayable event log in a directory, shared by processes, without a daemon.

    store = klamm.open("events/")
    orders = store.topics.create("orders")
    orders.append(b"hello", key=b"user-1")

`klamm.aio` has the same for asyncio; `klamm.server` lets Kafka clients in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from klamm.api import Store, Topic, Topics, Transactions, check, open  # noqa: A004  # klamm.open is meant
from klamm.batch import Delivery, Headers, Partitioner, Record
from klamm.choices import (
    Acks,
    AcksWithOffset,
    BadRecordPolicy,
    Column,
    Compression,
    Form,
    GroupState,
    Isolation,
    LockState,
    OffsetReset,
    PipeErrorPolicy,
    RunErrorPolicy,
    RunOrder,
    SerdeName,
    TypedBadRecordPolicy,
)
from klamm.client import Consumer, Offsets, Producer
from klamm.client.groups.assignment import Assignor
from klamm.client.groups.group_admin import Groups
from klamm.client.groups.group_session import RebalanceCallback
from klamm.client.serde import Serde, SerdePair
from klamm.client.subscription import TopicSelection
from klamm.errors import (
    Aborted,
    BatchConflict,
    BufferFull,
    Closed,
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
    NotInstalled,
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
    Unreachable,
    Unsupported,
    UnsupportedFilesystem,
)
from klamm.times import Duration
from klamm.types import (
    Appended,
    Batch,
    BytesLike,
    Committed,
    CompactionReport,
    Cut,
    GivenHeaders,
    GivenRecord,
    GroupInfo,
    GroupMember,
    GroupOffset,
    InputRange,
    Lineage,
    LockInfo,
    OffsetMove,
    OutputRange,
    PartitionInfo,
    PipeReport,
    Position,
    RunReport,
    TopicInfo,
    TopicPartition,
    TransactionInfo,
)
from klamm.where import Where, WhereLike, last

if TYPE_CHECKING:
    from klamm import aio, testing
    from klamm.arrow.scan import Scan
    from klamm.arrow.sql_result import SqlResult
    from klamm.client.groups.sql_offsets import SqlOffsets
    from klamm.client.pipe.output import Output, to
    from klamm.client.pipe.pipe import Pipe
    from klamm.client.pipe.state import State
    from klamm.client.table.table import Table
    from klamm.client.transaction import Transaction
    from klamm.client.work.dead_letters import DeadLetter, Origin
    from klamm.client.work.outcomes import Attempt
    from klamm.client.work.run_options import ErrorTypes
    from klamm.kafka.background import server
    from klamm.store.backup import Copied
    from klamm.store.check_partition import Breach, Report
    from klamm.transfer.copier import CopyReport, copy

__all__ = [
    "Aborted",
    "Acks",
    "AcksWithOffset",
    "Appended",
    "Assignor",
    "Attempt",
    "BadRecordPolicy",
    "Batch",
    "BatchConflict",
    "Breach",
    "BufferFull",
    "BytesLike",
    "Closed",
    "Column",
    "CommitGap",
    "Committed",
    "CompactionReport",
    "Compression",
    "Consumer",
    "Copied",
    "CopyReport",
    "CorruptBatch",
    "Cut",
    "DeadLetter",
    "Delivery",
    "DiskFull",
    "Duration",
    "ErrorTypes",
    "Fenced",
    "Forked",
    "Form",
    "GivenHeaders",
    "GivenRecord",
    "GroupBusy",
    "GroupError",
    "GroupInfo",
    "GroupMember",
    "GroupOffset",
    "GroupState",
    "Groups",
    "Headers",
    "InputRange",
    "InvalidRecord",
    "InvalidSetting",
    "InvalidTimestamp",
    "InvalidTopic",
    "Isolation",
    "KlammError",
    "Lineage",
    "LockInfo",
    "LockState",
    "LogError",
    "NewerFormat",
    "NotAStore",
    "NotInstalled",
    "NotOwner",
    "OffsetMove",
    "OffsetOutOfRange",
    "OffsetReset",
    "Offsets",
    "OnceMismatch",
    "Origin",
    "OutOfOrderSequence",
    "Output",
    "OutputRange",
    "PartitionInfo",
    "Partitioner",
    "Pipe",
    "PipeErrorPolicy",
    "PipeReport",
    "Position",
    "Producer",
    "ReadOnly",
    "RebalanceCallback",
    "Record",
    "RecordTooLarge",
    "Report",
    "RunErrorPolicy",
    "RunOrder",
    "RunReport",
    "Scan",
    "Serde",
    "SerdeName",
    "SerdePair",
    "SqlOffsets",
    "SqlResult",
    "State",
    "Store",
    "StoreBusy",
    "StoreError",
    "SyncFailed",
    "Table",
    "Topic",
    "TopicError",
    "TopicExists",
    "TopicInfo",
    "TopicPartition",
    "TopicSelection",
    "Topics",
    "Transaction",
    "TransactionError",
    "TransactionInfo",
    "Transactions",
    "TypedBadRecordPolicy",
    "UnknownGroup",
    "UnknownTopic",
    "Unreachable",
    "Unsupported",
    "UnsupportedFilesystem",
    "Where",
    "WhereLike",
    "__version__",
    "aio",
    "check",
    "copy",
    "last",
    "open",
    "server",
    "testing",
    "to",
]

__version__ = "0.1.0"


# Imported on first use, so that `import klamm` stays quick.
_LATER = {
    "Attempt": "klamm.client.work.outcomes",
    "Breach": "klamm.store.check_partition",
    "Copied": "klamm.store.backup",
    "CopyReport": "klamm.transfer.copier",
    "DeadLetter": "klamm.client.work.dead_letters",
    "ErrorTypes": "klamm.client.work.run_options",
    "Origin": "klamm.client.work.dead_letters",
    "Report": "klamm.store.check_partition",
    "Scan": "klamm.arrow.scan",
    "Output": "klamm.client.pipe.output",
    "Pipe": "klamm.client.pipe.pipe",
    "SqlOffsets": "klamm.client.groups.sql_offsets",
    "State": "klamm.client.pipe.state",
    "SqlResult": "klamm.arrow.sql_result",
    "Table": "klamm.client.table.table",
    "Transaction": "klamm.client.transaction",
    "copy": "klamm.transfer.copier",
    "server": "klamm.kafka.background",
    "to": "klamm.client.pipe.output",
}


def __dir__() -> list[str]:
    return sorted(__all__)


if not TYPE_CHECKING:  # a checker that saw it would accept every name

    def __getattr__(name: str) -> Any:
        import importlib

        if name in ("aio", "testing"):
            return importlib.import_module(f"klamm.{name}")
        if name in _LATER:
            found = globals()[name] = getattr(importlib.import_module(_LATER[name]), name)
            return found
        raise AttributeError(f"module 'klamm' has no attribute {name!r}")
