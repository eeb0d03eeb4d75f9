"""Repair a log: every good batch stays, with its offsets.

    a damaged base offset, or epoch     is put back (they lie outside of the CRC)
    damage before good batches          an empty batch takes its place and its offsets, as after cleaning
    missing segments                    the same, at the end of the segment before
    damage at the end                   is cut off
    nothing left at the start           the log starts later

Removed bytes are kept beside the log, in `<segment>.cut-<time>`. Afterwards the log is recovered from its first segment
on: new head, indexes, table of producers, and a new leader epoch, so that readers validate their stored positions.

A rewritten segment is a new file, and another process may still have the old one open. So a last segment that was
rewritten is never appended to again: an empty segment follows it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from klamm.batch import header as batch_header
from klamm.batch import patch, verify
from klamm.disk import _os, files
from klamm.errors import CorruptBatch
from klamm.log import cleaner_checkpoint, head, point, producers, recovery, segment
from klamm.store.damage import Batch, Damage, batches

__all__ = ["empty_batches", "repair_log"]

_MAX_DELTA = 0x7FFFFFFE


def empty_batches(first: int, end: int, epoch: int) -> bytes:
    """Return batches without a record that take the offsets [first, end)."""
    parts = []
    while first < end:
        delta = min(end - first - 1, _MAX_DELTA)
        parts.append(patch.empty(first, delta + 1, epoch))
        first += delta + 1
    return b"".join(parts)


def repair_log(log: head.Log, *, clock_ms: int, interval: int, contiguous: bool, boot_count: int) -> list[str]:
    """Repair the files and recover the log from them. The caller holds the clean byte. Return what was done."""
    with log.point_lock(), log.append_lock(), log.flush_lock():
        now: head.Snapshot | None = None
        if not log.flags & head.NEEDS_RECOVERY:
            try:
                now = log.snapshot() if not recovery.is_older(log) else None
            except head.HeadResult:
                now = None  # the head itself is damaged
        log.set_flags(head.NEEDS_RECOVERY)
        log.forget_files()
        done = _Repair(log.directory, now, log.evidence(), contiguous, boot_count).run()
    recovery.recover(log, clock_ms=clock_ms, interval=interval, contiguous=contiguous, boot_count=boot_count)
    log.bump_segments_version()
    log.ring()
    return [*done, f"recovered the log, which now ends at offset {log.snapshot().next_offset}"]


class _Repair:
    def __init__(
        self, directory: str, now: head.Snapshot | None, proof: head.Evidence, contiguous: bool, boot_count: int
    ) -> None:
        """Prepare a repair. `now`: the head, if it can be relied on; else `proof` is what an old head proves."""
        self.directory = directory
        self.now = now
        self.proof = proof
        self.contiguous = contiguous
        self.gaps_below = 0 if contiguous else cleaner_checkpoint.load(directory).gaps_below
        self.highest_epoch = -1
        self.boot_count = boot_count
        self.suffix = f".cut-{time.time_ns() // 1_000_000}"
        self.done: list[str] = []

    def run(self) -> list[str]:
        loaded = point.load(self.directory)
        known = loaded if isinstance(loaded, point.Point) else None
        found = segment.bases(self.directory)
        epochs = known.epochs if known else ()  # without them, recovery finds them in the batches
        self.highest_epoch = point.highest_epoch(epochs, self.proof, self.boot_count)
        if self.now is not None:
            self.highest_epoch = self.now.leader_epoch
        last_offset = max(self.now.next_offset if self.now else 0, known.offset if known else 0)
        log_start = self.now.log_start if self.now else known.log_start if known else found[0] if found else 0
        if not found and self.now is None and known is None:
            if not self.proof.exists:
                raise CorruptBatch(
                    f"{self.directory}: no head, no recovery point and no segment: the next offset is unknown",
                    path=self.directory,
                    hint="restore a backup",
                )
            last_offset, log_start = max(self.proof.next_offset, self.proof.flushed_offset), self.proof.log_start
        kept = self._set_aside(found)
        end = kept[-1][1] if kept else last_offset
        rewritten = False
        for number, (base, following) in enumerate(kept):
            last = number == len(kept) - 1
            wanted = following if last else kept[number + 1][0]
            rewritten = self._rewrite(base, wanted, last=last)
        if rewritten or not kept:
            files.make_directory(self.directory)
            self._write(segment.path_of(self.directory, end), iter(()))
        first = kept[0][0] if kept else end
        if first > log_start:
            self.done.append(f"moved the start of the log from offset {log_start} to {first}")
        if not self.contiguous:  # new records at the offsets that were cut off are not compacted
            cleaner_checkpoint.store(self.directory, cleaner_checkpoint.CleanerCheckpoint(0, min(self.gaps_below, end)))
        files.sync_directory(self.directory)
        snapshots = segment.bases(self.directory, producers.SUFFIX)
        snapshot = snapshots[-1] if snapshots else -1
        point.store(
            self.directory,
            point.Point(first, first, 0, max(first, log_start), epochs, snapshot, not self.contiguous, repaired=True),
        )
        return self.done

    def _end_of(self, base: int) -> int:
        """Return the byte where the committed part of a segment ends; its size if that is unknown or the file is
        shorter.
        """
        size = os.stat(segment.path_of(self.directory, base)).st_size
        return min(size, self.now.position) if self.now and base == self.now.active_base else size

    def _batches(self, base: int) -> Iterator[Batch | Damage]:
        path = segment.path_of(self.directory, base)
        return batches(path, base, self._end_of(base), contiguous=self.contiguous, highest_epoch=self.highest_epoch)

    def _set_aside(self, found: list[int]) -> list[tuple[int, int]]:
        """Rename segments without a good batch or with misplaced offsets. Return the others, with the offset after
        each.
        """
        kept: list[tuple[int, int]] = []
        for base in found:
            following = max(
                (each.header.next_offset for each in self._batches(base) if isinstance(each, Batch)), default=None
            )
            if following is None and not self.contiguous and not self._end_of(base) and base != found[-1]:
                following = base  # all of it was compacted away
            is_orphan = self.now is not None and base > self.now.active_base
            if following is None or is_orphan or (kept and base < kept[-1][1]):
                path = segment.path_of(self.directory, base)
                files.remove(segment.path_of(self.directory, base, ".index"))
                _os.rename(path, path + self.suffix)
                if os.stat(path + self.suffix).st_size:
                    self.done.append(f"moved {path} aside to {path}{self.suffix}")
            else:
                kept.append((base, following))
        return kept

    def _rewrite(self, base: int, wanted: int, *, last: bool) -> bool:
        """Rewrite the segment so that it ends at offset `wanted`. Return False if nothing was wrong."""
        found = list(self._damage(base, wanted, last=last))
        path = segment.path_of(self.directory, base)
        if not found and self._end_of(base) == os.stat(path).st_size:
            return False
        if found and any(each.stop > each.position for each, _ in found):
            self._write(
                path + self.suffix, (data for each, _ in found for data in files.pieces(path, each.position, each.stop))
            )
            # The copy of the removed bytes is durable before the segment is replaced.
            files.sync_directory(self.directory)
        files.remove(segment.path_of(self.directory, base, ".index"))
        self._write(path + ".new", self._repaired(base, found))
        _os.rename(path + ".new", path)
        for each, filling in found:
            what = f"{path}: byte {each.position}: {each.stop - each.position} bytes moved aside to {path}{self.suffix}"
            self.done.append(f"{what}, {self._describe(each, filling)}")
        return True

    def _damage(self, base: int, wanted: int, *, last: bool) -> Iterator[tuple[Damage, bytes]]:
        """Yield each damage, with the bytes that replace it."""
        pending: Damage | None = None
        offset, position, epoch = base, 0, 0
        for each in self._batches(base):
            if isinstance(each, Damage):
                pending, position = each, each.stop
                continue
            if pending is not None:
                yield pending, self._filling(base, pending, each.header.base_offset, epoch)
                pending = None
            epoch = max(epoch, each.header.leader_epoch)
            offset, position = each.header.next_offset, each.position + each.header.size
        if pending is not None:
            yield pending, b"" if last else self._filling(base, pending, wanted, epoch)
        elif self.gaps_below <= offset < wanted:
            yield Damage(position, position, offset, "missing"), empty_batches(offset, wanted, epoch)

    def _filling(self, base: int, damage: Damage, following: int, epoch: int) -> bytes:
        """Return the batch itself if only its base offset is wrong; else an empty one."""
        if damage.stop - damage.position <= batch_header.HEADER_SIZE + (64 << 20):
            path = segment.path_of(self.directory, base)
            data = bytearray(b"".join(files.pieces(path, damage.position, damage.stop)))
            data[:8] = damage.offset.to_bytes(8, "big")
            data[12:16] = epoch.to_bytes(4, "big")
            try:
                if verify(data, damage.offset, True) == (len(data), following):
                    return bytes(data)
            except CorruptBatch:
                pass
        return empty_batches(damage.offset, following, epoch)

    def _describe(self, damage: Damage, filling: bytes) -> str:
        if not filling:
            return f"the log was cut off there, at offset {damage.offset}"
        if len(filling) == damage.stop - damage.position and len(filling) > batch_header.HEADER_SIZE:
            return f"base offset {damage.offset} or its leader epoch put back: nothing was lost"
        following = batch_header.parse(filling, len(filling) - batch_header.HEADER_SIZE).next_offset
        return f"offsets {damage.offset} to {following - 1} are lost; an empty batch stands for them"

    def _repaired(self, base: int, found: list[tuple[Damage, bytes]]) -> Iterator[bytes]:
        path = segment.path_of(self.directory, base)
        position = 0
        for damage, filling in found:
            yield from files.pieces(path, position, damage.position)
            yield filling
            position = damage.stop
        yield from files.pieces(path, position, self._end_of(base))

    def _write(self, path: str, pieces: Iterator[bytes]) -> None:
        fd = _os.open_file(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            position = 0
            for data in pieces:
                _os.pwrite(fd, data, position)
                position += len(data)
            _os.fsync(fd)
        finally:
            os.close(fd)
