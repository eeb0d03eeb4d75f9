"""Compression of a batch's records, as Kafka frames it.

    number  name    framing                                                  level (default)
         0  none
         1  gzip    RFC 1952                                                 1 to 9 (6)
         2  snappy  xerial blocks, as the Java client writes them;           none
                    a raw block, as librdkafka writes it, is read, too
         3  lz4     LZ4 frame of independent 64 KiB blocks                   1 to 17 (fastest)
         4  zstd    Zstandard frame                                          -131072 to 22 (3)

The libraries are imported when a codec is first used: `import klamm` stays quick.

Promise
  CDC1  decompress() never returns more than its limit, whatever the input claims: a decompression bomb is CorruptBatch.
        The output buffer is sized by the most that the input's blocks can hold, so a small input cannot claim much
        memory.
  CDC2  pieces() never holds more than `max_held` of the output at a time, and what a codec needs for one block: a
        piece, a block of snappy, a block of lz4 (up to 4 MiB), a window of zstd.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

from klamm.choices import Compression, options_of
from klamm.errors import CorruptBatch, InvalidSetting, RecordTooLarge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from klamm.batch.batch_memory import BatchMemory

__all__ = ["CODECS", "MAX_DECODED_BYTES", "NAMES", "check_level", "compress", "decompress", "number_of", "pieces"]

NAMES: tuple[str, ...] = options_of(Compression)
CODECS = {name: number for number, name in enumerate(NAMES)}
LEVELS = {"gzip": (1, 9), "lz4": (1, 17), "zstd": (-131072, 22)}
MAX_DECODED_BYTES = 256 << 20
_PIECE = 256 << 10  # of output
_SLICE = 64 << 10  # of input
_LARGE = 1 << 20  # of output: so much is not left to an allocator


def number_of(name: str) -> int:
    """Return the number of the codec called `name`."""
    number = CODECS.get(name)
    if number is None:
        import difflib

        near = difflib.get_close_matches(str(name), NAMES, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(NAMES)}"
        raise InvalidSetting(f"there is no codec {name!r}", hint=hint)
    return number


def check_level(name: str, level: object) -> None:
    """Raise unless `level` is one of the codec's. None is its default."""
    if level is None:
        return
    if name not in LEVELS:
        raise InvalidSetting(f"codec {name!r} has no levels")
    low, high = LEVELS[name]
    if not isinstance(level, int) or not low <= level <= high:
        raise InvalidSetting(f"level {level!r} of {name!r} is invalid", hint=f"expected {low} to {high}")


def compress(number: int, data: memoryview, level: int | None = None) -> bytes:
    """Compress the records of a batch."""
    if not 1 <= number < len(NAMES):
        raise InvalidSetting(f"no codec {number}")
    check_level(NAMES[number], level)
    return _COMPRESS[number](data, level)


def decompress(
    number: int, data: memoryview, limit: int = MAX_DECODED_BYTES, memory: BatchMemory | None = None
) -> bytes | memoryview:
    """Return the decompressed records. Raise CorruptBatch if `data` is invalid, or decompresses to more than `limit`.

    A large frame of zstd that has its size is decompressed into `memory`, if given.
    """
    if not 1 <= number < len(NAMES):
        raise CorruptBatch(f"unknown codec {number}")
    try:
        if memory is not None and number == CODECS["zstd"]:
            return _unzstd(data, limit, memory)
        return _DECOMPRESS[number](data, limit)
    except (_Damaged, struct.error) as error:
        raise CorruptBatch(f"{NAMES[number]} data: {error}") from error


def pieces(
    number: int, data: memoryview, limit: int = MAX_DECODED_BYTES, *, max_held: int | None = None
) -> Iterator[bytes]:
    """Yield what `decompress` returns, piece by piece, each decompressed when it is requested.

    Raise RecordTooLarge for more than `limit` bytes, or if the codec needs more than `max_held` (`limit` if None) at a
    time.
    """
    if not 1 <= number < len(NAMES):
        raise CorruptBatch(f"unknown codec {number}")
    name, size = NAMES[number], 0
    try:
        for piece in _PIECES[number](data, limit if max_held is None else min(limit, max_held)):
            size += len(piece)
            if size > limit:
                raise RecordTooLarge(f"{name} data: longer than {limit} bytes when decompressed", hint=_SMALLER)
            yield piece
    except _HeldTooMuch as error:
        raise RecordTooLarge(f"{name} data: {error}", hint=_SMALLER) from None
    except (_Damaged, struct.error) as error:
        raise CorruptBatch(f"{name} data: {error}") from error


_SMALLER = "send smaller batches"


class _HeldTooMuch(Exception):
    """More has to be in memory at a time than is allowed."""

    def __init__(self, size: int, max_held: int) -> None:
        super().__init__(f"{size} bytes have to be decompressed at a time, where {max_held} are allowed")


class _Damaged(Exception):
    """The bytes are not valid for the codec."""


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise _Damaged(f"longer than {limit} bytes when decompressed")


