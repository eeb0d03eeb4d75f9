"""A coordinator with somebody at it: a clock, ids that can be foretold, and answers that are kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.group_coordinator import GroupCoordinator
from klamm.kafka.group_values import (
    GroupConfig,
    JoinRequest,
    JoinResponse,
    LeavingMember,
    SyncRequest,
    SyncResponse,
)
from klamm.store.group_image import GroupImage, decoded, encoded

A = TypeVar("A", JoinResponse, SyncResponse)

SESSION_MS = 10_000
REBALANCE_MS = 60_000
RANGE = (("range", b"topics"),)
GROUP = "billing"


class SentRequest(Generic[A]):
    """A request, and its answer when there is one."""

    def __init__(self, at_ms: int) -> None:
        self.at_ms = at_ms
        self._answers: list[A] = []

    def __call__(self, answer: A) -> None:
        assert not self._answers, "answered twice"
        self._answers.append(answer)

    @property
    def waits(self) -> bool:
        return not self._answers

    @property
    def answer(self) -> A:
        assert self._answers, "not answered"
        return self._answers[0]

    @property
    def error(self) -> ErrorCode:
        return self.answer.error


class CoordinatorHarness:
    """By default, a group does not wait for a second member, and nothing is kept. `persisting`: images wait for
    `persisted`.
    """

    def __init__(self, *, persisting: bool = False, **config: int) -> None:
        defaults = {"min_session_timeout_ms": 1_000, "initial_rebalance_delay_ms": 0}
        self._ids = iter(range(1_000_000))
        self._config = GroupConfig(**(defaults | config))
        self._keeping = persisting
        self.to_keep: list[tuple[GroupImage, int]] = []
        self.image: GroupImage | None = None
        """What is kept of the group; the last one of its images, also one without members."""
        self.now_ms = 1_000_000
        self.coordinator = self._begin()

    def _begin(self) -> GroupCoordinator:
        persist = (lambda *asked: self.to_keep.append(asked)) if self._keeping else None
        return GroupCoordinator(self._config, new_id=lambda: str(next(self._ids)), persist=persist)

    def persisted(self, *, ok: bool = True, told: bool = True) -> None:
        """The oldest image is kept, and the coordinator told; or it is not, or the server dies before that."""
        image, number = self.to_keep.pop(0)
        if ok:
            self.image = image
        if told:
            self.coordinator.persisted(image.group_id, number, ok=ok, now_ms=self.now_ms)

    def restart(self, above: int) -> None:
        """A new server, that has what is kept. `above`: no generation up to this is given again."""
        self.to_keep.clear()
        self.coordinator = self._begin()
        self.coordinator.begin_above(above)
        if self.image is not None and self.image.members:
            self.coordinator.restore(decoded(self.image.group_id, encoded(self.image)), now_ms=self.now_ms)

    def wait(self, ms: int) -> None:
        """Let time pass, as a server does: ticking whenever something is due."""
        end_ms = self.now_ms + ms
        while (deadline_ms := self.coordinator.next_deadline()) is not None and deadline_ms <= end_ms:
            assert deadline_ms >= self.now_ms
            self.now_ms = deadline_ms
            self.coordinator.tick(deadline_ms)
        self.now_ms = end_ms

    def join(
        self,
        member_id: str = "",
        *,
        group: str = GROUP,
        protocol_type: str = "consumer",
        protocols: tuple[tuple[str, bytes], ...] = RANGE,
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        connection: object = None,
        required: bool = False,
        skip: bool = False,
        instance: str | None = None,
        client: str = "app",
    ) -> SentRequest[JoinResponse]:
        asked = SentRequest[JoinResponse](self.now_ms)
        request = JoinRequest(
            group, member_id, protocol_type, protocols, session_ms, rebalance_ms, instance, client, "/10.0.0.1"
        )
        request = request._replace(member_id_required=required, can_skip_assignment=skip)
        self.coordinator.join(request, asked, now_ms=self.now_ms, connection=connection)
        return asked

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: Mapping[str, bytes] | None = None,
        *,
        group: str = GROUP,
        connection: object = None,
        **more: Any,
    ) -> SentRequest[SyncResponse]:
        asked = SentRequest[SyncResponse](self.now_ms)
        request = SyncRequest(group, member_id, generation, assignments or {})._replace(**more)
        self.coordinator.sync(request, asked, now_ms=self.now_ms, connection=connection)
        return asked

    def heartbeat(self, member_id: str, generation: int, instance: str | None = None) -> ErrorCode:
        return self.coordinator.heartbeat(GROUP, member_id, generation, instance, now_ms=self.now_ms)

    def leave(self, member_id: str, instance: str | None = None) -> ErrorCode:
        answer = self.coordinator.leave(GROUP, [LeavingMember(member_id, instance)], now_ms=self.now_ms)
        assert not answer.error
        (left,) = answer.members
        assert left[:2] == (member_id, instance)
        return left.error

    def commit(self, member_id: str, generation: int, instance: str | None = None, **more: bool) -> ErrorCode:
        return self.coordinator.check_commit(GROUP, member_id, generation, instance, now_ms=self.now_ms, **more)

    @property
    def state(self) -> str:
        description = self.coordinator.describe(GROUP)
        return description.state if description is not None else "none"

    def completing(self, *joins: dict[str, Any]) -> tuple[int, list[str]]:
        """A generation of new members, who have not synced: its number, and their ids, the leader's first."""
        delay_ms = 3_000
        config = self.coordinator.config
        self.coordinator.config = config._replace(initial_rebalance_delay_ms=delay_ms)
        asked = [self.join(**join) for join in joins]
        while asked[0].waits:
            self.wait(delay_ms)
        self.coordinator.config = config
        answers = [each.answer for each in asked]
        assert [answer.error for answer in answers] == [0] * len(joins)
        assert self.state == "CompletingRebalance"
        assert answers[0].leader == answers[0].member_id
        return answers[0].generation, [answer.member_id for answer in answers]

    def stable(self, *joins: dict[str, Any]) -> tuple[int, list[str]]:
        """The same, and they have synced: each is assigned its own id."""
        generation, ids = self.completing(*joins)
        instances = [join.get("instance") for join in joins]
        plan = {member_id: member_id.encode() for member_id in ids}
        asked = [
            self.sync(ids[n], generation, plan if n == 0 else {}, instance_id=instances[n]) for n in range(len(ids))
        ]
        assert [each.answer.assignment for each in asked] == list(plan.values())
        assert self.state == "Stable"
        return generation, ids
