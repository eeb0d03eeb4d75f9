"""Requests of real clients with some bytes changed: Apache Kafka and Klamm respond with the same error codes, or both
close the connection; before the login, too.

Frames are those that four clients have sent (tests/kafka/requests.jsonl). Each goes to both on a connection of its own.
What differs on purpose is in EXEMPT, with the reason. KLAMM_SEED repeats what was sent.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import klamm
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.wire.errors import MalformedMessage, UnsupportedVersion
from klamm.kafka.wire.frames import read_request_header, read_response
from klamm.kafka.wire.messages import METADATA
from tests.crash.cases import seed_of, tell_seed
from tests.interop.brokers import Broker
from tests.interop.raw import ConnectionEnded, Raw
from tests.kafka.connect import Served, served
from tests.kafka.recorded import load
from tests.kafka.test_hostile import mutated

pytestmark = pytest.mark.jvm

FRAMES = 100
PATIENCE_S = 1.0
CLOSED, WAITS = "closed", "waits"
READ_ON = re.compile(r"(not UTF-8|of -\d+ bytes|a varint of more than 32 bits)$")
"""What Kafka does not mind in a request, by how our message ends: it takes each size below zero for null, and of a
varint the lower bits.
"""
SILENT = {"JoinGroup", "SyncGroup"}
"""They wait for others, and change what the next one finds."""


def outcome(address: str, frame: bytes) -> str:
    """Return the error codes of the response to a frame, or that there is none."""
    with Raw(address, patience=PATIENCE_S) as raw:
        raw.send_bytes(frame)
        try:
            response = raw.receive()
        except ConnectionEnded:
            return CLOSED
        except TimeoutError:
            return WAITS
    try:
        header = read_request_header(memoryview(frame)[4:])
        struct = read_response(header.api, header.version, response)[1]
    except UnsupportedVersion:
        return "response of version 0"
    except MalformedMessage:
        return f"{len(response)} bytes"
    return ",".join(sorted(codes_of(struct)))


def codes_of(struct: Any) -> set[str]:
    found: set[str] = set()
    for field in struct.__slots__:
        value = getattr(struct, field)
        if field.endswith("error_code"):
            found.add(ErrorCode(value).name)
        elif isinstance(value, list):
            found = found.union(*(codes_of(each) for each in value if hasattr(each, "__slots__")))
    return found


def flaw_of(frame: bytes) -> str:
    """Return why a frame is malformed to us; empty if it is not."""
    try:
        header = read_request_header(memoryview(frame)[4:])
        header.api.request.decode(memoryview(frame)[4:], header.version, header.position)
    except UnsupportedVersion:
        return ""
    except MalformedMessage as error:
        return error.message
    return ""


class Exempt(NamedTuple):
    """Kafka's outcome and ours, of requests of some API; "" stands for any."""

    api: str
    kafkas: str
    ours: str
    reason: str


UNKNOWN = "UNKNOWN_TOPIC_OR_PARTITION"
FLAWS = {
    UNKNOWN,
    "CORRUPT_MESSAGE",
    "INVALID_RECORD",
    "INVALID_REQUIRED_ACKS",
    "INVALID_TIMESTAMP",
    "MESSAGE_TOO_LARGE",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    "UNKNOWN_SERVER_ERROR",
    "UNKNOWN_TOPIC_ID",
    "UNSUPPORTED_COMPRESSION_TYPE",
    "UNSUPPORTED_FOR_MESSAGE_FORMAT",
}
"""Of a Produce request."""
EXEMPT = [
    Exempt("Metadata", "NONE,UNKNOWN_TOPIC_OR_PARTITION", "NONE", "a missing topic is created before the response"),
    Exempt("Metadata", UNKNOWN, "NONE", "a missing topic is created before the response"),
    Exempt("ListOffsets", "UNKNOWN_SERVER_ERROR", "", "Kafka does not know an isolation level, or what went wrong"),
    Exempt("ListOffsets", "FENCED_LEADER_EPOCH", "", "a negative leader epoch is none, and not one that is over"),
    Exempt("Fetch", "FENCED_LEADER_EPOCH", "", "a negative leader epoch is none, and not one that is over"),
    Exempt("Fetch", "UNKNOWN_SERVER_ERROR", "", "Kafka does not know what went wrong"),
    Exempt(
        "Fetch", "NONE,UNKNOWN_SERVER_ERROR", "NONE", "a negative size is the least, and no error that is not known"
    ),
    Exempt("Fetch", "NONE,UNKNOWN_LEADER_EPOCH", "NONE", "the leaders of both are of other epochs"),
    Exempt("ListOffsets", "UNKNOWN_LEADER_EPOCH", "NONE", "the leaders of both are of other epochs"),
    Exempt("", "", "INVALID_GROUP_ID", "a group without a name is refused everywhere: on_purpose.py"),
    Exempt("", "", "INVALID_GROUP_ID,NONE", "a group without a name is refused everywhere: on_purpose.py"),
    Exempt("Produce", WAITS, "INVALID_RECORD", "Kafka does not respond to a partition without records"),
    Exempt("", CLOSED, "response of version 0", "whatever its version, the response says which there are"),
    Exempt("SaslAuthenticate", CLOSED, "ILLEGAL_SASL_STATE", "clients that begin without SaslHandshake are told so"),
]


