"""Write records of a topic to a file, for `klamm export` and the console. cli/import_export.py has the formats."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from klamm.client.consume.range_reader import read_ranges
from klamm.client.plain import as_plain
from klamm.errors import InvalidRecord, NotInstalled
from klamm.types import TopicPartition

if TYPE_CHECKING:
    from klamm.api.store import Store
    from klamm.batch import Record

__all__ = [
    "FIELDS",
    "csv_writer",
    "export_parquet",
    "export_rows",
    "export_some_parquet",
    "import_pyarrow",
    "write_parquet",
]

FIELDS = ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]
Progress: TypeAlias = Callable[[int, int | None], object]
"""Called with what is done, and what there is to do, if that is known."""


def export_rows(
    store: Store,
    topic: str,
    ranges: Mapping[int, range],
    form: str,
    file: IO[bytes],
    *,
    in_base64: bool = False,
    keep: Callable[[Record], bool] | None = None,
    show: Callable[[Record], Record] | None = None,
    on_progress: Progress,
) -> int:
    """Write the records for which `keep` is true as "jsonl" or "csv". Return how many were read.

    `show` maps each record to the one that `keep` gets and that is written. Raise InvalidRecord if CSV cannot express a
    record.
    """
    write = csv_writer(file, FIELDS) if form == "csv" else None
    total, done = sum(map(len, ranges.values())), 0
    named = {TopicPartition(topic, number): offsets for number, offsets in ranges.items()}
    for batch in read_ranges(store._acquired(), named):
        records = batch if show is None else map(show, batch)
        for record in records if keep is None else filter(keep, records):
            row = as_plain(record)
            if write is None:
                file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
            else:
                _to_csv(record, row, in_base64)
                write([row[name] for name in FIELDS])
        done += len(batch)
        on_progress(done, total)
    return done


def export_parquet(
    store: Store, topic: str, ranges: Mapping[int, range], file: IO[bytes], *, on_progress: Progress
) -> int:
    """Write records as Parquet, and return how many."""
    import_pyarrow()
    scan = store.scan(
        topic,
        start={number: offsets.start for number, offsets in ranges.items()},
        end={number: max(offsets.start, offsets.stop) for number, offsets in ranges.items()},
    )
    return write_parquet(scan.reader(), file, on_progress, sum(map(len, ranges.values())))


def export_some_parquet(
    store: Store,
    topic: str,
    ranges: Mapping[int, range],
    file: IO[bytes],
    *,
    keep: Callable[[Record], bool] | None,
    show: Callable[[Record], Record] | None,
    on_progress: Progress,
) -> int:
    """Like `export_parquet`, with `keep` and `show` of `export_rows`, and without the column timestampType."""
    from klamm.arrow.schema import COLUMNS, schema_of

    pa = import_pyarrow()
    schema = schema_of([name for name in COLUMNS if name != "timestampType"])
    named = {TopicPartition(topic, number): offsets for number, offsets in ranges.items()}

    def batches() -> Iterator[Any]:
        for batch in read_ranges(store._acquired(), named):
            records = list(filter(keep, map(show, batch) if show is not None else batch))
            rows = [{name: getattr(record, name) for name in schema.names} for record in records]
            for row in rows:
                row["headers"] = [{"key": name, "value": data} for name, data in row["headers"]]
            yield pa.RecordBatch.from_pylist(rows, schema)

    return write_parquet(pa.RecordBatchReader.from_batches(schema, batches()), file, on_progress, None)


def _to_csv(record: Any, row: dict[str, Any], in_base64: bool) -> None:
    from base64 import b64encode

    if record.value is None:
        raise InvalidRecord(
            f"{record.topic}/{record.partition}/{record.offset}: a tombstone, which CSV cannot express",
            hint="jsonl and parquet can",
        )
    for name in ("key", "value"):
        data = getattr(record, name)
        if in_base64:
            row[name] = "" if data is None else b64encode(data).decode()
        elif isinstance(row[name], dict):
            raise InvalidRecord(
                f"{record.topic}/{record.partition}/{record.offset}: its {name} is not text",
                hint="--base64 writes any bytes",
            )
    row["headers"] = json.dumps(row["headers"], ensure_ascii=False) if row["headers"] else ""


def csv_writer(file: IO[bytes], names: Iterable[str]) -> Callable[[list[Any]], object]:
    """Write the header line and return a function that writes a row."""
    import csv

    class Lines:
        def write(self, row: str) -> int:
            return file.write(row.removesuffix("\r\n").encode() + b"\n")

    writer = csv.writer(Lines(), lineterminator="\r\n")  # which lets it quote both of these within a value
    writer.writerow(names)
    return writer.writerow


def import_pyarrow() -> Any:
    """Return pyarrow, or raise NotInstalled, which says how to install it."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise NotInstalled.package("pyarrow", "'klamm[arrow]'") from None
    return pyarrow


def write_parquet(reader: Any, file: IO[bytes], on_progress: Progress, total: int | None) -> int:
    """Write an Arrow stream as Parquet, and return the number of rows."""
    done = 0
    with import_pyarrow().parquet.ParquetWriter(file, reader.schema, compression="zstd") as writer:
        for batch in reader:
            writer.write_batch(batch)
            done += batch.num_rows
            on_progress(done, total)
    return done
