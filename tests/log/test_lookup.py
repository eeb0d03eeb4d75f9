"""Looking up by time, in the log as it lies; and what heads say of logs that nobody has opened."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.log import head, lookup
from klamm.log.lookup import TimestampLookup
from tests.log.logs import batch_of, flip, power_cut
from tests.log.test_transactions import plain, transactional
from tests.rig import Rig

Log = list[list[int]]  # the timestamps of each batch

logs = st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=4), min_size=1, max_size=25)


@settings(max_examples=60)
@given(logs, st.sampled_from([0, 100, 1000]), st.sampled_from([1, 200, 1 << 20]), st.integers(0, 100))
def test_the_first_since_a_time_and_the_youngest_are_what_looking_at_every_record_finds(
    shared: Rig, log: Log, interval: int, segment_bytes: int, start: int
) -> None:
    partition = shared.partition(shared.fresh_slot(), index_interval_bytes=interval, segment_bytes=segment_bytes)
    for timestamps in log:
        partition.append(batch_of(timestamps))
    flat = list(enumerate(stamp for timestamps in log for stamp in timestamps))
    partition.cleanup.delete_before(start % (len(flat) + 1))
    left = flat[start % (len(flat) + 1) :]
    for time in range(32):
        want = next((TimestampLookup(offset, stamp, 0) for offset, stamp in left if stamp >= time), None)
        assert lookup.first_since(partition, time) == want
    largest = max((stamp for _, stamp in left), default=-1)
    want = next((TimestampLookup(offset, stamp, 0) for offset, stamp in left if stamp == largest), None)
    assert lookup.find_max_timestamp(partition) == want


def test_open_and_aborted_records_and_markers_are_found_in_the_log_as_it_lies(rig: Rig) -> None:
    partition = rig.partition(1)
    partition.append(plain("a"))  # at time 0, as those below
    partition.append(transactional("b", 7))
    assert partition.append_marker(7, 1, commit=False) == 2
    partition.append(transactional("c", 8))
    assert lookup.first_since(partition, 0) == TimestampLookup(0, 0, 0)
    marker = lookup.first_since(partition, 1)
    assert marker is not None and marker.offset == 2 and marker.timestamp > 1_000_000
    assert lookup.find_max_timestamp(partition) == marker
    assert lookup.first_since(partition, marker.timestamp + 1) is None
    assert partition.offset_at(0) == 0 and partition.offset_at(1) is None
    partition.cleanup.delete_before(3)
    assert lookup.first_since(partition, 0) == lookup.find_max_timestamp(partition) == TimestampLookup(3, 0, 0)
    assert partition.offset_at(0) is None  # it is open


def test_an_empty_log_has_no_youngest_record(rig: Rig) -> None:
    partition = rig.partition(1)
    assert lookup.find_max_timestamp(partition) is None and lookup.first_since(partition, 0) is None


def test_each_offset_belongs_to_the_epoch_it_was_appended_in(rig: Rig) -> None:
    partition = rig.partition(1)

    def knows_epochs() -> bool:
        return partition.knows_epochs

    assert knows_epochs() and partition.epoch_at(0) == 0
    partition.append(batch_of([1, 2]))
    power_cut(partition)
    partition.append(batch_of([3]))
    assert not knows_epochs()
    assert [partition.epoch_at(offset) for offset in range(4)] == [0, 0, 1, 1]
    assert knows_epochs()
    assert lookup.first_since(partition, 2) == TimestampLookup(1, 2, 0)
    assert lookup.first_since(partition, 3) == TimestampLookup(2, 3, 1)


def test_heads_tell_leader_epochs_of_logs_that_nobody_has_opened(rig: Rig) -> None:
    assert head.leader_epochs(rig.heads, [1, 2, 3]) == [0, 0, 0]
    partition = rig.partition(2)
    partition.append(batch_of([1]))
    power_cut(partition)
    assert head.leader_epochs(rig.heads, [1, 2, 3]) == [0, -1, 0]  # it will be another
    partition.append(batch_of([1]))
    assert head.leader_epochs(rig.heads, (3, 2, 1)) == [0, 1, 0]
    for position in range(head.SLOT_BYTES):
        flip(Path(rig.heads.path), 3 * head.SLOT_BYTES + position, 0x41)  # every commit, whichever is the latest
    assert head.leader_epochs(rig.heads, [3]) == [-1]
    for wrong in (0, rig.heads.size()):
        with pytest.raises(IndexError):
            head.leader_epochs(rig.heads, [1, wrong])
