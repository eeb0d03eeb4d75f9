"""The Kafka server of a store: one more process on its files, that speaks Kafka's protocol.

It holds the byte SERVER of `members` while it lives, so there is one at a time; the file `server` tells the others who
that is. Everything it knows is in the store, the members of its groups included: killed and started anew, it goes on
where it was.

One loop does all the talking. It never waits for a lock, a disk or SQLite: that is what threads are for (pools.py).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from klamm.disk import files
from klamm.disk._os import HeldBytes
from klamm.disk.locks import SERVER
from klamm.errors import KlammError, StoreBusy
from klamm.kafka.admission import Admission
from klamm.kafka.apis import TABLE
from klamm.kafka.apis.cluster import api_versions_unsupported
from klamm.kafka.broker import Broker
from klamm.kafka.channel import Channel
from klamm.kafka.listener import Listener
from klamm.kafka.metrics import Metrics
from klamm.kafka.settings import ServerSettings
from klamm.store import deletion, maintenance
from klamm.store.directory import Core, acquire, release

if TYPE_CHECKING:
    from klamm.api import Store

__all__ = ["Server"]

_BACKLOG = 1024
_EVERYWHERE = "::"
_BEAT_S = 0.05  # how exact the time-outs of groups are
_BYTE_PATIENCE_S = 1.0  # a process that ends what a dead server left holds the byte for a moment

_log = logging.getLogger("klamm.kafka")


class Server:
    """Start it and stop it on a running loop."""

    def __init__(self, path: str | Path | Store, settings: ServerSettings | None = None) -> None:
        self._path = str(getattr(path, "path", path))
        self.settings = settings or ServerSettings()
        self.metrics = Metrics()
        self.broker: Broker
        self.listener: Listener
        self.host, self.port = self.settings.host, self.settings.kafka
        self._core: Core | None = None
        self._held: HeldBytes[int, None] | None = None  # the byte SERVER; free when this object goes
        self._server: asyncio.Server | None = None
        self._chores: list[asyncio.Task[None]] = []
        self._over = False

    @property
    def address(self) -> str:
        """Where it listens: host:port."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

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
                    await self.broker.transact(self.broker.transaction_coordinator.load)
                    await self.broker.group_store.load()
                    admission = Admission(self.broker, TABLE, api_versions_unsupported)
                    self.listener = Listener(self.broker, admission)
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
        self._chores = [
            loop.create_task(chore)
            for chore in (
                self._beat(),
                self._end_transactions(),
                self._forget_groups(),
                self._close_idle(),
                self._maintain(),
            )
        ]

    def _acquire(self) -> Core:
        core = acquire(self._path, read_only=False, create=True, force_filesystem=False)
        if core.users == 1:
            deletion.sweep(core, thorough=False)
        return core

    async def _become(self, core: Core) -> None:
        held = self._held = HeldBytes(core.members)
        until = asyncio.get_running_loop().time() + _BYTE_PATIENCE_S
        while not held.take(SERVER, SERVER):
            first = self._first(core)
            if first or asyncio.get_running_loop().time() > until:
                raise StoreBusy(
                    f"{core.path}: has a Kafka server already{first}",
                    hint="clients can use that one; a store has one server at a time",
                )
            await asyncio.sleep(0.02)

    def _first(self, core: Core) -> str:
        """Who serves the store now, as far as is known."""
        try:
            told = json.loads(files.read(f"{core.path}/server"))
            os.kill(int(told["pid"]), 0)
            return f": process {told['pid']}, at {told['address']}"
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    def _resign(self, core: Core) -> None:
        assert self._held is not None
        with suppress(OSError):
            files.remove(f"{core.path}/server")
        self._held.release_all()

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        host, port = self.settings.host, self.settings.kafka
        if host == _EVERYWHERE and socket.has_dualstack_ipv6():  # the loop would take clients of IPv6 alone
            bound = socket.create_server((host, port), family=socket.AF_INET6, dualstack_ipv6=True)
            self._server = await loop.create_server(self._channel, sock=bound, backlog=_BACKLOG)
        else:
            self._server = await loop.create_server(self._channel, host, port, backlog=_BACKLOG)
        self.host, self.port = self._server.sockets[0].getsockname()[:2]
        told = json.dumps({"pid": os.getpid(), "address": self.address})
        files.replace(f"{self.broker.core.path}/server", told.encode())

    def _channel(self) -> Channel:
        return Channel(self.listener)

    # ---- meanwhile

    async def _beat(self) -> None:
        coordinator, now_ms = self.broker.group_coordinator, self.broker.now_ms
        while True:
            await asyncio.sleep(_BEAT_S)
            due = coordinator.next_deadline()
            if due is not None and due <= now_ms():
                coordinator.tick(now_ms())
            self.broker.group_store.leave_doors()
            self.metrics.delayed_fetches = len(self.broker.purgatory)
            self.metrics.queued_bytes = self.listener.budget.used + self.listener.budget.ahead

    async def _end_transactions(self) -> None:
        while True:
            await asyncio.sleep(self.settings.transaction_abort_timed_out_transaction_cleanup_interval_ms / 1000)
            await self._chore("transactions", lambda: self.broker.transact(self.broker.transaction_coordinator.tick))

    async def _forget_groups(self) -> None:
        while True:
            await asyncio.sleep(self.settings.offsets_retention_check_interval_ms / 1000)
            await self._chore("groups", self.broker.group_store.forget_blank)

    async def settle(self) -> None:
        """Do what is due by now: for tests, which set the clock ahead."""
        self.broker.group_coordinator.tick(self.broker.now_ms())
        await self.broker.transact(self.broker.transaction_coordinator.tick)
        await self.broker.transact(self.broker.transaction_coordinator.expire)
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
            await self._chore("maintenance", self._maintained)

    def _maintained(self) -> asyncio.Future[None]:
        return self.broker.administer(maintenance.maintain, self.broker.core, lambda: self._over)

    async def _chore(self, what: str, work: Callable[[], Any]) -> None:
        try:
            await work()
        except KlammError as error:
            _log.warning("%s: %s", what, error)
        except asyncio.CancelledError:
            raise
        except Exception:  # noqa: BLE001  # a chore can wait; clients cannot
            _log.exception("%s failed", what)

    # ---- stopping

    async def stop(self, *, drain_s: float = 5.0) -> None:
        """Take no more clients, let what is under way end, close."""
        core, self._core = self._core, None
        if core is None:
            return
        self._over = True
        loop = asyncio.get_running_loop()
        assert self._server is not None
        self._server.close()
        self.listener.begin_to_close()
        for chore in self._chores:
            chore.cancel()
        self.broker.purgatory.release_all()
        self.broker.group_coordinator.close()
        until = loop.time() + drain_s
        while not self.listener.is_quiet and loop.time() < until:
            await asyncio.sleep(0.005)
        self.listener.close()
        await self.broker.group_store.settle(max(until - loop.time(), 0.1))
        await loop.run_in_executor(None, self.broker.transaction_coordinator.close)
        self.broker.close()
        self.broker.group_store.leave_doors()
        self._resign(core)
        await loop.run_in_executor(None, release, core)
