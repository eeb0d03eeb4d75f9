"""archive to an object store, and back: each record once, whatever fails, and whichever other run is at work."""

from __future__ import annotations

import itertools
import json
import random
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.errors import InvalidSetting, KlammError, NotAStore, StoreBusy, Unreachable
from klamm.spark.pipelines import (
    archive,
    list_pipelines,
    reset_pipeline,
    restore,
    retire_pipeline,
    show_pipeline,
)
from klamm.spark.pipelines.folder_files import OURS, files_of
from klamm.spark.pipelines.journal import JOURNAL, Journal, State
from klamm.spark.pipelines.pipeline_directory import PipelineDirectory
from tests.crash.cases import seed_of
from tests.spark.pipelines import objects
from tests.spark.pipelines.objects import BUSY, S3, SECRET
from tests.spark.pipelines.test_archive import DAY_MS, DRIVER, NEW_YEAR, topic_rows
from tests.spark.pipelines.test_without_spark import Died, _die, fill
from tests.spark.processes import driver, wait_for

pytest.importorskip("pyspark")
pytest.importorskip("obstore")
pytest.importorskip("moto")

from klamm.spark.pipelines import object_files, parquet_files
from klamm.spark.pipelines.delta_table import DeltaTable

_numbers = itertools.count()


@pytest.fixture(scope="session")
def server() -> Iterator[S3]:
    with objects.server() as s3:
        yield s3


@pytest.fixture
def s3(server: S3) -> Iterator[S3]:
    server.faults()
    yield server
    server.faults()


@pytest.fixture
def folder() -> str:
    return f"lake of {next(_numbers)}/orders"


def run(s3: S3, store: klamm.Store, folder: str, spark: Any = None, **options: Any) -> Any:
    return archive(spark, store.path, "orders", f"s3://lake/{folder}", storage_options=s3.options, **options)


def few(store: klamm.Store, count: int) -> None:
    """Append records of two days."""
    for number in range(count):
        store.append("orders", b"%d" % number, timestamp=NEW_YEAR + number % 2 * DAY_MS)


def is_whole(s3: S3, store: klamm.Store, folder: str, kind: str = "parquet") -> bool:
    """Whether the archive has each record once, and nothing is left in staging."""
    assert not [name for name in s3.objects(folder) if "/staging/" in name]
    return s3.rows(folder, kind) == topic_rows(store, "orders")


def test_an_archive_in_an_object_store_has_each_record_once(s3: S3, store: klamm.Store, folder: str) -> None:
    store.topics.create("orders", 2)
    for number in range(3):
        fill(store, 20 * number, 20)
        report = run(s3, store, folder, max_offsets=15)
        assert (report.rows_written, report.batches, report.target) == (20, 2, f"s3://lake/{folder}")
        assert is_whole(s3, store, folder)
    assert run(s3, store, folder).rows_written == 0
    kept = {name for name in s3.objects(folder) if name.startswith(OURS)}
    assert kept == {f"{OURS}/{name}.json" for name in ("journal", "pipeline", "plans", "run", "topic")}
    assert not any(SECRET.encode() in data for data in s3.objects(folder).values())


def test_a_topic_of_a_server_is_archived_and_its_directory_goes_on(s3: S3, store: klamm.Store, folder: str) -> None:
    store.topics.create("orders", 2)
    with klamm.server(store) as address:
        for number, where in enumerate((f"kafka://{address}", store.path, f"klamm://{address}")):
            fill(store, 20 * number, 20)
            archive(None, where, "orders", f"s3://lake/{folder}", storage_options=s3.options, max_offsets=15)
            assert is_whole(s3, store, folder)


@pytest.mark.parametrize(
    ("kind", "is_done", "stride"),
    [
        ("parquet", True, 3),
        *(
            pytest.param(kind, is_done, 1, marks=pytest.mark.soak)
            for kind in ("parquet", "delta")
            for is_done in (False, True)
        ),
    ],
)
def test_a_run_that_is_killed_at_any_change_is_made_up_for_by_the_next(
    s3: S3, store: klamm.Store, folder: str, kind: str, is_done: bool, stride: int
) -> None:
    """Before the store carries it out, and after it. Of three changes one, whichever, or all of them."""
    first = random.Random(seed_of()).randint(1, stride)
    store.topics.create("orders", 2)
    outcomes = []
    for at in range(first, 100, stride):
        few(store, 4)
        kill = {"at": at, "is_done": is_done}
        process = objects.archiving(s3, store.path, f"s3://lake/{folder}", kill=kill, format=kind)
        process.join()
        s3.faults()
        assert process.exitcode in (0, -signal.SIGKILL)
        few(store, 2)
        outcomes.append(run(s3, store, folder).rows_written)
        if process.exitcode == 0:
            break
    assert {2, 6} == set(outcomes)
    assert len(outcomes) > 9 // stride
    assert is_whole(s3, store, folder, kind)


