"""Pipelines around a log, on Spark: plain functions, each of which takes a session and a store, and gives a Report.

    archive, restore    a topic to Parquet files by date, and back with its offsets
    compact             the latest record of each key, for topics too large for one process
    aggregate           counts, sums, minima and maxima over windows of time
    join                two topics, by key, within a time
    deduplicate         a topic without what was there already
    quality             what is in a topic, as a Quality
    checkpoint          for a pipeline of your own: a checkpoint that is its own

Each is incremental, can be killed and run again, and does every record once. What they share: claim.py (whose a folder
is), running.py (a query, run to its end), report.py.
"""

from __future__ import annotations

from klamm.spark.pipelines.aggregating import aggregate
from klamm.spark.pipelines.archiving import archive
from klamm.spark.pipelines.compacting import compact
from klamm.spark.pipelines.deduplicating import deduplicate
from klamm.spark.pipelines.joining import join
from klamm.spark.pipelines.quality_report import Quality, quality
from klamm.spark.pipelines.report import Report
from klamm.spark.pipelines.restoring import restore
from klamm.spark.pipelines.running import checkpoint

__all__ = [
    "Quality",
    "Report",
    "aggregate",
    "archive",
    "checkpoint",
    "compact",
    "deduplicate",
    "join",
    "quality",
    "restore",
]
