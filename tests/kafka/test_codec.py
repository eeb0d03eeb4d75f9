"""Messages: the same bytes as kio's, for every API and version, and nothing but MalformedMessage for anything else."""

from __future__ import annotations

import random
import sys
import tracemalloc
from functools import cache
from typing import Any

import pytest
from aiokafka.protocol.produce import ProduceRequest_v0, ProduceResponse_v0, ProduceResponse_v1, ProduceResponse_v2

from klamm.kafka.wire import MalformedMessage, Message, UnsupportedVersion
from klamm.kafka.wire.decoder import MAX_ELEMENTS, varint
from klamm.kafka.wire.encoder import varint_bytes
from klamm.kafka.wire.messages import (
    API_VERSIONS,
    DESCRIBE_GROUPS,
    FETCH,
    LIST_GROUPS,
    METADATA,
    OFFSET_FETCH,
    PRODUCE,
)
from tests.kafka import oracle

INSTANCES = 8
EVERY = [pytest.param(message, version, id=f"{message.name} v{version}") for message, version in oracle.every_message()]


@cache
def instances(message: Message, version: int) -> list[tuple[Any, bytes]]:
    """Random ones, ours and in kio's bytes; the same in each run."""
    rng = random.Random(f"{message.name} {version}")
    made = [oracle.random_entity(oracle.kio_class(message, version), rng) for _ in range(INSTANCES)]
    return [(oracle.ours(message, version, entity), oracle.encoded(entity)) for entity in made]


def joined(message: Message, value: Any, version: int) -> bytes:
    return b"".join(message.encode(value, version))


def decoded_or_refused(message: Message, data: bytes, version: int) -> Any:
    """None: refused, as it should be."""
    try:
        return message.decode(data, version)
    except MalformedMessage as error:
        refusal = error
    assert refusal.message.startswith(f"{message.name} v{version}: ")
    return None


# The same as everybody else


@pytest.mark.parametrize(("message", "version"), EVERY)
def test_bytes_are_those_of_kio_and_decode_to_what_was_encoded(message: Message, version: int) -> None:
    for value, data in instances(message, version):
        assert joined(message, value, version) == data
        assert message.decode(data, version) == value
        assert message.decode(memoryview(b"header" + data), version, 6) == value


@pytest.mark.parametrize(
    ("message", "version"),
    [(message, version) for message, version in oracle.every_message() if message is message.api.response],
)
def test_bytes_in_steps_are_the_same_whenever_they_are_taken(message: Message, version: int) -> None:
    for value, data in instances(message, version):
        rng, taken = random.Random(len(data)), b""
        encoded = list[Any]()
        for encoded in message.encode_in_steps(value, version):
            if rng.random() < 0.5:
                taken += b"".join(encoded)
                encoded.clear()
        assert taken + b"".join(encoded) == data


@pytest.mark.parametrize("api", oracle.KAFKAS, ids=lambda api: api.name)
def test_versions_are_among_those_that_kio_knows(api: Any) -> None:
    known = oracle.known_versions(api)
    assert api.max_version <= known[-1]
    assert api.min_version >= known[0] or api is PRODUCE
    for version in range(max(api.min_version, known[0]), api.max_version + 1):
        assert oracle.kio_class(api.request, version).__flexible__ == api.is_flexible(version)
        assert oracle.kio_class(api.response, version).__flexible__ == api.is_flexible(version)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_produce_of_the_first_versions_is_that_of_aiokafka(version: int) -> None:
    request = PRODUCE.request(
        acks=-1,
        timeout_ms=30_000,
        topic_data=[
            PRODUCE.request.Topic(
                name=name,
                partition_data=[PRODUCE.request.Partition(index=n, records=b"message set %d" % n) for n in range(3)],
            )
            for name in ("orders", "größe")
        ],
    )
    topics = [(name, [(n, b"message set %d" % n) for n in range(3)]) for name in ("orders", "größe")]
    theirs = ProduceRequest_v0(required_acks=-1, timeout=30_000, topics=topics).encode()  # v1 and v2 are the same
    assert joined(PRODUCE.request, request, version) == theirs
    assert PRODUCE.request.decode(theirs, version) == request

    partition = PRODUCE.response.Partition(index=1, error_code=3, base_offset=2**40, log_append_time_ms=77)
    response = PRODUCE.response(
        responses=[PRODUCE.response.Topic(name="orders", partition_responses=[partition])], throttle_time_ms=5
    )
    fields = (1, 3, 2**40, 77)[: 4 if version == 2 else 3]
    classes = (ProduceResponse_v0, ProduceResponse_v1, ProduceResponse_v2)
    throttle = {} if version == 0 else {"throttle_time_ms": 5}
    answer = classes[version](topics=[("orders", [fields])], **throttle).encode()
    assert joined(PRODUCE.response, response, version) == answer


