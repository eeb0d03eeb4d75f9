"""Ordinary Produce requests, natively: the same fields and bytes as the compiled codecs', and no byte beyond the end.

The same tests run with the module built under AddressSanitizer: see asan.py.
"""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.batch import crc32c, parse
from klamm.batch.header import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL
from klamm.kafka._produce import OrdinaryProduce, read
from klamm.kafka.apis.produce import check
from klamm.kafka.wire.errors import MalformedMessage, UnsupportedVersion
from klamm.kafka.wire.frames import SIZE_BYTES, read_request, request_frame, response_frame
from klamm.kafka.wire.messages import PRODUCE
from tests.batch.strategies import batch_of, record_lists

MANY = settings(max_examples=int(os.environ.get("KLAMM_EXAMPLES", "100")))
FIRST, LAST, ID_SINCE = 3, 13, 13
ATTRIBUTES, LAST_DELTA, MAX_TIMESTAMP, PRODUCER, EPOCH, SEQUENCE, COUNT = 21, 23, 35, 43, 51, 53, 57
NASTY = [b"\x00", b"\x01", b"\x7f", b"\x80", b"\xff", b"\xff\xff", b"\x80\x00", b"\xff\xff\xff\xff\x0f", b"\x7f" * 4]

names = st.text("abcXYZ019._-", min_size=1, max_size=12) | st.just("n" * 249)
batches = st.builds(
    lambda records, producer: batch_of(records, **producer),
    record_lists,
    st.just({}) | st.just({"producer_id": 4711, "producer_epoch": 3, "base_sequence": 17}),
)
partitions = st.dictionaries(st.integers(0, 2**31 - 1), batches, min_size=1, max_size=4)
topics = st.dictionaries(names, partitions, min_size=1, max_size=4)
offsets = st.integers(0, 2**62)


class Sent(NamedTuple):
    """What a client sends."""

    version: int
    frame: bytes


def id_of(name: str) -> bytes:
    return (name.encode() * 16)[:16]


def request_of(data: dict[str, dict[int, Any]], acks: int = 1, **fields: Any) -> Any:
    request = PRODUCE.request
    return request(
        acks=acks,
        timeout_ms=30_000,
        topic_data=[
            request.Topic(
                name=name,
                topic_id=id_of(name),
                partition_data=[request.Partition(index=index, records=records) for index, records in parts.items()],
            )
            for name, parts in data.items()
        ],
        **fields,
    )


def frame_of(version: int, request: Any, client: str | None = "a client", correlation_id: int = 77) -> bytes:
    return b"".join(request_frame(PRODUCE, version, correlation_id, client, request))[SIZE_BYTES:]


requests = st.builds(
    lambda version, data, acks, client, number: Sent(
        version, frame_of(version, request_of(data, acks), client, number)
    ),
    st.integers(FIRST, LAST),
    topics,
    st.sampled_from([-1, 0, 1]),
    st.none() | st.text("abc-123", max_size=9),
    st.integers(-(2**31), 2**31 - 1),
)


def fields_of(found: OrdinaryProduce) -> list[tuple[str | bytes, int, bytes, int]]:
    return [
        (topic, index, bytes(records), count)
        for topic, index, records, count in (found.partition(number) for number in range(len(found)))
    ]


def agrees(found: OrdinaryProduce, frame: bytes) -> None:
    """With the compiled codec, and with what is checked of a batch."""
    header, request = read_request(frame)
    assert (header.api, header.version, header.correlation_id) == (PRODUCE, found.version, found.correlation_id)
    assert request.transactional_id is None
    assert request.acks == found.acks
    assert fields_of(found) == [
        (topic.topic_id if found.version >= ID_SINCE else topic.name, part.index, bytes(part.records),
         parse(part.records).record_count)
        for topic in request.topic_data
        for part in topic.partition_data
    ]  # fmt: skip
    for _, _, records, _ in fields_of(found):
        copy = bytearray(records)
        check(copy, found.version, quick=True)
        assert copy == records


