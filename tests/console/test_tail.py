"""Following a topic: nothing is shown twice, nothing is missed in silence."""

from __future__ import annotations

from pathlib import Path

import pytest

import klamm
from klamm.console.context import Visit
from klamm.console.tail import _since, read_growth
from klamm.where import Where
from tests.console.visitor import Visitor


def visit_of(topic: str, **query: str) -> Visit:
    return Visit(f"/events/topics/{topic}/tail", {"topic": topic}, {name: [value] for name, value in query.items()})


def test_positions_of_events_follow_on_from_each_other(store: klamm.Store, visitor: Visitor) -> None:
    visit = visit_of("orders")
    first = read_growth(visitor.console, visit, None)
    assert (first.records, first.new) == ([], 0) and str(first.position) == "0@20,1@20,2@20"
    for n in range(5):
        store.append("orders", b"%d" % n, partition=n % 2, acks=1)
    second = read_growth(visitor.console, visit, Where(str(first.position)))
    assert sorted(record.value for record in second.records) == [b"0", b"1", b"2", b"3", b"4"]
    assert (second.read, second.new, str(second.position)) == (5, 5, "0@23,1@22,2@20")
    assert read_growth(visitor.console, visit, second.position).records == []


def test_above_a_rate_it_is_a_sample_of_the_latest_and_says_so(store: klamm.Store, visitor: Visitor) -> None:
    since = read_growth(visitor.console, visit_of("orders"), None).position
    store.append_many("orders", [(None, b"%d" % n) for n in range(1000)], partition=1, acks=1)
    growth = read_growth(visitor.console, visit_of("orders"), since, most=50)
    assert (growth.read, growth.new) == (50, 1000)
    assert [int(record.value) for record in growth.records] == list(range(950, 1000))


def test_a_filter_and_a_partition_are_heeded(store: klamm.Store, visitor: Visitor) -> None:
    visit = visit_of("orders", partition="2", key="wanted")
    since = read_growth(visitor.console, visit, None).position
    for n in range(6):
        store.append("orders", b"%d" % n, key=b"wanted" if n % 2 else b"other", partition=n % 3, acks=1)
    growth = read_growth(visitor.console, visit, since)
    assert [record.value for record in growth.records] == [b"5"] and growth.new == 2


def test_a_position_before_the_log_s_start_goes_on_at_its_start(tmp_path: Path) -> None:
    with klamm.open(tmp_path) as store:
        store.topics.create("t")
        store.append_many("t", [(None, b"%d" % n) for n in range(10)])
        store["t"].delete_records({0: 6})
        growth = read_growth(Visitor(store).console, visit_of("t"), Where({0: 2}))
        assert [record.value for record in growth.records] == [b"6", b"7", b"8", b"9"]


@pytest.mark.parametrize("last_id", ["", "junk", "earliest", "1d", "0@-1", "0@" + "9" * 30, "last 5"])
def test_a_last_id_that_the_console_did_not_give_starts_at_the_end(last_id: str) -> None:
    assert _since(last_id) is None
    assert str(_since("0@4,1@7")) == "0@4,1@7"


@pytest.mark.parametrize("address", ["/events/topics/nothing/tail", "/events/topics/orders/tail?partition=7"])
def test_what_is_not_there_cannot_be_followed(visitor: Visitor, address: str) -> None:
    assert visitor.get(address).status == 404
