"""Ordinary Fetch requests, natively: the same fields and bytes as the compiled codecs', no byte beyond the end, and the
same responses as the handler's.

The tests of bytes run with the module built under AddressSanitizer as well: see asan.py.
"""

from __future__ import annotations

import itertools
import os
import random
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.kafka._fetch import OrdinaryFetch, encode, encode_nothing, read
from klamm.kafka.wire.errors import MalformedMessage, UnsupportedVersion
from klamm.kafka.wire.frames import SIZE_BYTES, read_request, request_frame, response_frame
from klamm.kafka.wire.messages import FETCH

MANY = settings(max_examples=int(os.environ.get("KLAMM_EXAMPLES", "100")))
FIRST, LAST, SESSION_SINCE, ID_SINCE = 4, 18, 7, 13
NASTY = [b"\x00", b"\x01", b"\x7f", b"\x80", b"\xff", b"\xff\xff", b"\x80\x00", b"\xff\xff\xff\xff\x0f", b"\x7f" * 4]
WANTED = ("fetch_offset", "partition_max_bytes", "current_leader_epoch", "last_fetched_epoch")

int32s, int64s = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
names = st.text("abcXYZ019._-", min_size=1, max_size=12) | st.just("n" * 249)
wanted_of = st.tuples(int64s, int32s, int32s, int32s)
topics = st.dictionaries(names, st.dictionaries(int32s, wanted_of, min_size=1, max_size=4), max_size=4)


class Sent(NamedTuple):
    """What a client sends."""

    version: int
    frame: bytes


def id_of(name: str) -> bytes:
    return (name.encode() * 16)[:16]


def request_of(data: Mapping[str, Mapping[int, tuple[int, ...]]], **fields: Any) -> Any:
    request = FETCH.request
    return request(
        topics=[
            request.Topic(
                topic=name,
                topic_id=id_of(name),
                partitions=[
                    request.Partition(partition=index, **dict(zip(WANTED, wanted, strict=True)))
                    for index, wanted in partitions.items()
                ],
            )
            for name, partitions in data.items()
        ],
        **fields,
    )


def frame_of(version: int, request: Any, client: str | None = "a client", correlation_id: int = 77) -> bytes:
    return b"".join(request_frame(FETCH, version, correlation_id, client, request))[SIZE_BYTES:]


requests = st.builds(
    lambda version, data, client, number, rack, fields: Sent(
        version, frame_of(version, request_of(data, rack_id=rack, **fields), client, number)
    ),
    st.integers(FIRST, LAST),
    topics,
    st.none() | st.text("abc-123", max_size=9),
    int32s,
    st.text("abc-123", max_size=9),
    st.fixed_dictionaries(
        {
            "replica_id": st.integers(-(2**31), -1),
            "max_wait_ms": int32s,
            "min_bytes": int32s,
            "max_bytes": int32s,
            "isolation_level": st.integers(-128, 127),
            "session_id": int32s,
            "session_epoch": int32s.filter(bool),
        }
    ),
)


def fields_of(found: OrdinaryFetch) -> list[tuple[Any, ...]]:
    return [(*found.partition(number), *found.wants(number)) for number in range(len(found))]


def agrees(found: OrdinaryFetch, frame: bytes) -> None:
    """With the compiled codec."""
    header, request = read_request(frame)
    assert (header.api, header.version, header.correlation_id) == (FETCH, found.version, found.correlation_id)
    for name in ("max_wait_ms", "min_bytes", "max_bytes", "isolation_level", "session_id", "session_epoch"):
        assert getattr(found, name) == getattr(request, name), name
    assert request.forgotten_topics_data == []
    assert fields_of(found) == [
        (topic.topic_id if found.version >= ID_SINCE else topic.topic, part.partition,
         *(getattr(part, name) for name in WANTED))
        for topic in request.topics
        for part in topic.partitions
    ]  # fmt: skip


def takes_what_others_take(frame: bytes) -> None:
    found = read(frame)
    if found is not None:
        agrees(found, frame)


def harmed(frame: bytes, changes: list[tuple[int, bytes]]) -> bytes:
    changed = bytearray(frame)
    for position, nasty in changes:
        at = position % len(changed)
        changed[at : at + len(nasty)] = nasty
    return bytes(changed)


