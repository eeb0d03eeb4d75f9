"""Records of batches, some at a time: a batch is returned whole or not at all, and what is good comes first."""

from __future__ import annotations

import ctypes
import json
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.batch import BAD_RAISE, BAD_RAW, BAD_SKIP, RECORDS, TUPLES, VALUES, Decoder, Records, crc32c, decode
from klamm.errors import CorruptBatch
from klamm.types import Batch, Position, TopicPartition
from tests.batch import strategies
from tests.batch.strategies import SOME, batch_of, codecs, log_of, record_lists

NAME = TopicPartition("orders", 3)
NOTHING = Records(NAME, Position(0), Position(0))


def decoder_of(
    data: bytes, form: int = VALUES, load: Any = None, on_bad: int = BAD_RAISE, *, start: int = 0
) -> Decoder:
    decoder = Decoder(*NAME)
    decoder.use(form, None, load, on_bad)
    decoder.seek(start)
    decoder.feed(data, start)
    return decoder


def values_of(*values: bytes, base_offset: int = 0, codec: int = 0) -> bytes:
    return batch_of([(None, value, (), 1) for value in values], codec, base_offset)


def with_field(batch: bytes, position: int, format_: str, value: int) -> bytes:
    """The batch with some of its bytes changed, and its CRC made right again."""
    data = bytearray(batch)
    struct.pack_into(format_, data, position, value)
    struct.pack_into(">I", data, 17, crc32c(data[21:]))
    return bytes(data)


def with_bad_end(batch: bytes) -> bytes:
    """The batch with a header count in its last record, and no header."""
    return with_field(batch, len(batch) - 1, ">b", 2)


runs = st.lists(st.tuples(record_lists, codecs), min_size=1, max_size=4)


@SOME
@given(runs, st.integers(1, 12), st.integers(0, 50), st.sampled_from([RECORDS, TUPLES, VALUES]))
def test_taking_some_at_a_time_gives_what_decoding_all_gives(
    given_: list[tuple[list[strategies.Record], int]], most: int, start: int, form: int
) -> None:
    log = log_of(*given_)
    decoder = decoder_of(log, form, start=start)
    found: list[Any] = []
    last = Records(NAME, Position(start), Position(start))
    while decoder.has_more:
        before, last = last, decoder.take(last, most)
        assert (last.partition, last.begin) == (NAME, before.end)
        assert last.end == decoder.offset > last.begin
        batch = last.batch()
        assert 1 <= len(batch) <= most and (batch.begin, batch.end) == (last.begin, last.end)
        found += batch
    want = decode(log, form=form, from_offset=start, topic=NAME.topic, partition=NAME.partition)
    assert found == want
    assert decoder.take(last, most).batch() == []


def test_a_header_that_is_cut_off_is_damage_behind_what_is_whole() -> None:
    """Nothing lies behind these bytes, so that the sanitizer sees who looks there."""
    whole = values_of(b"one", b"two")
    for size in range(1, 61):
        data = whole + values_of(b"three", base_offset=2)[:size]
        decoder = decoder_of((ctypes.c_ubyte * len(data)).from_buffer_copy(data))  # type: ignore[arg-type]
        found = decoder.take(NOTHING, 10)
        assert list(found) == [b"one", b"two"]
        with pytest.raises(CorruptBatch):
            decoder.take(found, 10)


@pytest.mark.parametrize("most", [1, 2, 100])
@pytest.mark.parametrize("first", [0, 2])
def test_nothing_of_a_bad_batch_is_returned_and_what_is_good_comes_before_it(most: int, first: int) -> None:
    good = values_of(*[b"%d" % n for n in range(first)]) if first else b""
    bad = with_bad_end(values_of(b"x", b"y", b"z", base_offset=first))
    decoder = decoder_of(good + bad + values_of(b"after", base_offset=first + 3))
    found: list[bytes] = []
    while len(found) < first:
        found += decoder.take(NOTHING, most)
    assert found == [b"%d" % n for n in range(first)]
    for _ in range(2):
        with pytest.raises(CorruptBatch, match="record 2 does not follow the format") as caught:
            decoder.take(NOTHING, most)
        assert (caught.value.next_offset, decoder.offset) == (first + 3, first)


@pytest.mark.parametrize("codec", range(5))
def test_offsets_that_do_not_rise_make_a_batch_bad_as_a_whole(codec: int) -> None:
    batch = batch_of([(None, b"%d" % n, (), 1) for n in range(5)], codec)
    decoder = decoder_of(with_field(with_field(batch, 57, ">i", 4), 23, ">i", 3))
    with pytest.raises(CorruptBatch):
        decoder.take(NOTHING, 1)
    assert decoder.offset == 0


def load(value: bytes) -> int:
    return int(value)


def test_a_record_that_does_not_suit_its_serde_is_raised_once_it_comes_first_and_each_time() -> None:
    decoder = decoder_of(values_of(b"1", b"2", b"x", b"4"), load=load)
    assert list(decoder.take(NOTHING, 10)) == [1, 2]
    for _ in range(2):
        with pytest.raises(ValueError, match="invalid literal") as caught:
            decoder.take(NOTHING, 10)
        (note,) = caught.value.__notes__
        assert note.startswith("while reading orders/3 at offset 2:") and "seek to 3 to skip it" in note
    assert decoder.offset == 2


