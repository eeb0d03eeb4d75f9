"""Records as JSON and YAML have them: what `klamm tail` and `klamm export` write, `klamm send` and tests read.

    {"topic", "partition", "offset", "timestamp", "key", "value", "headers"}

Key and value are text where they are UTF-8, else {"base64": "…"}; headers are a list of [name, value]. Read, any other
value is taken as its JSON text, headers may be a mapping, and a timestamp is in milliseconds or as ISO 8601 has it.
Topic and offset say where a record was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from klamm.batch import Record
from klamm.errors import InvalidRecord
from klamm.times import to_ms

if TYPE_CHECKING:
    from klamm.batch import Delivery
    from klamm.client.produce.producer import Producer

__all__ = ["PlainRecord", "as_plain", "bytes_of", "from_json", "from_plain", "plain_bytes"]

_FIELDS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")


class PlainRecord(NamedTuple):
    """A record to be sent."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    partition: int | None = None
    timestamp: int | None = None
    topic: str | None = None  # where it was

    def send(self, producer: Producer, topic: str) -> Delivery:
        return producer.send(
            topic,
            self.value,
            key=self.key,
            headers=self.headers or None,
            partition=self.partition,
            timestamp=self.timestamp,
        )


def plain_bytes(data: bytes | None) -> Any:
    """Convert bytes to a value for JSON, without loss."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        from base64 import b64encode

        return {"base64": b64encode(data).decode()}


def as_plain(record: Record) -> dict[str, Any]:
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": plain_bytes(record.key),
        "value": plain_bytes(record.value),
        "headers": [[name, plain_bytes(value)] for name, value in record.headers],
    }


def bytes_of(value: Any, where: str) -> bytes | None:
    """Return the bytes that plain_bytes was given; any other value is taken as its JSON text."""
    if value is None:
        return None
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise InvalidRecord(f"{where}: has half a surrogate pair in it, which is not text") from None
    if isinstance(value, Mapping) and list(value) == ["base64"]:
        from base64 import b64decode

        try:
            return b64decode(value["base64"], validate=True)
        except (ValueError, TypeError):
            raise InvalidRecord(f"{where}: is not base64") from None
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except TypeError as error:  # YAML knows more than JSON
        raise InvalidRecord(f"{where}: {error}", hint="quote it to make it text") from None


def from_json(line: bytes | str, where: str) -> PlainRecord:
    """Parse a record from a line of JSON."""
    try:
        data = json.loads(line)
    except ValueError as error:
        raise InvalidRecord(f"{where}: is not JSON: {error}", hint="expected one record a line") from None
    return from_plain(data, where)


def from_plain(data: Any, where: str) -> PlainRecord:
    if not isinstance(data, Mapping) or "value" not in data:
        raise InvalidRecord(f"{where}: not a record", hint='expected {"key": "k", "value": "v"}')
    unknown = data.keys() - set(_FIELDS)
    if unknown:
        raise InvalidRecord(
            f"{where}: {min(unknown, key=str)!r} is not a field of a record", hint=f"expected {', '.join(_FIELDS)}"
        )
    headers = data.get("headers") or []
    try:
        pairs = [(str(name), value) for name, value in (headers.items() if isinstance(headers, Mapping) else headers)]
    except (TypeError, ValueError):
        raise InvalidRecord(f"{where}: headers: invalid", hint='expected [["name", "value"]]') from None
    partition = data.get("partition")
    if partition is not None and type(partition) is not int:
        raise InvalidRecord(f"{where}: partition is {partition!r}; expected a whole number")
    return PlainRecord(
        bytes_of(data.get("key"), f"{where}: key"),
        bytes_of(data["value"], f"{where}: value"),
        [(name, bytes_of(value, f"{where}: header {name}")) for name, value in pairs],
        partition,
        _milliseconds(data.get("timestamp"), where),
        data.get("topic"),
    )


def _milliseconds(given: Any, where: str) -> int | None:
    if given is None or type(given) is int:
        return given
    try:
        return to_ms(datetime.fromisoformat(given) if isinstance(given, str) else given)
    except (TypeError, ValueError, OverflowError):
        raise InvalidRecord(
            f"{where}: timestamp is {given!r}", hint="expected milliseconds since 1970, or 2026-11-15T10:00:00Z"
        ) from None
