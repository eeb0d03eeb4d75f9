"""File ranges for Fetch: whole batches that sendfile can send without decoding.

A range is whole batches of one segment, below the commit. A client that reads on requests the offset after the range
next, so that position is remembered; others are looked up by the index and a walk over headers, as a reader does. A
position is valid for one version of the segments, and in the file that it was found in. The commit contains a position,
too. It is read after the version, so that it belongs to the file that is the active segment under that version. Read
before, it could be a position in a file that has since been rolled and replaced by compaction.

`find` may wait for a disk. `find_now` is for an event loop: it uses remembered positions, open files and indexes and
bytes in memory, walks over a few headers, and raises WouldBlock if that is not enough. The loop and threads may search
one partition at the same time: they share only dictionaries and open files.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from klamm.batch import header as batch_header
from klamm.disk import _os
from klamm.disk.page_cache import CAN_TELL, WouldBlock
from klamm.errors import CorruptBatch
from klamm.log import _head, cleaner_checkpoint, segment
from klamm.log.aborted_spans import AbortedSpans
from klamm.log.index import Index
from klamm.log.reader import Reader

if TYPE_CHECKING:
    from klamm.log._head import Snapshot
    from klamm.log.partition import Partition

__all__ = ["Range", "Ranges", "SegmentFile", "SegmentFiles"]

_MAX_POSITIONS = 64
_MAX_HEADERS = 128  # that `find_now` walks over
_NO_BATCH = -2  # see _head.cut_range


class SegmentFile:
    """An open segment; closed when no range refers to it."""

    __slots__ = ("fd", "index", "inode", "version")

    def __init__(self, path: str, version: int) -> None:
        self.fd = -1
        self.version = version
        """Of the partition's segments, before it was opened."""
        self.index: Index | None = None
        """Its index, once it was used and is valid."""
        self.fd = _os.open_file(path, os.O_RDONLY)
        self.inode = os.fstat(self.fd).st_ino

    @property
    def size(self) -> int:
        """The current size: a file that was opened during appends has grown."""
        return os.fstat(self.fd).st_size

    @property
    def is_unlinked(self) -> bool:
        return os.fstat(self.fd).st_nlink == 0

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


class SegmentFiles:
    """Open segments of any number of partitions, the most recently used. Thread-safe; its lock is only held for
    moments.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._files: OrderedDict[tuple[str, int], SegmentFile] = OrderedDict()
        self._mutex = threading.Lock()

    def __len__(self) -> int:
        return len(self._files)

    def get_open(self, directory: str, base: int, version: int) -> SegmentFile | None:
        """Return the segment if it is open."""
        key = directory, base
        with self._mutex:
            file = self._files.get(key)
            if file is None or file.version != version:
                return None
            self._files.move_to_end(key)
            return file

    def get(self, directory: str, base: int, version: int) -> SegmentFile:
        """Return the segment, opened if need be."""
        file = self.get_open(directory, base, version)
        if file is None:
            file = SegmentFile(segment.path_of(directory, base), version)
            with self._mutex:
                self._files[directory, base] = file
                self._files.move_to_end((directory, base))
                dropped = self._files.popitem(last=False)[1] if len(self._files) > self._most else None
            if dropped is not None:
                dropped.index = None  # a range of it may still exist, and needs one descriptor, not two
        return file

    def forget(self, directory: str, base: int) -> None:
        """Forget an open segment: the next use opens it again."""
        with self._mutex:
            self._files.pop((directory, base), None)

    def forget_unlinked(self) -> None:
        """Close files that were deleted or replaced: they take space on the disk as long as they are open."""
        with self._mutex:
            for key in [key for key, file in self._files.items() if file.is_unlinked]:
                del self._files[key]


class Range:
    """Bytes of a file: whole batches of the segment `base`. Its length is the number of bytes left.

    `next_offset` is the offset after them; -1: they end with a closed segment.
    """

    __slots__ = ("base", "file", "next_offset", "position", "size")

    def __init__(self, file: SegmentFile, position: int, size: int, base: int, next_offset: int) -> None:
        self.file = file
        self.position = position
        self.size = size
        self.base = base
        self.next_offset = next_offset

    def __len__(self) -> int:
        return self.size

    def advance(self, count: int) -> None:
        """Drop the first `count` bytes, which were sent."""
        self.position += count
        self.size -= count

    def read(self) -> bytes:
        return _os.pread(self.file.fd, self.size, self.position)


class _FilePosition(NamedTuple):
    base: int
    position: int
    inode: int
    version: int
    """Of the partition's segments, before it was looked up."""


