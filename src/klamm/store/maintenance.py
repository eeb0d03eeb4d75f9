"""Maintenance of a store: recovery points, retention, compaction, deleting what killed processes left.

`maintain` does it once; a Maintainer does it regularly, in a thread of the Store that started it. The thread ends when
the Store is closed, or was dropped without being closed: it refers to the Store weakly. Several processes may maintain
a store at the same time: a partition that another process cleans is skipped.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from klamm.disk import reserve
from klamm.disk.threads import DaemonThread, StopFlag
from klamm.errors import InvalidSetting, KlammError, UnknownTopic
from klamm.log import head
from klamm.log.cleanup import MEMORY_BYTES
from klamm.log.index_rebuild import Stopped as IndexRebuildStopped
from klamm.log.partition import Partition
from klamm.store import once, scratch
from klamm.store.deletion import sweep
from klamm.store.directory import Core
from klamm.types import CompactionReport

__all__ = ["MEMORY_BYTES", "Maintainer", "Stopped", "compact", "maintain", "partitions_of"]

_log = logging.getLogger("klamm")

Progress = Callable[[str, int, int, int], object]
"""Topic, partition, bytes done, bytes in all."""


class Stopped(Exception):
    """A compaction was interrupted because its store is being closed."""


def maintain(core: Core, is_over: Callable[[], bool] = lambda: False) -> None:
    """Write recovery points, resolve abandoned transactions, apply retention, compact what min.cleanable.dirty.ratio
    makes due, and sweep leftovers.

    `is_over` is asked between partitions and during a compaction; once it is true, this returns, or raises Stopped.
    """

    def progress(*_: object) -> None:
        if is_over():
            raise Stopped

    core.heads.check_place(now=True)
    sweep(core, with_all_topics=True)
    core.transactions.sweep_names()
    once.sweep(core.catalog.database)
    core.transactions.lineage.sweep()
    scratch.sweep(core)
    partitions = partitions_of(core, None)
    core.transactions.resolve(partitions)
    failed: KlammError | None = None
    for partition in partitions:
        if is_over():
            return
        try:
            partition.checkpoint()
            partition.cleanup.rebuild_indexes(is_over)
            partition.cleanup.expire()
            _compact(partition, progress, force=False, wait=False, memory_bytes=MEMORY_BYTES)
        except UnknownTopic:
            continue  # deleted just now
        except IndexRebuildStopped:
            return
        except KlammError as error:  # do the other partitions first, then raise
            failed = failed or error
    reserve.refill(core.files)
    if failed is not None:
        raise failed


def compact(
    core: Core, topic: str | None, *, force: bool, memory_bytes: int, progress: Progress | None
) -> CompactionReport:
    """Compact one topic, or all with cleanup.policy=compact.

    Partitions below min.cleanable.dirty.ratio are left out, unless `force` is true.
    A partition that fails does not keep the others from being compacted; its error is raised at the end.
    """
    if not isinstance(memory_bytes, int) or memory_bytes < 1:
        raise InvalidSetting(f"memory_bytes: {memory_bytes!r} is invalid", hint="expected a number of bytes")
    begin = time.monotonic()
    found = []
    failed: KlammError | None = None
    for partition in partitions_of(core, topic):
        try:
            done = _compact(partition, progress, force=force, wait=True, memory_bytes=memory_bytes)
        except UnknownTopic:
            if topic is not None:
                raise
        except KlammError as error:
            failed = failed or error
        else:
            if done is not None and done.passes:
                found.append(done)
    if failed is not None:
        raise failed
    return CompactionReport(
        partitions=len(found),
        passes=sum(done.passes for done in found),
        segments=sum(done.segments for done in found),
        records_removed=sum(done.records_removed for done in found),
        records_left=sum(done.records_left for done in found),
        bytes_before=sum(done.bytes_before for done in found),
        bytes_after=sum(done.bytes_after for done in found),
        seconds=time.monotonic() - begin,
    )


def partitions_of(core: Core, topic: str | None) -> list[Partition]:
    """Return the partitions of `topic`, which must be compacted; without a topic, all that ever had a record."""
    if topic is not None:
        found = core.topic(topic).partitions()
        if not found[0].is_compacted:
            raise InvalidSetting(
                f"{topic}: is not compacted: its cleanup.policy is {found[0].settings.cleanup_policy!r}",
                hint="store.topics.alter(…, {'cleanup.policy': 'compact'}) makes it so",
                code="not_compacted",
            )
        return found
    _, topics = core.all_topics()
    empty = head.empty_slots(core.heads, [slot for open_topic in topics for slot in open_topic.topic.partitions])
    return [
        open_topic.partition(number)
        for open_topic in topics
        for number, slot in enumerate(open_topic.topic.partitions)
        if slot not in empty
    ]


def _compact(partition: Partition, progress: Progress | None, **options: Any) -> Any:
    name, number = partition.topic, partition.number
    if progress is None:
        return partition.cleanup.compact(**options)
    return partition.cleanup.compact(on_progress=lambda done, total: progress(name, number, done, total), **options)


class Maintained(Protocol):
    def _maintain(self, is_over: Callable[[], bool]) -> None: ...


class Maintainer:
    """A thread that maintains a store at an interval."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._over = StopFlag()
        self._thread: DaemonThread | None = None

    def start(self, store: Maintained) -> None:
        """Start the thread; also in a forked child, to which threads are not copied."""
        self._over = over = StopFlag()
        self._thread = DaemonThread(_maintain_regularly, "klamm-maintainer", weakref.ref(store), self._every_s, over)

    def stop(self) -> None:
        """Stop the thread and wait for its end; a compaction is interrupted where it is."""
        self._over.set()
        if self._thread is not None and not self._thread.is_current:
            self._thread.join()


def _maintain_regularly(reference: weakref.ref[Any], every_s: float, over: StopFlag) -> None:
    while not over.wait(every_s):
        store = reference()
        if store is None:
            return
        try:
            store._maintain(over.is_set)  # noqa: SLF001  # the protocol Maintained names it
        except Stopped:
            return
        except Exception as error:  # noqa: BLE001  # it can wait; the next round tries again
            if not over.is_set():
                _log.warning("%r: maintenance: %s", store, error)
        del store
