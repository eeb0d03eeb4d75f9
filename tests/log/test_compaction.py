"""Compaction: the latest record of each key stays, as it was and where it was; everything else goes, in its time."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from klamm.batch import CODECS, Record, walk
from klamm.batch.header import DELETE_HORIZON
from klamm.disk import _os
from klamm.errors import CorruptBatch, InvalidRecord, KlammError, UnknownTopic
from klamm.log import cleaner_checkpoint, compaction, retention, segment
from klamm.log.partition import Partition
from tests.log.compacted import (
    DAY,
    append,
    in_transaction,
    indexes_are_true,
    latest,
    put,
    roll,
    sealed,
    seen,
    sizes,
)
from tests.log.logs import flip, log_file, move_clock, power_cut
from tests.procs import children
from tests.rig import Rig


def log(rig: Rig, slot: int | None = None, **changes: float | str) -> Partition:
    settings: dict[str, float | str] = {"cleanup_policy": "compact", "segment_bytes": 1 << 20, **changes}
    return rig.partition(rig.fresh_slot() if slot is None else slot, **settings)


def again(rig: Rig, partition: Partition, **changes: float | str) -> Partition:
    """The same log, as another process opens it."""
    return log(rig.child(), partition.slot, **changes)


# ---- what stays


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_the_latest_record_of_each_key_stays_with_offset_timestamp_and_headers(rig: Rig, codec: int) -> None:
    partition = log(rig)
    sent = []
    for n in range(40):
        given = [
            (b"k%d" % (n * m % 13), b"v%d.%d" % (n, m) * 9, [("h", b"%d" % n), ("none", None)], n * 7 - m + 99)
            for m in range(1, 6)
        ]
        sent += append(partition, given, codec=codec)
        if n % 9 == 8:
            roll(partition)
    done = partition.cleanup.compact(force=True)
    assert done is not None and done.passes == 1
    assert seen(partition) == latest(sent)
    assert done.records_left == len(latest(sent)) and done.records_removed == len(sent) - done.records_left
    assert done.bytes_after == sum(sizes(partition)) < done.bytes_before
    assert indexes_are_true(partition) >= 5
    assert seen(again(rig, partition)) == latest(sent)


def test_a_batch_keeps_all_but_its_records(rig: Rig) -> None:
    partition = log(rig)
    batch = sealed(
        [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")], codec=4, producer_id=7, producer_epoch=3, base_sequence=0
    )
    partition.append(batch)
    put(partition, (b"a", b"x"), (b"c", b"y"))
    partition.cleanup.compact(force=True)
    before = walk(batch)[0]
    after = walk(log_file(partition, 0).read_bytes())[0]
    assert after.record_count == 1
    for field in ("base_offset", "last_offset_delta", "producer_id", "producer_epoch", "base_sequence", "leader_epoch"):
        assert getattr(after, field) == getattr(before, field)
    assert after.next_offset == 3


def test_records_that_bear_the_time_of_their_append_keep_it(rig: Rig) -> None:
    partition = log(rig, message_timestamp_type="LogAppendTime")
    partition.append(sealed([(b"a", b"1", None, 5), (b"b", None, None, 6), (b"c", b"3", None, 7)]))
    stamp = seen(partition)[0].timestamp
    assert stamp > 1000
    put(partition, (b"a", b"2"))
    partition.cleanup.compact(force=True)
    assert [(r.offset, r.timestamp) for r in seen(partition)[:2]] == [(1, stamp), (2, stamp)]


def test_keys_may_be_empty_or_huge_or_nearly_the_same(rig: Rig) -> None:
    partition = log(rig, max_message_bytes=64 << 20)
    keys = [b"", b"\0", b"\0\0", b"x" * 3_000_000, b"x" * 2_999_999 + b"y", b"x" * 7, b"x" * 8, b"x" * 9]
    sent = [record for n in range(3) for key in keys for record in put(partition, (key, b"%d" % n))]
    partition.cleanup.compact(force=True)
    assert seen(partition) == latest(sent)
    assert [record.value for record in latest(sent)] == [b"2"] * len(keys)


def test_records_without_a_key_from_before_stay(rig: Rig) -> None:
    partition = log(rig, cleanup_policy="delete")
    sent = put(partition, (None, b"1"), (b"a", b"2"), (None, None), (b"a", b"3"), (None, b"1"))
    partition = again(rig, partition)
    partition.cleanup.compact(force=True)
    move_clock(rig, 9 * DAY)
    partition.cleanup.compact(force=True)
    assert seen(partition) == latest(sent)
    assert len(latest(sent)) == 4


def test_a_segment_with_nothing_to_take_out_is_not_touched(rig: Rig) -> None:
    partition = log(rig)
    put(partition, (b"a", b"1"), (b"b", b"1"))
    roll(partition)
    put(partition, (b"c", b"1"), (b"c", b"2"))
    inode = log_file(partition, 0).stat().st_ino
    done = partition.cleanup.compact(force=True)
    assert done is not None and done.segments == 1
    assert log_file(partition, 0).stat().st_ino == inode
    assert cleaner_checkpoint.load(partition.directory)[:2] == (4, 4)
    done = partition.cleanup.compact(force=True)
    assert done is not None and done.segments == done.records_removed == 0


def test_a_segment_of_which_nothing_is_left_stays_as_an_empty_file(rig: Rig) -> None:
    partition = log(rig, cleanup_policy="compact,delete", retention_ms=9 * DAY)
    for _ in range(3):
        put(partition, (b"a", b"1"), (b"b", b"1"))
        roll(partition)
    old = os.stat(log_file(partition, 0)).st_mtime_ns
    last = put(partition, (b"a", b"2"), (b"b", b"2"))
    partition.cleanup.compact(force=True)
    assert [size > 0 for size in sizes(partition)] == [False, False, False, True, False]
    assert os.stat(log_file(partition, 0)).st_mtime_ns == old, "as old as it was, for retention"
    for start in range(9):
        assert seen(partition, start, 70) == last[max(0, start - 6) :]
    assert [partition.offset_at(ms) for ms in (0, 1000, 1001, 1002)] == [6, 6, 7, None]
    power_cut(partition)
    partition = again(rig, partition, cleanup_policy="compact,delete", retention_ms=9 * DAY)
    assert seen(partition, 0) == last
    assert partition.append(sealed([(b"c", b"9")])) == 8
    move_clock(rig, 10 * DAY)
    assert partition.cleanup.expire() == [0, 2, 4, 6, 8]
    assert partition.ends()[:2] == (9, 9)


# ---- tombstones


def test_a_tombstone_stays_for_its_time_after_the_first_compaction_that_met_it(rig: Rig) -> None:
    partition = log(rig, delete_retention_ms=DAY)
    put(partition, (b"a", b"1"), (b"b", b"1"))
    sent = append(
        partition, [(b"a", None, None, 3), (b"c", b"1", [("h", b"1")], 900_000_000_000), (b"d", None, None, 5)]
    )
    move_clock(rig, 30 * DAY)
    begin = rig.heads.clock_ms()
    partition.cleanup.compact(force=True)
    kept = [record for record in seen(partition) if record.offset > 1]
    assert kept == sent, "tombstones and their timestamps, and what is beside them in their batch"
    header = walk(log_file(partition, 0).read_bytes())[-1]
    assert header.attributes & DELETE_HORIZON and 0 <= header.base_timestamp - begin - DAY < 60_000
    assert header.max_timestamp == 900_000_000_000
    horizon = cleaner_checkpoint.load(partition.directory).last_horizon
    assert horizon == header.base_timestamp
    move_clock(rig, DAY // 2)
    put(partition, (b"z", b"1"))
    partition.cleanup.compact(force=True)
    assert walk(log_file(partition, 0).read_bytes())[-1].base_timestamp == horizon, "seen again is not seen first"
    assert sent == [record for record in seen(partition) if 1 < record.offset < 5]
    assert partition.cleanup.compact() is None, "there is nothing to do yet"
    move_clock(rig, DAY // 2 + 60_000)
    assert partition.cleanup.compact() is not None, "nothing is dirty, but every tombstone may go"
    assert [record for record in seen(partition) if 1 < record.offset < 5] == [sent[1]]
    assert cleaner_checkpoint.load(partition.directory).last_horizon == -1
    assert partition.cleanup.compact() is None


def test_tombstones_may_be_kept_for_ever(rig: Rig) -> None:
    partition = log(rig, delete_retention_ms=(1 << 63) - 1)
    sent = put(partition, (b"a", b"1"), (b"a", None))
    for _ in range(2):
        partition.cleanup.compact(force=True)
        move_clock(rig, 90_000 * DAY)
    assert seen(partition) == sent[1:]
    assert partition.cleanup.compact() is None


def test_a_tombstone_that_a_later_record_follows_goes_at_once(rig: Rig) -> None:
    partition = log(rig)
    sent = put(partition, (b"a", b"1"), (b"a", None), (b"a", b"3"))
    partition.cleanup.compact(force=True)
    assert seen(partition) == sent[2:]


def test_a_tombstone_never_goes_before_what_it_deletes(rig: Rig) -> None:
    """The table takes a few keys at a time, so passes end between a record and its tombstone."""
    partition = log(rig, delete_retention_ms=0)
    for n in range(300):
        put(partition, (b"k%d" % n, b"1"))
    roll(partition)
    for n in range(300):
        put(partition, (b"k%d" % n, None))
    for _ in range(4):
        move_clock(rig, 1000)
        done = partition.cleanup.compact(force=True, memory_bytes=1)
        assert done is not None
        left = {record.key: record for record in seen(partition)}
        assert all(record.value is None for record in left.values())
    assert not left


# ---- how far it goes


def test_nothing_in_the_active_segment_is_touched_and_force_closes_it(rig: Rig) -> None:
    partition = log(rig, min_cleanable_dirty_ratio=0)
    sent = put(partition, (b"a", b"1"), (b"a", b"2"))
    assert partition.cleanup.compact() is None
    assert seen(partition) == sent
    partition.cleanup.compact(force=True)
    assert seen(partition) == sent[1:]
    assert partition.snapshot().active_base == 2


def test_it_is_worth_it_when_enough_is_dirty(rig: Rig) -> None:
    partition = log(rig, min_cleanable_dirty_ratio=0.5)
    for n in range(9):
        put(partition, (b"k%d" % n, b"." * 100))
    roll(partition)
    assert partition.cleanup.compact() is not None, "all of it is dirty"
    for n in range(8):
        put(partition, (b"k%d" % n, b"." * 100))
    roll(partition)
    assert partition.cleanup.compact() is None
    put(partition, (b"k8", b"." * 100))
    roll(partition)
    done = partition.cleanup.compact()
    assert done is not None and done.records_removed == 9


def test_young_records_are_left_alone_and_old_ones_do_not_wait_for_ever(rig: Rig) -> None:
    partition = log(rig, min_compaction_lag_ms=DAY, min_cleanable_dirty_ratio=0)
    now = rig.heads.clock_ms()
    append(partition, [(b"a", b"1", None, now - 3 * DAY)])
    append(partition, [(b"a", b"2", None, now - 2 * DAY)])
    roll(partition)
    young = append(partition, [(b"a", b"3", None, now - DAY // 2)])
    partition.cleanup.compact(force=True)
    assert [record.value for record in seen(partition)] == [b"2", b"3"]
    move_clock(rig, DAY)
    partition.cleanup.compact(force=True)
    assert seen(partition) == young
    partition = log(rig, max_compaction_lag_ms=DAY, min_cleanable_dirty_ratio=1)
    for n in range(2):
        append(partition, [(b"a", b"%d" % n, None, rig.heads.clock_ms())])
        partition.cleanup.compact()
    assert len(seen(partition)) == 2
    move_clock(rig, 2 * DAY)
    partition.cleanup.compact()
    assert [record.value for record in seen(partition)] == [b"1"]


def test_an_active_segment_older_than_segment_ms_is_closed(rig: Rig) -> None:
    partition = log(rig, segment_ms=DAY)
    sent = put(partition, (b"a", b"1"), (b"a", b"2"))
    assert partition.cleanup.compact() is None
    move_clock(rig, 2 * DAY)
    assert partition.cleanup.compact() is not None
    assert seen(partition) == sent[1:]


def test_what_does_not_fit_into_memory_is_done_in_several_passes(rig: Rig) -> None:
    partition = log(rig, segment_bytes=4000)
    sent = []
    for n in range(600):
        sent += append(partition, [(b"k%d" % (n * m % 211), b"%d" % n) for m in range(1, 4)], codec=n % 3)
    done = partition.cleanup.compact(force=True, memory_bytes=1)
    assert done is not None and done.passes > 4
    assert seen(partition) == latest(sent)
    assert done.records_left == len(latest(sent)) == len(sent) - done.records_removed


def test_a_policy_without_delete_keeps_what_retention_would_take(rig: Rig) -> None:
    partition = log(rig, retention_ms=1, retention_bytes=1)
    sent = put(partition, (b"a", b"1"), (b"b", b"1"))
    roll(partition)
    assert partition.cleanup.expire() == []
    assert seen(partition) == sent
    partition = again(rig, partition, cleanup_policy="delete,compact", retention_ms=1)
    assert partition.cleanup.expire() == [0]


def test_a_log_that_starts_in_the_middle_of_a_segment_is_compacted_from_there(rig: Rig) -> None:
    partition = log(rig)
    sent = put(partition, *[(b"k%d" % (n % 3), b"%d" % n) for n in range(10)])
    partition.cleanup.delete_before(5)
    partition.cleanup.compact(force=True)
    assert seen(partition) == latest(sent)
    partition.cleanup.delete_before(9)
    assert seen(partition) == sent[9:]
    partition.cleanup.delete_before(10)
    assert partition.cleanup.compact(force=True) is not None
    assert seen(partition) == []


# ---- transactions and producers


def test_nothing_goes_from_where_a_transaction_is_open_and_what_was_aborted_goes(rig: Rig) -> None:
    partition = log(rig, delete_retention_ms=DAY)
    put(partition, (b"a", b"1"), (b"a", b"2"), (b"b", b"1"))
    roll(partition)
    partition.append(in_transaction(7, 0, [(b"a", b"aborted"), (b"b", None)]))
    put(partition, (b"c", b"1"), (b"c", b"2"))
    partition.cleanup.compact(force=True)
    with partition.reader(0, committed=False) as reader:
        assert sum(header.record_count for header in walk(reader.read())) == 2
    assert len(walk(log_file(partition, 3).read_bytes())) == 3, "as it was"
    assert [record.value for record in seen(partition)] == [b"2", b"1"]
    partition.append_marker(7, 1, commit=False)
    done = partition.cleanup.compact(force=True)
    assert done is not None
    want = [(1, b"a", b"2"), (2, b"b", b"1"), (6, b"c", b"2")]
    assert [record[:3] for record in seen(partition)] == want
    assert [header.base_offset for header in walk(log_file(partition, 3).read_bytes())] == [6]
    assert walk(log_file(partition, 7).read_bytes())[0].is_control, "the marker outlives its records for a while"
    move_clock(rig, DAY + 60_000)
    partition.cleanup.compact(force=True)
    assert log_file(partition, 7).read_bytes() == b""
    assert [record[:3] for record in seen(partition)] == want
    assert partition.ends().stable == partition.ends().end


def test_a_marker_stays_while_a_record_of_its_transaction_does(rig: Rig) -> None:
    """Without it, recovery without a snapshot would take the transaction for open."""
    partition = log(rig, delete_retention_ms=0)
    partition.append(in_transaction(7, 0, [(b"a", b"1"), (b"b", b"1")]))
    partition.append_marker(7, 1, commit=True)
    put(partition, (b"a", b"2"))
    for _ in range(3):
        move_clock(rig, DAY)
        partition.cleanup.compact(force=True)
    assert [header.is_control for header in walk(log_file(partition, 0).read_bytes())] == [False, True, False]
    for path in Path(partition.directory).glob("*.snapshot"):
        path.unlink()
    power_cut(partition)
    partition = again(rig, partition, delete_retention_ms=0)
    assert partition.ends().stable == partition.ends().end
    assert [record[:3] for record in seen(partition)] == [(1, b"b", b"1"), (3, b"a", b"2")]
    put(partition, (b"b", b"2"))
    for _ in range(2):
        move_clock(rig, DAY)
        partition.cleanup.compact(force=True)
    assert [header.is_control for header in walk(log_file(partition, 0).read_bytes())] == [False]


def test_a_producer_whose_batches_were_compacted_away_is_still_known_after_a_power_cut(rig: Rig) -> None:
    partition = log(rig)
    batches = [sealed([(b"a", b"%d" % n)], producer_id=5, producer_epoch=0, base_sequence=n) for n in range(6)]
    for batch in batches:
        partition.append(batch)
    put(partition, (b"a", b"last"))
    partition.cleanup.compact(force=True)
    assert len(seen(partition)) == 1
    power_cut(partition)
    partition = again(rig, partition)
    for number, batch in enumerate(batches[1:], 1):
        assert partition.append(batch) == number, "a duplicate, answered with the offset that it had"
    assert partition.append(sealed([(b"a", b"6")], producer_id=5, producer_epoch=0, base_sequence=6)) == 7


# ---- readers meanwhile


@pytest.mark.parametrize("closing", [False, True], ids=["open", "closing its file"])
def test_a_reader_in_the_middle_of_a_segment_that_is_replaced_again_and_again_misses_nothing(
    rig: Rig, closing: bool
) -> None:
    """Each compaction takes a record out of every batch. The reader may close its file: it keeps its place."""
    partition = log(rig)
    rounds = 8
    for n in range(200):
        append(partition, [(b"unique %d" % n, b".")] + [(b"%d of %d" % (m, n), b".") for m in range(rounds)])
        if n % 70 == 69:
            roll(partition)
    inodes = set()
    found: list[bytes] = []
    with again(rig, partition).reader(0) as reader:
        reads = 0
        while data := reader.read(1 << 11):
            found += [r.key for r in _decoded(data) if r.key and r.key.startswith(b"unique")]
            if closing:
                reader.close()
            if reads < rounds:
                append(partition, [(b"%d of %d" % (reads, n), b"") for n in range(200)])
                done = partition.cleanup.compact(force=True)
                assert done is not None and done.segments >= 3
                inodes.add(log_file(partition, 0).stat().st_ino)
            reads += 1
    assert reads > rounds and len(inodes) > 1
    assert found == [b"unique %d" % n for n in range(200)]


def _decoded(data: memoryview) -> list[Record]:
    from klamm.batch import decode

    return decode(data)


def test_a_reader_that_was_open_before_the_first_compaction_does_not_take_gaps_for_damage(rig: Rig) -> None:
    partition = log(rig, segment_bytes=1000)
    sent = put(partition, *[(b"k%d" % (n % 4), b"%d" % n) for n in range(100)])
    other = again(rig, partition)
    readers = [other.reader(start) for start in (0, 3, 50, 99)]
    for reader in readers:
        reader.read(1)
    was_contiguous = other.contiguous
    partition.cleanup.compact(force=True)
    for reader in readers:
        offsets = []
        while data := reader.read(200):
            offsets += [header.base_offset for header in walk(data)]
        assert offsets == sorted(set(offsets))
        assert offsets[-1:] in ([99], [])
    assert was_contiguous and not other.contiguous
    assert seen(other) == latest(sent)
    assert [r.offset for r in seen(other, 10)] == [96, 97, 98, 99]
    assert other.offset_at(1098) == 98


def test_an_append_never_waits_for_a_compaction(rig: Rig) -> None:
    """Stopped at any rename, unlink or write, it holds the clean byte and no other."""
    for kind in (_os.RENAME, _os.UNLINK, _os.WRITE, _os.SYNC):
        partition = log(rig)
        put(partition, (b"a", b"1"), (b"a", b"2"))
        roll(partition)
        partition.checkpoint()

        def compact(slot: int = partition.slot, kind: int = kind) -> None:
            mine = log(rig.child(), slot)
            mine.checkpoint()
            _os.trap(1, kinds=kind, signal=19)
            mine.cleanup.compact()

        with children() as start:
            child = start(compact)
            assert child.stopped()
            assert partition.try_append(sealed([(b"b", b"1")])) == 2
            assert partition.cleanup.compact(wait=False) is None
            partition.sync(3)
            child.go_on()
            child.answer()
        assert [record.value for record in seen(partition)] == [b"2", b"1"]


# ---- when things go wrong


def test_damage_stops_it_and_nothing_is_lost(rig: Rig) -> None:
    partition = log(rig)
    put(partition, (b"a", b"1"), (b"b", b"2"), (b"a", b"3"))
    roll(partition)
    put(partition, (b"a", b"4"))
    before = log_file(partition, 0).read_bytes()
    flip(log_file(partition, 0), len(before) - 3)
    with pytest.raises(CorruptBatch, match="not compacted") as told:
        partition.cleanup.compact(force=True)
    assert told.value.path == str(log_file(partition, 0)) and told.value.position
    flip(log_file(partition, 0), len(before) - 3)
    assert log_file(partition, 0).read_bytes() == before
    partition.cleanup.compact(force=True)
    assert len(seen(partition)) == 2


def test_a_full_disk_at_any_step_leaves_a_log_with_all_that_matters(rig: Rig) -> None:
    failures = 0
    for step in range(1, 120):
        partition = log(rig)
        sent = put(partition, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
        roll(partition)
        sent += put(partition, (b"c", b"1"), (b"c", b"2"), (b"b", None))
        roll(partition)
        partition.checkpoint()
        _os.trap(step, kinds=_os.WRITE | _os.SYNC | _os.RENAME | _os.OPEN, error=errno.ENOSPC)
        try:
            partition.cleanup.compact(force=True)
        except KlammError:
            failures += 1
        finally:
            _os.trap(0)
        found = seen(partition)
        assert latest(found) == latest(sent)
        assert set(found) <= set(sent)
        assert not list(Path(partition.directory).glob("*.cleaned"))
        partition.cleanup.compact(force=True)
        assert seen(partition) == latest(sent)
    assert failures > 10


def test_left_overs_are_removed_by_the_next_compaction_and_by_recovery(rig: Rig) -> None:
    partition = log(rig)
    put(partition, (b"a", b"1"))
    left = [Path(segment.path_of(partition.directory, 0, suffix)) for suffix in (compaction.SUFFIX, ".log.1f.cleaned")]
    for path in left:
        path.write_bytes(b"half")
    assert partition.segments() == [0]
    partition.cleanup.compact(force=True)
    assert not any(path.exists() for path in left)
    for path in left:
        path.write_bytes(b"half")
    power_cut(partition)
    again(rig, partition)
    assert not any(path.exists() for path in left)


def test_what_the_caller_is_told_may_end_it(rig: Rig) -> None:
    partition = log(rig)
    sent = put(partition, (b"a", b"1"), (b"a", b"2"))
    told: list[tuple[int, int]] = []
    partition.cleanup.compact(force=True, on_progress=lambda done, total: told.append((done, total)))
    assert told and told[-1][0] == told[-1][1]
    sent += put(partition, (b"a", b"3"))

    def refuse(done: int, total: int) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        partition.cleanup.compact(force=True, on_progress=refuse)
    assert latest(seen(partition)) == latest(sent)


def test_a_deleted_topic_is_not_compacted(rig: Rig) -> None:
    partition = log(rig)
    put(partition, (b"a", b"1"))
    partition.mark_deleted()
    with pytest.raises(UnknownTopic):
        partition.cleanup.compact(force=True)


@pytest.mark.parametrize("codec", [0, 4])
def test_a_batch_with_a_keyless_record_is_refused_whoever_made_it(rig: Rig, codec: int) -> None:
    partition = log(rig)
    for way in (partition.append, partition.try_append):
        with pytest.raises(InvalidRecord):
            way(sealed([(b"a", b"1"), (None, b"2")], codec=codec))
    with pytest.raises(InvalidRecord):
        partition.append_one(None, b"1")
    assert partition.append_one(b"a", b"1") == 0
    assert partition.append(sealed([(b"a", b"1"), (b"b", b"2")], codec=codec)) == 1


def test_recovery_does_not_take_a_lost_segment_for_a_compacted_one(rig: Rig) -> None:
    """Gaps are allowed only where compaction has been."""
    partition = log(rig)
    put(partition, (b"a", b"1"), (b"a", b"2"))
    partition.cleanup.compact(force=True)
    for n in range(3):
        put(partition, (b"b", b"%d" % n))
        roll(partition)
    log_file(partition, 3).unlink()  # a power cut took it: nothing of this was synced
    power_cut(partition)
    partition = again(rig, partition)
    assert [record[:3] for record in seen(partition)] == [(1, b"a", b"2"), (2, b"b", b"0")]
    assert partition.ends().end == 3


def test_a_cleaned_that_is_damaged_only_means_to_do_it_again(rig: Rig) -> None:
    partition = log(rig)
    sent = put(partition, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    partition.cleanup.compact(force=True)
    flip(Path(cleaner_checkpoint.path_of(partition.directory)), 20)
    other = again(rig, partition)
    assert seen(other) == latest(sent)
    power_cut(partition)
    other = again(rig, partition)
    sent += put(other, (b"b", b"2"))
    other.cleanup.compact(force=True)
    assert seen(other) == latest(sent)
    assert cleaner_checkpoint.load(other.directory)[:2] == (4, 4)


def test_the_age_of_a_compacted_segment_is_known_without_its_index(rig: Rig) -> None:
    partition = log(rig)
    put(partition, *[(b"k%d" % (n % 2), b"%d" % n) for n in range(9)])
    roll(partition)
    put(partition, (b"k0", b"9"))
    partition.cleanup.compact(force=True)
    want = retention.max_timestamp_of(partition.directory, 0, 9)
    log_file(partition, 0, ".index").unlink()
    assert retention.max_timestamp_of(partition.directory, 0, 9, contiguous=False) == want == 1007
