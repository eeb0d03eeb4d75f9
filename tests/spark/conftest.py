"""One Spark session for all tests of this directory: a JVM takes seconds to start."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import klamm
import klamm.spark
from tests.spark.classes import PYTHONPATH
from tests.spark.settings import SETTINGS

ROOT = Path(__file__).parents[2]
CONNECTOR = ROOT / ".tools" / "spark-kafka"


@pytest.fixture(scope="session", autouse=True)
def _quick_workers() -> Iterator[None]:
    """Spark's Python workers, of any session that a test starts, import pyspark with its bytecode."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", PYTHONPATH)
        yield


@pytest.fixture(scope="session")
def spark(_quick_workers: None) -> Iterator[Any]:
    """Two cores; a task may fail once."""
    pytest.importorskip("pyspark")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pyspark's own
        session = klamm.spark.session(
            master="local[2,2]", kafka=CONNECTOR if connector_is_here() else False, **SETTINGS
        )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


def connector_is_here() -> bool:
    """Whether `make tools` could fetch Spark's Kafka connector."""
    return any(CONNECTOR.glob("spark-sql-kafka*.jar"))
