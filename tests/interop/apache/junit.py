"""JUnit runs classes of Kafka's client integration tests; its report says how each test ended."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from klamm.kafka.settings import SERVER_SETTINGS
from klamm.store.store_settings import STORE_SETTINGS
from tests.interop.apache.jars import java_command
from tests.serving import KLAMM

__all__ = ["Result", "Selection", "run"]

PACKAGE = "org.apache.kafka.clients"
TEST_TIMEOUT = "180s"


class Selection(NamedTuple):
    """Tests of one class: all, or those of some methods."""

    name: str
    """Below PACKAGE: "consumer.PlaintextConsumerTest"."""
    methods: str = ".*"
    without: str = ".*Async.*"
    """Methods that are left out."""


class Result(NamedTuple):
    suite: str
    test: str
    """The name of its method, and the number of the invocation: "testX[2]"."""
    failure: str | None
    """The first line of what was thrown; None if it passed."""
    seconds: float


def run(selection: Selection, classes: str, *, log: Path, timeout_s: float | None = None) -> list[Result]:
    """Run the tests, each on a server of its own; what they print goes to `log`."""
    with tempfile.TemporaryDirectory(prefix="klamm-apache-") as directory:
        reports, stores = Path(directory) / "reports", Path(directory) / "stores"
        stores.mkdir()
        properties = {
            "klamm.command": str(KLAMM),
            "klamm.settings": ",".join(SERVER_SETTINGS),
            "klamm.store.settings": ",".join(STORE_SETTINGS),
            "klamm.stores": str(stores),
            "junit.jupiter.execution.timeout.default": TEST_TIMEOUT,
        }
        options = [
            *("execute", "--disable-banner", "--disable-ansi-colors", "--details=tree", f"--reports-dir={reports}"),
            "--config=junit.jupiter.extensions.autodetection.enabled=true",
            f"--select-class={PACKAGE}.{selection.name}",
            f"--include-methodname=.*[.#]{selection.methods}",
            f"--exclude-methodname={selection.without}",
        ]
        main = "org.junit.platform.console.ConsoleLauncher"
        command = java_command(classes, main, *options, **properties)
        with log.open("wb") as output:
            ended = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, timeout=timeout_s)
        report = reports / "TEST-junit-jupiter.xml"
        if ended.returncode > 1 or not report.exists():
            raise RuntimeError(f"{selection.name}: JUnit ended with {ended.returncode}, see {log}")
        return results_of(selection.name, report)


def results_of(suite: str, report: Path) -> list[Result]:
    results: list[Result] = []
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        problems: Sequence[ElementTree.Element] = [child for child in case if child.tag in ("failure", "error")]
        failure = _cause_of(problems[0]) if problems else None
        name = case.get("name", "").replace("()", "").replace("(ClusterInstance)", "")
        results.append(Result(suite, name, failure, float(case.get("time", "0"))))
    return results


def _cause_of(problem: ElementTree.Element) -> str:
    """Return the innermost cause of a failure, on one line."""
    lines = (problem.text or problem.get("message") or "").splitlines()
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return (causes[-1] if causes else lines[0] if lines else "").strip()[:300]
