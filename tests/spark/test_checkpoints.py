"""Checkpoints of Spark with files removed, emptied, copied and rolled back.

Each record is there once, or an error names the file and what to do; nothing is lost or doubled in silence.

A base is made once for each way to write: two micro-batches of 20 records, and a copy from between them. Each case
copies it, damages the copy, appends 10 more, and runs the query again. Where an error says how to go on, that is done,
and then each record is there once.
"""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import klamm
import klamm.spark

pytest.importorskip("pyspark")

from klamm.spark import pipelines
from klamm.spark.pipelines import archive_pipeline
from klamm.spark.pipelines.pipeline_directory import PipelineDirectory
from tests.crash.cases import seed_of

BATCH = 20
MORE = 10


class Base:
    """A store with the topic `in`, and what was made of it."""

    def __init__(self, path: Path, way: str) -> None:
        self.path = path
        self.store = path / "events"
        self.checkpoint = path / "archive/_klamm/checkpoint" if way == "archive" else path / "checkpoint"
        self.topic = "out"
        self.name = "save"
        self.starting = "earliest"

    def append(self, count: int) -> None:
        """Every fifth does not fit the schema of `archive`."""
        with klamm.open(self.store) as store:
            first = store.topics.describe("in").partitions[0].end
            store.append_many(
                "in", [b'{"n": "%d"}' % n if n % 5 == 0 else b'{"n": %d}' % n for n in range(first, first + count)]
            )

    def rows(self, spark: Any) -> Any:
        return klamm.spark.read_stream(
            spark, self.store, subscribe="in", startingOffsets=self.starting, columns="key,value"
        )

    def run(self, query: Any) -> None:
        started = query.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
        try:
            started.awaitTermination()
        finally:
            started.stop()

    def written(self, topic: str) -> list[int]:
        with klamm.open(self.store) as store, store.consumer(topic, start="earliest", wait=0) as consumer:
            return sorted(int(json.loads(record.value)["n"]) for record in consumer)

    def start_again(self, error: str) -> None:
        """Do what an error says: a new checkpoint, which begins where the log's last batch ended."""
        found = re.search(r"startingOffsets=(\{.*?\}\})", error)
        assert found is not None, error
        assert "checkpointLocation" in error
        self.starting = found[1]
        self.checkpoint = self.path / "new"
        self.name = "another"


# ---- ways to write


def run_sink(spark: Any, base: Base) -> None:
    location = str(base.checkpoint)
    base.run(klamm.spark.write_stream(base.rows(spark), base.store, topic=base.topic, checkpointLocation=location))


def run_elsewhere(spark: Any, base: Base) -> None:
    """The sink is not told where the checkpoint is, as it cannot read one on an object store."""
    query = klamm.spark.write_stream(base.rows(spark), base.store, topic=base.topic)
    setting = "spark.sql.streaming.checkpointLocation"
    spark.conf.set(setting, str(base.checkpoint.parent))
    try:
        started = query.queryName(base.checkpoint.name).trigger(availableNow=True).start()
    finally:
        spark.conf.unset(setting)
    started.awaitTermination()


def run_foreach_batch(spark: Any, base: Base) -> None:
    """What it writes is never the same twice: only the plan says that a batch is."""
    headers = "array(named_struct('key', 'id', 'value', CAST(uuid() AS BINARY))) AS headers"

    def save(rows: Any, number: int) -> None:
        made = rows.selectExpr("key", "value", headers)
        klamm.spark.write(made, base.store, topic=base.topic, txnAppId=base.name, txnVersion=number)

    base.run(base.rows(spark).writeStream.foreachBatch(save))


def run_stateful(spark: Any, base: Base) -> None:
    once = base.rows(spark).dropDuplicates(["value"])
    base.run(klamm.spark.write_stream(once, base.store, topic=base.topic))


def run_archive(spark: Any, base: Base) -> None:
    pipelines.archive(spark, base.store, "in", base.path / "archive", schema="n INT")


def written(base: Base) -> list[int]:
    return base.written(base.topic)


