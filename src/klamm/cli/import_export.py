"""`klamm export` and `klamm import`: topics, and results of queries, as JSON lines, CSV or Parquet.

    jsonl    a record a line, as `klamm tail` prints it in a pipe: nothing is lost
    csv      topic, partition, offset, timestamp, key, value, headers (JSON); what is not UTF-8 is refused, unless
             --base64 says that keys and values are to be written so. It knows no null: an empty key is none, and
             tombstones are refused
    parquet  columns as in docs/guide/arrow-and-sql.md: nothing is lost

An export ends where the topic ended when it began. An import keeps keys, values, headers and timestamps, and
partitions with --partitions; offsets are new.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from klamm.api.export import csv_writer, export_parquet, export_rows, import_pyarrow, write_parquet
from klamm.cli.interruptible_input import interruptible
from klamm.cli.output import OnProgress, Output, count_of, is_terminal, progress
from klamm.cli.send import provide, report_sent, send_all
from klamm.cli.stores import CreateOption, FromOption, StoreOption, TopicArgument, core_of, opened, some_topics
from klamm.client.plain import PlainRecord, from_json
from klamm.errors import InvalidRecord, InvalidSetting
from klamm.where import Where, fixed, range_in

if TYPE_CHECKING:
    from klamm.api import Store

__all__ = ["export", "import_"]

FORMATS = ("jsonl", "csv", "parquet")
_SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".parquet": "parquet"}
_CHUNK = 5_000
_LONGEST = 2**31 - 1  # of a field of CSV, which Python bounds, and where C counts

_FORMAT: dict[str, Any] = {
    "metavar": "jsonl|csv|parquet",
    "help": "The format of the file. [default: by its name; stdin and stdout: jsonl]",
}


def _format(given: str | None, path: str) -> str:
    named = given or _SUFFIXES.get(Path(path).suffix, "jsonl" if path == "-" else "")
    if named not in FORMATS:
        what = f"{path}: the name does not say the format" if given is None else f"--format {given}: is invalid"
        raise InvalidSetting(what, hint=f"expected --format {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    return named


# ---- export


def export(
    topic: Annotated[
        str | None, typer.Argument(metavar="[TOPIC]", help="The topic; or give --sql.", autocompletion=some_topics)
    ] = None,
    to: Annotated[str, typer.Option("--to", metavar="FILE", help="File to write; -: stdout.")] = "-",
    store: StoreOption = None,
    form: Annotated[str | None, typer.Option("-o", "--format", **_FORMAT)] = None,
    query: Annotated[
        str | None, typer.Option("--sql", metavar="QUERY", help="Export the result of this query, see klamm sql.")
    ] = None,
    start: FromOption = None,
    end: Annotated[
        str | None, typer.Option("--until", metavar="WHERE", help="End, exclusive; same forms as --from.")
    ] = None,
    in_base64: Annotated[bool, typer.Option("--base64", help="CSV: write keys and values in base64.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a topic, or a query's result, to a file. Keys, values, headers and timestamps are kept."""
    if topic is None and query is None:
        raise InvalidSetting("export: nothing to export", hint="give a topic, or --sql with a query")
    if topic is not None and query is not None:
        raise InvalidSetting("export: a topic and --sql exclude each other", hint="name the topic in the query")
    chosen = _format(form, to)
    if in_base64 and chosen != "csv":
        raise InvalidSetting("--base64: is for CSV", hint="the other formats keep every byte anyway")
    if query is not None and (start or end):
        raise InvalidSetting("--from and --until are for topics", hint="say it in the query: where timestamp > …")
    if to != "-" and Path(to).exists() and not force:
        raise InvalidSetting(f"{to}: already exists", hint="--force overwrites it")
    if chosen == "parquet" and to == "-" and is_terminal():
        raise InvalidSetting("Parquet cannot be written to a terminal", hint="name a file: --to FILE")
    begin, until = Where(start or "earliest", name="--from"), Where(end or "latest", name="--until")
    with opened(store, looks=True) as events:
        ranges = {} if topic is None else _ranges(events, topic, begin, until)  # UnknownTopic before a file is made
        with _into(to) as file, progress("exporting", printing=to == "-") as on_progress:
            if query is not None:
                count = _export_query(events, query, chosen, file, on_progress)
            elif chosen == "parquet":
                count = export_parquet(events, str(topic), ranges, file, on_progress=on_progress)
            else:
                count = export_rows(
                    events, str(topic), ranges, chosen, file, in_base64=in_base64, on_progress=on_progress
                )
    if to != "-":
        unit = "row" if query else "record"
        Output().report(f"{count_of(count, unit)} to {to}", {"to": to, f"{unit}s": count})


