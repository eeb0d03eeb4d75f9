"""Compaction: closed segments with only the latest record of each key.

A pass reads the dirty part of the log, from the end of the last pass on, and records the latest offset of each key
(batch/_keymap.pxi: 24 bytes a key, in a table of fixed size). Then it goes through all closed segments from the start
of the log and removes records that are not the latest of their key. If the table becomes full, the pass covers the log
up to there, and another pass goes on.

  1  `cleaner-checkpoint` is written: gaps may appear below the end of this pass.
  2  A segment is filtered into `<base>.log.cleaned`, which is synced, read again and checked. If no record is removed,
     there is no such file, and the segment stays.
  3  Its index is removed, and the directory synced; segments_version + 1; the new file is renamed over the old one, and
     the directory synced; segments_version + 1; a new index is written.
  4  After the last segment, `cleaner-checkpoint` records the end of the pass.

A pass that is killed anywhere leaves each segment in its old or its new state; the next pass starts over, with less to
do. A reader that has the old file open reads it to its end.

Pass does steps 1, 3 and 4, under the clean lock. Rules decides which records are removed, and `filter_segment` applies
it to one segment: in this process with one table for all segments (Pass.run), or in another one with a table of the
keys of that segment (spark/pipelines/compact_pipeline.py).

Tombstones (null values) are removed `delete.retention.ms` after the first pass that found them to be the latest of
their key: that pass has removed everything before them, and slow readers get that time to see them. The batch has the
time of removal, as in Kafka (KIP-534): attribute 6 is set, and the base timestamp is that time; timestamps of records
stay. Records of aborted transactions are removed at once. A marker stays as long as a record of its transaction does:
without it recovery would take the transaction for open. After that it is treated like a tombstone.

Promises
  X1  Only records below all of these are removed: the active segment, flushed_offset, the stable offset, the recovery
      point and the latest snapshot of producers. So the record that replaces a removed one is on disk before, and
      recovery needs no removed record.
  X2  Segments are replaced in the order of their offsets, each durably before the next: a tombstone is never removed
      before what it deletes.
  X3  Offsets, timestamps, headers and bytes of the records that stay do not change. Records without a key stay.
  X4  A segment stays a file with its name, an empty one if nothing is left.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from klamm.batch import KeyMap, RecordFilter, verify
from klamm.batch import header as batch_header
from klamm.disk import _os, files
from klamm.errors import CorruptBatch, StoreBusy
from klamm.log import aborted, cleaner_checkpoint, head, index, point, producers, recovery, segment
from klamm.log.cleaner_checkpoint import CleanerCheckpoint
from klamm.log.index import Entry
from klamm.log.retention import latest_in

__all__ = [
    "SUFFIX",
    "CleanableSegments",
    "Compacted",
    "Pass",
    "Rules",
    "filter_segment",
    "find_cleanable",
    "limit",
    "oldest_dirty_ms",
    "remove_leftovers",
]

SUFFIX = segment.LOG + segment.CLEANED
_CHUNK = 1 << 20
_NEVER_MS = 1 << 62


class CleanableSegments(NamedTuple):
    """Closed segments that compaction may change, [(base, end)], and how much of them is not compacted yet."""

    segments: list[tuple[int, int]]
    total_bytes: int
    dirty_bytes: int
    known: CleanerCheckpoint

    @property
    def ratio(self) -> float:
        return self.dirty_bytes / self.total_bytes if self.total_bytes else 0.0

    @property
    def end(self) -> int:
        return self.segments[-1][1] if self.segments else 0


def find_cleanable(
    directory: str, now: head.Snapshot, *, end_offset: int, clock_ms: int, min_lag_ms: int
) -> CleanableSegments:
    """Return what can be compacted below `end_offset`. Records newer than `min_lag_ms` are left alone."""
    known = cleaner_checkpoint.load(directory)
    closed = [base for base in segment.bases(directory) if base < now.active_base]
    found: list[tuple[int, int]] = []
    total = dirty = 0
    for base, end in zip(closed, [*closed[1:], now.active_base], strict=False):
        if end <= now.log_start:
            continue
        if end > end_offset:
            break
        if end > known.offset and min_lag_ms > 0:
            latest_ms = latest_in(directory, base, end, clock_ms, contiguous=not cleaner_checkpoint.exists(directory))
            if latest_ms is None or latest_ms > clock_ms - min_lag_ms:
                break
        size = os.stat(segment.path_of(directory, base)).st_size
        found.append((base, end))
        total += size
        dirty += size if end > known.offset else 0
    return CleanableSegments(found, total, dirty, known)


def oldest_dirty_ms(directory: str, found: CleanableSegments) -> int | None:
    """Return the timestamp of the first batch that was not compacted yet."""
    for base, end in found.segments:
        if end > found.known.offset:
            fd = _os.open_file(segment.path_of(directory, base), os.O_RDONLY)
            try:
                data = _os.pread(fd, batch_header.HEADER_SIZE, 0)
            finally:
                os.close(fd)
            if len(data) == batch_header.HEADER_SIZE:
                with suppress(CorruptBatch):  # the pass raises the error
                    return batch_header.parse(data).max_timestamp
                return None
    return None


def limit(log: head.Log) -> int:
    """Return the offset up to which a pass may go (X1), after a checkpoint."""
    directory = log.directory
    now = log.snapshot()
    known = point.load(directory)
    # The checkpoint wrote a recovery point that is beyond neither flushed_offset nor the snapshot of producers: those
    # two bounds are redundant on purpose, so that X1 can be read here.
    bounds = [now.active_base, now.stable_offset, log.flushed_offset]
    bounds.append(known.base if isinstance(known, point.Point) else 0)
    if os.path.exists(f"{directory}/producers"):
        snapshot = producers.load_latest(directory, now.next_offset)
        bounds.append(snapshot[0] if snapshot else 0)
    return min(bounds)


def remove_leftovers(directory: str) -> None:
    """Remove the files that killed passes left behind."""
    for path in segment.cleaned_temp_paths(directory):
        files.remove(path)


@dataclass
class Compacted:
    """The result of compacting a partition."""

    passes: int = 0
    segments: int = 0  # replaced
    records_removed: int = 0
    records_left: int = 0
    bytes_before: int = 0  # of the closed segments
    bytes_after: int = 0


class Rules(NamedTuple):
    """The rules of a pass, for all of its segments: which records are removed."""

    aborted: list[tuple[int, int, int]]
    end_offset: int
    now_ms: int
    horizon_ms: int

    def record_filter(self, keys: KeyMap, open_ids: Iterable[int] = ()) -> RecordFilter:
        return RecordFilter(
            keys, end_offset=self.end_offset, now_ms=self.now_ms, horizon_ms=self.horizon_ms, open_ids=open_ids
        )


# ---- one segment


def _batches(directory: str, base: int) -> Iterator[tuple[memoryview, int]]:
    """Yield the batches of a segment, verified, with their positions."""
    path = segment.path_of(directory, base)
    fd = _os.open_file(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        position, offset, room = 0, base, _CHUNK
        while position < size:
            data = _os.pread(fd, min(room, size - position), position)
            try:
                done, offset = verify(data, offset, False)
            except CorruptBatch as error:
                raise _damaged(path, position, error) from None
            if not done:
                whole = batch_header.parse(data).size if len(data) >= batch_header.HEADER_SIZE else size
                if whole > size - position or whole <= room:
                    raise _damaged(path, position, CorruptBatch("an incomplete batch"))
                room = whole
                continue
            yield memoryview(data)[:done], position
            position, room = position + done, _CHUNK
    finally:
        os.close(fd)


def _damaged(path: str, position: int, error: CorruptBatch) -> CorruptBatch:
    what = error.message.removeprefix(f"byte {error.position}: ")  # of what was read, not of the file
    position += error.position or 0
    return CorruptBatch(
        f"{path}: byte {position}: {what}; the partition was not compacted",
        path=path,
        position=position,
        hint="run `check(repair=True)` on the store",
    )


def filter_segment(
    directory: str,
    base: int,
    record_filter: RecordFilter,
    temp_path: str,
    on_progress: Callable[[int], object] = lambda done: None,
) -> int | None:
    """Write the records of a segment that stay to `temp_path`, sync it, and return its size.

    Return None, without a file, if all records stay. `on_progress` gets the bytes read since its last call.
    """
    path = segment.path_of(directory, base)
    target, at = -1, 0
    try:
        for data, position in _batches(directory, base):
            try:
                kept = record_filter.filter(data)
            except CorruptBatch as error:
                raise _damaged(path, position, error) from None
            on_progress(len(data))
            if target < 0:
                if kept is None:
                    continue
                target = _os.open_file(temp_path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
                at = _copy_start(path, position, target)
            left = data if kept is None else kept
            if left:
                _os.pwrite(target, left, at)
                at += len(left)
        if target < 0:
            return None
        status = os.stat(path)  # an empty segment is as old as its file, and so are records without timestamps
        files.set_times(target, status)
        _os.fsync(target)
        return at
    except BaseException:
        with suppress(OSError):
            os.unlink(temp_path)
        raise
    finally:
        if target >= 0:
            os.close(target)


def _copy_start(path: str, size: int, target: int) -> int:
    """Copy what came before the first change. It was not copied earlier, because there might have been no change."""
    source = _os.open_file(path, os.O_RDONLY)
    try:
        for at in range(0, size, _CHUNK):
            _os.pwrite(target, _os.pread(source, min(_CHUNK, size - at), at), at)
    finally:
        os.close(source)
    return size


# ---- all of them


class Pass:
    """One pass over one partition. The caller holds its clean byte."""

    def __init__(
        self,
        log: head.Log,
        found: CleanableSegments,
        *,
        clock_ms: int,
        horizon_ms: int,
        interval: int,
        memory_bytes: int,
        on_progress: Callable[[int, int], object] = lambda done, total: None,
    ) -> None:
        """Prepare a pass. It removes tombstones that are due at `clock_ms`; new ones become due at `horizon_ms`.

        `on_progress` gets the bytes read and the bytes in all; an exception of it ends the pass.
        """
        self.log = log
        self.directory = log.directory
        self.found = found
        self.known = found.known
        self.start = max(found.known.offset, log.snapshot().log_start)
        """From here on the log is dirty."""
        self.clock_ms = clock_ms
        self.horizon_ms = min(horizon_ms, _NEVER_MS)
        self.interval = interval
        self.memory_bytes = memory_bytes
        self._on_progress = on_progress
        self._read = 0
        self._total = found.total_bytes + found.dirty_bytes
        self._replaced = 0

    def run(self, done: Compacted) -> bool:
        """Run the pass. Return whether everything is compacted; if not, the key map was full: run another pass."""
        keys, end = self._note_keys()
        self._total = self._read + sum(self._size(base) for base, _ in self.found.segments if base < end)
        self.begin(end)
        record_filter = self.rules(end).record_filter(keys)
        for base, following in self.found.segments:
            if base < end:
                temp_path = segment.path_of(self.directory, base, SUFFIX)
                size = filter_segment(self.directory, base, record_filter, temp_path, self.on_progress)
                if size is not None:
                    self.replace(base, following, temp_path, size)
        self.finish(
            done, end, records=record_filter.records, kept=record_filter.kept, last_horizon=record_filter.last_horizon
        )
        return end >= self.found.end

    def on_progress(self, count: int) -> None:
        """Count bytes that were read."""
        self._read += count
        self._on_progress(self._read, self._total)

    def rules(self, end: int) -> Rules:
        return Rules(self._aborted(), end, self.clock_ms, self.horizon_ms)

    def _aborted(self) -> list[tuple[int, int, int]]:
        entries = aborted.load_from(self.directory, 0).values()
        return [(*entry,) for found in entries for entry in found]

    def begin(self, end: int) -> None:
        """Record that there may be gaps below `end`, before the first segment is replaced."""
        if sys.platform == "win32":  # Windows cannot replace some files that are in use
            with _os.Mutexes([self.log]):
                self.log.forget_files()  # of closed segments, which appends and syncs may still have open
        gaps_below = max(min(self.known.gaps_below, self.log.snapshot().active_base), end)
        self.known = self.known._replace(gaps_below=gaps_below)
        cleaner_checkpoint.store(self.directory, self.known)

    def finish(self, done: Compacted, end: int, *, records: int, kept: int, last_horizon: int) -> None:
        """Record that everything below `end` is compacted, after the last segment."""
        offset = max(end, self.known.offset)
        cleaner_checkpoint.store(self.directory, self.known._replace(offset=offset, last_horizon=last_horizon))
        if not done.passes:
            done.bytes_before = self.found.total_bytes
        done.bytes_after = sum(self._size(base) for base, _ in self.found.segments)
        done.segments += self._replaced
        done.records_removed += records - kept
        done.records_left = kept
        done.passes += 1

    def _size(self, base: int) -> int:
        return os.stat(segment.path_of(self.directory, base)).st_size

    def _note_keys(self) -> tuple[KeyMap, int]:
        """Return the keys of the dirty part and its end: of the closed segments, or where the key map became full."""
        start = self.start
        keys = KeyMap(self.memory_bytes, os.urandom(16), most=max(self.found.end - start, 0), aborted=self._aborted())
        end = start
        for base, following in self.found.segments:
            if following <= start:
                continue
            for data, position in _batches(self.directory, base):
                try:
                    end = keys.add(data, start)
                except CorruptBatch as error:
                    raise _damaged(segment.path_of(self.directory, base), position, error) from None
                self.on_progress(len(data))
                if keys.full:
                    return keys, end
            end = following
        return keys, max(end, self.found.end)

    def replace(self, base: int, following: int, temp_path: str, size: int) -> None:
        """Replace a segment by the file that `filter_segment` wrote; called in the order of offsets (X2)."""
        try:
            self._replace(base, following, temp_path, size)
        except BaseException:
            with suppress(OSError):
                os.unlink(temp_path)
            raise
        self._replaced += 1

    def _replace(self, base: int, following: int, temp_path: str, size: int) -> None:
        directory, log = self.directory, self.log
        suffix = temp_path[len(segment.path_of(directory, base, "")) :]
        scanned = recovery.scan_segment(
            directory, base, interval=self.interval, contiguous=False, suffix=suffix
        )  # check the new file; if it is wrong, the segment stays
        if scanned.fault is not None or scanned.position != size or scanned.offset > following:
            raise _damaged(temp_path, scanned.position, CorruptBatch(scanned.fault or "it cannot be read again"))
        files.remove(segment.path_of(directory, base, ".index"))
        files.sync_directory(directory)  # so that no old index returns that happens to match
        log.bump_segments_version()
        self._rename(temp_path, segment.path_of(directory, base))
        files.sync_directory(directory)  # index.write does it, too: redundant, so that X2 does not depend on that
        log.bump_segments_version()
        index.write(directory, base, [*scanned.entries, Entry(following, size, scanned.max_timestamp)], size=size)

    def _rename(self, temp_path: str, path: str) -> None:
        """Rename a file. On Windows, the pass ends if the file is in use, by a virus scanner for example (X2)."""
        try:
            _os.rename(temp_path, path)
        except PermissionError as error:
            if sys.platform != "win32":
                raise
            raise StoreBusy(f"{path}: in use, and not compacted", hint="try again when no process reads it") from error
