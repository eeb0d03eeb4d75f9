"""Idempotence: a batch sent again is answered with the offset it has, and nothing else gets in between."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.batch import walk
from klamm.disk import _os, files
from klamm.errors import Fenced, KlammError, OutOfOrderSequence
from klamm.log import head, producers, segment
from klamm.log.partition import Partition
from klamm.log.sealed import Lack
from tests.log.logs import batch_of, flip, log_file, move_clock, power_cut, records
from tests.procs import children
from tests.rig import Rig

LAST = 2**31 - 1  # the highest sequence number; the next is 0
LARGE = {"segment_bytes": 1 << 20, "index_interval_bytes": 4096}


def send(partition: Partition, producer: int, sequence: int, count: int = 1, epoch: int = 0) -> int:
    return partition.append(batch_of([0] * count, producer=producer, epoch=epoch, sequence=sequence))


def reopened(rig: Rig, partition: Partition, **changes: int | str) -> Partition:
    power_cut(partition)
    return rig.child().partition(partition.slot, **changes)


# ---- sequences


def test_a_batch_that_is_sent_again_gets_the_offset_it_has_and_is_not_appended_twice(rig: Rig) -> None:
    partition = rig.partition(1)
    offsets = [send(partition, 7, sequence, 2) for sequence in range(0, 10, 2)]
    assert offsets == [0, 2, 4, 6, 8]
    for sequence, offset in zip(range(0, 10, 2), offsets, strict=True):  # the last five are remembered
        assert send(partition, 7, sequence, 2) == offset
        assert partition.log.was_duplicate
    assert partition.ends().end == 10
    assert send(partition, 7, 10) == 10
    assert not partition.log.was_duplicate


def test_a_batch_sent_again_too_late_is_refused_rather_than_appended(rig: Rig) -> None:
    partition = rig.partition(1)
    for sequence in range(6):
        send(partition, 7, sequence)
    with pytest.raises(OutOfOrderSequence):
        send(partition, 7, 0)
    assert partition.ends().end == 6


@pytest.mark.parametrize("sequence", [4, 100, LAST, 2])
def test_a_gap_or_an_overlap_is_refused_and_the_right_one_still_taken(rig: Rig, sequence: int) -> None:
    partition = rig.partition(1)
    send(partition, 7, 0, 3)
    with pytest.raises(OutOfOrderSequence):
        send(partition, 7, sequence, 2)
    assert partition.ends().end == 3
    assert send(partition, 7, 3) == 3


def test_a_repeated_sequence_of_another_length_is_no_duplicate(rig: Rig) -> None:
    partition = rig.partition(1)
    send(partition, 7, 0, 3)
    for count in (1, 2, 4):
        with pytest.raises(OutOfOrderSequence):
            send(partition, 7, 0, count)
    assert send(partition, 7, 0, 3) == 0


@pytest.mark.parametrize("count", [1, 2, 5])
def test_sequences_go_on_at_zero_after_the_highest(rig: Rig, count: int) -> None:
    partition = rig.partition(1)
    assert send(partition, 7, LAST - 1, count) == 0
    following = (LAST - 1 + count) % (LAST + 1)
    assert send(partition, 7, LAST - 1, count) == 0, "also known when it is sent again"
    assert send(partition, 7, following, 3) == count
    assert send(partition, 7, following, 3) == count
    with pytest.raises(OutOfOrderSequence):
        send(partition, 7, (following + 4) % (LAST + 1))
    assert send(partition, 7, (following + 3) % (LAST + 1)) == count + 3


def test_a_producer_that_nobody_knows_may_start_anywhere(rig: Rig) -> None:
    """Its earlier batches may have been deleted, or it was forgotten."""
    partition = rig.partition(1)
    assert send(partition, 7, 500) == 0
    assert send(partition, 8, 3) == 1
    assert send(partition, 7, 501) == 2


def test_producers_do_not_disturb_each_other_nor_plain_appends(rig: Rig) -> None:
    partition = rig.partition(1)
    for sequence in range(20):
        for producer in range(5):
            send(partition, producer, sequence)
        partition.append(batch_of([0]))
    assert partition.ends().end == 120
    for producer in range(5):
        assert send(partition, producer, 19) == 19 * 6 + producer
    assert len(records(partition)) == 120


# ---- epochs


def test_a_newer_epoch_fences_the_older_one(rig: Rig) -> None:
    partition = rig.partition(1)
    send(partition, 7, 0, epoch=3)
    send(partition, 7, 1, epoch=3)
    assert send(partition, 7, 0, epoch=4) == 2
    for sequence in (0, 1, 2):
        with pytest.raises(Fenced):
            send(partition, 7, sequence, epoch=3)
    assert send(partition, 7, 1, epoch=4) == 3
    assert partition.ends().end == 4


def test_a_newer_epoch_starts_with_sequence_zero(rig: Rig) -> None:
    partition = rig.partition(1)
    for sequence in range(5):
        send(partition, 7, sequence, epoch=0)
    for sequence in (1, 5):
        with pytest.raises(OutOfOrderSequence):
            send(partition, 7, sequence, epoch=1)
    assert send(partition, 7, 0, epoch=1) == 5
    assert send(partition, 7, 0, epoch=1) == 5
    with pytest.raises(Fenced):
        send(partition, 7, 5, epoch=0)


# ---- many of them


def capacity(partition: Partition) -> int:
    """How many producers the table has room for."""
    return (os.path.getsize(f"{partition.directory}/producers") - 2048) // 192


def test_more_producers_than_the_table_holds_make_it_grow(rig: Rig) -> None:
    partition, other = rig.partition(1, **LARGE), rig.child().partition(1, **LARGE)
    for producer in range(300):
        (partition if producer % 2 else other).append(batch_of([0], producer=producer, epoch=0, sequence=0))
    for producer in range(300):
        for each in (partition, other):
            assert send(each, producer, 0) == producer
            assert each.log.was_duplicate
    for producer in range(300):
        assert send(other if producer % 2 else partition, producer, 1) == 300 + producer
    assert partition.ends().end == 600
    assert capacity(partition) == 512


def test_a_producer_that_was_not_seen_for_long_gives_its_place_away_and_no_other_does(rig: Rig) -> None:
    changes = {**LARGE, "producer_id_expiration_ms": 60_000}
    partition = rig.partition(1, **changes)
    for producer in range(64):
        send(partition, producer, 0)
    move_clock(rig, 50_000)
    send(partition, 5, 1)
    move_clock(rig, 20_000)  # all but 5 are old now
    for producer in range(100, 163):
        send(partition, producer, 0)
    assert capacity(partition) == 64, "it need not grow"
    assert send(partition, 5, 1) == 64
    for producer in range(100, 163):
        assert send(partition, producer, 0) == 65 + producer - 100
    assert send(partition, 3, 1) == 128, "forgotten: it may start anywhere"
    assert capacity(partition) == 128


def test_a_producer_that_was_not_seen_for_long_is_still_known_while_nobody_wants_its_place(rig: Rig) -> None:
    partition = rig.partition(1, producer_id_expiration_ms=60_000)
    send(partition, 7, 0)
    move_clock(rig, 10**9)
    assert send(partition, 7, 0) == 0
    assert send(partition, 7, 1) == 1


@pytest.mark.parametrize("damage", ["flipped", "cut", "emptied", "missing"])
def test_a_damaged_table_is_made_anew_from_the_log(rig: Rig, damage: str) -> None:
    partition = rig.partition(1)
    for sequence in range(7):
        send(partition, 7, sequence)
    partition.close()
    path = Path(partition.directory, "producers")
    match damage:
        case "flipped":
            flip(path, 3)
        case "cut":
            os.truncate(path, 1000)
        case "emptied":
            os.truncate(path, 0)
        case "missing":
            path.unlink()
    other = rig.child().partition(1)
    assert other.append(batch_of([0])) == 7
    assert [send(other, 7, sequence) for sequence in range(2, 7)] == [2, 3, 4, 5, 6]
    with pytest.raises(OutOfOrderSequence):
        send(other, 7, 8)
    assert send(other, 7, 7) == 8


# ---- what survives


def table_of(partition: Partition) -> list[producers.ProducerState]:
    """Who is known, without the clock."""
    partition.log.lock()
    try:
        assert partition.log.map_producers()
        partition.log.make_up()
        return sorted((pid, open_, 0, batches) for pid, open_, _, batches in partition.log.producers())
    finally:
        partition.log.unlock()


@pytest.mark.parametrize("checkpoints", [(), (30,), (10, 30, 59), (60,)], ids=str)
@pytest.mark.parametrize("table", ["kept", "lost"])
def test_recovery_knows_every_producer_again(rig: Rig, checkpoints: tuple[int, ...], table: str) -> None:
    """From a snapshot and the batches since, or from the batches alone; across rolls."""
    partition = rig.partition(1, segment_bytes=600)
    for number in range(60):
        if number in checkpoints:
            partition.checkpoint()
        send(partition, number % 4, number // 4, epoch=2)
    if 60 in checkpoints:
        partition.checkpoint()
    before = table_of(partition)
    if table == "lost":
        Path(partition.directory, "producers").write_bytes(b"")
    again = reopened(rig, partition, segment_bytes=600)
    assert table_of(again) == before
    for producer in range(4):
        assert send(again, producer, 14, epoch=2) == 56 + producer
        with pytest.raises(OutOfOrderSequence):
            send(again, producer, 16, epoch=2)
        assert send(again, producer, 15, epoch=2) == 60 + producer
        with pytest.raises(Fenced):
            send(again, producer, 16, epoch=1)


def test_a_batch_lost_with_the_tail_is_not_remembered(rig: Rig) -> None:
    partition = rig.partition(1, **LARGE)
    send(partition, 7, 0)
    partition.checkpoint()
    send(partition, 7, 1)
    send(partition, 7, 2)
    path = log_file(partition, 0)
    os.truncate(path, sum(each.size for each in walk(path.read_bytes())[:2]) + 7)
    again = reopened(rig, partition, **LARGE)
    assert again.ends().end == 2
    assert send(again, 7, 2) == 2, "it was never there"
    assert send(again, 7, 1) == 1


@pytest.mark.parametrize("broken", ["newest", "all"])
def test_a_broken_snapshot_is_replaced_by_an_older_one_or_by_the_log(rig: Rig, broken: str) -> None:
    partition = rig.partition(1)
    for sequence in range(12):
        send(partition, 7, sequence)
        if sequence in (3, 8):
            partition.checkpoint()
    snapshots = sorted(Path(partition.directory).glob("*.snapshot"))
    assert len(snapshots) == 2
    for path in snapshots if broken == "all" else snapshots[-1:]:
        flip(path, 20)
    again = reopened(rig, partition)
    assert send(again, 7, 11) == 11
    assert send(again, 7, 8) == 8
    assert send(again, 7, 12) == 12


def test_producers_are_known_although_the_log_before_their_last_batches_was_deleted(rig: Rig) -> None:
    partition = rig.partition(1)
    send(partition, 1, 0)
    partition.checkpoint()  # a snapshot that will be older than the first segment
    for sequence in range(20):
        send(partition, 7, sequence)
    partition.cleanup.delete_before(12)
    assert partition.segments()[0] > 1
    again = reopened(rig, partition)
    assert send(again, 7, 19) == 20
    assert send(again, 7, 20) == 21
    assert send(again, 1, 0) == 0, "from the snapshot, though its record is gone"


def test_the_two_youngest_snapshots_are_kept(rig: Rig) -> None:
    partition = rig.partition(1)
    for sequence in range(10):
        send(partition, 7, sequence)
        partition.checkpoint()
    assert segment.bases(partition.directory, producers.SUFFIX) == [9, 10]


def test_the_first_producer_of_an_empty_log_waits_for_no_snapshot(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = rig.partition(1)
    monkeypatch.setattr(files, "replace", pytest.fail)
    assert send(partition, 7, 0) == 0
    monkeypatch.undo()
    assert segment.bases(partition.directory, producers.SUFFIX) == []
    Path(partition.directory, "producers").unlink()
    again = reopened(rig, partition)
    assert send(again, 7, 0) == 0 and again.log.was_duplicate, "the whole log was read"


def test_a_recovery_point_without_a_snapshot_is_before_the_first_producer(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes after the checkpoint has looked for producers."""
    partition = rig.partition(1)
    has_producers, sent = Partition.has_producers, list[int]()

    def send_then(self: Partition) -> bool:
        found = has_producers(self)
        if not sent:
            sent.append(send(rig.child().partition(1), 7, 0))
        return found

    monkeypatch.setattr(Partition, "has_producers", send_then)
    partition.checkpoint(force=True)
    monkeypatch.undo()
    assert sent == [0]
    Path(partition.directory, "producers").unlink()
    again = reopened(rig, partition)
    assert send(again, 7, 0) == 0 and again.log.was_duplicate


