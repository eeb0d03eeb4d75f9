"""The offsets of a consumer, and where they are stored: those of its group in klamm.db, or the user's `offsets=`.

    stored     by partition: the stored offset, as last read or written (None: none)
    since      by partition: the first offset that was returned and not committed

`commit()` stores the positions of everything handed out; commit(batch) and the others what they name. Each checks,
under the member's mutex, that the partitions are owned and stay so until the write is done: NotOwner otherwise, and
nothing of it is stored. A batch that was handed out before a partition was lost cannot be committed when it has come
back: it carries the ownership epoch in which it was returned.

A transaction that moves offsets makes a PendingCommit, which compares and sets: its batches must follow on from
`since`, and the stored offsets must be unchanged. After an abort the consumer goes back to `since`.

`commit_async` does it in one thread, in order; what is committed meanwhile waits for its turn.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from klamm.batch import Record
from klamm.client.groups.offsets import Offsets, Progress
from klamm.errors import Closed, CommitGap, GroupError, InvalidSetting, NotOwner
from klamm.store.groups import OffsetRow, checked_metadata
from klamm.types import Batch, Committed, PartitionKey, Position, TopicPartition
from klamm.where import checked_position

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

    from klamm.client.consume.read_engine import ReadEngine
    from klamm.client.groups.membership import Member
    from klamm.store.directory import Core
    from klamm.store.lineage import Input

__all__ = ["Commits", "PendingCommit", "What"]


What: TypeAlias = (
    Batch[Any]
    | Record[Any, Any]
    | Mapping[tuple[str, int], int | Position]
    | Mapping[TopicPartition, int]
    | Mapping[TopicPartition, Position]
    | None
)


class _Entry(NamedTuple):
    position: Position
    begin: int | None  # of what was read up to there; None: not known, as in a mapping
    epoch: object | None  # of our ownership, when that was read, or the commit asked for; None: it was not ours


class Commits:
    """The progress of one consumer, whose engine says what was handed out."""

    def __init__(
        self,
        core: Core,
        member: Member | None,
        offsets: Offsets | None,
        engine: ReadEngine,
        *,
        auto_interval_ms: float | None,
    ) -> None:
        self._core = core
        self._member = member
        self._offsets = offsets
        if offsets is not None and hasattr(offsets, "bind"):
            offsets.bind(core)
        self._engine = engine
        self._auto_s = None if auto_interval_ms is None else auto_interval_ms / 1000
        self._committed_at = time.monotonic()
        self.stored: dict[TopicPartition, int | None] = {}
        self.since: dict[TopicPartition, int] = {}
        self._since_mutex = threading.Lock()
        self._epochs: dict[TopicPartition, object] = {}  # of our ownership
        self.stale = False  # what `offsets` keeps is not what we thought: load it before reading on
        self._done: dict[TopicPartition, Position] = {}  # handed out before the last poll, so done; for auto-commit
        self._pending: list[Future[None]] = []
        self._executor: ThreadPoolExecutor | None = None
        self._executor_mutex = threading.Lock()  # commits and `close` may come from any thread
        self._is_closed = False
        self._thread = 0

    @property
    def is_automatic(self) -> bool:
        """Whether a poll commits what was handed out before it."""
        return self._auto_s is not None

    @property
    def keeps_in_store(self) -> bool:
        """Whether the offsets are the group's."""
        return self._member is not None and self._offsets is None

    @property
    def can_be_run(self) -> bool:
        """Return whether the caller decides what is done: the group has its own offsets, and no auto-commit."""
        return self.keeps_in_store and self._auto_s is None

    # ---- reading

    def load(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, Position]:
        """Return where to go on in partitions that this member owns now; those without a position are left out."""
        wanted = list(tps)
        found: dict[TopicPartition, Position] = {}
        if self._offsets is not None:
            loaded = self._offsets.load(wanted)
            found = {tp: checked_position(loaded[tp]) for tp in wanted if loaded.get(tp) is not None}
        elif self._member is not None:
            with self._member.mutex:
                ids = {tp: self._member.topic_id(tp) for tp in wanted if self._member.owns(*tp)}
            rows = self._core.groups.offsets(self._member.group_number)
            stored = {tp: rows.get((topic_id, tp[1])) for tp, topic_id in ids.items()}
            found = {tp: Position(row.offset, row.leader_epoch) for tp, row in stored.items() if row is not None}
        for tp in wanted:
            self.stored[tp] = found[tp].offset if tp in found else None
            self.since.pop(tp, None)
        return found

    def begins(self, starts: Mapping[TopicPartition, Position]) -> None:
        """Record where reading starts in partitions that `load` had nothing for."""
        if starts and self._offsets is not None and hasattr(self._offsets, "begin"):
            self._offsets.begin(starts)
            self.stored.update({tp: position.offset for tp, position in starts.items()})

    def committed(self, topic: str, partition: int) -> Committed | None:
        """Return the stored offsets, also those that another process wrote."""
        if self._offsets is not None:
            look = self._offsets.peek if hasattr(self._offsets, "peek") else self._offsets.load
            found = look([(topic, partition)]).get((topic, partition))
            return None if found is None else Committed(*checked_position(found))
        assert self._member is not None
        topic_id = self._core.topic(topic).topic.id
        row = self._core.groups.offsets(self._member.group_number).get((topic_id, partition))
        return None if row is None else Committed(row.offset, row.leader_epoch, row.metadata)

    def forget(self, tps: Iterable[TopicPartition]) -> None:
        """Forget partitions that this member owns no longer."""
        for tp in tps:
            self.stored.pop(tp, None)
            self.since.pop(tp, None)
            self._done.pop(tp, None)
            self._epochs.pop(tp, None)

    def own(self, tps: Iterable[TopicPartition]) -> None:
        """Record that this member owns these partitions now."""
        self._epochs.update((tp, object()) for tp in tps)

    # ---- what is handed out

    def deliver(self, tp: TopicPartition, begin: int) -> object | None:
        """Record that records from `begin` on were returned. Return the epoch of our ownership, for the batch."""
        with self._since_mutex:
            self.since.setdefault(tp, begin)
        return self._epochs.get(tp)

    def moved(self, tps: Iterable[TopicPartition]) -> None:
        """Forget what was returned and not committed: the user has moved the consumer."""
        for tp in tps:
            self.since.pop(tp, None)
            self._done.pop(tp, None)

    def record_done(self) -> None:
        """Take what was delivered as processed, because the consumer polls again; auto-commit it when due."""
        if self._auto_s is not None:
            self._done = self._positions()
            if time.monotonic() - self._committed_at >= self._auto_s:
                self.auto_commit()

    def auto_commit(self, tps: Iterable[TopicPartition] | None = None) -> None:
        """Commit what is done, in those partitions; nothing without auto-commit."""
        if self._auto_s is None:
            return
        self._committed_at = time.monotonic()
        chosen = self._done if tps is None else {each: self._done[each] for each in tps if each in self._done}
        entries = {tp: self._entry(tp, position, self.since.get(tp)) for tp, position in chosen.items()}
        member = self._member
        if member is not None:  # partitions lost since are processed again by their new owner
            entries = {tp: entry for tp, entry in entries.items() if member.owns(*tp)}
        self._done = {tp: position for tp, position in self._done.items() if tp not in entries}
        self._in_turn(entries, "")

    def _positions(self) -> dict[TopicPartition, Position]:
        """Return the positions of the partitions where something was returned and not committed."""
        found = {tp: self._engine.handed_out(tp) for tp in list(self.since)}
        positions = {tp: handed.position for tp, handed in found.items() if handed is not None}
        return {tp: position for tp, position in positions.items() if position.offset != self.since.get(tp)}

    # ---- committing

    def commit(self, what: What, metadata: object) -> None:
        self._in_turn(self._entries(what), checked_metadata(metadata))

    def commit_async(self, what: What, metadata: object) -> Future[None]:
        if self._offsets is not None:
            raise InvalidSetting(
                "commit_async: offsets of your own are committed in your transaction, so in your thread",
                hint="use commit",
            )
        return self._submit(self._entries(what), checked_metadata(metadata))

    def _submit(self, entries: dict[TopicPartition, _Entry], metadata: str) -> Future[None]:
        with self._executor_mutex:
            if self._is_closed:
                raise Closed("the consumer is closed", hint="make another with store.consumer()")
            if self._executor is None:
                from concurrent.futures import ThreadPoolExecutor

                self._executor = ThreadPoolExecutor(1, "klamm-commit")
            future = self._executor.submit(self._in_thread, entries, metadata)
            self._pending = [*self._unfinished(), future]
        return future

    def _unfinished(self) -> list[Future[None]]:
        return [each for each in self._pending if not each.done()]

    def _in_thread(self, entries: dict[TopicPartition, _Entry], metadata: str) -> None:
        self._thread = threading.get_ident()
        self._write(entries, metadata)

    def _in_turn(self, entries: dict[TopicPartition, _Entry], metadata: str) -> None:
        """Run now, or after what commit_async has left to do."""
        if not entries:
            return
        if self._pending and self._unfinished() and threading.get_ident() != self._thread:
            self._submit(entries, metadata).result()
        else:
            self._write(entries, metadata)

    def finish(self) -> None:
        """Return when what was begun is committed, or has failed."""
        if self._pending and threading.get_ident() != self._thread:
            from concurrent.futures import wait

            wait(self._pending)

    def close(self) -> None:
        """Return when everything that was begun is committed, or has failed."""
        with self._executor_mutex:
            self._is_closed = True
        if self._executor is not None:
            self._executor.shutdown(wait=threading.get_ident() != self._thread)

    def _entries(self, what: What) -> dict[TopicPartition, _Entry]:
        if type(what) is dict:  # known at once; to ask whether something is a Mapping takes longer
            return self._named(what)
        if what is None:
            found = self._positions()
            return {tp: self._entry(tp, position, self.since.get(tp)) for tp, position in found.items()}
        if isinstance(what, Batch):
            if what.begin == what.end:  # a poll that gave nothing, or an empty slice
                return {}
            tp, position = TopicPartition(what.topic, what.partition), Position(what.end, what.leader_epoch)
            entry = self._entry(tp, position, what.begin)
            return {tp: entry if what._source is None else entry._replace(epoch=what._source[1])}
        if isinstance(what, Record):
            tp, position = TopicPartition(what.topic, what.partition), Position(what.offset + 1, what.leader_epoch)
            return {tp: self._entry(tp, position, self.since.get(tp, what.offset))}
        if isinstance(what, Mapping):
            return self._named(what)
        raise TypeError(f"commit takes a batch, a record or a mapping, not {type(what).__name__}")

    def _named(self, what: Mapping[Any, Any]) -> dict[TopicPartition, _Entry]:
        entries = {}
        for (topic, number), at in what.items():
            tp = TopicPartition(str(topic), int(number))
            entries[tp] = self._entry(tp, checked_position(at), None)
        return entries

    def _entry(self, tp: TopicPartition, position: Position, begin: int | None) -> _Entry:
        return _Entry(position, begin, self._epochs.get(tp))

    def _check_epochs(self, entries: dict[TopicPartition, _Entry]) -> None:
        """Raise NotOwner for entries from before a partition was lost and came back. Called under the mutex."""
        for tp, entry in entries.items():
            if entry.epoch is not None and self._epochs.get(tp) is not entry.epoch:
                raise NotOwner(
                    f"{tp[0]}/{tp[1]}: what ends at {entry.position.offset} was handed out before the partition"
                    " was lost and came back",
                    hint="read on: what was not committed is handed out again",
                )

    def _write(self, entries: dict[TopicPartition, _Entry], metadata: str) -> None:
        member = self._member
        if member is None:
            self._write_elsewhere(entries)
        else:
            with member.mutex:
                check_ownership(member, entries)
                self._check_epochs(entries)
                if self._offsets is not None:
                    self._write_elsewhere(entries)
                else:
                    topic_id = member.topic_id
                    rows = [
                        OffsetRow(topic_id(tp), tp[1], entry.position[0], entry.position[1], metadata)
                        for tp, entry in entries.items()
                    ]
                    self._core.groups.commit(member.group_number, rows)
        for tp, entry in entries.items():
            self._complete(tp, entry.position.offset)

    def _write_elsewhere(self, entries: dict[TopicPartition, _Entry]) -> None:
        assert self._offsets is not None
        found = []
        for tp, (position, begin, _) in entries.items():
            kept, since = self.stored.get(tp), self.since.get(tp)
            if kept is not None and begin in (None, since):
                begin = kept  # as it should be; where the user has moved the consumer, the two are not the same number
            found.append(Progress(*tp, position.offset if begin is None else begin, *position))
        try:
            self._offsets.commit(found)
        except CommitGap:
            self.stale = True
            raise

    def complete(self, ends: Mapping[TopicPartition, int]) -> None:
        """Record that these offsets are stored."""
        for tp, end in ends.items():
            self._complete(tp, end)

    def _complete(self, tp: TopicPartition, end: int) -> None:
        self.stored[tp] = end
        with self._since_mutex:  # else a record that a poll returns at this moment would not count as handed out
            handed = self._engine.handed_out(tp)
            if handed is None or (handed.offset <= end and not handed.has_more):
                self.since.pop(tp, None)
            elif tp in self.since:
                self.since[tp] = end  # a loop goes on handing out

    def pending_commit(self) -> PendingCommit:
        """Return a pending commit, for a transaction that moves this group's offsets."""
        if self._member is None or self._offsets is not None:
            raise GroupError("only offsets that a group keeps in the store can be part of a transaction")
        return PendingCommit(self, self._member)


