"""Programs at work on a cluster: producers with acks="all" and members of a group, each a thread with its own store.

Each producer numbers the records of its keys. So what was lost, doubled or put out of order can be told.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Self

import klamm
from klamm.batch import Delivery
from klamm.errors import NotOwner, Unreachable
from tests.procs import PATIENCE

__all__ = ["ClusterLoad", "check_log", "check_seen", "numbers_of"]

KEYS = 4  # of each producer
_PAUSE_S = 0.01  # between the bursts of a producer
_BURST = 5


class ClusterLoad:
    """Started by `with`; `stop_producers` and `stop_members` raise what went wrong in a thread."""

    def __init__(
        self, address: str, topic: str, group: str, seed: int, *, producers: int = 2, members: int = 2
    ) -> None:
        self._address = address
        self._topic = topic
        self._group = group
        self._over = threading.Event()
        self._done = threading.Event()
        self._errors: list[BaseException] = []
        self._mutex = threading.Lock()
        self.sent: dict[bytes, list[Delivery]] = {}
        """By key; its number is the index."""
        self.seen: list[tuple[bytes, int]] = []
        """What members were given, in the order of their polls; committed afterwards."""
        self._producers = [self._thread(self._produce, n, random.Random(seed + n)) for n in range(producers)]
        self._members = [self._thread(self._consume) for _ in range(members)]

    def _thread(self, run: Callable[..., None], *arguments: Any) -> threading.Thread:
        def guarded() -> None:
            try:
                run(*arguments)
            except BaseException as error:  # raised by `check`
                self._errors.append(error)

        return threading.Thread(target=guarded, name=run.__name__, daemon=True)

    def __enter__(self) -> Self:
        for thread in (*self._producers, *self._members):
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._done.set()
        for thread in (*self._producers, *self._members):
            thread.join(2 * PATIENCE)

    # ---- the threads

    def _produce(self, number: int, dice: random.Random) -> None:
        keys = [b"%d-%d" % (number, n) for n in range(KEYS)]
        counts = dict.fromkeys(keys, 0)
        with klamm.open(self._address) as store, store.producer(linger_ms=2) as producer:
            while not self._over.is_set():
                for _ in range(dice.randint(1, _BURST)):
                    key = dice.choice(keys)
                    delivery = producer.send(self._topic, b"%d" % counts[key], key=key)
                    counts[key] += 1
                    self.sent.setdefault(key, []).append(delivery)
                time.sleep(_PAUSE_S)
            producer.flush(2 * PATIENCE)

    def _consume(self) -> None:
        with klamm.open(self._address) as store, store.consumer(self._topic, group=self._group) as consumer:
            while not self._done.is_set():
                try:
                    batch = consumer.poll(timeout=0.1)
                except Unreachable:  # too few brokers, for long: it goes on when it is polled again
                    continue
                if not batch:
                    continue
                with self._mutex:
                    self.seen += [(record.key, int(record.value)) for record in batch]
                try:
                    consumer.commit(batch)
                except (NotOwner, Unreachable):
                    pass  # its owner reads them again

    # ---- looking

    def check(self) -> None:
        """Raise what went wrong in a thread."""
        if self._errors:
            raise self._errors[0]

    def acked(self) -> int:
        """Return how many records are acknowledged."""
        self.check()
        return sum(delivery.done for each in list(self.sent.values()) for delivery in list(each))

    def handled(self) -> int:
        """Return how many records members were given, each counted once."""
        self.check()
        with self._mutex:
            return len(set(self.seen))

    def stop_producers(self) -> None:
        """Let the producers send what they have, and end."""
        self._over.set()
        for thread in self._producers:
            thread.join(3 * PATIENCE)
            assert not thread.is_alive(), "a producer does not end"
        self.check()

    def stop_members(self) -> None:
        """Let the members leave."""
        self._done.set()
        for thread in self._members:
            thread.join(2 * PATIENCE)
            assert not thread.is_alive(), "a member does not end"
        self.check()


def numbers_of(records: Any) -> dict[bytes, list[int]]:
    """Return the numbers of each key, in their order."""
    found: dict[bytes, list[int]] = {}
    for record in records:
        found.setdefault(record.key, []).append(int(record.value))
    return found


def check_log(load: ClusterLoad, log: dict[bytes, list[int]]) -> None:
    """Assert that what was acknowledged is in the log once, and that each key's records are in their order."""
    for key, deliveries in load.sent.items():
        numbers = log.get(key, [])
        wrong = next((at for at, (one, after) in enumerate(pairwise(numbers)) if after <= one), None)
        assert wrong is None, f"{key!r}: out of order, or doubled, in {numbers[max(0, wrong - 10) : wrong + 20]}"
        lost = {n for n, each in enumerate(deliveries) if each.done and each.error is None} - set(numbers)
        assert not lost, f"{key!r}: acknowledged, and lost: {sorted(lost)[:20]}"


def check_seen(load: ClusterLoad) -> None:
    """Assert that members were given the records of a key in their order, but for those they were given again."""
    last: dict[bytes, int] = {}
    for key, number in load.seen:
        before = last.get(key, -1)
        assert number <= before + 1, f"{key!r}: {number} came after {before}"
        last[key] = max(before, number)
