"""The broker: what the handlers of a server share (the store, its topics, coordinators, threads, our addresses)."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from klamm.disk import files
from klamm.errors import NotAStore
from klamm.kafka.audit import Audit
from klamm.kafka.fetch_sessions import FetchSessions
from klamm.kafka.group_coordinator import GroupCoordinator
from klamm.kafka.group_store import GroupStore
from klamm.kafka.group_values import GroupConfig
from klamm.kafka.large_requests import LargeRequests
from klamm.kafka.limited_log import LimitedLog
from klamm.kafka.pools import PartitionExecutors, Pools
from klamm.kafka.purgatory import FetchPurgatory
from klamm.kafka.quotas import ClientQuotas
from klamm.kafka.request_log import RequestLog
from klamm.kafka.security.authorizer import Authorizer
from klamm.kafka.security.decoys import Decoys
from klamm.kafka.security.endpoints import mechanisms_of
from klamm.kafka.sync_queue import SyncQueue
from klamm.kafka.tasks import Tasks
from klamm.kafka.topic_cache import Topics
from klamm.kafka.transaction_coordinator import TransactionCoordinator
from klamm.kafka.transaction_queue import TransactionQueue
from klamm.log.ranges import Ranges, SegmentFiles
from klamm.store.acls import Acls
from klamm.store.quotas import Quotas
from klamm.store.users import Users

if TYPE_CHECKING:
    from klamm.kafka.call import Call
    from klamm.kafka.metrics import Metrics
    from klamm.kafka.security.certificates import Certificates
    from klamm.kafka.security.oauth import Tokens
    from klamm.kafka.settings import ServerSettings
    from klamm.kafka.transaction_coordinator import Identified
    from klamm.log.partition import Ends, Partition
    from klamm.store.directory import Core, OpenTopic
    from klamm.store.transaction_state import Add, End

__all__ = ["Broker", "NotOpened"]

Result = TypeVar("Result")

_log = logging.getLogger("klamm.kafka")


class NotOpened(Exception):
    """A partition that is not open yet: opening it may take a recovery, which must not run on the loop."""


class Broker:
    """The broker of one server, for its loop; methods for threads say so."""

    def __init__(self, core: Core, settings: ServerSettings, metrics: Metrics, *, new_id: Callable[[], str]) -> None:
        self.core = core
        self.settings = settings
        self.metrics = metrics
        self.node_id = settings.node_id
        self.cluster_id = core.catalog.store_id
        self.loop = asyncio.get_running_loop()
        self.pools = Pools(self.loop)
        self.partition_executors = PartitionExecutors(self.loop)
        self.acls = Acls(core.catalog)
        self.authorizer: Authorizer | None = None
        """What decides what clients may do; None: they may do everything."""
        if settings.authorizer_class_name:
            self.authorizer = Authorizer(core.catalog, settings, metrics, self.loop.time)
        self.topics = Topics(core, self.pools, settings, self.authorizer)
        self.purgatory = FetchPurgatory(core.heads, self.loop, self.pools.disk)
        self.fetch_sessions = FetchSessions(
            settings.max_incremental_fetch_session_cache_slots,
            settings.max_incremental_fetch_session_cache_partitions,
            self.purgatory.end,
        )
        self.sync_queue = SyncQueue(self.loop, self.pools)
        self.transaction_coordinator = TransactionCoordinator(core, settings)
        self.transaction_queue = TransactionQueue(self.loop, self.pools.transact, self.transaction_coordinator)
        config = GroupConfig(
            min_session_timeout_ms=settings.group_min_session_timeout_ms,
            max_session_timeout_ms=settings.group_max_session_timeout_ms,
            initial_rebalance_delay_ms=settings.group_initial_rebalance_delay_ms,
            max_size=core.catalog.settings().group_max_size,
            max_bytes=settings.group_max_bytes,
            max_groups=settings.max_groups,
            max_total_bytes=settings.groups_max_bytes,
        )
        self.group_store = GroupStore(self)
        self.group_coordinator = GroupCoordinator(config, new_id=new_id, persist=self.group_store.persist)
        self.tasks = Tasks(self.loop)
        self.large_requests = LargeRequests(self.loop)
        self.users = Users(core.catalog)
        self.decoys = Decoys(self.users)
        self.request_log = RequestLog(settings.request_log_size) if settings.request_log_size else None
        self.mechanisms = mechanisms_of(settings)
        self.quotas = ClientQuotas(settings.quota_controller_mutation_default)
        self.quota_table = Quotas(core.catalog)
        self._quota_version: object = None
        self.audit = Audit(core, settings.audit_topic, metrics)
        self._reads_quotas = asyncio.Lock()
        self.certificates: Certificates | None = None
        """Of the server, if a listener has TLS."""
        self.tokens: Tokens | None = None
        """What checks tokens, if clients may log in by OAUTHBEARER."""
        self.max_open_ranges = settings.max_open_ranges or max(64, files.most_open() // 4)
        self.log = LimitedLog(_log, "partitions that cannot be read", self.loop.time)
        self.group_log = LimitedLog(_log, "groups that are full", self.loop.time)
        self.transaction_log = LimitedLog(_log, "transactional ids that are rejected", self.loop.time)
        """For what clients can make happen often."""
        self.monitor_log = LimitedLog(_log, "clients of the metrics port", self.loop.time)
        self._files = SegmentFiles(max(16, min(512, files.most_open() // 32)))
        self._flushing: set[Partition] = set()
        self._ranges: weakref.WeakKeyDictionary[Partition, Ranges] = weakref.WeakKeyDictionary()

    async def reload_quotas(self) -> None:
        """Read the quotas of clients if they may have changed."""
        async with self._reads_quotas:
            version = await self.catalog(self.quota_table.version)
            if version != self._quota_version:
                try:
                    quotas = await self.catalog(self.quota_table.all)
                except NotAStore:
                    self._quota_version = version  # a damaged row is logged once
                    raise
                self.quotas.set(quotas, self.loop.time())
                self._quota_version = version

    # ---- threads

    def catalog(self, function: Callable[..., Result], *args: Any) -> asyncio.Future[Result]:
        """Run in a thread for reads of SQLite."""
        return self.pools.catalog(function, *args)

    def disk(self, function: Callable[..., Result], *args: Any) -> asyncio.Future[Result]:
        """Run in a thread for segment files."""
        return self.pools.disk(function, *args)

    def codec(self, function: Callable[..., Result], *args: Any) -> asyncio.Future[Result]:
        """Run in a thread for decompression and checks of large batches."""
        return self.pools.codec(function, *args)

    def write(self, function: Callable[..., Result], *args: Any) -> asyncio.Future[Result]:
        """Run in the one thread for short writes of SQLite, in order."""
        return self.pools.write(function, *args)

    def transact(self, name: str | None, function: Callable[..., Result], *args: Any) -> asyncio.Future[Result]:
        """Run in a thread for transactions: their rows, the syncs of their logs, their markers; those of a
        transactional id one after the other.
        """
        if name is None:
            return self.pools.transact(function, *args)
        return self.transaction_queue.run(name, partial(function, *args))

    def apply(self, name: str, event: Add | End) -> asyncio.Future[Identified]:
        """Like `transact`, to add to a transaction or to end it: with those of other transactional ids, at once."""
        return self.transaction_queue.apply(name, event)

    def administer(self, function: Callable[..., Result], *args: Any) -> asyncio.Future[Result]:
        """Run in a thread, for what takes long."""
        return self.pools.administer(function, *args)

    def authenticate(self, function: Callable[..., Result], *args: Any) -> asyncio.Future[Result]:
        """Run in a thread for logins, so that they keep no other request waiting."""
        return self.pools.authenticate(function, *args)

    def delete(self, what: object, function: Callable[..., Result], *args: Any) -> asyncio.Future[Result]:
        """Run in a thread of its own: deleting waits for a running append, which may take long."""
        return self.partition_executors.run(("delete", what), partial(function, *args))

    # ---- what is where

    def now_ms(self) -> int:
        """Return the time for the coordinator, which never goes back, whatever the wall clock does."""
        return self.core.heads.boot_ms()

    def address(self, call: Call) -> tuple[str, int]:
        """Return the advertised host and port for this client."""
        return call.session.endpoint.advertised or call.session.local_address

    @staticmethod
    def partition(opened: OpenTopic, number: int) -> Partition | None:
        """Return the partition, or None if it does not exist. Raise NotOpened if it was not used yet: see `opened`."""
        found = opened.opened_one(number)
        if found is None:
            if not 0 <= number < opened.count:
                return None
            raise NotOpened(f"{opened.name}/{number}")
        return found

    def ranges(self, partition: Partition) -> Ranges:
        """Return the file ranges of a partition."""
        found = self._ranges.get(partition)
        if found is None:
            found = self._ranges[partition] = Ranges(partition, self._files)
        return found

    def visible_ends(self, partition: Partition) -> Ends:
        """Return the range of a log as consumers see it."""
        return self.visible(partition.ends())

    def visible(self, ends: Ends) -> Ends:
        """Return the part of a range that consumers see."""
        if self.settings.fetch_flushed_only and ends.flushed < ends.end:
            ends = ends._replace(end=ends.flushed, stable=min(ends.stable, ends.flushed))
        return ends

    def flush_soon(self, partition: Partition) -> None:
        """Put what was appended on disk, in a thread, and try then the fetches that wait for it."""
        end = partition.snapshot().next_offset
        if partition.log.flushed_offset < end and partition not in self._flushing:
            self._flushing.add(partition)
            self.sync_queue.wait(partition, end, partial(self._flushed, partition))

    def _flushed(self, partition: Partition, error: BaseException | None) -> None:
        self._flushing.discard(partition)
        if error is None:
            self.purgatory.wake_soon(partition)
        else:
            self.log.warning("%r: sync for waiting readers failed: %s", partition, error)

    def close_unlinked(self) -> None:
        """Close files that are deleted."""
        self._files.forget_unlinked()

    async def opened(self, opened: OpenTopic, number: int) -> Partition:
        """Return a partition, opened in a thread if needed. Raise UnknownTopic, or the error of its recovery."""
        found = opened.opened_one(number)
        if found is None:  # a recovery may be needed, which waits for a running append
            found = await self.partition_executors.run((opened.topic.id, number), partial(opened.partition, number))
        return found

    def close(self) -> None:
        self.group_coordinator.close()
        self.purgatory.close()
        self.sync_queue.close()
        self.transaction_queue.close()
        self.audit.close()
        self.pools.close()
