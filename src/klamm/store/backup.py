"""A consistent copy of a store that is in use.

  1  Under the klamm.db lock: SQLite copies klamm.db, and every partition's commit is recorded. Nothing that goes
     through klamm.db can happen in between, so the copy is one moment of the store.
  2  Without any lock: each log is synced and copied up to its recorded commit, latest segment first. Retention may
     remove old segments during the copy; then the copy starts later, and has no hole. Each copied batch is checked. If
     compaction has removed records because of later ones that lie after the recorded commit, everything starts over:
     otherwise the copy would have neither the removed records nor the later ones.
  3  `klamm.db.part` becomes klamm.db, last of all: an unfinished copy is not a store.

Promises
  BAK1  No byte beyond the recorded commit is copied, and none that is not on disk in the store itself.
  BAK2  The copy is durable when `backup` returns.
  BAK3  A topic that is deleted during the backup is in the copy as a whole, or not at all.

The heads of the copy are not trusted: opening it recovers each log, which starts a new leader epoch.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import closing, nullcontext, suppress
from typing import NamedTuple, TypeAlias

from klamm.disk import _os, copy_on_write, files
from klamm.errors import CorruptBatch, StoreError, UnknownTopic
from klamm.log import aborted, cleaner_checkpoint, head, index, point, producer_recovery, producers, recovery, segment
from klamm.log.index import Entry
from klamm.log.partition import Partition
from klamm.log.sealed import Lack
from klamm.store.catalog import Catalog, Topic
from klamm.store.directory import Core
from klamm.types import PartitionKey, TopicId

__all__ = ["Copied", "backup"]

_PART = "klamm.db.part"
_CHUNK = 4 << 20
_TRIES = 5


class _Overtaken(Exception):
    """A compaction removed records because of later ones, after the recorded commit, which the copy does not have."""


Progress: TypeAlias = Callable[[int, int], object]
"""Gets the bytes of log that were copied, and those in all."""
_OnProgress: TypeAlias = Callable[[int], object]


class Copied(NamedTuple):
    """The content of a backup."""

    topics: int
    partitions: int
    size: int  # bytes of all segments


class _Snapshot(NamedTuple):
    topic: Topic
    partition: Partition
    now: head.Snapshot


def backup(core: Core, destination: str, *, progress: Progress | None = None) -> Copied:
    """Copy the store into `destination`, a directory that is empty or does not exist yet."""
    destination = os.path.abspath(os.fspath(destination))
    _check_destination(core.path, destination)
    made = not os.path.exists(destination)
    os.makedirs(destination, mode=0o700, exist_ok=True)
    copy_on_write.try_to_avoid(destination)
    try:
        for _ in range(_TRIES):
            with suppress(_Overtaken):
                return _fill(core, destination, progress)
            _clear(destination, made=False)
        raise StoreError(
            f"{core.path}: cannot be copied: compaction overtook every attempt",
            hint="try again when no compaction runs",
        )
    except BaseException as error:
        _clear(destination, made)
        if isinstance(error, OSError):
            raise files.disk_full(error, destination) from error
        raise


def _check_destination(store: str, destination: str) -> None:
    if os.path.exists(destination) and (not os.path.isdir(destination) or os.listdir(destination)):
        raise StoreError(f"{destination}: already exists, and is not an empty directory", hint="choose a new one")
    inside, outside = os.path.realpath(destination), os.path.realpath(store)
    if inside == outside or inside.startswith(outside + os.sep):
        raise StoreError(f"{destination}: lies inside of the store", hint=f"choose a directory outside of {store}")


def _clear(destination: str, made: bool) -> None:
    if made:
        shutil.rmtree(destination, ignore_errors=True)
        return
    shutil.rmtree(f"{destination}/topics", ignore_errors=True)
    for name in ("heads", _PART, f"{_PART}-wal", f"{_PART}-shm"):
        with suppress(OSError):
            os.unlink(f"{destination}/{name}")


def _fill(core: Core, destination: str, progress: Progress | None) -> Copied:
    snapshots = _take_snapshots(core, f"{destination}/{_PART}")
    _os.mkdir(f"{destination}/topics")
    size = 0
    on_progress = None
    if progress is not None:
        total = sum(each.partition.log_size() for each in snapshots)
        on_progress = lambda copied: progress(size + copied, total)  # noqa: E731  # of all before, and of this partition
    gone: dict[TopicId, Topic] = {}
    for topic, partition, now in snapshots:
        if topic.id not in gone:
            target = f"{destination}/topics/{topic.directory}"
            try:
                size += _copy_partition(partition, now, target, writable=core.lock is not None, on_progress=on_progress)
            except (CorruptBatch, OSError, UnknownTopic):
                if not partition.log.flags & head.DELETED:
                    _check_not_overtaken(partition.directory, now)
                    raise
                gone[topic.id] = topic
    _drop(destination, gone)
    kept = [each for each in snapshots if each.topic.id not in gone]
    _lay_out(f"{destination}/heads", max((slot for each in kept for slot in each.topic.partitions), default=0) + 1)
    for each in {each.topic.directory for each in kept}:
        if os.path.isdir(f"{destination}/topics/{each}"):
            files.sync_directory(f"{destination}/topics/{each}")
    files.sync_directory(f"{destination}/topics")
    _os.rename(f"{destination}/{_PART}", f"{destination}/klamm.db")
    files.sync_directory(destination)
    files.sync_directory(os.path.dirname(destination))
    files.sync_ancestors(os.path.dirname(destination))  # some may be new, too
    return Copied(len({each.topic.id for each in kept}), len(kept), size)


def _take_snapshots(core: Core, database: str) -> list[_Snapshot]:
    """Take one snapshot of the store: its catalog, copied, and where each log ended."""
    opened: dict[PartitionKey, Partition] = {}
    while True:
        # Opening may recover a log and takes append locks: not under the klamm.db lock, which every process needs.
        for topic in core.catalog.topics():
            with suppress(UnknownTopic):
                for partition in core.topic(topic.name).partitions():
                    opened[topic.id, partition.number] = partition
        with core.catalog.database.db_lock():
            topics = core.catalog.topics()
            wanted = [(topic, number) for topic in topics for number in range(len(topic.partitions))]
            if all((topic.id, number) in opened for topic, number in wanted):
                core.catalog.backup(database)
                partitions = [(topic, opened[topic.id, number]) for topic, number in wanted]
                return [_Snapshot(topic, partition, partition.snapshot()) for topic, partition in partitions]


def _copy_partition(
    partition: Partition, now: head.Snapshot, topic_directory: str, *, writable: bool, on_progress: _OnProgress | None
) -> int:
    """Copy the segments up to the commit, with indexes, recovery point and producers. Return the bytes of log."""
    if now.next_offset == 0:
        return 0  # nothing was ever appended: it has no files
    if writable:
        partition.sync(now.next_offset)
    if partition.recovered is None:
        producer_recovery.restore_lost_aborted(partition, 0)
    source, target = partition.directory, f"{topic_directory}/{partition.number}"
    files.make_directories(target)
    start, size = now.next_offset, 0
    for base in reversed([base for base in segment.bases(source) if base <= now.active_base]):
        if start <= now.log_start:
            break  # what is older cannot be reached
        active = base == now.active_base
        try:
            copied = _copy_file(
                segment.path_of(source, base),
                segment.path_of(target, base),
                now.position if active else -1,
                size,
                on_progress,
            )
        except FileNotFoundError:
            break  # expired just now, or missing
        _finish_segment(partition, target, base, copied, start, active=active)
        ended = [entry for entry in aborted.load(source, base) if entry.last_offset < now.next_offset]
        if ended:
            aborted.write(target, base, ended)
        start, size = base, size + copied
    if start > max(now.log_start, partition.snapshot().log_start):
        raise CorruptBatch(
            f"{source}: offsets {now.log_start} to {start - 1} are missing",
            path=source,
            hint="run `check(repair=True)` on the store",
        )
    _copy_cleaned(source, target, now)
    snapshot = _copy_producers(source, target, start, now.next_offset)
    log_start = max(now.log_start, start)
    epochs = tuple(epoch for epoch in partition.epochs() if epoch[1] <= now.next_offset)
    if os.path.exists(segment.path_of(target, now.active_base)) or now.position == 0:
        known = point.Point(now.next_offset, now.active_base, now.position, log_start, epochs)
    else:  # all of it expired: an empty log that goes on at the same offset
        known = point.Point(now.next_offset, now.next_offset, 0, now.next_offset, epochs)
    point.store(target, known._replace(snapshot=snapshot, compacted=cleaner_checkpoint.exists(target)))
    return size


def _copy_file(source: str, target: str, end: int, before: int, on_progress: _OnProgress | None) -> int:
    """Copy the first `end` bytes of a file (all if negative) and sync the copy. `before` bytes were copied already."""
    reading = _os.open_file(source, os.O_RDONLY)
    try:
        end = os.fstat(reading).st_size if end < 0 else end
        writing = _os.open_file(target, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            position = 0
            while position < end and (data := _os.pread(reading, min(_CHUNK, end - position), position)):
                _os.pwrite(writing, data, position)
                position += len(data)
                if on_progress is not None:
                    on_progress(before + position)
            _os.fsync(writing)
        finally:
            os.close(writing)
    finally:
        os.close(reading)
    return position


def _finish_segment(partition: Partition, target: str, base: int, size: int, end: int, *, active: bool) -> None:
    """Check the copy, whose next offset must be `end`, and give it an index of its own."""
    partition.look_for_gaps()
    scanned = recovery.scan_segment(
        target, base, interval=partition.settings.index_interval_bytes, contiguous=partition.contiguous
    )
    fault = scanned.fault
    if fault is None and (scanned.offset != end if partition.contiguous else scanned.offset > end):
        fault = f"the segment ends at offset {scanned.offset}, expected {end}"
    if fault is not None or scanned.position != size:
        path = segment.path_of(partition.directory, base)
        raise CorruptBatch(
            f"{path}: byte {scanned.position}: {fault or 'the file ends here'}",
            path=path,
            position=scanned.position,
            hint="run `check(repair=True)` on the store",
        )
    entries = scanned.entries if active else [*scanned.entries, Entry(end, size, scanned.max_timestamp)]
    if entries:
        index.write(target, base, entries, size=None if active else size)


def _copy_cleaned(source: str, target: str, now: head.Snapshot) -> None:
    """Copy the cleaner checkpoint, after the segments: it is written before the first record is removed."""
    if cleaner_checkpoint.exists(source):
        _check_not_overtaken(source, now)
        known = cleaner_checkpoint.load(source)
        if known.gaps_below == cleaner_checkpoint.EVERYWHERE:
            path = cleaner_checkpoint.path_of(source)
            raise CorruptBatch(
                f"{path}: its checksum is wrong", path=path, hint="run `check(repair=True)` on the store"
            )
        cleaner_checkpoint.store(target, known)


def _check_not_overtaken(source: str, now: head.Snapshot) -> None:
    """Raise if a compaction has reached the segment that was active: otherwise it is unchanged."""
    if now.active_base < cleaner_checkpoint.load(source).gaps_below < cleaner_checkpoint.EVERYWHERE:
        raise _Overtaken


def _copy_producers(source: str, target: str, start: int, end: int) -> int:
    """Copy the latest snapshot at or before the commit and return its offset: recovery of the copy reads on from there.

    -1 if there was no producer.
    """
    for offset in reversed(segment.bases(source, producers.SUFFIX)):
        if offset <= end:
            states = producers.load(source, offset)
            if not isinstance(states, Lack):  # else it is damaged, or was pruned just now
                producers.store(target, offset, states)
                return offset
    if os.path.exists(f"{source}/producers"):
        producers.store(target, start, [])
        return start
    return -1


def _drop(destination: str, gone: dict[TopicId, Topic]) -> None:
    """Remove topics from the copy that were deleted during the backup."""
    if not gone:
        return
    with closing(Catalog(f"{destination}/{_PART}", nullcontext)) as catalog:
        for topic in gone.values():
            catalog.delete_topic(topic.name)
            shutil.rmtree(f"{destination}/topics/{topic.directory}", ignore_errors=True)


def _lay_out(path: str, end: int) -> None:
    """Write `heads` with NEEDS_RECOVERY in every slot. So the copy can be opened for reading only, too."""
    files.replace(path, b"")
    heads = head.Heads(path)
    heads.initialise()
    if end > 1:
        heads.lay_out(1, end, head.NEEDS_RECOVERY | head.NEW_HEAD)
    heads.close_descriptor()