@pytest.mark.parametrize("rounds", [2, pytest.param(100, marks=pytest.mark.soak)])
def test_requests_that_fail_are_made_again(s3: S3, store: klamm.Store, folder: str, rounds: int) -> None:
    """Errors, throttling, connections that are reset, and responses that are lost."""
    dice = random.Random(seed_of())
    store.topics.create("orders", 2)
    injected = 0
    for _ in range(rounds):
        few(store, 8)
        s3.faults(rate=0.2, seed=dice.random())
        with suppress(Unreachable):  # the next run goes on where it ended
            run(s3, store, folder, max_offsets=5)
        injected += s3.counts()["injected"]
    s3.faults()
    run(s3, store, folder)
    assert injected > rounds
    assert is_whole(s3, store, folder)


def test_large_files_are_uploaded_in_parts_though_some_fail(
    s3: S3, store: klamm.Store, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PQF2: and a file that is large enough is ended."""
    dice = random.Random(seed_of())
    store.topics.create("orders")
    store.append_many("orders", [(None, dice.randbytes(1 << 16), None, NEW_YEAR) for _ in range(180)])
    monkeypatch.setattr(parquet_files, "BUFFER_BYTES", 1 << 20)
    monkeypatch.setattr(parquet_files, "MAX_FILE_BYTES", 6 << 20)
    s3.faults(rate=0.1, seed=dice.random())
    with suppress(Unreachable):  # a response that is lost may end a run
        run(s3, store, folder)
    s3.faults()
    run(s3, store, folder)
    sizes = [len(data) for name, data in s3.objects(folder).items() if name.startswith("date=")]
    assert len(sizes) == 2
    assert max(sizes) > 5 << 20  # what obstore sends in one request
    assert is_whole(s3, store, folder)


@pytest.mark.parametrize("name", ["journal.json", "plans.json", "pipeline.json", "topic.json"])
def test_a_run_knows_its_own_change_though_the_response_was_lost(
    s3: S3, store: klamm.Store, folder: str, name: str
) -> None:
    store.topics.create("orders", 2)
    fill(store, 0, 10)
    s3.faults(rule={"method": "PUT", "path": f"{OURS}/{name}", "kind": "lost", "times": 1})
    assert run(s3, store, folder).rows_written == 10
    assert s3.counts()["injected"] == 1
    assert is_whole(s3, store, folder)


@pytest.mark.parametrize("where", [JOURNAL, f"{OURS}/plans.json", f"{OURS}/topic.json", f"{OURS}/pipeline.json"])
def test_of_two_runs_the_first_is_done_and_the_other_changes_nothing(
    s3: S3, store: klamm.Store, folder: str, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """The second begins and ends while the first is about to change a file."""
    store.topics.create("orders", 2)
    fill(store, 0, 10)
    replace = object_files.ObjectFiles.replace
    others: list[int] = []

    def late(self: Any, name: str, data: bytes) -> None:
        if name == where and not others:
            others.append(0)
            fill(store, 10, 10)
            others[0] = run(s3, store, folder).rows_written
        replace(self, name, data)

    monkeypatch.setattr(object_files.ObjectFiles, "replace", late)
    if where == f"{OURS}/pipeline.json":
        assert run(s3, store, folder).rows_written == 0  # both say the same
    else:
        with pytest.raises(StoreBusy, match="another run is at work, and was first"):
            run(s3, store, folder)
    assert others[0] >= 10
    run(s3, store, folder)
    assert is_whole(s3, store, folder)


@pytest.mark.parametrize("rounds", [1, pytest.param(50, marks=pytest.mark.soak)])
def test_runs_at_the_same_time_never_damage_an_archive(s3: S3, store: klamm.Store, folder: str, rounds: int) -> None:
    store.topics.create("orders", 2)
    codes = set()
    for _ in range(rounds):
        few(store, 40)
        runs = [objects.archiving(s3, store.path, f"s3://lake/{folder}", max_offsets=5) for _ in range(3)]
        for process in runs:
            process.join()
        codes |= {process.exitcode for process in runs}
    assert codes <= {0, BUSY}
    run(s3, store, folder)
    assert is_whole(s3, store, folder)


def test_what_another_run_has_staged_stays_until_it_cannot_be_decided(
    s3: S3, store: klamm.Store, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OBJ2"""
    store.topics.create("orders", 2)
    fill(store, 0, 10)
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "commit", _die)
        with pytest.raises(Died):
            run(s3, store, folder)
    staged = [name for name in s3.objects(folder) if "/staging/" in name]
    assert staged
    known = PipelineDirectory(files_of(f"s3://lake/{folder}", s3.options), {})
    Journal(known).recover()  # as a run does that begins
    assert [name for name in s3.objects(folder) if "/staging/" in name] == staged
    run(s3, store, folder)
    assert is_whole(s3, store, folder)


