"""`klamm.copy`: topics of one store into another, be they directories, servers or Kafka clusters.

    1  topics that are missing in the target are created, with the partitions and settings of the source
    2  where the target has come to is where the copy goes on. The last records there must be those of the source:
       else the target is not a copy of it, and nothing is written
    3  chunks are written in the order of offsets, and are on disk when the target commits
    4  groups of the source are moved forward in the target to the same records

A copy that is killed at any step is finished by the next one, without a lost or doubled record.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

from klamm.api import Store, open  # noqa: A004  # klamm.open is meant
from klamm.cluster.address import is_address
from klamm.errors import GroupBusy, InvalidSetting, LogError, OffsetOutOfRange, UnknownTopic
from klamm.transfer.copied_offsets import COPIES
from klamm.transfer.directory_source import DirectorySource
from klamm.transfer.directory_target import DirectoryTarget
from klamm.transfer.rewind import RewindNeeded
from klamm.types import TopicPartition
from klamm.where import Where, WhereLike

if TYPE_CHECKING:
    from klamm.batch import Record
    from klamm.transfer.chunk import Chunk, Source, SourceTopic, Target

__all__ = ["CopyReport", "copy"]

_GROUPS_S = 2.0  # between two looks at groups, while it follows


class CopyReport(NamedTuple):
    """The report of a copy."""

    offsets: int
    """How many offsets were copied; markers and aborted records count, though they are left out."""
    bytes: int
    positions: dict[TopicPartition, int]
    """Where each partition goes on, as an offset of the source."""
    groups: list[str]
    """Groups that were moved in the target."""
    busy_groups: list[str]
    """Groups that have members in the target, and were left alone."""


def copy(
    source: str | os.PathLike[str] | Store[Any, Any],
    target: str | os.PathLike[str] | Store[Any, Any],
    *,
    topics: str | re.Pattern[str] | Iterable[str] | None = None,
    since: WhereLike | None = None,
    follow: bool = False,
    groups: bool = True,
    progress: Callable[[int, int | None], object] | None = None,
    is_over: Callable[[], bool] | None = None,
) -> CopyReport:
    """Copy topics from one store into another, and return what was done.

    Each is a directory, or kafka://host:port for a server or cluster. Keys, values, headers, timestamps and partitions
    are kept; offsets are kept in a directory, and mapped elsewhere. What was aborted is left out. `topics`: a name,
    several, or a pattern; all, by default. `since`: where a copy begins, as `start` of a consumer says it. With
    `follow` it goes on until `is_over()`, which is asked between chunks. `progress` is called with offsets that are
    done, and those in all.
    """
    where = None if since is None else Where(since, name="since")
    _check_apart(source, target)
    with ExitStack() as opened:
        copied_from = _source(source, opened)
        copied_to = _target(target, opened, copied_from)
        return _Copy(copied_from, copied_to, progress, is_over).run(topics, where, follow=follow, with_groups=groups)


def _check_apart(
    source: str | os.PathLike[str] | Store[Any, Any], target: str | os.PathLike[str] | Store[Any, Any]
) -> None:
    """Raise InvalidSetting if the two are one directory. Two servers that are one are noticed by nothing here."""
    paths = [each.path if isinstance(each, Store) else os.fspath(each) for each in (source, target)]
    if not any(map(is_address, paths)) and all(map(os.path.exists, paths)) and os.path.samefile(*paths):
        raise InvalidSetting(
            f"{paths[1]}: source and target are the same store", hint="name another directory to copy to"
        )


def _source(given: str | os.PathLike[str] | Store[Any, Any], opened: ExitStack) -> Source:
    if isinstance(given, Store):
        return DirectorySource(given)
    if is_address(name := os.fspath(given)):
        from klamm.transfer.kafka_source import KafkaSource

        found = KafkaSource(name)
        opened.callback(found.close)
        return found
    return DirectorySource(opened.enter_context(open(name, create=False)))


def _target(given: str | os.PathLike[str] | Store[Any, Any], opened: ExitStack, source: Source) -> Target:
    if isinstance(given, Store):
        return DirectoryTarget(given)
    if is_address(name := os.fspath(given)):
        from klamm.transfer.kafka_target import KafkaTarget

        found = KafkaTarget(name, source)
        opened.callback(found.close)
        return found
    return DirectoryTarget(opened.enter_context(open(name)))


class _Copy:
    """One run."""

    def __init__(
        self,
        source: Source,
        target: Target,
        progress: Callable[[int, int | None], object] | None,
        is_over: Callable[[], bool] | None,
    ) -> None:
        self._source = source
        self._target = target
        self._progress = progress
        self._is_over = is_over
        self._done = self._bytes = 0

    def run(
        self,
        topics: str | re.Pattern[str] | Iterable[str] | None,
        since: Where | None,
        *,
        follow: bool,
        with_groups: bool,
    ) -> CopyReport:
        chosen = _chosen(self._source, topics)
        self._target.prepare(chosen)
        partitions = [TopicPartition(topic.name, number) for topic in chosen for number in range(topic.partitions)]
        begun = self._begin(partitions, since)
        positions = dict(begun)
        total = None if follow else sum(max(0, self._source.bounds(p)[1] - at) for p, at in positions.items())
        busy: list[str] = []
        moved: set[str] = set()
        groups_due = 0.0
        while True:
            try:
                for chunk in self._source.chunks(positions, follow=follow):
                    if chunk is None:
                        self._target.commit()
                        if with_groups and time.monotonic() >= groups_due:
                            busy = self._move_groups(partitions, moved)
                            groups_due = time.monotonic() + _GROUPS_S
                    else:
                        self._write(chunk, positions, total)
                    if self._is_over is not None and self._is_over():
                        break
                self._target.commit()
                break
            except RewindNeeded:  # partitions of which nothing is committed go back to where they began
                reached = self._target.positions(partitions)
                positions = {partition: max(at, reached.get(partition, at)) for partition, at in begun.items()}
        if with_groups:
            busy = self._move_groups(partitions, moved)
        return CopyReport(self._done, self._bytes, positions, sorted(moved), busy)

    def _write(self, chunk: Chunk, positions: dict[TopicPartition, int], total: int | None) -> None:
        self._target.write(chunk)
        positions[chunk.partition] = chunk.end
        self._done += chunk.end - chunk.start
        self._bytes += sum(map(len, chunk.batches))
        if self._progress is not None:
            self._progress(self._done, total)

    # ---- where it begins

    def _begin(self, partitions: list[TopicPartition], since: Where | None) -> dict[TopicPartition, int]:
        """Return where each partition is read from."""
        reached = self._target.positions(partitions)
        positions = {}
        for partition in partitions:
            start, end = self._source.bounds(partition)
            wanted = start if since is None else max(start, self._source.start(partition, since))
            if partition not in reached:
                if not self._target.is_empty(partition):
                    raise self._not_a_copy(f"{partition.topic}/{partition.partition} has records of others")
                self._target.begin(partition, wanted)
                positions[partition] = wanted
                continue
            position = reached[partition]
            self._check_copy(partition, position, start, end)
            if since is None and start > position:
                raise OffsetOutOfRange(
                    f"{self._source.name}: {partition.topic}/{partition.partition} begins at {start}, and the copy has "
                    f"come to {position}: what is between was removed",
                    offset=position,
                    start=start,
                    end=end,
                    hint="since='earliest' (--since earliest) goes on behind the gap",
                )
            positions[partition] = position if since is None else max(position, wanted)
        return positions

    def _check_copy(self, partition: TopicPartition, position: int, start: int, end: int) -> None:
        """Raise LogError if the last records of the target are not those of the source."""
        name = f"{partition.topic}/{partition.partition}"
        if position > end:
            raise self._not_a_copy(f"{name} goes on at {position}, and ends at {end} in {self._source.name}")
        last = [record for record in self._target.last_records(partition, position) if record.offset >= start]
        if last:
            first = last[0].offset
            theirs = self._source.read_between(partition, first, position)
            if list(map(_contents, last)) != list(map(_contents, theirs)):
                raise self._not_a_copy(f"{name} has other records at {first} to {position - 1}")

    def _not_a_copy(self, why: str) -> LogError:
        return LogError(
            f"{self._target.name}: not a copy of {self._source.name}: {why}",
            hint="copy into another store; nothing was written",
        )

    # ---- groups

    def _move_groups(self, partitions: list[TopicPartition], moved: set[str]) -> list[str]:
        """Move groups forward; return those that have members in the target."""
        busy = []
        for group, offsets in self._source.groups(partitions).items():
            try:
                if self._target.move_group(group, offsets):
                    moved.add(group)
            except GroupBusy:
                busy.append(group)
        return busy


def _contents(record: Record) -> tuple[Any, ...]:
    return record.offset, record.timestamp, record.key, record.value, tuple(record.headers)


def _chosen(source: Source, topics: str | re.Pattern[str] | Iterable[str] | None) -> list[SourceTopic]:
    known = sorted(name for name in source.topic_names() if name != COPIES)  # of copies into the source
    if topics is None:
        return source.describe(known)
    if isinstance(topics, re.Pattern):
        return source.describe([name for name in known if topics.fullmatch(name)])
    names = [topics] if isinstance(topics, str) else list(topics)
    if not names:
        raise InvalidSetting("copy: the list of topics is empty", hint="leave it out to copy all")
    for name in names:
        if name not in known:
            raise UnknownTopic(f"{source.name}: Topic {name!r} does not exist")
    return source.describe(list(dict.fromkeys(names)))
