"""The positions of copied records in a Kafka cluster: the topic `klamm-copies` there.

A record is written in the same transaction as those it tells of, one for each partition. Key and value are JSON:

    key     [source id, topic, partition, first offset of the source]
    value   {"end": offset of the source behind the last, "runs": [[source offset, target offset, length], …]}

A run is of records that follow on in both. The topic is compacted, and keys do not repeat: all of it stays.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from klamm.errors import LogError
from klamm.types import TopicPartition

__all__ = ["COPIES", "CopiedOffsets", "Run", "runs_of"]

COPIES = "klamm-copies"
_MAX_RUNS = 10_000  # of a record: some 300 kB


class Run(NamedTuple):
    """Records that follow on in source and target."""

    source: int
    target: int
    length: int


def runs_of(pairs: Iterable[tuple[int, int]]) -> list[Run]:
    """Return pairs of source and target offset, in their order, as runs."""
    runs: list[Run] = []
    first_source = first_target = length = 0
    for source, target in pairs:
        if length and source - first_source == length == target - first_target:
            length += 1
            continue
        if length:
            runs.append(Run(first_source, first_target, length))
        first_source, first_target, length = source, target, 1
    if length:
        runs.append(Run(first_source, first_target, length))
    return runs


class CopiedOffsets:
    """The offsets that were copied from one source."""

    def __init__(self, source_id: str) -> None:
        self._source_id = source_id
        self._runs: dict[TopicPartition, list[Run]] = {}
        self.positions: dict[TopicPartition, int] = {}
        """How far each partition was copied, as an offset of the source."""

    def pack(
        self, partition: TopicPartition, start: int, end: int, runs: Sequence[Run]
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and values of records that tell of offsets [start, end) of the source, some runs each."""
        for first in range(0, max(1, len(runs)), _MAX_RUNS):
            some = runs[first : first + _MAX_RUNS]
            is_last = first + _MAX_RUNS >= len(runs)
            until = end if is_last else some[-1].source + some[-1].length
            key = [self._source_id, *partition, start if first == 0 else some[0].source]
            yield json.dumps(key).encode(), json.dumps({"end": until, "runs": some}).encode()

    def take(self, key: bytes | None, value: bytes | None) -> None:
        """Take in a record of the topic. LogError if it is not one."""
        try:
            source_id, topic, number, _ = json.loads(key or b"")
            about = json.loads(value or b"")
            runs, end = [Run(*run) for run in about["runs"]], int(about["end"])
        except (ValueError, TypeError, KeyError):
            raise LogError(
                f"{COPIES}: a record there was not written by klamm copy: key {key!r}"[:300],
                hint="another program uses a topic of that name",
            ) from None
        if source_id == self._source_id:
            self.add(TopicPartition(topic, number), end, runs)

    def add(self, partition: TopicPartition, end: int, runs: Iterable[Run]) -> None:
        """Take in what was copied of a partition, behind what is known of it."""
        self._runs.setdefault(partition, []).extend(runs)
        self.positions[partition] = max(end, self.positions.get(partition, 0))

    def last_run(self, partition: TopicPartition) -> Run | None:
        """Return the last run of a partition; None if no record of it was copied."""
        runs = self._runs.get(partition)
        return runs[-1] if runs else None

    def translate(self, partition: TopicPartition, offset: int) -> int | None:
        """Return the target offset of the first copied record at or behind an offset of the source. Behind the last
        one: the offset that follows it. None if nothing was copied, or the offset was not reached yet.
        """
        runs = self._runs.get(partition)
        if not runs or offset > self.positions[partition]:
            return None
        index = bisect_right(runs, offset, key=lambda run: run.source) - 1
        if index >= 0 and offset < runs[index].source + runs[index].length:
            return runs[index].target + offset - runs[index].source
        if index + 1 < len(runs):
            return runs[index + 1].target
        return runs[-1].target + runs[-1].length
