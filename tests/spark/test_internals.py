"""What Klamm bets on inside of Spark (klamm/spark/internals.py), tried on the Spark that is installed.

The bet on the garbage collector is in test_source.py, that on filters that a session does not push in there, too. Other
versions run these in test_versions.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from klamm.spark import internals

if TYPE_CHECKING:
    import pyarrow as pa

pyspark = pytest.importorskip("pyspark")
TRIED = ("4.1", "4.2", "4.3")
"""Versions that these were seen working on."""


def test_the_version_is_one_of_those_that_were_tried() -> None:
    assert pyspark.__version__.rpartition(".")[0] in TRIED, f"try klamm/spark/internals.py on {pyspark.__version__}"


def test_workers_sessions_and_writers_are_told_apart(spark: Any) -> None:
    def look(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"worker": [internals.is_worker()]})

    assert not internals.is_worker() and not internals.is_connect(spark)
    assert [row[0] for row in spark.range(1).coalesce(1).mapInArrow(look, "worker BOOLEAN").collect()] == [True]
    own = internals.own_session(spark)
    own.conf.set("spark.sql.shuffle.partitions", "7")
    assert spark.conf.get("spark.sql.shuffle.partitions") != "7"
    assert internals.session_of(own.readStream.format("rate").load().writeStream) is own


def test_a_micro_batch_is_known_in_its_tasks_and_its_checkpoint_on_the_driver(spark: Any, tmp_path: Path) -> None:
    def look(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark import TaskContext

        rows = sum(batch.num_rows for batch in batches)
        query, number, run = internals.micro_batch(TaskContext.get()) or ("none", -1, "none")
        yield pa.RecordBatch.from_pydict({"rows": [rows], "query": [query], "number": [number], "run": [run]})

    seen: list[tuple[str | None, list[tuple[Any, ...]], int]] = []

    def save(df: Any, number: int) -> None:
        seen.append((internals.checkpoint_of_batch(df), [tuple(row) for row in df.collect()], number))

    schema = "rows LONG, query STRING, number LONG, run STRING"
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "lines.txt").write_text("one\ntwo\n")
    rows = spark.readStream.text(str(tmp_path / "in")).coalesce(1).mapInArrow(look, schema)
    writer = rows.writeStream.foreachBatch(save).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    (found,) = seen
    assert found == (f"file:{tmp_path / 'checkpoint'}", [(2, str(query.id), 0, str(query.runId))], 0)
    batch = spark.read.text(str(tmp_path / "in")).coalesce(1).mapInArrow(look, schema)
    assert [tuple(row) for row in batch.collect()] == [(2, "none", -1, "none")]
    assert internals.checkpoint_of_batch(batch) is None


@pytest.mark.parametrize(
    ("ours", "error"),
    [(True, "EOFError"), (True, "BrokenPipeError"), (False, "EOFError")],
    ids=["while it waits for a request", "while it sends a response", "elsewhere"],
)
def test_a_process_whose_query_was_stopped_ends_without_a_word(ours: bool, error: str) -> None:
    program = (
        "from klamm.spark.internals import exit_after_hang_up\n"
        f"try:\n    raise {error}\nexcept {error}:\n    exit_after_hang_up()\nprint('goes on')"
    )
    variables = {**os.environ, "PYTHON_WORKER_FACTORY_SECRET": "x"} if ours else None
    ended = subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "" if ours else "goes on\n", "")
