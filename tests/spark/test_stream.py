"""format("klamm") in streaming queries: checkpoints, limits, progress, topics that change, drivers that die."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import klamm
import klamm.spark
from klamm.errors import GroupBusy, InvalidSetting, UnknownTopic
from klamm.spark.offsets import OURS
from klamm.spark.source import KlammSource
from tests.crash.cases import seed_of
from tests.procs import until

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from klamm.spark.stream import StreamReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE = 150.0  # a JVM, or a micro-batch, on a machine that has other things to do
STARTS_JVMS = pytest.mark.timeout(450)


def append(store: klamm.Store, count: int, topic: str = "orders", partition: int = 0) -> None:
    store.append_many(topic, [(None, b"v")] * count, partition=partition, acks=1)


def aborted(store: klamm.Store, topic: str) -> None:
    with suppress(ZeroDivisionError), store.transaction() as transaction:
        transaction.send(topic, b"never")
        raise ZeroDivisionError


# The reader, as Spark's process on the driver calls it


@pytest.fixture
def reader(store: klamm.Store) -> Iterator[Callable[..., StreamReader]]:
    made: list[StreamReader] = []

    def make(**options: str) -> StreamReader:
        source = KlammSource({"path": store.path, "subscribe": "orders"} | options)
        found = source.streamReader(source.schema())
        assert isinstance(found, StreamReader)
        made.append(found)
        return found

    yield make
    for each in made:
        each.stop()


def committed(store: klamm.Store, group: str) -> dict[tuple[str, int], int | None]:
    found = store.groups.describe(group).offsets
    return {(each.topic, each.partition): each.committed and each.committed.offset for each in found}


def test_limits_lag_and_available_now(store: klamm.Store, reader: Callable[..., StreamReader]) -> None:
    store.topics.create("orders", partitions=2)
    append(store, 100)
    append(store, 20, partition=1)
    stream = reader(startingOffsets="earliest", maxOffsetsPerTrigger="60")
    assert stream.getDefaultReadLimit() == ReadMaxRows(60)
    assert reader().getDefaultReadLimit() == ReadAllAvailable()
    start = stream.initialOffset()
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    assert sum(end["orders"].values()) == 60 and all(end["orders"].values())
    report = stream.reportLatestOffset()
    assert report is not None
    assert report["orders"] == {"0": 100, "1": 20}
    behind = [100 - end["orders"]["0"], 20 - end["orders"]["1"]]
    assert behind[0] != behind[1]
    names = ("behind", "minOffsetsBehindLatest", "maxOffsetsBehindLatest", "avgOffsetsBehindLatest")
    assert [report[OURS][name] for name in names] == [60, min(behind), max(behind), 30]
    stream.prepareForTriggerAvailableNow()
    append(store, 1000)
    store.topics.add_partitions("orders", 3)
    append(store, 5, partition=2)
    while (following := stream.latestOffset(end, ReadMaxRows(60))) != end:
        end = following
    assert end["orders"] == {"0": 100, "1": 20}
    assert reader().latestOffset(end, ReadAllAvailable())["orders"] == {"0": 1100, "1": 20, "2": 5}


def test_a_micro_batch_waits_for_enough_offsets_or_for_the_longest_delay(
    store: klamm.Store, reader: Callable[..., StreamReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [0.0]
    monkeypatch.setattr("klamm.spark.stream.time.monotonic", lambda: now_s[0])
    store.topics.create("orders", partitions=2)
    append(store, 3)
    stream = reader(startingOffsets="earliest", minOffsetsPerTrigger="10", maxTriggerDelay="60s")

    def following(start: dict[str, Any], of: StreamReader = stream) -> tuple[dict[str, Any], int]:
        found = of.latestOffset(start, of.getDefaultReadLimit())
        return found, sum(found["orders"].values())

    end, count = following(stream.initialOffset())
    assert count == 3  # the first of a run does not wait
    append(store, 4)
    append(store, 5, partition=1)
    assert following(end) == (end, 3)
    now_s[0] += 59
    assert following(end) == (end, 3)
    now_s[0] += 1
    end, count = following(end)
    assert count == 12
    append(store, 9)
    assert following(end) == (end, 12)
    append(store, 1, partition=1)
    end, count = following(end)
    assert count == 22
    append(store, 1)
    assert following(end) == (end, 22)
    stream.prepareForTriggerAvailableNow()
    assert following(end)[1] == 23


@pytest.mark.parametrize("starting", ["latest", "earliest"])
def test_the_first_micro_batch_done_again_begins_where_it_began(
    store: klamm.Store, reader: Callable[..., StreamReader], starting: str
) -> None:
    store.topics.create("orders")
    append(store, 10)
    stream = reader(startingOffsets=starting)
    start = stream.initialOffset()
    append(store, 20)
    end = stream.latestOffset(start, ReadAllAvailable())
    planned = stream.partitions(start, end)
    first = 10 if starting == "latest" else 0
    assert ranges(planned) == [(first, 30)]
    assert stream.latestOffset(end, ReadAllAvailable()) == end, "to the letter: else Spark runs a batch without records"
    assert stream.partitions(end, end) == []
    append(store, 5)
    again = reader(startingOffsets=starting)  # after a crash: Spark has kept the end only
    assert ranges(again.partitions(again.initialOffset(), end)) == [(first, 30)]
    following = again.latestOffset(end, ReadAllAvailable())
    assert ranges(again.partitions(end, following)) == [(30, 35)]
    assert "from" in end[OURS] and "from" not in following[OURS]


@pytest.mark.parametrize("starting", ["latest", "earliest"])
def test_a_spark_that_does_not_say_where_a_micro_batch_starts_reads_each_record_once(
    store: klamm.Store, reader: Callable[..., StreamReader], starting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark 4.1: latestOffset has no arguments, and initialOffset is called at every start of a query."""
    monkeypatch.setattr("klamm.spark.stream.HAS_READ_LIMITS", False)
    store.topics.create("orders")
    append(store, 10)
    stream = reader(startingOffsets=starting)
    start = stream.initialOffset()
    append(store, 20)
    first = stream.latestOffset()
    begin = 10 if starting == "latest" else 0
    assert ranges(stream.partitions(start, first)) == [(begin, 30)]
    assert stream.latestOffset() == first
    append(store, 5)
    second = stream.latestOffset()
    assert ranges(stream.partitions(first, second)) == [(30, 35)]
    append(store, 5)
    again = reader(startingOffsets=starting)  # after a crash in the second micro-batch
    start = again.initialOffset()
    assert ranges(again.partitions(first, second)) == [(30, 35)]
    third = again.latestOffset()
    assert ranges(again.partitions(second, third)) == [(35, 40)]
    assert ranges(again.partitions(start, first)) == [(begin, 30)], "the first one, done again"
    store.topics.delete("orders")
    store.topics.create("orders")
    append(store, 50)
    other = reader(startingOffsets="earliest")
    with pytest.raises(UnknownTopic, match="data loss: orders: the topic was deleted and re-created"):
        other.partitions(third, other.latestOffset())
    with pytest.raises(InvalidSetting, match=r"maxOffsetsPerTrigger .*need PySpark 4\.2"):
        reader(maxOffsetsPerTrigger="9")


