"""The address of a Kafka server or cluster: kafka://host:port,host:port?option=value&…

Options are librdkafka's, as it spells them: security.protocol, sasl.mechanism, sasl.username, ssl.ca.location, … In a
value, %2B is a plus sign, and %26 an ampersand.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from klamm.errors import InvalidSetting, NotInstalled

__all__ = [
    "PREFIX",
    "client_config",
    "client_options",
    "consumer_options",
    "import_confluent_kafka",
    "is_address",
    "producer_options",
    "public_name",
    "split_options",
]

PREFIX = "kafka://"
_SET_HERE = ("bootstrap.servers", "group.id", "transactional.id", "isolation.level", "enable.auto.commit")

# Options of librdkafka that only one kind of client has; each logs a warning about those of the other.
_OF_CONSUMERS = (
    "auto.offset.reset",
    "allow.auto.create.topics",
    "check.crcs",
    "client.rack",
    "coordinator.query.interval.ms",
    "fetch.",
    "group.",
    "heartbeat.interval.ms",
    "max.partition.fetch.bytes",
    "max.poll.interval.ms",
    "queued.",
    "session.timeout.ms",
)
_OF_PRODUCERS = (
    "acks",
    "batch.",
    "compression.",
    "delivery.timeout.ms",
    "enable.gapless.guarantee",
    "enable.idempotence",
    "linger.ms",
    "max.in.flight",
    "message.send.max.retries",
    "message.timeout.ms",
    "queue.buffering.",
    "request.required.acks",
    "request.timeout.ms",
    "retries",
    "retry.backoff",
    "sticky.partitioning.linger.ms",
    "transaction.timeout.ms",
)


def consumer_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of an address that a consumer has."""
    return {name: value for name, value in config.items() if not name.startswith(_OF_PRODUCERS)}


def producer_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of an address that a producer has."""
    return {name: value for name, value in config.items() if not name.startswith(_OF_CONSUMERS)}


def client_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of an address that every client has."""
    return consumer_options(producer_options(config))


def is_address(text: str) -> bool:
    """Return whether the text is an address, and not the path of a directory."""
    return text.startswith(PREFIX)


def client_config(address: str) -> dict[str, Any]:
    """Return the options of a client. InvalidSetting if the address is not one."""
    servers = public_name(address).removeprefix(PREFIX).strip("/")
    if not is_address(address) or not servers:
        raise InvalidSetting(f"{public_name(address)}: no server is named", hint="expected kafka://host:port,host:port")
    _, options = split_options(address)
    for name in _SET_HERE:
        if name in options:
            raise InvalidSetting(f"{name}: cannot be set in an address", hint="leave it out")
    return {**options, "bootstrap.servers": servers}


def split_options(address: str) -> tuple[str, dict[str, str]]:
    """Return an address without its options, of which one may be a password; and the options."""
    plain, _, query = address.partition("?")
    try:
        return plain, dict(parse_qsl(query, strict_parsing=True)) if query else {}
    except ValueError:
        raise InvalidSetting(f"{plain}: its options cannot be read", hint="expected ?name=value&name=value") from None


def public_name(address: str) -> str:
    """Return the address without its options, one of which may be a password."""
    return address.partition("?")[0]


def import_confluent_kafka() -> Any:
    """Return confluent_kafka; NotInstalled says how to get it."""
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError:
        raise NotInstalled.package("confluent-kafka", "'klamm[kafka]'") from None
    return confluent_kafka
