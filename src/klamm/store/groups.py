"""Groups: their members, their door and their committed offsets. Rows are in klamm.db, liveness in lock bytes.

    groups       name, number, door, created_ms, crc                door: "klamm" (members here) or "kafka" (a server's)
    members      group_number, member_index, id, name, topics, owned, rejoin_ms, joined_ms, crc
                 topics: its subscription; owned: the partitions that it last recorded, both in JSON
    offsets      group_number, topic_id, partition, offset, leader_epoch, metadata, committed_ms, crc

    members file  the lock range of a group (disk/locks.py): byte m while the member with index m lives, byte OWNED +
    slot
                  while a member owns that partition, byte DOOR while members belong to the Kafka server

Promises
  G1  The number of a group is never given to another, so a lock byte means one group forever (`next_group`).
  G2  A member lives as long as its byte is held, whatever its row says. Rows of dead members are overwritten, or
      removed by the next member that joins. Only the row of a static member outlives it, so that it gets its index
      again.
  G3  A partition belongs to the holder of its byte: one member at a time. Its owner commits while it holds the byte.
      The next owner reads the offset after taking the byte, so it starts at the last commit.
  G4  A group has members at one door at a time. Joining, and claiming the door, happen under the klamm.db lock.
  G5  A row whose checksum is wrong is an error, as in the catalog.
  G6  Offsets go with their topic, and carry the leader epoch of the last record before them.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from klamm.disk._os import HeldBytes
from klamm.disk.locks import DOOR, MAX_GROUPS, MAX_MEMBER_INDEX, OWNED, LockFile, group_lock_base, held_by_others
from klamm.errors import (
    CommitGap,
    GroupBusy,
    GroupError,
    InvalidSetting,
    NotAStore,
    ReadOnly,
    UnknownGroup,
    UnknownTopic,
)
from klamm.store.database import REBUILD_BY_HAND
from klamm.store.names import nearest
from klamm.store.rows import crc, crc_of_text
from klamm.types import PartitionKey, TopicId, TopicPartition

if TYPE_CHECKING:
    from klamm.store.database import Execute
    from klamm.store.directory import Core

__all__ = [
    "DOORS",
    "SCHEMA",
    "Group",
    "Groups",
    "JoinResult",
    "MemberRow",
    "OffsetRow",
    "checked_metadata",
    "checked_name",
    "delete_group",
    "forget_topic",
    "put_offset",
    "put_offsets",
]

DOORS = ("klamm", "kafka")
_MAX_NAME = 249
_MAX_METADATA = 4096

SCHEMA = """
CREATE TABLE groups (
    name TEXT PRIMARY KEY, number INTEGER NOT NULL UNIQUE, door TEXT NOT NULL,
    created_ms INTEGER NOT NULL, crc INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE members (
    group_number INTEGER NOT NULL, member_index INTEGER NOT NULL, id TEXT NOT NULL, name TEXT, topics TEXT NOT NULL,
    owned TEXT NOT NULL, rejoin_ms INTEGER NOT NULL, joined_ms INTEGER NOT NULL, crc INTEGER NOT NULL,
    PRIMARY KEY (group_number, member_index)
) WITHOUT ROWID;
CREATE TABLE offsets (
    group_number INTEGER NOT NULL, topic_id TEXT NOT NULL, partition INTEGER NOT NULL, offset INTEGER NOT NULL,
    leader_epoch INTEGER NOT NULL, metadata TEXT NOT NULL, committed_ms INTEGER NOT NULL, crc INTEGER NOT NULL,
    PRIMARY KEY (group_number, topic_id, partition)
) WITHOUT ROWID;
CREATE INDEX offsets_by_topic ON offsets (topic_id);
"""


def upgrade(execute: Execute, version: int) -> None:
    """Upgrade from an older format of klamm.db: 2 to 4 had another name for a column."""
    if 2 <= version < 5:
        execute("ALTER TABLE members RENAME COLUMN place TO member_index")


_NONE_YET = "a group begins with the first member that joins"


class Group(NamedTuple):
    name: str
    number: int
    door: str
    created_ms: int


class MemberRow(NamedTuple):
    member_index: int
    id: str
    name: str | None
    topics: Any  # a subscription, as client/subscription.py spells it
    owned: Any  # [topic, partition]s; for people to see, ownership is a lock byte
    rejoin_ms: int
    joined_ms: int


class OffsetRow(NamedTuple):
    """One committed offset. Its key is (topic_id, partition)."""

    topic_id: TopicId
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    committed_ms: int = 0

    @property
    def key(self) -> PartitionKey:
        return self.topic_id, self.partition


class JoinResult(NamedTuple):
    """The result of joining: the group, the member's index, and the id that it has from now on."""

    group: Group
    member_index: int
    id: str


# ---- offsets, inside of a caller's transaction

# Of one row, with the same values. A topic that is deleted takes its offsets with it, and gets no new ones.
_UPDATE = """UPDATE offsets SET offset = ?4, leader_epoch = ?5, metadata = ?6, committed_ms = ?7, crc = ?8
    WHERE group_number = ?1 AND topic_id = ?2 AND partition = ?3"""
_INSERT = """INSERT INTO offsets SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8
    WHERE EXISTS (SELECT 1 FROM topics WHERE id = ?2)"""


def put_offsets(
    execute: Execute,
    group_number: int,
    rows: Iterable[OffsetRow],
    *,
    expect: Mapping[PartitionKey, int | None] | None = None,
) -> None:
    """Store offsets. The caller owns the partitions (Member.mutex, Member.owns) and holds the klamm.db lock.

    `expect` has, by (topic_id, partition), the offset that must be stored there now (None: none). If another one is,
    raise CommitGap, which undoes the transaction. Keys that are not in `expect` are not checked.
    """
    now_ms = time.time_ns() // 1_000_000
    for row in rows:
        if expect is not None and row.key in expect:
            wanted = expect[row.key]
            found = execute(
                "SELECT offset FROM offsets WHERE group_number = ? AND topic_id = ? AND partition = ?",
                (group_number, *row.key),
            ).fetchone()
            stored = None if found is None else int(found[0])
            if stored != wanted:
                raise CommitGap(
                    f"partition {row.partition}: the commit follows offset {_shown(wanted)},"
                    f" but the committed offset is {_shown(stored)}",
                    expected=-1 if stored is None else stored,
                    begin=-1 if wanted is None else wanted,
                )
        if not put_offset(execute, group_number, row, now_ms):
            raise _deleted()


def put_offset(execute: Execute, group_number: int, row: OffsetRow, now_ms: int) -> bool:
    """Store one offset. Return False if its topic is deleted."""
    values = _values(group_number, row, now_ms)
    return bool(execute(_UPDATE, values).rowcount or execute(_INSERT, values).rowcount)


def _values(group_number: int, row: OffsetRow, now_ms: int) -> tuple[object, ...]:
    topic_id, partition, offset, leader_epoch, metadata, committed_ms = row
    committed_ms = committed_ms or now_ms
    # rows.crc of these values, inlined: this runs for each commit, and takes a third less time
    spelled = f"({group_number}, {topic_id!r}, {partition}, {offset}, {leader_epoch}, {metadata!r}, {committed_ms})"
    checksum = crc_of_text(spelled)
    return group_number, topic_id, partition, offset, leader_epoch, metadata, committed_ms, checksum


def _deleted() -> UnknownTopic:
    return UnknownTopic("a topic was deleted, so it has no committed offsets; nothing was committed")


def _shown(offset: int | None) -> str:
    return "(none)" if offset is None else str(offset)


def forget_topic(execute: Execute, topic_id: TopicId) -> None:
    """Delete all offsets of a topic that is deleted."""
    execute("DELETE FROM offsets WHERE topic_id = ?", (topic_id,))


def delete_group(execute: Execute, group: Group) -> None:
    execute("DELETE FROM wire_groups WHERE group_number = ?", (group.number,))
    execute("DELETE FROM offsets WHERE group_number = ?", (group.number,))
    execute("DELETE FROM members WHERE group_number = ?", (group.number,))
    execute("DELETE FROM groups WHERE name = ?", (group.name,))


def checked_metadata(metadata: object) -> str:
    if not isinstance(metadata, str):
        raise TypeError(f"metadata is a str, not {type(metadata).__name__}")
    if len(metadata.encode("utf-8", "surrogatepass")) > _MAX_METADATA:
        raise InvalidSetting(f"metadata: longer than {_MAX_METADATA} bytes")
    return metadata


def checked_name(name: object, what: str = "group") -> str:
    if not isinstance(name, str):
        raise TypeError(f"{what} is a str, not {type(name).__name__}")
    if not 1 <= len(name) <= _MAX_NAME or not name.isprintable():
        raise InvalidSetting(
            f"{what}: {name[:60]!r} is invalid", hint=f"expected 1 to {_MAX_NAME} printable characters"
        )
    return name


def _put_member(execute: Execute, group_number: int, row: MemberRow) -> None:
    spelled = row._replace(topics=json.dumps(row.topics), owned=json.dumps(row.owned))
    values = (group_number, *spelled)
    execute("INSERT OR REPLACE INTO members VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*values, crc(*values)))


class Groups:
    """The groups of one store."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._doors: HeldBytes[int, Group] = HeldBytes(core.members)  # bytes DOOR that the server holds

    @property
    def _database(self) -> Any:
        return self._core.catalog.database

    def _locks(self) -> LockFile:
        if self._core.members is None:
            raise ReadOnly(f"{self._core.path}: opened for reading only", hint="a group needs a store that can write")
        return self._core.members

    def changed(self) -> None:
        """Wake every member of every group, so that it reads the rows again."""
        self._core.heads.bump_groups_version()
        self._core.heads.ring_all()

    # ---- groups

    def names(self) -> list[str]:
        return [name for (name,) in self._database.read("SELECT name FROM groups ORDER BY name")]

    def find(self, name: str) -> Group | None:
        with self._database.reading() as execute:
            return self.look_up(execute, name)

    def get(self, name: str) -> Group:
        with self._hinting(name), self._database.reading() as execute:
            return self.existing(execute, checked_name(name))

    @contextmanager
    def _hinting(self, name: str) -> Iterator[None]:
        """Add the most similar group name to an error."""
        try:
            yield
        except UnknownGroup as error:
            near = nearest(name, self.names())
            raise UnknownGroup(error.message, hint=near or _NONE_YET, code=None if near else "unknown_group") from None

    def look_up(self, execute: Execute, name: str) -> Group | None:
        """Return the group as a transaction sees it. Raise NotAStore if its row is damaged."""
        row = execute("SELECT name, number, door, created_ms, crc FROM groups WHERE name = ?", (name,)).fetchone()
        if row is None:
            return None
        if row[4] != crc(*row[:4]) or row[2] not in DOORS:
            raise self._damaged(f"group {name!r}")
        return Group(*row[:4])

    def _damaged(self, what: str) -> NotAStore:
        return NotAStore(f"{self._core.catalog.path}: {what} is damaged", hint=REBUILD_BY_HAND)

    def claim_door(self, name: str, door: str) -> Group:
        """Claim the group for members of `door`, creating it if needed. Raise GroupBusy if its members belong to the
        other door.

        A server claims a group when its first member joins, and gives the door up when the last one has left.
        """
        with self._database.db_lock(), self._database.transaction(durable=False) as execute:
            group = self.claim(execute, checked_name(name), door)
            if door == "kafka":
                self.hold_door(group)
            return group

    def hold_door(self, group: Group) -> None:
        """Record that members of the group belong to the server. Called by the server, under the klamm.db lock."""
        self._locks()
        if group.number not in self._doors:
            self._doors.take(group.number, group_lock_base(group.number) + DOOR, group)

    def leave_door(self, group: Group) -> None:
        """Record that no member of the group belongs to the server any more. Called by the server."""
        self._doors.release(group.number)

    def held_doors(self) -> list[Group]:
        """Return the groups whose door byte the server holds, including those of a claim that failed afterwards."""
        return [group for _, group in self._doors.items()]

    def claim(self, execute: Execute, name: str, door: str = "klamm") -> Group:
        """Like `claim_door`, inside of a transaction."""
        assert door in DOORS
        group = self.look_up(execute, name)
        if group is None:
            return self.create(execute, name, door)
        if group.door == door:
            return group
        if door == "klamm" and self.has_members_at_server(group):
            raise GroupBusy(
                f"group {name!r}: its members belong to the Kafka server of this store",
                hint="stop those, or use another group here",
            )
        pending = "SELECT 1 FROM pending_offsets WHERE group_number = ?"
        if door == "klamm" and execute(pending, (group.number,)).fetchone():
            raise GroupBusy(
                f"group {name!r}: a transaction over the wire has yet to commit offsets of it",
                hint="it ends with its timeout at the latest; store.transactions shows it",
                code="open_transaction",
            )
        if door == "kafka" and self.live_member_indexes(group.number):
            raise GroupBusy(
                f"group {name!r}: its members are processes that have the store open",
                hint="stop those, or use another group over the wire",
            )
        if door == "klamm":  # members at the server, and clients that wait to join, are removed
            execute("DELETE FROM wire_groups WHERE group_number = ?", (group.number,))
        group = group._replace(door=door)
        execute("UPDATE groups SET door = ?, crc = ? WHERE name = ?", (door, crc(*group), name))
        return group

    def existing(self, execute: Execute, name: str) -> Group:
        """Like `look_up`, but raise UnknownGroup if there is none. Without a hint: that is slow with many names."""
        found = self.look_up(execute, name)
        if found is None:
            raise UnknownGroup(f"Consumer group {name!r} does not exist")
        return found

    def create(self, execute: Execute, name: str, door: str) -> Group:
        """Create a group that does not exist."""
        catalog = self._core.catalog
        number = int(catalog.meta(execute, "next_group"))
        if not 0 <= number < MAX_GROUPS:
            raise GroupError(f"{catalog.path}: has had as many groups as a store can have")
        catalog.set_meta(execute, "next_group", number + 1)
        group = Group(name, number, door, time.time_ns() // 1_000_000)
        execute("INSERT INTO groups VALUES (?, ?, ?, ?, ?)", (*group, crc(*group)))
        return group

    def delete(self, name: str) -> None:
        """Delete a group that has no members, and its offsets."""
        self._database.check_writable()
        with self._hinting(name), self._database.db_lock(), self._database.transaction() as execute:
            group = self.existing(execute, checked_name(name))
            self.check_not_live(group)
            delete_group(execute, group)

    def check_not_live(self, group: Group) -> None:
        """Raise GroupBusy if the group has members of any door. Called under the klamm.db lock."""
        self.check_not_embedded(group)
        if group.door == "kafka" and self.has_members_at_server(group):
            raise GroupBusy(
                f"group {group.name!r}: the group is not empty: it has members at the Kafka server of this store",
                hint="stop them first",
            )

    def has_members_at_server(self, group: Group) -> bool:
        """Return whether members of the group belong to the Kafka server, or clients are about to join there."""
        return bool(self._held(group_lock_base(group.number) + DOOR, 1))

    def check_not_embedded(self, group: Group) -> None:
        """Raise GroupBusy if processes that have the store open are members. Called under the klamm.db lock."""
        live = self.live_member_indexes(group.number)
        if live:
            raise GroupBusy(
                f"group {group.name!r}: the group is not empty: members: {len(live)}", hint="stop them first"
            )

    # ---- members

    def live_member_indexes(self, number: int) -> set[int]:
        """Return the indexes of the live members."""
        return self._held(group_lock_base(number), MAX_MEMBER_INDEX)

    def owned_slots(self, number: int) -> set[int]:
        """Return the slots of partitions that have an owner."""
        return self._held(group_lock_base(number) + OWNED, MAX_MEMBER_INDEX)

    def _held(self, byte: int, length: int) -> set[int]:
        members = self._core.members
        if members is not None:
            ranges = members.held(byte, length)
        else:  # a store opened for reading only holds nothing: ask the kernel
            try:
                fd = os.open(f"{self._core.files}/members", os.O_RDONLY)
            except FileNotFoundError:
                return set()
            try:
                ranges = held_by_others(fd, byte, length)
            finally:
                os.close(fd)
        return {start - byte + n for start, size in ranges for n in range(size)}

    def rows(self, number: int) -> list[MemberRow]:
        """Return the rows that members wrote when they joined, by member index, the dead included."""
        with self._database.reading() as execute:
            return self._rows(execute, number)

    def _rows(self, execute: Execute, number: int) -> list[MemberRow]:
        found = execute("SELECT * FROM members WHERE group_number = ? ORDER BY member_index", (number,)).fetchall()
        return [self._member(row) for row in found]

    def _member(self, row: tuple[Any, ...]) -> MemberRow:
        try:
            if row[-1] != crc(*row[:-1]):
                raise ValueError("the checksum is wrong")
            member_index, member_id, name, topics, owned, rejoin_ms, joined_ms = row[1:-1]
            return MemberRow(member_index, member_id, name, json.loads(topics), json.loads(owned), rejoin_ms, joined_ms)
        except (ValueError, TypeError):
            raise self._damaged(f"the member with index {row[1]} of group number {row[0]}") from None

    def join(
        self,
        name: str,
        member_id: str,
        member: str | None,
        topics: Any,
        rejoin_ms: int,
        max_size: int,
        take: Callable[[int, JoinResult], bool],
    ) -> JoinResult:
        """Join the group. A static member gets its previous index, others the lowest free one. Take the byte before the
        row.

        `take` takes the byte, so the caller owns it from the first moment, and releases it after an error.
        """
        self._locks()
        with self._database.db_lock(), self._database.transaction(durable=False) as execute:
            group = self.claim(execute, name)
            live = self.live_member_indexes(group.number)
            rows = self._rows(execute, group.number)
            kept = {row.member_index: row for row in rows if row.member_index in live or row.name is not None}
            mine = next((row for row in rows if member is not None and row.name == member), None)
            if mine is not None and mine.member_index in live:
                raise GroupBusy(f"group {name!r}: a member named {member!r} is alive already")
            if len(live) >= max_size:
                raise GroupBusy(
                    f"group {name!r}: has {len(live)} members, and group.max.size is {max_size}",
                    hint='raise it with store.alter({"group.max.size": …})',
                )
            member_index = mine.member_index if mine is not None else 0
            while mine is None and (member_index in live or member_index in kept):
                member_index += 1
            joined = JoinResult(group, member_index, member_id)
            if member_index >= MAX_MEMBER_INDEX or not take(group_lock_base(group.number) + member_index, joined):
                raise GroupBusy(f"group {name!r}: member index {member_index} cannot be locked")
            for row in rows:
                if row.member_index not in kept:
                    where = "group_number = ? AND member_index = ?"
                    execute(f"DELETE FROM members WHERE {where}", (group.number, row.member_index))
            row = MemberRow(member_index, member_id, member, topics, [], rejoin_ms, time.time_ns() // 1_000_000)
            _put_member(execute, group.number, row)
        self.changed()
        return joined

    def save_owned(self, joined: JoinResult, owned: Iterable[TopicPartition]) -> None:
        """Record which partitions a member owns, so that other processes can show it."""
        with self._database.db_lock(), self._database.transaction(durable=False) as execute:
            for row in self._rows(execute, joined.group.number):
                if row.member_index == joined.member_index and row.id == joined.id:
                    _put_member(execute, joined.group.number, row._replace(owned=sorted(owned)))

    def left(self, joined: JoinResult, *, keep_row: bool) -> None:
        """Notify the others and delete the row of a member that has released its bytes, unless it is static."""
        self.changed()
        if not keep_row:
            with self._database.db_lock(), self._database.transaction(durable=False) as execute:
                execute(
                    "DELETE FROM members WHERE group_number = ? AND member_index = ? AND id = ?",
                    (joined.group.number, joined.member_index, joined.id),
                )

    def expire(self, number: int, row: MemberRow) -> None:
        """Free the index of a static member that did not rejoin in time, unless it has just done so."""
        byte = group_lock_base(number) + row.member_index
        held: HeldBytes[int, None] = HeldBytes(self._locks())
        with self._database.db_lock(), held:
            if not held.take(byte, byte):
                return
            with self._database.transaction(durable=False) as execute:
                execute(
                    "DELETE FROM members WHERE group_number = ? AND member_index = ? AND id = ? AND joined_ms = ?",
                    (number, row.member_index, row.id, row.joined_ms),
                )
        self.changed()

    # ---- offsets

    def offsets(self, number: int) -> dict[PartitionKey, OffsetRow]:
        """Return the committed offsets, by (topic id, partition)."""
        with self._database.reading() as execute:
            return self.read_offsets(execute, number)

    def read_offsets(
        self, execute: Execute, number: int, topic_id: TopicId | None = None
    ) -> dict[PartitionKey, OffsetRow]:
        """Return the offsets committed in one topic, or (None) in all."""
        found = execute(
            "SELECT * FROM offsets WHERE group_number = ?1" + ("" if topic_id is None else " AND topic_id = ?2"),
            (number,) if topic_id is None else (number, topic_id),
        ).fetchall()
        for row in found:
            if row[-1] != crc(*row[:-1]):
                raise self._damaged(f"the offset of group number {number} in partition {row[2]} of topic {row[1]}")
        rows = [OffsetRow(*row[1:7]) for row in found]
        return {row.key: row for row in rows}

    def commit(
        self,
        number: int,
        rows: Iterable[OffsetRow],
        *,
        expect: Mapping[PartitionKey, int | None] | None = None,
    ) -> None:
        """Store offsets in a transaction of their own. The caller owns the partitions."""
        if expect is None:
            now_ms = time.time_ns() // 1_000_000
            values = [_values(number, row, now_ms) for row in rows]
            if not self._core.catalog.database.put(_UPDATE, _INSERT, values, durable=False):
                raise _deleted()
            return
        with self._database.db_lock(), self._database.transaction(durable=False) as execute:
            put_offsets(execute, number, rows, expect=expect)

    # ---- the whole

    def check(self) -> list[str]:
        """Return the problems of the rows: wrong checksums, and rows that belong to no group, topic or member."""
        problems: list[str] = []
        with self._database.reading() as execute:
            next_group = int(self._core.catalog.meta(execute, "next_group"))
            groups = execute("SELECT name, number, door, created_ms, crc FROM groups").fetchall()
            numbers = {row[1] for row in groups}
            topics = {row[0] for row in execute("SELECT id FROM topics")}
            for row in groups:
                if row[4] != crc(*row[:4]) or row[2] not in DOORS:
                    problems.append(f"groups: the row of {row[0]!r} is damaged")
                elif not 0 <= row[1] < next_group:
                    problems.append(f"groups: {row[0]!r} has number {row[1]}, but next_group is {next_group}")
            for table, what in (("members", "member"), ("offsets", "topic"), ("wire_groups", "")):
                for row in execute(f"SELECT * FROM {table}").fetchall():
                    where = f"{table}: the row" + (f" of {what} {row[1]}" if what else "")
                    if row[-1] != crc(*row[:-1]):
                        problems.append(f"{where} in group number {row[0]} is damaged")
                    elif row[0] not in numbers:
                        problems.append(f"{where} belongs to a group number {row[0]} that is not there")
                    elif table == "offsets" and row[1] not in topics:
                        problems.append(f"{where} in group number {row[0]} belongs to a topic that is not there")
        return problems
