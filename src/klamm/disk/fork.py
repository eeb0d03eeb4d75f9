"""Fork handlers for owners of descriptors and of locks on them.

A forked child shares descriptors and the locks on them: it would keep a killed parent's locks, and an unlock in the
child would release the parent's. So every owner of a descriptor registers itself, with functions to call:

    in_child    in the child: close (never unlock) descriptors, drop the rest
    before      in the parent, before the fork: take the mutexes, so that no thread is inside a critical section, with
                the function `take` that it gets; they are released after the fork

Both can be repeated: a function that a signal handler interrupts, by raising, is called again, and what the handler
raised is raised again when the fork is over (ForkHandlers).

Garbage collection is off during a fork: it could close a dropped store in this thread, which would then wait for
mutexes that the thread itself holds.

Mutexes are taken in the order in which all other code takes them: `guard`, then owners by their `order`.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from klamm.disk._os import ForkHandlers

if TYPE_CHECKING:
    from klamm.disk._os import Lockable

__all__ = ["guard", "register"]

T = TypeVar("T")

# Held while a descriptor is opened and its owner registered: no fork comes in between.
guard = threading.RLock()


class _Hooks(NamedTuple):
    order: int
    before: Callable[[Any, Callable[[Lockable], None]], None] | None
    in_child: Callable[[Any], None]


_registered: weakref.WeakKeyDictionary[object, _Hooks] = weakref.WeakKeyDictionary()


def register(
    owner: T,
    in_child: Callable[[T], None],
    before: Callable[[T, Callable[[Lockable], None]], None] | None = None,
    *,
    order: int = 0,
) -> None:
    """Call these functions with `owner` at each fork, as long as it exists. They must not be bound methods."""
    with guard:  # a dictionary must not change while a fork iterates over it
        _registered[owner] = _Hooks(order, before, in_child)


def _owners() -> list[tuple[object, _Hooks]]:
    return sorted(_registered.items(), key=lambda each: (each[1].order, id(each[0])))


if hasattr(os, "register_at_fork"):
    _handlers = ForkHandlers(guard, _owners)
    os.register_at_fork(
        before=_handlers.before,
        after_in_parent=_handlers.after_in_parent,
        after_in_child=_handlers.after_in_child,
    )
