"""A table as the processes of a host share it: one maintains it, the others follow.

The holder of the byte TABLE + (slot of partition 0) of `members` maintains the table: its thread sleeps on the bell
and applies what is committed. The others open the same RocksDB as secondaries. A follower that finds the table behind,
and every follower twice a second, tries the byte; the kernel frees it however its holder ended, so a killed maintainer
is replaced by the next read, or within a second. Within a process all tables of a topic share one of these objects.

Promises
  1  A read that waits sees every record that was committed before it began. The maintainer applies them itself, in the
     thread that reads; a follower waits until the maintainer has, and takes over if there is none.
  2  Opening reads only what was committed since: how far the table goes is written with it.
  3  A table never keeps what its log has lost. It is rebuilt, as the next generation, from the first record on,
     when the leader epochs say that it has records the log no longer has (a power cut), when records that it has not
     seen are gone from the log (retention, or tombstones that compaction dropped), and when RocksDB finds it damaged.
  4  A key has one value: the last one in its partition. Nothing orders records of different partitions, so a key that
     was written to two of them has one or the other. Records without a key are left out.

A store that is open for reading only has no byte to hold and nothing to write to: each process makes a table of its own
in a temporary directory, from the first record on.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from klamm.client import exit_handlers
from klamm.client.table import rocksdb
from klamm.client.table.table_updater import PartitionProgress, TableDiverged, TableUpdater
from klamm.disk import fork
from klamm.disk._os import HeldBytes, TimedLock
from klamm.disk.locks import TABLE
from klamm.disk.threads import DaemonThread, StopFlag
from klamm.errors import Closed, Forked, StoreBusy, StoreError, UnknownTopic
from klamm.log.head import Poller, Watch
from klamm.types import TopicId

if TYPE_CHECKING:
    from klamm.client.table.rocksdb import RocksTable, Tree
    from klamm.log.partition import Partition
    from klamm.store.directory import Core, OpenTopic
    from klamm.types import Position

__all__ = ["Materialised", "acquire", "close_all", "key_is_not_bytes", "release", "release_later"]

_POLL_INTERVAL_S = 0.5
_CLOSING_S = 5.0  # that the end of a process waits for its tables
_LOOK_S = (0.0002, 0.01)  # how often a follower that waits looks again: at first, and at last
_NEVER = 2**64 - 1  # a seq that no head has
_log = logging.getLogger("klamm")


class _Lag(NamedTuple):
    """A partition that may have more than the table: up to `end`, as of the head's `seq`."""

    log_index: int
    seq: int
    end: int


class _Moved:
    """A Watch that always reports a change, for a table that is not to be read any more."""

    moved = True

    def seen(self, progress: int, seq: int) -> None:
        """Ignore the position."""


