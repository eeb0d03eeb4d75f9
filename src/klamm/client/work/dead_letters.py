"""Records that could not be handled, put aside with the reason, and put back.

A dead letter has the key, value and headers of the record it was, and these headers beside them, all of them text:

    klamm.dlq.topic, .partition, .offset, .timestamp     where the record was, and its time
    klamm.dlq.attempts                                   how often it was tried, earlier lives included
    klamm.dlq.error, klamm.dlq.reason                    the type of the last error, and what it said
    klamm.dlq.group                                      whose handler it was, if it had a group

Redriven, it loses those and has `klamm.attempts`, so that its next death counts on; its time stays. That it was
redriven is recorded in the dead-letter topic itself, in the letter's partition: a note, which is a record without key
and value whose header `klamm.dlq.redriven` names the letter as "partition:offset". The note and the record that is put
back are one transaction, and that has a number (store/once.py): the next one after the last redrive of the topic whose
notes were read. If another redrive commits in between, the number is taken, nothing is put back, and the notes are read
again. So each letter goes back once, though redrives are killed at any moment or run at the same time; and any of them
may go, in any order.

A cluster has no numbers. There the transaction has a name instead, one for each dead-letter topic: who begins it fences
the redrives that have begun before, and their notes are committed, or will never be. A fenced redrive raises Fenced.

A purge moves the start of the log up to the first letter that was not redriven. A note comes after its letter, so the
note of a letter that stays, stays; and what lies before the start of the log is never put back.

Nothing here iterates over a consumer: Ctrl-C would end that quietly, in the middle of the notes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from klamm.batch import Record, encode_one
from klamm.client.consume.range_reader import read_ranges
from klamm.client.consume.stable_end import await_stable
from klamm.client.produce.target import Target
from klamm.client.transaction import Pool, Transaction
from klamm.errors import (
    InvalidSetting,
    InvalidTimestamp,
    OnceMismatch,
    TopicExists,
    UnknownTopic,
)
from klamm.store import once
from klamm.store.names import nearest
from klamm.types import TopicPartition

if TYPE_CHECKING:
    from klamm.store.directory import Core, OpenTopic

__all__ = [
    "ATTEMPTS",
    "PREFIX",
    "DeadLetter",
    "DeadLetterBox",
    "Origin",
    "attempts_before",
    "dead_letter_topic",
    "dead_letters",
    "purge",
    "redrive",
    "target_of",
]

PREFIX = "klamm.dlq."
ATTEMPTS = "klamm.attempts"
_REDRIVEN = PREFIX + "redriven"
_REASON_CHARACTERS = 1000
_ROOM = 64 << 10  # bytes that a letter may have above its record
_CHUNK = 500  # letters that go back in one transaction,
_CHUNK_BYTES = 4 << 20  # or fewer, if they are large
_TICK_S = 0.1  # with a rate: one transaction in that time
_WRITER = "klamm.redrive"  # of their numbers

Headers = tuple[tuple[str, bytes | None], ...]


class Origin(NamedTuple):
    """The original position of a dead letter's record."""

    topic: str
    partition: int
    offset: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that could not be handled."""

    origin: Origin | None
    """None: another program wrote it, without our headers."""
    attempts: int
    error: str
    """The type of the last error."""
    reason: str
    """What the last error said."""
    record: Record
    """As it lies in the dead-letter topic, with the headers it had before."""


# ---- putting aside


class DeadLetterBox:
    """The dead-letter topic of a handler. Thread-safe."""

    def __init__(self, core: Core, topic: str | None, group: str | None) -> None:
        """Prepare to send dead letters. Without `topic`: to the record's topic with `.dlq` behind its name."""
        self._core = core
        self._topic = topic
        self._group = group

    def put(self, record: Record, attempts: int, error: BaseException) -> None:
        """Append a dead letter and sync it. The topic is created if absent: one partition, no retention."""
        headers = self.headers(record, attempts, error)
        if self._core.elsewhere is not None:
            self._core.elsewhere.append(self.topic_of(record), record.key, record.value, headers)
            return
        log = self._opened(record).choose(record.key, None)
        batch = bytearray(256)
        offset = log.append(batch, encode_one(batch, record.key, record.value, headers, log.now_ms()))
        log.sync(offset + 1)

    def topic_of(self, record: Record) -> str:
        """Return where the letter of a record goes; the topic is created if it is not there."""
        return dead_letter_topic(self._core, record.topic, self._topic).name

    def headers(self, record: Record, attempts: int, error: BaseException) -> Headers:
        """Return the headers of the letter that `record` becomes."""
        headers_of_error = {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "attempts": attempts,
            "error": _type_of(error),
            "reason": str(error)[:_REASON_CHARACTERS],
            "group": self._group,
        }
        return (
            *_own_headers(record.headers),
            *(
                (PREFIX + name, str(value).encode("utf-8", "replace"))
                for name, value in headers_of_error.items()
                if value is not None
            ),
        )

    def _opened(self, record: Record) -> Target:
        core = self._core
        opened = dead_letter_topic(core, record.topic, self._topic)
        return Target(opened, core.heads.catalog_version)


