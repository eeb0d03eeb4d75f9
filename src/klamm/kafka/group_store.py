"""The coordinator's groups and those of the store: doors, generations, and offsets, many in one write.

The coordinator says on the loop who may commit, and the store writes it in a thread, later. What if the group
rebalances in between, and the new owner of the partition commits, too? The order of checks is the order of writes: a
commit is handed over in the same step of the loop that has checked it, and there is one thread that writes, in the
order it is told. So an old owner's commit, let through by the check, is written before that of the new one, whose
check came later; never after it.

Batches. Each write takes the klamm.db lock and is a transaction of SQLite: that costs more than the rows. So commits
that wait for the thread are written together. A batch is open until the thread begins with it, and until something
else is handed over to the thread (`write`): nothing overtakes anything.

Promises
  GST1  Commits, deletions of offsets and of groups are written in the order in which they were checked.
  GST2  Reading offsets shows all that was committed and checked before, also what waits for the end of a transaction:
        it goes behind what is still to be written.
  GST3  Each commit has its own outcome. Only what keeps SQLite from writing at all (a full disk) fails a whole batch.
  GST4  A member joins a group that the store has at this door (store/groups.py G4).
  GST5  The generations of a group grow over restarts of the server, too. Numbers are reserved in the store, long before
        they are used up.
  GST6  A generation is told to its members when it is written, behind whatever was checked before (GST1): a server that
        is killed and restarted has it. One that is larger than MOST_STATE lives in memory only, and the log says so.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from klamm.errors import GroupBusy, InvalidSetting, KlammError
from klamm.kafka.large_requests import pieces
from klamm.store.group_image import GroupImage, decoded, encoded
from klamm.store.groups import Group, checked_name
from klamm.store.wire_groups import Offsets, WireCommit, WireGroups
from klamm.types import TopicId

if TYPE_CHECKING:
    from klamm.kafka.broker import Broker
    from klamm.store.server_rows import PendingKey

__all__ = ["MOST_STATE", "GroupOffsets", "GroupStore", "JoinPermit", "is_group_id"]

Outcome = list[bool] | KlammError
Result = TypeVar("Result")

MOST_STATE = 4 << 20  # bytes that the members of a group said and were assigned
_MOST_COMMITS = 512  # in one write: others want the klamm.db lock as well
_GENERATIONS = 1_000  # reserved at a time; half of them are left when the next are
_MAX_LOGGED = 1_000

_log = logging.getLogger("klamm.kafka")


def is_group_id(name: str) -> bool:
    """Return whether the store can have a group of that name."""
    try:
        checked_name(name)
    except InvalidSetting:
        return False
    return True


class JoinPermit(NamedTuple):
    """The permit of a join: what it needs to know."""

    max_size: int
    group: Group | None = None  # None: was at this door before
    first_generation: int | None = None  # None: known before


class GroupOffsets(NamedTuple):
    """Offsets of groups, as they were read."""

    committed: list[Offsets | KlammError]
    pending: set[PendingKey]
    """Where a transaction was about to move one of the groups."""


class _Batch:
    """Commits that are written together. `add` on the loop, `write` in the thread."""

    __slots__ = ("_begun", "_commits", "_mutex", "written")

    def __init__(self, first: WireCommit) -> None:
        self._commits = [first]
        self._begun = False
        self._mutex = threading.Lock()
        self.written: asyncio.Future[list[Outcome]]

    def add(self, commit: WireCommit) -> int | None:
        """Add a commit and return its index; None if it is too late."""
        with self._mutex:
            if self._begun or len(self._commits) >= _MOST_COMMITS:
                return None
            self._commits.append(commit)
            return len(self._commits) - 1

    def write(self, groups: WireGroups) -> list[Outcome]:
        with self._mutex:
            self._begun = True
        try:
            return groups.commit(self._commits)
        except KlammError as error:
            return [error] * len(self._commits)


class GroupStore:
    """The groups of one broker, on its loop."""

    def __init__(self, broker: Broker) -> None:
        self._of = weakref.ref(broker)
        self.groups = WireGroups(broker.core)
        self._batch: _Batch | None = None
        self._last: asyncio.Future[Any] | None = None  # of what was handed over to the thread
        self._reserved = 0  # generations up to here, this one excluded
        self._here: dict[str, Group] = {}  # groups whose members sit at this door, as the store knows
        self._coming: Counter[str] = Counter()  # those that a client is about to join
        self._logged: set[str] = set()  # groups with a rejected join that was logged
        self._too_large: set[str] = set()  # groups whose members are in memory only; of the thread that writes

    @property
    def _broker(self) -> Broker:
        broker = self._of()
        assert broker is not None
        return broker

    # ---- the thread that writes

    def write(self, function: Callable[..., Result], *args: Any) -> asyncio.Future[Result]:
        """Like Broker.write; for everything that writes groups or offsets, so that commits do not overtake it."""
        self._batch = None
        written = self._last = self._broker.write(function, *args)
        return written

    async def commit(self, commit: WireCommit) -> Outcome:
        """Store offsets, in the order of the calls. No `await` between the check and this."""
        batch = self._batch
        place = None if batch is None else batch.add(commit)
        if batch is None or place is None:
            batch, place = _Batch(commit), 0
            batch.written = self.write(batch.write, self.groups)
            self._batch = batch
        return (await asyncio.shield(batch.written))[place]

    async def offsets(self, wanted: Iterable[tuple[str, Iterable[TopicId] | None]]) -> GroupOffsets:
        """Return the committed offsets (see WireGroups.offsets), and what transactions may move."""
        found = GroupOffsets([], set())
        for some in pieces(list(wanted)):
            behind = self._last is not None and not self._last.done()
            run = self._broker.write if behind else self._broker.catalog
            committed, pending = await run(self._offsets, some)
            found.committed.extend(committed)
            found.pending.update(pending)
        return found

    def _offsets(self, wanted: Sequence[tuple[str, Iterable[TopicId] | None]]) -> GroupOffsets:
        """Read offsets, in a thread; pending ones first: of a transaction that ends in between, both are read."""
        pending = self._broker.transaction_coordinator.pending_offsets({name for name, _ in wanted})
        return GroupOffsets(self.groups.offsets(wanted), pending)

    # ---- joining

    def admit(self, name: str) -> asyncio.Future[JoinPermit]:
        """Claim the group for Kafka before a new member joins, and read how many members it may have. Raise GroupBusy
        if its members are processes that have the store open.
        """
        return self._broker.catalog(self._look) if name in self._here else self.write(self._claim, name)

    @contextmanager
    def coming(self, name: str) -> Iterator[None]:
        """Keep the group at this door while a member is about to join."""
        self._coming[name] += 1
        try:
            yield
        finally:
            self._coming[name] -= 1
            if not self._coming[name]:
                del self._coming[name]

    def leave_doors(self) -> None:
        """Leave the door of groups without a member here: they may have members at the other door."""
        coordinator, groups = self._broker.group_coordinator, self._broker.core.groups
        for group in groups.held_doors():
            if group.name not in self._coming and coordinator.is_deserted(group.name):
                self._here.pop(group.name, None)
                groups.leave_door(group)

    def _look(self) -> JoinPermit:
        return JoinPermit(self._broker.core.catalog.settings().group_max_size)

    def _claim(self, name: str) -> JoinPermit:
        """Claim the group, in the thread that writes, which alone changes `_reserved`."""
        group = self._broker.core.groups.claim_door(name, "kafka")
        return self._look()._replace(group=group, first_generation=self._reserve_first())

    def _reserve_first(self) -> int | None:
        if self._reserved:
            return None
        first = self.groups.reserve_generations(_GENERATIONS)
        self._reserved = first + _GENERATIONS
        return first

    def admitted(self, name: str, permit: JoinPermit) -> None:
        coordinator = self._broker.group_coordinator
        self._logged.discard(name)
        if permit.group is not None:
            self._here[name] = permit.group
        coordinator.config = coordinator.config._replace(max_size=permit.max_size)
        if permit.first_generation is not None:
            coordinator.begin_above(permit.first_generation)

    def refused(self, name: str, error: GroupBusy) -> None:
        """Log the refusal, once."""
        if name not in self._logged and len(self._logged) < _MAX_LOGGED:
            self._logged.add(name)
            _log.warning("JoinGroup rejected: %s", error)

    async def forget_empty(self) -> None:
        """Forget groups without members and without offsets. Consumers that commit nothing leave one behind each time,
        under a name that is never used again.
        """
        coordinator = self._broker.group_coordinator
        names = [
            name
            for name in await self._broker.catalog(self.groups.empty)
            if not (name in self._here or name in self._coming) and not coordinator.delete(name)
        ]
        if names:
            forgotten = self.write(self.groups.forget_empty, names)
            forgotten.add_done_callback(partial(self._forgotten, names))
            await asyncio.shield(forgotten)

    def _forgotten(self, names: list[str], _: object) -> None:
        broker = self._of()
        if broker is not None:
            for name in names:
                broker.group_coordinator.deleted(name)

    # ---- members that outlive the server

    def persist(self, image: GroupImage, number: int) -> None:
        """Persist a group for the coordinator, which is called when that is done."""
        self.write(self._persist, image).add_done_callback(partial(self._persisted, image.group_id, number))

    def _persist(self, image: GroupImage) -> Group | None:
        name, is_small = image.group_id, image.size <= MOST_STATE
        if is_small:
            self._too_large.discard(name)
        elif name not in self._too_large and len(self._too_large) < _MAX_LOGGED:
            self._too_large.add(name)
            _log.warning(
                "group %r: state of %d bytes is too large to persist: it is lost when the server stops",
                name,
                image.size,
            )
        return self.groups.persist(name, encoded(image) if image.members and is_small else None)

    def _persisted(self, name: str, number: int, done: asyncio.Future[Group | None]) -> None:
        broker = self._of()
        if broker is None or done.cancelled():
            return
        error = done.exception()
        if error is not None:
            _log.warning("group %r: state cannot be persisted: %s", name, error)
        elif (group := done.result()) is not None and group in broker.core.groups.held_doors():  # not left since
            self._here[name] = group
        broker.group_coordinator.persisted(name, number, ok=error is None, now_ms=broker.now_ms())

    async def load(self) -> None:
        """Load the groups of an earlier server, before any client can ask."""
        first, found = await self.write(self._load)
        coordinator, now_ms = self._broker.group_coordinator, self._broker.now_ms()
        if first is not None:
            coordinator.begin_above(first)
        for group, image in found:
            self._here[group.name] = group
            coordinator.restore(image, now_ms=now_ms)

    def _load(self) -> tuple[int | None, list[tuple[Group, GroupImage]]]:
        found = []
        for group, state in self.groups.resume():
            try:
                found.append((group, decoded(group.name, state)))
            except ValueError as error:
                _log.warning("group %r: state dropped: %s", group.name, error)
                self.groups.persist(group.name, None)
                self._broker.core.groups.leave_door(group)
        return (self._reserve_first() if found else None), found

    async def flush(self, seconds: float) -> None:
        """Wait until what was handed over to the thread is written."""
        if self._last is not None:
            await asyncio.wait([self._last], timeout=seconds)

    # ---- generations

    def has_begun(self, generation: int) -> None:
        """Record that a generation has begun, so that a later server begins above it."""
        if generation > self._reserved - _GENERATIONS // 2:
            self.write(self._reserve_up_to, generation).add_done_callback(_reserved)

    def _reserve_up_to(self, generation: int) -> None:
        if generation > self._reserved - _GENERATIONS // 2:  # not done since
            count = generation + _GENERATIONS - self._reserved
            self.groups.reserve_generations(count)
            self._reserved += count


def _reserved(done: asyncio.Future[None]) -> None:
    if not done.cancelled() and (error := done.exception()) is not None:
        _log.warning("generations of groups may start again when the server restarts: %s", error)
