"""The Kafka server of a store: one more process on its files, that speaks Kafka's protocol.

It holds the byte SERVER of `members` while it lives, so there is one at a time; the file `server` tells the others who
that is. Everything it knows is in the store, the members of its groups included: killed and restarted, it goes on
where it was.

One loop does all the talking. It never waits for a lock, a disk or SQLite: that is what threads are for (pools.py).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from klamm.disk import files
from klamm.disk._os import HeldBytes
from klamm.disk.locks import SERVER
from klamm.errors import KlammError, NotAStore, StoreBusy
from klamm.kafka.addresses import CANNOT_LISTEN, refused, spelled
from klamm.kafka.admission import Admission
from klamm.kafka.apis import TABLE
from klamm.kafka.apis.cluster import api_versions_unsupported
from klamm.kafka.broker import Broker
from klamm.kafka.channel import Channel
from klamm.kafka.listener import Listener
from klamm.kafka.metrics import Metrics
from klamm.kafka.security.certificates import Certificates
from klamm.kafka.security.endpoints import Endpoint, endpoints_of
from klamm.kafka.security.oauth import Tokens
from klamm.kafka.security.tls import TlsTransport
from klamm.kafka.settings import ServerSettings
from klamm.store import deletion, maintenance
from klamm.store.directory import Core, acquire, release

if TYPE_CHECKING:
    from klamm.api import Store

__all__ = ["Server"]

_BACKLOG = 1024
_EVERYWHERE = "::"
_RELOAD_S = 1.0  # how often the files of certificates are looked at, and the table of quotas
_BEAT_S = 0.05  # how exact the timeouts of groups are
_BYTE_TIMEOUT_S = 1.0  # a process that ends what a dead server left holds the byte for a moment

_log = logging.getLogger("klamm.kafka")


class Server:
    """Start it and stop it on a running loop."""

    def __init__(self, path: str | Path | Store, settings: ServerSettings | None = None) -> None:
        self._path = str(getattr(path, "path", path))
        self.settings = settings or ServerSettings()
        self.metrics = Metrics()
        self.broker: Broker
        self.listener: Listener
        self.endpoints = endpoints_of(self.settings)
        """Where it listens; with the ports that it got, once it has started."""
        self._core: Core | None = None
        self._held: HeldBytes[int, None] | None = None  # the byte SERVER; free when this object goes
        self._servers: list[asyncio.Server] = []
        self._maintenance_tasks: list[asyncio.Task[None]] = []
        self._over = False

    @property
    def host(self) -> str:
        """Where it listens; if there are several listeners, the first."""
        return self.endpoints[0].host

    @property
    def port(self) -> int:
        """Likewise."""
        return self.endpoints[0].port

    @property
    def address(self) -> str:
        """Likewise: host:port."""
        return spelled(self.host, self.port)

    @property
    def listeners(self) -> str:
        """All of them, as the setting has them; of a server without that setting, host:port."""
        return ",".join(
            f"{each.name}://{spelled(each.host, each.port)}" if each.name else self.address for each in self.endpoints
        )

    # ---- starting

    async def start(self) -> None:
        """Open the store, become its server, listen. When this raises, everything is as before."""
        loop = asyncio.get_running_loop()
        core = await loop.run_in_executor(None, self._acquire)
        try:
            await self._become(core)
            try:
                self.broker = Broker(core, self.settings, self.metrics, new_id=lambda: str(uuid.uuid4()))
                try:
                    await self.broker.topics.refresh()
                    await self.broker.transact(None, self.broker.transaction_coordinator.load)
                    await self.broker.group_store.load()
                    await self.broker.reload_quotas()
                    await self.broker.administer(self.broker.audit.start)
                    admission = Admission(self.broker, TABLE, api_versions_unsupported)
                    self.listener = Listener(self.broker, admission)
                    if any(endpoint.uses_tls for endpoint in self.endpoints):
                        self.broker.certificates = await self.broker.administer(Certificates, self.settings)
                    if "OAUTHBEARER" in self.broker.mechanisms and any(each.uses_sasl for each in self.endpoints):
                        self.broker.tokens = await self.broker.administer(Tokens, self.settings, time.time)
                    await self._listen()
                except BaseException:
                    self.broker.close()
                    self.broker.group_store.leave_doors()
                    raise
            except BaseException:
                self._resign(core)
                raise
        except BaseException:
            await loop.run_in_executor(None, release, core)
            raise
        self._core = core
        self._maintenance_tasks = [
            loop.create_task(task)
            for task in (
                self._beat(),
                self._end_transactions(),
                self._forget_groups(),
                self._close_idle(),
                self._maintain(),
                self._reload_certificates(),
                self._reload_quotas(),
                self._refresh_keys(),
            )
        ]

    def _acquire(self) -> Core:
        core = acquire(self._path, read_only=False, create=True, force_filesystem=False)
        if core.users == 1:
            deletion.sweep(core, with_all_topics=False)
        return core

    async def _become(self, core: Core) -> None:
        held = self._held = HeldBytes(core.members)
        until = asyncio.get_running_loop().time() + _BYTE_TIMEOUT_S
        while not held.take(SERVER, SERVER):
            first = self._first(core)
            if first or asyncio.get_running_loop().time() > until:
                raise StoreBusy(
                    f"{core.path}: has a Kafka server already{first}",
                    hint="clients can use that one; a store has one server at a time",
                )
            await asyncio.sleep(0.02)

    def _first(self, core: Core) -> str:
        """Return which process serves the store now, if known."""
        try:
            contents = json.loads(files.read(f"{core.files}/server"))
            os.kill(int(contents["pid"]), 0)
            return f": process {contents['pid']}, at {contents['address']}"
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    def _resign(self, core: Core) -> None:
        assert self._held is not None
        with suppress(OSError):
            files.remove(f"{core.files}/server")
        self._held.release_all()

    async def _listen(self) -> None:
        try:
            self.endpoints = tuple([await self._listen_at(each) for each in self.endpoints])
        except BaseException:
            for server in self._servers:
                server.close()
            raise
        contents = json.dumps({"pid": os.getpid(), "address": self.address})
        files.replace(f"{self.broker.core.files}/server", contents.encode())

    async def _listen_at(self, endpoint: Endpoint) -> Endpoint:
        """Return the endpoint, with the address and the port that it got."""
        loop = asyncio.get_running_loop()
        host, port = endpoint.host, endpoint.port
        channel = partial(self._channel, endpoint)
        try:
            if host == _EVERYWHERE and socket.has_dualstack_ipv6():  # the loop would take clients of IPv6 alone
                bound = socket.create_server((host, port), family=socket.AF_INET6, dualstack_ipv6=True)
                server = await loop.create_server(channel, sock=bound, backlog=_BACKLOG)
            else:
                server = await loop.create_server(channel, host, port, backlog=_BACKLOG)
        except OSError as error:
            if error.errno in CANNOT_LISTEN:
                raise refused(error, endpoint.setting, host, port) from None
            raise
        self._servers.append(server)
        host, port = server.sockets[0].getsockname()[:2]
        return endpoint._replace(host=host, port=port)

    def _channel(self, endpoint: Endpoint) -> Channel | TlsTransport:
        channel = Channel(self.listener, endpoint)
        if not endpoint.uses_tls:
            return channel
        assert self.broker.certificates is not None
        return TlsTransport(channel, self.listener, self.broker.certificates)

    # ---- while it runs

    async def _beat(self) -> None:
        coordinator, now_ms = self.broker.group_coordinator, self.broker.now_ms
        while True:
            await asyncio.sleep(_BEAT_S)
            due = coordinator.next_deadline()
            if due is not None and due <= now_ms():
                coordinator.tick(now_ms())
            self.broker.group_store.leave_doors()
            self.broker.sync_queue.look()
            self.metrics.delayed_fetches = len(self.broker.purgatory)
            self.metrics.queued_bytes = self.listener.budget.used + self.listener.budget.ahead

    async def watch_store(self) -> NotAStore:
        """Return why, once another store than the one that is served is at its path."""
        while True:
            await asyncio.sleep(_BEAT_S)
            try:
                self.broker.core.heads.check_place()
            except NotAStore as error:
                return error

    async def _end_transactions(self) -> None:
        while True:
            await asyncio.sleep(self.settings.transaction_abort_timed_out_transaction_cleanup_interval_ms / 1000)
            await self._run_task(
                "transactions", lambda: self.broker.transact(None, self.broker.transaction_coordinator.tick)
            )

    async def _forget_groups(self) -> None:
        while True:
            await asyncio.sleep(self.settings.offsets_retention_check_interval_ms / 1000)
            await self._run_task("groups", self.broker.group_store.forget_empty)

    async def run_due_work(self) -> None:
        """Run what is due by now: for tests, which set the clock ahead."""
        self.broker.group_coordinator.tick(self.broker.now_ms())
        await self.broker.transact(None, self.broker.transaction_coordinator.tick)
        await self.broker.transact(None, self.broker.transaction_coordinator.expire)
        await self._maintained()
        self.broker.close_unlinked()

    async def _close_idle(self) -> None:
        idle_s = self.settings.connections_max_idle_ms / 1000
        while True:
            await asyncio.sleep(min(30.0, max(0.05, idle_s / 10)))
            self.listener.close_idle(self.listener.now() - idle_s)

    async def _maintain(self) -> None:
        """Expire and compact what is due, as long as it takes, in a thread."""
        while True:
            await asyncio.sleep(self.settings.log_cleaner_backoff_ms / 1000)
            self.broker.close_unlinked()
            await self._run_task("maintenance", self._maintained)

    async def _reload_certificates(self) -> None:
        certificates = self.broker.certificates
        while certificates is not None:
            await asyncio.sleep(_RELOAD_S)
            await self._run_task("certificates", partial(self.broker.administer, certificates.reload_if_changed))

    async def _reload_quotas(self) -> None:
        """Read the quotas again: other processes may change them (`klamm quota`)."""
        while True:
            await asyncio.sleep(_RELOAD_S)
            await self._run_task("quotas", self.broker.reload_quotas)

    async def _refresh_keys(self) -> None:
        """Fetch the keys of tokens again."""
        tokens = self.broker.tokens
        while tokens is not None:
            await asyncio.sleep(_RELOAD_S)
            if tokens.is_due():
                await self._run_task("keys of tokens", partial(self.broker.administer, tokens.refresh))

    def _maintained(self) -> asyncio.Future[None]:
        return self.broker.administer(maintenance.maintain, self.broker.core, lambda: self._over)

    async def _run_task(self, what: str, work: Callable[[], Any]) -> None:
        try:
            await work()
        except KlammError as error:
            _log.warning("%s: %s", what, error)
        except asyncio.CancelledError:
            raise
        except Exception:  # noqa: BLE001  # a task can wait; clients cannot
            _log.exception("%s failed", what)

    # ---- stopping

    async def stop(self, *, drain_s: float = 5.0) -> None:
        """Take no more clients, let what is under way end, close."""
        core, self._core = self._core, None
        if core is None:
            return
        self._over = True
        loop = asyncio.get_running_loop()
        for server in self._servers:
            server.close()
        self.listener.begin_to_close()
        for task in self._maintenance_tasks:
            task.cancel()
        self.broker.purgatory.release_all()
        self.broker.group_coordinator.close()
        until = loop.time() + drain_s
        while not self.listener.is_quiet and loop.time() < until:
            await asyncio.sleep(0.005)
        self.listener.close()
        await self.broker.group_store.flush(max(until - loop.time(), 0.1))
        await loop.run_in_executor(None, self.broker.transaction_coordinator.close)
        self.broker.close()
        self.broker.group_store.leave_doors()
        self._resign(core)
        await loop.run_in_executor(None, release, core)
