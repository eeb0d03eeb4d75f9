"""What happens to a producer's batches once they are full: appended, synced, answered.

    waiting      by partition, in order: batches that another process or thread kept from being appended at once
    unsynced     appended, and not yet on disk; only with acks="all"

Whoever fills a batch appends it there and then, unless the partition's append lock is taken just now or others wait
already: then it waits, too, and the producer's thread appends it. (That thread only tries, for many partitions depend
on it; a partition that refuses for long, because its writer is stopped, say, gets a thread that waits.) With
acks="all" the thread syncs, one sync a partition for everything that was appended meanwhile, and only then is a batch
delivered.

Promises
  P1  Batches of a partition are appended in the order in which they were filled.
  P2  A batch is delivered or failed exactly once, whatever happens.
  P3  An idempotent producer's sequence moves only by what was appended, so a batch that failed leaves no gap.
"""

from __future__ import annotations

from _thread import get_ident
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from klamm.batch import patch
from klamm.client.options import ALL
from klamm.client.target import sealed

if TYPE_CHECKING:
    from klamm.batch import BatchDelivery, BufferMemory, Builder, Lane
    from klamm.log.partition import Partition

__all__ = ["Line", "Outcome", "Sender"]

_MAX_SEQUENCE = 2**31


class _Waiting(NamedTuple):
    builder: Builder
    delivery: BatchDelivery
    lane: Lane


class _Unsynced(NamedTuple):
    delivery: BatchDelivery
    partition: Partition
    outcome: Outcome
    next_offset: int
    size: int


class Outcome(NamedTuple):
    """Of an append that took place, or failed."""

    offset: int
    stamp: int
    error: Exception | None


class Line:
    """One partition of a producer."""

    __slots__ = ("has_thread", "partition", "refused_since", "sequence", "waiting")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.sequence = 0
        self.refused_since = 0.0
        self.has_thread = False
        self.waiting: deque[_Waiting] = deque()


