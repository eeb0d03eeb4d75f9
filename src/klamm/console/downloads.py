"""Exports of a topic: written to a temporary file first, so that what cannot be written is an error and not a torso."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING

from klamm.api.export import export_parquet, export_rows, export_some_parquet
from klamm.console.context import Console, Visit
from klamm.console.errors import RequestError
from klamm.console.pages.topic import chosen_partitions, filter_of
from klamm.where import Where, range_in

if TYPE_CHECKING:
    from klamm.types import TopicPartition

__all__ = ["TYPES", "chunks", "export_topic"]

TYPES = {"jsonl": "application/x-ndjson", "csv": "text/csv; charset=utf-8", "parquet": "application/vnd.apache.parquet"}
_IN_MEMORY = 4 << 20
_CHUNK = 256 << 10
_LATEST = Where("latest")


def export_topic(console: Console, visit: Visit) -> IO[bytes]:
    """Return a file with the records from the start on that the filter takes."""
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
    try:
        if form == "parquet":
            if keep is None and show is None and not visit.one("partition"):
                export_parquet(console.store, topic, ranges, file, on_progress=_ignore)
            else:
                export_some_parquet(console.store, topic, ranges, file, keep=keep, show=show)
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
                on_progress=_ignore,
            )
    except BaseException:
        file.close()
        raise
    file.seek(0)
    return file


def _ignore(done: int, total: int | None) -> None:
    pass


def chunks(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the file, and close it."""
    with file:
        while data := file.read(_CHUNK):
            yield data
