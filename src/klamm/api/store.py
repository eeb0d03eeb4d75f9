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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self, Unpack

from klamm.api.topic import Topic
from klamm.api.topics import Topics, topics_table
from klamm.api.transactions import Transactions
from klamm.batch import encode_one
from klamm.client import exit_handlers
from klamm.client.clients import Clients
from klamm.client.consume.consumer import Consumer
from klamm.client.groups.group_admin import Groups
from klamm.client.options import ALL, Acks, acks_of, busy_ms, check_options
from klamm.client.produce.producer import Producer
from klamm.client.produce.target import Target, codec_of
from klamm.client.serde import Serde, Serdes
from klamm.disk import fork
from klamm.errors import Closed, ReadOnly, StoreError
from klamm.log.head import EVENTFUL
from klamm.store import directory
from klamm.store.deletion import sweep
from klamm.store.settings import named_settings
from klamm.times import Duration, to_ms, to_seconds
from klamm.types import Appended

if TYPE_CHECKING:
    from datetime import datetime

    from klamm.arrow.scan import Scan
    from klamm.arrow.sql_result import SqlResult
    from klamm.batch import Record
    from klamm.client.consume.consumer_options import ConsumerOptions
    from klamm.client.pipe.pipe import Pipe
    from klamm.client.pipe.pipe_options import PipeOptions
    from klamm.client.produce.producer_options import ProducerOptions, TransactionOptions
    from klamm.client.subscription import TopicSelection
    from klamm.client.table.table import Table
    from klamm.client.transaction import Pool, Transaction
    from klamm.client.work.dead_letters import DeadLetter
    from klamm.store.backup import Copied
    from klamm.store.check import Report
    from klamm.store.directory import Core
    from klamm.store.maintenance import Maintainer
    from klamm.store.settings import Value
    from klamm.types import CompactionReport, GivenHeaders, Lineage, LockInfo
    from klamm.where import WhereLike

__all__ = ["Store"]


