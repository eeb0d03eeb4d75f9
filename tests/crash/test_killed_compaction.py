"""SIGKILL, and a power cut, at every step of a compaction: nothing that matters is lost, nothing that went comes back,
and readers in the middle of it read on.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import klamm
from klamm.batch import decode
from klamm.disk import _os
from klamm.log import cleaner_checkpoint, head
from klamm.log.partition import Partition
from klamm.log.reader import Reader
from tests.crash.cases import memory_directory, seed_of
from tests.crash.powercut import LAST
from tests.crash.recording import Notes, Recording
from tests.log.compacted import Sent, append, in_transaction, indexes_are_true, latest, put, roll, seen
from tests.log.logs import move_clock
from tests.procs import until
from tests.rig import Rig, dies, killed_at

SCRIPT = Path(__file__).with_name("compact_once.py")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with memory_directory(tmp_path) as path:
        yield Rig(path)


def log(rig: Rig, slot: int) -> Partition:
    return rig.partition(slot, cleanup_policy="compact", segment_bytes=1 << 20, delete_retention_ms=0)


def fill(heads: head.Heads, partition: Partition) -> list[Sent]:
    """Segments of which all goes, some goes and nothing goes; tombstones, old and new; what was aborted."""
    sent = put(partition, (b"a", b"1"), (b"deleted", b"1"), (b"b", b"1"))
    roll(partition)
    sent += append(partition, [(b"a", b"2"), (b"deleted", None), (b"unique", b"1", [("h", b"1")], 77)], codec=4)
    partition.cleanup.compact(force=True)  # the tombstone has its horizon now, and may go with the next one
    until(lambda: heads.clock_ms() > cleaner_checkpoint.load(partition.directory).last_horizon, "the horizon")
    sent += put(partition, (b"only", b"1"))
    roll(partition)
    partition.append(in_transaction(3, 0, [(b"a", b"aborted")]))
    partition.append_marker(3, 1, commit=False)
    sent += put(partition, (b"a", b"3"), (b"b", b"2"))
    return sent


def wanted(sent: list[Sent]) -> list[Sent]:
    return [record for record in latest(sent) if record.value is not None]


def read_on(reader: Reader) -> list[Sent]:
    found = []
    while data := reader.read(100):
        found += [Sent(r.offset, r.key, r.value, r.timestamp, tuple(r.headers)) for r in decode(data)]
    return found


def holds(partition: Partition, sent: list[Sent]) -> None:
    """Every record is one that was sent, each key's latest is there, and nothing deleted has come back."""
    found = seen(partition, max_bytes=100)
    assert set(found) <= set(sent)
    assert [record.offset for record in found] == sorted({record.offset for record in found})
    assert wanted(found) == wanted(sent)


def test_a_compaction_killed_at_any_step_loses_nothing_and_the_next_one_finishes_it(rig: Rig) -> None:
    step, alive = 0, False
    while not alive:
        step += 1
        slot = rig.fresh_slot()
        partition = log(rig, slot)
        sent = fill(rig.heads, partition)
        readers = [log(rig.child(), slot).reader(start) for start in (0, 4, 5)]
        begun = [[] if number == 0 else _records(reader.read(1)) for number, reader in enumerate(readers)]

        def compact(slot: int = slot, step: int = step) -> None:
            mine = log(rig.child(), slot)
            killed_at(step, lambda: mine.cleanup.compact(force=True))()

        alive = not dies(compact)
        for reader, before in zip(readers, begun, strict=True):
            found = before + read_on(reader)
            assert set(found) <= set(sent)
            assert len({record.offset for record in found}) == len(found), "a record twice"
            assert {r.key for r in wanted(sent)} - {b"a", b"b", b"only"} <= {r.key for r in found} or before
            assert wanted(sent)[-2:] == found[-2:]
        holds(partition, sent)
        holds(log(rig.child(), slot), sent)
        partition.log.set_flags(head.NEEDS_RECOVERY)  # the same after a power cut
        again = log(rig.child(), slot)
        holds(again, sent)
        assert not list(Path(again.directory).glob("*.cleaned"))
        move_clock(rig, 1000)
        again.cleanup.compact(force=True)
        move_clock(rig, 1000)
        again.cleanup.compact(force=True)
        assert seen(again) == wanted(sent)
        indexes_are_true(again)
        assert again.ends().stable == again.ends().end
    assert step > 80


def _records(data: memoryview) -> list[Sent]:
    return [Sent(r.offset, r.key, r.value, r.timestamp, tuple(r.headers)) for r in decode(data)]


