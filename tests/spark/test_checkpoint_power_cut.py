"""A power cut at any step of a streaming query: its checkpoint, which Spark never syncs, and its store.

A query from topic to topic runs three micro-batches, in a driver of its own. All that the JVM and Spark's Python
processes do to the directory that has both is recorded (tests/crash/powercut.c). What is left after a cut has to do:

  - A micro-batch that is in the log has its plan, and the query its id (spark/checkpoint.py, CKP1). Each run of the
    tests shows that with notes as Spark writes them (tests/crash/test_on_disk.py); here Spark itself does.
  - The query, run again in Spark, gives each record once and in order. If it refuses, what the guide says is done:
    a note of Spark's that is damaged is removed, and a query goes on where an error says.
"""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import klamm
import klamm.spark
from klamm.store import directory, once
from tests.crash import powercut
from tests.crash.cases import memory_directory, seed_of
from tests.crash.powercut import LAST
from tests.crash.recording import Notes, Recording
from tests.crash.rounds import SOAK_SECONDS
from tests.spark.forks import forks
from tests.spark.processes import driver

pytest.importorskip("pyspark")

DRIVER = Path(__file__).parent / "driver.py"
BATCHES, BATCH = 3, 20
CUT_SECONDS = 3  # of a query after a cut, about


class Life:
    """A recorded query, and what it has done in the end."""

    def __init__(self, scratch: Path) -> None:
        root = scratch / "root"
        root.mkdir()
        with klamm.open(root / "events") as store:
            for topic in ("in", "out"):
                store.topics.create(topic)
            store.append_many("in", [b"%d" % number for number in range(BATCHES * BATCH)])
        self.recording = Recording(root, self._run)
        self.metadata = (root / "checkpoint/metadata").read_text()
        self.plans = [(root / f"checkpoint/offsets/{number}").read_text() for number in range(BATCHES)]
        self.query = json.loads(self.metadata)["id"]
        assert values(root) == [b"%d" % number for number in range(BATCHES * BATCH)]

    @staticmethod
    def _run(trace: Path) -> None:
        root = trace.with_name("root")
        with pytest.MonkeyPatch.context() as patch:
            for name, value in powercut.recorded(root, trace, with_children=True).items():
                patch.setenv(name, value)
            with forks() as variables:
                for name, value in variables.items():
                    patch.setenv(name, value)
                arguments = (root / "events", "in", "out", root / "checkpoint", BATCH)
                with driver(DRIVER, *arguments) as process:
                    _, said = process.communicate(timeout=300)
                    assert process.returncode == 0, said.decode()


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Life]:
    with memory_directory(tmp_path_factory.mktemp("life")) as scratch:
        yield Life(scratch)


def values(root: Path, topic: str = "out") -> list[bytes]:
    with klamm.open(root / "events", create=False) as store, store.consumer(topic, start="earliest", wait=0) as found:
        return [record.value for record in found]


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_no_micro_batch_of_a_real_query_survives_a_power_cut_without_its_plan(life: Life) -> None:
    def check(cut: Path, notes: Notes) -> None:
        with klamm.open(cut / "events", create=False) as store:
            last = once.last(store._acquired().catalog.database, f"query {life.query}", "topic out")
        count = 0 if last is None else last + 1
        assert values(cut) == [b"%d" % number for number in range(count * BATCH)]
        for number in range(count):
            assert (cut / f"checkpoint/offsets/{number}").read_text() == life.plans[number]
            assert (cut / "checkpoint/metadata").read_text() == life.metadata

    assert life.recording.cut(check, seed=seed_of(), lucks=[0, LAST, None]) > 50


# ---- in Spark, after the cut


def run(spark: Any, root: Path, checkpoint: str, starting: str) -> None:
    rows = klamm.spark.read_stream(
        spark, root / "events", subscribe="in", startingOffsets=starting, columns="key,value"
    )
    query = klamm.spark.write_stream(rows, root / "events", topic="out", checkpointLocation=str(root / checkpoint))
    started = query.trigger(availableNow=True).start()
    try:
        started.awaitTermination()
    finally:
        started.stop()


def run_until_done(spark: Any, root: Path) -> list[str]:
    """Run the query; where it refuses, do what its error or the guide says. Return what it said."""
    said: list[str] = []
    checkpoint, starting = "checkpoint", "earliest"
    while True:
        try:
            run(spark, root, checkpoint, starting)
            return said
        except Exception as error:
            said.append(str(error))
        assert len(said) < 10, said
        if found := re.search(r"startingOffsets=(\{.*?\}\})", said[-1]):
            checkpoint, starting = "new", found[1]
            continue
        if re.search("checkpoint/metadata: damaged|MISSING_METADATA_FILE", said[-1]):
            assert values(root) == [], "the id is on disk before a micro-batch is"
            shutil.rmtree(root / checkpoint)
            continue
        damaged = [path for path in (root / checkpoint).glob("[oc]*/[0-9]*") if is_damaged(path)]
        assert damaged, said[-1]
        for path in damaged:
            path.unlink()
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def is_damaged(path: Path) -> bool:
    """A note of Spark's begins with a version, and its lines are JSON."""
    version, _, rest = path.read_bytes().partition(b"\n")
    try:
        for line in rest.splitlines():
            json.loads(line)
    except ValueError:
        return True
    return version != b"v1" or not rest


def cut_and_run(spark: Any, life: Life, dice: random.Random, cuts: list[tuple[int, float | None]]) -> list[list[str]]:
    said: list[list[str]] = []
    at: dict[int, list[float | None]] = {}
    for moment, luck in cuts:
        at.setdefault(moment, []).append(luck)
    for moment, disk, _ in life.recording.states(list(at)):
        for luck in at[moment]:
            target = life.recording.root.with_name(f"cut-{len(said)}")
            disk.cut(target, dice, luck)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(directory, "boot_id", lambda: b"after the outage")
                klamm.open(target / "events", create=False).close()  # recovered as after a reboot
            said.append(run_until_done(spark, target))
            expected = [b"%d" % number for number in range(BATCHES * BATCH)]
            assert values(target) == expected, f"step {moment}, luck {luck}: {said[-1]}"
            assert klamm.check(target / "events").ok
            shutil.rmtree(target)
    return said


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_a_query_gives_each_record_once_after_a_power_cut(spark: Any, life: Life) -> None:
    dice = random.Random(seed_of())
    moments = life.recording.moments
    cuts = [
        (moment, luck)
        for luck in (0, LAST, None, None)
        for moment in sorted(powercut.distinct(life.recording.steps, moments, luck))
    ]
    chosen = dice.sample(cuts, min(len(cuts), int(SOAK_SECONDS / CUT_SECONDS)))  # a recording is replayed once
    said = cut_and_run(spark, life, dice, chosen)
    print(f"{len(said)} of {len(cuts)} cuts, {sum(map(bool, said))} refused at first")
    assert any(said) or len(said) < len(cuts), "a damaged note of Spark's was never met"