def archived(base: Base) -> list[int]:
    import pyarrow.parquet as pq

    values: list[bytes] = []
    for file in (base.path / "archive").glob("date=*/*.parquet"):
        values += pq.ParquetFile(file).read(["value"])["value"].to_pylist()  # type: ignore[arg-type]  # none is null
    return sorted([json.loads(value)["n"] for value in values] + base.written("in.dlq"))


class Way(NamedTuple):
    run: Callable[[Any, Base], None]
    seen: Callable[[Base], list[int]]


WAYS = {
    "sink": Way(run_sink, written),
    "elsewhere": Way(run_elsewhere, written),
    "foreachBatch": Way(run_foreach_batch, written),
    "stateful": Way(run_stateful, written),
    "archive": Way(run_archive, archived),
}


# ---- what happens to checkpoints


def remove(*patterns: str) -> Callable[[Base, Path], None]:
    """Remove files with their checksums, or directories."""

    def damage(base: Base, older: Path) -> None:
        for pattern in patterns:
            found = list(base.checkpoint.glob(pattern))
            assert found, pattern
            for path in found:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
                path.with_name(f".{path.name}.crc").unlink(missing_ok=True)

    return damage


def empty(name: str) -> Callable[[Base, Path], None]:
    """Leave a file without bytes, as a power cut may."""

    def damage(base: Base, older: Path) -> None:
        path = base.checkpoint / name
        assert path.stat().st_size
        path.write_bytes(b"")
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)

    return damage


def roll_back(base: Base, older: Path) -> None:
    shutil.rmtree(base.checkpoint)
    shutil.copytree(older / base.checkpoint.relative_to(base.path), base.checkpoint)


def roll_back_journal(base: Base, older: Path) -> None:
    """Only the folder's journal: the checkpoint stays."""
    shutil.copy(older / "archive/_klamm/journal.json", base.path / "archive/_klamm/journal.json")


ONCE = ""
CONFLICT = r"(batch|txnVersion) 1 is in the log \(topic out\), but was planned again .* \(.*/checkpoint/offsets/1\)"
OTHER_RECORDS = r"batch 1 is in the log \(topic out\) with other records: nothing was written.*onConflict=skip"
OLDER = r"(batch|txnVersion) 0 \(.*/checkpoint/offsets/0\) comes after 1, which is in the log \(topic out\)"


class Case(NamedTuple):
    way: str
    name: str
    damage: Callable[[Base, Path], None]
    says: str
    """A pattern of the error; ONCE if there is none, and each record is there once."""
    is_quick: bool = True


CASES = [
    Case("sink", "commit lost", remove("commits/1"), ONCE),
    Case("sink", "commits lost", remove("commits"), ONCE, False),
    Case("sink", "commit emptied", empty("commits/1"), "Incomplete log file|commits/1", False),
    Case("sink", "plan and commit lost", remove("offsets/1", "commits/1"), CONFLICT),
    Case("sink", "plan lost", remove("offsets/1"), OLDER, False),
    Case("sink", "plan emptied", empty("offsets/1"), "offsets/1"),
    Case("sink", "earlier plan lost", remove("offsets/0"), "batch 0 doesn't exist", False),
    Case("sink", "all plans lost", remove("offsets", "commits"), OLDER, False),
    Case("sink", "rolled back", roll_back, CONFLICT, False),
    Case("sink", "id lost", remove("metadata"), "metadata", False),
    Case("sink", "id emptied", empty("metadata"), "checkpoint/metadata: damaged", False),
    Case("elsewhere", "commit lost", remove("commits/1"), ONCE, False),
    Case("elsewhere", "plan and commit lost", remove("offsets/1", "commits/1"), OTHER_RECORDS, False),
    Case("foreachBatch", "commit lost", remove("commits/1"), ONCE),
    Case("foreachBatch", "plan and commit lost", remove("offsets/1", "commits/1"), CONFLICT),
    Case("foreachBatch", "rolled back", roll_back, CONFLICT, False),
    Case("foreachBatch", "all plans lost", remove("offsets", "commits"), OLDER, False),
    Case("stateful", "commit lost", remove("commits/1"), ONCE, False),
    Case("stateful", "state lost", remove("state"), "state", False),
    Case("stateful", "latest state lost", remove("state/0/*/2*"), "state", False),
    Case("stateful", "plan and commit lost", remove("offsets/1", "commits/1"), CONFLICT, False),
    Case("archive", "commit lost", remove("commits/1"), ONCE),
    Case("archive", "plan and commit lost", remove("offsets/1", "commits/1"), "checkpoint/offsets/1: missing"),
    Case("archive", "plan emptied", empty("offsets/1"), "checkpoint/offsets/1", False),
    Case("archive", "id emptied", empty("metadata"), "checkpoint/metadata: damaged", False),
    Case("archive", "rolled back", roll_back, "checkpoint/offsets/1: missing", False),
    Case(
        "archive", "journal rolled back", roll_back_journal, "is at micro-batch 2, but 0 is the last that is archived"
    ),
]


