"""What readers know of aborted transactions: the same as by looking at every entry, and each entry is read once."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.batch import RECORDS, decode
from klamm.disk import files
from klamm.log import aborted, segment
from klamm.log.aborted import Aborted
from klamm.log.aborted_spans import AbortedSpans
from klamm.log.partition import Partition
from klamm.log.reader import Reader
from tests.log.compacted import in_transaction, sealed
from tests.rig import Rig


@contextmanager
def lines_run() -> Iterator[Callable[[], int]]:
    """How many lines of klamm.log ran so far, in Python: work that does not depend on the machine."""
    count = 0

    def line(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return line

    def called(frame: FrameType, event: str, argument: object) -> Any:
        return line if frame.f_globals.get("__name__", "").startswith("klamm.log") else None

    before = sys.gettrace()
    sys.settrace(called)
    try:
        yield lambda: count
    finally:
        sys.settrace(before)


def abort(partition: Partition, count: int, first_epoch: int = 0, producer: int = 7) -> None:
    for epoch in range(first_epoch, first_epoch + count):
        partition.append(in_transaction(producer, epoch, [(b"k", b"aborted")]))
        partition.append_marker(producer, epoch + 1, commit=False)


def read_all(partition: Partition) -> int:
    """Bytes that a reader of committed records gets, a few batches at a time."""
    found = 0
    with partition.reader(0) as reader:
        while data := reader.read(1000):
            found += len(data)
    return found


def test_reading_takes_work_in_proportion_to_the_aborted_transactions(rig: Rig) -> None:
    work = {}
    for count in (100, 200, 400):
        partition = rig.partition(rig.fresh_slot(), segment_bytes=1 << 20)
        abort(partition, count)
        partition.append(sealed([(b"k", b"last")]))
        with lines_run() as lines:
            assert read_all(partition) > 0
            work[count] = lines()
    assert work[400] < 4.4 * work[100], work


def test_a_reader_that_follows_reads_each_entry_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    read = 0
    parse = aborted.parse

    def counting(data: bytes) -> list[Aborted]:
        nonlocal read
        found = parse(data)
        read += len(found)
        return found

    monkeypatch.setattr(aborted, "parse", counting)
    partition = rig.partition(1, segment_bytes=2000)
    with partition.reader(0) as reader:
        for epoch in range(200):
            abort(partition, 1, epoch)
            partition.append(sealed([(b"k", b"%d" % epoch)]))
            while reader.read():
                pass
    assert len(partition.segments()) > 5
    assert read == 201  # the first one twice: files that are met for the first time are compared with the point


def test_a_file_that_was_replaced_by_an_older_one_is_made_again_from_the_log(rig: Rig) -> None:
    partition = rig.partition(1, segment_bytes=1 << 20)
    abort(partition, 3)
    spans = AbortedSpans(partition)
    spans.refresh(0)
    assert spans.within(0, 100) == [(7, 0), (7, 2), (7, 4)]
    aborted.write(partition.directory, 0, aborted.load(partition.directory, 0)[:2])
    partition.log.bump_segments_version()
    spans.refresh(0)
    assert spans.within(0, 100) == [(7, 0), (7, 2), (7, 4)]
    assert len(aborted.load(partition.directory, 0)) == 3


def test_a_torn_entry_of_an_abort_that_was_committed_is_made_again_from_the_log(rig: Rig) -> None:
    partition = rig.partition(1, segment_bytes=1 << 20)
    abort(partition, 2)
    path = f"{partition.directory}/{0:020}.aborted"
    with open(path, "r+b") as file:
        data = file.read()
        file.truncate(len(data) - 9)
    spans = AbortedSpans(partition)
    spans.refresh(0)
    assert spans.within(0, 100) == [(7, 0), (7, 2)]
    assert len(aborted.load(partition.directory, 0)) == 2


def abort_in_segments(partition: Partition, count: int = 12) -> list[str]:
    """Transactions in several segments, of which every third is committed: the .aborted files, one of each segment."""
    for epoch in range(count):
        partition.append(in_transaction(7, epoch, [(b"k", b"%d" % epoch + b"." * 300)]))
        partition.append_marker(7, epoch + 1, commit=epoch % 3 == 2)
    bases = segment.bases(partition.directory, aborted.SUFFIX)
    assert len(bases) > 3
    return [segment.path_of(partition.directory, base, aborted.SUFFIX) for base in bases]


def values_of(partition: Partition, reader: Reader | None = None) -> list[int]:
    """What a reader of committed records gets, by the number that each record begins with."""
    found = []
    with reader or partition.reader(0) as reader:
        while data := reader.read(1000):
            found += [int(record.value.split(b".")[0]) for record in decode(data, form=RECORDS) if record.value]
    return found


def cut(path: str) -> None:
    """Put an older version in the place of a file: without its last entry."""
    data = Path(path).read_bytes()
    files.replace(path, data[: -aborted.ENTRY_SIZE])


COMMITTED = [2, 5, 8, 11]
LOSSES: dict[str, Callable[[str], object]] = {"removed": os.unlink, "older": cut}


@pytest.mark.parametrize("how", LOSSES)
def test_an_aborted_file_that_no_recovery_point_lists_yet_is_missed_and_made_again(rig: Rig, how: str) -> None:
    whole = rig.partition(1, segment_bytes=1200)
    paths = abort_in_segments(whole)
    truth = {path: aborted.load(whole.directory, int(Path(path).stem)) for path in paths}
    for path in paths:
        if how == "removed" or len(truth[path]) > 1:
            follower = whole.reader(0)
            LOSSES[how](path)
            partition = rig.child().partition(1, segment_bytes=1200)
            assert values_of(partition) == values_of(whole, follower) == COMMITTED, path
            assert {path: aborted.load(whole.directory, int(Path(path).stem)) for path in paths} == truth
            files.remove(f"{whole.directory}/recovery")  # as it was: none was written
            whole.log.set_recovery_point(-1, 0)


def test_a_recovery_point_lists_no_aborted_file_that_was_lost_before_it(rig: Rig) -> None:
    partition = rig.partition(1, segment_bytes=1200)
    for path in abort_in_segments(partition):
        os.unlink(path)
        partition.checkpoint(force=True)
        known = partition.known_point()
        assert known is not None and len(known.listed_aborted) > 3 and os.path.exists(path)
        assert values_of(partition) == COMMITTED


def test_a_compaction_removes_what_was_aborted_though_its_file_is_missing(rig: Rig) -> None:
    partition = rig.partition(1, segment_bytes=1200, cleanup_policy="compact")
    paths = abort_in_segments(partition)
    os.unlink(paths[1])
    partition.cleanup.compact(force=True)
    assert values_of(partition) == [11]


def test_a_segment_whose_markers_ended_nothing_misses_no_aborted_file(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    partition = rig.partition(1, segment_bytes=600)
    abort(partition, 1)
    for producer in range(20, 60):  # of transactions without a record here
        partition.append_marker(producer, 1, commit=False)
    abort(partition, 3, first_epoch=1)
    assert len(partition.segments()) > 4 > len(segment.bases(partition.directory, aborted.SUFFIX))
    assert values_of(partition) == []
    partition.checkpoint()
    assert not caplog.records


@st.composite
def histories(draw: st.DrawFn) -> list[Aborted]:
    """Markers in the order of their offsets; of each producer one transaction after the other; some markers twice."""
    entries: list[Aborted] = []
    begins = dict.fromkeys(range(3), 0)
    offset = 0
    for _ in range(draw(st.integers(0, 25))):
        producer = draw(st.integers(0, 2))
        first = draw(st.integers(begins[producer], max(offset, begins[producer])))
        offset = max(offset, first) + draw(st.integers(1, 4))
        entries.append(Aborted(producer, first, offset))
        if draw(st.booleans()):  # a killed writer left the entry, and another one wrote the marker later
            offset += draw(st.integers(1, 4))
            entries.append(Aborted(producer, first, offset))
        begins[producer] = offset + 1
    return entries


@given(histories())
def test_the_answers_are_those_of_a_look_at_every_entry(entries: list[Aborted]) -> None:
    spans = AbortedSpans.__new__(AbortedSpans)
    spans._clear(0)
    spans._add(entries)
    end = max((entry.last_offset for entry in entries), default=0) + 3
    for offset in range(end):
        for producer in range(4):
            wanted = any(p == producer and first <= offset <= last for p, first, last in entries)
            assert spans.covers(producer, offset) == wanted
        for end_offset in range(offset + 1, end, 3):
            found = {(p, first) for p, first, last in entries if first < end_offset and last >= offset}
            assert spans.within(offset, end_offset) == sorted(found, key=lambda span: (span[1], span[0]))


@pytest.mark.soak
def test_a_hundred_thousand_aborted_transactions_are_read_in_linear_time(
    rig: Rig, record_property: Callable[[str, object], None]
) -> None:
    """Prints how long it takes; asserts only that no entry is read twice, and that ten times as many are not much more
    than ten times the work.
    """
    seconds, work = {}, {}
    for count in (10_000, 100_000):
        partition = rig.partition(rig.fresh_slot(), segment_bytes=4 << 20)
        for epoch in range(count):
            partition.append(in_transaction(epoch // 30_000, epoch % 30_000, [(b"k", b"aborted")]))
            partition.append_marker(epoch // 30_000, epoch % 30_000 + 1, commit=False)
        partition.append(sealed([(b"k", b"last")]))
        begin = time.monotonic()
        assert read_all(partition) > 0
        seconds[count] = time.monotonic() - begin
        with lines_run() as lines:
            read_all(partition)
            work[count] = lines()
    print(f"aborted transactions: seconds to read {seconds}, lines run {work}")
    record_property("seconds", seconds)
    assert work[100_000] < 11 * work[10_000], work
