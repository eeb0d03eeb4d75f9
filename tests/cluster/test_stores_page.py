"""docs/reference/stores.md says what each kind of store can do: every call, and what is refused is refused."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.cluster import kafka_admin
from klamm.errors import Unsupported
from tests.interop.brokers import Broker, fresh

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "stores.md"
SECTIONS: dict[str, tuple[type, ...]] = {
    "`Store`": (klamm.Store,),
    "`Topic` and `Topics`": (klamm.Topic, klamm.Topics),
    "`Groups`": (klamm.Groups,),
    "`Consumer`": (klamm.Consumer,),
    "`Producer` and `Transaction`": (klamm.Producer, klamm.Transaction),
}
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "table": ("orders",),
    "lineage": (None,),
    "backup": ("b",),
}


def rows(section: str) -> dict[str, str]:
    """Return what the page says of each call, in the column of kafka://."""
    text = PAGE.read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| `")]
    return {name: line[2].strip() for line in lines for name in re.findall(r"`(\w+)`", line[0])}


@pytest.mark.parametrize("section", SECTIONS)
def test_every_call_is_on_the_page(section: str) -> None:
    public = {
        name
        for kind in SECTIONS[section]
        for name, member in inspect.getmembers(kind)
        if not name.startswith("_") and (callable(member) or inspect.isdatadescriptor(member))
    }
    assert set(rows(section)) == public


def test_what_the_page_refuses_is_refused_with_a_hint(klamm_broker: Broker) -> None:
    with klamm.open(f"kafka://{klamm_broker.address}") as store:
        topic = store.topics.create(fresh("orders"))
        topic.append(b"x")
        with store.transaction() as tx:
            objects: dict[str, Any] = {
                "`Store`": store,
                "`Topic` and `Topics`": topic,
                "`Producer` and `Transaction`": tx,
            }
            for section, thing in objects.items():
                for name in [name for name, cell in rows(section).items() if cell == "no"]:
                    arguments = () if section != "`Store`" else ARGUMENTS.get(name, ())
                    if name == "once":
                        arguments = ("writer", 1)
                    with pytest.raises(Unsupported) as raised:
                        list(store.transactions) if name == "transactions" else getattr(thing, name)(*arguments)
                    assert raised.value.hint, name
        for path in (store.path, store.path + "?security.protocol=plaintext"):
            with pytest.raises(Unsupported):
                klamm.check(path)


def test_options_that_a_cluster_does_not_have_are_refused(klamm_broker: Broker) -> None:
    address = f"kafka://{klamm_broker.address}"
    with klamm.open(address) as store:
        name = fresh("orders")
        store.topics.create(name, 2)
        refused: list[dict[str, Any]] = [{"assignor": lambda members, partitions: {}}, {"partitions": [0]}]
        for options in refused:
            with pytest.raises(Unsupported):
                store.consumer(name, group="g", **options)
    for given in ("?acks=1&group.id=x", "?not.an.option=1", "?security.protocol=carrier-pigeon"):
        with pytest.raises(klamm.InvalidSetting):
            klamm.open(address + given)
    with pytest.raises(klamm.InvalidSetting):
        klamm.open("kafka://")
    with pytest.raises(klamm.InvalidSetting):
        klamm.open(address, maintain_every=1)


def test_a_server_that_is_not_there_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_admin, "_CONNECT_S", 0.7)
    with pytest.raises(klamm.Unreachable):
        klamm.open("kafka://127.0.0.1:1?socket.connection.setup.timeout.ms=1000")
