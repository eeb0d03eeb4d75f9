"""A transaction for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Self, overload

from klamm.aio.consumer import Consumer
from klamm.aio.threads import Calls, Threads, await_end
from klamm.other_names import explains_names
from klamm.types import Batch
from klamm.typevars import K, V

if TYPE_CHECKING:
    from types import TracebackType

    from klamm.batch import Delivery
    from klamm.client.transaction import Transaction as SyncTransaction
    from klamm.types import BytesLike, GivenHeaders

__all__ = ["Transaction", "begin"]


async def begin(threads: Threads, call: Callable[[], SyncTransaction[K, V]]) -> Transaction[K, V]:
    """Begin a transaction in a thread. If cancelled, it is aborted, and its consumers may begin another."""
    begun = threads.submit(call)
    try:
        return Transaction(await await_end(begun), threads)
    except asyncio.CancelledError:
        if begun.exception() is None:
            await await_end(threads.submit(begun.result().abort))
        raise


@explains_names
class Transaction(Generic[K, V]):
    """Records and progress of groups, all or nothing; made by `store.transaction()` of klamm.aio. For one task.

    Leaving its `async with` block commits, or aborts if an exception does so, cancellation included. A task that is
    cancelled during that waits for the end, and `state` has the outcome.
    """

    def __init__(self, transaction: SyncTransaction[K, V], threads: Threads) -> None:
        self._sync = transaction
        self._calls = Calls(threads)
        transaction._defers = True

    def __repr__(self) -> str:
        return f"<aio {self._sync!r}>"

    @property
    def name(self) -> str | None:
        """Its transactional id."""
        return self._sync.name

    @property
    def state(self) -> str:
        """ "open", "committed", "aborted" or "skipped"."""
        return self._sync.state

    @overload
    async def send(
        self,
        topic: str,
        value: V | None,
        *,
        key: K | BytesLike | None = None,
        partition: int | None = None,
        headers: GivenHeaders | None = None,
        timestamp: int | datetime | None = None,
    ) -> Delivery: ...
    @overload
    async def send(
        self: Transaction[Any, bytes],
        topic: str,
        value: BytesLike | None,
        *,
        key: K | BytesLike | None = None,
        partition: int | None = None,
        headers: GivenHeaders | None = None,
        timestamp: int | datetime | None = None,
    ) -> Delivery: ...
    async def send(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        partition: int | None = None,
        headers: GivenHeaders | None = None,
        timestamp: int | datetime | None = None,
    ) -> Delivery:
        """Take one record into a batch; a full batch is appended in a thread.

        If cancelled, the record may be part of the transaction: abort it, and send the record in another one.
        """
        transaction = self._sync
        await self._calls.ended()
        if topic not in transaction._accumulators:
            await self._calls.run(transaction._find_accumulator, topic)
        delivery = transaction.send(topic, value, key=key, partition=partition, headers=headers, timestamp=timestamp)
        if transaction._is_full:
            await self._calls.run(transaction._append_full)
        return delivery

    def commit_offsets(self, read: Batch[Any] | Consumer[Any]) -> None:
        """Make the offsets of a participating consumer part of the transaction."""
        self._sync.commit_offsets(read._sync if isinstance(read, Consumer) else read)

    async def once(self, writer: str, number: int, *, fingerprint: str = "", target: str = "") -> bool:
        """Commit this transaction at most once; see `klamm.Transaction.once`."""
        return await self._calls.run(self._sync.once, writer, number, fingerprint=fingerprint, target=target)

    async def commit(self) -> None:
        """Commit: all of it becomes visible, and is on disk when this returns."""
        await self._calls.run(self._sync.commit)

    async def abort(self) -> None:
        """Abort: nothing of it becomes visible, and its consumers go back to their groups' offsets."""
        await self._calls.end(self._sync.abort)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._calls.end(self._sync.__exit__, kind, error, trace)
