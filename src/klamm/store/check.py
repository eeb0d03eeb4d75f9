"""Check every promise of a store: report what is broken, where, and repair what can be repaired.

A store may be checked while other processes use it: what they change during the check is not a breach. Without `repair`
nothing is written. With it, everything is repaired that can be without removing a good record (repair.py), and
reported.

    catalog    SQLite's own check; rows and their checksums; slots (catalog.py, CAT1 to CAT6)
    groups     rows and their checksums (groups.py, G5)
    topics     every directory belongs to a topic
    logs       see check_partition.py
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing, suppress

from klamm.disk import _os, files
from klamm.disk.locks import LockFile
from klamm.errors import KlammError, ReadOnly, readable
from klamm.store import acls, directory, once, quotas, users
from klamm.store.adoption import adopt
from klamm.store.catalog import Topic
from klamm.store.check_partition import Breach, PartitionCheck, Report
from klamm.store.database import REBUILD, REBUILD_BY_HAND
from klamm.store.deletion import DELETED
from klamm.store.directory import Core
from klamm.store.salvage import cuts_of

__all__ = ["Breach", "Report", "check"]


def check(
    store: Core | str | os.PathLike[str],
    *,
    repair: bool = False,
    progress: Callable[[int, int], object] | None = None,
) -> Report:
    """Check every promise of a store, given as a directory or open. `progress` gets the bytes checked, and in all."""
    if isinstance(store, Core):
        if repair and store.lock is None:
            raise ReadOnly(f"{store.path}: opened for reading only, so nothing can be repaired")
        report = _Check(store, repair, progress).run()
        report.breaches = [_readable(each) for each in report.breaches]
        promise = "klamm.db is there, whole, and as new as the logs"
        path = store.catalog.path
        report.breaches[:0] = [Breach(path, None, promise, *each) for each in store.rebuilt]
        store.rebuilt = []
        return report
    path = os.path.abspath(os.fspath(store))
    lease = directory.Lease()
    try:
        core = directory.acquire(
            path, read_only=not repair, create=False, force_filesystem=not repair, rebuild=repair, lease=lease
        )
    except KlammError as error:
        if not os.path.exists(f"{path}/topics"):
            raise
        return Report([Breach(path, None, "the store can be opened", str(error))])
    try:
        return check(core, repair=repair, progress=progress)
    finally:
        lease.release()


def _readable(breach: Breach) -> Breach:
    """Return the breach with paths that are valid outside of this process."""
    return Breach(*(readable(each) if isinstance(each, str) else each for each in breach))  # type: ignore[arg-type]


def _size_of_logs(path: str) -> int:
    """Return the approximate size: blocks ahead of the commit count, and other processes may append or delete."""
    size = 0
    for folder, _, names in os.walk(path):
        for name in names:
            if name.endswith(".log"):
                with suppress(FileNotFoundError):
                    size += os.path.getsize(f"{folder}/{name}")
    return size


def _is_partition(name: str, count: int) -> bool:
    """Return whether a directory is named as one of `count` partitions."""
    number = files.number_in_name(name)
    return number is not None and number < count


class _Check:
    def __init__(self, core: Core, repair: bool, progress: Callable[[int, int], object] | None) -> None:
        self.core = core
        self.repair = repair
        self.report = Report()
        self.on_progress: Callable[[int], object] | None = None
        if progress is not None:
            total = _size_of_logs(f"{core.files}/topics")
            self.on_progress = lambda done: progress(done, total)
        self.lock: LockFile | None = None

    def run(self) -> Report:
        core, report = self.core, self.report
        names = sorted(os.listdir(f"{core.files}/topics")) if os.path.isdir(f"{core.files}/topics") else []
        problems = core.catalog.check()
        report.breaches += [
            Breach(core.catalog.path, None, "CAT6: rows are as they were written", f"{each} ({REBUILD})")
            for each in problems
        ]
        if problems:
            return report
        for promise, found in (
            ("T1: a transaction's row decides", core.transactions.check()),
            ("G5: rows of groups are as they were written", core.groups.check()),
            ("ONC4: numbers of writers are as they were written", once.check(core.catalog.database)),
            ("USR3: credentials of users are as they were written", users.check(core.catalog.database)),
            ("ACL2: ACLs are as they were written", acls.check(core.catalog.database)),
            ("QTA2: quotas are as they were written", quotas.check(core.catalog.database)),
            ("LIN1: lineage is as it was written", core.transactions.lineage.check()),
        ):
            report.breaches += [
                Breach(core.catalog.path, None, promise, f"{each} ({REBUILD_BY_HAND})") for each in found
            ]
        topics = core.catalog.topics()  # after the directories: a topic made meanwhile is not an orphan
        self._orphans(names, topics)
        topics = core.catalog.topics()  # with those that were put back
        report.topics = len(topics)
        if core.lock is None:
            self._topics(topics)
        else:
            # A descriptor of its own: its locks exclude those of the store that is open here, too.
            with closing(LockFile(core.lock.path)) as self.lock:
                self._topics(topics)
        return report

    def _topics(self, topics: list[Topic]) -> None:
        for topic in topics:
            self.report.cuts += cuts_of(self.core.files, topic)
            for number, slot in enumerate(topic.partitions):
                PartitionCheck(
                    self.core,
                    self.lock,
                    self.report,
                    topic,
                    number,
                    slot,
                    repair=self.repair,
                    on_progress=self.on_progress,
                ).run()
                self.report.partitions += 1

    def _orphans(self, names: list[str], topics: list[Topic]) -> None:
        known = {topic.directory: len(topic.partitions) for topic in topics}
        deleted = self.core.catalog.deleted()
        for name in names:
            path = f"{self.core.files}/topics/{name}"
            if name.endswith(DELETED) or name in deleted:
                continue  # another process is deleting it, or the next sweep will
            if name not in known:
                self._orphan(path, "klamm.db knows no such topic")
                continue
            for inner in sorted(os.listdir(path)) if os.path.isdir(path) else []:
                if not _is_partition(inner, known[name]):
                    self._orphan(f"{path}/{inner}", "no partition has this directory")

    def _orphan(self, path: str, message: str) -> None:
        catalog = self.core.catalog
        with catalog.database.db_lock():
            living = {topic.directory: len(topic.partitions) for topic in catalog.topics()}
            name, _, inner = path.removeprefix(f"{self.core.files}/topics/").partition("/")
            if not os.path.exists(path) or (name in living and (not inner or _is_partition(inner, living[name]))):
                return  # it was being deleted, or was created during the check
            repaired = None
        if self.repair and not inner:
            repaired = adopt(self.core, name)
        with catalog.database.db_lock():
            if self.repair and repaired is None:
                orphans = f"{self.core.files}/orphans"
                files.make_directory(orphans)
                files.sync_directory(self.core.files)  # the new directory is on disk before anything is moved into it
                target = f"{orphans}/{'-'.join(filter(None, (name, inner)))}"
                _os.rename(path, target)
                files.sync_directory(orphans)
                files.sync_directory(os.path.dirname(path))
                repaired = f"moved to {target}"
        self.report.breaches.append(Breach(path, None, "every directory belongs to a topic", message, repaired))
