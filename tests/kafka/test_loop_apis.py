"""A request of each API, in its oldest and its newest versions: the loop waits for no disk, no lock and not for SQLite.

test_dispatch.py reads the handlers; here they run, with all that they call, and the kernel's calls of the loop's thread
are looked at (waits.c). Which API reaches which thread is in the dispatch table.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import klamm
from klamm.kafka.apis import TABLE
from klamm.kafka.settings import STANDARD_AUTHORIZER
from klamm.store.quotas import Quotas, make_entity
from klamm.store.users import Users
from tests.kafka import waits
from tests.kafka.acl_requests import ask, make_world, requests
from tests.kafka.connect import Raw
from tests.kafka.sasl_client import log_in
from tests.procs import Flag
from tests.serving import serving

GUARDS = (
    "listeners=SASL_PLAINTEXT://127.0.0.1:0",
    f"authorizer.class.name={STANDARD_AUTHORIZER}",
    "super.users=User:alice",
    "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256",
    "audit.topic=audit",
)


def guard(path: Path) -> None:
    with klamm.open(path) as store:
        catalog = store._acquired().catalog
        for name in ("alice", "bob"):
            Users(catalog).add(name, "wonderland")
        rate: dict[str, float | None] = {"producer_byte_rate": 1e9, "consumer_byte_rate": 1e9}
        Quotas(catalog).alter([(make_entity([("user", None)]), rate)])


@pytest.mark.parametrize("is_guarded", [False, True], ids=["plain", "guarded"])
def test_no_request_of_any_api_waits_on_the_loop(tmp_path: Path, is_guarded: bool) -> None:
    """Whether its client may do what it asks for, or not."""
    path = tmp_path / "events"
    options: list[str] = []
    if is_guarded:
        guard(path)
        options = [word for setting in GUARDS for word in ("--set", setting)]
    watched, seen = Flag(tmp_path / "watched"), tmp_path / "seen"
    seen.touch()
    with serving(path, *options, environment=waits.watch(watched, seen, reads_of="/topics/")) as process:
        address = process.address.rpartition("://")[2]

        def connect(user: str) -> Raw:
            raw = Raw(address)
            if is_guarded:
                assert log_in(raw, user, "wonderland", "PLAIN" if user == "bob" else "SCRAM-SHA-256").error_code == 0
            return raw

        with connect("alice") as raw:
            world = make_world(raw, "x-")
        waiting: dict[str, list[str]] = {}
        before = 0
        asked = set()
        for user in ("alice", "bob") if is_guarded else ("alice",):
            watched.up()
            with connect(user) as raw:
                for request in requests(world):
                    ask(raw, request, world)
                    asked.add(request.api.key)
                    lines = seen.read_text().split("\n")[:-1]
                    if len(lines) > before:
                        waiting[f"{user}: {request.label}"] = lines[before:]
                        before = len(lines)
            watched.down()
        assert {label: Counter(lines) for label, lines in waiting.items()} == {}
        assert [row.api.name for key, row in TABLE.items() if row.rights and key not in asked] == []
