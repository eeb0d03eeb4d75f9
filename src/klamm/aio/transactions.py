"""The open transactions of a store, as a collection for asyncio: `store.transactions`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from klamm.aio.store import Store
    from klamm.types import TransactionInfo

__all__ = ["Transactions"]


class Transactions:
    """The transactions that are not over: `store.transactions`. `async for` gives TransactionInfos."""

    def __init__(self, store: Store[Any, Any]) -> None:
        self._sync = store.sync.transactions
        self._reads, self._writes = store._reads, store._writes

    def __repr__(self) -> str:
        return f"<aio {self._sync!r}>"

    async def __aiter__(self) -> AsyncIterator[TransactionInfo]:
        for info in await self._reads.run(list, self._sync):
            yield info

    async def abort(self, producer_id: int) -> bool:
        """Abort the open transaction of a producer id, in any process. Return False if it has none."""
        return await self._writes.run(self._sync.abort, producer_id)
