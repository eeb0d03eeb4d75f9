"""Small scripts that are run against two brokers; what they note must be the same.

    @script
    def an_offset_beyond_the_end(transaction coordinator: Desk) -> None:
        topic = transaction coordinator.topic()
        transaction coordinator.ask("beyond", FETCH, 12, ...)

A note is the answer as plain data: error codes by name, and without what differs between any two runs: names that were
made up (each by the word that it was made of), ids and members (by the order in which they appeared), ports. Times that
a script gave are compared; those of a clock are "now". So is the order of lists, but of those by made-up names.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from klamm.batch import crc32c, decode, walk
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.wire.codec import Api
from klamm.kafka.wire.messages import CREATE_TOPICS, FETCH, METADATA, PRODUCE
from klamm.kafka.wire.structs import Struct
from tests.batch.strategies import Record, batch_of
from tests.interop.brokers import fresh
from tests.interop.raw import ConnectionEnded, Raw
from tests.interop.records import NOW
from tests.procs import until

__all__ = ["RECORDS", "SCRIPTS", "ScriptContext", "batch_of", "script", "tampered"]

RECORDS: list[Record] = [(b"key-%d" % n, b"value-%d" % n, (), NOW + n) for n in range(3)]

SCRIPTS: list[Callable[[ScriptContext], None]] = []


def script(function: Callable[[ScriptContext], None]) -> Callable[[ScriptContext], None]:
    SCRIPTS.append(function)
    return function


_DROPPED = {"throttle_time_ms", "error_message", "batch_index_error_message", "cluster_authorized_operations"}
_NUMBERED = {"producer_id": "producer", "member_id": "member", "leader": "member", "session_id": "session"}
_HOUR_MS = 3_600_000
_PRESENT = {"topic_id", "cluster_id", "log_append_time_ms", "transaction_start_time_ms", "last_timestamp"}


def tampered(batch: bytes, position: int, replacement: bytes) -> bytes:
    """A batch with some bytes changed, and a checksum that fits again where it covers them."""
    changed = batch[:position] + replacement + batch[position + len(replacement) :]
    return changed[:17] + crc32c(changed[21:]).to_bytes(4, "big") + changed[21:] if position >= 21 else changed


class ScriptContext:
    """One broker, and what a script has noted about it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.notes: dict[str, Any] = {}
        self._words: dict[str, str] = {}
        self._seen: dict[tuple[str, Any], str] = {}
        self._raw = Raw(address, client_id="script")
        self._others: list[Raw] = []

    def close(self) -> None:
        for each in [self._raw, *self._others]:
            each.close()

    def other(self) -> Raw:
        """One more connection."""
        self._others.append(Raw(self.address, client_id="script"))
        return self._others[-1]

    @property
    def raw(self) -> Raw:
        return self._raw

    # What scripts do

    def name(self, word: str) -> str:
        """A name that nobody has used; notes call it by its word."""
        made = fresh(word)
        self._words[made] = f"<{word}>"
        return made

    def call(self, name: str, word: str) -> str:
        """Let notes call a name by a word."""
        self._words[name] = f"<{word}>"
        return name

    def topic(self, partitions: int = 1, *, word: str = "topic", **configs: str) -> str:
        return self._raw.create(self.name(word), partitions, **configs)

    def topic_id(self, topic: str) -> bytes:
        (found,) = self._raw.ask(METADATA, 12, topics=[METADATA.request.Topic(name=topic)]).topics
        return bytes(found.topic_id)

    def note(self, what: str, answer: Any) -> None:
        assert what not in self.notes, f"{what!r} is noted twice"
        self.notes[what] = self._plain("", answer)

    def ask(self, what: str, api: Api, version: int, **fields: Any) -> Any:
        """Send a request and note the answer; "closed" if the broker ended the connection instead."""
        try:
            answer = self._raw.ask(api, version, **fields)
        except ConnectionEnded:
            self._reconnect()
            self.note(what, "closed")
            return None
        self.note(what, answer)
        return answer

    def ask_bytes(self, what: str, data: bytes) -> bytes | None:
        """Send bytes and note whether there is an answer."""
        try:
            self._raw.send_bytes(data)
            answer = self._raw.receive()
        except ConnectionEnded:
            self._reconnect()
            self.note(what, "closed")
            return None
        return answer

    def _reconnect(self) -> None:
        self._raw.close()
        self._raw = Raw(self.address, client_id="script")

    def until(self, api: Api, version: int, holds: Callable[[Any], Any], **fields: Any) -> Any:
        """Ask again until the answer is as wanted."""

        def wanted() -> Any:
            answer = self._raw.ask(api, version, **fields)
            return answer if holds(answer) else None

        return until(wanted, str(api))

    # The common cases, short

    def produce(
        self, what: str | None, topic: str, records: bytes | None, partition: int = 0, version: int = 9, **fields: Any
    ) -> Any:
        part = PRODUCE.request.Partition(index=partition, records=records)
        named: dict[str, Any] = {"name": topic}
        if version >= 13:
            named = {"topic_id": bytes.fromhex(topic) if len(topic) == 32 else self.topic_id(topic)}
        data = [PRODUCE.request.Topic(partition_data=[part], **named)]
        asked = {"acks": -1, "timeout_ms": 20_000, "topic_data": data, **fields}
        if what is None:
            answer = self._raw.ask(PRODUCE, version, **asked)
            assert answer.responses[0].partition_responses[0].error_code == 0, answer
            return answer
        return self.ask(what, PRODUCE, version, **asked)

    def fetch(
        self, what: str | None, topic: str, offset: int, partition: int = 0, version: int = 12, **fields: Any
    ) -> Any:
        limits = {"partition_max_bytes": fields.pop("partition_max_bytes", 1 << 20)}
        limits["current_leader_epoch"] = fields.pop("current_leader_epoch", -1)
        part = FETCH.request.Partition(partition=partition, fetch_offset=offset, **limits)
        named: dict[str, Any] = {"topic": topic}
        if version >= 13:
            named = {"topic_id": bytes.fromhex(topic) if len(topic) == 32 else self.topic_id(topic)}
        asked = {
            "max_wait_ms": 0,
            "min_bytes": 0,
            "topics": [FETCH.request.Topic(partitions=[part], **named)],
            **fields,
        }
        return self.ask(what, FETCH, version, **asked) if what else self._raw.ask(FETCH, version, **asked)

    def create(self, what: str, *topics: Struct, validate_only: bool = False, version: int = 7) -> Any:
        asked = {"topics": list(topics), "timeout_ms": 20_000, "validate_only": validate_only}
        answer = self._raw.ask(CREATE_TOPICS, version, **asked)
        for each in answer.topics:
            each.configs = []  # all of them: see settings_are_described
        self.note(what, answer)
        return answer

    def new(self, name: str, partitions: int = 1, factor: int = 1, **fields: Any) -> Struct:
        configs = [CREATE_TOPICS.request.Config(name=each, value=value) for each, value in fields.pop("configs", ())]
        return CREATE_TOPICS.request.Topic(
            name=name, num_partitions=partitions, replication_factor=factor, configs=configs, **fields
        )

    # Answers as plain data

    def _plain(self, name: str, value: Any) -> Any:
        if isinstance(value, Struct):
            return self._plain_struct(value)
        if name == "records":
            return None if value is None else self._records(value)
        if name.endswith("error_code"):
            return ErrorCode(value).name
        if name in _PRESENT:
            return bool(int.from_bytes(value, "big")) if isinstance(value, bytes) else value not in (None, "", -1)
        if name in _NUMBERED and value not in (-1, "", 0):
            return self._numbered(_NUMBERED[name], value)
        if name == "leader_epoch" or name == "committed_leader_epoch":
            return min(value, 0)
        if name == "port":
            return "port" if value > 0 else value
        if isinstance(value, dict):
            return {key: self._plain(str(key), each) for key, each in value.items()}
        if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview):
            listed = [self._plain(name.removesuffix("s"), each) for each in value]
            return sorted(listed, key=repr) if any(map(_has_made_up_name, listed)) else listed
        if isinstance(value, memoryview):
            return bytes(value)
        if isinstance(value, str):
            for made, word in self._words.items():
                value = value.replace(made, word)
        return value

    def _plain_struct(self, value: Struct) -> dict[str, Any]:
        names: Iterable[str] = (name for name in value.__slots__ if name not in _DROPPED)
        plain = {name: self._plain(name, getattr(value, name)) for name in names}
        if plain.get("error_code", "NONE") != "NONE":
            # Offsets beside an error: some answers have them, some not, and no client looks at them.
            for name in ("log_start_offset", "high_watermark", "last_stable_offset"):
                plain.pop(name, None)
        # Defaults say nothing, and are different in different versions.
        return {name: each for name, each in plain.items() if each not in ("", None, [], {}, -1)}

    def _numbered(self, kind: str, value: Any) -> str:
        known = sum(1 for each, _ in self._seen if each == kind)
        return self._seen.setdefault((kind, value), f"<{kind} {known}>")

    @staticmethod
    def _records(data: Any) -> Any:
        data, end = bytes(data), 0
        while end + 12 <= len(data) and end + 12 + int.from_bytes(data[end + 8 : end + 12], "big") <= len(data):
            end += 12 + int.from_bytes(data[end + 8 : end + 12], "big")
        data = data[:end]  # without what was cut off at the end: how much that is, may differ
        shown = []
        for header in walk(data):
            kind = [
                word
                for bit, word in ((16, "transactional"), (32, "control"), (8, "appended"))
                if header.attributes & bit
            ]
            shown.append((header.base_offset, header.record_count, header.attributes & 7, *kind))
        values = [(each.offset, _when(each.timestamp), each.key, each.value, each.headers) for each in decode(data)]
        return {"batches": shown, "records": values}


def _has_made_up_name(answer: Any) -> bool:
    """Kafka gives topics, groups and members in the order of a hash table of their names, which are new each time."""
    return isinstance(answer, dict) and any(isinstance(each, str) and "<" in each for each in answer.values())


def _when(timestamp: int) -> str:
    """A time that a script has given, as what it is; one that a client or broker took from its clock, as "now"."""
    if abs(timestamp - NOW) <= 1000:
        return f"NOW{timestamp - NOW:+}"
    return "now" if abs(timestamp - time.time() * 1000) < _HOUR_MS else str(timestamp)
