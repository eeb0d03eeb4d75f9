"""Stores of every format there was are opened, and nothing in them is lost. tests/golden/make.py has made them."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.store import once
from klamm.store.users import Users
from tests.golden.make import FOUND, HERE, SERVER, STORE, found_in, name_of_format, rows_in
from tests.kafka.producing import offset_of

_ALL = sorted(path.name.removesuffix(".tar.xz") for path in HERE.glob("*.tar.xz"))
GOLDEN = [name for name in _ALL if not name.endswith(SERVER)]
WITH_SERVER = [name for name in _ALL if name.endswith(SERVER)]


def unpacked(name: str, directory: Path) -> tuple[Path, dict[str, Any]]:
    """Return the store and what was found in it when it was made."""
    with tarfile.open(HERE / f"{name}.tar.xz") as archive:
        archive.extractall(directory, filter="data")
    found: dict[str, Any] = json.loads((directory / FOUND).read_text())
    return directory / STORE, found


def test_there_are_golden_stores_of_every_format_up_to_todays() -> None:
    assert name_of_format() == GOLDEN[-1], "python -m tests.golden.make"
    assert f"{name_of_format()}{SERVER}" == WITH_SERVER[-1], "python -m tests.golden.make"
    assert "klamm.db-4-heads-1" in GOLDEN


@pytest.mark.parametrize("name", GOLDEN)
def test_a_store_of_every_format_is_opened_and_has_what_was_in_it(name: str, tmp_path: Path) -> None:
    store, found = unpacked(name, tmp_path)
    assert found_in(store) == found
    assert klamm.check(store).ok
    with klamm.open(store) as opened:
        with opened.transaction("loader") as tx:
            tx.send("orders", b"new", key=b"t")
        opened.maintain()
    again = found_in(store)
    values = [record[2] for part in again["topics"]["orders"]["partitions"] for record in part["read_committed"]]
    assert values.count("new") == 1


@pytest.mark.parametrize("name", WITH_SERVER)
def test_a_store_of_every_format_has_its_users_acls_quotas_numbers_and_lineage(name: str, tmp_path: Path) -> None:
    path, found = unpacked(name, tmp_path)
    assert rows_in(path) == found
    assert klamm.check(path).ok
    with klamm.open(path) as store:
        core = store._acquired()
        core.heads.advance(3_600_000)  # what its clients have left open is late
        core.transactions.resolve()
        assert not store.transactions and offset_of(store, "wire", 2) == 2, "of an aborted transaction nothing moves"
        with store.transaction() as tx:
            assert not tx.once("job", 7, fingerprint="seven")
        with store.transaction() as tx:
            assert tx.once("job", 8) and once.last(core.catalog.database, "job") == 7
            tx.send("t", b"new", partition=0)
        users = Users(core.catalog)
        users.set_password("alice", "new")
        assert [user.name for user in users.all()] == ["alice", "bob"]
    assert klamm.check(path).ok
