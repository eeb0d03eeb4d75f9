"""The parts of the reference that are tables of the code: `make docs` writes them, a test compares.

A page has them between <!-- begin: name --> and <!-- end: name -->; what is around is written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer.main

from klamm.cli.main import COMMANDS, app
from klamm.kafka.apis import TABLE
from klamm.kafka.collector import MAX_OFFSETS, MAX_PARTITIONS, METRICS
from klamm.kafka.config_entries import FIXED_TOPIC_CONFIGS
from klamm.kafka.settings import SERVER_SETTINGS

HERE = Path(__file__).parent


def apis() -> str:
    rows = ["| API | key | versions | runs in | rights | |", "|---|---|---|---|---|---|"]
    for _, row in sorted(TABLE.items()):
        versions = f"{row.min_version}–{row.max_version}" if row.min_version < row.max_version else str(row.max_version)
        runs = ", ".join(place.value for place in row.runs)
        rights = ", ".join(row.rights)
        rows.append(f"| {row.api.name} | {row.api.key} | {versions} | {runs} | {rights} | {_cell(row.notes)} |")
    return "\n".join(rows)


def facts() -> str:
    rows = ["| setting | value | meaning in Kafka, and here |", "|---|---|---|"]
    for row in FIXED_TOPIC_CONFIGS.values():
        rows.append(f"| `{row.name}` | {f'`{row.value}`' if row.value else '(empty)'} | {_cell(row.doc)} |")
    return "\n".join(rows)


def server_settings() -> str:
    rows = ["| setting | type | default | values | meaning |", "|---|---|---|---|---|"]
    for row in SERVER_SETTINGS.values():
        default = f"`{row.default}`" if row.default != "" else "(empty)"
        if row.choices:
            values = " or ".join(f"`{choice}`" for choice in row.choices)
        elif row.type == "string":
            values = ""
        else:
            values = f"{row.low} to {row.high}"
        rows.append(f"| `{row.name}` | {row.type} | {default} | {values} | {_cell(row.doc)} |")
    return "\n".join(rows)


def metrics() -> str:
    rows = ["| metric | kind | labels | |", "|---|---|---|---|"]
    suffix = {"counter": "_total", "info": "_info"}
    for row in METRICS.values():
        labels = ", ".join(f"`{label}`" for label in row.labels)
        rows.append(f"| `{row.name}{suffix.get(row.kind, '')}` | {row.kind} | {labels} | {_cell(row.doc)} |")
    return "\n".join(rows)


def bounds() -> str:
    most = f"{MAX_PARTITIONS:,} partitions and {MAX_OFFSETS:,} offsets of groups"
    return f"A scrape gives at most {most}, the first by name."


def walk_commands() -> Iterator[tuple[str, Any]]:
    """Every command with what it is called: ("klamm topic create", its object)."""
    group: Any = typer.main.get_command(app)
    for name in COMMANDS:
        command = group.get_command(None, name)
        nested = getattr(command, "commands", None)
        if nested is None:
            yield f"klamm {name}", command
        else:
            yield from ((f"klamm {name} {verb}", each) for verb, each in nested.items())


def commands() -> str:
    parts = []
    for name, command in walk_commands():
        shown = [parameter for parameter in command.params if not parameter.hidden]
        arguments = [parameter for parameter in shown if parameter.param_type_name == "argument"]
        usage = " ".join([name, *(parameter.metavar for parameter in arguments), "[OPTIONS]"])
        parts += [f"## {name}", "", f"`{usage}`", "", " ".join(command.help.split()), "", "| | |", "|---|---|"]
        for parameter in shown:
            parts.append(f"| {_spelled(parameter)} | {_cell(_meaning(parameter))} |")
        parts.append("")
    return "\n".join(parts).rstrip()


def _spelled(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar}`"
    value = "" if parameter.is_flag else f" {parameter.metavar}"
    return _cell(", ".join(f"`{option}{value}`" for option in [*parameter.opts, *parameter.secondary_opts]))


def _meaning(parameter: Any) -> str:
    told = parameter.help or ""
    if parameter.envvar:
        told += f" Or `${parameter.envvar}`."
    has_default = parameter.default not in (None, ()) and not callable(parameter.default)
    if parameter.param_type_name == "option" and not parameter.is_flag and has_default:
        told += f" [default: {parameter.default}]"
    return told


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


PAGES: dict[str, dict[str, Callable[[], str]]] = {
    "cli.md": {"commands": commands},
    "kafka-apis.md": {"apis": apis, "facts": facts},
    "metrics.md": {"metrics": metrics, "bounds": bounds},
    "server-settings.md": {"settings": server_settings},
}


def generated(page: str) -> str:
    """The page with its tables as the code has them now."""
    text = (HERE / page).read_text()
    for name, part in PAGES[page].items():
        text = replace_part(text, name, part(), page)
    return text


def replace_part(text: str, name: str, part: str, page: str) -> str:
    """Return the text of a page with the part of that name replaced."""
    begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    assert len(pattern.findall(text)) == 1, f"{page}: wants one part {name!r}"
    return pattern.sub(lambda _: f"{begin}\n{part}\n{end}", text)


if __name__ == "__main__":
    for page in PAGES:
        (HERE / page).write_text(generated(page))
