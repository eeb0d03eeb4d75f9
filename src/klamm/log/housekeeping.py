"""Housekeeping of a partition: forgetting records by age, size and offset, and compacting them.

What is done to the files is told in cleaning.py and compaction.py; here it is decided whether, and the clean byte is
held meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, cast

from klamm.disk import reserve
from klamm.disk.locks import LockFile
from klamm.errors import KlammError, OffsetOutOfRange, ReadOnly, StoreBusy
from klamm.log import cleaned, cleaning, head, producer_recovery, producers

if TYPE_CHECKING:
    from klamm.log import compaction
    from klamm.log.index_rebuild import IndexRebuild
    from klamm.log.partition import Partition

__all__ = ["MEMORY_BYTES", "Housekeeping", "LogSettings"]

MEMORY_BYTES = 128 << 20  # for the table of keys

Tick = Callable[[int, int], object]
Runner = Callable[["compaction.Pass", "compaction.Compacted"], bool]
"""Does a pass, as Pass.run does it: whether all is compacted now."""


class LogSettings(Protocol):
    """What a partition wants to know of its topic's settings."""

    @property
    def segment_bytes(self) -> int: ...
    @property
    def segment_ms(self) -> int: ...
    @property
    def segment_records(self) -> int: ...
    @property
    def index_interval_bytes(self) -> int: ...
    @property
    def producer_id_expiration_ms(self) -> int: ...
    @property
    def max_message_bytes(self) -> int: ...
    @property
    def message_timestamp_type(self) -> str: ...
    @property
    def timestamp_limits_ms(self) -> tuple[int, int]: ...
    @property
    def retention_ms(self) -> int: ...
    @property
    def retention_bytes(self) -> int: ...
    @property
    def cleanup_policy(self) -> str: ...
    @property
    def min_cleanable_dirty_ratio(self) -> float: ...
    @property
    def min_compaction_lag_ms(self) -> int: ...
    @property
    def max_compaction_lag_ms(self) -> int: ...
    @property
    def delete_retention_ms(self) -> int: ...


