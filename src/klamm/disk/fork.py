"""Fork handlers for owners of descriptors and of locks on them.

A forked child shares descriptors and the locks on them: it would keep a killed parent's locks, and an unlock in the
child would release the parent's. So every owner of a descriptor registers itself, with functions to call:

    in_child    in the child: close (never unlock) descriptors, drop the rest
    before      in the parent, before the fork: take the mutexes, so that no thread is inside a critical section
    after       in the parent, after the fork: release them

Garbage collection is off during a fork: it could close a dropped store in this thread, which would then wait for
mutexes that the thread itself holds.

Mutexes are taken in the order in which all other code takes them: `guard`, then owners by their `order`.
"""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

__all__ = ["guard", "register"]

T = TypeVar("T")

# Held while a descriptor is opened and its owner registered: no fork comes in between.
guard = threading.RLock()


class _Hooks(NamedTuple):
    order: int
    before: Callable[[Any], None] | None
    after: Callable[[Any], None] | None
    in_child: Callable[[Any], None]


_registered: weakref.WeakKeyDictionary[object, _Hooks] = weakref.WeakKeyDictionary()
_prepared: list[tuple[object, _Hooks]] = []
_collects = False  # whether garbage was collected before the fork


def register(
    owner: T,
    in_child: Callable[[T], None],
    before: Callable[[T], None] | None = None,
    after: Callable[[T], None] | None = None,
    *,
    order: int = 0,
) -> None:
    """Call these functions with `owner` at each fork, as long as it exists. They must not be bound methods."""
    with guard:  # a dictionary must not change while a fork iterates over it
        _registered[owner] = _Hooks(order, before, after, in_child)


def _before() -> None:
    global _collects
    guard.acquire()
    _collects = gc.isenabled()
    gc.disable()
    for owner, hooks in sorted(_registered.items(), key=lambda each: (each[1].order, id(each[0]))):
        if hooks.before is not None:
            hooks.before(owner)
        _prepared.append((owner, hooks))


def _after() -> None:
    for owner, hooks in (kept := _taken()):
        if hooks.after is not None:
            hooks.after(owner)
    _end()
    kept.clear()  # only now: this may be the last reference to a store, whose finalizer takes the mutexes


def _child() -> None:
    for owner, hooks in (kept := _taken()):
        hooks.in_child(owner)
    _end()
    kept.clear()


def _taken() -> list[tuple[object, _Hooks]]:
    taken = _prepared[::-1]
    _prepared.clear()
    return taken


def _end() -> None:
    if _collects:
        gc.enable()
    guard.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_child)
