"""The index: it makes looking up quick, and never changes what is found."""

from __future__ import annotations

import errno
import itertools
import os
import struct
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.batch import walk
from klamm.disk import _os
from klamm.log import _head, index, segment
from klamm.log.index import ENTRY_SIZE, HEADER_SIZE, Entry
from klamm.log.partition import Partition
from tests.log.logs import batch_of, flip, log_file, records
from tests.rig import Rig, dies, index_is_true, index_of, killed_at

Log = list[list[int]]  # the timestamps of each batch

small = settings(max_examples=60)
logs = st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=4), min_size=1, max_size=25)


def filled(rig: Rig, log: Log, interval: int, segment_bytes: int) -> Partition:
    partition = rig.partition(rig.fresh_slot(), index_interval_bytes=interval, segment_bytes=segment_bytes)
    for timestamps in log:
        partition.append(batch_of(timestamps))
    return partition


def header_of(path: Path) -> tuple[int, int, int, int, int]:
    """Base, first, size, position and CRC of the last batch, as _head.index_header takes them."""
    base, size, last_position, first, last = struct.unpack_from("<qqqII", path.read_bytes(), 8)
    return base, first, size, last_position, last


def foreign_header(path: Path, which: int) -> bytes:
    """The header of an index with a right checksum, of another segment: by its base, or by what is in it."""
    base, first, size, last_position, last = header_of(path)
    active = size == 0
    return [
        _head.index_header(base + 1, first, size, last_position, last),
        _head.index_header(base, first ^ 1, size, last_position, last),
        _head.index_header(base, first ^ active, size + 1, last_position, last),
        _head.index_header(base, first ^ active, size, last_position, last ^ 1),
    ][which]


def first_at(log: Log, timestamp: int, start: int = 0) -> int | None:
    """The oracle: look at every record."""
    flat = [each for timestamps in log for each in timestamps]
    return next((offset for offset, each in enumerate(flat) if each >= timestamp and offset >= start), None)


def check_all(partition: Partition, log: Log, start: int = 0) -> None:
    """Everything a look-up can be asked, against the oracle."""
    end = sum(map(len, log))
    flat = [each for timestamps in log for each in timestamps]
    for offset in range(start, end):
        found = records(partition, offset, 200)
        assert [(record.offset, record.timestamp) for record in found] == list(enumerate(flat))[offset:]
    for timestamp in range(-1, 33):
        assert partition.offset_at(timestamp) == first_at(log, timestamp, start), f"at time {timestamp}"


@small
@given(logs, st.sampled_from([0, 1, 100, 200, 1000]), st.sampled_from([1, 200, 500, 1 << 20]))
def test_look_ups_by_offset_and_by_time_find_what_looking_at_every_record_finds(
    shared: Rig, log: Log, interval: int, segment_bytes: int
) -> None:
    partition = filled(shared, log, interval, segment_bytes)
    check_all(partition, log)
    index_is_true(partition)


@small
@given(logs, st.data())
def test_a_missing_foreign_or_broken_index_changes_no_result(shared: Rig, log: Log, data: st.DataObject) -> None:
    partition = filled(
        shared, log, data.draw(st.sampled_from([1, 100, 200])), data.draw(st.sampled_from([300, 1 << 20]))
    )
    for base in partition.segments():
        path = log_file(partition, base, ".index")
        if not path.exists():
            continue
        size = path.stat().st_size
        match data.draw(
            st.sampled_from(["missing", "cut", "flipped", "foreign", "empty", "longer", "rubbish", "none"])
        ):
            case "missing":
                path.unlink()
            case "cut":
                os.truncate(path, data.draw(st.integers(0, size)))
            case "flipped":
                flip(path, data.draw(st.integers(0, size - 1)), 1 << data.draw(st.integers(0, 7)))
            case "foreign":
                lies = b"".join(_head.index_entry(base, 7 * n + 1, 99) for n in range(5))
                path.write_bytes(foreign_header(path, data.draw(st.integers(0, 3))) + lies)
            case "empty":
                path.write_bytes(b"")
            case "longer":
                with path.open("ab") as file:
                    file.write(data.draw(st.binary(max_size=3 * ENTRY_SIZE)))
            case "rubbish":
                path.write_bytes(data.draw(st.binary(max_size=200)))
    check_all(partition, log)
    start = data.draw(st.integers(0, sum(map(len, log))))
    partition.cleanup.delete_before(start)
    check_all(partition, log, start)
    partition.append(batch_of([31]))
    check_all(partition, [*log, [31]], start)


