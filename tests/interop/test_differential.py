"""The same scripts against a real Apache Kafka and against ours: same answers, same errors.

What differs on purpose is named here, with the reason; a difference that is named and gone fails, too.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.interop.brokers import Broker
from tests.interop.scripts import SCRIPTS, Desk, clients, cluster, groups, records, topics, transactions

assert all((clients, cluster, groups, records, topics, transactions))  # each adds its scripts when it is imported

# kafka-python's tasks may end with an error that nobody asks for, when its objects are collected.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

NAMELESS = "a group without a name is refused everywhere, not only by some requests"
TRIED = "a topic that is only tried has no id"
DAMAGED = "a batch that contradicts itself was damaged: Kafka blames its writer"
DUPLICATE = "Kafka gives the time of the records as that of the append, when a batch comes again"
UNWRITTEN = "where a transaction has written nothing, its end is not written either"
BITS = "what a batch must not say is refused as such, whoever sends it"

ON_PURPOSE: dict[str, dict[str, str]] = {
    "nobody_need_say_who_he_is": {"a mechanism": "there is no SASL here, and none is offered"},
    "strangers_are_refused": {"commit: no group": NAMELESS},
    "commits_without_members": {
        "negative": "no record has an offset below zero; Kafka keeps it all the same",
        "of no group": NAMELESS,
    },
    "groups_are_listed_and_described": {"no name": NAMELESS},
    "groups_are_deleted": {"deleted": NAMELESS},
    "produce_in_every_codec": {"a codec that is not there": "Kafka answers that it does not know what went wrong"},
    "produce_what_is_not_a_batch": {"bytes behind it": "rubbish behind a batch is refused; Kafka does not look"},
    "produce_a_batch_that_lies": {
        "fewer records than told": DAMAGED,
        "negative count": DAMAGED,
        "packed, rubbish": "Kafka answers that it does not know what went wrong",
        "a base offset": "where a batch goes is not its writer's to say: that is overwritten, and not looked at",
    },
    "produce_what_only_a_broker_may_write": {
        "a marker": BITS,
        "transactional without a producer": BITS,
        "transactional without a transaction": "nobody is authorized here, for there are no rights to have",
        "append time": BITS,
    },
    "produce_to_a_compacted_topic": {
        "without a key": "Kafka names the record; we say the same in words",
        "packed, without a key": "Kafka names the record; we say the same in words",
    },
    "produce_from_other_times": {"tomorrow": "there is no message.timestamp.after.max.ms"},
    "produce_in_sequence": {
        "first again": DUPLICATE,
        "second again": DUPLICATE,
        "one of the last five, again": DUPLICATE,
        "negative epoch": BITS,
    },
    "fetch_little": {"the same partition twice": "each is answered; Kafka answers once"},
    "topics_are_made": {"only tried": TRIED, "a long name": TRIED},
    "a_transaction_is_committed_and_one_aborted": {
        "commit: the other partition": UNWRITTEN,
        "abort: the other partition": UNWRITTEN,
    },
    "transactions_that_are_refused": {
        "not transactional, within one": "it is outside of the transaction, and read at once; nobody sends it",
    },
    "offsets_that_a_transaction_cannot_commit": {
        "a member that is not there": "offsets make a group when the transaction commits, not before",
    },
    "transactions_are_described": {
        "producers": "there is one coordinator for ever: its epoch is 0, not unknown",
        "committed": "when a transaction began is forgotten with its end",
    },
    "settings_are_changed": {"an odd operation": "Kafka answers that it does not know what went wrong"},
}
"""Script and note, and why."""


def noted(script: Callable[[Desk], None], broker: Broker) -> dict[str, Any]:
    desk = Desk(broker.address)
    try:
        script(desk)
    except Exception as error:
        error.add_note(f"{script.__name__} with {broker.kind}, after {list(desk.notes)[-3:]}")
        raise
    finally:
        desk.close()
    return desk.notes


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_both_answer_the_same(script: Callable[[Desk], None], apache_broker: Broker, klamm_broker: Broker) -> None:
    with ThreadPoolExecutor(1) as beside:
        theirs = beside.submit(noted, script, apache_broker)
        ours = noted(script, klamm_broker)
        kafkas = theirs.result()
    reasons = ON_PURPOSE.get(script.__name__, {})
    wrong = {
        what: {"kafka": kafkas.get(what, "not noted"), "klamm": ours.get(what, "not noted")}
        for what in {**kafkas, **ours}
        if (kafkas.get(what) == ours.get(what)) == (what in reasons)
    }
    for what, answers in wrong.items():
        told = "should differ, and is the same" if what in reasons else "differs"
        print(f"{what}: {told}\n  Kafka {answers['kafka']}\n  Klamm {answers['klamm']}")
    assert not wrong
