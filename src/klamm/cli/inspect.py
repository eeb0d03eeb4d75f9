"""`klamm inspect`: a segment file, batch by batch, as it lies on disk. Needs no store, and changes nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from klamm.cli.output import facts, is_terminal, moment
from klamm.cli.records import json_bytes, text
from klamm.errors import CorruptBatch, InvalidSetting

__all__ = ["inspect"]

_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_ROWS = 1000  # that are shown as one table
_DAMAGED = 3


def inspect(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A segment: topics/orders-…/0/00000000000000000000.log")],
    records: Annotated[bool, typer.Option("--records", help="The records of each batch, too.")] = False,
    offset: Annotated[int, typer.Option("--from", metavar="OFFSET", help="Only batches from there on.", min=0)] = 0,
    limit: Annotated[int | None, typer.Option("-n", "--limit", metavar="N", help="At most N batches.", min=1)] = None,
) -> None:
    """Decode a segment file, batch by batch. Exit code 3: damage was found."""
    from klamm.store.damage import Damage, batches

    name = re.fullmatch(r"(\d{20})\.log.*", file.name)
    if name is None:
        raise InvalidSetting(f"{file}: is not named like a segment", hint="want 00000000000000000000.log")
    size = file.stat().st_size
    rows: list[dict[str, Any]] = []
    shown = 0
    damaged = False
    for each in batches(str(file), int(name[1]), size, contiguous=False):
        if isinstance(each, Damage):
            damaged = True
            rows.append({**_blank(each.position), "what": f"DAMAGED up to byte {each.stop}: {each.message}"})
        elif each.header.next_offset > offset:
            rows += _rows(file, each, records=records)
            shown += 1
        if len(rows) >= _ROWS:
            facts(rows)
            rows = []
        if limit is not None and shown >= limit:
            break
    facts(rows, empty="no batches")
    if damaged:
        raise typer.Exit(_DAMAGED)


def _blank(position: int) -> dict[str, Any]:
    names = ("offsets", "records", "bytes", "codec", "time", "producer", "epoch", "what")
    return {"position": position, **dict.fromkeys(names)}


def _rows(file: Path, batch: Any, *, records: bool) -> list[dict[str, Any]]:
    header = batch.header
    kinds = [
        name
        for name, holds in (
            ("transactional", header.is_transactional),
            ("control", header.is_control),
            ("log append time", header.log_append_time),
        )
        if holds
    ]
    row = {
        "position": batch.position,
        "offsets": f"{header.base_offset}–{header.next_offset - 1}",
        "records": header.record_count,
        "bytes": header.size,
        "codec": _CODECS[header.codec] if header.codec < len(_CODECS) else str(header.codec),
        "time": moment(header.max_timestamp),
        "producer": None if header.producer_id < 0 else f"{header.producer_id}/{header.producer_epoch}",
        "epoch": header.leader_epoch,
        "what": ", ".join(kinds) or None,
    }
    return [row, *(_records(file, batch) if records else [])]


def _records(file: Path, batch: Any) -> list[dict[str, Any]]:
    from klamm.batch import decode

    with file.open("rb") as source:
        source.seek(batch.position)
        data = source.read(batch.header.size)
    try:
        found = decode(data)
    except CorruptBatch as error:
        return [{**_blank(batch.position), "what": f"DAMAGED: {error.message}"}]
    rows = []
    for record in found:
        shown = {"key": record.key, "value": record.value}
        told = (
            f"{text(record.key)} = {text(record.value)}"
            if is_terminal()
            else {name: json_bytes(each) for name, each in shown.items()}
        )
        rows.append(
            {**_blank(batch.position), "offsets": str(record.offset), "time": moment(record.timestamp), "what": told}
        )
    return rows