def test_a_log_without_producers_has_neither_table_nor_snapshots(rig: Rig) -> None:
    partition = rig.partition(1)
    for _ in range(10):
        partition.append(batch_of([0]))
    partition.close()
    assert {path.suffix for path in Path(partition.directory).iterdir()} <= {".log", ".index", ""}
    assert not Path(partition.directory, "producers").exists()


# ---- the bytes of a snapshot

states = st.lists(
    st.tuples(
        st.integers(0, 2**63 - 1),
        st.integers(-1, 2**40),
        st.integers(0, 2**50),
        st.lists(
            st.tuples(st.integers(0, 2**50), st.integers(-1, LAST), st.integers(-1, LAST), st.integers(0, 2**15 - 1)),
            max_size=5,
        ),
    ),
    max_size=8,
)


@given(states)
def test_a_snapshot_says_what_was_packed(found: list[producers.ProducerState]) -> None:
    assert producers.parse(producers.pack(found)) == found


def test_every_flipped_byte_and_every_cut_of_a_snapshot_is_noticed() -> None:
    data = producers.pack([(7, -1, 5, [(0, 1, 2, 3), (4, 5, 6, 7)]), (8, 3, 9, [(1, 1, 1, 1)])])
    assert producers.parse(data)
    for at in range(len(data)):
        for mask in (0x01, 0x80, 0xFF):
            assert producers.parse(data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]) is Lack.DAMAGED
        assert producers.parse(data[:at]) is Lack.DAMAGED
    assert producers.parse(data + b"\0") is Lack.DAMAGED


