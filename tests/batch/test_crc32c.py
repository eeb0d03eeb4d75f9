from __future__ import annotations

import crc32c as oracle
from hypothesis import given
from hypothesis import strategies as st

from klamm.batch import crc32c
from klamm.batch._kernel import crc32c_software

WORDS = bytes(range(256)) * 300


def test_crc32c_of_known_bytes_is_the_published_one() -> None:
    assert crc32c(b"") == 0
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4
    assert crc32c(b"\xff" * 32) == 0x62A8AB43


def test_every_length_around_the_interleaved_blocks_agrees_with_the_oracle() -> None:
    for size in [*range(400), *range(6100, 6200), *range(12_280, 12_300), 65_536, len(WORDS)]:
        for start in (0, 3):
            part = WORDS[start : start + size]
            assert crc32c(part) == crc32c_software(part) == oracle.crc32c(part), size


@given(st.binary(max_size=500), st.binary(max_size=500))
def test_a_sum_can_be_continued(head: bytes, tail: bytes) -> None:
    assert crc32c(tail, crc32c(head)) == crc32c(head + tail) == oracle.crc32c(head + tail)
    assert crc32c_software(tail, crc32c_software(head)) == crc32c(head + tail)


def test_any_contiguous_buffer_will_do() -> None:
    assert crc32c(memoryview(bytearray(b"x123456789"))[1:]) == 0xE3069283
