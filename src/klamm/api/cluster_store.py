"""A store on a cluster, `klamm.open("kafka://…")`: a Store whose topics are those of a Kafka server or cluster.

Calls that a cluster does not support raise Unsupported, with an alternative. docs/reference/stores.md has the table.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Never

from klamm.api.appends import Appends
from klamm.api.store import Store
from klamm.api.topics import Topics
from klamm.client import exit_handlers
from klamm.client.clients import Clients
from klamm.client.options import acks_of, busy_ms
from klamm.client.serde import Serde, Serdes
from klamm.cluster.cluster_core import ClusterCore, unsupported
from klamm.cluster.cluster_groups import GroupsOfCluster
from klamm.cluster.cluster_producer import ClusterProducer
from klamm.disk import fork
from klamm.errors import InvalidSetting, KlammError
from klamm.store.settings import named_settings
from klamm.times import to_ms
from klamm.types import Appended, PartitionInfo, TopicInfo, TopicPartition
from klamm.typevars import K, V

if TYPE_CHECKING:
    from klamm.api.topic import Topic
    from klamm.client.groups.group_admin import Groups
    from klamm.client.produce.producer import Producer
    from klamm.client.transaction import Pool
    from klamm.store.directory import Core
    from klamm.store.settings import Value
    from klamm.times import Duration

__all__ = ["ClusterStore"]

_COPY = "klamm.copy(…, follow=True) keeps a directory up to date, where it can be done"
_kept: list[ClusterCore] = []  # from before a fork: librdkafka's threads are not in the child, nothing may be closed


class ClusterStore(Store[K, V]):
    """Topics of a Kafka server or cluster. Made by `klamm.open` of an address."""

    def __init__(
        self,
        address: str,
        *,
        read_only: bool = False,
        busy_timeout: Duration | None = None,
        serde: Serde | None = None,
        key_serde: Serde | None = None,
    ) -> None:
        """Connect. `busy_timeout`: how long calls wait for transactions of other clients."""
        self._address = address
        self._read_only = read_only
        self._busy_timeout = busy_timeout
        self._serdes = Serdes(serde, key_serde).check()
        self._has_serdes = self._serdes != Serdes()
        self._closed = False
        self._mutex = threading.RLock()
        self._targets = {}
        self._pool: Pool | None = None
        self._maintainer = None
        self._core: Core | None = None
        self._path = address.partition("?")[0]
        self._clients = Clients(self._path)
        self._core = self._acquire(create=False)
        fork.register(self, ClusterStore._in_child)
        exit_handlers.open_stores.add(self)

    def _acquire(self, create: bool) -> Core:
        return ClusterCore(self._address, read_only=self._read_only, busy_timeout_ms=busy_ms(self._busy_timeout))

    def _release(self, core: Core) -> None:
        if not core.closed:
            core.close()

    def __reduce__(self) -> tuple[Any, ...]:
        options = {"read_only": self._read_only, "busy_timeout": self._busy_timeout, **self._serdes._asdict()}
        return partial(ClusterStore, **options), (self._address,)

    def _cluster(self) -> ClusterCore:
        core: Any = self._acquired()
        found: ClusterCore = core
        return found

    @property
    def path(self) -> str:
        """The address, without its options."""
        return self._path

    # ---- what is in it

    @property
    def topics(self) -> Topics[K, V]:
        """Its topics: create, describe, alter, delete; iterating over it gives their names."""
        return TopicsOfCluster(self)

    @property
    def groups(self) -> Groups:
        """Its consumer groups: describe, reset, delete, export; iterating over it gives their names."""
        return GroupsOfCluster(self)

    # ---- writing

    def append(self, topic: str, value: Any, *, acks: Any = "all", **options: Any) -> Any:
        """Append one record and return its offset, when the cluster has acknowledged it. None: it is not known, as with
        acks=0 or when a server was lost before it could tell.
        """
        level = acks_of(acks)
        key = options.pop("key", None)
        serdes = Serdes(options.pop("serde", None), options.pop("key_serde", None)).over(self._serdes)
        if serdes != Serdes():
            key, value = serdes.serializer().pair(key, value)
        delivery = self._stream(topic, level).send(topic, value, key=key, **options)
        return delivery.result() if level else None

    def _stream(self, topic: str, level: int, *codec: Any, lingers: bool = False) -> Any:
        if not isinstance(topic, str):
            raise TypeError(f"a topic's name is a str, not {type(topic).__name__}")
        self._writable()
        return self._cluster().elsewhere.stream(level, *codec, lingers=lingers)

    def append_many(
        self,
        topic: str,
        records: Iterable[Any],
        *,
        acks: Any = "all",
        partition: int | None = None,
        timestamp: Any = None,
        compression: Any = None,
        compression_level: int | None = None,
        serde: Any = None,
        key_serde: Any = None,
    ) -> Appended:
        """Append many records. Return their ranges of offsets when the cluster has acknowledged all of them."""
        stream = self._stream(topic, acks_of(acks), compression, compression_level, lingers=True)
        serdes = Serdes(serde, key_serde).over(self._serdes)
        convert = None if serdes == Serdes() else serdes.serializer().record
        time_ms = None if timestamp is None else to_ms(timestamp)
        add = stream.forwarder(topic).add
        sent: list[Any] = []
        try:
            for record in records:
                key, value, headers, when = _parts_of(record if convert is None else convert(record))
                sent.append(add(key, value, headers, time_ms if when is None else when, partition))
        except Exception as error:
            if sent:
                error.add_note(f"record {len(sent)} of this append_many was not taken; those before it were sent")
            stream.wait(None)
            raise
        if sent and sent[-1] is None:
            raise stream.closed()
        offsets: dict[int, list[int]] = {}
        for delivery in reversed(sent):  # the last one first: this thread is woken once, not for each
            if not delivery.done:
                with suppress(KlammError):
                    delivery.result()
        for delivery in sent:
            offset = delivery.result()
            if offset is not None:
                offsets.setdefault(delivery.partition, []).append(offset)
        ranges = {number: _ranges(each) for number, each in sorted(offsets.items())}
        return Appended(topic, len(sent), ranges)

    def append_table(self, topic: str, table: Any, **options: Any) -> Appended:
        """Append the rows of an Arrow table, or of any Arrow stream, and return their ranges of offsets."""
        from klamm.cluster.table_rows import rows_of

        partition = options.pop("partition", None)
        by_partition: dict[int | None, list[Any]] = {}
        for number, record in rows_of(table):
            by_partition.setdefault(partition if number is None else number, []).append(record)
        done = [self.append_many(topic, each, partition=number, **options) for number, each in by_partition.items()]
        ranges: dict[int, tuple[range, ...]] = {}
        for appended in done:
            for number, each in appended.ranges.items():
                ranges[number] = (*ranges.get(number, ()), *each)
        return Appended(topic, sum(each.count for each in done), ranges)

    def producer(self, **options: Any) -> Producer[Any, Any]:
        """Return a producer, which sends records in batches, from any thread. Leaving its `with` block flushes."""
        checked = self._checked(Appends.producer, options)
        producer: ClusterProducer[Any, Any] = ClusterProducer(self._cluster(), **checked)
        producer._store = self
        self._clients.add(producer)
        return producer

    # ---- what a cluster does not have

    def _cannot(self, what: str, hint: str) -> Never:
        raise unsupported(self._path, what, hint)

    def check(self, **_: Any) -> Never:
        self._cannot("check()", "the servers check their logs when they start; klamm.check verifies a directory")

    def backup(self, destination: str | os.PathLike[str], **_: Any) -> Never:
        self._cannot("backup()", "klamm.copy copies topics into a directory, and goes on where it ended")

    def maintain(self) -> Never:
        self._cannot("maintain()", "the servers do that themselves")

    def _compact(self, topic: str | None, **_: Any) -> Never:
        self._cannot("compact()", "the servers compact topics whose cleanup.policy says so")

    def who(self) -> Never:
        self._cannot("who()", "store.groups.describe tells who has which partitions")

    def table(self, topic: str, **_: Any) -> Never:
        self._cannot("table()", _COPY)

    def lineage(self, record: Any) -> Never:
        self._cannot("lineage()", "put what a record was made of into its headers")

    def settings(self) -> Never:
        self._cannot("settings()", "servers have settings of their own: kafka-configs.sh shows them")

    def alter(self, settings: Any = None, **_: Any) -> Never:
        self._cannot("alter()", "servers have settings of their own: kafka-configs.sh changes them")

    def _in_child(self) -> None:
        core: Any = self._core
        if core is not None:
            _kept.append(core)
        self._mutex = threading.RLock()
        self._clients = Clients(self._path)
        self._pool = None
        self._core = None


class TopicsOfCluster(Topics[K, V]):
    """The topics of a cluster, by name. Settings that Klamm does not know are passed to the cluster unchanged.

    `create` has one more option, replication_factor.
    """

    __slots__ = ()

    def _catalog(self) -> Any:
        return self._store._acquired().catalog

    def __iter__(self) -> Any:
        return iter(self._catalog().names())

    def __len__(self) -> int:
        return len(self._catalog().names())

    def describe(self, name: str) -> TopicInfo:
        """Return a topic as it is now: its partitions and their ends, its settings. Sizes in bytes are not known: 0."""
        core: Any = self._store._acquired()
        topic, changed = core.catalog.looked_up(name)
        names = [TopicPartition(name, number) for number in range(len(topic.partitions))]
        infos = [
            PartitionInfo(tp.partition, ends.start, ends.end, ends.leader_epoch, 0)
            for tp, ends in core.admin.ends(names).items()
        ]
        return TopicInfo(name, topic.id, tuple(infos), dict(sorted(changed.items())), topic.created_ms)

    def alter(
        self, name: str, settings: Mapping[str, Value] | None = None, *, reset: Iterable[str] = (), **named: Value
    ) -> TopicInfo:
        """Change some settings, reset those named in `reset` to their defaults; the rest stays."""
        self._store._writable()
        resets = [reset] if isinstance(reset, str) else list(reset)
        self._catalog().alter_settings(name, named_settings(settings, named), resets)
        return self.describe(name)

    def add_partitions(self, name: str, total: int) -> TopicInfo:
        """Grow the topic to `total` partitions. New records of a key may go to another one than its old records."""
        self._store._writable()
        if not isinstance(total, int) or total <= len(self._catalog().refresh(name).partitions):
            raise InvalidSetting(f"{name}: has {total!r} partitions or more", hint="expected more than it has")
        self._catalog().add_partitions(name, total)
        return self.describe(name)

    def create(
        self,
        name: str,
        partitions: int = 1,
        settings: Mapping[str, Value] | None = None,
        *,
        exist_ok: bool = False,
        **named: Value,
    ) -> Topic[K, V]:
        """Create a topic and return a handle on it. With `exist_ok`, leave an existing topic unchanged."""
        self._store._writable()
        return super().create(name, partitions, settings, exist_ok=exist_ok, **named)

    def delete(self, name: str) -> None:
        """Delete the topic and its records."""
        self._store._writable()
        self._catalog().delete_topic(name)


def _parts_of(record: Any) -> tuple[Any, Any, Any, Any]:
    """Return key, value, headers and timestamp of an element of `append_many`."""
    if not isinstance(record, tuple):
        return None, record, None, None
    if not 2 <= len(record) <= 4:
        raise TypeError(f"a record of {len(record)} elements; expected (key, value[, headers[, timestamp]])")
    key, value, headers, when = (*record, None, None)[:4]
    return key, value, headers, None if when is None else when if type(when) is int else to_ms(when)


def _ranges(offsets: list[int]) -> tuple[range, ...]:
    """Combine offsets into ranges."""
    found: list[range] = []
    for offset in offsets:
        if found and found[-1].stop == offset:
            found[-1] = range(found[-1].start, offset + 1)
        else:
            found.append(range(offset, offset + 1))
    return tuple(found)
