"""What the notes of a workload promise, and whether a directory keeps it."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import klamm
from klamm.batch import RECORDS, VALUES, decode
from klamm.console.history import HISTORY_TOPIC
from klamm.errors import OffsetOutOfRange
from klamm.log.partition import Partition
from tests.crash.workload import log_of, sealed

ORPHANS = "every directory belongs to a topic"  # maintain() sweeps what a deletion that was cut short left behind


class Stored(NamedTuple):
    """A consumer's position. Records from `safe` on were lost after it was stored: it must not resume beyond."""

    position: int
    epoch: int
    safe: int | None = None

    def after_a_cut(self, end: int) -> Stored:
        return self._replace(safe=end if self.safe is None else min(self.safe, end))


class Sent(NamedTuple):
    """A batch: of the idempotent producer if it has a sequence."""

    base: int
    values: list[str]
    size: int
    epoch: int
    sequence: int


@dataclass
class LogPromise:
    values: list[str] = field(default_factory=list)  # by offset; the last ones may be on their way
    acked: int = 0
    start: int = 0  # it starts here at least
    may_start: int = 0  # and here at most
    retention: int = -1
    stored: list[Stored] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)


@dataclass
class TopicPromise:
    partitions: int
    settings: list[dict[str, str]]  # any of these
    created: bool = False


class Promises:
    def __init__(self) -> None:
        self.path = ""
        self.store_id: str | None = None
        self.topics: dict[str, TopicPromise] = {}
        self.logs: dict[str, LogPromise] = {}

    def copy(self) -> Promises:
        return copy.deepcopy(self)

    def hear(self, note: dict[str, Any]) -> None:
        kind = next(iter(note))
        getattr(self, kind)(note[kind], **{name: value for name, value in note.items() if name != kind})

    # One method a kind of note.

    def opening(self, path: str) -> None:
        self.path = path

    def opened(self, store_id: str) -> None:
        assert self.store_id in (None, store_id)
        self.store_id = store_id

    def creating(self, name: str, partitions: int, settings: dict[str, str]) -> None:
        self.topics[name] = TopicPromise(partitions, [settings])
        for number in range(partitions):
            self.logs[f"{name}/{number}"] = LogPromise(retention=int(settings.get("retention.bytes", -1)))

    def created(self, name: str) -> None:
        self.topics[name].created = True

    def dropping(self, name: str) -> None:
        self.topics[name].created = False

    def dropped(self, name: str) -> None:
        del self.topics[name]

    def altering(self, name: str, settings: dict[str, str]) -> None:
        self.topics[name].settings.append(settings)

    def altered(self, name: str) -> None:
        del self.topics[name].settings[:-1]

    def found(self, name: str, start: int, end: int) -> None:
        """In a new life a log was opened: it is what recovery left, and all of that is on disk."""
        topic = self.topics[name.rpartition("/")[0]]
        topic.created = True
        log = self.logs[name]
        assert log.start <= start <= log.may_start and log.acked <= end <= len(log.values)
        del log.values[end:]
        log.start, log.acked = start, end
        log.stored = [stored.after_a_cut(end) for stored in log.stored]
        log.sent = [sent for sent in log.sent if sent.base < end]

    def appending(self, name: str, values: list[str], size: int, epoch: int = -1, sequence: int = -1) -> None:
        log = self.logs[name]
        log.sent.append(Sent(len(log.values), values, size, epoch, sequence))
        log.values += values
        if log.retention >= 0:
            kept = 0
            for sent in reversed(log.sent):
                kept += sent.size
                if kept >= log.retention:
                    log.may_start = max(log.may_start, sent.base)
                    break

    def appended(self, name: str, base: int) -> None:
        assert base == self.logs[name].sent[-1].base

    def acked(self, name: str, end_offset: int) -> None:
        self.logs[name].acked = end_offset

    def stored(self, name: str, position: int, epoch: int) -> None:
        self.logs[name].stored.append(Stored(position, epoch))

    def deleting(self, name: str, offset: int) -> None:
        self.logs[name].may_start = max(offset, self.logs[name].may_start)

    def start(self, name: str, offset: int) -> None:
        self.logs[name].start = offset


def check(root: Path, promises: Promises, dice: random.Random) -> None:
    """Open what is left of a store after a power cut: AssertionError unless it keeps its promises."""
    path = str(root / promises.path)
    with klamm.open(path) as store:
        if promises.store_id is not None:
            assert store.store_id == promises.store_id, "another store"
        topics = _check_topics(store, promises)
        logs = [name for name in promises.logs if name.split("/")[0] in topics]
        found = {name: _check_log(name, log_of(store, name), promises.logs[name]) for name in logs}
    if dice.random() < 0.1:
        _check_again(path, found)


