"""docs/internals/mutants.md: every mutant with the test that noticed it when it was last run."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from pathlib import Path

from tests.mutants.mutant import ROOT, areas

DOCUMENT = ROOT / "docs" / "internals" / "mutants.md"
GENERATED = "<!-- Below is written by `make mutants`; do not edit. -->"

NOT_RUN = "not run yet"

_ROW = re.compile(r"^\| .+? \| (?P<name>.+?) \| `(?P<test>[^`]+)` \|$", re.MULTILINE)


def noticed(document: Path = DOCUMENT) -> dict[str, str]:
    """Return, by the name of a mutant, the test that noticed it, as the document says."""
    return {_unescaped(row["name"]): row["test"] for row in _ROW.finditer(document.read_text())}


def tables(tests: Mapping[str, str]) -> str:
    """Return the generated part: a table for each area. Mutants without a test in `tests` have not been run yet."""
    parts = []
    for area in areas():
        module = importlib.import_module(f"tests.mutants.{area}")
        rows = [
            f"| {_escaped(mutant.breaks)} | {_escaped(mutant.name)} | {_cell(tests.get(mutant.name))} |"
            for mutant in module.MUTANTS
        ]
        assert module.__doc__, f"{area} has no docstring"
        title = f"## {area.replace('_', ' ').capitalize()}\n\n{module.__doc__.splitlines()[0]}"
        parts.append("\n".join([f"{title}\n", "| breaks | mutant | noticed by |", "|---|---|---|", *rows, ""]))
    return "\n".join(parts)


def write(found: Mapping[str, str], document: Path = DOCUMENT) -> None:
    """Replace the generated part; mutants that are not in `found` keep the test that they had."""
    above, _, _ = document.read_text().partition(GENERATED)
    document.write_text(f"{above}{GENERATED}\n\n{tables({**noticed(document), **found})}")


def _cell(test: str | None) -> str:
    return NOT_RUN if test is None else f"`{test}`"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def _unescaped(text: str) -> str:
    return text.replace("\\|", "|")
