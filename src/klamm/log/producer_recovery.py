"""Rebuild the table of producers and the .aborted files from the batches of the log.

The latest snapshot has the table as of its offset, and the batches after it have the rest. If a file is damaged, or
missing though it was there, the whole log is read: it has every batch and every marker.

A missing .aborted file looks like one of a segment without an abort. What was there says, in the order of the log: for
segments before the recovery point the point itself; for closed segments since then their markers, which are read for
that (`Unlisted`); for the latest file the slot.
"""

from __future__ import annotations

import errno
import logging
import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from klamm.batch import header as batch_header
from klamm.batch import markers
from klamm.disk import files
from klamm.errors import CorruptBatch, DiskFull, LogError
from klamm.log import aborted, head, index, point, producers, results, segment
from klamm.log.aborted import Aborted
from klamm.log.point import Point
from klamm.log.sealed import Lack

if TYPE_CHECKING:
    from klamm.log.partition import Partition

__all__ = [
    "Unlisted",
    "open_and_aborted",
    "rebuild_lost_aborted",
    "restore",
    "restore_lost_aborted",
    "unlisted",
    "use_table",
]

_log = logging.getLogger("klamm")
_ATTEMPTS = 20


def use_table(partition: Partition, *, grow: bool = False) -> None:
    """Map the table of producers; rebuild it if there is none of this log. Called under the append lock.

    With `grow`, make space for one more producer, unless the table has its maximum size.
    """
    log = partition.log
    try:
        for _ in range(_ATTEMPTS):
            if not log.map_producers():
                _restore_or_remove(log)
            log.make_up()
            if log.has_producers:
                if grow:
                    log.grow_producers()
                return
    except OSError as error:
        raise results.error_of(partition, -(error.errno or errno.EIO)) from error
    raise LogError(f"{log.directory}/producers: cannot be used after {_ATTEMPTS} attempts to rebuild it")


def _restore_or_remove(log: head.Log) -> None:
    try:
        restore(log, log.snapshot().next_offset, point.load(log.directory))
    except (OSError, DiskFull):
        files.remove(f"{log.directory}/producers")
        raise


def restore(log: head.Log, end: int, known: Point | Lack, *, whole: bool = False) -> None:
    """Rebuild the table from the latest snapshot and every batch since. Called under the append lock.

    A snapshot is written before the first producer's first batch, unless that is the first of all. If there is none
    now, if entries of an .aborted file are missing, or with `whole`, the whole log is read. Entries of .aborted files
    since the snapshot are rewritten, too.
    """
    directory = log.directory
    offset, states = _producers_before(directory, end, known, whole=whole)
    log.restore_producers(states)
    for base, batches in _since(directory, offset, end):
        entries = [entry for entry in aborted.load(directory, base) if entry.last_offset < offset]
        for batch, data, aborts in batches:
            log.grow_producers()
            first = log.first_open_of(batch.producer_id) if aborts else -1
            if first >= 0:
                entries.append(Aborted(batch.producer_id, first, batch.base_offset))
            log.remember_producer(data, batch.base_offset)
        if not aborted.holds(directory, base, entries):
            aborted.write(directory, base, entries)
    for base in set(segment.bases(directory, aborted.SUFFIX)) - set(segment.bases(directory)):
        aborted.write(directory, base, [])  # its segment was lost, or never begun
    if end and not segment.bases(directory, producers.SUFFIX):
        producers.store(directory, end, log.pack_producers())
    latest = max(segment.bases(directory, aborted.SUFFIX), default=-1)
    log.aborted_file = latest, len(aborted.load(directory, latest)) if latest >= 0 else 0
    log.seal_producers()


def _producers_before(
    directory: str, end: int, known: Point | Lack, *, whole: bool = False
) -> tuple[int, list[producers.ProducerState]]:
    """Return the producers as of an offset, and that offset: the log from there on has the rest."""
    listed = known.listed_aborted if isinstance(known, Point) else []
    lost = aborted.find_lost(directory, listed, partial(aborted.load, directory))
    for path in lost:
        _log.warning("%s: missing or incomplete: reading the whole log instead", path)
    if not lost and not whole:
        found = producers.load_latest(directory, end)
        if found is not None:
            return found
        if isinstance(known, Point) and known.snapshot < 0:
            return known.offset, []
        if isinstance(known, Point):
            path = segment.path_of(directory, known.snapshot, producers.SUFFIX)
            _log.warning("%s: missing or damaged: reading the whole log instead", path)
    return 0, []


def open_and_aborted(directory: str, end: int, known: Point, *, whole: bool = False) -> tuple[int, list[Aborted]]:
    """Like `restore`, in memory: return where the oldest open transaction begins, or `end`, and the aborted ones."""
    offset, states = _producers_before(directory, end, known, whole=whole)
    found = {producer: first for producer, first, _, _ in states if first >= 0}
    entries: list[Aborted] = []
    for base in segment.bases(directory, aborted.SUFFIX):
        entries += [entry for entry in aborted.load(directory, base) if entry.last_offset < offset]
    entries += (entry for _, entry in _aborted_since(directory, offset, end, found))
    return min(found.values(), default=end), entries


def _aborted_since(directory: str, offset: int, end: int, is_open: dict[int, int]) -> Iterator[tuple[int, Aborted]]:
    """Yield the transactions that were aborted in [offset, end), with the base offset of the segment of their marker.

    `is_open` has the producers with an open transaction as of `offset`, and where it begins; at the end, as of `end`.
    """
    for base, batches in _since(directory, offset, end):
        for batch, _, aborts in batches:
            if not batch.is_control:
                if batch.is_transactional:
                    is_open.setdefault(batch.producer_id, batch.base_offset)
                continue
            first = is_open.pop(batch.producer_id, -1)
            if aborts and first >= 0:
                yield base, Aborted(batch.producer_id, first, batch.base_offset)


