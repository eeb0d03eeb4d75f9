"""One compaction of the topic `users`, to be recorded by powercut.c: compact_once.py STORE."""

from __future__ import annotations

import sys

import klamm

if __name__ == "__main__":
    with klamm.open(sys.argv[1]) as store:
        store.compact("users", force=True)
