"""Names of topics: Kafka's rules, so that every name here is a name there.

1 to 249 characters of A-Z a-z 0-9 . _ -        but neither "." nor ".."
a.b and a_b exclude each other                  Kafka's metrics spell both a_b
__klamm at the start                            reserved: topics that Klamm creates for itself
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

from klamm.errors import InvalidTopic
from klamm.types import TopicId

__all__ = ["MAX_LENGTH", "RESERVED", "check_type", "collision_key", "directory_name", "nearest", "validate"]

MAX_LENGTH = 249
RESERVED = "__klamm"
_LEGAL = re.compile(r"[A-Za-z0-9._-]+")
_DIRECTORY_NAME_SIZE = 255  # the longest name ext4, xfs, btrfs and APFS take


def check_type(name: str) -> str:
    """Return `name`, or raise TypeError if it is not a str."""
    if not isinstance(name, str):
        raise TypeError(f"a topic's name is a str, not {type(name).__name__}")
    return name


def validate(name: str, *, internal: bool = False) -> str:
    """Return `name`, or raise InvalidTopic saying which rule it breaks. Only Klamm itself passes `internal`."""
    if not check_type(name):
        raise InvalidTopic("Topic name is invalid: the empty string is not allowed")
    if len(name) > MAX_LENGTH:
        raise InvalidTopic(
            f"Topic name is invalid: the length of '{name[:20]}…' is longer than the max allowed length {MAX_LENGTH}"
        )
    if name in (".", ".."):
        raise InvalidTopic(f"Topic name is invalid: {name!r} is not allowed")
    if not _LEGAL.fullmatch(name):
        raise InvalidTopic(
            f"Topic name is invalid: {name!r} contains one or more characters other than ASCII alphanumerics,"
            " '.', '_' and '-'"
        )
    if name.startswith(RESERVED) and not internal:
        raise InvalidTopic(f"{name!r}: names that start with {RESERVED!r} are reserved for Klamm's own topics")
    return name


def collision_key(name: str) -> str:
    """Return the key of a name. Two topics may not have names with the same key."""
    return name.replace(".", "_")


def directory_name(name: str, topic_id: TopicId) -> str:
    """Return the topic's directory below `topics/`. The id makes it unique; a long name is cut to what fits."""
    return f"{name[: _DIRECTORY_NAME_SIZE - 1 - len(topic_id)]}-{topic_id}"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return a hint for a mistyped `name`: the most similar known name."""
    close = get_close_matches(name, list(known), n=1)
    return f"did you mean {close[0]!r}?" if close else None
