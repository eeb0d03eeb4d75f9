"""One partition of a topic: append, sync, read, look up. The packages above `log` use it through here.

The native `append` returns an offset or the obstacle. This module removes the obstacle (creates a directory, reloads
settings, recovers a log) and tries again, or raises an exception.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from klamm.batch import Scan, encode_one, recompress
from klamm.batch.markers import marker
from klamm.disk import files, reserve
from klamm.disk.locks import LockFile
from klamm.disk.roots import Root
from klamm.errors import LogError, OffsetOutOfRange, ReadOnly, SyncFailed, UnknownTopic, readable
from klamm.log import (
    aborted,
    cleaner_checkpoint,
    head,
    index,
    lookup,
    point,
    producer_recovery,
    producers,
    recovery,
    repeated,
    results,
    segment,
    timestamps,
)
from klamm.log.batch_rules import BatchRules
from klamm.log.cleanup import Cleanup
from klamm.log.index_rebuild import IndexRebuild
from klamm.log.log_settings import LogSettings
from klamm.log.reader import Reader
from klamm.log.sealed import Lack
from klamm.types import TopicId

__all__ = ["Ends", "Partition"]

_log = logging.getLogger("klamm")
_MAX_TRIES = 20  # of removing an obstacle that returns
_NOT_PLAIN = int(head.Result.NOT_PLAIN)
_NO_OFFSET = bytes(8)
_UNUSED = -errno.ENOENT, int(head.Result.NEEDS_PRODUCERS)  # obstacles where no producer has written yet


class Ends(NamedTuple):
    """The range of a log: [start, end). Below `stable` no transaction is open; below `flushed` all is on disk."""

    start: int
    end: int
    stable: int
    flushed: int
    leader_epoch: int


class Partition:
    """One partition. A process opens it once, its threads share it, and the store closes it."""

    def __init__(
        self,
        heads: head.Heads,
        lock: LockFile | None,
        *,
        topic: str,
        number: int,
        slot: int,
        bell_bit: int,
        directory: str,
        settings: LogSettings,
        catalog_version: int,
        reload: Callable[[Partition], None],
        on_event: Callable[[Partition, int], None],
        boot_count: int = 0,
        topic_id: TopicId | None = None,
        life: head.Life | None = None,
        root: Root | None = None,
    ) -> None:
        """Open a partition; read-only without `lock` and `life`. `reload` is called when the catalog has changed."""
        self.topic = topic
        self.number = number
        self.slot = slot
        self.directory, self._root = directory, root  # through which the directory is reached
        self.heads = heads
        self.lock = lock
        self._reload, self._on_event = reload, on_event
        self._boot_count = boot_count
        self._epochs: tuple[int, tuple[tuple[int, int], ...]] = (-1, ())
        mine = (topic_id, number) if topic_id else None
        self.log = head.Log(heads, slot, directory, lock, bell_bit, life=life, identity=mine)
        self._one = self.log.append_one
        self._appended = self.is_forked = False
        self.recovered: list[aborted.Aborted] | None = None
        """What was aborted, if that is known in memory only: recovered in a store that may not be written."""
        self.unlisted: producer_recovery.Unlisted | None = None
        """What must be in .aborted files that the recovery point does not list, once it was read from the log."""
        self.index_rebuild = IndexRebuild()
        self._listed: tuple[tuple[int, int], point.Point | Lack] = (-1, -1), Lack.MISSING  # and its recovery point
        self.contiguous = not cleaner_checkpoint.exists(directory)
        self.settings = settings
        self.configure(settings, catalog_version)
        if self.log.flags & head.NEEDS_RECOVERY:
            self._recover()
        else:
            self._check_head()

    def _check_head(self) -> None:
        """Recover if `heads` is older than the log."""
        try:
            older = recovery.is_older(self.log)
        except (head.HeadResult, OSError):
            return  # a damaged head, or a segment that expired just now: the next use reports it
        if older and not self.log.flags & head.DELETED:
            if self.lock is None:
                raise results.error_of(self, head.Result.OLDER_HEAD)
            self._recover_older()

    def _recover_older(self) -> None:
        with self.log.append_lock():
            self.log.set_flags(head.NEEDS_RECOVERY)
        _log.warning("%s: the log extends beyond its head, which is older: recovered", self.directory)
        self._recover()

    def __repr__(self) -> str:
        return f"<Partition {self.topic}/{self.number}>"

    def configure(self, settings: LogSettings, catalog_version: int) -> None:
        """Apply settings as of a version of the catalog."""
        self.settings = settings
        self._rules = rules = BatchRules(settings)
        self._max_bytes, self._checked = rules.max_bytes, not rules.are_plain
        self._plain = rules.max_bytes >= head.ONE_BYTES and rules.are_plain
        if self.lock is not None:
            self.log.configure(
                segment_bytes=settings.segment_bytes,
                segment_ms=settings.segment_ms,
                segment_records=settings.segment_records,
                index_interval=settings.index_interval_bytes,
                producer_expiration_ms=settings.producer_id_expiration_ms,
                timestamp_after_ms=settings.timestamp_limits_ms[1],
                catalog_version=catalog_version,
            )

    @property
    def is_read_only(self) -> bool:
        return self.lock is None

    def read_only_error(self) -> ReadOnly:
        return ReadOnly(f"{self.topic}/{self.number}: opened for reading only")

    @property
    def cleanup(self) -> Cleanup:
        """What removes and compacts records. The partition has no reference to it: a cycle would outlive the store."""
        return Cleanup(self)

    @property
    def is_compacted(self) -> bool:
        """Whether its topic keeps only the latest record of each key."""
        return "compact" in self.settings.cleanup_policy

    @property
    def stamps(self) -> bool:
        """Whether records get the time of their append (LogAppendTime)."""
        return self._rules.stamps

    def look_for_gaps(self) -> bool:
        """Return whether the log has been compacted since it was opened: then offsets may have gaps."""
        if self.contiguous and (
            cleaner_checkpoint.exists(self.directory) or cleaner_checkpoint.is_missing(self.directory)
        ):
            self.contiguous = False
            return True
        return False

    # ---- append

    def append(self, batch: bytearray | memoryview, size: int = -1) -> int:
        """Commit one sealed batch, the first `size` bytes of a writable buffer, and return its base offset.

        If a batch of an idempotent producer is in the log already, return its offset there. Raise OutOfOrderSequence if
        its sequences are those of another batch.
        """
        if size < 0:
            size = len(batch)
        if size > self._max_bytes or self._checked:
            batch, size = self._rules.prepare(self, batch, size)
        log = self.log
        result = log.append(batch, size)
        if result < 0 or log.events:
            return self._retry_append(result, batch, size)
        return result

    def append_one(self, key: bytes | None, value: bytes | None, timestamp: int = -1) -> int:
        """Commit one record without headers, by the fast path if possible, and return its offset."""
        result = self._one(key, value, timestamp) if self._plain else _NOT_PLAIN
        return result if result >= 0 else self.retry_one(result, key, value, timestamp)

    def retry_one(self, result: int, key: bytes | None, value: bytes | None, timestamp: int) -> int:
        """Remove the obstacle of append_one, append, and return the offset."""
        if result <= head.EVENTFUL:
            return self._retry_append(head.EVENTFUL - result, b"", 0)
        batch = bytearray(head.ONE_BYTES)
        return self.append(batch, encode_one(batch, key, value, None, self.now_ms() if timestamp == -1 else timestamp))

    def now_ms(self) -> int:
        """Return the time of the store's clock, the default timestamp of records."""
        return self.heads.wall_ms()

    def try_append(self, batch: bytearray | memoryview, size: int = -1) -> int | None:
        """Like `append`, but return None if the append lock is held."""
        if size < 0:
            size = len(batch)
        if size > self._max_bytes or self._checked:
            batch, size = self._rules.prepare(self, batch, size)
        result = self.log.append(batch, size, False)
        if result == -errno.EAGAIN or result == -errno.EACCES:
            return None
        if result < 0 or self.log.events:
            return self._retry_append(result, batch, size)
        return result

    def append_now(self, batch: bytearray | memoryview, scan: Scan | None = None) -> int | None:
        """Like `append`, but return None rather than block or create files. `scan`: the result of scan_records."""
        size, rules = len(batch), self._rules
        if rules.reads_records and (scan is None or not rules.accepts(self, scan)):
            return None
        if size > self._max_bytes or self._checked:
            if not rules.has_codec(batch):
                return None
            rules.prepare(self, batch, size, is_checked=True)
        result = self.log.append(batch, size, False, False, -1, True)
        if result < 0:
            return None
        return self._retry_append(result, batch, size) if self.log.events else result

    def append_plain(self, batch: memoryview) -> int | None:
        """Like `append_now`, for a valid batch of a topic without rules; None: unchanged, but for its epoch."""
        size, log = len(batch), self.log
        if self._checked or size > self._max_bytes:
            return None
        result = log.append(batch, size, False, False, -1, True)
        if result < 0:
            batch[:8] = _NO_OFFSET  # it may have got one before the disk reported an error
            return None
        return self._retry_append(result, batch, size) if log.events else result

    def append_at(self, offset: int, batch: bytearray | memoryview, *, is_copy: bool = False) -> None:
        """Append if the log ends at `offset`, else raise LogError. `is_copy`: apply no rule of the topic."""
        size = len(batch)
        if not is_copy and (size > self._max_bytes or self._checked):
            batch, size = self._rules.prepare(self, batch, size)
        self._retry_append(self.log.append(batch, size, True, False, offset), batch, size, at=offset)

    # ---- transactions

    def append_marker(self, producer_id: int, epoch: int, *, commit: bool, same_epoch: bool = False) -> int | None:
        """End the producer's transaction, whose epoch is the one before `epoch`, and return the marker's offset.

        Return None if there is nothing to do: the transaction has its marker, or a later one has begun. A log without a
        record of it gets a marker, too, so that no late record can follow. Any process may call this, repeatedly.

        `same_epoch`: the transaction's epoch is `epoch` itself, and so may the next one's be. Write a marker only where
        it is open, else return None. The caller must know that the next one has not begun.
        """
        batch = marker(producer_id, epoch, commit=commit, timestamp=self.heads.wall_ms())
        try:
            result = self.log.append(batch, len(batch), True, same_epoch)
            return self._retry_append(result, batch, len(batch), same_epoch=same_epoch)
        except results.Ended:
            return None

    def append_marker_now(self, producer_id: int, epoch: int, *, commit: bool, same_epoch: bool = False) -> int:
        """Like `append_marker`, but return the obstacle, -errno or a Result, rather than block or create files."""
        batch = marker(producer_id, epoch, commit=commit, timestamp=self.heads.wall_ms())
        result = self.log.append(batch, len(batch), False, same_epoch, -1, True)
        return self._retry_append(result, batch, len(batch)) if result >= 0 and self.log.events else result

    def open_transactions(self) -> list[tuple[int, int, int]]:
        """Return producer id, epoch and first offset of each transaction that has no marker here."""
        now = self.snapshot()
        if self.lock is None or now.stable_offset == now.next_offset:
            return []
        states = self._list_producers(only_open=True)
        return [(producer_id, batches[-1][3], first) for producer_id, first, _, batches in states if first >= 0]

    def _list_producers(self, *, only_open: bool) -> list[producers.ProducerState]:
        if self.lock is None or not self.has_producers():
            return []
        with self.log.append_lock():
            producer_recovery.use_table(self)
            return self.log.producers(only_open=only_open)

    def producers(self) -> list[producers.ProducerState]:
        """Return for each producer: id, first offset of its open transaction or -1, when it was last seen (store's
        clock), and its last batches: offset, first sequence (-1: a marker), last sequence, epoch.
        """
        return self._list_producers(only_open=False)

    def recompressed(self, batch: memoryview) -> bytearray | memoryview:
        """Return a batch with the topic's compression: `append` then takes it unchanged, in place."""
        rules = self._rules
        return batch if rules.has_codec(batch) else recompress(batch, rules.codec, rules.level)

    def timestamp_bounds(self) -> tuple[int, int]:
        """Return the earliest and the latest timestamp that the topic accepts now."""
        return timestamps.bounds(self.heads, self.settings.timestamp_limits_ms)

    def _retry_append(
        self,
        result: int,
        batch: bytearray | memoryview | bytes,
        size: int,
        *,
        same_epoch: bool = False,
        at: int = -1,
    ) -> int:
        """Remove the obstacle of an append, and try again."""
        tries = 0
        while result < 0:
            tries += 1
            if result <= head.REPEATED:
                repeated.check_same(self, result := head.REPEATED - result, memoryview(batch)[:size])
                break
            if result == head.Result.TOO_FAR_AHEAD:
                raise timestamps.refusal(self, memoryview(batch)[:size])
            if same_epoch and result in _UNUSED and not self.has_producers():  # so nothing is open
                raise results.error_of(self, head.Result.ENDED)
            try:
                self._see_to(result, tries)
            except OSError as error:
                raise results.error_of(self, -(error.errno or errno.EIO)) from error
            if result == head.Result.SETTINGS_CHANGED and self._rules.reads_records:
                self._rules.check_records(self, batch, size)
            result = self.log.append(batch, size, True, same_epoch, at)
        events = self.log.take_events()
        if events:
            self._appended = True
            self._on_event(self, events)
        return result

    def _see_to(self, result: int, tries: int) -> None:
        """Remove an obstacle, or raise it."""
        if tries > _MAX_TRIES:
            raise LogError(f"{self.directory}: cannot append after {_MAX_TRIES} attempts: {results.text_of(result)}")
        if result == head.Result.SETTINGS_CHANGED:
            self._reload(self)
        elif result == head.Result.NEEDS_RECOVERY:
            self._recover()
        elif result == head.Result.OLDER_HEAD:
            self._recover_older()
        elif result == head.Result.SYNC_FAILED:
            self.rewrite_unsynced()
        elif result == head.Result.NEEDS_PRODUCERS:
            with self.log.append_lock():
                producer_recovery.use_table(self, grow=True)
        elif result == -errno.ENOENT:
            with self.translate_errors():  # their names are synced by the first sync
                files.make_directory(os.path.dirname(self.directory))
                files.make_directory(self.directory)
        elif result in (-errno.EMFILE, -errno.ENFILE) and tries == 1:
            self._on_event(self, head.OPENED)
        else:
            raise results.error_of(self, result)

    # ---- durability

    def sync(self, end_offset: int) -> None:
        """Return when everything below `end_offset` is on disk."""
        if self.lock is None:
            raise self.read_only_error()
        try:
            head.sync(self.log, end_offset)
        except SyncFailed:
            self.rewrite_unsynced()
            self.repeat_sync(lambda: head.sync(self.log, end_offset))
        except head.HeadResult as error:
            raise results.error_of(self, error.result) from None

    def rewrite_unsynced(self) -> bool:
        """Write the bytes again that a failed sync may have dropped. Return False if this process may not write."""
        if self.lock is None:
            return False
        self.heads.check_place(now=True)
        with self.translate_errors():
            recovery.rewrite_unsynced(self.log)  # unsynced records were never compacted: no gaps
        return True

    def checkpoint(self, *, force: bool = False) -> None:
        """Sync, and write a recovery point with a snapshot of the producers; without new records, only with `force`.

        Raise NotAStore if another store has taken the path.
        """
        log = self.log
        if self.lock is None or log.flags & (head.DELETED | head.NEEDS_RECOVERY):
            return
        now = log.snapshot()
        if log.recovery_point == (now.active_base, now.position) and not force:
            return
        self.heads.check_place(now=True)
        with self.translate_errors():
            self.repeat_sync(self._write_point)

    def repeat_sync(self, action: Callable[[], None]) -> None:
        """Call a function that syncs, again after each rewrite: several syncing processes may be killed."""
        for _ in range(_MAX_TRIES):
            try:
                action()
            except SyncFailed:
                self.rewrite_unsynced()  # raises if the disk fails again
            else:
                return
        action()

    def _write_point(self) -> None:
        log = self.log
        states: bytes | None = None
        snapshot_offset = -1
        if self.has_producers():
            producer_recovery.rebuild_lost_aborted(self, 0)  # before the point lists what is there
            with log.append_lock():
                producer_recovery.use_table(self)
                states, snapshot_offset = log.pack_producers(), log.snapshot().next_offset
        with log.point_lock():
            now = log.snapshot()
            head.sync(log, now.next_offset)
            if states is None and self.has_producers():
                return  # it came meanwhile: a point without a snapshot would say that there was none before it
            if not os.path.isdir(self.directory):
                return  # nothing was ever appended
            if states is not None:
                aborted.sync(self.directory, 0)
                producers.store(self.directory, snapshot_offset, states)
                producers.prune(self.directory)
            known = recovery.last_point(log, contiguous=self.contiguous)
            index.sync(self.directory, known.base, now.active_base)
            start = max(known.log_start, now.log_start)  # a cleaner may be about to commit what it has stored
            positions = now.next_offset, now.active_base, now.position, start
            compacted = cleaner_checkpoint.exists(self.directory) or known.compacted
            snapshot = max(snapshot_offset, known.snapshot)
            point.store(self.directory, point.Point(*positions, known.epochs, snapshot, compacted))
            log.set_recovery_point(now.active_base, now.position)

    def has_producers(self) -> bool:
        """Return whether a producer with an id ever wrote to this log."""
        return os.path.exists(f"{self.directory}/producers") or self.log.producers_seq > 0

    def _recover(self) -> None:
        if self.lock is not None:
            self.heads.check_place(now=True)
            reserve.lend(os.path.dirname(self.heads.path))
        with self.translate_errors():
            self.look_for_gaps()
            self.recovered = recovery.recover(
                self.log,
                clock_ms=self.heads.clock_ms(),
                interval=self.settings.index_interval_bytes,
                contiguous=self.contiguous,
                dry_run=self.lock is None,
                boot_count=self._boot_count,
            )

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Raise errors of the system and of the head in the `with` block as errors of Klamm."""
        try:
            yield
        except head.HeadResult as error:
            raise results.error_of(self, error.result) from None
        except OSError as error:
            failure = files.disk_full(error, self.directory)
            if isinstance(failure, OSError):
                failure = SyncFailed(
                    f"{self.directory}: disk error: {error.strerror}",
                    hint="nothing acknowledged is lost; try again when the disk works",
                )
            raise failure from error

    # ---- what there is

    def snapshot(self) -> head.Snapshot:
        """Return the latest commit."""
        try:
            return self.log.snapshot()
        except head.HeadResult as error:
            raise results.error_of(self, error.result) from None

    def check_not_deleted(self) -> None:
        if self.log.flags & head.DELETED:
            raise UnknownTopic(f"{self.topic}: the topic was deleted")

    def ends(self) -> Ends:
        self.check_not_deleted()
        now = self.snapshot()
        return Ends(now.log_start, now.next_offset, now.stable_offset, self.log.flushed_offset, now.leader_epoch)

    def log_size(self) -> int:
        """Return the size in bytes of all segments."""
        now = self.snapshot()
        closed = [base for base in self.bases() if base < now.active_base]
        return sum(os.stat(segment.path_of(self.directory, base)).st_size for base in closed) + now.position

    def segments(self) -> list[int]:
        """Return the base offsets of the segments that hold committed records or will."""
        now = self.snapshot()
        return [base for base in self.bases() if base <= now.active_base]

    def bases(self) -> list[int]:
        """Return the base offsets of all segments. CorruptBatch if one is missing, by the offsets or the point."""
        found = segment.bases(self.directory)
        if self.contiguous:
            return found
        known = self.known_point()
        if known is None and self.log.recovery_point[0] >= 0:
            what = f"{self._listed[1].value}: whether every segment is there is not known"  # type: ignore[union-attr]
            raise recovery.damage(point.path_of(self.directory), 0, what)
        gone = point.missing_segments(known, found, self.snapshot().log_start) if known else []
        if gone and not set(gone) <= set(segment.bases(self.directory)):
            raise recovery.damage(segment.path_of(self.directory, gone[0]), 0, "the segment is missing")
        return found

    def known_point(self) -> point.Point | None:
        """Return the content of the file `recovery`, read again when it has changed."""
        if self._listed[0] != self.log.recovery_point:
            self._listed = self.log.recovery_point, point.load(self.directory)
        return self._listed[1] if isinstance(self._listed[1], point.Point) else None

    def out_of_range(self, offset: int, now: head.Snapshot) -> OffsetOutOfRange:
        return OffsetOutOfRange(
            f"{self.topic}/{self.number}: offset {offset} is not in [{now.log_start}, {now.next_offset})",
            offset=offset,
            start=now.log_start,
            end=now.next_offset,
            hint="read from an offset in that range",
        )

    # ---- reading

    def miss_index(self) -> None:
        """Start to rebuild missing indexes of closed segments, in the background."""
        if self.lock is not None:
            self._on_event(self, head.MISSING_INDEX)

    def reader(self, offset: int, *, committed: bool = True) -> Reader:
        """Return a reader from `offset` on; if `committed`, without records of open and aborted transactions."""
        return Reader(self, offset, committed=committed)

    def offset_at(self, timestamp_ms: int) -> int | None:
        """Return the first offset whose record has a timestamp of at least `timestamp_ms`; None if there is none."""
        return lookup.offset_at(self, timestamp_ms)

    def epochs(self) -> tuple[tuple[int, int], ...]:
        """Return the history of leader epochs: (epoch, first offset)."""
        epoch = self.snapshot().leader_epoch
        if epoch == 0:
            return ((0, 0),)
        if self._epochs[0] != epoch:
            self._epochs = (epoch, recovery.last_point(self.log, contiguous=self.contiguous).epochs)
        return self._epochs[1]

    @property
    def knows_epochs(self) -> bool:
        """Whether `epochs` needs to read no file."""
        return self.snapshot().leader_epoch in (0, self._epochs[0])

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch of a record at `offset`, existing or future; -1 if it is unknown."""
        return max((epoch for epoch, start in self.epochs() if start <= offset), default=-1)

    def end_of_epoch(self, epoch: int) -> int:
        """Return where a leader epoch ended. A stored position of that epoch beyond it refers to lost records."""
        return point.end_of_epoch(self.epochs(), epoch, self.snapshot().next_offset)

    # ---- the end

    def mark_deleted(self) -> None:
        """Refuse appends and reads from now on. Under the append lock, so that no append is on its way."""
        with suppress(UnknownTopic), self.translate_errors(), self.log.append_lock():  # another process was faster
            self.log.set_flags(head.DELETED)
        self.log.ring()

    def close(self, *, checkpoint: bool = True) -> None:
        """Write a recovery point, so that opening after a power cut is fast, and close the files."""
        try:
            if self._appended and checkpoint:
                self.checkpoint()
        finally:
            self.log.abandon()  # in any case: the descriptor of the lock is closed next
            self.directory, self._root = readable(self.directory), None

    def in_child(self) -> None:
        self.is_forked = True
        self.log.in_child()
