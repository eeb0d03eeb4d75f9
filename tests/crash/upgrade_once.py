"""Upgrade a store, as `klamm upgrade` does: recorded by test_upgrade_power_cut.py.

upgrade_once.py ROOT      the store is ROOT/store
"""

from __future__ import annotations

import os
import sys

import klamm
from tests.crash.workload import note

if __name__ == "__main__":
    store = klamm.open(f"{sys.argv[1]}/store")
    note(returned="open")
    for name in store.topics:
        store.topics.describe(name)  # opens every partition, which recovers it
        note(returned=name)
    os._exit(0)  # without closing, which would sync
