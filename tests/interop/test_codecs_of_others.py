"""Our batches, read by other people's code, and theirs by ours."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.batch import decode, murmur2, parse, verify
from tests.batch.strategies import Record, batch_of, record_lists
from tests.interop.others import OTHERS, Other, kafka_python_murmur2

PAIRS = [pytest.param(other, codec, id=f"{other.name}-{codec}") for other in OTHERS for codec in sorted(other.codecs)]

# A codec sees bytes, whatever the records are: 13 pairs share some 400 examples.
some = settings(max_examples=30)


@pytest.mark.parametrize(("other", "codec"), PAIRS)
@some
@given(records=record_lists)
def test_they_read_what_we_write(other: Other, codec: int, records: list[Record]) -> None:
    assert other.decode(batch_of(records, codec)) == list(enumerate(records))


@pytest.mark.parametrize(("other", "codec"), PAIRS)
@some
@given(records=record_lists)
def test_we_read_what_they_write(other: Other, codec: int, records: list[Record]) -> None:
    batch = other.encode(records, codec)
    assert verify(batch, 0, True) == (len(batch), len(records))
    assert [(r.offset, (r.key, r.value, tuple(r.headers), r.timestamp)) for r in decode(batch)] == list(
        enumerate(records)
    )


@pytest.mark.parametrize("other", OTHERS, ids=lambda other: other.name)
@given(records=record_lists)
def test_without_compression_we_write_the_same_bytes(other: Other, records: list[Record]) -> None:
    ours, theirs = batch_of(records), other.encode(records, 0)
    # The leader epoch aside: what a client says of it (0 or -1) lies outside of the CRC and means nothing.
    assert ours[:12] + ours[16:] == theirs[:12] + theirs[16:]


@pytest.mark.parametrize(("other", "codec"), PAIRS)
def test_batches_of_a_megabyte_go_both_ways(other: Other, codec: int) -> None:
    records: list[Record] = [(b"%d" % n, (b"%d," % n) * 20, (), 1_700_000_000_000 + n) for n in range(5000)]
    assert other.decode(batch_of(records, codec)) == list(enumerate(records))
    theirs = other.encode(records, codec)
    assert [(r.key, r.value, tuple(r.headers), r.timestamp) for r in decode(theirs)] == records
    assert parse(theirs).codec == codec


@given(st.binary(max_size=100))
def test_murmur2_agrees_with_kafka_python(key: bytes) -> None:
    assert murmur2(key) & 0xFFFFFFFF == kafka_python_murmur2(key) & 0xFFFFFFFF
