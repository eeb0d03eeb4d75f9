"""Records that clients write and read: ordinary ones, and those at the edges of the format."""

from __future__ import annotations

import time
from typing import NamedTuple

__all__ = ["CODECS", "NOW", "ODD", "Written", "plain"]

NOW = time.time_ns() // 1_000_000

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


class Written(NamedTuple):
    """A record as any client gives it, and gets it back."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int = 1_700_000_000_000


ODD = [
    Written(b"key", b"value"),
    Written(None, b"no key"),
    Written(b"no value", None),
    Written(None, None),
    Written(b"", b""),
    Written(b"headers", b"one", (("name", b"value"),)),
    Written(b"headers", b"null", (("name", None),)),
    Written(b"headers", b"empty", (("name", b""),)),
    Written(b"headers", b"no name", (("", b"value"),)),
    Written(b"headers", b"twice", (("name", b"first"), ("other", b"\0\xff"), ("name", b"second"), ("name", b"first"))),
    Written(b"headers", b"text", (("grüße", "größer".encode()),)),
    Written(b"headers", None, tuple((f"h{n}", b"%d" % n) for n in range(50))),
    Written(b"early", b"1970", (), 1),
    Written(b"back", b"in time", (), 1_600_000_000_000),
    Written(b"binary" * 50, bytes(range(256)) * 20),
]


def plain(count: int, word: str = "value") -> list[Written]:
    """Ordinary ones, which compress well."""
    return [Written(b"key-%d" % (n % 10), f"{word}-{n:06}".encode() * 5, timestamp=NOW) for n in range(count)]
