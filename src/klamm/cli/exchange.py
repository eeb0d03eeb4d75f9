"""`klamm export` and `klamm import`: topics, and results of queries, as JSON lines, CSV or Parquet.

    jsonl    a record a line, as `klamm tail` prints it in a pipe: nothing is lost
    csv      topic, partition, offset, timestamp, key, value, headers (JSON); what is no UTF-8 is refused, unless
             --base64 says that keys and values are to be written so. It knows no null: an empty key is none, and
             tombstones are refused
    parquet  columns as in docs/guide/arrow-and-sql.md: nothing is lost

An import keeps keys, values, headers and timestamps, and partitions with --partitions; offsets are new.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from klamm.cli.output import Tick, count_of, fact, is_terminal, progress
from klamm.cli.records import as_json, parse_time
from klamm.cli.send import Sent, from_json
from klamm.cli.stores import CreateOption, StoreOption, opened
from klamm.errors import InvalidSetting, KlammError, UnknownTopic

if TYPE_CHECKING:
    from klamm.api import Store

__all__ = ["export", "import_"]

FORMATS = ("jsonl", "csv", "parquet")
_SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".parquet": "parquet"}
_CHUNK = 5_000
_FIELDS = ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]

FormatOption = Annotated[
    str | None, typer.Option("--format", metavar="FORMAT", help="jsonl, csv or parquet. [default: by the file's name]")
]


def _format(given: str | None, path: str) -> str:
    named = given or {
        ".jsonl": "jsonl",
        ".ndjson": "jsonl",
        ".json": "jsonl",
        ".csv": "csv",
        ".parquet": "parquet",
    }.get(Path(path).suffix, "jsonl" if path == "-" else "")
    if named not in FORMATS:
        raise InvalidSetting(f"{path}: in which format?", hint=f"want --format {', '.join(FORMATS)}")
    return named


# ---- export


def export(
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC]", help="The topic; or give --sql.")] = None,
    to: Annotated[str, typer.Option("-o", "--to", metavar="FILE", help="Where to; -: stdout.")] = "-",
    store: StoreOption = None,
    form: FormatOption = None,
    query: Annotated[
        str | None, typer.Option("--sql", metavar="QUERY", help="A query's result, see klamm sql.")
    ] = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="From that time on: 2h, 2026-11-15.")] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Up to, but not including, that time.")] = None,
    in_base64: Annotated[bool, typer.Option("--base64", help="CSV: keys and values in base64.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False,
) -> None:
    """Write a topic, or a query's result, to a file. Keys, values, headers and timestamps are kept."""
    if (topic is None) == (query is None):
        raise InvalidSetting("export: what?", hint="want a topic, or --sql with a query")
    chosen = _format(form, to)
    if in_base64 and chosen != "csv":
        raise InvalidSetting("--base64: is for CSV", hint="the other formats keep every byte anyway")
    if query is not None and (since or until):
        raise InvalidSetting("--since and --until are for topics", hint="say it in the query: where timestamp > …")
    if to != "-" and Path(to).exists() and not force:
        raise InvalidSetting(f"{to}: is there already", hint="--force overwrites it")
    start = None if since is None else parse_time(since, "--since")
    end = None if until is None else parse_time(until, "--until")
    with opened(store) as events:
        if topic is not None:
            events.topic(topic)  # UnknownTopic before a file is made
        with _into(to) as file, progress("exporting") as tick:
            if query is not None:
                count = _export_query(events, query, chosen, file)
            elif chosen == "parquet":
                count = _parquet(events.scan(str(topic), start=start, end=end).reader(), file, tick, None)
            else:
                count = _export_topic(events, str(topic), chosen, file, start, end, in_base64, tick)
    if to != "-":
        typer.echo(f"{count_of(count, 'row' if query else 'record')} to {to}", err=True)


