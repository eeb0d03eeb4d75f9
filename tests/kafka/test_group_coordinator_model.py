"""The group coordinator with several clients, whatever they do: consumers that behave, restart, hang and lose their
connection, zombies that go on under ids that are not theirs any more, people who remove members and delete the group;
and a store that keeps generations late or not at all, and a server that dies and finds what was kept.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.group_memory import GROUP_BYTES, MEMBER_BYTES
from klamm.kafka.group_state import Group, State
from klamm.kafka.group_values import JoinResponse, SyncResponse
from tests.kafka.coordinator_harness import GROUP, CoordinatorHarness, SentRequest

E = ErrorCode
SESSIONS_MS = [5_000, 10_000]
REBALANCES_MS = [-1, 0, 6_000, 20_000]
DELAYS_MS = [0, 3_000]
BOUND_MS = max(SESSIONS_MS + REBALANCES_MS + DELAYS_MS)
PROTOCOLS = [
    (("range", b"x"),),
    (("range", b"y"),),
    (("sticky", b"x"), ("range", b"x")),
    (("range", b"x"), ("sticky", b"z")),
]
RETRY = {E.REBALANCE_IN_PROGRESS, E.COORDINATOR_NOT_AVAILABLE}
RESET = {E.UNKNOWN_MEMBER_ID, E.ILLEGAL_GENERATION}


class Client:
    """A consumer that does what consumers do, one step at a time."""

    def __init__(self, model: Coordination, name: str, join: dict[str, Any]) -> None:
        self.model = model
        self.harness = model.harness
        self.name = name
        self.instance: str | None = join["instance"]
        self.settings = join
        self.member_id = ""
        self.generation = -1
        self.step = "out"  # joining, joined, syncing, in; failed: it has given up
        self.answer: JoinResponse | None = None
        self.connection = object()
        self.waiting: SentRequest[Any] | None = None
        self.connection_of_waiting: object = None

    def act(self) -> None:
        if self.step == "out":
            self.join()
        elif self.step == "joined":
            self.sync()
        elif self.step == "in":
            self.heartbeat()

    def join(self) -> None:
        """Or once more, without having heard of the last one: on another connection, and nobody closed the first."""
        if self.step == "joining":
            self.connection = object()
        self.step = "joining"
        asked = self.harness.join(self.member_id, connection=self.connection, **self.settings)
        returned = not self.member_id and self.instance is not None
        self._park(asked)
        if returned and (asked.waits or not asked.error):
            self.model.fence(self.instance, but=self)
        self._look()

    def sync(self) -> None:
        if self.step == "syncing":
            self.connection = object()
        self.step = "syncing"
        assert self.answer is not None
        plan: dict[str, bytes] = {}
        if self.answer.leader == self.member_id and not self.answer.skip_assignment:
            told = [member.member_id for member in self.answer.members]
            plan = {member_id: f"{self.generation} {member_id}".encode() for member_id in told[: self.model.generosity]}
        before, images = self.harness.state, len(self.harness.to_keep)
        asked = self.harness.sync(
            self.member_id, self.generation, plan, connection=self.connection, instance_id=self.instance
        )
        if (before, self.harness.state) == ("CompletingRebalance", "Stable") or len(self.harness.to_keep) > images:
            assert self.generation not in self.model.plans
            self.model.plans[self.generation] = plan
        self._park(asked)
        self.model.keep_in_time()
        self._look()

    def heartbeat(self) -> None:
        error = self.harness.heartbeat(self.member_id, self.generation, self.instance)
        assert error in {E.NONE, E.REBALANCE_IN_PROGRESS, E.FENCED_INSTANCE_ID, *RESET}
        self._failed(error)

    def leave(self) -> None:
        if not self.harness.leave(self.member_id, self.instance) and self.member_id:
            self.model.dead_ids.add((self.member_id, self.instance))
        self._failed(E.UNKNOWN_MEMBER_ID)

    def _park(self, asked: SentRequest[Any]) -> None:
        if self.waiting is not None:
            self.model.abandoned.append((self.connection_of_waiting, self.waiting))
        self.connection_of_waiting = self.connection
        self.waiting = asked

    def _look(self) -> None:
        """Whether there is an answer."""
        if self.waiting is None or self.waiting.waits:
            return
        answer = self.waiting.answer
        self.waiting = None
        if isinstance(answer, JoinResponse):
            self._joined(answer)
        else:
            self._synced(answer)

    def _joined(self, answer: JoinResponse) -> None:
        if answer.error == E.MEMBER_ID_REQUIRED:
            self.member_id, self.step = answer.member_id, "out"
        elif not self._failed(answer.error):
            self.member_id, self.generation, self.answer = answer.member_id, answer.generation, answer
            self.step = "joined"
            self.model.heard(self, answer)

    def _synced(self, answer: SyncResponse) -> None:
        if not self._failed(answer.error):
            self.step = "in"
            self.model.assigned(self, answer.assignment)

    def _failed(self, error: ErrorCode) -> bool:
        if error in RESET:
            self.member_id, self.generation, self.step = "", -1, "out"
        elif error in RETRY:
            self.step = "out"
        elif error:
            assert error in {E.FENCED_INSTANCE_ID, E.GROUP_MAX_SIZE_REACHED, E.INCONSISTENT_GROUP_PROTOCOL}
            self.step = "failed"
        return bool(error)


class Coordination(RuleBasedStateMachine):
    @initialize(
        delay_ms=st.sampled_from(DELAYS_MS),
        max_size=st.sampled_from([2, 100, 100]),
        persisting=st.sampled_from(["nothing", "at once", "late", "late"]),
    )
    def begin(self, delay_ms: int, max_size: int, persisting: str) -> None:
        self.harness = CoordinatorHarness(
            initial_rebalance_delay_ms=delay_ms, max_size=max_size, persisting=persisting != "nothing"
        )
        self.persisting = persisting
        self.clients: list[Client] = []
        self.names = 0
        self.generosity = 100
        self.abandoned: list[tuple[object, SentRequest[Any]]] = []  # nobody looks for the answer, but there must be one
        self.dead_ids: set[tuple[str, str | None]] = set()
        self.generation = 0
        self.floor = 0  # of generations that servers before this one have given out
        self.plans: dict[int, dict[str, bytes]] = {}  # by generation: what its leader said
        self.leaders: dict[int, str] = {}
        self.assignments: dict[tuple[int, str], bytes] = {}
        self.heirs: dict[str, set[str]] = {}  # by instance id: every id it had

    # ---- what clients hear

    def heard(self, client: Client, answer: JoinResponse) -> None:
        assert (answer.member_id, client.instance) not in self.dead_ids
        if client.instance is not None:
            self.heirs.setdefault(client.instance, set()).add(answer.member_id)
        if client.instance is not None and self.persisting != "nothing" and self.harness.state == "Stable":
            self.assert_kept(answer.generation, answer.member_id)
        if answer.members and not answer.skip_assignment:
            assert self.leaders.setdefault(answer.generation, client.name) == client.name

    def assigned(self, client: Client, assignment: bytes) -> None:
        plan = self.plans[client.generation]
        ids = {client.member_id} | self.heirs.get(client.instance or "", set())
        assert assignment in {plan.get(member_id, b"") for member_id in ids}
        if self.persisting != "nothing":
            self.assert_kept(client.generation, client.member_id, assignment)
        assert self.assignments.setdefault((client.generation, client.member_id), assignment) == assignment

    def assert_kept(self, generation: int, member_id: str, assignment: bytes | None = None) -> None:
        """Were the server to die now, the next one would know what this member was told; or that it is over."""
        image = self.harness.image
        assert image is not None and image.generation >= generation
        if image.generation == generation:
            (found,) = [each.assignment for each in image.members if each.member_id == member_id]
            assert assignment is None or found == assignment

    def keep_in_time(self, *, all_of_it: bool = False) -> None:
        while self.harness.to_keep and (all_of_it or self.persisting == "at once"):
            self.harness.persisted()

    def fence(self, instance: str | None, but: Client) -> None:
        for other in self.clients:
            if other.instance == instance and other is not but and other.member_id:
                self.dead_ids.add((other.member_id, instance))

    # ---- what clients do

    @precondition(lambda self: len(self.clients) < 6)
    @rule(
        instance=st.sampled_from([None, None, "a", "b"]),
        protocols=st.sampled_from(PROTOCOLS),
        session_ms=st.sampled_from(SESSIONS_MS),
        rebalance_ms=st.sampled_from(REBALANCES_MS),
        required=st.booleans(),
        skip=st.booleans(),
    )
    def start(self, **join: Any) -> None:
        """Under an instance id that is in use, this is a restart, and the other one a zombie that does not know yet."""
        self.names += 1
        client = Client(self, f"client {self.names}", join)
        self.clients.append(client)
        client.join()

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), what=st.sampled_from(["act", "act", "act", "join", "impatience", "leave", "other topics"]))
    def do(self, data: st.DataObject, what: str) -> None:
        client = data.draw(st.sampled_from(self.clients))
        if client.step == "failed":
            self.clients.remove(client)
        elif what == "act":
            client.act()
        elif what == "leave":
            client.leave()
        elif what == "impatience" and client.step in ("joining", "syncing"):
            client.join() if client.step == "joining" else client.sync()
        elif what == "other topics" and client.step == "in":
            client.settings = client.settings | {"protocols": data.draw(st.sampled_from(PROTOCOLS))}
            client.join()
        elif what == "join" and client.step in ("joined", "in"):
            client.join()

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def some_act_in_turn(self, data: st.DataObject) -> None:
        """All but one or two, in any order: so requests are parked when something else happens."""
        order = data.draw(st.permutations(self.clients))
        for client in order[: data.draw(st.integers(1, 6))]:
            client.act()
            self.look()

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), dies=st.booleans())
    def lose_connection(self, data: st.DataObject, dies: bool) -> None:
        client = data.draw(st.sampled_from(self.clients))
        self.harness.coordinator.disconnected(client.connection, now_ms=self.harness.now_ms)
        self.look()
        self.abandoned = [each for each in self.abandoned if each[0] is not client.connection]
        client.connection = object()
        if client.waiting is not None:
            client.waiting, client.step = None, "out"
        if dies:
            self.clients.remove(client)

    @precondition(lambda self: self.harness.to_keep)
    @rule(ok=st.sampled_from([True, True, False]))
    def something_is_kept(self, ok: bool) -> None:
        self.harness.persisted(ok=ok)

    @precondition(lambda self: self.persisting != "nothing")
    @rule(data=st.data())
    def the_server_dies_and_comes_again(self, data: st.DataObject) -> None:
        """With what was kept so far, whether the old one heard of it or not. Requests are lost."""
        for _ in range(data.draw(st.integers(0, len(self.harness.to_keep)))):
            self.harness.persisted(told=False)
        self.floor = max(self.floor, self.generation)
        self.harness.restart(self.floor)
        self.abandoned.clear()
        for client in self.clients:
            client.connection = object()
            if client.waiting is not None:
                client.waiting = None
                client.step = "joined" if client.step == "syncing" else "out"
        self.generation = 0
        if self.harness.coordinator.knows(GROUP):  # who was removed or fenced, and nobody wrote it down, is there again
            self.dead_ids -= {(member.id, member.instance_id) for member in self.group.members.values()}
            assert self.harness.state == "Stable"

    @rule(ms=st.sampled_from([1, 1_000, 4_000, 6_000, 20_000]))
    def wait(self, ms: int) -> None:
        self.keep_in_time(all_of_it=ms > 1)
        self.harness.wait(ms)

    @rule(ms=st.sampled_from([1_000, 30_000]))
    def sleep(self, ms: int) -> None:
        """The server's process was stopped: it comes to everything at once, and late."""
        self.keep_in_time(all_of_it=True)
        self.harness.now_ms += ms
        self.harness.coordinator.tick(self.harness.now_ms)
        for asked in self.waiting():
            asked.at_ms = self.harness.now_ms

    @rule(generosity=st.sampled_from([0, 1, 100]))
    def leaders_assign_to_some(self, generosity: int) -> None:
        self.generosity = generosity

    @rule(instance=st.sampled_from(["a", "b"]))
    def somebody_removes(self, instance: str) -> None:
        if not self.harness.leave("", instance):
            self.dead_ids |= {
                (client.member_id, instance)
                for client in self.clients
                if client.instance == instance and client.member_id
            }

    @rule()
    def somebody_deletes_the_group(self) -> None:
        if not self.harness.coordinator.delete(GROUP):
            assert self.harness.join().error == E.COORDINATOR_NOT_AVAILABLE
            self.harness.coordinator.deleted(GROUP)

    @precondition(lambda self: self.dead_ids)
    @rule(data=st.data())
    def zombies_succeed_at_nothing(self, data: st.DataObject) -> None:
        member_id, instance = data.draw(st.sampled_from(sorted(self.dead_ids, key=str)))
        generation = self.generation
        errors = {
            self.harness.join(member_id, instance=instance).error,
            self.harness.sync(member_id, generation, {member_id: b"mine"}, instance_id=instance).error,
            self.harness.heartbeat(member_id, generation, instance),
            self.harness.commit(member_id, generation, instance),
            self.harness.commit(member_id, generation, instance, transactional=True),
            self.harness.leave(member_id, instance),
        }
        allowed = {E.UNKNOWN_MEMBER_ID, E.ILLEGAL_GENERATION, E.GROUP_ID_NOT_FOUND}
        allowed |= {E.GROUP_MAX_SIZE_REACHED, E.INCONSISTENT_GROUP_PROTOCOL}
        if instance is not None:
            allowed.add(E.FENCED_INSTANCE_ID)
        assert errors <= allowed

    @rule()
    def all_who_behave_end_up_in_one_stable_generation(self) -> None:
        if any(client.settings["rebalance_ms"] == 0 for client in self.clients):
            return  # it asks for the impossible: to do it in no time
        for _ in range(4 * BOUND_MS // 1_000):
            for client in self.clients:
                client.act()
                self.look()
            self.keep_in_time(all_of_it=True)
            self.look()
            self.harness.wait(1_000)
            self.look()
        there = [client for client in self.clients if client.step != "failed"]
        assert all(client.step == "in" for client in there)
        assert len({client.generation for client in there}) <= 1
        if there:
            assert self.harness.state == "Stable"
            assert {client.member_id for client in there} == set(self.group.members)

    # ---- what is true all the time

    def waiting(self) -> list[SentRequest[Any]]:
        asked = [client.waiting for client in self.clients if client.waiting is not None]
        return [each for each in asked + [each for _, each in self.abandoned] if each.waits]

    @property
    def group(self) -> Group:
        group = self.harness.coordinator._groups.get(GROUP)
        assert group is not None
        return group

    @invariant()
    def memory_is_counted(self) -> None:
        groups = self.harness.coordinator._groups
        members = [member for group in groups for member in group.members.values()]
        used = sum(GROUP_BYTES + len(group.id) for group in groups)
        used += sum(MEMBER_BYTES // 4 + len(member_id) for group in groups for member_id in group.pending)
        assert groups.memory.used == used + sum(member.charged + len(member.assignment) for member in members)

    def look(self) -> None:
        for client in self.clients:
            client._look()

    @invariant()
    def holds(self) -> None:
        self.keep_in_time()
        self.look()
        assert all(self.harness.now_ms - each.at_ms <= BOUND_MS for each in self.waiting())
        if not self.harness.coordinator.knows(GROUP):
            return
        group = self.group
        assert group.generation >= self.generation
        self.generation = group.generation
        assert not group.members.keys() & group.pending.keys()
        assert group.static == {
            member.instance_id: member for member in group.members.values() if member.instance_id is not None
        }
        assert all(member_id == member.id for member_id, member in group.members.items())
        assert (group.leader in group.members.values()) if group.members else group.leader is None
        assert group.awaiting_sync <= set(group.members.values())
        assert bool(group.members) == (group.state is not State.EMPTY) or group.state is State.PREPARING
        joining = [member for member in group.members.values() if member.join is not None]
        syncing = [member for member in group.members.values() if member.sync is not None]
        assert group._joining == len(joining)
        assert not joining or group.state is State.PREPARING
        assert not syncing or group.state is State.COMPLETING
        assert group.persisting is None or group.state is State.COMPLETING
        assert group.state is State.STABLE or not any(member.held for member in group.members.values())
        assert not group.awaiting_sync.intersection(syncing)
        assert (group.timer.deadline_ms is not None) == (group.state is State.PREPARING or bool(group.awaiting_sync))
        for member in group.members.values():
            heard = (member in joining and member.join.reply is not None) or member in syncing  # type: ignore[union-attr]
            assert (member.session.deadline_ms is None) == (heard and not member.is_new)
        if group.state is State.STABLE:
            assert all(isinstance(member.assignment, bytes) for member in group.members.values())
            assert group.generation in self.plans
        for member in group.members.values():
            for generation in (group.generation - 1, group.generation + 1):
                assert self.harness.heartbeat(member.id, generation) == E.ILLEGAL_GENERATION

    def teardown(self) -> None:
        if not hasattr(self, "harness"):
            return
        self.keep_in_time(all_of_it=True)
        self.harness.wait(BOUND_MS)
        self.keep_in_time(all_of_it=True)
        assert self.waiting() == []
        self.harness.wait(10 * BOUND_MS)  # nobody is heard of any more
        assert not self.harness.coordinator.knows(GROUP) or self.group.state is State.EMPTY
        assert self.harness.coordinator.next_deadline() is None
        assert len(self.harness.coordinator._timers) == len(self.harness.coordinator._pending) == 0


TestCoordination = Coordination.TestCase
TestCoordination.settings = settings(max_examples=300, stateful_step_count=40, deadline=None, print_blob=True)
