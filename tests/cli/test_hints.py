"""What people type first, and errors of the library in words of the command line."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import typer.main

import klamm
from klamm.api.hints import HINTS, hint_of
from klamm.cli.hints import ARGUMENTS, COMMANDS, OPTIONS, VERBS
from klamm.cli.main import app, run
from klamm.errors import CorruptBatch, InvalidSetting, KlammError
from tests.cli.conftest import Cli

SOURCE = Path(klamm.__file__).parent
PATHS = ["klamm tail", "klamm send", "klamm serve", "klamm export", "klamm check", "klamm work", "klamm topic create"]


def command_at(path: str) -> Any:
    """The object of a command, such as "klamm topic list"; None if there is none."""
    command: Any = typer.main.get_command(app)
    for word in path.split()[1:]:
        command = command.get_command(None, word)
    return command


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("ls", "there is no command 'klamm ls' (use klamm topic list)"),
        ("produce orders", "(use klamm send)"),
        ("put orders x", "(use klamm send)"),
        ("consume orders", "(use klamm tail)"),
        ("get orders", "(use klamm tail)"),
        ("create orders", "(use klamm topic create)"),
        ("status", "(use klamm info)"),
        ("describe orders", "(use klamm topic show)"),
        ("transactions", "(use klamm tx list)"),
        ("tial orders", "(did you mean 'tail'?)"),
        ("xyzzy", "(see klamm --help)"),
        ("topic ls", "there is no command 'klamm topic ls' (use klamm topic list)"),
        ("topic describe orders", "(use klamm topic show)"),
        ("group rm billing", "(use klamm group delete)"),
        ("tx kill 1", "(use klamm tx abort)"),
        ("tx describe 1", "(see klamm tx --help)"),
        ("topic lst", "(did you mean 'list'?)"),
    ],
)
def test_a_word_of_another_tool_leads_to_the_command(cli: Cli, typed: str, hint: str) -> None:
    said = cli(*typed.split(), code=2)
    assert hint in said.err and said.err.count("\n") == 1 and said.out == b""


def test_every_word_leads_to_a_command_that_is_there_and_is_none_itself() -> None:
    for word, path in COMMANDS.items():
        assert command_at(f"klamm {word}") is None, word
        assert "--" in path or command_at(path) is not None, path
    nouns = [command for name in ("topic", "group", "tx", "dlq") if (command := command_at(f"klamm {name}"))]
    for word, verb in VERBS.items():
        having = [noun for noun in nouns if noun.get_command(None, verb) is not None]
        assert having, verb
        assert all(noun.get_command(None, word) is None for noun in having), word


def test_every_option_that_is_hinted_at_is_one_of_a_command() -> None:
    parameters = [parameter for path in PATHS for parameter in command_at(path).params]
    options = {name for each in parameters if each.param_type_name == "option" for name in each.opts}
    assert {meant.split()[0] for several in OPTIONS.values() for meant in several} <= options
    assert {name for names in ARGUMENTS.values() for name in names.split()} <= {each.name for each in parameters}


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("serve --port 9092", "serve: there is no option --port (use --kafka PORT)"),
        ("serve -p 9092", "(use --kafka PORT)"),
        ("tail orders --limit 5", "(use -n N)"),
        ("tail orders --last 5", "(use -n N)"),
        ("tail orders --until 1h", "(see klamm tail --help)"),
        ("tail --topic orders", "(use klamm tail TOPIC…)"),
        ("send --topic orders x", "(use klamm send TOPIC)"),
        ("send orders --value x", "(use klamm send [VALUE]…)"),
        ("export orders -f csv", "(use -o FORMAT)"),
        ("check --fix", "(use --repair)"),
        ("topic create orders --config retention.ms=1", "(use klamm topic create [NAME=VALUE]…)"),
        ("topic create orders --partition 3", "(did you mean '--partitions'?)"),
        ("--bootstrap-server localhost:9092 topic list", "klamm topic list --store kafka://HOST:PORT)"),
        ("work app:f orders --group g --concurrency 4", "(use --workers N)"),
        ("restore backup", "(use klamm copy)"),
    ],
)
def test_an_option_of_another_tool_leads_to_ours(cli: Cli, typed: str, hint: str) -> None:
    said = cli(*typed.split(), code=2)
    assert said.err.rstrip().endswith(hint), said.err


def test_a_topic_in_the_place_of_a_store_is_told(cli: Cli, store: klamm.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KLAMM_STORE", store.path)
    hint = f"(a path of a store is expected here; without it: {store.path})"
    assert cli("compact", "orders", code=1).err.rstrip().endswith(hint)
    said = cli("copy", "nowhere", str(Path(store.path) / "copy"), code=1)
    assert "there is nothing here (klamm topic create makes a store" in said.err


def test_a_code_of_an_error_and_a_hint_of_the_command_line_come_in_pairs() -> None:
    codes = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in klamm.errors.__all__:
                for keyword in node.keywords:
                    if keyword.arg == "code":
                        codes |= {part.value for part in ast.walk(keyword.value) if isinstance(part, ast.Constant)}
    assert {code for code in codes if isinstance(code, str)} == set(HINTS)


def test_a_hint_is_chosen_by_the_code_whatever_the_sentence() -> None:
    for code, hint in HINTS.items():
        assert hint_of(KlammError("x", hint="call store.something()", code=code)) == hint
        assert "store." not in hint and "=True" not in hint
    assert hint_of(KlammError("x", hint="did you mean 'y'?")) == "did you mean 'y'?"
    assert "klamm check --repair" in str(hint_of(CorruptBatch("x", hint="run check(repair=True)")))


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        (["topic", "show", "zzz"], HINTS["unknown_topic"]),
        (["group", "show", "zzz"], HINTS["unknown_group"]),
        (["group", "reset", "zzz", "--to", "earliest", "--yes"], HINTS["new_group"]),
        (["group", "reset", "biling", "--to", "earliest", "--yes"], "did you mean 'billing'?"),
        (["topic", "create", "orders"], HINTS["topic_exists"]),
        (["compact", "--topic", "orders"], HINTS["not_compacted"]),
        (["dlq", "list", "orders"], HINTS["unknown_topic"]),
    ],
)
def test_errors_of_the_library_tell_which_command_helps(
    cli: Cli, store: klamm.Store, command: list[str], hint: str
) -> None:
    store.topics.create("orders")
    store.append("orders", b"v")
    store.groups.reset("billing", ["orders"], to=0)
    said = run(command)
    assert said in (1, 2)
    assert hint in cli(*command, code=said).err


def test_an_invalid_setting_says_which_it_is_in_a_field() -> None:
    with pytest.raises(InvalidSetting) as raised:
        klamm.store.settings.Settings.of({"retention.ms": "soon"}, where="orders")
    error = raised.value
    assert (error.where, error.setting, error.problem) == ("orders", "retention.ms", "'soon' is invalid")
    assert error.message == "orders: retention.ms: 'soon' is invalid"
