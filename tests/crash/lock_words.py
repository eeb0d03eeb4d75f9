"""What tests of the append lock share: a log that many processes append to, and a fork that nobody handles."""

from __future__ import annotations

import ctypes

from klamm.log.partition import Partition
from tests.rig import Seen, Sizes, names

BOUND_S = 10.0  # that an append waits on a busy machine; by itself it is 2 ms, and the others' turns
SIZES = Sizes(segment_bytes=64 << 10, index_interval_bytes=4096)
SLOT = 1


def read_all(partition: Partition) -> Seen:
    seen: Seen = []
    with partition.reader(0) as reader:
        while data := reader.read():
            seen += names(data)
    return seen


def fork_unhandled() -> int:
    """Fork as a C library does: no handler of Python's runs."""
    return int(ctypes.PyDLL(None).fork())


__all__ = ["BOUND_S", "SIZES", "SLOT", "fork_unhandled", "read_all"]
