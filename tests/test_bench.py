"""The scripts of bench/ run and sign their answers; what they answer is theirs (`make bench`)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
KEYS = {"question", "figure", "unit", "peer", "peer_figure", "ratio", "ratio_range", "want", "ok", "machine", "commit"}


def answers(script: str, tmp_path: Path) -> list[dict[str, object]]:
    run = subprocess.run(
        [sys.executable, "-W", "error", ROOT / "bench" / f"{script}.py", "--quick"],
        capture_output=True,
        text=True,
        env={"KLAMM_BENCH_DIR": str(tmp_path), "PATH": "/usr/bin:/bin"},
        timeout=60,
    )
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


@pytest.mark.parametrize("script", ["import_time", "single_append", "table", "contention"])
def test_each_answer_is_one_signed_line_of_json(script: str, tmp_path: Path) -> None:
    lines = answers(script, tmp_path)
    assert lines
    for line in lines:
        assert line.keys() >= KEYS
        assert line["ok"] in (True, False, None)
        assert (line["ok"] is None) == (line["want"] is None)
    assert list(tmp_path.iterdir()) == []  # what was measured is gone


def test_every_script_asks_a_question_in_its_first_line() -> None:
    for script in (ROOT / "bench").glob("[a-z]*.py"):
        first = script.read_text().splitlines()[0]
        assert first.startswith('"""') and first.endswith("?"), script.name
