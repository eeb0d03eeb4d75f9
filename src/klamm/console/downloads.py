"""Exports of a topic: written to a temporary file first, so that what cannot be written is an error and not a torso.

A file has MOST_BYTES at most and is written within MOST_S; PLACES are written at a time. More than that is for
`klamm export`, which writes where the user says.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING

from klamm.api.export import export_parquet, export_rows, export_some_parquet
from klamm.console import text
from klamm.console.context import Console, Visit
from klamm.console.errors import RequestError
from klamm.console.pages.topic import chosen_partitions, filter_of
from klamm.disk._os import TimedLock
from klamm.where import Where, range_in

if TYPE_CHECKING:
    from klamm.types import TopicPartition

__all__ = ["TYPES", "chunks", "export_topic"]

TYPES = {"jsonl": "application/x-ndjson", "csv": "text/csv; charset=utf-8", "parquet": "application/vnd.apache.parquet"}
MOST_BYTES = 1 << 30
MOST_S = 60.0
PLACES = threading.BoundedSemaphore(2)
_WAIT_S = 2.0
_IN_MEMORY = 4 << 20
_CHUNK = 256 << 10
_LATEST = Where("latest")


def export_topic(console: Console, visit: Visit) -> IO[bytes]:
    """Return a file with the records from the start on that the filter takes. RequestError if that is too much."""
    with TimedLock(PLACES, _WAIT_S) as has_place:
        if not has_place:
            raise RequestError(503, "other exports are being written", "ask again when they are done")
        return _export(console, visit)


def _export(console: Console, visit: Visit) -> IO[bytes]:
    form = visit.one("format", "jsonl")
    if form not in TYPES:
        raise RequestError(400, f"format: {form!r} is invalid", f"expected {', '.join(TYPES)}")
    start = Where(visit.one("from") or "earliest", name="from")
    partitions = chosen_partitions(console, visit)
    named: dict[TopicPartition, range] = {
        name: range_in(log, start, _LATEST, clamp=True) for name, log in partitions.items()
    }
    ranges = {name.partition: offsets for name, offsets in named.items()}
    wanted = filter_of(visit)
    topic = visit.params["topic"]
    keep, show = None if wanted.takes_all else wanted, console.mask or None
    file: IO[bytes] = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - the response closes it
    deadline = time.monotonic() + MOST_S
    line = console.command("export", topic, "--to", f"{topic}.{form}")

    def check(done: int, total: int | None) -> None:
        if console.is_ending.is_set():
            raise RequestError(503, "the console ends")
        if file.tell() > MOST_BYTES:
            raise RequestError(413, f"the export has more than {text.size(MOST_BYTES)}", f"filter it, or run {line}")
        if time.monotonic() > deadline:
            raise RequestError(413, f"the export takes longer than {MOST_S:g} s", f"filter it, or run {line}")

    try:
        if form == "parquet":
            if keep is None and show is None and not visit.one("partition"):
                export_parquet(console.store, topic, ranges, file, on_progress=check)
            else:
                export_some_parquet(console.store, topic, ranges, file, keep=keep, show=show, on_progress=check)
        else:
            export_rows(
                console.store,
                topic,
                ranges,
                form,
                file,
                in_base64=visit.one("base64") == "1",
                keep=keep,
                show=show,
                on_progress=check,
            )
    except BaseException:
        file.close()
        raise
    file.seek(0)
    return file


def chunks(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the file, and close it."""
    with file:
        while data := file.read(_CHUNK):
            yield data
