"""`klamm inspect`: a segment file, batch by batch, as it lies on disk. Needs no store, and changes nothing."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from klamm.cli.codes import DAMAGED
from klamm.cli.output import Output, OutputOption, moment
from klamm.cli.records import text
from klamm.client.plain import as_plain
from klamm.errors import CorruptBatch, InvalidSetting

__all__ = ["inspect"]

_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_ROWS = 1000  # that are shown as one table


def inspect(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A segment: topics/orders-…/0/00000000000000000000.log")],
    records: Annotated[bool, typer.Option("--records", help="Print the records of each batch, too.")] = False,
    offset: Annotated[
        int, typer.Option("--from", metavar="OFFSET", help="Only batches from this offset on.", min=0)
    ] = 0,
    limit: Annotated[int | None, typer.Option("-n", "--limit", metavar="N", help="At most N batches.", min=1)] = None,
    *,
    out: OutputOption,
) -> None:
    """Decode a segment file, batch by batch. Exit code 3: damage was found."""
    from klamm.store.damage import Damage, batches

    name = re.fullmatch(r"(\d{20})\.log.*", file.name)
    if name is None:
        raise InvalidSetting(f"{file}: is not named like a segment", hint="expected 00000000000000000000.log")
    if file.is_dir():
        raise InvalidSetting(f"{file}: is a directory", hint="expected a segment in it: 00000000000000000000.log")
    rows: list[dict[str, Any]] = []
    shown = 0
    damaged = False
    size = file.stat().st_size
    for each in batches(str(file), int(name[1]), size, contiguous=False):
        if limit is not None and shown >= limit:
            break
        if isinstance(each, Damage) and each.stop == size and _is_zero(file, each.position):
            rows.append(_unwritten(out, each.position, size))
        elif isinstance(each, Damage):
            damaged = True
            rows.append(_damage(out, each.position, f"DAMAGED up to byte {each.stop}: {each.message}"))
        elif each.header.next_offset > offset:
            with file.open("rb") as source:
                source.seek(each.position)
                data = source.read(each.header.size)
            rows.append(_batch(out, each.position, each.header, data))
            shown += 1
            if records and not each.header.is_control:
                try:
                    rows += _records(out, each.position, data)
                except CorruptBatch as error:
                    damaged = True
                    rows.append(_damage(out, each.position, f"DAMAGED: {error.message}"))
        if len(rows) >= _ROWS:
            out.print_rows(rows)
            rows = []
    if rows or not (shown or damaged):
        out.print_rows(rows, empty="no batches")
    if damaged:
        raise typer.Exit(DAMAGED)


def _is_zero(file: Path, start: int) -> bool:
    from klamm.log import segment

    with file.open("rb") as source:
        return segment.is_zero(source.fileno(), start, source.seek(0, os.SEEK_END))


def _unwritten(out: Output, position: int, size: int) -> dict[str, Any]:
    """Return the blocks that were allocated ahead of the segment being written."""
    what = f"{size - position} bytes that are allocated and not written yet"
    return _row(position, what=what) if out.is_table else {"position": position, "unwritten": size - position}


def _damage(out: Output, position: int, what: str) -> dict[str, Any]:
    return _row(position, what=what) if out.is_table else {"position": position, "damaged": what}


def _row(position: int, **more: Any) -> dict[str, Any]:
    """Return a row of the table, which has the same columns for all."""
    return {"position": position, **dict.fromkeys(("offsets", "records", "bytes", "time", "what")), **more}


def _batch(out: Output, position: int, header: Any, data: bytes) -> dict[str, Any]:
    from klamm.batch.markers import commits

    kind = None if not header.is_control else "commit" if commits(data) else "abort"
    codec = _CODECS[header.codec] if header.codec < len(_CODECS) else str(header.codec)
    if not out.is_table:
        return {
            "position": position,
            "base_offset": header.base_offset,
            "next_offset": header.next_offset,
            "records": header.record_count,
            "bytes": header.size,
            "codec": codec,
            "base_timestamp": header.base_timestamp,
            "max_timestamp": header.max_timestamp,
            "log_append_time": header.log_append_time,
            "producer_id": header.producer_id,
            "producer_epoch": header.producer_epoch,
            "base_sequence": header.base_sequence,
            "leader_epoch": header.leader_epoch,
            "transactional": header.is_transactional,
            "control": kind,
        }
    remarks = [
        "" if codec == "none" else codec,
        f"epoch {header.leader_epoch}",
        "" if header.producer_id < 0 else f"producer {header.producer_id}/{header.producer_epoch}",
        kind or ("transactional" if header.is_transactional else ""),
        "log append time" if header.log_append_time else "",
    ]
    return _row(
        position,
        offsets=f"{header.base_offset}–{header.next_offset - 1}",
        records=header.record_count,
        bytes=header.size,
        time=moment(header.max_timestamp),
        what=", ".join(filter(None, remarks)),
    )


def _records(out: Output, position: int, data: bytes) -> list[dict[str, Any]]:
    """Return a row for each record of a batch; CorruptBatch if they cannot be decoded."""
    from klamm.batch import decode

    found = decode(data)
    if out.is_table:
        return [
            _row(
                position,
                offsets=str(record.offset),
                time=moment(record.timestamp),
                what=f"{text(record.key)} = {'tombstone' if record.value is None else text(record.value)}",
            )
            for record in found
        ]
    unknown = ("topic", "partition")  # a segment does not name them
    return [
        {"position": position, **{name: value for name, value in as_plain(record).items() if name not in unknown}}
        for record in found
    ]
