"""DecideTransactions, Klamm's own API: requests that mean nothing, and how clients see that it is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.wire.messages import API_VERSIONS, APIS, DECIDE_TRANSACTIONS
from tests.kafka.connect import served

REQUEST = DECIDE_TRANSACTIONS.request
NUMBER = REQUEST.Number(target="t", number=1, fingerprint="f", note="n")


def transaction(name: str) -> Any:
    return REQUEST.Transaction(transactional_id=name, producer_id=4711, producer_epoch=0)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"writer": "", "scope": "/t/"}, "the writer has no name"),
        ({"writer": "w" * 5000, "scope": "w"}, "too long"),
        ({"writer": "w", "scope": "w/"}, "is not of the writer"),
        ({"writer": "w", "scope": "w/t"}, "is not of the writer"),
        ({"writer": "w", "scope": "x/t/"}, "is not of the writer"),
        ({"writer": "w", "scope": "w/t/", "transactions": [transaction("other")]}, "does not begin with"),
        ({"writer": "w", "scope": "w/t/", "transactions": [transaction("w/t/0")] * 2}, "is named twice"),
        ({"writer": "w", "scope": "w/t/", "validate_only": True}, "no number is asked for"),
        ({"writer": "w", "scope": "w/t/", "number": NUMBER}, "a number is for a commit"),
        (
            {"writer": "w", "scope": "w/t/", "number": REQUEST.Number(number=-1), "committed": True},
            "the number is -1",
        ),
    ],
)
def test_a_request_that_means_nothing_is_refused_in_one_sentence(
    store: klamm.Store, fields: dict[str, Any], sentence: str
) -> None:
    with served(Path(store.path)) as server, server.dial() as raw:
        response = raw.ask(DECIDE_TRANSACTIONS, 0, **fields)
        assert response.error_code == ErrorCode.INVALID_REQUEST
        assert sentence in response.error_message


def test_a_topic_that_is_not_there_and_a_producer_that_is_not_known(store: klamm.Store) -> None:
    with served(Path(store.path)) as server, server.dial() as raw:
        gone = raw.ask(
            DECIDE_TRANSACTIONS,
            0,
            writer="w",
            scope="w/t/",
            committed=True,
            topics=[REQUEST.Topic(topic_id=bytes(range(16)))],
        )
        assert gone.error_code == ErrorCode.UNKNOWN_TOPIC_ID and "was deleted" in gone.error_message
        unknown = raw.ask(
            DECIDE_TRANSACTIONS,
            0,
            writer="w",
            scope="w/t/",
            committed=True,
            transactions=[transaction("w/t/0-0")],
            number=NUMBER,
        )
        assert unknown.error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert unknown.error_message == "w/t/0-0: no such producer: nothing was done"
        look = raw.ask(DECIDE_TRANSACTIONS, 0, writer="w", scope="w/t/", number=NUMBER, validate_only=True)
        assert (look.error_code, look.last_number) == (0, -1)


def test_it_is_advertised_with_a_key_beyond_kafkas(store: klamm.Store) -> None:
    with served(Path(store.path)) as server, server.dial() as raw:
        keys = {each.api_key for each in raw.ask(API_VERSIONS, 0).api_keys}
    assert DECIDE_TRANSACTIONS.key in keys
    assert max(keys - {DECIDE_TRANSACTIONS.key}) < 1000 < DECIDE_TRANSACTIONS.key
    message = REQUEST
    sent = message(writer="w", scope="w/t/", transactions=[transaction("w/t/1")], committed=True, number=NUMBER)
    assert message.decode(b"".join(message.encode(sent, 0)), 0) == sent
    assert APIS[DECIDE_TRANSACTIONS.key] is DECIDE_TRANSACTIONS
