"""Run Apache Kafka's own tests against `klamm serve`.

    python -m tests.interop.apache                      all client integration tests that can run from outside
    python -m tests.interop.apache consumer.PlaintextConsumerTest[.METHOD] …     some of them
    python -m tests.interop.apache --all                those that are expected to fail, too
    python -m tests.interop.apache --record …           and write the results into docs/reference/apache-kafka-tests.md
    python -m tests.interop.apache streams              Kafka Streams' StreamsSmokeTest, with kills
    python -m tests.interop.apache connect              Kafka Connect, exactly once, with kills

Ends with 1 if a test failed that should pass.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from tests.interop.apache import page
from tests.interop.apache.jars import class_path, fetch
from tests.interop.apache.junit import Result, Selection, run
from tests.interop.apache.suites import SUITES, reason_against


def selections(arguments: list[str]) -> list[Selection]:
    """What the arguments choose; without any, each suite that runs."""
    chosen = []
    for argument in arguments:
        package, _, rest = argument.rpartition(".")
        if package in SUITES:
            chosen.append(Selection(package, rest))
        else:
            chosen.append(Selection(argument))
    return chosen or [Selection(name) for name, suite in SUITES.items() if suite.why_not is None]


def show(result: Result, *, is_expected: bool) -> None:
    how = "passed" if result.failure is None else "failed as expected" if is_expected else "FAILED"
    why = f": {result.failure}" if result.failure else ""
    print(f"  {how} {result.test} in {result.seconds:.1f} s{why}", flush=True)


def main(arguments: list[str]) -> int:
    options = {argument for argument in arguments if argument.startswith("--")}
    names = [argument for argument in arguments if not argument.startswith("--")]
    fetch()
    classes = class_path()
    if names == ["streams"]:
        from tests.interop.apache import streams

        return streams.main(classes)
    if names == ["connect"]:
        from tests.interop.apache import connect

        return connect.main(classes)
    results: list[Result] = []
    started = time.monotonic()
    logs = Path(tempfile.mkdtemp(prefix="klamm-apache-logs-"))
    print(f"what tests print goes to {logs}", flush=True)
    for selection in selections(names):
        without = selection.without
        if "--all" not in options and selection.methods == ".*" and (suite := SUITES.get(selection.name)):
            without = "|".join([without, *(f".*[.#]{test}" for test in suite.cannot_pass)])
        print(selection.name, flush=True)
        ended = run(selection._replace(without=without), classes, log=logs / f"{selection.name}.log")
        for result in ended:
            show(result, is_expected=reason_against(result) is not None)
        results += ended
    unexpected = [result for result in results if result.failure is not None and reason_against(result) is None]
    passed = sum(result.failure is None for result in results)
    print(
        f"{passed} of {len(results)} passed, {len(unexpected)} failed unexpectedly, {time.monotonic() - started:.0f} s"
    )
    if "--record" in options:
        page.record(results)
    return 1 if unexpected or not results else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
