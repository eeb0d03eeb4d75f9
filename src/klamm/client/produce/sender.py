"""The sender of a producer: append full batches, sync them, complete their deliveries.

    waiting      by partition, in order: batches that another process or thread kept from being appended at once
    unsynced     appended, and not yet on disk; only with acks="all"

The thread that fills a batch appends it at once, unless the partition's append lock is taken just now or others wait
already: then it waits, too, and the producer's thread appends it. (That thread only tries, for many partitions depend
on it; a partition that refuses for long, because its writer is stopped, say, gets a thread that waits.) With
acks="all" the thread syncs, one sync a partition for everything that was appended meanwhile, and only then is a batch
delivered.

Promises
  SND1  Batches of a partition are appended in the order in which they were filled.
  SND2  A batch is delivered or failed exactly once, whatever happens. An interrupt may come between any two queues of
        `take`: the batch stays with the producer, and `take` is called again for it and goes on where it was. What it
        goes by is in the batch itself: an append puts the log's leader epoch there, where -1 was.
  SND3  An idempotent producer's sequence moves only by what was appended, so a batch that failed leaves no gap.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from klamm.batch import patch
from klamm.client.options import ALL
from klamm.client.produce.target import sealed
from klamm.disk._os import Inside

if TYPE_CHECKING:
    from klamm.batch import BatchDelivery, BufferMemory, Builder, RecordAccumulator
    from klamm.log.partition import Partition

__all__ = ["Outcome", "PartitionQueue", "Sender"]

_MAX_SEQUENCE = 2**31


class _QueuedBatch(NamedTuple):
    builder: Builder
    delivery: BatchDelivery
    accumulator: RecordAccumulator


class _Unsynced(NamedTuple):
    partition: Partition
    outcome: Outcome
    next_offset: int
    size: int


class Outcome(NamedTuple):
    """The outcome of an append that took place, or failed."""

    offset: int
    stamp: int
    error: Exception | None


class _OutgoingBatch:
    """A batch that `take` was called for, until it is noted or waits."""

    __slots__ = ("accumulator", "batch", "builder", "count", "delivery", "queue", "sequence", "size")

    def __init__(
        self, queue: PartitionQueue, accumulator: RecordAccumulator, builder: Builder, delivery: BatchDelivery
    ) -> None:
        self.queue = queue
        self.accumulator = accumulator
        self.builder = builder
        self.count = builder.count
        self.size = builder.size
        self.sequence = queue.sequence
        self.delivery = delivery
        self.batch: bytearray | memoryview | None = None  # sealed, with the leader epoch -1 until it is appended


class PartitionQueue:
    """One partition of a producer."""

    __slots__ = ("has_thread", "partition", "refused_since", "sequence", "waiting")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.sequence = 0
        self.refused_since = 0.0
        self.has_thread = False
        self.waiting: deque[_QueuedBatch] = deque()


class Sender:
    """The batches of one producer that are full. Every method wants the producer's mutex, unless it says otherwise."""

    def __init__(self, acks: int, codec: int, level: int | None, producer_id: int, memory: BufferMemory) -> None:
        """Prepare a sender. `memory` counts the bytes of records since they were sent; here they are released."""
        self._acks = acks
        self._codec = codec
        self._level = level
        self._producer_id = producer_id
        self._epoch = 0 if producer_id >= 0 else -1
        self._memory = memory
        self.errors: list[Exception] = []
        """Of batches that failed, until they are raised."""
        self._busy: dict[PartitionQueue, None] = {}
        self._takings: dict[BatchDelivery, _OutgoingBatch] = {}
        self._unsynced: dict[BatchDelivery, _Unsynced] = {}
        self._syncing: dict[BatchDelivery, _Unsynced] = {}
        self._completed: dict[BatchDelivery, Outcome] = {}  # until its callbacks have run
        self._in_callback = Inside()

    @property
    def has_work(self) -> bool:
        """Whether there is something that only the producer's thread does."""
        return bool(self._unsynced) or len(self.busy_queues()) > 0

    @property
    def has_completed(self) -> bool:
        """Whether there is something to answer that no thread is answering."""
        return any(not delivery.is_calling for delivery in list(self._completed))

    @property
    def is_busy(self) -> bool:
        """Whether a batch is on its way, in whatever thread."""
        return bool(self._busy or self._unsynced or self._syncing or self._completed)

    def outstanding(self) -> list[BatchDelivery]:
        """Return the batches that were not answered yet."""
        found = [each.delivery for queue in self._busy for each in queue.waiting]
        return [*found, *self._unsynced, *self._syncing, *self._completed]

    # ---- appending

    def take(
        self, queue: PartitionQueue, accumulator: RecordAccumulator, builder: Builder, delivery: BatchDelivery
    ) -> None:
        """Append a full batch, or queue it. Called again for the same batch, continue where it was interrupted."""
        if not self._knows(queue, delivery):
            taking = self._takings.get(delivery)
            if taking is None:
                taking = self._takings[delivery] = _OutgoingBatch(queue, accumulator, builder, delivery)
            self._append_or_hold(taking)
        if queue.waiting:
            self._busy[queue] = None
        self._takings.pop(delivery, None)

    def _knows(self, queue: PartitionQueue, delivery: BatchDelivery) -> bool:
        """Return whether the batch is recorded, or waits."""
        return (
            delivery.done
            or delivery in self._completed
            or delivery in self._unsynced
            or delivery in self._syncing
            or delivery in [each.delivery for each in queue.waiting]
        )

    def _append_or_hold(self, taking: _OutgoingBatch) -> None:
        queue, batch = taking.queue, taking.batch
        outcome: Outcome | None
        try:
            if batch is not None and patch.leader_epoch_of(batch) >= 0:  # an interrupt came after the append
                outcome = self._outcome_of(queue, batch, patch.base_offset_of(batch))
            elif queue.waiting:
                outcome = None
            else:
                batch = self._seal(queue, taking.builder)
                patch.set_leader_epoch(batch, -1)
                taking.batch = batch
                outcome = self._append(queue, batch, wait=False)
        except Exception as error:  # noqa: BLE001  # told by the delivery and the next send
            outcome = Outcome(-1, -1, error)
        if outcome is None:
            queue.waiting.append(_QueuedBatch(taking.builder, taking.delivery, taking.accumulator))
        else:
            self._record_outcome(queue, taking.delivery, outcome, taking.sequence, taking.count, taking.size)
            taking.accumulator.recycle(taking.builder)

    def busy_queues(self) -> list[PartitionQueue]:
        """Return the queues where something waits, and no thread of their own attends to it."""
        return [queue for queue in self._busy if not queue.has_thread]

    def append_first(self, queue: PartitionQueue, *, wait: bool) -> Outcome | None:
        """Append what is first in `queue`; None if another process or thread is appending there.

        Without the mutex: only one thread does this for a queue, and what is first stays there until `first_is_done`.
        """
        try:
            return self._append(queue, self._seal(queue, queue.waiting[0].builder), wait=wait)
        except Exception as error:  # noqa: BLE001  # told by the delivery and the next send
            return Outcome(-1, -1, error)

    def first_is_done(self, queue: PartitionQueue, outcome: Outcome) -> None:
        first = queue.waiting.popleft()
        if not queue.waiting:
            del self._busy[queue]
        builder = first.builder
        self._record_outcome(queue, first.delivery, outcome, queue.sequence, builder.count, builder.size)
        first.accumulator.recycle(builder)

    def fail(self, delivery: BatchDelivery, error: Exception, size: int) -> None:
        """Fail a batch of `size` bytes before it came to a partition."""
        self._complete(delivery, Outcome(-1, -1, error), size)

    def _seal(self, queue: PartitionQueue, builder: Builder) -> bytearray | memoryview:
        """Return the very bytes that are appended: `_append_or_hold` finds out by them whether they were."""
        batch = sealed(builder, self._codec, self._level, self._producer_id, self._epoch, queue.sequence)
        return queue.partition.recompressed(batch)

    def _append(self, queue: PartitionQueue, batch: bytearray | memoryview, *, wait: bool) -> Outcome | None:
        partition = queue.partition
        offset = partition.append(batch) if wait else partition.try_append(batch)
        return None if offset is None else self._outcome_of(queue, batch, offset)

    def _outcome_of(self, queue: PartitionQueue, batch: bytearray | memoryview, offset: int) -> Outcome:
        is_stamped = queue.partition.settings.message_timestamp_type == "LogAppendTime"
        return Outcome(offset, patch.max_timestamp_of(batch) if is_stamped else -1, None)

    def _record_outcome(
        self, queue: PartitionQueue, delivery: BatchDelivery, outcome: Outcome, sequence: int, count: int, size: int
    ) -> None:
        """Record that the batch was appended, or failed. Twice does no harm."""
        if outcome.error is None:
            if self._producer_id >= 0:
                queue.sequence = (sequence + count) % _MAX_SEQUENCE
            if self._acks == ALL:
                self._unsynced[delivery] = _Unsynced(queue.partition, outcome, outcome.offset + count, size)
                return
        self._complete(delivery, outcome, size)

    # ---- syncing

    def begin_sync(self) -> list[_Unsynced]:
        """Return the batches that the next syncs are for."""
        self._syncing, self._unsynced = self._unsynced, {}
        return list(self._syncing.values())

    def sync(self, batches: list[_Unsynced]) -> dict[Partition, Exception]:
        """Sync every partition that `batches` are in; what failed. Without the mutex."""
        end_offset: dict[Partition, int] = {}
        for each in batches:
            end_offset[each.partition] = max(each.next_offset, end_offset.get(each.partition, 0))
        failed: dict[Partition, Exception] = {}
        for partition, offset in end_offset.items():
            try:
                partition.sync(offset)
            except Exception as error:  # noqa: BLE001  # told by the delivery and the next send
                failed[partition] = error
        return failed

    def end_sync(self, failed: dict[Partition, Exception]) -> None:
        for delivery, each in self._syncing.items():
            error = failed.get(each.partition)
            self._complete(delivery, each.outcome if error is None else Outcome(-1, -1, error), each.size)
        self._syncing = {}

    # ---- answering

    def _complete(self, delivery: BatchDelivery, outcome: Outcome, size: int) -> None:
        error = outcome.error
        if error is not None and error not in self.errors:
            self.errors.append(error)
        delivery.release(self._memory, size)
        self._completed[delivery] = outcome

    def run_callbacks(self) -> None:
        """Complete the deliveries whose outcome is known. Without the mutex: their callbacks may send more.

        Any thread may do so, or several: a delivery is completed once, and stays here until its callbacks were called.
        What an interrupt of a callback leaves here is completed by the producer's thread.
        """
        if not self._completed:
            return
        with self._in_callback:
            for delivery, (offset, stamp, error) in list(self._completed.items()):
                if delivery.is_calling:
                    continue
                if error is None:
                    delivery.resolve(offset if self._acks else -1, stamp)
                else:
                    delivery.fail(error)
                self._completed.pop(delivery, None)

    def is_in_callback(self) -> bool:
        """Return whether this thread runs a callback of a delivery."""
        return self._in_callback.is_mine
