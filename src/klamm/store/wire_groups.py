"""The groups of the Kafka server: calls for many groups at a time, each with its own outcome.

    wire_groups    group_number, state, crc      state: the members of a stable generation: group_image.py

Promises
  WGR1  One call is one write. An error of one group is returned, and the others are done.
  WGR2  Nothing is committed to a group while it has embedded members. If the server has members, G4 (groups.py) ensures
        that. A client that is not a member (a consumer that assigns itself partitions, a tool) does not claim the door:
        otherwise embedded members could not return as long as the server runs.
  WGR3  A later server does not reuse generation numbers (`next_generation`). Klamm does not depend on it, because
        member ids are never reused; but assignors of clients compare generations.
  WGR4  A row of wire_groups exists only while the door is "kafka": claiming the group for embedded members deletes it
        (groups.py, `claim`), also when no server runs. So clients that return after that are not members any more, and
        cannot overwrite offsets of the embedded members.
  WGR5  A row of wire_groups whose checksum is wrong is dropped and logged: clients then rejoin, and nothing is lost.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from klamm.errors import KlammError
from klamm.store.groups import Group, MemberRow, OffsetRow, delete_group, put_offset
from klamm.store.rows import crc
from klamm.types import PartitionKey, TopicId

if TYPE_CHECKING:
    from klamm.store.database import Execute
    from klamm.store.directory import Core
    from klamm.store.group_image import GroupImage

__all__ = ["SCHEMA", "Embedded", "Offsets", "WireCommit", "WireGroups"]

SCHEMA = """
CREATE TABLE wire_groups (group_number INTEGER PRIMARY KEY, state BLOB NOT NULL, crc INTEGER NOT NULL);
"""

_EMPTY = """
SELECT name FROM groups WHERE door = 'kafka'
AND NOT EXISTS (SELECT 1 FROM wire_groups WHERE wire_groups.group_number = groups.number)
AND NOT EXISTS (SELECT 1 FROM offsets WHERE offsets.group_number = groups.number)
AND NOT EXISTS (SELECT 1 FROM pending_offsets WHERE pending_offsets.group_number = groups.number)
"""

_LAST_GENERATION = 1 << 30  # an int32 on the wire, and a server may count on from here

_log = logging.getLogger("klamm.kafka")

Offsets = Mapping[PartitionKey, OffsetRow]
"""By (topic id, partition)."""


class WireCommit(NamedTuple):
    """Offsets that a client commits at the server."""

    group: str
    rows: Sequence[OffsetRow]


class Embedded(NamedTuple):
    """A group and its embedded members."""

    group: Group
    members: tuple[MemberRow, ...]


class WireGroups:
    """The groups of one store."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._groups = core.groups
        self._database = core.catalog.database

    # ---- groups

    def find(self, names: Iterable[str]) -> dict[str, Embedded]:
        """Return the groups that exist."""
        found = {name: group for name in names if (group := self._groups.find(name)) is not None}
        return {name: self._embedded(group) for name, group in found.items()}

    def _embedded(self, group: Group) -> Embedded:
        live = self._groups.live_member_indexes(group.number)
        rows = self._groups.rows(group.number) if live else []
        return Embedded(group, tuple(row for row in rows if row.member_index in live))

    def names(self) -> list[str]:
        """Return the names of all groups, in order."""
        return [name for (name,) in self._database.read("SELECT name FROM groups ORDER BY name")]

    def are_embedded(self, names: Iterable[str]) -> dict[str, bool]:
        """Return which of these groups exist, and whether they have embedded members."""
        with self._database.reading() as execute:
            groups = [group for name in names if (group := self._groups.look_up(execute, name)) is not None]
        return {each.name: bool(self._groups.live_member_indexes(each.number)) for each in groups}

    def delete(self, names: Iterable[str]) -> list[KlammError | None]:
        """Delete groups without members, and their offsets. The server lets no client join during the call."""
        outcomes: list[KlammError | None] = []
        with self._database.db_lock(), self._database.transaction() as execute:
            for name in names:
                try:
                    group = self._groups.existing(execute, name)
                    self._groups.check_not_embedded(group)
                    delete_group(execute, group)
                    outcomes.append(None)
                except KlammError as error:
                    outcomes.append(error)
        return outcomes

    def empty(self) -> list[str]:
        """Return the groups of the server that have no members, no offsets and no transaction with offsets for them."""
        with self._database.reading() as execute:
            return [name for (name,) in execute(_EMPTY).fetchall()]

    def forget_empty(self, names: Iterable[str]) -> None:
        """Delete the groups that are still empty. The server lets no client join during the call. A power cut may undo
        it.
        """
        with self._database.db_lock(), self._database.transaction(durable=False) as execute:
            empty = {name for (name,) in execute(_EMPTY).fetchall()}
            for name in empty.intersection(names):
                group = self._groups.existing(execute, name)
                if not self._groups.live_member_indexes(group.number):
                    delete_group(execute, group)

    # ---- members that outlive the server

    def image(self, group: Group) -> GroupImage | None:
        """Return the members of a group at the server, as they were assigned last; None if that is not stored: they
        have yet to be assigned something, are too many, or the row is damaged.
        """
        from klamm.store.group_image import decoded

        statement = "SELECT group_number, state, crc FROM wire_groups WHERE group_number = ?"
        row = next(iter(self._database.read(statement, (group.number,))), None)
        if row is None or row[2] != crc(*row[:2]):
            return None
        try:
            return decoded(group.name, row[1])
        except ValueError:  # a newer Klamm wrote it
            return None

    def persist(self, name: str, state: bytes | None) -> Group | None:
        """Store `state` for the next server, or delete it (None). Return the group if it has a state: it belongs to the
        server.

        As with commits, a power cut may undo it, the death of a process does not.
        """
        with self._database.db_lock(), self._database.transaction(durable=False) as execute:
            if state is None:
                number = "SELECT number FROM groups WHERE name = ?"
                execute(f"DELETE FROM wire_groups WHERE group_number = ({number})", (name,))
                return None
            group = self._groups.claim(execute, name, "kafka")
            self._groups.hold_door(group)
            row = (group.number, state)
            execute("INSERT OR REPLACE INTO wire_groups VALUES (?, ?, ?)", (*row, crc(*row)))
            return group

    def resume(self) -> list[tuple[Group, bytes]]:
        """Return the groups that have a state, claimed for the server."""
        found: list[tuple[Group, bytes]] = []
        damaged: list[str | int] = []
        with self._database.db_lock(), self._database.transaction(durable=False) as execute:
            names = dict(execute("SELECT number, name FROM groups").fetchall())
            for number, state, checksum in execute("SELECT * FROM wire_groups").fetchall():
                group = self._groups.existing(execute, names[number]) if number in names else None
                if group is not None and group.door == "kafka" and checksum == crc(number, state):
                    self._groups.hold_door(group)
                    found.append((group, state))
                else:
                    damaged.append(names.get(number, number))
                    execute("DELETE FROM wire_groups WHERE group_number = ?", (number,))
        for name in damaged:  # now that the write lock is released: a log may be slow
            _log.warning("group %r: state dropped: the row is damaged", name)
        return found

    def reserve_generations(self, count: int) -> int:
        """Reserve `count` new generation numbers and return the first."""
        catalog, key = self._core.catalog, "next_generation"
        with self._database.db_lock(), self._database.transaction() as execute:
            first = int(catalog.meta(execute, key, 0))
            if not 0 <= first < _LAST_GENERATION:
                first = 0
            catalog.set_meta(execute, key, first + count)
        return first

    # ---- offsets

    def offsets(self, wanted: Iterable[tuple[str, Iterable[TopicId] | None]]) -> list[Offsets | KlammError]:
        """Return the committed offsets by group: in these topics, or (None) in all; none for an unknown group."""
        outcomes: list[Offsets | KlammError] = []
        with self._database.reading() as execute:
            for name, topic_ids in wanted:
                try:
                    outcomes.append(self._offsets(execute, name, topic_ids))
                except KlammError as error:
                    outcomes.append(error)
        return outcomes

    def _offsets(self, execute: Execute, name: str, topic_ids: Iterable[TopicId] | None) -> Offsets:
        group = self._groups.look_up(execute, name)
        found: dict[PartitionKey, OffsetRow] = {}
        if group is not None:
            for topic_id in [None] if topic_ids is None else topic_ids:
                found.update(self._groups.read_offsets(execute, group.number, topic_id))
        return found

    def commit(self, commits: Iterable[WireCommit]) -> list[list[bool] | KlammError]:
        """Store many commits in their order. Return for each row whether it is stored (False: its topic was deleted),
        or an error.

        As with embedded members, a power cut may undo it, the death of a process does not.
        """
        now_ms = time.time_ns() // 1_000_000
        outcomes: list[list[bool] | KlammError] = []
        groups: dict[str, Group | KlammError] = {}  # under the klamm.db lock, so no member joins
        with self._database.db_lock(), self._database.transaction(durable=False) as execute:
            for commit in commits:
                group = groups.get(commit.group)
                if group is None:
                    group = groups[commit.group] = self._committing(execute, commit.group)
                if isinstance(group, KlammError):
                    outcomes.append(group)
                else:
                    outcomes.append([put_offset(execute, group.number, row, now_ms) for row in commit.rows])
        return outcomes

    def _committing(self, execute: Execute, name: str) -> Group | KlammError:
        """Return the group, created if needed, or the error that prevents the commit."""
        try:
            group = self._groups.look_up(execute, name)
            if group is None:
                return self._groups.create(execute, name, "klamm")
            self._groups.check_not_embedded(group)
        except KlammError as error:
            return error
        return group

    def forget(self, name: str, keys: Iterable[PartitionKey]) -> None:
        """Delete committed offsets. Raise GroupBusy if the group has embedded members."""
        with self._database.db_lock(), self._database.transaction() as execute:
            group = self._groups.existing(execute, name)
            self._groups.check_not_embedded(group)
            for key in keys:
                execute(
                    "DELETE FROM offsets WHERE group_number = ? AND topic_id = ? AND partition = ?",
                    (group.number, *key),
                )
