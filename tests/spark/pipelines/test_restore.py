"""restore: a topic is what it was, offsets and all; however often a run is killed, no record is there twice."""

from __future__ import annotations

import importlib
import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.errors import InvalidSetting
from klamm.spark.pipelines import archive, restore
from tests.crash.cases import seed_of
from tests.spark.pipelines.test_archive import DRIVER, NEW_YEAR, topic_rows
from tests.spark.processes import driver

pytest.importorskip("pyspark")

from pyspark import cloudpickle


def bounds(store: klamm.Store, topic: str) -> list[tuple[int, int]]:
    return [(each.start, each.end) for each in store.topics.describe(topic).partitions]


def fill(store: klamm.Store, topic: str, count: int = 300) -> None:
    store.append_many(
        topic,
        [
            (b"%d" % (n % 40), b"%d" % n if n % 7 else None, [("h", b"%d" % n)] * (n % 3), NEW_YEAR + n * 9_000_000)
            for n in range(count)
        ],
    )


def test_a_restored_topic_is_what_the_archived_one_was(spark: Any, store: klamm.Store, tmp_path: Path) -> None:
    """With transactions and their markers, offsets that compaction took, and a beginning that is gone."""
    store.topics.create("compacted", 3, {"cleanup.policy": "compact", "segment.records": 50})
    fill(store, "compacted")
    aborted = store.transaction(batch_bytes=1)
    for number in range(20):
        aborted.send("compacted", b"aborted", key=b"%d" % number)
    aborted.abort()
    with store.transaction() as transaction:
        transaction.send("compacted", b"committed", key=b"last")
    store["compacted"].compact(force=True)
    assert len(topic_rows(store, "compacted")) < 60
    store.topics.create("orders", 3, {"retention.ms": 10**15, "max.message.bytes": 700})
    fill(store, "orders")
    store.append("orders", b"no key")
    store["orders"].delete_records({0: 17, 2: bounds(store, "orders")[2][1]})
    told: list[tuple[int, int | None]] = []
    for topic in ("compacted", "orders"):
        archive(spark, store.path, topic, tmp_path / topic)
        report = restore(
            spark, tmp_path / topic, tmp_path / "new", topic, progress=lambda done, total: told.append((done, total))
        )
        assert report.rows_read == report.rows_written == len(topic_rows(store, topic))
        assert told[-1] == (sum(end - start for start, end in bounds(store, topic)),) * 2
    with klamm.open(tmp_path / "new") as new:
        for topic in ("compacted", "orders"):
            assert topic_rows(new, topic) == topic_rows(store, topic)
            assert bounds(new, topic) == bounds(store, topic)
        forever = {"retention.ms": "-1", "retention.bytes": "-1", "message.timestamp.after.max.ms": str((1 << 63) - 1)}
        assert new.topics.describe("compacted").settings == {
            "cleanup.policy": "compact",
            "segment.records": "50",
            **forever,
        }
        assert new.topics.describe("orders").settings == {"max.message.bytes": "700", **forever}
        assert new.check().ok
        assert restore(spark, tmp_path / "orders", new.path, "orders").rows_written == 0
        # What was archived since comes, too; and what is appended goes on behind.
        store.append_many("orders", [(b"%d" % n, b"more") for n in range(5)])
        archive(spark, store.path, "orders", tmp_path / "orders")
        assert restore(spark, tmp_path / "orders", new.path, "orders").rows_written == 5
        assert topic_rows(new, "orders") == topic_rows(store, "orders")
        assert new.append("orders", b"new", partition=0) == bounds(store, "orders")[0][1]


def test_what_cannot_be_is_refused(spark: Any, store: klamm.Store, tmp_path: Path) -> None:
    store.topics.create("orders", 2)
    with pytest.raises(InvalidSetting, match="not an archive: it is unclaimed"):
        restore(spark, tmp_path, store.path, "back")
    archive(spark, store.path, "orders", tmp_path / "out")
    assert restore(spark, tmp_path / "out", store.path, "empty").rows_written == 0
    assert bounds(store, "empty") == [(0, 0)] * 2
    store.append_many("orders", [(None, b"%d" % n) for n in range(10)], partition=1)
    archive(spark, store.path, "orders", tmp_path / "out")
    store.topics.create("three", 3)
    store.topics.create("stamped", 2, {"message.timestamp.type": "LogAppendTime"})
    for topic, said in (("three", "has 3 partitions, and the archive is of 2"), ("stamped", "is LogAppendTime")):
        with pytest.raises(InvalidSetting, match=said):
            restore(spark, tmp_path / "out", store.path, topic)
    for topic, number, count in (("longer", 1, 11), ("others", 1, 5), ("elsewhere", 0, 1)):
        store.topics.create(topic, 2)
        store.append_many(topic, [(None, b"x")] * count, partition=number)
        before = topic_rows(store, topic)
        with pytest.raises(InvalidSetting, match=f"{topic}/{number}: has other records than the archive"):
            restore(spark, tmp_path / "out", store.path, topic)
        assert topic_rows(store, topic) == before


def failing(trap: str, number: int, offset: int) -> Any:
    """What tasks of a restore run: the one that is about to append this offset of a partition is killed, once."""

    def tp(*arguments: Any) -> Iterator[Any]:
        from klamm.arrow.restore_writer import RestoreWriter
        from klamm.spark.pipelines.restore_pipeline import _restore_partition

        give = RestoreWriter.give

        def deadly(self: Any) -> None:
            after = self.next_offset + self._builder.count + self._builder.skipped
            if self._log.number == number and after > offset and os.path.exists(trap):
                os.unlink(trap)
                os.kill(os.getpid(), signal.SIGKILL)
            give(self)

        RestoreWriter.give = deadly  # type: ignore[method-assign]
        try:
            yield from _restore_partition(*arguments)
        finally:
            RestoreWriter.give = give  # type: ignore[method-assign]

    return tp


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kills", [1, pytest.param(10, marks=pytest.mark.soak)])
def test_a_restore_that_is_killed_is_gone_on_with(
    spark: Any, store: klamm.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: int
) -> None:
    dice = random.Random(seed_of())
    store.topics.create("orders", 2, {"max.message.bytes": 400, "retention.ms": -1})
    fill(store, "orders", 900)
    store["orders"].delete_records({0: 3})
    archive(spark, store.path, "orders", tmp_path / "out")
    whole = topic_rows(store, "orders")
    for _ in range(kills):
        with driver(
            DRIVER, "restore", tmp_path / "out", store.path, "back", dice.randrange(1, 20 // kills + 2)
        ) as process:
            assert process.wait(200) == -signal.SIGKILL
        if "back" in store.topics:
            for (_, end), (_, most) in zip(bounds(store, "back"), bounds(store, "orders"), strict=True):
                assert end < most
    # And a worker of Spark's, whose task is tried again: anywhere in what one of the partitions still lacks.
    number = dice.randrange(2)
    begun = bounds(store, "back")[number][1] if "back" in store.topics else 0
    start, end = bounds(store, "orders")[number]
    trap = tmp_path / "trap"
    trap.touch()
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    monkeypatch.setattr(
        importlib.import_module("klamm.spark.pipelines.restore_pipeline"),
        "_restore_partition",
        failing(str(trap), number, dice.randrange(max(begun, start), end)),
    )
    restore(spark, tmp_path / "out", store.path, "back")
    assert not trap.exists()
    assert topic_rows(store, "back") == whole
    assert bounds(store, "back") == bounds(store, "orders")
    assert klamm.check(store.path).ok