@contextmanager
def _into(to: str) -> Iterator[IO[bytes]]:
    """A file appears whole, or not at all."""
    if to == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    aside = Path(f"{to}.part")
    try:
        with aside.open("wb") as file:
            yield file
        aside.replace(to)
    finally:
        aside.unlink(missing_ok=True)


def _export_topic(
    store: Store,
    topic: str,
    form: str,
    file: IO[bytes],
    start: datetime | None,
    end: datetime | None,
    in_base64: bool,
    tick: Tick,
) -> int:
    total, done = store.topic(topic).count, 0
    write = _csv_writer(file, _FIELDS) if form == "csv" else None
    last = None if end is None else end.timestamp() * 1000
    with store.consumer(topic, start="earliest" if start is None else start, wait_ms=0) as consumer:
        for batch in consumer.batches(max_records=_CHUNK):
            for record in batch:
                if last is not None and record.timestamp >= last:
                    continue
                row = as_json(record)
                if write is None:
                    file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
                else:
                    _to_csv(record, row, in_base64)
                    write([row[name] for name in _FIELDS])
                done += 1
            tick(done, total)
    return done


def _to_csv(record: Any, row: dict[str, Any], in_base64: bool) -> None:
    from base64 import b64encode

    if record.value is None:
        raise InvalidSetting(
            f"{record.topic}/{record.partition}/{record.offset}: is a tombstone, which CSV cannot say",
            hint="jsonl and parquet can",
        )
    for name in ("key", "value"):
        data = getattr(record, name)
        if in_base64:
            row[name] = "" if data is None else b64encode(data).decode()
        elif isinstance(row[name], dict):
            raise InvalidSetting(
                f"{record.topic}/{record.partition}/{record.offset}: its {name} is no text",
                hint="--base64 writes any bytes",
            )
    row["headers"] = json.dumps(row["headers"], ensure_ascii=False) if row["headers"] else ""


def _csv_writer(file: IO[bytes], names: Iterable[str]) -> Callable[[list[Any]], object]:
    class Text:
        def write(self, text: str) -> int:
            return file.write(text.encode())

    import csv

    writer = csv.writer(Text(), lineterminator="\n")
    writer.writerow(names)
    return writer.writerow


def _parquet(reader: Any, file: IO[bytes], tick: Tick, total: int | None) -> int:
    try:
        import pyarrow.parquet
    except ImportError:
        raise KlammError("pyarrow is not installed", hint="pip install 'klamm[arrow]'") from None
    done = 0
    with pyarrow.parquet.ParquetWriter(file, reader.schema, compression="zstd") as writer:
        for batch in reader:
            writer.write_batch(batch)
            done += batch.num_rows
            tick(done, total)
    return done


def _export_query(store: Store, query: str, form: str, file: IO[bytes]) -> int:
    import duckdb

    from klamm.cli.sql import _plain, connect

    connection = connect(store)
    try:
        if form == "parquet":
            return _parquet(connection.execute(query).fetch_record_batch(), file, lambda done, total: None, None)
        found = connection.execute(query)
        names = [column[0] for column in found.description or ()]
        write = _csv_writer(file, names) if form == "csv" else None
        done = 0
        while rows := found.fetchmany(_CHUNK):
            for row in rows:
                told = [_plain(each) for each in row]
                if write is None:
                    file.write(json.dumps(dict(zip(names, told, strict=True)), ensure_ascii=False).encode() + b"\n")
                else:
                    write([json.dumps(each) if isinstance(each, dict | list) else each for each in told])
            done += len(rows)
        return done
    except duckdb.Error as error:
        raise InvalidSetting("sql: " + " ".join(str(error).split())) from None


# ---- import


