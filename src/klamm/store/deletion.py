"""Delete a topic, in steps that can be finished after a kill at any point.

  1  its rows are deleted from the catalog, and a tombstone is added: from now on no process opens it. The catalog's
     version moves, so processes that wait read the catalog again
  2  DELETED in each of its heads, under the append lock: a process that has it open is refused from now on
  3  topics/<name>-<id> is renamed to topics/<id>.deleted, and that is removed; tables/<name>-<id> is removed, too
  4  the tombstone is deleted, and the slots are free for other partitions (free_slots.py)

When step 1 is done, the topic is deleted: a later failure, as on a full disk, is left to `sweep`, and is not an error.
`sweep` finishes what a killed process has begun: it marks heads, and removes `….deleted` and directories that have a
tombstone. A directory that the catalog does not know is left alone and logged: klamm.db may have
been lost or put back from a backup. `check(repair=True)` makes a topic of it again.
"""

from __future__ import annotations

import logging
import os
import shutil
from typing import TYPE_CHECKING

from klamm.disk import files
from klamm.errors import DiskFull
from klamm.log import head
from klamm.types import TopicId

if TYPE_CHECKING:
    from klamm.store.directory import Core

__all__ = ["DELETED", "delete_topic", "sweep"]

_log = logging.getLogger("klamm")

DELETED = ".deleted"


def delete_topic(core: Core, name: str, topic_id: TopicId | None = None) -> None:
    """Delete the topic and everything in it; with `topic_id`, only if it is that one."""
    opened = core.topic(name)
    topic = core.catalog.delete_topic(name, topic_id)
    for number, slot in enumerate(topic.partitions):
        partition = opened.opened_one(number) if opened.topic.id == topic.id else None
        if partition is not None:
            partition.mark_deleted()
        elif (log := _find_log(core, topic.directory, topic.id, number, slot)) is not None:
            _mark(log)
    core.heads.ring_all()  # wake readers that wait for its records
    core.forget(name)
    try:
        _finish(core, topic.directory, topic.id)
    except (OSError, DiskFull) as error:  # as on a full disk, which may be why it was deleted
        _log.warning("%s: deleted; files that are left are removed by the next sweep: %s", name, error)


def _finish(core: Core, directory: str, topic_id: TopicId) -> None:
    """Carry out steps 3 and 4."""
    _remove(core, directory, topic_id)
    _remove_table(core, directory)
    if _are_marked(core, directory, topic_id):
        core.catalog.forget_deleted(topic_id)


def _are_marked(core: Core, directory: str, topic_id: TopicId) -> bool:
    """Mark each head of a deleted topic with DELETED, unless a process appends there. Return whether all are marked.

    The lock may be held by a process that is stopped. Then the tombstone stays, and the next sweep tries again.
    """
    for number, slot in core.catalog.slots_of(topic_id).items():
        log = _find_log(core, directory, topic_id, number, slot)
        if log is not None:
            if log.is_locked_elsewhere:
                return False
            _mark(log)
    return True


def _find_log(core: Core, topic: str, topic_id: TopicId, number: int, slot: int) -> head.Log | None:
    """Return the log of a partition, without opening its files; None if it is marked already, or the slot is another
    partition's by now.
    """
    heads = core.heads
    if slot >= heads.size() or heads.flags_of(slot) & head.DELETED:
        return None
    directory = f"{core.files}/topics/{topic}/{number}"
    try:
        return head.Log(heads, slot, directory, core.lock, 0, life=core.life, identity=(topic_id, number))
    except head.HeadResult:  # the slot is used again: another process was faster
        return None


def _mark(log: head.Log) -> None:
    """Put DELETED into the head of a log, under its append lock, so that no append is on its way."""
    try:
        with log.append_lock():
            log.set_flags(head.DELETED)
    except head.HeadResult as error:
        if error.result is not head.Result.DELETED:  # another process was faster
            raise


def sweep(core: Core, *, with_all_topics: bool) -> None:
    """Remove what killed processes left of topics they deleted. `with_all_topics`: compare with the catalog, too."""
    if core.read_only:
        return
    tables = os.listdir(f"{core.files}/tables") if with_all_topics and os.path.isdir(f"{core.files}/tables") else []
    names = os.listdir(f"{core.files}/topics")  # before the catalog is read: a topic made meanwhile is in it
    for name in names:
        if name.endswith(DELETED):
            _remove_tree(core, name)
    if with_all_topics:
        known = {topic.directory for topic in core.catalog.topics()}
        deleted = core.catalog.deleted()
        if any(name in deleted for name in names):
            core.changed()
        for name, topic_id in deleted.items():
            if name not in known:
                _remove(core, name, topic_id)
                _remove_table(core, name)
            if _are_marked(core, name, topic_id):
                core.catalog.forget_deleted(topic_id)
        unknown = {name for name in names if not name.endswith(DELETED)} - known - set(deleted)
        unknown -= {topic.directory for topic in core.catalog.topics()}  # made since
        for name in sorted(unknown - core.unknown_directories):
            path = f"{core.path}/topics/{name}"
            _log.warning("%s: topic missing in klamm.db; run `klamm check --repair` to restore it", path)
        core.unknown_directories |= unknown
        for name in tables:
            if name not in known and name not in unknown:
                _remove_table(core, name)


def _remove(core: Core, directory: str, topic_id: TopicId) -> None:
    topics = f"{core.files}/topics"
    try:
        left = files.rename_directory(f"{topics}/{directory}", f"{topics}/{topic_id}{DELETED}")
    except FileNotFoundError:
        return  # nothing was ever appended to it, or another process sweeps
    files.sync_directory(topics)
    _remove_tree(core, os.path.basename(left))


def _remove_tree(core: Core, name: str) -> None:
    shutil.rmtree(f"{core.files}/topics/{name}", ignore_errors=True)  # the next sweep removes what is left
    files.sync_directory(f"{core.files}/topics")


def _remove_table(core: Core, directory: str) -> None:
    """Remove the topic's table. A process that maintains it removes the rest when it learns of the deletion."""
    shutil.rmtree(f"{core.files}/tables/{directory}", ignore_errors=True)
