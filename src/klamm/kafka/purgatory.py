"""Fetches that wait for records.

A delayed fetch is tried again when one of its partitions moves, whoever appended there: this server, which says so
itself, or any other process, which rings the bell of the store (log/_chime.pxi: one thread listens, without the GIL).
When its time is over it is answered with what there is.

Promises
  P1  No wake-up is lost: a partition is watched before the fetch looks for the last time whether there is something.
  P2  Many waiters delay no other client: they are tried in slices, and the loop does other work in between; those
      whose records have to be looked for on a disk are tried by a thread. The producer has its response before.
  P3  A waiter costs an entry in a few dictionaries and its handler's task; timeouts share one timer.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from klamm.disk.page_cache import WouldBlock
from klamm.kafka.loop_signal import signal_to
from klamm.kafka.wire.structs import Struct
from klamm.log.head import Chime, Heads

if TYPE_CHECKING:
    from klamm.kafka.call import Call, Reply
    from klamm.log.partition import Partition

__all__ = ["FetchPurgatory", "Fetching"]

_SLICE = 32  # so many waiters are tried before the loop looks at other things
_TICK_S = 0.01  # time-outs are this exact
_SWEEP_S = 5.0  # how long a partition is watched for nobody


class Fetching(Protocol):
    """A fetch, as the purgatory sees it."""

    def attempt(self, is_due: bool) -> Struct | None:
        """Return the response, on the loop; None: not yet, unless it is due. WouldBlock: only a thread can tell."""

    def attempt_in_thread(self, is_due: bool) -> Struct | None:
        """Like `attempt`, but wait for disks."""


class _DelayedFetch:
    __slots__ = ("fetching", "is_due", "is_in_thread", "is_ready", "partitions", "reply", "session", "tick")

    def __init__(self, call: Call, fetching: Fetching, partitions: tuple[Partition, ...], tick: int) -> None:
        self.session = call.session
        self.reply: Reply[Struct] = call.reply()
        self.fetching = fetching
        self.partitions = partitions
        self.tick = tick
        self.is_ready = False  # to be tried: it is in the queue, or in a thread
        self.is_in_thread = False
        self.is_due = False  # its time is over


class FetchPurgatory:
    """Of one server, on its loop."""

    def __init__(self, heads: Heads, loop: asyncio.AbstractEventLoop, disk: Callable[..., asyncio.Future[Any]]) -> None:
        """`disk` calls a function in a thread."""
        self._loop = loop
        self._disk = disk
        self._waiting: dict[Partition, dict[_DelayedFetch, None]] = {}
        self._places: dict[Partition, int] = {}
        self._partitions: dict[int, Partition] = {}
        self._by_session: dict[object, _DelayedFetch] = {}
        self._ticks: dict[int, dict[_DelayedFetch, None]] = {}
        self._timer: tuple[int, asyncio.TimerHandle] | None = None
        self._moved: dict[Partition, None] = {}  # whose waiters are to be made ready
        self._ready: deque[_DelayedFetch] = deque()
        self._is_serving = False
        self._signal = signal_to(loop, self._rung)
        self._chime = Chime(heads, self._signal.fd)
        self._thread = threading.Thread(target=self._chime.run, name="klamm-bell", daemon=True)
        self._thread.start()
        self._sweeper = loop.call_later(_SWEEP_S, self._sweep)

    def __len__(self) -> int:
        """How many wait."""
        return len(self._by_session)

    def delay(self, call: Call, fetching: Fetching, partitions: Iterable[Partition], wait_s: float) -> Reply[Struct]:
        """Return the response when an attempt succeeds, or when `wait_s` have passed."""
        if call.is_gone:
            return call.reply()  # it is cancelled
        tick = int((self._loop.time() + wait_s) / _TICK_S) + 1
        delayed = _DelayedFetch(call, fetching, tuple(partitions), tick)
        for partition in delayed.partitions:
            if partition not in self._places:
                place = self._chime.watch(partition.log)
                self._places[partition] = place
                self._partitions[place] = partition
            self._waiting.setdefault(partition, {})[delayed] = None
        self._by_session[call.session] = delayed
        self._chime.arm()
        self._try(delayed)  # something may have come before it was watched
        if self._by_session.get(call.session) is not delayed:
            return delayed.reply
        due = self._ticks.get(tick)
        if due is not None:
            due[delayed] = None
        else:
            self._ticks[tick] = {delayed: None}
            if self._timer is None or tick < self._timer[0]:
                self._set_timer(tick)
        return delayed.reply

    def wake_soon(self, partition: Partition) -> None:
        """Something was appended there, by this server: try those who wait, when the loop comes round."""
        if self._waiting.get(partition):
            self._chime.seen(self._places[partition])
            self._moved[partition] = None
            self._serve_soon()

    def forget(self, connection: object) -> None:
        """It is gone."""
        delayed = self._by_session.pop(connection, None)
        if delayed is not None:
            self._leave(delayed)

    def release_all(self) -> None:
        """Answer everybody, with what there is."""
        for delayed in list(self._by_session.values()):
            delayed.is_due = True
            self._try(delayed)

    def close(self) -> None:
        self._sweeper.cancel()
        if self._timer is not None:
            self._timer[1].cancel()
        self._chime.stop()
        self._thread.join()
        self._signal.close()

    # ---- when something moves

    def _rung(self) -> None:
        for place in self._chime.moved():
            self._moved[self._partitions[place]] = None
        self._serve_soon()
        if self._by_session:
            self._chime.arm()

    def _serve_soon(self) -> None:
        """Not now: whoever appended gets its answer first, and to go over all who wait takes a while, too."""
        if not self._is_serving and (self._moved or self._ready):
            self._is_serving = True
            self._loop.call_soon(self._serve)

    def _make_ready(self, waiting: Iterable[_DelayedFetch]) -> None:
        for delayed in waiting:
            if not delayed.is_ready:
                delayed.is_ready = True
                self._ready.append(delayed)

    def _serve(self) -> None:
        moved, self._moved = self._moved, {}
        for partition in moved:
            self._make_ready(self._waiting.get(partition, ()))
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
        """An error of one fetch closes its connection, and no other."""
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
        """A thread is done with an attempt."""
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
        self.forget(delayed.session)
        delayed.reply.fail(error)

    def _answer(self, delayed: _DelayedFetch, response: Struct) -> None:
        self._by_session.pop(delayed.session, None)
        self._leave(delayed)
        delayed.reply(response)

    def _leave(self, delayed: _DelayedFetch) -> None:
        for partition in delayed.partitions:
            self._waiting[partition].pop(delayed, None)
        due = self._ticks.get(delayed.tick)
        if due is not None:
            due.pop(delayed, None)
            if not due:
                del self._ticks[delayed.tick]

    def _sweep(self) -> None:
        """Stop watching what nobody waits for."""
        self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep)
        for partition in [each for each, waiting in self._waiting.items() if not waiting]:
            del self._waiting[partition]
            place = self._places.pop(partition)
            del self._partitions[place]
            self._chime.unwatch(place)
