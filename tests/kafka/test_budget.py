"""The budget for requests in memory: never more than its limit and one request, and no request waits forever."""

from __future__ import annotations

import random
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from klamm.kafka.budget import Budget


def never() -> None:
    raise AssertionError("it was told, and had not to wait")


class Holder:
    """A request that comes in pieces."""

    def __init__(self, budget: Budget, size: int, step: int) -> None:
        self.budget = budget
        self.size = size
        self.step = step
        self.held = 0
        self.waits = False

    def more(self) -> None:
        self.waits = False
        size = min(self.step, self.size - self.held)
        if self.budget.take(self, size, self.more):
            self.held += size
        else:
            self.waits = True

    @property
    def is_whole(self) -> bool:
        return self.held == self.size

    def leave(self) -> None:
        self.budget.forget(self)
        held, self.held = self.held, 0
        self.budget.give_back(self, held)


def test_one_request_may_take_more_than_the_limit() -> None:
    budget = Budget(100)
    assert budget.take("a", 60, never)
    assert budget.take("b", 60, never)
    told: list[str] = []
    assert not budget.take("c", 1, lambda: told.append("c"))
    assert budget.take("b", 500, never), "and goes on"
    assert (budget.used, budget.most, len(budget)) == (620, 620, 1)
    budget.give_back("a", 60)
    assert told == []
    budget.give_back("b", 560)
    assert (told, budget.used, len(budget)) == (["c"], 0, 0)


def test_while_more_than_the_limit_is_used_no_other_request_takes_more() -> None:
    """Requests that are being handled count: one after the other could take more, and keep it."""
    budget = Budget(100)
    budget.charge(150)
    told: list[str] = []
    assert not budget.take("a", 10, lambda: told.append("a"))
    budget.give_back(None, 40)
    assert told == []
    budget.give_back(None, 60)
    assert told == ["a"]


def test_requests_that_wait_are_told_in_turn_and_only_as_many_as_can_go_on() -> None:
    budget = Budget(100)
    assert budget.take("a", 100, never)
    assert budget.take("b", 50, never)
    told: list[int] = []

    def taker(number: int) -> Callable[[], None]:
        def again() -> None:
            told.append(number)
            assert budget.take(number, 60, never)

        return again

    for number in range(5):
        assert not budget.take(number, 60, taker(number))
    budget.give_back("b", 50)
    assert told == [0], "now it has taken more than there is"
    budget.give_back(0, 60)
    assert told == [0, 1]


def test_requests_read_ahead_leave_less_but_keep_no_request_from_going_on() -> None:
    budget = Budget(100)
    budget.read_ahead(150)
    assert budget.is_full
    assert budget.take("a", 10, never), "one at a time may take more than there is"
    told: list[str] = []
    assert not budget.take("b", 10, lambda: told.append("b"))
    budget.read_ahead(-30)
    assert (told, budget.is_full) == ([], True)
    budget.read_ahead(-40)
    assert (told, budget.is_full) == (["b"], False)


def test_a_request_that_is_gone_is_not_told() -> None:
    budget = Budget(10)
    assert budget.take("a", 20, never)
    assert not budget.take("b", 1, never)
    budget.forget("b")
    budget.give_back("a", 20)
    assert budget.used == 0


@given(data=st.data())
def test_whatever_comes_all_become_whole(data: st.DataObject) -> None:
    limit = data.draw(st.integers(10, 500))
    sizes = data.draw(st.lists(st.integers(1, 1000), min_size=1, max_size=30))
    chance = random.Random(data.draw(st.integers(0, 1000)))
    budget = Budget(limit)
    holders = [Holder(budget, size, chance.choice([1, 50, 200, 1000])) for size in sizes]
    steps = 0
    while holders:
        steps += 1
        assert steps < 100_000, "they wait for each other"
        ready = [each for each in holders if not each.waits]
        assert ready, "all wait"
        one = chance.choice(ready)
        if chance.random() < 0.1:
            budget.read_ahead(chance.choice([-budget.ahead, 1, limit]))
        if one.is_whole or chance.random() < 0.01:
            holders.remove(one)
            one.leave()
        else:
            one.more()
        assert budget.used <= limit + max(sizes)
        assert budget.used == sum(each.held for each in holders)
    assert (budget.used, len(budget)) == (0, 0)
