"""`klamm who`: which process holds which lock."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

import pytest

import klamm
from klamm.disk import _os
from tests.cli.conftest import Cli

pytestmark = pytest.mark.skipif(not _os.HAS_BYTE_LOCKS, reason="one process at a time")


def test_who_lists_the_locks_of_open_processes(cli: Cli, home: Path, store: klamm.Store) -> None:
    store.topics.create("orders")
    with store.consumer("orders", group="bills", member="m1", wait=0) as consumer:
        consumer.poll(timeout=0)
        rows = cli("who", home).rows
    assert {(row["lock"], row["of"], row["state"], row["pid"], row["stopped"]) for row in rows} == {
        ("open", None, "holds", os.getpid(), False),
        ("member of group", "bills: m1", "holds", os.getpid(), False),
        ("partition of group", "bills: orders/0", "holds", os.getpid(), False),
    }
    assert all(datetime.fromisoformat(row["since"]).tzinfo is not None and row["command"] for row in rows)
    store.close()
    assert cli("who").rows == []