@MANY
@given(
    requests,
    st.lists(st.tuples(st.integers(0, 2**16), st.sampled_from(NASTY)), min_size=1, max_size=4),
    st.data(),
)
def test_it_reads_what_the_compiled_codec_reads_and_takes_no_frame_that_is_cut(
    sent: Sent, changes: list[tuple[int, bytes]], data: st.DataObject
) -> None:
    found = read(sent.frame)
    assert found is not None
    agrees(found, sent.frame)
    end = data.draw(st.integers(0, len(sent.frame) - 1))
    assert read(sent.frame[:end]) is None
    assert read(memoryview(sent.frame)[:end]) is None, "the rest lies behind it"
    takes_what_others_take(harmed(sent.frame, changes))


@MANY
@given(st.binary(max_size=200))
def test_any_bytes_are_read_within_their_end(data: bytes) -> None:
    for version in (FIRST, 8, 12, LAST):
        takes_what_others_take(struct.pack(">hhi", FETCH.key, version, 1) + data)


# ---- responses


class Range:
    """Records that lie in a file: whatever has a length in bytes."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size


response = FETCH.response
aborted_of = st.none() | st.lists(
    st.builds(response.AbortedTransaction, producer_id=int64s, first_offset=int64s), max_size=3
)
records_of = st.none() | st.binary(max_size=300) | st.builds(Range, st.integers(1, 2**28))
partition_responses = st.lists(
    st.builds(
        response.Partition,
        partition_index=int32s,
        error_code=st.integers(-1, 130),
        high_watermark=int64s,
        last_stable_offset=int64s,
        log_start_offset=int64s,
        aborted_transactions=aborted_of,
        preferred_read_replica=int32s,
        records=records_of,
    ),
    max_size=3,
)
responses = st.builds(
    lambda found, **fields: response(
        responses=[
            response.Topic(topic=name, topic_id=id_of(name), partitions=partitions)
            for name, partitions in found.items()
        ],
        **fields,
    ),
    st.dictionaries(names, partition_responses, max_size=3),
    throttle_time_ms=int32s,
    error_code=st.integers(-1, 130),
    session_id=int32s,
)


def joined(parts: list[Any]) -> list[Any]:
    """Bytes that follow each other as one; each range by itself."""
    runs = itertools.groupby(parts, key=lambda part: part if isinstance(part, Range) else None)
    return [b"".join(run) if part is None else part for part, run in runs]


@MANY
@given(st.integers(FIRST, LAST), int32s, responses)
def test_a_response_has_the_bytes_of_the_compiled_codec(version: int, correlation_id: int, given: Any) -> None:
    found = encode(version, correlation_id, given)
    assert found is not None
    assert joined(found) == joined(response_frame(FETCH, version, correlation_id, given))


@pytest.mark.parametrize("version", range(SESSION_SINCE, LAST + 1))
def test_a_response_without_partitions_has_the_bytes_of_the_compiled_codec(version: int) -> None:
    for session_id in (0, 1, 2**31 - 1):
        given = response(session_id=session_id)
        assert b"".join(encode_nothing(version, -7, session_id)) == b"".join(response_frame(FETCH, version, -7, given))
    for unknown in (SESSION_SINCE - 1, LAST + 1):
        with pytest.raises(ValueError, match=str(unknown)):
            encode_nothing(unknown, 1, 2)


@pytest.mark.parametrize("version", range(FIRST, LAST + 1))
def test_no_version_is_left_to_chance(version: int) -> None:
    """What a version adds is noticed though no example above may have that version."""
    sent = frame_of(version, request_of({"t": {0: (7, 8, 9, 10), 3: (11, 12, 13, 14)}}, min_bytes=1, rack_id="r"))
    found = read(sent)
    assert found is not None
    agrees(found, sent)
    aborted = [response.AbortedTransaction(producer_id=1, first_offset=2)]
    parts = [
        response.Partition(partition_index=0, high_watermark=300, records=b"x" * 200, aborted_transactions=aborted),
        response.Partition(partition_index=3, error_code=6, records=Range(99), aborted_transactions=None),
    ]
    whole = response(responses=[response.Topic(topic="t", topic_id=id_of("t"), partitions=parts)], session_id=5)
    assert joined(encode(version, 1, whole) or []) == joined(response_frame(FETCH, version, 1, whole))


def test_a_response_that_is_not_ordinary_is_left_to_others() -> None:
    partition = response.Partition(records=b"", diverging_epoch=response.EpochEnd(epoch=1, end_offset=2))
    topic = response.Topic(topic="t", topic_id=id_of("t"), partitions=[partition])
    assert encode(12, 1, response(responses=[topic])) is None
    partition.diverging_epoch = None
    assert encode(12, 1, response(responses=[topic])) is not None
    for version in (FIRST - 1, LAST + 1):
        assert encode(version, 1, response()) is None
    node = response.Node(node_id=1, host="h", port=1)
    assert encode(16, 1, response(node_endpoints=[node])) is None


# ---- what is not ordinary


def test_a_request_that_is_not_ordinary_is_left_to_others() -> None:
    one = {"t": {0: (0, 1, -1, -1)}}
    plain = request_of(one)
    assert read(frame_of(12, plain)) is not None
    for version in (3, 19):
        assert read(struct.pack(">hh", FETCH.key, version) + frame_of(12, plain)[4:]) is None
    assert read(frame_of(12, request_of(one, session_epoch=0))) is None, "it begins a session"
    forgotten = [FETCH.request.ForgottenTopic(topic="t", partitions=[1])]
    assert read(frame_of(12, request_of(one, session_epoch=1, forgotten_topics_data=forgotten))) is None
    assert read(frame_of(12, request_of({"t": {}}))) is None
    assert read(frame_of(12, request_of({"täglich": {0: (0, 1, -1, -1)}}))) is None
    assert read(frame_of(12, request_of({"n" * 250: {0: (0, 1, -1, -1)}}))) is None
    assert read(frame_of(12, request_of(one, rack_id="größer"))) is None
    assert read(frame_of(12, plain, "ein großer")) is None
    assert read(frame_of(12, request_of({"t": dict.fromkeys(range(64), (0, 1, -1, -1))}))) is not None
    assert read(frame_of(12, request_of({"t": dict.fromkeys(range(65), (0, 1, -1, -1))}))) is None
    twice = request_of({"t": {0: (0, 1, -1, -1)}, "u": {0: (1, 1, -1, -1)}})
    twice.topics[1].topic = "t"
    assert read(frame_of(12, twice)) is None
    tagged = frame_of(12, plain)
    assert read(tagged[:-1] + b"\x01\x05\x00") is None  # and the compiled codec skips it
    assert read_request(tagged[:-1] + b"\x01\x05\x00")[1].min_bytes == plain.min_bytes
    assert read(frame_of(15, request_of(one, cluster_id="c"))) is None
    assert read(b"\0\0" + tagged[2:]) is None, "another API"


def test_numbers_beyond_its_partitions_are_refused() -> None:
    found = read(frame_of(12, request_of({"t": {0: (0, 1, -1, -1)}})))
    assert found is not None
    for number in (-1, 1, 64, 2**31 - 1):
        with pytest.raises(IndexError):
            found.partition(number)
        with pytest.raises(IndexError):
            found.wants(number)


def test_requests_that_name_the_same_partitions_in_the_same_order_have_the_same_names() -> None:
    def names_of(*where: tuple[str, int], offset: int = 0) -> bytes:
        request = FETCH.request
        partitions = [
            request.Topic(topic=name, partitions=[request.Partition(partition=index, fetch_offset=offset)])
            for name, index in where
        ]
        found = read(frame_of(12, request(topics=partitions)))
        assert found is not None
        return found.names

    first = names_of(("a", 1), ("bc", 2))
    assert names_of(("a", 1), ("bc", 2), offset=9) == first
    others = [(("bc", 2), ("a", 1)), (("a", 1),), (("ab", 1), ("c", 2)), (("a", 1), ("bc", 3)), (("a", 2), ("bc", 1))]
    assert first not in [names_of(*other) for other in others]


def test_errors_of_others_are_none_of_its_own() -> None:
    """What the compiled codec refuses is not taken."""
    chance = random.Random(7)
    whole = frame_of(12, request_of({"t": {0: (0, 1, -1, -1)}}))
    for _ in range(300):
        frame = bytearray(whole)
        frame[chance.randrange(8, len(frame))] = chance.randrange(256)
        try:
            read_request(bytes(frame))
        except (MalformedMessage, UnsupportedVersion):
            assert read(bytes(frame)) is None
