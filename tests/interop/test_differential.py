"""The same scripts against a real Apache Kafka and against ours: same answers, same errors.

What differs on purpose is named in on_purpose.py, with the reason and our answer; a difference that is named and gone
fails, too.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.interop.brokers import Broker
from tests.interop.on_purpose import ON_PURPOSE
from tests.interop.scripts import (
    SCRIPTS,
    ScriptContext,
    clients,
    cluster,
    groups,
    quotas,
    records,
    sessions,
    topics,
    transactions,
)

# Each adds its scripts when it is imported.
assert all((clients, cluster, groups, quotas, records, sessions, topics, transactions))

# kafka-python's tasks may end with an error that nobody asks for, when its objects are collected.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def noted(script: Callable[[ScriptContext], None], broker: Broker) -> dict[str, Any]:
    context = ScriptContext(broker.address)
    try:
        script(context)
    except Exception as error:
        error.add_note(f"{script.__name__} with {broker.kind}, after {list(context.notes)[-3:]}")
        raise
    finally:
        context.close()
    return context.notes


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_both_answer_the_same(
    script: Callable[[ScriptContext], None], apache_broker: Broker, klamm_broker: Broker
) -> None:
    with ThreadPoolExecutor(1) as beside:
        theirs = beside.submit(noted, script, apache_broker)
        ours = noted(script, klamm_broker)
        kafkas = theirs.result()
    pinned = ON_PURPOSE.get(script.__name__, {})
    wrong = {}
    for what in {**kafkas, **ours, **pinned}:
        kafka, klamm = kafkas.get(what, "not noted"), ours.get(what, "not noted")
        if what not in pinned and kafka != klamm:
            wrong[what] = "differs"
        elif what in pinned and kafka == klamm:
            wrong[what] = "should differ, and is the same"
        elif what in pinned and klamm != pinned[what].ours:
            wrong[what] = f"differs from Kafka's, and from\n  ours  {pinned[what].ours}"
    for what, told in wrong.items():
        print(f"{what}: {told}\n  Kafka {kafkas.get(what)}\n  Klamm {ours.get(what)}")
    assert not wrong


def test_every_answer_that_differs_on_purpose_is_one_of_a_script() -> None:
    assert sorted(set(ON_PURPOSE) - {script.__name__ for script in SCRIPTS}) == []
