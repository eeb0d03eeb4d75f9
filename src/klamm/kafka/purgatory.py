"""Fetches that wait for records.

A delayed fetch is tried again when one of its partitions moves, by any writer: this server, which says so
itself, or any other process, which rings the bell of the store (log/_bell_thread.pxi: one thread listens, without the
GIL). When its time is over it is answered with what there is.

Promises
  PUR1  No wake-up is lost: a partition is watched before the fetch looks for the last time whether there is something.
  PUR2  Many waiters delay no other client: they are tried in slices, and the loop does other work in between; those
        whose records have to be looked for on a disk are tried by a thread. The producer has its response before.
  PUR3  A waiter costs an entry in a few dictionaries, and a task only if its handler had to wait before; timeouts share
        one timer.
  PUR4  A fetch session that waits again and again costs in proportion to the partitions that moved, not to those that
        it has: its subscription stays. Where a partition moves while the session does not wait, it is taken off that
        partition, and put back when it waits again.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from klamm.disk.page_cache import WouldBlock
from klamm.kafka.call import PausedReply
from klamm.kafka.loop_signal import signal_to
from klamm.kafka.wire.structs import Struct
from klamm.log.head import BellThread, Heads

if TYPE_CHECKING:
    from klamm.kafka.call import Call, Reply
    from klamm.log.partition import Partition

__all__ = ["FetchPurgatory", "FetchReply", "Fetching", "Subscription"]

_SLICE = 32  # so many waiters are tried before the loop looks at other things
_SLICE_PARTITIONS = 250  # the same for partitions
_TICK_S = 0.01  # timeouts are this exact
_SWEEP_S = 5.0  # how long a partition is watched without a waiting fetch


class Fetching(Protocol):
    """A fetch, as the purgatory sees it."""

    def attempt(self, is_due: bool) -> Struct | None:
        """Return the response, on the loop; None: not yet, unless it is due. WouldBlock: only a thread can tell."""

    def attempt_in_thread(self, is_due: bool) -> Struct | None:
        """Like `attempt`, but wait for disks."""


class FetchReply(Protocol):
    """The callback for the response to a fetch."""

    def __call__(self, response: Struct, /) -> None: ...
    def fail(self, error: Exception) -> None: ...
    def drop(self) -> None: ...


class Subscription:
    """The partitions that a fetch waits for."""

    __slots__ = ("delayed", "is_standing", "joined", "missing")

    def __init__(self) -> None:
        self.is_standing = False
        """Whether it stays when the fetch has its response: a fetch session's."""
        self.delayed: _DelayedFetch | None = None
        """The fetch that waits."""
        self.joined: set[Partition] = set()
        """Where it is put down."""
        self.missing: dict[Partition, None] = {}
        """Where it has to be, before a fetch waits."""

    def add(self, partition: Partition) -> None:
        if partition not in self.joined:
            self.missing[partition] = None


class _DelayedFetch:
    __slots__ = ("fetching", "is_due", "is_in_thread", "is_ready", "reply", "session", "subscription", "tick")

    def __init__(
        self, session: object, reply: FetchReply, fetching: Fetching, subscription: Subscription, tick: int
    ) -> None:
        self.session = session
        self.reply = reply
        self.fetching = fetching
        self.subscription = subscription
        self.tick = tick
        self.is_ready = False  # to be tried: it is in the queue, or in a thread
        self.is_in_thread = False
        self.is_due = False  # its time is over