class Store:
    """A directory of topics. Made by `klamm.open`.

    `store["orders"]` is a handle on a topic; iterating over a store gives the names of its topics.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        read_only: bool = False,
        create: bool = True,
        force_filesystem: bool = False,
        maintain_every: Duration | None = None,
        busy_timeout: Duration | None = None,
        serde: Serde | None = None,
        key_serde: Serde | None = None,
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
        self._options: dict[str, Any] = {"read_only": read_only, "force_filesystem": force_filesystem}
        self._busy_timeout = busy_timeout
        self._serdes = Serdes(serde, key_serde).check()
        self._has_serdes = self._serdes != Serdes()
        self._closed = False
        self._mutex = threading.RLock()
        self._targets: dict[str, Target] = {}
        self._clients = Clients(self._path)
        self._pool: Pool | None = None
        self._maintainer: Maintainer | None = None
        if maintain_every is not None and not read_only:
            from klamm.store.maintenance import Maintainer

            self._maintainer = Maintainer(to_seconds("maintain_every", maintain_every, at_least=0.001))
        self._core: Core | None = self._acquire(create)
        if self._maintainer is not None:
            self._maintainer.start(self)
        fork.register(self, Store._in_child)
        exit_handlers.open_stores.add(self)

    def _acquire(self, create: bool) -> Core:
        busy_timeout_ms = busy_ms(self._busy_timeout)
        core = directory.acquire(self._path, create=create, busy_timeout_ms=busy_timeout_ms, **self._options)
        if not self._read_only and core.users == 1:
            sweep(core, thorough=False)
            core.transactions.resolve(only_abandoned=True)
        return core

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ", read-only" if self._read_only else ""
        return f"<Store {self._path}{state}>"

    def _repr_html_(self) -> str:
        return topics_table(repr(self), [] if self._closed else [self.topics.describe(name) for name in self])

    def __reduce__(self) -> tuple[Any, ...]:
        options = {**self._options, "busy_timeout": self._busy_timeout, **self._serdes._asdict()}
        return partial(Store, create=False, **options), (self._path,)

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

    # ---- what is in it

    @property
    def topics(self) -> Topics:
        """Its topics: create, describe, alter, delete; iterating over it gives their names."""
        return Topics(self)

    @property
    def groups(self) -> Groups:
        """Its consumer groups: describe, reset, delete, export; iterating over it gives their names."""
        return Groups(self)

    @property
    def transactions(self) -> Transactions:
        """The transactions that are not over: abort; iterating over it gives TransactionInfos."""
        return Transactions(self)

    def __getitem__(self, name: str) -> Topic:
        """Return a handle on a topic; UnknownTopic if there is none of that name."""
        if not isinstance(name, str):
            raise TypeError(f"a topic's name is a str, not {type(name).__name__}")
        self._acquired().catalog.topic(name)
        return Topic(self, name)

    def __contains__(self, name: object) -> bool:
        return name in self.topics

    def __iter__(self) -> Iterator[str]:
        return iter(self.topics)

    def __len__(self) -> int:
        return len(self.topics)

    def __bool__(self) -> bool:
        """True, also without topics: `if store` asks whether there is a store."""
        return True

    def settings(self) -> dict[str, str]:
        """Return the settings of the store itself, defaults included."""
        return self._acquired().catalog.settings().all()

    def alter(
        self, settings: Mapping[str, Value] | None = None, *, reset: Iterable[str] = (), **named: Value
    ) -> dict[str, str]:
        """Change some of them, put those named in `reset` back to their defaults, leave the rest; return them all."""
        resets = [reset] if isinstance(reset, str) else reset
        return self._acquired().catalog.alter(named_settings(settings, named), resets).all()

    # ---- appending

    def append(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        partition: int | None = None,
        headers: GivenHeaders | None = None,
        timestamp: int | datetime | None = None,
        acks: Acks = "all",
        serde: Serde | None = None,
        key_serde: Serde | None = None,
    ) -> int | None:
        """Append one record and return its offset.

        `acks` says when it returns: 1, when the record is committed and every reader sees it; "all", when it is on disk
        as well; 0 is as 1, and returns None. Without `partition` the key decides; without a key, partitions take turns.
        `headers` is a mapping or (name, value) pairs, values are bytes or text.
        """
        if acks == 1 and headers is None and timestamp is None and partition is None and serde is None is key_serde:
            target = self._targets.get(topic)
            if target is not None and target.heads.catalog_version == target.version:
                quick = target.quick
                if quick is not None:  # one partition, usual settings, no serde: one native call
                    offset = quick(key, value)
                    return offset if offset >= 0 else self._after_quick(target, offset, topic, key, value)
        if serde is not None or key_serde is not None or self._has_serdes:
            key, value = Serdes(serde, key_serde).over(self._serdes).serializer().pair(key, value)
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
        serde: Serde | None = None,
        key_serde: Serde | None = None,
    ) -> Appended:
        """Append many records, in few batches, and return where they are.

        `records` are tuples of (key, value), (key, value, headers) or (key, value, headers, timestamp), or values. If
        one of them cannot be taken, those before it in its partition are appended, and the error says which it was.
        """
        durable = acks_of(acks) == ALL
        serdes = Serdes(serde, key_serde).over(self._serdes)
        codec = codec_of(compression, compression_level)
        return self._target(topic).append_many(
            records,
            durable=durable,
            partition=partition,
            timestamp=-1 if timestamp is None else to_ms(timestamp),
            codec=codec,
            level=compression_level,
            serializer=None if serdes == Serdes() else serdes.serializer(),
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

    def _checked(self, call: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of a call, all of them known, with the store's serdes where it has none of its own."""
        from klamm.api.call_options import checked

        return checked(call, options, self._serdes)

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
            target = Target(core.topic(topic), core.heads, version, takes_bytes=not self._has_serdes)
            with self._mutex:
                if self._core is core:
                    self._targets[topic] = target
        return target

    def producer(self, **options: Unpack[ProducerOptions]) -> Producer:
        """Sends records in batches, from any thread. Leaving its `with` block flushes."""
        producer = Producer(self._acquired(), **self._checked("producer", options))
        producer._store = self
        self._clients.add(producer)
        return producer

    # ---- reading

    def consumer(self, topics: TopicSelection | None = None, **options: Unpack[ConsumerOptions]) -> Consumer:
        """Reads topics, from where it is told, or with `group` shares them, from where the group stands.

        `wait` is how long it waits for more: forever, unless told; 0 reads what is there, then ends. `form` is
        "records", "tuples" of (key, value), or "values". `auto_offset_reset` is for offsets that the group does not
        have, or the log does not have any more: go on at the "earliest" or "latest", or raise an "error"; by default a
        new group starts at the earliest, and a missing offset raises. The other options: docs/reference/api.md.
        """
        checked = self._checked("consumer", options)
        core = self._acquired()
        consumer = Consumer(core, topics, store=self, **checked)
        core.look_after()
        self._clients.add(consumer)
        return consumer

    def tail(
        self,
        topic: str,
        n: int | None = None,
        *,
        start: WhereLike | None = None,
        follow: bool = False,
        serde: Serde | None = None,
        key_serde: Serde | None = None,
    ) -> Iterator[Any]:
        """Return the last `n` records of all partitions, by time; with `follow` it then waits for more.

        With `start`, only those from there on, and without `n` all of them, partitions taking turns. Without either,
        the last ten.
        """
        from klamm.client.consume.tail import tail

        serdes = Serdes(serde, key_serde).over(self._serdes)
        return self._held_by(tail(self._acquired(), topic, n, start=start, follow=follow, **serdes._asdict()))

    def transaction(
        self,
        name: str | None = None,
        *,
        consumers: Consumer | Iterable[Consumer] = (),
        **options: Unpack[TransactionOptions],
    ) -> Transaction:
        """Records and progress of groups, all or nothing. Leaving its `with` block commits, an exception aborts.

        A `name` is a transactional id: a newer transaction of that name, in whatever process, aborts this one. It may
        commit offsets of `consumers`, which go back if it is aborted. Options: timeout, and those of batches.
        """
        from klamm.client.transaction import Pool

        checked = self._checked("transaction", options)
        core = self._acquired()
        with self._mutex:
            if self._pool is None or self._pool.core is not core:
                self._pool = Pool(core)
                self._clients.add(self._pool)
        transaction = self._pool.begin(name, consumers, **checked)
        transaction._store = self
        return transaction

    def lineage(self, record: Record) -> Lineage | None:
        """Return the committed transaction that a record came with: what it has read and written. None if that is not
        known: the record came without one, or `lineage.retention.ms` was not set then, or is over.
        """
        return self._acquired().transactions.lineage.find(record)

    def table(
        self,
        topic: str,
        *,
        serde: Serde | None = None,
        key_serde: Serde | None = None,
        wait: Duration | None = 10,
    ) -> Table:
        """The topic as a read-only mapping: the latest value of each key, kept in RocksDB.

        A read waits until the table has what was committed before, be it the whole topic the first time. StoreBusy if
        the table gets no further for `wait`; None waits forever, 0 takes what is there.
        """
        from klamm.client.table.table import open_table

        serdes = Serdes(serde, key_serde).over(self._serdes)
        table = open_table(self._acquired(), topic, **serdes._asdict(), wait=wait)
        table._store = self
        self._clients.add(table)
        return table

    def pipe(self, topic: str, function: Callable[..., Any], **options: Unpack[PipeOptions]) -> Pipe:
        """Put a function between topics, exactly once: `run` calls it for each record and writes what it returns."""
        from klamm.client.pipe.pipe import Pipe

        pipe = Pipe(self._writable(), self, topic, function, **self._checked("pipe", options))
        self._clients.add(pipe)
        return pipe

    def dead_letters(self, topic: str, *, limit: int | None = None) -> Iterator[DeadLetter]:
        """Iterate over what lies in a dead-letter topic now and was not redriven, with the reasons."""
        from klamm.client.work.dead_letters import dead_letters

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
        from klamm.client.work.dead_letters import redrive

        return redrive(self._acquired(), topic, to, limit=limit, where=where, progress=progress)

    def purge_dead_letters(self, topic: str) -> int:
        """Remove the redriven letters in front of the first that was not, by partition, and return how many."""
        from klamm.client.work.dead_letters import purge

        return purge(self._writable(), topic)

    def scan(
        self,
        topic: str,
        *,
        partitions: int | Iterable[int] | None = None,
        start: WhereLike = "earliest",
        end: WhereLike = "latest",
        columns: Iterable[str] | None = None,
        **options: Any,
    ) -> Scan:
        """Return the topic, or a part of it, as an Arrow stream for DuckDB, Polars, pandas and pyarrow; it is lazy."""
        from klamm.arrow.scan import Scan

        check_options("scan()", options, Scan.__init__.__kwdefaults__ or ())
        options |= {"partitions": partitions, "start": start, "end": end, "columns": columns}
        return Scan(lambda: self._acquired().topic(topic), **options)

    def sql(self, query: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None) -> SqlResult:
        """Run a query of DuckDB, in which topics are tables, and return its rows.

        `parameters` are for its `?`, or for its `$name`. `latest.users` is the latest record of each key of a topic,
        `text(value)` a value as text. Each call has a database of its own, in memory.
        """
        from klamm.arrow.database import Database

        return Database(self._acquired()).query(query, parameters)

    # ---- keeping house

    def maintain(self) -> None:
        """Sync and note how far, remove what retention says, compact what is worth it, sweep."""
        self._maintain(lambda: False)

    def _maintain(self, is_over: Callable[[], bool]) -> None:
        from klamm.store.maintenance import maintain

        maintain(self._writable(), is_over)

    def compact(
        self,
        *,
        force: bool = False,
        memory_bytes: int = 128 << 20,
        progress: Callable[[str, int, int, int], object] | None = None,
    ) -> CompactionReport:
        """Compact all topics whose cleanup.policy says so, where `min.cleanable.dirty.ratio` is reached.

        `force` closes the active segments first and compacts whatever there is. `memory_bytes` is for the table of
        keys, 24 bytes each. `progress` is called with topic, partition, bytes done, and bytes in all; what it raises
        ends the compaction, and nothing is lost. One topic: `store["orders"].compact()`.
        """
        return self._compact(None, force=force, memory_bytes=memory_bytes, progress=progress)

    def _compact(
        self,
        topic: str | None,
        *,
        force: bool,
        memory_bytes: int,
        progress: Callable[[str, int, int, int], object] | None,
    ) -> CompactionReport:
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

    def who(self) -> list[LockInfo]:
        """Return which processes hold or wait for which lock of the store, since when, and whether they are stopped."""
        from klamm.store.who import who

        return who(self._acquired())

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
        exit_handlers.open_stores.discard(self)
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
                raise Closed(f"{self._path}: the store is closed", hint="open it again")
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

    def _in_child(self) -> None:
        self._mutex = threading.RLock()
        self._targets = {}
        self._clients = Clients(self._path)
        self._core = None
