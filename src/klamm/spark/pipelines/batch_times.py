"""Micro-batches that Spark has done, from its checkpoint alone: how long each took, and how many records it read.

How long a micro-batch took is between the two files that Spark writes for it: offsets/N when it begins, and commits/N
when it is done. How many records it read is from where offsets/N-1 says that the batch before it ended, or from where
the first one says that it begins, to where offsets/N says that it ends.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from klamm.spark.offsets import OURS
from klamm.spark.pipelines.folder_files import OURS as OWN_FOLDER

__all__ = ["batch_times", "records_per_s"]

_BATCHES = 200
_RECENT = 20  # micro-batches that the rate is of
_PREAMBLE = 2  # lines of a plan before those of its sources


def batch_times(directory: str) -> list[dict[str, Any]]:
    """Return the last micro-batches that are done, oldest first.

    Each has its number, when it was done, how long it took, and how many offsets it went through (None: not known).
    """
    checkpoint = Path(directory) / OWN_FOLDER / "checkpoint"
    try:
        numbers = sorted(int(name) for name in os.listdir(checkpoint / "commits") if name.isdigit())[-_BATCHES:]
    except OSError:
        return []
    rows = []
    before, ends = -1, dict[tuple[str, str], int]()
    for number in numbers:
        plan = checkpoint / "offsets" / str(number)
        try:
            begun = os.stat(plan).st_mtime_ns
            done = os.stat(checkpoint / "commits" / str(number)).st_mtime_ns
            lines = plan.read_text(errors="replace").splitlines()[_PREAMBLE:]
        except OSError:  # Spark removes old ones
            continue
        begins, now = ends if number == before + 1 and ends else _offsets(lines, is_begin=True), _offsets(lines)
        records = sum(max(0, now[name] - begins[name]) for name in now.keys() & begins.keys()) if begins else None
        took_ms = max(0, done - begun) // 1_000_000
        rows.append({"batch": number, "done_ms": done // 1_000_000, "took_ms": took_ms, "records": records})
        before, ends = number, now
    return rows


def _offsets(lines: list[str], *, is_begin: bool = False) -> dict[tuple[str, str], int]:
    """Return where a micro-batch ends, or begins, which its first one alone says; by topic and partition."""
    offsets: dict[tuple[str, str], int] = {}
    for line in lines:
        try:
            source = json.loads(line)
        except (ValueError, RecursionError):
            continue
        ours = source.get(OURS) if isinstance(source, dict) else None
        if not isinstance(ours, dict):
            continue
        topics = ours.get("from") if is_begin else source
        for topic, partitions in topics.items() if isinstance(topics, dict) else ():
            if topic != OURS and isinstance(partitions, dict):
                offsets |= {(topic, number): end for number, end in partitions.items() if isinstance(end, int)}
    return offsets


def records_per_s(batches: list[dict[str, Any]]) -> float | None:
    """Return how many records per second the latest micro-batches read, while they ran; None if that is not known."""
    known = [batch for batch in batches if batch["records"] is not None][-_RECENT:]
    took_ms = sum(batch["took_ms"] for batch in known)
    return round(sum(batch["records"] for batch in known) * 1000 / took_ms, 1) if took_ms else None
