"""Deleting a topic, in an order that a kill at any point leaves finishable.

  1  its rows go from the catalog: from now on nobody opens it
  2  DELETED in each of its heads, under the append byte: whoever has it open is refused from now on
  3  the catalog's version moves: whoever waits looks again
  4  topics/<name>-<id> is renamed to topics/<id>.deleted, and that is removed; tables/<name>-<id> is removed, too

`sweep` finishes what a killed process has begun: it removes `….deleted`, and directories of topics that are in no
catalog, for a topic's directory appears only after its rows. (Killed between 1 and 2, the heads stay unmarked; the
sweep moves the version, and whoever still has the topic open finds it gone before the next append.)
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from klamm.disk import files
from klamm.errors import KlammError

if TYPE_CHECKING:
    from klamm.store.directory import Core

__all__ = ["DELETED", "delete_topic", "sweep"]

DELETED = ".deleted"


def delete_topic(core: Core, name: str, topic_id: str | None = None) -> None:
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
        gone = [name for name in names if name not in known and not name.endswith(DELETED)]
        if gone:
            core.changed()
        for name in gone:
            _remove(core, name, name[-32:])
        for name in tables:
            if name not in known:
                _remove_table(core, name)


def _remove(core: Core, directory: str, topic_id: str) -> None:
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
