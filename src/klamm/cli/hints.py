"""What to do now, for those who type commands, where an error's own hint is for those who write Python."""

from __future__ import annotations

from klamm.errors import CorruptBatch, KlammError

__all__ = ["hint_of"]

_HINTS = {
    "create_topic makes one": "klamm topic list shows those that are there",
    "a group begins with the first member that joins": "klamm group list shows those that are there",
    "name the topics, to give a new one offsets": "name its topics (klamm group reset -t), to give a new one offsets",
    "exist_ok=True leaves it as it is": "klamm topic show tells what it is, klamm topic set changes it",
    "open it with read_only=True, or change its rights": "commands that only look will do; else change its rights",
    "name a topic: to=": "name a topic: --to TOPIC",
    "store.topics() lists the topics": "klamm topic list shows those that are there",
}


def hint_of(error: KlammError) -> str | None:
    if isinstance(error, CorruptBatch):
        return "klamm check tells all of it; klamm check --repair puts it right"
    return _HINTS.get(error.hint or "", error.hint)
