"""The catalog: which topics there are, in `klamm.db`.

    meta         key, value, crc                        store_id; next_slot; next_producer_id; next_group; boots;
                                                        changes: how many durable writes klamm.db has had
                                                        settings: JSON, of the store (store_settings.py)
                                                        features: three words (features.py)
    deleted      id, directory, crc                     topics whose directory is still to be removed (deletion.py)
    topics       id, name, settings, created_ms, crc    settings: JSON of what differs from the defaults
    partitions   topic_id, number, slot                 slot: the partition's place in `heads`, and its lock bytes;
                                                        those of a deleted topic go with its tombstone

Other tables belong to the modules that have their schema: groups.py, transaction_table.py, wire_groups.py, once.py,
lineage.py, free_slots.py.

Promises
  CAT1  A topic exists with all of its partitions, laid out in `heads`, or not at all: `prepare` runs before the commit.
        A process killed between the two leaves slots that no topic has; the next creator lays them out again.
  CAT2  The slot of a deleted topic is reused only when it is marked DELETED, or no other process has `heads` mapped,
        and then with another generation. The id of a topic is never reused.
  CAT3  Names collide by Kafka's rules; a unique index of the database enforces it.
  CAT4  A producer id is given out once. Each process takes a thousand at a time.
  CAT5  `boots` grows, durably, before any log is recovered, so each life of the store has its own. It follows the
        clock, in seconds, so a backup that is opened later gets a larger one than the store it was made of.
  CAT6  A row whose checksum is wrong is an error. (SQLite has no checksums.)
  CAT8  `changes` grows with every durable write, and `heads` knows it: a klamm.db that was put back from a backup is
        older than `heads`, and refused until `check(repair=True)` has put it right. Progress of groups is not counted,
        so one that lacks nothing else is refused only if it is another file than the one that was used last.
  CAT7  A store of an older format is brought up to this one when it is first opened for writing, in one transaction.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from klamm.errors import InvalidSetting, InvalidTopic, NewerFormat, NotAStore, StoreError, TopicExists, UnknownTopic
from klamm.store import features, free_slots, groups, lineage, once, transaction_table, wire_groups
from klamm.store.database import FORMAT_VERSION, REBUILD, Database, DbLock, Execute
from klamm.store.features import Features
from klamm.store.names import check_type, collision_key, directory_name, nearest, validate
from klamm.store.rows import crc as _crc
from klamm.store.settings import Settings, Value
from klamm.store.store_settings import StoreSettings
from klamm.types import TopicId

__all__ = ["MAX_PARTITIONS", "MAX_SLOTS", "Catalog", "Prepare", "SlotRequest", "Topic"]

MAX_PARTITIONS = 10_000  # of one topic
MAX_SLOTS = 1_000_000  # of one store: `heads` then has 1 GB
PRODUCER_ID_BLOCK = 1_000
_MAX_PRODUCER_ID = 2**63 - 1
_MAX_EPOCH = 2**31 - 2**20


class SlotRequest(NamedTuple):
    """Slots that new partitions may get: free ones, and all from `fresh` on."""

    free: tuple[int, ...]
    fresh: int
    how_many: int
    """That are wanted."""


Prepare = Callable[[SlotRequest, TopicId, int], tuple[int, ...]]
"""Lays out slots for partitions of the topic with that id, from that number on; which ones, it returns."""

_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value NOT NULL, crc INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE topics (
    id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, settings TEXT NOT NULL,
    created_ms INTEGER NOT NULL, crc INTEGER NOT NULL
) WITHOUT ROWID;
CREATE UNIQUE INDEX topics_by_collision_key ON topics (replace(name, '.', '_'));
CREATE TABLE partitions (
    topic_id TEXT NOT NULL, number INTEGER NOT NULL, slot INTEGER NOT NULL UNIQUE, PRIMARY KEY (topic_id, number)
) WITHOUT ROWID;
"""
_DELETED = "CREATE TABLE deleted (id TEXT PRIMARY KEY, directory TEXT NOT NULL, crc INTEGER NOT NULL) WITHOUT ROWID"
_EPOCHS_SINCE = 1_577_836_800  # 2020, in Unix time: an int32 of seconds lasts until 2088; then boots are counted


