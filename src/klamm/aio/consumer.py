"""A consumer for asyncio. Each has a thread of its own, so that any number of consumers can wait at the same time.

ACN1  Cancelling a task is safe. Records that the thread reads afterwards are neither returned nor committed: the next
      task that calls gets them. A commit that has begun ends before the next record is read.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Never, Self, TypeVar

from klamm.aio.opener import Opener
from klamm.aio.threads import Calls, Threads, await_end, run_alone
from klamm.client.consume import consumer as sync
from klamm.client.consume.consumer import session_of
from klamm.client.consume.session import AT_ONCE
from klamm.client.options import check_count, check_options
from klamm.other_names import explains_names
from klamm.times import Duration, to_timeout
from klamm.types import Batch, Committed, Position, RunReport, TopicPartition
from klamm.typevars import T

if TYPE_CHECKING:
    from klamm.aio.transaction import Transaction
    from klamm.batch import Partitioner
    from klamm.choices import Compression, RunErrorPolicy, RunOrder
    from klamm.client.consume.read_engine import Records
    from klamm.client.groups.commits import What
    from klamm.client.serde import Serde
    from klamm.client.work.outcomes import Attempt
    from klamm.client.work.run_options import ErrorTypes
    from klamm.where import WhereLike

__all__ = ["Consumer"]

_R = TypeVar("_R")


@explains_names
class Consumer(Generic[T]):
    """Reads topics; made by `store.consumer()` of klamm.aio. One task reads; others may commit, `stop` and `close`."""

    def __init__(self, consumer: sync.Consumer[T], reads: Threads, writes: Threads) -> None:
        """Prepare a consumer. `reads`, `writes`: threads of the store, for calls that do not wait for records."""
        self._sync = consumer
        self._session = session_of(consumer)
        self._reads = reads
        self._writes = writes
        self._thread = Threads(1, "klamm-aio-read")
        self._reading = Calls(self._thread)
        self._committing = Calls(writes)
        self._current: Iterator[T] = iter(())  # what a loop goes on with
        self._due = math.inf  # and until when, in a group; then it polls

    def __repr__(self) -> str:
        return f"<aio {self._sync!r}>"

    # ---- reading

    async def _next(self, max_records: int, wait_s: float | None) -> Records | None:
        await self._committing.ended()
        self._current = iter(())
        return await self._until_given_up(lambda is_over: self._session.next_records(max_records, wait_s, is_over))

    async def _until_given_up(self, call: Callable[[Callable[[], bool]], _R]) -> _R:
        """Call a function in the thread. Its argument returns whether the task was cancelled: then it should return."""
        is_given_up = False

        def is_over() -> bool:
            return is_given_up

        try:
            return await self._reading.run(call, is_over)
        except asyncio.CancelledError:
            is_given_up = True
            self._session.wake()
            raise

    async def poll(self, max_records: int = 500, *, timeout: Duration | None = None, **unknown: Never) -> Batch[T]:
        """Return the next records of one partition, at most `max_records`; an empty Batch if none came in time."""
        check_options("consumer.poll()", unknown, ("max_records", "timeout"))
        check_count(max_records)
        wait_s = self._session.wait_s if timeout is None else to_timeout("timeout", timeout)
        records = await self._next(max_records, wait_s)
        return Batch() if records is None else records.batch()

    async def batches(self, max_records: int = 500) -> AsyncIterator[Batch[T]]:
        """Yield the batches of one `poll` after the other, until none comes for `wait`, or `stop`."""
        self._session.check_usable()
        while not self._session.is_stopped:
            batch = await self.poll(max_records)
            if not batch:
                return
            yield batch

    def __aiter__(self) -> Self:
        self._session.check_usable()
        return self

    async def __anext__(self) -> T:
        is_new = False
        while not self._session.is_stopped:
            if is_new or time.monotonic() < self._due:
                for record in self._current:
                    return record
            records = await self._next(AT_ONCE, self._session.wait_s)
            if records is None:
                break
            self._current, self._due, is_new = iter(records), self._session.next_look(), True
        raise StopAsyncIteration

    def stop(self) -> None:
        """End the loop that reads, quietly, and every later one. May be called from any task or thread."""
        self._sync.stop()

    # ---- positions

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions it reads, paused ones included."""
        return self._sync.assignment()

    def position(self, topic: str, partition: int) -> Position:
        """Return the offset of the next record that is returned."""
        return self._sync.position(topic, partition)

    def positions(self) -> dict[TopicPartition, Position]:
        """Return the positions of all partitions; `start=` takes such a mapping."""
        return self._sync.positions()

    async def seek(self, topic: str, partition: int, offset: int | Position, leader_epoch: int | None = None) -> None:
        """Continue at `offset`."""
        self._current = iter(())
        await self._reading.run(self._sync.seek, topic, partition, offset, leader_epoch)

    async def seek_to(self, start: WhereLike) -> None:
        """Continue where a new consumer with this `start` would begin."""
        self._current = iter(())
        await self._reading.run(self._sync.seek_to, start)

    def pause(self, topic: str | None = None, partition: int | None = None) -> None:
        """Stop reading these partitions until `resume`."""
        self._current = iter(())
        self._sync.pause(topic, partition)

    def resume(self, topic: str | None = None, partition: int | None = None) -> None:
        """Continue to read paused partitions."""
        self._current = iter(())
        self._sync.resume(topic, partition)

    # ---- committing

    async def commit(self, what: What = None, *, metadata: str = "") -> None:
        """Commit the group's offsets: of everything returned so far, or of the argument.

        If cancelled, it may be committed or not, but no record that is returned later.
        """
        await self._committing.run(self._sync.commit, what, metadata=metadata)

    async def committed(self, topic: str, partition: int) -> Committed | None:
        """Return the group's committed offset; None if it has none."""
        return await self._reads.run(self._sync.committed, topic, partition)

    def transaction(
        self,
        name: str | None = None,
        *,
        timeout: Duration = 60,
        serde: Serde | None = None,
        key_serde: Serde | None = None,
        compression: Compression | None = None,
        compression_level: int | None = None,
        batch_bytes: int = 64 << 10,
        partitioner: Partitioner | None = None,
        **unknown: Never,
    ) -> Opener[Transaction[Any, Any]]:
        """Begin a transaction in which this consumer takes part: it goes back if the transaction is aborted."""
        from klamm.aio.transaction import begin

        async def start() -> Transaction[Any, Any]:
            return await begin(
                self._writes,
                lambda: self._sync.transaction(
                    name,
                    timeout=timeout,
                    serde=serde,
                    key_serde=key_serde,
                    compression=compression,
                    compression_level=compression_level,
                    batch_bytes=batch_bytes,
                    partitioner=partitioner,
                    **unknown,
                ),
            )

        return Opener(start)

    # ---- workers

    async def run(
        self,
        handler: Callable[[T], object],
        workers: int = 8,
        *,
        processes: bool = False,
        queue: int = 1000,
        timeout: Duration | None = None,
        grace: Duration = 30.0,
        on_error: RunErrorPolicy = "stop",
        retries: int | None = 3,
        retry_on: ErrorTypes | None = None,
        give_up_on: ErrorTypes = (),
        backoff: Duration = 0.1,
        max_backoff: Duration = 10.0,
        dead_letter_topic: str | None = None,
        order: RunOrder = "key",
        commit_every: Duration = 1.0,
        on_done: Callable[[Attempt], object] | None = None,
        on_failed: Callable[[Attempt], object] | None = None,
        on_dead_letter: Callable[[Attempt], object] | None = None,
        on_progress: Callable[[RunReport], object] | None = None,
        **unknown: Never,
    ) -> RunReport:
        """Handle the records with workers, in order within a key, and commit finished ones.

        An `async def` handler runs in this event loop, any other in threads. Cancelled, it ends as `klamm`'s does by
        Ctrl-C: handlers that run have `grace` to end, what is done is committed, then CancelledError is raised.
        Cancelled again, handlers are cancelled. Hooks are plain functions: `on_done` of an `async def` handler is
        called in this event loop, all others in threads.
        """
        from klamm.client.work.workers import run

        loop = asyncio.get_running_loop()
        urgency = 0

        def hurry() -> None:
            nonlocal urgency
            urgency += 1
            self._session.wake()

        await self._committing.ended()
        await self._reading.ended()
        self._current = iter(())
        running = self._thread.submit(
            lambda: run(
                self._session,
                handler,
                workers,
                loop=loop,
                urgency=lambda: urgency,
                processes=processes,
                queue=queue,
                timeout=timeout,
                grace=grace,
                on_error=on_error,
                retries=retries,
                retry_on=retry_on,
                give_up_on=give_up_on,
                backoff=backoff,
                max_backoff=max_backoff,
                dead_letter_topic=dead_letter_topic,
                order=order,
                commit_every=commit_every,
                on_done=on_done,
                on_failed=on_failed,
                on_dead_letter=on_dead_letter,
                on_progress=on_progress,
                **unknown,
            )
        )
        return await await_end(running, hurry)

    # ---- the end

    async def close(self) -> None:
        """Close the consumer; a member leaves its group. Cancelling the call does not stop that."""
        self._thread.close()
        await run_alone(self._sync.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
