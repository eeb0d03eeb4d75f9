"""Cleanup of a partition: remove records by age, size and offset, and compact them.

retention.py and compaction.py change the files. Cleanup decides whether, and holds the clean lock while they do.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from klamm.disk import reserve
from klamm.errors import KlammError, StoreBusy
from klamm.log import cleaner_checkpoint, head, producers, retention

if TYPE_CHECKING:
    from klamm.log import compaction
    from klamm.log.log_settings import LogSettings
    from klamm.log.partition import Partition

__all__ = ["MEMORY_BYTES", "Cleanup"]

MEMORY_BYTES = 128 << 20  # for the table of keys

OnProgress = Callable[[int, int], object]
Runner = Callable[["compaction.Pass", "compaction.Compacted"], bool]
"""Does a pass, as Pass.run does it: whether all is compacted now."""


class _Interrupted(Exception):
    """An exception of `on_progress`, kept apart from errors of the disk and of the head."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


def _guarded(on_progress: OnProgress) -> OnProgress:
    def guarded(done: int, total: int) -> None:
        try:
            on_progress(done, total)
        except Exception as error:
            raise _Interrupted(error) from error

    return guarded


class Cleanup:
    """Removes and compacts records of a partition. The clean lock makes processes take turns."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._log = partition.log
        self._heads = partition.heads
        self._directory = partition.directory

    @property
    def _settings(self) -> LogSettings:
        return self._partition.settings

    # ---- by offset, age and size

    def delete_before(self, offset: int) -> int:
        """Delete the records before `offset` and return the new log start."""
        if self._partition.is_read_only:
            raise self._partition.read_only_error()
        now = self._partition.snapshot()
        if not 0 <= offset <= now.next_offset:
            raise self._partition.out_of_range(offset, now)
        with self._partition.translate_errors(), self.clean_lock():
            if offset > now.log_start:
                self._move_log_start(offset)
            retention.remove_unreachable(self._log)
        return self._partition.snapshot().log_start

    def clean_lock(self, timeout_ms: int | None = None) -> AbstractContextManager[None]:
        """Hold the clean lock for a `with` block. Raise StoreBusy after `timeout_ms`, by default the store's
        busy_timeout.
        """
        lock = self._partition.lock
        assert lock is not None
        self._heads.check_place(now=True)
        what = f"{self._directory}: clean lock"
        return lock.hold(head.clean_byte(self._partition.slot), timeout_ms=timeout_ms, what=what)

    def _move_log_start(self, offset: int) -> None:
        """Move the log start. Snapshot the producers first: recovery cannot rebuild them from deleted segments."""
        reserve.lend(os.path.dirname(self._heads.path))
        if self._partition.has_producers():
            latest = producers.load_latest(self._directory, self._partition.snapshot().next_offset)
            if latest is None or latest[0] < offset:
                self._partition.checkpoint(force=True)
        self._partition.repeat_sync(lambda: retention.move_log_start(self._log, offset))

    def expire(self, *, wait: bool = True) -> list[int]:
        """Apply retention.ms and retention.bytes: remove segments and return their base offsets.

        Without `wait`, remove none if another process is cleaning: a compaction may take long.
        """
        settings = self._settings
        if self._partition.is_read_only or (settings.retention_ms < 0 and settings.retention_bytes < 0):
            return []
        if "delete" not in settings.cleanup_policy:
            return []
        self._heads.follow_wall()
        clock_ms = self._heads.expiry_ms()
        try:
            with self._partition.translate_errors(), self.clean_lock(None if wait else 0):
                return self._expire(clock_ms)
        except StoreBusy:
            return []

    def _expire(self, clock_ms: int) -> list[int]:
        settings = self._settings
        retention_ms = settings.retention_ms
        if retention_ms >= 0:  # an active segment whose every record is too old is closed, so that it can go
            self._close_if(
                lambda now: retention.age_of_active(self._directory, now, clock_ms) < clock_ms - retention_ms
            )
        self._partition.look_for_gaps()
        now = self._partition.snapshot()
        start = retention.expired(
            self._directory,
            now,
            retention_ms=settings.retention_ms,
            retention_bytes=settings.retention_bytes,
            clock_ms=clock_ms,
            contiguous=self._partition.contiguous,
        )
        if start > now.log_start:
            self._move_log_start(start)
        return retention.remove_unreachable(self._log)

    def _close_if(self, is_due: Callable[[head.Snapshot], bool]) -> None:
        """Roll the active segment if it is not empty and `is_due` says so."""
        with self._log.append_lock():
            now = self._log.snapshot()
            if now.position and is_due(now):
                self._log.roll()

    def rebuild_indexes(self, is_over: Callable[[], bool] = lambda: False, *, is_missing: bool = False) -> list[int]:
        """Rebuild missing indexes of closed segments and return their bases: see IndexRebuild.run."""
        if self._partition.is_read_only or self._log.flags & (head.DELETED | head.NEEDS_RECOVERY):
            return []
        rebuild = self._partition.index_rebuild
        return rebuild.run(self._partition, lambda: self.clean_lock(0), is_over, is_missing=is_missing)

    # ---- compaction

    def compact(
        self,
        *,
        force: bool = False,
        wait: bool = True,
        timeout_ms: int | None = None,
        memory_bytes: int = MEMORY_BYTES,
        on_progress: OnProgress = lambda done, total: None,
        run: Runner | None = None,
    ) -> compaction.Compacted | None:
        """Compact the log. Return None if there is not enough to do, or if its topic is not compacted.

        `force` closes the active segment and compacts in any case. If another process is cleaning: without `wait`,
        return None; with it, raise StoreBusy after `timeout_ms`. `on_progress` is called with bytes done and bytes in
        all; an exception of it ends the compaction. `run` replaces Pass.run.
        """
        if self._partition.is_read_only:
            raise self._partition.read_only_error()
        self._partition.check_not_deleted()
        self._heads.follow_wall()
        clock_ms = self._heads.expiry_ms()
        if not self._partition.is_compacted or not os.path.isdir(self._directory):
            return None
        try:
            with self._partition.translate_errors(), self.clean_lock(timeout_ms if wait else 0):
                return self._compact(clock_ms, force, memory_bytes, _guarded(on_progress), run)
        except StoreBusy:
            if wait:
                raise
            return None
        except _Interrupted as interrupted:
            raise interrupted.error from None
        except KlammError:
            self._partition.check_not_deleted()  # its files may be deleted
            raise

    def _compact(
        self, clock_ms: int, force: bool, memory_bytes: int, on_progress: OnProgress, run: Runner | None
    ) -> compaction.Compacted | None:
        from klamm.log import compaction

        settings = self._settings
        oldest_ms = self._heads.clock_ms() - min(settings.segment_ms, settings.max_compaction_lag_ms)
        self._close_if(lambda now: force or self._log.active_since_ms < oldest_ms)
        if not force and not self._is_due(
            self._find_cleanable(clock_ms, self._partition.snapshot().stable_offset), clock_ms
        ):
            return None
        self._partition.bases()
        is_first = not cleaner_checkpoint.exists(self._directory) and not cleaner_checkpoint.is_missing(self._directory)
        if is_first:  # before the recovery point that lists it
            cleaner_checkpoint.store(self._directory, cleaner_checkpoint.CleanerCheckpoint())
        self._partition.checkpoint(force=is_first or self._partition.has_producers())
        compaction.remove_leftovers(self._directory)
        done = compaction.Compacted()
        finished = False
        while not finished:
            found = self._find_cleanable(clock_ms, compaction.limit(self._log))
            if not found.segments:
                break
            self._partition.check_not_deleted()
            each = compaction.Pass(
                self._log,
                found,
                clock_ms=clock_ms,
                horizon_ms=self._heads.latest_ms() + settings.delete_retention_ms,
                interval=settings.index_interval_bytes,
                memory_bytes=memory_bytes,
                on_progress=on_progress,
            )
            finished = each.run(done) if run is None else run(each, done)
            self._partition.contiguous = False
        return done

    def _find_cleanable(self, clock_ms: int, end_offset: int) -> compaction.CleanableSegments:
        from klamm.log import compaction

        now, lag_ms = self._partition.snapshot(), self._settings.min_compaction_lag_ms
        return compaction.find_cleanable(
            self._directory, now, end_offset=end_offset, clock_ms=clock_ms, min_lag_ms=lag_ms
        )

    def _is_due(self, found: compaction.CleanableSegments, clock_ms: int) -> bool:
        """Return whether enough of the log is dirty, or has been for long, or all tombstones may be removed."""
        if 0 <= found.known.last_horizon <= clock_ms:
            return True
        if found.dirty_bytes == 0:
            return False
        from klamm.log import compaction

        oldest_ms = compaction.oldest_dirty_ms(self._directory, found)
        late = oldest_ms is not None and 0 <= oldest_ms < clock_ms - self._settings.max_compaction_lag_ms
        return late or found.ratio >= self._settings.min_cleanable_dirty_ratio
