"""The guide's pages on Spark, pasted into a prompt with the session of these tests: another JVM would take seconds."""

from __future__ import annotations

import code
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import klamm
import klamm.spark
from klamm.spark.session import PATH
from tests.test_documents import BEFORE_GUIDE, ROOT, blocks_of, python_blocks

pytest.importorskip("pyspark")


class Prompt(code.InteractiveConsole):
    """Python's prompt. It parses as `python -i` does, and keeps the tracebacks that it shows."""

    def __init__(self, directory: Path) -> None:
        super().__init__({"klamm": klamm})
        self.directory = directory
        self.shown = ""

    def write(self, data: str) -> None:
        self.shown += data

    def paste(self, block: str) -> None:
        """Run a block. Paths are below the directory of the test: that of the JVM is another one."""
        block = re.sub(r'"(?=(?:events|checkpoints|archive)/)', f'"{self.directory}/', block)
        for line in f"{block}\n".split("\n"):
            self.push(line)
            assert self.shown == "", f"{self.shown}\n{block}"

    @property
    def store(self) -> klamm.Store:
        store: klamm.Store = self.locals["store"]
        return store

    def values(self, *topics: str) -> list[bytes | None]:
        return sorted(record.value for topic in topics for record in self.store.consumer(topic, wait=0))


@pytest.fixture
def prompt(spark: Any, tmp_path: Path) -> Iterator[Prompt]:
    prompt = Prompt(tmp_path)
    prompt.paste(BEFORE_GUIDE)
    with same_settings(spark, PATH, "spark.sql.shuffle.partitions"):
        yield prompt
    prompt.store.close()


@contextmanager
def same_settings(spark: Any, *names: str) -> Iterator[None]:
    """Give the session back with the settings that it had."""
    before = {name: spark.conf.get(name, None) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)


@pytest.mark.timeout(300)
def test_the_page_on_spark_works_when_pasted_into_a_prompt(prompt: Prompt, capfd: pytest.CaptureFixture[str]) -> None:
    for block in python_blocks("docs/guide/spark.md"):
        prompt.paste(block)
    orders = prompt.values("orders")
    first_partition = prompt.store.topics.describe("orders").partitions[0].end
    assert len(prompt.values("parsed")) == 2 * len(orders) + first_partition  # a stream, and two writes
    counts = {record.key: record.value for record in prompt.store.consumer("counts", wait=0)}
    assert counts == {b"user-%d" % number: b"100" for number in range(10)}
    assert "|    1000|" in capfd.readouterr().out


@pytest.mark.timeout(300)
def test_the_page_on_archives_works_when_pasted_into_a_prompt(prompt: Prompt) -> None:
    for block in python_blocks("docs/guide/pipeline-archive.md"):
        prompt.paste(block)
    assert prompt.values("orders-again") == prompt.values("orders")
    report = prompt.locals["report"]
    assert (report.rows_written, report.dead_letters) == (0, 1000)  # numbers are no JSON objects
    assert len(list(prompt.store.dead_letters("orders.dlq"))) == 1000


@pytest.mark.timeout(300)
def test_the_queries_of_the_page_on_exactly_once_deliver_each_record_once(spark: Any, prompt: Prompt) -> None:
    copy, split = (
        block.text for block in blocks_of(ROOT / "docs/guide/spark-exactly-once.md") if block.language == "py"
    )
    for topic in ("clean", "a", "b"):
        prompt.store.topics.create(topic)
    prompt.locals["spark"] = spark
    orders = klamm.spark.read_stream(spark, prompt.store.path, subscribe="orders", startingOffsets="earliest")
    prompt.locals["stream"] = orders.selectExpr("key", "value", "IF(offset % 2 = 0, 'A', 'B') AS kind")
    assert copy.count(".awaitTermination()") == 1  # it would wait forever
    for block, topics in ((copy.replace(".awaitTermination()", ""), ["clean"]), (split, ["a", "b"])):
        prompt.paste(block)
        (query,) = spark.streams.active
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        assert prompt.values(*topics) == prompt.values("orders")
