"""A classic consumer group: its members, what they agree on, and which of their requests wait.

    Empty ──first join──▶ PreparingRebalance ──all joined, or time is up──▶ CompletingRebalance ──leader's sync─▶ Stable
      ▲                    │        ▲                                              │                              │
      └── no member left ──┘        └── a member joins, leaves, changes or is late ─┴──────────────────────────────┘
    Dead: being deleted; nothing is possible until it is gone
    Stable comes when what the leader said is kept (group_image.py), if it is stored at all; until then, no member gets
    it

The group keeps its books; when to do what is the coordinator's (group_coordinator.py).

Promises
  GRS1  The generation grows each time a rebalance ends, by one unless a server began since, and never shrinks.
  GRS2  The members of a group have a protocol in common: a client that shares none is rejected.
  GRS3  While there are members, one of them is the leader.
  GRS4  An instance id belongs to one member, the last that came with it.
  GRS5  A JoinGroup waits only in PreparingRebalance, a SyncGroup only in CompletingRebalance; the response to a
        JoinGroup is held back in Stable, until the id in it is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import StrEnum
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.group_memory import GROUP_BYTES, MEMBER_BYTES, GroupMemory
from klamm.kafka.group_values import (
    GroupConfig,
    GroupDescription,
    GroupListing,
    JoinedMember,
    JoinReply,
    JoinRequest,
    JoinResponse,
    MemberDescription,
    SyncReply,
    SyncRequest,
)
from klamm.kafka.timers import Timer
from klamm.store.consumer_protocol import subscribed_topics
from klamm.store.group_image import GroupImage, MemberImage

__all__ = ["DelayedRequest", "Group", "HeldResponse", "Member", "State"]

Reply = TypeVar("Reply")


class State(StrEnum):
    """Spelled as clients see it."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class DelayedRequest(NamedTuple, Generic[Reply]):
    """A request that waits for its response."""

    reply: Reply | None  # None: its connection is gone, but what it asked for still counts
    connection: object = None


class HeldResponse(NamedTuple):
    """The response to a JoinGroup, which is given when what it says is kept."""

    delayed: DelayedRequest[JoinReply]
    response: JoinResponse
    number: int  # of the request to keep it


class Member:
    """One member. Its identity is the object: a static member changes its id when it comes back."""

    __slots__ = (
        "assignment",
        "charged",
        "client_host",
        "client_id",
        "group",
        "held",
        "id",
        "id_known",
        "instance_id",
        "is_new",
        "join",
        "protocols",
        "rebalance_timeout_ms",
        "session",
        "session_timeout_ms",
        "size",
        "sync",
    )

    def __init__(
        self, group: Group, member_id: str, request: JoinRequest, expire: Callable[[Member, int], None]
    ) -> None:
        self.group = group
        self.id = member_id
        self.instance_id = request.instance_id
        self.client_id = request.client_id
        self.client_host = request.client_host
        self.protocols: tuple[tuple[str, bytes], ...] = ()
        self.session_timeout_ms = self.rebalance_timeout_ms = self.size = 0
        self.charged = 0
        """What the group has charged for it to the memory of all groups; assignments aside."""
        self.take(request)
        self.session = Timer(partial(expire, self))
        """Fires when it was not heard of for too long."""
        self.assignment = b""
        self.join: DelayedRequest[JoinReply] | None = None
        self.sync: DelayedRequest[SyncReply] | None = None
        self.held: HeldResponse | None = None
        self.is_new = True
        """It was in no generation yet."""
        self.id_known = bool(request.member_id)
        """The client knows its id; if not, no one can ever use it but as the response to its JoinGroup."""

    def take(self, request: JoinRequest) -> None:
        """Take the fields of the request. Bytes are copied out of buffers that may be used again."""
        self.protocols = _copied(request.protocols)
        self.size = request.size
        self.session_timeout_ms = request.session_timeout_ms
        timeout_ms = request.rebalance_timeout_ms
        self.rebalance_timeout_ms = timeout_ms if timeout_ms >= 0 else request.session_timeout_ms

    def says_the_same(self, request: JoinRequest) -> bool:
        return self.protocols == _copied(request.protocols)

    def image(self) -> MemberImage:
        return MemberImage(
            self.id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.session_timeout_ms,
            self.rebalance_timeout_ms,
            self.protocols,
            self.assignment,
        )

    def metadata(self, protocol: str | None) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")


