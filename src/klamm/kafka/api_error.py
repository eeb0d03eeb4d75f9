"""ApiError: one of Kafka's error codes, and a sentence. It rejects a request, or a part of one."""

from __future__ import annotations

from klamm.errors import InvalidTopic, KlammError
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.error_map import code_of
from klamm.store.names import validate

__all__ = ["NOT_HOSTED", "ApiError", "code_and_message", "unknown_topic"]

NOT_HOSTED = "This server does not host this topic-partition."  # Kafka's sentence, which scripts look for


class ApiError(Exception):
    """An error of one API: raised by handlers where Klamm has no error of its own, or Kafka has a more exact code."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def code_and_message(error: ApiError | KlammError) -> tuple[ErrorCode, str]:
    """Return what the response says about `error`."""
    return (error.code if isinstance(error, ApiError) else code_of(error)), str(error)


def unknown_topic(name: str) -> ApiError:
    """Return the error for a topic that does not exist, or whose name no topic can have."""
    try:
        validate(name, internal=True)
    except InvalidTopic as error:
        return ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, str(error))
    return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NOT_HOSTED)