# -- gzip ------------------------------------------------------------------------------------------------------------

_GZIP = 16 + zlib.MAX_WBITS


def _gzip(data: memoryview, level: int | None) -> bytes:
    packer = zlib.compressobj(zlib.Z_DEFAULT_COMPRESSION if level is None else level, zlib.DEFLATED, _GZIP)
    return packer.compress(data) + packer.flush()


def _gunzip(data: memoryview, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    rest: bytes | memoryview = data
    while rest or not parts:
        member = zlib.decompressobj(_GZIP)
        try:
            part = member.decompress(rest, limit - size + 1)
        except zlib.error as error:
            raise _Damaged(error) from error
        size += len(part)
        _check_size(size, limit)
        if not member.eof:
            raise _Damaged("cut short")
        parts.append(part)
        rest = member.unused_data
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _gunzip_pieces(data: memoryview, max_held: int) -> Iterator[bytes]:
    member, position = zlib.decompressobj(_GZIP), 0
    while position < len(data):
        piece_in: bytes | memoryview = data[position : position + _SLICE]
        position += len(piece_in)
        while piece_in:
            try:
                yield member.decompress(piece_in, _PIECE)
            except zlib.error as error:
                raise _Damaged(error) from error
            piece_in = member.unconsumed_tail
            if member.eof and (member.unused_data or position < len(data)):
                piece_in, member = member.unused_data, zlib.decompressobj(_GZIP)
    while not member.eof:  # output that had no space in the last piece
        piece = member.decompress(b"", _PIECE)
        if not piece:
            raise _Damaged("cut short")
        yield piece


# -- snappy ----------------------------------------------------------------------------------------------------------

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = struct.Struct(">8sii")  # magic, version, oldest version that can read it
_XERIAL_BLOCK = 32 << 10
_SNAPPY_EXPANSION = 64  # three bytes make 64 at most


def _snap(data: memoryview, level: int | None) -> bytes:
    from cramjam import snappy

    parts = [_XERIAL_HEADER.pack(_XERIAL_MAGIC, 1, 1)]
    for start in range(0, len(data), _XERIAL_BLOCK):
        block = bytes(snappy.compress_raw(data[start : start + _XERIAL_BLOCK]))
        parts += struct.pack(">i", len(block)), block
    return b"".join(parts)


def _unsnap(data: memoryview, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    for block in _snappy_blocks(data):
        _check_size(size + _snappy_size(block), limit)
        parts.append(_unsnap_block(block))
        size += len(parts[-1])
    return b"".join(parts)


def _unsnap_pieces(data: memoryview, max_held: int) -> Iterator[bytes]:
    for block in _snappy_blocks(data):
        if (size := _snappy_size(block)) > max_held:
            raise _HeldTooMuch(size, max_held)
        yield _unsnap_block(block)


def _snappy_blocks(data: memoryview) -> Iterator[memoryview]:
    if bytes(data[:8]) != _XERIAL_MAGIC:
        yield data
        return
    position = _XERIAL_HEADER.size
    if len(data) < position:
        raise _Damaged("cut short")
    while position < len(data):
        (length,) = struct.unpack_from(">i", data, position)
        position += 4
        if not 0 <= length <= len(data) - position:
            raise _Damaged(f"a block of {length} bytes where {len(data) - position} are left")
        yield data[position : position + length]
        position += length


def _snappy_size(block: memoryview) -> int:
    """Return the decompressed size that a block claims."""
    size = shift = 0
    for byte in block[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return size
    raise _Damaged("a block without its size")


def _unsnap_block(block: memoryview) -> bytes:
    from cramjam import DecompressionError, snappy

    size = _snappy_size(block)
    if size > _SNAPPY_EXPANSION * len(block):
        raise _Damaged(f"{len(block)} bytes claim to be {size}")
    try:
        part = bytes(snappy.decompress_raw(block, output_len=size))
    except DecompressionError as error:
        raise _Damaged(error) from error
    if len(part) != size:
        raise _Damaged(f"a block of {len(part)} bytes, expected {size}")
    return part


# -- lz4 -------------------------------------------------------------------------------------------------------------

_LZ4_MAGIC = 0x184D2204
_LZ4_BLOCK_SIZES = {4: 64 << 10, 5: 256 << 10, 6: 1 << 20, 7: 4 << 20}


def _lz4(data: memoryview, level: int | None) -> bytes:
    from lz4 import frame

    # Java's reader refuses blocks that build on each other, and writes neither content size nor content checksum.
    packed: bytes = frame.compress(
        data,
        compression_level=0 if level is None else level,
        block_size=frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        content_checksum=False,
        store_size=False,
    )
    return packed


def _unlz4(data: memoryview, limit: int) -> bytes:
    from lz4 import frame

    room = min(_lz4_most(data), limit + 1)
    decoder = frame.LZ4FrameDecompressor()
    try:
        unpacked: bytes = decoder.decompress(data, max_length=max(room, 1))
    except (RuntimeError, EOFError, ValueError) as error:
        raise _Damaged(error) from error
    _check_size(len(unpacked), limit)
    if not decoder.eof or decoder.unused_data:
        raise _Damaged("not one whole frame")
    return unpacked


def _unlz4_pieces(data: memoryview, max_held: int) -> Iterator[bytes]:
    from lz4 import frame

    decoder = frame.LZ4FrameDecompressor()
    position = 0
    while not decoder.eof:
        piece_in = data[position : position + _SLICE] if decoder.needs_input else b""
        if decoder.needs_input and not piece_in:
            raise _Damaged("cut short")
        position += len(piece_in)
        try:
            yield decoder.decompress(piece_in, max_length=_PIECE)
        except (RuntimeError, EOFError, ValueError) as error:
            raise _Damaged(error) from error
    if decoder.unused_data or position < len(data):
        raise _Damaged("not one whole frame")


def _lz4_most(data: memoryview) -> int:
    """Return the most that the blocks of a frame can hold."""
    magic, flags, descriptor = struct.unpack_from("<IBB", data)
    block_size = _LZ4_BLOCK_SIZES.get(descriptor >> 4 & 7)
    if magic != _LZ4_MAGIC or block_size is None:
        raise _Damaged("not a frame")
    position = 7 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
    most = 0
    while True:
        (length,) = struct.unpack_from("<I", data, position)
        if length == 0:
            return most
        most += block_size
        position += 4 + (length & 0x7FFFFFFF) + (4 if flags & 0x10 else 0)


# -- zstd ------------------------------------------------------------------------------------------------------------

_ZSTD_BLOCK = 128 << 10
_ZSTD_LEVEL = 3


def _zstd(data: memoryview, level: int | None) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL if level is None else level).compress(data)


def _unzstd(data: memoryview, limit: int, memory: BatchMemory | None = None) -> bytes | memoryview:
    import zstandard

    try:
        size = zstandard.frame_content_size(data)
        _check_size(size, limit)
        most = _zstd_most(data, zstandard.frame_header_size(data))
        if size > most:
            raise _Damaged(f"blocks for {most} bytes claim to be {size}")
        if memory is not None and size >= _LARGE:
            return _unzstd_into(memory.take(size), data)
        room = min(most, limit)
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=room or 1, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise _Damaged(error) from error


def _unzstd_into(room: memoryview, data: memoryview) -> memoryview:
    """Decompress a frame of the claimed size into `room`. It needs no window: the output serves as one."""
    import zstandard

    _check_zstd_end(data)
    with zstandard.ZstdDecompressor().stream_reader(data) as reader:
        size = reader.readinto(room)
        if size != len(room) or reader.read(1):
            raise _Damaged(f"{size} bytes, where the frame says {len(room)}")
    return room


def _check_zstd_end(data: memoryview) -> None:
    """Raise unless the data is exactly one frame."""
    import zstandard

    _, end = _zstd_blocks(data, zstandard.frame_header_size(data))
    if end + 4 * zstandard.get_frame_parameters(data).has_checksum != len(data):
        raise _Damaged("not one whole frame")


def _unzstd_pieces(data: memoryview, max_held: int) -> Iterator[bytes]:
    import zstandard

    try:
        frame = zstandard.get_frame_parameters(data)
        _check_zstd_end(data)
        size = 0
        with zstandard.ZstdDecompressor().stream_reader(data, read_size=_SLICE) as reader:
            while piece := reader.read(_PIECE):
                size += len(piece)
                if size > max_held < frame.window_size:  # it holds all of the data, up to a window
                    raise _HeldTooMuch(frame.window_size, max_held)
                yield piece
    except zstandard.ZstdError as error:
        raise _Damaged(error) from error


def _zstd_most(data: memoryview, position: int) -> int:
    """Return the most that the blocks of a frame can hold."""
    return _zstd_blocks(data, position)[0]


def _zstd_blocks(data: memoryview, position: int) -> tuple[int, int]:
    """Return the most that the blocks of a frame can hold, and where the last one ends."""
    most = 0
    while True:
        low, high = struct.unpack_from("<HB", data, position)
        header = low | high << 16
        most += _ZSTD_BLOCK
        position += 3 + (1 if header >> 1 & 3 == 1 else header >> 3)
        if header & 1:
            return most, position


_COMPRESS: dict[int, Callable[[memoryview, int | None], bytes]] = {1: _gzip, 2: _snap, 3: _lz4, 4: _zstd}
_DECOMPRESS: dict[int, Callable[[memoryview, int], bytes | memoryview]] = {
    1: _gunzip,
    2: _unsnap,
    3: _unlz4,
    4: _unzstd,
}
_PIECES: dict[int, Callable[[memoryview, int], Iterator[bytes]]] = {
    1: _gunzip_pieces,
    2: _unsnap_pieces,
    3: _unlz4_pieces,
    4: _unzstd_pieces,
}
