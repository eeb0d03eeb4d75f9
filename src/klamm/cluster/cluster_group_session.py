"""Group work between polls, in a group of a cluster: what GroupSession does, at the moments that librdkafka chooses."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from klamm.client.groups.group_session import GroupSession, _call
from klamm.cluster.group_member import ClusterMember
from klamm.types import TopicPartition

if TYPE_CHECKING:
    from klamm.client.consume.session import Session

__all__ = ["ClusterGroupSession"]

_JOIN_S = 15.0  # the first poll waits so long for a place in the group
_PAUSE_S = 0.01


class ClusterGroupSession(GroupSession):
    """The state of one session."""

    def poll_begins(self, session: Session) -> None:
        super().poll_begins(session)
        member: Any = self.member
        if isinstance(member, ClusterMember) and not member.has_joined and not member.was_awaited:
            member.was_awaited = True
            deadline = time.monotonic() + _JOIN_S
            while not (member.has_joined or session.is_stopped or time.monotonic() > deadline):
                time.sleep(_PAUSE_S)
                self._look(session, member)

    def _look(self, session: Session, member: Any) -> None:
        def revoked(tps: list[TopicPartition]) -> None:
            try:
                self._revoke(tps)
            finally:
                member.give_back(tps)
                self._drop(session, tps)

        def lost(tps: list[TopicPartition]) -> None:
            member.give_back(tps)
            self._lose(session, tps)

        self._lose(session, member.take_lost())
        member.look_at(revoked, lost)
        self._take(session, member)

    def _take(self, session: Session, member: Any) -> list[TopicPartition]:
        taken: list[TopicPartition] = member.take()
        if taken:
            try:
                self._adopt(session, taken)
            except BaseException:  # the group has assigned them all the same
                member.put_back(taken)
                self._drop(session, taken)
                raise
            _call(self.on_assigned, taken)
        return taken
