"""-o: which of JSON and tables a command prints, on a terminal and in a pipe."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from docs.reference.generate import walk_commands

import klamm
from klamm.cli import output
from klamm.cli.output import json_line
from tests.cli.conftest import Cli
from tests.cli.terminal import terminal
from tests.serving import KLAMM

T0 = 1_700_000_000_000
OWN_FORMATS = {"klamm export", "klamm import", "klamm group export"}  # which print or read files of their formats
NO_RESULTS = {"klamm cheat", "klamm serve", "klamm console"}


@pytest.fixture
def orders(store: klamm.Store) -> klamm.Store:
    store.topics.create("orders", 2)
    store.append_many("orders", [(b"k", b"v%d" % n, [], T0 + n) for n in range(3)], partition=0)
    store.groups.reset("billing", ["orders"], to=1)
    return store


def test_every_command_that_prints_results_takes_a_format() -> None:
    without = set()
    for name, command in walk_commands():
        if not {"-o", "--format"} <= {option for parameter in command.params for option in parameter.opts}:
            without.add(name)
    assert without == NO_RESULTS | OWN_FORMATS - {"klamm export"}


@pytest.mark.parametrize(
    "command",
    [
        "topic list",
        "topic show orders",
        "topic create more",
        "topic set orders retention.ms=1000",
        "topic purge orders --yes",
        "topic delete orders --yes",
        "group list",
        "group show billing",
        "group reset billing --to earliest --yes",
        "group delete billing --yes",
        "dlq list orders.dlq",
        "dlq purge orders.dlq --yes",
        "tx list",
        "info",
        "who",
        "check",
        "salvage --files",
        "compact",
        "upgrade --check",
        "backup one",
        "tail orders",
        "send orders value",
    ],
)
def test_a_pipe_gets_json_unless_a_table_is_asked_for(
    cli: Cli, home: Path, orders: klamm.Store, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command is run twice, on copies of one store."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    orders.topics.create("orders.dlq")
    orders.close()
    shutil.copytree(home, copy := home.with_name("copy-of-it"))
    by_default = cli(*command.split())
    monkeypatch.setenv("KLAMM_STORE", str(copy))
    table = cli(*command.replace("backup one", "backup two").split(), "-o", "table")
    assert all(isinstance(row, dict) for row in by_default.rows)
    assert "{" not in table.text and "\x1b" not in table.text
    assert table.text or table.err or not by_default.rows  # a sentence, where a program gets an object


def test_the_program_prints_a_table_into_a_pipe_without_colours(home: Path, orders: klamm.Store) -> None:
    environment = {**os.environ, "FORCE_COLOR": "1"}
    command = [str(KLAMM), "topic", "list", "-o", "table"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    head, _, row = done.stdout.splitlines()
    assert head.split() == ["topic", "partitions", "offsets", "size", "settings"]
    assert row.split()[:3] == ["orders", "2", "3"]


def test_a_table_in_a_pipe_is_as_wide_as_it_has_to_be(cli: Cli, store: klamm.Store) -> None:
    names = [f"{letter * 100}" for letter in "ab"]
    for name in names:
        store.topics.create(name, 1, {"cleanup.policy": "compact", "retention.ms": 1000, "segment.ms": 1000})
    _, _, *rows = cli("topic", "list", "-o", "table").text.splitlines()
    assert [row.split()[0] for row in rows] == names
    assert all("segment.ms=1000" in row for row in rows)


def test_rows_of_sql_come_as_a_table_and_as_json(cli: Cli, orders: klamm.Store) -> None:
    query = "select range as n from range(1500)"
    lines = cli("sql", query, "-o", "table").text.split()
    assert lines[0] == "n" and lines[2:] == [f"{n:,}" for n in range(1500)]
    assert cli("sql", query, "--format", "json").rows == [{"n": n} for n in range(1500)]


def test_another_format_is_refused_before_anything_is_done(cli: Cli, orders: klamm.Store) -> None:
    told = cli("topic", "delete", "orders", "--yes", "-o", "yaml", code=2).err
    assert "'yaml' is invalid; expected json or table" in told
    assert list(orders.topics) == ["orders"]


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        (["topic", "list", "--json"], "topic list: there is no option --json (use -o json)"),
        (["tail", "orders", "--table"], "tail: there is no option --table (use -o table)"),
        (["who", "--output", "json"], "who: there is no option --output (use -o)"),
        (["tail", "orders", "--bootstrap-server", "localhost:9092"], "(use --store kafka://HOST:PORT)"),
        (["cheat", "--json"], "cheat: there is no option --json (see klamm cheat --help)"),
        (["--store", "x", "topic", "list"], "it goes behind the command"),
    ],
)
def test_options_of_other_tools_lead_to_ours(cli: Cli, typed: list[str], hint: str) -> None:
    assert hint in cli(*typed, code=2).err


def test_json_for_a_terminal_has_no_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"value": "\x9b31m\x1b[2J\x7fred ü"}
    assert json.loads(json_line(row)) == row and "\x9b" in json_line(row)
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    assert json_line(row) == r'{"value": "\u009b31m\u001b[2J\u007fred ü"}'
    assert json.loads(json_line(row)) == row


@pytest.mark.skipif(shutil.which("tmux") is None, reason="there is no tmux: `make tools` installs it")
def test_a_terminal_gets_json_if_it_is_asked_for(home: Path, orders: klamm.Store) -> None:
    orders.append("orders", "\x9b31m\x1b[2J\x7fred".encode(), partition=1)
    with terminal(KLAMM_STORE=str(home)) as screen:
        listed = screen.run("klamm topic list -o json").replace("\n", "")
        assert '{"topic": "orders", "partitions": 2, "offsets": 4' in listed
        shown = screen.run("klamm tail orders -n 1 -o json").replace("\n", "")
        assert r'"value": "\u009b31m\u001b[2J\u007fred"' in shown
        assert screen.run("klamm topic list -o table | cat").count("orders") == 1
