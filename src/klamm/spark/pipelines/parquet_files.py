"""Records of a topic -> Parquet files by day, straight from the segments: for archive, in a task of Spark's or without.

    date=2025-01-31/<random>.parquet

Whatever reads a Parquet file has the rows of a partition in the order of their offsets. A name is used once, so that
two attempts of a task never write one file; files of attempts that failed are of no use, and go with their directory.

  PQF1  Memory is bounded, whatever the number of days: rows wait for a group of their day until all that wait are
        BUFFER_BYTES, and the largest group is written then.
  PQF2  A file has MAX_FILE_BYTES and one group more at most: object stores copy what is not larger than some GiB.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from klamm.spark.range_reader import Task, read, schema_for

if TYPE_CHECKING:
    import pyarrow as pa

    from klamm.spark.pipelines.folder_files import Output

__all__ = [
    "BUFFER_BYTES",
    "COLUMNS",
    "MAX_FILE_BYTES",
    "DayFile",
    "by_day",
    "shared_out",
    "write_days",
    "write_fitting",
]

COLUMNS = ("key", "value", "headers", "partition", "offset", "timestamp", "timestampType")
BUFFER_BYTES = 64 << 20
MAX_FILE_BYTES = 256 << 20
_DAY_US = 86_400_000_000
_LAST_DATE = 2_932_896
"""9999-12-31, in days since 1970."""


class DayFile(NamedTuple):
    """A file that was written."""

    day: str
    """The name of its directory: date=2025-01-31."""
    path: str
    rows: int


def write_days(tasks: Iterable[Task], output: Output, *, has_dates: bool = False) -> list[DayFile]:
    """Write the records of ranges into new files: one for each day.

    With `has_dates` they have the column `date`, too; it is null beyond the year 9999.
    """
    columns = schema_for(COLUMNS)
    with output.folder() as directory:
        files = _DayFiles(directory, columns, has_dates=has_dates)
        try:
            for task in tasks:
                for batch in read(task, columns):
                    files.write(batch)
            files.flush()
        finally:
            files.close()
        return [each._replace(path=output.keep(directory, each.path)) for each in files.written()]


def write_fitting(
    batches: Iterable[pa.RecordBatch], output: Output, *, has_dates: bool = False
) -> tuple[list[DayFile], list[DayFile]]:
    """Write rows, which say in the column `fits` whether they fit a schema, into new files: one for each day.

    Return the files of those that fit, and the files of the others, which have COLUMNS alone.
    """
    import pyarrow.compute as pc

    with output.folder() as directory:
        both: dict[bool, _DayFiles] = {}
        try:
            for batch in map(_in_utc, batches):
                for fits in (True, False):
                    mask: Any = batch.column("fits") if fits else pc.invert(batch.column("fits"))
                    names = [name for name in batch.schema.names if name != "fits"] if fits else list(COLUMNS)
                    rows = batch.filter(mask).select(names)
                    if rows.num_rows and fits not in both:
                        os.mkdir(f"{directory}/fits={fits}")
                        both[fits] = _DayFiles(f"{directory}/fits={fits}", rows.schema, has_dates=has_dates and fits)
                    if rows.num_rows:
                        both[fits].write(rows)
            for files in both.values():
                files.flush()
        finally:
            for files in both.values():
                files.close()
        written = {
            fits: [each._replace(path=output.keep(directory, each.path)) for each in files.written()]
            for fits, files in both.items()
        }
    return written.get(True, []), written.get(False, [])


def _in_utc(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch of Spark's, whose times have the session's time zone, with times in UTC."""
    import pyarrow as pa

    schema = pa.schema([pa.field(each.name, _utc(each.type)) for each in batch.schema])
    return batch if schema.equals(batch.schema) else batch.cast(schema)


