from __future__ import annotations

import gzip
import struct
import tracemalloc

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from klamm.batch import CODECS, MAX_DECODED_BYTES, BatchMemory, check_level, number_of
from klamm.batch.codecs import NAMES, compress, decompress
from klamm.errors import CorruptBatch, InvalidSetting

PACKED = [1, 2, 3, 4]
contents = st.binary(max_size=2000) | st.builds(lambda part, n: part * n, st.binary(max_size=50), st.integers(0, 4000))


@given(st.sampled_from(PACKED), contents)
def test_every_codec_gives_back_what_it_was_given(number: int, data: bytes) -> None:
    assert decompress(number, memoryview(compress(number, memoryview(data)))) == data


@pytest.mark.parametrize("number", PACKED)
def test_several_megabytes_go_through(number: int) -> None:
    data = bytes(range(256)) * 20_000
    assert decompress(number, memoryview(compress(number, memoryview(data)))) == data


@pytest.mark.parametrize(("name", "low", "high"), [("gzip", 1, 9), ("lz4", 1, 17), ("zstd", -7, 22)])
def test_levels_within_the_range_work_and_others_are_refused(name: str, low: int, high: int) -> None:
    data = memoryview(b"abcabcabc" * 100)
    for level in (low, high):
        assert decompress(number_of(name), memoryview(compress(number_of(name), data, level))) == data
    for wrong in (high + 1, -200_000, "9"):
        with pytest.raises(InvalidSetting, match="level"):
            check_level(name, wrong)
    with pytest.raises(InvalidSetting):
        compress(number_of(name), data, high + 1)


def test_a_codec_without_levels_takes_none() -> None:
    check_level("snappy", None)
    with pytest.raises(InvalidSetting, match="no levels"):
        check_level("snappy", 1)


def test_names_and_numbers_are_kafkas() -> None:
    assert CODECS == {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
    assert [number_of(name) for name in NAMES] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("wrong", "hint"), [("zst", "did you mean 'zstd'?"), ("GZIP!", "there are"), ("br", "there are")]
)
def test_an_unknown_name_gets_the_nearest_one_as_a_hint(wrong: str, hint: str) -> None:
    with pytest.raises(InvalidSetting, match="no codec") as caught:
        number_of(wrong)
    assert hint in str(caught.value)


@pytest.mark.parametrize("number", [0, 5, 7])
def test_an_unknown_number_in_a_batch_is_damage(number: int) -> None:
    with pytest.raises(CorruptBatch, match="unknown codec"):
        decompress(number, memoryview(b"x"))


def test_snappy_is_framed_as_javas_xerial_library_frames_it() -> None:
    data = bytes(100_000)
    packed = compress(2, memoryview(data))
    assert packed[:16] == b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    sizes, position = [], 16
    while position < len(packed):
        (size,) = struct.unpack_from(">i", packed, position)
        sizes.append(len(bytes(cramjam.snappy.decompress_raw(packed[position + 4 : position + 4 + size]))))
        position += 4 + size
    assert sizes == [32_768, 32_768, 32_768, 1_696]


def test_a_raw_snappy_block_is_read_too() -> None:
    assert decompress(2, memoryview(bytes(cramjam.snappy.compress_raw(b"abc" * 99)))) == b"abc" * 99


def test_lz4_is_a_frame_that_java_reads_with_independent_blocks_and_a_right_header_checksum() -> None:
    packed = compress(3, memoryview(b"abc" * 50_000))
    info = lz4.frame.get_frame_info(packed)
    assert info["block_linked"] is False
    assert info["block_size_id"] == lz4.frame.BLOCKSIZE_MAX64KB
    assert not info["content_checksum"] and not info["content_size"]


def test_frames_that_others_write_with_sizes_checksums_and_linked_blocks_are_read() -> None:
    data = bytes(range(256)) * 3000
    framed = lz4.frame.compress(data, block_linked=True, content_checksum=True, block_checksum=True, store_size=True)
    assert decompress(3, memoryview(framed)) == data
    stream = zstandard.ZstdCompressor(write_content_size=False, write_checksum=True).compressobj()
    assert decompress(4, memoryview(stream.compress(data) + stream.flush())) == data
    assert decompress(1, memoryview(gzip.compress(data[:1000]) + gzip.compress(data[1000:]))) == data


@pytest.mark.parametrize("number", PACKED)
def test_any_cut_is_damage(number: int) -> None:
    packed = compress(number, memoryview(bytes(range(256)) * 300))
    whole = 0
    for cut in range(0, len(packed), 7):
        try:
            decompress(number, memoryview(packed[:cut]))
            whole += 1
        except CorruptBatch:
            pass
    # Xerial blocks do not say how many they are: a cut between two is seen by the record count, not here.
    assert whole <= (3 if number == 2 else 0)