class FetchPurgatory:
    """The delayed fetches of one server, on its loop."""

    def __init__(self, heads: Heads, loop: asyncio.AbstractEventLoop, disk: Callable[..., asyncio.Future[Any]]) -> None:
        """Prepare. `disk` calls a function in a thread."""
        self._loop = loop
        self._disk = disk
        self._waiting: dict[Partition, dict[Subscription, None]] = {}
        self._indexes: dict[Partition, int] = {}
        self._partitions: dict[int, Partition] = {}
        self._by_session: dict[object, _DelayedFetch] = {}
        self._ticks: dict[int, dict[_DelayedFetch, None]] = {}
        self._timer: tuple[int, asyncio.TimerHandle] | None = None
        self._moved: OrderedDict[Partition, None] = OrderedDict()  # whose waiters are to be made ready
        self._ready: deque[_DelayedFetch] = deque()
        self._is_serving = False
        self._signal = signal_to(loop, self._rung)
        self._bell_thread = BellThread(heads, self._signal.fd)
        self._thread = threading.Thread(target=self._bell_thread.run, name="klamm-bell", daemon=True)
        self._thread.start()
        self._sweeper = loop.call_later(_SWEEP_S, self._sweep)

    def __len__(self) -> int:
        """Return how many fetches wait."""
        return len(self._by_session)

    def delay(
        self, call: Call, fetching: Fetching, subscription: Subscription, wait_s: float, *, is_task: bool
    ) -> Reply[Struct] | PausedReply[Struct]:
        """Return the response when an attempt succeeds, or when `wait_s` have passed. `is_task`: the handler had to
        wait before.
        """
        reply: Reply[Struct] | PausedReply[Struct] = call.reply() if is_task else PausedReply()
        if not call.is_gone:  # else nothing comes
            self.put(call.session, reply, fetching, subscription, wait_s, was_tried=not is_task)
        return reply

    def put(
        self,
        session: object,
        reply: FetchReply,
        fetching: Fetching,
        subscription: Subscription,
        wait_s: float,
        *,
        was_tried: bool,
    ) -> None:
        """Call `reply` with the response when an attempt succeeds, or when `wait_s` have passed. `was_tried`: one was
        made in this step of the loop.
        """
        tick = int((self._loop.time() + wait_s) / _TICK_S) + 1
        delayed = subscription.delayed = _DelayedFetch(session, reply, fetching, subscription, tick)
        is_watched = not subscription.missing  # where the bell thread was told of all that was seen, it tells the rest
        for _ in self.join(subscription):
            pass
        self._by_session[session] = delayed
        self._bell_thread.arm()
        if not (is_watched and was_tried):
            self._try(delayed)  # something may have come before it was watched
            if self._by_session.get(session) is not delayed:
                return
        due = self._ticks.get(tick)
        if due is not None:
            due[delayed] = None
        else:
            self._ticks[tick] = {delayed: None}
            if self._timer is None or tick < self._timer[0]:
                self._set_timer(tick)

    def join(self, subscription: Subscription) -> Iterator[None]:
        """Put a subscription where it has to be before a fetch waits, at one partition when this is advanced. What
        moves meanwhile is left to `put`. Without one, `end` it.
        """
        for partition in list(subscription.missing):
            yield
            if partition not in self._indexes:
                index = self._bell_thread.watch(partition.log)
                self._indexes[partition] = index
                self._partitions[index] = partition
            self._waiting.setdefault(partition, {})[subscription] = None
            subscription.joined.add(partition)
            del subscription.missing[partition]

    def wake_soon(self, partition: Partition) -> None:
        """Try the fetches that wait for this partition, when the loop comes round: this server has appended to it."""
        if self._waiting.get(partition):
            self._bell_thread.seen(self._indexes[partition])
            self._moved[partition] = None
            self._serve_soon()

    def forget(self, connection: object) -> None:
        """Forget a fetch that is gone."""
        delayed = self._by_session.pop(connection, None)
        if delayed is not None:
            self._leave(delayed)
            delayed.reply.drop()

    def remove(self, subscription: Subscription, partition: Partition) -> None:
        """Take a subscription off a partition."""
        subscription.missing.pop(partition, None)
        if partition in subscription.joined:
            subscription.joined.discard(partition)
            self._waiting[partition].pop(subscription, None)

    def end(self, subscription: Subscription) -> None:
        """Take a subscription off all its partitions, as soon as no fetch waits."""
        subscription.is_standing = False
        if subscription.delayed is None:
            self._unsubscribe(subscription)

    def release_all(self) -> None:
        """Answer everybody, with what there is."""
        for delayed in list(self._by_session.values()):
            delayed.is_due = True
            self._try(delayed)

    def close(self) -> None:
        self._sweeper.cancel()
        if self._timer is not None:
            self._timer[1].cancel()
        self._bell_thread.stop()
        self._thread.join()
        self._signal.close()

    # ---- when something moves

    def _rung(self) -> None:
        for index in self._bell_thread.moved():
            self._moved[self._partitions[index]] = None
        self._serve_soon()
        if self._by_session:
            self._bell_thread.arm()

    def _serve_soon(self) -> None:
        """Serve later: the producer's response goes first, and going over all waiting fetches takes time."""
        if not self._is_serving and (self._moved or self._ready):
            self._is_serving = True
            self._loop.call_soon(self._serve)

    def _wake(self, partition: Partition) -> None:
        """Make those ready that wait for a partition; take those off it that do not wait."""
        waiting = self._waiting.get(partition)
        if not waiting:
            return
        self._make_ready([each.delayed for each in waiting if each.delayed is not None])
        for idle in [each for each in waiting if each.delayed is None]:
            del waiting[idle]
            idle.joined.discard(partition)
            idle.missing[partition] = None

    def _make_ready(self, waiting: Iterable[_DelayedFetch]) -> None:
        for delayed in waiting:
            if not delayed.is_ready:
                delayed.is_ready = True
                self._ready.append(delayed)

    def _serve(self) -> None:
        for _ in range(min(_SLICE_PARTITIONS, len(self._moved))):
            partition, _ = self._moved.popitem(last=False)
            self._wake(partition)
        ready = self._ready
        for _ in range(min(_SLICE, len(ready))):
            delayed = ready.popleft()
            delayed.is_ready = False
            if self._by_session.get(delayed.session) is delayed:
                self._try(delayed)
        if ready or self._moved:
            self._loop.call_soon(self._serve)
        else:
            self._is_serving = False

    # ---- when time is over

    def _set_timer(self, tick: int) -> None:
        if self._timer is not None:
            self._timer[1].cancel()
        self._timer = tick, self._loop.call_at(tick * _TICK_S, self._due)

    def _due(self) -> None:
        self._timer = None
        now = self._loop.time()
        for tick in sorted(tick for tick in self._ticks if tick * _TICK_S <= now + 0.001):
            due = self._ticks.pop(tick)
            for delayed in due:
                delayed.is_due = True
            self._make_ready(due)
        self._serve_soon()
        if self._ticks:
            self._set_timer(min(self._ticks))

    # ---- either way

    def _try(self, delayed: _DelayedFetch) -> None:
        """Try one fetch. An error closes its connection, and no other."""
        if delayed.is_in_thread:
            delayed.is_ready = True
            return
        try:
            try:
                response = delayed.fetching.attempt(delayed.is_due)
            except WouldBlock:
                attempt = self._disk(delayed.fetching.attempt_in_thread, delayed.is_due)
                delayed.is_in_thread = True
                attempt.add_done_callback(partial(self._attempted, delayed))
                return
            if response is not None:
                self._answer(delayed, response)
        except Exception as error:  # noqa: BLE001  # raised in the handler
            self._fail(delayed, error)

    def _attempted(self, delayed: _DelayedFetch, attempt: asyncio.Future[Struct | None]) -> None:
        """Continue after an attempt in a thread."""
        delayed.is_in_thread = False
        again, delayed.is_ready = delayed.is_ready, False
        if self._by_session.get(delayed.session) is not delayed:
            return  # its client is gone
        try:
            response = attempt.result()
            if response is not None:
                self._answer(delayed, response)
            elif again:
                self._make_ready((delayed,))
                self._serve_soon()
        except Exception as error:  # noqa: BLE001  # as in `_try`
            self._fail(delayed, error)

    def _fail(self, delayed: _DelayedFetch, error: Exception) -> None:
        self._by_session.pop(delayed.session, None)
        self._leave(delayed)
        delayed.reply.fail(error)

    def _answer(self, delayed: _DelayedFetch, response: Struct) -> None:
        self._by_session.pop(delayed.session, None)
        self._leave(delayed)
        delayed.reply(response)

    def _unsubscribe(self, subscription: Subscription) -> None:
        """Take a subscription off its partitions, some in each of the loop's rounds, unless a fetch waits again."""
        if subscription.is_standing or subscription.delayed is not None:
            return
        for _ in range(min(_SLICE_PARTITIONS, len(subscription.joined))):
            partition = subscription.joined.pop()
            self._waiting[partition].pop(subscription, None)
            subscription.missing[partition] = None
        if subscription.joined:
            self._loop.call_soon(self._unsubscribe, subscription)

    def _leave(self, delayed: _DelayedFetch) -> None:
        delayed.subscription.delayed = None
        if not delayed.subscription.is_standing:
            self._unsubscribe(delayed.subscription)
        due = self._ticks.get(delayed.tick)
        if due is not None:
            due.pop(delayed, None)
            if not due:
                del self._ticks[delayed.tick]

    def _sweep(self) -> None:
        """Stop watching partitions without waiting fetches."""
        self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep)
        places = []
        for partition in [each for each, waiting in self._waiting.items() if not waiting]:
            del self._waiting[partition]
            index = self._indexes.pop(partition)
            del self._partitions[index]
            places.append(index)
        if places:
            self._bell_thread.unwatch(*places)