@pytest.fixture(scope="module")
def bases(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Give the base of a way, and its older copy in `older`."""
    made: dict[str, Path] = {}

    def make(way: str) -> Path:
        if way not in made:
            path = tmp_path_factory.mktemp(way)
            base = Base(path / "base", way)
            with klamm.open(base.store) as store:
                store.topics.create("in")
                store.topics.create("out")
            base.append(BATCH)
            WAYS[way].run(spark, base)
            shutil.copytree(base.path, path / "older")
            base.append(BATCH)
            WAYS[way].run(spark, base)
            assert WAYS[way].seen(base) == list(range(2 * BATCH))
            assert (base.checkpoint / "commits" / "1").exists()
            made[way] = path
        return made[way]

    return make


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=f"{case.way}: {case.name}", marks=() if case.is_quick else pytest.mark.soak)
        for case in CASES
    ],
)
def test_a_checkpoint_that_lost_something_neither_loses_nor_doubles_a_record_in_silence(
    spark: Any, bases: Callable[[str], Path], tmp_path: Path, case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    way = WAYS[case.way]
    shutil.copytree(bases(case.way) / "base", tmp_path / "base")
    base = Base(tmp_path / "base", case.way)
    case.damage(base, bases(case.way) / "older")
    base.append(MORE)
    everything = list(range(2 * BATCH + MORE))
    if case.says == ONCE:
        way.run(spark, base)
        assert way.seen(base) == everything
        # The sink skips in a process of Spark's; the archive in this one.
        assert ("Skipping micro-batch 1: it is archived already" in caplog.text) == (case.way == "archive")
        return
    with pytest.raises(Exception, match=case.says) as caught:
        way.run(spark, base)
    assert way.seen(base) == list(range(2 * BATCH)), "nothing was written"
    if "startingOffsets=" in str(caught.value):
        base.start_again(str(caught.value))
        way.run(spark, base)
        assert way.seen(base) == everything
    else:
        assert case.says not in (CONFLICT, OLDER)


# ---- every file


def damages(path: Path, older: Path) -> dict[str, bytes | None]:
    """Return what may be left of a file; None: nothing."""
    data = path.read_bytes()
    found: dict[str, bytes | None] = {
        "gone": None,
        "empty": b"",
        "cut": data[: len(data) // 2],
        "zeros": bytes(len(data)),
    }
    if older.exists() and older.read_bytes() != data:
        found["older"] = older.read_bytes()
    return {name: left for name, left in found.items() if left != data}


def damage_file(path: Path, left: bytes | None, *, with_checksum: bool) -> None:
    if left is None:
        path.unlink()
    else:
        path.write_bytes(left)
    if not with_checksum:
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


class FileDamage(NamedTuple):
    name: Path
    """In the checkpoint."""
    kind: str
    left: bytes | None
    with_checksum: bool

    def __str__(self) -> str:
        return f"{self.name}: {self.kind}, {'with' if self.with_checksum else 'without'} its checksum"


def every_damage(bases: Callable[[str], Path], way: str) -> list[FileDamage]:
    whole = Base(bases(way) / "base", way)
    older = bases(way) / "older" / whole.checkpoint.relative_to(whole.path)
    return [
        FileDamage(name, kind, left, with_checksum)
        for path in sorted(path for path in whole.checkpoint.rglob("*") if path.is_file())
        for name in [path.relative_to(whole.checkpoint)]
        for (kind, left), with_checksum in product(damages(path, older / name).items(), (True, False))
        if with_checksum or not path.name.startswith(".")
    ]


def check_damages(
    spark: Any, bases: Callable[[str], Path], tmp_path: Path, way: str, chosen: Sequence[FileDamage]
) -> None:
    """Where the query refuses, the checkpoint is put back as it was, and each record is there once."""
    whole = Base(bases(way) / "base", way)
    everything = list(range(2 * BATCH + MORE))
    wrong: list[str] = []
    refused = 0
    for number, damage in enumerate(chosen):
        base = Base(tmp_path / str(number), way)
        shutil.copytree(whole.path, base.path)
        damage_file(base.checkpoint / damage.name, damage.left, with_checksum=damage.with_checksum)
        base.append(MORE)
        what = str(damage)
        try:
            WAYS[way].run(spark, base)
        except Exception as error:
            refused += 1
            what += f": {str(error)[:300]}"
            seen = WAYS[way].seen(base)
            if seen not in (list(range(2 * BATCH)), everything):
                wrong.append(f"{what}: {seen}")
            shutil.rmtree(base.checkpoint)
            shutil.copytree(whole.checkpoint, base.checkpoint)
            try:
                WAYS[way].run(spark, base)
            except Exception as again:
                base.start_again(str(again))
                WAYS[way].run(spark, base)
        if (seen := WAYS[way].seen(base)) != everything:
            wrong.append(f"{what}: in the end {seen}")
        shutil.rmtree(base.path)
    print(f"{way}: {len(chosen)} damages, {refused} refused")
    assert not wrong, "\n".join(wrong)


def test_damage_to_a_file_of_a_checkpoint_drawn_at_random_loses_or_doubles_no_record_in_silence(
    spark: Any, bases: Callable[[str], Path], tmp_path: Path
) -> None:
    chosen = random.Random(seed_of()).sample(every_damage(bases, "sink"), 2)
    print(*chosen, sep="\n")
    check_damages(spark, bases, tmp_path, "sink", chosen)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("way", WAYS)
def test_no_damage_to_any_file_of_a_checkpoint_loses_or_doubles_a_record_in_silence(
    spark: Any, bases: Callable[[str], Path], tmp_path: Path, way: str
) -> None:
    check_damages(spark, bases, tmp_path, way, every_damage(bases, way))


@pytest.mark.soak
def test_the_first_micro_batch_done_again_misses_what_has_expired_since(
    spark: Any, bases: Callable[[str], Path], tmp_path: Path
) -> None:
    """Spark asks for the initial offsets again, and "earliest" is another offset by then."""
    shutil.copytree(bases("sink") / "older", tmp_path / "base")
    base = Base(tmp_path / "base", "sink")
    remove("commits/0")(base, tmp_path)
    with klamm.open(base.store) as store:
        store["in"].delete_records({0: 5})
    with pytest.raises(Exception, match="data loss: in/0: offsets 0 to 4 are gone"):
        run_sink(spark, base)


def test_a_copy_of_a_checkpoint_writes_to_another_topic_what_its_original_writes_to_its_own(
    spark: Any, bases: Callable[[str], Path], tmp_path: Path
) -> None:
    shutil.copytree(bases("sink") / "base", tmp_path / "base")
    base, copy = Base(tmp_path / "base", "sink"), Base(tmp_path / "base", "sink")
    copy.checkpoint = tmp_path / "copy"
    shutil.copytree(base.checkpoint, copy.checkpoint)
    with klamm.open(base.store) as store:
        store.topics.create("copies")
    base.append(MORE)
    run_sink(spark, base)
    base.append(MORE)
    copy.topic = "copies"
    run_sink(spark, copy)
    assert written(copy) == list(range(2 * BATCH, 2 * BATCH + 2 * MORE))
    copy.topic = "out"
    shutil.rmtree(copy.checkpoint)
    shutil.copytree(bases("sink") / "base" / "checkpoint", copy.checkpoint)
    with pytest.raises(Exception, match=r"batch 2 is in the log .* planned again with other offsets"):
        run_sink(spark, copy)
    run_sink(spark, base)
    assert written(base) == list(range(2 * BATCH + 2 * MORE))


@pytest.mark.soak
def test_two_writes_of_a_micro_batch_to_one_topic_need_two_names(
    spark: Any, bases: Callable[[str], Path], tmp_path: Path
) -> None:
    shutil.copytree(bases("foreachBatch") / "base", tmp_path / "base")
    base = Base(tmp_path / "base", "foreachBatch")
    base.append(MORE)

    def save(rows: Any, number: int) -> None:
        for rest in (0, 1):
            some = rows.where(f"CAST(get_json_object(CAST(value AS STRING), '$.n') AS INT) % 2 = {rest}")
            klamm.spark.write(some, base.store, topic="out", txnAppId="save", txnVersion=number)

    with pytest.raises(Exception, match="txnVersion 2 was used already for another write of this micro-batch"):
        base.run(base.rows(spark).writeStream.foreachBatch(save))


@pytest.mark.soak
def test_a_table_of_windows_whose_checkpoint_was_rolled_back_is_not_updated(spark: Any, tmp_path: Path) -> None:
    base = Base(tmp_path, "aggregate")
    with klamm.open(base.store) as store:
        store.topics.create("in")

    def run() -> dict[bytes, Any]:
        pipelines.aggregate(
            spark,
            base.store,
            "in",
            "counts",
            window="1000 days",
            watermark="1 day",
            table=True,
            checkpoint=tmp_path / "pipeline",
        )
        return counts()

    def counts() -> dict[bytes, Any]:
        with klamm.open(base.store) as store, store.table("counts") as table:
            return {key: json.loads(value)["count"] for key, value in table.items()}

    base.append(BATCH)
    assert list(run().values()) == [BATCH]
    shutil.copytree(tmp_path / "pipeline", tmp_path / "older")
    base.append(BATCH)
    before = run()
    assert list(before.values()) == [2 * BATCH]
    base.append(MORE)
    shutil.rmtree(tmp_path / "pipeline")
    (tmp_path / "older").rename(tmp_path / "pipeline")
    said = r"txnVersion \d .*(planned again with other offsets|comes after).*begin again in a new one"
    with pytest.raises(klamm.KlammError, match=said):
        run()
    assert counts() == before


def test_a_plan_that_is_lost_after_its_dead_letters_were_sent_sends_none_again_and_loses_none(
    spark: Any, bases: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(bases("archive") / "base", tmp_path / "base")
    base = Base(tmp_path / "base", "archive")
    base.append(MORE)
    synced: list[int] = []
    send = archive_pipeline._Work._send_dead_letters

    save = PipelineDirectory.save_plan

    def sync(self: PipelineDirectory, number: int) -> None:
        save(self, number)
        synced.append(number)

    def die(self: Any, schema: Any, unfit: Any, number: int) -> None:
        assert synced == [number], "the plan is on disk before a dead letter is"
        send(self, schema, unfit, number)
        raise RuntimeError("as if the driver were killed")

    with monkeypatch.context() as patch:
        patch.setattr(PipelineDirectory, "save_plan", sync)
        patch.setattr(archive_pipeline._Work, "_send_dead_letters", die)
        with pytest.raises(Exception, match="as if the driver were killed"):
            run_archive(spark, base)
    letters = base.written("in.dlq")
    assert len(letters) == (2 * BATCH + MORE) // 5, "they were sent"
    remove("offsets/2")(base, tmp_path)
    base.append(MORE)
    with pytest.raises(klamm.KlammError, match=r"txnVersion 2 is in the log \(topic in.dlq\), but was planned again"):
        run_archive(spark, base)
    assert base.written("in.dlq") == letters