def _check_topics(store: klamm.Store, promises: Promises) -> set[str]:
    topics = [topic for topic in store.topics if topic != HISTORY_TOPIC]  # a server's
    for name, promise in promises.topics.items():
        if name in topics:
            topic = store.topics.describe(name)
            assert len(topic.partitions) == promise.partitions
            assert topic.settings in promise.settings, f"{name}: other settings"
        else:
            assert not promise.created, f"{name}: the topic is gone"
    assert set(topics) <= set(promises.topics), "an invented topic"
    return set(topics)


def read(log: Partition, start: int) -> list[str]:
    found: list[str] = []
    with log.reader(start) as reader:
        while data := reader.read(700):
            found += [value.decode() for value in decode(data, form=VALUES, from_offset=start + len(found))]
            assert reader.offset == start + len(found), "a gap"
    return found


def read_all(log: Partition) -> tuple[int, list[str]]:
    """From the start, which retention may just be moving."""
    while True:
        start = log.ends().start
        try:
            return start, read(log, start)
        except OffsetOutOfRange:
            assert log.ends().start > start


def _check_log(name: str, log: Partition, promise: LogPromise) -> tuple[int, list[str]]:
    ends = log.ends()
    assert promise.start <= ends.start <= promise.may_start, f"{name}: starts at {ends.start}"
    assert ends.end >= promise.acked, f"{name}: acked up to {promise.acked}, but ends at {ends.end}"
    assert ends.flushed == ends.end
    found = read(log, ends.start)
    assert found == promise.values[ends.start : ends.end], f"{name}: other records than were written"
    assert len(found) == ends.end - ends.start
    _check_stored(name, log, promise, ends.end)
    found += _produce_again(name, log, promise, ends.end)
    # Beyond all that anybody remembers: records that a consumer must not skip.
    more = max([1, *(stored.position + 1 - ends.end for stored in promise.stored)])
    values = [f"after {number}" for number in range(more)]
    base = log.append(sealed(values))
    log.sync(base + more)
    found += values
    start, now = read_all(log)
    assert now == found[start - ends.start :], f"{name}: other records after appending"
    assert start == ends.start or promise.retention >= 0
    _check_stored(name, log, promise, ends.end)
    middle = start + len(now) * 3 // 4
    try:
        assert read(log, middle) == now[middle - start :], f"{name}: other records from the middle on"
    except OffsetOutOfRange:
        assert promise.retention >= 0
    return start, now


def _check_stored(name: str, log: Partition, promise: LogPromise, end: int) -> None:
    """A consumer resumes where its epoch ended, if that is earlier: never after the first record it has not seen."""
    for stored in promise.stored:
        resume = min(stored.position, log.end_of_epoch(stored.epoch))
        safe = stored.after_a_cut(end).safe
        assert safe is not None and resume <= safe, (
            f"{name}: {stored} would resume at {resume} and skip records from {safe} on"
        )
        assert resume >= min(stored.position, safe), f"{name}: {stored} would read again from {resume} on"


def _produce_again(name: str, log: Partition, promise: LogPromise, end: int) -> list[str]:
    """A producer that repeats its last batches gets the old offsets of those that are there; others are appended."""
    latest = max((sent.epoch for sent in promise.sent), default=-1)
    mine = [sent for sent in promise.sent if sent.epoch == latest and latest >= 0]
    there = [sent for sent in mine if sent.base < end]
    new: list[str] = []
    for sent in there[-3:] + mine[len(there) :]:
        time_ms = _time_at(log, sent.base) if sent.base < end else -1
        base = log.append(sealed(sent.values, epoch=sent.epoch, sequence=sent.sequence, time_ms=time_ms))
        assert base == sent.base, f"{name}: sequence {sent.sequence} was at {sent.base}, repeated it is at {base}"
        if sent.base >= end:
            new += sent.values
    return new


def _time_at(log: Partition, offset: int) -> int:
    """Return the time of a record: who sends a batch again sends the same; now, if it has expired."""
    try:
        with log.reader(offset, committed=False) as reader:
            return int(decode(reader.read(), form=RECORDS, from_offset=offset)[0].timestamp)
    except OffsetOutOfRange:
        return -1


def _check_again(path: str, found: dict[str, tuple[int, list[str]]]) -> None:
    with klamm.open(path) as store:
        for name, (start, values) in found.items():
            now, again = read_all(log_of(store, name))
            assert now >= start
            assert again == values[now - start :], f"{name}: other records after opening again"
        broken = [breach for breach in store.check().breaches if breach.promise != ORPHANS]
        assert not broken, broken[0]
