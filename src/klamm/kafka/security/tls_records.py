"""TLS records out of ciphertext, a few at a time. No socket, and nothing is decrypted.

    type (1)  version (2)  size (2)  that many bytes

OpenSSL takes all that it is given in one call, and a client chooses how much work that is: to change the keys of a
connection takes 15 microseconds or more, and a record of 27 bytes. So it gets AT_ONCE records, and then others have
their turn.
"""

from __future__ import annotations

__all__ = ["AT_ONCE", "TlsRecords"]

AT_ONCE = 32
_HEADER = 5


class TlsRecords:
    """Ciphertext of one connection that was received, and that OpenSSL does not have."""

    __slots__ = ("_missing", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._missing = 0  # bytes of a record whose beginning was taken

    @property
    def has_more(self) -> bool:
        """Whether `take` has something: a header, or the rest of a record."""
        return len(self._rest) >= (_HEADER if not self._missing else 1)

    def keep(self, data: memoryview) -> None:
        """Keep what was received, for later."""
        self._rest += data

    def take(self, data: bytes | memoryview = b"", most: int = AT_ONCE) -> bytes | memoryview:
        """Return the next bytes, with `data` behind those that are kept: up to the end of so many records, of which the
        last may be there in part. What is behind them is kept.
        """
        if self._rest:
            data = self._rest + data
        end = self._missing
        for _ in range(most):
            if len(data) < end + _HEADER:
                break
            end += _HEADER + (data[end + 3] << 8 | data[end + 4])
        self._missing = max(0, end - len(data))
        self._rest = bytes(data[end:])
        return data[:end]
