"""What transactions of programs and transactions over the wire share: states, partitions of a row, names, markers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from klamm.errors import NotAStore
from klamm.log import head
from klamm.store.database import REBUILD
from klamm.store.rows import crc

if TYPE_CHECKING:
    from klamm.log.partition import Partition
    from klamm.store.database import Execute
    from klamm.store.directory import Core

__all__ = [
    "ABORT",
    "COMMIT",
    "MAX_EPOCH",
    "ONGOING",
    "Place",
    "can_append",
    "holder",
    "is_deleted",
    "parse_places",
    "put_name",
    "spell_places",
    "sync_if_possible",
]

MAX_EPOCH = 32_000  # an int16 on disk; then the next producer id
ONGOING, COMMIT, ABORT = "ongoing", "prepared_commit", "prepared_abort"

Place = tuple[str, int]
"""A partition by its topic's id: names come again."""

_STOPPED_S = 0.05  # so long may an append lock be held, and the log stand still, before its holder counts as stopped
_STUCK_S = 1.0  # and a flush byte, without anything reaching the disk


def spell_places(places: Iterable[Place]) -> str:
    """JSON: {topic id: [numbers]}."""
    numbers: dict[str, list[int]] = {}
    for topic_id, number in sorted(places):
        numbers.setdefault(topic_id, []).append(number)
    return json.dumps(numbers)


def parse_places(text: str) -> frozenset[Place]:
    return frozenset((topic_id, number) for topic_id, numbers in json.loads(text).items() for number in numbers)


def holder(execute: Execute, name: str) -> int | None:
    """The producer id that writes under a name."""
    row = execute("SELECT producer_id, crc FROM transaction_names WHERE name = ?", (name,)).fetchone()
    if row is None:
        return None
    if row[1] != crc(name, row[0]):
        raise NotAStore(f"klamm.db: the transactional id {name!r} is damaged", hint=REBUILD)
    return int(row[0])


def put_name(execute: Execute, name: str, producer_id: int) -> None:
    """From now on the name is this one's."""
    values = (name, producer_id)
    execute("INSERT OR REPLACE INTO transaction_names VALUES (?, ?, ?)", (*values, crc(*values)))


def is_deleted(partition: Partition) -> bool:
    return bool(partition.log.flags & head.DELETED)


def can_append(partition: Partition) -> bool:
    """Return False if another process holds the append lock and does nothing: it is stopped."""
    seq, until = partition.log.seq, time.monotonic() + _STOPPED_S
    while partition.log.is_locked_elsewhere:
        if partition.log.seq != seq:
            return True
        if time.monotonic() > until:
            return False
        time.sleep(0.001)
    return True


def sync_if_possible(core: Core, partition: Partition, upto: int) -> bool:
    """False if somebody else began to sync, and does not come to an end."""
    lock, log = core.lock, partition.log
    assert lock is not None
    until = time.monotonic() + _STUCK_S
    while log.flushed_offset < upto and lock.held(log.flush_byte):
        if time.monotonic() > until:
            return False
        time.sleep(0.001)
    partition.sync(upto)
    return True
