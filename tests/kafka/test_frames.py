"""Frames and headers: the same bytes as kio's; what we do not know can still be answered."""

from __future__ import annotations

import io
import random
import struct
from typing import Any

import pytest
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.schema.request_header.v1.header import RequestHeader as RequestHeaderV1
from kio.schema.request_header.v2.header import RequestHeader as RequestHeaderV2
from kio.serial import entity_writer

from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.wire import Api, MalformedMessage, UnsupportedVersion
from klamm.kafka.wire.frames import (
    frame_size,
    read_request,
    read_request_header,
    read_response,
    request_frame,
    request_header_version,
    response_frame,
    response_header_version,
)
from klamm.kafka.wire.messages import API_VERSIONS, APIS, FETCH, METADATA, SASL_HANDSHAKE
from tests.kafka import oracle

CLIENT_IDS = [None, "", "rdkafka", "größe"]


def payload(parts: list[Any]) -> bytes:
    """A frame, its size checked and taken off."""
    data = b"".join(parts)
    assert frame_size(data, limit=1 << 20) == len(data) - 4
    return data[4:]


@pytest.mark.parametrize("api", oracle.KAFKAS, ids=lambda api: api.name)
def test_header_versions_are_those_of_kio(api: Api) -> None:
    for version in range(max(api.min_version, oracle.known_versions(api)[0]), api.max_version + 1):
        request, response = oracle.kio_class(api.request, version), oracle.kio_class(api.response, version)
        assert request_header_version(api, version) == request.__header_schema__.__version__
        assert response_header_version(api, version) == response.__header_schema__.__version__


@pytest.mark.parametrize("client_id", CLIENT_IDS)
@pytest.mark.parametrize(("api", "version"), [(METADATA, 8), (METADATA, 12), (API_VERSIONS, 4), (SASL_HANDSHAKE, 1)])
def test_request_headers_are_those_of_kio(api: Api, version: int, client_id: str | None) -> None:
    header_class: Any = RequestHeaderV2 if request_header_version(api, version) == 2 else RequestHeaderV1
    header = header_class(
        request_api_key=api.key, request_api_version=version, correlation_id=2**31 - 1, client_id=client_id
    )
    out = io.BytesIO()
    entity_writer(header_class)(out, header)
    frame = payload(request_frame(api, version, 2**31 - 1, client_id, api.request()))
    assert frame.startswith(out.getvalue())
    found = read_request_header(frame)
    assert found == (api, version, 2**31 - 1, client_id, len(out.getvalue()))
    assert read_request(memoryview(frame)) == (found, api.request())


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_requests_and_responses_come_back_in_every_version(api: Api) -> None:
    for version in range(api.min_version, api.max_version + 1):
        frame = payload(request_frame(api, version, 7, "me", api.request()))
        assert read_request(frame)[1] == api.request()
        answer = payload(response_frame(api, version, 7, api.response()))
        assert read_response(api, version, answer) == (7, api.response())


def test_whoever_asks_for_versions_is_answered_without_tagged_fields_in_the_header() -> None:
    answer = payload(response_frame(API_VERSIONS, 3, 7, API_VERSIONS.response(error_code=35)))
    assert answer[:6] == struct.pack(">ih", 7, 35)


@pytest.mark.parametrize(("key", "version"), [(API_VERSIONS.key, 99), (1, 3), (1, -1), (999, 0), (-1, 0)])
def test_a_request_that_we_do_not_know_can_be_answered(key: int, version: int) -> None:
    with pytest.raises(UnsupportedVersion) as caught:
        read_request_header(struct.pack(">hhi", key, version, 4711) + b"\xff whatever")
    assert (caught.value.key, caught.value.version, caught.value.correlation_id) == (key, version, 4711)


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(b"", id="empty"),
        pytest.param(struct.pack(">hhi", 3, 12, 1), id="no client id"),
        pytest.param(struct.pack(">hhih", 3, 12, 1, 30_000) + b"x\0", id="client id too long"),
        pytest.param(struct.pack(">hhih", 3, 12, 1, -2) + b"\0", id="client id below null"),
        pytest.param(struct.pack(">hhih", 3, 12, 1, 2) + b"\xc3\x28\0", id="client id not UTF-8"),
        pytest.param(struct.pack(">hhih", 3, 12, 1, -1), id="no tagged fields"),
        pytest.param(struct.pack(">hhih", 3, 12, 1, -1) + b"\xff\xff\xff\xff\x0f", id="too many tagged fields"),
        pytest.param(struct.pack(">hhih", 3, 12, 1, -1) + b"\x01\x00\x7f", id="tagged field too long"),
    ],
)
def test_broken_headers_are_malformed(frame: bytes) -> None:
    with pytest.raises(MalformedMessage, match=r"^request header: "):
        read_request_header(frame)


def test_any_bytes_are_a_request_or_refused() -> None:
    rng = random.Random(1)
    keys = list(APIS)
    for _ in range(5000):
        head = struct.pack(">hhi", rng.choice(keys), rng.randrange(14), 1) if rng.random() < 0.9 else b""
        frame = head + bytes(rng.choices([0, 1, 2, 97, 127, 128, 255], k=rng.randrange(60)))
        try:
            read_request(frame)
        except (MalformedMessage, UnsupportedVersion):
            pass


@pytest.mark.parametrize("size", [-1, -(2**31), 1001, 2**31 - 1])
def test_a_frame_beyond_the_limit_is_malformed(size: int) -> None:
    with pytest.raises(MalformedMessage):
        frame_size(struct.pack(">i", size), limit=1000)


def test_tagged_fields_of_headers_are_passed_over() -> None:
    frame = payload(request_frame(METADATA, 12, 7, None, METADATA.request()))
    assert read_request(frame[:10] + b"\x01\x05\x02ab" + frame[11:])[1] == METADATA.request()
    answer = payload(response_frame(FETCH, 12, 7, FETCH.response()))
    assert read_response(FETCH, 12, answer[:4] + b"\x01\x05\x02ab" + answer[5:]) == (7, FETCH.response())
    for cut in range(6):
        with pytest.raises(MalformedMessage):
            read_response(FETCH, 12, answer[:cut])


def test_error_codes_are_those_of_kio() -> None:
    ours = {code.name: (int(code), code.retriable) for code in ErrorCode}
    assert ours == {code.name.upper(): (int(code), code.retriable) for code in KioErrorCode}
