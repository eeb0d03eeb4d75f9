"""Group work between polls, or with offsets of the user's: rebalance, auto-commit, callbacks.

    a poll begins      what was handed out before counts as done: auto-commit, when it is time
    then, when due     lost partitions are told (on_lost) · surplus ones are told (on_revoked, which may commit),
                       auto-committed and given back · free ones are taken, read from where the group stands, and told
                       (on_assigned)
    it waits           the same, every 200 ms, or when members come and go
    close              on_revoked, auto-commit, commits under way, and the member leaves

A partition without a committed offset starts as `auto_offset_reset` says. "latest" is stored at once: a member that
takes the partition over before the first commit starts at the same offset, not at a later "latest".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypedDict

from klamm.client.groups.assignment import Assignor
from klamm.client.groups.commits import Commits
from klamm.client.groups.membership import Member
from klamm.client.groups.offsets import Offsets
from klamm.client.subscription import open_partitions
from klamm.errors import GroupError, InvalidSetting
from klamm.store.groups import checked_name
from klamm.times import Duration, to_seconds
from klamm.types import Position, TopicPartition
from klamm.where import Where, position_in, resume_at

if TYPE_CHECKING:
    from klamm.client.consume.read_engine import ReadEngine
    from klamm.client.consume.session import Session
    from klamm.client.subscription import Subscription
    from klamm.log.partition import Partition
    from klamm.store.directory import Core

__all__ = ["GroupOptions", "GroupSession", "RebalanceCallback", "Runner"]

RebalanceCallback: TypeAlias = Callable[[list[TopicPartition]], object] | Callable[[list[tuple[str, int]]], object]


class GroupOptions(TypedDict, total=False):
    """The options that a consumer passes on; GroupSession.__init__ has the defaults."""

    member: str | None
    rejoin_timeout: Duration
    assignor: Assignor | None
    max_poll_interval_ms: int
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    on_assigned: RebalanceCallback | None
    on_revoked: RebalanceCallback | None
    on_lost: RebalanceCallback | None


class Runner(Protocol):
    """The workers that get a consumer's records (workers.py); called before the user's callbacks."""

    def revoked(self, tps: Iterable[TopicPartition]) -> None: ...
    def lost(self, tps: Iterable[TopicPartition]) -> None: ...

    def is_worker(self) -> bool:
        """Return whether this thread handles a record."""
        ...


class GroupSession:
    """The group work of one session. The session is an argument of each call, and is not kept alive."""

    def __init__(
        self,
        core: Core,
        subscription: Subscription,
        engine: ReadEngine,
        *,
        group: str | None,
        offsets: Offsets | None,
        auto_offset_reset: str | None,
        member: str | None = None,
        rejoin_timeout: Duration = 10,
        assignor: Assignor | None = None,
        max_poll_interval_ms: int = 300_000,
        enable_auto_commit: bool = False,
        auto_commit_interval_ms: int = 5_000,
        on_assigned: RebalanceCallback | None = None,
        on_revoked: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
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
            raise TypeError(f"offsets: expected an object with load and commit, not {type(offsets).__name__}")
        if offsets is not None and enable_auto_commit:
            raise InvalidSetting("enable_auto_commit: offsets of your own are committed in your transaction")
        self._core = core
        self._reset = auto_offset_reset or "earliest"
        self.on_assigned, self.on_revoked, self.on_lost = on_assigned, on_revoked, on_lost
        interval_ms = _milliseconds("auto_commit_interval_ms", auto_commit_interval_ms, 0)
        self.member: Member | None = None
        if group is not None:
            make_member = Member if core.elsewhere is None else core.elsewhere.member
            self.member = make_member(
                core,
                checked_name(group),
                subscription,
                name=None if member is None else checked_name(member, "member"),
                rejoin_ms=round(to_seconds("rejoin_timeout", rejoin_timeout) * 1000),
                assignor=assignor,
                max_poll_interval_ms=_milliseconds("max_poll_interval_ms", max_poll_interval_ms, 1),
            )
        try:
            self.commits = Commits(
                core, self.member, offsets, engine, auto_interval_ms=interval_ms if enable_auto_commit else None
            )
        except BaseException:  # `offsets` is the user's
            if self.member is not None:
                self.member.leave()
            raise
        self.runner: Runner | None = None

    # ---- between batches

    def poll_begins(self, session: Session) -> None:
        member = self.member
        if member is not None:
            member.polled()
            self.commits.record_done()
        if self.commits.stale:
            self._reload(session)
        if member is not None and member.is_due():
            self._look(session, member)

    def waits(self, session: Session) -> None:
        """Do the group work repeatedly while a poll waits."""
        member = self.member
        if member is not None:
            member.polled()
            if member.is_due(idle=True):
                self._look(session, member)

    def withdraw(self, session: Session, why: str) -> None:
        """Give up all partitions at once, and leave the group. The next poll joins again."""
        if self.member is not None:
            self._lose(session, self.member.withdraw(why))

    def _look(self, session: Session, member: Member) -> None:
        self._lose(session, member.take_lost())
        deleted, surplus = member.look()
        if deleted:
            member.give_back(deleted)
            self._lose(session, deleted)
        if surplus:
            try:
                self._revoke(surplus)
            finally:
                member.give_back(surplus)
                self._drop(session, surplus)
        taken = self._take(session, member)
        if deleted or surplus or taken:
            member.save_owned()

    def _take(self, session: Session, member: Member) -> list[TopicPartition]:
        taken = member.take()
        if taken:
            try:
                self._adopt(session, taken)
            except BaseException:
                member.give_back(taken)
                self._drop(session, taken)
                raise
            _call(self.on_assigned, taken)
        return taken

    def _revoke(self, tps: list[TopicPartition]) -> None:
        """Call back before partitions are revoked: the last chance to commit."""
        if self.runner is not None:
            self.runner.revoked(tps)  # which takes its time: the watchdog may have given them up, and on_lost tells
            tps = [tp for tp in tps if self.member is not None and self.member.owns(*tp)]
        _call(self.on_revoked, tps)
        self.commits.auto_commit(tps)
        self.commits.finish()

    def _lose(self, session: Session, lost: list[TopicPartition]) -> None:
        if lost:
            if self.runner is not None:
                self.runner.lost(lost)
            self._drop(session, lost)
            _call(self.on_lost, lost)

    def _drop(self, session: Session, tps: list[TopicPartition]) -> None:
        self.commits.forget(tps)
        session.engine.unassign([TopicPartition(*tp) for tp in tps])

    def _adopt(self, session: Session, tps: list[TopicPartition]) -> None:
        partitions = open_partitions(self._core, tps)
        stored = self.commits.load(tps)
        assert self.member is not None
        # What the watchdog has given up since was not looked up; the next look reports it as lost.
        partitions = {tp: each for tp, each in partitions.items() if self.member.owns(*tp)}
        found = {
            tp: resume_at(partition, stored[tp]) if tp in stored else self._first(session, tp, partition)
            for tp, partition in partitions.items()
        }
        fresh = {tp: position for tp, position in found.items() if tp not in stored}
        if self._reset == "latest" and self.commits.keeps_in_store:
            self.commits.commit(fresh, "")
        self.commits.begins(fresh)
        self.commits.own(found)
        session.engine.assign(found)

    def _first(self, session: Session, tp: TopicPartition, partition: Partition) -> Position:
        """Return where to start in a partition that the group has no offset for."""
        if self._reset == "error":
            assert self.member is not None
            raise GroupError(
                f"group {self.member.group!r}: has no offset for {tp[0]}/{tp[1]}",
                code="no_offset",
                hint="set one with store.groups.reset, or choose auto_offset_reset='earliest' or 'latest'",
            )
        return position_in(Where(self._reset), partition, is_new=session.is_new(tp))

    def _reload(self, session: Session) -> None:
        """Continue from the stored offsets, after a gap."""
        since = {tp: Position(offset) for tp, offset in self.commits.since.items()}
        stored = self.commits.load(since)
        self.commits.stale = False
        session.resume_at({**since, **stored})

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


def _call(callback: RebalanceCallback | None, tps: list[TopicPartition]) -> None:
    if callback is not None and tps:
        callback(sorted(tps))


def _milliseconds(name: str, value: Any, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} is a whole number of milliseconds, not {type(value).__name__}")
    if value < least:
        raise InvalidSetting(f"{name}: {value} is invalid", hint=f"expected at least {least} ms")
    return value
