"""Close tables and stores that are left open when the interpreter exits.

Nothing that was sent is lost, for producers flush; and the process ends with its own status, for nothing is at work any
more when Python goes. Threads have ended by then, except daemons. Tables go first, and are waited for with a bound;
then the stores are closed, one after the other.
"""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from collections.abc import Callable
from typing import Protocol

__all__ = ["Store", "before_stores", "open_stores"]


class Store(Protocol):
    @property
    def path(self) -> str: ...
    def close(self) -> None: ...


open_stores: weakref.WeakSet[Store] = weakref.WeakSet()
_before: list[Callable[[], None]] = []
_log = logging.getLogger("klamm")


def before_stores(action: Callable[[], None]) -> None:
    """Call it when the process ends, before stores are closed."""
    _before.append(action)


@atexit.register
def _close_all() -> None:
    for action in _before:
        try:
            action()
        except Exception:  # noqa: BLE001  # it is told, and the stores are closed all the same
            _log.exception("not everything could be closed")
    for store in list(open_stores):
        try:
            store.close()
        except Exception:  # noqa: BLE001  # the others are closed, too
            if os.path.exists(store.path):  # where there is no directory any more, nothing is missed
                _log.exception("%r: not everything could be delivered", store)