# One test for all that is asked of a request: to draw one takes longer than to read it.
@MANY
@given(
    requests,
    st.lists(st.tuples(st.integers(0, 2**16), st.sampled_from(NASTY)), min_size=1, max_size=4),
    st.booleans(),
    st.data(),
)
def test_it_reads_and_responds_as_the_compiled_codec_does_and_takes_no_frame_that_is_cut(
    sent: Sent, changes: list[tuple[int, bytes]], is_sealed: bool, data: st.DataObject
) -> None:
    found = read(sent.frame)
    assert found is not None
    agrees(found, sent.frame)
    responds_alike(found, sent, lambda: data.draw(offsets))
    end = data.draw(st.integers(0, len(sent.frame) - 1))
    assert read(sent.frame[:end]) is None
    assert read(memoryview(sent.frame)[:end]) is None, "the rest lies behind it"
    takes_what_others_take(harmed(sent.frame, changes, is_sealed))


def responds_alike(found: OrdinaryProduce, sent: Sent, an_offset: Callable[[], int]) -> None:
    """With the bytes of the compiled codec, whatever the offsets."""
    header, request = read_request(sent.frame)
    response = PRODUCE.response(responses=[])
    number = 0
    for topic in request.topic_data:
        parts = []
        for part in topic.partition_data:
            base_offset, log_start = an_offset(), an_offset()
            found.appended(number, base_offset, log_start)
            number += 1
            parts.append(
                PRODUCE.response.Partition(index=part.index, base_offset=base_offset, log_start_offset=log_start)
            )
        response.responses.append(
            PRODUCE.response.Topic(name=topic.name, topic_id=topic.topic_id, partition_responses=parts)
        )
    assert found.response() == b"".join(response_frame(PRODUCE, sent.version, header.correlation_id, response))


def harmed(frame: bytes, changes: list[tuple[int, bytes]], is_sealed: bool) -> bytes:
    """Return the frame with some bytes replaced; `is_sealed`: with a CRC that fits them."""
    changed = bytearray(frame)
    for position, nasty in changes:
        at = position % len(changed)
        changed[at : at + len(nasty)] = nasty
    if is_sealed:
        seal_again(changed)
    return bytes(changed)


def takes_what_others_take(frame: bytes) -> None:
    found = read(frame)
    if found is not None:
        agrees(found, frame)


def seal_again(frame: bytearray) -> None:
    """Make the CRC of the first batch right, where the frame still has one."""
    try:
        _, request = read_request(bytes(frame))
        records = bytes(request.topic_data[0].partition_data[0].records)
    except (MalformedMessage, UnsupportedVersion, IndexError, TypeError):
        return
    at = frame.find(records) if records else -1
    if at >= 0 and len(records) >= 61:
        struct.pack_into(">I", frame, at + 17, crc32c(records[21:]))


@MANY
@given(st.binary(max_size=200))
def test_any_bytes_are_read_within_their_end(data: bytes) -> None:
    for version in (FIRST, 8, 9, LAST):
        takes_what_others_take(struct.pack(">hhi", 0, version, 1) + data)


GOOD = batch_of([(b"k", b"v", (), 1_700_000_000_000), (None, b"w", (), 1_700_000_000_001)])


def altered(position: int, layout: str, value: int, batch: bytes = GOOD, *, crc: bool = True) -> bytes:
    changed = bytearray(batch)
    struct.pack_into(layout, changed, position, value)
    if crc:
        struct.pack_into(">I", changed, 17, crc32c(changed[21:]))
    return bytes(changed)