@pytest.mark.parametrize(
    ("on_bad", "expected", "positions"),
    [(BAD_SKIP, [1, 4, 6], [0, 3, 5, 6]), (BAD_RAW, [1, b"x", b"y", 4, b"z", 6], [0, 1, 2, 3, 4, 5, 6])],
    ids=["skip", "raw"],
)
@pytest.mark.parametrize("codec", [0, 4])
@pytest.mark.parametrize("most", [1, 2, 10])
def test_records_that_do_not_suit_their_serde_are_skipped_or_stay_bytes(
    on_bad: int, expected: list[Any], positions: list[int], codec: int, most: int
) -> None:
    data = values_of(b"1", b"x", b"y", b"4", b"z", b"6", codec=codec)
    decoder = decoder_of(data, VALUES, load, on_bad)
    found: list[Any] = []
    seen: set[int] = set()
    last = NOTHING
    while decoder.has_more:
        last = decoder.take(last, most)
        for record in last:
            found.append(record)
            seen.add(last.offset)
    assert found == expected and last.end == 6
    assert seen <= {*positions, *range(1, 7)} and 6 in seen


def test_a_bad_batch_is_bad_whatever_a_serde_says_of_its_records() -> None:
    bad = with_bad_end(values_of(b"1", b"x", b"3"))
    for on_bad in (BAD_RAISE, BAD_SKIP, BAD_RAW):
        decoder = decoder_of(bad, VALUES, load, on_bad)
        with pytest.raises(CorruptBatch):
            decoder.take(NOTHING, 10)


def test_a_record_is_not_skipped_because_memory_ran_out() -> None:
    def fail(value: bytes) -> int:
        raise MemoryError

    decoder = decoder_of(values_of(b"1"), VALUES, fail, BAD_SKIP)
    with pytest.raises(MemoryError):
        decoder.take(NOTHING, 10)


USES: dict[str, Callable[[Decoder], object]] = {
    "seek": lambda decoder: decoder.seek(0),
    "feed": lambda decoder: decoder.feed(b"", 0),
    "take": lambda decoder: decoder.take(NOTHING, 1),
    "use": lambda decoder: decoder.use(VALUES, None, None),
    "init": lambda decoder: decoder.__init__("other", 1),  # type: ignore[misc]
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("codec", [0, 4])
def test_a_decoder_is_not_used_while_it_makes_a_record(use: str, codec: int) -> None:
    """The memory that it reads would be given back."""

    def meddle(value: bytes) -> bytes:
        with pytest.raises(RuntimeError, match="while it makes a record"):
            USES[use](decoder)
        return value

    decoder = decoder_of(values_of(b"a", b"b", b"c", codec=codec), load=meddle)
    assert list(decoder.take(NOTHING, 2)) == [b"a", b"b"]
    assert list(decoder.take(NOTHING, 2)) == [b"c"]
    decoder.seek(7)
    assert decoder.offset == 7 and not decoder.has_more


def test_an_interrupt_in_a_serde_is_not_swallowed_and_the_decoder_goes_on() -> None:
    interrupts = [KeyboardInterrupt]

    def interrupted(value: bytes) -> bytes:
        if value == b"b" and interrupts:
            raise interrupts.pop()
        return value

    decoder = decoder_of(values_of(b"a", b"b", b"c"), load=interrupted)
    with pytest.raises(KeyboardInterrupt):
        decoder.take(NOTHING, 10)
    assert decoder.offset == 1  # ahead of what was returned: that is how a cursor sees it
    assert list(decoder.take(NOTHING, 10)) == [b"b", b"c"]


def test_records_of_two_leader_epochs_are_not_returned_together() -> None:
    second = struct.pack(">i", 1)
    newer = values_of(b"c", base_offset=2)
    decoder = decoder_of(values_of(b"a", b"b") + newer[:12] + second + newer[16:])
    first = decoder.take(NOTHING, 10)
    assert (list(first), first.position) == ([b"a", b"b"], (2, 0))
    after = decoder.take(first, 10)
    assert after.position == (2, 0) and list(after) == [b"c"] and after.position == (3, 1)


def test_of_compressed_batches_a_part_is_made_at_a_time() -> None:
    decoder = decoder_of(values_of(*[bytes(1000)] * 100, codec=4))
    assert len(list(decoder.take(NOTHING, 1000, 10_000))) == 9
    assert len(list(decoder.take(NOTHING, 1000, 1))) == 1
    assert len(list(decoder.take(NOTHING, 1000))) == 90


def test_serdes_are_applied_but_not_to_null() -> None:
    batch = batch_of([(b"k", b'{"a": 1}', (), 1), (None, None, (), 1)])
    decoder = Decoder(*NAME)
    for form, want in [(TUPLES, [("k", {"a": 1}), (None, None)]), (VALUES, [{"a": 1}, None])]:
        decoder.use(form, bytes.decode, json.loads)
        decoder.seek(0)
        decoder.feed(batch, 2)
        assert list(decoder.take(NOTHING, 10)) == want
    decoder.use(RECORDS, bytes.decode, json.loads)
    decoder.seek(0)
    decoder.feed(batch, 2)
    assert [(r.key, r.value) for r in decoder.take(NOTHING, 10)] == [("k", {"a": 1}), (None, None)]


def test_a_batch_that_was_handed_out_is_its_users() -> None:
    decoder = decoder_of(values_of(b"a", b"b", b"c"))
    records = decoder.take(NOTHING, 2)
    batch = records.batch()
    assert type(batch) is Batch and (batch.topic, batch.partition, batch.begin, batch.end) == ("orders", 3, 0, 2)
    batch += [b"x", b"y"]
    assert records.offset == 2 and not records.has_more and next(records, None) is None
    assert records.stop().position == (2, 0)


def test_what_is_stopped_gives_no_more_and_its_position_stays() -> None:
    records = decoder_of(values_of(b"a", b"b", b"c")).take(NOTHING, 10)
    assert next(records) == b"a"
    stopped = records.stop()
    assert stopped.position == (1, 0) and not stopped.has_more
    assert list(records) == []
    assert list(records.part(stopped.end, 10)) == [b"b", b"c"]
