"""Sixteen processes create topics at once, and some are killed: nothing is lost, nothing is there twice."""

from __future__ import annotations

import os
import random
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from klamm.store.catalog import Catalog, SlotRequest
from tests.procs import Child, children
from tests.store.conftest import lock_of

WORKERS = 16


def work(directory: Path, worker: int, life: int) -> None:
    """Create, grow and delete topics for ever. A line is written before (`?`) and after (`!`) each step."""
    journal = os.open(directory / f"journal-{worker}-{life}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(*words: object) -> None:
        os.write(journal, (" ".join(map(str, words)) + "\n").encode())

    def lay_out(wanted: SlotRequest, *_: object) -> tuple[int, ...]:
        slots = tuple(range(wanted.fresh, wanted.fresh + wanted.how_many))
        note("laid", slots[0], slots[-1])
        return slots

    catalog = Catalog(str(directory / "klamm.db"), lock_of(directory))
    for number in range(1_000_000):
        name = f"t-{worker}-{life}-{number}"
        note("?create", name)
        topic = catalog.create_topic(name, 1 + number % 3, {}, lay_out)
        note("!create", name, topic.partitions[0], topic.partitions[-1])
        if number % 3 == 1:
            note("?delete", name)
            catalog.delete_topic(name)
            note("!delete", name)
        note("!id", catalog.allocate_producer_id())


def created(directory: Path) -> int:
    """How many topics they know to be there, or to have been."""
    return sum(journal.read_text().count("!create") for journal in directory.glob("journal-*"))


def kill(worker: Child) -> None:
    worker.kill()
    assert os.WIFSIGNALED(worker.ended()), f"a worker failed before it was killed\n{worker.error}"
    worker.close()


@pytest.mark.parametrize("seconds", [3, pytest.param(300, marks=pytest.mark.soak)])
def test_nothing_is_lost_or_doubled_when_creators_are_killed(tmp_path: Path, seconds: int) -> None:
    Catalog.create(str(tmp_path / "klamm.db"), lock_of(tmp_path), "x").close()
    chance = random.Random(seconds)
    lives = dict.fromkeys(range(WORKERS), 0)
    end = time.monotonic() + seconds
    with children() as start:
        workers = [start(partial(work, tmp_path, worker, 0)) for worker in lives]
        while time.monotonic() < end or sum(lives.values()) <= 10 or created(tmp_path) <= 100:
            time.sleep(chance.uniform(0, 0.05))
            worker = chance.randrange(WORKERS)
            kill(workers[worker])
            lives[worker] += 1
            workers[worker] = start(partial(work, tmp_path, worker, lives[worker]))
        for child in workers:
            kill(child)

    there: dict[str, tuple[int, int] | None] = {}  # what must be there, with its slots
    unsure: set[str] = set()  # what may be there or not: its creation or deletion was cut short
    gone: set[str] = set()
    laid_out: set[int] = set()
    slots: list[int] = []  # of topics known to have been made, deleted ones too
    producer_ids: list[int] = []
    for journal in tmp_path.glob("journal-*"):
        for line in journal.read_text().splitlines():
            match line.split():
                case ["?create" | "?delete", name]:
                    unsure.add(name)
                case ["laid", first, last]:
                    laid_out.update(range(int(first), int(last) + 1))
                case ["!create", name, first, last]:
                    unsure.discard(name)
                    there[name] = int(first), int(last)
                    slots.extend(range(int(first), int(last) + 1))
                case ["!delete", name]:
                    unsure.discard(name)
                    gone.add(name)
                case ["!id", number]:
                    producer_ids.append(int(number))
    assert len(slots) == len(set(slots)), "a slot was given twice"
    assert len(producer_ids) == len(set(producer_ids)), "a producer id was given twice"
    with closing(Catalog(str(tmp_path / "klamm.db"), lock_of(tmp_path))) as catalog:
        assert catalog.check() == []
        found = {topic.name: topic for topic in catalog.topics()}
    assert there.keys() - gone - unsure <= found.keys(), "a topic was lost"
    assert found.keys() <= (there.keys() - gone) | unsure, "a topic came from nowhere"
    for name, topic in found.items():
        assert set(topic.partitions) <= laid_out, "a topic whose slots nobody laid out"
        if name in there:
            assert (topic.partitions[0], topic.partitions[-1]) == there[name]
    living = [slot for topic in found.values() for slot in topic.partitions]
    assert len(living) == len(set(living))
    assert sum(lives.values()) > 10 and len(slots) > 100
