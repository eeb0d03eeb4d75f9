"""Ways to drive the members of a group."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import klamm
from tests.procs import until


def turn(consumers: Iterable[klamm.Consumer]) -> list[klamm.Batch]:
    """One poll each: what came."""
    return [batch for consumer in consumers if (batch := consumer.poll(timeout=0))]


def settled(consumers: list[klamm.Consumer], holds: Callable[[], Any], what: str = "the group settles") -> None:
    until(lambda: (turn(consumers), holds())[1], what)


def shared(consumers: list[klamm.Consumer], count: int) -> None:
    """Wait until `count` partitions are shared out, fairly, each once."""

    def holds() -> bool:
        assignments = [consumer.assignment() for consumer in consumers]
        sizes = [len(each) for each in assignments]
        return sum(sizes) == count == len(set().union(*assignments)) and max(sizes) - min(sizes) <= 1

    settled(consumers, holds, f"{count} partitions are shared by {len(consumers)}")
