"""Pipelines around a log, on Spark: plain functions, each of which takes a session and a store, and gives a Report.

Each is incremental, can be killed and run again, and does every record once. What they share: claim.py (whose a folder
is), running.py (a query, run to its end), report.py.
"""

from __future__ import annotations

from klamm.spark.pipelines.report import Report

__all__ = ["Report"]
