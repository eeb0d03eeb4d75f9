"""Ranges: whole batches where they lie in files, whatever happens to the files meanwhile."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.batch import parse, walk
from klamm.disk import _os
from klamm.errors import CorruptBatch, OffsetOutOfRange
from klamm.log import aborted, segment
from klamm.log._head import Snapshot
from klamm.log.partition import Partition
from klamm.log.ranges import Range, Ranges, SegmentFiles
from tests.descriptors import descriptors, opened_since
from tests.log.compacted import in_transaction, put, sealed
from tests.log.logs import batch_of
from tests.procs import children
from tests.rig import Rig, Sizes, batch, dies, killed_at

SMALL = Sizes(segment_bytes=500, index_interval_bytes=150)


def fill(partition: Partition, count: int, *, seed: int = 0) -> list[bytes]:
    """Batches of some records each, as they lie in the log."""
    chance = random.Random(seed)
    stored = []
    for _ in range(count):
        made = batch_of([1000] * chance.randrange(1, 4), padding=chance.choice([0, 10, 60, 300]))
        partition.append(made)
        stored.append(bytes(made))
    return stored


def ranges_of(partition: Partition, most: int = 4) -> Ranges:
    return Ranges(partition, SegmentFiles(most))


def find(ranges: Ranges, partition: Partition, offset: int, max_bytes: int, *, first: bool = True) -> Range | None:
    now = partition.snapshot()
    return ranges.find(offset, max_bytes, now.next_offset, at_least_one=first)


def follow(ranges: Ranges, partition: Partition, offset: int = 0, max_bytes: int = 400) -> list[bytes]:
    """Everything from an offset on, as one who fetches gets it: batches."""
    found = []
    while offset < partition.ends().end:
        there = find(ranges, partition, offset, max_bytes)
        if there is None:
            break
        data, at = there.read(), 0
        assert len(data) == len(there)
        for header in walk(data):
            found.append(data[at : at + header.size])
            assert header.next_offset > offset, "progress"
            at += header.size
            offset = header.next_offset
        assert at == len(data)
    return found


def test_an_empty_log_has_no_ranges(rig: Rig) -> None:
    partition = rig.partition(1)
    partition.append(batch(0, 0))
    assert ranges_of(partition).find(0, 1000, 0, at_least_one=True) is None


@pytest.mark.parametrize("max_bytes", [0, 1, 61, 100, 333, 1000, 1 << 20])
def test_all_batches_in_order_whatever_is_asked_for_at_once(rig: Rig, max_bytes: int) -> None:
    partition = rig.partition(1, SMALL)
    stored = fill(partition, 60)
    assert len(partition.segments()) > 5
    assert follow(ranges_of(partition), partition, 0, max_bytes) == stored


@settings(max_examples=60)
@given(data=st.data())
def test_any_offset_and_any_size(shared: Rig, data: st.DataObject) -> None:
    """Against a list of all batches."""
    partition = shared.partition(shared.fresh_slot(), segment_bytes=data.draw(st.sampled_from([300, 900, 1 << 20])))
    stored = fill(partition, data.draw(st.integers(1, 25)), seed=data.draw(st.integers(0, 99)))
    headers = [parse(each) for each in stored]
    end = headers[-1].next_offset
    ranges = ranges_of(partition)
    for _ in range(6):
        offset = data.draw(st.integers(0, end - 1))
        limit = data.draw(st.integers(offset, end))
        max_bytes, first = data.draw(st.integers(-5, 2000)), data.draw(st.booleans())
        at = next(n for n, header in enumerate(headers) if header.next_offset > offset)
        found = ranges.find(offset, max_bytes, limit, at_least_one=first)
        base = segment.holding(partition.segments(), headers[at].base_offset)
        expected = b""
        for n in range(at, len(stored)):
            header = headers[n]
            if segment.holding(partition.segments(), header.base_offset) != base or header.next_offset > limit:
                break
            if len(expected) + header.size > max_bytes and not (first and not expected):
                break
            expected += stored[n]
        assert (found.read() if found is not None else b"") == expected


def test_a_file_that_somebody_appends_to_is_read_up_to_the_commit(rig: Rig) -> None:
    partition = rig.partition(1, segment_bytes=1 << 20)
    ranges = ranges_of(partition)
    stored = []
    for number in range(5):
        stored += fill(partition, 3, seed=number)
        with open(segment.path_of(partition.directory, 0), "ab") as file:
            file.write(b"torn")
        assert follow(ranges, partition) == stored
        os.truncate(segment.path_of(partition.directory, 0), partition.snapshot().position)


@pytest.mark.parametrize("step", range(1, 40))
def test_a_writer_killed_at_any_store_of_a_roll_hides_nothing(rig: Rig, step: int) -> None:
    """Its new segment may be published, and the version of the segments not yet."""
    partition = rig.partition(1, segment_bytes=400)
    ranges = ranges_of(partition)
    partition.append(batch(1, 0, 100))
    assert len(follow(ranges, partition)) == 1  # its file is open, its place remembered
    partition.append(batch(1, 1, 100))

    def append() -> None:
        mine = rig.child().partition(1, segment_bytes=400)
        _os.trap(step, kinds=_os.STORE, signal=signal.SIGKILL)
        mine.append(batch(2, 0, 100))

    with children() as start:
        start(append).ended()
    partition.append(batch(1, 2, 100))
    assert follow(ranges, partition) == follow(ranges_of(partition), partition)
    end = partition.ends().end
    assert [parse(each).base_offset for each in follow(ranges, partition)] == list(range(end))
    assert follow(ranges, partition, 2) == follow(ranges_of(partition), partition, 2)


def test_after_retention_has_moved_the_start(rig: Rig) -> None:
    partition = rig.partition(1, SMALL)
    stored = fill(partition, 40)
    ranges = ranges_of(partition, most=64)
    assert follow(ranges, partition) == stored
    middle = parse(stored[25]).base_offset
    partition.cleanup.delete_before(middle)
    assert follow(ranges, partition, middle) == stored[25:]
    with pytest.raises(OffsetOutOfRange):
        find(ranges, partition, 0, 100)


def test_a_segment_that_goes_away_while_it_is_looked_for_is_out_of_range(rig: Rig) -> None:
    """The start has moved and the files are gone, but the version of the segments is still the old one."""
    partition = rig.partition(1, SMALL)
    stored = fill(partition, 40)
    ranges = ranges_of(partition, most=1)
    before = partition.snapshot()
    follow(ranges, partition)

    partition.log.lock()
    partition.log.publish(log_start=parse(stored[30]).base_offset)
    partition.log.unlock()
    os.unlink(segment.path_of(partition.directory, 0))
    with pytest.raises(OffsetOutOfRange):
        ranges.find(0, 100, before.next_offset, at_least_one=True)


def test_a_segment_that_is_gone_for_no_reason_is_damage(rig: Rig) -> None:
    partition = rig.partition(1, SMALL)
    fill(partition, 40)
    ranges = ranges_of(partition)
    follow(ranges, partition)
    base = partition.segments()[3]
    os.unlink(segment.path_of(partition.directory, base))
    with pytest.raises(CorruptBatch):
        find(ranges_of(partition), partition, base, 100)
    with pytest.raises(CorruptBatch):
        find(ranges, partition, base, 100)


# ---- compaction


def compacted(rig: Rig) -> Partition:
    """Most of it is gone after a pass, whole segments included."""
    partition = rig.partition(1, cleanup_policy="compact", segment_bytes=400, index_interval_bytes=100)
    for number in range(75):
        put(partition, (b"%d" % (number % 3), b"%d" % number))
    put(partition, (b"rare", b"1"))
    for number in range(75):
        put(partition, (b"%d" % (number % 3), b"%d" % number))
    return partition


def test_in_a_compacted_log_every_offset_gives_what_follows_it(rig: Rig) -> None:
    partition = compacted(rig)
    partition.checkpoint()
    done = partition.cleanup.compact()
    assert done is not None
    assert done.records_removed > 100
    stored = [each for base in partition.segments() for each in _batches(partition, base)]
    for ranges in (ranges_of(partition), ranges_of(partition, most=64)):
        for offset in range(partition.ends().end):
            expected = next(each for each in stored if parse(each).next_offset > offset)
            found = find(ranges, partition, offset, 1)
            assert found is not None, f"offset {offset}: nothing, and a client would stay there for ever"
            assert found.read() == expected
    assert follow(ranges_of(partition), partition) == stored


def _batches(partition: Partition, base: int) -> list[bytes]:
    data = Path(segment.path_of(partition.directory, base)).read_bytes()
    found, at = [], 0
    for header in walk(data):
        found.append(data[at : at + header.size])
        at += header.size
    return found


def test_a_range_from_before_a_compaction_is_still_what_it_was(rig: Rig) -> None:
    partition = compacted(rig)
    ranges = ranges_of(partition)
    found = find(ranges, partition, 0, 300)
    assert found is not None
    before = found.read()
    partition.checkpoint()
    partition.cleanup.compact()
    assert found.read() == before
    again = find(ranges, partition, 0, 300)
    assert again is not None
    assert parse(again.read()).base_offset > 60


def test_a_segment_compacted_after_the_commit_was_read_is_not_cut_at_that_commit(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit is a position in the old file. In the new one, it lies within a batch."""
    partition = rig.partition(1, cleanup_policy="compact", segment_bytes=1000)
    for number in range(6):
        put(partition, (b"rare %d" % number if number % 2 else b"again", b"x" * number))
    ranges = ranges_of(partition)
    read_commit = partition.snapshot

    def read_commit_and_compact() -> Snapshot:
        commit = read_commit()
        monkeypatch.setattr(partition, "snapshot", read_commit)
        for number in range(6, 30):
            put(partition, (b"rare %d" % number if number < 9 else b"again", b"x" * number))
        partition.checkpoint()
        done = partition.cleanup.compact()
        assert done is not None and done.records_removed and commit.active_base == 0 < partition.segments()[1]
        return commit

    monkeypatch.setattr(partition, "snapshot", read_commit_and_compact)
    found = ranges.find(0, 1 << 20, 6, at_least_one=True)
    assert found is not None
    data = found.read()
    assert sum(header.size for header in walk(data)) == len(data), "it ends within a batch"


