"""Pipes against their reference: whatever is done, in whatever order, outputs and state are what the committed records
come to. One process, one step after the other; what several processes do at once is for tests/crash/.
"""

from __future__ import annotations

import shutil
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import klamm
from tests.client import pipes
from tests.client.test_models import new_store
from tests.procs import until

PARTITIONS = 3


class Poisoned(Exception):
    """The function does not like a record."""


class Pipes(RuleBasedStateMachine):
    """Pipes of one group that come, go, run and fail, while records come and the state is compacted."""

    def __init__(self) -> None:
        super().__init__()
        self.path = new_store()
        self.store = klamm.open(self.path)
        for topic in (pipes.IN, pipes.LEFT, pipes.RIGHT):
            self.store.topics.create(topic, PARTITIONS)
        self.pipes: list[klamm.Pipe] = []
        self.poison: int | None = None
        self.count = 0

    def teardown(self) -> None:
        self.poison = None
        if not self.pipes:
            self.open(10)
        until(lambda: [self.run_one(pipe) for pipe in self.pipes] and self.is_drained(), "all is read")
        found = pipes.anomalies(self.store)
        self.store.close()
        shutil.rmtree(self.path)
        assert found == []

    def is_drained(self) -> bool:
        ends = {each.number: each.end for each in self.store.topics.describe(pipes.IN).partitions}
        done = pipes.progress(self.store)
        stands = {number: done.get(number, 0) for number in ends}
        with self.store.consumer(pipes.IN, start=stands, wait=0) as rest:
            return not rest.poll()

    # ---- input

    @rule(count=st.integers(1, 8), key=st.integers(0, 5), ends=st.sampled_from(["plain", "committed", "aborted"]))
    def write(self, count: int, key: int, ends: str) -> None:
        values = [b"%d" % (self.count + n) for n in range(count)]
        self.count += count
        name, partition = b"k%d" % key, key % PARTITIONS
        if ends == "plain":
            self.store.append_many(pipes.IN, [(name, value) for value in values], partition=partition, acks=1)
            return
        transaction = self.store.transaction()
        for value in values:
            transaction.send(pipes.IN, value, key=name, partition=partition)
        if ends == "committed":
            transaction.commit()
        else:
            transaction._append_full()
            transaction.abort()

    # ---- pipes

    @precondition(lambda self: len(self.pipes) < 3)
    @rule(max_records=st.sampled_from([1, 3, 100]))
    def open(self, max_records: int) -> None:
        def taste(record: klamm.Record) -> None:
            if self.poison is not None and int(record.value) % 4 == self.poison:
                raise Poisoned

        function = pipes.make(before=taste)
        self.pipes.append(pipes.open_pipe(self.store, function, max_records=max_records))

    def run_one(self, pipe: klamm.Pipe) -> Any:
        try:
            return pipe.run(wait=0)
        except Poisoned:
            return None

    @precondition(lambda self: self.pipes)
    @rule(data=st.data())
    def run(self, data: st.DataObject) -> None:
        self.run_one(data.draw(st.sampled_from(self.pipes)))

    @precondition(lambda self: self.pipes)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        pipe = data.draw(st.sampled_from(self.pipes))
        self.pipes.remove(pipe)
        pipe.close()

    @rule(poison=st.one_of(st.none(), st.integers(0, 3)))
    def poisons(self, poison: int | None) -> None:
        self.poison = poison

    # ---- around them

    @precondition(lambda self: pipes.STATE in self.store.topics)
    @rule()
    def compact(self) -> None:
        self.store[pipes.STATE].compact(force=True)

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.pipes.clear()
        self.store = klamm.open(self.path)

    @precondition(lambda self: pipes.STATE in self.store.topics)
    @invariant()
    def is_whole(self) -> None:
        assert pipes.anomalies(self.store) == []


TestPipes = Pipes.TestCase
TestPipes.settings = settings(max_examples=60, stateful_step_count=30, print_blob=True)
