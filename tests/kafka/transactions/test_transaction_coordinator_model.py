"""Any sequence of clients, programs, deaths of the server and timeouts, against a model of what is to be read."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import klamm
from klamm.disk.locks import SERVER
from klamm.kafka.error_codes import ErrorCode
from tests.kafka.producing import Client, offset_of, serving
from tests.store.open_transactions import core_of, log_of, markers, seen, stands_open

NONE = ErrorCode.NONE
PARTITIONS = 2


@dataclass
class Fate:
    """What one transaction would leave."""

    records: list[tuple[int, bytes]] = field(default_factory=list)
    offset: int | None = None

    @property
    def is_begun(self) -> bool:
        return bool(self.records) or self.offset is not None


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "send",
                "send",
                "send",
                "offsets",
                "commit",
                "commit",
                "abort",
                "retry",
                "init",
                "again",
                "late",
                "person",
                "program",
                "restart",
                "resolve",
                "tick",
            ]
        ),
        st.integers(0, 2),
        st.integers(0, PARTITIONS - 1),
    ),
    max_size=30,
)


class Run:
    def __init__(self, store: klamm.Store) -> None:
        self.store = store
        self.clients: dict[int, Client] = {}
        self.fates: dict[int, Fate] = {}
        self.read: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.waiting: list[list[tuple[int | None, bytes]]] = [[] for _ in range(PARTITIONS)]
        self.groups: dict[int, int] = {}
        self.fenced: set[int] = set()

    def run_due_work(self, who: int, *, commit: bool) -> None:
        fate = self.fates.pop(who, Fate())
        if commit and fate.offset is not None:
            self.groups[who] = fate.offset
        for number in range(PARTITIONS):
            self.waiting[number] = [
                (None if each == who else each, value) for each, value in self.waiting[number] if commit or each != who
            ]

    def committed(self, number: int) -> list[bytes]:
        """Up to the first that is still open."""
        found = []
        for who, value in self.waiting[number]:
            if who is not None:
                break
            found.append(value)
        return found


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(actions=ACTIONS)
def test_what_is_read_is_what_was_committed(actions: list[tuple[str, int, int]]) -> None:
    with tempfile.TemporaryDirectory() as path, klamm.open(path) as store:
        store.topics.create("t", PARTITIONS)
        run = Run(store)
        pending = list(enumerate(actions))
        while pending:
            with serving(store) as coordinator:
                for who, client in run.clients.items():
                    client.coordinator = coordinator
                    row = coordinator.row(f"c{who}")
                    assert who in run.fenced or (row is not None and row.next_epoch == client.epoch)
                while pending:
                    step, (action, who, number) = pending.pop(0)
                    if action == "restart":
                        break
                    _act(run, coordinator, step, action, who, number)
                    _check(run)
            if action == "restart":
                core_of(store).transactions.resolve([log_of(store, each) for each in range(PARTITIONS)])
                _check(run)
        members = core_of(store).members
        assert members is not None and not members.held(SERVER)
        assert store.check().breaches == []


def _act(run: Run, coordinator, step: int, action: str, who: int, number: int) -> None:  # type: ignore[no-untyped-def]
    store, value = run.store, b"%d" % step
    client = run.clients.get(who)
    if action in ("init", "again") or client is None:
        if client is None or action == "init":
            client = run.clients.setdefault(who, Client(store, coordinator, f"c{who}", bumps=who != 2))
            assert client.init() is NONE
        else:
            assert client.init(again=True) is (ErrorCode.PRODUCER_FENCED if who in run.fenced else NONE)
            if who in run.fenced:
                return
        run.run_due_work(who, commit=False)
        run.fenced.discard(who)
        return
    fate, is_fenced = run.fates.get(who, Fate()), who in run.fenced
    if action == "send":
        error = client.send(number, value=value)
        assert bool(error) == is_fenced
        if not error:
            run.fates.setdefault(who, fate).records.append((number, value))
            run.waiting[number].append((who, value))
    elif action == "offsets":
        error = client.commit_offsets(f"g{who}", step)
        assert bool(error) == is_fenced
        if not error:
            run.fates.setdefault(who, fate).offset = step
    elif action in ("commit", "abort", "retry"):
        commit = action != "abort"
        first = client.ask_end(commit=commit)
        if is_fenced:
            assert first.error
            return
        if fate.is_begun or (client.bumps and not commit):
            assert first.error is NONE
            if action == "retry":
                assert client.ask_end(commit=commit) == first
                assert client.ask_end(commit=not commit).error is ErrorCode.INVALID_TXN_STATE
            if client.bumps:
                client._become(first)
            run.run_due_work(who, commit=commit)
        else:
            assert first.error in (NONE, ErrorCode.INVALID_TXN_STATE)
    elif action == "late":
        old = coordinator.end(client.name, client.producer_id, client.epoch - 1, commit=True, bump=client.bumps)
        row = coordinator.row(client.name)
        assert old.error or (row is not None and not row.is_ongoing)
    elif action == "person":
        assert store.transactions.abort(client.producer_id) == fate.is_begun
        if fate.is_begun:
            coordinator.tick()
            run.run_due_work(who, commit=False)
            run.fenced.add(who)
    elif action == "program":
        with store.transaction() as tx:
            tx.send("t", value, partition=number)
        run.waiting[number].append((None, value))
    elif action == "resolve":
        core_of(store).transactions.resolve([log_of(store, each) for each in range(PARTITIONS)])
    elif action == "tick":
        coordinator.tick()


def _check(run: Run) -> None:
    for number in range(PARTITIONS):
        assert seen(run.store, number) == [run.committed(number)]
        assert stands_open(log_of(run.store, number)) == any(who is not None for who, _ in run.waiting[number])
        assert len(markers(log_of(run.store, number))) <= log_of(run.store, number).ends().end
    for who in range(3):
        assert offset_of(run.store, f"g{who}") == run.groups.get(who)


__all__: list[str] = []
