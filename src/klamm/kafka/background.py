"""A server in a thread of this process, for as long as a `with` block lasts.

    with klamm.server("events/") as address:
        producer = confluent_kafka.Producer({"bootstrap.servers": address})

It has a loop of its own, so it goes with or without asyncio around it. The store may be open in this process as well:
both doors share it, as they would between processes.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from klamm.kafka.service import Service
from klamm.kafka.settings import ServerSettings

if TYPE_CHECKING:
    from klamm.api import Store
    from klamm.store.settings import Value

__all__ = ["Background", "server"]


def server(path: str | Path | Store[Any, Any], **settings: Value | bool) -> Background:
    """Serve a store to Kafka clients: a context manager that gives the address, as in "127.0.0.1:40123".

    `settings` are those of docs/reference/server-settings.md, with `_` for `.` and `-`. The port is any that is free,
    unless `kafka` names one. What keeps the server from starting is raised where the block begins. Leaving it lets
    requests that are under way end, and closes.
    """
    return Background(path, ServerSettings.of({"kafka": 0, **settings}))


class _RunningServer(NamedTuple):
    service: Service
    loop: asyncio.AbstractEventLoop
    enough: asyncio.Event

    def stop(self) -> None:
        try:
            self.loop.call_soon_threadsafe(self.enough.set)
        except RuntimeError:  # the loop has just closed by itself
            pass


class Background:
    """One server, one thread, one loop, once."""

    def __init__(self, path: str | Path | Store[Any, Any], settings: ServerSettings) -> None:
        self._path = path
        self._settings = settings
        self._started: Future[_RunningServer] = Future()
        self._ended: Future[None] = Future()
        # A daemon, so that a program that never leaves its block can end all the same; to the store, that is a kill.
        self._thread = threading.Thread(target=self._run, name="klamm-server", daemon=True)

    def __enter__(self) -> str:
        """Return the server's address, once it listens. Raise its error, if it cannot."""
        self._thread.start()
        try:
            return self._started.result().service.address
        except BaseException:
            if self._started.done():
                self._thread.join()
            else:  # an interrupt, while it was starting
                self._started.add_done_callback(_abandon)
            raise

    def __exit__(self, *_: object) -> None:
        """Close it, wait until it is closed, and raise what it failed with, if it did."""
        self._started.result().stop()
        self._thread.join()
        self._ended.result()

    def run_due_work(self) -> None:
        """Wait until it has done what is due by the store's clock: see klamm.testing.advance."""
        running = self._started.result()
        asyncio.run_coroutine_threadsafe(running.service.server.run_due_work(), running.loop).result()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001  # raised in the thread that waits
            if not self._started.done():
                self._started.set_exception(error)
            self._ended.set_exception(error)
        else:
            self._ended.set_result(None)

    async def _serve(self) -> None:
        service = Service(self._path, self._settings)
        await service.start()
        enough = asyncio.Event()
        self._started.set_result(_RunningServer(service, asyncio.get_running_loop(), enough))
        try:
            await service.serve_until(enough.wait())
        finally:
            await service.stop()


def _abandon(started: Future[_RunningServer]) -> None:
    if started.exception() is None:
        started.result().stop()
