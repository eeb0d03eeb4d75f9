"""Where a range is cut (_cut.pxi): as a walk over all headers would, whatever the index and the bytes are."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.batch import header as batch_header
from klamm.batch import walk
from klamm.disk.page_cache import CAN_TELL
from klamm.errors import CorruptBatch
from klamm.log import _head
from klamm.log.index import HEADER_SIZE
from tests.rig import batch

NO_BATCH = -2


def segment_of(sizes: list[int], gaps: list[int]) -> tuple[bytes, list[tuple[int, int]]]:
    """Batches of one record, and where each begins: offset, position. `gaps`: offsets that compaction has taken."""
    data, starts, offset = bytearray(), [], 100
    for size, gap in zip(sizes, gaps, strict=True):
        offset += gap
        one = batch(1, 1, size)
        struct.pack_into(">q", one, 0, offset)
        starts.append((offset, len(data)))
        data += one
        offset += 1
    return bytes(data), starts


def index_of(entries: list[tuple[int, int]]) -> bytes:
    return bytes(HEADER_SIZE) + b"".join(_head.index_entry(offset, position, 0) for offset, position in entries)


@contextmanager
def files(path: Path, log: bytes, index: bytes | None) -> Iterator[tuple[int, int]]:
    (path / "log").write_bytes(log)
    fds = [os.open(path / "log", os.O_RDONLY)]
    if index is not None:
        (path / "index").write_bytes(index)
        fds.append(os.open(path / "index", os.O_RDONLY))
    try:
        yield fds[0], fds[1] if index is not None else -1
    finally:
        for fd in fds:
            os.close(fd)


def walked(log: bytes, start: int, max_end: int, limit: int, at_least_one: bool) -> tuple[int, int]:
    """The reference: every header from the start on."""
    position, offset = start, -1
    while position < len(log):
        header = batch_header.parse(log, position)
        first = position == start and at_least_one
        if header.next_offset > limit or (position + header.size > max_end and not first):
            break
        position, offset = position + header.size, header.next_offset
    return position, offset


def cut(fds: tuple[int, int], end: int, *given: Any, **named: Any) -> Any:
    return _head.cut_range(fds[0], fds[1], end, given[0], end, *given[1:], **named)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cut")


@given(data=st.data())
def test_a_range_is_cut_where_a_walk_over_all_headers_ends(place: Path, data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.sampled_from([0, 30, 200, 3000, 9000]), min_size=1, max_size=60))
    gaps = [data.draw(st.sampled_from([0, 0, 0, 5])) for _ in sizes]
    log, starts = segment_of(sizes, gaps)
    every = data.draw(st.sampled_from([0, 1, 3, 10]))
    entries = starts[every::every] if every else []
    if data.draw(st.booleans()):
        entries.append((starts[-1][0] + 1, len(log)))  # made when the segment was closed
    start = data.draw(st.sampled_from(starts))[1]
    max_end = start + data.draw(st.integers(-1, len(log) + 10))
    limit = data.draw(st.integers(99, starts[-1][0] + 3))
    at_least_one = data.draw(st.booleans())
    wanted = walked(log, start, max_end, limit, at_least_one)
    with files(place, log, index_of(entries)) as fds:
        for may_block in (True, False) if CAN_TELL else (True,):
            found = cut(fds, len(log), start, max_end, limit, at_least_one=at_least_one, may_block=may_block)
            following = {wanted[1], {at: offset for offset, at in starts}.get(wanted[0], -1)}
            assert found[0] == wanted[0]
            assert found[1] in following, "the offset behind the last batch, or that of the next one"
            assert found == cut(fds, len(log), start, max_end, limit, at_least_one=at_least_one, may_block=True)


def test_an_index_of_many_pages_is_searched_wherever_the_range_ends(place: Path) -> None:
    """Entries lie at about the same distance, or all at one end: where it looks first is right, or wrong."""
    even, _ = segment_of([30] * 3000, [0] * 3000)
    for sizes in ([30] * 3000, [2] * 2700 + [3000] * 300, [3000] * 300 + [2] * 2700):
        log, starts = segment_of(sizes, [0] * 3000)
        with files(place, log, index_of(starts[1:])) as fds:
            for number in [*range(0, 3000, 97), 1, 2, 2998, 2999]:
                offset, position = starts[number]
                found = cut(fds, len(log), 0, position, 1 << 60, at_least_one=False, may_block=True)
                assert found == ((position, offset) if number else (0, -1))
                found = cut(fds, len(log), 0, 1 << 40, offset, at_least_one=False, may_block=True)
                assert found == ((position, offset) if number else (0, -1))
    assert len(list(walk(even))) == 3000


def test_entries_that_are_wrong_are_not_followed(place: Path) -> None:
    log, starts = segment_of([200] * 40, [0] * 40)
    wanted = walked(log, 0, starts[30][1] + 5, 1 << 60, True)
    broken = bytearray(index_of(starts[5::5]))
    broken[HEADER_SIZE + 2 * 32 + 3] ^= 1
    beside = [(offset, position + 7) for offset, position in starts[5::5]]
    beyond = [(offset, position + (1 << 40)) for offset, position in starts[5::5]]
    other = [(offset - 1, position) for offset, position in starts[5::5]]
    for index in (
        bytes(broken),
        index_of(other),
        index_of(beside),
        index_of(beyond),
        b"",
        b"x" * 63,
        None,
        index_of([(0, -5)]),
    ):
        with files(place, log, index) as fds:
            assert cut(fds, len(log), 0, starts[30][1] + 5, 1 << 60, at_least_one=True, may_block=True) == wanted


def test_an_entry_for_the_end_counts_only_if_it_is_whole(place: Path) -> None:
    """There is no batch to compare it with."""
    log, starts = segment_of([200] * 40, [0] * 40)
    closing = bytearray(index_of([(starts[-1][0] + 1, len(log))]))
    closing[HEADER_SIZE : HEADER_SIZE + 8] = bytes(8)
    with files(place, log, bytes(closing)) as fds:
        found = cut(fds, len(log), 0, 1 << 40, starts[20][0], at_least_one=True, may_block=True)
    assert found == (starts[20][1], starts[20][0])


def test_a_batch_that_is_none_is_told_with_its_position(place: Path) -> None:
    log, starts = segment_of([200] * 10, [0] * 10)
    for position, value in ((16, 9), (8, 255), (23, 255), (57, 255), (0, 128)):
        spoiled = bytearray(log)
        spoiled[starts[4][1] + position] = value
        with pytest.raises(CorruptBatch):
            batch_header.parse(spoiled, starts[4][1])
        with files(place, bytes(spoiled), None) as fds:
            assert cut(fds, len(log), 0, 1 << 40, 1 << 60, at_least_one=True, may_block=True) == (
                starts[4][1],
                NO_BATCH,
            )
    with files(place, log[: starts[4][1] + 60], None) as fds:
        assert cut(fds, len(log), 0, 1 << 40, 1 << 60, at_least_one=True, may_block=True) == (starts[4][1], NO_BATCH)


@pytest.mark.skipif(not CAN_TELL, reason="the system does not tell what is in memory")
def test_a_loop_looks_at_a_bounded_number_of_headers(place: Path) -> None:
    log, _ = segment_of([1] * 200, [0] * 200)
    with files(place, log, None) as fds:
        named = {"at_least_one": True, "may_block": False}
        assert cut(fds, len(log), 0, 1 << 40, 1 << 60, max_headers=199, **named) is None
        assert cut(fds, len(log), 0, 1 << 40, 1 << 60, max_headers=200, **named) == (len(log), 300)


def test_what_is_no_range_is_refused(place: Path) -> None:
    with files(place, b"", None) as fds:
        for start, end in ((-1, 5), (5, 4)):
            with pytest.raises(ValueError, match="not a range"):
                _head.cut_range(fds[0], -1, 0, start, end, 0, 0, at_least_one=True, may_block=True)
    with pytest.raises(OSError, match="Bad file descriptor"):
        _head.cut_range(99999, -1, 0, 0, 5, 9, 9, at_least_one=True, may_block=True)


@pytest.mark.parametrize("seed", range(20))
def test_no_bytes_of_a_log_or_an_index_lead_beyond_a_buffer_or_into_a_loop(place: Path, seed: int) -> None:
    """Under AddressSanitizer in tests/test_asan.py."""
    chance = random.Random(seed)
    for _ in range(60):
        log, starts = segment_of([chance.choice([0, 50, 5000]) for _ in range(30)], [0] * 30)
        spoiled, index = bytearray(log), bytearray(index_of(starts[1:] * chance.choice([1, 10])))
        for data in (spoiled, index):
            for _ in range(chance.randrange(6)):
                at = chance.randrange(len(data))
                data[at : at + 4] = chance.choice(
                    [b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0"]
                )
            del data[chance.choice([len(data), chance.randrange(len(data))]) :]
        for number in range(0, max(0, len(index) - HEADER_SIZE - 31), 32):  # entries that are whole, and lie
            if chance.random() < 0.3:
                lie = chance.choice([-1, 0, 1, len(log) - 10, 1 << 62, -(1 << 63), (1 << 63) - 1])
                index[HEADER_SIZE + number : HEADER_SIZE + number + 32] = _head.index_entry(lie, lie, 0)
        with files(place, bytes(spoiled), bytes(index)) as fds:
            start = chance.choice([0, chance.randrange(len(log)), len(log), 1 << 62])
            end = start + chance.choice([0, 1, len(log), (1 << 63) - 1 - start])
            max_end = chance.choice([-1, 0, start, end, len(log), (1 << 63) - 1])
            limit = chance.choice([-1, 0, 110, (1 << 63) - 1])
            for may_block in (True, False):
                found = _head.cut_range(
                    *fds, chance.choice([end, 0, -1, (1 << 63) - 1]), start, end, max_end, limit,
                    at_least_one=chance.random() < 0.5, may_block=may_block, max_headers=chance.choice([-1, 0, 5]),
                )  # fmt: skip
                assert found is None or found[0] >= start
