"""Check one partition (head, segments, index, recovery point, producers), and repair it.

    heads      a slot for each partition, its commit whole and sane (log/head.py, H1 to H4)
    segments   batches end to end, CRC, offsets that follow on; nothing beyond the commit (log/segment.py, S1 to S3);
               each header's max_timestamp is the largest of its records
    index      checksums; entries that point at batches (log/index.py, I1)
    recovery   its checksum; the point lies at a batch (log/point.py)
    producers  table and snapshots can be read, and know no batch that is not there (log/producers.py)
    aborted    checksums; an entry for every abort (log/aborted.py, A1)
    cleaned    its checksum; no gap where compaction has not been (log/cleaner_checkpoint.py)

An index, a snapshot or bytes beyond the commit are repaired while other processes use the store. A log is repaired only
when no other process has the store open: they would have its files open and its table of producers mapped.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from klamm.batch import Header, crc32c, markers, scan_records
from klamm.disk import _os, files
from klamm.disk.locks import LockFile
from klamm.errors import CorruptBatch, StoreBusy
from klamm.log import _head, aborted, head, index, point, producer_recovery, producers, recovery, segment
from klamm.log import cleaner_checkpoint as cleaner
from klamm.log.aborted import Aborted
from klamm.log.index import Entry, Index
from klamm.log.sealed import Lack
from klamm.store import directory
from klamm.store.catalog import Topic
from klamm.store.damage import Batch, Damage, batches
from klamm.store.open_topic import bell_bit
from klamm.store.repair import repair_log
from klamm.types import Cut

__all__ = ["Breach", "PartitionCheck", "Report"]

_PROGRESS_BYTES = 1 << 20  # between two calls of `progress`


class Breach(NamedTuple):
    """A promise that does not hold. `repaired` says what was done about it; None: nothing."""

    path: str
    position: int | None
    promise: str
    message: str
    repaired: str | None = None

    def __str__(self) -> str:
        where = self.path if self.position is None else f"{self.path}: byte {self.position}"
        return f"{where}: {self.message} [{self.promise}]" + (f": {self.repaired}" if self.repaired else "")


@dataclass
class Report:
    """The report of a check: what was checked, and which promises are broken."""

    breaches: list[Breach] = field(default_factory=list)
    topics: int = 0
    partitions: int = 0
    segments: int = 0
    batches: int = 0
    records: int = 0
    size: int = 0  # bytes of log
    cuts: list[Cut] = field(default_factory=list)
    """What recovery or repair cut off logs, now or before; `klamm salvage` reads it."""

    @property
    def ok(self) -> bool:
        """Whether no breach is left unrepaired."""
        return all(breach.repaired for breach in self.breaches)


class _Slot(NamedTuple):
    seq: int
    intent: int
    index_base: int
    index_count: int


class _Walk:
    """The findings in one partition.

    `remedy` of a finding: "repair", "index <base>", "aborted <base>", "cleaned", "remove", or nothing.
    """

    def __init__(self) -> None:
        self.found: list[tuple[Breach, str]] = []

    def add(self, path: str, position: int | None, promise: str, message: str, remedy: str = "repair") -> None:
        self.found.append((Breach(path, position, promise, message), remedy))


class PartitionCheck:
    """The check of one partition."""

    def __init__(
        self,
        core: directory.Core,
        lock: LockFile | None,
        report: Report,
        topic: Topic,
        number: int,
        slot: int,
        *,
        repair: bool,
        on_progress: Callable[[int], object] | None = None,
    ) -> None:
        """Prepare a check. Without `lock`, skip what needs a lock byte. `on_progress` gets the bytes checked."""
        self.core = core
        self.lock = lock
        self.report = report
        self.repair = repair
        self.on_progress = on_progress
        self.topic = topic
        self.slot = slot
        self.directory = f"{core.files}/topics/{topic.directory}/{number}"
        self.heads = core.heads

    def run(self) -> None:
        report = self.report
        at = self.slot * head.SLOT_BYTES
        if self.heads.size() <= self.slot:
            message = f"has no slot {self.slot} for {self.topic.name}"
            report.breaches.append(
                Breach(self.heads.path, at, "CAT1: slots are laid out before a topic is there", message)
            )
            return
        self.log = self._open_log()
        self.contiguous = True
        self.gaps_below = 0
        for chance in range(5, 0, -1):
            walk = _Walk()
            version = self.log.segments_version
            self.counted = (report.segments, report.batches, report.records, report.size)
            try:
                self._walk(walk)
                if not walk.found or chance == 1 or self.log.segments_version == version:
                    break
                raise FileNotFoundError  # perhaps compacted during the check
            except FileNotFoundError:  # expired during the check
                report.segments, report.batches, report.records, report.size = self.counted
        if walk.found and self._is_deleted():
            return
        report.breaches += self._repair(walk) if self.repair else [breach for breach, _ in walk.found]

    def _open_log(self) -> head.Log:
        """Return the log that this process has open; else one with its own lock descriptor, which excludes others."""
        for partition in self.core.opened():
            if partition.directory == self.directory:
                return partition.log
        bit = bell_bit(self.topic.id)
        life = self.core.life if self.lock is not None else None
        return head.Log(self.heads, self.slot, self.directory, self.lock, bit, life=life)

    def _gaps(self) -> int:
        """Return the offset below which compaction may have left gaps."""
        return cleaner.load(self.directory).gaps_below

    def _is_deleted(self) -> bool:
        topics = self.core.catalog.topics()
        return self.topic.id not in [topic.id for topic in topics]

    # ---- looking

    def _walk(self, walk: _Walk) -> None:
        at = self.slot * head.SLOT_BYTES
        if self.log.flags & head.DELETED:
            what = f"{self.topic.name} is marked as deleted, but the catalog has it"
            message = f"{what}: delete it again, or move `heads` aside: it is made again"
            walk.add(self.heads.path, at, "a topic is deleted whole", message, "")
            return
        self.gaps_below = self._gaps()
        self.contiguous = not self.gaps_below
        known = self._point(walk)
        self._cleaned(walk)
        flushed = self.log.flushed_offset
        now: head.Snapshot | None = None
        if not self.log.flags & head.NEEDS_RECOVERY:
            try:
                now = self.log.snapshot()
                if recovery.is_older(self.log):
                    path = segment.path_of(self.directory, now.active_base)
                    message = "the log goes on after the commit, and no writer died: `heads` may be older than the log"
                    walk.add(path, now.position, "S3: a segment ends at the commit", message)
                    now = None
            except head.HeadResult:
                walk.add(self.heads.path, at, "H1: the commit is whole", f"the head of {self.directory} is damaged")
            else:
                if now is not None:
                    self._head(walk, now, flushed, known)
        self._segments(walk, now, known)
        self._producers(walk, now)

    def _point(self, walk: _Walk) -> point.Point | None:
        path = f"{self.directory}/recovery"
        had_point = self.log.recovery_point[0] >= 0  # asked first: the file may be made at any moment
        known = point.load(self.directory)
        if isinstance(known, point.Point):
            self._listed(walk, known)
            return known
        message = known.value if known is Lack.DAMAGED or had_point else self._unrecoverable()
        if message:
            walk.add(path, 0, "the recovery point is as it was written", message)
        return None

    def _unrecoverable(self) -> str:
        """Return why the log cannot be recovered without a recovery point, or ""."""
        if self.log.flags & head.NEEDS_RECOVERY:
            try:
                found = segment.bases(self.directory)
                recovery.known_point(self.directory, point.load(self.directory), found, self.log.evidence())
            except CorruptBatch as error:
                return error.message.removeprefix(f"{error.path}: ")
        return ""

    def _listed(self, walk: _Walk, known: point.Point) -> None:
        """Look for the files that the recovery point lists."""
        start = known.log_start
        with suppress(head.HeadResult):  # a damaged head, which is reported elsewhere
            start = max(start, self.log.snapshot().log_start)
        for base in point.missing_segments(known, segment.bases(self.directory), start):
            if base < self.gaps_below:  # elsewhere the offsets show it
                path = segment.path_of(self.directory, base)
                walk.add(path, None, "every segment of the recovery point is there", "is missing")
        if known.snapshot >= 0 and not segment.bases(self.directory, producers.SUFFIX):
            path = segment.path_of(self.directory, known.snapshot, producers.SUFFIX)
            walk.add(path, None, "the snapshot of producers of the recovery point is there", "is missing")

    def _cleaned(self, walk: _Walk) -> None:
        path = cleaner.path_of(self.directory)
        if self.gaps_below == cleaner.EVERYWHERE:
            message = "is missing" if cleaner.is_missing(self.directory) else "its checksum is wrong"
            walk.add(path, 0, "what compaction did is as it was written", message, "cleaned")

    def _head(self, walk: _Walk, now: head.Snapshot, flushed: int, known: point.Point | None) -> None:
        at = self.slot * head.SLOT_BYTES
        wrong = None
        if not 0 <= now.log_start <= now.next_offset or not 0 <= now.active_base <= now.next_offset:
            wrong = f"log start {now.log_start}, active segment {now.active_base}, next offset {now.next_offset}"
        elif now.position < 0 or (now.position == 0) != (now.active_base == now.next_offset):
            wrong = f"position {now.position} in segment {now.active_base}, but next offset {now.next_offset}"
        elif not 0 <= flushed <= now.next_offset or now.stable_offset > now.next_offset:
            wrong = f"flushed up to {flushed}, stable up to {now.stable_offset}, but next offset {now.next_offset}"
        elif known is not None and known.offset > now.next_offset:
            wrong = f"next offset {now.next_offset}, but the recovery point is at {known.offset}"
        if wrong is not None:
            walk.add(self.heads.path, at, "H2: next_offset only grows, and the rest follows it", wrong)

    def _segments(self, walk: _Walk, now: head.Snapshot | None, known: point.Point | None) -> None:
        found = segment.bases(self.directory)
        log_start = now.log_start if now else known.log_start if known else found[0] if found else 0
        following = dict(pairwise(found))
        self._aborts = _Aborts(walk, self.directory)
        expected = log_start
        for base in found:
            if base in following and following[base] <= log_start:
                continue  # a cleaning that was cut short; the next one removes it
            if now is not None and base > now.active_base:
                if base > self.log.snapshot().active_base:  # else it was begun during the check
                    path = segment.path_of(self.directory, base)
                    walk.add(
                        path, None, "S3: no segment after the active one", f"the active segment is {now.active_base}"
                    )
                continue
            if base > max(expected, self.gaps_below):
                self._missing(walk, max(expected, self.gaps_below), base, now)
            expected = max(self._segment(walk, base, now, known, following.get(base)), base)
        end = now.next_offset if now is not None else known.offset if known is not None else 0
        if max(expected, self.gaps_below) < end:  # without a head: what is known to have been synced
            self._missing(walk, expected, end, now)

    def _highest_epoch(self, known: point.Point | None) -> int:
        """Return the highest leader epoch that a batch can have, as the recovery of the log will find it."""
        epochs = known.epochs if known is not None else ()
        return point.highest_epoch(epochs, self.log.evidence(), self.core.catalog.boot_count())

    def _missing(self, walk: _Walk, first: int, end: int, now: head.Snapshot | None) -> None:
        if now is not None and self.log.snapshot().log_start >= end:
            return  # expired during the check
        if not walk.found or not walk.found[-1][0].path.endswith(segment.LOG):  # else the damage was reported already
            walk.add(self.directory, None, "S2: offsets follow on", f"offsets {first} to {end - 1} are missing")

    def _segment(
        self,
        walk: _Walk,
        base: int,
        now: head.Snapshot | None,
        known: point.Point | None,
        following: int | None,
    ) -> int:
        """Walk one segment, which another one, or the end, follows; the offset after it."""
        report, path = self.report, segment.path_of(self.directory, base)
        active = now is not None and base == now.active_base
        size = os.stat(path).st_size
        end = now.position if now is not None and active else size
        if size < end:
            walk.add(path, size, "H1: what was committed is there", f"the file ends here, the commit at byte {end}")
            end = size
        torn_from = known.position if known is not None and base == known.base else 0
        may_be_torn = now is None and (known is None or base >= known.base)
        entries = _Entries(walk, self.directory, base, self._counted(base) if active else None)
        self._aborts.enter(base)
        offset, epoch, max_timestamp = base, -1, -1
        mark: int | None = known.offset if known is not None and base == known.base and known.position < end else None
        report.segments += 1
        report.size += end
        before, next_report = report.size - end, 0
        highest = now.leader_epoch if now is not None else self._highest_epoch(known)
        for each in batches(path, base, end, contiguous=base >= self.gaps_below, highest_epoch=highest):
            if self.on_progress is not None and each.position >= next_report:
                self.on_progress(before + each.position)
                next_report = each.position + _PROGRESS_BYTES
            if isinstance(each, Damage):
                if may_be_torn and each.position >= torn_from and each.stop == end:
                    break  # a tail that recovery will cut off
                walk.add(
                    path, each.position, "S1: every batch is whole, its CRC right, its offset the next", each.message
                )
                continue
            header = each.header
            if (
                mark is not None
                and known is not None
                and each.position == known.position
                and header.base_offset == mark
            ):
                mark = None
            if header.leader_epoch < epoch:
                message = f"leader epoch {header.leader_epoch} after {epoch}"
                walk.add(path, each.position, "leader epochs only grow", message, "")
            largest = _max_timestamp(each)
            if largest is not None and largest != max(header.max_timestamp, -1):
                message = f"max_timestamp is {header.max_timestamp}, but the largest of its records is {largest}"
                walk.add(path, each.position, "max_timestamp is the largest of a batch", message, "")
            entries.batch(header.base_offset, each.position, max_timestamp)
            self._aborts.batch(header, each.position)
            max_timestamp, epoch = max(max_timestamp, header.max_timestamp), max(epoch, header.leader_epoch)
            offset = header.next_offset
            report.batches += 1
            report.records += header.record_count
        closed = now.active_base if now is not None and following is None else following
        entries.end(offset if offset >= self.gaps_below or closed is None else closed, end, max_timestamp)
        if mark is not None and known is not None and now is not None:
            message = f"the point is byte {known.position} of segment {base}, where offset {mark} does not start"
            walk.add(f"{self.directory}/recovery", None, "the recovery point lies at a batch", message)
        return offset

    def _counted(self, base: int) -> int:
        """Return how many entries the active segment's index has, as its writers count them."""
        now = self._slot()
        return now.index_count if now.index_base == base else 0

    def _slot(self) -> _Slot:
        return _Slot(*self.log.bookkeeping)

    def _producers(self, walk: _Walk, now: head.Snapshot | None) -> None:
        for offset in segment.bases(self.directory, producers.SUFFIX):
            path = segment.path_of(self.directory, offset, producers.SUFFIX)
            if producers.load(self.directory, offset) is Lack.DAMAGED:  # else it may have been pruned
                walk.add(path, 0, "snapshots of producers are as they were written", "its checksum is wrong", "remove")
        path = f"{self.directory}/producers"
        if now is None or not os.path.exists(path):
            return  # recovery re-creates the table
        wrong = None
        for wait_s in (0.0, 0.02, 0.2):  # a process may be creating or growing it
            time.sleep(wait_s)
            seq = self.log.producers_at_rest
            data = files.read(path)
            at_rest = seq > 0 and producers.seq_of(data) == seq == self.log.producers_at_rest
            wrong = producers.wrong_in_table(data, lambda: self.log.snapshot().next_offset, is_at_rest=at_rest)
            if wrong is None:
                return
        assert wrong is not None
        walk.add(path, wrong[0], "the table of producers knows what is in the log", wrong[1], "producers")

    # ---- putting right

    def _repair(self, walk: _Walk) -> list[Breach]:
        remedies = {remedy for _, remedy in walk.found}
        repairs: dict[str, str | None] = {}
        why = ""
        if "repair" in remedies:
            try:
                repairs["repair"] = self._repair_log()
            except (StoreBusy, CorruptBatch) as error:
                why = f" (not repaired: {error.message})"
        for remedy in remedies:
            if remedy.startswith("index"):  # the repair re-creates all of them
                repairs[remedy] = repairs.get("repair") or self._reindex(int(remedy.split()[1]))
            if remedy == "producers":
                repairs[remedy] = repairs.get("repair") or self._restore_producers()
            if remedy == "cleaned":
                repairs[remedy] = self._forget_cleaned()
            if remedy.startswith("aborted"):
                repairs[remedy] = self._rewrite_aborted(int(remedy.split()[1]))
        result = []
        for breach, remedy in walk.found:
            if remedy == "remove":
                files.remove(breach.path)
                repairs[remedy] = "removed"
            done = breach.repaired or repairs.get(remedy)
            result.append(breach._replace(repaired=done, message=breach.message + ("" if done else why)))
        if repairs.get("repair"):
            again, report = _Walk(), self.report
            report.segments, report.batches, report.records, report.size = self.counted
            self._walk(again)
            result += [breach for breach, _ in again.found]
        return result

    def _repair_log(self) -> str:
        presence, lock = self.core.presence, self.lock
        assert presence is not None
        assert lock is not None
        with presence.shared_again():
            presence.be_alone("it is to be repaired")
            with lock.hold(head.clean_byte(self.slot)):
                done = repair_log(
                    self.log,
                    clock_ms=self.heads.clock_ms(),
                    interval=self.topic.settings.index_interval_bytes,
                    contiguous=self.contiguous,
                    boot_count=self.core.catalog.boot_count(),
                )
        return "; ".join(done)

    def _restore_producers(self) -> str:
        with self.log.append_lock():
            producer_recovery.restore(self.log, self.log.snapshot().next_offset, point.load(self.directory))
        return "made again"

    def _rewrite_aborted(self, base: int) -> str:
        """Rewrite the .aborted file with its valid entries and those that the log shows."""
        with self.log.append_lock():
            known = aborted.load(self.directory, base)
            wanted = [entry for entry in self._aborts.wanted.get(base, []) if entry not in known]
            aborted.write(self.directory, base, known + wanted)
            self.log.bump_segments_version()
        return "re-created"

    def _forget_cleaned(self) -> str:
        """Record that gaps may be anywhere below the active segment and that all of it is to be compacted again."""
        assert self.lock is not None
        with self.lock.hold(head.clean_byte(self.slot)):
            if self._gaps() == cleaner.EVERYWHERE:  # else repairing the log has created it again
                known = point.load(self.directory)
                below = known.base if isinstance(known, point.Point) else self.log.snapshot().active_base
                cleaner.store(self.directory, cleaner.CleanerCheckpoint(0, below))
        return "re-created: everything will be compacted again"

    def _reindex(self, base: int) -> str:
        """Rebuild an index. The active segment's is rebuilt in place: its writers have it open."""
        assert self.lock is not None
        with self.lock.hold(head.clean_byte(self.slot)):  # so that no compaction replaces the segment
            return self._write_index(base)

    def _write_index(self, base: int) -> str:
        with self.log.append_lock():
            now = self.log.snapshot()
            scanned = recovery.scan_segment(
                self.directory,
                base,
                interval=self.topic.settings.index_interval_bytes,
                contiguous=base >= self.gaps_below,
            )
            if base != now.active_base:
                found = [*segment.bases(self.directory), now.active_base]
                end = (
                    scanned.offset if scanned.offset >= self.gaps_below else min(each for each in found if each > base)
                )
                closing = Entry(end, scanned.position, scanned.max_timestamp)
                index.write(self.directory, base, [*scanned.entries, closing], size=scanned.position)
                return "re-created"
            header = index.pack_header(self.directory, base) or b""
            data = header + b"".join(_head.index_entry(*entry) for entry in scanned.entries)
            fd = _os.open_file(segment.path_of(self.directory, base, ".index"), os.O_RDWR | os.O_CREAT)
            try:
                _os.truncate(fd, 0)
                _os.pwrite(fd, data, 0)
                _os.fsync(fd)
            finally:
                os.close(fd)
            last = scanned.entries[-1].position if scanned.entries else 0
            self.log.set_index(base, len(scanned.entries), last)
            return "re-created"


