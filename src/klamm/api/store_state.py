"""The state that both halves of a Store share: the open directory, and the objects made from it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from klamm.api.call_options import checked
from klamm.errors import ReadOnly
from klamm.log.head import QuickStore

if TYPE_CHECKING:
    from klamm.client.clients import Clients
    from klamm.client.produce.target import Target
    from klamm.client.serde import Serdes
    from klamm.client.transaction import Pool
    from klamm.store.directory import Core

__all__ = ["StoreState"]

_Item = TypeVar("_Item")


class StoreState(QuickStore):
    """The state of a store, open or closed; Store sets these."""

    _path: str
    _read_only: bool
    _serdes: Serdes
    _has_serdes: bool
    _mutex: threading.RLock
    _targets: dict[str, Target]
    _clients: Clients
    _pool: Pool | None
    _core: Core | None

    def _acquired(self) -> Core:
        raise NotImplementedError

    def _writable(self) -> Core:
        if self._read_only:
            raise ReadOnly(f"{self._path}: opened for reading only")
        return self._acquired()

    def _checked(self, call: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the checked options of a call, with the store's serdes as defaults."""
        return checked(call, options, self._serdes)

    def _held_by(self, items: Iterator[_Item], call: str) -> Iterator[_Item]:
        """Keep the store from being dropped for as long as `items`, which `call` returns, are read."""
        held = self._hold(items)
        held.__qualname__ = call  # type: ignore[attr-defined]  # which its repr shows
        return held

    def _hold(self, items: Iterator[_Item]) -> Generator[_Item, None, None]:
        yield from items