def dead_letter_topic(core: Core, topic: str, name: str | None = None) -> OpenTopic:
    """Return the dead-letter topic of `topic`, created if absent. Without `name`: `.dlq` behind the topic's."""
    name = name or f"{topic}.dlq"
    try:
        return core.topic(name)
    except UnknownTopic:
        limit = core.topic(topic).topic.settings.max_message_bytes + _ROOM
        try:
            core.catalog.create_topic(name, 1, {"retention.ms": -1, "max.message.bytes": limit}, core.lay_out)
        except TopicExists:
            pass
        return core.topic(name)


def attempts_before(record: Record) -> int:
    """Return how often a redriven record was tried before."""
    return _number(dict(record.headers).get(ATTEMPTS))


# ---- looking


def dead_letters(core: Core, topic: str, limit: int | None = None) -> Iterator[DeadLetter]:
    """Return the letters that are not redriven now, at most `limit`: partition by partition, the oldest first.

    They are read when they are asked for. InvalidSetting if the topic is not one of dead letters.
    """
    _check_limit(limit)
    return islice(_letters(core, topic, _Notes(core, topic)), limit)


class _Notes:
    """The letters of a topic that were redriven, as far as it was read."""

    def __init__(self, core: Core, topic: str) -> None:
        _check_created(core, topic)
        self._core = core
        self.topic = topic
        self._redriven: dict[int, set[int]] = {}
        self._starts: dict[int, int] = {}
        self.ends: dict[int, int] = {}
        """Up to where each partition was read."""
        self._has_records = self._has_letters = False
        self.read()
        if self._has_records and not self._has_letters:
            others = [each.name for each in core.catalog.topics() if each.name.endswith(".dlq")]
            near = nearest(f"{topic}.dlq", others)
            raise InvalidSetting(
                f"{topic}: not a dead-letter topic: no record has a header {PREFIX}…",
                hint=near or "store.topics lists the topics",
                code=None if near else "unknown_topic",
            )

    def read(self) -> None:
        """Take in the notes that were committed since."""
        for partition in self._core.topic(self.topic).partitions():
            number, end = partition.number, partition.ends().stable
            redriven = self._redriven.setdefault(number, set())
            for record in _records(self._core, self.topic, number, self.ends.get(number, 0), end):
                self._has_records = True
                if not self._has_letters:
                    self._has_letters = any(name.startswith(PREFIX) for name, _ in record.headers)
                if (offset := _noted(record)) is not None:
                    redriven.add(offset)
            self.ends[number] = end
            self._starts[number] = partition.ends().start  # after the notes were read, which may have been purged

    def read_all(self) -> int:
        """Take in the notes of all redrives that are committed. Return the number of the next one."""
        last = once.last(self._core.catalog.database, _WRITER, self.topic)
        self.read_stable()
        return 0 if last is None else last + 1

    def read_stable(self) -> None:
        """Take in the notes that were committed before this was called."""
        await_stable(self._core, self._core.topic(self.topic).partitions())
        self.read()

    def has(self, letter: Record) -> bool:
        """Return whether the letter was redriven: there is a note, or both were purged."""
        return letter.offset in self._redriven[letter.partition] or letter.offset < self._starts[letter.partition]


def _check_created(core: Core, topic: str) -> None:
    """Raise UnknownTopic, which says when it is created, if it would be the dead-letter topic of one that is there."""
    try:
        core.topic(topic)
    except UnknownTopic:
        source = topic.removesuffix(".dlq")
        if source == topic or all(each.name != source for each in core.catalog.topics()):
            raise
        hint = f"it is made with the first dead letter of {source!r}"
        raise UnknownTopic(f"Topic {topic!r} does not exist", hint=hint) from None


