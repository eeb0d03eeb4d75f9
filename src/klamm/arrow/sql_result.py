"""The rows of a query, in memory, as `store.sql` returns them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from klamm.arrow import frames
from klamm.other_names import explains_names
from klamm.types import html_table

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["SqlResult"]

_SHOWN = 20  # rows, in a notebook


@explains_names
class SqlResult:
    """The rows of a query, each a dict by column name, in the order of the query. Also an Arrow stream."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self._table.column_names)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self._table.to_batches():
            yield from batch.to_pylist()

    def __repr__(self) -> str:
        return f"<SqlResult of {len(self)} rows: {', '.join(self.columns)}>"

    def _repr_html_(self) -> str:
        rows = [row.values() for row in self._table.slice(0, _SHOWN).to_pylist()]
        more = f", of which the first {_SHOWN}" if len(self) > _SHOWN else ""
        return html_table(f"{len(self):,} rows{more}", self.columns, rows)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Return a stream, as Arrow's PyCapsule interface defines it."""
        table: Any = self._table
        return table.__arrow_c_stream__(requested_schema)

    def to_table(self) -> pa.Table:
        """Return a pyarrow.Table."""
        return self._table

    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame."""
        return frames.to_pandas(self._table)

    def to_polars(self) -> Any:
        """Return a polars.DataFrame."""
        return frames.to_polars(self._table)