def _utc(kind: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp("us", "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, _utc(each.type)) for each in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _utc(kind.item_type))
    return pa.list_(_utc(kind.value_type)) if pa.types.is_list(kind) else kind


def by_day(written: Iterable[DayFile]) -> dict[str, list[str]]:
    """Return the paths of files by day, as a journal takes them."""
    found: dict[str, list[str]] = {}
    for each in written:
        found.setdefault(each.day, []).append(each.path)
    return found


def shared_out(tasks: Sequence[Task], parts: int) -> Iterator[list[Task]]:
    """Yield `parts` lists at most, of about the same number of offsets each; ranges keep their order."""
    total = sum(each.range.end - each.range.start for each in tasks)
    found: dict[int, list[Task]] = {}
    before = 0
    for each in tasks:
        found.setdefault(before * parts // total, []).append(each)
        before += each.range.end - each.range.start
    yield from found.values()


class _DayFiles:
    def __init__(self, directory: str, columns: pa.Schema, *, has_dates: bool) -> None:
        import pyarrow as pa

        self._columns = columns
        self._schema = columns.append(pa.field("date", pa.date32())) if has_dates else columns
        self._directory = directory
        self._writers: dict[int, tuple[str, Any]] = {}
        self._waiting: dict[int, list[pa.RecordBatch]] = {}
        self._bytes: dict[int, int] = {}
        self._rows: dict[int, int] = {}
        self._written: list[DayFile] = []

    def write(self, batch: pa.RecordBatch) -> None:
        import numpy as np
        import pyarrow as pa

        times: Any = batch.column("timestamp").cast(pa.int64())
        days = np.floor_divide(times.to_numpy(zero_copy_only=False), _DAY_US)
        several = np.unique(days)
        for day in several.tolist():
            rows = batch if len(several) == 1 else batch.filter(pa.array(days == day))
            self._waiting.setdefault(day, []).append(rows)
            self._bytes[day] = self._bytes.get(day, 0) + rows.nbytes
        while sum(self._bytes.values()) > BUFFER_BYTES:
            self._give(max(self._bytes, key=self._bytes.__getitem__))

    def _give(self, day: int) -> None:
        """Write what waits of a day, as a group of rows."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        if day not in self._writers:
            name = f"{self._directory}/date={_date(day)}"
            with suppress(FileExistsError):
                os.mkdir(name)
            path = f"{name}/{os.urandom(8).hex()}.parquet"
            # To find a value's least and greatest takes long, and readers do not search by value.
            statistics: Any = [each for each in self._schema.names if each not in ("value", "headers", "data")]
            self._writers[day] = path, pq.ParquetWriter(path, self._schema, write_statistics=statistics)
        rows = pa.Table.from_batches(self._waiting.pop(day), self._columns)
        if self._schema is not self._columns:
            date: Any = pa.scalar(None if day > _LAST_DATE else day, pa.int32()).cast(pa.date32())
            rows = rows.append_column(self._schema.field("date"), pa.repeat(date, rows.num_rows))
        del self._bytes[day]
        self._writers[day][1].write_table(rows, row_group_size=max(1, rows.num_rows))
        self._rows[day] = self._rows.get(day, 0) + rows.num_rows
        if os.path.getsize(self._writers[day][0]) >= MAX_FILE_BYTES:
            self._end(day)

    def _end(self, day: int) -> None:
        """Complete the file of a day; more rows of it begin another one."""
        path, writer = self._writers.pop(day)
        writer.close()
        self._written.append(DayFile(os.path.basename(os.path.dirname(path)), path, self._rows.pop(day)))

    def flush(self) -> None:
        for day in list(self._waiting):
            self._give(day)

    def close(self) -> None:
        for day in list(self._writers):
            self._end(day)

    def written(self) -> list[DayFile]:
        return self._written


def _date(day: int) -> str:
    """Return the date of a day since 1970 as Spark spells it, beyond the year 9999, too."""
    import numpy as np

    month = np.datetime64(day, "D").astype("datetime64[M]")
    year, number = divmod(int(month.astype(np.int64)) + 1970 * 12, 12)
    first = int(month.astype("datetime64[D]").astype(np.int64))
    return f"{'+' if year > 9999 else ''}{year:04}-{number + 1:02}-{day - first + 1:02}"