def _pending_bytes(member_id: str) -> int:
    return MEMBER_BYTES // 4 + len(member_id)


def _copied(protocols: Iterable[tuple[str, bytes]]) -> tuple[tuple[str, bytes], ...]:
    return tuple((name, bytes(metadata)) for name, metadata in protocols)


class Group:
    """One group. A JoinGroup is delayed and answered through `delay_join` and `take_join`, for they are counted."""

    def __init__(
        self, group_id: str, generation: int, time_is_up: Callable[[Group, int], None], memory: GroupMemory
    ) -> None:
        self.id = group_id
        self._memory = memory
        memory.used += GROUP_BYTES + len(group_id)
        self.generation = generation
        self.born_at = generation
        """The generation it began with: it was never used if that is still its generation."""
        self.state = State.EMPTY
        self.protocol_type = ""
        self.protocol: str | None = None
        self.members: dict[str, Member] = {}
        self.static: dict[str, Member] = {}
        """By instance id."""
        self.pending: dict[str, Timer] = {}
        """Ids that were given out with MEMBER_ID_REQUIRED, and when they expire. A rebalance waits for them, too."""
        self.leader: Member | None = None
        self.timer = Timer(partial(time_is_up, self))
        """In PreparingRebalance, how long members may take to join; afterwards, how long to sync."""
        self.awaiting_sync: set[Member] = set()
        """Who did not send its SyncGroup of this generation yet."""
        self.extension_ms: int | None = None
        """While the first rebalance of an empty group is delayed: by how much more it may be, if `grown`."""
        self.grown = False
        """A member joined since the delay began."""
        self.persisting: int | None = None
        """The number of the request to keep this generation, which everybody waits for."""
        self.is_persisted = False
        """There may be an image of it that is to be removed when the group is empty."""
        self.above = 0
        """Its next generations are higher than this, too."""
        self._size = 0  # of all members: see JoinRequest.size
        self._joining = 0
        self._supporters: Counter[str] = Counter()

    @classmethod
    def restored(
        cls,
        image: GroupImage,
        above: int,
        time_is_up: Callable[[Group, int], None],
        expire: Callable[[Member, int], None],
        memory: GroupMemory,
    ) -> Group:
        """Return the group as it was in the image: stable. Generations up to `above` may have been given out since."""
        group = cls(image.group_id, image.generation, time_is_up, memory)
        group.state, group.is_persisted, group.above = State.STABLE, True, above
        group.protocol_type, group.protocol = image.protocol_type, image.protocol
        for each in image.members:
            request = JoinRequest(
                image.group_id,
                each.member_id,
                image.protocol_type,
                each.protocols,
                each.session_timeout_ms,
                each.rebalance_timeout_ms,
                each.instance_id,
                each.client_id,
                each.client_host,
            )
            member = Member(group, each.member_id, request, expire)
            member.assignment, member.is_new = each.assignment, False
            group.add(member)
        group.leader = group.members[image.leader]
        return group

    def close(self) -> None:
        """Close the group: it is removed."""
        assert not self.members
        for member_id in list(self.pending):
            self.pop_pending(member_id)
        self._memory.used -= GROUP_BYTES + len(self.id)

    # ---- members

    def add(self, member: Member) -> None:
        if not self.members:
            assert not self._supporters
            assert self._joining == 0
            assert self.leader is None
        self.members[member.id] = member
        if member.instance_id is not None:
            self.static[member.instance_id] = member
        self._count(member)
        self._memory.used += len(member.assignment)
        if self.leader is None:
            self.leader = member

    def remove(self, member: Member) -> None:
        """Remove a member whose requests the caller has responded to."""
        assert member.join is None
        assert member.sync is None
        assert member.held is None
        del self.members[member.id]
        if member.instance_id is not None:
            del self.static[member.instance_id]
        self._discount(member)
        self._memory.used -= len(member.assignment)
        self.awaiting_sync.discard(member)
        if self.leader is member:
            self.leader = next(iter(self.members.values()), None)

    def rename(self, member: Member, member_id: str) -> None:
        """Assign another id to a static member that has come back; its old one is fenced."""
        del self.members[member.id]
        member.id = member_id
        self.members[member_id] = member

    def update(self, member: Member, request: JoinRequest) -> None:
        self._discount(member)
        member.take(request)
        self._count(member)

    def assign(self, assignments: Mapping[str, bytes]) -> None:
        """Give each member what the leader assigned to it."""
        for member in self.members.values():
            self._memory.used -= len(member.assignment)
            member.assignment = bytes(assignments.get(member.id, b""))
            self._memory.used += len(member.assignment)

    def add_pending(self, member_id: str, expiry: Timer) -> None:
        self.pending[member_id] = expiry
        self._memory.used += _pending_bytes(member_id)

    def pop_pending(self, member_id: str) -> Timer | None:
        expiry = self.pending.pop(member_id, None)
        if expiry is not None:
            self._memory.used -= _pending_bytes(member_id)
        return expiry

    def _count(self, member: Member) -> None:
        member.charged = MEMBER_BYTES + member.size + len(member.id) + len(member.client_id)
        self._memory.used += member.charged
        self._size += member.size
        self._supporters.update({name for name, _ in member.protocols})

    def _discount(self, member: Member) -> None:
        self._memory.used -= member.charged
        self._size -= member.size
        self._supporters.subtract({name for name, _ in member.protocols})
        self._supporters += Counter()  # without those that no member supports

    def delay_join(self, member: Member, delayed: DelayedRequest[JoinReply]) -> None:
        assert self.state is State.PREPARING or member.join is None
        self._joining += member.join is None
        member.join = delayed

    def take_join(self, member: Member) -> DelayedRequest[JoinReply] | None:
        delayed, member.join = member.join, None
        self._joining -= delayed is not None
        return delayed

    # ---- questions

    @property
    def all_joined(self) -> bool:
        return self._joining == len(self.members) and not self.pending

    @property
    def is_empty(self) -> bool:
        """Nothing is lost when it is forgotten."""
        return self.state is State.EMPTY and not self.pending and self.generation == self.born_at

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def find_full(self, request: JoinRequest, config: GroupConfig) -> str:
        """Return the setting that keeps the member from joining; "" if none does."""
        member = self.members.get(request.member_id) or self.static.get(request.instance_id or "")
        size, charged = (0, 0) if member is None else (member.size, member.charged)
        if self._size - size + request.size > config.max_bytes:
            return "group.max.bytes"
        new_bytes = MEMBER_BYTES + request.size + 2 * len(request.client_id) + len(request.instance_id or "")
        if not self._memory.has_space(new_bytes - charged, config.max_total_bytes):
            return "groups.max.bytes"
        return "" if self._has_capacity(request, config.max_size) else "group.max.size"

    def _has_capacity(self, request: JoinRequest, max_size: int) -> bool:
        """Return whether there are fewer members than may be. While members rejoin, those that have joined count: the
        last ones stay outside.
        """
        member = self.members.get(request.member_id)
        if self.state in (State.EMPTY, State.DEAD):
            return True
        if not request.member_id and request.instance_id in self.static:
            return True  # it takes its own place
        if self.state is State.PREPARING:
            return (member is not None and member.join is not None) or self._joining < max_size
        return member is not None or len(self.members) < max_size

    def supports(self, request: JoinRequest) -> bool:
        """Return whether a member supports a protocol that every member supports."""
        if not self.members:
            return bool(request.protocol_type and request.protocols)
        return request.protocol_type == self.protocol_type and any(
            self._supporters[name] == len(self.members) for name, _ in request.protocols
        )

    def identify(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Return NONE for a member, FENCED_INSTANCE_ID if its instance id has another one, else UNKNOWN_MEMBER_ID."""
        if instance_id is not None:
            member = self.static.get(instance_id)
            if member is not None and member.id != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
            if member is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def check_sync(self, request: SyncRequest, config: GroupConfig) -> ErrorCode:
        """Return whether this SyncGroup is of the current generation, and its assignments fit."""
        assigned = sum(len(member.assignment) for member in self.members.values()) if request.size else 0
        has_space = self._memory.has_space(request.size - assigned, config.max_total_bytes)
        if request.size > config.max_bytes or not has_space:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        if error := self.identify(request.member_id, request.instance_id):
            return error
        if request.generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if request.protocol_type is not None and request.protocol_type != self.protocol_type:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if request.protocol is not None and request.protocol != self.protocol:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.REBALANCE_IN_PROGRESS if self.state is State.PREPARING else ErrorCode.NONE

    def check_offset_delete(self, topics: Collection[str]) -> tuple[ErrorCode, frozenset[str]]:
        """Return an error, or those of the topics that members consume."""
        if self.state is State.EMPTY:
            return ErrorCode.NONE, frozenset()
        if self.protocol_type != "consumer":
            return ErrorCode.NON_EMPTY_GROUP, frozenset()
        subscribed = self.subscribed()
        return ErrorCode.NONE, frozenset(topics) if subscribed is None else subscribed.intersection(topics)

    def chosen_protocol(self) -> str:
        """Return the protocol that most members prefer, of those that all support; in a tie, the leader's favourite."""
        assert self.leader is not None
        common = {name for name, count in self._supporters.items() if count == len(self.members)}
        assert common
        votes = Counter(
            next(name for name, _ in member.protocols if name in common) for member in self.members.values()
        )
        return max((name for name, _ in self.leader.protocols if name in common), key=lambda name: votes[name])

    # ---- a rebalance ends

    def elect_joined(self) -> bool:
        """Choose a leader that has joined; return False if no member has."""
        if self.leader is None or self.leader.join is None:
            joined = next((member for member in self.members.values() if member.join is not None), None)
            if joined is None:
                return False
            self.leader = joined
        return True

    def begin_generation(self) -> None:
        self.generation = max(self.generation, self.above) + 1
        self.extension_ms = None
        if self.members:
            self.protocol = self.chosen_protocol()
            self.state = State.COMPLETING
        else:
            self.protocol = None
            self.state = State.EMPTY

    # ---- what is told of it

    def joined(self, member: Member, *, to_leader: bool) -> JoinResponse:
        """Return the response to a JoinGroup of this generation."""
        assert self.leader is not None
        members: tuple[JoinedMember, ...] = ()
        if to_leader:
            members = tuple(
                JoinedMember(each.id, each.instance_id, each.metadata(self.protocol)) for each in self.members.values()
            )
        return JoinResponse(
            ErrorCode.NONE,
            member.id,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader.id,
            members=members,
        )

    def image(self) -> GroupImage:
        leader = "" if self.leader is None else self.leader.id
        members = tuple(member.image() for member in self.members.values())
        return GroupImage(self.id, self.generation, self.protocol_type, self.protocol or "", leader, members)

    def listing(self) -> GroupListing:
        return GroupListing(self.id, self.protocol_type, self.state.value)

    def description(self) -> GroupDescription:
        stable = self.state is State.STABLE
        members = tuple(
            MemberDescription(
                member.id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.metadata(self.protocol) if stable else b"",
                member.assignment if stable else b"",
            )
            for member in self.members.values()
        )
        protocol = self.protocol if stable and self.protocol is not None else ""
        return GroupDescription(self.id, self.state.value, self.protocol_type, protocol, members)

    def subscribed(self) -> frozenset[str] | None:
        """Return the topics that the members consume; None if unknown."""
        topics: set[str] = set()
        if self.members and self.protocol_type != "consumer":
            return None
        for member in self.members.values():
            found = subscribed_topics(member.metadata(self.protocol) or member.protocols[0][1])
            if found is None:
                return None
            topics |= found
        return frozenset(topics)
