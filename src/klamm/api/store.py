"""The store that `klamm.open` returns.

A Store is cheap: all opens of a directory in one process share their state. It is thread-safe. It lives as long as any
producer, consumer or table of it, so sent records are delivered whichever is dropped first. After a fork, the child's
copy opens the directory again at its first use. Pickled, it is its path: it is opened again where it is unpickled.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Never, Self

from klamm.api.appends import Appends
from klamm.api.reads import Reads
from klamm.api.topic import Topic
from klamm.api.topics import Topics, topics_table
from klamm.api.transactions import Transactions
from klamm.client import exit_handlers
from klamm.client.clients import Clients
from klamm.client.groups.group_admin import Groups
from klamm.client.options import busy_ms, check_options
from klamm.client.serde import Serde, Serdes
from klamm.disk import fork
from klamm.errors import Closed, StoreError
from klamm.other_names import explains_names
from klamm.store import directory
from klamm.store.deletion import sweep
from klamm.store.settings import named_settings
from klamm.times import Duration, to_seconds
from klamm.typevars import K, V

if TYPE_CHECKING:
    from klamm.choices import OffsetReset, PipeErrorPolicy
    from klamm.client.pipe.pipe import Pipe
    from klamm.client.produce.target import Target
    from klamm.client.transaction import Pool
    from klamm.client.work.dead_letters import DeadLetter
    from klamm.store.backup import Copied
    from klamm.store.check import Report
    from klamm.store.directory import Core
    from klamm.store.maintenance import Maintainer
    from klamm.store.settings import Value
    from klamm.types import CompactionReport, LockInfo

__all__ = ["Store", "looks_like_address"]


@explains_names
class Store(Appends[K, V], Reads[K, V]):
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
        name = os.fspath(path) if isinstance(path, os.PathLike) else path
        if not isinstance(name, str):
            raise TypeError(f"a path is a str, not {type(name).__name__}")
        _check_path(name)
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
        lease = self._lease = directory.Lease()
        try:
            core = directory.acquire(
                self._path, create=create, busy_timeout_ms=busy_timeout_ms, lease=lease, **self._options
            )
            if not self._read_only and core.users == 1:
                sweep(core, with_all_topics=False)
                core.transactions.resolve(only_abandoned=True)
        except BaseException:
            lease.release()
            raise
        return core

    def _release(self, core: Core) -> None:
        self._lease.release()

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
            self._release(core)

    @property
    def path(self) -> str:
        """The directory."""
        return self._path

    @property
    def read_only(self) -> bool:
        return self._read_only

    @property
    def store_id(self) -> str:
        """A unique id of the store; copies have the same."""
        return self._acquired().catalog.store_id

    @property
    def closed(self) -> bool:
        return self._closed

    # ---- what is in it

    @property
    def topics(self) -> Topics[K, V]:
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

    def __getitem__(self, name: str) -> Topic[K, V]:
        """Return a handle on a topic. Raise UnknownTopic if it does not exist."""
        self._acquired().catalog.topic(name)
        return Topic(self, name)

    def __contains__(self, name: object) -> bool:
        return name in self.topics

    def __iter__(self) -> Iterator[str]:
        return iter(self.topics)

    def __len__(self) -> int:
        return len(self.topics)

    def __bool__(self) -> bool:
        """Return True, also without topics: `if store` tests for None."""
        return True

    def settings(self) -> dict[str, str]:
        """Return the settings of the store itself, defaults included."""
        return self._acquired().catalog.settings().all()

    def alter(
        self, settings: Mapping[str, Value] | None = None, *, reset: Iterable[str] = (), **named: Value
    ) -> dict[str, str]:
        """Change some of the store's settings, reset those named in `reset`, and return all."""
        resets = [reset] if isinstance(reset, str) else reset
        return self._acquired().catalog.alter(named_settings(settings, named), resets).all()

    # ---- pipes and dead letters; appending: appends.py, reading: reads.py

    def pipe(
        self,
        topic: str,
        function: Callable[..., Any],
        *,
        to: str | Iterable[str] = (),
        state: str | None = None,
        group: str | None = None,
        serde: Serde | None = None,
        key_serde: Serde | None = None,
        auto_offset_reset: OffsetReset | None = None,
        on_error: PipeErrorPolicy = "stop",
        max_records: int = 1000,
        max_poll_interval_ms: int = 300_000,
        **unknown: Never,
    ) -> Pipe:
        """Put a function between topics, exactly once: `run` calls it for each record and writes what it returns."""
        from klamm.client.pipe.pipe import Pipe

        check_options("pipe()", unknown, Pipe.__init__.__kwdefaults__ or ())
        pipe = Pipe(
            self._writable(),
            self,
            topic,
            function,
            to=to,
            state=state,
            group=group,
            auto_offset_reset=auto_offset_reset,
            on_error=on_error,
            max_records=max_records,
            max_poll_interval_ms=max_poll_interval_ms,
            **Serdes(serde, key_serde).over(self._serdes)._asdict(),
        )
        self._clients.add(pipe)
        return pipe

    def dead_letters(self, topic: str, *, limit: int | None = None) -> Iterator[DeadLetter]:
        """Iterate over the letters in a dead-letter topic now that were not redriven, with their errors."""
        from klamm.client.work.dead_letters import dead_letters

        return self._held_by(dead_letters(self._acquired(), topic, limit), "Store.dead_letters")

    def redrive(
        self,
        topic: str,
        to: str | None = None,
        *,
        limit: int | None = None,
        where: Callable[[DeadLetter], bool] | None = None,
        edit: Callable[[DeadLetter], bytes | None] | None = None,
        per_second: float | None = None,
        dry_run: bool = False,
        progress: Callable[[int, int], object] | None = None,
    ) -> int:
        """Send dead letters back to their topics, or to the topic `to`, each once. Return how many."""
        from klamm.client.work.dead_letters import redrive

        return redrive(
            self._acquired(),
            topic,
            to,
            limit=limit,
            where=where,
            edit=edit,
            per_second=per_second,
            dry_run=dry_run,
            progress=progress,
        )

    def purge_dead_letters(self, topic: str) -> int:
        """Delete the redriven letters before the first one that is not, in each partition. Return how many."""
        from klamm.client.work.dead_letters import purge

        return purge(self._writable(), topic)

    # ---- settings and maintenance

    def maintain(self) -> None:
        """Write recovery points, resolve abandoned transactions, apply retention, compact where it is worth it, sweep
        leftovers.
        """
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
        """Compact all topics with cleanup.policy=compact that have reached `min.cleanable.dirty.ratio`.

        `force` closes the active segments first and compacts whatever there is. `memory_bytes` is for the table of
        keys, 24 bytes each. `progress` is called with topic, partition, bytes done, and bytes in all; an exception of
        it ends the compaction, and nothing is lost. One topic: `store["orders"].compact()`.
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
        """Copy the store, as of one moment, into a new directory, while other processes use it."""
        from klamm.store.backup import backup

        return backup(self._acquired(), os.fspath(destination), progress=progress)

    def check(self, *, repair: bool = False, progress: Callable[[int, int], object] | None = None) -> Report:
        """Verify every promise and report which is broken, and where: like `klamm.check`."""
        from klamm.store.check import check

        return check(self._acquired(), repair=repair, progress=progress)

    def who(self) -> list[LockInfo]:
        """Return which processes hold or wait for which lock of the store, since when, and whether they are stopped."""
        from klamm.store.who import who

        return who(self._acquired())

    # ---- the end

    def close(self) -> None:
        """Close the store, its producers (they flush) and its consumers. A second call does nothing."""
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
            self._release(core)
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

    def _in_child(self) -> None:
        self._mutex = threading.RLock()
        self._targets = {}
        self._clients = Clients(self._path)
        self._core = None


def looks_like_address(path: str) -> bool:
    """Return whether it is the address of servers, host:port, rather than a directory."""
    return re.fullmatch(r"[\w.-]+:\d+(,[\w.-]+:\d+)*", path) is not None and not os.path.exists(path)


def _check_path(path: str) -> None:
    """Refuse what was meant as something else than a directory: it would be made."""
    if re.match(r"[a-z][a-z0-9+.-]*://", path):
        raise StoreError(f"{path}: neither a directory nor an address", hint="expected a path, or kafka://host:port")
    if not path:
        raise StoreError("the path of the store is empty", hint='expected a directory; "." is the current one')
    if path == ":memory:":
        raise StoreError(
            f"{path!r} is not a directory", hint="a store below /dev/shm is in memory; else say ./:memory:"
        )
    if looks_like_address(path):
        raise StoreError(
            f"{path}: is the address of a server, not a directory",
            hint=f"say kafka://{path} for the server, or ./{path} for a directory",
        )
