"""Commands of `klamm` with an address as their store."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from tests.interop.brokers import Broker, fresh
from tests.serving import KLAMM


def test_commands_take_an_address(klamm_broker: Broker) -> None:
    name, group = fresh("orders").replace("-", "_"), fresh("group")

    def klamm(*arguments: str, code: int = 0) -> list[Any]:
        command: list[Any] = [KLAMM, *arguments, "--store", f"kafka://{klamm_broker.address}"]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert ran.returncode == code, ran.stderr
        return [json.loads(line) for line in ran.stdout.splitlines()]

    assert klamm("topic", "create", name, "-p", "2", "retention.ms=-1")[0]["partitions"] == 2
    klamm("send", name, "a", "b", "-k", "k")
    assert [row["value"] for row in klamm("tail", name, "--group", group)] == ["a", "b"]
    assert klamm("tail", name, "--group", group) == []
    assert klamm("group", "show", group)[0]["lag"] == 0
    assert klamm("sql", f"select count(*) as n from {name}") == [{"n": 2}]
    assert klamm("topic", "delete", name, "--yes")[0]["deleted"]
    klamm("tail", name, code=1)
