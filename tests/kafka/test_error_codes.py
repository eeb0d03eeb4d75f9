"""Error codes, beside those that another client knows."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

from klamm.kafka.error_codes import ErrorCode

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own
    import kafka.errors

CLASSES: list[Any] = [thing for thing in vars(kafka.errors).values() if inspect.isclass(thing)]
THEIRS = {each.errno: each for each in CLASSES if isinstance(getattr(each, "errno", None), int)}
# Spelled as in Kafka's protocol guide here, otherwise there.
RENAMED = {-1, 0, 6, 10, 17, 35, 39}


def test_every_code_that_another_client_knows_is_there_by_its_name() -> None:
    ours = {code.value: code.name for code in ErrorCode}
    assert set(THEIRS) <= set(ours)
    different = {number for number, theirs in THEIRS.items() if theirs.message != ours[number]}
    assert different <= RENAMED


def test_codes_are_retriable_where_another_client_retries() -> None:
    different = {
        ErrorCode(number) for number, theirs in THEIRS.items() if theirs.retriable != ErrorCode(number).retriable
    }
    assert different == {ErrorCode.CORRUPT_MESSAGE}  # which Kafka's own client sends again


def test_no_error_is_false() -> None:
    assert not ErrorCode.NONE
    assert all(code for code in ErrorCode if code is not ErrorCode.NONE)
