"""docs/reference/apache-kafka-tests.md: its tables come from the last recorded runs (results.json) and suites.py."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

from tests.interop.apache.junit import Result
from tests.interop.apache.suites import SUITES, reason_against

__all__ = ["PAGE", "generated", "record", "recorded"]

HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "docs" / "reference" / "apache-kafka-tests.md"
RESULTS = HERE / "results.json"


def recorded() -> list[Result]:
    """Return the results of the last recorded run of each suite."""
    return [
        Result(suite, test, failure, 0.0)
        for suite, tests in json.loads(RESULTS.read_text()).items()
        for test, failure in tests.items()
    ]


def is_run(name: str) -> bool:
    return name in SUITES and SUITES[name].why_not is None


def record(results: Iterable[Result]) -> None:
    """Save the results, in place of earlier ones of the same tests, and write the page again."""
    tests: dict[str, dict[str, str | None]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for result in results:
        tests.setdefault(result.suite, {})[result.test] = result.failure
    ordered = {name: dict(sorted(tests[name].items())) for name in sorted(tests) if is_run(name)}
    RESULTS.write_text(json.dumps(ordered, indent=1) + "\n")
    PAGE.write_text(generated())


def generated() -> str:
    """Return the page with its tables written again."""
    text = PAGE.read_text()
    for name, table in (("suites", _suites()), ("outside", _outside()), ("left out", _left_out())):
        edge = f"<!-- begin: {name} -->\n", f"\n<!-- end: {name} -->"
        text = re.sub(f"{edge[0]}.*?{edge[1]}", lambda _, t=table, e=edge: f"{e[0]}{t}{e[1]}", text, flags=re.DOTALL)  # type: ignore[misc]
    return text


def _suites() -> str:
    rows = ["| class | tests | passed | cannot pass |", "|---|---|---|---|"]
    counts = [0, 0, 0]
    by_suite: dict[str, list[Result]] = {}
    for result in recorded():
        by_suite.setdefault(result.suite, []).append(result)
    for name, results in by_suite.items():
        passed = sum(result.failure is None for result in results)
        cannot = sum(result.failure is not None and reason_against(result) is not None for result in results)
        rows.append(f"| `{name}` | {len(results)} | {passed} | {cannot or ''} |")
        counts = [counts[0] + len(results), counts[1] + passed, counts[2] + cannot]
    rows.append(f"| all | {counts[0]} | {counts[1]} | {counts[2]} |")
    return "\n".join(rows)


def _outside() -> str:
    rows = ["| test | why it cannot pass |", "|---|---|"]
    for name, suite in SUITES.items():
        rows += [f"| `{name}.{test}` | {reason} |" for test, reason in sorted(suite.cannot_pass.items())]
    return "\n".join(rows)


def _left_out() -> str:
    rows = ["| class | why it is not run |", "|---|---|"]
    rows += [f"| `{name}` | {suite.why_not} |" for name, suite in sorted(SUITES.items()) if suite.why_not]
    return "\n".join(rows)