def _max_timestamp(batch: Batch) -> int | None:
    """Return the largest timestamp of the records. None if there are only markers, or nothing that can be read."""
    if batch.header.is_control or not batch.header.record_count:
        return None
    try:
        return scan_records(batch.data)[2]
    except CorruptBatch:
        return None


class _Entries:
    """The entries of an index, held against the batches as they come by."""

    def __init__(self, walk: _Walk, directory: str, base: int, counted: int | None) -> None:
        self.walk = walk
        self.base = base
        self.path = segment.path_of(directory, base, ".index")
        self.wanted: dict[int, tuple[int, Entry]] = {}
        try:
            header = next(files.pieces(self.path, 0, index.HEADER_SIZE), b"")
        except FileNotFoundError:
            return
        if counted == 0 or not header:
            return  # it is not read before its header is written, which a full disk or a kill may prevent
        if len(header) < index.HEADER_SIZE or header[-4:] != crc32c(header[:-4]).to_bytes(4, "little"):
            self._lies(0, "the checksum of its header is wrong")
            return
        end_position = None if counted is None else os.stat(segment.path_of(directory, base)).st_size
        with Index(directory, base, end_position=end_position) as found:
            for number in range(found.count if counted is None else min(found.count, counted)):
                entry = found.entry(number)
                at = index.HEADER_SIZE + number * index.ENTRY_SIZE
                if entry is None:
                    self._lies(at, "the checksum of an entry is wrong")
                else:
                    self.wanted[entry.position] = at, entry

    def _lies(self, at: int, message: str) -> None:
        self.walk.add(self.path, at, "I1: an index never lies", message, f"index {self.base}")

    def batch(self, offset: int, position: int, max_timestamp: int) -> None:
        if position in self.wanted:
            at, entry = self.wanted.pop(position)
            if entry.offset != offset:
                self._lies(at, f"says that offset {entry.offset} is at byte {position}, where {offset} is")
            elif entry.max_timestamp < max_timestamp:
                self._lies(
                    at, f"says that nothing before is younger than {entry.max_timestamp}, but {max_timestamp} is"
                )

    def end(self, offset: int, position: int, max_timestamp: int) -> None:
        self.batch(offset, position, max_timestamp)  # the entry made when the segment was closed
        for at, entry in self.wanted.values():
            if entry.position < position:
                self._lies(at, f"says that a batch starts at byte {entry.position}, where none does")


