"""A power cut at every step of an upgrade: the next open finishes it, and nothing that was in the store is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import klamm
from klamm.store.upgrade import TODAY, formats_of
from tests.crash import upgrade_once
from tests.crash.cases import memory_directory, seed_of
from tests.crash.powercut import LAST
from tests.crash.recording import Notes, Recording
from tests.golden.make import found_in
from tests.golden.test_golden import unpacked
from tests.store.test_upgrade import OLD, trusted


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    with memory_directory(tmp_path) as scratch:
        yield scratch / "root"


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", OLD)
def test_a_power_cut_at_any_step_of_an_upgrade_loses_nothing(name: str, root: Path, every: int) -> None:
    store, found = unpacked(name, root)
    trusted(store)
    recording = Recording(root, Path(upgrade_once.__file__))
    seed = seed_of()

    def check(cut: Path, notes: Notes) -> None:
        assert found_in(cut / "store") == found
        assert formats_of(str(cut / "store")) == TODAY
        assert klamm.check(cut / "store").ok

    opened = recording.after(returned="open")
    upgrade = [moment for moment in recording.moments if moment <= opened]
    assert len(upgrade) > 20
    moments = recording.moments[seed % every :: every]
    assert recording.cut(check, seed=seed, lucks=[0, LAST, None], moments=moments) > 30
