"""Where records of a source are in a Kafka cluster: runs, translation, what is not a record of ours."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.errors import LogError
from klamm.transfer import copied_offsets
from klamm.transfer.copied_offsets import CopiedOffsets, Run, runs_of
from klamm.types import TopicPartition

ORDERS = TopicPartition("orders", 1)


@st.composite
def copies(draw: st.DrawFn) -> list[tuple[int, int, list[tuple[int, int]]]]:
    """Parts of a copy: start and end at the source, and the offsets of each record on both sides. Both have gaps."""
    parts = []
    source = target = draw(st.integers(0, 5))
    for _ in range(draw(st.integers(1, 5))):
        start, pairs = source, []
        for _ in range(draw(st.integers(0, 6))):
            source += draw(st.integers(0, 2))
            pairs.append((source, target))
            source += 1
            target += 1 + draw(st.integers(0, 2))
        source += draw(st.integers(0, 3))
        parts.append((start, source, pairs))
        target += 1
    return parts


@pytest.mark.parametrize("most", [1, 2, 10_000])
@given(parts=copies())
def test_an_offset_is_translated_to_the_first_record_at_or_behind_it(
    most: int, parts: list[tuple[int, int, list[tuple[int, int]]]]
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(copied_offsets, "_MAX_RUNS", most)
        check_translation(parts)


def check_translation(parts: list[tuple[int, int, list[tuple[int, int]]]]) -> None:
    written = CopiedOffsets("a")
    copied, other = CopiedOffsets("a"), CopiedOffsets("b")
    for start, end, pairs in parts:
        for key, value in written.pack(ORDERS, start, end, runs_of(pairs)):
            copied.take(key, value)
            other.take(key, value)
    assert other.positions == {}
    end = parts[-1][1]
    assert copied.positions == {ORDERS: end}
    pairs = [pair for part in parts for pair in part[2]]
    for offset in range(end + 1):
        expected = next((target for source, target in pairs if source >= offset), pairs[-1][1] + 1 if pairs else None)
        assert copied.translate(ORDERS, offset) == expected
    assert copied.translate(ORDERS, end + 1) is None
    assert copied.translate(TopicPartition("orders", 0), 0) is None


def test_records_that_follow_on_are_one_run() -> None:
    assert runs_of([(0, 7), (1, 8), (2, 9), (4, 10), (5, 12)]) == [Run(0, 7, 3), Run(4, 10, 1), Run(5, 12, 1)]


@pytest.mark.parametrize("value", [None, b"", b"{}", b"[]", b'{"end": 3, "runs": [[1]]}', b"\xff"])
def test_a_record_that_another_program_wrote_is_an_error(value: bytes | None) -> None:
    with pytest.raises(LogError, match="not written by klamm copy"):
        CopiedOffsets("a").take(b'["a", "orders", 0, 0]', value)
