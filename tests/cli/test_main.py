"""The program: how it is called, how it fails, and what it costs to ask for help."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

import klamm
from klamm.cli.cheat import CHEATS
from klamm.cli.main import COMMANDS, app, run
from tests.cli.conftest import Cli
from tests.serving import KLAMM

ACTS = ["tail", "send", "sql", "export", "import"]
NOUNS = {
    "topic": ["create", "list", "show", "set", "purge", "delete"],
    "group": ["list", "show", "reset", "delete", "export", "import"],
    "tx": ["list", "abort"],
    "dlq": ["list", "redrive", "purge"],
    "user": ["add", "list", "passwd", "remove"],
    "acl": ["add", "list", "remove", "explain"],
    "quota": ["set", "list", "remove"],
    "pipeline": [
        *("archive", "restore", "compact", "aggregate", "join", "deduplicate", "quality"),
        *("list", "show", "reset", "retire"),
    ],
}


def test_help_names_daily_acts_first_and_nouns_last(cli: Cli) -> None:
    told = cli("--help").text
    listed = [line.split()[0] for line in told.partition("Commands:")[2].splitlines() if line.startswith("  ")]
    assert listed[: len(ACTS)] == ACTS
    assert listed[-len(NOUNS) :] == list(NOUNS)
    assert cli("-h").text == told


def test_help_says_of_a_command_what_the_command_says_of_itself() -> None:
    root: Any = typer.main.get_command(app)
    for name, (_, what) in COMMANDS.items():
        assert root.get_command(None, name).help.startswith(what), name


def test_without_the_extra_the_command_names_the_line_that_installs_it() -> None:
    code = "import sys; sys.modules['typer'] = None; from klamm.__main__ import main; main()"
    ended = subprocess.run([sys.executable, "-c", code, "topic", "list"], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "klamm: typer is not installed (pip install 'klamm[cli]')\n"


def test_the_version_is_that_of_the_package(cli: Cli) -> None:
    assert cli("--version").text == f"klamm {klamm.__version__}\n"


def test_without_a_command_help_goes_to_stderr_and_it_was_a_wrong_call(cli: Cli) -> None:
    assert run([]) == 2
    for noun, verbs in NOUNS.items():
        assert run([noun]) == 2
        told = cli(noun, "--help").text
        assert [verb for verb in verbs if f"\n  {verb} " not in told] == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["tial", "orders"], "did you mean 'tail'"),
        (["tail"], "tail: missing argument 'TOPIC…'"),
        (["tail", "orders", "--frm", "1"], "--from"),
        (["tail", "orders", "-n", "few"], "'few' is not a whole number"),
        (["tail", "orders", "-n", "-1"], "-1 is not in the range"),
        (["topic", "lst"], "did you mean 'list'"),
    ],
)
def test_a_wrong_call_is_one_line_that_helps(cli: Cli, arguments: list[str], complaint: str) -> None:
    told = cli(*arguments, code=2).err
    assert complaint.lower() in told.lower() and told.count("\n") == 1


def test_a_store_is_found_by_option_by_environment_or_here(
    cli: Cli, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("events", "other"):
        with klamm.open(tmp_path / name) as store:
            store.topics.create(f"of-{name}")
    assert cli("topic", "list").rows[0]["topic"] == "of-events"
    assert cli("topic", "list", "--store", tmp_path / "other").rows[0]["topic"] == "of-other"
    monkeypatch.delenv("KLAMM_STORE")
    monkeypatch.chdir(tmp_path / "other")
    assert cli("topic", "list").rows[0]["topic"] == "of-other"
    monkeypatch.chdir(tmp_path)
    told = cli("topic", "list", code=1).err
    assert "this directory: is not a store" in told and "--store or KLAMM_STORE" in told


@pytest.mark.parametrize(
    "command",
    [["tail", "t"], ["send", "t", "v"], ["sql", "select 1"], ["export", "t"], ["check"], ["compact"], ["backup", "b"]],
)
def test_no_command_but_those_that_make_something_makes_a_store(cli: Cli, home: Path, command: list[str]) -> None:
    assert f"{home}: no such directory" in cli(*command, code=1).err
    assert not home.exists()


def test_what_is_neither_a_directory_nor_an_address_is_refused(cli: Cli) -> None:
    assert "neither a directory nor an address" in cli("topic", "list", "-s", "redis://localhost:9092", code=1).err


def test_an_unforeseen_error_is_one_line_and_a_traceback_only_if_asked_for(
    home: Path, store: klamm.Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(self: klamm.Topics) -> Iterator[str]:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(klamm.Topics, "__iter__", broken)
    assert run(["topic", "list"]) == 1
    assert "ZeroDivisionError: division by zero (this should not have happened" in capsys.readouterr().err
    monkeypatch.setenv("KLAMM_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        run(["topic", "list"])


def test_every_command_of_the_cheat_sheet_can_be_called(cli: Cli) -> None:
    told = cli("cheat").text
    assert len(CHEATS) == 10
    commands = [command for _, each in CHEATS for command in each]
    for command in commands:
        assert f"  {command}\n" in told
        words = command.partition("klamm ")[2].split()
        nouns = words[: 2 if words[0] in NOUNS else 1]
        options = {word for word in words if word.startswith("-")}
        told_of = cli(*nouns, "--help").text
        assert [option for option in options if option not in told_of] == []


# As a process


def test_commands_that_only_look_need_no_right_to_write(home: Path, store: klamm.Store) -> None:
    store.topics.create("orders")
    store.append("orders", b"one")
    store.groups.reset("billing", ["orders"], to=0)
    store.topics.create("orders.dlq")
    store.close()
    somebody: list[str] = []
    if os.geteuid() == 0:  # who may write everything
        if shutil.which("setpriv") is None:
            pytest.skip("there is no setpriv to give up root's rights with")
        lost = "-dac_override,-dac_read_search"
        somebody = ["setpriv", "--bounding-set", lost, "--inh-caps", lost]
    looks = ["tail orders", "export orders", "topic list", "topic show orders", "group list", "group show billing"]
    for path in (home, *home.rglob("*")):
        path.chmod(path.stat().st_mode & ~0o222)
    try:
        for command in (*looks, "dlq list orders.dlq", "check", "sql show\ttables"):
            call = [*somebody, str(KLAMM), *(word.replace("\t", " ") for word in command.split(" "))]
            said = subprocess.run(call, capture_output=True, text=True, timeout=60)
            assert said.returncode == 0, said.stderr
        for command in ("send orders two", "tail orders --group billing"):
            call = [*somebody, str(KLAMM), *command.split()]
            said = subprocess.run(call, capture_output=True, text=True, timeout=60)
            assert said.returncode == 1 and "cannot be written" in said.stderr and "change its rights" in said.stderr
    finally:
        for path in (home, *home.rglob("*")):
            path.chmod(path.stat().st_mode | 0o200)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed_do_not_matter(home: Path, store: klamm.Store, closed: str) -> None:
    store.topics.create("orders")
    for command in ("send orders one", "send orders", "tail orders"):
        assert subprocess.run(["sh", "-c", f"{KLAMM} {command} {closed}"], input=b"two\n", timeout=60).returncode == 0
    values = [record.value for record in store.tail("orders", 10)]
    assert values == ([b"one"] if "<" in closed else [b"one", b"two"])


def test_help_imports_nothing_heavy() -> None:
    code = "import sys; from klamm.cli.main import run; run(['--help']); print(*sys.modules, file=sys.stderr)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr.split()
    heavy = [
        "klamm.cli.tail",
        "klamm.cli.bench",
        "duckdb",
        "pyarrow",
        "asyncio",
        "multiprocessing",
        "rich",
        "confluent_kafka",
        "rocksdict",
        "csv",
    ]
    assert [name for name in heavy if name in modules] == []


@pytest.mark.parametrize(
    "command",
    [
        ["tail", "orders", "--from", "0"],
        ["export", "orders", "--format", "csv"],
        ["sql", "select text(value) from orders"],
    ],
    ids=" ".join,
)
def test_whoever_has_seen_enough_ends_it_without_a_word(home: Path, store: klamm.Store, command: list[str]) -> None:
    store.topics.create("orders")
    store.append_many("orders", [(b"k", b"v" * 100) for _ in range(20_000)])
    child = subprocess.Popen([KLAMM, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None and child.stderr is not None
    assert child.stdout.readline()
    child.stdout.close()
    assert child.stderr.read() == b""
    child.stderr.close()
    assert child.wait(30) == 0


def test_a_shell_pipe_ends_without_noise(home: Path, store: klamm.Store) -> None:
    store.topics.create("orders")
    store.append_many("orders", [(None, b"%d" % n) for n in range(50_000)])
    script = rf"set -o pipefail; '{KLAMM}' tail orders --from 0 -o '%v\n' | head -1"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_options_topics_and_groups(home: Path, store: klamm.Store, shell: str) -> None:
    store.topics.create("orders")
    store.topics.create("other")
    store.append("orders", b"v")
    with store.consumer("orders", group="billing", wait=0) as consumer:
        for batch in consumer.batches():
            consumer.commit(batch)

    def completed(line: str) -> str:
        words = line.split(" ")
        environment = {
            **os.environ,
            "_KLAMM_COMPLETE": f"complete_{shell}",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words) - 1),
            "_TYPER_COMPLETE_ARGS": line,
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        }
        done = subprocess.run([KLAMM], env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "tail" in completed("klamm ta")
    if shell == "bash":
        assert "--since" in completed("klamm tail --si")
        assert completed("klamm tail or").split() == ["orders"]
        assert completed("klamm topic delete o").split() == ["orders", "other"]
        assert completed("klamm group show b").split() == ["billing"]
        assert completed("klamm tail --store /nowhere o").split() == []
        assert completed("klamm tail orders ot").split() == ["other"]
        assert completed("klamm topic list -o ").split() == ["json", "table"]


def test_completion_can_be_installed() -> None:
    options = {option for parameter in typer.main.get_command(app).params for option in parameter.opts}
    assert {"--install-completion", "--show-completion"} <= options


def test_a_module_run_is_the_program(home: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "klamm", "topic", "create", "t"], capture_output=True, text=True)
    assert done.returncode == 0 and json.loads(done.stdout)["topic"] == "t"
