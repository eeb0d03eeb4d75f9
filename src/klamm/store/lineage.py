"""Lineage: the inputs and outputs of committed transactions, kept for `lineage.retention.ms`.

    lineage     id, producer_id, epoch, name, ended_ms, inputs, outputs, crc

    inputs      JSON: [[group, topic id, partition, start, end], …], the progress of groups that was part of it
    outputs     JSON: [[topic id, partition, start, end], …], half-open. Records of other producers may lie in between:
                a record belongs to the transaction if its batch has the producer id.

Promises
  LIN1  A row is written in the SQLite transaction that commits the transaction it describes. So it exists if and only
        if that transaction is committed and the setting was on.
  LIN2  There are at most KEPT rows, and maintenance removes rows that are older than the setting.
  LIN3  A commit does not wait for a stopped process: outputs in a log that such a process has locked are not recorded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

from klamm.batch import walk
from klamm.errors import KlammError, NotAStore
from klamm.store.database import REBUILD_BY_HAND
from klamm.store.markers import can_append
from klamm.store.rows import crc
from klamm.types import InputRange, Lineage, OutputRange, PartitionKey, TopicId

if TYPE_CHECKING:
    from klamm.batch import Record
    from klamm.log.partition import Partition
    from klamm.store.database import Execute
    from klamm.store.directory import Core
    from klamm.store.transaction_state import Row

__all__ = ["KEPT", "SCHEMA", "Input", "LineageTable", "Output"]

KEPT = 100_000

SCHEMA = """
CREATE TABLE lineage (
    id INTEGER PRIMARY KEY, producer_id INTEGER NOT NULL, epoch INTEGER NOT NULL, name TEXT,
    ended_ms INTEGER NOT NULL, inputs TEXT NOT NULL, outputs TEXT NOT NULL, crc INTEGER NOT NULL
);
CREATE INDEX lineage_by_producer ON lineage (producer_id)
"""
_COLUMNS = "producer_id, epoch, name, ended_ms, inputs, outputs"

Input = tuple[str, TopicId, int, int, int]
"""Group, topic id, partition, start and end of what it was moved past."""
Output = tuple[TopicId, int, int, int]
"""Topic id, partition, start and end."""


class LineageTable:
    """The lineage table of a store."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._setting = -1, 0  # version of the catalog, and the setting as of it

    @property
    def retention_ms(self) -> int:
        """0: lineage is off. Read again when anything in the catalog has changed."""
        version = self._core.heads.catalog_version
        if version != self._setting[0]:
            self._setting = version, self._core.catalog.settings().lineage_retention_ms
        return self._setting[1]

    def outputs(self, producer_id: int, partitions: Iterable[tuple[PartitionKey, Partition]]) -> list[Output]:
        """Return the outputs of a transaction in these logs, before it is decided. Not under the klamm.db lock."""
        found = []
        for key, partition in partitions:
            try:
                opened = partition.open_transactions() if can_append(partition) else []
                end = partition.snapshot().next_offset
            except KlammError:  # deleted, or damaged: its readers say so
                continue
            found += [(*key, first, end) for number, _, first in opened if number == producer_id]
        return found

    def write(self, execute: Execute, row: Row, inputs: Iterable[Input], outputs: Iterable[Output]) -> None:
        """Record a transaction, inside the SQLite transaction that commits it."""
        ended_ms = self._core.heads.wall_ms()
        values = (*row.key, row.name, ended_ms, json.dumps(list(inputs)), json.dumps(list(outputs)))
        query = f"INSERT INTO lineage ({_COLUMNS}, crc) VALUES (?, ?, ?, ?, ?, ?, ?)"
        last = execute(query, (*values, crc(*values))).lastrowid
        assert last is not None
        execute("DELETE FROM lineage WHERE id <= ?", (last - KEPT,))

    def find(self, record: Record) -> Lineage | None:
        """Return the transaction that wrote a record. None if there was none, or if its row is missing or expired."""
        opened = self._core.topic(record.topic)
        producer_id = _producer_of(opened.partition(record.partition), record.offset)
        if producer_id is None:
            return None
        with self._core.catalog.database.reading() as execute:
            query = f"SELECT {_COLUMNS}, crc FROM lineage WHERE producer_id = ? ORDER BY id DESC"
            rows = execute(query, (producer_id,)).fetchall()
        names = {topic.id: topic.name for topic in self._core.catalog.topics()}
        for *values, checksum in rows:
            if checksum != crc(*values):
                raise NotAStore(f"klamm.db: the lineage of producer id {producer_id} is damaged", hint=REBUILD_BY_HAND)
            number, epoch, name, ended_ms, inputs, outputs = values
            ranges = [OutputRange(*each) for each in json.loads(outputs)]
            here = opened.topic.id, record.partition
            if any(each[:2] == here and each.start <= record.offset < each.end for each in ranges):
                return Lineage(
                    number,
                    epoch,
                    name,
                    ended_ms,
                    tuple(InputRange(group, names.get(topic), *rest) for group, topic, *rest in json.loads(inputs)),
                    tuple(each._replace(topic=names.get(TopicId(each.topic or ""))) for each in ranges),
                )
        return None

    def check(self) -> list[str]:
        """Return what is wrong with the rows."""
        rows = self._core.catalog.database.read(f"SELECT {_COLUMNS}, crc FROM lineage")
        return [
            f"lineage: a row of producer id {row[0]}: the checksum is wrong"
            for row in rows
            if crc(*row[:-1]) != row[-1]
        ]

    def sweep(self) -> int:
        """Delete the rows that are older than the setting, all if it is off. Return how many."""
        database = self._core.catalog.database
        oldest_ms = self._core.heads.wall_ms() - self.retention_ms if self.retention_ms else 1 << 62
        query = "FROM lineage WHERE ended_ms < ?"
        if not database.read(f"SELECT 1 {query} LIMIT 1", (oldest_ms,)):
            return 0
        with database.db_lock(), database.transaction() as execute:
            return int(execute(f"DELETE {query}", (oldest_ms,)).rowcount)


def _producer_of(partition: Partition, offset: int) -> int | None:
    """Return the producer id of the transactional batch that has the offset."""
    with partition.reader(offset, committed=False) as reader:
        for header in walk(reader.read()):
            if header.base_offset <= offset < header.next_offset:
                return header.producer_id if header.is_transactional else None
    return None
