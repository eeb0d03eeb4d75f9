"""Spark looks into packages named pyspark_… for a DefaultSource: so format("klamm") is there without being registered.

Every Spark session on a machine that has klamm imports this, whether or not it uses the format.
"""

from __future__ import annotations

from klamm.spark.source import KlammSource as DefaultSource

__all__ = ["DefaultSource"]