class Topic(NamedTuple):
    """A topic as it is now. `partitions[n]` is the slot of partition n."""

    name: str
    id: TopicId
    partitions: tuple[int, ...]
    settings: Settings
    created_ms: int

    @property
    def directory(self) -> str:
        """Its directory below `topics/`."""
        return directory_name(self.name, self.id)


class Catalog:
    """The topics of one store. Safe for threads; at a fork it lets go of the file and opens it again when used."""

    def __init__(
        self, path: str, db_lock: DbLock, *, read_only: bool = False, before_upgrade: Callable[[], None] = lambda: None
    ) -> None:
        """Open klamm.db. `before_upgrade` raises if the file has an older format and may not be upgraded now."""
        self.database = Database(path, db_lock, read_only=read_only)
        self.on_change: Callable[[], None] = lambda: None  # after each that other processes read
        self._cache: tuple[object, dict[str, Topic]] = None, {}  # what was read at that version
        self._intact: object = None  # the version at which the table of topics was found to be whole
        self._listed: tuple[object, list[Topic]] = None, []  # likewise: `list()` asks for the length, too
        self._producer_ids = os.getpid(), iter(range(0))
        try:
            if self.format_version < FORMAT_VERSION:
                self._upgrade(before_upgrade)
            self.features().check_known(path, read_only=read_only)
            with self.database.reading() as execute:
                self.store_id = str(self.meta(execute, "store_id"))
            self.database.count_write = self._count_change
        except BaseException:
            self.database.close()
            raise

    @classmethod
    def create(cls, path: str, db_lock: DbLock, store_id: str) -> Catalog:
        """Open the catalog. Create it if it is missing or unfinished; an existing one keeps its store id."""
        with suppress(NotAStore):
            return cls(path, db_lock)
        first: list[tuple[str, str | int]] = [
            ("store_id", store_id),
            ("next_slot", 1),
            ("next_producer_id", 0),
            ("boots", 0),
        ]
        Database.create(
            path,
            db_lock,
            _statements(f"{_SCHEMA};{transaction_table.TABLE};{once.SCHEMA};{lineage.SCHEMA}", first)
            + _since_format(1),
        )
        return cls(path, db_lock)

    def features(self) -> Features:
        """Return the features that the store has."""
        with self.database.reading() as execute:
            return Features.parse(str(self.meta(execute, "features")))

    def _upgrade(self, before: Callable[[], None]) -> None:
        """Upgrade from an older format, unless another process was faster."""
        if self.database.read_only:
            raise StoreError(
                f"{self.path}: has format {self.format_version}, which an older Klamm wrote",
                hint="open it for writing once, or run `klamm upgrade`, which brings it up to date",
            )
        before()
        with self.database.db_lock(), self.database.transaction() as execute:
            version = int(execute("PRAGMA user_version").fetchone()[0])
            if version < FORMAT_VERSION:
                for statement, values in _since_format(version):
                    execute(statement, values)
                groups.upgrade(execute, version)
                transaction_table.upgrade(execute, version)
                once.upgrade(execute, version)
                for statement in lineage.SCHEMA.split(";"):
                    execute(statement)
                execute(f"PRAGMA user_version={FORMAT_VERSION}")

    @property
    def path(self) -> str:
        return self.database.path

    @property
    def format_version(self) -> int:
        version = int(self.database.read("PRAGMA user_version")[0][0])
        assert 1 <= version <= FORMAT_VERSION
        return version

    # Reading.

    def topics(self) -> list[Topic]:
        """Return all topics, by name."""
        if (version := self.database.version()) != self._listed[0]:
            self._listed = version, self._read_topics()
        return list(self._listed[1])

    def _read_topics(self) -> list[Topic]:
        with self.database.reading() as execute:
            slots: dict[str, list[tuple[int, int]]] = {}
            for topic_id, number, slot in execute("SELECT topic_id, number, slot FROM partitions").fetchall():
                slots.setdefault(topic_id, []).append((number, slot))
            rows = execute("SELECT id, name, settings, created_ms, crc FROM topics").fetchall()
            defaults = self.read_settings(execute)
        return sorted(self.parse_topic(row, slots.pop(row[0], []), defaults) for row in rows)

    def topic(self, name: str) -> Topic:
        """Return the topic. Raise UnknownTopic, with the most similar name, if it does not exist."""
        if (version := self.database.version()) != self._cache[0]:
            self._cache = version, {}
        cache = self._cache[1]  # before the read: what is read is at least as new
        topic = cache.get(name if type(name) is str else check_type(name))
        if topic is None:
            with self.database.reading() as execute:
                topic = self._find(execute, name)
                if topic is None:
                    raise self._unknown(execute, name)
            cache[name] = topic
        return topic

    # Writing.

    def check_new(
        self, name: str, partitions: int, settings: Mapping[str, Value] | Settings, *, internal: bool = False
    ) -> Settings:
        """Return the settings that a new topic would have, or raise the error that prevents it. Writes nothing."""
        self.database.check_writable()
        validate(name, internal=internal)
        _check_count(name, partitions)
        with self.database.reading() as execute:
            self._check_name_is_free(execute, name)
        return settings if isinstance(settings, Settings) else Settings.of(settings, where=name)

    def create_topic(
        self,
        name: str,
        partitions: int,
        settings: Mapping[str, Value] | Settings,
        prepare: Prepare,
        *,
        internal: bool = False,
    ) -> Topic:
        """Create a topic. `prepare` gets its slots, under the klamm.db lock, and lays them out in `heads`."""
        settings = self.check_new(name, partitions, settings, internal=internal)
        topic_id = TopicId(os.urandom(16).hex())
        with self.database.db_lock():
            with self.database.reading() as execute:
                self._check_name_is_free(execute, name)
                wanted = self._next_slots(execute, name, partitions)
                settings = self.read_settings(execute).apply(settings)
            slots = prepare(wanted, topic_id, 0)
            topic = Topic(name, topic_id, slots, settings, time.time_ns() // 1_000_000)
            with self.database.transaction() as execute:
                execute("INSERT INTO topics VALUES (?, ?, ?, ?, ?)", _row(topic))
                self._add_slots(execute, topic, slots)
            self.on_change()
        return topic

    def adopt_topic(self, name: str, topic_id: TopicId, slots: Sequence[int | None], settings: Settings) -> Topic:
        """Put back a topic whose directory exists. Each slot that is None gets a number; the caller lays it out."""
        self.database.check_writable()
        validate(name, internal=True)
        with self.database.db_lock():
            with self.database.reading() as execute:
                self._check_name_is_free(execute, name)
                fresh = itertools.count(self._next_slots(execute, name, len(slots)).fresh)
            numbers = tuple(next(fresh) if slot is None else slot for slot in slots)
            topic = Topic(name, topic_id, numbers, settings, time.time_ns() // 1_000_000)
            with self.database.transaction() as execute:
                next_slot = int(self.meta(execute, "next_slot"))
                execute("INSERT INTO topics VALUES (?, ?, ?, ?, ?)", _row(topic))
                for number, slot in enumerate(numbers):
                    execute("INSERT INTO partitions VALUES (?, ?, ?)", (topic.id, number, slot))
                free_slots.take(execute, numbers)
                self.set_meta(execute, "next_slot", max(next_slot, *(slot + 1 for slot in numbers)))
            self.on_change()
        return topic

    def skip_numbers(self, next_slot: int) -> None:
        """Skip slots below `next_slot`, and producer ids that an older klamm.db may have assigned."""
        self.database.check_writable()
        with self.database.db_lock(), self.database.transaction() as execute:
            self.set_meta(execute, "next_slot", max(next_slot, int(self.meta(execute, "next_slot"))))
            free_slots.forget_all(execute)
            ids = max(int(self.meta(execute, "next_producer_id")), (int(time.time()) - _EPOCHS_SINCE) << 24)
            self.set_meta(execute, "next_producer_id", ids)

    def add_partitions(self, name: str, total: int, prepare: Prepare) -> Topic:
        """Grow the topic to `total` partitions. Keys may then map to other partitions than before."""
        self.database.check_writable()
        _check_count(name, total)
        with self.database.db_lock():
            old = self.topic(name)
            if total <= len(old.partitions):
                count = len(old.partitions)
                raise InvalidSetting(
                    f"The topic {name} currently has {count} partition(s); {total} would not be an increase."
                )
            with self.database.reading() as execute:
                wanted = self._next_slots(execute, name, total - len(old.partitions))
            slots = prepare(wanted, old.id, len(old.partitions))
            topic = old._replace(partitions=old.partitions + slots)
            with self.database.transaction() as execute:
                self._update(execute, topic)
                self._add_slots(execute, topic, slots)
            self.on_change()
        return topic

    def alter_settings(self, name: str, changes: Mapping[str, Value], resets: Iterable[str] = ()) -> Topic:
        """Change some settings and reset others to their defaults; the rest stays."""
        self.database.check_writable()
        with self.database.db_lock():
            old = self.topic(name)
            with self.database.transaction() as execute:
                settings = self.read_settings(execute).apply(old.settings.changed(changes, resets, where=name))
                topic = old._replace(settings=settings)
                self._update(execute, topic)
            self.on_change()
        return topic

    def delete_topic(self, name: str, topic_id: TopicId | None = None) -> Topic:
        """Delete the topic's rows and return the topic: the caller removes its heads and files, then its tombstone.

        With `topic_id`, raise UnknownTopic if the topic was deleted and re-created in between.
        """
        self.database.check_writable()
        with self.database.db_lock():
            topic = self.topic(name)
            if topic_id is not None and topic.id != topic_id:
                raise UnknownTopic(f"{name}: the topic was deleted and re-created")
            with self.database.transaction() as execute:
                execute("DELETE FROM topics WHERE id = ?", (topic.id,))
                row = topic.id, topic.directory, _crc(topic.id, topic.directory)
                execute("INSERT OR REPLACE INTO deleted VALUES (?, ?, ?)", row)
                groups.forget_topic(execute, topic.id)
            self.on_change()
        return topic

    def deleted(self) -> dict[str, TopicId]:
        """Return the directories of deleted topics that are still to be removed, and the topics' ids."""
        rows = self.database.read("SELECT id, directory, crc FROM deleted")
        return {directory: topic_id for topic_id, directory, crc in rows if crc == _crc(topic_id, directory)}

    def slots_of(self, topic_id: TopicId) -> dict[int, int]:
        """Return the slots of a topic by number of partition; of a deleted one as long as it has a tombstone."""
        return dict(self.database.read("SELECT number, slot FROM partitions WHERE topic_id = ?", (topic_id,)))

    def forget_slots(self, topic_id: TopicId) -> None:
        """Take the slots from a deleted topic, without giving them to others."""
        with self.database.db_lock(), self.database.transaction() as execute:
            execute("DELETE FROM partitions WHERE topic_id = ?", (topic_id,))

    def forget_deleted(self, topic_id: TopicId) -> None:
        """Remove a tombstone: the directory is gone, and each slot is marked DELETED, so the slots are free."""
        with self.database.db_lock(), self.database.transaction() as execute:
            slots = execute("SELECT slot FROM partitions WHERE topic_id = ?", (topic_id,)).fetchall()
            execute("DELETE FROM deleted WHERE id = ?", (topic_id,))
            execute("DELETE FROM partitions WHERE topic_id = ?", (topic_id,))
            free_slots.give(execute, [slot for (slot,) in slots])

    def end_of_slots(self) -> int:
        """Return the slot after the last one in use, or a later one if not all slots behind it are known to be free."""
        with self.database.reading() as execute:
            return self._end_of_slots(execute)

    def _end_of_slots(self, execute: Execute) -> int:
        highest = execute("SELECT max(slot) FROM partitions").fetchone()[0]
        end, next_slot = 1 if highest is None else int(highest) + 1, int(self.meta(execute, "next_slot"))
        return end if free_slots.count_from(execute, end) == next_slot - end else max(end, next_slot)

    def cut_free_slots(self) -> int:
        """Forget the free slots at the end, as if they had never been used, and return the new end."""
        with self.database.db_lock(), self.database.transaction() as execute:
            end = self._end_of_slots(execute)
            free_slots.forget_from(execute, end)
            self.set_meta(execute, "next_slot", end)
        return end

    def allocate_producer_id(self) -> int:
        """Return a producer id that no producer of this store had or will have."""
        self.database.check_writable()
        owner, block = self._producer_ids
        if owner == os.getpid():  # else: it is a parent's
            for number in block:
                return number
        with self.database.db_lock(), self.database.transaction() as execute:
            first = int(self.meta(execute, "next_producer_id"))
            if not 0 <= first <= _MAX_PRODUCER_ID - PRODUCER_ID_BLOCK:
                raise StoreError(f"{self.path}: all producer ids have been given out")
            self.set_meta(execute, "next_producer_id", first + PRODUCER_ID_BLOCK)
        self._producer_ids = os.getpid(), iter(range(first + 1, first + PRODUCER_ID_BLOCK))
        return first

    def boot_count(self) -> int:
        """Return how often `heads` was not trusted: after each boot of the machine, in each copy of the store."""
        with self.database.reading() as execute:
            return int(self.meta(execute, "boots"))

    def count_boot(self) -> int:
        """Raise the number of boots, durably, and return it."""
        since = int(time.time()) - _EPOCHS_SINCE
        with self.database.db_lock(), self.database.transaction() as execute:
            boot_count = int(self.meta(execute, "boots")) + 1
            boot_count = max(boot_count, since) if since < _MAX_EPOCH else boot_count
            self.set_meta(execute, "boots", boot_count)
        return boot_count

    def changes(self) -> int:
        """Return how often anything in the catalog changed."""
        with self.database.reading() as execute:
            return int(self.meta(execute, "changes"))

    def _count_change(self, execute: Execute) -> int:
        self.set_meta(execute, "changes", changes := int(self.meta(execute, "changes")) + 1)
        return changes

    def settings(self) -> StoreSettings:
        """Return the settings of the store itself."""
        with self.database.reading() as execute:
            return self.read_settings(execute)

    def read_settings(self, execute: Execute) -> StoreSettings:
        text = str(self.meta(execute, "settings"))
        try:
            return StoreSettings().changed(json.loads(text))
        except InvalidSetting as error:
            raise NewerFormat(f"{self.path}: {error.message}", hint="it may have been set by a newer Klamm") from None

    def alter(self, changes: Mapping[str, Value], resets: Iterable[str] = ()) -> StoreSettings:
        """Change settings of the store itself."""
        self.database.check_writable()
        with self.database.db_lock(), self.database.transaction() as execute:
            settings = self.read_settings(execute).changed(changes, resets)
            self.set_meta(execute, "settings", json.dumps(settings.to_dict()))
        self.on_change()
        return settings

    # The whole.

    def check(self) -> list[str]:
        """Return the problems of the database and its contradictions; an empty list if there are none."""
        problems = self.database.check()
        if problems:
            return problems
        try:
            topics = self.topics()
            with self.database.reading() as execute:
                next_slot = int(self.meta(execute, "next_slot"))
                next_producer_id = int(self.meta(execute, "next_producer_id"))
                int(self.meta(execute, "next_group"))
                self.read_settings(execute)
                orphans = execute(
                    "SELECT topic_id FROM partitions WHERE topic_id NOT IN "
                    "(SELECT id FROM topics UNION SELECT id FROM deleted)"
                )
                problems += [
                    f"partitions: rows of a topic {row[0]} that is not there" for row in set(orphans.fetchall())
                ]
        except (NotAStore, NewerFormat) as error:
            return [error.message]
        used = sorted(slot for topic in topics for slot in topic.partitions)
        if used and not 1 <= used[0] <= used[-1] < next_slot:
            problems.append(f"meta: next_slot is {next_slot}, but slots {used[0]} to {used[-1]} are in use")
        if next_producer_id < 0:
            problems.append(f"meta: next_producer_id is {next_producer_id}")
        return problems

    def backup(self, destination: str) -> None:
        """Write a consistent copy. The caller holds the klamm.db lock, and syncs the directory afterwards."""
        self.database.backup(destination)

    def close(self) -> None:
        self.database.close()

    def abandon(self) -> None:
        """Forget the parent's connection, in a forked child, without touching it, not even to close it."""
        self.database.abandon()

    # Rows.

    def parse_topic(
        self, row: tuple[str, str, str, int, int], slots: Iterable[tuple[int, int]], defaults: StoreSettings
    ) -> Topic:
        topic_id, name, text, created_ms, crc = row
        try:
            numbered = sorted(slots)
            overrides = json.loads(text)
            if not isinstance(overrides, dict) or [number for number, _ in numbered] != list(range(len(numbered))):
                raise ValueError("the row is not whole")
            numbers = tuple(slot for _, slot in numbered)
            if crc != _crc(topic_id, name, text, created_ms, *numbers) or not numbers:
                raise ValueError("the checksum is wrong")
        except (ValueError, TypeError) as error:
            raise NotAStore(f"{self.path}: topic {name!r} is damaged: {error}", hint=REBUILD) from None
        try:
            settings = defaults.apply(Settings.of(overrides))
        except InvalidSetting as error:
            raise NewerFormat(
                f"{self.path}: topic {name!r}: {error.message}", hint="it may have been set by a newer Klamm"
            ) from None
        return Topic(name, TopicId(topic_id), numbers, settings, created_ms)

    def _find(self, execute: Execute, name: str) -> Topic | None:
        row = execute("SELECT id, name, settings, created_ms, crc FROM topics WHERE name = ?", (name,)).fetchone()
        if row is None:
            return None
        slots = execute("SELECT number, slot FROM partitions WHERE topic_id = ?", (row[0],)).fetchall()
        return self.parse_topic(row, slots, self.read_settings(execute))

    def _unknown(self, execute: Execute, name: str) -> UnknownTopic | NotAStore:
        """Return the error for a topic that was not found, in the same snapshot: others may create it at any time."""
        version = self._cache[0]
        if version is None or version != self._intact:  # SQLite has no checksums; once for each: others ask for many
            problems = [row[0] for row in execute("PRAGMA integrity_check(topics)").fetchall() if row[0] != "ok"]
            if problems:
                return NotAStore(f"{self.path}: is damaged: {problems[0].splitlines()[-1]}", hint=REBUILD)
            self._intact = version
        known = [row[0] for row in execute("SELECT name FROM topics").fetchall() if isinstance(row[0], str)]
        near = nearest(str(name), known)
        return UnknownTopic(
            f"Topic {name!r} does not exist",
            hint=near or "store.topics.create() makes one",
            code=None if near else "unknown_topic",
        )

    def _check_name_is_free(self, execute: Execute, name: str) -> None:
        # In the table: an index may be damaged, and this query can use none.
        query = "SELECT name, crc FROM topics WHERE replace(name || '', '.', '_') = ?"
        taken = execute(query, (collision_key(name),)).fetchone()
        if taken is not None and taken[0] == name:
            raise TopicExists(
                f"Topic {name!r} already exists.", hint="exist_ok=True leaves it as it is", code="topic_exists"
            )
        if taken is not None:
            raise InvalidTopic(
                f"Topic {name!r} collides with existing topic: {taken[0]}", hint="'.' and '_' count as the same"
            )

    def _next_slots(self, execute: Execute, name: str, count: int) -> SlotRequest:
        first = int(self.meta(execute, "next_slot"))
        highest = execute("SELECT max(slot) FROM partitions").fetchone()[0]
        if first < 1 or (highest is not None and highest >= first):
            raise NotAStore(f"{self.path}: is damaged: next_slot is {first}, but slot {highest} is in use")
        free = free_slots.lowest(execute, count)
        if first + count - len(free) > MAX_SLOTS:
            raise InvalidSetting(
                f"{name}: partitions: {count} more are too many for this store, which can have {MAX_SLOTS - 1}"
            )
        return SlotRequest(free, first, count)

    def _add_slots(self, execute: Execute, topic: Topic, slots: tuple[int, ...]) -> None:
        first = len(topic.partitions) - len(slots)
        for number, slot in enumerate(slots, first):
            execute("INSERT INTO partitions VALUES (?, ?, ?)", (topic.id, number, slot))
        free_slots.take(execute, slots)
        self.set_meta(execute, "next_slot", max(int(self.meta(execute, "next_slot")), max(slots) + 1))

    def _update(self, execute: Execute, topic: Topic) -> None:
        topic_id, _, settings, _, crc = _row(topic)
        execute("UPDATE topics SET settings = ?, crc = ? WHERE id = ?", (settings, crc, topic_id))

    def meta(self, execute: Execute, key: str, default: int | None = None) -> str | int:
        """Return a value of the store. Raise NotAStore if it is damaged, or missing and has no `default`."""
        row = execute("SELECT value, crc FROM meta WHERE key = ?", (key,)).fetchone()
        if row is None and default is not None:
            return default
        if row is None or row[1] != _crc(key, row[0]):
            raise NotAStore(f"{self.path}: is damaged: {key} is missing or wrong", hint=REBUILD)
        value: str | int = row[0]
        return value

    def set_meta(self, execute: Execute, key: str, value: str | int) -> None:
        execute("INSERT OR REPLACE INTO meta VALUES (?, ?, ?)", (key, value, _crc(key, value)))


def _statements(schema: str, meta: Iterable[tuple[str, str | int]]) -> list[tuple[str, tuple[object, ...]]]:
    rows = [(key, value, _crc(key, value)) for key, value in meta]
    return [(each, ()) for each in schema.split(";")] + [("INSERT INTO meta VALUES (?, ?, ?)", row) for row in rows]


def _since_format(version: int) -> list[tuple[str, tuple[object, ...]]]:
    """Return the statements that later formats add."""
    made: list[tuple[str, tuple[object, ...]]] = []
    if version < 2:
        made += _statements(f"{groups.SCHEMA};{transaction_table.NAMES}", [("next_group", 0), ("settings", "{}")])
    if version < 3:
        made += _statements(f"{transaction_table.PENDING};{wire_groups.SCHEMA}", [])
    if version < 4:
        made += _statements(_DELETED, [("changes", 0)])
    if version < 5:
        made += _statements(free_slots.SCHEMA, [("features", str(features.KNOWN))])
    return made


def _check_count(name: str, partitions: int) -> None:
    if type(partitions) is not int:  # nor bool
        raise TypeError(f"partitions is an int, not {type(partitions).__name__}")
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise InvalidSetting(f"{name}: partitions: {partitions} is invalid", hint=f"expected 1 to {MAX_PARTITIONS}")


def _row(topic: Topic) -> tuple[str, str, str, int, int]:
    text = json.dumps(topic.settings.to_dict())
    crc = _crc(topic.id, topic.name, text, topic.created_ms, *topic.partitions)
    return topic.id, topic.name, text, topic.created_ms, crc
