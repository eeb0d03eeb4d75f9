"""A power cut at any step of `klamm serve`, while three clients use it (serve_workload.py).

All that was acknowledged with acks=all is there, at the offsets that were told, in every partition of a request.
Nothing is invented, doubled or out of order. Transactions are whole or not there, with their offsets. Ids and epochs
of producers do not repeat. The second life starts from what a cut of the first left.

A failure prints its seed, which KLAMM_SEED gives back. Threads make the steps of a run differ, so its trace is kept.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.batch import RECORDS, Record, decode
from tests.crash.cases import memory_directory, seed_of
from tests.crash.recording import Luck, Notes, Recording
from tests.crash.rounds import SOAK_SECONDS
from tests.crash.serve_workload import GROUP, LOGS, MOVER, TOPICS, codec_of
from tests.crash.workload import log_of
from tests.kafka.producing import Client, serving
from tests.kafka.requests import sealed
from tests.store.open_transactions import seen

WORKLOAD = Path(__file__).with_name("serve_workload.py")


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    with memory_directory(tmp_path) as path:
        yield path


class Sent:
    """A batch that an idempotent producer has sent to a log."""

    def __init__(self, client: str, producer: int, epoch: int, sequence: int, values: list[str]) -> None:
        self.client, self.producer, self.epoch, self.sequence, self.values = client, producer, epoch, sequence, values
        self.base: int | None = None  # where it is, on disk


class Told:
    """What clients were told, and what they asked for."""

    def __init__(self, notes: Notes) -> None:
        self.topics: set[str] = set()
        self.sent: dict[str, list[Sent]] = {f"{topic}/{number}": [] for topic, number in LOGS}
        self.producers: set[int] = set()
        self.mover = (-1, -1)
        self.committed = self.asked = 0
        for note in notes:
            self._hear(**note)

    def _hear(self, **note: Any) -> None:
        match next(iter(note)):
            case "created":
                self.topics.add(note["created"])
            case "sending":
                self.producers.add(note["producer"])
                for log, (sequence, values) in note["batches"].items():
                    self.sent[log].append(Sent(note["sending"], note["producer"], note["epoch"], sequence, values))
            case "acked":
                for log, base in note["bases"].items():
                    [each for each in self.sent[log] if each.client == note["acked"]][-1].base = base
            case "producer":
                self.mover = max(self.mover, (note["id"], note["epoch"]))
            case "committing":
                self.asked = max(self.asked, note["committing"] + 1)
            case "committed":
                self.committed = max(self.committed, note["committed"] + 1)


def check(root: Path, notes: Notes) -> None:
    """Check what is left of the store after a cut."""
    told = Told(notes)
    with klamm.open(root / "store") as store:
        assert told.topics <= set(store.topics) <= set(TOPICS)
        if told.topics < set(TOPICS):
            return
        for name, sent in told.sent.items():
            _check_log(store, name, sent)
        _check_mover(store, told)
        fresh = store._acquired().catalog.allocate_producer_id()
        assert fresh > max(told.producers | {told.mover[0]}, default=-1), "a producer id is given out again"
        report = store.check()
        assert report.ok, report.breaches


def _read(store: klamm.Store, name: str) -> list[Record]:
    records: list[Record] = []
    with log_of(store, name).reader(0) as reader:
        while data := reader.read():
            records += decode(data, form=RECORDS)
    return records


def _check_log(store: klamm.Store, name: str, sent: list[Sent]) -> None:
    records = _read(store, name)
    assert [record.offset for record in records] == list(range(len(records))), f"{name}: a gap"
    values = [record.value.decode() for record in records]
    for batch in sent:
        if batch.base is not None:
            there = values[batch.base : batch.base + len(batch.values)]
            assert there == batch.values, f"{name}: {batch.values} was acknowledged at {batch.base}, where {there} is"
    for client in {batch.client for batch in sent}:
        mine = [value for value in values if value.startswith(f"{client} ")]
        asked = [value for batch in sent if batch.client == client for value in batch.values]
        assert mine == asked[: len(mine)], f"{name}: records of {client} are missing, doubled or out of order"
    clients = tuple(f"{batch.client} " for batch in sent)
    assert all(value.startswith(clients) for value in values), f"{name}: a record that nobody sent"
    for producer in {batch.producer for batch in sent}:
        last = [batch for batch in sent if batch.producer == producer][-1]
        if last.base is not None:  # sent again, it is recognised
            times = [record.timestamp for record in records[last.base :]]
            again = sealed(
                [(None, value.encode(), None, times[n]) for n, value in enumerate(last.values)],
                codec=codec_of(last.client),
                producer_id=producer,
                producer_epoch=last.epoch,
                base_sequence=last.sequence,
            )
            assert log_of(store, name).append(again) == last.base, f"{name}: a repeated batch is appended again"
    epoch = max((record.leader_epoch for record in records), default=-1)
    assert log_of(store, name).ends().leader_epoch > epoch, f"{name}: the leader epoch of before the cut goes on"


def _check_mover(store: klamm.Store, told: Told) -> None:
    with serving(store) as coordinator:
        mover = Client(store, coordinator, MOVER, bumps=True)
        assert not mover.init()
        assert (mover.producer_id, mover.epoch) > told.mover, "the epoch of a producer goes back"
    both = seen(store, 0, 1, topic="moved")
    done = len(both[0])
    assert both == [[b"%d" % number for number in range(done)]] * 2, "a transaction is there in part"
    assert told.committed <= done <= max(told.committed, told.asked), "a committed transaction is gone, or one invented"
    offsets = [row["offset"] for row in store.groups.export(GROUP)["offsets"]] if GROUP in store.groups else []
    assert offsets == [done] * bool(done), "the offset of the group is not that of its transaction"


def live_and_die(scratch: Path, seed: int, lives: list[Luck], stride: int) -> int:
    """Record one life after the other, each from what a cut of the one before left. Return the number of cuts."""
    cuts, root = 0, scratch / "life-1"
    before: Notes = []
    dice = random.Random(seed)
    for number, lucks in enumerate(lives, 1):
        recording = Recording(root, WORKLOAD, str(number), str(seed + 10 * number))
        earlier = before
        moments = recording.moments[dice.randrange(stride) :: stride]
        moments.append(recording.after(over=number))

        def check_both(cut: Path, notes: Notes, earlier: Notes = earlier) -> None:
            check(cut, earlier + notes)

        cuts += recording.cut(check_both, seed=seed, lucks=lucks, moments=moments)
        chosen = dice.choice(recording.moments[len(recording.moments) // 2 :])
        root = scratch / f"life-{number + 1}"
        ((_, disk, notes),) = recording.states([chosen])
        disk.cut(root, dice, None)
        before = earlier + notes
    return cuts


def test_no_power_cut_of_a_server_loses_what_it_acknowledged(scratch: Path) -> None:
    assert live_and_die(scratch, seed_of(), [[0, None], [0]], stride=11) > 50


@pytest.mark.soak
def test_no_power_cut_of_a_server_does_in_an_hour(scratch: Path) -> None:
    seed = seed_of()
    until = time.monotonic() + SOAK_SECONDS
    while time.monotonic() < until:
        print(f"KLAMM_SEED={seed}")
        with memory_directory(scratch) as fresh:
            live_and_die(fresh, seed, [[0, 1, None, None]] * 4, stride=1)
        seed += 100
