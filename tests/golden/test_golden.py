"""Stores of every format there was are opened, and nothing in them is lost. tests/golden/make.py has made them."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

import klamm
from tests.golden.make import FOUND, HERE, STORE, found_in, name_of_format

GOLDEN = sorted(path.name.removesuffix(".tar.xz") for path in HERE.glob("*.tar.xz"))


def unpacked(name: str, directory: Path) -> tuple[Path, dict[str, Any]]:
    """Return the store and what was found in it when it was made."""
    with tarfile.open(HERE / f"{name}.tar.xz") as archive:
        archive.extractall(directory, filter="data")
    found: dict[str, Any] = json.loads((directory / FOUND).read_text())
    return directory / STORE, found


def test_there_are_golden_stores_of_every_format_up_to_todays() -> None:
    assert name_of_format() == GOLDEN[-1], "python -m tests.golden.make"
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
