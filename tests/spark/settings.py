"""Of every session in tests: small, and silent."""

from __future__ import annotations

from tests.spark.classes import QUICK

SETTINGS = {
    "spark.driver.extraJavaOptions": QUICK,
    "spark.driver.memory": "1g",
    "spark.log.level": "OFF",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
