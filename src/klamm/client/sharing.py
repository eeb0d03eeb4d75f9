"""What a consumer with a group, or with offsets of the user's, does between batches.

    a poll begins      what was handed out before counts as done: auto-commit, when it is time
    then, when due     lost partitions are told (on_lost) · surplus ones are told (on_revoked, which may commit),
                       auto-committed and given back · free ones are taken, read from where the group stands, and told
                       (on_assigned)
    it waits           the same, every 200 ms, or when members come and go
    close              on_revoked, auto-commit, commits under way, and the member leaves

A partition without a committed offset starts as `auto_offset_reset` says. "latest" is stored at once: whoever takes
the partition over before the first commit starts at the same place, not at a later "latest".
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypedDict

from klamm.client.assignment import Assignor
from klamm.client.commits import Commits
from klamm.client.membership import Member
from klamm.client.offsets import Offsets
from klamm.client.start import Starting, resume_at
from klamm.errors import GroupError, InvalidSetting
from klamm.store.groups import checked_name
from klamm.types import Position, TopicPartition

if TYPE_CHECKING:
    from klamm.client.consumer import Consumer
    from klamm.client.cursor import Cursor
    from klamm.client.subscription import Subscription
    from klamm.log.partition import Partition
    from klamm.store.directory import Core

__all__ = ["Callback", "Runner", "Sharing", "SharingOptions"]

Callback: TypeAlias = Callable[[list[TopicPartition]], object]
_RESETS = ("earliest", "latest", "error")


class SharingOptions(TypedDict, total=False):
    """What a consumer passes on; Sharing.__init__ has the defaults."""

    member: str | None
    rejoin_ms: int
    assignor: Assignor | None
    max_poll_interval_ms: int
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    auto_offset_reset: str
    on_assigned: Callback | None
    on_revoked: Callback | None
    on_lost: Callback | None


class Runner(Protocol):
    """Whoever hands a consumer's records to others (workers.py): told before the user is."""

    def revoked(self, places: Iterable[TopicPartition]) -> None: ...
    def lost(self, places: Iterable[TopicPartition]) -> None: ...


