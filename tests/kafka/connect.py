"""A server for tests of the door, in a thread with a loop of its own; and a client that speaks by hand: `Raw`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from klamm.kafka.broker import Broker
from klamm.kafka.server import Server
from klamm.kafka.settings import ServerSettings
from tests.interop.raw import ConnectionEnded, Raw
from tests.procs import PATIENCE

__all__ = ["ConnectionEnded", "Raw", "Served", "served"]

Result = TypeVar("Result")


class Served:
    """A server that listens."""

    def __init__(self, path: Path, settings: ServerSettings) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="server", daemon=True)
        self._thread.start()
        self.server = Server(path, settings)
        self.run(self.server.start())

    @property
    def address(self) -> str:
        return self.server.address

    @property
    def broker(self) -> Broker:
        return self.server.broker

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """On its loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE)

    def call(self, function: Callable[[], Result]) -> Result:
        """On its loop."""

        async def called() -> Result:
            return function()

        return self.run(called())

    def advance(self, seconds: float) -> None:
        """Let so much time pass on the server's clock, and on no other."""
        before = self.loop.time
        self.call(lambda: setattr(self.loop, "time", lambda: before() + seconds))

    def dial(self) -> Raw:
        return Raw(self.address)

    def stop(self) -> None:
        self.run(self.server.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        self.loop.close()


@contextmanager
def served(path: Path, **settings: Any) -> Iterator[Served]:
    """A server of the store at `path`, at any port that is free."""
    server = Served(path, ServerSettings.of({"kafka": 0, **settings}))
    try:
        yield server
    finally:
        server.stop()
