"""Check and normalise the options that users pass: acks, counts, durations, choices."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from klamm.choices import Acks, options_of
from klamm.errors import InvalidSetting
from klamm.store.names import nearest
from klamm.times import FOREVER_S, Duration, to_seconds

__all__ = ["ALL", "acks_of", "busy_ms", "check_count", "check_options", "choice", "is_async"]

ALL = -1
# What people type for options whose names are not alike.
_WORDS = {
    "auto_offset_reset": "reset",
    "batch_bytes": "batch_size",
    "compression": "compression_type codec",
    "end": "until to",
    "form": "format",
    "key_serde": "key_serializer key_deserializer",
    "serde": "serializer deserializer value_serializer value_deserializer",
    "start": "since from_ offset last begin from_beginning",
    "timeout": "timeout_ms wait seconds",
    "topics": "topic",
    "wait": "timeout timeout_ms consumer_timeout_ms",
    "workers": "concurrency threads max_workers",
    "max_records": "num_messages limit count n",
}
_MEANT: dict[str, list[str]] = {}
for _option, _words in _WORDS.items():
    for _word in _words.split():
        _MEANT.setdefault(_word, []).append(_option)
_NUMBERS = [acks for acks in options_of(Acks) if acks != "all"]


def acks_of(acks: object) -> int:
    """Return 0, 1 or ALL for `acks`."""
    if acks == "all":
        return ALL
    if isinstance(acks, int) and not isinstance(acks, bool) and acks in _NUMBERS:
        return int(acks)
    raise InvalidSetting(f"acks: {acks!r} is invalid", hint='expected 0, 1 or "all"')


def choice(name: str, value: object, known: Mapping[str, Any]) -> Any:
    if not isinstance(value, str) or value not in known:
        raise InvalidSetting(f"{name}: {value!r} is invalid", hint=f"expected {' or '.join(map(repr, known))}")
    return known[value]


def check_options(call: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raise TypeError, as Python does for its own functions, if `call` has no such option; name the nearest."""
    for name in given:
        if name not in known:
            meant = next((option for option in _MEANT.get(name, ()) if option in known), None)
            hint = f"did you mean {meant!r}?" if meant is not None else nearest(name, known)
            hint = hint or f"there are {', '.join(sorted(known))}"
            raise TypeError(f"{call} has no option {name!r} ({hint})")


def check_count(max_records: Any) -> None:
    if not isinstance(max_records, int) or isinstance(max_records, bool):
        raise TypeError(f"max_records is an int, not {type(max_records).__name__} (for a timeout say timeout=1.0)")
    if max_records < 1:
        raise InvalidSetting(f"{max_records} is invalid", setting="max_records", hint="expected at least 1")


def is_async(function: Any) -> bool:
    """Return whether a call of it returns a coroutine or an async generator, as far as can be known without a call."""
    from inspect import isasyncgenfunction, iscoroutinefunction

    calls = (function, getattr(function, "__call__", None))  # noqa: B004
    return any(iscoroutinefunction(call) or isasyncgenfunction(call) for call in calls)


def busy_ms(busy_timeout: Duration | None) -> int | None:
    """Return the milliseconds of a busy_timeout: 0 or more, -1 for no limit, None for the default."""
    if busy_timeout is None:
        return None
    seconds = to_seconds("busy_timeout", busy_timeout)
    return -1 if seconds == FOREVER_S else round(seconds * 1000)
