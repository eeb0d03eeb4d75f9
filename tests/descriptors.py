"""Files that this process has open, so that tests see what a call left behind.

Counted by name, without the descriptor that lists them. A count that only shrinks says nothing about the call: what an
earlier test dropped may be closed at any moment, and its number used again. Pipes and sockets do not count: a Kafka
client of an earlier test has threads that open them at any moment.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress

__all__ = ["Descriptors", "descriptors", "opened_since"]

Descriptors = Counter[str]


def descriptors() -> Descriptors:
    found: Descriptors = Counter()
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the one that listed, or closed meanwhile
            name = os.readlink(f"/proc/self/fd/{number}")
            found[name] += name.startswith("/")
    return found


def opened_since(before: Descriptors) -> list[str]:
    """Names of what is open now and was not then, each as often as there are more of it."""
    return sorted((descriptors() - before).elements())
