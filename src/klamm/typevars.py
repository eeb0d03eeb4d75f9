"""The type variables of generic classes: what a store, its records and its clients are of.

    Record[K, V]   Topic[K, V]   Store[K, V]   Producer[K, V]   Transaction[K, V]   Table[K, V]
    Batch[T]       Consumer[T]

A name without parameters is of bytes, as a store without a serde is: `Store` is `Store[bytes, bytes]`, `Batch` is
`Batch[Record[bytes, bytes]]`. Only checkers know these defaults, since `typing` of Python 3.11 has none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["BytesKey", "BytesValue", "K", "NamedKey", "T", "TextKey", "V"]

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from klamm.batch import Record

    K = TypeVar("K", default=bytes)
    V = TypeVar("V", default=bytes)
    T = TypeVar("T", default=Record[bytes, bytes])

    # Of a call that has a serde of its own: what keys and values are, unless its pairs of callables say otherwise.
    TextKey = TypeVar("TextKey", default=str)
    BytesKey = TypeVar("BytesKey", default=bytes)
    BytesValue = TypeVar("BytesValue", default=bytes)
    NamedKey = TypeVar("NamedKey", bytes, str)  # a store with these keys may have them by its serde alone
else:
    from typing import TypeVar

    K, V, T = TypeVar("K"), TypeVar("V"), TypeVar("T")
    TextKey = BytesKey = BytesValue = NamedKey = Any
