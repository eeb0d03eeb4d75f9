"""The directory of a store, opened once a process.

    klamm.db                 topics and settings (catalog.py)
    heads                    one slot a partition (log/head.py)
    lock  members            lock bytes (disk/locks.py)
    topics/<name>-<id>/<n>/  the files of partition n, from its first append on
    reserve                  blocks for a full disk (disk/reserve.py)
    server                   address and process of the Kafka server, while there is one (kafka/server.py)
    tables/<name>-<id>/      the topic as a table, once it was opened (client/table/rocksdb.py); can be re-created
    pipelines/<name>/        how far pipelines that write to topics have come (spark/pipelines/pipeline_directory.py)
    staging/<store id>/      what tasks of Spark wrote, not committed yet (scratch.py)

**Trust.** `heads` is trusted if it was last written under this boot of this machine and if device and inode are those
that are recorded in it; a copied store is thus noticed. Otherwise the first opener takes the presence byte alone, marks
every partition NEEDS_RECOVERY and then stores the boot id; each partition is recovered at its first use. So a store of
10,000 partitions opens at once after a power cut, too. If another process is present, it must be on another machine
that mounts the same volume: the open is refused.

Two opens of one directory in a process share a Core: lock bytes exclude processes, not threads.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from klamm.disk import _os, files, fork, reserve
from klamm.disk.locks import BUSY_TIMEOUT_MS, DB_LOCK, DB_LOCK_QUEUE, LockFile
from klamm.disk.roots import Root
from klamm.disk.threads import DaemonThread
from klamm.errors import Closed, KlammError, NotAStore, ReadOnly, StoreBusy, UnknownTopic
from klamm.log import head, index_rebuild, results
from klamm.log.partition import Partition
from klamm.store import found_catalog, layout, retention_check, slots, upgrade
from klamm.store.catalog import Catalog, SlotRequest, Topic
from klamm.store.groups import Groups
from klamm.store.open_topic import OpenTopic, bell_bit
from klamm.store.presence import Presence
from klamm.store.settings import Value
from klamm.store.transactions import Transactions
from klamm.types import TopicId

if TYPE_CHECKING:
    from klamm.disk._os import Lockable

__all__ = ["Core", "Lease", "OpenTopic", "acquire", "boot_id", "opened", "release"]

_CLOSING_S = 5.0  # for at most this long, recovery points are written when a store is closed
OPENING = 1  # byte of `lock`: openers one after the other
_log = logging.getLogger("klamm")


def boot_id() -> bytes:
    """Return an id that differs after every boot of the machine."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return uuid.UUID(file.read().strip()).bytes
    except OSError:  # not Linux: one process at a time, which recovers at each open
        return uuid.uuid4().bytes


