from __future__ import annotations

import pytest
from hypothesis import given

from klamm.batch import HEADER_SIZE, Builder, parse, walk
from klamm.errors import CorruptBatch
from tests.batch.strategies import Record, batch_of, codecs, log_of, record_lists


def test_every_field_is_where_kafka_has_it() -> None:
    builder = Builder(1000)
    builder.add(b"k", b"v", None, 1000)
    builder.add(None, None, None, 5000)
    builder.add(None, None, None, 3000)
    batch = bytes(builder.seal(0, None, producer_id=77, producer_epoch=3, base_sequence=9, attributes=0x10))

    header = parse(batch)

    assert batch[12:16] == bytes(4)
    assert (header.base_offset, header.leader_epoch, header.magic) == (0, 0, 2)
    assert header.size == len(batch) == 12 + header.batch_length
    assert (header.base_timestamp, header.max_timestamp) == (1000, 5000)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 3, 9)
    assert (header.last_offset_delta, header.record_count, header.next_offset) == (2, 3, 3)
    assert header.is_transactional and not header.is_control and not header.log_append_time
    assert header.codec == 0


@given(record_lists, codecs, record_lists, codecs)
def test_walk_and_parse_agree_on_every_header(one: list[Record], codec: int, two: list[Record], other: int) -> None:
    data = log_of((one, codec), (two, other))

    headers = walk(data)

    assert headers == [parse(data), parse(data, headers[0].size)]
    assert [h.record_count for h in headers] == [len(one), len(two)]
    assert walk(data, headers[0].size) == headers[1:]


def test_walk_leaves_out_an_incomplete_batch_wherever_it_is_cut() -> None:
    first = batch_of([(b"k", b"v", (), 1)])
    data = first + batch_of([(b"k", b"v", (), 1)], base_offset=1)
    for cut in range(len(first), len(data)):
        assert len(walk(data[:cut])) == 1


@pytest.mark.parametrize(
    ("position", "value", "complaint"),
    [
        (16, b"\x01", "magic is 1"),
        (8, b"\x00\x00\x00\x30", "batch length is 48"),
        (8, b"\xff\xff\xff\xff", "batch length is -1"),
        (0, b"\xff", "base offset is -"),
        (57, b"\x00\x00\x00\x05", "5 records with a last offset delta of 0"),
        (57, b"\xff\xff\xff\xff", "-1 records"),
        (23, b"\xff\xff\xff\xff", "last offset delta of -1"),
    ],
)
def test_a_header_that_cannot_be_is_refused_with_its_position(position: int, value: bytes, complaint: str) -> None:
    batch = batch_of([(None, b"v", (), 1)])
    broken = batch[:position] + value + batch[position + len(value) :]
    data = batch + broken
    for read in (lambda: parse(data, len(batch)), lambda: walk(data)):
        with pytest.raises(CorruptBatch, match=complaint) as caught:
            read()
        assert caught.value.position == len(batch)


def test_a_header_that_is_cut_is_refused() -> None:
    batch = batch_of([(None, b"v", (), 1)])
    with pytest.raises(CorruptBatch, match="byte 0: no room"):
        parse(batch[: HEADER_SIZE - 1])
    with pytest.raises(CorruptBatch):
        parse(batch, -1)
