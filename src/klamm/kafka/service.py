"""A server and what watches it, started and stopped together: what `klamm serve` and `klamm.server` both run."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from klamm.kafka.addresses import CANNOT_LISTEN, is_loopback, refused
from klamm.kafka.logs import event
from klamm.kafka.server import Server

if TYPE_CHECKING:
    from klamm.api import Store
    from klamm.kafka.monitor import Monitor
    from klamm.kafka.settings import ServerSettings

__all__ = ["Service"]

_log = logging.getLogger("klamm.kafka")


class Service:
    """For one loop, once."""

    def __init__(self, path: str | Path | Store, settings: ServerSettings) -> None:
        self._settings = settings
        self.server = Server(path, settings)
        self.monitor: Monitor | None = None

    @property
    def address(self) -> str:
        return self.server.address

    @property
    def store_id(self) -> str:
        return self.server.broker.cluster_id

    async def start(self) -> None:
        """Clients can come when it returns; if it raises, everything is as before."""
        settings = self._settings
        if settings.metrics >= 0:
            from klamm.kafka.monitor import Monitor

            self.monitor = Monitor(settings.host, settings.metrics)
        try:
            await self.server.start()
        except BaseException as error:
            self._close_monitor()
            if isinstance(error, OSError) and error.errno in CANNOT_LISTEN:
                raise refused(error, "kafka", settings.host, settings.kafka) from None
            raise
        if self.monitor is not None:
            self.monitor.ready(self.server.broker, self.address)
        if not is_loopback(self.server.host):
            _log.warning(
                "listening on %s, beyond this machine: there is no authentication and no encryption, so every client"
                " that reaches the port can read, write and delete (host=127.0.0.1 is this machine alone)",
                self.address,
            )
        event("listening", address=self.address, store_id=self.store_id, pid=os.getpid(), metrics=self.metrics or None)

    @property
    def metrics(self) -> str:
        """Where /metrics is; empty if it is nowhere."""
        return self.monitor.address if self.monitor is not None else ""

    async def stop(self, *, drain_s: float = 5.0) -> None:
        """Take nobody new, let requests that are under way end for at most `drain_s` seconds, close."""
        if self.monitor is not None:
            self.monitor.draining()
        event("draining", connections=self.server.broker.metrics.connections)
        try:
            await self.server.stop(drain_s=drain_s)
        finally:
            self._close_monitor()
        event("stopped")

    def _close_monitor(self) -> None:
        if self.monitor is not None:
            self.monitor.close()
