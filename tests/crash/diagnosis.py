"""What a run that does not come to rest looks like: how far groups are, who their members are, what roles did last."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from confluent_kafka.admin import AdminClient

import klamm
from tests.crash.history import ENDING, now, read

_WIDTH = 240
_LONG = ("records", "offsets", "ids", "places")  # facts that may have thousands of parts


def standings(store: klamm.Store) -> Iterator[str]:
    """Open transactions; and of each group its progress, and its members if they have the store open."""
    for topic in store.topics:
        for partition in store._acquired().topic(topic).partitions():
            ends = partition.ends()
            if ends.stable < ends.end:
                yield f"{topic}/{partition.number}: a transaction is open at {ends.stable}; it ends at {ends.end}"
    for name in store.groups:
        group = store.groups.describe(name)
        yield f"group {name}: {group.state}, door {group.door}, lag {group.lag}"
        for each in group.offsets:
            committed = "nothing" if each.committed is None else each.committed.offset
            yield f"  {each.topic}/{each.partition}: {committed} committed of {each.end}, lag {each.lag}"
        for member in group.members:
            yield f"  member {member.name or member.id}: has {_places(member.assignment)}"


def members_at(address: str, groups: list[str]) -> list[str]:
    """Return what the server says of members of these groups."""
    found: list[str] = []
    if not groups:
        return found
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    for name, future in admin.describe_consumer_groups(groups, request_timeout=10).items():
        group = future.result(15)
        found.append(f"group {name} at the server: {group.state.name}, assigned by {group.partition_assignor!r}")
        for member in group.members:
            parts = member.assignment.topic_partitions if member.assignment else ()
            has = _places((part.topic, part.partition) for part in parts)
            found.append(f"  member {member.member_id} ({member.group_instance_id or 'not static'}): has {has}")
    return found


def _places(places: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{topic}/{number}" for topic, number in places) or "nothing"


def last_words(directory: Path, process: str) -> Iterator[str]:
    """What a process wrote down last: of each kind, and of each partition, one line."""
    path = directory / f"{process}{ENDING}"
    events = read(path) if path.exists() else []
    yield f"{process}: {len(events)} events"
    last = {(event.kind, event.facts.get("partition")): event for event in events}
    for event in sorted(last.values(), key=lambda event: event.time):
        facts = {name: _short(name, fact) for name, fact in event.facts.items()}
        yield f"  {(now() - event.time) / 1e9:.1f} s ago: {event.kind} {facts}"[:_WIDTH]


def _short(name: str, fact: object) -> object:
    return f"{len(fact)} of them" if name in _LONG and isinstance(fact, list) and len(fact) > 9 else fact


__all__ = ["last_words", "members_at", "standings"]
