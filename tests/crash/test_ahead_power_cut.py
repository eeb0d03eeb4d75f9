"""A power cut at every step of a log with blocks ahead of its commit: zeros are no records, what was acked stays."""

from __future__ import annotations

from pathlib import Path

import pytest

import klamm
from tests.crash import ahead_workload
from tests.crash.ahead_workload import COUNT, value
from tests.crash.cases import memory_directory, seed_of
from tests.crash.powercut import LAST
from tests.crash.recording import Notes, Recording


def values(store: klamm.Store) -> list[bytes]:
    with store.consumer("orders", start="earliest", wait=0, form="values") as consumer:
        return list(consumer)


def look(cut: Path, notes: Notes) -> None:
    asked = sum("appending" in note for note in notes)
    acked = max([note["acked"] + 1 for note in notes if "acked" in note], default=0)
    with klamm.open(cut / "store", read_only=True) as store:
        seen = values(store)
    with klamm.open(cut / "store", create=False) as store:
        found = values(store)
        assert acked <= len(found) <= asked
        assert found == [value(number) for number in range(len(found))]
        assert seen == found[: len(seen)] and len(seen) >= acked
        for left in (cut / "store").glob("topics/*/0/*.cut-*"):
            assert left.read_bytes().strip(b"\0"), f"{left}: nothing but zeros"
        for number in range(len(found), len(found) + 20):
            store.append("orders", value(number))
        assert values(store) == [value(number) for number in range(len(found) + 20)]
        report = store.check()
        assert report.ok, report.breaches


@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.soak)])
def test_after_a_power_cut_zeros_are_no_records_and_what_was_acked_is_there(tmp_path: Path, stride: int) -> None:
    seed = seed_of()
    with memory_directory(tmp_path) as scratch:
        recording = Recording(scratch / "root", Path(ahead_workload.__file__))
        longer = [step for step in recording.steps if step.kind == "T" and step.position > 64 << 10]
        assert len(longer) > 2, "blocks were allocated ahead, and given back at a roll"
        ready = recording.after(ready=True)
        moments = [moment for moment in recording.moments if moment > ready][seed % stride :: stride]
        assert len(moments) > COUNT // stride
        recording.cut(look, seed=seed, lucks=[0, LAST, None, None], moments=moments)
