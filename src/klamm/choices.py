"""The choices that are spelled as text or numbers, each once: checkers read these types, run-time checks their values.

A check takes its table from here: `options_of(Form)` is ("records", "tuples", "values"). What Kafka has a name for is
spelled as Kafka spells it.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

__all__ = [
    "Acks",
    "AcksWithOffset",
    "BadRecordPolicy",
    "Column",
    "Compression",
    "Form",
    "GroupState",
    "Isolation",
    "LockState",
    "OffsetReset",
    "PipeErrorPolicy",
    "RunErrorPolicy",
    "RunOrder",
    "SerdeName",
    "TypedBadRecordPolicy",
    "options_of",
]

Acks: TypeAlias = Literal["all", -1, 0, 1]
"""0: no answer. 1: committed, survives any process. "all" (or -1, as Kafka has it): on disk, survives the machine."""
AcksWithOffset: TypeAlias = Literal["all", -1, 1]
"""Those that wait for the offset."""
Compression: TypeAlias = Literal["none", "gzip", "snappy", "lz4", "zstd"]
"""A codec. Their order is that of Kafka's numbers."""
SerdeName: TypeAlias = Literal["bytes", "str", "json"]
"""A serde that has a name."""

Form: TypeAlias = Literal["records", "tuples", "values"]
"""What a consumer gives: Records, (key, value) tuples, or values."""
Isolation: TypeAlias = Literal["read_committed", "read_uncommitted"]
"""Whether records of open and aborted transactions are read."""
OffsetReset: TypeAlias = Literal["earliest", "latest", "error"]
"""Where to go on if an offset is missing."""
BadRecordPolicy: TypeAlias = Literal["raise", "skip", "raw"]
"""What becomes of a record that the serde refuses. "raw": it is given as bytes."""
TypedBadRecordPolicy: TypeAlias = Literal["raise", "skip"]
"""Those after which every record is what the serde makes."""
Column: TypeAlias = Literal["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
"""A column of a scan."""

RunErrorPolicy: TypeAlias = Literal["stop", "retry", "dead-letter"]
"""What `consumer.run` does when a handler raises."""
RunOrder: TypeAlias = Literal["key", "partition"]
"""Within what the handlers of `consumer.run` keep the order of records."""
PipeErrorPolicy: TypeAlias = Literal["stop", "dead-letter"]
"""What a pipe does when its function raises."""

GroupState: TypeAlias = Literal["active", "empty"]
"""Whether a group has members."""
LockState: TypeAlias = Literal["holds", "waits"]
"""Of a process in `store.who()`."""


def options_of(choice: Any) -> tuple[Any, ...]:
    """Return the values of one of these types, in order."""
    return get_args(choice)
