"""One Spark session for all tests of this directory: a JVM takes seconds to start."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

import klamm
import klamm.spark
from klamm.spark.server import client, decision
from tests.spark.classes import PYTHONPATH
from tests.spark.forks import forks
from tests.spark.settings import SETTINGS

ROOT = Path(__file__).parents[2]
CONNECTOR = ROOT / ".tools" / "spark-kafka"
DELTA = ROOT / ".tools" / "spark-delta"
TOO_SLOW = "Python worker failed to connect back"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test once more if a Python worker of Spark's did not start in time.

    Spark gives it 10 s, and has no setting for that: a machine that stalls for so long fails a test that is right.
    """
    if not isinstance(item, pytest.Function) or Path(__file__).parent not in item.path.parents:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    if any(report.failed and TOO_SLOW in report.longreprtext for report in reports):
        print(f"{item.nodeid}: {TOO_SLOW}: once more")
        item._initrequest()
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.fixture(scope="session", autouse=True)
def _quick_workers() -> Iterator[None]:
    """Spark's Python workers, of any session that a test starts, are forks of one process."""
    pytest.importorskip("pyspark")
    with forks() as variables, pytest.MonkeyPatch.context() as patch:
        for name, value in {"PYTHONPATH": PYTHONPATH, **variables}.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def spark(_quick_workers: None) -> Iterator[Any]:
    """Two cores; a task may fail once."""
    pytest.importorskip("pyspark")
    jars = {"spark.jars": ",".join(map(str, sorted(DELTA.glob("*.jar"))))} if delta_is_here() else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pyspark's own
        session = klamm.spark.session(
            master="local[2,2]", kafka=CONNECTOR if connector_is_here() else False, **SETTINGS, **jars
        )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


def connector_is_here() -> bool:
    """Whether `make tools` could fetch Spark's Kafka connector."""
    return any(CONNECTOR.glob("spark-sql-kafka*.jar"))


def delta_is_here() -> bool:
    """Whether `make tools` could fetch Delta Lake for Spark."""
    return any(DELTA.glob("delta-spark*.jar"))


@pytest.fixture
def clients() -> Iterator[None]:
    """Close the clients of servers that this process keeps for tasks and drivers, and forget what drivers did."""
    yield
    for _, each in client._clients.values():
        each.close()
    client._clients.clear()
    decision._recorded.clear()
