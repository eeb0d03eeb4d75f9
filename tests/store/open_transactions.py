"""Looking at transactions in a store's logs: what is read, what stands open, what ended it; and a writer that stops."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import klamm
from klamm.batch import walk
from klamm.log.partition import Partition
from klamm.store.directory import Core
from klamm.store.server_rows import ServerRowReader
from tests.procs import Flag

__all__ = ["core_of", "hold_append_lock", "log_of", "markers", "seen", "server_names", "stands_open"]


def core_of(store: klamm.Store) -> Core:
    return store._acquired()


def log_of(store: klamm.Store, number: int = 0, topic: str = "t") -> Partition:
    return core_of(store).topic(topic).partition(number)


def seen(store: klamm.Store, *numbers: int, topic: str = "t") -> list[list[bytes]]:
    """What readers of committed records see, by partition."""
    found = []
    for number in numbers:
        with store.consumer(topic, partitions=[number], wait=0, form="values") as consumer:
            found.append(list(consumer))
    return found


def stands_open(partition: Partition) -> bool:
    ends = partition.ends()
    return ends.stable < ends.end


def server_names(store: klamm.Store) -> list[str]:
    """The transactional ids that clients of the server hold, as klamm.db has them."""
    found = ServerRowReader(core_of(store).catalog.database).read().values()
    return sorted(each.row.name for each in found if each.holds_name and each.row is not None and each.row.name)


def markers(partition: Partition) -> list[int]:
    """The epochs of all markers in a log."""
    found = []
    with partition.reader(0, committed=False) as reader:
        while data := reader.read():
            found += [header.producer_epoch for header in walk(data) if header.is_control]
    return found


def hold_append_lock(path: str | Path, number: int, ready: Flag, go: Flag) -> None:
    """In a child: open the store, and when told to, take the log's append lock and stop."""
    with klamm.open(path) as mine:
        log = log_of(mine, number).log
        ready.up()
        go.wait()
        log.lock()
        os.kill(os.getpid(), signal.SIGSTOP)
        log.unlock()
