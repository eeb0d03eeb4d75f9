"""Spark's plan of a micro-batch, as the sink reads it from a checkpoint. Without Spark."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from klamm.disk import files
from klamm.errors import NotAStore
from klamm.spark.batches import MAX_ENDS
from klamm.spark.checkpoint import BatchPlan, is_here, local_path, read_plan
from klamm.spark.offsets import OURS

QUERY = "0b1c8ab6-5b3e-4bd5-9d9d-5a3e0b0f8a11"
IN = json.dumps({"in": {"0": 20}, OURS: {"store": "s", "topics": {"in": "x"}}})


@pytest.fixture
def location(tmp_path: Path) -> Path:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "metadata").write_text(json.dumps({"id": QUERY}))
    return tmp_path


def write(location: Path, *lines: str, number: int = 0, at: int = 1) -> None:
    preamble = ("v1", json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": at, "conf": {}}))
    (location / "offsets" / str(number)).write_text("\n".join((*preamble, *lines)))


def plan(location: Path, number: int = 0) -> BatchPlan:
    found = read_plan(str(location), QUERY, number)
    assert found is not None
    return found


def test_plans_are_the_same_if_they_end_at_the_same_offsets_whenever_they_were_made(location: Path) -> None:
    write(location, IN, at=1)
    before = plan(location)
    write(location, IN, at=2)
    assert plan(location) == before
    write(location, IN.replace("20", "21"), at=1)
    assert plan(location).fingerprint != before.fingerprint
    write(location, IN, "-", at=1)
    assert plan(location).fingerprint != before.fingerprint
    assert before.path == f"{location}/offsets/0"


def test_ends_can_be_given_as_starting_offsets(location: Path) -> None:
    write(location, IN)
    assert json.loads(plan(location).ends) == {"in": {"0": 20}}
    write(location, '{"logOffset":3}')  # of another source
    assert plan(location).ends == '{"logOffset":3}'
    write(location, json.dumps({"in": {"0": "9" * MAX_ENDS}}))
    assert plan(location).ends == ""


def test_a_checkpoint_is_known_by_its_query(location: Path) -> None:
    write(location, IN)
    assert is_here(str(location)) and is_here(f"file://{location}") and is_here(f"file:{location}")
    for there in (None, str(location / "elsewhere"), "hdfs://host/checkpoint", "s3a://bucket/checkpoint"):
        assert not is_here(there)
        assert read_plan(there, QUERY, 0) is None
    assert read_plan(str(location), "another", 0) is None
    (location / "metadata").write_text("")
    assert not is_here(str(location))


def test_a_path_is_as_spark_sees_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert local_path("checkpoints/a b") == f"{os.getcwd()}/checkpoints/a b"
    assert local_path("file:///a%20b/") == "/a%20b"
    assert local_path("dbfs:/checkpoints") is None


@pytest.mark.parametrize("text", [None, b"", b"v1\n{}", b"\xff\xff"])
def test_a_plan_that_is_gone_or_broken_is_an_error_that_names_it(location: Path, text: bytes | None) -> None:
    path = location / "offsets" / "0"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(NotAStore, match=f"{path}: (missing|damaged).*new checkpointLocation"):
        plan(location)


def test_a_plan_its_checksum_and_the_querys_id_are_synced(location: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(location, IN)
    for name in ("offsets/.0.crc", ".metadata.crc"):
        (location / name).touch()
    synced: list[str] = []
    monkeypatch.setattr(files, "sync_file", synced.append)
    monkeypatch.setattr(files, "sync_directory", synced.append)
    plan(location)
    names = ["offsets/0", "offsets/.0.crc", "offsets", "metadata", ".metadata.crc"]
    assert synced[:5] == [f"{location}/{name}" for name in names]
    assert {str(location), str(location.parent)} <= set(synced)
    synced.clear()
    plan(location)
    assert synced == [f"{location}/{name}" for name in names[:3]], "the rest is made once, and stays"
