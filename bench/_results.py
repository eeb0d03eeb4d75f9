"""Results: one line of JSON for each comparison, in results/<date>.jsonl. Lines are appended, never changed or removed.

`_harness.py` lists the fields of a line. What readers need to know of older ones:

    ok      "yes", "unsure" or "no", by the whole range (`judge`). Older lines have true or false, by the median alone;
            `verdict` judges those again, where they have a range
    tree    the git tree of src/ that was measured; it survives a squash, which a commit does not. Older lines have
            none: they are shown as not traced
    dirty, busy    older lines have neither; a + at the end of their commit says dirty

A question may have many lines. The one that counts is the newest that is traced, clean and of a quiet machine; if there
is none, the newest that is traced; else the newest (`newest`).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
VERSION = re.compile(r" \d+(\.\d+)+")

Line = dict[str, Any]
Key = tuple[str, str, str]


# ---- goals


@dataclass
class Want:
    """A goal, for the ratio unless `of` says "figure"."""

    text: str
    of: str = "ratio"
    relation: str = field(init=False)
    limit: float = field(init=False)

    def __post_init__(self) -> None:
        self.relation, limit = self.text.split()[:2]
        self.limit = float(limit)

    def is_met_by(self, value: float) -> bool:
        return value >= self.limit if self.relation == ">=" else value <= self.limit


def at_least(limit: float, of: str = "ratio") -> Want:
    return Want(f">= {limit:g}", of)


def at_most(limit: float, of: str = "ratio") -> Want:
    return Want(f"<= {limit:g}", of)


def judge(want: Want | None, least: float, most: float) -> str | None:
    """Return "yes" if every round met the goal, "no" if none did, "unsure" if some did, None without a goal."""
    if want is None:
        return None
    met = {want.is_met_by(least), want.is_met_by(most)}
    return "unsure" if len(met) == 2 else "yes" if met == {True} else "no"


def verdict(line: Line) -> str | None:
    """Return what `judge` says of a line of any age."""
    ok = line["ok"]
    if ok is None or isinstance(ok, str):
        return ok
    of, text = line["want"].split(" ", 1)
    if of == "ratio" and line["ratio_range"]:
        return judge(Want(text), *line["ratio_range"])
    return "yes" if ok else "no"


# ---- lines


def append(line: Line, folder: Path = RESULTS) -> Path:
    """Add a line to the file of today, by one write, and return the path of the file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{datetime.now(UTC):%Y-%m-%d}.jsonl"
    text = json.dumps(line, ensure_ascii=False) + "\n"
    with path.open("ab+") as file:
        if file.tell() and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":  # an editor removed it
            text = "\n" + text
        file.write(text.encode())
    return path


def read(folder: Path = RESULTS) -> list[Line]:
    """Return all lines, oldest first."""
    lines = [json.loads(text) for path in sorted(folder.glob("*.jsonl")) for text in path.read_text().splitlines()]
    return sorted(lines, key=lambda line: str(line["at"]))


def key_of(line: Line) -> Key:
    """Return what makes two lines answers to one question: script, question, and peer without its version."""
    return line["script"], line["question"], VERSION.sub("", line["peer"] or "")


def is_traced(line: Line) -> bool:
    return bool(line.get("tree")) and not line["dirty"]


def is_busy(line: Line) -> bool:
    return bool(line.get("busy"))


def newest(lines: Iterable[Line]) -> dict[Key, Line]:
    """Return the line that counts of each question."""
    best: dict[Key, Line] = {}
    for line in lines:
        key = key_of(line)
        if key not in best or _rank(line) >= _rank(best[key]):
            best[key] = line
    return best


def _rank(line: Line) -> tuple[int, str]:
    return is_traced(line) + (is_traced(line) and not is_busy(line)), str(line["at"])


@dataclass
class Score:
    """How many goals were met. A line of a busy machine or of changed sources never counts as met."""

    met: int = 0
    unsure: int = 0
    missed: int = 0
    uncounted: int = 0
    """Within the goal, but on a busy machine or from a tree that cannot be traced."""

    def __str__(self) -> str:
        count = self.met + self.unsure + self.missed + self.uncounted
        uncounted = f", {self.uncounted} not counted (busy machine or untraced tree)" if self.uncounted else ""
        return f"of {count} goals {self.met} met, {self.unsure} unsure, {self.missed} missed{uncounted}"


def score(lines: Iterable[Line]) -> Score:
    total = Score()
    for line in lines:
        match verdict(line):
            case "yes" if is_traced(line) and not is_busy(line):
                total.met += 1
            case "yes":
                total.uncounted += 1
            case "unsure":
                total.unsure += 1
            case "no":
                total.missed += 1
    return total
