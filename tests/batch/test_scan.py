"""Records read in pieces: the same is found as in one piece, wherever it is cut, and no more is held than allowed."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable

import pytest
import zstandard

from klamm.batch import CODECS, Builder, RecordScan, codecs, scan_records
from klamm.errors import CorruptBatch, RecordTooLarge
from tests.crash.cases import seed_of

MIB = 1 << 20
COMPRESSED = [name for name in CODECS if name != "none"]


def batch_of(chance: random.Random, count: int) -> bytearray:
    builder = Builder(MIB)
    for _ in range(count):
        key = chance.choice([None, b"", b"k" * chance.randrange(200)])
        value = chance.choice([None, b"", bytes(chance.randrange(300))])
        headers = [
            ("h" * chance.randrange(5), chance.choice([None, b"", b"v" * 70])) for _ in range(chance.choice([0, 0, 3]))
        ]
        builder.add(key, value, headers, chance.choice([-1, 0, 5, 10**12, 2**62]))
    return bytearray(builder.seal(0))


def packed(batch: bytearray, codec: str, records: bytes | None = None) -> bytearray:
    """The batch with its records compressed, or with these bytes for compressed records."""
    body = codecs.compress(CODECS[codec], memoryview(batch)[61:]) if records is None else records
    made = bytearray(batch[:61] + body)
    struct.pack_into(">i", made, 8, len(made) - 12)
    struct.pack_into(">h", made, 21, CODECS[codec])
    return made


def outcome(read: Callable[[], object]) -> object:
    try:
        return read()
    except CorruptBatch:
        return "corrupt"


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 64, MIB])
def test_wherever_records_are_cut_the_same_is_found(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codecs, "_PIECE", piece)
    chance = random.Random(seed_of())
    for count in (1, 1, 2, 5, 30):
        batch = batch_of(chance, count)
        assert RecordScan(batch).result == RecordScan(packed(batch, "gzip")).result == scan_records(batch)


def test_what_one_refuses_the_other_refuses() -> None:
    chance = random.Random(seed_of())
    corrupt = 0
    for _ in range(3000):
        batch = batch_of(chance, chance.randrange(1, 4))
        at = chance.randrange(61, len(batch))
        what = chance.randrange(4)
        if what == 0:
            batch[at] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, batch[at] ^ 1 << chance.randrange(8)])
        elif what == 1:
            del batch[at:]
        elif what == 2:
            batch[at:at] = bytes(chance.randrange(1, 12))
        else:
            batch[at:at] = b"\xff" * chance.randrange(1, 12)
        struct.pack_into(">i", batch, 8, len(batch) - 12)
        expected = outcome(lambda batch=batch: scan_records(batch))  # type: ignore[misc]
        assert outcome(lambda batch=batch: RecordScan(batch).result) == expected  # type: ignore[misc]
        assert outcome(lambda batch=batch: RecordScan(packed(batch, "zstd")).result) == expected  # type: ignore[misc]
        corrupt += expected == "corrupt"
    assert 500 < corrupt < 2900


@pytest.mark.parametrize("codec", COMPRESSED)
def test_pieces_are_what_decompress_makes_and_damage_is_noticed_by_both(codec: str) -> None:
    chance, number = random.Random(seed_of()), CODECS[codec]
    data = b"".join(b"%d " % chance.randrange(1000) for _ in range(200_000))
    whole = codecs.compress(number, memoryview(data))
    assert b"".join(codecs.pieces(number, memoryview(whole))) == codecs.decompress(number, memoryview(whole)) == data
    small = codecs.compress(number, memoryview(data[:2000]))
    for _ in range(300):
        damaged = bytearray(small)
        if chance.random() < 0.5:
            damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        elif chance.random() < 0.5:
            del damaged[chance.randrange(len(damaged)) :]
        else:
            damaged += bytes(chance.randrange(1, 20))
        view = memoryview(damaged)
        expected = outcome(lambda view=view: codecs.decompress(number, view))  # type: ignore[misc]
        assert outcome(lambda view=view: b"".join(codecs.pieces(number, view))) == expected  # type: ignore[misc]


def test_members_of_gzip_follow_one_another() -> None:
    data = bytes(range(256)) * 1000
    members = b"".join(codecs.compress(1, memoryview(data[at : at + 50_000])) for at in range(0, len(data), 50_000))
    assert b"".join(codecs.pieces(1, memoryview(members))) == data


@pytest.mark.parametrize("codec", COMPRESSED)
def test_no_piece_is_larger_than_allowed_and_what_is_not_wanted_is_not_made(codec: str) -> None:
    number = CODECS[codec]
    packed_zeros = codecs.compress(number, memoryview(bytes(40 * MIB)))
    sizes = [len(piece) for piece in codecs.pieces(number, memoryview(packed_zeros), max_held=4 * MIB)]
    assert sum(sizes) == 40 * MIB
    assert max(sizes) <= 256 << 10
    with pytest.raises(RecordTooLarge, match="longer than 4194304 bytes"):
        list(codecs.pieces(number, memoryview(packed_zeros), limit=4 * MIB))


def test_a_block_of_snappy_and_a_window_of_zstd_are_held_whole_or_refused() -> None:
    from cramjam import snappy

    block = memoryview(bytes(snappy.compress_raw(bytes(2 * MIB))))
    assert [len(piece) for piece in codecs.pieces(2, block, max_held=2 * MIB)] == [2 * MIB]
    with pytest.raises(RecordTooLarge, match="2097152 bytes have to be decompressed at a time, where 2097151"):
        list(codecs.pieces(2, block, max_held=2 * MIB - 1))
    wide = zstandard.ZstdCompressionParameters.from_level(3, window_log=24)
    stream = zstandard.ZstdCompressor(compression_params=wide).compressobj()
    frame = memoryview(stream.compress(bytes(20 * MIB)) + stream.flush())
    assert zstandard.get_frame_parameters(frame).window_size == 16 * MIB
    assert sum(map(len, codecs.pieces(4, frame, max_held=16 * MIB))) == 20 * MIB
    with pytest.raises(RecordTooLarge, match="16777216 bytes have to be decompressed at a time, where 8388608"):
        list(codecs.pieces(4, frame, max_held=8 * MIB))
    little = zstandard.ZstdCompressor(compression_params=wide).compressobj()
    frame = memoryview(little.compress(bytes(5 * MIB)) + little.flush())
    assert sum(map(len, codecs.pieces(4, frame, max_held=8 * MIB))) == 5 * MIB, "a window that is not filled"


def test_it_stops_at_the_first_record_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The header says one record; what follows is not decompressed."""
    made: list[int] = []
    pieces = codecs.pieces

    def counting(*args: object, **options: object) -> object:
        for piece in pieces(*args, **options):  # type: ignore[arg-type]
            made.append(len(piece))
            yield piece

    monkeypatch.setattr(codecs, "pieces", counting)
    builder = Builder(MIB)
    builder.add(None, b"one", None, 1)
    batch = bytearray(builder.seal(0))
    bomb = packed(batch, "gzip", zlib.compress(bytes(batch[61:]) + bytes(100 * MIB), wbits=31))
    with pytest.raises(CorruptBatch, match="do not follow the format"):
        RecordScan(bomb)
    assert sum(made) <= 256 << 10


def test_timestamps_out_of_bounds_are_listed() -> None:
    builder = Builder(MIB)
    for number in range(300):
        builder.add(None, b"", None, 1003 if number == 0 else 1000 + number)
    batch = bytearray(builder.seal(CODECS["lz4"]))
    scan = RecordScan(batch, 1003, 1290)
    assert scan.outside == (1, 2, *range(291, 300))
    assert (scan.first_outside, scan.result) == (1001, (False, 1001, 1299))
    assert len(RecordScan(batch, 5000, 6000).outside) == 100
    assert RecordScan(batch).outside == ()
