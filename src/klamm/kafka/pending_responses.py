"""Responses on their way, and the requests that wait for one, by member and by connection."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.group_state import DelayedRequest, HeldResponse, Member
from klamm.kafka.group_values import JoinReply, JoinResponse, SyncReply, SyncResponse

__all__ = ["PendingResponses"]

Response = TypeVar("Response")


class PendingResponses:
    """Responses are held until `deliver`, so that no callback meets a machine at work."""

    def __init__(self) -> None:
        self._responses: deque[Callable[[], None]] = deque()
        self._members: dict[object, set[Member]] = {}  # by connection: whose requests are delayed there

    def __len__(self) -> int:
        """Return how many connections have a delayed request."""
        return len(self._members)

    def respond(self, delayed: DelayedRequest[Callable[[Response], None]] | None, response: Response) -> None:
        if delayed is not None and delayed.reply is not None:
            self._responses.append(partial(delayed.reply, response))

    def post(self, callback: Callable[[], None]) -> None:
        """Queue something else to be called by `deliver`, in the order of all."""
        self._responses.append(callback)

    def deliver(self) -> None:
        while self._responses:
            self._responses.popleft()()

    def delay_join(self, member: Member, delayed: DelayedRequest[JoinReply]) -> None:
        """Delay a JoinGroup; an earlier one of the member is overtaken."""
        earlier = member.join
        member.group.delay_join(member, delayed)
        self._add(member, delayed)
        self._forget(member, earlier)
        self.respond(earlier, JoinResponse(ErrorCode.REBALANCE_IN_PROGRESS, member.id))

    def delay_sync(self, member: Member, delayed: DelayedRequest[SyncReply]) -> None:
        """Delay a SyncGroup; an earlier one of the member is overtaken."""
        self.complete_sync(member, SyncResponse(ErrorCode.REBALANCE_IN_PROGRESS))
        member.sync = delayed
        self._add(member, delayed)

    def complete_join(self, member: Member, response: JoinResponse) -> None:
        """Complete the member's JoinGroup, if it has one delayed."""
        delayed = member.group.take_join(member)
        self._forget(member, delayed)
        self.respond(delayed, response)

    def complete_sync(self, member: Member, response: SyncResponse) -> bool:
        """Complete the member's SyncGroup, if it has one delayed. Return whether it had."""
        delayed, member.sync = member.sync, None
        self._forget(member, delayed)
        self.respond(delayed, response)
        return delayed is not None

    def hold(self, member: Member, held: HeldResponse) -> None:
        assert member.held is None
        member.held = held
        self._add(member, held.delayed)

    def release_held(self, member: Member, error: ErrorCode = ErrorCode.NONE) -> bool:
        """Release what is held back for the member, or respond with an error instead. Return whether there was
        something.
        """
        held, member.held = member.held, None
        if held is not None:
            self._forget(member, held.delayed)
            self.respond(held.delayed, JoinResponse(error, "") if error else held.response)
        return held is not None

    def disconnect(self, connection: object) -> list[Member]:
        """Answer nothing more there; say whose requests were delayed there. A join still counts, a sync is done
        with.
        """
        members = list(self._members.pop(connection, ()))
        for member in members:
            if member.join is not None and member.join.connection is connection:
                member.join = DelayedRequest(None)
            if member.sync is not None and member.sync.connection is connection:
                member.sync = None
            if member.held is not None and member.held.delayed.connection is connection:
                member.held = None
        return members

    def _add(self, member: Member, delayed: DelayedRequest[Any]) -> None:
        if delayed.connection is not None:
            self._members.setdefault(delayed.connection, set()).add(member)

    def _forget(self, member: Member, delayed: DelayedRequest[Any] | None) -> None:
        if delayed is None or delayed.connection is None:
            return
        held = None if member.held is None else member.held.delayed
        still = [each.connection for each in (member.join, member.sync, held) if each is not None]
        if all(each is not delayed.connection for each in still):
            members = self._members[delayed.connection]
            members.discard(member)
            if not members:
                del self._members[delayed.connection]