def _letters(core: Core, topic: str, notes: _Notes) -> Iterator[DeadLetter]:
    """Return the letters that the notes do not name, up to where these were read."""
    ends = dict(notes.ends)
    return (
        _letter(record)
        for number, end in ends.items()
        for record in _records(core, topic, number, 0, end)
        if _noted(record) is None and not notes.has(record)
    )


def _records(core: Core, topic: str, partition: int, start: int, end: int) -> Iterator[Record]:
    """Read the committed records from `start`, or where the log starts now, up to `end`."""
    for batch in read_ranges(core, {TopicPartition(topic, partition): range(start, end)}):
        yield from batch


def _letter(record: Record) -> DeadLetter:
    headers_of_error = {name[len(PREFIX) :]: value for name, value in record.headers if name.startswith(PREFIX)}
    origin = None
    if headers_of_error.get("topic"):
        timestamp = _number(headers_of_error["timestamp"]) if headers_of_error.get("timestamp") else record.timestamp
        origin = Origin(
            _text(headers_of_error["topic"]),
            _number(headers_of_error.get("partition")),
            _number(headers_of_error.get("offset")),
            timestamp,
        )
    plain = Record(
        record.topic,
        record.partition,
        record.offset,
        record.timestamp,
        record.key,
        record.value,
        _own_headers(record.headers),
        record.leader_epoch,
    )
    return DeadLetter(
        origin,
        _number(headers_of_error.get("attempts")),
        _text(headers_of_error.get("error")),
        _text(headers_of_error.get("reason")),
        plain,
    )


def _noted(record: Record) -> int | None:
    """Return the offset of the letter if this is a note that it was redriven."""
    for name, value in record.headers:
        if name == _REDRIVEN and value is not None:
            partition, _, offset = value.partition(b":")
            return _number(offset) if _number(partition) == record.partition else -1
    return None


def _check_limit(limit: int | None) -> None:
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool)):
        raise TypeError(f"limit is an int, not {type(limit).__name__}")
    if limit is not None and limit < 0:
        raise InvalidSetting(f"limit: {limit} is negative")


# ---- removing


def purge(core: Core, topic: str) -> int:
    """Remove the letters in front of the first that was not redriven, by partition, and return how many."""
    notes = _Notes(core, topic)
    count = 0
    for number, end in notes.ends.items():
        start = end
        for record in _records(core, topic, number, 0, end):
            if _noted(record) is None:
                if not notes.has(record):
                    start = record.offset
                    break
                count += 1
        core.topic(topic).partition(number).cleanup.delete_before(start)
    return count


# ---- putting back


def redrive(
    core: Core,
    topic: str,
    to: str | None,
    *,
    limit: int | None = None,
    where: Callable[[DeadLetter], bool] | None = None,
    edit: Callable[[DeadLetter], bytes | None] | None = None,
    per_second: float | None = None,
    dry_run: bool = False,
    progress: Callable[[int, int], object] | None = None,
) -> int:
    """Put letters back to where they came from, or to the topic `to`; return how many.

    `edit` returns the value that goes back in place of the letter's; it may be called again for a letter. `dry_run`
    raises what a redrive would raise before it puts a letter back, and changes nothing. `progress` is called with the
    number of letters so far, and of all.
    """
    _check_limit(limit)
    pace = _Pace(per_second)
    notes = _Notes(core, topic)
    chosen = {
        _partition_and_offset(letter) for letter in _letters(core, topic, notes) if where is None or where(letter)
    }
    total = len(chosen) if limit is None else min(limit, len(chosen))
    letters = (letter for letter in _letters(core, topic, notes) if _partition_and_offset(letter) in chosen)
    if dry_run:
        for letter in islice(letters, total):
            target_of(core, letter, to)
        return total
    count = 0
    pool = Pool(core) if core.elsewhere is None else core.elsewhere.pool()
    put_back = _put_back_once if core.elsewhere is None else _put_back_alone
    try:
        while chunk := _take_chunk(letters, min(pace.chunk, total - count)):
            count += put_back(pool, notes, chunk, to, edit)
            if progress is not None:
                progress(count, total)
            if count < total:
                pace.wait(count)
    finally:
        pool.close()
    return count


