"""Error codes of a server, as errors of ours."""

from __future__ import annotations

from klamm.errors import (
    Aborted,
    Fenced,
    InvalidRecord,
    InvalidSetting,
    InvalidTimestamp,
    KlammError,
    LogError,
    OutOfOrderSequence,
    RecordTooLarge,
    StoreError,
    UnknownTopic,
    Unsupported,
)
from klamm.kafka.error_codes import ErrorCode

__all__ = ["NotNow", "check", "error_of"]

_RIGHTS = (
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)
_KINDS: dict[ErrorCode, type[KlammError]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: UnknownTopic,
    ErrorCode.UNKNOWN_TOPIC_ID: UnknownTopic,
    ErrorCode.INCONSISTENT_TOPIC_ID: UnknownTopic,
    ErrorCode.MESSAGE_TOO_LARGE: RecordTooLarge,
    ErrorCode.RECORD_LIST_TOO_LARGE: RecordTooLarge,
    ErrorCode.INVALID_TIMESTAMP: InvalidTimestamp,
    ErrorCode.INVALID_RECORD: InvalidRecord,
    ErrorCode.PRODUCER_FENCED: Fenced,
    ErrorCode.INVALID_PRODUCER_EPOCH: Fenced,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: Fenced,
    ErrorCode.INVALID_TXN_STATE: Aborted,
    ErrorCode.TRANSACTION_ABORTABLE: Aborted,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: OutOfOrderSequence,
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: InvalidSetting,
    ErrorCode.UNSUPPORTED_VERSION: Unsupported,
}
_HINTS: dict[type[KlammError], str] = {
    Fenced: "another attempt of this task has taken over, or its transaction took longer than transaction.timeout.ms",
    Aborted: "its transaction took longer than transaction.timeout.ms, or was aborted by hand: nothing of it is read",
    InvalidSetting: "make transaction.timeout.ms smaller, or raise the server's transaction.max.timeout.ms",
    RecordTooLarge: "send smaller records, or raise the topic's max.message.bytes",
}
_FINAL = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.CORRUPT_MESSAGE}
"""Kafka calls them retriable; here they are raised at once."""


class NotNow(Exception):
    """The server cannot do that just now: try again."""


def error_of(where: str, code: int, message: str | None = None) -> KlammError:
    """Return the error for a code of a response. `where`: the server, and what of it."""
    try:
        known = ErrorCode(code)
    except ValueError:
        return LogError(f"{where}: error {code}")
    text = f"{message} ({known.name})" if message else known.name
    if known in _RIGHTS:
        return StoreError(f"{where}: the user may not do that ({known.name})", hint="give it the right: klamm acl add")
    kind = _KINDS.get(known, LogError)
    return kind(f"{where}: {text}", hint=_HINTS.get(kind))


def check(where: str, code: int, message: str | None = None) -> None:
    """Raise the error for a code of a response: NotNow if it may be gone soon."""
    if not code:
        return
    error = error_of(where, code, message)
    if code in ErrorCode._value2member_map_ and ErrorCode(code).retriable and code not in _FINAL:
        raise NotNow(error.message)
    raise error
