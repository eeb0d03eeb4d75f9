"""How long runs are recorded (soak.py, ledger.py)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ledger, soak

TESTS = """
import pytest

def test_passes():
    pass

@pytest.mark.parametrize("n", [1, 2])
def test_fails(n):
    print("KLAMM_SEED=1", "KLAMM_SEED=77")
    assert n == 1

def test_shows_no_output(record_property):
    record_property("seed", "KLAMM_SEED=5")  # as conftest.py does: with -s there is no output in the report
    assert False

def test_is_skipped():
    pytest.skip("today")

@pytest.fixture
def broken():
    raise OSError("no")

def test_cannot_begin(broken):
    pass
"""


def test_a_report_of_pytest_is_counted_by_outcome(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    options = ["-o", "junit_family=xunit1", "-o", "junit_logging=system-out"]
    done = subprocess.run([*command, *options, "test_some.py"], cwd=tmp_path, capture_output=True)
    assert done.returncode == 1, done.stdout
    found = soak.outcome_of(report)
    assert found is not None
    names = ["test_cannot_begin", "test_fails[2]", "test_shows_no_output"]
    assert found[:2] == (2, [f"test_some.py::{name}" for name in names])
    assert found.reasons[0].endswith('OSError: no"')
    assert found.reasons[1].startswith("KLAMM_SEED=77 ") and "assert 2 == 1" in found.reasons[1]
    assert found.reasons[2].startswith("KLAMM_SEED=5 ")


def test_a_report_that_is_missing_or_cut_off_counts_nothing(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    assert soak.outcome_of(report) is None
    report.write_text("<testsuites><testsuite>")
    assert soak.outcome_of(report) is None


def test_a_run_appends_a_line_that_names_the_tree_it_ran_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KLAMM_SOAK_SECONDS", "7")
    path = tmp_path / "soak.jsonl"
    for code in (0, 1):
        ledger.append(
            "soak",
            ["-k", "x"],
            is_partial=True,
            seconds=2.4,
            passed=3,
            failures=["a"] * code,
            reasons=["why"] * code,
            exit_code=code,
            ledger=path,
        )
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    tree = subprocess.run(["git", "rev-parse", "HEAD:src"], cwd=ledger.ROOT, capture_output=True, text=True).stdout
    assert [(line["tree"], line["exit"], line["failed"]) for line in lines] == [
        (tree.strip(), 0, 0),
        (tree.strip(), 1, 1),
    ]
    assert "reasons" not in lines[0] and lines[1]["reasons"] == ["why"]
    assert lines[0]["soak_seconds"] == "7" and lines[0]["is_partial"] and lines[0]["arguments"] == ["-k", "x"]


def test_every_line_of_the_ledger_can_be_read_and_has_all_fields() -> None:
    for line in ledger.LEDGER.read_text().splitlines():
        assert {"date", "run", "arguments", "is_partial", "tree", "is_dirty", "seconds", "exit"} <= json.loads(
            line
        ).keys()