def test_a_field_that_a_version_lacks_has_its_default() -> None:
    request = FETCH.request(max_bytes=1000, session_id=7, rack_id="a")
    assert FETCH.request.decode(joined(FETCH.request, request, 4), 4) == FETCH.request(max_bytes=1000)


def test_unknown_versions_are_named() -> None:
    with pytest.raises(UnsupportedVersion, match="Fetch request v3 is unknown") as caught:
        FETCH.request.decode(b"", 3)
    assert (caught.value.key, caught.value.version) == (1, 3)


# Structs


def test_a_struct_takes_keywords_and_has_defaults_of_its_own() -> None:
    first, second = METADATA.response(), METADATA.response()
    first.topics.append(METADATA.response.Topic(name="orders"))
    assert second.topics == []
    assert first != second and second == METADATA.response(controller_id=-1)
    assert repr(first.topics[0]).startswith("MetadataResponse.Topic(error_code=0, name='orders', topic_id=b'")
    with pytest.raises(TypeError):
        METADATA.response(topcs=[])
    with pytest.raises(AttributeError):
        first.topcs = []
    with pytest.raises(AttributeError, match="Metadata response has no Partitions"):
        _ = METADATA.response.Partitions


# Records are never copied


@pytest.mark.parametrize("version", [3, 9, 13])
def test_records_are_views_of_what_was_received(version: int) -> None:
    request = PRODUCE.request(
        topic_data=[PRODUCE.request.Topic(partition_data=[PRODUCE.request.Partition(records=b"r" * 1000)])]
    )
    received = bytearray(joined(PRODUCE.request, request, version))
    records = PRODUCE.request.decode(received, version).topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    received[received.index(b"r")] = ord("s")
    assert bytes(records) == b"s" + b"r" * 999


class Region:
    """A piece of a file, say: it has a size, and nobody looks into it."""

    def __len__(self) -> int:
        return 4711


@pytest.mark.parametrize("version", [4, 12, 18])
def test_records_are_sent_as_they_were_given(version: int) -> None:
    partition = FETCH.response.Partition
    regions = [Region(), memoryview(b"batches"), b"", None, Region()]
    partitions = [partition(partition_index=n, records=region) for n, region in enumerate(regions)]
    parts = FETCH.response.encode(FETCH.response(responses=[FETCH.response.Topic(partitions=partitions)]), version)
    assert [part for part in parts if type(part) is not bytes] == [regions[0], regions[1], regions[4]]
    assert [type(part) is bytes for part in parts][:6] == [True, False, True, False, True, False]


# Hostile bytes


@pytest.mark.parametrize(("message", "version"), EVERY)
def test_cut_short_a_message_is_malformed_and_what_follows_it_does_not_matter(message: Message, version: int) -> None:
    rng = random.Random(f"cut {message.name} {version}")
    for _, data in instances(message, version)[:2]:
        for cut in {rng.randrange(len(data)) for _ in range(8)} if data else ():
            assert decoded_or_refused(message, data[:cut], version) is None
        assert decoded_or_refused(message, data + b"\0\1\2", version) == decoded_or_refused(message, data, version)


@pytest.mark.parametrize(("message", "version"), EVERY)
def test_any_bytes_are_a_message_or_malformed(message: Message, version: int) -> None:
    rng = random.Random(f"bytes {message.name} {version}")
    for size in (0, 1, 2, 5, 20, 100, 1000):
        decoded_or_refused(message, rng.randbytes(size), version)
        decoded_or_refused(message, bytes(rng.choices([0, 1, 2, 3, 127, 128, 255], k=size)), version)
    for _, data in instances(message, version)[:2]:
        for _ in range(8 if data else 0):
            changed = bytearray(data)
            changed[rng.randrange(min(len(data), 200))] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
            value = decoded_or_refused(message, bytes(changed), version)
            if value is not None:  # what was decoded can be encoded, and is the same again
                assert message.decode(joined(message, value, version), version) == value


