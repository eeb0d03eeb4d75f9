"""Answers on their way, and the requests that wait for one, by member and by connection."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.group_state import Held, Member, Parked
from klamm.kafka.group_values import JoinReply, JoinResponse, SyncReply, SyncResponse

__all__ = ["Mailbox"]

Answer = TypeVar("Answer")


class Mailbox:
    """Answers are kept until `deliver`, so that no callback meets a machine at work."""

    def __init__(self) -> None:
        self._answers: deque[Callable[[], None]] = deque()
        self._members: dict[object, set[Member]] = {}  # by connection: whose requests are parked there

    def __len__(self) -> int:
        """How many connections have something parked."""
        return len(self._members)

    def answer(self, parked: Parked[Callable[[Answer], None]] | None, answer: Answer) -> None:
        if parked is not None and parked.reply is not None:
            self._answers.append(partial(parked.reply, answer))

    def post(self, letter: Callable[[], None]) -> None:
        """Something else to be called by `deliver`, in the order of all."""
        self._answers.append(letter)

    def deliver(self) -> None:
        while self._answers:
            self._answers.popleft()()

    def park_join(self, member: Member, parked: Parked[JoinReply]) -> None:
        """An earlier one of the member is overtaken."""
        earlier = member.join
        member.group.park_join(member, parked)
        self._note(member, parked)
        self._forget(member, earlier)
        self.answer(earlier, JoinResponse(ErrorCode.REBALANCE_IN_PROGRESS, member.id))

    def park_sync(self, member: Member, parked: Parked[SyncReply]) -> None:
        """An earlier one of the member is overtaken."""
        self.answer_sync(member, SyncResponse(ErrorCode.REBALANCE_IN_PROGRESS))
        member.sync = parked
        self._note(member, parked)

    def answer_join(self, member: Member, answer: JoinResponse) -> None:
        """If it has one parked."""
        parked = member.group.unpark_join(member)
        self._forget(member, parked)
        self.answer(parked, answer)

    def answer_sync(self, member: Member, answer: SyncResponse) -> bool:
        """If it has one parked; whether it had."""
        parked, member.sync = member.sync, None
        self._forget(member, parked)
        self.answer(parked, answer)
        return parked is not None

    def hold(self, member: Member, held: Held) -> None:
        assert member.held is None
        member.held = held
        self._note(member, held.parked)

    def answer_held(self, member: Member, error: ErrorCode = ErrorCode.NONE) -> bool:
        """If something is held back for it, let it go, or say an error in its place; whether there was something."""
        held, member.held = member.held, None
        if held is not None:
            self._forget(member, held.parked)
            self.answer(held.parked, JoinResponse(error, "") if error else held.answer)
        return held is not None

    def disconnect(self, connection: object) -> list[Member]:
        """Answer nothing more there; say whose requests were parked there. A join still counts, a sync is done with."""
        members = list(self._members.pop(connection, ()))
        for member in members:
            if member.join is not None and member.join.connection is connection:
                member.join = Parked(None)
            if member.sync is not None and member.sync.connection is connection:
                member.sync = None
            if member.held is not None and member.held.parked.connection is connection:
                member.held = None
        return members

    def _note(self, member: Member, parked: Parked[Any]) -> None:
        if parked.connection is not None:
            self._members.setdefault(parked.connection, set()).add(member)

    def _forget(self, member: Member, parked: Parked[Any] | None) -> None:
        if parked is None or parked.connection is None:
            return
        held = None if member.held is None else member.held.parked
        still = [each.connection for each in (member.join, member.sync, held) if each is not None]
        if all(each is not parked.connection for each in still):
            members = self._members[parked.connection]
            members.discard(member)
            if not members:
                del self._members[parked.connection]