class _Interrupted(Exception):
    """What a `tick` raised: not to be taken for an error of the disk or the head."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


def _guarded(tick: Tick) -> Tick:
    def guarded(done: int, total: int) -> None:
        try:
            tick(done, total)
        except Exception as error:
            raise _Interrupted(error) from error

    return guarded


class Housekeeping:
    """The part of a Partition that removes."""

    topic: str
    number: int
    slot: int
    directory: str
    log: head.Log
    settings: LogSettings
    contiguous: bool
    _heads: head.Heads
    _lock: LockFile | None

    if TYPE_CHECKING:  # what partition.py adds
        _indexes: IndexRebuild

        @property
        def is_compacted(self) -> bool: ...
        def snapshot(self) -> head.Snapshot: ...
        def refuse_deleted(self) -> None: ...
        def look_for_gaps(self) -> bool: ...
        def checkpoint(self, *, anew: bool = False) -> None: ...
        def _has_producers(self) -> bool: ...
        def bases(self) -> list[int]: ...
        def _healed(self, action: Callable[[], None]) -> None: ...
        def out_of_range(self, offset: int, now: head.Snapshot) -> OffsetOutOfRange: ...
        def _told(self) -> AbstractContextManager[None]: ...

    # ---- by offset, age and size

    def delete_before(self, offset: int) -> int:
        """Forget the records before `offset`; where the log starts now."""
        if self._lock is None:
            raise ReadOnly(f"{self.topic}/{self.number}: opened for reading only")
        now = self.snapshot()
        if not 0 <= offset <= now.next_offset:
            raise self.out_of_range(offset, now)
        with self._told(), self._cleaning(self._lock):
            if offset > now.log_start:
                self._move_log_start(offset)
            cleaning.remove_unreachable(self.log)
        return self.snapshot().log_start

    def _cleaning(self, lock: LockFile, timeout_ms: int | None = None) -> AbstractContextManager[None]:
        """Hold the clean lock for a `with` block; StoreBusy after `timeout_ms`, None: the store's busy_timeout_ms."""
        what = f"{self.directory}: clean lock"
        return lock.hold(head.clean_byte(self.slot), timeout_ms=timeout_ms, what=what)

    def _move_log_start(self, offset: int) -> None:
        """Snapshot the producers first: recovery cannot rebuild them from deleted segments."""
        reserve.lend(os.path.dirname(self._heads.path))
        if self._has_producers():
            youngest = producers.load_latest(self.directory, self.snapshot().next_offset)
            if youngest is None or youngest[0] < offset:
                self.checkpoint(anew=True)
        self._healed(lambda: cleaning.move_log_start(self.log, offset))

    def expire(self, *, wait: bool = True) -> list[int]:
        """Remove segments that the settings say are too old or too much; their base offsets.

        Without `wait`, none if somebody else is cleaning just now: a compaction may take long.
        """
        settings = self.settings
        if self._lock is None or (settings.retention_ms < 0 and settings.retention_bytes < 0):
            return []
        if "delete" not in settings.cleanup_policy:
            return []
        self._heads.follow_wall()
        clock_ms = self._heads.expiry_ms()
        try:
            with self._told(), self._cleaning(self._lock, None if wait else 0):
                return self._expire(clock_ms)
        except StoreBusy:
            return []

    def _expire(self, clock_ms: int) -> list[int]:
        settings = self.settings
        retention_ms = settings.retention_ms
        if retention_ms >= 0:  # an active segment whose every record is too old is closed, so that it can go
            self._close_if(lambda now: cleaning.age_of_active(self.directory, now, clock_ms) < clock_ms - retention_ms)
        self.look_for_gaps()
        now = self.snapshot()
        start = cleaning.expired(
            self.directory,
            now,
            retention_ms=settings.retention_ms,
            retention_bytes=settings.retention_bytes,
            clock_ms=clock_ms,
            contiguous=self.contiguous,
        )
        if start > now.log_start:
            self._move_log_start(start)
        return cleaning.remove_unreachable(self.log)

    def _close_if(self, is_due: Callable[[head.Snapshot], bool]) -> None:
        """Roll the active segment, if there is anything in it and it `is_due`."""
        with self.log.append_lock():
            now = self.log.snapshot()
            if now.position and is_due(now):
                self.log.roll()

    def rebuild_indexes(self, is_over: Callable[[], bool] = lambda: False, *, is_missing: bool = False) -> list[int]:
        """Make missing indexes of closed segments again and return their bases. See IndexRebuild.run."""
        lock = self._lock
        if lock is None or self.log.flags & (head.DELETED | head.NEEDS_RECOVERY):
            return []
        partition = cast("Partition", self)
        return self._indexes.run(partition, lambda: self._cleaning(lock, 0), is_over, is_missing=is_missing)

    # ---- compaction

    def compact(
        self,
        *,
        force: bool = False,
        wait: bool = True,
        timeout_ms: int | None = None,
        memory_bytes: int = MEMORY_BYTES,
        tick: Tick = lambda done, total: None,
        run: Runner | None = None,
    ) -> compaction.Compacted | None:
        """Compact the log if there is enough to do; None if there is not, or if its topic is not compacted.

        `force` closes the active segment and compacts whatever there is. Without `wait`, None if somebody else is
        cleaning just now; with it, StoreBusy if that is still so after `timeout_ms`. `tick` is called now and then
        with bytes done and bytes in all; what it raises ends it. `run` does a pass in another way than Pass.run.
        """
        if self._lock is None:
            raise ReadOnly(f"{self.topic}/{self.number}: opened for reading only")
        self.refuse_deleted()
        self._heads.follow_wall()
        clock_ms = self._heads.expiry_ms()
        if not self.is_compacted or not os.path.isdir(self.directory):
            return None
        try:
            with self._told(), self._cleaning(self._lock, timeout_ms if wait else 0):
                return self._compact(clock_ms, force, memory_bytes, _guarded(tick), run)
        except StoreBusy:
            if wait:
                raise
            return None
        except _Interrupted as interrupted:
            raise interrupted.error from None
        except KlammError:
            self.refuse_deleted()  # its files may have gone
            raise

    def _compact(
        self, clock_ms: int, force: bool, memory_bytes: int, tick: Tick, run: Runner | None
    ) -> compaction.Compacted | None:
        from klamm.log import compaction

        settings = self.settings
        oldest_ms = self._heads.clock_ms() - min(settings.segment_ms, settings.max_compaction_lag_ms)
        self._close_if(lambda now: force or self.log.active_since_ms < oldest_ms)
        if not force and not self._is_due(self._dirt(clock_ms, self.snapshot().stable_offset), clock_ms):
            return None
        self.bases()
        producer_recovery.restore_lost_aborted(self, 0)  # type: ignore[arg-type]  # it is a Partition
        is_first = not cleaned.exists(self.directory) and not cleaned.is_missing(self.directory)
        if is_first:  # before the recovery point that says that it is there
            cleaned.store(self.directory, cleaned.Cleaned())
        self.checkpoint(anew=is_first or self._has_producers())
        compaction.remove_leftovers(self.directory)
        done = compaction.Compacted()
        finished = False
        while not finished:
            found = self._dirt(clock_ms, compaction.limit(self.log))
            if not found.segments:
                break
            self.refuse_deleted()
            each = compaction.Pass(
                self.log,
                found,
                clock_ms=clock_ms,
                horizon_ms=self._heads.latest_ms() + settings.delete_retention_ms,
                interval=settings.index_interval_bytes,
                memory_bytes=memory_bytes,
                tick=tick,
            )
            finished = each.run(done) if run is None else run(each, done)
            self.contiguous = False
        return done

    def _dirt(self, clock_ms: int, upto: int) -> compaction.Dirt:
        from klamm.log import compaction

        lag_ms = self.settings.min_compaction_lag_ms
        return compaction.dirt(self.directory, self.snapshot(), upto=upto, clock_ms=clock_ms, min_lag_ms=lag_ms)

    def _is_due(self, found: compaction.Dirt, clock_ms: int) -> bool:
        """Enough of it is dirty, or dirty for long, or every tombstone may go."""
        if 0 <= found.known.last_horizon <= clock_ms:
            return True
        if found.dirty_bytes == 0:
            return False
        from klamm.log import compaction

        oldest_ms = compaction.oldest_dirty_ms(self.directory, found)
        late = oldest_ms is not None and 0 <= oldest_ms < clock_ms - self.settings.max_compaction_lag_ms
        return late or found.ratio >= self.settings.min_cleanable_dirty_ratio
