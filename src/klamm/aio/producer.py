"""A producer for asyncio.

`send` takes a record in the event loop, as fast as `klamm.Producer`. While the buffer is full, it waits for space in
the producer's thread and then takes the record: a task that is cancelled while it waits has sent nothing.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Self, overload

from klamm.aio.threads import Threads, run_alone
from klamm.other_names import explains_names
from klamm.times import Duration
from klamm.typevars import K, V

if TYPE_CHECKING:
    from types import TracebackType

    from klamm.batch import Delivery
    from klamm.client.produce.producer import Producer as SyncProducer
    from klamm.types import BytesLike, GivenHeaders

__all__ = ["Producer"]


@explains_names
class Producer(Generic[K, V]):
    """Sends records in batches; made by `store.producer()` of klamm.aio. Tasks may share it."""

    def __init__(self, producer: SyncProducer[K, V]) -> None:
        self._sync = producer
        self._threads = Threads(1, "klamm-aio-send")

    def __repr__(self) -> str:
        return f"<aio {self._sync!r}>"

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
        self: Producer[Any, bytes],
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
        """Take one record into a batch. Waits, without blocking the loop, while the buffer is full."""
        producer = self._sync
        while producer._is_full and await self._threads.run(producer._await_space):
            pass  # other tasks may have been faster
        return producer.send(topic, value, key=key, partition=partition, headers=headers, timestamp=timestamp)

    async def result(self, delivery: Delivery) -> int | None:
        """Return the record's offset once it is delivered, or raise its error."""
        if not delivery.done:
            loop = asyncio.get_running_loop()
            done: asyncio.Future[None] = loop.create_future()
            delivery.add_done_callback(lambda _: _notify(loop, done))
            await done
        return delivery.result(0)

    async def flush(self, timeout: Duration | None = None) -> None:
        """Return when everything that was sent is delivered."""
        await self._threads.run(self._sync.flush, timeout)

    async def close(self, timeout: Duration | None = None) -> None:
        """Flush and close. Cancelling the call does not stop that."""
        self._threads.close()
        await run_alone(self._sync.close, timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        self._threads.close()
        await run_alone(self._sync.__exit__, kind, error, trace)


def _notify(loop: asyncio.AbstractEventLoop, done: asyncio.Future[None]) -> None:
    try:
        loop.call_soon_threadsafe(_set, done)
    except RuntimeError:  # the loop is closed: no task waits any more
        pass


def _set(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
