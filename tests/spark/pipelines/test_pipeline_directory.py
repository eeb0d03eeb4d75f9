"""Whose a folder is: the first run claims it, and only the same pipeline comes back to it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import klamm
from klamm.errors import InvalidSetting, NewerFormat, NotAStore
from klamm.spark.pipelines import checkpoint
from klamm.spark.pipelines.pipeline_directory import OURS, PipelineDirectory

ONE = {"pipeline": "archive", "store": "s1", "topics": {"orders": "t1"}}


def test_the_first_run_claims_a_folder_and_the_next_comes_back(tmp_path: Path) -> None:
    first = PipelineDirectory.take(tmp_path / "a" / "b", ONE, {"schema": "id INT"})
    again = PipelineDirectory.take(tmp_path / "a" / "b", ONE, {"schema": None})
    assert first.directory == again.directory and again.options == {"schema": "id INT"}
    assert Path(again.checkpoint).parent.name == OURS and Path(again.inside("x")).parent.is_dir()


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"pipeline": "aggregate"}, 'belongs to the pipeline archive of orders: its pipeline is "archive"'),
        ({"store": "s2"}, 'its store is "s1", not "s2"'),
        ({"topics": {"payments": "t1"}}, 'its topics is {"orders": "t1"}, not {"payments": "t1"}'),
        ({"topics": {"orders": "t2"}}, "is of a topic orders that is gone: it was deleted and re-created"),
    ],
)
def test_another_pipeline_is_refused(tmp_path: Path, other: dict[str, object], said: str) -> None:
    PipelineDirectory.take(tmp_path, ONE, {})
    with pytest.raises(InvalidSetting) as refused:
        PipelineDirectory.take(tmp_path, {**ONE, **other}, {})
    assert said in refused.value.message


def test_an_option_that_has_changed_is_refused(tmp_path: Path) -> None:
    PipelineDirectory.take(tmp_path, ONE, {"schema": "id INT"})
    with pytest.raises(InvalidSetting, match='was begun with schema = "id INT", not "id LONG"'):
        PipelineDirectory.take(tmp_path, ONE, {"schema": "id LONG"})


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").touch()
    with pytest.raises(InvalidSetting, match=r"is not empty, and no pipeline's: it has letters\.txt"):
        PipelineDirectory.take(tmp_path, ONE, {})
    with pytest.raises(InvalidSetting, match="is a file"):
        PipelineDirectory.take(tmp_path / "letters.txt", ONE, {})
    with pytest.raises(InvalidSetting, match="is not a folder of this machine"):
        PipelineDirectory.take("s3://bucket/x", ONE, {})


def test_a_claim_that_was_edited_is_told(tmp_path: Path) -> None:
    folder = PipelineDirectory.take(tmp_path, ONE, {})
    Path(folder.inside("pipeline.json")).write_text("{")
    with pytest.raises(NotAStore, match=r"pipeline\.json: cannot be read"):
        PipelineDirectory.take(tmp_path, ONE, {})


def test_a_claim_of_a_newer_klamm_is_no_damage(tmp_path: Path) -> None:
    claim = PipelineDirectory.take(tmp_path, ONE, {})
    file = Path(claim.inside("pipeline.json"))
    file.write_text(json.dumps({"version": 2, "whose": "unknown"}))
    before = file.read_bytes()
    with pytest.raises(NewerFormat, match=r"pipeline\.json: has format 2, this Klamm knows formats up to 1"):
        PipelineDirectory.take(tmp_path, ONE, {})
    assert file.read_bytes() == before


def test_one_who_was_killed_while_claiming_is_followed(tmp_path: Path) -> None:
    (tmp_path / OURS).mkdir()
    assert PipelineDirectory.take(tmp_path, ONE, {}).options == {}


def test_a_pipeline_of_ones_own_has_a_checkpoint_that_no_other_gets(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with klamm.open(path) as store:
        orders = store.topics.create("orders")
        mine = checkpoint(path, "orders", pipeline="life", options={"size": 8})
        assert mine == checkpoint(path, "orders", pipeline="life") and mine.startswith(f"{path}/pipelines/orders/")
        assert checkpoint(path, "orders", pipeline="other", directory=tmp_path / "mine").startswith(f"{tmp_path}/mine/")
        with pytest.raises(InvalidSetting, match="belongs to"):
            checkpoint(path, "orders", pipeline="other")
        with pytest.raises(InvalidSetting, match="begun with size = 8"):
            checkpoint(path, "orders", pipeline="life", options={"size": 16})
        with pytest.raises(InvalidSetting, match="no topic"):
            checkpoint(path, pipeline="life")
        with pytest.raises(klamm.UnknownTopic):
            checkpoint(path, "ordres", pipeline="life")
        orders.delete()
        store.topics.create("orders")
        with pytest.raises(InvalidSetting, match="deleted and re-created"):
            checkpoint(path, "orders", pipeline="life")
