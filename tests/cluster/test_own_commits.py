"""What a store has committed and cannot read yet: whose marker is missing is told by the last stable offset."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.cluster import kafka_admin, own_commits
from klamm.cluster.kafka_admin import KafkaAdmin
from klamm.cluster.own_commits import MARKER_S, OwnCommits
from klamm.log.partition import Ends
from klamm.types import TopicPartition

ORDERS, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)


def ends(end: int, stable: int) -> Ends:
    return Ends(0, end, stable, end, 0)


class Clock:
    """Stands for `time`."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(own_commits, "time", made)
    return made


@pytest.fixture
def own(clock: Clock) -> OwnCommits:
    """A store that has committed the offsets 5 and 6 of one partition."""
    made = OwnCommits()
    made.add([(ORDERS, 5), (ORDERS, 6)])
    return made


@pytest.mark.parametrize(
    ("end", "stable", "is_hidden"),
    [
        (7, 5, True),  # it is the last of the log, without its marker
        (20, 5, True),  # others have written behind it
        (6, 6, True),  # a leader that was just elected does not have all of it
        (5, 5, True),  # asked for before it was there
        (8, 8, False),  # with its marker
        (20, 20, False),
        (20, 12, False),  # another transaction is open behind it
        (20, 3, False),  # another is open in front of it: it may be so for long
    ],
)
def test_a_commit_is_hidden_until_its_own_marker_is_there(
    own: OwnCommits, end: int, stable: int, is_hidden: bool
) -> None:
    assert own.is_hidden(ORDERS, ends(end, stable)) is is_hidden
    assert not own.is_hidden(OTHER, ends(end, stable))


def test_what_others_have_hidden_is_waited_for_once_only_its_own_marker_is_missing(own: OwnCommits) -> None:
    assert not own.is_hidden(ORDERS, ends(20, 3))
    assert own.is_hidden(ORDERS, ends(20, 5))
    assert not own.is_hidden(ORDERS, ends(20, 20))


def test_the_first_of_two_commits_is_waited_for(own: OwnCommits) -> None:
    own.add([(ORDERS, 8), (ORDERS, 7), (OTHER, 0)])
    assert own.is_hidden(ORDERS, ends(10, 5)) and own.is_hidden(ORDERS, ends(10, 7))
    assert not own.is_hidden(ORDERS, ends(11, 11))
    assert own.is_hidden(OTHER, ends(1, 0))


def test_a_marker_that_does_not_come_is_given_up(own: OwnCommits, clock: Clock) -> None:
    clock.now += MARKER_S - 0.1
    assert own.is_hidden(ORDERS, ends(7, 5))
    own.add([(ORDERS, 9)])
    clock.now += 0.2
    assert not own.is_hidden(ORDERS, ends(10, 5)) and own.is_hidden(ORDERS, ends(10, 9))


def test_what_is_seen_is_forgotten(own: OwnCommits) -> None:
    assert not own.is_hidden(ORDERS, ends(8, 8))
    assert not own.is_hidden(ORDERS, ends(8, 5)) and own._commits == {}


@given(st.lists(st.sampled_from(["own", "other"]), min_size=1, max_size=8), st.data())
def test_it_waits_while_a_marker_of_its_own_is_the_next_to_come(writers: list[str], data: st.DataObject) -> None:
    """Transactions of two records each, one behind the other; each gets its marker at some time."""
    own = OwnCommits()
    for number, writer in enumerate(writers):
        if writer == "own":
            own.add([(ORDERS, 2 * number), (ORDERS, 2 * number + 1)])
    missing = list(range(len(writers)))
    while True:
        end = 2 * len(writers) + len(writers) - len(missing)
        first = missing[0] if missing else None
        expected = first is not None and writers[first] == "own"
        assert own.is_hidden(ORDERS, ends(end, end if first is None else 2 * first)) is expected
        if not missing:
            break
        missing.remove(data.draw(st.sampled_from(missing)))


def test_ends_are_asked_for_again_until_the_store_can_read_its_own_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    admin: Any = KafkaAdmin.__new__(KafkaAdmin)
    admin.name, admin._kafka, admin.own_commits = "here", confluent_kafka, OwnCommits()
    admin.own_commits.add([(ORDERS, 5)])
    asked: list[list[TopicPartition]] = []
    responses = [{ORDERS: ends(6, 5), OTHER: ends(3, 3)}, {ORDERS: ends(6, 5)}, {ORDERS: ends(7, 7)}]

    def ask(wanted: list[TopicPartition], timeout_s: float) -> dict[TopicPartition, Ends]:
        asked.append(wanted)
        return responses[len(asked) - 1]

    admin._ends = ask
    monkeypatch.setattr(kafka_admin, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda seconds: None))
    assert admin.ends([ORDERS, OTHER]) == {ORDERS: ends(7, 7), OTHER: ends(3, 3)}
    assert asked == [[ORDERS, OTHER], [ORDERS], [ORDERS]]
