"""Deleting a topic, in an order that a kill at any point leaves finishable.

  1  its rows go from the catalog, and a tombstone comes: from now on nobody opens it
  2  DELETED in each of its heads, under the append lock: whoever has it open is refused from now on
  3  the catalog's version moves: whoever waits looks again
  4  topics/<name>-<id> is renamed to topics/<id>.deleted, and that is removed; tables/<name>-<id> is removed, too
  5  the tombstone goes, and the slots are free for other partitions (free_slots.py)

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
from klamm.errors import KlammError
from klamm.log import head
from klamm.types import TopicId

if TYPE_CHECKING:
    from klamm.store.directory import Core

__all__ = ["DELETED", "delete_topic", "sweep"]

_log = logging.getLogger("klamm")

DELETED = ".deleted"


def delete_topic(core: Core, name: str, topic_id: TopicId | None = None) -> None:
    """Away with the topic and everything in it; with `topic_id`, only if it is that one."""
    opened = core.topic(name)
    logs = []
    for number in range(opened.count):
        try:
            logs.append(opened.partition(number))
        except KlammError:  # it cannot be opened, so nobody appends to it either
            continue
    topic = core.catalog.delete_topic(name, topic_id)
    for log in logs:
        log.mark_deleted()
    core.changed()
    core.forget(name)
    _remove(core, topic.directory, topic.id)
    _remove_table(core, topic.directory)
    if _are_marked(core, topic.id):
        core.catalog.forget_deleted(topic.id)


def _are_marked(core: Core, topic_id: TopicId) -> bool:
    """Whether DELETED stands in each head of a deleted topic: mark those that are not, unless a process appends there.

    The lock may be held by a process that is stopped. Then the tombstone stays, and the next sweep tries again.
    """
    lock, heads = core.lock, core.heads
    assert lock is not None
    for number, slot in core.catalog.slots_of(topic_id).items():
        if heads.identity_of(slot) == (topic_id, number) and not heads.flags_of(slot) & head.DELETED:
            log = head.Log(heads, slot, "", lock, 0, life=core.life)
            if log.is_locked_elsewhere:
                return False
            with log.append_lock():
                log.set_flags(head.DELETED)
    return True


def sweep(core: Core, *, thorough: bool) -> None:
    """Remove what killed processes left of topics they deleted. `thorough`: compare with the catalog, too."""
    if core.read_only:
        return
    tables = os.listdir(f"{core.path}/tables") if thorough and os.path.isdir(f"{core.path}/tables") else []
    names = os.listdir(f"{core.path}/topics")  # before the catalog is read: a topic made meanwhile is in it
    for name in names:
        if name.endswith(DELETED):
            _remove_tree(core, name)
    if thorough:
        known = {topic.directory for topic in core.catalog.topics()}
        deleted = core.catalog.deleted()
        if any(name in deleted for name in names):
            core.changed()
        for name, topic_id in deleted.items():
            if name not in known:
                _remove(core, name, topic_id)
                _remove_table(core, name)
            if _are_marked(core, topic_id):
                core.catalog.forget_deleted(topic_id)
        unknown = {name for name in names if not name.endswith(DELETED)} - known - set(deleted)
        unknown -= {topic.directory for topic in core.catalog.topics()}  # made since
        for name in sorted(unknown - core.unknown_directories):
            path = f"{core.path}/topics/{name}"
            _log.warning("%s: klamm.db knows no such topic; `klamm check --repair` puts it back", path)
        core.unknown_directories |= unknown
        for name in tables:
            if name not in known and name not in unknown:
                _remove_table(core, name)


def _remove(core: Core, directory: str, topic_id: TopicId) -> None:
    topics = f"{core.path}/topics"
    try:
        left = files.rename_directory(f"{topics}/{directory}", f"{topics}/{topic_id}{DELETED}")
    except FileNotFoundError:
        return  # nothing was ever appended to it, or somebody else sweeps
    files.sync_directory(topics)
    _remove_tree(core, os.path.basename(left))


def _remove_tree(core: Core, name: str) -> None:
    shutil.rmtree(f"{core.path}/topics/{name}", ignore_errors=True)  # what is left, the next sweep takes
    files.sync_directory(f"{core.path}/topics")


def _remove_table(core: Core, directory: str) -> None:
    """A process that still maintains it removes what is left when it learns that the topic is gone."""
    shutil.rmtree(f"{core.path}/tables/{directory}", ignore_errors=True)