class Difference(NamedTuple):
    api: str
    kafkas: str
    ours: str
    flaw: str
    """Why the bytes are not a request to us; empty if they are one."""

    @property
    def is_exempt(self) -> bool:
        """Whether that is on purpose. Where text is not UTF-8, or a size cannot be one, Kafka reads on; here, that
        is malformed, and the connection is closed. Of a batch with more than one flaw, each names the one that it finds
        first.
        """
        if self.api == "Produce" and self.kafkas in FLAWS and self.ours in FLAWS:
            return True
        return (self.ours == CLOSED and READ_ON.search(self.flaw) is not None) or any(
            each.api in ("", self.api) and each.kafkas in ("", self.kafkas) and each.ours in ("", self.ours)
            for each in EXEMPT
        )


class Pair:
    """Both brokers, with a topic for each client whose requests there are."""

    def __init__(self, apache: Broker, server: Served) -> None:
        self._server = server
        guarded = f"127.0.0.1:{server.server.endpoints[1].port}"
        self._listeners = ((apache.address, server.address), (apache.guarded, guarded))
        self.recorded = [each for each in load() if each.api not in SILENT]

    def compare(self, chance: random.Random) -> tuple[Difference, str] | None:
        """Send a changed request to both; return how they differ, and what was sent."""
        request = chance.choice(self.recorded)
        frame = mutated(chance, len(request.frame).to_bytes(4, "big") + request.frame)
        frame = (len(frame) - 4).to_bytes(4, "big") + frame[4:]
        theirs, ours = self._listeners[chance.random() < 0.25]
        kafkas, klamms = outcome(theirs, frame), outcome(ours, frame)
        if kafkas == klamms:
            return None
        return Difference(request.api, kafkas, klamms, flaw_of(frame)), f"{request}: {frame.hex()}"


@pytest.fixture
def pair(apache_broker: Broker, tmp_path: Path) -> Iterator[Pair]:
    topics = {each.client for each in load()}
    with klamm.open(tmp_path / "events") as store, Raw(apache_broker.address) as raw:
        known = {topic.name for topic in raw.ask(METADATA, 9, topics=None).topics}
        for topic in topics:
            store.topics.create(topic)
            if topic not in known:
                raw.create(topic)
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,GUARDED://127.0.0.1:0",
        "listener_security_protocol_map": "GUARDED:SASL_PLAINTEXT",
        "sasl_enabled_mechanisms": "PLAIN",
    }
    with served(tmp_path / "events", **settings) as server:
        yield Pair(apache_broker, server)


def check(pair: Pair, seed: int, count: int) -> None:
    chance = random.Random(seed)
    wrong = []
    for _ in range(count):
        found = pair.compare(chance)
        if found is not None and not found[0].is_exempt:
            wrong.append(f"{found[0]}\n  {found[1]}")
    assert not wrong, f"seed {seed}: {len(wrong)} differences\n" + "\n".join(wrong)


def test_changed_requests_get_the_error_codes_of_apache_kafka(pair: Pair) -> None:
    """The same ones each time, unless KLAMM_SEED says otherwise: new ones are for `make soak` to find."""
    check(pair, seed_of() if "KLAMM_SEED" in os.environ else 1, FRAMES)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_changed_requests_get_the_error_codes_of_apache_kafka_for_long(pair: Pair) -> None:
    seed = seed_of()
    deadline = time.monotonic() + float(os.environ.get("KLAMM_SOAK_SECONDS", "3600"))
    while time.monotonic() < deadline:
        tell_seed(seed)
        check(pair, seed, FRAMES)
        seed += 1
