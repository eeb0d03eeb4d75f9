"""The group coordinator: Kafka's classic protocol for consumer groups, a machine without sockets, threads or clock.

    join         a member comes, or comes again: a rebalance begins, and ends when all have joined or time is up
    sync         the leader sends the assignments, and each member gets its own
    heartbeat    a member lives, and learns whether it has to join again
    leave        members leave: one or several, the sender or others

Every method takes the time, in milliseconds that never go back; `tick` is to be called at `next_deadline`. Offsets are
the store's (store/groups.py); this module only decides which member may commit them.

What outlives a restart: `persist` is called with the image of each generation that is about to be stable, and with one
without members when the group is empty. The caller confirms it (`persisted`); the next server gets it (`restore`).

join and sync respond by the callback that came with them, at once or later, once. Callbacks, and `persist`, run just
before the method returns that made the responses; they may call it again, and must not raise. One thread at a time.

The members of a group belong to one door at a time. Before a join to a group that is not here (`knows`), the server
claims the group for "kafka" in the store.

Promises
  GCO1  Every delayed request is answered, unless its connection goes (`disconnected`): a join within the longest
        rebalance timeout of the group (or the initial delay, if that is longer), a sync as well; but for what
        `persisted` takes.
  GCO2  In a stable generation every member has one assignment, of this generation; the empty one if the leader gave
        none.
  GCO3  Generations of a group only grow, even when it is deleted and created again.
  GCO4  A client that is fenced, or not a member, changes nothing.
  GCO5  A member that is not heard of for its session timeout is removed. A delayed request is a sign of life, as
        long as its connection stays open.
  GCO6  What clients can make it hold is bounded by `config`: groups, members, bytes of a group and of all groups; and
        _MAX_PENDING ids of a group.
  GCO7  No member gets an assignment, or in a stable group a new id, before it is stored. If that fails, the response is
        COORDINATOR_NOT_AVAILABLE, and a generation is followed by a rebalance.

Where it differs from Apache Kafka: a delayed request is always answered, also one that is overtaken by a later request
of the same member (REBALANCE_IN_PROGRESS), or whose member is removed by another (UNKNOWN_MEMBER_ID); a static member
can rejoin a group that is full; a connection that closes is noticed: from then on the session timeout
runs, and a new member that was never told its id goes at once. Any request of a member is a sign of life.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Iterable
from functools import partial

from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.group_state import DelayedRequest, Group, HeldResponse, Member, State
from klamm.kafka.group_table import GroupTable
from klamm.kafka.group_values import (
    GroupConfig,
    GroupDescription,
    GroupListing,
    JoinReply,
    JoinRequest,
    JoinResponse,
    LeaveResponse,
    LeavingMember,
    LeftMember,
    SyncReply,
    SyncRequest,
    SyncResponse,
)
from klamm.kafka.pending_responses import PendingResponses
from klamm.kafka.timers import Timer, Timers
from klamm.store.group_image import GroupImage, Persist

__all__ = ["GroupCoordinator"]

_NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000  # a new member cannot send heartbeats; Kafka lets its JoinGroup wait so long
_MAX_PENDING = 1_000  # ids of a group that no client has joined with yet
_log = logging.getLogger("klamm")


class GroupCoordinator:
    """The coordinator of all groups of a server. `config` may be replaced at any time."""

    def __init__(
        self,
        config: GroupConfig | None = None,
        *,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
        persist: Persist | None = None,
    ) -> None:
        self.config = config if config is not None else GroupConfig()
        self._new_id = new_id
        self._persist = persist
        self._persist_count = 0  # how often it was called
        self._groups = GroupTable(self._on_group_timer, self._expire_member)
        self._timers = Timers()
        self._pending = PendingResponses()
        self._closed = False

    # ---- time

    def next_deadline(self) -> int | None:
        """Return when to call `tick` next, unless something else happens before; None: not at all."""
        return self._timers.next_deadline()

    def tick(self, now_ms: int) -> None:
        """Run what is due by now."""
        self._timers.run(now_ms)
        self._pending.deliver()

    # ---- joining

    def begin_above(self, generation: int) -> None:
        """Start new groups above this generation."""
        self._groups.begin_above(generation)

    def knows(self, group_id: str) -> bool:
        """Return whether the group is here; if not, it must be claimed in the store before a client joins."""
        return group_id in self._groups

    def is_deserted(self, group_id: str) -> bool:
        """Return whether the group has no members, nor clients about to join."""
        group = self._groups.get(group_id)
        return group is None or (not group.members and not group.pending)

    def join(self, request: JoinRequest, reply: JoinReply, *, now_ms: int, connection: object = None) -> None:
        """Handle JoinGroup. `connection`, whatever it is, is what `disconnected` will be called with."""
        delayed = DelayedRequest(reply, connection)
        error, full = self._refused(request.group_id), ""
        if not error and not self.config.allows_session(request.session_timeout_ms):
            error = ErrorCode.INVALID_SESSION_TIMEOUT
        group = self._groups.get(request.group_id)
        if not error and group is None:
            if request.member_id:
                error = ErrorCode.UNKNOWN_MEMBER_ID
            elif not self.config.allows_group(len(self._groups)):
                error, full = ErrorCode.GROUP_MAX_SIZE_REACHED, "max.groups"
            else:
                group = self._groups.create(request.group_id)
        if error or group is None:
            self._pending.respond(delayed, JoinResponse(error, request.member_id, full=full))
        else:
            self._join(group, request, delayed, now_ms)
            self._try_complete(group, now_ms)
            self._groups.forget_empty(group)
        self._pending.deliver()

    def _join(self, group: Group, request: JoinRequest, delayed: DelayedRequest[JoinReply], now_ms: int) -> None:
        member_id = request.member_id
        if full := group.find_full(request, self.config):
            self._drop_pending(group, member_id)
            if member_id in group.members:
                self._remove(group.members[member_id])
            self._pending.respond(delayed, JoinResponse(ErrorCode.GROUP_MAX_SIZE_REACHED, "", full=full))
        elif not group.supports(request):
            self._pending.respond(delayed, JoinResponse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id))
        elif not member_id:
            self._join_as_new(group, request, delayed, now_ms)
        elif member_id in group.pending and request.instance_id is None:
            self._drop_pending(group, member_id)
            self._add(group, member_id, request, delayed, now_ms)
        elif error := group.identify(member_id, request.instance_id):
            self._pending.respond(delayed, JoinResponse(error, member_id))
        else:
            self._join_again(group, group.members[member_id], request, delayed, now_ms)

    def _join_as_new(self, group: Group, request: JoinRequest, delayed: DelayedRequest[JoinReply], now_ms: int) -> None:
        name = request.client_id if request.instance_id is None else request.instance_id
        member_id = f"{name}-{self._new_id()}"
        if request.instance_id is not None and request.instance_id in group.static:
            self._replace(group, group.static[request.instance_id], member_id, request, delayed, now_ms)
        elif request.instance_id is not None or not request.member_id_required:
            self._add(group, member_id, request, delayed, now_ms)
        else:
            if len(group.pending) >= _MAX_PENDING:
                self._drop_pending(group, next(iter(group.pending)))
            expiry = Timer(partial(self._expire_pending, group, member_id))
            group.add_pending(member_id, expiry)
            self._timers.arm(expiry, now_ms + request.session_timeout_ms)
            self._pending.respond(delayed, JoinResponse(ErrorCode.MEMBER_ID_REQUIRED, member_id))

    def _add(
        self, group: Group, member_id: str, request: JoinRequest, delayed: DelayedRequest[JoinReply], now_ms: int
    ) -> None:
        member = Member(group, member_id, request, self._expire_member)
        if not group.members:
            group.protocol_type = request.protocol_type
        group.add(member)
        group.grown = True
        self._pending.delay_join(member, delayed)
        self._heard_of(member, now_ms)
        self._rebalance(group, now_ms, f"{member_id!r} is new")

    def _join_again(
        self, group: Group, member: Member, request: JoinRequest, delayed: DelayedRequest[JoinReply], now_ms: int
    ) -> None:
        is_leader = member is group.leader
        same = member.says_the_same(request)
        if same and (group.state is State.COMPLETING or (group.state is State.STABLE and not is_leader)):
            # It may have missed the answer. A leader of a stable group wants a rebalance: topics may have changed.
            self._pending.respond(delayed, group.joined(member, to_leader=is_leader))
            self._heard_of(member, now_ms)
        else:
            group.update(member, request)
            self._pending.delay_join(member, delayed)
            self._heard_of(member, now_ms)
            self._rebalance(group, now_ms, f"{member.id!r} joins again")

    def _replace(
        self,
        group: Group,
        member: Member,
        member_id: str,
        request: JoinRequest,
        delayed: DelayedRequest[JoinReply],
        now_ms: int,
    ) -> None:
        """Replace a static member that has come back without the id it had."""
        old_id = member.id
        self._pending.complete_join(member, JoinResponse(ErrorCode.FENCED_INSTANCE_ID, old_id))
        self._pending.complete_sync(member, SyncResponse(ErrorCode.FENCED_INSTANCE_ID))
        self._pending.release_held(member, ErrorCode.FENCED_INSTANCE_ID)
        group.rename(member, member_id)
        group.update(member, request)
        member.client_id, member.client_host = request.client_id, request.client_host
        if group.state is State.STABLE and group.chosen_protocol() == group.protocol:
            # It gets what it had. If it became the leader, it would assign in vain: name the leader that was
            # before, or say so.
            is_leader = member is group.leader
            skip = is_leader and request.can_skip_assignment
            response = group.joined(member, to_leader=skip)
            if skip:
                response = response._replace(skip_assignment=True)
            elif is_leader:
                response = response._replace(leader=old_id)
            number = self._begin_to_persist(group)
            if number is None:
                self._pending.respond(delayed, response)
            else:
                self._pending.hold(member, HeldResponse(delayed, response, number))
            self._heard_of(member, now_ms)
        else:
            self._pending.delay_join(member, delayed)
            self._heard_of(member, now_ms)
            self._rebalance(group, now_ms, f"{request.instance_id!r} came back as {member_id!r}")

    # ---- rebalancing

    def _rebalance(
        self, group: Group, now_ms: int, why: str, *, to_syncs: ErrorCode = ErrorCode.REBALANCE_IN_PROGRESS
    ) -> None:
        """Begin a rebalance, unless one has begun."""
        if group.state in (State.PREPARING, State.DEAD):
            return
        _log.info(
            "Preparing to rebalance group %s in state %s with old generation %d (reason: %s)",
            group.id,
            group.state,
            group.generation,
            why,
        )
        if group.state is State.COMPLETING:
            for member in group.members.values():
                if self._pending.complete_sync(member, SyncResponse(to_syncs)):
                    self._heard_of(member, now_ms)
        for member in group.members.values():
            self._pending.release_held(member, ErrorCode.REBALANCE_IN_PROGRESS)
        group.persisting = None
        group.awaiting_sync.clear()
        was_empty = group.state is State.EMPTY
        group.state = State.PREPARING
        if was_empty:  # others may be about to come: wait for them
            delay_ms = self.config.initial_rebalance_delay_ms
            group.extension_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            group.grown = False
        else:
            delay_ms = group.rebalance_timeout_ms
            group.extension_ms = None
        self._timers.arm(group.timer, now_ms + delay_ms)
        if was_empty and delay_ms == 0:
            self._complete(group, now_ms)
        else:
            self._try_complete(group, now_ms)

    def _try_complete(self, group: Group, now_ms: int) -> None:
        if group.state is State.PREPARING and group.extension_ms is None and group.all_joined:
            self._complete(group, now_ms)

    def _complete(self, group: Group, now_ms: int) -> None:
        """End the first half: all who are in time are the next generation, and static members who are not."""
        for member in list(group.members.values()):
            if member.join is None and member.instance_id is None:
                _log.info(
                    "Member %s of group %s did not rejoin within the rebalance timeout; removing it",
                    member.id,
                    group.id,
                )
                self._remove(member)
        if group.members and not group.elect_joined():
            self._timers.arm(group.timer, now_ms + max(group.rebalance_timeout_ms, 1))  # or until their sessions end
            return
        group.begin_generation()
        self._timers.cancel(group.timer)
        _log.info("Stabilized group %s generation %d with %d members", group.id, group.generation, len(group.members))
        for member in group.members.values():
            member.is_new = False
            member.id_known |= member.join is not None and member.join.reply is not None
            self._pending.complete_join(member, group.joined(member, to_leader=member is group.leader))
            group.awaiting_sync.add(member)
            self._heard_of(member, now_ms)
        if group.members:
            self._timers.arm(group.timer, now_ms + group.rebalance_timeout_ms)
        elif group.is_persisted:
            self._begin_to_persist(group)

    def _on_group_timer(self, group: Group, now_ms: int) -> None:
        if group.state is State.PREPARING:
            if group.extension_ms and group.grown:
                delay_ms = min(self.config.initial_rebalance_delay_ms, group.extension_ms) or group.extension_ms
                group.extension_ms -= delay_ms
                group.grown = False
                self._timers.arm(group.timer, now_ms + delay_ms)
            else:
                self._complete(group, now_ms)
        elif group.awaiting_sync:
            late = list(group.awaiting_sync)
            for member in late:
                self._remove(member)
            self._rebalance(group, now_ms, f"{[member.id for member in late]} did not sync in time")

    # ---- syncing

    def sync(self, request: SyncRequest, reply: SyncReply, *, now_ms: int, connection: object = None) -> None:
        """Handle SyncGroup."""
        delayed = DelayedRequest(reply, connection)
        group = self._groups.get(request.group_id)
        error = self._refused(request.group_id)
        if not error:
            error = ErrorCode.UNKNOWN_MEMBER_ID if group is None else group.check_sync(request, self.config)
        if error or group is None:
            self._pending.respond(delayed, SyncResponse(error))
        else:
            self._sync(group, group.members[request.member_id], request, delayed, now_ms)
        self._pending.deliver()

    def _sync(
        self, group: Group, member: Member, request: SyncRequest, delayed: DelayedRequest[SyncReply], now_ms: int
    ) -> None:
        group.awaiting_sync.discard(member)
        self._pending.delay_sync(member, delayed)
        self._heard_of(member, now_ms)
        if group.state is State.STABLE:
            self._send_assignments((member,), now_ms)
        elif member is group.leader and group.persisting is None:
            group.assign(request.assignments)
            group.persisting = self._begin_to_persist(group)
            if group.persisting is None:
                self._become_stable(group, now_ms)
        if not group.awaiting_sync:
            self._timers.cancel(group.timer)

    def _become_stable(self, group: Group, now_ms: int) -> None:
        group.state = State.STABLE
        self._send_assignments(group.members.values(), now_ms)

    def _send_assignments(self, members: Iterable[Member], now_ms: int) -> None:
        """Send the assignments to the members that wait for them."""
        for each in members:
            group = each.group
            response = SyncResponse(ErrorCode.NONE, group.protocol_type, group.protocol, each.assignment)
            if self._pending.complete_sync(each, response):
                self._heard_of(each, now_ms)

    # ---- keeping

    def _begin_to_persist(self, group: Group) -> int | None:
        """Return the number that `persisted` will be called with; None: nothing is stored."""
        if self._persist is None:
            return None
        self._persist_count += 1
        group.is_persisted = bool(group.members)
        self._pending.post(partial(self._persist, group.image(), self._persist_count))
        return self._persist_count

    def persisted(self, group_id: str, number: int, *, ok: bool, now_ms: int) -> None:
        """Continue after `persist`: the image is stored, or (not `ok`) cannot be."""
        group = self._groups.get(group_id)
        if group is None:
            return
        error = ErrorCode.NONE if ok else ErrorCode.COORDINATOR_NOT_AVAILABLE
        for member in group.members.values():
            if member.held is not None and member.held.number == number:
                self._pending.release_held(member, error)
                self._heard_of(member, now_ms)
        if group.persisting == number:  # else the group has gone on since
            group.persisting = None
            if ok:
                self._become_stable(group, now_ms)
            else:
                self._rebalance(group, now_ms, "what its leader assigned could not be kept", to_syncs=error)
        self._pending.deliver()

    def restore(self, image: GroupImage, *, now_ms: int) -> None:
        """Restore a group of an earlier server: before a client joins it, after `begin_above`. Sessions start again."""
        group = self._groups.restore(image)
        for member in group.members.values():
            self._heard_of(member, now_ms)

    # ---- living and leaving

    def heartbeat(
        self, group_id: str, member_id: str, generation: int, instance_id: str | None = None, *, now_ms: int
    ) -> ErrorCode:
        """Handle Heartbeat. REBALANCE_IN_PROGRESS asks the member to join again."""
        if error := self._refused(group_id):
            return error
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if error := group.identify(member_id, instance_id):
            return error
        if generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        self._heard_of(group.members[member_id], now_ms)
        return ErrorCode.REBALANCE_IN_PROGRESS if group.state is State.PREPARING else ErrorCode.NONE

    def leave(self, group_id: str, leaving: Iterable[LeavingMember], *, now_ms: int) -> LeaveResponse:
        """Handle LeaveGroup."""
        if error := self._refused(group_id):
            return LeaveResponse(error)
        group = self._groups.get(group_id)
        left = tuple(LeftMember(*each, self._leave(group, *each, now_ms)) for each in leaving)
        if group is not None:
            self._groups.forget_empty(group)
        self._pending.deliver()
        return LeaveResponse(ErrorCode.NONE, left)

    def _leave(self, group: Group | None, member_id: str, instance_id: str | None, now_ms: int) -> ErrorCode:
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if not member_id and instance_id in group.static:  # removed by another client, which knows its instance id only
            member_id = group.static[instance_id].id
        if member_id in group.pending:
            self._drop_pending(group, member_id)
            self._try_complete(group, now_ms)
            return ErrorCode.NONE
        error = group.identify(member_id, instance_id)
        if not error:
            self._depart(group.members[member_id], now_ms, "left")
        return error

    def disconnected(self, connection: object, *, now_ms: int) -> None:
        """Forget a closed connection. Its members live on for their session timeout: they may come back on another."""
        for member in self._pending.disconnect(connection):
            if member.id_known or member.instance_id is not None:
                self._heard_of(member, now_ms)
            else:
                self._depart(member, now_ms, "went before it was told its id")
        self._pending.deliver()

    def _heard_of(self, member: Member, now_ms: int) -> None:
        """Restart a member's session; it is suspended while a request of the member is delayed."""
        joins = member.join is not None and member.join.reply is not None
        if joins and member.is_new:
            self._timers.arm(member.session, now_ms + _NEW_MEMBER_JOIN_TIMEOUT_MS)
        elif joins or member.sync is not None:
            self._timers.cancel(member.session)
        else:
            self._timers.arm(member.session, now_ms + member.session_timeout_ms)

    def _expire_member(self, member: Member, now_ms: int) -> None:
        self._depart(member, now_ms, "was not heard of for too long")

    def _expire_pending(self, group: Group, member_id: str, now_ms: int) -> None:
        group.pop_pending(member_id)
        self._try_complete(group, now_ms)
        self._groups.forget_empty(group)

    def _drop_pending(self, group: Group, member_id: str) -> None:
        expiry = group.pop_pending(member_id)
        if expiry is not None:
            self._timers.cancel(expiry)

    def _depart(self, member: Member, now_ms: int, why: str) -> None:
        group = member.group
        self._remove(member)
        if group.state is State.PREPARING:
            self._try_complete(group, now_ms)
        else:
            self._rebalance(group, now_ms, f"{member.id!r} {why}")

    def _remove(self, member: Member) -> None:
        group = member.group
        self._pending.complete_join(member, JoinResponse(ErrorCode.UNKNOWN_MEMBER_ID, ""))
        self._pending.complete_sync(member, SyncResponse(ErrorCode.UNKNOWN_MEMBER_ID))
        self._pending.release_held(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self._timers.cancel(member.session)
        group.remove(member)

    # ---- offsets

    def check_commit(
        self,
        group_id: str,
        member_id: str,
        generation: int,
        instance_id: str | None = None,
        *,
        now_ms: int,
        transactional: bool = False,
    ) -> ErrorCode:
        """Return whether this member may commit offsets of the group now, for OffsetCommit and TxnOffsetCommit.

        Generation -1 comes from a client that is not a member: a consumer that assigns itself, or a tool. It may commit
        as long as there are no members. In a transaction it always may, if it names no member: old producers do not
        know. GROUP_ID_NOT_FOUND: it names a generation of a group that is not here; the store may have it.
        """
        if error := self._refused(group_id):
            return error
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.NONE if generation < 0 else ErrorCode.GROUP_ID_NOT_FOUND
        if generation < 0 and group.state is State.EMPTY:
            return ErrorCode.NONE
        if generation < 0 and not member_id and instance_id is None:
            return ErrorCode.NONE if transactional else ErrorCode.UNKNOWN_MEMBER_ID
        if error := group.identify(member_id, instance_id):
            return error
        if generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if transactional:
            return ErrorCode.NONE
        self._heard_of(group.members[member_id], now_ms)
        # While others join it may still commit what it has read; once the next generation has begun it may not.
        return ErrorCode.REBALANCE_IN_PROGRESS if group.state is State.COMPLETING else ErrorCode.NONE

    def check_offset_delete(self, group_id: str, topics: Collection[str]) -> tuple[ErrorCode, frozenset[str]]:
        """Return an error, or the topics that are rejected with GROUP_SUBSCRIBED_TO_TOPIC, for OffsetDelete."""
        if error := self._refused(group_id):
            return error, frozenset()
        group = self._groups.get(group_id)
        return (ErrorCode.NONE, frozenset()) if group is None else group.check_offset_delete(topics)

    # ---- groups, for people

    def list_groups(self, states: Collection[str] = (), types: Collection[str] = ()) -> list[GroupListing]:
        """Return the groups that are here, for ListGroups. One that is only in the store is Empty."""
        wanted = {state.lower() for state in states}
        if types and "classic" not in {each.lower() for each in types}:
            return []
        listings = [group.listing() for group in self._groups]
        return [each for each in listings if not wanted or each.state.lower() in wanted]

    def describe(self, group_id: str) -> GroupDescription | None:
        """Describe a group, for DescribeGroups; None if it is not here: then it is Empty in the store, or Dead."""
        group = self._groups.get(group_id)
        return group.description() if group is not None else None

    def delete(self, group_id: str) -> ErrorCode:
        """Handle DeleteGroups, before the store does: no client can join until `deleted`. Return NON_EMPTY_GROUP if it
        has members, GROUP_ID_NOT_FOUND if it is being deleted already.
        """
        group = self._groups.get(group_id)
        if not group_id or (group is not None and group.state is State.DEAD):
            return ErrorCode.GROUP_ID_NOT_FOUND
        if error := self._refused(group_id):
            return error
        if group is None:
            group = self._groups.create(group_id)
        if group.state is not State.EMPTY:
            return ErrorCode.NON_EMPTY_GROUP
        for member_id in list(group.pending):
            self._drop_pending(group, member_id)
        group.state = State.DEAD
        return ErrorCode.NONE

    def deleted(self, group_id: str) -> None:
        """Continue after the store has deleted the group, or could not: clients may join it again."""
        group = self._groups.get(group_id)
        if group is not None and group.state is State.DEAD:
            self._groups.retire(group)

    def close(self) -> None:
        """Stop: respond NOT_COORDINATOR to what is delayed, COORDINATOR_NOT_AVAILABLE to what comes."""
        self._closed = True
        for group in self._groups:
            for member in group.members.values():
                self._pending.complete_join(member, JoinResponse(ErrorCode.NOT_COORDINATOR, member.id))
                self._pending.complete_sync(member, SyncResponse(ErrorCode.NOT_COORDINATOR))
                self._pending.release_held(member, ErrorCode.NOT_COORDINATOR)
        self._groups.clear()
        self._timers = Timers()
        self._pending.deliver()

    def _refused(self, group_id: str) -> ErrorCode:
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        group = self._groups.get(group_id)
        if self._closed or (group is not None and group.state is State.DEAD):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE
