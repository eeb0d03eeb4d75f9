"""Serdes: serialize objects to bytes, and deserialize them.

    "bytes"     bytes, bytearray or memoryview, as they are; the default
    "str"       text, as UTF-8
    "json"      whatever the json module takes, as UTF-8 without spaces
    (to_bytes, from_bytes)    a pair of callables of your own

Keys have a serde of their own. Without one they are text where values are "str" or "json" (a producer takes bytes,
too), and bytes elsewhere. None is never passed through a serde: a key or value of None is a null.

A store may have both, for every call that has none of its own: `klamm.open(path, serde="json")`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, TypeVar

from klamm.choices import SerdeName, options_of
from klamm.errors import InvalidSetting

__all__ = ["Pair", "Serde", "SerdePair", "Serdes", "Serializer", "key_pair", "value_pair"]

_Object = TypeVar("_Object")

ToBytes: TypeAlias = Callable[[Any], Any]
FromBytes: TypeAlias = Callable[[bytes], Any]
SerdePair: TypeAlias = tuple[Callable[[_Object], Any] | None, Callable[[bytes], _Object] | None]
"""(to bytes, from bytes), of one type."""
Serde: TypeAlias = SerdeName | tuple[ToBytes | None, FromBytes | None]
"""A name, or (to bytes, from bytes)."""


class Pair(NamedTuple):
    """None: bytes as they are."""

    to_bytes: ToBytes | None
    from_bytes: FromBytes | None


def _from_text(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    raise TypeError(f"serde 'str' takes a str, not {type(value).__name__}")


def _from_text_or_bytes(key: Any) -> Any:
    return key.encode() if isinstance(key, str) else key


_to_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def _from_object(value: Any) -> bytes:
    return _to_json(value).encode()


_NAMED: dict[str, Pair] = dict(
    zip(
        options_of(SerdeName),
        (Pair(None, None), Pair(_from_text, bytes.decode), Pair(_from_object, json.loads)),
        strict=True,
    )
)

_TEXT_KEY = Pair(_from_text_or_bytes, bytes.decode)


def value_pair(serde: Serde | None) -> Pair:
    """Return the pair of callables that `serde` means for values."""
    if serde is None:
        return _NAMED["bytes"]
    if isinstance(serde, str):
        pair = _NAMED.get(serde)
        if pair is None:
            names = ", ".join(repr(name) for name in _NAMED)
            raise InvalidSetting(f"there is no serde {serde!r}", hint=f"there are {names}, and pairs of callables")
        return pair
    given: Any = serde
    is_pair = isinstance(given, tuple | list) and len(given) == 2
    if not is_pair or not all(each is None or callable(each) for each in given):
        raise TypeError(f"serde is {serde!r}; expected a name or a pair of callables (to bytes, from bytes)")
    return Pair(*serde)


def key_pair(key_serde: Serde | None, serde: Serde | None) -> Pair:
    """Return the pair of callables that the two mean for keys."""
    if key_serde is not None:
        return value_pair(key_serde)
    return _TEXT_KEY if serde in ("str", "json") else _NAMED["bytes"]


class Serdes(NamedTuple):
    """The serdes of a call, or those that a store has for calls without one. None: no choice was made."""

    serde: Serde | None = None
    key_serde: Serde | None = None

    def check(self) -> Serdes:
        """Return them, if they are serdes."""
        value_pair(self.serde), key_pair(self.key_serde, self.serde)
        return self

    def over(self, defaults: Serdes) -> Serdes:
        """Return them, with those of the store where no choice was made."""
        return Serdes(
            defaults.serde if self.serde is None else self.serde,
            defaults.key_serde if self.key_serde is None else self.key_serde,
        )

    def serializer(self) -> Serializer:
        """Return what makes bytes of keys and values."""
        return Serializer(key_pair(self.key_serde, self.serde).to_bytes, value_pair(self.serde).to_bytes)


class Serializer(NamedTuple):
    """Makes bytes of keys and values. None: they are bytes."""

    of_key: ToBytes | None
    of_value: ToBytes | None

    def pair(self, key: Any, value: Any) -> tuple[Any, Any]:
        """Return the bytes of a key and of a value; None stays None."""
        return (
            key if key is None or self.of_key is None else self.of_key(key),
            value if value is None or self.of_value is None else self.of_value(value),
        )

    def record(self, record: Any) -> Any:
        """Like `pair`, for an element of `append_many`: a tuple that begins with key and value, or a value."""
        if not isinstance(record, tuple):
            return self.pair(None, record)[1]
        return record if len(record) < 2 else (*self.pair(*record[:2]), *record[2:])
