"""Errors that librdkafka reports, as ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from klamm.cluster.address import import_confluent_kafka
from klamm.errors import (
    Aborted,
    Fenced,
    GroupBusy,
    InvalidRecord,
    InvalidSetting,
    InvalidTimestamp,
    InvalidTopic,
    KlammError,
    LogError,
    NotOwner,
    RecordTooLarge,
    StoreError,
    TopicExists,
    UnknownGroup,
    UnknownTopic,
    Unreachable,
    Unsupported,
)

__all__ = [
    "AWAY",
    "COMMITTING",
    "ELECTING",
    "OUT_OF_RANGE",
    "REFUSED",
    "SPREADING",
    "TRANSIENT",
    "UNSTABLE",
    "error_of",
    "fatal_error",
    "name_of",
    "translated",
]

AWAY = (
    "_TRANSPORT",
    "_ALL_BROKERS_DOWN",
    "_DESTROY_BROKER",
    "_TIMED_OUT",
    "_TIMED_OUT_QUEUE",
    "REQUEST_TIMED_OUT",
    "NETWORK_EXCEPTION",
    "BROKER_NOT_AVAILABLE",
    "NOT_CONTROLLER",
)
"""What a question meets whose server does not respond, or has left its place in the cluster: another may respond."""
SPREADING = ("UNKNOWN_TOPIC_OR_PART",)
"""What a question about a new topic meets whose server has not learned of it yet; also, one about a topic that is gone.
"""
ELECTING = (
    *AWAY,
    "_NOENT",  # of librdkafka: no partition has a leader now
    "LEADER_NOT_AVAILABLE",
    "NOT_LEADER_FOR_PARTITION",
    "REPLICA_NOT_AVAILABLE",
    "KAFKA_STORAGE_ERROR",
    "FENCED_LEADER_EPOCH",
    "UNKNOWN_LEADER_EPOCH",
    "OFFSET_NOT_AVAILABLE",
)
"""What a question to the leader of a partition meets while another is elected: it is worth another try. A consumer
that reports it reads on by itself.
"""
TRANSIENT = (*AWAY, "NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS", "_WAIT_COORD")
"""What a call for a group meets while its coordinator moves: it is worth another try."""
UNSTABLE = (*TRANSIENT, "UNSTABLE_OFFSET_COMMIT")
"""The same for a question for offsets, which waits for transactions that commit some."""
COMMITTING = (*TRANSIENT, "REBALANCE_IN_PROGRESS")
"""The same for a commit by a member, which waits until its group has agreed on the next generation."""
OUT_OF_RANGE = ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE")
"""What a consumer reports whose leader does not have the offset."""
REFUSED = ("_AUTHENTICATION", "_SSL", "SASL_AUTHENTICATION_FAILED")
"""What a client reports that a server does not let in."""

_KINDS: dict[type[KlammError], tuple[str, ...]] = {
    Fenced: ("_FENCED", "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED", "FENCED_INSTANCE_ID"),
    Unreachable: (
        *TRANSIENT,
        *ELECTING,
        "UNSTABLE_OFFSET_COMMIT",
        "_RESOLVE",
        "_MSG_TIMED_OUT",
        "_ISR_INSUFF",
        "NOT_ENOUGH_REPLICAS",
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    ),
    UnknownTopic: (*SPREADING, "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "UNKNOWN_TOPIC_ID"),
    TopicExists: ("TOPIC_ALREADY_EXISTS",),
    InvalidTopic: ("TOPIC_EXCEPTION",),
    InvalidSetting: (
        "_INVALID_ARG",
        "INVALID_CONFIG",
        "INVALID_PARTITIONS",
        "INVALID_REPLICATION_FACTOR",
        "INVALID_REPLICA_ASSIGNMENT",
        "POLICY_VIOLATION",
        "INVALID_SESSION_TIMEOUT",
        "INVALID_TRANSACTION_TIMEOUT",
    ),
    RecordTooLarge: ("MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE"),
    InvalidTimestamp: ("INVALID_TIMESTAMP",),
    InvalidRecord: ("INVALID_RECORD",),
    NotOwner: ("ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID", "_ASSIGNMENT_LOST", "REBALANCE_IN_PROGRESS"),
    GroupBusy: ("NON_EMPTY_GROUP", "GROUP_SUBSCRIBED_TO_TOPIC", "GROUP_MAX_SIZE_REACHED", "UNRELEASED_INSTANCE_ID"),
    UnknownGroup: ("GROUP_ID_NOT_FOUND",),
    Aborted: ("_PURGE_QUEUE", "_PURGE_INFLIGHT", "TRANSACTION_ABORTABLE", "INVALID_TXN_STATE"),
    Unsupported: ("_UNSUPPORTED_FEATURE", "UNSUPPORTED_VERSION", "_NOT_IMPLEMENTED"),
    StoreError: (
        *REFUSED,
        "TOPIC_AUTHORIZATION_FAILED",
        "GROUP_AUTHORIZATION_FAILED",
        "CLUSTER_AUTHORIZATION_FAILED",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    ),
}
_KIND_OF = {name: kind for kind, names in _KINDS.items() for name in names}
_HINTS: dict[type[KlammError], str] = {
    Unreachable: "check that enough servers run, and that the address is right",
    InvalidSetting: "options of an address are those of librdkafka",
    StoreError: "check the options security.protocol, sasl.… and ssl.… of the address, and the rights of the user",
    NotOwner: "nothing was committed; its owner goes on where the last commit was",
    RecordTooLarge: "send smaller records, or raise the topic's max.message.bytes and message.max.bytes of the address",
    Fenced: "another process uses the same name: give each its own, or let one run at a time",
}


def error_of(name: str, error: Any) -> KlammError:
    """Return the error of ours for a KafkaError. `name`: of the store, or what the error is about."""
    code = str(error.name())
    kind = _KIND_OF.get(code, LogError)
    text = str(error.str())
    if code == "_MSG_TIMED_OUT":
        return Unreachable(
            f"{name}: the record was not acknowledged in time (message.timeout.ms): its leader does not respond, or"
            f" fewer replicas are in sync than min.insync.replicas asks for ({code})",
            hint="nothing acknowledged is lost; this record may or may not be there once enough servers are back",
        )
    if (kind is Unreachable and "REPLICAS" in code) or code == "_ISR_INSUFF":
        return Unreachable(
            f"{name}: fewer replicas are in sync than min.insync.replicas asks for: the record was refused ({code})",
            hint="nothing acknowledged is lost; it goes on when enough servers are back",
        )
    return kind(f"{name}: {text} ({code})", hint=_HINTS.get(kind))


def name_of(error: BaseException) -> str:
    """Return librdkafka's name of what went wrong; empty if it is not known."""
    about = error.args[0] if error.args else None
    return "" if about is None or not hasattr(about, "name") else str(about.name())


def fatal_error(error: BaseException) -> Any:
    """Return the KafkaError that a producer's `poll` or `flush` has raised, a fatal one; None if it raised another.

    confluent-kafka raises it while callbacks of deliveries run. Python then complains of these by a SystemError, which
    has what was raised as its cause; and so on, for each callback.
    """
    cause: BaseException | None = error
    while isinstance(cause, SystemError):
        cause = cause.__cause__
    return cause.args[0] if isinstance(cause, import_confluent_kafka().KafkaException) else None


@contextmanager
def translated(name: str) -> Iterator[None]:
    """Raise what librdkafka reports in the `with` block as one of our errors."""
    kafka = import_confluent_kafka()
    try:
        yield
    except kafka.KafkaException as error:
        about = error.args[0]
        if not isinstance(about, kafka.KafkaError):
            raise InvalidSetting(f"{name}: {error}", hint=_HINTS[InvalidSetting]) from error
        raise error_of(name, about) from error
    except (TimeoutError, RuntimeError) as error:  # of a future; of a client that was closed meanwhile
        raise Unreachable(f"{name}: {str(error) or 'no response in time'}", hint=_HINTS[Unreachable]) from error
