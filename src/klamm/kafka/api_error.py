"""ApiError: why a request, or a part of one, is not carried out. One of Kafka's error codes, and a sentence."""

from __future__ import annotations

from klamm.errors import InvalidTopic, KlammError
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.error_map import code_of
from klamm.store.names import validate

__all__ = ["ApiError", "code_and_message", "unknown_topic"]


class ApiError(Exception):
    """Raised by handlers where Klamm has no error of its own, or Kafka has a more exact code."""

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
    return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
