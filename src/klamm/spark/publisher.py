"""The publisher, on the driver: append what tasks have staged, in one transaction, with the id of its batch.

  1  look      the batch is in the log (batches.py): nothing to do
  2  register  every partition that something was staged for (store/transactions.py)
  3  append    the files in the order of the tasks, batch by batch: no more than one is in memory
  4  sync      (acks=1: not)
  5  decide    the batch's row and the commit, in one SQLite transaction: here it becomes visible; killed before, never
  6  markers   write one into each log; one that cannot be written now is written by the next process that can

Promises
  U1  All that was staged for a batch is in the log once, or not at all, wherever this is killed and however often and
      by however many it is done. With acks=1 that holds for killed processes: the commit is on disk before the records
      are, so after a power cut parts of the last batches may be missing, and are not sent again.
  U2  After step 5 nothing undoes it: cleaning up, or aborting, removes staged files only.

Spark keeps the processes that commit for a while and uses them again. So the store stays open in them, and a producer
id serves many transactions; a killed process leaves neither a lock nor anything that others wait for.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from klamm.api import Store
from klamm.batch import patch
from klamm.errors import Fenced, KlammError, NotAStore, UnknownTopic
from klamm.spark import batches
from klamm.spark.batches import BatchId
from klamm.spark.staged_batches import TaskCommit, frames
from klamm.store.once import AlreadyCommitted
from klamm.store.transaction_state import MAX_EPOCH
from klamm.store.transactions import Identity
from klamm.types import PartitionKey

if TYPE_CHECKING:
    from klamm.log.partition import Partition
    from klamm.store.directory import Core, OpenTopic

__all__ = ["core_of", "is_published", "publish"]

_TIMEOUT_MS = 60_000  # of a transaction, and one more for each KiB: that is done by any disk
_log = logging.getLogger("klamm.spark")


def publish(core: Core, staged: Sequence[TaskCommit], directory: str, batch: BatchId | None, *, durable: bool) -> bool:
    """Commit everything that was staged, in one transaction. Return False if the batch is in the log already.

    Raise BatchConflict if another batch of its number, or a later one, is.
    """
    if batch is not None and is_published(core, batch):
        return False
    if not staged:
        return True
    identity = _take(core)
    error: BaseException | None = None
    try:
        _fill(core, identity, staged, directory, durable=durable)
        core.transactions.decide(
            identity, commit=True, also=None if batch is None else partial(batches.put, batch=batch)
        )
    except AlreadyCommitted as already:  # by another driver, since the look of step 1
        assert batch is not None
        batches.log_skipped(batch)
        error = already
    except BaseException as failed:
        error = failed
        raise
    finally:
        if error is not None:
            _give_up(core, identity, error)
    if error is None:
        _finish(core, identity, commit=True)
    return error is None


def is_published(core: Core, batch: BatchId) -> bool:
    """Return whether the batch is in the log, and log it if so. Raise BatchConflict as `publish` does."""
    if not batches.is_committed(core.catalog.database, batch):
        return False
    batches.log_skipped(batch)
    return True


def _fill(core: Core, identity: Identity, staged: Sequence[TaskCommit], directory: str, *, durable: bool) -> None:
    """Carry out steps 2 to 4."""
    topics: dict[str, OpenTopic] = {}
    tps: dict[PartitionKey, Partition] = {}
    for each in staged:
        for topic in each.topics:
            opened = topics.get(topic.name) or core.topic(topic.name)
            if opened.topic.id != topic.id:
                raise UnknownTopic(f"{topic.name}: the topic was deleted and re-created while it was being written to")
            topics[topic.name] = opened
            tps.update({(topic.id, number): opened.partition(number) for number in topic.partitions})
    core.transactions.register(identity, tps, _TIMEOUT_MS + sum(each.size for each in staged) // 1024)
    sequences = dict.fromkeys(tps.values(), 0)
    ends: dict[Partition, int] = {}
    for each in sorted(staged, key=lambda each: each.task):
        logs = [(topic.id, topics[topic.name]) for topic in each.topics]
        for frame in frames(f"{directory}/{each.file}", each.size):
            topic_id, opened = logs[frame.topic]
            log = tps[topic_id, frame.partition]
            patch.enrol(frame.batch, identity.producer_id, identity.epoch, sequences[log])
            try:
                offset = log.append(frame.batch)
            except Fenced:
                raise core.transactions.why_refused(identity) from None
            sequences[log] = (sequences[log] + frame.count) & 0x7FFFFFFF
            ends[log] = offset + frame.count
    if durable:
        for log, end in ends.items():
            log.sync(end)


def _give_up(core: Core, identity: Identity, error: BaseException) -> None:
    """Abort after any error, unless the transaction was decided, and only writing its markers failed."""
    try:
        decided = core.transactions.decide(identity, commit=False) if identity.partitions else None
        if decided is not None:
            _finish(core, identity, commit=decided)
            return
    except KlammError as failure:
        error.add_note(f"and the transaction could not be aborted, which others will see to: {failure}")
    core.transactions.let_go(identity)


def _finish(core: Core, identity: Identity, *, commit: bool) -> None:
    try:
        core.transactions.finish(identity, commit=commit)
    except KlammError as error:
        how = "committed" if commit else "aborted"
        _log.warning("batch %s; writing some transaction markers failed and will be retried: %s", how, error)
        core.transactions.let_go(identity)
        return
    if identity.epoch < MAX_EPOCH:
        _idle.setdefault(core, []).append(identity)
    else:
        core.transactions.let_go(identity)


# ---- what a process keeps between two commits

_stores: dict[str, Store] = {}
_idle: weakref.WeakKeyDictionary[Core, list[Identity]] = weakref.WeakKeyDictionary()


def _take(core: Core) -> Identity:
    idle = _idle.get(core)
    return idle.pop() if idle else core.transactions.identity()


def core_of(path: str) -> Core:
    """Return the store, opened for writing, and held open as long as its path names it."""
    store = _stores.get(path)
    if store is not None and (store.closed or not store._acquired().is_in_place()):
        del _stores[path]
        store = None
    if store is None:
        try:
            store = _stores[path] = Store(path, create=False)
        except NotAStore as error:
            raise NotAStore(error.message, hint="path is the directory of a store, made by klamm.open") from None
    return store._acquired()
