"""A server and what watches it, started and stopped together: what `klamm serve` and `klamm.server` both run."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from klamm.kafka.addresses import is_loopback, spelled
from klamm.kafka.logs import event
from klamm.kafka.security.endpoints import PLAINTEXT, strictest
from klamm.kafka.server import Server

if TYPE_CHECKING:
    from klamm.api import Store
    from klamm.kafka.monitor import Monitor
    from klamm.kafka.security.endpoints import Endpoint
    from klamm.kafka.settings import ServerSettings

__all__ = ["Service"]

_OPEN = (
    "there is no authentication and no encryption, so every client that reaches the port can read, write and delete"
    " (host=127.0.0.1 is this machine alone)"
)
_UNASKED = "clients need no certificate (ssl.client.auth), so everyone can read, write and delete"
_READABLE = (
    "there is no encryption, so everyone on the way can read records, and the passwords of clients that log in by PLAIN"
)

_METRICS_OPEN = (
    "there is no authentication and no encryption, so everyone on the way can read them, and names of topics and"
    " groups with them (metrics.security.protocol)"
)
_METRICS_READABLE = (
    "there is no encryption, so everyone on the way can read the passwords and tokens by which users log in"
    " (metrics.security.protocol=SASL_SSL)"
)
_ANONYMOUS = "there is no authentication, so every client that reaches the port has the rights of User:ANONYMOUS"

_log = logging.getLogger("klamm.kafka")
_T = TypeVar("_T")


def warning_about(endpoint: Endpoint, settings: ServerSettings) -> str:
    """Return what a client without credentials can do at a listener; empty if nothing."""
    is_anonymous = not endpoint.uses_sasl and not (endpoint.uses_tls and settings.ssl_client_auth == "required")
    if settings.authorizer_class_name and is_anonymous:
        return _ANONYMOUS if endpoint.uses_tls else f"{_ANONYMOUS}, and no encryption"
    if endpoint.uses_sasl:
        return "" if endpoint.uses_tls else _READABLE
    if not endpoint.uses_tls:
        return _OPEN
    return "" if settings.ssl_client_auth == "required" else _UNASKED


class Service:
    """A server and what watches it. For one event loop; started once."""

    def __init__(self, path: str | Path | Store, settings: ServerSettings) -> None:
        self._settings = settings
        self.server = Server(path, settings)
        self.monitor: Monitor | None = None

    @property
    def address(self) -> str:
        return self.server.address

    @property
    def listeners(self) -> str:
        """All that it listens at."""
        return self.server.listeners

    @property
    def store_id(self) -> str:
        return self.server.broker.cluster_id

    async def start(self) -> None:
        """Start the server. Clients can connect when this returns; if it raises, everything is as before."""
        settings = self._settings
        if settings.metrics >= 0:
            from klamm.kafka.monitor import Monitor
            from klamm.kafka.monitor_access import Access

            by_default = strictest(self.server.endpoints, settings).protocol
            protocol = settings.metrics_security_protocol or by_default
            access = Access(settings, protocol) if protocol != PLAINTEXT or settings.authorizer_class_name else None
            self.monitor = Monitor(settings.host, settings.metrics, access)
            why = {PLAINTEXT: _METRICS_OPEN, "SASL_PLAINTEXT": _METRICS_READABLE}.get(protocol)
            if why and not self.monitor.is_loopback:
                _log.warning("metrics at %s, beyond this machine: %s", self.monitor.address, why)
        try:
            await self.server.start()
        except BaseException:
            self._close_monitor()
            raise
        if self.monitor is not None:
            self.monitor.ready(self.server.broker, self.address)
        for endpoint in self.server.endpoints:
            why = warning_about(endpoint, self._settings)
            if why and not is_loopback(endpoint.host):
                _log.warning("listening on %s, beyond this machine: %s", spelled(endpoint.host, endpoint.port), why)
        event(
            "listening", address=self.listeners, store_id=self.store_id, pid=os.getpid(), metrics=self.metrics or None
        )

    @property
    def metrics(self) -> str:
        """Where /metrics is; empty if it is nowhere."""
        return self.monitor.address if self.monitor is not None else ""

    @property
    def metrics_url(self) -> str:
        """Where /metrics is, as a URL; empty if it is nowhere."""
        access = self.monitor.access if self.monitor is not None else None
        return f"{access.scheme if access is not None else 'http'}://{self.metrics}" if self.metrics else ""

    @property
    def monitor_token(self) -> str:
        """The token by which a console of this server reads the metrics port; empty if that needs none."""
        access = self.monitor.access if self.monitor is not None else None
        return access.token if access is not None else ""

    async def serve_until(self, end: Coroutine[Any, Any, _T]) -> _T:
        """Return what `end` returns; raise NotAStore as soon as the store is not at its path any more.

        Clients would go on reading deleted files. A supervisor starts a server on what is at the path now.
        """
        waits = asyncio.ensure_future(end), asyncio.ensure_future(self.server.watch_store())
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if waits[1] in done:
            raise waits[1].result()
        return waits[0].result()

    async def stop(self, *, drain_s: float = 5.0) -> None:
        """Accept no new connections, let running requests end within `drain_s` seconds, then close."""
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
