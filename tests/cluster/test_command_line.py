"""Commands of `klamm` with an address as their store."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from klamm.cli.main import run
from tests.interop.brokers import Broker, fresh

Command = Callable[..., list[Any]]


@pytest.fixture
def klamm(klamm_broker: Broker, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a command on the server, and return the lines it prints."""

    def done(*arguments: str, code: int = 0) -> list[Any]:
        capsys.readouterr()
        assert run([*arguments, "--store", f"kafka://{klamm_broker.address}"]) == code, capsys.readouterr().err
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return done


def test_commands_take_an_address(klamm: Command) -> None:
    name, group = fresh("orders").replace("-", "_"), fresh("group")
    assert klamm("topic", "create", name, "-p", "2", "retention.ms=-1")[0]["partitions"] == 2
    klamm("send", name, "a", "b", "-k", "k")
    assert [row["value"] for row in klamm("tail", name, "--group", group)] == ["a", "b"]
    assert klamm("tail", name, "--group", group) == []
    assert klamm("group", "show", group)[0]["lag"] == 0
    assert klamm("group", "reset", group, "--to", "earliest", "--yes")
    assert klamm("group", "show", group)[0]["lag"] == 2
    assert klamm("sql", f"select count(*) as n from {name}") == [{"n": 2}]
    assert klamm("topic", "delete", name, "--yes")[0]["deleted"]
    klamm("tail", name, code=1)


def test_dead_letters_and_bench_take_an_address(
    klamm: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    module = fresh("handlers").replace("-", "_")
    (tmp_path / f"{module}.py").write_text("def refuse(record):\n    raise ValueError(record.value)\n")
    name, group = fresh("orders"), fresh("work")
    klamm("topic", "create", name)
    klamm("send", name, "a")
    refuse = ("work", f"{module}:refuse", name, "-g", group, "--on-error=dead-letter", "--retries=0", "--wait=2")
    assert klamm(*refuse)[0]["dead_lettered"] == 1
    assert [row["value"] for row in klamm("dlq", "list", f"{name}.dlq")] == ["a"]
    assert klamm("dlq", "redrive", f"{name}.dlq", "--yes")[0]["redriven"] == 1
    assert [row["value"] for row in klamm("tail", name)] == ["a", "a"]
    assert klamm("topic", "show", name)[0]["created"] is None
    assert [row["records"] for row in klamm("bench", "-n", "1000")] == [1000, 1000]


COMMANDS = [
    ["console"],
    ["info"],
    ["check"],
    ["who"],
    ["upgrade"],
    ["backup", "copy"],
    ["compact"],
    ["salvage"],
    ["tx", "list"],
    ["user", "list"],
    ["acl", "list"],
    ["quota", "list"],
    ["pipeline", "list"],
    ["pipeline", "compact", "orders"],
    ["serve"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_commands_for_directories_refuse_an_address(
    command: list[str],
    klamm_broker: Broker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KLAMM_STORE", f"kafka://{klamm_broker.address}?security.protocol=plaintext")
    assert run(command) == 1
    said = capsys.readouterr().err
    assert "is for a store in a directory" in said and "security.protocol" not in said and "needs its" not in said
    assert list(tmp_path.iterdir()) == []