def test_whoever_jumps_to_an_entry_checks_what_is_there(rig: Rig) -> None:
    """Entries with a right checksum that point nowhere, or at another batch than they say."""
    log = [[n] for n in range(30)]
    partition = filled(rig, log, 100, 1 << 20)
    path = log_file(partition, 0, ".index")
    size = len(batch_of([0]))
    header = path.read_bytes()[:HEADER_SIZE]
    for lie in ((5, size * 4), (5, size * 5 + 1), (5, size * 31), (5, 1 << 40)):
        path.write_bytes(header + _head.index_entry(*lie, 3))
        for offset in range(30):
            assert [record.offset for record in records(partition, offset)] == list(range(offset, 30))


def test_the_index_of_a_closed_segment_tells_its_youngest_record(rig: Rig) -> None:
    partition = filled(rig, [[5], [30], [7], [6], [1], [2]], 1 << 20, 3 * len(batch_of([0])))
    assert partition.segments() == [0, 3]
    size = log_file(partition, 0).stat().st_size
    with index_of(partition, 0) as found:
        assert found.count == 1
        assert found.closing(size) == Entry(3, size, 30)
        assert found.closing(size - 1) is None
    with index_of(partition, 3) as found:
        assert found.count == 0
        assert found.closing(size) is None


def test_entries_lie_an_interval_apart(rig: Rig) -> None:
    partition = filled(rig, [[n] for n in range(200)], 500, 1 << 20)
    with index_of(partition, 0) as found:
        positions = [0, *(entry.position for n in range(found.count) if (entry := found.entry(n)))]
    size = len(batch_of([0]))
    assert len(positions) > 20
    assert all(500 <= after - before < 500 + size for before, after in itertools.pairwise(positions))


def test_a_look_up_in_a_long_log_reads_little(rig: Rig) -> None:
    log = [[n] for n in range(3000)]
    partition = filled(rig, log, 1000, 1 << 30)
    for look in (lambda: partition.reader(2345).read(1), lambda: partition.offset_at(2345)):
        _os.trap(1 << 60, kinds=_os.READ)
        look()
        assert _os.steps_taken() < 8 * 6 + 60, "it read batch by batch"  # snapshots are eight steps each


def test_a_writer_killed_at_any_step_of_its_first_entry_leaves_no_gap_in_the_index(rig: Rig) -> None:
    """The second segment's index starts with its first entry, however many the first one had."""
    size = len(batch_of([0]))
    changes = {"index_interval_bytes": size, "segment_bytes": 6 * size}
    step, alive = 0, False
    while not alive:
        step += 1
        partition = rig.partition(rig.fresh_slot(), **changes)
        for number in range(7):
            partition.append(batch_of([number]))
        assert partition.segments() == [0, 6]

        def append(slot: int = partition.slot, step: int = step) -> None:
            mine = rig.child().partition(slot, **changes)
            killed_at(step, lambda: mine.append(batch_of([7])))()

        alive = not dies(append)
        while partition.ends().end < 11:
            partition.append(batch_of([partition.ends().end]))
        assert index_is_true(partition) >= 8
        check_all(partition, [[number] for number in range(11)])
    assert step > 20


def test_an_index_that_cannot_be_written_is_left_out(rig: Rig) -> None:
    """An entry is a favour: without room for it, the append is made all the same."""
    partition = filled(rig, [[n] for n in range(5)], 100, 1 << 20)
    with index_of(partition, 0) as found:
        before = found.count
    for n in range(5, 10):
        _os.trap(3, kinds=_os.WRITE, error=errno.ENOSPC)  # the log's two steps, then the index
        assert partition.append(batch_of([n])) == n
        _os.trap(0)
    with index_of(partition, 0) as found:
        assert found.count == before
    for n in range(10, 20):
        partition.append(batch_of([n]))
    assert index_is_true(partition) > before
    check_all(partition, [[n] for n in range(20)])


def test_an_index_written_anew_is_what_appends_would_have_written(rig: Rig) -> None:
    partition = filled(rig, [[n % 7] for n in range(40)], 300, 1 << 20)
    path = Path(segment.path_of(partition.directory, 0, ".index"))
    before = path.read_bytes()
    with index_of(partition, 0) as found:
        entries = [entry for n in range(found.count) if (entry := found.entry(n))]
    path.unlink()
    index.write(partition.directory, 0, entries)
    assert path.read_bytes() == before
    assert len(walk(log_file(partition, 0).read_bytes())) == 40
