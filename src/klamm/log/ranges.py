"""Where records lie in the files, for those who send them on as they are: no byte of them is looked at.

A range is whole batches of one segment, below the commit. Who reads on asks next for the offset after the range, so
that place is remembered; others are looked up as a reader does, by the index and a walk over headers. Places are
forgotten when the segments change, and believed only in the very file that they were found in.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from klamm.batch import header as batch_header
from klamm.disk import _os
from klamm.errors import CorruptBatch
from klamm.log import segment
from klamm.log.aborted_spans import AbortedSpans
from klamm.log.index import Index
from klamm.log.reader import Reader

if TYPE_CHECKING:
    from klamm.log._head import Snapshot
    from klamm.log.partition import Partition

__all__ = ["Range", "Ranges", "SegmentFile", "SegmentFiles"]

_MOST_PLACES = 64


class SegmentFile:
    """An open segment; closed when nobody has a range of it any more."""

    __slots__ = ("fd", "inode", "version")

    def __init__(self, path: str, version: int) -> None:
        self.fd = -1
        self.version = version
        """Of the partition's segments, before it was opened."""
        self.fd = _os.open_file(path, os.O_RDONLY)
        self.inode = os.fstat(self.fd).st_ino

    @property
    def size(self) -> int:
        """As it is now: what was opened while somebody appended to it has grown."""
        return os.fstat(self.fd).st_size

    @property
    def is_unlinked(self) -> bool:
        return os.fstat(self.fd).st_nlink == 0

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


class SegmentFiles:
    """Open segments of any number of partitions, the latest used."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._files: OrderedDict[tuple[str, int], SegmentFile] = OrderedDict()

    def __len__(self) -> int:
        return len(self._files)

    def get(self, directory: str, base: int, version: int) -> SegmentFile:
        key = directory, base
        found = self._files.get(key)
        if found is not None and found.version == version:
            self._files.move_to_end(key)
            return found
        found = self._files[key] = SegmentFile(segment.path_of(directory, base), version)
        self._files.move_to_end(key)
        if len(self._files) > self._most:
            self._files.popitem(last=False)
        return found

    def forget(self, directory: str, base: int) -> None:
        """Open it anew, when it is next wanted."""
        self._files.pop((directory, base), None)

    def forget_unlinked(self) -> None:
        """Let go of what was deleted or replaced: the disk has it as long as it is open."""
        for key in [key for key, file in self._files.items() if file.is_unlinked]:
            del self._files[key]


class Range:
    """Bytes of a file: whole batches of the segment `base`. Its length is how many are left.

    `next_offset` is the offset after them; -1: they go up to the end of a closed segment.
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
        """So many were sent."""
        self.position += count
        self.size -= count

    def read(self) -> bytes:
        return _os.pread(self.file.fd, self.size, self.position)


class _FilePosition(NamedTuple):
    base: int
    position: int
    inode: int


