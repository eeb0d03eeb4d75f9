"""Of every session in tests: small, and silent.

Expressions are interpreted. Compiling those of each plan, to Java and then to bytecode, takes a fifth of the CPU of a
test with a few rows. Programs that make their own session (the examples, `klamm pipeline`) are run
with Spark's defaults, compiled.
"""

from __future__ import annotations

import importlib.util

import pytest

from tests.spark.classes import QUICK

SETTINGS = {
    "spark.driver.extraJavaOptions": QUICK,
    "spark.driver.memory": "1g",
    "spark.log.level": "OFF",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

HAS_READ_LIMITS = importlib.util.find_spec("pyspark.sql.streaming.datasource") is not None
with_limits = pytest.mark.skipif(not HAS_READ_LIMITS, reason="PySpark 4.1 does not limit micro-batches")
"""Of a test that needs maxOffsetsPerTrigger."""
