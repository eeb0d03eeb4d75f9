"""Sequences that come again with other records are refused: Apache Kafka acknowledges them, and they are lost."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.batch import CODECS, Builder, contents, parse, recompress
from klamm.batch.header import TRANSACTIONAL
from klamm.errors import OutOfOrderSequence
from klamm.log import repeated
from klamm.log.partition import Partition
from tests.log.logs import records
from tests.rig import Rig

LARGE = {"segment_bytes": 1 << 20, "index_interval_bytes": 4096}
LATER = 1_700_000_000_000


def batch(
    *values: bytes, sequence: int = 0, codec: int = 0, level: int | None = None, attributes: int = 0, time_ms: int = 5
) -> bytearray:
    builder = Builder(64 << 20)
    for value in values:
        builder.add(b"key", value, None, time_ms)
    return bytearray(builder.seal(codec, level, 7, 0, sequence, attributes))


def values(partition: Partition) -> list[bytes | None]:
    return [record.value for record in records(partition)]


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_other_records_with_the_sequences_of_a_batch_are_refused_and_that_batch_is_not(rig: Rig, codec: int) -> None:
    partition = rig.partition(1, **LARGE)
    assert partition.append(batch(b"paid", b"sent", codec=codec)) == 0
    assert partition.append(batch(b"more", sequence=2, codec=codec)) == 2
    for other in (batch(b"paid", b"SENT", codec=codec), batch(b"paid", b"sent", codec=codec, time_ms=6)):
        with pytest.raises(OutOfOrderSequence, match=r"sequence 0 of producer 7, epoch 0, is at offset 0 with other"):
            partition.append(other)
        with pytest.raises(OutOfOrderSequence):
            partition.try_append(other)
        assert partition.append_now(memoryview(other)) is None, "reading the log may take a while"
    assert partition.append(batch(b"paid", b"sent", codec=codec)) == 0 and partition.log.was_duplicate
    assert partition.try_append(batch(b"paid", b"sent", codec=codec)) == 0
    assert partition.append(batch(b"last", sequence=3)) == 3
    assert values(partition) == [b"paid", b"sent", b"more", b"last"]


def test_batches_of_closed_segments_are_compared_too(rig: Rig) -> None:
    partition = rig.partition(1)
    for sequence in range(5):
        partition.append(batch(b"%d" % sequence, b"." * 300, sequence=2 * sequence))
    assert len(partition.segments()) == 5
    for sequence in range(5):
        assert partition.append(batch(b"%d" % sequence, b"." * 300, sequence=2 * sequence)) == 2 * sequence
        with pytest.raises(OutOfOrderSequence):
            partition.append(batch(b"x", b"." * 300, sequence=2 * sequence))


def test_a_table_that_was_made_again_from_the_log_knows_the_batches(rig: Rig) -> None:
    partition = rig.partition(1, **LARGE)
    partition.append(batch(b"paid"))
    os.remove(Path(partition.directory, "producers"))
    again = rig.child().partition(1, **LARGE)
    with pytest.raises(OutOfOrderSequence):
        again.append(batch(b"lost"))
    assert again.append(batch(b"paid")) == 0


def test_a_batch_that_got_the_time_of_its_append_is_known_when_it_comes_again(rig: Rig) -> None:
    partition = rig.partition(1, **LARGE, message_timestamp_type="LogAppendTime")
    partition.append(batch(b"paid", time_ms=LATER))
    rig.heads.advance(1000)
    assert partition.append(batch(b"paid", time_ms=LATER)) == 0
    with pytest.raises(OutOfOrderSequence):
        partition.append(batch(b"lost", time_ms=LATER))


@pytest.mark.parametrize(("before", "after"), [("producer", "zstd"), ("zstd", "producer"), ("gzip", "lz4")])
def test_a_batch_that_comes_again_under_another_codec_is_known(rig: Rig, before: str, after: str) -> None:
    partition = rig.partition(1, **LARGE, compression_type=before)
    partition.append(batch(b"paid", b"." * 100_000))
    again = rig.child().partition(1, **LARGE, compression_type=after)
    assert again.append(batch(b"paid", b"." * 100_000)) == 0
    assert again.append(batch(b"paid", b"." * 100_000, codec=CODECS["snappy"])) == 0
    with pytest.raises(OutOfOrderSequence):
        again.append(batch(b"paid", b"." * 99_999 + b"!"))


def test_the_same_records_under_another_level_are_the_same(rig: Rig) -> None:
    value = bytes(range(256)) * 40
    one, other = batch(value, codec=4, level=1), batch(value, codec=4, level=19)
    assert parse(one).crc != parse(other).crc
    assert repeated.is_same(memoryview(one), memoryview(other))


@pytest.mark.parametrize("commit", [True, False])
def test_what_an_ended_transaction_wrote_is_no_duplicate_of_what_the_next_one_writes(rig: Rig, commit: bool) -> None:
    """Not even the same bytes: they are to be in the transaction that is open, or to be refused."""
    partition = rig.partition(1, **LARGE)
    assert partition.append(batch(b"first", attributes=TRANSACTIONAL)) == 0
    assert partition.append(batch(b"first", attributes=TRANSACTIONAL)) == 0, "within the transaction: sent again"
    assert partition.append_marker(7, 0, commit=commit, same_epoch=True) == 1
    for value in (b"first", b"other"):
        with pytest.raises(OutOfOrderSequence):
            partition.append(batch(value, attributes=TRANSACTIONAL))
    assert partition.append(batch(b"next", sequence=1, attributes=TRANSACTIONAL)) == 2
    with pytest.raises(OutOfOrderSequence):
        partition.append(batch(b"first", attributes=TRANSACTIONAL))
    assert partition.append(batch(b"next", sequence=1, attributes=TRANSACTIONAL)) == 2


def test_a_batch_that_is_not_in_the_log_any_more_is_taken_for_the_same(rig: Rig) -> None:
    partition = rig.partition(1, **LARGE)
    partition.append(batch(b"paid"))
    partition.append(batch(b"sent", sequence=1))
    partition.cleanup.delete_before(1)
    assert partition.append(batch(b"whatever")) == 0
    with pytest.raises(OutOfOrderSequence):
        partition.append(batch(b"whatever", sequence=1))


def test_a_batch_that_compaction_took_records_out_of_is_taken_for_the_same(rig: Rig) -> None:
    partition = rig.partition(1, **LARGE, cleanup_policy="compact", min_cleanable_dirty_ratio=0.0)
    partition.append(batch(b"old", b"new"))
    with partition.log.append_lock():
        partition.log.roll()
    partition.cleanup.compact(force=True)
    assert values(partition) == [b"new"]
    assert partition.append(batch(b"old", b"new")) == 0


def cut(data: bytes, at: Iterable[int]) -> list[bytes]:
    places = [0, *sorted(place % (len(data) + 1) for place in at), len(data)]
    return [data[start:end] for start, end in pairwise(places)]


@given(st.binary(max_size=40), st.binary(max_size=40), st.lists(st.integers(0, 99)), st.lists(st.integers(0, 99)))
def test_pieces_are_compared_however_they_are_cut(one: bytes, other: bytes, at: list[int], there: list[int]) -> None:
    assert repeated._are_equal(cut(one, at), cut(other, there)) == (one == other)
    assert repeated._are_equal(cut(one, at), cut(one, there))


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
@pytest.mark.parametrize("wanted", CODECS.values(), ids=CODECS)
def test_a_batch_in_another_codec_is_the_same_batch(codec: int, wanted: int) -> None:
    made = batch(b"paid", b"." * 5000, codec=codec)
    again = memoryview(recompress(made, wanted))
    before, after = parse(made), parse(again)
    assert after.codec == wanted and after.size == len(again) and (codec != wanted or again.obj is made)
    assert before._replace(batch_length=0, crc=0, attributes=0) == after._replace(batch_length=0, crc=0, attributes=0)
    assert b"".join(contents(memoryview(made))) == b"".join(contents(again))
    assert repeated.is_same(memoryview(made), again)
