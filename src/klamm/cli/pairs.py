"""Parse name=value, as options take it."""

from __future__ import annotations

from klamm.errors import InvalidSetting

__all__ = ["split_pair"]


def split_pair(pair: str, where: str, hint: str) -> tuple[str, str]:
    """Return name and value. InvalidSetting, whose message begins with `where`, if it is not a pair."""
    name, equals, value = pair.partition("=")
    if not equals or not name:
        raise InvalidSetting(f"{where}: invalid", hint=hint)
    return name, value
