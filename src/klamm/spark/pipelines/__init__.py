"""Pipelines around a log, on Spark: plain functions, each of which takes a session and a store, and gives a Report.

    archive, restore    a topic to Parquet files by date, and back with its offsets
    compact             the latest record of each key, for topics too large for one process
    aggregate           counts, sums, minima and maxima over windows of time
    join                two topics, by key, within a time
    deduplicate         a topic without what was there already
    quality             what is in a topic, as a Quality
    checkpoint          for a pipeline of your own: a checkpoint that is its own
    list_pipelines, show_pipeline, reset_pipeline, retire_pipeline
                        those of a store: how far they are, and how to begin again; without Spark

Each is incremental, can be killed and run again, and does every record once. What they share:
pipeline_directory.py (whose a folder is), query_runner.py (a query, run to its end), report.py.
"""

from __future__ import annotations

from klamm.spark.pipelines.aggregate_pipeline import aggregate
from klamm.spark.pipelines.archive_pipeline import archive
from klamm.spark.pipelines.compact_pipeline import compact
from klamm.spark.pipelines.deduplicate_pipeline import deduplicate
from klamm.spark.pipelines.join_pipeline import join
from klamm.spark.pipelines.quality_report import Quality, quality
from klamm.spark.pipelines.query_runner import checkpoint
from klamm.spark.pipelines.registry import (
    PipelineChange,
    PipelineInfo,
    list_pipelines,
    reset_pipeline,
    retire_pipeline,
    show_pipeline,
)
from klamm.spark.pipelines.report import Report
from klamm.spark.pipelines.restore_pipeline import restore

__all__ = [
    "PipelineChange",
    "PipelineInfo",
    "Quality",
    "Report",
    "aggregate",
    "archive",
    "checkpoint",
    "compact",
    "deduplicate",
    "join",
    "list_pipelines",
    "quality",
    "reset_pipeline",
    "restore",
    "retire_pipeline",
    "show_pipeline",
]


def __dir__() -> list[str]:
    return sorted(__all__)
