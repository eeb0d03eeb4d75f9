"""Fork handlers: what owns descriptors, and locks on them, is told of forks.

Descriptors, and the locks on them, are shared with a forked child: a child keeps a killed parent's locks, and its
unlock frees the parent's. So every owner of such things registers itself, with what to call:

    in_child    in the child: close (never unlock) descriptors, drop the rest
    before      in the parent, before: take the mutexes, so that no thread is in the middle of something
    after       in the parent, after: let go of them

No garbage is collected meanwhile: a store that was dropped would be closed by its finalizer, in this very thread, and
wait for the mutexes that the thread has taken.

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
    """Call these with `owner` at each fork, for as long as it lives. They are functions of its class, not bound."""
    with guard:  # a dictionary that grows while a fork goes through it would end that in the middle
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
    kept.clear()  # not before: this may be the last that knew a store, whose finalizer wants the mutexes


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