def test_a_staged_file_that_others_remove_after_the_decision_is_an_error(
    s3: S3, store: klamm.Store, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import obstore

    store.topics.create("orders", 2)
    fill(store, 0, 10)
    replace = object_files.ObjectFiles.replace

    def sweep(self: Any, name: str, data: bytes) -> None:
        replace(self, name, data)
        if name == JOURNAL:
            victim = next(each for each in s3.objects(folder) if "/staging/" in each)
            obstore.delete(s3.store(), f"{folder}/{victim}")

    monkeypatch.setattr(object_files.ObjectFiles, "replace", sweep)
    with pytest.raises(NotAStore, match="the staged file is gone, though its change is decided"):
        run(s3, store, folder)


def test_small_objects_are_merged_when_they_are_settled(
    s3: S3, store: klamm.Store, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.topics.create("orders")
    for number in range(7):
        store.append("orders", b"%d" % number, timestamp=NEW_YEAR)
        assert run(s3, store, folder).details["files_merged"] == 0  # OBJ3: the newest is minutes old
    monkeypatch.setattr(object_files, "SETTLED_S", -60)
    store.append("orders", b"last", timestamp=NEW_YEAR)
    assert run(s3, store, folder).details["files_merged"] == 8
    assert is_whole(s3, store, folder)
    assert len([name for name in s3.objects(folder) if name.startswith("date=")]) == 1


def test_what_is_wrong_with_an_address_or_its_options_is_said_without_them(
    s3: S3, store: klamm.Store, folder: str, tmp_path: Path
) -> None:
    store.topics.create("orders")
    fill(store, 0, 3)
    for address in ("s3://", "s3://lake", "s3://lake/../x", "gs://lake/orders"):
        with pytest.raises(InvalidSetting, match=r"is invalid|is not a folder of this machine"):
            archive(None, store.path, "orders", address, storage_options=s3.options)
    with pytest.raises(InvalidSetting, match="storage_options: only a folder in an object store has them"):
        archive(None, store.path, "orders", tmp_path / "here", storage_options=s3.options)
    with pytest.raises(InvalidSetting, match="storage_options: ") as wrong:
        archive(None, store.path, "orders", f"s3://lake/{folder}", storage_options={**s3.options, "aws_sekret": SECRET})
    with pytest.raises(Unreachable) as missing:
        archive(None, store.path, "orders", "s3://no-such-bucket/orders", storage_options=s3.options)
    assert SECRET not in str(wrong.value) + str(missing.value)
    files = object_files.ObjectFiles(f"s3://lake/{folder}", s3.options)
    assert "no ***" in str(files._failure("x", ValueError(f"no {SECRET}")))
    with pytest.raises(InvalidSetting, match="file_bytes: 8589934592 is too large for an object store"):
        run(s3, store, folder, file_bytes=8 << 30)
    with pytest.raises(InvalidSetting, match="catalog: an Iceberg table in an object store needs one"):
        run(s3, store, folder, format="iceberg")
    store.topics.create("others")
    run(s3, store, folder)
    with pytest.raises(InvalidSetting, match="belongs to the pipeline archive of orders"):
        archive(None, store.path, "others", f"s3a://lake/{folder}", storage_options=s3.options)


def test_the_command_line_takes_an_address(
    s3: S3, store: klamm.Store, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Credentials come from the environment; what is known without a look into the object store is listed."""
    from typer.testing import CliRunner

    from klamm.cli.main import app

    for name, value in s3.options.items():
        monkeypatch.setenv(name.upper(), value)
    store.topics.create("orders")
    few(store, 5)
    for _ in range(2):
        arguments = ["pipeline", "archive", "orders", f"s3://lake/{folder}", "--store", str(store.path), "-o", "json"]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
    assert is_whole(s3, store, folder)
    (listed,) = list_pipelines(store.path)
    assert (listed.name, listed.pipeline, listed.state) == ("archive-orders", "archive", "unknown")
    shown = show_pipeline(store.path, "archive-orders")
    assert (shown.state, shown.lag, shown.batches, shown.target) == ("idle", 0, 1, f"s3://lake/{folder}")
    with pytest.raises(InvalidSetting, match="an archive in an object store is not reset by Klamm"):
        reset_pipeline(store.path, "archive-orders")
    assert retire_pipeline(store.path, "archive-orders").keeps
    assert list_pipelines(store.path) == []
    assert is_whole(s3, store, folder)


def test_a_delta_table_in_an_object_store_has_each_record_once(
    s3: S3, store: klamm.Store, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where another run is first, and where small files are merged."""
    store.topics.create("orders", 2)
    publish = DeltaTable._change
    others: list[int] = []

    def late(self: Any, sequence: int, *arguments: Any) -> None:
        if sequence == 2 and not others:
            others.append(0)
            others[0] = run(s3, store, folder).rows_written
        publish(self, sequence, *arguments)

    few(store, 10)
    assert run(s3, store, folder, format="delta", max_offsets=5).batches == 2
    for _ in range(5):
        few(store, 2)
        run(s3, store, folder)
    assert s3.table(folder).history()[0]["klamm.batch"] == "6"
    few(store, 2)
    assert run(s3, store, folder).details["files_merged"] >= 8
    assert is_whole(s3, store, folder, "delta")
    folder += "-again"
    monkeypatch.setattr(DeltaTable, "_change", late)
    with pytest.raises(StoreBusy):
        run(s3, store, folder, format="delta", max_offsets=5)
    assert others == [12]
    run(s3, store, folder)
    assert is_whole(s3, store, folder, "delta")
    assert not any(SECRET.encode() in data for data in s3.objects(folder).values())


def test_an_iceberg_table_in_an_object_store_has_each_record_once(
    s3: S3, store: klamm.Store, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a run dies before and after the commit, and where another run is first."""
    catalogs = pytest.importorskip("pyiceberg.catalog")
    from pyiceberg.utils.config import Config

    from klamm.spark.pipelines.iceberg_table import IcebergTable

    folder = folder.replace(" ", "-")
    monkeypatch.setenv("PYICEBERG_CATALOG__PROD__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setattr(catalogs, "_ENV_CONFIG", Config())  # which pyiceberg reads once
    options = {"format": "iceberg", "catalog": "prod", "table_name": "lake.orders"}
    store.topics.create("orders", 2)
    with pytest.raises(KlammError, match="URI missing"):
        run(s3, store, f"{folder}-nowhere", **{**options, "catalog": "nowhere"})
    for step in ("_commit", "_sync"):
        few(store, 4)
        with monkeypatch.context() as patch:
            patch.setattr(IcebergTable, step, _die)
            with pytest.raises(Died):
                run(s3, store, folder, **options)
        few(store, 2)
        run(s3, store, folder)
    change = IcebergTable._change
    others: list[int] = []

    def late(self: Any, *arguments: Any) -> None:
        if not others:
            others.append(0)
            few(store, 2)
            others[0] = run(s3, store, folder).rows_written
        change(self, *arguments)

    few(store, 10)
    with monkeypatch.context() as patch:
        patch.setattr(IcebergTable, "_change", late)
        with pytest.raises(StoreBusy):
            run(s3, store, folder)
    few(store, 2)
    run(s3, store, folder)
    assert s3.iceberg_rows() == topic_rows(store, "orders")
    assert not any(SECRET.encode() in data for data in s3.objects(folder).values())


def test_an_archive_in_an_object_store_is_restored(
    spark: Any, s3: S3, store: klamm.Store, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs with and without Spark follow each other."""
    store.topics.create("orders", 2)
    for number, session in enumerate((None, spark)):
        fill(store, 20 * number, 20)
        assert run(s3, store, folder, session, max_offsets=15).rows_written == 20
        assert is_whole(s3, store, folder)

    def bring_back() -> int:
        address = f"s3a://lake/{folder}"
        return restore(spark, address, tmp_path / "again", "orders", storage_options=s3.options).rows_written

    paths = Journal.paths

    def late(self: Journal) -> list[str]:
        found = paths(self)
        run(s3, store, folder)
        return found

    fill(store, 40, 20)
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "paths", late)
        with pytest.raises(StoreBusy, match="a run of archive is at work"):
            bring_back()
    assert bring_back() == 60
    with klamm.open(tmp_path / "again") as again:
        assert topic_rows(again, "orders") == topic_rows(store, "orders")


def _fail(*_: object, **__: object) -> None:
    raise RuntimeError("as if the driver were killed")


def test_dead_letters_of_a_micro_batch_that_is_done_again_are_sent_once(
    spark: Any, s3: S3, store: klamm.Store, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PLD1: the run dies after its dead letters and before its decision, and there are more records by then."""
    store.topics.create("orders", 2)
    schema = "n INT, at TIMESTAMP, more STRUCT<t: ARRAY<TIMESTAMP>>"

    def more(count: int) -> None:
        good = b'{"n": 1, "at": "2025-01-31T00:00:00Z", "more": {"t": ["2025-01-31T00:00:00Z"]}}'
        store.append_many("orders", [(None, good if n % 3 else b"bad") for n in range(count)])

    more(12)
    assert run(s3, store, folder, spark, schema=schema, format="delta").dead_letters == 4
    more(12)
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "commit", _fail)
        with pytest.raises(Exception, match="as if the driver were killed"):
            run(s3, store, folder, spark)
    more(6)
    report = run(s3, store, folder, spark)
    assert (report.rows_written, report.dead_letters, report.batches) == (12, 6, 2)
    letters = [each.origin for each in store.dead_letters("orders.dlq")]
    assert len(letters) == len(set(letters)) == 10
    rows = s3.rows(folder, "delta")
    assert rows == [row for row in topic_rows(store, "orders") if row[4] != b"bad"]
    plans = json.loads(s3.objects(folder)[f"{OURS}/plans.json"])
    assert sorted(map(int, plans)) == [1, 2]
    assert State.read(files_of(f"s3://lake/{folder}", s3.options)).batch == 2


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_driver_that_is_killed_again_and_again_archives_every_record_once(
    s3: S3, store: klamm.Store, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in test_archive.py, beside requests that fail."""
    dice = random.Random(seed_of())
    store.topics.create("orders", 2)
    for name, value in s3.options.items():
        monkeypatch.setenv(name.upper(), value)
    files = files_of(f"s3://lake/{folder}", s3.options)

    def fill_more(count: int) -> None:
        values = [(b"%d" % (n % 9), b'{"n": %d}' % n if n % 5 else b"bad", None, NEW_YEAR) for n in range(count)]
        store.append_many("orders", values)

    fill_more(1000)
    for _ in range(10):
        before = State.read(files).batch
        s3.faults(rate=0.05, seed=dice.random())
        with driver(DRIVER, "archive", store.path, "orders", f"s3://lake/{folder}", 20) as process:
            wait_for(lambda least=before + 1: State.read(files).batch >= least, process)  # type: ignore[misc]
            with suppress(subprocess.TimeoutExpired):
                process.wait(dice.random() * 3)
        s3.faults()
        fill_more(20)
    with driver(DRIVER, "archive", store.path, "orders", f"s3://lake/{folder}", 500) as process:
        assert process.wait(600) == 0
    whole = topic_rows(store, "orders")
    assert s3.rows(folder) == [row for row in whole if row[4] != b"bad"]
    letters = [each.origin for each in store.dead_letters("orders.dlq")]
    assert sorted((each.partition, each.offset) for each in letters if each) == [
        row[:2] for row in whole if row[4] == b"bad"
    ]
