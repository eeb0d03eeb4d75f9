"""Values that the rooms hand to each other and to users. They do not change; ranges are half-open.

What people look at in a notebook has `_repr_html_`: a small table, in which everything is escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, NewType, SupportsIndex, TypeAlias, overload

from klamm.choices import GroupState, LockState
from klamm.other_names import explains_names
from klamm.typevars import K, T, V

__all__ = [
    "Appended",
    "Batch",
    "BytesLike",
    "Committed",
    "CompactionReport",
    "Cut",
    "GivenHeaders",
    "GivenRecord",
    "GroupInfo",
    "GroupMember",
    "GroupOffset",
    "InputRange",
    "Lineage",
    "LockInfo",
    "OffsetMove",
    "OutputRange",
    "PartitionInfo",
    "PartitionKey",
    "Position",
    "RunReport",
    "TopicId",
    "TopicInfo",
    "TopicPartition",
    "TransactionInfo",
    "html_table",
]

TopicId = NewType("TopicId", str)
"""The id of a topic, which no other topic ever has. A name may be used again when its topic was deleted."""
PartitionKey = tuple[TopicId, int]
"""A partition by its topic's id: what the store remembers."""

BytesLike: TypeAlias = bytes | bytearray | memoryview
"""What is taken where bytes are written."""
GivenHeaderValue: TypeAlias = BytesLike | str | None
GivenHeaders: TypeAlias = Mapping[str, GivenHeaderValue] | Iterable[tuple[str, GivenHeaderValue]]
"""Headers of a record that is written, as a mapping or pairs. Text becomes UTF-8."""
GivenRecord: TypeAlias = (
    tuple[K | None, V | None]
    | tuple[K | None, V | None, GivenHeaders | None]
    | tuple[K | None, V | None, GivenHeaders | None, int | datetime | None]
    | V
    | None
)
"""An element of `append_many`: a value, or a tuple of key, value, headers and timestamp."""