class Ranges:
    """The file ranges of one partition."""

    def __init__(self, partition: Partition, files: SegmentFiles) -> None:
        self._partition = partition
        self._files = files
        self._positions: OrderedDict[int, _FilePosition] = OrderedDict()
        self._aborted = AbortedSpans(partition)
        self._aborted_mutex = threading.Lock()

    def find(self, offset: int, max_bytes: int, limit: int, *, at_least_one: bool) -> Range | None:
        """Return the batches from the one with `offset` on, below `limit`, up to `max_bytes`; None if there is nothing
        to send.

        `at_least_one`: return the first batch, however large. `limit` must not be above the end of the log. Raise
        CorruptBatch if the files are damaged.
        """
        partition = self._partition
        requested = offset
        while True:
            version = partition.log.segments_version
            now = partition.snapshot()
            file_position = self._remembered(offset, version) or self._look_up(offset, now)
            try:
                file = self._files.get(partition.directory, file_position.base, version)
            except FileNotFoundError:
                file = None
            if file is None or file.inode != file_position.inode:
                self._positions.clear()
                self._files.forget(partition.directory, file_position.base)  # replaced since it was opened
                self._check_in_range(requested)
                if (
                    file is None
                    and partition.log.segments_version == version
                    and not self._is_there(file_position.base)
                ):
                    raise CorruptBatch(
                        f"{partition.directory}: the segment {file_position.base} is gone", path=partition.directory
                    )
                continue
            if file_position.base == now.active_base and partition.log.segments_version != version:
                continue  # rolled since `now`: the file may have been replaced before it was opened
            if file_position.base == now.active_base or file_position.position < file.size:
                return self._range(file, file_position, max_bytes, limit, now, at_least_one, may_block=True)
            # No later batch is left in this segment: it was compacted, or has been rolled. Go on in the next one.
            self._positions.pop(offset, None)
            following = self._base_after(file_position.base, now)
            if following > offset and partition.contiguous and not partition.look_for_gaps():
                raise cleaner_checkpoint.gap(partition.directory, offset, following)
            offset = max(offset, following)
            if offset >= limit:
                return None

    def find_now(self, offset: int, max_bytes: int, limit: int, *, at_least_one: bool) -> Range | None:
        """Like `find`, but raise WouldBlock rather than wait for a disk."""
        version = self._partition.log.segments_version
        now = self._partition.snapshot()
        file_position = self._remembered(offset, version)
        file = (
            self._files.get_open(self._partition.directory, file_position.base, version)
            if file_position is not None
            else None
        )
        if file_position is None or file is None or file.inode != file_position.inode:
            raise WouldBlock
        if file_position.base != now.active_base and file_position.position >= file.size:
            raise WouldBlock
        return self._range(file, file_position, max_bytes, limit, now, at_least_one, may_block=False)

    def is_followed(self, found: Range, limit: int, *, may_block: bool = True) -> bool:
        """Return whether a range ends with its segment and later segments have more batches below `limit`."""
        now = self._partition.snapshot()
        if found.next_offset >= 0 or limit > now.active_base:
            return found.next_offset < 0
        if not may_block:
            raise WouldBlock
        return self._base_after(found.base, now) < limit

    def aborted_in(self, offset: int, found: Range, *, may_block: bool = True) -> list[tuple[int, int]]:
        """Return producer id and first offset of each aborted transaction with records in a range, from `offset` on."""
        with _os.TimedLock(self._aborted_mutex, None if may_block else 0) as is_held:
            if may_block:
                self._aborted.refresh(found.base)
            elif not is_held or not self._aborted.is_fresh(found.base):
                raise WouldBlock
            if not self._aborted:
                return []
            end = found.next_offset
            if end < 0:
                if not may_block:
                    raise WouldBlock
                end = self._base_after(found.base, self._partition.snapshot())
            return self._aborted.within(offset, end)

    def _is_there(self, base: int) -> bool:
        return os.path.exists(segment.path_of(self._partition.directory, base))

    def _base_after(self, base: int, now: Snapshot) -> int:
        """Return the base offset of the next segment."""
        return min((each for each in self._partition.segments() if each > base), default=now.active_base)

    def _check_in_range(self, offset: int) -> None:
        now = self._partition.snapshot()
        if not now.log_start <= offset < now.next_offset:
            raise self._partition.out_of_range(offset, now)

    def _remembered(self, offset: int, version: int) -> _FilePosition | None:
        file_position = self._positions.get(offset)
        return file_position if file_position is not None and file_position.version == version else None

    def _remember(self, offset: int, file_position: _FilePosition) -> None:
        self._positions.pop(offset, None)
        self._positions[offset] = file_position
        if len(self._positions) > _MAX_POSITIONS:
            self._positions.popitem(last=False)

    def _look_up(self, offset: int, now: Snapshot) -> _FilePosition:
        with Reader(self._partition, offset, committed=False) as reader:
            file_position = _FilePosition(*reader.file_position(now))
        self._remember(offset, file_position)
        return file_position

    def _range(
        self,
        file: SegmentFile,
        file_position: _FilePosition,
        max_bytes: int,
        limit: int,
        now: Snapshot,
        at_least_one: bool,
        *,
        may_block: bool,
    ) -> Range | None:
        """Return the range from `file_position` on, cut at the limits."""
        active = file_position.base == now.active_base
        end, following = (now.position, now.next_offset) if active else (file.size, -1)
        if limit < now.next_offset or end - file_position.position > max_bytes:
            index = self._index(file, file_position.base, now.position if active else None, may_block)
            start = file_position.position
            cut = _head.cut_range(
                file.fd,
                index.fd if index.is_valid else -1,
                end,
                start,
                end,
                start + max_bytes,
                limit,
                at_least_one=at_least_one,
                may_block=may_block,
                max_headers=-1 if may_block else _MAX_HEADERS,
            )
            if cut is None:
                raise WouldBlock
            if cut[1] == _NO_BATCH:
                raise self._corrupt(file, file_position.base, cut[0])
            if cut[0] < end:
                end, following = cut
        if end <= file_position.position:
            return None
        if following >= 0:
            self._remember(
                following, _FilePosition(file_position.base, end, file_position.inode, file_position.version)
            )
        return Range(file, file_position.position, end - file_position.position, file_position.base, following)

    def _index(self, file: SegmentFile, base: int, active_end: int | None, may_block: bool) -> Index:
        """Return the index of an open segment. `active_end`: see Index, `end_position`."""
        index = file.index
        if index is not None:
            if not may_block and not CAN_TELL:
                raise WouldBlock
            return index
        if not may_block:
            raise WouldBlock
        index = Index(self._partition.directory, base, end_position=active_end, log_fd=file.fd)
        if index.is_valid:
            file.index = index
        return index

    def _corrupt(self, file: SegmentFile, base: int, position: int) -> CorruptBatch:
        """Return the error for the batch at a byte of a segment."""
        try:
            batch_header.parse(_os.pread(file.fd, batch_header.HEADER_SIZE, position))
        except CorruptBatch as error:
            return error
        path = segment.path_of(self._partition.directory, base)
        return CorruptBatch(f"{path}: byte {position}: changed while it was read", path=path, position=position)