def _since(
    directory: str, offset: int, end: int
) -> Iterator[tuple[int, Iterator[tuple[batch_header.Header, bytes, bool]]]]:
    """Yield, by segment, the producers' batches in [offset, end), with the bytes of their header, and whether they
    abort.

    Bytes beyond `end` may be of a dead writer that did not commit them.
    """
    found = segment.bases(directory)
    first = segment.holding(found, offset)
    for base in found:
        if first is None or base >= first:
            yield base, _batches_since(directory, base, offset, end, is_last=base == found[-1])


def _batches_since(
    directory: str, base: int, offset: int, end: int, *, is_last: bool
) -> Iterator[tuple[batch_header.Header, bytes, bool]]:
    if max(base, offset) >= end:
        return
    end_position = os.stat(segment.path_of(directory, base)).st_size if is_last else None
    with index.Index(directory, base, end_position=end_position) as known:
        position = known.before_offset(offset).position
    with open(segment.path_of(directory, base), "rb") as file:
        file.seek(position)
        while len(data := file.read(markers.SIZE)) >= batch_header.HEADER_SIZE:
            batch = batch_header.parse(data)
            if batch.base_offset >= end:
                return
            if batch.base_offset >= offset and batch.producer_id >= 0:
                yield batch, data, batch.is_control and not markers.commits(data)
            if batch.next_offset >= end:
                return  # behind it may be blocks that are allocated ahead
            position += batch.size
            file.seek(position)


class Unlisted(NamedTuple):
    """The aborted transactions of closed segments that the recovery point does not list."""

    recovery_point: tuple[int, int]
    end: int
    """Read up to here: to the base offset of a segment, or from the snapshot that the recovery point names."""
    is_open: dict[int, int]
    """By producer id: where its open transaction begins, as of `end`."""
    markers: dict[int, array[int]]
    """By base offset of their segment: the offsets of the markers."""


def unlisted(partition: Partition) -> Mapping[int, Sequence[int]]:
    """Return the offsets of the markers for which .aborted files of closed segments must have entries, by the base
    offset of the segment; without those before the recovery point, which lists them.

    They are read from the log, once, where a later segment has an .aborted file. In general there are none: a recovery
    point is written after each roll.
    """
    log = partition.log
    end, recovery_point, known = log.aborted_file[0], log.recovery_point, partition.known_point()
    found = partition.unlisted
    if found is None or found.recovery_point != recovery_point:
        if known is None and recovery_point[0] >= 0:
            return {}  # the file is missing: everything is rebuilt
        snapshot = producers.load_latest(log.directory, known.snapshot) if known is not None else None
        offset, states = snapshot or (0, [])
        is_open = {producer: first for producer, first, _, _ in states if first >= 0}
        found = Unlisted(recovery_point, offset, is_open, {})
    if end > found.end:
        is_open, markers = dict(found.is_open), dict(found.markers)
        try:
            for base, entry in _aborted_since(log.directory, found.end, end, is_open):
                markers.setdefault(base, array("q")).append(entry.last_offset)
        except (FileNotFoundError, CorruptBatch):
            return found.markers  # expired just now; or damaged, which a reader reports
        found = found._replace(end=end, is_open=is_open, markers=markers)
    partition.unlisted = found
    return found.markers


def _lost_aborted(partition: Partition, first: int) -> str | None:
    """Return the path of an .aborted file, of a segment from `first` on, that was removed, damaged, or replaced by an
    older one; None if there is none.
    """
    log, known = partition.log, partition.known_point()
    if known is None and log.recovery_point[0] >= 0 and log.producers_seq > 0:
        return point.path_of(log.directory)
    listed = [(*log.aborted_file, 1 << 63), *(known.listed_aborted if known is not None else ())]
    markers = unlisted(partition)
    entries = aborted.load_from(log.directory, first)  # later than what must be there is known
    lost = aborted.find_lost(
        log.directory, [each for each in listed if each[0] >= first], lambda base: entries.get(base, ())
    )
    for base in sorted(entries)[:-1]:
        if not aborted.is_complete(log.directory, base, len(entries[base])):
            lost.append(segment.path_of(log.directory, base, aborted.SUFFIX))
    for base, offsets in markers.items():
        is_lost = base >= first and not {entry.last_offset for entry in entries.get(base, ())}.issuperset(offsets)
        if is_lost and os.path.exists(segment.path_of(log.directory, base)):
            lost.append(segment.path_of(log.directory, base, aborted.SUFFIX))
    return lost[0] if lost else None


def restore_lost_aborted(partition: Partition, base: int) -> None:
    """Rebuild .aborted files from this segment on if one was removed, damaged, or replaced by an older one."""
    if rebuild_lost_aborted(partition, base):
        partition.checkpoint(force=True)


def rebuild_lost_aborted(partition: Partition, base: int) -> bool:
    """Like `restore_lost_aborted`, but write no recovery point. Return whether a file was rebuilt."""
    log = partition.log
    lost = _lost_aborted(partition, base)
    if lost is None:
        return False
    if partition.is_read_only:
        raise CorruptBatch(
            f"{lost}: missing or incomplete, so aborted records cannot be told from committed ones",
            path=lost,
            position=0,
            hint="open the store for writing once: that rebuilds the file from the log",
        )
    with partition.translate_errors(), log.append_lock():
        restore(log, log.snapshot().next_offset, point.load(log.directory), whole=True)
        log.bump_segments_version()
    _log.warning("%s: was missing or incomplete: rebuilt from the log", lost)
    return True