class Ranges:
    """Of one partition. Not for several threads at a time."""

    def __init__(self, partition: Partition, files: SegmentFiles) -> None:
        self._partition = partition
        self._files = files
        self._version = -1
        self._places: dict[int, _FilePosition] = {}
        self._aborted = AbortedSpans(partition)

    def find(self, offset: int, max_bytes: int, limit: int, now: Snapshot, *, at_least_one: bool) -> Range | None:
        """Batches from the one that holds `offset` on, before the offset `limit`: up to `max_bytes` of them.

        `at_least_one`: the first batch, however large. None if there is nothing to send. `now` is a commit that has
        `offset` and `limit`. CorruptBatch if the files are not as they should be.
        """
        partition = self._partition
        asked = offset
        while True:
            version = partition.log.segments_version
            if version != self._version:
                self._places.clear()
                self._version = version
            place = self._places.get(offset) or self._look_up(offset, now)
            try:
                file = self._files.get(partition.directory, place.base, version)
            except FileNotFoundError:
                file = None
            if file is None or file.inode != place.inode:
                self._places.clear()
                self._files.forget(partition.directory, place.base)  # replaced since it was opened
                now = self._again(asked)
                if file is None and partition.log.segments_version == version and not self._is_there(place.base):
                    raise CorruptBatch(
                        f"{partition.directory}: the segment {place.base} is gone", path=partition.directory
                    )
                continue
            active = place.base == now.active_base
            end, following = (now.position, now.next_offset) if active else (file.size, -1)
            if active or place.position < end:
                break
            # Nothing is left of what came next in there: cleaned, or it has rolled since. Go on in the next one.
            self._places.pop(offset, None)
            following = self._base_after(place.base, now)
            if following > offset and partition.contiguous and not partition.look_for_gaps():
                raise CorruptBatch(
                    f"{partition.directory}: offsets {offset} to {following - 1} are missing", path=partition.directory
                )
            offset = max(offset, following)
            if offset >= limit:
                return None
        if limit < now.next_offset:
            end, following = self._end_before(limit, place, now, end, following)
        if end - place.position > max_bytes:
            upto = now.position if active else None
            end, following = self._cut(file, place, end, max_bytes, at_least_one, upto)
        if end <= place.position:
            return None
        if following >= 0:
            self._remember(following, _FilePosition(place.base, end, place.inode))
        return Range(file, place.position, end - place.position, place.base, following)

    def is_followed(self, found: Range, limit: int, now: Snapshot) -> bool:
        """Whether a range ends with its segment, and more batches before `limit` lie in later segments."""
        return found.next_offset < 0 and (limit > now.active_base or self._base_after(found.base, now) < limit)

    def aborted_in(self, offset: int, found: Range, now: Snapshot) -> list[tuple[int, int]]:
        """Producer id and first offset of each aborted transaction with records in a range, from `offset` on."""
        self._aborted.refresh(found.base)
        if not self._aborted:
            return []
        end = found.next_offset if found.next_offset >= 0 else self._base_after(found.base, now)
        return self._aborted.within(offset, end)

    def _is_there(self, base: int) -> bool:
        return os.path.exists(segment.path_of(self._partition.directory, base))

    def _base_after(self, base: int, now: Snapshot) -> int:
        """Of the next segment."""
        return min((each for each in self._partition.segments() if each > base), default=now.active_base)

    def _again(self, offset: int) -> Snapshot:
        now = self._partition.snapshot()
        if not now.log_start <= offset < now.next_offset:
            raise self._partition.out_of_range(offset, now)
        return now

    def _remember(self, offset: int, place: _FilePosition) -> None:
        self._places.pop(offset, None)
        self._places[offset] = place
        if len(self._places) > _MOST_PLACES:
            del self._places[next(iter(self._places))]

    def _look_up(self, offset: int, now: Snapshot) -> _FilePosition:
        with Reader(self._partition, offset, committed=False) as reader:
            place = _FilePosition(*reader.place(now))
        self._remember(offset, place)
        return place

    def _end_before(self, limit: int, place: _FilePosition, now: Snapshot, end: int, following: int) -> tuple[int, int]:
        """Where the batch of offset `limit` begins, if that is in the same segment."""
        found = self._places.get(limit) or self._look_up(limit, now)
        if found.base == place.base and found.inode == place.inode:
            return found.position, limit
        return end, following

    def _cut(
        self,
        file: SegmentFile,
        place: _FilePosition,
        end: int,
        max_bytes: int,
        at_least_one: bool,
        active_end: int | None,
    ) -> tuple[int, int]:
        """Return a boundary of batches within `max_bytes`, and the offset there. `active_end`: see Index, `upto`."""
        upto = place.position + max_bytes
        position, following = place.position, -1
        with Index(self._partition.directory, place.base, upto=active_end, log_fd=file.fd) as index:
            entry, _ = index.before_position(upto)
        if position < entry.position <= upto and self._begins_at(file, entry.position, entry.offset):
            position, following = entry.position, entry.offset
        while position < end:
            header = batch_header.parse(_os.pread(file.fd, batch_header.HEADER_SIZE, position))
            first = position == place.position and at_least_one
            if position + header.size > upto and not first:
                break
            position, following = position + header.size, header.next_offset
            if first and position >= upto:
                break
        return min(position, end), following

    def _begins_at(self, file: SegmentFile, position: int, offset: int) -> bool:
        """An index is a hint, and this is its check."""
        try:
            return batch_header.parse(_os.pread(file.fd, batch_header.HEADER_SIZE, position)).base_offset == offset
        except CorruptBatch:
            return False