def import_(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    file: Annotated[str, typer.Argument(metavar="FILE", help="What export wrote; -: stdin.")] = "-",
    store: StoreOption = None,
    form: FormatOption = None,
    create: CreateOption = False,
    partitions: Annotated[
        bool, typer.Option("--partitions", help="Into the partitions they were in. [default: by key]")
    ] = False,
    in_base64: Annotated[bool, typer.Option("--base64", help="CSV: keys and values are in base64.")] = False,
) -> None:
    """Append what a file holds to a topic. Keys, values, headers and timestamps are kept; offsets are new."""
    chosen = _format(form, file)
    path = None if file == "-" else Path(file)
    with opened(store, create=create) as events:
        if create:
            events.create_topic(topic, exist_ok=True)
        elif topic not in events.topics():
            raise UnknownTopic(f"there is no topic {topic!r}", hint=f"klamm topic create {topic}, or import --create")
        with progress("importing") as tick:
            if chosen == "parquet":
                done = _import_parquet(events, topic, path, partitions, tick)
            else:
                done = _import_rows(events, topic, _rows(path, chosen, in_base64), partitions, tick)
    if is_terminal():
        typer.echo(f"{count_of(done, 'record')} to {topic}", err=True)
    else:
        fact({"topic": topic, "records": done})


def _rows(path: Path | None, form: str, in_base64: bool) -> Iterator[Sent]:
    source: IO[bytes] = sys.stdin.buffer if path is None else path.open("rb")
    try:
        if form == "jsonl":
            for number, line in enumerate(source, 1):
                if line.strip():
                    yield from_json(line, f"{path or 'stdin'}: line {number}")
            return
        import csv

        text = (line.decode() for line in source)
        for number, row in enumerate(csv.DictReader(text), 2):
            yield _from_csv(row, f"{path or 'stdin'}: line {number}", in_base64)
    finally:
        if path is not None:
            source.close()


def _from_csv(row: dict[str, str | None], where: str, in_base64: bool) -> Sent:
    if "value" not in row:
        raise InvalidSetting(f"{where}: there is no column value", hint="the first line names the columns")
    data: dict[str, Any] = {"value": row["value"]}
    if row.get("key"):
        data["key"] = row["key"]
    if in_base64:
        data = {name: {"base64": each or ""} for name, each in data.items()}
    try:
        for name in ("partition", "timestamp"):
            if row.get(name):
                data[name] = int(str(row[name]))
        if row.get("headers"):
            data["headers"] = json.loads(str(row["headers"]))
    except ValueError as error:
        raise InvalidSetting(f"{where}: does not fit: {error}") from None
    return from_json(json.dumps(data), where)


def _import_rows(store: Store, topic: str, rows: Iterator[Sent], partitions: bool, tick: Tick) -> int:
    done = 0
    with store.producer() as producer:
        for each in rows:
            options: dict[str, Any] = {} if each.timestamp is None else {"timestamp": each.timestamp}
            producer.send(
                topic,
                each.value,
                key=each.key,
                headers=each.headers or None,
                partition=each.partition if partitions else None,
                **options,
            )
            done += 1
            if done % 1000 == 0:
                tick(done, None)
    return done


def _import_parquet(store: Store, topic: str, path: Path | None, partitions: bool, tick: Tick) -> int:
    if path is None:
        raise InvalidSetting("Parquet cannot be read from stdin", hint="name the file")
    try:
        import pyarrow.parquet
    except ImportError:
        raise KlammError("pyarrow is not installed", hint="pip install 'klamm[arrow]'") from None
    source = pyarrow.parquet.ParquetFile(path)
    wanted = ("key", "value", "timestamp", "headers", *(("partition",) if partitions else ()))
    columns = [name for name in wanted if name in source.schema_arrow.names]
    if "value" not in columns:
        raise InvalidSetting(f"{path}: there is no column value", hint=f"it has {', '.join(source.schema_arrow.names)}")
    done, total = 0, source.metadata.num_rows
    for batch in source.iter_batches(columns=columns):
        done += store.append_table(topic, pyarrow.Table.from_batches([batch])).count
        tick(done, total)
    return done
