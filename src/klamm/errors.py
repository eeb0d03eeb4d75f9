"""The errors that Klamm raises, grouped by when you meet them.

    KlammError
    ├── StoreError               opening or holding a directory
    │   ├── Closed               a store, or a producer, consumer or table of it, was used after its close
    │   ├── NotAStore            the directory holds something else, or a broken store
    │   ├── NewerFormat          written by a newer Klamm
    │   ├── StoreBusy            another process, or another machine, has it in a way that excludes us
    │   ├── ReadOnly             a write through a read-only store
    │   ├── Unreachable          a kafka:// address does not answer in time, or too few of its replicas do
    │   ├── Unsupported          a Kafka cluster cannot do that; the hint says what to do instead
    │   └── UnsupportedFilesystem  locks or mapped files cannot be trusted there
    ├── TopicError               naming
    │   ├── UnknownTopic         also: a partition that is not there, a topic deleted since; a LookupError, too
    │   ├── TopicExists
    │   └── InvalidTopic         a name Kafka would refuse, too
    ├── InvalidSetting           an unknown name, or an invalid value, of a setting or option; a ValueError, too
    ├── NotInstalled             an optional package is missing; an ImportError, too
    ├── LogError                 appending and reading
    │   ├── CorruptBatch         bytes that are not what was written; carries path and position
    │   ├── OffsetOutOfRange     carries the valid range
    │   ├── RecordTooLarge
    │   ├── InvalidRecord        a record without a key for a compacted topic
    │   │   └── InvalidTimestamp too far in the past or in the future for its topic
    │   ├── OutOfOrderSequence   an idempotent producer skipped a sequence number
    │   ├── SyncFailed           the disk refused to make bytes durable
    │   ├── DiskFull
    │   └── BufferFull           a producer's buffer stayed full for max_block_ms
    ├── GroupError               sharing topics, and progress
    │   ├── UnknownGroup         a LookupError, too
    │   ├── GroupBusy            it has members, too many of them, or they sit at the other door
    │   ├── NotOwner             a commit for a partition that is another member's by now
    │   └── CommitGap            a batch that does not begin where the last one ended
    ├── TransactionError
    │   ├── Fenced               a newer producer has taken over this producer id
    │   ├── Aborted              it took too long, or another process ended it
    │   └── OnceMismatch         a number of a writer is committed already, with another meaning
    │       └── BatchConflict    the same, of a batch of Spark
    └── Forked                   a producer or consumer from before a fork, used in the child

Wrong Python types are a TypeError, as everywhere.
"""

from __future__ import annotations

import re

__all__ = [
    "Aborted",
    "BatchConflict",
    "BufferFull",
    "Closed",
    "CommitGap",
    "CorruptBatch",
    "DiskFull",
    "Fenced",
    "Forked",
    "GroupBusy",
    "GroupError",
    "InvalidRecord",
    "InvalidSetting",
    "InvalidTimestamp",
    "InvalidTopic",
    "KlammError",
    "LogError",
    "NewerFormat",
    "NotAStore",
    "NotInstalled",
    "NotOwner",
    "OffsetOutOfRange",
    "OnceMismatch",
    "OutOfOrderSequence",
    "ReadOnly",
    "RecordTooLarge",
    "StoreBusy",
    "StoreError",
    "SyncFailed",
    "TopicError",
    "TopicExists",
    "TransactionError",
    "UnknownGroup",
    "UnknownTopic",
    "Unreachable",
    "Unsupported",
    "UnsupportedFilesystem",
]


HELD = "/proc/self/fd/"
held: dict[str, str] = {}
"""Directories that are reached by a descriptor (disk/roots.py), and the paths that users know them by."""


def readable(text: str) -> str:
    """Return a message or a path with the directories in it called as users know them."""
    if HELD not in text:
        return text
    return re.sub(rf"{HELD}\d+", lambda name: held.get(name[0], name[0]), text)


class KlammError(Exception):
    """An error of Klamm: what happened, and in `hint` what to do now.

    `code` names what to do in one word, where `hint` says it in Python: the command line, and whatever else is not
    Python, chooses its own words by the code, never by ours.
    """

    def __init__(self, message: str, *, hint: str | None = None, code: str | None = None) -> None:
        message = readable(message)
        super().__init__(message)
        self.message = message
        self.hint = hint if hint is None else readable(hint)
        self.code = code

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class StoreError(KlammError):
    """A directory cannot be used as asked."""


class Closed(StoreError):
    """A store, or a producer, consumer, table or pipe of it, was used after it was closed."""


class NotAStore(StoreError):
    """The directory is not a Klamm store, or lacks a part of one."""


class NewerFormat(StoreError):
    """The store was written by a newer Klamm."""


class StoreBusy(StoreError):
    """Another process or machine holds a conflicting lock on the store."""


class ReadOnly(StoreError):
    """The store was opened for reading only, or its files cannot be written."""


class Unreachable(StoreError):
    """A Kafka server, a cluster or an object store did not answer in time, or failed, or had too few replicas."""


class Unsupported(StoreError):
    """A call that a store on a Kafka cluster does not have."""


