"""Records of a topic -> Parquet files by day, straight from the segments: for archive, in a task of Spark's or without.

    date=2025-01-31/<random>.parquet

Whatever reads a Parquet file has the rows of a partition in the order of their offsets. A name is used once, so that
two attempts of a task never write one file; files of attempts that failed are of no use, and go with their directory.

  PQF1  Memory is bounded, whatever the number of days: rows wait for a group of their day until all that wait are
        BUFFER_BYTES, and the largest group is written then.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from klamm.spark.range_reader import Task, read, schema_for

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BUFFER_BYTES", "COLUMNS", "DayFile", "by_day", "shared_out", "write_days"]

COLUMNS = ("key", "value", "headers", "partition", "offset", "timestamp", "timestampType")
BUFFER_BYTES = 64 << 20
_DAY_US = 86_400_000_000
_LAST_DATE = 2_932_896
"""9999-12-31, in days since 1970."""


class DayFile(NamedTuple):
    """A file that was written."""

    day: str
    """The name of its directory: date=2025-01-31."""
    path: str
    rows: int


def write_days(tasks: Iterable[Task], directory: str, *, has_dates: bool = False) -> list[DayFile]:
    """Write the records of ranges into new files of `directory`, which exists: one for each day.

    With `has_dates` they have the column `date`, too; it is null beyond the year 9999.
    """
    files = _DayFiles(directory, has_dates=has_dates)
    try:
        for task in tasks:
            for batch in read(task, files.columns):
                files.write(batch)
        files.flush()
    finally:
        files.close()
    return files.written()


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
    def __init__(self, directory: str, *, has_dates: bool) -> None:
        import pyarrow as pa

        self.columns = schema_for(COLUMNS)
        self._schema = self.columns.append(pa.field("date", pa.date32())) if has_dates else self.columns
        self._directory = directory
        self._writers: dict[int, tuple[str, Any]] = {}
        self._waiting: dict[int, list[pa.RecordBatch]] = {}
        self._bytes: dict[int, int] = {}
        self._rows: dict[int, int] = {}

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
            statistics: Any = [each for each in self._schema.names if each not in ("value", "headers")]
            self._writers[day] = path, pq.ParquetWriter(path, self._schema, write_statistics=statistics)
        rows = pa.Table.from_batches(self._waiting.pop(day), self.columns)
        if self._schema is not self.columns:
            date: Any = pa.scalar(None if day > _LAST_DATE else day, pa.int32()).cast(pa.date32())
            rows = rows.append_column(self._schema.field("date"), pa.repeat(date, rows.num_rows))
        del self._bytes[day]
        self._writers[day][1].write_table(rows, row_group_size=max(1, rows.num_rows))
        self._rows[day] = self._rows.get(day, 0) + rows.num_rows

    def flush(self) -> None:
        for day in list(self._waiting):
            self._give(day)

    def close(self) -> None:
        for _, writer in self._writers.values():
            writer.close()

    def written(self) -> list[DayFile]:
        return [
            DayFile(os.path.basename(os.path.dirname(path)), path, self._rows[day])
            for day, (path, _) in self._writers.items()
        ]


def _date(day: int) -> str:
    """Return the date of a day since 1970 as Spark spells it, beyond the year 9999, too."""
    import numpy as np

    month = np.datetime64(day, "D").astype("datetime64[M]")
    year, number = divmod(int(month.astype(np.int64)) + 1970 * 12, 12)
    first = int(month.astype("datetime64[D]").astype(np.int64))
    return f"{'+' if year > 9999 else ''}{year:04}-{number + 1:02}-{day - first + 1:02}"
