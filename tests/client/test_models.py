"""Groups and transactions against models of a few lines: whatever is done, in whatever order, both say the same.

Everything happens in one process, one step after the other; what several processes do at once is for tests/crash/.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import klamm
from klamm.client.consume.consumer import session_of
from tests.procs import until

T = TypeVar("T")
PARTITIONS = 2
STEPS = settings(max_examples=80, stateful_step_count=40, print_blob=True)


def new_store() -> str:
    """A directory in memory if there is such a thing: nothing here is about disks."""
    try:
        return tempfile.mkdtemp(prefix="klamm-", dir="/dev/shm")
    except OSError:
        return tempfile.mkdtemp(prefix="klamm-")


# ---- groups


GROUP, TOPIC = "billing", "orders"


@dataclass(eq=False)
class ModelMember:
    member_index: (
        int | None
    )  # the lowest that was free; None: its watchdog gave everything up, and it does not know yet
    thread: ThreadPoolExecutor | None  # it is used by a thread of its own; None: by that of the test
    owned: set[int] = field(default_factory=set)
    positions: dict[int, int] = field(default_factory=dict)
    since: dict[int, int] = field(default_factory=dict)  # where what was handed out and not committed begins
    batches: list[klamm.Batch] = field(default_factory=list)  # that may still be committed
    former: list[klamm.Batch] = field(default_factory=list)  # that may not: their partition was given back since
    lost: set[int] = field(default_factory=set)  # and not told so yet
    real: Any = None

    def give_back(self, number: int) -> None:
        self.owned.remove(number)
        self.positions.pop(number)
        self.since.pop(number, None)
        self.former += [batch for batch in self.batches if batch.partition == number]
        self.batches = [batch for batch in self.batches if batch.partition != number]

    def do(self, call: Callable[[], T]) -> T:
        return call() if self.thread is None else self.thread.submit(call).result()


class Groups(RuleBasedStateMachine):
    """Members of one group that come, go, read and commit, while partitions are added."""

    def __init__(self) -> None:
        super().__init__()
        self.path = new_store()
        self.store = klamm.open(self.path)
        self.store.topics.create(TOPIC, PARTITIONS)
        self.logs: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.members: list[ModelMember] = []
        self.committed: dict[int, int] = {}
        self.count = 0

    def teardown(self) -> None:
        for member in list(self.members):
            self.leave_now(member)
        self.store.close()
        shutil.rmtree(self.path)

    @rule(data=st.data(), count=st.integers(1, 5))
    def append(self, data: st.DataObject, count: int) -> None:
        partition = data.draw(st.integers(0, len(self.logs) - 1))
        values = [b"%d" % n for n in range(self.count, self.count + count)]
        self.count += count
        self.store.append_many(TOPIC, values, partition=partition, acks=1)
        self.logs[partition] += values

    @precondition(lambda self: len(self.logs) < 6)
    @rule()
    def add_a_partition(self) -> None:
        self.logs.append([])
        self.store.topics.add_partitions(TOPIC, len(self.logs))

    # Who comes and goes

    @precondition(lambda self: len(self.members) < 4)
    @rule(threaded=st.booleans())
    def join(self, threaded: bool) -> None:
        member = ModelMember(self.free_index(), ThreadPoolExecutor(1) if threaded else None)

        def assigned(places: list[tuple[str, int]]) -> None:
            for _, number in places:
                assert not any(number in other.owned for other in self.members), f"{number} has an owner"
                member.owned.add(number)
                member.positions[number] = self.committed.get(number, 0)

        def revoked(places: list[tuple[str, int]]) -> None:
            for _, number in places:
                member.give_back(number)

        def lost(places: list[tuple[str, int]]) -> None:
            assert {number for _, number in places} == member.lost
            member.lost.clear()

        member.real = member.do(
            lambda: self.store.consumer(TOPIC, group=GROUP, on_assigned=assigned, on_revoked=revoked, on_lost=lost)
        )
        self.members.append(member)

    def free_index(self) -> int:
        taken = {member.member_index for member in self.members}
        return next(n for n in range(len(taken) + 1) if n not in taken)

    @precondition(lambda self: any(member.member_index is not None for member in self.members))
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        """It did not poll for too long."""
        member = data.draw(st.sampled_from([each for each in self.members if each.member_index is not None]))
        membership = session_of(member.real).member
        assert membership is not None
        membership._polled = float("-inf")
        membership._give_up()
        member.member_index = None
        for number in list(member.owned):
            member.give_back(number)
            member.lost.add(number)

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.leave_now(data.draw(st.sampled_from(self.members)))

    def leave_now(self, member: ModelMember) -> None:
        member.do(member.real.close)
        assert not member.owned
        self.members.remove(member)
        if member.thread is not None:
            member.thread.shutdown()

    # What they do

    @precondition(lambda self: self.members)
    @rule(data=st.data(), count=st.integers(1, 4))
    def poll(self, data: st.DataObject, count: int) -> None:
        self.poll_now(data.draw(st.sampled_from(self.members)), count)

    def poll_now(self, member: ModelMember, count: int) -> None:
        if member.member_index is None:
            member.member_index = self.free_index()
        batch = member.do(lambda: member.real.poll(max_records=count, timeout=0))
        assert not member.lost
        if not batch:
            assert all(member.positions[number] == len(self.logs[number]) for number in member.owned)
            return
        number = batch.partition
        assert number in member.owned
        assert batch.begin == member.positions[number]
        assert batch.end == batch.begin + len(batch) <= batch.begin + count
        assert [record.value for record in batch] == self.logs[number][batch.begin : batch.end]
        member.positions[number] = batch.end
        member.since.setdefault(number, batch.begin)
        member.batches.append(batch)

    @precondition(lambda self: any(member.batches for member in self.members))
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        """Also what was committed before: that moves the group back."""
        member = data.draw(st.sampled_from([each for each in self.members if each.batches]))
        batch = data.draw(st.sampled_from(member.batches))
        member.do(lambda: member.real.commit(batch))
        self.was_committed(member, batch)

    @precondition(lambda self: any(not member.lost for member in self.members))
    @rule(data=st.data(), later=st.booleans())
    def commit_all(self, data: st.DataObject, later: bool) -> None:
        member = data.draw(st.sampled_from([each for each in self.members if not each.lost]))
        member.do(lambda: member.real.commit_async().result() if later else member.real.commit())
        self.committed.update({number: member.positions[number] for number in member.since})
        member.since.clear()

    @precondition(lambda self: any(member.former for member in self.members))
    @rule(data=st.data())
    def commit_what_is_no_longer_its_own(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from([each for each in self.members if each.former]))
        batch = data.draw(st.sampled_from(member.former))
        with pytest.raises(klamm.NotOwner):
            member.do(lambda: member.real.commit(batch))

    def was_committed(self, member: ModelMember, batch: klamm.Batch) -> None:
        number = batch.partition
        self.committed[number] = batch.end
        if member.positions[number] <= batch.end:
            member.since.pop(number, None)
        elif number in member.since:
            member.since[number] = batch.end

    @precondition(lambda self: any(member.batches or member.former for member in self.members))
    @rule(data=st.data(), regret=st.booleans())
    def commit_in_a_transaction(self, data: st.DataObject, regret: bool) -> None:
        """It takes only what follows; when it is aborted, what took part in it is read again, and nothing else."""
        member = data.draw(st.sampled_from([each for each in self.members if each.batches or each.former]))
        batch = data.draw(st.sampled_from(member.batches + member.former))
        error: type[Exception] | None = None
        if any(batch is each for each in member.former):  # the same records may have been handed out again
            error = klamm.NotOwner
        elif member.since.get(batch.partition) != batch.begin:
            error = klamm.CommitGap
        elif regret:
            error = ZeroDivisionError

        def transact() -> None:
            with member.real.transaction() as transaction:
                transaction.commit_offsets(batch)
                if regret:
                    raise ZeroDivisionError

        if error is None:
            member.do(transact)
            self.was_committed(member, batch)
            return
        with pytest.raises(error):
            member.do(transact)
        self.was_rewound(member)

    @precondition(lambda self: any(not member.lost for member in self.members))
    @rule(data=st.data())
    def abort_a_transaction_of_a_consumer(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from([each for each in self.members if not each.lost]))

        def transact() -> None:
            with member.real.transaction():
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            member.do(transact)
        self.was_rewound(member)

    def was_rewound(self, member: ModelMember) -> None:
        member.positions.update(member.since)
        member.since.clear()

    @precondition(lambda self: any(member.owned for member in self.members))
    @rule(data=st.data())
    def seek(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from([each for each in self.members if each.owned]))
        number = data.draw(st.sampled_from(sorted(member.owned)))
        offset = data.draw(st.integers(0, len(self.logs[number])))
        member.do(lambda: member.real.seek(TOPIC, number, offset))
        member.positions[number] = offset
        member.since.pop(number, None)

    @rule(to=st.sampled_from(["earliest", "latest"]))
    def reset(self, to: str) -> None:
        plan = self.store.groups.plan_reset(GROUP, TOPIC, to=to)
        if any(member.member_index is not None for member in self.members):
            with pytest.raises(klamm.GroupBusy):
                self.store.groups.apply(plan)
            return
        self.store.groups.apply(plan)
        self.committed = {number: 0 if to == "earliest" else len(log) for number, log in enumerate(self.logs)}

    @precondition(lambda self: self.members)
    @rule()
    def complete(self) -> None:
        """When everybody has polled a few times, everybody has a fair share, and together they have everything."""
        for _ in range(len(self.members) + 2):
            for member in self.members:
                self.poll_now(member, 1)
        share, more = divmod(len(self.logs), len(self.members))
        by_index = sorted(self.members, key=lambda member: member.member_index or 0)
        assert [len(member.owned) for member in by_index] == [share + (n < more) for n in range(len(by_index))]
        assert sorted(number for member in self.members for number in member.owned) == list(range(len(self.logs)))

    @invariant()
    def the_group_stands_where_the_model_says(self) -> None:
        if GROUP in self.store.groups:
            stands = {each.partition: each.committed for each in self.store.groups.describe(GROUP).offsets}
            assert {number: found.offset for number, found in stands.items() if found is not None} == self.committed
        for member in self.members:
            assert {number for _, number in member.real.assignment()} == member.owned | member.lost


TestGroups = Groups.TestCase
TestGroups.settings = STEPS


# ---- transactions


@dataclass(eq=False)
class ModelTransaction:
    """What was sent in it, and what became of it."""

    real: klamm.Transaction
    store: int
    name: str | None
    direct: bool  # every record is appended when it is sent; else all at the commit
    state: str = "open"
    ended_by: tuple[type[Exception], ...] = ()  # somebody else ended it: what it is told when it goes on
    unsent: list[tuple[int, bytes]] = field(default_factory=list)
    is_empty: bool = True
    began: bool = False  # something was appended


class Transactions(RuleBasedStateMachine):
    """Two stores of one directory, as two programs would have; any number of transactions at once."""

    def __init__(self) -> None:
        super().__init__()
        self.path = new_store()
        self.stores = [klamm.open(self.path), klamm.open(self.path)]
        self.stores[0].topics.create("orders", PARTITIONS)
        self.logs: list[list[tuple[bytes, ModelTransaction | None]]] = [[] for _ in range(PARTITIONS)]
        self.transactions: list[ModelTransaction] = []
        self.holder: dict[str, int] = {}  # the store that used a name last
        self.fenced: set[tuple[int, str]] = set()  # a store that lost a name does not get it back
        self.count = 0

    def teardown(self) -> None:
        for store in self.stores:
            store.close()
        shutil.rmtree(self.path)

    def value(self) -> bytes:
        self.count += 1
        return b"%d" % self.count

    def open_ones(self) -> list[ModelTransaction]:
        return [each for each in self.transactions if each.state == "open"]

    @rule(partition=st.integers(0, PARTITIONS - 1))
    def append(self, partition: int) -> None:
        value = self.value()
        self.stores[0].append("orders", value, partition=partition, acks=1)
        self.logs[partition].append((value, None))

    @rule(which=st.integers(0, 1), name=st.sampled_from([None, None, "a", "b"]), direct=st.booleans())
    def begin(self, which: int, name: str | None, direct: bool) -> None:
        """One that has a name ends what that name has open anywhere else; here, what it has open itself."""
        batch_bytes = 1 if direct else 65_536
        if name is not None and (which, name) in self.fenced:
            with suppress(klamm.Fenced):  # it is told now, or at the first append
                late = self.stores[which].transaction(name, batch_bytes=batch_bytes)
                self.transactions.append(ModelTransaction(late, which, name, direct, "aborted", (klamm.Fenced,)))
            return
        real = self.stores[which].transaction(name, batch_bytes=batch_bytes)
        if name is not None:
            for other in self.open_ones():
                if other.name == name:
                    other.ended_by = (klamm.Fenced,)
                    self.end(other, "aborted")
            before = self.holder.get(name)
            if before is not None and before != which:
                self.fenced.add((before, name))
            self.holder[name] = which
        self.transactions.append(ModelTransaction(real, which, name, direct))

    def end(self, one: ModelTransaction, state: str) -> None:
        one.state = state
        if state == "committed":
            for partition, value in one.unsent:
                self.logs[partition].append((value, one))
        one.unsent = []

    @precondition(lambda self: self.open_ones())
    @rule(data=st.data(), partition=st.integers(0, PARTITIONS - 1))
    def send(self, data: st.DataObject, partition: int) -> None:
        one = data.draw(st.sampled_from(self.open_ones()))
        value = self.value()
        one.real.send("orders", value, partition=partition)
        one.is_empty = False
        if one.direct:
            self.logs[partition].append((value, one))
            one.began = True
        else:
            one.unsent.append((partition, value))

    @precondition(lambda self: self.open_ones())
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.open_ones()))
        one.real.commit()
        self.end(one, "committed")

    @precondition(lambda self: self.open_ones())
    @rule(data=st.data(), explicitly=st.booleans())
    def abort(self, data: st.DataObject, explicitly: bool) -> None:
        one = data.draw(st.sampled_from(self.open_ones()))
        if explicitly:
            one.real.abort()
        else:
            with pytest.raises(ZeroDivisionError), one.real:
                raise ZeroDivisionError
        self.end(one, "aborted")

    @precondition(lambda self: any(each.began for each in self.open_ones()))
    @rule(data=st.data())
    def somebody_aborts(self, data: st.DataObject) -> None:
        """As a timeout does, or a person."""
        one = data.draw(st.sampled_from([each for each in self.open_ones() if each.began]))
        info = self.info_of(one)
        assert info.state == "ongoing"
        assert self.stores[0].transactions.abort(info.producer_id)
        one.ended_by = (klamm.Aborted, klamm.Fenced)
        self.end(one, "aborted")

    @rule(partition=st.integers(0, PARTITIONS - 1), which=st.integers(0, 1))
    def time_out(self, partition: int, which: int) -> None:
        """It is over when somebody keeps house, and not before."""
        real = self.stores[which].transaction(timeout=0.001, batch_bytes=1)
        one = ModelTransaction(real, which, None, direct=True, is_empty=False)
        value = self.value()
        real.send("orders", value, partition=partition)
        self.logs[partition].append((value, one))
        until(lambda: self.age_of(one) > 1, "the timeout has passed")
        self.stores[1 - which].maintain()
        one.ended_by = (klamm.Aborted, klamm.Fenced)
        self.end(one, "aborted")
        self.transactions.append(one)

    def age_of(self, one: ModelTransaction) -> int:
        info = self.info_of(one)
        assert info.state == "ongoing" and info.age_ms is not None
        return info.age_ms

    def info_of(self, one: ModelTransaction) -> klamm.TransactionInfo:
        """What everybody can see of it, once something is appended."""
        identity = one.real._identity
        assert identity is not None
        (info,) = [
            each
            for each in self.stores[0].transactions
            if (each.producer_id, each.epoch) == (identity.producer_id, identity.epoch)
        ]
        return info

    @precondition(lambda self: any(each.ended_by for each in self.transactions))
    @rule(data=st.data(), how=st.sampled_from(["send", "commit", "abort"]))
    def zombie(self, data: st.DataObject, how: str) -> None:
        """Whoever was ended by others is told, and nothing comes of what it does."""
        one = data.draw(st.sampled_from([each for each in self.transactions if each.ended_by]))
        if how == "abort":
            one.real.abort()
        elif how == "commit" and one.is_empty:
            one.real.commit()  # of nothing
        elif how == "commit" or one.direct:
            with pytest.raises(one.ended_by):
                one.real.commit() if how == "commit" else one.real.send("orders", b"zombie", partition=0)
            one.ended_by = (klamm.Aborted,)  # it was told: from now on, that it cannot go on
            one.is_empty = False
        else:
            one.real.send("orders", b"zombie", partition=0)  # which is told when it is appended
            one.is_empty = False
        if how != "send":
            assert one.real.state == "aborted" or one.is_empty
            one.ended_by = ()

    @rule(which=st.integers(0, 1))
    def reopen(self, which: int) -> None:
        """What it has open is aborted, and names can be had again."""
        self.stores[which].close()
        for one in self.transactions:
            if one.store == which:
                if one.state == "open":
                    self.end(one, "aborted")
                one.ended_by = ()
        self.stores[which] = klamm.open(self.path)
        self.fenced = {each for each in self.fenced if each[0] != which}
        self.holder = {name: store for name, store in self.holder.items() if store != which}

    @rule()
    def keep_house(self) -> None:
        self.stores[0].maintain()

    @invariant()
    def readers_see_what_the_model_says(self) -> None:
        for number, log in enumerate(self.logs):
            everything = [value for value, _ in log]
            committed = []
            for value, one in log:
                if one is not None and one.state == "open":
                    break
                if one is None or one.state == "committed":
                    committed.append(value)
            readings: list[tuple[klamm.Isolation, list[Any]]] = [
                ("read_uncommitted", everything),
                ("read_committed", committed),
            ]
            for isolation, expected in readings:
                with self.stores[0].consumer(
                    "orders", partitions=[number], wait=0, form="values", isolation=isolation
                ) as reader:
                    assert [value for batch in reader.batches() for value in batch] == expected, isolation


TestTransactions = Transactions.TestCase
TestTransactions.settings = STEPS
