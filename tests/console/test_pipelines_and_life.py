"""The pages of pipelines and of the game of life."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import klamm
from klamm.cli.main import run
from klamm.console import child
from klamm.console.board import Board
from klamm.spark.pipelines import checkpoint
from klamm.spark.pipelines.batch_times import batch_times, records_per_s
from tests.console.visitor import Visitor


def test_pipelines_are_those_of_klamm_pipeline_list(looker: Visitor) -> None:
    (row,) = looker.get("/api/pipelines").json["pipelines"]
    assert (row["name"], row["pipeline"], row["state"], row["topics"]) == ("orders", "mine", "new", ["orders"])
    data = looker.get("/api/pipelines/show?name=orders").json
    assert [(part["partition"], part["lag"]) for part in data["partitions"]] == [(0, 20), (1, 20), (2, 20)]
    assert data["durations"] == [] and looker.get("/pipelines/show?name=other").status == 404


def test_a_micro_batch_took_as_long_as_between_its_two_files(tmp_path: Path) -> None:
    for folder in ("offsets", "commits"):
        (tmp_path / "_klamm" / "checkpoint" / folder).mkdir(parents=True)
    for number, (begun_s, done_s) in enumerate([(100, 103), (110, 110.5), (120, None)]):
        for folder, second in (("offsets", begun_s), ("commits", done_s)):
            if second is not None:
                file = tmp_path / "_klamm" / "checkpoint" / folder / str(number)
                file.write_text("v1\n")
                os.utime(file, (second, second))
    assert batch_times(str(tmp_path)) == [
        {"batch": 0, "done_ms": 103_000, "took_ms": 3000, "records": None},
        {"batch": 1, "done_ms": 110_500, "took_ms": 500, "records": None},
    ]
    assert batch_times(str(tmp_path / "nowhere")) == []


def test_a_pipeline_reads_as_fast_as_its_plans_say(
    store: klamm.Store, visitor: Visitor, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its first plan says where it begins, which is not at 0; another source than ours counts for nothing."""
    folder = Path(checkpoint(store.path, "orders", pipeline="mine"))
    topics = {"topics": {"orders": str(store._acquired().catalog.topic("orders").id)}, "store": "x"}
    ends = [{"0": 1100, "1": 1000}, {"0": 1400, "1": 1100}, {"0": 1400, "1": 1500}]
    for number, end in enumerate(ends):
        ours = {**topics, "from": {"orders": {"0": 1000, "1": 1000}}} if number == 0 else topics
        lines = ["v1", "{}", json.dumps({"orders": end, "@klamm": ours}), '{"offset": 99}']
        for part, second in (("offsets", 100 * number), ("commits", 100 * number + 2)):
            (folder / part).mkdir(parents=True, exist_ok=True)
            (folder / part / str(number)).write_text("\n".join(lines))
            os.utime(folder / part / str(number), (second, second))
    times = batch_times(str(folder.parent.parent))
    assert [(each["records"], each["took_ms"]) for each in times] == [(100, 2000), (400, 2000), (400, 2000)]
    assert run(["pipeline", "show", "orders", "--store", store.path, "-o", "table"]) == 0
    assert "days      2    2,000      400" in capsys.readouterr().out
    for part in ("offsets", "commits"):
        (folder / part / "0").unlink()  # Spark removes old ones: where the next began is not known any more
    times = batch_times(str(folder.parent.parent))
    assert [each["records"] for each in times] == [None, 400]
    row = {"name": "orders", "pipeline": "mine", "state": "idle", "lag": 0, "batches": 3, "error": None}
    row |= {"directory": str(folder.parent.parent), "partitions": [], "durations": times}
    row["records_per_s"] = records_per_s(times)
    monkeypatch.setattr(child, "run_child", lambda *_, **__: child.ChildResult([row], False, 0))
    assert visitor.get("/api/pipelines/show?name=orders").json["records_per_s"] == 200.0
    assert "200/s" in visitor.get("/pipelines/show?name=orders").words


def test_the_board_has_the_cells_that_live(store: klamm.Store, visitor: Visitor) -> None:
    data = visitor.get("/api/life").json
    assert (data["generation"], data["alive"], data["size"], data["cells"]) == (1, 2, [6, 3], [[1, 2], [2, 2]])
    assert 'd="M1 2h2v1h-2z"' in visitor.get("/life").text and "Life" in visitor.get("/").words
    store.append("life", b"2 died", key=b"1,2", acks=1)
    data = visitor.get("/api/life?x=2&y=1").json
    assert (data["generation"], data["cells"], data["window"]) == (2, [[2, 2]], [2, 1, 4, 2])


def test_a_topic_of_life_that_was_made_again_is_another_world(store: klamm.Store) -> None:
    board = Board(store)
    assert board.look() == {(1, 2), (2, 2)}
    store.topics.delete("life")
    store.topics.create("life")
    store.append("life", b"0 born", key=b"9,9", acks=1)
    assert board.look() == {(9, 9)} and board.generation == 0


def test_without_life_there_is_no_board(store: klamm.Store, visitor: Visitor) -> None:
    store.topics.delete("life")
    assert visitor.get("/life").status == 404 and ">Life<" not in visitor.get("/").text