class PendingCommit:
    """The offsets that one transaction is to commit for one consumer.

    pending_commit.add(batch)                                       # CommitGap if it does not follow; nothing has
                                                                    changed yet
    with pending_commit.member.mutex, gate, database.transaction() as execute:
        pending_commit.check_ownership()                              # NotOwner
        put_offsets(execute, pending_commit.member.group_number, pending_commit.rows(), expect=pending_commit.expect())
    pending_commit.done()                                           # or session.rewind(), after an abort
    """

    def __init__(self, commits: Commits, member: Member) -> None:
        self._commits = commits
        self.member = member
        self._ends: dict[TopicPartition, _Entry] = {}
        self._expected: dict[TopicPartition, int | None] = {}
        self._begins: dict[TopicPartition, int] = {}

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to commit."""
        return not self._ends

    def add(self, what: What = None) -> None:
        """Add a batch, or (None) everything that was returned."""
        for tp, entry in self._commits._entries(what).items():
            check_ownership(self.member, [tp])
            self._commits._check_epochs({tp: entry})
            begin = entry.begin
            due = self._ends[tp].position.offset if tp in self._ends else self._commits.since.get(tp)
            if what is not None and begin != due:
                raise CommitGap(
                    f"{tp[0]}/{tp[1]}: the batch begins at {begin}, but what was handed out and not committed"
                    f" {'is nothing' if due is None else f'begins at {due}'}",
                    expected=-1 if due is None else due,
                    begin=-1 if begin is None else begin,
                )
            self._expected.setdefault(tp, self._commits.stored.get(tp))
            self._begins.setdefault(tp, self._commits.since.get(tp, entry.position.offset))
            self._ends[tp] = entry

    def check_ownership(self) -> None:
        """Raise NotOwner if this member owns a partition no longer. Called under the member's mutex."""
        check_ownership(self.member, self._ends)
        self._commits._check_epochs(self._ends)

    def rows(self) -> list[OffsetRow]:
        """Return the offsets as rows. Called under the member's mutex."""
        topic_id = self.member.topic_id
        return [OffsetRow(topic_id(tp), tp[1], *entry.position) for tp, entry in self._ends.items()]

    def expect(self) -> dict[PartitionKey, int | None]:
        """Return the offsets that must be stored now, for `put_offsets`. Called under the member's mutex."""
        return {(self.member.topic_id(tp), tp[1]): offset for tp, offset in self._expected.items()}

    def ranges(self) -> list[Input]:
        """Return group, topic id, partition, and the offsets that it is moved past. Called under the member's mutex."""
        topic_id = self.member.topic_id
        return [
            (self.member.group, topic_id(tp), tp[1], self._begins[tp], entry.position.offset)
            for tp, entry in self._ends.items()
        ]

    def done(self) -> None:
        """Record that the transaction is committed."""
        self._commits.complete({tp: entry.position.offset for tp, entry in self._ends.items()})


def check_ownership(member: Member, tps: Iterable[TopicPartition]) -> None:
    for topic, number in tps:
        if not member.owns(topic, number):
            raise NotOwner(
                f"{topic}/{number}: not owned by this member",
                hint="nothing was committed; its owner goes on where the last commit was",
            )
