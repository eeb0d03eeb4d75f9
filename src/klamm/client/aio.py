"""Producer and consumer for asyncio: the same, with the waiting done in threads.

A consumer has a thread of its own, so that any number of them can wait at the same time. Cancelling a task that waits
for records is safe: none is lost, the next one who asks gets them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack

from klamm.client.consume import consumer as sync
from klamm.client.consume.consumer import session_of
from klamm.client.options import check_count
from klamm.times import Duration, to_timeout
from klamm.types import Batch, Committed, Position, TopicPartition

if TYPE_CHECKING:
    from types import TracebackType

    from klamm.batch import Delivery
    from klamm.client.consume.read_engine import Records
    from klamm.client.groups.commits import What
    from klamm.client.produce.producer import Producer as SyncProducer
    from klamm.client.produce.producer_options import TransactionOptions
    from klamm.client.transaction import Transaction as SyncTransaction
    from klamm.where import WhereLike

__all__ = ["Consumer", "Opening", "Producer", "Transaction"]

T = TypeVar("T", bound=Any)
_AT_ONCE = 500  # records that a loop takes; then the group is looked after


class Opening(Generic[T]):
    """Something that is opened in a thread: `x = await opening`, or `async with opening as x`, which ends it, too."""

    def __init__(self, start: Callable[[], Awaitable[T]]) -> None:
        self._start = start
        self._opened: T | None = None

    def __await__(self) -> Generator[Any, None, T]:
        return self._start().__await__()

    async def __aenter__(self) -> T:
        self._opened = await self._start()
        return self._opened

    async def __aexit__(self, *error: object) -> None:
        if self._opened is not None:
            await self._opened.__aexit__(*error)


class Producer:
    """Sends records in batches; made by `store.producer()` of klamm.aio."""

    def __init__(self, producer: SyncProducer) -> None:
        self._sync = producer

    async def send(self, topic: str, value: Any, **options: Any) -> Delivery:
        """Take one record into a batch. Waits, without blocking the loop, while the buffer is full."""
        if self._sync._is_full:
            return await asyncio.to_thread(self._sync.send, topic, value, **options)
        return self._sync.send(topic, value, **options)

    async def result(self, delivery: Delivery) -> int | None:
        """The record's offset, once it is delivered; raises what went wrong with it."""
        if not delivery.done:
            loop = asyncio.get_running_loop()
            done: asyncio.Future[None] = loop.create_future()
            delivery.add_done_callback(lambda _: loop.call_soon_threadsafe(_set, done))
            await done
        return delivery.result(0)

    async def flush(self, timeout: Duration | None = None) -> None:
        """Return when everything that was sent is delivered."""
        await asyncio.to_thread(self._sync.flush, timeout)

    async def close(self, timeout: Duration | None = None) -> None:
        """Flush, and end."""
        await asyncio.to_thread(self._sync.close, timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _set(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


class Consumer:
    """Reads topics; made by `store.consumer()` of klamm.aio. For one task at a time, apart from `stop`."""

    def __init__(self, consumer: sync.Consumer) -> None:
        self._sync = consumer
        self._session = session_of(consumer)
        self._executor = ThreadPoolExecutor(1, "klamm-aio-consumer")
        self._waiting: asyncio.Future[Records | None] | None = None
        self._gives_up = False
        self._current: Iterator[Any] = iter(())

    async def _next(self, max_records: int, wait_s: float | None) -> Records | None:
        """Wait in the consumer's thread. What it finds after this was cancelled is not handed out to anybody."""
        if self._waiting is not None:  # a task gave up waiting; its thread does so, too
            await asyncio.wait([self._waiting])
            self._waiting = None
        self._gives_up = False
        self._current = iter(())
        loop = asyncio.get_running_loop()
        waiting = loop.run_in_executor(
            self._executor, self._session.next_records, max_records, wait_s, lambda: self._gives_up
        )
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            self._waiting = waiting
            waiting.add_done_callback(_forget_error)
            self._gives_up = True
            self._session.wake()
            raise

    async def poll(self, max_records: int = 500, *, timeout: Duration | None = None) -> Batch:
        """Return the next records of one partition, at most `max_records`; an empty Batch if none came in time."""
        check_count(max_records)
        wait_s = self._session.wait_s if timeout is None else to_timeout("timeout", timeout)
        records = await self._next(max_records, wait_s)
        return Batch() if records is None else records.batch()

    async def batches(self, max_records: int = 500) -> AsyncIterator[Batch]:
        """One `poll` after the other, until nothing comes for `wait`, or `stop`."""
        while not self._session.is_stopped:
            batch = await self.poll(max_records)
            if not batch:
                return
            yield batch

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        while not self._session.is_stopped:
            for record in self._current:
                return record
            records = await self._next(_AT_ONCE, self._session.wait_s)
            if records is None:
                break
            self._current = iter(records)
        raise StopAsyncIteration

    def stop(self) -> None:
        """End the loop that reads, quietly, and every later one. May be called from any task or thread."""
        self._sync.stop()

    def assignment(self) -> list[TopicPartition]:
        """The (topic, partition)s it reads."""
        return self._sync.assignment()

    def position(self, topic: str, partition: int) -> Position:
        """The next offset that is handed out."""
        return self._sync.position(topic, partition)

    def positions(self) -> dict[TopicPartition, Position]:
        """All of them."""
        return self._sync.positions()

    async def seek(self, topic: str, partition: int, offset: int | Position, leader_epoch: int | None = None) -> None:
        """Go on at `offset`."""
        self._current = iter(())
        await self._run(self._sync.seek, topic, partition, offset, leader_epoch)

    async def seek_to(self, start: WhereLike) -> None:
        """Go on at what `start` means for a new consumer."""
        self._current = iter(())
        await self._run(self._sync.seek_to, start)

    async def commit(self, what: What = None, *, metadata: str = "") -> None:
        """Remember how far the group has come: everything handed out so far, or what is given."""
        await asyncio.to_thread(self._sync.commit, what, metadata=metadata)

    async def committed(self, topic: str, partition: int) -> Committed | None:
        """What the group has committed there; None if nothing."""
        return await asyncio.to_thread(self._sync.committed, topic, partition)

    def pause(self, topic: str | None = None, partition: int | None = None) -> None:
        """Read nothing more from there until `resume`."""
        self._current = iter(())
        self._sync.pause(topic, partition)

    def resume(self, topic: str | None = None, partition: int | None = None) -> None:
        """Go on where it was paused."""
        self._current = iter(())
        self._sync.resume(topic, partition)

    def transaction(self, name: str | None = None, **options: Unpack[TransactionOptions]) -> Opening[Transaction]:
        """Begin a transaction in which this consumer takes part: it goes back if the transaction is aborted."""

        async def start() -> Transaction:
            return Transaction(await asyncio.to_thread(self._sync.transaction, name, **options))

        return Opening(start)

    async def _run(self, call: Callable[..., Any], *arguments: Any) -> None:
        await asyncio.get_running_loop().run_in_executor(self._executor, call, *arguments)

    async def close(self) -> None:
        """End, and close what is open. A member leaves its group."""
        await asyncio.to_thread(self._sync.close)
        await asyncio.to_thread(self._executor.shutdown)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Transaction:
    """Records and progress of groups, all or nothing; made by `store.transaction()` of klamm.aio. For one task.

    Leaving its `async with` block commits, or aborts if an exception does so. A task that is cancelled while it commits
    does not know whether it did.
    """

    def __init__(self, transaction: SyncTransaction) -> None:
        self._sync = transaction
        transaction._defers = True

    async def send(self, topic: str, value: Any, **options: Any) -> Delivery:
        """Take one record into a batch; a batch that is full is appended in a thread."""
        if topic not in self._sync._lanes:
            await asyncio.to_thread(self._sync._slow_lane, topic)
        delivery = self._sync.send(topic, value, **options)
        if self._sync._is_full:
            await asyncio.to_thread(self._sync._append_full)
        return delivery

    def commit_offsets(self, read: Batch | Consumer) -> None:
        """Let the progress of a consumer that takes part be part of the transaction."""
        self._sync.commit_offsets(read._sync if isinstance(read, Consumer) else read)

    async def once(self, writer: str, number: int, *, fingerprint: str = "", target: str = "") -> bool:
        """Commit this transaction at most once; see the other one's."""
        return await asyncio.to_thread(self._sync.once, writer, number, fingerprint=fingerprint, target=target)

    async def commit(self) -> None:
        """All of it becomes visible. It is on disk when this returns."""
        await asyncio.to_thread(self._sync.commit)

    async def abort(self) -> None:
        """Nothing of it becomes visible, and its consumers go back to where their groups stand."""
        await asyncio.to_thread(self._sync.abort)

    @property
    def state(self) -> str:
        """ "open", "committed", "aborted" or "skipped"."""
        return self._sync.state

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        await asyncio.to_thread(self._sync.__exit__, kind, error, trace)


def _forget_error(waiting: asyncio.Future[Any]) -> None:
    if not waiting.cancelled():
        waiting.exception()
