"""The checkpoint of a streaming query, where it lies on a local file system: what Spark planned, read and synced.

    metadata       {"id": "<query id>"}
    offsets/<N>    a version; watermark, time and settings; then a line for each source: where batch N ends there
    commits/<N>    batch N is done
    .<name>.crc    Hadoop's checksum of a file

Spark writes a plan before it runs the batch, and reads it again if the batch was not done: a batch that is done again
has the same plan. But Spark renames and never syncs. After a power cut the plan may be gone while the batch, which we
have synced, is in the log; then Spark plans another batch of the same number.

  CKP1  A plan, and the query's id, are on disk before the batch is committed (`read_plan` syncs them).
  CKP2  A fingerprint is of what decides which records a batch reads, and of nothing else: not of the time of the plan,
        so that a plan that was lost and made again alike counts as the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
import uuid
from collections.abc import Iterable
from typing import Any, NamedTuple

from klamm.disk import files
from klamm.errors import NotAStore
from klamm.spark.batches import MAX_ENDS
from klamm.spark.offsets import OURS, StreamOffsets, TopicIdPartition

__all__ = [
    "PREAMBLE",
    "BatchPlan",
    "check_id",
    "committed",
    "ends_of",
    "find_query",
    "is_here",
    "line_of",
    "local_path",
    "query_of",
    "read_plan",
    "sync_plan",
    "watermark_ms",
    "write_commit",
    "write_id",
    "write_line",
    "write_plan",
]

PREAMBLE = 2
"""Lines before those of the sources."""
_LOCAL = re.compile(r"file:(?://(?=/))?(/.*)", re.DOTALL)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_synced: set[tuple[str, int]] = set()  # checkpoints whose id and directories are on disk: path, and when it was made


class BatchPlan(NamedTuple):
    """The plan of a micro-batch: what it reads."""

    fingerprint: str
    ends: str
    """For startingOffsets; empty if it is too long."""
    path: str


def local_path(location: str) -> str | None:
    """Return the directory that an option checkpointLocation names; None if it is not on a local file system."""
    found = _LOCAL.fullmatch(location)
    if found is not None:
        return os.path.abspath(found[1])
    return None if _SCHEME.match(location) else os.path.abspath(location)


def check_id(location: str) -> None:
    """Raise NotAStore if the file with the query's id is there and broken: what Spark says of it names no file."""
    checkpoint = local_path(location)
    path = f"{checkpoint}/metadata"
    if checkpoint is not None and os.path.exists(path) and query_of(checkpoint) is None:
        raise NotAStore(
            f"{path}: damaged: it does not name a query",
            hint='put it back, as {"id": "<the id in the logs of Spark>"}, or give the query a new checkpointLocation',
        )


def find_query(location: str | None) -> str | None:
    """Return the id of the query whose checkpoint is at `location`; None if this machine sees no such files."""
    checkpoint = None if location is None else local_path(location)
    return None if checkpoint is None else query_of(checkpoint)


def is_here(location: str | None) -> bool:
    """Return whether there is a checkpoint at `location` that this machine sees as files."""
    return find_query(location) is not None


def read_plan(location: str | None, query: str, number: int) -> BatchPlan | None:
    """Return the plan of a batch of `query`, synced; None if the checkpoint is not here.

    A path without a scheme may lie on a cluster's file system; so the checkpoint has to know the query.
    """
    checkpoint = None if location is None else local_path(location)
    if checkpoint is None or query_of(checkpoint) != query:
        return None
    path = f"{checkpoint}/offsets/{number}"
    try:
        sync_plan(checkpoint, number)
        lines = files.read(path).decode().splitlines()[PREAMBLE:]
    except FileNotFoundError:
        raise NotAStore(
            f"{path}: missing: Spark's plan of this batch was removed while it ran",
            hint="nothing was written; put it back, or give the query a new checkpointLocation",
        ) from None
    except UnicodeDecodeError:
        lines = []
    if not lines:
        raise NotAStore(
            f"{path}: damaged: it names no source",
            hint="nothing was written; put it back, or give the query a new checkpointLocation",
        )
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    return BatchPlan(f"offsets {digest}", _ends(lines), path)


def committed(checkpoint: str) -> int | None:
    """Return the number of the last micro-batch that is done; None if there is none."""
    try:
        numbers = [files.number_in_name(name) for name in os.listdir(f"{checkpoint}/commits")]
    except FileNotFoundError:
        return None
    return max((number for number in numbers if number is not None), default=None)


