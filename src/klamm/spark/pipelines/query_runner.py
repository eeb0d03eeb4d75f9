"""Parts that all pipelines share: the topics they read, a streaming query that is run to its end, and its progress.

A pipeline is a streaming query with a checkpoint: each run takes what is new, a micro-batch is done once, and the
next run continues one that was killed. `every=None`: until all that is there when it begins is done; else a
trigger such as "10 seconds", until Ctrl-C.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from klamm.errors import InvalidSetting, KlammError
from klamm.log import segment
from klamm.spark.checkpoint import committed, ends_of
from klamm.spark.internals import is_connect, session_of
from klamm.spark.offsets import OURS
from klamm.spark.pipelines.folder_files import FolderFiles, files_of
from klamm.spark.pipelines.journal import State
from klamm.spark.pipelines.pipeline_directory import PipelineDirectory
from klamm.spark.pipelines.progress_reports import ProgressReports
from klamm.spark.pipelines.registry import register
from klamm.spark.pipelines.store_location import StoreLocation
from klamm.spark.remote import read_stream
from klamm.times import parse_duration
from klamm.types import TopicId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from klamm.spark.pipelines.report import Progress

__all__ = [
    "LOCAL_BYTES",
    "UNITS_MS",
    "Outcome",
    "Source",
    "behind",
    "bytes_to_read",
    "check_not_connect",
    "check_number",
    "checkpoint",
    "collected",
    "drain",
    "dropped",
    "duration",
    "plain_errors",
    "source",
]

UNITS_MS = {"millisecond": 1, "second": 1000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000}
UNITS_MS["week"] = 7 * UNITS_MS["day"]
LOCAL_BYTES = 64 << 20
"""`klamm pipeline` archives or looks through a topic without Spark if it has no more to read than this."""
_LONGEST_MS = 365_000 * UNITS_MS["day"]
_POLL_S = 0.2
_log = logging.getLogger("klamm.spark")
_OURS = re.compile(r"klamm\.errors\.\w+: ([^\n]+)")


@dataclass(frozen=True)
class Source:
    """A store, and topics of it."""

    store: StoreLocation
    store_id: str
    topics: Mapping[str, TopicId]
    """Their ids by name."""
    ends: Mapping[str, list[int]]
    """The offset after the last record of each partition."""

    def take(
        self, pipeline: str, directory: str | os.PathLike[str] | FolderFiles, options: Mapping[str, Any]
    ) -> PipelineDirectory:
        """Take a folder for a pipeline that reads these topics, and let the store know of it, if it is a directory.

        Store and topics are known by their ids, so a pipeline may go on where the store is reached in another way.
        """
        identity = {"pipeline": pipeline, "store": self.store_id, "topics": dict(self.topics)}
        folder = PipelineDirectory.take(directory, identity, options)
        if self.store.server is None:
            register(self.store.path, folder.directory, identity)
        return folder

    def rows(self, spark: SparkSession, topic: str, **options: Any) -> DataFrame:
        """Return a stream of a topic's records, from its beginning."""
        given = {"subscribe": topic, "startingOffsets": "earliest", **options}
        return read_stream(spark, self.store.path, **self.store.login, **given)


def source(store: str | os.PathLike[str], *names: str) -> Source:
    """Return the source. Raise UnknownTopic, NotAStore and Unreachable here, before a job starts."""
    location = StoreLocation.of(store)
    with location.opened() as core:
        found = [core.topic(name) for name in names]
        return Source(
            location,
            core.catalog.store_id,
            {each.name: each.topic.id for each in found},
            {each.name: [partition.ends().end for partition in each.partitions()] for each in found},
        )


def bytes_to_read(
    store: str | os.PathLike[str], topic: str, archive: str | os.PathLike[str] | None = None
) -> int | None:
    """Return how many bytes of log `quality` would read of a topic, or `archive` to that folder: about, by offsets.

    None: the store is behind a server, which does not say.
    """
    location = StoreLocation.of(store)
    if location.server is not None:
        return None
    with location.opened() as core:
        found = core.topic(topic)
        state = State() if archive is None else State.read(files_of(archive))
        total = 0.0
        for log in found.partitions():
            ends = log.ends()
            left = max(0, ends.end - max(ends.start, state.ends.get(log.number, 0)))
            total += segment.bytes_in(log.directory) * left / max(1, ends.end - ends.start)
    return int(total)


def check_not_connect(spark: SparkSession, pipeline: str) -> None:
    """Refuse a session of Spark Connect, for a pipeline part of which has to run in the process of the driver."""
    if is_connect(spark):
        raise InvalidSetting(
            f"{pipeline}: needs the driver's process, and this session is a client of Spark Connect",
            hint="run it where the server is, with a session of its own: klamm.spark.session()",
        )


def checkpoint(
    store: str | os.PathLike[str],
    *topics: str,
    pipeline: str,
    options: Mapping[str, Any] | None = None,
    directory: str | os.PathLike[str] | None = None,
) -> str:
    """Return the checkpoint of a pipeline of your own that reads `topics`: in `directory`, or in the store.

    The store is a directory, or klamm://host:9092 or kafka://host:9092: then `directory` has to be given.

    The first run takes the folder. InvalidSetting if it belongs to another pipeline, to topics that were deleted and
    created again, or was begun with other `options`: a query that went on from there would be wrong.
    """
    if not topics:
        raise InvalidSetting("checkpoint: no topic given", hint="name the topics that the pipeline reads")
    read = source(store, *topics)
    folder = read.store.folder(topics[0], directory, "directory")
    return read.take(pipeline, folder, options or {}).checkpoint