def _ranges(store: Store, topic: str, start: Where, end: Where) -> dict[int, range]:
    """Return the offsets of each partition; OffsetOutOfRange if one does not have the start, any more or yet."""
    core = core_of(store)
    start, end = (fixed(where, core.heads.wall_ms()) for where in (start, end))
    return {partition.number: range_in(partition, start, end) for partition in core.topic(topic).partitions()}


@contextmanager
def _into(to: str) -> Iterator[IO[bytes]]:
    """Yield a file that appears whole, or not at all."""
    if to == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    temp_path = Path(f"{to}.part")
    if not temp_path.parent.is_dir():
        raise InvalidSetting(f"{to}: there is no directory {temp_path.parent}")
    if Path(to).is_dir():
        raise InvalidSetting(f"{to}: is a directory", hint="name a file in it")
    try:
        with temp_path.open("wb") as file:
            yield file
        temp_path.replace(to)
    except OSError as error:
        if error.filename is None:  # a write; the disk may be full
            error.filename = to
        raise
    finally:
        temp_path.unlink(missing_ok=True)


def _export_query(store: Store, query: str, form: str, file: IO[bytes], on_progress: OnProgress) -> int:
    from klamm.arrow.database import Database

    database = Database(core_of(store))

    def work(connection: Any) -> int:
        if form == "parquet":
            found = connection.sql(query)
            if found is None:
                raise InvalidSetting("sql: the query has no result", hint="expected one that starts with select")
            reader = import_pyarrow().RecordBatchReader.from_stream(found)
            return write_parquet(reader, file, lambda done, total: database.go_on(), None)
        return _write_rows(connection.execute(query), form, file, database.go_on)

    return database.ask(query, work, on_progress)


def _write_rows(found: Any, form: str, file: IO[bytes], go_on: Callable[[], object]) -> int:
    from klamm.arrow.database import names_of
    from klamm.cli.sql import plain

    names = names_of(found)
    write = csv_writer(file, names) if form == "csv" else None
    done = 0
    while rows := found.fetchmany(_CHUNK):
        for row in rows:
            values = [plain(each) for each in row]
            if write is None:
                file.write(json.dumps(dict(zip(names, values, strict=True)), ensure_ascii=False).encode() + b"\n")
            else:
                write([json.dumps(each) if isinstance(each, dict | list) else each for each in values])
        done += len(rows)
        go_on()
    return done


# ---- import


def import_(
    topic: TopicArgument,
    file: Annotated[str, typer.Argument(metavar="FILE", help="File that export wrote; -: stdin.")] = "-",
    store: StoreOption = None,
    form: Annotated[str | None, typer.Option("--format", **_FORMAT)] = None,
    create: CreateOption = False,
    partitions: Annotated[
        bool, typer.Option("--partitions", help="Keep the original partitions. [default: by key]")
    ] = False,
    in_base64: Annotated[bool, typer.Option("--base64", help="CSV: keys and values are in base64.")] = False,
) -> None:
    """Append the records of a file to a topic. Keys, values, headers and timestamps are kept; offsets are new."""
    chosen = _format(form, file)
    if in_base64 and chosen != "csv":
        raise InvalidSetting("--base64: is for CSV", hint="the other formats keep every byte anyway")
    path = None if file == "-" else Path(file)
    if path is not None and not path.exists():
        raise InvalidSetting(f"{path}: no such file")
    if path is None and chosen == "parquet":
        raise InvalidSetting("Parquet cannot be read from stdin", hint="name the file")
    with provide(store, topic, create=create, command="import") as events, progress("importing") as on_progress:
        if path is not None and chosen == "parquet":
            done = _import_parquet(events, topic, path, partitions, on_progress)
        else:
            rows = _rows(path, chosen, in_base64)
            chosen_rows = rows if partitions else (each._replace(partition=None) for each in rows)
            done = send_all(events, topic, chosen_rows, on_progress=lambda done: on_progress(done, None))
    report_sent(Output(), topic, done)


