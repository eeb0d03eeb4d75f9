"""Stores for tests with many processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import klamm
from klamm.disk import locks
from klamm.disk.threads import DaemonThread
from klamm.errors import KlammError
from klamm.store import directory


def values(store: klamm.Store, topic: str = "orders") -> list[bytes]:
    """Every record, in the order of the log; a test's topics have one partition."""
    with store.consumer(topic, start="earliest", wait=0) as consumer:
        return [record.value for batch in consumer.batches() for record in batch]


def open_on_another_boot(path: Path | str, **options: Any) -> str:
    """In a process of its own: what happens when the machine seems to have booted since."""
    directory.boot_id = lambda: b"another boot, 16"
    try:
        with klamm.open(path, **options) as store:
            return repr(values(store))
    except KlammError as error:
        return type(error).__name__


def without_maintenance(core: directory.Core) -> None:
    """Let no thread of this process look after the store: steps that a test counts are those of the test."""
    core._maintenance_thread = DaemonThread(lambda: None, "none")  # whoever has one starts no other
    core._maintenance_thread.join()


_MAPPED = ((1 << 40) + 1, 1)  # of `heads`: a byte that each mapping shares, as long as anything refers to it


def held_in(path: Path) -> list[tuple[int, int]]:
    """Return the bytes of a file that any open file holds."""
    if not path.exists():
        return []
    fd = os.open(path, os.O_RDWR)
    try:
        return [each for each in locks.held_by_others(fd, 0, 1 << 62) if each != _MAPPED]
    finally:
        os.close(fd)


__all__ = ["held_in", "open_on_another_boot", "values", "without_maintenance"]
