"""Who gets which partitions, as arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.client.groups.assignment import assigned, pools, quota, share
from klamm.errors import GroupError
from klamm.types import TopicPartition

PARTITIONS = [TopicPartition("orders", number) for number in range(100)]


@given(st.integers(0, 500), st.integers(1, 60))
def test_shares_differ_by_at_most_one_and_leave_nothing_over(partitions: int, members: int) -> None:
    shares = [quota(partitions, members, index) for index in range(members)]
    assert sum(shares) == partitions
    assert max(shares) - min(shares) <= 1
    assert shares == sorted(shares, reverse=True)


@given(st.data(), st.integers(1, 40), st.lists(st.integers(0, 100), min_size=1, max_size=12, unique=True))
def test_a_member_gives_only_its_surplus_and_what_it_took_last(
    data: st.DataObject, count: int, places: list[int]
) -> None:
    members, partitions = sorted(places), PARTITIONS[:count]
    me = data.draw(st.sampled_from(members))
    owned = data.draw(st.permutations(partitions))[: data.draw(st.integers(0, count))]
    found = share(partitions, members, me, owned)
    surplus = max(0, len(owned) - found.quota)
    assert found.give == owned[len(owned) - surplus :]
    assert found.quota == quota(count, len(members), members.index(me))


@given(st.integers(0, 40), st.lists(st.integers(0, 100), min_size=1, max_size=12, unique=True))
def test_members_that_start_together_want_different_partitions_first(count: int, places: list[int]) -> None:
    members, partitions = sorted(places), PARTITIONS[:count]
    first = [share(partitions, members, me, []) for me in members]
    wanted = [place for each in first for place in each.order[: each.quota]]
    assert sorted(wanted) == partitions


@given(st.data(), st.integers(1, 30))
def test_members_come_and_go_and_settle_with_as_few_moves_as_there_can_be(data: st.DataObject, count: int) -> None:
    partitions = PARTITIONS[:count]
    owned: dict[int, list[TopicPartition]] = {}
    for _ in range(data.draw(st.integers(1, 8))):
        changed = data.draw(st.sets(st.integers(0, 9), min_size=1))
        before = owned
        owned = {member: before.get(member, []) for member in sorted(changed)}
        members = list(owned)
        shares = {me: share(partitions, members, me, owned[me]) for me in members}
        for me, each in shares.items():
            owned[me] = [place for place in owned[me] if place not in each.give]
        for me, each in shares.items():
            for place in each.order:
                if len(owned[me]) < each.quota and not any(place in others for others in owned.values()):
                    owned[me] = [*owned[me], place]
        assert sorted(place for each in owned.values() for place in each) == partitions
        assert all(len(owned[me]) == shares[me].quota for me in members)
        moved = sum(place not in before.get(me, []) for me in members for place in owned[me])
        missing = sum(max(0, shares[me].quota - len(before.get(me, []))) for me in members)
        assert moved == missing


def test_partitions_are_pooled_by_who_wants_them() -> None:
    topics = {"orders": 3, "users": 2, "nobody": 4}
    subscriptions: dict[int, dict[str, list[int] | None]] = {
        1: {"orders": None, "users": None},
        4: {"users": None},
        7: {"orders": [2]},
    }
    assert pools(subscriptions, topics) == {
        (1,): [("orders", 0), ("orders", 1)],
        (1, 7): [("orders", 2)],
        (1, 4): [("users", 0), ("users", 1)],
    }


def test_an_assignor_decides_and_what_it_invents_is_refused() -> None:
    def all_to_last(members: list[str], partitions: list[tuple[str, int]]) -> dict[str, list[tuple[str, int]]]:
        return {members[-1]: partitions}

    pool = PARTITIONS[:3]
    assert assigned(all_to_last, pool, ["a", "b"], "a", pool[:1]) == (pool[:1], [], 0)
    assert assigned(all_to_last, pool, ["a", "b"], "b", pool[:1]) == ([], pool, 3)
    with pytest.raises(GroupError):
        assigned(lambda members, partitions: {"a": [("users", 7)]}, pool, ["a"], "a", [])
    with pytest.raises(GroupError):
        assigned(lambda members, partitions: None, pool, ["a"], "a", [])  # type: ignore[arg-type,return-value]
