"""What happens to open things when the process forks.

Descriptors, and the locks on them, are shared with a forked child: a child keeps a killed parent's locks, and its
unlock frees the parent's. So whatever owns such things is registered here and told:

    before_fork    in the parent, before: take the mutexes, so that no thread is in the middle of something
    after_fork     in the parent, after: let go of them
    in_child       in the child: close (never unlock) descriptors, drop the rest

No garbage is collected meanwhile: a store that was dropped would be closed by its finalizer, in this very thread, and
wait for the mutexes that the thread has taken.

Mutexes are taken in the order in which everybody else takes them: `guard`, then things by their `fork_order` (0 if they
have none).
"""

from __future__ import annotations

import gc
import os
import threading
import weakref
from typing import Protocol

__all__ = ["ForkAware", "Forkable", "guard", "register"]

# Held while a descriptor is opened and its owner registered: no fork comes in between.
guard = threading.RLock()


class Forkable(Protocol):
    def before_fork(self) -> None: ...
    def after_fork(self) -> None: ...
    def in_child(self) -> None: ...


class ForkAware:
    """What a fork leaves alone in the parent."""

    def before_fork(self) -> None:
        """Nothing: it has no mutex that the child would need."""

    def after_fork(self) -> None:
        """Nothing: the parent goes on."""


_registered: weakref.WeakSet[Forkable] = weakref.WeakSet()
_prepared: list[Forkable] = []
_collects = False  # whether garbage was collected before the fork


def register(thing: Forkable) -> None:
    """Tell `thing` about forks for as long as it lives."""
    with guard:  # a set that grows while a fork goes through it would end that in the middle
        _registered.add(thing)


def _before() -> None:
    global _collects
    guard.acquire()
    _collects = gc.isenabled()
    gc.disable()
    for thing in sorted(_registered, key=lambda thing: (getattr(thing, "fork_order", 0), id(thing))):
        thing.before_fork()
        _prepared.append(thing)


def _after() -> None:
    for thing in (kept := _taken()):
        thing.after_fork()
    _end()
    kept.clear()  # not before: this may be the last that knew a store, whose finalizer wants the mutexes


def _child() -> None:
    for thing in (kept := _taken()):
        thing.in_child()
    _end()
    kept.clear()


def _taken() -> list[Forkable]:
    taken = _prepared[::-1]
    _prepared.clear()
    return taken


def _end() -> None:
    if _collects:
        gc.enable()
    guard.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_child)
