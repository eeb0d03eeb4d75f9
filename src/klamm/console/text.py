"""Numbers, sizes, times and bytes, as the pages show them."""

from __future__ import annotations

import shlex

from klamm.times import format_time

__all__ = ["command", "count", "duration", "is_moment", "moment", "rate", "size", "utf8"]

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def count(number: int | None, what: str = "") -> str:
    """Format a count: 1 record, 2 records; without `what`, the number alone."""
    if number is None:
        return "–"
    return f"{number:,}" + (f" {what}{'' if number == 1 else 's'}" if what else "")


def size(number: float | None) -> str:
    """Format a number of bytes."""
    if number is None:
        return "–"
    for unit in _UNITS:
        if number < 1024 or unit == _UNITS[-1]:
            break
        number /= 1024
    return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"


def rate(per_s: float | None) -> str:
    """Format records per second; None: not measured yet."""
    if per_s is None:
        return "–"
    if per_s and per_s < 10:
        return f"{per_s:.1f}/s" if per_s >= 0.05 else "<0.1/s"
    return f"{per_s:,.0f}/s"


def duration(milliseconds: float | None) -> str:
    """Format a duration: 850 ms, 4.2 s, 3 min 20 s, 2 h 5 min, 3 d 4 h."""
    if milliseconds is None:
        return "–"
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms" if milliseconds else "0 s"
    seconds = milliseconds / 1000
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    for length, unit, part_length, part_unit in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= length:
            whole, rest = divmod(int(seconds), length)
            part = rest // part_length
            return f"{whole:,} {unit} {part} {part_unit}" if part else f"{whole:,} {unit}"
    raise AssertionError(milliseconds)


def is_moment(time_ms: int) -> bool:
    """Return whether there is such a time; a record's timestamp may be any number."""
    return moment(time_ms) != str(time_ms)


def moment(time_ms: int | None) -> str:
    """Format a time, in UTC."""
    if time_ms is None:
        return "–"
    try:
        return format_time(time_ms)
    except (OverflowError, ValueError, OSError):
        return str(time_ms)


def utf8(data: bytes | None) -> str:
    """Decode bytes as text; those that are not UTF-8 as \\xNN."""
    return "" if data is None else data.decode("utf-8", "backslashreplace")


def command(*words: object) -> str:
    """Return a command line that a shell takes apart into these words; None is left out."""
    return shlex.join(str(word) for word in words if word is not None)
