"""Offsets that live elsewhere: what a consumer asks of `offsets=`.

A consumer with `offsets=` loads its positions from there when it gets a partition, and `commit` goes there. With a
group as well, the group shares the partitions out, and its own offsets are not used.

Two more methods are called where they exist: bind(core), once, when the consumer is made, and begin(starts), with the
positions in partitions that `load` had nothing for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from klamm.types import Position

__all__ = ["Offsets", "Progress"]


class Progress(NamedTuple):
    """One partition was read from `begin` up to `end`, which carries `leader_epoch`.

    `begin` is what has to be stored now, so that nothing is skipped or done twice; a commit that finds another value
    raises CommitGap, and the consumer loads its positions again before it reads on.
    """

    topic: str
    partition: int
    begin: int
    end: int
    leader_epoch: int


@runtime_checkable
class Offsets(Protocol):
    def load(self, partitions: Sequence[tuple[str, int]]) -> Mapping[tuple[str, int], Position]:
        """Return where to go on, for those partitions that have a position stored."""

    def commit(self, entries: Sequence[Progress]) -> None:
        """Store how far these partitions were read, all or none. CommitGap if one does not begin at what is stored."""