@pytest.mark.parametrize(
    ("message", "version", "data"),
    [
        pytest.param(METADATA.request, 1, b"\x7f\xff\xff\xff", id="count"),
        pytest.param(METADATA.request, 1, b"\xff\xff\xff\xfe", id="negative count"),
        pytest.param(METADATA.request, 9, b"\xff\xff\xff\xff\x0f", id="compact count"),
        pytest.param(METADATA.request, 9, b"\xff\xff\xff\xff\xff\xff\xff\xff\x01", id="endless varint"),
        pytest.param(METADATA.request, 9, b"\xff\xff\xff\xff\x7f", id="varint of 35 bits"),
        pytest.param(METADATA.request, 0, b"\xff\xff\xff\xff", id="null that may not be"),
        pytest.param(METADATA.request, 9, b"\x02\x00\x00\x00\x00\x00", id="compact null that may not be"),
        pytest.param(OFFSET_FETCH.request, 2, b"\x00\x01g\xff\xff\xff\xfe", id="count below null"),
        pytest.param(LIST_GROUPS.request, 3, b"\xff\xff\xff\xff\x0f", id="tagged fields"),
        pytest.param(LIST_GROUPS.request, 3, b"\x01\x07\xff\xff\xff\xff\x0f", id="size of a tagged field"),
        pytest.param(API_VERSIONS.response, 3, b"\0\0\1\0\0\0\0\1\1\x0c\0\0\0\0\0\0\0\1\0\0\0\0", id="tag too long"),
        pytest.param(API_VERSIONS.request, 3, b"\x03\xc3\x28\x01\x00", id="not UTF-8"),
        pytest.param(API_VERSIONS.request, 3, varint_bytes(32769) + b"x" * 32768 + b"\x01\0", id="string too long"),
    ],
)
def test_lies_about_sizes_are_malformed(message: Message, version: int, data: bytes) -> None:
    assert decoded_or_refused(message, data, version) is None


@pytest.mark.parametrize(
    ("message", "version", "head", "element"),
    [
        pytest.param(DESCRIBE_GROUPS.request, 5, b"", b"\x01", id="strings"),
        pytest.param(PRODUCE.request, 9, b"\0\0\1\0\0\0\0", b"\x01\x01\0", id="structs"),
        pytest.param(PRODUCE.request, 9, b"\0\0\1\0\0\0\0\1", b"\x01\0", id="tagged fields"),
    ],
)
def test_neither_work_nor_memory_follows_a_hostile_count(
    message: Message, version: int, head: bytes, element: bytes
) -> None:
    # Ten million of the smallest elements, of which all are there.
    data = head + varint_bytes(10_000_001) + element * 10_000_000 + b"\0\0"
    tracemalloc.start()
    try:
        assert decoded_or_refused(message, data, version) is None
        assert tracemalloc.get_traced_memory()[1] < len(data) + 1_000_000
    finally:
        tracemalloc.stop()
    lines = 0

    def count(_frame: object, _event: str, _argument: object) -> Any:
        nonlocal lines
        lines += 1
        assert lines < 10_000, "it looks at each of them"
        return count

    sys.settrace(count)
    try:
        assert decoded_or_refused(message, data, version) is None
    finally:
        sys.settrace(None)


def test_a_count_that_does_not_fit_into_what_remains_is_refused_before_anything_is_made_of_it() -> None:
    with pytest.raises(MalformedMessage, match="Metadata request v1: byte 4: 200000 topics"):
        METADATA.request.decode((200_000).to_bytes(4, "big") + b"\0\1x" * 100_000, 1)


def test_as_many_elements_as_are_allowed_are_decoded() -> None:
    data = varint_bytes(MAX_ELEMENTS + 1) + b"\x01" * MAX_ELEMENTS + b"\0\0"
    assert len(DESCRIBE_GROUPS.request.decode(data, 5).groups) == MAX_ELEMENTS


def test_tagged_fields_that_we_do_not_know_are_passed_over() -> None:
    unknown = b"\x02\x90\x4e\x03abc\xff\x7f\x00"
    assert LIST_GROUPS.request.decode(b"\x01\x01" + unknown, 5) == LIST_GROUPS.request()
    request = FETCH.request(rack_id="a", cluster_id="c")
    data = joined(FETCH.request, request, 12)
    assert data.endswith(b"\x01\0\x02\x02c")  # one tagged field: 0, two bytes
    assert FETCH.request.decode(data[:-5] + b"\x03\0\x02\x02c" + unknown[1:], 12) == request


@pytest.mark.parametrize("value", [0, 1, 127, 128, 16383, 16384, 2**31, 2**32 - 1])
def test_a_varint_is_decoded_to_the_number_that_was_encoded(value: int) -> None:
    data = varint_bytes(value)
    assert varint(data, 0) == (value, len(data))
