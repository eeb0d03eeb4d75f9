"""Tables of the reference are those of the code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from docs.reference.generate import PAGES, generated

from klamm.kafka.collector import METRICS
from klamm.kafka.settings import SERVER_SETTINGS

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "reference"


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_what_make_docs_would_write(page: str) -> None:
    assert (REFERENCE / page).read_text() == generated(page), "run `make docs`"


def test_every_setting_of_a_server_is_documented() -> None:
    lines = (REFERENCE / "server-settings.md").read_text().splitlines()
    rows = [(f"| `{row.name}` | {row.type} |", row.doc) for row in SERVER_SETTINGS.values()]
    assert [start for start, doc in rows if not any(line.startswith(start) and doc in line for line in lines)] == []


def test_every_metric_is_documented() -> None:
    page = (REFERENCE / "metrics.md").read_text()
    assert [name for name in METRICS if f"| `{name}" not in page] == []


def test_every_option_of_klamm_serve_is_in_the_guide() -> None:
    told = subprocess.run(
        [Path(sys.executable).parent / "klamm", "serve", "--help"], capture_output=True, text=True, check=True
    ).stdout
    guide = (ROOT / "docs" / "guide" / "serving.md").read_text()
    options = {word for word in told.split() if word.startswith("--") and word != "--help"}
    settings = {f"--{name}" for name in SERVER_SETTINGS}
    assert "--kafka" in options and "--set" in options
    assert sorted(option for option in options - settings if option not in guide) == []
