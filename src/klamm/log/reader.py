"""A reader of a partition: reads from an offset on, without a lock.

A reader takes a snapshot of the commit, reads bytes of a segment up to it, and checks every batch: its CRC, and that
offsets are contiguous. It never reads beyond the commit. At the end of a segment it looks up its offset again, because
retention or compaction may have changed the files; an unlinked file stays readable through its descriptor.

A reader of committed records ends where the oldest open transaction begins, and leaves out what was aborted.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Self

from klamm.batch import header as batch_header
from klamm.batch import verify, walk
from klamm.choices import Isolation, options_of
from klamm.disk import _os
from klamm.errors import CorruptBatch, InvalidSetting, KlammError
from klamm.log import cleaner_checkpoint, segment
from klamm.log._head import SYNC_FAILED
from klamm.log.aborted_spans import AbortedSpans
from klamm.log.index import Index

if TYPE_CHECKING:
    from klamm.log._head import Snapshot
    from klamm.log.partition import Partition

__all__ = ["Reader", "reads_committed"]

_MAX_TRIES = 200  # looks, 10 ms apart, at what a failed sync may have taken


def reads_committed(isolation: object) -> bool:
    """Return whether `isolation`, in Kafka's words, is read_committed."""
    known = options_of(Isolation)
    if isolation not in known:
        raise InvalidSetting(f"isolation: {isolation!r} is invalid", hint=f"expected {' or '.join(map(repr, known))}")
    return isolation == "read_committed"


