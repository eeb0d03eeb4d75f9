"""The head of a partition: how an append becomes visible, and what a killed writer leaves behind.

    heads     mapped by every process that has the store open; slots of 1 KiB
      slot 0     the store's: boot id, device and inode (is this file to be trusted?), the bell, the catalog's version,
                 the latest life number
      slot n     a partition's; used again when that was deleted, with another generation
    lock      lock bytes; a partition has three: flush (4n + 1), clean (4n + 2), recovery point (4n + 3)

A slot says where its log ends:

    seq               number of the latest commit, which lies in ring[seq % 8]
    ring[8]           commits: next_offset, active_base, position, stable_offset, max_timestamp (of the active segment),
                      log_start, seq, leader_epoch, CRC
    intent            seq + 1 during a write, else seq
    flags             DELETED, READ_ONLY, SYNC_FAILED, NEEDS_RECOVERY, NEW_HEAD (this slot was laid out for an old log);
                      above them the slot's generation: a log with another one is of a partition that was deleted
    flushed           one word: flushed_offset (everything below is on disk), flushing (a process is syncing), and the
                      flush generation, which says which byte is the flush byte: 4n + 1 + (generation << 40)
    flushed_check     ~flushed_offset: with it, recovery can rely on the old head after a boot
    flush_round       changes after each sync; processes that wait for a sync sleep on it
    index_*           where the index of the active segment ends
    recovery_*        the recovery point in the file `recovery`
    redo_*            a committed batch whose producer the table may not know yet
    producers_seq     equals the number in the header of the table of producers, if the table is this log's
                      (_producers.pxi)
    aborted_*         the latest .aborted file: its segment, and how many entries it has
    owner, holder     the append lock: the life number of the process that holds it (owner.h), and the last process that
                      took it
    notes[3]          for each lock byte: the last process that took it, and the word that waiting processes sleep on

**Commit.** Fill the next entry of the ring, then store `seq`. That one store is the commit: before it the batch does
not exist, after it all processes see it. There are eight entries, so that a reader can copy one while writers fill the
next.

**Read.** Load `seq`, copy its commit, load `seq` again; if it is 7 or more ahead, the entry may have changed under the
copy: try again. A wrong CRC, or another seq in the copy, is damage. No lock, no store.

**Append**, holding the append lock: refuse by flags · if intent ≠ seq a writer died: cut the file to `position` · store
intent · write the batch at `position` · commit · index · let go · ring the bell.

**Transactions.** A transactional batch leaves `stable_offset` where it is, at the latest where the oldest open
transaction begins; a marker moves it, in its own commit, to where the oldest that is still open begins, or to the
end. An abort is recorded in the .aborted file first (aborted.py).

**Roll.** A commit of its own: active_base = next_offset, position = 0. The file is created by its first writer.

**Sync** (_sync.pxi). *Try* the flush byte. The process that gets it reads the commit, sets flushing, syncs every
segment from the one that holds flushed_offset to the active one, and the directory if a segment in there is new; then
it sets flushed_offset and clears flushing, in one store, and releases the byte. The others sleep on flush_round. After
an error flushing stays set: the kernel reports a failed sync once and then claims success. Flushing found set while the
byte is free means that a sync failed, or that the syncing process died, which counts as failed. Then everything above
flushed_offset is written again, into new blocks, under SYNC_FAILED, the append lock and the flush lock
(recovery.rewrite_unsynced).

**A syncing process that is stopped** (SIGSTOP, a debugger, `docker pause`) is replaced after a second. A process that
waits for it takes the append lock and stores the next generation into `flushed`: from now on another byte is the flush
byte, and it is free, with flushing set. The rest is as after the death of a syncing process. Each change that
the replaced process may still make is a compare-and-swap of `flushed`, which fails because of the generation; it then
releases its own byte and waits as the others do. A process that is not stopped is never replaced: its disk is slow. If
that is unknown (another pid namespace), it is replaced after ten seconds. Recovery and rewrites hold the append lock as
well, and so are never replaced, and nothing but those and a sync is done under the flush lock.

Promises
  H1  A reader never sees a byte beyond the commit; a batch is there whole or not at all.
  H2  Only the holder of the append lock writes a segment, the intent or a commit; next_offset only grows.
  H3  A writer killed at any instruction loses only what it had not committed, and delays no other by more than 2 ms and
      a system call.
  H4  A segment that is not active never changes size.
  H5  flushed_offset moves only after everything below it was synced without an error in any process, and a process that
      was replaced never moves it.

A mutex in front of each lock keeps the threads of a process apart (an OFD lock does not). Locks and mutexes are taken
and released by native code alone: an append and a sync are one call each, and a longer section is a `with` block of a
native type. So an exception, or a signal handler that raises one, never leaves a lock held. Every store and system call
here that others can observe is a step that tests can trap (disk/os.h).
"""

from __future__ import annotations

from klamm.errors import SyncFailed
from klamm.log._head import (
    DELETED,
    EVENTFUL,
    FORMAT,
    LIFE,
    MAX_SLOTS,
    MISSING_INDEX,
    NEEDS_RECOVERY,
    NEW_HEAD,
    ONE_BYTES,
    OPENED,
    READ_ONLY,
    RECOVERY_POINT,
    REPEATED,
    ROLLED,
    SLOT_BYTES,
    SYNC_FAILED,
    BellThread,
    Evidence,
    HeadResult,
    Heads,
    Life,
    Log,
    Poller,
    QuickStore,
    QuickTarget,
    Reply,
    Result,
    Snapshot,
    SoleMapping,
    Syncer,
    Watch,
    WatchedLogs,
    empty_slots,
    leader_epochs,
    store_goes_shortest_way,
    topic_goes_shortest_way,
)

__all__ = [
    "DELETED",
    "EVENTFUL",
    "FORMAT",
    "LIFE",
    "MAX_SLOTS",
    "MISSING_INDEX",
    "NEEDS_RECOVERY",
    "NEW_HEAD",
    "ONE_BYTES",
    "OPENED",
    "READ_ONLY",
    "RECOVERY_POINT",
    "REPEATED",
    "ROLLED",
    "SLOT_BYTES",
    "SYNC_FAILED",
    "BellThread",
    "Evidence",
    "HeadResult",
    "Heads",
    "Life",
    "Log",
    "Poller",
    "QuickStore",
    "QuickTarget",
    "Reply",
    "Result",
    "Snapshot",
    "SoleMapping",
    "Syncer",
    "Watch",
    "WatchedLogs",
    "clean_byte",
    "empty_slots",
    "leader_epochs",
    "store_goes_shortest_way",
    "sync",
    "topic_goes_shortest_way",
]


def clean_byte(slot: int) -> int:
    return 4 * slot + 2


def sync(log: Log, end_offset: int) -> None:
    """Return when everything below `end_offset` is on disk, synced by this process or another one."""
    try:
        log.sync(end_offset)
    except (OSError, HeadResult) as error:
        raise _sync_failed(log, error) from error


def _sync_failed(log: Log, error: OSError | HeadResult) -> Exception:
    if isinstance(error, OSError):
        return SyncFailed(
            f"{log.directory}: cannot sync: {error.strerror}",
            hint="nothing acknowledged is lost; appends work again when the disk does",
        )
    if error.result is Result.SYNC_FAILED:
        return SyncFailed(f"{log.directory}: an earlier sync failed, or the process doing it died or was stopped")
    return error
