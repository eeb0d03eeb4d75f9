"""Transactions whose process is killed, or stopped, at every step and at random: whole or not there, exactly once.

Each moves one record from `in` to both partitions of `out`, together with its group's offset. So at any time, once what
was left is resolved, both partitions of `out` hold exactly the records before the group's offset.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.disk import _os
from klamm.errors import TransactionError
from klamm.store import once
from tests.crash.cases import seed_of
from tests.procs import Child, Flag, children, until
from tests.rig import dies, killed_at


@pytest.fixture
def store(path: Path) -> Iterator[klamm.Store]:
    with klamm.open(path) as opened:
        opened.topics.create("in")
        opened.topics.create("out", 2)
        opened.append_many("in", [b"%d" % n for n in range(500)])
        yield opened


def values(store: klamm.Store, partition: int, topic: str = "out") -> list[int]:
    with store.consumer(topic, partitions=[partition], wait=0, form="values") as consumer:
        return [int(value) for value in consumer]


def progress(store: klamm.Store, topic: str = "in", partition: int = 0, group: str = "g") -> int:
    core = store._acquired()
    found = core.groups.find(group)
    rows = {} if found is None else core.groups.offsets(found.number)
    row = rows.get((core.topic(topic).topic.id, partition))
    return 0 if row is None else row.offset


def move_one(store: klamm.Store, around: Callable[[Callable[[], object]], object], **options: Any) -> None:
    """One transaction, in what `around` makes of it."""
    with store.consumer("in", group="g", wait=0) as consumer:
        batch = consumer.poll(1, timeout=20)
        assert len(batch) == 1

        def move() -> None:
            with consumer.transaction(**options) as tx:
                tx.send("out", batch[0].value, partition=0)
                tx.send("out", batch[0].value, partition=1)
                tx.commit_offsets(batch)

        around(move)


def is_whole(store: klamm.Store) -> int:
    """All or nothing holds; how many transactions there were."""
    done = progress(store)
    assert values(store, 0) == values(store, 1) == list(range(done))
    assert list(store.transactions) == []
    return done


STEPS = 400
ALL = pytest.param(1, marks=pytest.mark.soak)  # all steps; else one of so many, other ones each time


def first_step(stride: int) -> int:
    first = 1 + seed_of() % stride
    print(f"steps {first}, {first + stride}, …")
    return first


@pytest.mark.parametrize("batch_bytes", [1, 1000], ids=["appended at once", "appended at the end"])
@pytest.mark.parametrize("stride", [6, ALL])
def test_killed_at_any_step_it_is_there_whole_or_not_at_all(
    store: klamm.Store, path: Path, batch_bytes: int, stride: int
) -> None:
    """Another process resolves what the killed one left: one that is there already, or one that opens the store."""
    outcomes = set()
    step, alive = first_step(stride) - stride, False
    while not alive:
        step += stride
        before = progress(store)

        def work(step: int = step) -> None:
            with klamm.open(path) as mine:
                move_one(mine, lambda move: killed_at(step, move)(), batch_bytes=batch_bytes)

        alive = not dies(work)
        if step // stride % 2 or alive:
            store._acquired().transactions.resolve()
            done = is_whole(store)
        else:
            with children() as start:
                done = start(lambda: whole_when_opened(path)).answer()
        assert done in (before, before + 1)
        outcomes.add(done - before)
        assert done == before + 1 or not alive
        assert step < STEPS
    assert step > 40 and outcomes == {0, 1}
    assert store.check().ok


@pytest.mark.parametrize("stride", [6, ALL])
def test_a_job_that_is_killed_at_any_step_and_run_again_is_done_once(
    store: klamm.Store, path: Path, stride: int
) -> None:
    step, alive, number, runs = first_step(stride) - stride, False, 0, 0

    def work(step: int, number: int) -> None:
        with klamm.open(path) as mine:

            def load() -> None:
                with mine.transaction() as tx:
                    tx.once("loader", number, fingerprint=f"f{number}")
                    for partition in (0, 1):
                        tx.send("out", b"%d" % number, partition=partition)

            killed_at(step, load)()

    while not alive:
        step += stride
        alive = not dies(partial(work, step, number))
        if not alive:
            with children() as start:
                start(partial(work, STEPS, number)).answer()  # as a scheduler does
        runs += 1
        number += 1
        assert values(store, 0) == values(store, 1) == list(range(number))
        assert once.last(store._acquired().catalog.database, "loader") == number - 1
        assert step < STEPS
    assert runs > 5 and store.check().ok


def whole_when_opened(path: Path) -> int:
    with klamm.open(path) as mine:
        return is_whole(mine)


@pytest.mark.parametrize("stride", [6, ALL])
def test_the_resolver_killed_at_any_step_leaves_it_to_the_next(store: klamm.Store, path: Path, stride: int) -> None:
    step, lived, decided = first_step(stride) - stride, 0, False
    while lived < 2:  # once with what was committed, once with what was not
        step += stride
        decided = not decided

        def leave(decided: bool = decided) -> None:
            """Killed with the transaction open, or just after the commit point."""
            with klamm.open(path) as mine:

                def act(move: Callable[[], object]) -> None:
                    mine._acquired().transactions.finish = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
                    if not decided:
                        mine._acquired().transactions.decide = mine._acquired().transactions.finish  # type: ignore[assignment, method-assign]
                    move()

                move_one(mine, act)

        before = progress(store)
        # The resolver opens the store before there is something to resolve, so that all of it happens under the trap.
        with children() as start:
            ready, go = Flag(f"{path}.ready-{step}"), Flag(f"{path}.go-{step}")

            def wait_and_resolve(step: int = step, ready: Flag = ready, go: Flag = go) -> None:
                mine = klamm.open(path)
                ready.up()
                go.wait()
                killed_at(step, mine._acquired().transactions.resolve)()

            second = start(wait_and_resolve)
            ready.wait()
            assert dies(leave)
            go.up()
            status = second.ended()
        lived += os.WIFEXITED(status)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0 and list(store.transactions) == []
        store._acquired().transactions.resolve()
        assert is_whole(store) == before + decided
        assert step < STEPS
    assert step > 20


@pytest.mark.parametrize("stride", [9, ALL])
def test_stopped_at_any_step_and_timed_out_it_is_whole_and_its_process_knows_how_it_ended(
    store: klamm.Store, path: Path, stride: int
) -> None:
    """Whoever resolves may have to wait for a lock that the stopped process holds; then that one goes on first."""
    outcomes = set()
    step, reached = first_step(stride) - stride, True
    while reached:
        step += stride
        before = progress(store)

        def work(step: int = step) -> str:
            with klamm.open(path) as mine:
                told = "committed"

                def act(move: Callable[[], object]) -> None:
                    nonlocal told
                    _os.trap(step, signal=signal.SIGSTOP)
                    try:
                        move()
                    except TransactionError as error:
                        told = type(error).__name__
                    finally:
                        _os.trap(0)

                move_one(mine, act, timeout=0.001, batch_bytes=1)
                return told

        with children() as start:
            stopped = start(work)
            reached = stopped.stopped()
            resolver = start(lambda: resolved(path))
            if reached:
                # Done, or it waits for the stopped one; asked of the kernel's clock, for a resolver naps, too.
                deadline = time.monotonic() + 0.25
                until(lambda r=resolver, d=deadline: not r.running or time.monotonic() > d, "it resolves or waits")  # type: ignore[misc]
            stopped.go_on()
            told = stopped.answer()
            resolver.answer()
        store._acquired().transactions.resolve()
        done = is_whole(store)
        assert told in ("committed", "Aborted")
        assert done == before + (told == "committed"), (step, told)
        outcomes.add(told)
        assert step < STEPS
    assert outcomes == {"committed", "Aborted"} and step > 40


def resolved(path: Path) -> None:
    with klamm.open(path) as mine:
        mine._acquired().transactions.resolve()


def test_a_stopped_process_holds_nobody_up_longer_than_its_time_out(store: klamm.Store, path: Path) -> None:
    """And when it goes on, neither a late record nor a late commit gets through."""

    def work() -> list[str]:
        with klamm.open(path) as mine:
            told = []
            first = mine.transaction(timeout=1.5, batch_bytes=1)
            second = mine.transaction(timeout=1.5, batch_bytes=1)
            for tx in (first, second):
                tx.send("out", b"0", partition=0)
            os.kill(os.getpid(), signal.SIGSTOP)
            for act in (lambda: first.send("out", b"1", partition=0), first.commit, second.commit):
                try:
                    act()
                    told.append("nothing")
                except TransactionError as error:
                    told.append(type(error).__name__)
            with mine.transaction() as tx:
                tx.send("out", b"3", partition=0)
            return told

    with children() as start, store.consumer("out", partitions=[0], form="values") as reader:
        stopped = start(work)
        assert stopped.stopped()
        store.append("out", b"2", partition=0)
        assert list(reader.poll(timeout=20)) == [b"2"]
        stopped.go_on()
        assert stopped.answer() == ["Aborted"] * 3
        assert list(reader.poll(timeout=20)) == [b"3"]


# ---- at random


def pipeline(path: Path, seed: int) -> None:
    """Consume, transform, produce, for ever: f(value) goes to the partition of `result` that it was in in `source`."""
    chance = random.Random(seed)
    with klamm.open(path) as store, store.consumer("source", group="p") as consumer:
        for batch in consumer.batches(chance.randrange(1, 8)):
            with consumer.transaction(batch_bytes=chance.choice([1, 50, 10_000])) as tx:
                for record in batch:
                    tx.send("result", b"f(%s)" % record.value, partition=record.partition)
                tx.commit_offsets(batch)
                if chance.random() < 0.1:
                    tx.abort()


@pytest.mark.parametrize(
    ("workers", "seconds"), [(1, 2.5), (3, 3), pytest.param(4, 600, marks=pytest.mark.soak)], ids=str
)
def test_every_record_is_processed_exactly_once_though_processes_are_killed_at_random(
    path: Path, workers: int, seconds: float
) -> None:
    seed = seed_of()
    chance = random.Random(seed)
    with klamm.open(path) as store:
        store.topics.create("source", 3)
        store.topics.create("result", 3)
        sent = 0
        kills = 0
        with children() as start:
            reader = Reader(store)
            living: list[Child] = []
            end = time.monotonic() + seconds
            while time.monotonic() < end or kills <= 10:
                living = [child for child in living if child.running]
                while len(living) < workers:
                    living.append(start(partial(pipeline, path, chance.randrange(1 << 32))))
                store.append_many("source", [(b"%d" % n, b"%d" % n) for n in range(sent, sent + 20)], acks=1)
                sent += 20
                time.sleep(chance.uniform(0, 0.15))
                victim = chance.choice(living)
                assert victim.running, "a worker failed"
                victim.kill()
                kills += 1
            last = start(lambda: pipeline(path, seed - 1))
            until(lambda: reader.count >= sent or not last.running, "everything is processed", seconds=60)
            for child in [*living, last]:
                child.kill()
            reader.stop()
        store._acquired().transactions.resolve()
        for partition in range(3):
            want = [b"f(%s)" % value for value in raw(store, "source", partition)]
            assert raw(store, "result", partition) == want == reader.seen[partition]
        assert kills > 10 and list(store.transactions) == []
        assert store.check().ok


def raw(store: klamm.Store, topic: str, partition: int) -> list[bytes]:
    with store.consumer(topic, partitions=[partition], wait=0, form="values") as consumer:
        return list(consumer)


class Reader:
    """Reads `result` all the time: what it has seen must be what is there in the end."""

    def __init__(self, store: klamm.Store) -> None:
        self.seen: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
        self._consumer = store.consumer("result")
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def count(self) -> int:
        return sum(map(len, self.seen.values()))

    def _run(self) -> None:
        for batch in self._consumer.batches():
            self.seen[batch.partition] += [record.value for record in batch]

    def stop(self) -> None:
        self._consumer.stop()
        self._thread.join()
        self._consumer.close()


def test_a_named_process_that_is_restarted_ends_what_it_left_before_it_reads(path: Path, tmp_path: Path) -> None:
    with klamm.open(path) as store:
        store.topics.create("out")
        sent = Flag(tmp_path / "sent")

        def work() -> None:
            with klamm.open(path) as mine:
                tx = mine.transaction("worker", batch_bytes=1)
                tx.send("out", b"1")
                sent.up()
                os.kill(os.getpid(), signal.SIGSTOP)

        with children() as start:
            old = start(work)
            assert old.stopped()
            assert sent
            with store.transaction("worker") as tx:
                tx.send("out", b"2")
            assert values(store, 0) == [2]