def ranges(tasks: list[Any]) -> list[tuple[int, int]]:
    return [(each.task.range.start, each.task.range.end) for each in tasks]


def test_the_group_commits_what_the_stream_has_done_not_what_it_has_planned(
    store: klamm.Store, reader: Callable[..., StreamReader]
) -> None:
    store.topics.create("orders")
    append(store, 10)
    stream = reader(startingOffsets="earliest", groupId="spark")
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    assert committed(store, "spark") == {("orders", 0): 0}  # planned, not done
    assert stream.latestOffset(end, ReadAllAvailable()) == end
    assert committed(store, "spark") == {("orders", 0): 10}
    append(store, 5)
    stream.commit(stream.latestOffset(end, ReadAllAvailable()))
    assert committed(store, "spark") == {("orders", 0): 15}
    assert store.check().ok
    with store.consumer("orders", group="mine", wait=0) as consumer:
        list(consumer)
        with pytest.raises(GroupBusy, match="'mine': the group is not empty: members: 1"):
            reader(groupId="mine").initialOffset()


def test_what_an_aborted_or_dead_transaction_leaves_is_passed(
    store: klamm.Store, reader: Callable[..., StreamReader]
) -> None:
    store.topics.create("orders")
    append(store, 3)
    aborted(store, "orders")
    stream = reader(startingOffsets="earliest")
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    offsets = [
        offset
        for task in stream.partitions(start, end)
        for batch in stream.read(task)
        for offset in batch.column("offset").to_pylist()
    ]
    assert offsets == [0, 1, 2] and end["orders"]["0"] >= 3


