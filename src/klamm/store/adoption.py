"""Adoption: put back a topic that klamm.db does not know, from its directory and its logs.

The directory's name has the topic's name and id. `heads` has the slots of its partitions, also of partitions without
a record. Its settings are lost with the rows, so none of its records expire until retention.ms is set again. Names
and slots may be anything: a partition number that no topic can have is left out.
"""

from __future__ import annotations

import os
import re

from klamm.disk import files
from klamm.errors import KlammError
from klamm.log import cleaner_checkpoint, head
from klamm.store import slots
from klamm.store.catalog import MAX_PARTITIONS
from klamm.store.directory import Core
from klamm.store.settings import Settings
from klamm.types import TopicId

__all__ = ["adopt"]

_DIRECTORY = re.compile(r"(?P<name>.+)-(?P<id>[0-9a-f]{32})")


def adopt(core: Core, directory: str) -> str | None:
    """Put back the topic of `topics/<directory>`. Return a description; None if it is not a topic's directory."""
    match = _DIRECTORY.fullmatch(directory)
    path = f"{core.files}/topics/{directory}"
    if match is None or not os.path.isdir(path):
        return None
    name, topic_id = match["name"], TopicId(match["id"])
    in_heads = _slots(core, topic_id)
    named = (files.number_in_name(inner) for inner in os.listdir(path))
    numbers = {number for number in named if number is not None and number < MAX_PARTITIONS}
    count = max([*in_heads, *numbers, 0]) + 1
    known = [in_heads.get(number) for number in range(count)]
    if any(slot is not None and core.heads.flags_of(slot) & head.DELETED for slot in known):
        return None  # it was deleted, and klamm.db was lost before its directory was removed
    settings: dict[str, int | str] = {"retention.ms": -1}
    if any(
        cleaner_checkpoint.exists(f"{path}/{number}") or cleaner_checkpoint.is_missing(f"{path}/{number}")
        for number in numbers
    ):
        settings["cleanup.policy"] = "compact"
    try:
        topic = core.catalog.adopt_topic(name, topic_id, known, Settings.of(settings, where=name))
    except KlammError:
        return None  # another topic has the name by now, or the name is invalid
    for number, slot in enumerate(topic.partitions):
        if known[number] is None:
            slots.lay_out_old(core.heads, topic_id, number, range(slot, slot + 1))
        else:
            core.heads.mark(slot, head.NEEDS_RECOVERY)
    core.changed()  # again: a process that learned of the topic earlier may have found slots that were not laid out
    return f"put back as topic {name} with {count} partitions; its settings are lost: {settings}"


def _slots(core: Core, topic_id: TopicId) -> dict[int, int]:
    """Return the slots that `heads` has for a topic, by partition, unless another topic has them."""
    taken = {slot for topic in core.catalog.topics() for slot in topic.partitions}
    found: dict[int, int] = {}
    for slot in range(1, core.heads.size()):
        identity = core.heads.identity_of(slot)
        if identity is None or identity[0] != topic_id or slot in taken:
            continue
        if 0 <= identity[1] < MAX_PARTITIONS:
            found[identity[1]] = slot
    return found