class Core:
    """The core: shared by all opens of one store in one process."""

    elsewhere: Any = None  # of a Kafka cluster: cluster/parts.py

    def __init__(
        self, path: str, *, read_only: bool, busy_timeout_ms: int | None = None, rebuild: bool = False
    ) -> None:
        """Open the store. With `rebuild`, rebuild a missing klamm.db, and accept one put back from a backup."""
        self.path = path
        self.root: Root | None = Root(path)
        self.files = self.root.files  # leads to the files of this very store, wherever its directory is moved
        self._busy_timeout_ms = BUSY_TIMEOUT_MS if busy_timeout_ms is None else busy_timeout_ms
        self.read_only, self.closed = read_only, False
        self.users = 0
        self._topics: dict[str, OpenTopic] = {}
        self._handles: weakref.WeakSet[Partition] = weakref.WeakSet()  # those of deleted topics, too
        self._mutex = threading.RLock()
        self._opening: dict[int, threading.Lock] = {}  # by slot
        self._with_files: dict[Partition, None] = {}
        self._max_open = max(16, min(1024, files.most_open() // 8))
        self._maintenance_thread: DaemonThread | None = None
        self._maintenance_tasks: dict[Partition, int] = {}
        self._wake = _os.Monitor()
        self.lock: LockFile | None = None
        self.members: LockFile | None = None
        self.presence: Presence | None = None
        self.life: head.Life | None = None
        self.rebuilt: list[tuple[str, str]] = []  # with `rebuild`: what was wrong, and what was done
        self.unknown_directories: set[str] = set()  # that were logged already
        try:
            self._open_read_only() if read_only else self._open(rebuild)
            self.groups = Groups(self)
            self.transactions = Transactions(self, boot_id())
            fork.register(self, Core._in_child, Core._before_fork)
        except BaseException:
            self._drop()
            self.root.close()
            raise

    def is_in_place(self) -> bool:
        """Return whether the store at the path is still the one that was opened, and not a copy in its place."""
        return self.heads.is_in_place()

    # ---- opening

    def _open(self, rebuild: bool) -> None:
        reserve.lend(self.files)
        try:
            self.lock = LockFile(f"{self.files}/lock", timeout_ms=self._busy_timeout_ms)
            self.members = LockFile(f"{self.files}/members")
            if not _os.HAS_BYTE_LOCKS and not self.members.try_hold_whole():
                raise StoreBusy(
                    f"{self.path}: another process has it open", hint="on this system one process at a time can"
                )
        except OSError as error:
            self._drop()
            raise self._not_writable(error) from error
        except StoreBusy:
            self._drop()
            raise
        try:
            self.presence = Presence(self.files, self.lock, self.members)
            with self.lock.hold(OPENING):
                self._create_parts(rebuild)
                self._join(rebuild)
                self.life = head.Life(self.heads, self.presence.heads_file)
        except OSError as error:
            self._drop()
            raise files.disk_full(error, self.path) from error
        except BaseException:
            self._drop()
            raise

    def _not_writable(self, error: OSError) -> KlammError:
        return ReadOnly(
            f"{self.path}: cannot be written: {error.strerror}",
            hint="open it with read_only=True, or change its rights",
            code="not_writable",
        )

    def _create_parts(self, rebuild: bool) -> None:
        """Create the missing files. Finishes what a killed creator has begun."""
        assert self.lock is not None
        assert self.presence is not None
        db_lock = self._db_lock
        database = f"{self.path}/klamm.db"
        if not os.path.exists(f"{self.files}/heads"):
            self.presence.be_alone("`heads` is missing")
            files.replace(f"{self.files}/heads", b"")
        self.heads = head.Heads(f"{self.files}/heads", root=self.root)
        self.presence.enter_heads()
        if not self.heads.is_sane():  # new, or damaged: everything is recovered from the files
            self.presence.be_alone("`heads` is damaged")
            self.heads.initialise()
        is_in_place = self.presence.check_lock_files(self.heads)
        upgrade.check_not_newer(self.heads, read_only=False)
        if self.heads.format < head.FORMAT:
            self.presence.be_alone(upgrade.WHY)
        self.lock.record_in(self.heads)
        files.make_directory(f"{self.files}/topics")
        found = found_catalog.open_found(self, database, db_lock, rebuild=rebuild, is_in_place=is_in_place)
        if found is not None:
            self.catalog = found
            upgrade.finish(self.heads)
            return
        if os.listdir(f"{self.files}/topics") and not self.rebuilt:
            if not rebuild:
                raise layout.no_catalog(self.path)
            self.presence.be_alone("klamm.db is missing")
            found_catalog.made_again(self, "klamm.db was missing", "made a new one")
        files.sync_directory(self.files)
        files.sync_ancestors(self.path)  # their creator may have been killed before syncing them
        self.catalog = Catalog.create(database, db_lock, self.heads.store_id or uuid.uuid4().hex)
        files.sync_directory(self.files)
        upgrade.finish(self.heads)

    def _db_lock(self) -> AbstractContextManager[None]:
        assert self.lock is not None
        return self.lock.hold(DB_LOCK, queue=DB_LOCK_QUEUE)

    def _join(self, rebuild: bool) -> None:
        """Take a lock byte as a live process; recover first if `heads` is not valid."""
        assert self.presence is not None
        boot = boot_id()
        found_catalog.check_age(self, rebuild=rebuild)
        if not self.heads.is_trusted(boot):
            self.presence.be_alone("it needs recovery")
            problems = self.catalog.check()
            if problems:
                raise NotAStore(
                    f"{self.path}/klamm.db: {problems[0]}",
                    hint="it may be a torn copy: copy with backup(), or restore a backup",
                )
            topics = self.catalog.topics()
            slots.lay_out_missing(self.heads, topics)
            slots.lay_out_replaced(self.heads, topics)
            self._boot_count = self.catalog.count_boot()
            self.heads.mark_all(head.NEEDS_RECOVERY)
            self.heads.trust(boot)
        else:
            slots.lay_out_missing(self.heads, self.catalog.topics())
            self._boot_count = self.catalog.boot_count()
        slots.tidy(self.heads, self.catalog)
        self.presence.join()

    def record_changes(self, changes: int) -> None:
        """Record in `heads` how many changes klamm.db has had; called after each, under the klamm.db lock."""
        if changes > self.heads.changes:
            self.heads.changes = changes

    def _open_read_only(self) -> None:
        try:
            self.heads = head.Heads(f"{self.files}/heads", writable=False, root=self.root)
        except FileNotFoundError:
            raise NotAStore(
                f"{self.path}: has no file `heads`", hint="open it for writing once, to recover it"
            ) from None
        if self.heads.size() < 1:
            raise NotAStore(f"{self.path}/heads: is empty", hint="open the store for writing once, to recover it")
        sane = self.heads.is_sane()
        if sane:
            upgrade.check_not_newer(self.heads, read_only=True)
            upgrade.check_not_older(self.heads)
        trusted = sane and self.heads.is_trusted(boot_id())
        if not trusted:
            self.heads = head.Heads(f"{self.files}/heads", writable=False, private=True, root=self.root)
            self.heads.mark_all(head.NEEDS_RECOVERY)
        self.catalog = Catalog(f"{self.path}/klamm.db", nullcontext, read_only=True)
        try:
            self._boot_count = self.catalog.boot_count() + (not trusted)
        except BaseException:
            self.catalog.close()
            raise

    # ---- topics

    def topic(self, name: str) -> OpenTopic:
        """Return the topic, with its latest settings and partitions. Raise UnknownTopic if it does not exist."""
        self.check_open()
        with self._mutex:
            version = self.heads.catalog_version
            return self._opened(self.catalog.topic(name), version)

    def all_topics(self) -> tuple[int, list[OpenTopic]]:
        """Return every topic, by name, and a version of the catalog: the topics are at least as new."""
        self.check_open()
        version = self.heads.catalog_version
        return version, self.take_topics(version, self.catalog.topics())

    def take_topics(self, version: int, topics: Iterable[Topic]) -> list[OpenTopic]:
        """Update the open topics from these, which were read at this version or later."""
        with self._mutex:
            return [self._opened(topic, version) for topic in topics]

    def confirm_topics(self, version: int, known: Mapping[str, tuple[OpenTopic, Topic]]) -> list[str]:
        """Mark unchanged topics as read at this version. Return the keys of topics that this process has otherwise."""
        others = []
        with self._mutex:
            topics = self._topics
            for key, (opened, topic) in known.items():
                if (opened.topic is not topic and opened.topic != topic) or topics.get(opened.name) is not opened:
                    others.append(key)
                elif opened.open_partitions and opened.version < version:
                    opened.version = version
                    for partition in opened.open_partitions.values():
                        partition.log.confirm(version)
        return others

    def _opened(self, topic: Topic, version: int) -> OpenTopic:
        """Return the open topic, updated from `topic`, read at this version or later. Called under the mutex."""
        known = self._topics.get(topic.name)
        if known is not None and (version < known.version or (version, topic) == (known.version, known.topic)):
            return known  # another thread has read it later, and was faster; or there is nothing to configure
        if known is None or known.topic.id != topic.id:
            known = self._topics[topic.name] = OpenTopic(self, topic)
        known.topic, known.version = topic, version
        for partition in known.opened():
            partition.configure(topic.settings, version)
        return known

    def create_topic(self, name: str, partitions: int, settings: Mapping[str, Value]) -> Topic:
        """Create a topic and return it."""
        return self.catalog.create_topic(name, partitions, settings, self.lay_out)

    def open_partition(self, opened: OpenTopic, number: int) -> Partition:
        if not isinstance(number, int) or not 0 <= number < opened.count:
            raise UnknownTopic(
                f"{opened.name}: there is no partition {number!r}", hint=f"it has {opened.count}, numbered from 0"
            )
        with self._mutex:
            self.check_open()
            found = opened.open_partitions.get(number)
            if found is not None:
                return found
            slot = opened.topic.partitions[number]
            turn = self._opening.setdefault(slot, threading.Lock())
        with turn:  # outside the mutex: recovery takes the append lock, which a stopped process may hold
            found = opened.open_partitions.get(number)
            if found is None:
                made = self._made(opened, number, slot)
                with self._mutex:
                    if self.closed:
                        made.log.abandon()
                    self.check_open()
                    made.configure(opened.topic.settings, opened.version)  # both may be newer by now; never one alone
                    found = opened.open_partitions[number] = made
                    self._handles.add(made)
                    self._opening.pop(slot, None)
        return found

    def _made(self, opened: OpenTopic, number: int, slot: int) -> Partition:
        if self.heads.size() <= slot:
            raise NotAStore(f"{self.heads.path}: has no slot {slot}", hint="open the store for writing, to recover it")
        heads = self.heads
        if self.read_only and not heads.private and heads.flags_of(slot) & head.NEEDS_RECOVERY:
            heads = head.Heads(heads.path, writable=False, private=True, root=self.root)  # a private copy
        try:
            made = Partition(
                heads,
                self.lock,
                topic=opened.name,
                topic_id=opened.topic.id,
                number=number,
                slot=slot,
                bell_bit=bell_bit(opened.topic.id),
                directory=f"{opened.directory}/{number}",
                settings=opened.topic.settings,
                catalog_version=opened.version,
                boot_count=self._boot_count,
                reload=lambda partition: self._reload(opened),
                on_event=self._on_event,
                life=self.life,
                root=self.root,
            )
        except head.HeadResult as error:
            if error.result is head.Result.DELETED:
                raise UnknownTopic(f"{opened.name}: the topic was deleted") from None
            raise
        if made.log.flags & head.DELETED and slots.is_listed(self.catalog, opened.topic):
            made.log.abandon()
            raise results.not_deleted_error(made)
        return made

    def _reload(self, opened: OpenTopic) -> None:
        """Reload a topic after the catalog changed: it may have other settings, or be gone."""
        self.topic(opened.name)
        if self._topics[opened.name] is not opened:
            raise UnknownTopic(f"{opened.name}: the topic was deleted and re-created")

    def lay_out(self, wanted: SlotRequest, topic_id: TopicId, number: int) -> tuple[int, ...]:
        """Lay out slots for new partitions of a topic, from `number` on, before the catalog names them."""
        assert self.lock is not None
        assert self.life is not None
        try:
            return slots.lay_out(self.heads, self.lock, self.life, wanted, topic_id, number)
        except OSError as error:
            raise files.disk_full(error, self.heads.path) from error

    def changed(self) -> None:
        """Tell every process that the catalog changed."""
        self.heads.bump_catalog_version()
        self.heads.ring_all()

    def forget(self, name: str) -> None:
        with self._mutex:
            opened = self._topics.pop(name, None)
            for partition in opened.opened() if opened else []:
                self._with_files.pop(partition, None)
                partition.log.close_idle()

    def opened(self) -> list[Partition]:
        """Return every partition that may still be in use: they share this core's descriptors."""
        with self._mutex:
            return list(self._handles)

    # ---- maintenance tasks: what appends leave to be done

    def _on_event(self, partition: Partition, events: int) -> None:
        if events & head.OPENED:
            self._bound_files(partition)
        if events & (head.ROLLED | head.RECOVERY_POINT | head.MISSING_INDEX):
            with self._wake:
                self._maintenance_tasks[partition] = self._maintenance_tasks.get(partition, 0) | events
                self._wake.notify_all()
        self.look_after()

    def look_after(self) -> None:
        """Start the maintenance thread, if there is none, for maintenance tasks and the retention check."""
        if self._maintenance_thread is None and not self.read_only:
            with self._wake:
                if self._maintenance_thread is None and not self.closed:
                    self._maintenance_thread = DaemonThread(self._run_maintenance, "klamm-maintenance")

    def _bound_files(self, partition: Partition) -> None:
        """Close the files that have not been used for longest, so that any number of partitions can be appended to."""
        with self._mutex:
            self._with_files[partition] = None
            if len(self._with_files) > self._max_open:
                oldest = sorted(self._with_files, key=lambda each: each.log.used)[: self._max_open // 2]
                for each in oldest:
                    if each is not partition:
                        each.log.close_idle()
                        del self._with_files[each]

    def _run_maintenance(self) -> None:
        reserve.refill(self.files)
        while True:
            with self._wake:
                while not self._maintenance_tasks and (wait_s := retention_check.wait_s(self)):
                    if self.closed:
                        return
                    self._wake.wait(wait_s)
                partition, events = self._maintenance_tasks.popitem() if self._maintenance_tasks else (None, 0)
            if self.closed and partition is None:
                return
            try:
                if partition is None:
                    retention_check.run(self, lambda: self.closed)
                    continue
                if events & (head.ROLLED | head.RECOVERY_POINT):
                    partition.checkpoint()
                if events & head.ROLLED:
                    partition.cleanup.expire(wait=False)
                if events & head.MISSING_INDEX:
                    partition.cleanup.rebuild_indexes(lambda: self.closed, is_missing=True)
            except index_rebuild.Stopped:
                continue
            except Exception as error:  # noqa: BLE001  # a task can wait; the next append asks again
                if not self.closed:
                    _log.warning("%s: %s", partition.directory if partition else self.path, error)

    # ---- the end

    def check_open(self) -> None:
        if self.closed:
            raise Closed(f"{self.path}: the store is closed", hint="open it again")

    def close(self) -> None:
        """Write recovery points, and close everything.

        With very many partitions, only some get a recovery point. A log without one loses nothing: after a power cut,
        recovery reads more of it.
        """
        failed: Exception | None = None
        is_ours = False
        try:
            with self._wake:
                if self.closed:
                    return
                self.closed = is_ours = True
                self._wake.notify_all()
            if self._maintenance_thread is not None and not self._maintenance_thread.is_current:
                self._maintenance_thread.join()
            until = time.monotonic() + _CLOSING_S if self.is_in_place() else 0.0
            for partition in self.opened():
                try:
                    partition.close(checkpoint=time.monotonic() < until)
                except Exception as error:  # noqa: BLE001  # the others are closed, too; then it is raised
                    failed = failed or error
            self.catalog.close()
        finally:
            if is_ours:
                self._let_go()
        self.files, self.root = self.path, None
        if failed is not None:
            raise failed

    def _let_go(self) -> None:
        """Drop the locks of a closed core, whatever interrupted that: for other processes this one is gone.

        Not while a thread of this process is at work: a lock must not be free before its owner has ended. Then they are
        dropped with the last reference to the core, which the thread has.
        """
        thread = self._maintenance_thread
        if thread is None or thread.is_current or not thread.is_alive():
            for partition in self.opened():
                partition.log.abandon()
            self._drop()

    def _drop(self) -> None:
        for lock in (self.lock, self.members, self.presence):
            if lock is not None:
                lock.close()
        if hasattr(self, "heads"):
            self.heads.close_descriptor()

    def _before_fork(self, take: Callable[[Lockable], None]) -> None:
        take(self._mutex)
        self._forking = self.opened()
        for partition in self._forking:
            take(partition.log)

    def _in_child(self) -> None:
        """Forget everything in a forked child: locks and descriptors are the parent's."""
        for partition in self._forking:
            partition.in_child()
        self._mutex = threading.RLock()
        self._opening = {}
        self._wake = _os.Monitor()
        self._maintenance_thread = None
        self.closed = True
        self.heads.close_descriptor()


# ---- one core a directory and process

_cores: dict[tuple[int, int, bool], Core] = {}
_cores_mutex = threading.RLock()  # a dropped Store may be collected, and released, by the thread that holds it


def _forget_in_child() -> None:
    global _cores_mutex
    _cores_mutex = threading.RLock()  # another thread of the parent may have held it
    _cores.clear()


fork.register(Core, lambda _: _forget_in_child())


class Lease:
    """One use of a core. It ends with `release`, or when nothing refers to it any more: what a signal handler raises,
    wherever it comes, leaves no store open.
    """

    core: Core | None = None

    def release(self) -> None:
        """Close the core, if this is its last use."""
        if self.core is not None:
            release(self.core, self)

    def __del__(self) -> None:
        self.release()


def acquire(
    path: str,
    *,
    read_only: bool,
    create: bool,
    force_filesystem: bool,
    busy_timeout_ms: int | None = None,
    rebuild: bool = False,
    lease: Lease | None = None,
) -> Core:
    """Return the core of the store at `path`, opened if need be. Give it back with `release`, or by the `lease`."""
    path = os.path.abspath(path)
    layout.check_before(path, read_only=read_only, create=create or rebuild, force_filesystem=force_filesystem)
    if not rebuild and not os.path.exists(f"{path}/klamm.db") and layout.has_topics(path):
        raise layout.no_catalog(path)
    status = os.stat(path)
    key = (status.st_dev, status.st_ino, read_only)
    with _cores_mutex:
        core = _cores.get(key)
        if core is None or core.closed or not core.is_in_place():  # a copy may have the directory's number
            core = _cores[key] = Core(path, read_only=read_only, busy_timeout_ms=busy_timeout_ms, rebuild=rebuild)
        elif busy_timeout_ms is not None and core.lock is not None:
            core.lock.timeout_ms = busy_timeout_ms
        core.users += 1  # signal handlers run at calls and jumps only: none comes in between
        if lease is not None:
            lease.core = core
        return core


def release(core: Core, lease: Lease | None = None) -> None:
    """Close the core when its last user has gone."""
    with _cores_mutex:
        if core.users > 1 or core.closed:
            core.users -= 1
            if lease is not None:
                lease.core = None
            return
        for key in [key for key, value in _cores.items() if value is core]:
            del _cores[key]
    try:
        core.close()
    finally:
        core.users = 0
        if lease is not None:
            lease.core = None


@contextmanager
def opened(path: str, *, read_only: bool = False, create: bool = False) -> Iterator[Core]:
    """Hold the core of the store at `path` for a `with` block."""
    lease = Lease()
    try:
        yield acquire(path, read_only=read_only, create=create, force_filesystem=False, lease=lease)
    finally:
        lease.release()
