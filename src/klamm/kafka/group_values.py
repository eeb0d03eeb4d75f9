"""Requests and responses of the group coordinator, as values, without the bytes they came in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from klamm.kafka.error_codes import ErrorCode

__all__ = [
    "GroupConfig",
    "GroupDescription",
    "GroupListing",
    "JoinReply",
    "JoinRequest",
    "JoinResponse",
    "JoinedMember",
    "LeaveResponse",
    "LeavingMember",
    "LeftMember",
    "MemberDescription",
    "SyncReply",
    "SyncRequest",
    "SyncResponse",
]


class GroupConfig(NamedTuple):
    """Kafka's settings of that name, with Kafka's defaults (but for the last four, which Kafka does not limit)."""

    min_session_timeout_ms: int = 6_000  # group.min.session.timeout.ms
    max_session_timeout_ms: int = 1_800_000  # group.max.session.timeout.ms
    initial_rebalance_delay_ms: int = 3_000  # group.initial.rebalance.delay.ms
    max_size: int = 1_000  # group.max.size
    max_bytes: int = 4 * 1024 * 1024  # group.max.bytes
    max_groups: int = 10_000  # max.groups
    max_total_bytes: int = 256 * 1024 * 1024  # groups.max.bytes

    def allows_session(self, timeout_ms: int) -> bool:
        return self.min_session_timeout_ms <= timeout_ms <= self.max_session_timeout_ms

    def allows_group(self, count: int) -> bool:
        """Return whether there may be one more than `count` groups."""
        return count < self.max_groups


class JoinRequest(NamedTuple):
    group_id: str
    member_id: str  # "": it has none yet
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]  # name and metadata, the one it likes best first
    session_timeout_ms: int
    rebalance_timeout_ms: int = -1  # -1: as the session's (version 0)
    instance_id: str | None = None  # group.instance.id: a static member
    client_id: str = ""
    client_host: str = ""
    member_id_required: bool = True  # since version 4: a new member is told its id before it joins
    can_skip_assignment: bool = False  # since version 9: a leader can be told not to assign

    @property
    def size(self) -> int:
        """How many bytes the group holds for what the member says."""
        return sum(len(name) + len(metadata) for name, metadata in self.protocols) + len(self.instance_id or "")


class JoinedMember(NamedTuple):
    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinResponse(NamedTuple):
    error: ErrorCode
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()  # for the leader alone
    full: str = ""  # the setting that is reached, if that is why


class SyncRequest(NamedTuple):
    group_id: str
    member_id: str
    generation: int
    assignments: Mapping[str, bytes] = {}  # by member id; from the leader alone
    instance_id: str | None = None
    protocol_type: str | None = None  # None: not said (before version 5)
    protocol: str | None = None

    @property
    def size(self) -> int:
        """How many bytes the group holds for the assignments."""
        return sum(map(len, self.assignments.values()))


class SyncResponse(NamedTuple):
    error: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class LeavingMember(NamedTuple):
    member_id: str  # "": the member with the instance id
    instance_id: str | None = None


class LeftMember(NamedTuple):
    member_id: str
    instance_id: str | None
    error: ErrorCode


class LeaveResponse(NamedTuple):
    error: ErrorCode
    members: tuple[LeftMember, ...] = ()  # in the order of the request; before version 3, its one error is the answer's


class GroupListing(NamedTuple):
    group_id: str
    protocol_type: str
    state: str
    type: str = "classic"


class MemberDescription(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class GroupDescription(NamedTuple):
    group_id: str
    state: str
    protocol_type: str
    protocol: str  # "" unless the group is stable, and so are its members' metadata and assignments
    members: tuple[MemberDescription, ...]


JoinReply = Callable[[JoinResponse], None]
SyncReply = Callable[[SyncResponse], None]