def behind(checkpoint: str, read: Source) -> int:
    """Return how many offsets of the source are left for the next run."""
    done = _offsets(checkpoint)
    total = 0
    for name, ends in read.ends.items():
        before = {tp.partition: offset for tp, offset in done if tp.topic == name}
        total += sum(max(0, end - before.get(number, 0)) for number, end in enumerate(ends))
    return total


def _offsets(checkpoint: str) -> list[tuple[Any, int]]:
    """Return where the last micro-batch that was done ended."""
    try:
        done = committed(checkpoint)
        return [] if done is None else ends_of(checkpoint, done)
    except (OSError, ValueError):
        return []


@dataclass
class Outcome:
    """The outcome of a query, as far as it has come."""

    rows: int = 0
    """That it read."""
    batches: int = 0
    seconds: float = 0.0
    late: int = 0
    """Rows that state operators refused."""
    counts: Counter[str] = field(default_factory=Counter)
    """Rows that were observed on their way, by name."""
    offsets: int = 0
    """That it has gone through."""
    last: int = -1
    """The number of the last micro-batch."""

    def add(self, reports: Iterable[dict[str, Any]], after: Callable[[dict[str, Any]], object] | None) -> None:
        """Add what Spark says of micro-batches that are done, each once, in their order."""
        for data in reports:
            missed = data["batchId"] - self.last - 1
            if self.last >= 0 and missed:
                _log.warning("Spark has forgotten the progress of %d micro-batches: counts are too small", missed)
            self.last = data["batchId"]
            self.batches += 1
            self.rows += data["numInputRows"]
            self.late += dropped(data)
            for name, observed in (data.get("observedMetrics") or {}).items():
                self.counts[name] += int(observed.get("rows", 0))
            for one in data["sources"]:
                self.offsets += _sum(one.get("endOffset")) - _sum(one.get("startOffset"))
            if after is not None:
                after(data)


def drain(
    writer: DataStreamWriter,
    *,
    every: str | None = None,
    progress: Progress | None = None,
    total: int | None = None,
    after: Callable[[dict[str, Any]], object] | None = None,
) -> Outcome:
    """Run the query until there is nothing left, or, with `every`, until Ctrl-C.

    `after` is called once for each micro-batch that is done, in their order, with what Spark says of it.
    """
    begin = time.monotonic()
    writer = (
        writer.trigger(availableNow=True) if every is None else writer.trigger(processingTime=duration(every, "every"))
    )
    outcome = Outcome()
    with plain_errors(), closing(ProgressReports(session_of(writer))) as reports:
        query = writer.start()
        reports.of(query)
        try:
            while not query.awaitTermination(_POLL_S):  # type: ignore[arg-type]  # it takes parts of seconds
                outcome.add(reports.take(), after)
                if progress is not None:
                    progress(outcome.offsets, total)
        except KeyboardInterrupt:
            query.stop()
            if every is None:
                raise
        except BaseException:
            query.stop()
            raise
        outcome.add(reports.take_rest(), after)
    outcome.seconds = time.monotonic() - begin
    if progress is not None:
        progress(outcome.offsets if total is None else total, total)
    return outcome


def dropped(progress: Mapping[str, Any]) -> int:
    """Return how many rows of one micro-batch state operators dropped because they were older than the watermark."""
    return sum(int(each["numRowsDroppedByWatermark"]) for each in progress["stateOperators"])


def _sum(offsets: Any) -> int:
    data = json.loads(offsets) if isinstance(offsets, str) else offsets
    if not isinstance(data, dict):
        return 0
    return sum(sum(numbers.values()) for topic, numbers in data.items() if topic != OURS)


@contextmanager
def plain_errors() -> Iterator[None]:
    """Raise an error of ours that went through Spark as a KlammError with the sentence that it had."""
    try:
        yield
    except Exception as error:
        sentences = _OURS.findall(str(error))
        if not sentences or isinstance(error, KlammError):
            raise
        raise KlammError(sentences[-1].strip()) from error


def collected(rows: DataFrame) -> list[Any]:
    """Return the rows; an error of ours without Spark's traceback."""
    with plain_errors():
        return rows.collect()


def check_number(name: str, value: object) -> None:
    """Refuse what is not a whole number above 0."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidSetting(f"{name}: {value!r} is invalid", hint="expected a whole number above 0")


def duration(text: str, what: str) -> str:
    """Return a duration as Spark writes it, of one as Spark or as Klamm writes it: "5 minutes", "5m"."""
    wanted = "expected a number and a unit: 5 minutes, or 5m"
    if isinstance(text, str) and (short_ms := parse_duration(text.strip())) is not None:
        text = f"{short_ms} milliseconds"
    if not isinstance(text, str) or not re.fullmatch(r"\s*\d+\s+(millisecond|second|minute|hour|day|week)s?\s*", text):
        raise InvalidSetting(f"{what}: {text!r} is not a time", hint=wanted)
    number, unit = text.split()
    if int(number) * UNITS_MS[unit.removesuffix("s")] > _LONGEST_MS:
        raise InvalidSetting(f"{what}: {text!r} is too long", hint=f"{wanted}, of a thousand years at most")
    return f"{number} {unit}"