class _Pace:
    """The pace of a redrive: letters at a time, and the wait between them."""

    def __init__(self, per_second: float | None) -> None:
        if per_second is not None and (isinstance(per_second, bool) or not isinstance(per_second, int | float)):
            raise TypeError(f"per_second is a number, not {type(per_second).__name__}")
        if per_second is not None and not 0 < per_second < float("inf"):
            raise InvalidSetting(f"per_second: {per_second} is invalid", hint="expected a number above 0")
        self._per_second = per_second
        self._began = time.monotonic()
        self.chunk = _CHUNK if per_second is None else min(_CHUNK, max(1, int(per_second * _TICK_S)))

    def wait(self, count: int) -> None:
        """Sleep until `count` letters are no more than the rate allows."""
        if self._per_second is not None:
            time.sleep(max(0.0, self._began + count / self._per_second - time.monotonic()))


def _put_back_once(
    pool: Pool,
    notes: _Notes,
    letters: list[DeadLetter],
    to: str | None,
    edit: Callable[[DeadLetter], bytes | None] | None,
) -> int:
    """Put letters back in one transaction, but for those that others put back. Return how many."""
    while True:
        number = notes.read_all()
        fresh = [letter for letter in letters if not notes.has(letter.record)]
        if not fresh:
            return 0
        try:
            with pool.begin(None) as transaction:
                transaction.once(_WRITER, number, target=notes.topic, fingerprint=os.urandom(16).hex())
                for letter in fresh:
                    _put_back(pool.core, transaction, letter, to, edit)
        except OnceMismatch:  # another redrive was faster: read its notes
            continue
        return len(fresh)


def _put_back_alone(
    pool: Pool,
    notes: _Notes,
    letters: list[DeadLetter],
    to: str | None,
    edit: Callable[[DeadLetter], bytes | None] | None,
) -> int:
    """Like `_put_back_once`, on a cluster: redrives of the topic that began before are fenced."""
    with pool.begin(f"{_WRITER}.{notes.topic}") as transaction:
        notes.read_stable()
        fresh = [letter for letter in letters if not notes.has(letter.record)]
        for letter in fresh:
            _put_back(pool.core, transaction, letter, to, edit)
    return len(fresh)


def target_of(core: Core, letter: DeadLetter, to: str | None) -> tuple[str, int | None]:
    """Return the topic that a letter goes back to, and the partition; None: that of its key."""
    record, origin = letter.record, letter.origin
    if to is not None:
        return core.topic(to).topic.name, None
    if origin is None:
        raise InvalidSetting(
            f"{record.topic}/{record.partition}: the letter at offset {record.offset} does not say where it was",
            hint="name a topic: to=",
            code="no_origin",
        )
    return origin.topic, origin.partition if origin.partition < core.topic(origin.topic).count else None


def _put_back(
    core: Core,
    transaction: Transaction,
    letter: DeadLetter,
    to: str | None,
    edit: Callable[[DeadLetter], bytes | None] | None,
) -> None:
    record, origin = letter.record, letter.origin
    topic, partition = target_of(core, letter, to)
    value = record.value if edit is None else edit(letter)
    headers = [*record.headers, (ATTEMPTS, b"%d" % letter.attempts)]
    time_ms = max(-1, record.timestamp if origin is None else origin.timestamp)
    try:
        transaction.send(topic, value, key=record.key, partition=partition, headers=headers, timestamp=time_ms)
    except InvalidTimestamp as error:
        error.add_note(f"the letter at {record.topic}/{record.partition}/{record.offset} keeps the time it had")
        raise
    note = (_REDRIVEN, b"%d:%d" % (record.partition, record.offset))
    transaction.send(record.topic, None, partition=record.partition, headers=[note])


def _partition_and_offset(letter: DeadLetter) -> tuple[int, int]:
    return letter.record.partition, letter.record.offset


def _take_chunk(letters: Iterator[DeadLetter], count: int) -> list[DeadLetter]:
    """Take the next letters: at most `count`, and fewer if they are large."""
    chunk: list[DeadLetter] = []
    size = 0
    for letter in islice(letters, count):
        chunk.append(letter)
        size += len(letter.record.value or b"") + len(letter.record.key or b"")
        if size >= _CHUNK_BYTES:
            break
    return chunk


# ---- headers


def _own_headers(headers: Iterable[tuple[str, bytes | None]]) -> Headers:
    """Return the headers that are not Klamm's."""
    return tuple((name, value) for name, value in headers if not name.startswith(PREFIX) and name != ATTEMPTS)


def _type_of(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode("utf-8", "replace")


def _number(value: bytes | None) -> int:
    try:
        return int(value or b"0")
    except ValueError:
        return 0
