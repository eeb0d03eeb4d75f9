"""A slice of a batch is a batch: it knows its offsets, and commits what is in it."""

from __future__ import annotations

import pickle
import sqlite3
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import klamm
from klamm.client.consume.read_engine import Records
from klamm.types import Batch, Position, TopicPartition
from tests.client.conftest import fill


@pytest.fixture
def gaps(orders: klamm.Store) -> klamm.Store:
    """The store, with records at the offsets 0, 1, 2, 3, 5, 6 and 8 of `orders`: between them are markers."""
    fill(orders, 3)
    with orders.transaction() as tx:
        tx.send("orders", b"3")
    with orders.transaction() as tx:
        tx.send("orders", b"5")
        tx.send("orders", b"6")
    orders.append("orders", b"8")
    return orders


def test_the_records_of_the_fixture_have_gaps_between_them(gaps: klamm.Store) -> None:
    assert offsets_in(gaps) == [0, 1, 2, 3, 5, 6, 8]


def offsets_in(store: klamm.Store) -> list[int]:
    with store.consumer("orders", wait=0) as consumer:
        return [record.offset for record in consumer]


@given(
    st.integers(0, 50),
    st.lists(st.integers(1, 3), min_size=1, max_size=20),
    st.integers(0, 3),
    st.slices(20),
    st.slices(20),
)
def test_a_slice_covers_its_records_and_nothing_of_its_neighbours(
    begin: int, steps: list[int], behind: int, first: slice, second: slice
) -> None:
    """Like the records' own offsets, whatever is sliced again."""
    offsets = [begin + sum(steps[: n + 1]) - 1 for n in range(len(steps))]
    end = Position((offsets[-1] + 1 if offsets else begin) + behind, 7)
    in_a_row = offsets == [*range(begin, begin + len(offsets))]
    whole = Records(TopicPartition("t", 1), Position(begin), end, offsets, None if in_a_row else offsets).batch()
    found: Any = whole
    for part in (first, second):
        start, stop, step = part.indices(len(found))
        expected, before = list(found)[part], found
        found = found[part]
        assert list(found) == expected
        if step != 1:
            assert type(found) is list
            return
        assert type(found) is Batch and (found.topic, found.partition, found.leader_epoch) == ("t", 1, 7)
        assert list(before[:start]) + list(found) + list(before[max(start, stop) :]) == list(before)
        assert before[:start].end == found.begin and found.end == before[max(start, stop) :].begin
        assert (before[:start].begin, before[max(start, stop) :].end) == (before.begin, before.end)
        assert all(found.begin <= offset < found.end for offset in found)
        if start:
            assert not found or found.begin == found[0]
        again = pickle.loads(pickle.dumps(found))
        assert (again, again[1:].begin, again[1:].end) == (found, found[1:].begin, found[1:].end)


@pytest.mark.parametrize("form", ["records", "tuples", "values"])
def test_what_is_committed_by_a_slice_is_what_is_in_it(gaps: klamm.Store, form: Any) -> None:
    offsets = offsets_in(gaps)
    for count in range(1, len(offsets) + 1):
        with gaps.consumer("orders", group=f"{form}-{count}", form=form, wait=0) as consumer:
            batch = consumer.poll(100)
            assert len(batch) == len(offsets)
            consumer.commit(batch[:count])
        with gaps.consumer("orders", group=f"{form}-{count}", wait=0) as consumer:
            assert [record.offset for record in consumer] == offsets[count:]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_slices_of_polls_that_begin_at_a_marker_are_committed_too(gaps: klamm.Store, count: int) -> None:
    read: list[int] = []
    with gaps.consumer("orders", group="g", wait=0) as consumer:
        while batch := consumer.poll(4):
            while batch:
                consumer.commit(batch[:count])
                read += [record.offset for record in batch[:count]]
                committed = consumer.committed("orders", 0)
                batch = batch[count:]
                following = batch[0].offset if batch else consumer.position("orders", 0).offset
                assert committed is not None and committed.offset == following
    assert read == offsets_in(gaps)


def test_the_rest_is_committed_later_by_another_slice_or_by_all(gaps: klamm.Store) -> None:
    end = gaps.topics.describe("orders").partitions[0].end
    for rest in (lambda batch: batch[2:], lambda batch: None):
        with gaps.consumer("orders", group="g", wait=0) as consumer:
            batch = consumer.poll(100)
            consumer.commit(batch[:2])
            assert consumer.committed("orders", 0) == klamm.Committed(2, 0)
            consumer.commit(rest(batch))
            committed = consumer.committed("orders", 0)
            assert committed is not None and committed.offset == end
        gaps.groups.delete("g")


def test_an_empty_slice_commits_nothing(gaps: klamm.Store) -> None:
    with gaps.consumer("orders", group="g", wait=0) as consumer:
        batch = consumer.poll(100)
        for empty in (batch[2:2], batch[:0], batch[100:], batch[3:1]):
            assert not empty and empty.begin == empty.end
            consumer.commit(empty)
        assert consumer.committed("orders", 0) is None
        with consumer.transaction() as tx:
            tx.commit_offsets(batch[2:2])
        assert consumer.committed("orders", 0) is None


def test_slices_go_into_transactions_one_after_the_other(gaps: klamm.Store) -> None:
    with gaps.consumer("orders", group="g", wait=0) as consumer:
        batch = consumer.poll(100)
        with consumer.transaction() as tx:
            tx.commit_offsets(batch[:4])
        with pytest.raises(klamm.CommitGap), consumer.transaction() as tx:
            tx.commit_offsets(batch[5:])
    with gaps.consumer("orders", group="g", wait=0) as consumer:
        batch = consumer.poll(100)
        assert [record.offset for record in batch] == offsets_in(gaps)[4:]
        with consumer.transaction() as tx:
            tx.commit_offsets(batch[:1])
            tx.commit_offsets(batch[1:])
        committed = consumer.committed("orders", 0)
        assert committed is not None and committed.offset == gaps.topics.describe("orders").partitions[0].end


def test_a_slice_is_committed_into_a_database_of_the_users(gaps: klamm.Store, tmp_path: Any) -> None:
    connection = sqlite3.connect(tmp_path / "results.db")
    read: list[int] = []
    while True:
        offsets = klamm.SqlOffsets(connection, "billing")
        with gaps.consumer("orders", offsets=offsets, wait=0) as consumer:
            batch = consumer.poll(100)
            if not batch:
                break
            connection.execute("BEGIN")
            consumer.commit(batch[:2])
            connection.commit()
            read += [record.offset for record in batch[:2]]
    connection.close()
    assert read == offsets_in(gaps)


def test_a_batch_that_was_made_shorter_has_no_offsets_for_its_slices(gaps: klamm.Store) -> None:
    with gaps.consumer("orders", group="g", wait=0) as consumer:
        batch = consumer.poll(100)
        del batch[0]
        assert type(batch[:2]) is list
        with pytest.raises(TypeError, match="commit takes a batch"):
            consumer.commit(batch[:2])
        consumer.commit(batch)
        committed = consumer.committed("orders", 0)
        assert committed is not None and committed.offset == batch.end


def test_slices_with_a_step_are_lists(orders: klamm.Store) -> None:
    fill(orders, 6)
    with orders.consumer("orders", group="g", wait=0, form="values") as consumer:
        batch = consumer.poll(100)
        assert type(batch[::2]) is list and batch[::2] == [b"0", b"2", b"4"]
        assert type(batch[::-1]) is list and batch[-1] == b"5" and batch[-2:].begin == 4
        assert type(batch[:]) is Batch and batch[:] == batch
