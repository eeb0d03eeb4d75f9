"""The assignment of partitions to members: arithmetic that every member does for itself, with the same result.

Members may subscribe to different topics, so partitions are pooled by the set of their subscribers. Within a pool the
i-th of N members, by place, gets P // N partitions, and one more if i < P % N. A member that has more gives the
surplus back, what it took last first; one that has fewer takes any that are free, those first that would be its if
everybody took in order.

An assignor of one's own decides instead which partitions of a pool are whose.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from klamm.errors import GroupError
from klamm.types import TopicPartition

__all__ = ["Assignor", "Share", "assigned", "pools", "quota", "share"]

Assignor: TypeAlias = Callable[[list[str], list[tuple[str, int]]], Mapping[str, Iterable[tuple[str, int]]]]
"""(members, partitions) -> whose each partition is. Every member calls it: the same arguments, the same answer."""


class Share(NamedTuple):
    """One member's share of one pool: give some back, then take `quota` of these, the first that are free."""

    give: list[TopicPartition]
    order: list[TopicPartition]
    quota: int


def quota(partitions: int, members: int, index: int) -> int:
    """Return how many of `partitions` the member with this index gets."""
    return partitions // members + (index < partitions % members)


def pools(
    subscriptions: Mapping[int, Mapping[str, Collection[int] | None]], topics: Mapping[str, int]
) -> dict[tuple[int, ...], list[TopicPartition]]:
    """Return, by subscribers, the partitions that exactly these have subscribed to, sorted.

    `subscriptions`: by member, the topics with the partitions it wants of each, None for all. `topics`: how many
    partitions each has.
    """
    found: dict[tuple[int, ...], list[TopicPartition]] = {}
    for topic in sorted(topics):
        wanting = {member: wanted[topic] for member, wanted in subscriptions.items() if topic in wanted}
        everything = [member for member, numbers in wanting.items() if numbers is None]
        chosen = {member: numbers for member, numbers in wanting.items() if numbers is not None}
        for number in range(topics[topic]):
            who = everything + [member for member, numbers in chosen.items() if number in numbers]
            if who:
                found.setdefault(tuple(sorted(who)), []).append(TopicPartition(topic, number))
    return found


def share(
    partitions: Sequence[TopicPartition], members: Sequence[int], me: int, owned: Sequence[TopicPartition]
) -> Share:
    """Return the share of member `me` of `members` (sorted). `owned`: what it has, in the order it took them."""
    index = members.index(me)
    mine = quota(len(partitions), len(members), index)
    first = sum(quota(len(partitions), len(members), other) for other in range(index))
    return Share(list(owned[mine:]), [*partitions[first:], *partitions[:first]], mine)


def assigned(
    assignor: Assignor,
    partitions: Sequence[TopicPartition],
    ids: Sequence[str],
    me: str,
    owned: Sequence[TopicPartition],
) -> Share:
    """Like `share`, by the user's assignor."""
    answer = assignor(list(ids), list(partitions))
    if not isinstance(answer, Mapping):
        raise GroupError(f"the assignor gave {type(answer).__name__}, expected a mapping of members to partitions")
    wanted = dict.fromkeys(TopicPartition(topic, number) for topic, number in answer.get(me, ()))
    strange = wanted.keys() - set(partitions)
    if strange:
        raise GroupError(f"the assignor gave {min(strange)!r}, which is not a partition to share out")
    return Share([tp for tp in owned if tp not in wanted], list(wanted), len(wanted))