class Sender:
    """The batches of one producer that are full. Every method wants the producer's mutex, unless it says otherwise."""

    def __init__(self, acks: int, codec: int, level: int | None, producer_id: int, memory: BufferMemory) -> None:
        """`memory` counts the bytes of records since they were sent; here they are released."""
        self._acks = acks
        self._codec = codec
        self._level = level
        self._producer_id = producer_id
        self._epoch = 0 if producer_id >= 0 else -1
        self._memory = memory
        self.errors: list[Exception] = []
        """Of batches that failed, until they are raised."""
        self._busy: dict[Line, None] = {}
        self._unsynced: list[_Unsynced] = []
        self._syncing: list[_Unsynced] = []
        self._settled: dict[BatchDelivery, Outcome] = {}  # until it is answered
        self._answering: list[int] = []  # threads

    @property
    def has_work(self) -> bool:
        """Whether there is something that only the producer's thread does."""
        return bool(self._unsynced) or any(not line.has_thread for line in self._busy)

    @property
    def has_settled(self) -> bool:
        """Whether there is something to answer."""
        return bool(self._settled)

    @property
    def is_busy(self) -> bool:
        """Whether a batch is on its way, in whatever thread."""
        return bool(self._busy or self._unsynced or self._syncing or self._settled)

    def outstanding(self) -> list[BatchDelivery]:
        """Return the batches that were not answered yet."""
        found = [each.delivery for line in self._busy for each in line.waiting]
        found += [each.delivery for each in self._unsynced]
        found += [each.delivery for each in self._syncing]
        return found + list(self._settled)

    # ---- appending

    def take(self, line: Line, lane: Lane, builder: Builder, delivery: BatchDelivery) -> None:
        """Append a full batch, or let it wait."""
        if line.waiting:
            self.hold(line, lane, builder, delivery)
            return
        outcome = batch = None
        try:
            batch = self._seal(line, builder)
            patch.set_leader_epoch(batch, -1)  # an append puts the log's there
            outcome = self._append(line, batch, wait=False)
        except Exception as error:  # noqa: BLE001  # told by the delivery and the next send
            outcome = Outcome(-1, -1, error)
        finally:
            if outcome is None and batch is not None and patch.leader_epoch_of(batch) >= 0:
                outcome = Outcome(patch.base_offset_of(batch), -1, None)  # Ctrl-C came after the append
            if outcome is not None:
                self._note(line, lane, builder, delivery, outcome)
            else:
                self.hold(line, lane, builder, delivery)

    def hold(self, line: Line, lane: Lane, builder: Builder, delivery: BatchDelivery) -> None:
        """Let a full batch wait."""
        line.waiting.append(_Waiting(builder, delivery, lane))
        self._busy[line] = None

    def busy_lines(self) -> list[Line]:
        """Where something waits, and no thread of its own sees to it."""
        return [line for line in self._busy if not line.has_thread]

    def append_first(self, line: Line, *, wait: bool) -> Outcome | None:
        """Append what is first in `line`; None if somebody else is appending there.

        Without the mutex: only one thread does this for a line, and what is first stays there until `first_is_done`.
        """
        try:
            return self._append(line, self._seal(line, line.waiting[0].builder), wait=wait)
        except Exception as error:  # noqa: BLE001  # told by the delivery and the next send
            return Outcome(-1, -1, error)

    def first_is_done(self, line: Line, outcome: Outcome) -> None:
        first = line.waiting.popleft()
        if not line.waiting:
            del self._busy[line]
        self._note(line, first.lane, first.builder, first.delivery, outcome)

    def fail(self, delivery: BatchDelivery, error: Exception, size: int) -> None:
        """A batch of `size` bytes failed before it came to a partition."""
        self._settle(delivery, Outcome(-1, -1, error), size)

    def _seal(self, line: Line, builder: Builder) -> memoryview:
        return sealed(builder, self._codec, self._level, self._producer_id, self._epoch, line.sequence)

    def _append(self, line: Line, batch: memoryview, *, wait: bool) -> Outcome | None:
        partition = line.partition
        offset = partition.append(batch) if wait else partition.try_append(batch)
        if offset is None:
            return None
        stamp = -1
        if partition.settings.message_timestamp_type == "LogAppendTime":
            stamp = patch.max_timestamp_of(batch)
        return Outcome(offset, stamp, None)

    def _note(self, line: Line, lane: Lane, builder: Builder, delivery: BatchDelivery, outcome: Outcome) -> None:
        """The batch was appended, or failed."""
        if outcome.error is None:
            count = builder.count
            if self._producer_id >= 0:
                line.sequence = (line.sequence + count) % _MAX_SEQUENCE
            if self._acks == ALL:
                self._unsynced.append(
                    _Unsynced(delivery, line.partition, outcome, outcome.offset + count, builder.size)
                )
                lane.recycle(builder)
                return
        self._settle(delivery, outcome, builder.size)
        lane.recycle(builder)

    # ---- syncing

    def begin_sync(self) -> list[_Unsynced]:
        """What the next syncs are for."""
        self._syncing, self._unsynced = self._unsynced, []
        return self._syncing

    def sync(self, batches: list[_Unsynced]) -> dict[Partition, Exception]:
        """Sync every partition that `batches` are in; what failed. Without the mutex."""
        upto: dict[Partition, int] = {}
        for each in batches:
            upto[each.partition] = max(each.next_offset, upto.get(each.partition, 0))
        failed: dict[Partition, Exception] = {}
        for partition, offset in upto.items():
            try:
                partition.sync(offset)
            except Exception as error:  # noqa: BLE001  # told by the delivery and the next send
                failed[partition] = error
        return failed

    def end_sync(self, failed: dict[Partition, Exception]) -> None:
        for each in self._syncing:
            error = failed.get(each.partition)
            self._settle(each.delivery, each.outcome if error is None else Outcome(-1, -1, error), each.size)
        self._syncing = []

    # ---- answering

    def _settle(self, delivery: BatchDelivery, outcome: Outcome, size: int) -> None:
        self._memory.release(size)
        if outcome.error is not None:
            self.errors.append(outcome.error)
        self._settled[delivery] = outcome

    def answer(self) -> None:
        """Complete the deliveries whose outcome is known. Without the mutex: their callbacks may send more.

        Any thread may do so, or several: a delivery is completed once. What an interrupt of a callback leaves here is
        answered by the producer's thread.
        """
        if not self._settled:
            return
        self._answering.append(get_ident())
        try:
            for delivery, (offset, stamp, error) in list(self._settled.items()):
                if error is None:
                    delivery.resolve(offset if self._acks else -1, stamp)
                else:
                    delivery.fail(error)
                self._settled.pop(delivery, None)
        finally:
            self._answering.remove(get_ident())

    def is_answering(self) -> bool:
        """Whether this thread runs a callback of a delivery."""
        return get_ident() in self._answering
