"""Run the long tests, then all mutants: what `make soak` does.

    python -m tests.soak [argument of pytest …]

With arguments, only the tests that they choose. Each run leaves a line in tests/soak.jsonl (ledger.py).
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from tests import ledger

_MOST_TEXT = 300


class Outcome(NamedTuple):
    passed: int
    failures: list[str]
    """Node ids of tests that failed, in their setup or at their end, too."""
    reasons: list[str]
    """Of each: the beginning of its error, and the last seed that it printed."""


def outcome_of(report: Path) -> Outcome | None:
    """Return what a JUnit report of pytest (xunit1) says; None if there is no whole one."""
    try:
        cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return None
    failures: dict[str, str] = {}
    passed = 0
    for case in cases:
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            failures.setdefault(f"{case.get('file')}::{case.get('name')}", _reason(case))
        elif "skipped" not in kinds:
            passed += 1
    return Outcome(passed, sorted(failures), [failures[each] for each in sorted(failures)])


def _reason(case: ElementTree.Element) -> str:
    seeds = re.findall(r"KLAMM_SEED=\d+", case.findtext("system-out", ""))  # not there with -s
    seeds += [each.get("value", "") for each in case.findall("properties/property") if each.get("name") == "seed"]
    messages = [child.get("message", "") for child in case if child.tag in ("failure", "error")]
    return " ".join([*seeds[-1:], *(each[:_MOST_TEXT] for each in messages[:1])])


def run_tests(arguments: Sequence[str], *, record: Path = ledger.LEDGER) -> int:
    """Run pytest on the tests marked `soak`, record how it ended and return its exit code."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="klamm-soak-") as directory:
        report = Path(directory) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "soak", "--timeout", "0"]
        options = [f"--junitxml={report}", "-o", "junit_family=xunit1", "-o", "junit_logging=system-out"]
        process = subprocess.Popen([*command, *options, *arguments], cwd=ledger.ROOT)
        try:
            code = process.wait()
        except KeyboardInterrupt:  # pytest got it, too, and writes its report
            code = process.wait()
        outcome = outcome_of(report)
    ledger.append(
        "soak",
        arguments,
        is_partial=bool(arguments),
        seconds=time.monotonic() - begin,
        passed=outcome.passed if outcome else None,
        failures=outcome.failures if outcome else [],
        reasons=outcome.reasons if outcome else [],
        exit_code=code,
        ledger=record,
    )
    return code


def main(arguments: list[str]) -> int:
    code = run_tests(arguments)
    if not arguments:
        mutants = [sys.executable, "-m", "tests.mutants.run", "--native"]
        code = subprocess.run(mutants, cwd=ledger.ROOT).returncode or code
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