class Materialised:
    """Made by `acquire`. A read asks whether heads have moved on `watch`, if so `refresh`s, and then `find`s."""

    def __init__(self, core: Core, topic: str) -> None:
        rocksdb.require()
        self.users = 0
        self.core = core
        self.name = topic
        self.heads = core.heads
        self.version = core.heads.catalog_version
        opened = core.topic(topic)
        self.id = opened.topic.id
        self.closed = False
        self.forked = False
        self.maintains = False
        self.generation = 0
        self.updater = TableUpdater(core.heads)
        self._byte = TABLE + opened.topic.partitions[0]
        self._held: HeldBytes[int, None] = HeldBytes(core.members)  # that byte, while it maintains the table
        self._root = core.root  # RocksDB writes in threads of its own until it is closed
        self._directory = f"{core.files}/tables/{opened.topic.directory}"
        self._own: str | None = None  # a directory that goes when this is closed
        self._mutex = threading.RLock()
        self._stop = StopFlag()
        self._thread: DaemonThread | None = None
        self._poller = Poller(core.heads)  # for that thread
        self._complaint = ""
        self._use(None)
        self._arrange(opened.partitions())
        if core.read_only:
            self._directory = self._own = tempfile.mkdtemp(prefix="klamm-table-")
        try:
            if not self._maintain():
                self._follow()
        except BaseException:
            self._let_go()
            raise
        fork.register(self, Materialised._in_child)
        self.start()

    def _use(self, db: RocksTable | None) -> None:
        """Read from there. A thread that is still reading from the last one keeps it open until it is done."""
        self._db = db
        self.tree: Tree = rocksdb.EmptyTable() if db is None else db
        self.find = self.tree.get

    def _arrange(self, partitions: list[Partition]) -> None:
        applied = self.updater.partitions
        for partition in partitions[len(applied) :]:
            applied.append(PartitionProgress(partition))
            if self.maintains and self._db is not None:
                self.updater.load_progress(applied[-1], self._db)  # a new one: nothing of it can be lost
        self.logs = [progress.partition.log for progress in applied]
        self.seqs = [_NEVER] * len(applied)  # of the heads, as of which the table has everything
        self.watch: Watch | _Moved = Watch(self.logs)
        self.watch.seen(len(applied), self.version)

    # ---- reading

    def refresh(self, wait_s: float | None) -> None:
        """Return when the table has everything that was committed before the call.

        StoreBusy when it gets no further for `wait_s`; 0: it has what it has.
        """
        with TimedLock(self._mutex, 0) as is_held:
            if is_held:
                self._refresh(wait_s)
                return
        if wait_s == 0:
            self.check_usable()
            self._find_topic()
            return
        far = self._far()
        while True:
            with TimedLock(self._mutex, wait_s) as is_held:
                if is_held:
                    self._refresh(wait_s)
                    return
            before, far = far, self._far()
            if far == before:
                raise self._busy("another thread is at it, and gets no further")

    def _refresh(self, wait_s: float | None) -> None:
        """See `refresh`. Called with the mutex held."""
        self.check_usable()
        self._look_at_catalog()
        if wait_s != 0:
            self._reach(self._moved(), wait_s)
        elif not self.maintains:
            self._look(self._moved())

    def find_again(self, key: Any) -> Any:
        """Find again after `find` has failed: a follower that lost a file to its maintainer reopens the table."""
        self.check_usable()
        if isinstance(key, bytearray | memoryview):
            return self.find(bytes(key))
        if not isinstance(key, bytes):
            raise TypeError(key_is_not_bytes(key))
        with self._mutex:
            if not self.maintains:
                self._follow()
        return self.find(key)

    def positions(self) -> dict[int, Position]:
        """Return the positions up to which the table is built, by partition."""
        with self._mutex:
            return {progress.partition.number: progress.position for progress in self.updater.partitions}

    def check_usable(self) -> None:
        if self.forked:
            raise Forked("this table was opened before the fork", hint="open another with store.table() in the child")
        if self.closed:
            raise _closed()
        self.core.check_open()

    def _busy(self, why: str) -> StoreBusy:
        return StoreBusy(
            f"the table of {self.name} is behind its log: {why}",
            hint="read again, give it more time with wait=, or read what it has with wait=0",
        )

    def _find_topic(self) -> OpenTopic:
        """Return the table's topic; UnknownTopic if it was deleted."""
        opened = self.core.topic(self.name)
        if opened.topic.id != self.id:
            raise UnknownTopic(f"{self.name}: the topic was deleted, and another made with its name")
        return opened

    # ---- catching up, with the mutex held

    def _look_at_catalog(self) -> None:
        self.heads.check_place()
        version = self.heads.catalog_version
        if version == self.version:
            return
        opened = self._find_topic()
        if opened.count > len(self.logs):
            self._arrange(opened.partitions())
        self.version = version
        self.watch.seen(len(self.logs), version)

    def _moved(self) -> list[_Lag]:
        found = []
        for index, log in enumerate(self.logs):
            seq = log.seq  # before the look at the commit, which then is this one or a later one
            if seq != self.seqs[index]:
                end = self.updater.partitions[index].partition.snapshot().stable_offset
                found.append(_Lag(index, seq, end))
        return found

    def _reach(self, wanted: list[_Lag], wait_s: float | None) -> None:
        pause, since = _LOOK_S[0], 0.0
        far: tuple[int, int] | None = None
        while wanted:
            if not self.in_use():
                raise _closed()
            wanted = self._apply(wanted) if self.maintains else self._look(wanted)
            if not wanted or (not self.maintains and self._maintain()):
                continue
            before, far = far, self._far()
            if far != before:
                since = time.monotonic()
            elif wait_s is not None and time.monotonic() - since >= wait_s:
                raise self._busy(self._why_behind(wanted))
            if self.maintains:
                continue
            self._stop.wait(pause)
            pause = min(2 * pause, _LOOK_S[1])
            newest = rocksdb.generations(self._directory)
            if self._db is None or (newest and newest[-1] != self.generation):
                self._follow()

    def _left(self, wanted: list[_Lag]) -> list[_Lag]:
        """Return what the table does not have yet. Of the rest nothing changes until its head moves again."""
        left = []
        for each in wanted:
            if self.updater.partitions[each.log_index].position.offset < each.end:
                left.append(each)
                continue
            self.seqs[each.log_index] = each.seq
            self.watch.seen(each.log_index, each.seq)
        return left

    def _far(self) -> tuple[int, int]:
        """Return a value that changes when the table gets further."""
        return self.generation, sum(progress.position.offset for progress in self.updater.partitions)

    # ---- following

    def _follow(self) -> None:
        """Open what another process maintains, if there is something."""
        newest = rocksdb.generations(self._directory)
        db = rocksdb.open_follower(f"{self._directory}/{newest[-1]}") if newest else None
        if db is not None:
            self.generation = newest[-1]
            self._use(db)

    def _look(self, wanted: list[_Lag]) -> list[_Lag]:
        """Look up what the maintainer has applied, and return what of `wanted` it has not."""
        db = self._db
        if db is None:
            return wanted
        try:
            db.catch_up()
            for each in wanted:
                progress = self.updater.partitions[each.log_index]
                progress.position = db.position(progress.partition.number) or progress.beginning()
        except Exception:  # noqa: BLE001  # its files were removed: it is opened again
            self._follow()
            return wanted
        return self._left(wanted)

    def _why_behind(self, wanted: list[_Lag]) -> str:
        applied = self.updater.partitions
        missing = sum(each.end - applied[each.log_index].position.offset for each in wanted)
        total = sum(each.end - applied[each.log_index].beginning().offset for each in wanted)
        message = f"{missing} of {total} records were not applied in time"
        if self.maintains:
            return message
        if rocksdb.can_maintain():
            return f"{message} by the process that maintains it, which gets no further"
        return f"{message}, and this process cannot: it was forked from one that used tables"

    # ---- maintaining

    def _maintain(self) -> bool:
        """Become the maintainer of the table, if it has none."""
        members = self.core.members
        if not rocksdb.can_maintain():
            if self._own is None:
                return False
            raise Forked(
                "this process was forked from one that used tables, and cannot make a table of its own",
                hint="start processes with the method spawn, or open tables only after the fork",
            )
        if members is not None and not self._held.take(self._byte, self._byte):
            return False
        try:
            self._open()
            self.maintains = True
        except rocksdb.TableBusy:  # its last maintainer has let go, but still iterates over it
            return False
        finally:
            if not self.maintains:
                self._held.release_all()
        return True

    def _open(self) -> None:
        """Open the newest generation; the next one if that is not usable."""
        known = rocksdb.generations(self._directory)
        newest = known[-1] if known else 1
        try:
            db = rocksdb.open_maintainer(f"{self._directory}/{newest}")
        except rocksdb.TableCorrupt as error:
            self._renew(str(error))
        else:
            self._take_up(db, newest)
            if not self.updater.load(db):
                self._renew("its log has lost records")
                db.close()
        for old in known[:-1]:
            shutil.rmtree(f"{self._directory}/{old}", ignore_errors=True)

    def _renew(self, why: str) -> None:
        """Start the next generation. The last one stays until the table is opened again: it may be in use."""
        _log.warning("%s: rebuilding the table: %s", self._directory, why)
        number = max([*rocksdb.generations(self._directory), self.generation]) + 1
        db = rocksdb.open_maintainer(f"{self._directory}/{number}")
        self.updater.load(db)
        self._take_up(db, number)

    def _take_up(self, db: RocksTable, generation: int) -> None:
        self.generation = generation
        for progress in range(len(self.seqs)):
            self.seqs[progress] = _NEVER
            self.watch.seen(progress, _NEVER)
        self._use(db)

    def _apply(self, wanted: list[_Lag]) -> list[_Lag]:
        """Apply one part of each partition, and return what is left to do."""
        db = self._db
        if db is None or db.failed:
            self._open_again()
            return self._moved()
        try:
            for each in wanted:
                self.updater.apply(self.updater.partitions[each.log_index], db)
        except TableDiverged:
            self._renew("its log has lost records")
            return self._moved()
        return self._left(wanted)

    def _open_again(self) -> None:
        """Reopen the table after a write that failed."""
        db = self._db
        self._use(None)
        if db is not None:
            db.close()
        try:
            self._open()
        except rocksdb.TableBusy:
            raise self._busy("a write to it has failed, and an iteration keeps it open") from None

    # ---- the thread

    def start(self) -> None:
        self._stop = StopFlag()
        self._thread = DaemonThread(self._run, f"klamm-table-{self.name}")

    def _run(self) -> None:
        while not self._is_over():
            try:
                if not self.maintains:
                    self._wait_for_maintainer()
                elif not self._apply_some():
                    self._poller.wait(int(_POLL_INTERVAL_S * 1e6), 0, self.version)
            except UnknownTopic:
                self._delete_table()
                return
            except Exception as error:  # noqa: BLE001  # readers meet it, too; here it is tried again
                if self._is_over():
                    return
                if str(error) != self._complaint:
                    self._complaint = str(error)
                    _log.warning("the table of %s cannot be kept up to date: %s", self.name, error)
                self._stop.wait(_POLL_INTERVAL_S)

    def _is_over(self) -> bool:
        return self.closed or self._stop.is_set() or self.core.closed

    def _wait_for_maintainer(self) -> None:
        """Wait for the end of the table's maintainer."""
        if not self._stop.wait(_POLL_INTERVAL_S):
            with self._mutex:
                self._look_at_catalog()
                if not self.maintains and not self._is_over():
                    self._maintain()

    def _apply_some(self) -> bool:
        """Apply a part of everything that has moved. Return whether there is more; if not, update the poller."""
        with self._mutex:
            self._look_at_catalog()
            if self._is_over():
                return False
            moved = self._moved()
            if not moved and self._db is not None:
                self.updater.rest(self._db)
            if moved and self._apply(moved):
                return True
            self._poller.watch(self.logs)
            for index, seq in enumerate(self.seqs):
                self._poller.seen(index, seq)
            return False

    def _delete_table(self) -> None:
        """Delete the table of a deleted topic. Reads learn of that from the catalog."""
        with self._mutex:
            maintained = self.maintains
            self._let_go()
            self.watch, self.version = _Moved(), -1
            if maintained:
                shutil.rmtree(self._directory, ignore_errors=True)

    # ---- the end

    def in_use(self) -> bool:
        return self.users > 0 and not self.closed

    def stop(self, wait_s: float | None = None) -> bool:
        """End the thread; whether it has ended within that time."""
        self._stop.set()
        if not self.core.closed:
            self._poller.interrupt()
        thread = self._thread
        if thread is None or thread.is_current:
            return True
        if not thread.join(wait_s):
            return False
        if self._thread is thread:
            self._thread = None
        return True

    def close(self, wait_s: float | None = None) -> bool:
        """Release everything. Return whether that could be done within that time."""
        self.closed = True
        with TimedLock(self._mutex, wait_s) as is_held:
            if is_held:
                self.watch, self.version = _Moved(), -1
                self._let_go()
            return is_held

    def _let_go(self) -> None:
        maintained, db = self.maintains, self._db
        self.maintains = False
        self._use(None)
        self.updater.close()
        if db is not None:
            with suppress(Exception):  # its files may be gone, with the topic
                if maintained and not self.core.closed and not self._moved():
                    self.updater.record_complete(db)
            db.close()
        self._held.release_all()
        if self._own is not None:
            shutil.rmtree(self._own, ignore_errors=True)

    def _in_child(self) -> None:
        rocksdb.leak(self)
        self.forked, self.maintains = True, False
        self.watch, self.version = _Moved(), -1
        self._mutex = threading.RLock()  # another thread of the parent may have held it
        self._stop = StopFlag()
        self._thread = None


