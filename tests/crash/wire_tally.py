"""Counts what might hide a fault of the server in histories over the wire, and bounds it.

    went_back      a consumer began again where it had begun before, and killed itself
    hung           a call did not return in time, and the process was killed
    crashed        librdkafka ended its process by SIGSEGV or SIGABRT
    out_of_order   a transactional producer was told that its sequence numbers are out of order

Each is known of librdkafka and rare: all together in one of a hundred lives. A server that brings them about more often
is at fault.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.crash.history import History

# Of the lives of clients. A run of some forty lives says little about a share: it may have FREE more.
SHARES = {"went_back": 0.01, "hung": 0.03, "crashed": 0.01, "out_of_order": 0.02}
FREE = 4


@dataclass
class Tally:
    """The counts of one run, or the sum of many."""

    lives: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)

    def add(self, history: History) -> None:
        self.lives += sum(1 for process in history.by_process if "wire_" in process)
        self.counts.update(event.kind for event in history.of(*SHARES))
        refused = [event for event in history.of("met") if "OUT_OF_ORDER_SEQUENCE_NUMBER" in event["error"]]
        self.counts["out_of_order"] += len({event.process for event in refused})
        self.errors.update(f"{event['call']}: {event['error']}" for event in history.of("met"))

    def exceeded(self) -> list[str]:
        """Return which bounds are exceeded."""
        return [
            f"{kind}: {self.counts[kind]} of {self.lives} lives, more than {share:.0%} and {FREE}"
            for kind, share in SHARES.items()
            if self.counts[kind] > FREE + share * self.lives
        ]

    def __str__(self) -> str:
        counts = ", ".join(f"{self.counts[kind]} {kind}" for kind in SHARES)
        return f"{self.lives} lives of clients: {counts}; errors: {dict(self.errors.most_common())}"
