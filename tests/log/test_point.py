"""The recovery point and the history of epochs: what was stored comes back, and nothing else is believed."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.batch import crc32c
from klamm.errors import NewerFormat
from klamm.log import point
from klamm.log.point import Point
from klamm.log.sealed import Lack

number = st.integers(0, 2**62)
pairs = st.lists(st.tuples(number, number), max_size=6).map(tuple)
epochs = st.lists(st.tuples(st.integers(0, point.MAX_EPOCH), number), max_size=6).map(tuple)
points = st.builds(Point, number, number, number, number, epochs, st.integers(-1, 2**62), st.booleans(), pairs)


@given(points)
def test_a_point_says_what_was_packed(found: Point) -> None:
    assert point.parse(point.pack(found)) == found


def test_every_flipped_byte_and_every_cut_is_noticed() -> None:
    data = point.pack(Point(100, 50, 4711, 7, ((0, 0), (3, 20), (4, 90)), 33, True, ((0, 2), (50, 0))))
    assert isinstance(point.parse(data), Point)
    for at in range(len(data)):
        for mask in range(1, 256):
            assert point.parse(data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]) is Lack.DAMAGED
        assert point.parse(data[:at]) is Lack.DAMAGED
    assert point.parse(data + b"\0") is Lack.DAMAGED


def test_a_point_of_a_version_to_come_is_a_newer_format_and_not_damage() -> None:
    data = bytearray(point.pack(Point()))
    struct.pack_into("<I", data, 8, 3)
    struct.pack_into("<I", data, len(data) - 4, crc32c(bytes(data[:-4])))
    with pytest.raises(NewerFormat):
        point.parse(bytes(data))


def test_counts_that_do_not_fit_the_length_are_damage() -> None:
    for at in (12, 16):  # of epochs, of segments
        for count in (1, 5, 2**31, 2**32 - 1):
            data = bytearray(point.pack(Point(epochs=())))
            struct.pack_into("<I", data, at, count)
            struct.pack_into("<I", data, len(data) - 4, crc32c(bytes(data[:-4])))
            assert point.parse(bytes(data)) is Lack.DAMAGED


@pytest.mark.parametrize("epoch", [-1, point.MAX_EPOCH + 1, 2**31, 2**62])
def test_an_epoch_that_no_batch_can_have_is_damage(epoch: int) -> None:
    assert point.parse(point.pack(Point(epochs=((0, 0), (epoch, 5))))) is Lack.DAMAGED


def test_a_point_is_stored_and_loaded_whole_or_not_there(tmp_path: Path) -> None:
    directory = str(tmp_path)
    assert point.load(directory) is Lack.MISSING
    for offset in range(5):
        stored = Point(offset, offset, 10 * offset, 0, ((0, 0), (offset, offset)))
        point.store(directory, stored)
        assert point.load(directory) == stored
    assert [path.name for path in tmp_path.iterdir()] == ["recovery"]
    (tmp_path / "recovery").write_bytes(b"")
    assert point.load(directory) is Lack.DAMAGED


@given(st.lists(st.integers(0, 50), min_size=1, max_size=10), st.integers(50, 60))
def test_an_epoch_ended_where_the_next_one_started(starts: list[int], end: int) -> None:
    """Logs grow within an epoch and may be cut when one ends: the oracle keeps the epoch of every record."""
    owner: list[int] = []
    epochs: tuple[tuple[int, int], ...] = ((0, 0),)
    longest: dict[int, int] = {}  # how far each epoch ever got
    for epoch, start in enumerate(starts, 1):
        if start >= len(owner):
            owner += [epoch - 1] * (start - len(owner))
        longest[epoch - 1] = len(owner)
        owner = owner[:start]
        epochs = point.with_epoch(epochs, epoch, start)
    owner += [len(starts)] * (end - len(owner))
    assert [number for number, _ in epochs] == sorted({number for number, _ in epochs})
    for epoch in range(len(starts) + 1):
        ended = point.end_of_epoch(epochs, epoch, end)
        assert all(each <= epoch for each in owner[:ended]), "records of a later epoch before the end of an earlier one"
        assert all(each > epoch for each in owner[ended:])
