"""The pipelines of a store: listed with how far they are, reset and retired, by functions and by commands."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import klamm
from klamm.disk import files
from klamm.errors import InvalidSetting, StoreBusy
from klamm.spark.pipelines import (
    archive,
    checkpoint,
    list_pipelines,
    registry,
    reset_pipeline,
    retire_pipeline,
    show_pipeline,
)
from klamm.spark.pipelines.pipeline_directory import PipelineDirectory
from klamm.spark.pipelines.query_runner import source

pytest.importorskip("pyarrow")


@pytest.fixture
def folder(store: klamm.Store, tmp_path: Path) -> Path:
    """An archive with 10 of 12 records."""
    store.topics.create("orders", 2)
    store.append_many("orders", [(b"k%d" % number, b"v") for number in range(10)])
    archive(None, store.path, "orders", tmp_path / "archive")
    store.append_many("orders", [(b"k1", b"v"), (b"k2", b"v")])
    return tmp_path / "archive"


def wrote(folder: Path) -> int:
    return len(list(folder.glob("date=*/*.parquet")))


def test_a_pipeline_is_listed_with_how_far_it_is(store: klamm.Store, folder: Path) -> None:
    (found,) = list_pipelines(store.path)
    assert (found.name, found.pipeline, found.topics, found.target) == (
        "archive-orders",
        "archive",
        ["orders"],
        str(folder),
    )
    assert (found.state, found.lag, found.batches, found.error) == ("idle", 2, 1, None)
    assert found.age_ms is not None and 0 <= found.age_ms < 600_000
    assert found.started_ms is not None and found.ended_ms is not None and found.started_ms <= found.ended_ms
    assert sum(each["position"] for each in found.partitions) == 10
    archive(None, store.path, "orders", folder)
    assert show_pipeline(store.path, "archive-orders").lag == 0
    with pytest.raises(InvalidSetting, match="did you mean 'archive-orders'"):
        show_pipeline(store.path, "archive-order")


def test_states_and_the_last_error(store: klamm.Store, folder: Path) -> None:
    def state() -> tuple[str, str | None]:
        found = show_pipeline(store.path, "archive-orders")
        return found.state, found.error

    taken = PipelineDirectory(str(folder), {})
    with taken.alone():
        assert state() == ("running", None)
        for change in (reset_pipeline, retire_pipeline):
            with pytest.raises(StoreBusy, match="another run is at work"):
                change(store.path, "archive-orders")
    with pytest.raises(InvalidSetting), taken.alone():
        raise InvalidSetting("nothing fits", hint="try")
    assert state() == ("failed", "nothing fits (try)")
    Path(taken.inside("run.json")).write_text('{"started_ms": 1}')
    assert state() == ("killed", None)
    folder.rename(folder.with_name("moved"))
    assert state() == ("missing", None)
    store.topics.delete("orders")
    folder.with_name("moved").rename(folder)
    found = show_pipeline(store.path, "archive-orders")
    assert found.lag is None and found.error is not None and "Topic 'orders' does not exist" in found.error


def test_two_folders_of_the_same_topic_have_two_names(store: klamm.Store, folder: Path) -> None:
    archive(None, store.path, "orders", folder.with_name("second"))
    location = checkpoint(store.path, "orders", pipeline="mine")
    found = {each.name: (each.pipeline, each.state) for each in list_pipelines(store.path)}
    assert found == {
        "archive-orders": ("archive", "idle"),
        "archive-orders-2": ("archive", "idle"),
        "orders": ("mine", "new"),
    }
    Path(location).mkdir()
    assert show_pipeline(store.path, "orders").state == "unknown"


def test_a_pipeline_whose_registration_was_killed_has_its_name_from_the_next_run_on(
    store: klamm.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No half of an entry is left behind that takes the name."""
    store.topics.create("orders")

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    for module, step in ((files, "replace"), (os, "link")):
        with monkeypatch.context() as patch:
            patch.setattr(module, step, die)
            patch.setattr(files, "remove", lambda path: None)  # a killed process cleans nothing up
            with pytest.raises(KeyboardInterrupt):
                registry.register(store.path, str(tmp_path / "folder"), {"pipeline": "join", "topics": {"orders": "1"}})
        assert list_pipelines(store.path) == []
    source(store.path, "orders").take("join", tmp_path / "folder", {"to": "paid"})
    assert [each.name for each in list_pipelines(store.path)] == ["join-orders"]