def ends_of(checkpoint: str, batch: int) -> list[tuple[TopicIdPartition, int]]:
    """Return where a micro-batch that Spark has planned ends: partitions of ours, with offsets."""
    found: list[tuple[TopicIdPartition, int]] = []
    for line in files.read(f"{checkpoint}/offsets/{batch}").decode().splitlines()[PREAMBLE:]:
        data = json.loads(line)
        if isinstance(data, dict) and OURS in data:
            found += StreamOffsets.from_json(data)
    return found


def watermark_ms(checkpoint: str, batch: int) -> int:
    """Return the watermark that a micro-batch went by, since 1970; 0 before the first."""
    if batch < 0:
        return 0
    about = json.loads(files.read(f"{checkpoint}/offsets/{batch}").decode().splitlines()[PREAMBLE - 1])
    return int(about["batchWatermarkMs"])


def sync_plan(checkpoint: str, number: int) -> None:
    """Sync Spark's plan of a micro-batch, name and bytes, before anything of the batch is committed.

    Without it, a power cut could take the plan, and Spark plan another batch of the same number.
    """
    offsets = f"{checkpoint}/offsets"
    files.sync_file(f"{offsets}/{number}")
    _sync_checksum(offsets, str(number))
    files.sync_directory(offsets)
    metadata = f"{checkpoint}/metadata"
    made = (checkpoint, os.stat(metadata).st_ctime_ns) if os.path.exists(metadata) else None
    if made is None or made not in _synced:
        if made is not None:
            files.sync_file(metadata)
            _sync_checksum(checkpoint, "metadata")
        files.sync_directory(checkpoint)
        files.sync_ancestors(checkpoint)
        if made is not None:
            _synced.add(made)


def write_plan(checkpoint: str, number: int, end: StreamOffsets) -> None:
    """Write the plan of a micro-batch with one source, durably, as Spark does; the query's id, too, if there is none.

    Spark takes its own defaults for settings that a plan does not have. It reads a file that has no checksum.
    """
    if query_of(checkpoint) is None:
        write_id(checkpoint, str(uuid.uuid4()))
    write_line(checkpoint, number, json.dumps(end.to_json()))


def write_id(checkpoint: str, query: str) -> None:
    """Write the id of the query that the checkpoint is of."""
    files.make_directories(checkpoint)
    files.replace(f"{checkpoint}/metadata", json.dumps({"id": query}).encode())


def write_line(checkpoint: str, number: int, line: str) -> None:
    """Write a plan whose line of the one source is `line`."""
    files.make_directories(f"{checkpoint}/offsets")
    about = {"batchWatermarkMs": 0, "batchTimestampMs": time.time_ns() // 1_000_000, "conf": {}}
    _write(f"{checkpoint}/offsets", number, ("v1", json.dumps(about, separators=(",", ":")), line))
    sync_plan(checkpoint, number)


def line_of(checkpoint: str, number: int) -> str:
    """Return what a plan with one source says of it."""
    return files.read(f"{checkpoint}/offsets/{number}").decode().splitlines()[PREAMBLE]


def write_commit(checkpoint: str, number: int) -> None:
    """Record that a micro-batch is done, as Spark does."""
    files.make_directories(f"{checkpoint}/commits")
    _write(f"{checkpoint}/commits", number, ("v1", '{"nextBatchWatermarkMs":0}'))


def _write(directory: str, number: int, lines: Iterable[str]) -> None:
    files.remove(f"{directory}/.{number}.crc")  # of a file that a killed run has not renamed
    files.replace(f"{directory}/{number}", "\n".join(lines).encode())


def _sync_checksum(directory: str, name: str) -> None:
    path = f"{directory}/.{name}.crc"
    if os.path.exists(path):
        files.sync_file(path)


def query_of(checkpoint: str) -> str | None:
    """Return the id of the query that the checkpoint is of; None if there is none."""
    try:
        found = json.loads(files.read(f"{checkpoint}/metadata"))
        return str(found["id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _ends(lines: list[str]) -> str:
    """Return the ends of the sources as startingOffsets has them, one after the other."""
    text = " and ".join(map(_bare, lines))
    return text if len(text) <= MAX_ENDS else ""


def _bare(line: str) -> str:
    """Return the offsets of one source without our own entry."""
    try:
        found: Any = json.loads(line)
    except ValueError:
        return line
    if isinstance(found, dict) and OURS in found:
        return json.dumps({topic: offsets for topic, offsets in found.items() if topic != OURS})
    return line
