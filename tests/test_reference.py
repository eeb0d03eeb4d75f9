"""Tables of the reference are those of the code."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from docs.reference.generate import PAGES, generated, walk_commands

from klamm.kafka.collector import METRICS
from klamm.kafka.settings import SERVER_SETTINGS

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "reference"


def run_klamm(*arguments: str) -> str:
    command: list[str | Path] = [Path(sys.executable).parent / "klamm", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


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
    told = run_klamm("serve", "--help")
    guide = (ROOT / "docs" / "guide" / "serving.md").read_text()
    options = {word for word in told.split() if word.startswith("--") and word != "--help"}
    settings = {f"--{name}" for name in SERVER_SETTINGS}
    assert "--kafka" in options and "--set" in options
    assert sorted(option for option in options - settings if option not in guide) == []


def test_every_command_and_each_of_its_options_is_documented_with_its_help() -> None:
    page = (REFERENCE / "cli.md").read_text()
    parts = {part.partition("\n")[0]: part for part in page.split("\n## ")}
    told = [word for word in run_klamm("--help").partition("Commands:")[2].splitlines() if word.startswith("  ")]
    nouns = {line.split()[0] for line in told}
    assert {name.split()[1] for name in parts if name.startswith("klamm ")} == nouns
    for name, command in walk_commands():
        for parameter in command.params:
            for option in parameter.opts if parameter.param_type_name == "option" else ():
                assert f"`{option}" in parts[name], f"{name} {option}: run `make docs`"
            assert parameter.help, f"{name}: {parameter.name} has no help"
            assert " ".join(parameter.help.split()).replace("|", "\\|") in parts[name]


def test_the_guide_of_the_command_line_tells_of_every_command() -> None:
    guide = (ROOT / "docs" / "guide" / "command-line.md").read_text()
    assert [name for name, _ in walk_commands() if name not in guide] == []


def test_every_pipeline_and_its_options_are_documented() -> None:
    pytest.importorskip("pyspark")
    from klamm.spark import pipelines

    page = (REFERENCE / "spark.md").read_text().partition("## Pipelines")[2]
    missing = []
    for name in pipelines.__all__:
        thing = getattr(pipelines, name)
        if inspect.isfunction(thing):
            options = list(inspect.signature(thing).parameters.values())
            given = [each.name for each in options if each.kind is not inspect.Parameter.KEYWORD_ONLY]
            row = next((line for line in page.splitlines() if line.startswith(f"| `{name}({', '.join(given)})` |")), "")
            wanted = [f"`{each.name}`" for each in options if each.kind is inspect.Parameter.KEYWORD_ONLY]
            missing += [
                f"{name}: {each}"
                for each in wanted
                if each not in row or f"{each}" not in page.partition("| option |")[2]
            ]
        elif f"`{name}`" not in page:
            missing.append(name)
    assert missing == []