@pytest.mark.parametrize("number", PACKED)
def test_what_is_longer_than_the_limit_is_refused(number: int) -> None:
    packed = memoryview(compress(number, memoryview(bytes(100_000))))
    assert len(decompress(number, packed, 100_000)) == 100_000
    with pytest.raises(CorruptBatch):
        decompress(number, packed, 99_999)


LARGE = bytes(range(250)) * 6000


def test_large_zstd_is_decompressed_into_memory_that_is_used_again() -> None:
    memory = BatchMemory()
    for data in (LARGE, LARGE[::-1], LARGE + b"x" * 4096, LARGE[:-1]):
        unpacked = decompress(4, memoryview(compress(4, memoryview(data))), memory=memory)
        assert isinstance(unpacked, memoryview) and unpacked == data
        first = memoryview(memory.take(1)).obj
        assert memoryview(memory.take(len(data))).obj is first
    for number, data in ((4, LARGE[:1000]), (1, LARGE)):
        unpacked = decompress(number, memoryview(compress(number, memoryview(data))), memory=memory)
        assert isinstance(unpacked, bytes) and unpacked == data


def test_large_zstd_that_is_cut_changed_or_followed_by_more_is_damage() -> None:
    framed = zstandard.ZstdCompressor(write_checksum=True).compress(LARGE)
    assert decompress(4, memoryview(framed), memory=BatchMemory()) == LARGE
    header = zstandard.frame_header_size(framed)
    size = framed.index(struct.pack("<I", len(LARGE)))
    assert size < header
    damaged = [framed[:cut] for cut in range(header, len(framed), 61)]
    damaged += [framed + b"x", framed + framed, framed[:-1] + bytes([framed[-1] ^ 1])]
    damaged += [framed[:size] + struct.pack("<I", len(LARGE) + wrong) + framed[size + 4 :] for wrong in (-1, 1, 70_000)]
    for data in damaged:
        with pytest.raises(CorruptBatch):
            decompress(4, memoryview(data), memory=BatchMemory())
    with pytest.raises(CorruptBatch, match="longer than"):
        decompress(4, memoryview(framed), len(LARGE) - 1, BatchMemory())


def bombs() -> dict[str, tuple[int, bytes]]:
    """Small inputs that would be more than MAX_DECODED_BYTES."""
    zeros = bytes(1 << 20)
    many = MAX_DECODED_BYTES // len(zeros) + 1
    squeezed = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    zstd = b"".join(squeezed.compress(zeros) for _ in range(many)) + squeezed.flush()
    announced = zstandard.ZstdCompressor().compressobj(size=many << 20)
    honest = b"".join(announced.compress(zeros) for _ in range(many)) + announced.flush()
    lz4_context = lz4.frame.create_compression_context()
    lz4_parts = [lz4.frame.compress_begin(lz4_context, block_size=lz4.frame.BLOCKSIZE_MAX4MB)]
    lz4_parts += [lz4.frame.compress_chunk(lz4_context, zeros) for _ in range(many)]
    lz4_parts.append(lz4.frame.compress_flush(lz4_context))
    block = bytes(cramjam.snappy.compress_raw(zeros))
    xerial = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + (struct.pack(">i", len(block)) + block) * many
    return {
        "gzip": (1, gzip.compress(zeros * 8, 9) * (many // 8 + 1)),
        "snappy blocks": (2, xerial),
        "snappy size": (2, b"\xff\xff\xff\xff\x0f" + b"\0" * 20),
        "snappy size within the limit": (2, b"\xff\xff\xff\x7f" + b"\0" * 20),
        "lz4": (3, b"".join(lz4_parts)),
        "zstd": (4, zstd),
        "zstd size": (4, honest),
    }


@pytest.mark.parametrize("name", bombs())
def test_a_bomb_is_damage_and_takes_no_more_memory_than_the_bound(name: str) -> None:
    number, packed = bombs()[name]
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBatch):
            decompress(number, memoryview(packed))
        assert tracemalloc.get_traced_memory()[1] < 2 * MAX_DECODED_BYTES + (16 << 20)
    finally:
        tracemalloc.stop()


@given(st.sampled_from(PACKED), contents, st.data())
def test_mangled_input_is_damage_or_bounded_output(number: int, content: bytes, data: st.DataObject) -> None:
    packed = bytearray(compress(number, memoryview(content)))
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(packed) - 1))
        packed[position] = data.draw(st.integers(0, 255))
    try:
        assert len(decompress(number, memoryview(packed), 1 << 20)) <= 1 << 20
    except CorruptBatch:
        pass


@given(st.sampled_from(PACKED), st.binary(max_size=60))
def test_noise_is_damage_or_bounded_output(number: int, noise: bytes) -> None:
    try:
        assert len(decompress(number, memoryview(noise), 1 << 20)) <= 1 << 20
    except CorruptBatch:
        pass