# In Spark


class Sink:
    """Rows that a query wrote, as JSON files, each once: Spark's file sink keeps a log of its own."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark = spark
        self.path = str(directory / "out")
        self.checkpoint = str(directory / "checkpoint")

    def start(self, frame: Any, **trigger: Any) -> Any:
        writer = frame.select("topic", "partition", "offset").writeStream.format("json")
        writer = writer.option("path", self.path).option("checkpointLocation", self.checkpoint)
        return (writer.trigger(**trigger) if trigger else writer).start()

    def rows(self) -> Counter[tuple[str, int, int]]:
        if not os.path.isdir(f"{self.path}/_spark_metadata"):
            return Counter()
        schema = "topic string, partition int, offset bigint"
        return Counter(tuple(row) for row in self._spark.read.schema(schema).json(self.path).collect())

    def offsets(self) -> list[dict[str, Any]]:
        """What the checkpoint says, micro-batch by micro-batch."""
        found = [each for each in Path(self.checkpoint, "offsets").iterdir() if each.name.isdigit()]
        return [json.loads(each.read_text().splitlines()[2]) for each in sorted(found, key=lambda each: int(each.name))]


@pytest.fixture
def sink(spark: SparkSession, tmp_path: Path) -> Sink:
    return Sink(spark, tmp_path)


def stream_of(spark: SparkSession, store: klamm.Store, **options: Any) -> Any:
    given = {"startingOffsets": "earliest"} | {name: str(value) for name, value in options.items()}
    if "subscribePattern" not in given:
        given.setdefault("subscribe", "orders")
    return spark.readStream.format("klamm").options(**given).load(store.path)


def everything(store: klamm.Store, *topics: str) -> Counter[tuple[str, int, int]]:
    return Counter(
        (topic, part.number, offset)
        for topic in topics
        for part in store.topics.describe(topic).partitions
        for offset in range(part.start, part.end)
    )


def test_available_now_across_restarts(spark: SparkSession, store: klamm.Store, sink: Sink) -> None:
    store.topics.create("orders", partitions=2)
    append(store, 70)
    append(store, 30, partition=1)
    frame = stream_of(spark, store, maxOffsetsPerTrigger=40, groupId="spark", minPartitions=3)
    query = sink.start(frame, availableNow=True)
    assert query.awaitTermination(PATIENCE)
    assert [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]] == [40, 40, 20]
    (source,) = query.recentProgress[0]["sources"]
    reported = json.loads(source["latestOffset"])[OURS]
    assert (reported["behind"], reported["avgOffsetsBehindLatest"]) == (60, 30)
    assert not source["metrics"], "a source in Python may report its own by now: fill in what Spark's Kafka source does"
    assert committed(store, "spark") == {("orders", 0): 70, ("orders", 1): 30}
    append(store, 7, partition=1)
    assert sink.start(frame, availableNow=True).awaitTermination(PATIENCE)
    assert sink.rows() == everything(store, "orders")
    assert [sum(each["orders"].values()) for each in sink.offsets()] == [40, 80, 100, 107]
    # What is no stream's is told when the query starts, and by read_stream before that.
    with pytest.raises(Exception, match=r"InvalidSetting: endingOffsets: is for batch queries only \(leave it out\)"):
        sink.start(stream_of(spark, store, endingOffsets="latest"), availableNow=True).awaitTermination(PATIENCE)
    with pytest.raises(InvalidSetting, match="endingOffsets: is for batch queries only"):
        klamm.spark.read_stream(spark, store.path, subscribe="orders", endingOffsets="latest")


def test_partitions_and_topics_that_appear_in_a_running_stream(
    spark: SparkSession, store: klamm.Store, sink: Sink
) -> None:
    from pyspark.errors import StreamingQueryException

    store.topics.create("o-1")
    append(store, 3, "o-1")
    query = sink.start(stream_of(spark, store, subscribePattern="o-.*"))
    try:
        until(lambda: sink.rows() == everything(store, "o-1"), "the first are there", PATIENCE)
        store.topics.add_partitions("o-1", 2)
        append(store, 4, "o-1", 1)
        store.topics.create("o-2")
        append(store, 5, "o-2")
        until(lambda: sink.rows() == everything(store, "o-1", "o-2"), "all are there", PATIENCE)
        # A topic that is made anew under the query is data loss.
        store.topics.delete("o-2")
        store.topics.create("o-2")
        with pytest.raises(StreamingQueryException) as caught:
            query.awaitTermination(PATIENCE)
        message = str(caught.value)  # which of the two it is depends on when the query looked
        told = "klamm.errors.UnknownTopic: data loss: o-2: the topic was deleted"
        assert told in message, message
        assert "Traceback" not in message.split(told, maxsplit=1)[0], message
    finally:
        query.stop()


# Drivers that die, Spark Connect, executors in processes of their own

_DRIVER = """
import sys
import klamm.spark
path, out, checkpoint = sys.argv[1:]
spark = klamm.spark.session(
    master="local[2]", spark_ui_enabled=False, spark_driver_memory="1g", spark_log_level="OFF",
    **{"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"},
)
frame = spark.readStream.format("klamm").option("subscribe", "orders").option("startingOffsets", "earliest")
frame = frame.option("maxOffsetsPerTrigger", "50").load(path).select("topic", "partition", "offset")
writer = frame.writeStream.format("json").option("path", out).option("checkpointLocation", checkpoint)
writer.start().awaitTermination()
"""

_ELSEWHERE = """
import sys
import klamm.spark
path, checkpoint = sys.argv[1:]
spark = klamm.spark.session(
    remote="local-cluster[2,1,1024]", spark_ui_enabled=False, spark_ui_showConsoleProgress=False,
    spark_log_level="OFF",
    **{
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    },
)
print("session", type(spark).__module__)
frame = spark.read.format("klamm").option("subscribe", "orders").option("minPartitions", "4").load(path)
print("batch", frame.count(), frame.where("partition = 1 and offset < 5").count())
try:
    spark.read.format("klamm").option("subscribe", "order").load(path).count()
