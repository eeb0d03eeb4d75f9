"""Files come and go together: killed at any step of the disk, a change is made whole by the next run, or never was."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from klamm.errors import NotAStore
from klamm.spark.pipelines.journal import Journal, State
from klamm.spark.pipelines.pipeline_directory import PipelineDirectory
from tests.rig import dies, killed_at

DAY, NEXT = "date=2025-01-31", "date=2025-02-01"


def claimed(path: Path) -> PipelineDirectory:
    return PipelineDirectory.take(path, {"pipeline": "archive"}, {})


def written(journal: Journal, name: str, *texts: str) -> list[str]:
    path = Path(journal.stage(name))
    path.mkdir(parents=True)
    for number, text in enumerate(texts):
        (path / f"part-{number}.parquet").write_text(text)
    return [str(path / f"part-{number}.parquet") for number in range(len(texts))]


def contents(path: Path) -> dict[str, str]:
    return {str(each.relative_to(path)): each.read_text() for each in sorted(path.glob("date=*/*"))}


def test_a_change_is_made_whole_or_not_at_all_at_whichever_step_it_is_killed(tmp_path: Path) -> None:
    before = {f"{DAY}/00000001-0000.parquet": "a", f"{DAY}/00000001-0001.parquet": "b"}
    after = {f"{DAY}/00000002-0000.parquet": "ab", f"{NEXT}/00000002-0001.parquet": "c"}
    outcomes = set()
    step = 0
    while True:
        step += 1
        folder = claimed(tmp_path / str(step))
        journal = Journal(folder)
        journal.commit({DAY: written(journal, "one", "a", "b")}, batch=0, ends={0: 2})
        assert contents(tmp_path / str(step)) == before
        merged, new = written(journal, "two", "ab"), written(journal, "three", "c")
        died = dies(
            killed_at(step, lambda j=journal, m=merged, n=new: j.commit({DAY: m, NEXT: n}, list(before), batch=1))  # type: ignore[misc]
        )
        again = Journal(folder)
        again.recover()
        found = contents(tmp_path / str(step))
        assert (found, again.state.batch) in ((before, 0), (after, 1)), step
        assert again.state.ends == {0: 2}
        assert not os.path.exists(folder.inside("staging"))
        outcomes.add(again.state.batch)
        if not died:
            break
        again.commit({DAY: written(again, "four", "d")})
        assert len(contents(tmp_path / str(step))) == len(found) + 1  # no name is given twice
    assert outcomes == {0, 1}
    assert step > 10


def test_what_was_staged_and_not_decided_is_forgotten(tmp_path: Path) -> None:
    folder = claimed(tmp_path)
    written(Journal(folder), "batch-0", "a")
    Journal(folder).recover()
    assert contents(tmp_path) == {}
    assert State.read(folder.files) == State()


@pytest.mark.parametrize("text", ["", "[]", '{"sequence": 1}'])
def test_a_journal_that_cannot_be_read_is_told(tmp_path: Path, text: str) -> None:
    folder = claimed(tmp_path)
    Path(folder.inside("journal.json")).write_text(text)
    with pytest.raises(NotAStore, match=r"journal\.json: cannot be read"):
        Journal(folder)
