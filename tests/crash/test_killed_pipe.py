"""A pipe whose process is killed at every step: outputs, state and progress are there together, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import klamm
from tests.client import pipes
from tests.crash.cases import seed_of
from tests.procs import children
from tests.rig import dies, killed_at

STEPS = 900
ALL = pytest.param(1, marks=pytest.mark.soak)  # all steps; else one of so many, other ones each time


@pytest.fixture
def store(path: Path) -> Iterator[klamm.Store]:
    with klamm.open(path) as opened:
        for topic in (pipes.IN, pipes.LEFT, pipes.RIGHT):
            opened.topics.create(topic, 2)
        yield opened


def lag(store: klamm.Store) -> int:
    return sum(each.end for each in store.topics.describe(pipes.IN).partitions) - sum(pipes.progress(store).values())


def fill(store: klamm.Store) -> None:
    """Let there be six records to be read, at least."""
    first = sum(each.end for each in store.topics.describe(pipes.IN).partitions)
    new = [(b"k%d" % (n % 3), b"%d" % n) for n in range(first, first + 6 - lag(store))]
    store.append_many(pipes.IN, new, acks=1)


@pytest.mark.parametrize("stride", [17, ALL])
def test_a_pipe_that_is_killed_at_any_step_has_the_effect_of_what_it_has_committed(
    store: klamm.Store, path: Path, stride: int
) -> None:
    """Now the next process goes on, now one that is there already resolves what the killed one has left."""
    pipes.open_pipe(store).close()
    step, alive, outcomes = 1 + seed_of() % stride - stride, False, set()
    while not alive:
        step += stride
        fill(store)
        before = sum(pipes.progress(store).values())

        def work(step: int = step) -> None:
            with klamm.open(path) as mine, pipes.open_pipe(mine, max_records=4) as pipe:
                killed_at(step, lambda: pipe.run(wait=0))()

        alive = not dies(work)
        if step // stride % 2:
            store._acquired().transactions.resolve()
        else:
            with children() as start:
                start(lambda: klamm.open(path).close()).answer()
        outcomes.add(sum(pipes.progress(store).values()) - before)
        assert pipes.anomalies(store) == [], f"killed at step {step}"
        assert step < STEPS
    assert step > 60 and len(outcomes) > 2
    with pipes.open_pipe(store) as pipe:
        pipe.run(wait=0)
    assert lag(store) == 0
    assert pipes.anomalies(store) == []
    assert store.check().ok
