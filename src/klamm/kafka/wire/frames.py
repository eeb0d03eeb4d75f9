"""The frame of a message: a size, and a header that pairs responses with requests.

    size       int32, of everything behind it
    request    v0  api_key int16 · api_version int16 · correlation_id int32
               v1  and client_id string?                    (its length is an int16 in v2, too)
               v2  and tagged fields                        with every flexible request
    response   v0  correlation_id int32
               v1  and tagged fields                        with every flexible response but ApiVersions

ApiVersions is answered with header v0 in all versions: the client does not know our versions yet. For the same
reason, of a request that we do not know we read header v0, which every header begins with: that much is needed to
refuse it. (No API that we know has a request header v0 of its own.)
"""

from __future__ import annotations

import struct
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from klamm.kafka.wire.codec import Api
from klamm.kafka.wire.decoder import skip_tags
from klamm.kafka.wire.errors import MalformedMessage, UnsupportedVersion
from klamm.kafka.wire.messages import API_VERSIONS, APIS, PRODUCE

if TYPE_CHECKING:
    from klamm.kafka.wire.structs import Struct

__all__ = [
    "API_KEY_BYTES",
    "SIZE_BYTES",
    "RequestHeader",
    "check_control_request",
    "frame_size",
    "framed_response",
    "joined",
    "read_request",
    "read_request_header",
    "read_response",
    "request_frame",
    "request_header_version",
    "response_frame",
    "response_header_version",
    "size_field",
]

SIZE_BYTES = 4
"""Of the size before each frame."""
API_KEY_BYTES = 2
"""Of the API's number, with which a request begins."""

_SIZE = struct.Struct(">i")
_API_KEY = struct.Struct(">h")
_REQUEST_V0 = struct.Struct(">hhi")
_REQUEST_V1 = struct.Struct(">hhih")
_RESPONSE_V0 = struct.Struct(">ii")
_RESPONSE_V1 = struct.Struct(">iix")


class RequestHeader(NamedTuple):
    """The header of a request. `position` is where the request itself begins in its frame."""

    api: Api
    version: int
    correlation_id: int
    client_id: str | None
    position: int


def request_header_version(api: Api, version: int) -> int:
    return 2 if api.is_flexible(version) else 1


def response_header_version(api: Api, version: int) -> int:
    return 1 if api.is_flexible(version) and api is not API_VERSIONS else 0