IN_TRANSACTION = batch_of([(b"k", b"v", (), 1)], producer_id=1, producer_epoch=0, base_sequence=0)
UNUSUAL_BATCHES = {
    "null": None,
    "nothing": b"",
    "compressed": batch_of([(b"k", b"v", (), 1)], 4),
    "two": GOOD + GOOD,
    "a byte more": GOOD + b"\0",
    "a byte less": GOOD[:-1],
    "a base offset": altered(0, ">q", 1),
    "another magic": altered(16, ">b", 1),
    "a wrong CRC": altered(17, ">I", 4711, crc=False),
    "control": altered(ATTRIBUTES, ">h", CONTROL),
    "transactional": altered(ATTRIBUTES, ">h", TRANSACTIONAL, IN_TRANSACTION),
    "stamped": altered(ATTRIBUTES, ">h", LOG_APPEND_TIME),
    "an unknown bit": altered(ATTRIBUTES, ">h", 0x80),
    "an untrue max_timestamp": altered(MAX_TIMESTAMP, ">q", 5),
    "fewer records than offsets": altered(LAST_DELTA, ">i", 7),
    "fewer records than said": altered(COUNT, ">i", 3, altered(LAST_DELTA, ">i", 2)),
    "no records": altered(COUNT, ">i", 0, altered(LAST_DELTA, ">i", -1)),
    "a producer without an epoch": altered(PRODUCER, ">q", 1),
    "a producer without a sequence": altered(EPOCH, ">h", 1, altered(PRODUCER, ">q", 1)),
    "larger than the loop checks": batch_of([(None, bytes(70_000), (), 1)]),
}  # fmt: skip


@pytest.mark.parametrize("what", UNUSUAL_BATCHES)
@pytest.mark.parametrize("version", [8, 12])
def test_a_batch_that_is_not_ordinary_is_left_to_others(what: str, version: int) -> None:
    assert read(frame_of(version, request_of({"t": {0: GOOD}}))) is not None
    assert read(frame_of(version, request_of({"t": {0: UNUSUAL_BATCHES[what]}}))) is None
    assert read(frame_of(version, request_of({"t": {0: GOOD, 1: UNUSUAL_BATCHES[what]}}))) is None


def test_a_request_that_is_not_ordinary_is_left_to_others() -> None:
    plain = request_of({"t": {0: GOOD}})
    assert read(frame_of(12, plain)) is not None
    for version in range(FIRST):
        assert read(frame_of(version, plain)) is None
    assert read(frame_of(12, request_of({"t": {0: GOOD}}, transactional_id="tx"))) is None
    assert read(frame_of(12, request_of({"t": {0: GOOD}}, transactional_id=""))) is None
    for acks in (2, -2, 32767):
        assert read(frame_of(12, request_of({"t": {0: GOOD}}, acks))) is None
    assert read(frame_of(12, request_of({}))) is None
    assert read(frame_of(12, request_of({"t": {}}))) is None
    assert read(frame_of(12, request_of({"täglich": {0: GOOD}}))) is None
    assert read(frame_of(12, request_of({"n" * 250: {0: GOOD}}))) is None
    assert read(frame_of(12, plain, "ein großer")) is None
    assert read(frame_of(12, request_of({"t": dict.fromkeys(range(64), GOOD)}))) is not None
    assert read(frame_of(12, request_of({"t": dict.fromkeys(range(65), GOOD)}))) is None
    twice = request_of({"t": {0: GOOD}, "u": {0: GOOD}})
    twice.topic_data[1].name = "t"
    assert read(frame_of(12, twice)) is None
    tagged = frame_of(12, plain)
    assert read(tagged[:-1] + b"\x01\x00\x00") is None  # and the compiled codec skips it
    assert read_request(tagged[:-1] + b"\x01\x00\x00")[1].acks == plain.acks
    assert read(b"\0\1" + tagged[2:]) is None, "another API"


@pytest.mark.parametrize("version", range(FIRST, LAST + 1))
def test_no_version_is_left_to_chance(version: int) -> None:
    """What a version adds to the response is noticed though no example above may have that version."""
    sent = Sent(version, frame_of(version, request_of({"t": {0: GOOD, 3: GOOD}})))
    found = read(sent.frame)
    assert found is not None
    agrees(found, sent.frame)
    responds_alike(found, sent, itertools.count(7).__next__)


def test_numbers_beyond_its_partitions_are_refused() -> None:
    found = read(frame_of(12, request_of({"t": {0: GOOD}})))
    assert found is not None
    for number in (-1, 1, 64, 2**31 - 1):
        with pytest.raises(IndexError):
            found.partition(number)
        with pytest.raises(IndexError):
            found.appended(number, 0, 0)