def test_a_reset_archive_begins_at_the_beginning(store: klamm.Store, folder: Path) -> None:
    plan = reset_pipeline(store.path, "archive-orders", dry_run=True)
    assert not plan.done and any("date=" in each for each in plan.removes) and wrote(folder) == 1
    with pytest.raises(InvalidSetting, match="cannot keep its files"):
        reset_pipeline(store.path, "archive-orders", keep_output=True)
    assert reset_pipeline(store.path, "archive-orders").removes == plan.removes
    assert wrote(folder) == 0 and show_pipeline(store.path, "archive-orders").state == "new"
    assert archive(None, store.path, "orders", folder).rows_written == 12


def test_a_reset_that_was_killed_is_finished_before_the_next_run(
    store: klamm.Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R1: with some of its files gone, and others not, a run would write records twice."""
    archive(None, store.path, "orders", folder)

    def die(path: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(registry, "_remove", die)
        with pytest.raises(KeyboardInterrupt):
            reset_pipeline(store.path, "archive-orders")
    assert show_pipeline(store.path, "archive-orders").state == "resetting"
    with pytest.raises(InvalidSetting, match="a reset of it did not end"):
        archive(None, store.path, "orders", folder)
    reset_pipeline(store.path, "archive-orders")
    assert archive(None, store.path, "orders", folder).rows_written == 12


def test_a_reset_deletes_the_topic_that_was_written_unless_it_is_to_be_kept(store: klamm.Store, tmp_path: Path) -> None:
    for name in ("orders", "totals", "orders.dlq"):
        store.topics.create(name)
        store.append(name, b"x")
    options = {"to": "totals", "dead_letters": "orders.dlq"}
    folder = source(store.path, "orders").take("aggregate", tmp_path / "folder", options)
    Path(folder.checkpoint, "state").mkdir(parents=True)
    kept = reset_pipeline(store.path, "aggregate-orders", keep_output=True)
    assert kept.deletes == {} and "the topic totals" in " ".join(kept.keeps) and "totals" in store.topics
    assert not Path(folder.checkpoint).exists()
    gone = reset_pipeline(store.path, "aggregate-orders")
    assert gone.deletes == {"totals": 1} and sorted(store.topics) == ["orders", "orders.dlq"]


def test_a_retired_archive_stays_and_is_not_added_to(store: klamm.Store, folder: Path) -> None:
    before = sorted(folder.glob("date=*/*"))
    plan = retire_pipeline(store.path, "archive-orders", dry_run=True)
    assert not plan.done and len(list_pipelines(store.path)) == 1
    retire_pipeline(store.path, "archive-orders")
    assert list_pipelines(store.path) == [] and sorted(folder.glob("date=*/*")) == before
    with pytest.raises(InvalidSetting, match="this pipeline was retired"):
        archive(None, store.path, "orders", folder)


def test_another_that_is_retired_leaves_nothing(store: klamm.Store, tmp_path: Path) -> None:
    store.topics.create("orders")
    source(store.path, "orders").take("join", tmp_path / "folder", {"to": "paid"})
    checkpoint(store.path, "orders", pipeline="mine")
    for name in ("join-orders", "orders"):
        retire_pipeline(store.path, name)
    assert list_pipelines(store.path) == [] and not (tmp_path / "folder").exists()
    source(store.path, "orders").take("join", tmp_path / "folder", {"to": "others"})


def test_where_a_streaming_query_is_comes_from_its_checkpoint(store: klamm.Store) -> None:
    store.topics.create("orders", 2)
    store.append_many("orders", [b"x"] * 9, partition=0)
    location = Path(checkpoint(store.path, "orders", pipeline="mine"))
    described = source(store.path, "orders")
    ours = {"store": described.store_id, "topics": dict(described.topics)}
    for name, text in (
        ("offsets/3", "v1\n{}\n" + json.dumps({"orders": {"0": 4, "1": 0}, "@klamm": ours})),
        ("commits/3", "v1\n{}"),
    ):
        (location / name).parent.mkdir(parents=True, exist_ok=True)
        (location / name).write_text(text)
    found = show_pipeline(store.path, "orders")
    assert (found.lag, found.batches) == (5, 4) and found.last_batch_ms is not None
