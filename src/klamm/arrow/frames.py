"""Arrow tables as frames of pandas and Polars. Both packages are imported at their first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from klamm.errors import NotInstalled

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["to_pandas", "to_polars"]


def to_pandas(table: pa.Table) -> Any:
    """Return a pandas.DataFrame. Raise NotInstalled, which is an ImportError, without pandas."""
    try:
        import pandas  # noqa: F401  # pyarrow uses it
    except ImportError:
        raise NotInstalled.package("pandas", "'klamm[pandas]'") from None
    return table.to_pandas()


def to_polars(table: pa.Table) -> Any:
    """Return a polars.DataFrame. Raise NotInstalled, which is an ImportError, without Polars."""
    try:
        import polars
    except ImportError:
        raise NotInstalled.package("polars", "'klamm[polars]'") from None
    return polars.from_arrow(table)
