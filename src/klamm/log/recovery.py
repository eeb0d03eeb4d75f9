"""Recover a partition: after the machine went down (recover) and after a failed sync (rewrite_unsynced).

A head that cannot be trusted (another boot, a copied store, damage) has the flag NEEDS_RECOVERY. The first process that
uses the partition takes its append and flush locks and rebuilds the head from the files:

  1  From the recovery point on, every batch is checked: CRC, and contiguous offsets. Everything that was synced must be
     there: everything below the point, and below flushed_offset of the old head, which is never ahead of the disk. A
     wrong or missing batch below that is damage, and an error; so is a missing segment that the point lists.
  2  The bytes after the last good batch are a torn tail. They are moved to `<name>.cut-<time>` and cut off, and that is
     logged; `klamm salvage` reads them.
  3  The index, the table of producers and the .aborted files are brought up to date. Open transactions stay open:
     klamm.db has whether they were committed (store/transactions.py).
  4  Everything is synced, then the file `recovery` gets a new point and a new leader epoch, then the head is committed.

If the process is killed anywhere here, the flag is still set, and the next process starts over. A reader's stored
position may lie beyond the new end, where other records will be appended: the new epoch shows that (see point.py). The
power cut may have removed every trace of a log that was never synced. So an epoch is never less than `boot_count`,
which is synced before, and no epoch is used twice.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import NamedTuple

from klamm.batch import header as batch_header
from klamm.batch import verify, walk
from klamm.disk import _os, files
from klamm.errors import CorruptBatch, SyncFailed
from klamm.log import aborted, cleaner_checkpoint, head, index, point, producer_recovery, producers, segment
from klamm.log.aborted import Aborted
from klamm.log.index import Entry
from klamm.log.point import Point
from klamm.log.sealed import Lack

__all__ = ["Scanned", "damage", "is_older", "known_point", "last_point", "recover", "rewrite_unsynced", "scan_segment"]

_log = logging.getLogger("klamm")
_CHUNK = 4 << 20
_UNSYNCED = ".unsynced"


class Scanned(NamedTuple):
    """The valid content of a segment: up to `position`, the first byte that does not belong to a valid batch.

    Zeros at the end are neither a fault nor part of `size`: they were allocated ahead (_ahead.pxi).
    """

    offset: int
    position: int
    max_timestamp: int
    size: int
    fault: str | None
    entries: list[Entry]
    epochs: tuple[tuple[int, int], ...]  # of the batches: each epoch and its first offset
    has_producers: bool  # whether a batch has a producer id
    unwritten: int = 0  # bytes of the file behind `size`: zeros, which were allocated and never written


def scan_segment(
    directory: str,
    base: int,
    *,
    start: Entry | None = None,
    interval: int = 4096,
    contiguous: bool = True,
    suffix: str = segment.LOG,
    highest_epoch: int = -1,
    on_progress: Callable[[], object] = lambda: None,
) -> Scanned:
    """Check every batch of a segment from an index entry on, and make index entries.

    Without `highest_epoch`, leader epochs are not checked. `on_progress` is called now and then, and may raise.
    """
    offset, position, max_timestamp = start or Entry(base, 0, -1)
    entries: list[Entry] = []
    fault = None
    epochs: tuple[tuple[int, int], ...] = ()
    has_producers = False
    last = position
    fd = _os.open_file(segment.path_of(directory, base, suffix), os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        room = _CHUNK
        while position < size:
            on_progress()
            data = _os.pread(fd, min(room, size - position), position)
            try:
                done, following = verify(data, offset, contiguous, highest_epoch)
            except CorruptBatch as error:
                fault = error.message.removeprefix(f"byte {error.position}: ")  # of what was read, not of the file
                data = data[: error.position or 0]
                done, following = verify(data, offset, contiguous, highest_epoch)
            for found in walk(memoryview(data)[:done]):
                if position - last >= interval:
                    entries.append(Entry(found.base_offset, position, max_timestamp))
                    last = position
                max_timestamp = max(max_timestamp, found.max_timestamp)
                epochs = _joined(epochs, ((found.leader_epoch, found.base_offset),))
                has_producers = has_producers or found.producer_id >= 0
                position += found.size
            offset = following if done else offset
            if fault is None and not done:
                whole = batch_header.parse(data).size if len(data) >= batch_header.HEADER_SIZE else size
                if whole > size - position or whole <= room:
                    fault = f"an incomplete batch of {size - position} bytes"
                else:
                    room = whole  # a batch larger than the window
            if fault is not None:
                break
        unwritten = 0
        if fault is not None and segment.is_zero(fd, position, size):
            unwritten, size, fault = size - position, position, None
    finally:
        os.close(fd)
    return Scanned(offset, position, max_timestamp, size, fault, entries, epochs, has_producers, unwritten)


def _joined(known: tuple[tuple[int, int], ...], later: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """Return the history of epochs, extended by the new ones."""
    for epoch, start in later:
        if not known or epoch > known[-1][0]:
            known = point.with_epoch(known, epoch, start)
    return known


def last_point(log: head.Log, *, contiguous: bool = True) -> Point:
    """Return the content of the file `recovery`. A log that never had one has one epoch; otherwise the log is read."""
    directory = log.directory
    known = point.load(directory)
    if isinstance(known, Point):
        return known
    now = log.snapshot()
    if known is Lack.MISSING and log.recovery_point[0] < 0:
        return Point(epochs=((now.leader_epoch, 0),))
    epochs: tuple[tuple[int, int], ...] = ()
    found = [base for base in segment.bases(directory) if base <= now.active_base]
    for base in found:
        scanned = scan_segment(directory, base, contiguous=contiguous, highest_epoch=now.leader_epoch)
        epochs = _joined(epochs, scanned.epochs)
    epochs = _joined(epochs, ((now.leader_epoch, now.next_offset),))
    start = found[0] if found else now.active_base
    snapshots = segment.bases(directory, producers.SUFFIX)
    return Point(start, start, 0, now.log_start, epochs, snapshots[-1] if snapshots else -1, not contiguous)


def recover(
    log: head.Log, *, clock_ms: int, interval: int, contiguous: bool = True, dry_run: bool = False, boot_count: int = 0
) -> list[Aborted] | None:
    """Rebuild the head from the files. `dry_run`: in memory only; return the aborted transactions."""
    if dry_run:
        found = _rebuild(log, clock_ms, interval, contiguous, dry_run, boot_count)
        log.clear_flags(head.NEEDS_RECOVERY | head.SYNC_FAILED)
        return found
    with log.point_lock(), log.append_lock(), log.flush_lock():
        if log.flags & head.NEEDS_RECOVERY:  # else another process was faster
            log.forget_files()
            _rebuild(log, clock_ms, interval, contiguous, dry_run, boot_count)
            log.clear_flags(head.NEEDS_RECOVERY | head.SYNC_FAILED)
    return None


def is_older(log: head.Log) -> bool:
    """Return whether the log extends beyond the head without a dead writer: `heads` was restored from a backup."""
    seq, intent, _, _ = log.bookkeeping
    now = log.snapshot()
    if now.seq != seq or intent != seq:
        return False
    try:
        beyond = _is_written(segment.path_of(log.directory, now.active_base), now.position)
    except FileNotFoundError:
        return False
    beyond = beyond or (now.position > 0 and os.path.exists(segment.path_of(log.directory, now.next_offset)))
    if not beyond and cleaner_checkpoint.exists(log.directory):  # compaction may have removed everything that follows
        known = point.load(log.directory)
        beyond = isinstance(known, Point) and known.offset > now.next_offset
    return beyond and log.bookkeeping[:2] == (seq, intent)  # else a batch was appended just now


def _is_written(path: str, position: int) -> bool:
    """Return whether a segment has more bytes from there on, other than zeros that were allocated ahead."""
    if os.stat(path).st_size <= position:
        return False
    fd = _os.open_file(path, os.O_RDONLY)
    try:
        return not segment.is_zero(fd, position, position + batch_header.HEADER_SIZE)
    finally:
        os.close(fd)


def _rebuild(
    log: head.Log, clock_ms: int, interval: int, contiguous: bool, dry_run: bool, boot_count: int
) -> list[Aborted] | None:
    directory = log.directory
    proof = log.evidence()
    found = segment.bases(directory)
    loaded = point.load(directory)
    known = known_point(directory, loaded, found, proof)
    is_listed = isinstance(loaded, Point)  # else any .aborted file may be missing, too
    fresh = not found and not known.epochs
    flushed = 0 if known.repaired else proof.flushed_offset
    known = known._replace(log_start=max(known.log_start, proof.log_start))
    if known.base not in found and known.offset <= known.log_start:  # it was the end of a part that is deleted now
        known = known._replace(base=known.offset, position=0)
    contiguous = contiguous and not known.compacted
    highest = point.highest_epoch(known.epochs, proof, boot_count)
    reading = _ScanLimits(directory, known, found, flushed, interval, contiguous, highest)
    good, stale = _scan(reading, dry_run)
    end = stable = good.offset
    found_aborted: list[Aborted] | None = None
    snapshots = segment.bases(directory, producers.SUFFIX)
    has_producers = bool(snapshots) or os.path.exists(f"{directory}/producers")
    has_producers = has_producers or known.snapshot >= 0 or good.has_producers
    if dry_run and has_producers:
        stable, found_aborted = producer_recovery.open_and_aborted(directory, end, known, whole=not is_listed)
    if not dry_run:
        _cut(directory, good, stale)
        if not fresh:
            for base in segment.bases(directory):
                if base >= known.base:
                    files.sync_file(segment.path_of(directory, base))
            segment.sync_names(directory)
        if has_producers:
            producer_recovery.restore(log, end, known, whole=not is_listed)
            oldest = log.oldest_open()
            stable = oldest if oldest >= 0 else end
            snapshots = segment.bases(directory, producers.SUFFIX)
    epoch = boot_count
    if not fresh:
        epochs = _joined(known.epochs, good.epochs)
        epoch = max(boot_count, proof.leader_epoch + 1, epochs[-1][0] + 1 if epochs else 1)
        epoch = min(epoch, point.MAX_EPOCH)
        epochs = point.with_epoch(epochs, epoch, end)
        if not dry_run:
            snapshot = snapshots[-1] if snapshots else -1
            positions = end, good.base, good.position, known.log_start
            stored = Point(*positions, epochs, snapshot, not contiguous, repaired=known.repaired)
            point.store(directory, stored)
            _log.info("%s: recovered: offsets %d to %d", directory, known.log_start, end - 1)
            if end < proof.next_offset and not known.repaired:
                message = "%s: offsets %d to %d are lost: they had not been synced when the machine stopped"
                _log.warning(message, directory, end, proof.next_offset - 1)
    log.publish(
        reset=True,
        next_offset=end,
        active_base=good.base,
        position=good.position,
        stable_offset=stable,
        max_timestamp=good.max_timestamp,
        log_start=known.log_start,
        leader_epoch=epoch,
    )
    log.set_index(good.base, good.index_count, good.index_position)
    log.set_recovered(end, clock_ms)
    log.set_recovery_point(-1 if fresh else good.base, good.position)
    if known.repaired and not dry_run:  # only when the new head is on disk may recovery rely on it again
        log.sync_head()
        point.store(directory, stored._replace(repaired=False))
    return found_aborted


def known_point(directory: str, known: Point | Lack, found: list[int], proof: head.Evidence) -> Point:
    """Return where recovery starts. `known` is the content of the file, or the reason why it has none.

    Without a readable point everything is scanned, and the old head's evidence is used. The point is written before any
    segment is removed. So without one, and without a head that had one, the log is complete.
    """
    path = point.path_of(directory)
    if isinstance(known, Point):
        gone = point.missing_segments(known, found, max(known.log_start, proof.log_start))
        if gone:
            raise damage(segment.path_of(directory, gone[0]), 0, "the segment is missing")
        return known
    if known is Lack.MISSING and proof.exists and not proof.had_point:
        return Point(epochs=())
    if not found:
        if known is Lack.MISSING and not proof.had_point:
            return Point(epochs=())  # no evidence that anything was ever appended
        raise damage(path, 0, f"{known.value}, and there is no segment: the next offset is not known")
    if not proof.exists:
        what = f"{known.value}, and `heads` is a new one: where the log starts is not known"
        raise damage(path, 0, what)
    if cleaner_checkpoint.exists(directory):
        raise damage(path, 0, f"{known.value}: whether every segment of the compacted log is there is not known")
    if found[0] > proof.log_start:
        raise damage(path, 0, f"{known.value}, and so are the offsets {proof.log_start} to {found[0] - 1}")
    _log.warning("%s: %s: reading the whole log instead", path, known.value)
    return Point(found[0], found[0], 0, max(found[0], proof.log_start), ())


def damage(path: str, position: int, what: str) -> CorruptBatch:
    return CorruptBatch(
        f"{path}: {what}",
        path=path,
        position=position,
        hint="put the file back, restore a backup elsewhere, or run `klamm check --repair` to keep what is there",
    )


class _Good(NamedTuple):
    """The end of the valid part of the log."""

    offset: int
    base: int
    position: int
    max_timestamp: int
    epochs: tuple[tuple[int, int], ...]
    size: int
    index_count: int
    index_position: int
    has_producers: bool = False
    fault: str | None = None
    unwritten: tuple[tuple[int, int], ...] = ()  # segments that end with zeros, and where these start

    @property
    def is_zero_ended(self) -> bool:
        """Whether the last segment ends with zeros. Compaction leaves none, so it did not cause a gap that follows."""
        return bool(self.unwritten) and self.unwritten[-1][0] == self.base


class _ScanLimits(NamedTuple):
    """The limits of a scan: everything below `flushed` was synced, and no batch has a higher epoch than the highest."""

    directory: str
    known: Point
    found: list[int]
    flushed: int
    interval: int
    contiguous: bool
    highest_epoch: int


def _scan(reading: _ScanLimits, dry_run: bool) -> tuple[_Good, list[int]]:
    """Read from the recovery point on. Return where the good part ends, and the segments after it.

    It must not end before `flushed`: everything below was synced.
    """
    good, stale = _read_on(reading, dry_run)
    directory, flushed = reading.directory, reading.flushed
    if good.offset < flushed:
        path = segment.path_of(directory, good.base)
        what = good.fault or ("the segment ends here" if os.path.exists(path) else "the segment is missing")
        raise damage(
            path,
            good.position,
            f"byte {good.position}: {what}, but everything up to offset {flushed - 1} had been synced: "
            f"damage, a file put back from a backup, or a torn copy{cleaner_checkpoint.what_is_missing(directory)}",
        )
    return good, stale


def _read_on(reading: _ScanLimits, dry_run: bool) -> tuple[_Good, list[int]]:
    directory, known, found, flushed, interval, contiguous, highest_epoch = reading
    _check_below(directory, known, found)
    good = _Good(known.offset, known.base, known.position, -1, (), 0, 0, 0)
    later = [base for base in found if base >= known.base]
    gaps_below = 0 if contiguous else cleaner_checkpoint.load(directory).gaps_below
    for number, base in enumerate(later):
        if base != known.base and not good.offset <= base <= max(good.offset, 0 if good.is_zero_ended else gaps_below):
            return good, later[number:]
        limit = known.position if base == known.base else 0
        with index.Index(directory, base, end_position=limit) as old:  # everything below the point is unchanged
            start, keep = old.before_position(limit)
        scanned = scan_segment(
            directory,
            base,
            start=start,
            interval=interval,
            contiguous=base >= gaps_below,
            highest_epoch=highest_epoch,
        )
        if min(scanned.position, scanned.size) < limit:
            path = segment.path_of(directory, base)
            raise damage(
                path,
                scanned.position,
                f"byte {scanned.position}: {scanned.fault or 'the file ends here'}, but everything up to byte "
                f"{limit} had been synced: damage, a file put back from a backup, or a torn copy",
            )
        entries = scanned.entries
        last = entries[-1].position if entries else start.position
        good = _Good(
            scanned.offset,
            base,
            scanned.position,
            scanned.max_timestamp,
            _joined(good.epochs, scanned.epochs),
            scanned.size,
            keep + len(entries),
            last,
            good.has_producers or scanned.has_producers,
            scanned.fault,
            good.unwritten + (((base, scanned.position),) if scanned.unwritten else ()),
        )
        closed = number < len(later) - 1 and scanned.fault is None
        if closed:
            end = scanned.offset if scanned.offset >= gaps_below else later[number + 1]
            entries.append(Entry(end, scanned.position, scanned.max_timestamp))
        if scanned.fault is not None and scanned.offset < flushed:
            break  # damage: nothing is written
        if not dry_run:  # before anything is cut: an index with entries beyond the end would lie
            index.write(directory, base, entries, keep=keep, size=scanned.position if closed else None)
        if scanned.fault is not None or (dry_run and scanned.unwritten):
            return good, later[number + 1 :]
    return good, []


def _check_below(directory: str, known: Point, found: list[int]) -> None:
    missing = known.position > 0 and known.base not in found
    if missing or (known.log_start < known.base and segment.holding(found, known.log_start) is None):
        raise damage(directory, 0, f"segments between offsets {known.log_start} and {known.offset} are missing")


def _cut(directory: str, good: _Good, stale: list[int]) -> None:
    """Move everything after the good part out of the log, into other files."""
    suffix = f".cut-{time.time_ns() // 1_000_000}"
    for base in stale:
        path = segment.path_of(directory, base)
        _log.warning("%s: does not follow offset %d: moved to %s", path, good.offset - 1, path + suffix)
        _os.rename(path, path + suffix)
        files.remove(segment.path_of(directory, base, ".index"))
        files.remove(segment.path_of(directory, base, aborted.SUFFIX))
    path = segment.path_of(directory, good.base)
    if good.size > good.position:
        message = "%s: byte %d, offset %d: %s: %d bytes of a torn tail moved to %s (`klamm salvage` reads them)"
        size = good.size - good.position
        _log.warning(message, path, good.position, good.offset, good.fault, size, path + suffix)
        files.replace(path + suffix, files.pieces(path, good.position, good.size))
        fd = _os.open_file(path, os.O_RDWR)
        try:
            _os.truncate(fd, good.position)
            _os.fsync(fd)
        finally:
            os.close(fd)
    for base, position in good.unwritten:
        fd = _os.open_file(segment.path_of(directory, base), os.O_RDWR)
        try:
            _os.truncate(fd, position)
        finally:
            os.close(fd)
    for base in segment.bases(directory, segment.LOG + _UNSYNCED):
        files.remove(segment.path_of(directory, base, segment.LOG + _UNSYNCED))
    for path in segment.cleaned_temp_paths(directory):  # of a compaction that was killed (compaction.py)
        files.remove(path)
    for offset in segment.bases(directory, producers.SUFFIX):
        if offset > good.offset:
            files.remove(segment.path_of(directory, offset, producers.SUFFIX))


def rewrite_unsynced(log: head.Log, *, contiguous: bool = True) -> None:
    """Write everything above flushed_offset again after a failed sync, and sync it. Only then clear SYNC_FAILED.

    Bytes that a failed sync dropped still look written, and writing them again in place does not always help: ext4 may
    leave them in blocks that it takes for unwritten, and after the next boot they are zeros. So the file is cut at
    flushed_offset and written from there into new blocks. Until that is done, a copy beside it, `<name>.unsynced`, has
    the committed bytes. Readers of that part wait (reader.py).
    """
    with log.append_lock(), log.flush_lock():
        if log.flags & head.SYNC_FAILED or log.flushing:
            if not log.flags & head.SYNC_FAILED:  # else it was logged before, by this process or another
                what = "a sync failed, or its process died or was stopped"
                message = "%s: %s: offsets %d to %d are not known to be on disk"
                _log.error(message, log.directory, what, log.flushed_offset, log.snapshot().next_offset - 1)
            log.set_flags(head.SYNC_FAILED)
            _rewrite(log, contiguous)
            _log.warning("%s: recovered from a failed sync: unsynced bytes were rewritten and synced", log.directory)


def _rewrite(log: head.Log, contiguous: bool) -> None:
    now = log.snapshot()
    directory = log.directory
    flushed = log.flushed_offset
    found = [base for base in segment.bases(directory) if base <= now.active_base]
    first = segment.holding(found, flushed) or 0
    ends = dict(zip(found, [*found[1:], now.next_offset], strict=True))
    try:
        for base in found:
            if base >= first and flushed < ends[base]:
                end_position = now.position if base == now.active_base else None
                _Tail(directory, base, flushed, ends[base], contiguous, end_position).rewrite()
        if found:
            segment.sync_names(directory)
    except OSError as error:
        raise SyncFailed(
            f"{directory}: an earlier sync failed, and so did the retry: {error.strerror}",
            hint="nothing acknowledged is lost; appends work again when the disk does",
        ) from error
    log.forget_files()  # reopen: the old descriptors may still report an earlier error
    log.flushed_offset = now.next_offset
    log.flushing = False
    log.clear_flags(head.SYNC_FAILED)


class _Tail:
    """The part of a segment with offsets in [flushed, end). `end_position`: where it ends, if it is the active one."""

    def __init__(
        self, directory: str, base: int, flushed: int, end: int, contiguous: bool, end_position: int | None = None
    ) -> None:
        self.end_position = end_position
        self.path = segment.path_of(directory, base)
        self.temp_path = self.path + _UNSYNCED
        self.first = max(base, flushed)
        self.end = end
        self.contiguous = contiguous
        self.position = 0 if flushed <= base else self._find(directory, base, flushed)

    def _find(self, directory: str, base: int, offset: int) -> int:
        """Return where the batch with that base offset starts; everything before it is on disk."""
        with index.Index(directory, base, end_position=self.end_position) as known:
            start = known.before_offset(offset)
        following, position = start.offset, start.position
        fd = _os.open_file(self.path, os.O_RDONLY)
        try:
            while following < offset:
                header = batch_header.parse(_os.pread(fd, batch_header.HEADER_SIZE, position))
                following, position = header.next_offset, position + header.size
        except CorruptBatch as error:
            raise _lost(self.path, position, error.message) from None
        finally:
            os.close(fd)
        return position

    def rewrite(self) -> None:
        """Copy the tail to another file, cut it off, and write it again."""
        fd = _os.open_file(self.path, os.O_RDWR)
        try:
            size = os.fstat(fd).st_size if self.end_position is None else self.end_position
            try:
                self._copy(fd, self.position, size, None)
            except CorruptBatch:
                if not self._was_set_aside():  # by a process that was killed in a rewrite
                    raise
            else:
                self._set_aside(fd, size)
            source = _os.open_file(self.temp_path, os.O_RDONLY)
            try:
                _os.truncate(fd, self.position)
                self._copy(source, 0, os.fstat(source).st_size, fd)
            finally:
                os.close(source)
            _os.fsync(fd)
        finally:
            os.close(fd)
        files.remove(self.temp_path)

    def _was_set_aside(self) -> bool:
        try:
            fd = _os.open_file(self.temp_path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            self._copy(fd, 0, os.fstat(fd).st_size, None)
        except CorruptBatch:
            return False
        finally:
            os.close(fd)
        return True

    def _set_aside(self, fd: int, size: int) -> None:
        target = _os.open_file(self.temp_path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            self._copy(fd, self.position, size, target, at=0)
            _os.fsync(target)
        finally:
            os.close(target)
        files.sync_directory(os.path.dirname(self.path))

    def _copy(self, source: int, position: int, size: int, target: int | None, at: int | None = None) -> None:
        """Read [position, size), check that it is complete, and write it: at `at`, or to its own position."""
        offset, room = self.first, _CHUNK
        at = self.position if at is None else at
        while position < size:
            data = _os.pread(source, min(room, size - position), position)
            try:
                done, following = verify(data, offset, self.contiguous)
            except CorruptBatch as error:
                raise _lost(self.path, position + (error.position or 0), error.message) from None
            if not done:
                if len(data) < room:
                    raise _lost(self.path, position, "an incomplete batch")
                room *= 2
                continue
            if target is not None:
                _os.pwrite(target, memoryview(data)[:done], at)
            position, at, offset = position + done, at + done, following
        if offset != self.end and (self.contiguous or offset > self.end):
            raise _lost(self.path, position, f"offset {offset} should follow")


def _lost(path: str, position: int, what: str) -> CorruptBatch:
    return CorruptBatch(
        f"{path}: byte {position}: {what}: a failed sync lost records that had been committed but not synced",
        path=path,
        position=position,
        hint="run `check(repair=True)` on the store to cut them off",
    )