def _closed() -> Closed:
    return Closed("the table is closed", hint="open another with store.table()")


# ---- one for each topic of a core

_open: dict[tuple[int, TopicId], Materialised] = {}
_open_mutex = threading.RLock()  # a dropped table may be collected, and released, by a thread that holds it
_over = False  # the process ends


def key_is_not_bytes(key: object) -> str:
    """Return what a TypeError says of a key that cannot be looked up."""
    return f"a key is bytes, not {type(key).__name__}" + (' (key_serde="str" takes text)' if type(key) is str else "")


def acquire(core: Core, topic: str) -> Materialised:
    """Return the table of that topic in this process. Give it back with `release`."""
    topic_id = core.topic(topic).topic.id
    with _open_mutex:
        if _over:
            raise StoreError("the process ends: no table can be opened any more")
        key = (id(core), topic_id)
        found = _open.get(key)
        if found is None:
            found = _open[key] = Materialised(core, topic)
        found.users += 1
        return found


def release(table: Materialised) -> None:
    """Close it when its last user has gone."""
    if table.forked or _over:
        return
    with _open_mutex:
        table.users -= 1
        if table.in_use():
            return
    table.stop()  # not under the mutex: its thread may want that
    with _open_mutex:
        if table.in_use():
            table.start()  # it is used again
            return
        for key in [key for key, value in _open.items() if value is table]:
            del _open[key]
        table.close()


