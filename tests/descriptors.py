"""What this process has open, so that tests see what a call left behind.

Counted by name, without the descriptor that lists them. A count that only shrinks says nothing about the call: what an
earlier test dropped may be closed at any moment, and its number used again.
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
            found[os.readlink(f"/proc/self/fd/{number}")] += 1
    return found


def opened_since(before: Descriptors) -> list[str]:
    """Names of what is open now and was not then, each as often as there are more of it."""
    return sorted((descriptors() - before).elements())
