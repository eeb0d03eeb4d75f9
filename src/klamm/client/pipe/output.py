"""Make records for the output topics out of what the function of a pipe returns.

    None                         nothing: the record is dropped
    a value                      a record of the topic `to`, with the key and the time of the record it was made of
    a Record                     the same with its own key, headers and time: a filter returns what it was given
    {topic: any of the above}    where `to` names several topics: a record for each that is in the mapping
    klamm.to(topic, value, …)    a record for that topic, with a key, headers, time or partition of its own
    a generator                  all that it yields, in order

Keys and values go through the serde of the pipe, here and not when they are sent: what does not suit it is an error of
the record that is at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from klamm.batch import RECORDS, Record
from klamm.client.consume.read_engine import ReadFormat
from klamm.client.consume.record_format import converted
from klamm.errors import InvalidSetting

if TYPE_CHECKING:
    from datetime import datetime

    from klamm.client.pipe.state import State
    from klamm.client.serde import Pair

__all__ = ["Output", "PipeFunction", "RawOutput", "to"]


@dataclass(frozen=True, slots=True)
class Output:
    """A record for a topic of a pipe. Made by `klamm.to`. A key of `...` is that of the record that was read."""

    topic: str
    value: Any
    key: Any = ...
    headers: Any = None
    timestamp: int | datetime | None = None
    partition: int | None = None


def to(
    topic: str,
    value: Any,
    *,
    key: Any = ...,
    headers: Any = None,
    timestamp: int | datetime | None = None,
    partition: int | None = None,
) -> Output:
    """Return a record for `topic`, to be returned or yielded by the function of a pipe.

    Without `key` and `timestamp` it has those of the record that the function was given.
    """
    return Output(topic, value, key, headers, timestamp, partition)


class RawOutput(NamedTuple):
    """An output in bytes."""

    topic: str
    key: Any
    value: Any
    headers: Any
    timestamp: int | datetime | None
    partition: int | None


class PipeFunction:
    """The function of a pipe, from bytes to bytes."""

    def __init__(
        self, function: Callable[..., Any], topics: tuple[str, ...], *, has_branches: bool, keys: Pair, values: Pair
    ) -> None:
        self._function = function
        self._topics = topics
        self._has_branches = has_branches
        self._read_format = ReadFormat(RECORDS, keys.from_bytes, values.from_bytes)
        self._key_to = keys.to_bytes
        self._value_to = values.to_bytes

    def __call__(self, record: Record, *state: State) -> list[RawOutput]:
        """Call the function for what was read, with the state of its key if it keeps some; return what it returns."""
        return self._outputs(self._function(converted(record, self._read_format), *state), record)

    def _outputs(self, result: Any, record: Record) -> list[RawOutput]:
        if result is None:
            return []
        if isinstance(result, Output):
            return [self._encoded(result, record)]
        if isinstance(result, Generator):
            return [output for each in result for output in self._outputs(each, record)]
        if hasattr(result, "__await__") or hasattr(result, "__aiter__"):
            if hasattr(result, "close"):
                result.close()
            raise TypeError(
                f"the function of a pipe returned {type(result).__name__}, which nothing awaits:"
                " make it a plain function"
            )
        if not self._has_branches:
            return [self._encoded(self._output(result), record)]
        if not isinstance(result, Mapping):
            raise TypeError(
                f"the function of a pipe with several outputs returned {type(result).__name__}:"
                " expected {topic: value}, klamm.to(topic, value) or None"
            )
        branches = [(topic, value) for topic, value in result.items() if value is not None]
        return [self._encoded(_as_output(topic, value), record) for topic, value in branches]

    def _output(self, result: Any) -> Output:
        if not self._topics:
            raise TypeError(
                f"the function of a pipe without outputs returned {type(result).__name__}:"
                " return None, or name a topic with to="
            )
        return _as_output(self._topics[0], result)

    def _encoded(self, output: Output, record: Record) -> RawOutput:
        if output.topic not in self._topics:
            raise InvalidSetting(
                f"{output.topic!r} is not an output of this pipe",
                hint=f"to= names {', '.join(map(repr, self._topics)) or 'none'}",
            )
        inherited = record.timestamp if record.timestamp >= 0 else None
        return RawOutput(
            output.topic,
            record.key if output.key is ... else _bytes_of(output.key, self._key_to),
            _bytes_of(output.value, self._value_to),
            output.headers,
            inherited if output.timestamp is None else output.timestamp,
            output.partition,
        )


def _as_output(topic: str, value: Any) -> Output:
    if isinstance(value, Record):
        return Output(topic, value.value, value.key, value.headers, value.timestamp if value.timestamp >= 0 else None)
    return Output(topic, value)


def _bytes_of(value: Any, to_bytes: Any) -> Any:
    return value if value is None or to_bytes is None else to_bytes(value)
