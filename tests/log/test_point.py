"""The recovery point and the history of epochs: what was stored comes back, and nothing else is believed."""

from __future__ import annotations

import struct
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from klamm.batch import crc32c
from klamm.log import point
from klamm.log.point import Point

number = st.integers(0, 2**62)
points = st.builds(Point, number, number, number, number, st.lists(st.tuples(number, number), max_size=6).map(tuple))


@given(points)
def test_a_point_says_what_was_packed(found: Point) -> None:
    assert point.parse(point.pack(found)) == found


def test_every_flipped_byte_and_every_cut_is_noticed() -> None:
    data = point.pack(Point(100, 50, 4711, 7, ((0, 0), (3, 20), (4, 90))))
    assert point.parse(data) is not None
    for at in range(len(data)):
        for mask in range(1, 256):
            assert point.parse(data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]) is None
        assert point.parse(data[:at]) is None
    assert point.parse(data + b"\0") is None


def test_a_point_of_a_version_to_come_is_not_believed() -> None:
    data = bytearray(point.pack(Point()))
    struct.pack_into("<I", data, 8, 2)
    struct.pack_into("<I", data, len(data) - 4, crc32c(bytes(data[:-4])))
    assert point.parse(bytes(data)) is None


def test_a_point_is_stored_and_loaded_whole_or_not_there(tmp_path: Path) -> None:
    directory = str(tmp_path)
    assert point.load(directory) is None
    for offset in range(5):
        stored = Point(offset, offset, 10 * offset, 0, ((0, 0), (offset, offset)))
        point.store(directory, stored)
        assert point.load(directory) == stored
    assert [path.name for path in tmp_path.iterdir()] == ["recovery"]
    (tmp_path / "recovery").write_bytes(b"")
    assert point.load(directory) is None


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
