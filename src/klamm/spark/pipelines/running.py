"""What all pipelines share: the topics they read, a streaming query that is run to its end, and its progress.

A pipeline is a streaming query with a checkpoint: each run takes what is new, a micro-batch is done once, and a run
that was killed is gone on with by the next. `every=None`: until all that is there when it begins is done; else a
trigger such as "10 seconds", until Ctrl-C.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from klamm.errors import InvalidSetting, KlammError
from klamm.spark.offsets import OURS, StreamOffsets
from klamm.spark.pipelines.claim import Claim, local
from klamm.store.directory import acquire, release
from klamm.times import parse_duration
from klamm.types import TopicId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from klamm.spark.pipelines.report import Progress

__all__ = [
    "UNITS_MS",
    "Outcome",
    "Source",
    "behind",
    "checkpoint",
    "collected",
    "drain",
    "dropped",
    "duration",
    "ends_of",
    "home",
    "sentence",
    "source",
]

UNITS_MS = {"millisecond": 1, "second": 1000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000}
UNITS_MS["week"] = 7 * UNITS_MS["day"]
_LONGEST_MS = 365_000 * UNITS_MS["day"]
_POLL_S = 0.2
_log = logging.getLogger("klamm.spark")
_OURS = re.compile(r"klamm\.errors\.\w+: ([^\n]+)")


@dataclass(frozen=True)
class Source:
    """A store, and topics of it."""

    path: str
    store_id: str
    topics: Mapping[str, TopicId]
    """Their ids by name."""
    ends: Mapping[str, list[int]]
    """The offset after the last record of each partition."""

    def identity(self, pipeline: str) -> dict[str, Any]:
        """For a Claim."""
        return {"pipeline": pipeline, "store": self.store_id, "topics": dict(self.topics)}


def source(store: str | os.PathLike[str], *names: str) -> Source:
    """UnknownTopic and NotAStore are said here, before a job starts."""
    path = local(store)
    core = acquire(path, read_only=False, create=False, force_filesystem=False)
    try:
        opened = [core.topic(name) for name in names]
        return Source(
            path,
            core.catalog.store_id,
            {each.name: each.topic.id for each in opened},
            {each.name: [partition.ends().end for partition in each.partitions()] for each in opened},
        )
    finally:
        release(core)


def home(read: Source, name: str, given: str | os.PathLike[str] | None) -> str:
    """The folder of a pipeline that writes to a topic: the one given, else one of its own in the store."""
    return f"{read.path}/pipelines/{name}" if given is None else local(given)


def checkpoint(
    store: str | os.PathLike[str],
    *topics: str,
    pipeline: str,
    options: Mapping[str, Any] | None = None,
    directory: str | os.PathLike[str] | None = None,
) -> str:
    """Return the checkpoint of a pipeline of your own that reads `topics`: in `directory`, or in the store.

    The first run claims it. InvalidSetting if it belongs to another pipeline, to topics that were deleted and created
    again, or was begun with other `options`: a query that went on from there would be wrong.
    """
    if not topics:
        raise InvalidSetting("checkpoint: no topic given", hint="name the topics that the pipeline reads")
    read = source(store, *topics)
    return Claim.take(home(read, topics[0], directory), read.identity(pipeline), options or {}).checkpoint


def behind(checkpoint: str, read: Source) -> int:
    """How many offsets of the source the next run has before it."""
    done = _offsets(checkpoint)
    total = 0
    for name, ends in read.ends.items():
        before = {place.partition: offset for place, offset in done if place.topic == name}
        total += sum(max(0, end - before.get(number, 0)) for number, end in enumerate(ends))
    return total


def _offsets(checkpoint: str) -> list[tuple[Any, int]]:
    """Where the last micro-batch that was done ended."""
    try:
        done = max(int(name) for name in os.listdir(f"{checkpoint}/commits") if name.isdigit())
        return ends_of(checkpoint, done)
    except (OSError, ValueError):
        return []


def ends_of(checkpoint: str, batch: int) -> list[tuple[Any, int]]:
    """Where a micro-batch that Spark has planned ends: partitions of ours, with offsets."""
    with open(f"{checkpoint}/offsets/{batch}", encoding="utf-8") as file:
        lines = file.read().splitlines()[2:]
    found: list[tuple[Any, int]] = []
    for line in lines:
        data = json.loads(line)
        if isinstance(data, dict) and OURS in data:
            found += StreamOffsets.from_json(data)
    return found


@dataclass
class Outcome:
    """Of a query, as far as it has come."""

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


class _Reports(threading.Thread):
    """Collects what Spark says of micro-batches; Spark keeps it of the last hundred, or how many a session says.

    In a thread of its own: `after` of `drain` may run a job, and the query goes on meanwhile.
    """

    def __init__(self, query: Any) -> None:
        super().__init__(name="klamm-progress", daemon=True)
        self._query = query
        self._is_over = threading.Event()
        self._found: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._last = -1
        self._seen: tuple[int, str] | None = None

    def run(self) -> None:
        while not self._is_over.wait(_POLL_S / 4):
            try:
                self._look()
            except Exception:  # noqa: BLE001  # the JVM is gone, or Spark stopped: `drain` says so
                return

    def _look(self) -> None:
        latest = self._query.lastProgress  # one report: Spark writes each that is asked for as JSON, every time
        if latest is None or (latest.batchId, latest.timestamp) == self._seen:
            return
        for each in self._query.recentProgress:
            if each.batchId <= self._last:
                continue
            data = json.loads(each.json)
            if "addBatch" in data["durationMs"]:  # else there was nothing to do: said under the number to come
                self._last = data["batchId"]
                self._found.put(data)
        self._seen = latest.batchId, latest.timestamp

    def take(self) -> Iterator[dict[str, Any]]:
        """Give what was collected and not given yet."""
        while not self._found.empty():
            yield self._found.get()

    def end(self) -> None:
        """Collect the rest of a query that has ended."""
        self.stop()
        self._look()

    def stop(self) -> None:
        self._is_over.set()
        self.join()


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
    query = (
        writer.trigger(availableNow=True) if every is None else writer.trigger(processingTime=duration(every, "every"))
    ).start()
    outcome = Outcome()
    reports = _Reports(query)
    reports.start()
    try:
        while not query.awaitTermination(_POLL_S):  # type: ignore[arg-type]  # it takes parts of seconds
            outcome.add(reports.take(), after)
            if progress is not None:
                progress(outcome.offsets, total)
    except KeyboardInterrupt:
        query.stop()
        if every is None:
            reports.stop()
            raise
    except BaseException as error:
        query.stop()
        reports.stop()
        raise _clear(error) from error
    reports.end()
    outcome.add(reports.take(), after)
    outcome.seconds = time.monotonic() - begin
    if progress is not None:
        progress(outcome.offsets if total is None else total, total)
    return outcome


def dropped(progress: Mapping[str, Any]) -> int:
    """Rows that state operators refused since they were older than the watermark, of one micro-batch."""
    return sum(int(each["numRowsDroppedByWatermark"]) for each in progress["stateOperators"])


def _sum(offsets: Any) -> int:
    data = json.loads(offsets) if isinstance(offsets, str) else offsets
    if not isinstance(data, dict):
        return 0
    return sum(sum(numbers.values()) for topic, numbers in data.items() if topic != OURS)


def _clear(error: BaseException) -> BaseException:
    """An error of ours that went through Spark, as we said it."""
    said = sentence(error)
    return KlammError(said) if said is not None else error


def sentence(error: BaseException) -> str | None:
    """What an error of ours said before Spark wrapped it; None if it is none of ours."""
    found = _OURS.findall(str(error))
    return found[-1].strip() if found else None


def collected(rows: DataFrame) -> list[Any]:
    """Its rows; an error of ours as we said it."""
    try:
        return rows.collect()
    except Exception as error:
        said = sentence(error)
        if said is None:
            raise
        raise KlammError(said) from error


def duration(text: str, what: str) -> str:
    """Return a duration as Spark writes it, of one as Spark or as Klamm writes it: "5 minutes", "5m"."""
    wanted = "want a number and a unit: 5 minutes, or 5m"
    if isinstance(text, str) and (short_ms := parse_duration(text.strip())) is not None:
        text = f"{short_ms} milliseconds"
    if not isinstance(text, str) or not re.fullmatch(r"\s*\d+\s+(millisecond|second|minute|hour|day|week)s?\s*", text):
        raise InvalidSetting(f"{what}: {text!r} is no time", hint=wanted)
    number, unit = text.split()
    if int(number) * UNITS_MS[unit.removesuffix("s")] > _LONGEST_MS:
        raise InvalidSetting(f"{what}: {text!r} is too long", hint=f"{wanted}, of a thousand years at most")
    return f"{number} {unit}"