def html_table(title: str, names: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a table for a notebook: numbers on the right, None as a dash."""
    from html import escape

    def cell(value: object) -> str:
        is_number = isinstance(value, int) and not isinstance(value, bool)
        text = "–" if value is None else f"{value:,}" if is_number else str(value)
        return f'<td style="text-align: {"right" if is_number else "left"}">{escape(text)}</td>'

    head = "".join(f'<th style="text-align: left">{escape(name)}</th>' for name in names)
    body = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in rows)
    caption = f'<caption style="text-align: left">{escape(title)}</caption>'
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


class TopicPartition(NamedTuple):
    """A partition by its topic's name: what programs and clients say. Equal to the plain tuple."""

    topic: str
    partition: int


class Position(NamedTuple):
    """A consumer's position in a partition: the next offset to read, and the leader epoch of what it read last.

    A position that is stored should keep its epoch: after a power cut, the epoch tells whether the offset still means
    the same records. -1: not known.
    """

    offset: int
    leader_epoch: int = -1


class Committed(NamedTuple):
    """A group's committed offset in a partition: a position, and the metadata that came with it."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""

    @property
    def position(self) -> Position:
        return Position(self.offset, self.leader_epoch)


class Cut(NamedTuple):
    """A file with what was cut off a partition's log."""

    topic: str
    partition: int
    path: str
    size: int
    cut_ms: int


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """One partition as it was when asked."""

    number: int
    start: int
    """The first offset that is there."""
    end: int
    """One past the last."""
    leader_epoch: int
    size: int
    """Bytes of its segments."""

    @property
    def count(self) -> int:
        """Offsets from start to end."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as it was when asked."""

    name: str
    id: TopicId
    partitions: tuple[PartitionInfo, ...]
    settings: Mapping[str, str]
    """What was set on purpose, by Kafka's names; everything else has its default."""
    created_ms: int

    @property
    def count(self) -> int:
        """Offsets in all of its partitions."""
        return sum(partition.count for partition in self.partitions)

    @property
    def size(self) -> int:
        """Bytes of all of its segments."""
        return sum(partition.size for partition in self.partitions)

    def _repr_html_(self) -> str:
        shown = "".join(f", {name}={value}" for name, value in self.settings.items())
        rows = [(each.number, each.start, each.end, each.size) for each in self.partitions]
        return html_table(f"topic {self.name}{shown}", ("partition", "start", "end", "bytes"), rows)


@dataclass(frozen=True, slots=True)
class TransactionInfo:
    """A transaction that is not over, or whose end is not on disk everywhere yet."""

    producer_id: int
    epoch: int
    name: str | None
    """Its transactional id, if it has one."""
    state: str
    """"ongoing", "prepared_commit" (it is committed) or "prepared_abort"."""
    age_ms: int | None
    """None: it began before the machine was booted."""
    timeout_ms: int
    partitions: tuple[tuple[str, int], ...]
    """What it may have appended to."""
    started_ms: int
    """When it began, by the clock of its machine: with the epoch, it tells one from the producer's next."""


class InputRange(NamedTuple):
    """The offsets that a transaction moved a group past: offsets from `start` up to, but not including, `end`."""

    group: str
    topic: str | None
    """None: the topic was deleted."""
    partition: int
    start: int
    """0, if the group had committed nothing there, and came through the Kafka server."""
    end: int


class OutputRange(NamedTuple):
    """The offsets of a transaction's records; there may be others in between."""

    topic: str | None
    """None: the topic was deleted."""
    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Lineage:
    """A committed transaction: what it has read and written."""

    producer_id: int
    epoch: int
    name: str | None
    """Its transactional id, if it had one."""
    ended_ms: int
    inputs: tuple[InputRange, ...]
    outputs: tuple[OutputRange, ...]


@dataclass(frozen=True, slots=True)
class LockInfo:
    """A lock of a store that a process holds or waits for."""

    lock: str
    """"append", "flush" or "clean" of a partition; "klamm.db", its write lock; "open", "member of group", …"""
    of: str | None
    """What the lock is of: a partition, a group and its member, a transactional id."""
    state: LockState
    """"holds" or "waits"."""
    pid: int | None
    """None: of another user, of another container, or outside of this one."""
    command: str | None
    is_stopped: bool | None
    """By a signal (SIGSTOP, Ctrl-Z), by a debugger, or with its container. None: not known."""
    since_ms: int | None
    """Since when it holds it, in milliseconds since 1970; None: not known."""


@dataclass(frozen=True, slots=True)
class Appended:
    """The offsets of the records of one `append_many`."""

    topic: str
    count: int
    ranges: Mapping[int, tuple[range, ...]]
    """By partition: the offsets, in the order of the records. Other writers' records lie between two ranges."""

    def __len__(self) -> int:
        return self.count


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member that lives, as it was when asked."""

    id: str
    name: str | None
    """What it was given as `member=`."""
    topics: tuple[str, ...]
    """Those it wants that are there."""
    assignment: tuple[tuple[str, int], ...]
    """The (topic, partition)s it has."""
    joined_ms: int | None
    """None: not known; so it is of Kafka clients."""
    client_id: str | None = None
    """Of a Kafka client: the name it has given itself."""
    host: str | None = None
    """Of a Kafka client: the address it connects from."""


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """The progress of a group in one partition."""

    topic: str
    partition: int
    committed: Committed | None
    """None: nothing yet."""
    end: int
    lag: int
    """Offsets from there to the end; without a commit, all that are there."""
    lag_ms: int | None
    """How old the first record is that is not read; 0 if there is none, None if it cannot be told."""


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A group as it was when asked."""

    name: str
    state: GroupState
    """"active" if it has members, else "empty"."""
    door: str
    """Where its members sit: "klamm", in processes that have the store open; "kafka", at the server."""
    members: tuple[GroupMember, ...]
    offsets: tuple[GroupOffset, ...]
    created_ms: int

    @property
    def lag(self) -> int:
        """In all of its partitions."""
        return sum(each.lag for each in self.offsets)

    def _repr_html_(self) -> str:
        rows = [
            (each.topic, each.partition, None if each.committed is None else each.committed.offset, each.end, each.lag)
            for each in self.offsets
        ]
        title = f"group {self.name}: {self.state}, members: {len(self.members)}, lag: {self.lag:,}"
        return html_table(title, ("topic", "partition", "committed", "end", "lag"), rows)


class OffsetMove(NamedTuple):
    """One line of a plan: a group's offset in a partition, before (None: none) and after."""

    group: str
    topic: str
    partition: int
    before: int | None
    after: int
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class RunReport:
    """The counts of one `consumer.run`: what came of its records."""

    done: int
    """Handled."""
    failed: int
    """Attempts that raised, or took too long."""
    dead_lettered: int
    timed_out: int = 0
    """Of those that failed: attempts that took too long."""
    lost: int = 0
    """Records that were handled when their partition had gone to another member, which handles them again."""


@dataclass(frozen=True, slots=True)
class PipeReport:
    """The counts of one `pipe.run`: what it has committed."""

    records: int
    """That were read."""
    outputs: int
    """That were written, but for dead letters and state."""
    dead_lettered: int


class CompactionReport(NamedTuple):
    """The counts of a compaction."""

    partitions: int
    """In which there was something to do."""
    passes: int
    """More than one a partition: its keys did not fit into memory at once."""
    segments: int
    """That were replaced."""
    records_removed: int
    records_left: int
    """In the closed segments of these partitions."""
    bytes_before: int
    bytes_after: int
    seconds: float


@explains_names
class Batch(list[T]):
    """Records of one partition, as a consumer hands them out: a list that knows where it comes from.

    It covers the offsets from `begin` up to, but not including, `end`. Empty: nothing came in time.

    A slice of it is a Batch: it covers the offsets from its first record up to the record behind it, so that
    `batch[:10]` and `batch[10:]` cover what `batch` does, and each can be committed. A slice with a step is a list, and
    so is one of a batch that has become shorter or longer.
    """

    __slots__ = ("_count", "_offsets", "_source", "begin", "end", "leader_epoch", "partition", "topic")

    def __init__(
        self,
        records: Iterable[T] = (),
        topic: str = "",
        partition: int = -1,
        begin: int = -1,
        end: int = -1,
        leader_epoch: int = -1,
    ) -> None:
        list.__init__(self, records)  # quicker than super(): a poll that waits for one record makes one of these
        self.topic = topic
        self.partition = partition
        self.begin = begin
        self.end = end
        self.leader_epoch = leader_epoch
        # What can commit it: the session of its consumer, weakly, and the epoch of its ownership; None without a group.
        self._source: tuple[Callable[[], Any], object] | None = None
        self._offsets: Sequence[int] | None = None  # of its records; None: they follow on from `begin`
        self._count = len(self)

    @overload
    def __getitem__(self, key: SupportsIndex) -> T: ...
    @overload
    def __getitem__(self, key: slice) -> Batch[T]: ...
    def __getitem__(self, key: Any) -> Any:
        found = list.__getitem__(self, key)
        if type(key) is slice and key.step in (None, 1) and len(self) == self._count:
            return self._slice(found, *key.indices(len(self))[:2])
        return found

    def _slice(self, records: list[T], start: int, stop: int) -> Batch[T]:
        stop = max(start, stop)
        begin, end = self._offset_of(start), self._offset_of(stop)
        batch = Batch(records, self.topic, self.partition, begin, end, self.leader_epoch)
        batch._source = self._source
        batch._offsets = None if self._offsets is None else self._offsets[start:stop]
        return batch

    def _offset_of(self, index: int) -> int:
        """Return the offset from which a slice that starts there begins."""
        if index == 0:
            return self.begin
        if index >= len(self):
            return self.end
        return self.begin + index if self._offsets is None else self._offsets[index]

    def __reduce__(self) -> tuple[Any, ...]:
        state = (None, {"_offsets": self._offsets}) if self._offsets is not None else None
        return Batch, (list(self), self.topic, self.partition, self.begin, self.end, self.leader_epoch), state

    def __repr__(self) -> str:
        return f"<Batch {self.topic}/{self.partition} [{self.begin}, {self.end}): {len(self)} records>"
