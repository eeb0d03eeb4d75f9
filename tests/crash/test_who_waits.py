"""A process is stopped in the middle of a call, for each kind of call: who waits, and who does not.

What durability.md says in its table. Other processes wait 300 ms here and no 30 s, so a call that has to wait ends in
StoreBusy, which names the stopped process, and a call that does not is done. test_stopped_process.py has more on each.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

import klamm
from klamm.disk import _os, locks
from klamm.errors import StoreBusy
from tests.procs import Child, children, until

pytestmark = [
    pytest.mark.skipif(not _os.HAS_BYTE_LOCKS, reason="one process at a time"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning"),
]

BUSY_MS = 300
FREEZER = Path("/sys/fs/cgroup/freezer")


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = str(tmp_path / "store")
    with klamm.open(path) as store:
        for name in ("orders", "others"):
            store.topics.create(name, settings={"segment.bytes": 200})
            for number in range(8):
                store.append(name, b"%d" % number * 50, key=b"k%d" % (number % 2))
    return path


# ---- the process that is stopped


class Stop(NamedTuple):
    """A call, and the step at which it is stopped: it holds a lock there."""

    call: Callable[[klamm.Store], object]
    kinds: int
    step: int = 1


def commit(store: klamm.Store) -> None:
    with store.consumer("orders", group="stopped", wait=0, auto_offset_reset="earliest") as consumer:
        batch = consumer.poll(max_records=1, timeout=0)
        _os.trap(2, kinds=_os.LOCK, signal=signal.SIGSTOP)  # it has the write lock of klamm.db, and releases it next
        consumer.commit(batch)


def read(store: klamm.Store) -> list[bytes]:
    with store.consumer("orders", wait=0, form="values", auto_offset_reset="earliest") as consumer:
        return list(consumer)


STOPS = {
    "syncs": Stop(lambda store: store.append("orders", b"x"), _os.SYNC),
    "appends": Stop(lambda store: store.append("orders", b"x", acks=1), _os.WRITE),
    "commits offsets": Stop(commit, 0),
    "cleans": Stop(lambda store: store["orders"].delete_records({0: 5}), _os.UNLINK),
    "compacts": Stop(lambda store: store["orders"].compact(force=True), _os.RENAME),
    "reads": Stop(read, _os.READ),
}


@contextmanager
def stopped(path: str, name: str) -> Iterator[Child]:
    """A process that is stopped there; it goes on, and ends well, when the block is left."""
    stop = STOPS[name]

    def run() -> None:
        with klamm.open(path) as store:
            if name == "compacts":
                store.topics.alter("orders", settings={"cleanup.policy": "compact"})
            store._acquired().topic("orders").partition(0)
            if stop.kinds:
                _os.trap(stop.step, kinds=stop.kinds, signal=signal.SIGSTOP)
            stop.call(store)
            _os.trap(0)

    with children() as start:
        child = start(run)
        assert child.stopped(), f"it was not stopped, and ended\n{child.error}"
        yield child
        child.go_on()
        child.answer()


# ---- the others


def open_and_read(path: str) -> None:
    """In a child: this process has the store open already."""

    def run() -> int:
        with klamm.open(path, busy_timeout=BUSY_MS / 1000) as store:
            return len(read(store))

    with children() as start:
        assert start(run).answer() > 0


def commit_offsets(store: klamm.Store) -> None:
    with store.consumer("others", group="g", wait=0) as consumer:
        batch = consumer.poll(max_records=1, timeout=0)
        assert batch
        consumer.commit(batch)


def transact(store: klamm.Store) -> None:
    with store.transaction() as tx:
        tx.send("others", b"x")


CALLS: dict[str, Callable[[klamm.Store], object]] = {
    "append, acks=1": lambda store: store.append("orders", b"y", key=b"y", acks=1),
    "append, acks=all": lambda store: store.append("orders", b"y", key=b"y"),
    "append to another topic": lambda store: store.append("others", b"y"),
    "read": read,
    "clean": lambda store: store["orders"].delete_records({0: 6}),
    "clean another topic": lambda store: store["others"].delete_records({0: 2}),
    "commit offsets": commit_offsets,
    "transaction": transact,
    "create a topic": lambda store: store.topics.create("more", exist_ok=True),
    "open": lambda store: open_and_read(store.path),
    "check": lambda store: store.check(),
}

WAITING: dict[str, set[str]] = {
    "syncs": set(),
    "appends": {"append, acks=1", "append, acks=all", "clean"},
    "commits offsets": {"commit offsets", "transaction", "create a topic"},
    "cleans": {"clean"},
    "compacts": {"clean"},
    "reads": set(),
}
"""Calls that wait for a process that is stopped there. Every other one is done."""


@pytest.mark.parametrize("name", STOPS)
def test_a_stopped_process_holds_up_the_calls_that_need_its_lock_and_no_others(path: str, name: str) -> None:
    with klamm.open(path, busy_timeout=BUSY_MS / 1000) as store:
        lock = store._acquired().lock
        assert lock is not None
        if name == "syncs":  # they replace it, after a second
            lock.timeout_ms = locks.BUSY_TIMEOUT_MS
        store._acquired().topic("orders").partition(0)
        with stopped(path, name) as child:
            waited: set[str] = set()
            for call, action in CALLS.items():
                began = time.monotonic()
                try:
                    action(store)
                except StoreBusy as error:
                    waited.add(call)
                    message = str(error)
                    assert f"held by pid {child.pid} (" in message and "which is stopped" in message, message
                    assert f"waited {BUSY_MS / 1000:g} s" in message and f"kill -CONT {child.pid}" in message, message
                    assert time.monotonic() - began >= BUSY_MS / 1000
            assert waited == WAITING[name]
        for action in CALLS.values():
            action(store)
        assert store.check().ok


# ---- docker pause


@pytest.mark.skipif(not os.access(FREEZER, os.W_OK), reason="needs the right to freeze a control group")
def test_a_frozen_process_is_replaced_like_a_stopped_one(path: str) -> None:
    """As `docker pause` does it: the process has no signal, and its state is not "stopped"."""
    group = FREEZER / f"klamm-test-{os.getpid()}"
    group.mkdir()
    try:
        with klamm.open(path) as store, stopped(path, "syncs") as child:
            (group / "cgroup.procs").write_text(str(child.pid))
            (group / "freezer.state").write_text("FROZEN")
            until(lambda: (group / "freezer.state").read_text() == "FROZEN\n", "it is frozen")
            child.go_on()  # it is not stopped any more, and does not run
            try:
                store.append("orders", b"second", acks="all")
                held = [(each.lock, each.pid, each.is_stopped) for each in store.who() if each.of == "orders/0"]
                assert ("flush (replaced)", child.pid, True) in held
            finally:
                (group / "freezer.state").write_text("THAWED")
        with klamm.open(path) as store:
            assert read(store)[-2:] == [b"x", b"second"]
    finally:
        until(lambda: not (group / "cgroup.procs").read_text(), "it has ended")
        group.rmdir()
