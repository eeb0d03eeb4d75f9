"""The reading engine: which partition is read next, waiting, positions, closing. What a consumer stands on.

An engine reads the partitions that it was assigned and returns their records, of one partition at a time. It knows of
no group, no signal handler and no loop; `ReadEngine` says nothing of files, so that other engines (in memory, on a
Kafka cluster) can take the place of log_engine.py. tests/client/test_read_engine.py holds them to this:

  E1  One thread reads: it calls `next_records`. All else may be called from any thread. Whatever changes what is read
      (`assign`, `unassign`, `move`, `pause`, `resume`, `use`) asks the reading thread for its turn, and waits for it at
      most TURN_S: then StoreBusy, and nothing has changed. Nothing is opened, read or closed without the turn.
  E2  A position never tells of records that were not returned: records count as handed out one by one, as they are
      iterated, or all at once by `Records.batch`. What was not handed out when `next_records` is called again, is
      returned again. `move` ends the iteration of records that were returned before it.
  E3  Partitions take turns: of k partitions that have records, each is returned within k chunks. A chunk is what an
      engine reads of a partition at once; calls return it piece by piece.
  E4  `close` returns when nothing is open any more. If the reading thread does not give its turn in time, that thread
      closes everything when it comes back. After `close`, no records are returned.
  E5  `interrupt`, `close` and whatever asks for the turn end a wait. `next_records` may return None early at any time:
      its caller looks at what may have changed, and calls again. It does so when the catalog or the groups have other
      versions than those in `seen`, if the engine can know them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from klamm.batch import Records
from klamm.errors import OffsetOutOfRange
from klamm.types import Position, TopicPartition

if TYPE_CHECKING:
    from klamm.log.partition import Partition

__all__ = ["TURN_S", "ReadEngine", "ReadFormat", "Records", "SeenVersions", "position_is_gone"]

TURN_S = 10.0
"""How long a call from another thread waits for the reading thread."""


class ReadFormat(NamedTuple):
    """The form in which records are returned."""

    form: int
    """RECORDS, TUPLES or VALUES (klamm.batch)."""
    key_of: Callable[[bytes], Any] | None
    value_of: Callable[[bytes], Any] | None
    on_bad: int = 0
    """What becomes of a record that does not suit its serde: BAD_RAISE, BAD_SKIP or BAD_RAW."""


class SeenVersions:
    """The versions of the catalog and of the groups that the caller has acted on: a wait ends when there are others."""

    __slots__ = ("catalog", "groups")

    def __init__(self, catalog: int = -1, groups: int = -1) -> None:
        """Set the versions; -1: whichever they are."""
        self.catalog = catalog
        self.groups = groups


def position_is_gone(partition: TopicPartition, offset: int, start: int, end: int) -> OffsetOutOfRange:
    """Return the error of an engine that is not told where to go on, if the log does not have its position."""
    return OffsetOutOfRange(
        f"{partition.topic}/{partition.partition}: offset {offset} is not in [{start}, {end})",
        offset=offset,
        start=start,
        end=end,
        code="offset_gone",
        hint="records that are gone, or never were: say auto_offset_reset='earliest' (or 'latest') to go on with those "
        "that are there, or seek",
    )


class ReadEngine(Protocol):
    """See the top of this module."""

    seen: SeenVersions
    """Set by the caller."""
    is_waiting: bool
    """Whether the reading thread waits for records."""

    def next_records(self, max_records: int, timeout_s: float | None) -> Records | None:
        """Return the next records of one partition, at most `max_records`; None if there are none in time."""
        ...

    def handed_out(self, partition: TopicPartition) -> Records | None:
        """Return what was returned of a partition last: how far that was handed out. None if it is not assigned."""
        ...

    def positions(self) -> dict[TopicPartition, Position]:
        """Return the positions of all partitions that are assigned."""
        ...

    def reads(self, name: TopicPartition, partition: Partition) -> bool:
        """Return whether it reads this very partition: the topic may have been deleted and re-created."""
        ...

    def assign(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Read these partitions, too; one that is assigned already is read from its new position."""
        ...

    def unassign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions no more."""
        ...

    def move(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Continue at other positions; partitions that are not assigned are left out."""
        ...

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return nothing of these partitions until `resume`; those that are not assigned are left out."""
        ...

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Continue partitions that are paused."""
        ...

    def use(self, read_format: ReadFormat) -> ReadFormat:
        """Make records into another form from now on; return the one before."""
        ...

    def interrupt(self) -> None:
        """Make the reading thread return from a wait, or from its next one."""
        ...

    def close(self) -> None:
        """Close the engine. Later calls raise."""
        ...
