"""`pyspark.sql.functions` as `F` and `pyspark.sql.types` as `T`, imported at their first use.

Much of `klamm pipeline` runs without PySpark, or ends before it would be imported.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import functions as F  # noqa: N812  # the usual names
    from pyspark.sql import types as T  # noqa: N812
else:

    class _Module:
        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):  # pickle looks for some, before there is a name
                raise AttributeError(name)
            return getattr(importlib.import_module(self._name), name)

    F = _Module("pyspark.sql.functions")
    T = _Module("pyspark.sql.types")

__all__ = ["F", "T"]
