"""What streaming pipelines promise, in plain Python: the watermark of each micro-batch, and what is late by it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import klamm

START_MS = 1_700_000_000_000 // 60_000 * 60_000
NO_RETENTION = {"retention.ms": -1}


class Event(NamedTuple):
    at: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


class Round(NamedTuple):
    """A micro-batch: records at or below `late_ms` are late, and what has ended at `watermark_ms` is over."""

    events: Any
    """None: there are none."""
    late_ms: int
    watermark_ms: int


def rounds(
    runs: Iterable[Iterable[Any]], delay_ms: int, times: Callable[[Any], Sequence[Sequence[int]]]
) -> Iterator[Round]:
    """The micro-batches of runs; after its last, each run has one without records, in which windows close.

    `times` gives the times of a micro-batch for each of the topics that are read; the one that is behind counts.
    """
    latest: dict[int, int] = {}
    before = now = 0
    for run in runs:
        for events in [*run, None]:
            yield Round(events, before, now)
            before = now
            seen = [] if events is None else times(events)
            for number, each in enumerate(seen):
                latest[number] = max([latest.get(number, 0), *each])
            if latest and 0 not in latest.values():
                now = max(now, min(latest.values()) - delay_ms)


def send(store: klamm.Store, topic: str, events: Iterable[Event]) -> None:
    for event in events:
        store.append(topic, event.value, key=event.key, headers=list(event.headers), timestamp=event.at, acks=1)


def contents(store: klamm.Store, topic: str) -> list[Any]:
    with store.consumer(topic, start="earliest", wait=0) as consumer:
        return list(consumer)


BROKEN = (b"{", b"\xff", None, b'{"user": {"id": "anna"}}', b'{"user": {}, "total": 1}')


def order(at: int, number: int, user: str = "anna", total: float = 1.5) -> Event:
    value = json.dumps({"user": {"id": user}, "total": total, "at": at}).encode()
    return Event(at, b"%s-%d" % (user.encode(), number % 3), value, (("id", b"%d" % number),))


def orders(dice: random.Random, count: int, begin_ms: int, span_ms: int) -> list[Event]:
    """Records of a shop, in the order in which they come, not in that of their times; some are broken."""
    found = []
    for number in range(count):
        user = dice.choice(["anna", "bea", 'c"é'])
        made = order(begin_ms + dice.randrange(span_ms), number, user, dice.randrange(-500, 5000) / 100)
        if number % 10 == 7:
            made = made._replace(value=BROKEN[number // 10 % len(BROKEN)])
        if number % 10 == 3:
            made = made._replace(key=None, headers=())
        found.append(made)
    return found


def parsed(value: bytes | None) -> Any:
    try:
        return json.loads(value or b"")
    except ValueError:
        return None


def iso(at: int) -> str:
    return datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
