"""A staged file: batches that a task has sealed, for the driver to append. Where it lies: staged_files.py.

    frame    topic, partition, size of the batch, CRC-32C of these three      16 bytes, little-endian
             the batch, as batch/header.py has it, without producer and offset
    frames follow one upon the other, in the order in which they are to be appended; `topic` is a number in the task's
    list of topics, which goes to the driver with the task's message

Nothing in it counts before the driver has appended it, and the driver checks every byte. So a file that is cut, or that
another attempt has written, can make a commit fail, but not let wrong records into the log.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from klamm.batch import crc32c
from klamm.batch.header import HEADER_SIZE, parse
from klamm.disk import _os, files
from klamm.errors import CorruptBatch, StoreError
from klamm.spark.internals import MicroBatch
from klamm.spark.server.attempt import TaskTransaction
from klamm.store import scratch
from klamm.types import TopicId

__all__ = ["Frame", "StagedTopic", "StagingFile", "TaskCommit", "frames"]

_FRAME = struct.Struct("<III")
_CRC = struct.Struct("<I")
_HEAD_SIZE = _FRAME.size + _CRC.size
_BUFFER_BYTES = 1 << 20
_CRC_COVERS_FROM = 21  # of a batch: its attributes


@dataclass(frozen=True)
class StagedTopic:
    """A topic that a task has rows for, and in which partitions."""

    name: str
    id: TopicId
    partitions: tuple[int, ...]


@dataclass(frozen=True)
class TaskCommit(WriterCommitMessage):
    """The message of a task to the driver: what it has staged."""

    writer: str
    batch: int
    task: int
    file: str | None
    """Its name; None: the task had no rows."""
    size: int = 0
    rows: int = 0
    topics: tuple[StagedTopic, ...] = ()
    micro_batch: MicroBatch | None = None
    """What the job belongs to, if a streaming query runs it."""
    transaction: TaskTransaction | None = None
    """What it has written to a server, for the driver to decide; None: nothing, or to files."""
    digest: int | None = None
    """A sum over the records, whatever their order; None where none is needed."""


@dataclass(frozen=True)
class Frame:
    topic: int
    partition: int
    batch: bytearray
    count: int


class StagingFile:
    """One that is being written. Until it is finished, nothing of its batch is swept (store/scratch.py)."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._buffer = bytearray()
        self.size = 0
        try:
            self._fd = _os.open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        except FileNotFoundError:
            raise StoreError(
                f"{os.path.dirname(path)}: is not there for this task",
                hint="a worker has to see the store's files at the same path as the driver; else write to klamm serve",
            ) from None
        scratch.hold(self._fd)

    def add(self, topic: int, partition: int, batch: memoryview) -> None:
        head = _FRAME.pack(topic, partition, len(batch))
        self._buffer += head + _CRC.pack(crc32c(head))
        self._buffer += batch
        if len(self._buffer) >= _BUFFER_BYTES:
            self._flush()

    def _flush(self) -> None:
        try:
            _os.pwrite(self._fd, self._buffer, self.size)
        except OSError as error:
            raise files.disk_full(error, self._path) from error
        self.size += len(self._buffer)
        self._buffer = bytearray()

    def finish(self) -> None:
        """Complete the file. It is not synced: it is of use to a driver that lives, and CRCs say if it is damaged."""
        try:
            self._flush()
        finally:
            self._close()

    def discard(self) -> None:
        """Discard the staged file of a task that has failed."""
        self._close()
        files.remove(self._path)

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def frames(path: str, size: int) -> Iterator[Frame]:
    """Yield what was staged, one batch after the other; no more than one is in memory."""
    try:
        fd = _os.open_file(path, os.O_RDONLY)
    except FileNotFoundError:
        raise StoreError(
            f"{path}: missing: a task has staged it",
            hint="the batch is done again with the next start; check that the driver sees the files of its tasks",
        ) from None
    with os.fdopen(fd, "rb", _BUFFER_BYTES) as file:
        position = 0
        while position < size:
            head = file.read(_HEAD_SIZE)
            if len(head) < _HEAD_SIZE or _CRC.unpack_from(head, _FRAME.size)[0] != crc32c(head[: _FRAME.size]):
                raise _damaged(path, position, "no frame starts here")
            topic, partition, length = _FRAME.unpack_from(head)
            batch = bytearray(file.read(length))
            if len(batch) < length or length < HEADER_SIZE:
                raise _damaged(path, position, "the file is too short")
            header = parse(batch)
            if header.size != length or header.crc != crc32c(memoryview(batch)[_CRC_COVERS_FROM:]):
                raise _damaged(path, position, "the CRC of the batch is wrong")
            yield Frame(topic, partition, batch, header.record_count)
            position += _HEAD_SIZE + length


def _damaged(path: str, position: int, what: str) -> CorruptBatch:
    return CorruptBatch(
        f"{path}: byte {position}: {what}: what a task has staged is damaged", path=path, position=position
    )