def test_while_a_compaction_stands_still_at_any_step(rig: Rig) -> None:
    """Between its rename and the new version, too: there files are not what their version says."""
    partition = compacted(rig)
    partition.checkpoint()
    warm = ranges_of(partition, most=64)
    all_of_it = set(follow(warm, partition))

    def compact() -> None:
        mine = rig.child().partition(1, cleanup_policy="compact", segment_bytes=400, index_interval_bytes=100)
        _os.trap(1, kinds=_os.RENAME | _os.SYNC, signal=signal.SIGSTOP, repeat=True)
        mine.cleanup.compact()

    stops = 0
    with children() as start:
        child = start(compact)
        while child.stopped():
            stops += 1
            found = follow(warm, partition, max_bytes=3000)  # of files as they are, or as they were
            assert set(follow(ranges_of(partition), partition, max_bytes=3000)) <= set(found) <= all_of_it
            assert len(set(found)) == len(found)
            child.go_on()
    assert stops > 20
    assert follow(warm, partition) == follow(ranges_of(partition), partition)


def test_a_file_replaced_without_another_version_is_noticed(rig: Rig) -> None:
    """As a compaction leaves it that was killed between its rename and the new version."""
    partition = rig.partition(1, SMALL)
    stored = fill(partition, 40)
    ranges = ranges_of(partition, most=64)
    assert follow(ranges, partition) == stored
    path = Path(segment.path_of(partition.directory, partition.segments()[2]))
    aside = path.with_suffix(".aside")
    aside.write_bytes(path.read_bytes())
    aside.rename(path)
    ranges._positions.clear()
    assert follow(ranges, partition) == stored


