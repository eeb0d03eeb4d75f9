"""The open transactions of a store, as a collection: `store.transactions`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from klamm.api.store import Store
    from klamm.types import TransactionInfo

__all__ = ["Transactions"]


class Transactions:
    """The open transactions of all processes, and decided ones with a marker that is not on disk yet.

    Iterating over it gives TransactionInfos. `store.transaction()` begins one.
    """

    __slots__ = ("_store",)

    def __init__(self, store: Store[Any, Any]) -> None:
        self._store = store

    def __repr__(self) -> str:
        return f"<Transactions of {self._store.path}>"

    def __iter__(self) -> Iterator[TransactionInfo]:
        return iter(self._store._acquired().transactions.infos())

    def __len__(self) -> int:
        return len(self._store._acquired().transactions.infos())

    def abort(self, producer_id: int) -> bool:
        """Abort the open transaction of a producer id, in any process. Return False if it has none."""
        return self._store._acquired().transactions.abort(producer_id)
