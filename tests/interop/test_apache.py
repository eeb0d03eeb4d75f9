"""Some of Apache Kafka's own client integration tests, and the page about all of them. `python -m tests.interop.apache`
runs the rest.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.interop.apache import page
from tests.interop.apache.jars import JARS, POM, class_path, fetch
from tests.interop.apache.junit import Selection, run
from tests.interop.apache.suites import SUITES, reason_against
from tests.interop.java_tools import need_kafka

OTHER_POM = Path(__file__).parent / "kafka" / "pom.xml"


@pytest.mark.jvm
def test_kafkas_own_tests_of_rebalance_listeners_pass(tmp_path: Path) -> None:
    need_kafka()
    if not (JARS / "pom.xml").exists():
        pytest.skip("Apache Kafka's tests are not in .tools: see `make tools`")
    fetch()
    selection, log = Selection("consumer.PlaintextConsumerCallbackTest"), tmp_path / "log"
    results = run(selection, class_path(), log=log, timeout_s=300)
    assert [result for result in results if result.failure] == [], log.read_text()[-8000:]
    assert len(results) >= 10


def test_the_page_has_the_recorded_results() -> None:
    assert page.PAGE.read_text() == page.generated(), "run `python -m tests.interop.apache --record`"


def test_every_test_that_failed_has_its_reason_and_every_reason_a_test_that_failed() -> None:
    results = page.recorded()
    assert [result for result in results if result.failure is not None and reason_against(result) is None] == []
    failed = {(result.suite, result.test.partition("[")[0]) for result in results if result.failure is not None}
    reasons = {(name, test) for name, suite in SUITES.items() for test in suite.cannot_pass}
    assert sorted(reasons - failed) == []
    assert sorted({result.suite for result in results}) == sorted(n for n, suite in SUITES.items() if not suite.why_not)


def test_both_apache_kafkas_are_of_one_version() -> None:
    versions = [re.findall(r"<(kafka|log4j)>([\d.]+)<", pom.read_text()) for pom in (OTHER_POM, POM)]
    assert versions[0] == versions[1] and len(versions[0]) == 2