# ---- transactions


def test_what_was_aborted_is_told_for_the_records_in_question(rig: Rig) -> None:
    partition = rig.partition(1, segment_bytes=300)
    spans = []
    for number in range(12):
        first = partition.append(in_transaction(5, number, [(b"k", b"%d" % number)]))
        last = partition.append_marker(5, number + 1, commit=number % 2 == 0)
        assert last is not None
        if number % 2:
            spans.append((5, first, last))
        partition.append(sealed([(b"k", b"plain")]))
    ranges = ranges_of(partition)
    end = partition.ends().end
    for offset in range(end):
        for max_bytes in (100, 400):
            found = find(ranges, partition, offset, max_bytes)
            assert found is not None
            *_, last_batch = walk(found.read())
            told = ranges.aborted_in(offset, found)
            assert told == [(p, first) for p, first, last in spans if first < last_batch.next_offset and last >= offset]


def test_what_was_aborted_is_told_once_though_its_marker_was_begun_twice(rig: Rig) -> None:
    """A process killed while it writes an abort marker leaves an entry, and the next one writes another. A client of
    the Kafka server takes one off its list for each marker: with one too many, it would leave out what follows.
    """
    repeated, alive, step = 0, False, 0
    while not alive:
        step += 1
        slot = rig.fresh_slot()
        partition = rig.partition(slot)
        first = partition.append(in_transaction(5, 0, [(b"k", b"aborted")]))

        def mark(slot: int = slot, step: int = step) -> None:
            mine = rig.child().partition(slot)
            killed_at(step, lambda: mine.append_marker(5, 1, commit=False))()

        alive = not dies(mark)
        partition.append(sealed([(b"k", b"between")]))
        partition.append_marker(5, 1, commit=False)
        partition.append(in_transaction(5, 1, [(b"k", b"committed")]))
        partition.append_marker(5, 2, commit=True)
        entries = [entry for base in partition.segments() for entry in aborted.load(partition.directory, base)]
        repeated += len(entries) > 1
        ranges = ranges_of(partition)
        found = find(ranges, partition, 0, 1 << 20)
        assert found is not None
        assert ranges.aborted_in(0, found) == [(5, first)]
    assert step > 3 and repeated


# ---- open files


def test_few_files_stay_open_and_none_that_is_gone(rig: Rig) -> None:
    partition = rig.partition(1, SMALL)
    stored = fill(partition, 60)
    files = SegmentFiles(3)
    ranges = Ranges(partition, files)
    held = find(ranges, partition, 0, 100)
    assert held is not None
    before = descriptors()
    assert follow(ranges, partition) == stored
    assert len(files) == 3
    assert len(opened_since(before)) <= 6, "each with its index"
    assert held.read().startswith(stored[0])
    partition.cleanup.delete_before(partition.ends().end)
    files.forget_unlinked()
    assert len(files) <= 1