def test_the_youngest_snapshot_at_or_before_an_offset_is_taken(tmp_path: Path) -> None:
    directory = str(tmp_path)
    assert producers.load_latest(directory, 100) is None
    for offset in (5, 10, 20):
        producers.store(directory, offset, [(offset, -1, 0, [(1, 2, 3, 4)])])
    for end_offset, want in ((4, None), (5, 5), (9, 5), (10, 10), (19, 10), (1000, 20)):
        found = producers.load_latest(directory, end_offset)
        assert (found and found[0]) == want


# ---- against a model


class Model:
    """What the table promises, in the plainest way."""

    def __init__(self) -> None:
        self.end = 0
        self.batches: dict[int, list[tuple[int, int, int, int]]] = {}  # epoch, first, last, offset; the latest last

    def send(self, producer: int, epoch: int, first: int, count: int) -> int | type[KlammError]:
        last = (first + count - 1) % (LAST + 1)
        known = self.batches.setdefault(producer, [])
        if known:
            current, _, ended, _ = known[-1]
            if epoch < current:
                return Fenced
            if epoch > current and first != 0:
                return OutOfOrderSequence
            if epoch == current and first != (ended + 1) % (LAST + 1):
                for each in reversed(known[-5:]):
                    if each[:3] == (epoch, first, last):
                        return each[3]
                return OutOfOrderSequence
        known.append((epoch, first, last, self.end))
        self.end += count
        return self.end - count