def release_later(table: Materialised) -> None:
    """Like `release`, for a table that was dropped: the thread that collects it may hold what our thread waits for."""
    if not table.forked and not _over:
        with suppress(RuntimeError):  # Python ends, and starts no more threads: `close_all` comes, or has been
            threading.Thread(target=release, args=(table,), name="klamm-table-end", daemon=True).start()


def close_all() -> None:
    """Close all tables at the end of the process, in use or not: RocksDB must be at rest before Python goes, see
    rocksdb.py.

    A table that is being closed by another thread is waited for, too, since that thread holds one of the mutexes.
    """
    global _over
    _over = True
    until = time.monotonic() + _CLOSING_S
    with TimedLock(_open_mutex, _CLOSING_S) as is_held:
        if not is_held:
            rocksdb.skip_destructors()
            return
        tables = list(_open.values())
        _open.clear()
    for table in tables:
        table.closed = True  # threads that read it give up
    for table in tables:
        ended = table.stop(max(0.0, until - time.monotonic()))
        if not table.close(max(0.0, until - time.monotonic())) or not ended:
            rocksdb.skip_destructors()


exit_handlers.before_stores(close_all)


def _forget_in_child() -> None:
    global _open_mutex
    _open_mutex = threading.RLock()
    _open.clear()


fork.register(Materialised, lambda _: _forget_in_child())
