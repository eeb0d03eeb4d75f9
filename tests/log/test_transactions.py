"""Transactions in one log: what is open is not read, what was aborted never is, and a marker is written once."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.batch import RECORDS, Builder, decode, walk
from klamm.batch.header import TRANSACTIONAL
from klamm.batch.markers import SIZE, commits, marker
from klamm.errors import Fenced, OutOfOrderSequence
from klamm.log import aborted, head, segment
from klamm.log.aborted import Aborted
from klamm.log.partition import Partition
from tests.crash.test_killed_writer import victims
from tests.log.logs import log_file, move_clock, power_cut
from tests.rig import Rig, batch

LARGE = {"segment_bytes": 1 << 20, "index_interval_bytes": 4096}


def transactional(name: str, producer: int, epoch: int = 0, sequence: int = 0) -> bytearray:
    builder = Builder(1 << 20)
    builder.add(None, name.encode(), None, 0)
    return bytearray(
        builder.seal(producer_id=producer, producer_epoch=epoch, base_sequence=sequence, attributes=TRANSACTIONAL)
    )


def read(partition: Partition, start: int = 0, *, committed: bool = True, max_bytes: int = 200) -> list[str]:
    found: list[str] = []
    with partition.reader(start, committed=committed) as reader:
        while data := reader.read(max_bytes):
            found += [record.value.decode() for record in decode(data, form=RECORDS, from_offset=start)]
    return found


def plain(name: str) -> bytearray:
    builder = Builder(1 << 20)
    builder.add(None, name.encode(), None, 0)
    return bytearray(builder.seal())


# ---- the marker itself


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_is_what_kafka_writes(commit: bool) -> None:
    data = marker(4711, 12, commit=commit, timestamp=99)
    assert len(data) == SIZE and commits(data) == commit
    (header,) = walk(data)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4711, 12, -1)
    assert header.is_control and header.is_transactional and header.record_count == 1
    theirs = DefaultRecordBatch(bytes(data))
    assert theirs.validate_crc() and theirs.is_control_batch and theirs.is_transactional
    (record,) = theirs
    assert record.key == bytes([0, 0, 0, commit]) and record.value == bytes(6) and record.timestamp == 99
    assert decode(data) == []


# ---- what is read


def test_what_is_open_is_not_read_and_what_comes_after_it_waits(rig: Rig) -> None:
    partition = rig.partition(1)
    partition.append(plain("a"))
    partition.append(transactional("b", 7))
    partition.append(plain("c"))
    assert read(partition) == ["a"] and partition.ends().stable == 1
    assert read(partition, committed=False) == ["a", "b", "c"]
    assert partition.open_transactions() == [(7, 0, 1)]
    assert partition.append_marker(7, 1, commit=True) == 3
    assert read(partition) == ["a", "b", "c"] and partition.ends().stable == 4
    assert partition.open_transactions() == []


def test_what_was_aborted_is_never_read_except_by_those_who_ask_for_it(rig: Rig) -> None:
    partition = rig.partition(1, **LARGE)
    partition.append(transactional("a", 7))
    partition.append(transactional("b", 8))
    partition.append(transactional("c", 7, sequence=1))
    partition.append_marker(7, 1, commit=False)
    assert read(partition) == [] and partition.ends().stable == 1
    partition.append_marker(8, 1, commit=True)
    assert read(partition) == ["b"]
    assert read(partition, committed=False) == ["a", "b", "c"]
    partition.append(transactional("d", 7, epoch=1))  # the next transaction of the same producer
    partition.append_marker(7, 2, commit=True)
    assert read(partition) == ["b", "d"]
    assert aborted.load(partition.directory, 0) == [(7, 0, 3)]


def test_a_reader_that_waits_in_front_of_an_open_transaction_goes_on_when_it_ends(rig: Rig) -> None:
    partition = rig.partition(1, **LARGE)
    partition.append(plain("a"))
    with partition.reader(0) as reader:
        assert [r.value for r in decode(reader.read())] == [b"a"]
        partition.append(transactional("b", 7))
        partition.append(plain("c"))
        assert not reader.read()
        partition.append_marker(7, 1, commit=False)
        assert [r.value for r in decode(reader.read())] == [b"c"]
        assert not reader.read() and reader.offset == 4
        partition.append(transactional("d", 7, epoch=1))
        partition.append_marker(7, 2, commit=False)
        assert not reader.read() and reader.offset == 6


def test_a_transaction_over_many_segments_is_aborted_in_all_of_them(rig: Rig) -> None:
    partition = rig.partition(1, segment_bytes=200)
    for number in range(10):
        partition.append(transactional(f"t{number}", 7, sequence=number))
        partition.append(plain(f"p{number}"))
    assert len(partition.segments()) > 3
    partition.append_marker(7, 1, commit=False)
    assert read(partition) == [f"p{number}" for number in range(10)]
    assert read(rig.child().partition(1, segment_bytes=200), start=9) == [f"p{number}" for number in range(4, 10)]


def test_expired_segments_take_their_aborted_transactions_with_them(rig: Rig) -> None:
    partition = rig.partition(1, segment_bytes=200, retention_ms=1000)
    for epoch in range(6):
        partition.append(transactional("t", 7, epoch=epoch))
        partition.append_marker(7, epoch + 1, commit=False)
    assert len(segment.bases(partition.directory, aborted.SUFFIX)) > 1
    move_clock(rig, 10_000)
    partition.cleanup.expire()
    assert segment.bases(partition.directory, aborted.SUFFIX) == []
    assert read(partition, partition.ends().start) == []


# ---- epochs


def test_a_marker_is_written_once_and_never_for_a_later_transaction(rig: Rig) -> None:
    partition = rig.partition(1)
    partition.append(transactional("a", 7))
    assert partition.append_marker(7, 1, commit=True) == 1
    assert partition.append_marker(7, 1, commit=True) is None
    assert partition.append_marker(7, 1, commit=False) is None
    partition.append(transactional("b", 7, epoch=1))
    assert partition.append_marker(7, 1, commit=False) is None  # late: it is about epoch 0
    assert partition.open_transactions() == [(7, 1, 2)]
    assert partition.append_marker(7, 2, commit=True) == 3
    assert read(partition) == ["a", "b"]


def test_a_batch_that_comes_after_its_marker_is_fenced_also_where_nothing_was_before(rig: Rig) -> None:
    for slot, first in ((1, True), (2, False)):
        partition = rig.partition(slot)
        if first:
            partition.append(transactional("a", 7))
        partition.append_marker(7, 1, commit=False)
        with pytest.raises(Fenced):
            partition.append(transactional("late", 7, sequence=1 if first else 0))
        assert read(partition) == [] and partition.ends().stable == partition.ends().end


def test_a_new_epoch_may_not_begin_while_the_old_ones_transaction_is_open(rig: Rig) -> None:
    partition = rig.partition(1)
    partition.append(transactional("a", 7))
    with pytest.raises(OutOfOrderSequence):
        partition.append(transactional("b", 7, epoch=1))
    partition.append_marker(7, 1, commit=False)
    partition.append(transactional("b", 7, epoch=1))


def test_a_marker_never_ends_an_older_transaction_that_has_yet_to_get_its_own(rig: Rig) -> None:
    partition = rig.partition(1)
    partition.append(transactional("a", 7))  # committed, say, but its marker was lost in a power cut
    with pytest.raises(OutOfOrderSequence):
        partition.append_marker(7, 2, commit=False)
    partition.append_marker(7, 1, commit=True)
    assert partition.append_marker(7, 2, commit=False) == 2
    assert read(partition) == ["a"]


# ---- one epoch for many transactions: producers over the wire that know no other way


def test_a_marker_of_the_same_epoch_ends_what_is_open_and_the_sequence_goes_on(rig: Rig) -> None:
    partition = rig.partition(1, **LARGE)
    partition.append(transactional("a", 7, epoch=3))
    partition.append(transactional("b", 7, epoch=3, sequence=1))
    assert partition.append_marker(7, 3, commit=True, same_epoch=True) == 2
    assert partition.append_marker(7, 3, commit=False, same_epoch=True) is None, "nothing is open"
    for name, sequence in (("b", 1), ("x", 3)):  # the same batch again would not be in the next transaction
        with pytest.raises(OutOfOrderSequence):
            partition.append(transactional(name, 7, epoch=3, sequence=sequence))
    partition.append(transactional("c", 7, epoch=3, sequence=2))
    assert partition.open_transactions() == [(7, 3, 3)] and read(partition) == ["a", "b"]
    assert partition.append_marker(7, 3, commit=False, same_epoch=True) == 4
    partition.append(transactional("d", 7, epoch=3, sequence=3))
    assert partition.append_marker(7, 3, commit=True, same_epoch=True) == 6
    assert read(partition) == ["a", "b", "d"] and partition.ends().stable == 7
    assert aborted.load(partition.directory, 0) == [(7, 3, 4)]


def test_a_marker_of_the_same_epoch_is_not_written_where_nothing_of_it_is_open(rig: Rig) -> None:
    partition = rig.partition(1)
    assert partition.append_marker(7, 0, commit=True, same_epoch=True) is None
    assert partition.ends().end == 0
    partition.append(transactional("a", 7, epoch=1))
    for other in (0, 2):
        assert partition.append_marker(7, other, commit=False, same_epoch=True) is None
    assert partition.open_transactions() == [(7, 1, 0)]
    assert partition.append_marker(7, 2, commit=True) == 1, "a producer may be fenced by the other kind"
    assert partition.append_marker(7, 1, commit=False, same_epoch=True) is None
    with pytest.raises(Fenced):
        partition.append(transactional("b", 7, epoch=1, sequence=1))


def test_a_marker_of_the_same_epoch_leaves_no_file_where_no_producer_has_written(rig: Rig) -> None:
    """A transaction may have thousands of partitions in which it wrote nothing."""
    partition = rig.partition(1)
    assert partition.append_marker(7, 0, commit=True, same_epoch=True) is None
    assert not Path(partition.directory).exists()
    partition.append(plain("a"))
    before = sorted(Path(partition.directory).iterdir())
    assert partition.append_marker(7, 0, commit=False, same_epoch=True) is None
    assert sorted(Path(partition.directory).iterdir()) == before
    partition.append(transactional("b", 7))
    Path(partition.directory, "producers").unlink()
    assert rig.child().partition(1).append_marker(7, 0, commit=True, same_epoch=True) == 2, "something is open"


def test_a_marker_of_the_other_kind_never_ends_a_transaction_of_its_own_epoch(rig: Rig) -> None:
    partition = rig.partition(1)
    partition.append(transactional("a", 7))
    partition.append_marker(7, 1, commit=True)
    partition.append(transactional("b", 7, epoch=1))
    assert partition.append_marker(7, 1, commit=True) is None  # late
    assert partition.append_marker(7, 1, commit=False) is None
    assert partition.open_transactions() == [(7, 1, 2)] and read(partition) == ["a"]
    assert partition.append_marker(7, 1, commit=True, same_epoch=True) == 3
    assert read(partition) == ["a", "b"]


@pytest.mark.parametrize("checkpoint", ["never", "before the marker", "after it"])
@pytest.mark.parametrize("lost", [False, True])
def test_the_sequence_goes_on_after_recovery_too(rig: Rig, checkpoint: str, lost: bool) -> None:
    partition = rig.partition(1, segment_bytes=300)
    partition.append(transactional("a", 7, epoch=2))
    partition.append(transactional("b", 7, epoch=2, sequence=1))
    if checkpoint == "before the marker":
        partition.checkpoint()
    partition.append_marker(7, 2, commit=False, same_epoch=True)
    if checkpoint == "after it":
        partition.checkpoint()
    power_cut(partition)
    if lost:
        Path(f"{partition.directory}/producers").unlink()
    again = rig.child().partition(1, segment_bytes=300)
    assert again.open_transactions() == [] and again.ends().stable == 3 and read(again) == []
    assert aborted.load_from(again.directory, 0) == {0: [Aborted(7, 0, 2)]}
    with pytest.raises(OutOfOrderSequence):
        again.append(transactional("x", 7, epoch=2, sequence=1 << 10))
    again.append(transactional("c", 7, epoch=2, sequence=2))
    assert again.append_marker(7, 2, commit=True, same_epoch=True) == 4
    assert read(again) == ["c"]


@pytest.mark.parametrize("commit", [True, False])
def test_whoever_writes_a_marker_of_the_same_epoch_and_is_killed_leaves_it_whole_or_to_the_next(
    tmp_path: Path, commit: bool
) -> None:
    def prepare(partition: Partition) -> None:
        partition.append(transactional("t", 7))
        partition.append(batch(0, 0))

    def act(mine: Rig, slot: int):  # type: ignore[no-untyped-def]
        partition = mine.partition(slot)
        return lambda: partition.append_marker(7, 0, commit=commit, same_epoch=True)

    for partition, lived in victims(Rig(tmp_path), prepare, act, steps=20):
        written = partition.append_marker(7, 0, commit=commit, same_epoch=True)
        assert written is None or not lived
        assert partition.ends().stable == partition.ends().end == 3
        assert len(read(partition)) == 1 + commit
        partition.append(transactional("u", 7, sequence=1))
        assert partition.append_marker(7, 0, commit=True, same_epoch=True) == 4
        assert len(read(partition)) == 2 + commit
        power_cut(partition)
        again = Rig(tmp_path).partition(partition.slot)
        assert again.ends().stable == 5 and len(read(again)) == 2 + commit
        again.append(transactional("v", 7, sequence=2))


# ---- recovery


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("lost", [False, True])
def test_recovery_finds_again_what_is_open_and_what_was_aborted(rig: Rig, checkpoint: bool, lost: bool) -> None:
    partition = rig.partition(1, segment_bytes=300)
    partition.append(transactional("gone", 6))
    partition.append_marker(6, 1, commit=False)
    partition.append(transactional("open", 7))
    if checkpoint:
        partition.checkpoint()
    partition.append(transactional("gone, too", 8))
    partition.append(plain("a"))
    partition.append_marker(8, 1, commit=False)
    want = partition.ends().stable, read(partition), partition.open_transactions()
    if lost:  # what was not synced may be gone
        for base in segment.bases(partition.directory, aborted.SUFFIX):
            if not checkpoint or base:
                log_file(partition, base, aborted.SUFFIX).unlink()
    power_cut(partition)
    # A store that may not be written is recovered in memory.
    heads = head.Heads(f"{rig.path}/heads", writable=False, private=True)
    untouched = Partition(
        heads, None, topic="orders", number=1, slot=1, bell_bit=1, directory=partition.directory,
        settings=partition.settings, catalog_version=0, reload=lambda _: None, on_event=lambda *_: None,
    )  # fmt: skip
    assert (untouched.ends().stable, read(untouched)) == want[:2]
    again = rig.child().partition(1, segment_bytes=300)
    assert (again.ends().stable, read(again), again.open_transactions()) == want
    again.append_marker(7, 1, commit=True)
    assert read(again) == ["open", "a"]


# ---- everything at once, against a model


@dataclass
class Model:
    """Records by offset: their name and how their transaction ended; None: it is open."""

    records: dict[int, tuple[str, int | None, bool | None]] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    open: dict[int, list[int]] = field(default_factory=dict)
    end: int = 0

    def add(self, offset: int, name: str, producer: int | None = None) -> None:
        assert offset == self.end
        self.end += 1
        self.records[offset] = (name, producer, True if producer is None else None)
        if producer is not None:
            self.open.setdefault(producer, []).append(offset)

    def close(self, offset: int, producer: int, commit: bool) -> None:
        assert offset == self.end
        self.end += 1
        for each in self.open.pop(producer, []):
            self.records[each] = (self.records[each][0], producer, commit)

    @property
    def stable(self) -> int:
        return min((offsets[0] for offsets in self.open.values()), default=self.end)

    def committed(self) -> list[str]:
        return [name for offset, (name, _, fate) in self.records.items() if fate and offset < self.stable]


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["plain", "send", "send", "commit", "abort", "late", "reopen", "cut", "cut+", "checkpoint"]),
        st.integers(0, 2),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(actions=ACTIONS, size=st.sampled_from([150, 400, 1 << 20]))
def test_any_sequence_of_transactions_is_read_as_a_model_says(
    shared: Rig, actions: list[tuple[str, int]], size: int
) -> None:
    slot = shared.fresh_slot()
    partition = shared.partition(slot, segment_bytes=size)
    model = Model()
    sequences = {0: 0, 1: 0, 2: 0}
    for number, (action, producer) in enumerate(actions):
        epoch = model.epochs.setdefault(producer, 0)
        if action == "plain":
            model.add(partition.append(plain(f"{number}")), f"{number}")
        elif action == "send":
            data = transactional(f"{number}", producer, epoch, sequences[producer])
            model.add(partition.append(data), f"{number}", producer)
            sequences[producer] += 1
        elif action in ("commit", "abort"):
            keeps = producer == 2  # its epoch
            offset = partition.append_marker(producer, epoch + (not keeps), commit=action == "commit", same_epoch=keeps)
            assert (offset is None) == (keeps and producer not in model.open)
            if offset is not None:
                model.close(offset, producer, action == "commit")
            if not keeps:
                model.epochs[producer], sequences[producer] = epoch + 1, 0
        elif action == "late":
            if epoch:
                assert partition.append_marker(producer, epoch, commit=False) is None
        elif action == "checkpoint":
            partition.checkpoint()
        else:
            if action != "reopen":
                power_cut(partition)
            if action == "cut+" and os.path.exists(f"{partition.directory}/producers"):
                Path(f"{partition.directory}/producers").unlink()
            partition = shared.child().partition(slot, segment_bytes=size)
        ends = partition.ends()
        assert (ends.end, ends.stable) == (model.end, model.stable)
    assert read(partition) == model.committed()
    assert read(partition, committed=False) == [name for name, _, _ in model.records.values()]
    assert {number: first for number, _, first in partition.open_transactions()} == {
        number: offsets[0] for number, offsets in model.open.items()
    }


# ---- killed at every step


@pytest.mark.parametrize("commit", [True, False])
def test_whoever_writes_a_marker_and_is_killed_at_any_step_leaves_it_whole_or_to_the_next(
    tmp_path: Path, commit: bool
) -> None:
    def prepare(partition: Partition) -> None:
        partition.append(transactional("t", 7))
        partition.append(batch(0, 0))

    def act(mine: Rig, slot: int):  # type: ignore[no-untyped-def]
        partition = mine.partition(slot)
        return lambda: partition.append_marker(7, 1, commit=commit)

    for partition, lived in victims(Rig(tmp_path), prepare, act, steps=20):
        written = partition.append_marker(7, 1, commit=commit)
        assert written is None or not lived
        assert partition.ends().stable == partition.ends().end == 3
        assert len(read(partition)) == 1 + commit
        partition.append(transactional("u", 7, epoch=1))
        assert partition.append_marker(7, 2, commit=True) == 4
        assert len(read(partition)) == 2 + commit
        power_cut(partition)
        again = Rig(tmp_path).partition(partition.slot)
        assert again.ends().stable == 5 and len(read(again)) == 2 + commit


def test_a_transactional_writer_killed_at_any_step_leaves_its_transaction_open_or_unbegun(tmp_path: Path) -> None:
    def prepare(partition: Partition) -> None:
        partition.append(batch(0, 0))

    def act(mine: Rig, slot: int):  # type: ignore[no-untyped-def]
        partition = mine.partition(slot)
        return lambda: partition.append(transactional("t", 7))

    for partition, _ in victims(Rig(tmp_path), prepare, act, steps=20):
        partition.append(batch(0, 1))
        ends = partition.ends()
        began = ends.end == 3
        assert ends.stable == (1 if began else 2)
        assert [first for _, _, first in partition.open_transactions()] == ([1] if began else [])
        assert partition.append_marker(7, 1, commit=False) == ends.end
        assert partition.ends().stable == ends.end + 1
        with partition.reader(0) as reader:
            found = [r.value for r in decode(reader.read(), form=RECORDS)]
        assert [value[:1] for value in found] == [b"0", b"1"]