near = st.sampled_from([0, 1, 2, LAST, LAST - 1])
actions = st.one_of(
    st.tuples(
        st.just("send"), st.integers(0, 2), st.integers(0, 2), st.integers(-6, 2), st.integers(1, 3), st.booleans()
    ),
    st.tuples(st.just("start"), st.integers(0, 2), near),
    st.sampled_from([("plain",), ("recover",), ("checkpoint",), ("other",), ("delete",)]),
)


@settings(max_examples=150)
@given(st.lists(actions, max_size=60), st.sampled_from([300, 1 << 20]))
def test_any_history_of_sends_is_answered_as_the_model_answers(
    shared: Rig, history: list[tuple[object, ...]], segment_bytes: int
) -> None:
    changes = {"segment_bytes": segment_bytes}
    slot = shared.fresh_slot()
    partition = shared.partition(slot, **changes)
    model = Model()
    for kind, *what in history:
        match kind, what:
            case "send", [int(producer), int(epoch), int(shift), int(count), bool(again)]:
                known = model.batches.get(producer)
                if known and again:
                    epoch, first, last, _ = known[max(-len(known), shift - 1 if shift < 0 else -1)]
                    count = (last - first) % (LAST + 1) + 1
                else:
                    first = (known[-1][2] + 1 + max(shift, -1)) % (LAST + 1) if known else 0
                check(partition, model, producer, epoch, first, count)
            case "start", [int(producer), int(first)]:
                epoch = model.batches[producer][-1][0] if model.batches.get(producer) else 0
                check(partition, model, producer, epoch, first, 2)
            case "plain", _:
                assert partition.append(batch_of([0])) == model.end
                model.end += 1
            case "checkpoint", _:
                partition.checkpoint()
            case "recover", _:
                partition = reopened(shared, partition, **changes)
            case "other", _:
                partition = shared.child().partition(slot, **changes)
            case "delete", _:
                partition.cleanup.delete_before(model.end // 2)
    assert partition.ends().end == model.end
    assert partition.log.flags & head.NEEDS_RECOVERY == 0


def check(partition: Partition, model: Model, producer: int, epoch: int, first: int, count: int) -> None:
    want = model.send(producer, epoch, first, count)
    if isinstance(want, int):
        assert send(partition, producer, first, count, epoch) == want
    else:
        with pytest.raises(want):
            send(partition, producer, first, count, epoch)


# ---- a writer that dies between its commit and the table


def roll(partition: Partition) -> None:
    partition.cleanup._close_if(lambda _: True)


def move_start(partition: Partition) -> None:
    partition.cleanup.delete_before(1)


@pytest.mark.parametrize("step", range(1, 30))
@pytest.mark.parametrize("action", [roll, move_start, Partition.checkpoint, None])
def test_whatever_comes_next_the_batch_of_a_killed_writer_is_known(
    rig: Rig, action: Callable[[Partition], None] | None, step: int
) -> None:
    """Be it a commit that is no append, or a snapshot that recovery starts from."""
    partition = rig.partition(1)
    send(partition, 7, 0)

    def append() -> None:
        mine = rig.child().partition(1)
        mine.producers()
        _os.trap(step, kinds=_os.STORE, signal=signal.SIGKILL)
        send(mine, 7, 1)

    with children() as start:
        start(append).ended()
    if action is not None:
        action(partition)
    if action is Partition.checkpoint:
        partition = reopened(rig, partition)  # which takes a batch that was written, and not committed
    committed = partition.ends().end == 2
    assert send(partition, 7, 1) == 1
    assert partition.log.was_duplicate == committed
    assert send(partition, 7, 2) == 2