_HTTP = {b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN", b"PRI "}
_OTHERS = {
    "TLS": "it speaks TLS, and there is none here (clients need security.protocol=PLAINTEXT)",
    "HTTP": "it speaks HTTP, and this is the port for Kafka clients",
}


def size_field(data: bytes | bytearray | memoryview) -> int:
    """Return what the first four bytes say, whatever it is."""
    size: int = _SIZE.unpack_from(data)[0]
    return size


def frame_size(data: bytes | bytearray | memoryview, position: int = 0, *, limit: int) -> int:
    """Return the size of the frame at `position`. Raise if it is above `limit`, or negative: it is malformed."""
    (size,) = _SIZE.unpack_from(data, position)
    if not 0 <= size <= limit:
        raise MalformedMessage(
            _OTHERS.get(_spoken(data, position), f"a frame of {size} bytes, where up to {limit} are read")
        )
    return int(size)


def check_control_request(data: bytes | bytearray | memoryview, position: int, size: int, *, limit: int) -> None:
    """Raise MalformedMessage if the request of `size` bytes that begins at `position` is larger than `limit` and brings
    no records.
    """
    (key,) = _API_KEY.unpack_from(data, position)
    if size > limit and key != PRODUCE.key:
        name = APIS[key].name if key in APIS else f"API {key}"
        raise MalformedMessage(f"{name} of {size} bytes, where control.request.max.bytes is {limit}")


def _spoken(data: bytes | bytearray | memoryview, position: int) -> str:
    """Return what else its first four bytes could be."""
    first = bytes(data[position : position + SIZE_BYTES])
    if first[:2] == b"\x16\x03":
        return "TLS"
    return "HTTP" if first in _HTTP else ""


def read_request_header(frame: bytes | memoryview) -> RequestHeader:
    """Read the header of a frame without its size. Raise UnsupportedVersion for an unknown API or version."""
    end = len(frame)
    if end < _REQUEST_V0.size:
        raise MalformedMessage(f"request header: {end} bytes")
    key, version, correlation_id = _REQUEST_V0.unpack_from(frame)
    api = APIS.get(key)
    if api is None or not api.knows(version):
        what = f"API {key}" if api is None else f"{api.name} v{version}"
        raise UnsupportedVersion(f"{what} is unknown", key=key, version=version, correlation_id=correlation_id)
    try:
        position = _REQUEST_V1.size
        size = _REQUEST_V1.unpack_from(frame)[3]
        client_id = None
        if size >= 0:
            client_id = str(frame[position : position + size], "utf-8")
            position += size
        if position > end or size < -1:
            raise MalformedMessage(f"byte {_REQUEST_V1.size}: client_id of {size} bytes")
        if api.is_flexible(version):
            _, position = skip_tags(frame, position)
    except (IndexError, struct.error):
        raise MalformedMessage("request header: ends too early") from None
    except UnicodeDecodeError:
        raise MalformedMessage("request header: client_id is not UTF-8") from None
    except MalformedMessage as error:
        raise MalformedMessage(f"request header: {error.message}") from None
    return RequestHeader(api, version, correlation_id, client_id, position)


def read_request(frame: bytes | memoryview) -> tuple[RequestHeader, Struct]:
    """Return header and request of a frame without its size."""
    header = read_request_header(frame)
    return header, header.api.request.decode(frame, header.version, header.position)


def response_frame(api: Api, version: int, correlation_id: int, response: Struct) -> list[Any]:
    """Return all that is sent as a response, in parts; see `Message.encode`."""
    return framed_response(api, version, correlation_id, api.response.encode(response, version))


def joined(parts: list[Any]) -> list[Any]:
    """Return parts of a message with bytes that follow each other as one part."""
    found: list[Any] = []
    for is_bytes, run in groupby(parts, lambda part: type(part) is bytes):
        same = list(run)
        found += [b"".join(same)] if is_bytes else same
    return found


def framed_response(api: Api, version: int, correlation_id: int, parts: list[Any]) -> list[Any]:
    """Return an encoded response with its header."""
    head = _RESPONSE_V1 if response_header_version(api, version) else _RESPONSE_V0
    size = head.size - SIZE_BYTES + sum(map(len, parts))
    parts[0] = head.pack(size, correlation_id) + parts[0]
    return parts


# The other side of the connection: what a client does, for tests and tools.


def request_frame(api: Api, version: int, correlation_id: int, client_id: str | None, request: Struct) -> list[Any]:
    """Return all that is sent as a request, in parts."""
    parts = api.request.encode(request, version)
    name = b"" if client_id is None else client_id.encode()
    head = _REQUEST_V1.pack(api.key, version, correlation_id, -1 if client_id is None else len(name)) + name
    if api.is_flexible(version):
        head += b"\0"
    parts[0] = _SIZE.pack(len(head) + sum(map(len, parts))) + head + parts[0]
    return parts


def read_response(api: Api, version: int, frame: bytes | memoryview) -> tuple[int, Struct]:
    """Return correlation id and response of a frame without its size."""
    if len(frame) < _SIZE.size:
        raise MalformedMessage(f"response header: {len(frame)} bytes")
    (correlation_id,) = _SIZE.unpack_from(frame)
    position = _SIZE.size
    if response_header_version(api, version):
        try:
            _, position = skip_tags(frame, position)
        except IndexError:
            raise MalformedMessage("response header: ends too early") from None
    return correlation_id, api.response.decode(frame, version, position)