class Sharing:
    """Of one consumer, which it gets as an argument rather than keep it alive."""

    def __init__(
        self,
        core: Core,
        subscription: Subscription,
        cursors: Mapping[TopicPartition, Cursor],
        *,
        group: str | None,
        offsets: Offsets | None,
        member: str | None = None,
        rejoin_ms: int = 10_000,
        assignor: Assignor | None = None,
        max_poll_interval_ms: int = 300_000,
        enable_auto_commit: bool = False,
        auto_commit_interval_ms: int = 5_000,
        auto_offset_reset: str = "earliest",
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> None:
        if group is None:
            for name, given in {
                "member": member,
                "assignor": assignor,
                "enable_auto_commit": enable_auto_commit or None,
                "on_assigned": on_assigned,
                "on_revoked": on_revoked,
                "on_lost": on_lost,
            }.items():
                if given is not None:
                    raise InvalidSetting(f"{name}: goes with a group", hint="say group=…")
        if offsets is not None and not isinstance(offsets, Offsets):
            raise TypeError(f"offsets has load and commit, which {type(offsets).__name__} has not")
        if offsets is not None and enable_auto_commit:
            raise InvalidSetting("enable_auto_commit: offsets of your own are committed in your transaction")
        if auto_offset_reset not in _RESETS:
            raise InvalidSetting(
                f"auto_offset_reset: {auto_offset_reset!r} does not fit", hint=f"want {' or '.join(map(repr, _RESETS))}"
            )
        self._core = core
        self._reset = auto_offset_reset
        self.on_assigned, self.on_revoked, self.on_lost = on_assigned, on_revoked, on_lost
        interval_ms = _milliseconds("auto_commit_interval_ms", auto_commit_interval_ms, 0)
        self.member: Member | None = None
        if group is not None:
            self.member = Member(
                core,
                checked_name(group),
                subscription,
                name=None if member is None else checked_name(member, "member"),
                rejoin_ms=_milliseconds("rejoin_ms", rejoin_ms, 0),
                assignor=assignor,
                max_poll_interval_ms=_milliseconds("max_poll_interval_ms", max_poll_interval_ms, 1),
            )
        try:
            self.commits = Commits(
                core, self.member, offsets, cursors, auto_interval_ms=interval_ms if enable_auto_commit else None
            )
        except BaseException:  # `offsets` is the user's
            if self.member is not None:
                self.member.leave()
            raise
        self.polled_by = 0
        self.task = 0  # the same for asyncio, whose tasks share threads
        self.runner: Runner | None = None

    # ---- between batches

    def poll_begins(self, consumer: Consumer) -> None:
        self.polled_by = self.task or threading.get_ident()
        member = self.member
        if member is not None:
            member.polled()
            self.commits.note_done()
        if self.commits.stale:
            self._reload(consumer)
        if member is not None and member.is_due():
            self._look(consumer, member)

    def waits(self, consumer: Consumer) -> None:
        """Again and again, while a poll waits."""
        member = self.member
        if member is not None:
            member.polled()
            if member.is_due(idle=True):
                self._look(consumer, member)

    def _look(self, consumer: Consumer, member: Member) -> None:
        self._lose(consumer, member.take_lost())
        deleted, surplus = member.look()
        if deleted:
            member.give_back(deleted)
            self._lose(consumer, deleted)
        if surplus:
            try:
                self._revoke(surplus)
            finally:
                member.give_back(surplus)
                self._drop(consumer, surplus)
        taken = member.take()
        if taken:
            try:
                self._adopt(consumer, taken)
            except BaseException:
                member.give_back(taken)
                self._drop(consumer, taken)
                raise
            _call(self.on_assigned, taken)
        if deleted or surplus or taken:
            member.note_owned()

    def _revoke(self, places: list[TopicPartition]) -> None:
        """Before they are given up: the last chance to commit."""
        if self.runner is not None:
            self.runner.revoked(places)
        _call(self.on_revoked, places)
        self.commits.auto_commit(places)
        self.commits.finish()

    def _lose(self, consumer: Consumer, lost: list[TopicPartition]) -> None:
        if lost:
            if self.runner is not None:
                self.runner.lost(lost)
            self._drop(consumer, lost)
            _call(self.on_lost, lost)

    def _drop(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        self.commits.forget(places)
        consumer._remove(places)

    def _adopt(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        partitions = {place: self._core.topic(place[0]).partition(place[1]) for place in places}
        stored = self.commits.load(places)
        assert self.member is not None
        # What the watchdog gave up meanwhile was not looked up; the next look tells that it is lost.
        partitions = {place: each for place, each in partitions.items() if self.member.owns(*place)}
        found = {
            place: resume_at(partition, stored[place]) if place in stored else self._first(consumer, place, partition)
            for place, partition in partitions.items()
        }
        fresh = {place: position for place, position in found.items() if place not in stored}
        if self._reset == "latest" and self.commits.keeps_in_store:
            self.commits.commit(fresh, "")
        self.commits.begins(fresh)
        consumer._add({partitions[place]: position for place, position in found.items()})

    def _first(self, consumer: Consumer, place: TopicPartition, partition: Partition) -> Position:
        """Where to start in a partition that the group has no offset for."""
        if self._reset == "error":
            assert self.member is not None
            raise GroupError(
                f"group {self.member.group!r}: has no offset for {place[0]}/{place[1]}",
                hint="set one with store.reset_offsets, or choose auto_offset_reset='earliest' or 'latest'",
            )
        return Starting(self._reset).position_in(partition, new=consumer._is_new(place))

    def _reload(self, consumer: Consumer) -> None:
        """After a gap: read on at what is stored."""
        since = {place: Position(offset) for place, offset in self.commits.since.items()}
        stored = self.commits.load(since)
        self.commits.stale = False
        consumer._put_back({**since, **stored})

    # ---- the end

    def close(self) -> None:
        member = self.member
        try:
            if member is not None:
                owned = member.owned()
                if owned:
                    self._revoke(owned)
        finally:
            self.commits.close()
            if member is not None:
                member.leave()


def _call(callback: Callback | None, places: list[TopicPartition]) -> None:
    if callback is not None:
        callback(sorted(places))


def _milliseconds(name: str, value: Any, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} is a whole number of milliseconds, not {type(value).__name__}")
    if value < least:
        raise InvalidSetting(f"{name}: {value} does not fit", hint=f"want at least {least} ms")
    return value