def _rows(path: Path | None, form: str, in_base64: bool) -> Iterator[PlainRecord]:
    file: IO[bytes] = sys.stdin.buffer if path is None else path.open("rb", buffering=0)
    source = interruptible(file)
    where = str(path or "stdin")
    try:
        if form == "csv":
            yield from _csv_rows(source, where, in_base64)
            return
        for number, line in enumerate(source, 1):
            if line.strip():
                yield from_json(line, f"{where}: line {number}")
    finally:
        if path is not None:
            file.close()


def _csv_rows(source: IO[bytes], where: str, in_base64: bool) -> Iterator[PlainRecord]:
    import csv

    csv.field_size_limit(_LONGEST)
    reader = csv.DictReader(_text_lines(source), strict=True)
    while True:
        try:
            row = next(reader, None)
            if row is None:
                return
        except (csv.Error, UnicodeDecodeError) as error:
            raise InvalidRecord(f"{where}: line {reader.line_num + 1}: not CSV: {error}") from None
        yield _from_csv(row, f"{where}: line {reader.line_num}", in_base64)


def _text_lines(source: IO[bytes]) -> Iterator[str]:
    for number, line in enumerate(source):
        yield line.decode("utf-8" if number else "utf-8-sig")  # spreadsheets begin with a mark


def _from_csv(row: dict[Any, Any], where: str, in_base64: bool) -> PlainRecord:
    if "value" not in row:
        named = ", ".join(map(repr, row))
        raise InvalidRecord(f"{where}: there is no column value", hint=f"the first line names the columns: {named}")
    if None in row or None in row.values():
        raise InvalidRecord(f"{where}: has {'more' if None in row else 'fewer'} fields than there are columns")
    data: dict[str, Any] = {"value": row["value"]}
    if row.get("key"):
        data["key"] = row["key"]
    if in_base64:
        data = {name: {"base64": each} for name, each in data.items()}
    try:
        if row.get("partition"):
            data["partition"] = int(row["partition"])
        if row.get("timestamp"):
            data["timestamp"] = int(row["timestamp"]) if row["timestamp"].lstrip("-").isdigit() else row["timestamp"]
        if row.get("headers"):
            data["headers"] = json.loads(row["headers"])
    except ValueError as error:
        raise InvalidRecord(f"{where}: invalid: {error}") from None
    return from_json(json.dumps(data), where)


def _import_parquet(store: Store, topic: str, path: Path, partitions: bool, on_progress: OnProgress) -> int:
    arrow = import_pyarrow()
    try:
        source = arrow.parquet.ParquetFile(path)
    except (arrow.ArrowException, ValueError) as error:
        raise InvalidRecord(f"{path}: not Parquet: {error}") from None
    with source:
        names = source.schema_arrow.names
        wanted = ("key", "value", "timestamp", "headers", *(("partition",) if partitions else ()))
        columns = [name for name in wanted if name in names]
        if "value" not in columns:
            raise InvalidRecord(f"{path}: there is no column value", hint=f"it has {', '.join(names)}")
        done, total = 0, source.metadata.num_rows
        for batch in source.iter_batches(columns=columns):
            done += store.append_table(topic, arrow.Table.from_batches([batch])).count
            on_progress(done, total)
    return done
