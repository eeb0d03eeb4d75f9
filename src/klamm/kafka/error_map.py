"""Our errors as Kafka's codes."""

from __future__ import annotations

from klamm import errors
from klamm.kafka.error_codes import ErrorCode

__all__ = ["code_of"]

# The first that fits; those that derive from others come before them.
_CODES: tuple[tuple[type[Exception], ErrorCode], ...] = (
    (errors.UnknownTopic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (errors.TopicExists, ErrorCode.TOPIC_ALREADY_EXISTS),
    (errors.InvalidTopic, ErrorCode.INVALID_TOPIC_EXCEPTION),
    (errors.InvalidSetting, ErrorCode.INVALID_CONFIG),
    (errors.OffsetOutOfRange, ErrorCode.OFFSET_OUT_OF_RANGE),
    (errors.RecordTooLarge, ErrorCode.MESSAGE_TOO_LARGE),
    (errors.InvalidTimestamp, ErrorCode.INVALID_TIMESTAMP),
    (errors.InvalidRecord, ErrorCode.INVALID_RECORD),
    (errors.OutOfOrderSequence, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    (errors.UnknownGroup, ErrorCode.GROUP_ID_NOT_FOUND),
    (errors.GroupBusy, ErrorCode.NON_EMPTY_GROUP),
    (errors.Fenced, ErrorCode.INVALID_PRODUCER_EPOCH),
    (errors.Aborted, ErrorCode.INVALID_TXN_STATE),
    (errors.ReadOnly, ErrorCode.KAFKA_STORAGE_ERROR),
    (errors.LogError, ErrorCode.KAFKA_STORAGE_ERROR),
    (errors.StoreError, ErrorCode.KAFKA_STORAGE_ERROR),
)


def code_of(error: BaseException) -> ErrorCode:
    """Return Kafka's code for an error; by it a client decides whether to try again."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return ErrorCode.UNKNOWN_SERVER_ERROR