class _Aborts:
    """The aborted transactions, held against the batches as they come by."""

    def __init__(self, walk: _Walk, directory: str) -> None:
        self.walk = walk
        self.directory = directory
        self.open: dict[int, int] = {}
        self.wanted: dict[int, list[Aborted]] = {}

    def enter(self, base: int) -> None:
        self.base = base
        self.path = segment.path_of(self.directory, base, aborted.SUFFIX)
        self.known = aborted.load(self.directory, base)
        if not aborted.is_whole(self.directory, base):
            self._misses("the checksum of an entry is wrong")

    def _misses(self, message: str) -> None:
        promise = "A1: every abort has its entry"
        self.walk.add(self.path, None, promise, message, f"aborted {self.base}")

    def batch(self, header: Header, position: int) -> None:
        if not header.is_control:
            if header.is_transactional:
                self.open.setdefault(header.producer_id, header.base_offset)
            return
        first = self.open.pop(header.producer_id, -1)
        if first < 0 or self._commits(position):
            return
        entry = Aborted(header.producer_id, first, header.base_offset)
        self.wanted.setdefault(self.base, []).append(entry)
        if not any(
            each.producer_id == entry.producer_id
            and each.first_offset <= first
            and each.last_offset == entry.last_offset
            for each in self.known
        ):
            self._misses(f"producer {entry.producer_id} aborted at offset {entry.last_offset}, which it does not say")

    def _commits(self, position: int) -> bool:
        fd = _os.open_file(segment.path_of(self.directory, self.base), os.O_RDONLY)
        try:
            return markers.commits(_os.pread(fd, markers.SIZE, position))
        finally:
            os.close(fd)