class UnsupportedFilesystem(StoreError):
    """The file system does not keep the promises our locks need."""


class TopicError(KlammError):
    """A topic cannot be used as asked."""


class UnknownTopic(TopicError, LookupError):
    """No such topic or partition, or not any more."""


class TopicExists(TopicError):
    """The name is taken."""


class InvalidTopic(TopicError):
    """The name is not valid for a topic."""


class InvalidSetting(KlammError, ValueError):
    """There is no such setting or option, or its value is invalid.

    The message is `where` it was said, the name of the `setting` and the `problem`; the first two only if they are
    known.
    """

    def __init__(
        self,
        problem: str,
        *,
        setting: str | None = None,
        where: str | None = None,
        hint: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(": ".join(filter(None, (where, setting, problem))), hint=hint, code=code)
        self.problem = problem
        self.setting = setting
        self.where = where


class NotInstalled(KlammError, ImportError):
    """An optional package that the call needs is not installed. `name` is the package, `hint` how to install it."""

    def __init__(
        self, message: str, *, name: str | None = None, hint: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message, hint=hint, code=code)
        self.name = name

    @classmethod
    def package(cls, name: str, install: str) -> NotInstalled:
        """Return the error for a missing package; `install` is what pip installs."""
        return cls(f"{name} is not installed", name=name, hint=f"pip install {install}")


class LogError(KlammError):
    """A log cannot take or give records as asked."""


class CorruptBatch(LogError):
    """Bytes that are not what was written.

    `path` and `position` say where; `next_offset` is where reading can go on, when the batch's header still tells.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        position: int | None = None,
        next_offset: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.path = path if path is None else readable(path)
        self.position = position
        self.next_offset = next_offset


class OffsetOutOfRange(LogError):
    """The log has records from `start` up to, but not including, `end`."""

    def __init__(
        self, message: str, *, offset: int, start: int, end: int, hint: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message, hint=hint, code=code)
        self.offset = offset
        self.start = start
        self.end = end


class RecordTooLarge(LogError):
    """A record or batch beyond `max.message.bytes`."""


class InvalidRecord(LogError):
    """A record that the topic does not take: without a key, if it is compacted. Or no record at all, in a file.

    `indexes` are the places of such records in their batch, if a batch was refused; no more than the first hundred.
    """

    def __init__(self, message: str, *, indexes: tuple[int, ...] = (), hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.indexes = indexes


class InvalidTimestamp(InvalidRecord):
    """A record is older than `message.timestamp.before.max.ms` allows, or further ahead than `…after.max.ms`."""

    @classmethod
    def outside(
        cls, where: str, timestamp: int, earliest: int, latest: int, indexes: tuple[int, ...] = ()
    ) -> InvalidTimestamp:
        """Return the error for a `timestamp` that is not in [earliest, latest]."""
        setting = "before" if timestamp < earliest else "after"
        bound = f"before {earliest}" if timestamp < earliest else f"after {latest}"
        return cls(
            f"{where}: timestamp {timestamp} is {bound} (message.timestamp.{setting}.max.ms)",
            indexes=indexes,
            hint=f"timestamps are milliseconds since 1970: correct it or the clock that gave it, or change the topic's"
            f" message.timestamp.{setting}.max.ms",
        )


class OutOfOrderSequence(LogError):
    """An idempotent producer's batch does not follow its last one."""


class SyncFailed(LogError):
    """The disk refused to make bytes durable; nothing acknowledged was lost."""


class DiskFull(LogError):
    """No space left; nothing of the refused batch stays in the log."""


class BufferFull(LogError):
    """The producer's buffer stayed full for `max_block_ms`."""


class GroupError(KlammError):
    """A group, or its progress, cannot be used as asked."""


class UnknownGroup(GroupError, LookupError):
    """No such group."""


class GroupBusy(GroupError):
    """The group has members that stand against it: too many, of the same name, or at the other door."""


class NotOwner(GroupError):
    """A commit for a partition that this consumer does not own, any more or yet. Nothing was committed."""


class CommitGap(GroupError):
    """A batch does not begin where the last one that was committed ended. Nothing was committed.

    `expected` is where the next batch has to begin, `begin` where this one does.
    """

    def __init__(self, message: str, *, expected: int, begin: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.expected = expected
        self.begin = begin


class TransactionError(KlammError):
    """A transaction cannot go on."""


class Fenced(TransactionError):
    """A newer producer has taken over this producer id."""


class Aborted(TransactionError):
    """Another process ended the transaction: it took longer than its timeout. Nothing of it will be read."""


class OnceMismatch(TransactionError):
    """A writer commits a number with another fingerprint than the one it has committed, or an earlier one (`tx.once`).

    `number` is its number, `last_number` the last that is committed. Nothing was written.
    """

    def __init__(self, message: str, *, number: int, last_number: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.number = number
        self.last_number = last_number


class BatchConflict(OnceMismatch):
    """A batch of Spark has the number of another one that is in the log, or of an earlier one. Nothing was written."""


class Forked(KlammError):
    """This object was made before a fork and cannot be used in the child."""
