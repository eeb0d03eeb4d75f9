"""Why a part of a request is not done, as a client is told: one of Kafka's codes, and a sentence."""

from __future__ import annotations

from klamm.errors import InvalidTopic, KlammError
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.error_map import code_of
from klamm.store.names import validate

__all__ = ["Refusal", "told", "unknown_topic"]


class Refusal(Exception):
    """For what our own errors have no class, or Kafka has another code."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def told(error: Refusal | KlammError) -> tuple[ErrorCode, str]:
    """Code and sentence."""
    return (error.code if isinstance(error, Refusal) else code_of(error)), str(error)


def unknown_topic(name: str) -> Refusal:
    """No such topic, or none that could be."""
    try:
        validate(name, internal=True)
    except InvalidTopic as error:
        return Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, str(error))
    return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
