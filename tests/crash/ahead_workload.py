"""Appends to a log that has blocks ahead of its commit: recorded by test_ahead_power_cut.py.

ahead_workload.py ROOT      the store is ROOT/store; notes what was asked for and what was acknowledged as on disk
"""

from __future__ import annotations

import os
import sys

import klamm
from tests.crash.workload import note

COUNT = 60
SETTINGS = {"segment.bytes": "150000", "index.interval.bytes": "20000"}


def value(number: int) -> bytes:
    return b"%d" % number + b"." * 4000


if __name__ == "__main__":
    store = klamm.open(f"{sys.argv[1]}/store")
    store.topics.create("orders", 1, SETTINGS)
    note(ready=True)
    for number in range(COUNT):
        note(appending=number)
        store.append("orders", value(number), acks="all" if number % 3 else 1)
        if number % 3:
            note(acked=number)
    os._exit(0)  # without closing, which would sync and give back what is ahead
