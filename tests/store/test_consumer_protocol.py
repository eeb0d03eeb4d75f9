"""The bytes of Kafka consumers within a group."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from klamm.store.consumer_protocol import assigned_partitions, subscribed_topics

NAMES = st.text(min_size=1, max_size=9)


def text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack(">h", len(encoded)) + encoded


@given(st.lists(NAMES), st.binary(max_size=9))
def test_a_subscription_has_its_topics_whatever_follows(topics: list[str], rest: bytes) -> None:
    spelled = struct.pack(">hi", 1, len(topics)) + b"".join(map(text, topics))
    assert subscribed_topics(spelled + rest) == frozenset(topics)
    assert subscribed_topics(spelled[:-1]) is None


@given(st.dictionaries(NAMES, st.lists(st.integers(0, 2**31 - 1), max_size=5)), st.binary(max_size=9))
def test_an_assignment_has_its_partitions_whatever_follows(topics: dict[str, list[int]], rest: bytes) -> None:
    spelled = struct.pack(">hi", 1, len(topics))
    for name, numbers in topics.items():
        spelled += text(name) + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
    expected = tuple(sorted((name, number) for name, numbers in topics.items() for number in numbers))
    assert assigned_partitions(spelled + rest) == expected
    assert assigned_partitions(spelled[:-1]) is None


@given(st.binary(max_size=40))
def test_other_bytes_are_none_and_no_error(data: bytes) -> None:
    assert subscribed_topics(data) is None or isinstance(subscribed_topics(data), frozenset)
    assert assigned_partitions(data) is None or isinstance(assigned_partitions(data), tuple)


def test_counts_that_the_bytes_cannot_have_are_not_believed() -> None:
    for count in (2**31 - 1, 1000):
        assert subscribed_topics(struct.pack(">hi", 0, count)) is None
        assert assigned_partitions(struct.pack(">hi", 0, 1) + text("t") + struct.pack(">i", count)) is None
    assert subscribed_topics(b"") is None and assigned_partitions(b"") == ()
