"""What `klamm.open` gives: a store, with everything that can be done to it.

A Store is cheap: it holds a share of what all openers of the directory in this process have in common. Any thread may
use it. It lives for as long as a producer, consumer or table of it: what was sent is delivered, whatever is dropped
first. After a fork the child's copy opens the directory anew when it is first used; pickled, it is its path, and opens
it again wherever it is unpickled.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Self, Unpack

from klamm.batch import encode_one
from klamm.client import ending
from klamm.client.clients import Clients
from klamm.client.consumer import Consumer
from klamm.client.group_admin import GroupAdmin
from klamm.client.options import ALL, Acks, acks_of, check_timeout, to_ms
from klamm.client.producer import Producer
from klamm.client.tail import tail
from klamm.client.target import Target, codec_of
from klamm.disk import fork
from klamm.errors import ReadOnly, StoreError, TopicExists
from klamm.log.head import EVENTFUL
from klamm.store import directory
from klamm.store.deletion import delete_topic, sweep
from klamm.types import Appended, Cut, PartitionInfo, TopicInfo, TransactionInfo, html_table

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from klamm.arrow.scan import Scan
    from klamm.client.consumer_options import ConsumerOptions
    from klamm.client.dead_letters import DeadLetter
    from klamm.client.producer_options import ProducerOptions, TransactionOptions
    from klamm.client.serde import Serde
    from klamm.client.subscription import Topics
    from klamm.client.table import Table
    from klamm.client.transaction import Pool, Transaction
    from klamm.log.partition import Partition
    from klamm.store.backup import Copied
    from klamm.store.check import Report
    from klamm.store.directory import Core
    from klamm.store.maintenance import Maintainer
    from klamm.store.settings import Value
    from klamm.types import CompactionReport

__all__ = ["Store", "check", "open"]


def open(  # noqa: A001  # klamm.open is what a store is opened with, as a file is with open
    path: str | os.PathLike[str],
    *,
    read_only: bool = False,
    create: bool = True,
    force_filesystem: bool = False,
    maintain_every_s: float | None = None,
    busy_timeout_ms: int | None = None,
) -> Store:
    """Open the store in a directory; make one there if there is none.

    `read_only` changes nothing and takes no lock of ours. (SQLite may leave an empty klamm.db-wal and -shm.)
    `force_filesystem` opens one on a file system that we do not trust, as those of networks: one process at a time, and
    at your own risk. `maintain_every_s` lets a thread call `maintain()` every so many seconds, until the store is
    closed: that compacts topics. `busy_timeout_ms`: how long a call waits for a lock before it raises StoreBusy; 0: not
    at all, -1: without limit, None: 30 s, or what another open of the store in this process has said.
    """
    return Store(
        path,
        read_only=read_only,
        create=create,
        force_filesystem=force_filesystem,
        maintain_every_s=maintain_every_s,
        busy_timeout_ms=busy_timeout_ms,
    )


def check(
    path: str | os.PathLike[str], *, repair: bool = False, progress: Callable[[int, int], object] | None = None
) -> Report:
    """Walk every promise of the store at `path`; with `repair`, put right what can be without losing a record.

    `progress` is called with the bytes of log that were looked at, and those in all.
    """
    from klamm.store.check import check as check_store

    return check_store(path, repair=repair, progress=progress)


class Store(GroupAdmin, fork.ForkAware):
    """A directory of topics. Made by `klamm.open`."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        read_only: bool = False,
        create: bool = True,
        force_filesystem: bool = False,
        maintain_every_s: float | None = None,
        busy_timeout_ms: int | None = None,
    ) -> None:
        name = os.fspath(path)
        if not isinstance(name, str):
            raise TypeError(f"a path is a str, not {type(name).__name__}")
        if re.match(r"[a-z][a-z0-9+.-]*://", name):
            raise StoreError(
                f"{name}: a store is a directory on this host", hint="clusters (kafka://…) come in a later version"
            )
        self._path = os.path.abspath(name)
        self._read_only = read_only
        self._options: dict[str, Any] = {
            "read_only": read_only,
            "force_filesystem": force_filesystem,
            "busy_timeout_ms": check_timeout("busy_timeout_ms", busy_timeout_ms),
        }
        self._closed = False
        self._mutex = threading.RLock()
        self._targets: dict[str, Target] = {}
        self._clients = Clients(self._path)
        self._pool: Pool | None = None
        self._maintainer: Maintainer | None = None
        if maintain_every_s is not None and not read_only:
            from klamm.store.maintenance import Maintainer

            self._maintainer = Maintainer(maintain_every_s)
        self._core: Core | None = self._acquire(create)
        if self._maintainer is not None:
            self._maintainer.start(self)
        fork.register(self)
        ending.open_stores.add(self)

    def _acquire(self, create: bool) -> Core:
        core = directory.acquire(self._path, create=create, **self._options)
        if not self._read_only and core.users == 1:
            sweep(core, thorough=False)
            core.transactions.resolve(only_abandoned=True)
        return core

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ", read-only" if self._read_only else ""
        return f"<Store {self._path}{state}>"

    def _repr_html_(self) -> str:
        topics = [] if self._closed else [self.topic(name) for name in self.topics()]
        rows = [(each.name, len(each.partitions), each.count, each.size) for each in topics]
        return html_table(repr(self), ("topic", "partitions", "offsets", "bytes"), rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(open, create=False, **self._options), (self._path,)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        core = getattr(self, "_core", None)
        if core is not None and not core.closed:
            directory.release(core)

    @property
    def path(self) -> str:
        """The directory."""
        return self._path

    @property
    def read_only(self) -> bool:
        return self._read_only

    @property
    def store_id(self) -> str:
        """A name for the store that no other has, except its copies."""
        return self._acquired().catalog.store_id

    @property
    def closed(self) -> bool:
        return self._closed

    # ---- topics

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        settings: Mapping[str, Value] | None = None,
        *,
        exist_ok: bool = False,
    ) -> TopicInfo:
        """A new topic. `settings` are spelled as Kafka spells them: {"retention.ms": 3_600_000}.

        With `exist_ok` a topic that is there already is left as it is.
        """
        core = self._acquired()
        try:
            core.create_topic(name, partitions, {} if settings is None else settings)
        except TopicExists:
            if not exist_ok:
                raise
        return self.topic(name)

    def topics(self) -> list[str]:
        """The names of all topics."""
        return [topic.name for topic in self._acquired().catalog.topics()]

    def topic(self, name: str) -> TopicInfo:
        """A topic as it is now: its partitions and their ends, its settings."""
        opened = self._acquired().topic(name)
        topic = opened.topic
        infos = [_info(opened.partition(number)) for number in range(len(topic.partitions))]
        return TopicInfo(topic.name, topic.id, tuple(infos), topic.settings.to_dict(), topic.created_ms)

    def alter_topic(
        self, name: str, settings: Mapping[str, Value] | None = None, *, reset: Iterable[str] = ()
    ) -> TopicInfo:
        """Change some settings, put those named in `reset` back to their defaults, leave the rest."""
        core = self._acquired()
        core.catalog.alter_settings(
            name, {} if settings is None else settings, [reset] if isinstance(reset, str) else reset
        )
        core.changed()
        return self.topic(name)

    def add_partitions(self, name: str, total: int) -> TopicInfo:
        """Let the topic have `total` partitions. New records of a key may go to another one than its old records."""
        core = self._acquired()
        core.catalog.add_partitions(name, total, core.lay_out)
        core.changed()
        return self.topic(name)

    def delete_topic(self, name: str) -> None:
        """Delete the topic and its records. Whoever still appends to it, in any process, gets UnknownTopic."""
        core = self._writable()
        delete_topic(core, name)
        self._targets.pop(name, None)

    # ---- appending

    def append(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        partition: int | None = None,
        headers: Any = None,
        timestamp: int | datetime | None = None,
        acks: Acks = "all",
    ) -> int | None:
        """Append one record: its offset.

        `acks` says when it returns: 1, when the record is committed and every reader sees it; "all", when it is on disk
        as well; 0 is as 1, and returns None. Without `partition` the key decides; without a key, partitions take turns.
        """
        if acks == 1 and headers is None and timestamp is None and partition is None:
            target = self._targets.get(topic)
            if target is not None and target.heads.catalog_version == target.version:
                quick = target.quick
                if quick is not None:  # one partition, usual settings: one native call
                    offset = quick(key, value)
                    return offset if offset >= 0 else self._after_quick(target, offset, topic, key, value)
        durable = acks_of(acks) == ALL
        log = self._target(topic).choose(key, partition)
        time_ms = -1 if timestamp is None else to_ms(timestamp)
        if headers is None:
            offset = log.append_one(key, value, time_ms)
        else:
            batch = bytearray(256)
            stamp = log.now_ms() if time_ms == -1 else time_ms
            offset = log.append(batch, encode_one(batch, key, value, headers, stamp))
        if durable:
            log.sync(offset + 1)
        return offset if acks else None

    def _after_quick(self, target: Target, result: int, topic: str, key: Any, value: Any) -> int:
        """The quick way left something to be done, or could not be gone."""
        if result > EVENTFUL:
            return self._target(topic).choose(key, None).append_one(key, value)
        assert target.single is not None
        return target.single.settle_one(result, key, value, -1)

    def append_many(
        self,
        topic: str,
        records: Iterable[Any],
        *,
        acks: Acks = "all",
        partition: int | None = None,
        timestamp: int | datetime | None = None,
        compression: str | None = None,
        compression_level: int | None = None,
    ) -> Appended:
        """Append many records, in few batches: where they went.

        `records` are tuples of (key, value), (key, value, headers) or (key, value, headers, timestamp), or values. If
        one of them cannot be taken, those before it in its partition are appended, and the error says which it was.
        """
        durable = acks_of(acks) == ALL
        codec = codec_of(compression, compression_level)
        return self._target(topic).append_many(
            records,
            durable=durable,
            partition=partition,
            timestamp=-1 if timestamp is None else to_ms(timestamp),
            codec=codec,
            level=compression_level,
        )

    def append_table(
        self,
        topic: str,
        table: Any,
        *,
        acks: Acks = "all",
        partition: int | None = None,
        timestamp: int | datetime | None = None,
        compression: str | None = None,
        compression_level: int | None = None,
    ) -> Appended:
        """Append the rows of an Arrow table, or of anything that gives Arrow's stream: where they went.

        Columns: value, and if it has them key, timestamp, headers, partition. `partition` and `timestamp` are for rows
        that say nothing themselves.
        """
        from klamm.arrow.append_table import append_table

        durable = acks_of(acks) == ALL
        codec = codec_of(compression, compression_level)
        return append_table(
            self._target(topic).opened,
            table,
            durable=durable,
            partition=partition,
            timestamp=self._acquired().heads.wall_ms() if timestamp is None else to_ms(timestamp),
            codec=codec,
            level=compression_level,
        )

    def _target(self, topic: str) -> Target:
        """The topic as the catalog has it now."""
        if not isinstance(topic, str):
            raise TypeError(f"a topic's name is a str, not {type(topic).__name__}")
        core = self._acquired()
        version = core.heads.catalog_version
        target = self._targets.get(topic)
        if target is None or target.version != version:
            if self._read_only:
                raise ReadOnly(f"{self._path}: opened for reading only")
            self._targets.pop(topic, None)
            target = Target(core.topic(topic), core.heads, version)
            with self._mutex:
                if self._core is core:
                    self._targets[topic] = target
        return target

    def producer(self, **options: Unpack[ProducerOptions]) -> Producer:
        """Sends records in batches, from any thread. Leaving its `with` block flushes."""
        producer = Producer(self._acquired(), **options)
        producer._store = self
        self._clients.add(producer)
        return producer

    # ---- reading

    def consumer(self, topics: Topics | None = None, **options: Unpack[ConsumerOptions]) -> Consumer:
        """Reads topics, from where it is told, or with `group` shares them, from where the group stands.

        `wait_ms` is how long it waits for more: for ever, unless told; 0 reads what is there, then ends. `form` is
        "records", "tuples" of (key, value), or "values". `on_out_of_range` says what to do when an offset is not in the
        log: "error", or go on at the "earliest" or "latest". The other options: docs/reference/api.md.
        """
        core = self._acquired()
        consumer = Consumer(core, topics, store=self, **options)
        core.look_after()
        self._clients.add(consumer)
        return consumer

    def tail(
        self,
        topic: str,
        n: int = 10,
        *,
        follow: bool = False,
        serde: Serde | None = None,
        key_serde: Serde | None = None,
    ) -> Iterator[Any]:
        """The last `n` records of all partitions, by time; with `follow` it then waits for more."""
        return self._held_by(tail(self._acquired(), topic, n, follow=follow, serde=serde, key_serde=key_serde))

    def transaction(self, name: str | None = None, **options: Unpack[TransactionOptions]) -> Transaction:
        """Records and progress of groups, all or nothing. Leaving its `with` block commits, an exception aborts.

        A `name` is a transactional id: a newer transaction of that name, in whatever process, aborts this one. Options:
        timeout_ms, serde, key_serde, compression, compression_level, batch_bytes, partitioner.
        """
        from klamm.client.transaction import Pool

        core = self._acquired()
        with self._mutex:
            if self._pool is None or self._pool.core is not core:
                self._pool = Pool(core)
                self._clients.add(self._pool)
        transaction = self._pool.begin(name, **options)
        transaction._store = self
        return transaction

    def transactions(self) -> list[TransactionInfo]:
        """Those that are not over, in whatever process, and committed ones whose end is not on disk everywhere yet."""
        return self._acquired().transactions.infos()

    def abort_transaction(self, producer_id: int) -> bool:
        """Abort what a producer id has open, whoever it is. False if it has nothing open."""
        return self._acquired().transactions.abort(producer_id)

    def table(
        self,
        topic: str,
        *,
        serde: Serde | None = None,
        key_serde: Serde | None = None,
        wait_ms: float | None = 10_000,
    ) -> Table:
        """The topic as a read-only mapping: the latest value of each key, kept in RocksDB.

        A read waits until the table has what was committed before, be it the whole topic the first time. StoreBusy if
        the table gets no further for `wait_ms`; None waits for ever, 0 takes what is there.
        """
        from klamm.client.table import open_table

        table = open_table(self._acquired(), topic, serde=serde, key_serde=key_serde, wait_ms=wait_ms)
        table._store = self
        self._clients.add(table)
        return table

    def dead_letters(self, topic: str, *, limit: int | None = None) -> Iterator[DeadLetter]:
        """Iterate over what lies in a dead-letter topic now and was not redriven, with the reasons."""
        from klamm.client.dead_letters import dead_letters

        return self._held_by(dead_letters(self._acquired(), topic, limit))

    def redrive(
        self,
        topic: str,
        to: str | None = None,
        *,
        limit: int | None = None,
        where: Callable[[DeadLetter], bool] | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> int:
        """Put dead letters back to where they came from, or to the topic `to`, each once: how many."""
        from klamm.client.dead_letters import redrive

        return redrive(self._acquired(), topic, to, limit=limit, where=where, progress=progress)

    def purge_dead_letters(self, topic: str) -> int:
        """Remove the redriven letters in front of the first that was not, by partition, and return how many."""
        from klamm.client.dead_letters import purge

        return purge(self._writable(), topic)

    def scan(
        self,
        topic: str,
        *,
        partitions: int | Iterable[int] | None = None,
        start: Any = None,
        end: Any = None,
        since: str | timedelta | None = None,
        columns: Iterable[str] | None = None,
        **options: Any,
    ) -> Scan:
        """The topic as an Arrow stream, read when somebody reads it: DuckDB, Polars, pandas, pyarrow."""
        from klamm.arrow.scan import Scan

        where = {"partitions": partitions, "start": start, "end": end, "since": since}
        return Scan(lambda: self._acquired().topic(topic), columns=columns, **where, **options)

    def offset_at(self, topic: str, partition: int, when: int | datetime) -> int | None:
        """The first offset whose record is as young as `when`; None if there is none."""
        return self._acquired().topic(topic).partition(partition).offset_at(to_ms(when))

    # ---- keeping house

    def delete_records(self, topic: str, before: Mapping[int, int]) -> dict[int, int]:
        """Forget the records before an offset, by partition; where each partition starts now."""
        opened = self._acquired().topic(topic)
        partitions = {number: opened.partition(number).housekeeping for number in before}
        return {number: partition.delete_before(before[number]) for number, partition in partitions.items()}

    def cuts(self, topic: str) -> list[Cut]:
        """Return the files with what recovery or repair cut off the topic's logs: `klamm salvage` prints them."""
        from klamm.store import salvage

        return salvage.cuts_of(self._acquired().path, self._acquired().catalog.topic(topic))

    def maintain(self) -> None:
        """Sync and note how far, remove what retention says, compact what is worth it, sweep."""
        self._maintain(lambda: False)

    def _maintain(self, is_over: Callable[[], bool]) -> None:
        from klamm.store.maintenance import maintain

        maintain(self._writable(), is_over)

    def compact(
        self,
        topic: str | None = None,
        *,
        force: bool = False,
        memory_bytes: int = 128 << 20,
        progress: Callable[[str, int, int, int], object] | None = None,
    ) -> CompactionReport:
        """Compact a topic, or all whose cleanup.policy says so, where `min.cleanable.dirty.ratio` is reached.

        `force` closes the active segments first and compacts whatever there is. `memory_bytes` is for the table of
        keys, 24 bytes each. `progress` is called with topic, partition, bytes done, and bytes in all; what it raises
        ends the compaction, and nothing is lost.
        """
        from klamm.store.maintenance import compact

        return compact(self._writable(), topic, force=force, memory_bytes=memory_bytes, progress=progress)

    def backup(
        self, destination: str | os.PathLike[str], *, progress: Callable[[int, int], object] | None = None
    ) -> Copied:
        """Copy the store, as it is at one moment, into a new directory. Others may go on using it."""
        from klamm.store.backup import backup

        return backup(self._acquired(), os.fspath(destination), progress=progress)

    def check(self, *, repair: bool = False, progress: Callable[[int, int], object] | None = None) -> Report:
        """Verify every promise and report which is broken, and where; the same as `klamm.check`."""
        from klamm.store.check import check

        return check(self._acquired(), repair=repair, progress=progress)

    # ---- the end

    def close(self) -> None:
        """Close its producers (they flush) and consumers, and let go of the directory. A second time does nothing."""
        if self._closed:
            return
        failed = self._clients.close()
        if self._maintainer is not None:
            self._maintainer.stop()
        with self._mutex:
            core, self._core = self._core, None
            self._closed = True
            self._targets.clear()
        ending.open_stores.discard(self)
        if core is not None:
            directory.release(core)
        if failed is not None:
            raise failed

    def _acquired(self) -> Core:
        core = self._core
        if core is not None:
            return core
        with self._mutex:
            if self._closed:
                raise StoreError(f"{self._path}: the store is closed", hint="open it anew")
            if self._core is None:  # in a forked child
                self._core = self._acquire(create=False)
                if self._maintainer is not None:
                    self._maintainer.start(self)
            return self._core

    def _held_by(self, items: Iterator[Any]) -> Iterator[Any]:
        """Keep the store from being dropped for as long as `items` are read."""
        yield from items

    def _writable(self) -> Core:
        if self._read_only:
            raise ReadOnly(f"{self._path}: opened for reading only")
        return self._acquired()

    def in_child(self) -> None:
        self._mutex = threading.RLock()
        self._targets = {}
        self._clients = Clients(self._path)
        self._core = None


def _info(partition: Partition) -> PartitionInfo:
    ends = partition.ends()
    return PartitionInfo(partition.number, ends.start, ends.end, ends.leader_epoch, partition.log_size())
