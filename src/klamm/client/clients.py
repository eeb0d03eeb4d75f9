"""The open clients of a store: producers, consumers, tables, transactions. They are closed with it.

They are held by weak references: a client that was dropped needs no closing.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from typing import Protocol

from klamm.client.produce.producer import Producer
from klamm.errors import Closed

__all__ = ["Client", "Clients"]


class Client(Protocol):
    def close(self) -> None: ...


class Clients:
    """The open clients of one Store object. Thread-safe."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._mutex = threading.Lock()
        self._open: weakref.WeakSet[Client] = weakref.WeakSet()
        self._is_closed = False

    def __iter__(self) -> Iterator[Client]:
        with self._mutex:
            return iter(list(self._open))

    def add(self, client: Client) -> None:
        """Close it with the store; at once, and raise Closed, if another thread has closed the store."""
        with self._mutex:
            if not self._is_closed:
                self._open.add(client)
                return
        client.close()
        raise Closed(f"{self._path}: the store is closed", hint="open it again")

    def close(self) -> Exception | None:
        """Close all, also those that other threads make meanwhile, and return the first error.

        Raise StoreError, and close none, in a callback of a delivery: its producer could not flush.
        """
        for client in self:
            if isinstance(client, Producer):
                client._check_not_in_callback("store.close()")
        failed: Exception | None = None
        closed: set[Client] = set()
        while True:
            with self._mutex:
                clients = set(self._open) - closed
                if not clients:
                    self._is_closed = True
                    return failed
            for client in clients:
                try:
                    client.close()
                except Exception as error:  # noqa: BLE001  # the others are closed, too; then it is returned
                    failed = failed or error
            closed |= clients
