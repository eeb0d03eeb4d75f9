"""Hints of errors in words of the command line, for `klamm` and the console: by the code of an error, where its own
hint speaks of Python.
"""

from __future__ import annotations

from klamm.errors import CorruptBatch, KlammError

__all__ = ["HINTS", "hint_of"]

HINTS = {
    "new_group": "name its topics (klamm group reset -t), to give a new one offsets",
    "no_offset": "--auto-offset-reset earliest or latest starts there; klamm group reset sets an offset",
    "no_origin": "name a topic: --to TOPIC",
    "not_compacted": "klamm topic set TOPIC cleanup.policy=compact makes it so",
    "not_writable": "commands that only look will do; else change its rights",
    "nothing_here": "klamm topic create makes a store, and so does klamm serve",
    "offset_gone": "--auto-offset-reset earliest or latest goes on there; klamm group reset sets another offset",
    "open_transaction": "it ends with its timeout at the latest; klamm tx list shows it, klamm tx abort ends it",
    "partition_count": "the option --partitions says how many there are",
    "setting_names": "name settings one by one: retention.ms=7d",
    "topic_exists": "klamm topic show tells what it is, klamm topic set changes it",
    "unknown_group": "klamm group list shows those that are there",
    "unknown_topic": "klamm topic list shows those that are there",
}


def hint_of(error: KlammError) -> str | None:
    """Return what to do about an error, in words of the command line."""
    if isinstance(error, CorruptBatch):
        return "klamm check tells all of it; klamm check --repair puts it right"
    return HINTS.get(error.code or "", error.hint)
