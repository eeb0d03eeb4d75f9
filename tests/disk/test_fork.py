"""A fork whose handlers are interrupted: no lock stays held, no descriptor open in the child; the exception is raised.

CPython prints and drops what is raised in such a handler, and goes on: locks that were taken stay held for ever.
"""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

import pytest

import klamm
from klamm.disk import fork
from klamm.store.directory import Core
from tests.interrupts import Interrupted, interrupt_at
from tests.procs import PATIENCE, readable

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")


def fork_at(point: int, core: Core) -> tuple[int, bool, bytes]:
    """Fork, with an interrupt at the n-th point of the handlers in each process.

    Return how many points there were, whether the interrupt was raised here, and what the child says.
    """
    parent, (reading, writing) = os.getpid(), os.pipe()
    assert core.lock is not None
    raised = False
    try:
        with interrupt_at(point, within="klamm/") as tracer:  # not in handlers of the standard library
            os.fork()
    except Interrupted:
        raised = True
    finally:
        if os.getpid() != parent:
            is_clean = core.closed and core.lock.fd < 0 and fork.guard.acquire(blocking=False)
            os.write(writing, b"clean" if is_clean else b"not clean")
            os._exit(0)
    os.close(writing)
    try:
        assert readable(reading, PATIENCE)
        said = os.read(reading, 100)
    finally:
        os.close(reading)
        os.waitpid(-1, 0)
    return tracer.passed, raised, said


def test_an_interrupt_at_any_point_of_a_fork_leaves_no_lock_held(tmp_path: Path) -> None:
    with klamm.open(tmp_path / "store") as store:
        store.topics.create("orders")
        store.append("orders", b"x", acks=1)
        core = store._acquired()
        points, raised, said = fork_at(0, core)
        assert (raised, said) == (False, b"clean") and points >= 5
        point = 0
        while raised or not point:
            point += 1
            assert point < 10 * points, "it is interrupted wherever"
            _, raised, said = fork_at(point, core)
            assert said == b"clean", point
            assert gc.isenabled()
            appended: list[int | None] = []
            thread = threading.Thread(target=lambda found=appended: found.append(store.append("orders", b"x", acks=1)))
            thread.start()
            thread.join(PATIENCE)
            assert appended == [point], f"interrupted at point {point}, a lock is still held"
        assert point > points // 2  # a fork after the first passes some points less


def test_a_handler_that_always_fails_is_reported_and_the_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Owner:
        """Something that can be registered."""

    reported: list[str] = []
    monkeypatch.setattr("sys.unraisablehook", lambda args: reported.append(str(args.exc_value)))
    owner, taken = Owner(), threading.Lock()

    def fail(owner: Owner, take: object) -> None:
        raise ValueError("as ever")

    fork.register(owner, lambda owner: None, fail, order=5)
    other = Owner()
    fork.register(other, lambda owner: None, lambda owner, take: take(taken), order=6)
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    assert reported == ["as ever"]
    assert not taken.locked()