except Exception as error:
    print("error", str(error).splitlines()[0])
stream = spark.readStream.format("klamm").option("subscribe", "orders").option("startingOffsets", "earliest").load(path)
writer = stream.writeStream.format("memory").queryName("seen").option("checkpointLocation", checkpoint)
writer.trigger(availableNow=True).start().awaitTermination()
print("stream", spark.sql("select count(distinct partition, offset) from seen").collect()[0][0], flush=True)
"""


def started(script: str, *arguments: str, output: Any) -> subprocess.Popen[bytes]:
    """In a group of processes of its own, so that all of it can be killed: Python, the JVM, and its workers."""
    command = [sys.executable, "-W", "ignore", "-c", script, *arguments]
    return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)


_HUNG_UP = """
import sys
from klamm.spark.source import KlammSource
source = KlammSource({"path": sys.argv[1], "subscribe": "orders"})
reader = source.streamReader(source.schema())
try:
    reader.initialOffset()
    raise EOFError
finally:
    reader.stop()
"""


def test_spark_hanging_up_is_nothing_to_complain_about(store: klamm.Store) -> None:
    store.topics.create("orders")
    for spark, code in (({"PYTHON_WORKER_FACTORY_SECRET": "x"}, 0), ({}, 1)):
        run = subprocess.run([sys.executable, "-c", _HUNG_UP, store.path], env=os.environ | spark, capture_output=True)
        assert (run.returncode, bool(run.stderr)) == (code, bool(code)), run.stderr


@STARTS_JVMS
@pytest.mark.soak  # test_exactly_once.py kills drivers in every run, source and sink together
def test_a_driver_killed_at_any_moment_leaves_offsets_that_are_contiguous_and_complete(
    spark: SparkSession, store: klamm.Store, sink: Sink, tmp_path: Path
) -> None:
    seed = seed_of()
    rng = random.Random(seed)
    store.topics.create("orders", partitions=2)
    with open(tmp_path / "log", "wb") as log:
        for _ in range(2):
            done = len(list(Path(sink.checkpoint).glob("commits/[0-9]*")))
            driver = started(_DRIVER, store.path, sink.path, sink.checkpoint, output=log)
            try:
                append(store, 400)
                append(store, 200, partition=1)

                def got_on(driver: subprocess.Popen[bytes] = driver, done: int = done) -> bool:
                    assert driver.poll() is None, (tmp_path / "log").read_text()
                    return len(list(Path(sink.checkpoint).glob("commits/[0-9]*"))) > done

                until(got_on, "the driver works", 4 * PATIENCE)
                moment = time.monotonic() + rng.random() * 0.5
                until(lambda moment=moment: time.monotonic() >= moment, "a random moment")  # type: ignore[misc]
            finally:
                os.killpg(driver.pid, signal.SIGKILL)
                driver.wait()
    frame = stream_of(spark, store, maxOffsetsPerTrigger=500)
    assert sink.start(frame, availableNow=True).awaitTermination(4 * PATIENCE)
    assert sink.rows() == everything(store, "orders")
    ends = [tuple(each["orders"].values()) for each in sink.offsets()]
    assert ends == sorted(ends) and ends[-1] == (800, 400)


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a client of Spark Connect saw, whose server has executors in processes of their own."""
    directory = tmp_path_factory.mktemp("elsewhere")
    with klamm.open(directory / "events") as store:
        store.topics.create("orders", partitions=2)
        for _ in range(10):
            append(store, 10)
            append(store, 10, partition=1)
        with open(directory / "log", "wb") as log:
            client = started(_ELSEWHERE, store.path, str(directory / "checkpoint"), output=log)

            def told() -> dict[str, str]:
                lines = (directory / "log").read_text().splitlines()
                found = dict(line.split(" ", 1) for line in lines if " " in line)
                assert "stream" in found or client.poll() is None, "\n".join(lines)
                return found if "stream" in found else {}

            try:
                return until(told, "the client has seen everything", 4 * PATIENCE)  # four JVMs on a busy machine
            finally:
                # Its server takes its time to stop such executors; nothing is left for it to do.
                os.killpg(client.pid, signal.SIGKILL)
                client.wait()


@STARTS_JVMS
@pytest.mark.soak  # test_session.py has a shorter one of both
def test_a_session_of_spark_connect_reads_and_names_the_topic_that_is_missing(elsewhere: dict[str, str]) -> None:
    assert elsewhere["session"].startswith("pyspark.sql.connect")
    assert "Topic 'order' does not exist (did you mean 'orders'?)" in elsewhere["error"]


@STARTS_JVMS
@pytest.mark.soak
def test_executors_in_processes_of_their_own(elsewhere: dict[str, str]) -> None:
    assert (elsewhere["batch"], elsewhere["stream"]) == ("200 5", "200")