def test_two_compactions_killed_one_after_the_other_bring_nothing_back(rig: Rig) -> None:
    """The first may have given a tombstone its time, the second have taken it away: what it deletes went before."""
    deaths = 0
    for first in range(60, 125, 4):
        for second in range(60, 125, 4):
            slot = rig.fresh_slot()
            partition = log(rig, slot)
            sent = put(partition, (b"deleted", b"1"), (b"a", b"1"))
            roll(partition)
            sent += put(partition, (b"b", b"1"))
            roll(partition)
            sent += put(partition, (b"deleted", None), (b"a", b"2"))
            roll(partition)
            partition.checkpoint()

            def compact(step: int, slot: int = slot) -> None:
                mine = log(rig.child(), slot)
                killed_at(step, lambda: mine.cleanup.compact(force=True))()

            deaths += dies(lambda compact=compact, first=first: compact(first))  # type: ignore[misc]
            holds(partition, sent)
            move_clock(rig, 1000)
            deaths += dies(lambda compact=compact, second=second: compact(second))  # type: ignore[misc]
            holds(partition, sent)
    assert deaths > 200


def test_an_error_at_any_step_is_raised_or_harmless(rig: Rig) -> None:
    """EIO, wherever the disk may say it."""
    raised = 0
    for step in range(1, 160):
        slot = rig.fresh_slot()
        partition = log(rig, slot)
        sent = fill(rig.heads, partition)
        _os.trap(step, error=5)
        try:
            partition.cleanup.compact(force=True)
        except klamm.KlammError:
            raised += 1
        finally:
            _os.trap(0)
        holds(partition, sent)
        partition.cleanup.compact(force=True)
        holds(partition, sent)
    assert raised > 20


# ---- power cuts


def test_a_power_cut_at_any_step_of_a_compaction_loses_nothing_and_brings_nothing_back(tmp_path: Path) -> None:
    """A store with everything synced is compacted, and cut at every step, with any part of what was not synced."""
    with memory_directory(tmp_path) as scratch:
        with klamm.open(scratch / "root" / "store") as store:
            store.topics.create("users", settings={"cleanup.policy": "compact", "delete.retention.ms": 0})
            fill(store._acquired().heads, store._acquired().topic("users").partition(0))
        recording = Recording(scratch / "root", SCRIPT)
        assert len(recording.moments) > 60
        recording.cut(lambda root, _: check_users(root / "store"), seed=seed_of(), lucks=[0, 1, LAST, None, None])


def check_users(path: Path) -> None:
    with klamm.open(path) as store:
        with store.consumer("users", wait=0) as users:
            found = {record.key: record.value for record in users}
        left = {key: value for key, value in found.items() if value is not None}
        assert left == {b"a": b"3", b"b": b"2", b"unique": b"1", b"only": b"1"}
        assert store.check().breaches == []
        store["users"].compact(force=True)
        with store.consumer("users", wait=0) as users:
            assert [record.key for record in users if record.value] == [b"unique", b"only", b"a", b"b"]


def test_an_index_of_an_older_file_never_comes_back_beside_a_compacted_one(tmp_path: Path) -> None:
    """Two compactions replace a segment, each cut right after that."""

    def append(root: Path, *keys: int) -> None:
        with klamm.open(root / "store") as store:
            if "users" not in store.topics:
                store.topics.create("users", settings={"cleanup.policy": "compact", "index.interval.bytes": 100})
            partition = store._acquired().topic("users").partition(0)
            for key in keys:
                put(partition, (b"%d" % key, b"." * (key + 10)))
            roll(partition)
            put(partition, (b"active", b"1"))

    def replaced(recording: Recording) -> list[int]:
        """Return the moments at which a segment has just been replaced, and the directory not been synced."""
        return [
            number
            for number, step in enumerate(recording.steps, 1)
            if step.kind == "R" and step.names[1].endswith(".log")
        ]

    def check(root: Path, _: Notes) -> None:
        with klamm.open(root / "store") as store:
            assert store.check().breaches == []

    with memory_directory(tmp_path) as scratch:
        append(scratch / "root", *range(20))
        append(scratch / "root", *range(10))  # these go from the first segment
        recording = Recording(scratch / "root", SCRIPT)
        states = recording.states(replaced(recording))
        _, disk, _ = next(states)
        disk.cut(scratch / "again", random.Random(1), LAST)
        append(scratch / "again", *range(10, 15))
        recording = Recording(scratch / "again", SCRIPT)
        assert recording.cut(check, seed=seed_of(), lucks=[LAST, 1], moments=replaced(recording)) >= 2
