"""The reading engine: which partition is read next, waiting, positions, closing. What a consumer stands on.

An engine reads the partitions that it was assigned and returns their records, of one partition at a time. It knows of
no group, no signal handler and no loop; `ReadEngine` says nothing of files, so that other engines (in memory, on a
Kafka cluster) can take the place of log_engine.py. tests/client/test_read_engine.py holds them to this:

  E1  One thread reads: it calls `next_records`. All else may be called from any thread. Whatever changes what is read
      (`assign`, `unassign`, `move`, `pause`, `resume`, `use`) asks the reading thread for its turn, and waits for it at
      most TURN_S: then StoreBusy, and nothing has changed. Nothing is opened, read or closed without the turn.
  E2  A position never tells of records that were not returned: records count as handed out one by one, as they are
      iterated, or all at once by `Records.batch`. What was not handed out when `next_records` is called again, is
      returned again.
  E3  Partitions take turns: of k partitions that have records, each is returned within k chunks. A chunk is what an
      engine reads of a partition at once; calls return it piece by piece.
  E4  `close` returns when nothing is open any more. If the reading thread does not give its turn in time, that thread
      closes everything when it comes back. After `close`, no records are returned.
  E5  `interrupt`, `close` and whatever asks for the turn end a wait. `next_records` may return None early at any time:
      its caller looks at what may have changed, and calls again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import length_hint
from typing import Any, NamedTuple, Protocol

from klamm.types import Batch, Position, TopicPartition

__all__ = ["TURN_S", "HandedOut", "ReadEngine", "ReadFormat", "Records"]

TURN_S = 10.0
"""How long a call from another thread waits for the reading thread."""


class ReadFormat(NamedTuple):
    """What records are made into."""

    form: int
    """RECORDS, TUPLES or VALUES (klamm.batch)."""
    key_of: Callable[[bytes], Any] | None
    value_of: Callable[[bytes], Any] | None
    on_bad: int = 0
    """What becomes of a record that does not suit its serde: BAD_RAISE, BAD_SKIP or BAD_RAW."""


class HandedOut:
    """What was returned of a partition last. It does not change, but for its iterator, which moves on."""

    __slots__ = ("_before", "_end", "_iterator", "_offsets", "_size")

    def __init__(
        self,
        before: Position,
        end: Position,
        iterator: Iterator[Any] | None = None,
        offsets: list[int] | None = None,
        size: int = 0,
    ) -> None:
        """`iterator`: over `size` records, which count as handed out one by one; they lie at `offsets`, or in a row."""
        self._before = before
        self._end = end
        self._iterator = iterator
        self._offsets = offsets
        self._size = size

    @property
    def position(self) -> Position:
        """The next offset, and the leader epoch of the record before it."""
        if self._iterator is None:
            return self._end
        index = self.index
        if index >= self._size:
            return self._end
        if index == 0:
            return self._before
        offset = self._before.offset + index if self._offsets is None else self._offsets[index]
        return Position(offset, self._end.leader_epoch)

    @property
    def index(self) -> int:
        """How many records the iterator has given."""
        return 0 if self._iterator is None else self._size - length_hint(self._iterator)

    @property
    def has_more(self) -> bool:
        """Whether the iterator has records that were not handed out."""
        return self._iterator is not None and self.index < self._size


class Records:
    """Records of one partition, which count as handed out one by one, by iteration, or all at once, by `batch`."""

    __slots__ = ("_end", "_iterator", "_records", "begin", "partition", "source")

    def __init__(self, partition: TopicPartition, begin: int, end: Position, records: list[Any]) -> None:
        self.partition = partition
        self.source: tuple[Callable[[], Any], object] | None = None
        """What a Batch has of the same name."""
        self.begin = begin
        self._end = end
        self._records = records
        self._iterator = iter(records)

    def __iter__(self) -> Iterator[Any]:
        return self._iterator

    def batch(self) -> Batch:
        """Hand out all of them, before any was."""
        batch = Batch(self._records, *self.partition, self.begin, *self._end)
        batch._source = self.source
        self._iterator.__setstate__(len(self._records))  # type: ignore[attr-defined]  # to its end, in one step
        return batch


class ReadEngine(Protocol):
    """See the top of this module."""

    def next_records(self, max_records: int, timeout_s: float | None) -> Records | None:
        """Return the next records of one partition, at most `max_records`; None if there are none in time."""
        ...

    def handed_out(self, partition: TopicPartition) -> HandedOut | None:
        """Return how far a partition was handed out; None if it is not assigned."""
        ...

    def positions(self) -> dict[TopicPartition, Position]:
        """Return the positions of all partitions that are assigned."""
        ...

    def assign(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Read these partitions, too; one that is assigned already is read from its new position."""
        ...

    def unassign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions no more."""
        ...

    def move(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Go on at other positions; partitions that are not assigned are left out."""
        ...

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return nothing of these partitions until `resume`; those that are not assigned are left out."""
        ...

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Go on with partitions that are paused."""
        ...

    def use(self, read_format: ReadFormat) -> ReadFormat:
        """Make records into another form from now on; return the one before."""
        ...

    def interrupt(self) -> None:
        """Let the reading thread return from a wait, or from its next one."""
        ...

    def close(self) -> None:
        """End. Later calls raise."""
        ...
