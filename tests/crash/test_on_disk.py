"""What a call says is on disk is there after a power cut that takes everything that was not synced.

The calls are those of on_disk.py, and operations on many files: backup, repair, the journal of the pipelines. These are
cut at every step, too: whatever was good before is good after.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import klamm
from klamm.spark.pipelines.journal import Journal
from klamm.spark.pipelines.pipeline_directory import PipelineDirectory
from klamm.store import once
from tests.crash import on_disk
from tests.crash.cases import memory_directory, seed_of
from tests.crash.powercut import LAST
from tests.crash.recording import Notes, Recording

PROGRAM = Path(on_disk.__file__)


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recording]:
    with memory_directory(tmp_path_factory.mktemp("calls")) as scratch:
        (scratch / "root").mkdir()
        on_disk.prepare(str(scratch / "root" / "store"))
        yield Recording(scratch / "root", PROGRAM, "calls")


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    with memory_directory(tmp_path) as scratch:
        (scratch / "root").mkdir()
        yield scratch / "root"


@pytest.mark.parametrize("name", on_disk.CALLS)
def test_what_a_call_says_is_on_disk_survives_a_power_cut(calls: Recording, name: str) -> None:
    def check(root: Path, notes: Notes) -> None:
        with klamm.open(root / "store", create=False) as store:
            on_disk.CALLS[name].check(store, notes[-1]["result"])

    calls.cut(check, seed=seed_of(), lucks=[0, None], moments=[calls.after(returned=name)])


def test_no_offset_of_a_record_that_failed_survives_a_power_cut_without_its_dead_letter(calls: Recording) -> None:
    begin, end = calls.after(calling="dead letters"), calls.after(returned="dead letters")

    def check(root: Path, notes: Notes) -> None:
        with klamm.open(root / "store", create=False) as store:
            on_disk.letters_are_there(store)

    moments = [moment for moment in calls.moments if begin < moment < end]
    assert calls.cut(check, seed=seed_of(), lucks=[1, None], moments=moments[::7]) > 20


# ---- backup


def test_a_backup_is_on_disk_when_it_returns_and_no_store_before_it_is_whole(root: Path) -> None:
    on_disk.prepare(str(root / "store"))
    recording = Recording(root, PROGRAM, "backup")
    end = recording.after(returned="backup")

    def check(cut: Path, notes: Notes) -> None:
        copy = cut / "backups" / "today" / "copy"
        if notes or (copy / "klamm.db").exists():
            with klamm.open(copy, create=False) as store, klamm.open(cut / "store") as source:
                assert list(store.topics) == list(source.topics)
                for topic in store.topics:
                    assert on_disk.values(store, topic) == on_disk.values(source, topic), topic
                assert len(on_disk.values(store, "many")) == len(on_disk.VALUES)
                assert store.check().ok

    seed = seed_of()
    recording.cut(check, seed=seed, lucks=[0, 1, None], moments=[end])
    assert recording.cut(check, seed=seed, lucks=[0, LAST, None], moments=recording.moments[::4]) > 80


# ---- repair


def test_a_power_cut_at_any_step_of_a_repair_takes_nothing_that_was_good(root: Path) -> None:
    damaged = on_disk.prepare_damaged(root / "store")
    recording = Recording(root, PROGRAM, "repair")
    end = recording.after(returned="repair", left=0)

    def check(cut: Path, notes: Notes) -> None:
        if not notes:
            report = klamm.check(cut / "store", repair=True)
            assert all(breach.repaired for breach in report.breaches), report.breaches
        damaged.is_repaired(cut / "store")

    seed = seed_of()
    recording.cut(check, seed=seed, lucks=[0, None, None], moments=[end])
    assert recording.cut(check, seed=seed, lucks=[0, LAST, None, None]) > 100


# ---- pipelines


def test_a_power_cut_at_any_step_leaves_a_folder_of_a_pipeline_as_it_was_before_or_after_a_change(root: Path) -> None:
    recording = Recording(root, PROGRAM, "journal")

    def check(cut: Path, notes: Notes) -> None:
        asked = sum("committing" in note for note in notes)
        done = sum("returned" in note for note in notes)
        folder = cut / "folder"
        if not notes and PipelineDirectory.read(str(folder)) is None:
            return
        claim = PipelineDirectory(str(folder), {})
        journal = Journal(claim)
        journal.recover()
        state = journal.state
        assert done <= state.sequence <= asked
        assert state.batch == state.sequence - 1
        contents = {str(path.relative_to(folder)): path.read_text() for path in folder.glob("date=*/*")}
        assert contents == on_disk.FOLDERS[state.sequence]
        for batch in range(state.sequence):
            assert Path(f"{claim.checkpoint}/offsets/{batch}").read_text() == "the plan"

    assert recording.cut(check, seed=seed_of(), lucks=[0, 1, LAST, None, None]) > 100


# ---- recovery points


def test_what_was_aborted_stays_so_though_the_power_is_cut_while_a_recovery_point_is_written(root: Path) -> None:
    recording = Recording(root, PROGRAM, "aborts")

    def check(cut: Path, notes: Notes) -> None:
        done = sum("returned" in note for note in notes)
        if notes:
            with klamm.open(cut / "store", create=False) as store:
                found = on_disk.values(store, "orders")
                assert 2 * done <= len(found) <= 2 * done + 2
                assert set(found) <= {b"kept"}

    begin = recording.after(ready=True)
    moments = [moment for moment in recording.moments if moment >= begin]
    assert recording.cut(check, seed=seed_of(), lucks=[LAST, None, None], moments=moments) > 50


# ---- Spark's sink


def test_no_micro_batch_survives_a_power_cut_without_its_plan(root: Path) -> None:
    on_disk.prepare_micro_batches(str(root / "store"))
    recording = Recording(root, PROGRAM, "micro-batches")

    def check(cut: Path, notes: Notes) -> None:
        asked = sum("committing" in note for note in notes)
        done = sum("returned" in note for note in notes)
        with klamm.open(cut / "store", create=False) as store:
            last = once.last(store._acquired().catalog.database, f"query {on_disk.QUERY}", "topic out")
            count = 0 if last is None else last + 1
            assert done <= count <= asked
            assert on_disk.values(store, "out") == [b"%d" % number for number in range(count)]
        checkpoint = cut / "queries" / "checkpoint"
        for number in range(count):
            assert (checkpoint / "offsets" / str(number)).read_text() == on_disk.plan_of(number)
            assert (checkpoint / "metadata").read_text() == on_disk.METADATA

    assert recording.cut(check, seed=seed_of(), lucks=[0, LAST, None], moments=recording.moments[::2]) > 50