class Reader:
    """A reader of one partition. `offset` is the next one to read."""

    _fd = -1  # of the class, too: an interrupt may come before `__init__`, and `__del__` after it

    def __init__(self, partition: Partition, offset: int, *, committed: bool = True) -> None:
        self.partition = partition
        self.offset = offset
        self._committed = committed
        self._aborted = AbortedSpans(partition)
        self._base = -1
        self._file = (-1, -1)  # version of the segments and inode, when it was opened: compaction replaces files
        self._position = 0
        self._expected = 0  # the base offset of the batch at _position
        self._tries_left = _MAX_TRIES

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the file and remember the position; the next read opens it again."""
        fd, self._fd = self._fd, -1  # first: no other thread, nor a second call, may close a number that is used again
        if fd >= 0:
            os.close(fd)

    @property
    def is_open(self) -> bool:
        """Whether it has a file open."""
        return self._fd >= 0

    @property
    def end(self) -> tuple[int, int, int, int, bool] | None:
        """Where a Poller may read on: descriptor, base, position, next offset, contiguous; None: not known."""
        if self._fd < 0 or self.offset != self._expected or not self._committed:
            return None
        return self._fd, self._base, self._position, self._expected, self.partition.contiguous

    def seek(self, offset: int) -> None:
        if offset != self.offset:
            self.close()
            self.offset = offset
            self._base = -1

    def read(self, max_bytes: int = 1 << 20) -> memoryview:
        """Return the next whole batches, verified: at least one, however large; empty at the end of the log.

        The first batch may hold records before `offset`. OffsetOutOfRange if `offset` is not in the log.
        """
        try:
            while True:
                data = self._read(max_bytes)
                if not data:
                    return data
                data = self._visible(data)
                if data:
                    return data
        except KlammError:
            raise
        except BaseException:
            self._forget()
            raise

    def _forget(self) -> None:
        """Forget the file position, which is looked up again: an interrupt may have come between any two steps."""
        self._base = -1
        self.close()

    def advance(self, size: int, next_offset: int) -> None:
        """Continue behind whole batches of that size, which were read at `end`."""
        self._position += size
        self.offset = self._expected = next_offset

    def _visible(self, data: memoryview) -> memoryview:
        """Leave out what was aborted, for a reader of committed records."""
        if self._committed:
            self._aborted.refresh(self._base)
            if self._aborted:
                return self._without_aborted(data)
        return data

    def _without_aborted(self, data: memoryview) -> memoryview:
        kept: list[memoryview] = []
        at = 0
        for batch in walk(data):
            if not batch.is_transactional or not self._aborted.covers(batch.producer_id, batch.base_offset):
                kept.append(data[at : at + batch.size])
            at += batch.size
        return data if sum(map(len, kept)) == len(data) else memoryview(b"".join(kept))

    def _below(self, limit: int, data: bytes) -> tuple[int, int]:
        """Return how many bytes of verified batches lie before offset `limit`, and the offset after them."""
        done, following = 0, self._expected
        for batch in walk(data):
            if batch.base_offset >= limit:
                break
            done, following = done + batch.size, batch.next_offset
        return done, following

    def _read(self, max_bytes: int) -> memoryview:
        partition = self.partition
        if self._fd >= 0 and self.offset == self._expected and self._committed:
            found = partition.log.read_on(
                self._fd, self._base, self._position, self._expected, max_bytes, partition.contiguous
            )
            if found is not None:
                batches, following = found
                self.advance(len(batches), following)
                return batches
        max_bytes = max(max_bytes, batch_header.HEADER_SIZE)  # enough to see how long the first batch is
        while True:
            now = partition.snapshot()
            limit = now.stable_offset if self._committed else now.next_offset
            if self.offset >= limit or self.offset < now.log_start:
                if not now.log_start <= self.offset <= now.next_offset:
                    raise partition.out_of_range(self.offset, now)
                return memoryview(b"")
            if self._fd < 0 and not self._enter(now):
                continue
            active = self._base == now.active_base
            size = min(max_bytes, now.position - self._position) if active else max_bytes
            data = _os.pread(self._fd, size, self._position)
            if not data and not active:
                try:
                    self._leave(now)
                except CorruptBatch:
                    if not partition.look_for_gaps() and not self._can_retry():
                        raise
                continue
            try:
                done, following = verify(data, self._expected, partition.contiguous, now.leader_epoch)
            except CorruptBatch as error:
                if not error.position:
                    if partition.look_for_gaps() or self._can_retry():
                        continue
                    raise self._corrupt(error) from None
                data = data[: error.position]  # first what is good; the next call meets the bad one
                done, following = verify(data, self._expected, partition.contiguous, now.leader_epoch)
            if done and following > limit:
                done, following = self._below(limit, data[:done])
                if not done:
                    return memoryview(b"")
            if done:
                self._position += done
                self._expected = following
                self._tries_left = _MAX_TRIES
                if following <= self.offset:
                    continue  # cleaning took what we were looking for out of this batch
                self.offset = following
                return memoryview(data)[:done]
            whole = batch_header.parse(data).size if len(data) >= batch_header.HEADER_SIZE else 0
            if len(data) < max_bytes or whole <= max_bytes:  # the file, or the committed part of it, ends too early
                if self._can_retry():
                    continue
                raise self._torn(len(data))
            max_bytes = whole

    def file_position(self, now: Snapshot) -> tuple[int, int, int, int]:
        """Return where the batch of `offset` begins: base of its segment, position, inode of that file, and the version
        of the segments before it was opened.
        """
        while not self._enter(now):
            now = self.partition.snapshot()
            if not now.log_start <= self.offset < now.next_offset:
                raise self.partition.out_of_range(self.offset, now)
        return self._base, self._position, self._file[1], self._file[0]

    def _can_retry(self) -> bool:
        """Return whether to read again what seems damaged: a process rewrites after a failed sync, or was killed."""
        if self.partition.log.flags & SYNC_FAILED and self._tries_left > 0:
            self._tries_left -= 1
            if not self.partition.rewrite_unsynced():
                time.sleep(0.01)
            return True
        self._tries_left, again = _MAX_TRIES, self._tries_left > 0
        if again:
            self._tries_left = 0  # healed just now? once more, then it is damage
        return again

    def _enter(self, now: Snapshot) -> bool:
        """Open the segment that holds `offset` and go to its batch. False: look at the head again."""
        partition = self.partition
        partition.check_not_deleted()
        if self._base >= 0:
            try:
                self._open_segment(self._base)
                if (partition.log.segments_version, os.fstat(self._fd).st_ino) == self._file:
                    return True
                self.close()  # compacted since, or something else changed: positions mean nothing any more
            except FileNotFoundError:
                pass
            self._base = -1
        version = partition.log.segments_version  # before the file is opened, see compaction.py
        base = segment.holding(partition.bases(), self.offset)
        if base is None or base > now.active_base or (base < now.active_base <= self.offset):
            if partition.snapshot().log_start > self.offset:
                return False  # expired just now
            raise CorruptBatch(
                f"{partition.directory}: no segment holds offset {self.offset}; the log starts at {now.log_start}",
                path=partition.directory,
                hint="run `check(repair=True)` on the store",
            )
        try:
            self._open_segment(base)
        except FileNotFoundError:
            return False
        self._file = version, os.fstat(self._fd).st_ino
        self._base, self._position, self._expected = base, 0, base
        if base == self.offset:
            return True
        end_position = now.position if base == now.active_base else None
        with Index(partition.directory, base, end_position=end_position, log_fd=self._fd) as index:
            entry = index.before_offset(self.offset)
        if end_position is None and not index.is_valid:
            partition.miss_index()
        if entry.position and self._starts_at(entry.position, entry.offset):
            self._position, self._expected = entry.position, entry.offset
        self._skip(now)
        return True

    def _open_segment(self, base: int) -> None:
        """Open a segment. NotAStore if it may be a file that was copied into the directory of this store."""
        self._fd = _os.open_file(segment.path_of(self.partition.directory, base), os.O_RDONLY)
        try:
            self.partition.heads.check_place(now=True)  # after the file was opened: before, it could be replaced yet
        except KlammError:
            self._forget()
            raise

    def _starts_at(self, position: int, offset: int) -> bool:
        """Return whether a batch with that base offset starts there: an index is only a hint, and this checks it."""
        try:
            found = batch_header.parse(_os.pread(self._fd, batch_header.HEADER_SIZE, position))
            done, _ = verify(_os.pread(self._fd, found.size, position), offset, True)
        except CorruptBatch:
            return False
        return done == found.size

    def _skip(self, now: Snapshot) -> None:
        """Step over whole batches before `offset`."""
        end = now.position if self._base == now.active_base else os.fstat(self._fd).st_size
        while self._position < end:
            try:
                found = batch_header.parse(_os.pread(self._fd, batch_header.HEADER_SIZE, self._position))
            except CorruptBatch:
                return  # read() will say so
            wrong = found.base_offset != self._expected and (
                self.partition.contiguous or found.base_offset < self._expected
            )
            if found.next_offset > self.offset or wrong or self._position + found.size > end:
                return
            self._position += found.size
            self._expected = found.next_offset

    def _leave(self, now: Snapshot) -> None:
        """Leave a closed segment at its end: the next one must go on where this one ended."""
        partition = self.partition
        later = [base for base in partition.bases() if base > self._base]
        following = min(later, default=now.active_base)
        if following != self._expected and partition.contiguous and partition.snapshot().log_start <= self.offset:
            partition.check_not_deleted()
            raise cleaner_checkpoint.gap(partition.directory, self._expected, following)
        self.close()
        self._base = -1
        if not partition.contiguous:
            self.offset = max(self.offset, following)

    def _corrupt(self, error: CorruptBatch) -> CorruptBatch:
        path = segment.path_of(self.partition.directory, self._base)
        what = error.message.removeprefix(f"byte {error.position}: ")  # of what was read, not of the file
        what += cleaner_checkpoint.what_is_missing(self.partition.directory)
        return CorruptBatch(
            f"{path}: byte {self._position}: {what}",
            path=path,
            position=self._position,
            next_offset=self._after_damage(),
            hint="run `check(repair=True)` on the store, or seek past the batch",
        )

    def _after_damage(self) -> int | None:
        """Return where reading can go on. The bad batch's header is trusted if another batch starts where it says."""
        now = self.partition.snapshot()
        try:
            bad = batch_header.parse(_os.pread(self._fd, batch_header.HEADER_SIZE, self._position))
            end = self._position + bad.size
            if self._base == now.active_base and end == now.position:
                following = now.next_offset
            elif data := _os.pread(self._fd, batch_header.HEADER_SIZE, end):
                following = batch_header.parse(data).base_offset
            else:
                following = min(base for base in self.partition.segments() if base > self._base)
        except (CorruptBatch, ValueError):
            return None
        return following if bad.base_offset == self._expected and bad.next_offset == following else None

    def _torn(self, got: int) -> CorruptBatch:
        return self._corrupt(CorruptBatch(f"an incomplete batch of {got} bytes", position=0))
