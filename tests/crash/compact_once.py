"""One compaction of the topic `users` in ROOT/store, to be recorded by powercut.c: compact_once.py ROOT."""

from __future__ import annotations

import sys

import klamm

if __name__ == "__main__":
    with klamm.open(f"{sys.argv[1]}/store") as store:
        store["users"].compact(force=True)
