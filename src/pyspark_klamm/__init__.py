"""Spark looks into packages named pyspark_… for a DefaultSource: so format("klamm") is there without being registered.

Every look-up of a Python data source, of whichever format, imports this. So it imports nothing of Klamm's before
the format is used, and an installation that is broken on one machine is the trouble of format("klamm") alone.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """Stands for klamm.spark.source.KlammSource: to make one makes that."""

    def __new__(cls, options: dict[str, str]) -> Any:
        try:
            from klamm.spark.source import KlammSource
        except Exception as error:
            raise ImportError(
                f"format klamm: klamm cannot be imported on this machine: {error} (pip install --force-reinstall"
                " 'klamm[spark]', for the Python that Spark uses there)"
            ) from error
        return KlammSource(options)

    @classmethod
    def name(cls) -> str:
        return "klamm"
