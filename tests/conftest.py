"""What all tests share: a store in a directory, how long hypothesis tries, and what a skip means where nothing may be
skipped.

With KLAMM_NO_SKIP set (as .ci/run does), a skipped test is a failed one: a machine that silently cannot run the crash
tests would otherwise look like one that passed them.

On Windows, tests are skipped that ask for what Python (below) or Klamm (windows.py) has not got there.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

import klamm
from tests import clients, windows
from tests.crash.cases import told_seeds
from tests.databases import database, postgres_server  # noqa: F401  # fixtures
from tests.procs import threads_named

if TYPE_CHECKING:
    from tests.kafka.authorities import Authority

# Deadlines measure the machine, not the code, where cores are shared. The database lets a failure come back first.
settings.register_profile("klamm", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("soak", settings.get_profile("klamm"), max_examples=20_000)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The directory of a store that may be yet to be made."""
    return tmp_path / "events"


@pytest.fixture
def store(path: Path) -> Iterator[klamm.Store]:
    """An open store without topics. Folders redefine it to add theirs."""
    with klamm.open(path) as opened:
        yield opened


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority of TLS certificates, and those of a server and a client, in files beside its own."""
    from tests.kafka.authorities import Authority

    made = Authority(tmp_path_factory.mktemp("authority"))
    made.server()
    made.client("alice")
    return made


def pytest_configure(config: pytest.Config) -> None:
    soaking = config.option.markexpr == "soak"
    settings.load_profile("soak" if soaking else "klamm")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job has it ignored


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items if sys.platform == "win32" else []:
        for start, why in windows.SKIPPED.items():
            if item.nodeid.startswith(f"tests/{start}"):
                item.add_marker(pytest.mark.skip(reason=f"Windows: {why}"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Have no garbage looked for while tests are collected, nor later among what is there by then.

    That are hundreds of thousands of modules, functions and tests, which stay to the end.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # the interpreter's last collection is to find everything, else libraries report leaks


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, object, object]:
    """Have no client of librdkafka outlive its test: it would go on to look for its server, and a later fork might copy
    a lock that one of its threads holds.
    """
    result = yield
    if "confluent_kafka" in sys.modules and threads_named("rdk:"):
        clients.close_all()
    return result


def _refuse(report: pytest.TestReport | pytest.CollectReport) -> None:
    if os.environ.get("KLAMM_NO_SKIP") and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"KLAMM_NO_SKIP is set, and this was skipped: {reason}"


_MISSING = re.compile(r"module '(os|signal)' has no attribute '\w+'|No module named '(fcntl|resource)'")


def pytest_runtest_logstart() -> None:
    told_seeds.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    if told_seeds and call.when == "call":
        item.user_properties.append(("seed", told_seeds[-1]))
    report = yield
    if report.failed and told_seeds:
        report.sections.append(("Seed", told_seeds[-1]))
    if sys.platform == "win32" and call.excinfo and (missing := _MISSING.search(str(call.excinfo.value))):
        report.outcome, report.longrepr = "skipped", (__file__, 0, f"Windows: {missing[0]}")
    _refuse(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _refuse(report)
    return report
