"""Fetches that wait for records.

A delayed fetch is tried again when one of its partitions moves, whoever appended there: this server, which says so
itself, or any other process, which rings the bell of the store (log/_chime.pxi: one thread listens, without the GIL).
When its time is over it is answered with what there is.

Promises
  P1  No wake-up is lost: a partition is watched before the fetch looks for the last time whether there is something.
  P2  Many waiters delay nobody: they are tried in slices, and the loop sees to other things in between. Whoever
      appended has its answer before.
  P3  A waiter costs an entry in a few dictionaries; time-outs share one timer.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from klamm.kafka.wire.structs import Struct
from klamm.log.head import Chime, Heads

if TYPE_CHECKING:
    from klamm.kafka.call import Call
    from klamm.log.partition import Partition

__all__ = ["Attempt", "FetchPurgatory"]

Attempt = Callable[[bool], Struct | None]
"""The answer, or None: not yet. True: now or never."""

_SLICE = 32  # so many waiters are tried before the loop looks at other things
_TICK_S = 0.01  # time-outs are this exact
_SWEEP_S = 5.0  # how long a partition is watched for nobody


class _DelayedFetch:
    __slots__ = ("attempt", "call", "is_due", "is_ready", "partitions", "tick")

    def __init__(self, call: Call, attempt: Attempt, partitions: tuple[Partition, ...], tick: int) -> None:
        self.call = call
        self.attempt = attempt
        self.partitions = partitions
        self.tick = tick
        self.is_ready = False  # in the queue of those that are tried next
        self.is_due = False  # its time is over


class _EventFd:
    """A descriptor to write to, from any thread, so that the loop calls `rung`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, rung: Callable[[], None]) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._loop = loop
        self._rung = rung
        loop.add_reader(self.fd, self._read)

    def _read(self) -> None:
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return
        self._rung()

    def close(self) -> None:
        """After the last write."""
        self._loop.remove_reader(self.fd)
        os.close(self.fd)


class _Pipe:
    """Like `_EventFd`, where there is none (macOS), and where loops cannot wait for a descriptor (Windows)."""

    def __init__(self, loop: asyncio.AbstractEventLoop, rung: Callable[[], None]) -> None:
        self._end, self.fd = os.pipe()
        self._loop = loop
        self._rung = rung
        self._is_closed = False
        self._thread = threading.Thread(target=self._read, name="klamm-bell-pipe", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while os.read(self._end, 4096):
            self._loop.call_soon_threadsafe(self._ring)

    def _ring(self) -> None:
        if not self._is_closed:
            self._rung()

    def close(self) -> None:
        """After the last write."""
        self._is_closed = True
        os.close(self.fd)
        self._thread.join()
        os.close(self._end)


class FetchPurgatory:
    """Of one server, on its loop."""

    def __init__(self, heads: Heads, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[Partition, dict[_DelayedFetch, None]] = {}
        self._places: dict[Partition, int] = {}
        self._partitions: dict[int, Partition] = {}
        self._by_session: dict[object, _DelayedFetch] = {}
        self._ticks: dict[int, dict[_DelayedFetch, None]] = {}
        self._timer: tuple[int, asyncio.TimerHandle] | None = None
        self._moved: dict[Partition, None] = {}  # whose waiters are to be made ready
        self._ready: deque[_DelayedFetch] = deque()
        self._is_serving = False
        self._signal = (_EventFd if hasattr(os, "eventfd") else _Pipe)(loop, self._rung)
        self._chime = Chime(heads, self._signal.fd)
        self._thread = threading.Thread(target=self._chime.run, name="klamm-bell", daemon=True)
        self._thread.start()
        self._sweeper = loop.call_later(_SWEEP_S, self._sweep)

    def __len__(self) -> int:
        """How many wait."""
        return len(self._by_session)

    def delay(self, call: Call, attempt: Attempt, partitions: Iterable[Partition], wait_s: float) -> None:
        """Answer the call when an attempt succeeds, or when `wait_s` have passed."""
        if call.is_gone:
            return
        tick = int((self._loop.time() + wait_s) / _TICK_S) + 1
        delayed = _DelayedFetch(call, attempt, tuple(partitions), tick)
        for partition in delayed.partitions:
            if partition not in self._places:
                place = self._chime.watch(partition.log)
                self._places[partition] = place
                self._partitions[place] = partition
            self._waiting.setdefault(partition, {})[delayed] = None
        self._by_session[call.session] = delayed
        self._chime.arm()
        response = attempt(False)  # something may have come before it was watched
        if response is not None:
            self._answer(delayed, response)
            return
        due = self._ticks.get(tick)
        if due is not None:
            due[delayed] = None
        else:
            self._ticks[tick] = {delayed: None}
            if self._timer is None or tick < self._timer[0]:
                self._set_timer(tick)

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
            self._try(delayed, True)

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
            if self._by_session.get(delayed.call.session) is delayed:
                self._try(delayed, delayed.is_due)
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

    def _try(self, delayed: _DelayedFetch, now_or_never: bool) -> None:
        """What goes wrong with one is no matter of the others."""
        try:
            response = delayed.attempt(now_or_never)
            if response is not None:
                self._answer(delayed, response)
        except Exception:  # noqa: BLE001  # logged, and the connection closed
            self.forget(delayed.call.session)
            delayed.call.fail()

    def _answer(self, delayed: _DelayedFetch, response: Struct) -> None:
        self._by_session.pop(delayed.call.session, None)
        self._leave(delayed)
        delayed.call.respond(response)

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
