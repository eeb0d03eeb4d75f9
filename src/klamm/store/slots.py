"""Slots of partitions in `heads`: laid out for new partitions and for existing logs, freed, and reused."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from klamm.errors import UnknownTopic
from klamm.log import head
from klamm.store import free_slots
from klamm.types import TopicId

if TYPE_CHECKING:
    from klamm.disk.locks import LockFile
    from klamm.store.catalog import Catalog, SlotRequest, Topic

__all__ = [
    "deleted",
    "is_deleted",
    "is_listed",
    "lay_out",
    "lay_out_missing",
    "lay_out_old",
    "lay_out_replaced",
    "tidy",
]

_OLD = head.NEEDS_RECOVERY | head.NEW_HEAD
_WORTH_CUTTING = 64  # slots: with fewer free ones at its end, `heads` stays as it is


def lay_out(
    heads: head.Heads, lock: LockFile, life: head.Life, wanted: SlotRequest, topic_id: TopicId, number: int
) -> tuple[int, ...]:
    """Lay out slots for new partitions of a topic, from `number` on: free ones first."""
    used = _use_again(heads, lock, life, wanted, topic_id, number)
    fresh = range(wanted.fresh, wanted.fresh + wanted.how_many - len(used))
    if fresh:
        _fill_up(heads, fresh.start)
        heads.lay_out(fresh.start, fresh.stop, topic_id=bytes.fromhex(topic_id), number=number + len(used))
    return (*used, *fresh)


def _use_again(
    heads: head.Heads, lock: LockFile, life: head.Life, wanted: SlotRequest, topic_id: TopicId, number: int
) -> tuple[int, ...]:
    """Lay out free slots again, at most as many as are requested.

    A process that still has the deleted partition open may be in an append or a sync, even stopped there. So a slot
    with a held lock is skipped.
    """
    used: list[head.Log] = []
    if not wanted.free:
        return ()
    size, identity = heads.size(), bytes.fromhex(topic_id)
    held = _held_slots(lock, wanted.free[0], wanted.free[-1] + 1)
    for slot in wanted.free:
        if len(used) == wanted.how_many:
            break
        if slot >= size or slot in held:
            continue
        log = head.Log(heads, slot, "", lock, 0, life=life)
        if not log.is_locked_elsewhere:
            with lock.hold(head.clean_byte(slot)), log.point_lock(), log.append_lock(), log.flush_lock():
                log.use_again(identity, number + len(used))
            used.append(log)
    if used:
        heads.sync()
        for log in used:
            log.clear_flags(head.DELETED)
        heads.sync()  # a power cut must not bring it back
    return tuple(log.number for log in used)


def _held_slots(lock: LockFile, start: int, end: int) -> set[int]:
    """Return the slots of these that have a held lock."""
    return {
        byte // 4 for first, count in lock.held(4 * start, 4 * (end - start)) for byte in range(first, first + count)
    }


def lay_out_old(heads: head.Heads, topic_id: TopicId, number: int, slots: range) -> None:
    """Lay out slots for existing logs, of partitions from `number` on: they have to be recovered."""
    _fill_up(heads, slots.start)
    heads.lay_out(slots.start, slots.stop, _OLD, topic_id=bytes.fromhex(topic_id), number=number)


def _fill_up(heads: head.Heads, end: int) -> None:
    """Lay out the slots up to `end`, which belong to other topics or to none: no page of `heads` may be sparse."""
    if end > heads.size():
        heads.lay_out(heads.size(), end, _OLD)


def tidy(heads: head.Heads, catalog: Catalog) -> None:
    """Free slots that were lost, and cut `heads` behind the last slot in use, if many behind it are free.

    Nothing else may have the file mapped, in any process, not even for reading: an access to a slot that was cut off is
    a SIGBUS, and a slot that is laid out again starts with generation 0. klamm.db goes first: a process killed after
    that leaves slots that no row names, and the next one cuts them off, or lays them out again.
    """
    database = catalog.database
    with database.reading() as execute:
        unused = free_slots.find_unused(execute, int(catalog.meta(execute, "next_slot")))
    if not unused and not _is_worth_cutting(heads, catalog):
        return
    with head.SoleMapping(heads) as is_sole:
        if is_sole:
            if lost := _without_directory(heads, unused):
                with database.db_lock(), database.transaction() as execute:
                    free_slots.give(execute, lost)
            if _is_worth_cutting(heads, catalog):
                end = catalog.cut_free_slots()
                if end < heads.size():
                    heads.cut(end)


def _is_worth_cutting(heads: head.Heads, catalog: Catalog) -> bool:
    return heads.size() - catalog.end_of_slots() >= _WORTH_CUTTING


def _without_directory(heads: head.Heads, slots: Iterable[int]) -> list[int]:
    """Return the slots whose topic has no directory. By a slot of another, its topic can still be put back
    (adoption.py).
    """
    topics = {name[-32:] for name in os.listdir(f"{os.path.dirname(heads.path)}/topics")}
    identities = ((slot, heads.identity_of(slot)) for slot in slots)
    return [slot for slot, identity in identities if identity is None or identity[0] not in topics]


def lay_out_missing(heads: head.Heads, topics: Iterable[Topic]) -> None:
    """Lay out slots that `heads` lacks because it was lost, cut, copied early or restored from a backup."""
    size = heads.size()
    for topic in topics:
        slots, end = topic.partitions, 0
        while end < len(slots):  # slots side by side are written, and synced, in one go
            first, end = end, end + 1
            while end < len(slots) and slots[end] == slots[end - 1] + 1:
                end += 1
            first = max(first, first + size - slots[first])
            if first < end:
                lay_out_old(heads, topic.id, first, range(slots[first], slots[end - 1] + 1))


def lay_out_replaced(heads: head.Heads, topics: Iterable[Topic]) -> None:
    """Lay out slots that `heads`, restored from a backup, has for another partition. The process must be alone."""
    for topic in topics:
        for number, slot in enumerate(topic.partitions):
            if slot < heads.size() and is_deleted(heads, topic.id, number, slot):
                lay_out_old(heads, topic.id, number, range(slot, slot + 1))


def is_deleted(heads: head.Heads, topic_id: TopicId, number: int, slot: int) -> bool:
    """Return whether the slot shows that a partition was deleted: it is marked DELETED, or another partition's."""
    replaced = heads.identity_of(slot) not in (None, (topic_id, number))
    return replaced or bool(heads.flags_of(slot) & head.DELETED)


def is_listed(catalog: Catalog, topic: Topic) -> bool:
    """Return whether klamm.db has the topic now. It forgets a topic before a head of that is marked as deleted."""
    try:
        return catalog.topic(topic.name).id == topic.id
    except UnknownTopic:
        return False


def deleted(heads: head.Heads, topics: Iterable[Topic]) -> Iterator[Topic]:
    """Yield the topics that were deleted, as their slots show."""
    for topic in topics:
        known = [(number, slot) for number, slot in enumerate(topic.partitions) if slot < heads.size()]
        if known and all(is_deleted(heads, topic.id, number, slot) for number, slot in known):
            yield topic
