"""How far a group has come: what is committed, when, by whom, and where the next one goes on."""

from __future__ import annotations

import pickle
import shutil
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.client.consume.consumer import session_of, session_that_read
from klamm.store.groups import put_offsets
from tests.client.conftest import fill
from tests.client.groups import turn
from tests.procs import PATIENCE, until


def resumes_at(store: klamm.Store, **options: Any) -> int:
    """Where the next member of the group starts."""
    with store.consumer("orders", group="g", **options) as consumer:
        consumer.poll(1, timeout=0)
        begin: int = consumer.position("orders", 0).offset
        return begin - (begin < store.topics.describe("orders").count)


# What can be committed


def test_commit_stores_everything_that_was_handed_out(orders: klamm.Store) -> None:
    fill(orders, 20)
    with orders.consumer("orders", group="g") as consumer:
        consumer.poll(3)
        consumer.poll(4)
        consumer.commit()
        assert consumer.committed("orders", 0) == klamm.Committed(7, 0, "")
        consumer.poll(5)
    assert resumes_at(orders) == 7


def test_commit_inside_of_a_loop_stores_the_record_the_loop_is_at(orders: klamm.Store) -> None:
    fill(orders, 20)
    with orders.consumer("orders", group="g") as consumer:
        for record in consumer:
            consumer.commit()
            committed = consumer.committed("orders", 0)
            assert committed is not None and committed.offset == record.offset + 1
            if record.offset == 6:
                break
    assert resumes_at(orders) == 7


def test_commit_takes_a_batch_a_record_or_a_mapping(orders: klamm.Store) -> None:
    fill(orders, 20)
    with orders.consumer("orders", group="g") as consumer:
        first, second = consumer.poll(5), consumer.poll(5)
        consumer.commit(first, metadata="half")
        assert consumer.committed("orders", 0) == klamm.Committed(5, 0, "half")
        consumer.commit(second[2])
        assert consumer.committed("orders", 0) == klamm.Committed(8, 0)
        consumer.commit({("orders", 0): 3})
        assert consumer.committed("orders", 0) == klamm.Committed(3, -1)
        consumer.commit({("orders", 0): klamm.Position(4, 0)})
        assert consumer.committed("orders", 0) == klamm.Committed(4, 0)
        consumer.commit(klamm.Batch())  # a poll that gave nothing
        consumer.commit()
        assert consumer.committed("orders", 0) == klamm.Committed(10, 0)
        for wrong in (5, "orders", {("orders", 0): "x"}):
            with pytest.raises(TypeError):
                consumer.commit(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            consumer.commit(metadata=b"x")  # type: ignore[arg-type]
        with pytest.raises(klamm.InvalidSetting):
            consumer.commit({("orders", 0): -1})


def test_commit_without_a_group_says_what_to_do(orders: klamm.Store) -> None:
    fill(orders, 3)
    with orders.consumer("orders") as consumer:
        batch = consumer.poll()
        assert session_that_read(batch) is None
        for call in (consumer.commit, consumer.commit_async, lambda: consumer.committed("orders", 0)):
            with pytest.raises(klamm.GroupError, match="no group"):
                call()


def test_what_is_not_owned_cannot_be_committed_and_nothing_beside_it_is(orders: klamm.Store) -> None:
    orders.topics.create("users", partitions=2)
    fill(orders, 4)
    with orders.consumer("orders", group="g") as consumer, orders.consumer("orders", group="g") as idle:
        batch = consumer.poll()
        with pytest.raises(klamm.NotOwner, match="users/1"):
            consumer.commit({("orders", 0): 2, ("users", 1): 0})
        assert consumer.committed("orders", 0) is None
        with pytest.raises(klamm.NotOwner):
            idle.commit(batch)
        assert idle.committed("orders", 0) is None


def test_a_batch_knows_its_consumer_and_can_be_pickled_all_the_same(orders: klamm.Store) -> None:
    fill(orders, 4)
    with orders.consumer("orders", group="g") as consumer:
        batch = consumer.poll()
        assert session_that_read(batch) is session_of(consumer)
        copy = pickle.loads(pickle.dumps(batch))
        assert list(copy) == list(batch) and (copy.begin, copy.end) == (0, 4)
        consumer.commit(copy)
        assert consumer.committed("orders", 0) == klamm.Committed(4, 0)


def test_committed_sees_what_others_committed(orders: klamm.Store) -> None:
    fill(orders, 4)
    with orders.consumer("orders", group="g") as first, orders.consumer("orders", group="g") as second:
        assert second.committed("orders", 0) is None
        first.poll()
        first.commit()
        assert second.committed("orders", 0) == klamm.Committed(4, 0)
        with pytest.raises(klamm.UnknownTopic):
            second.committed("nothing", 0)


# In a thread


def test_async_commits_keep_their_order_and_close_waits_for_them(orders: klamm.Store) -> None:
    fill(orders, 300)
    with orders.consumer("orders", group="g") as consumer:
        futures = [consumer.commit_async(consumer.poll(1)) for _ in range(100)]
        consumer.commit({("orders", 0): 50})  # after those before it
        assert all(future.done() for future in futures)
        assert consumer.committed("orders", 0) == klamm.Committed(50)
        futures = [consumer.commit_async(consumer.poll(1)) for _ in range(100)]
    assert [future.result(0) for future in futures] == [None] * 100
    assert resumes_at(orders) == 200


def test_an_async_commit_that_fails_tells_its_future(orders: klamm.Store) -> None:
    with orders.consumer("orders", group="g") as consumer:
        message = threading.Event()
        future = consumer.commit_async({("orders", 0): 0})  # nothing is owned before the first poll
        future.add_done_callback(lambda _: message.set())
        assert isinstance(future.exception(30), klamm.NotOwner)
        assert message.wait(30)


# At least once, at most once


def test_auto_commit_commits_what_was_handed_out_before_the_last_poll(orders: klamm.Store) -> None:
    fill(orders, 20)
    with orders.consumer("orders", group="g", enable_auto_commit=True, auto_commit_interval_ms=0) as consumer:
        consumer.poll(5)
        assert consumer.committed("orders", 0) is None
        consumer.poll(5)  # the first five are done, says this
        assert consumer.committed("orders", 0) == klamm.Committed(5, 0)
    assert resumes_at(orders) == 5  # of the second five nobody knows


def test_auto_commit_waits_for_its_interval_and_close_commits_what_is_done(orders: klamm.Store) -> None:
    fill(orders, 20)
    with orders.consumer("orders", group="g", enable_auto_commit=True) as consumer:
        for _ in range(3):
            consumer.poll(5)
        assert consumer.committed("orders", 0) is None
    assert resumes_at(orders) == 10


def test_auto_commit_has_everything_when_a_loop_has_come_to_its_end(orders: klamm.Store) -> None:
    fill(orders, 20)
    with orders.consumer("orders", group="g", enable_auto_commit=True, wait=0) as consumer:
        assert len(list(consumer)) == 20
    assert resumes_at(orders) == 20


def test_auto_commit_commits_when_a_partition_goes_to_another(orders: klamm.Store) -> None:
    orders.topics.create("users", partitions=2)
    for number in (0, 1):
        fill(orders, 10, "users", partition=number)
    with orders.consumer("users", group="g", enable_auto_commit=True) as first:
        assert {first.poll().partition, first.poll().partition} == {0, 1}
        with orders.consumer("users", group="g") as second:
            turn([first, second])
            ((_, number),) = second.assignment()
            assert second.committed("users", number) == klamm.Committed(10, 0)
            assert second.committed("users", 1 - number) is None
            assert not second.poll(timeout=0)


def test_auto_commit_leaves_out_partitions_that_were_lost(orders: klamm.Store) -> None:
    fill(orders, 10)
    lost: list[tuple[str, int]] = []
    with orders.consumer(
        "orders",
        group="g",
        enable_auto_commit=True,
        auto_commit_interval_ms=0,
        max_poll_interval_ms=500,
        on_lost=lost.extend,
    ) as consumer:
        batch = consumer.poll(4)
        until(lambda: orders.groups.describe("g").state == "empty", "the watchdog gives its partition up")
        again = consumer.poll(4)
        assert lost == [("orders", 0)] and list(again) == list(batch)
        assert consumer.committed("orders", 0) is None


def test_a_crash_between_work_and_commit_repeats_and_between_commit_and_work_skips(orders: klamm.Store) -> None:
    fill(orders, 10)
    done: list[int] = []

    def at_least_once(consumer: klamm.Consumer, batch: klamm.Batch) -> None:
        done.extend(record.offset for record in batch)
        raise InterruptedError

    def at_most_once(consumer: klamm.Consumer, batch: klamm.Batch) -> None:
        consumer.commit(batch)
        raise InterruptedError

    for work in (at_least_once, at_most_once):
        with pytest.raises(InterruptedError), orders.consumer("orders", group="g") as consumer:
            work(consumer, consumer.poll(5))
    assert done == [0, 1, 2, 3, 4]
    assert resumes_at(orders) == 5


# Where a group starts


def test_a_new_group_starts_as_it_is_told(orders: klamm.Store) -> None:
    fill(orders, 10)
    assert resumes_at(orders) == 0
    with orders.consumer("orders", group="new", auto_offset_reset="error") as consumer:
        for _ in range(2):
            with pytest.raises(klamm.GroupError, match="has no offset for orders/0"):
                consumer.poll(timeout=0)


def test_latest_is_where_the_first_member_started(orders: klamm.Store) -> None:
    fill(orders, 10)
    with orders.consumer("orders", group="g", auto_offset_reset="latest") as consumer:
        assert not consumer.poll(timeout=0)
    fill(orders, 5)  # nobody was there, and nobody had committed
    assert resumes_at(orders, auto_offset_reset="latest") == 10


@pytest.mark.parametrize(("policy", "begin"), [("earliest", 6), ("latest", 10)])
def test_a_committed_offset_that_is_not_there_any_more_follows_the_policy(
    orders: klamm.Store, policy: klamm.OffsetReset, begin: int
) -> None:
    fill(orders, 10)
    with orders.consumer("orders", group="g") as consumer:
        consumer.poll(3)
        consumer.commit()
    orders["orders"].delete_records({0: 6})
    resets: list[klamm.OffsetReset | None] = [None, "error"]
    for reset in resets:
        with orders.consumer("orders", group="g", auto_offset_reset=reset) as consumer:
            with pytest.raises(klamm.OffsetOutOfRange) as caught:
                consumer.poll(timeout=0)
            assert "auto_offset_reset='earliest' (or 'latest')" in str(caught.value.hint)
    with orders.consumer("orders", group="g", auto_offset_reset=policy) as consumer:
        consumer.poll(1, timeout=0)
        assert consumer.position("orders", 0).offset == begin + (begin < 10)


def test_a_position_that_outran_the_log_is_put_back_to_where_its_epoch_ended(path: Path, tmp_path: Path) -> None:
    with klamm.open(path) as store:
        store.topics.create("orders")
        fill(store, 30)
    shutil.copytree(path, tmp_path / "copy")  # opening a copy recovers it, as after a power cut: a new epoch
    with klamm.open(tmp_path / "copy") as store:
        fill(store, 40)
        with store.consumer("orders", group="g") as consumer:
            consumer.poll(1)
            consumer.commit({("orders", 0): klamm.Position(50, 0)})  # twenty more had been read, and were lost
        assert resumes_at(store) == 30
        with store.consumer("orders", group="g") as consumer:
            batch = consumer.poll()
            assert batch.begin == 30
            commit_in_transaction(store, consumer, [batch])  # compares with what is stored, not with where it began
            committed = consumer.committed("orders", 0)
            assert committed is not None and committed.offset == 70


def test_offsets_go_with_their_topic(orders: klamm.Store) -> None:
    fill(orders, 10)
    with orders.consumer("orders", group="g") as consumer:
        consumer.poll()
        consumer.commit()
    orders.topics.delete("orders")
    assert orders.groups.describe("g").offsets == ()
    orders.topics.create("orders")
    fill(orders, 3)
    assert resumes_at(orders) == 0


# As a part of a transaction


def commit_in_transaction(store: klamm.Store, consumer: klamm.Consumer, batches: Iterable[klamm.Batch]) -> None:
    pending_commit = session_of(consumer).commits.pending_commit()
    for batch in batches:
        pending_commit.add(batch)
    database = store._acquired().catalog.database
    with pending_commit.member.mutex, database.db_lock(), database.transaction() as execute:
        pending_commit.check_ownership()
        put_offsets(execute, pending_commit.member.group_number, pending_commit.rows(), expect=pending_commit.expect())
    pending_commit.done()


def test_a_pending_commit_takes_batches_in_order_and_nothing_twice(orders: klamm.Store) -> None:
    fill(orders, 20)
    with orders.consumer("orders", group="g") as consumer:
        first, second, third = (consumer.poll(5) for _ in range(3))
        with pytest.raises(klamm.CommitGap) as skipped:
            commit_in_transaction(orders, consumer, [second])
        assert (skipped.value.expected, skipped.value.begin) == (0, 5)
        assert consumer.committed("orders", 0) is None
        commit_in_transaction(orders, consumer, [first, second])
        with pytest.raises(klamm.CommitGap):
            commit_in_transaction(orders, consumer, [second])
        commit_in_transaction(orders, consumer, [third])
        assert consumer.committed("orders", 0) == klamm.Committed(15, 0)
        assert consumer.poll(5).begin == 15


def test_a_pending_commit_fails_if_somebody_else_has_moved_the_group(orders: klamm.Store) -> None:
    fill(orders, 20)
    with orders.consumer("orders", group="g") as consumer:
        batch = consumer.poll(5)
        core = orders._acquired()
        row = session_of(consumer).commits.pending_commit()
        row.add(batch)
        core.groups.commit(row.member.group_number, [row.rows()[0]._replace(offset=2)])
        with pytest.raises(klamm.CommitGap):
            commit_in_transaction(orders, consumer, [batch])
        assert consumer.committed("orders", 0) == klamm.Committed(2, 0)


def test_rewinding_hands_out_again_what_was_not_committed(orders: klamm.Store) -> None:
    orders.topics.create("users", partitions=2)
    for number in (0, 1):
        fill(orders, 10, "users", partition=number)
    with orders.consumer("users", group="g", wait=0) as consumer:
        first = consumer.poll(4)
        consumer.commit(first)
        rest = [record.offset for batch in consumer.batches(3) for record in batch]
        assert len(rest) == 16
        session_of(consumer).rewind()
        assert sorted(record.offset for batch in consumer.batches(5) for record in batch) == sorted(rest)
        session_of(consumer).rewind()
        assert sum(1 for _ in consumer) == 16
        consumer.commit()
        session_of(consumer).rewind()
        assert sum(1 for _ in consumer) == 0


def test_after_a_seek_a_pending_commit_begins_where_the_consumer_was_put(orders: klamm.Store) -> None:
    fill(orders, 20)
    with orders.consumer("orders", group="g") as consumer:
        consumer.poll(5)
        consumer.seek("orders", 0, 12)
        commit_in_transaction(orders, consumer, [consumer.poll(3)])
        assert consumer.committed("orders", 0) == klamm.Committed(15, 0)


# Offsets that live elsewhere


class Kept:
    """Offsets in a dictionary, compared and set."""

    def __init__(self) -> None:
        self.positions: dict[tuple[str, int], klamm.Position] = {}
        self.entries: list[tuple[str, int, int, int, int]] = []

    def load(self, partitions: Sequence[tuple[str, int]]) -> Mapping[tuple[str, int], klamm.Position]:
        return {tp: self.positions[tp] for tp in partitions if tp in self.positions}

    def commit(self, entries: Sequence[tuple[str, int, int, int, int]]) -> None:
        for topic, number, begin, end, epoch in entries:
            known = self.positions.get((topic, number))
            if known is not None and known.offset != begin:
                raise klamm.CommitGap("a gap", expected=known.offset, begin=begin)
            self.positions[topic, number] = klamm.Position(end, epoch)
        self.entries += entries


@pytest.mark.parametrize("group", [None, "g"])
def test_offsets_of_ones_own_are_loaded_and_committed(orders: klamm.Store, group: str | None) -> None:
    fill(orders, 20)
    kept = Kept()
    assert isinstance(kept, klamm.Offsets)
    with orders.consumer("orders", group=group, offsets=kept) as consumer:
        consumer.commit(consumer.poll(5))
        assert consumer.committed("orders", 0) == klamm.Committed(5, 0)
        consumer.commit(consumer.poll(5)[1])
        consumer.commit()
        with pytest.raises(klamm.InvalidSetting):
            consumer.commit_async()
    assert kept.entries == [("orders", 0, 0, 5, 0), ("orders", 0, 5, 7, 0), ("orders", 0, 7, 10, 0)]
    with orders.consumer("orders", group=group, offsets=kept) as consumer:
        assert consumer.poll(1).begin == 10
    if group is not None:
        assert orders.groups.describe(group).offsets == ()


def test_after_a_gap_the_consumer_goes_on_where_its_offsets_say(orders: klamm.Store) -> None:
    fill(orders, 20)
    kept = Kept()
    with orders.consumer("orders", offsets=kept, wait=0) as consumer:
        before = dict(kept.positions)
        first = consumer.poll(5)
        consumer.commit(first)
        consumer.commit(consumer.poll(5))
        kept.positions = {("orders", 0): klamm.Position(5, 0)}  # the user's transaction was rolled back
        third = consumer.poll(5)
        with pytest.raises(klamm.CommitGap):
            consumer.commit(third)
        again = consumer.poll(5)
        assert again.begin == 5
        consumer.commit(again)
        assert consumer.committed("orders", 0) == klamm.Committed(10, 0)
        assert before == {}


def test_what_the_watchdog_gives_up_while_it_is_taken_is_not_read_from_the_start(tmp_path: Path) -> None:
    with klamm.open(tmp_path / "store") as store:
        store.topics.create("orders")
        store.append_many("orders", [b"%d" % n for n in range(20)], acks=1)
        with store.consumer("orders", group="g") as first:
            first.commit(first.poll(max_records=10))
        with store.consumer("orders", group="g", max_poll_interval_ms=50) as second:
            commits = session_of(second).commits
            load = commits.load

            def late(tps: Any) -> Any:
                until(lambda: not session_of(second).member.owned(), "the watchdog gives up")  # type: ignore[union-attr]
                commits.load = load  # type: ignore[method-assign]
                return load(tps)

            commits.load = late  # type: ignore[method-assign]
            batch = second.poll(timeout=10)
            assert batch.begin == 10 and len(batch) == 10


def test_a_commit_that_waits_while_its_partition_is_lost_and_comes_back_is_refused(tmp_path: Path) -> None:
    with klamm.open(tmp_path / "store") as store:
        store.topics.create("orders")
        store.append_many("orders", [b"%d" % n for n in range(50)], acks=1)
        held, go_on = threading.Event(), threading.Event()
        with store.consumer("orders", group="g", max_poll_interval_ms=500) as late:
            batch = late.poll(max_records=10)
            commits = session_of(late).commits
            write = commits._write

            def slow(entries: Any, metadata: str) -> None:
                held.set()
                assert go_on.wait(PATIENCE)
                write(entries, metadata)

            commits._write = slow  # type: ignore[method-assign]
            waiting = late.commit_async(batch)
            assert held.wait(PATIENCE)
            until(lambda: not session_of(late).member.owned(), "the watchdog gives up")  # type: ignore[union-attr]
            with store.consumer("orders", group="g") as other:
                while batch := other.poll(timeout=0):
                    other.commit(batch)
            until(lambda: late.poll(timeout=0) is not None and late.assignment(), "it has the partition again")
            go_on.set()
            with pytest.raises(klamm.NotOwner, match="lost and came back"):
                waiting.result(PATIENCE)
            found = late.committed("orders", 0)
            assert found is not None and found.offset == 50


def test_a_commit_in_a_thread_of_a_consumer_that_another_thread_closes_raises_closed(orders: klamm.Store) -> None:
    orders.append_many("orders", [b"x"] * 10)
    with orders.consumer("orders", group="g", wait=0) as consumer:
        consumer.poll(4)
        commits = session_of(consumer).commits
        consumer.commit_async().result()
        consumer.poll(4)
        commits.close()  # as `close` of another thread does, after this one has looked
        with pytest.raises(klamm.Closed, match="is closed"):
            commits.commit_async(None, "")
    assert orders.groups.describe("g").offsets[0].committed == klamm.Committed(4, 0, "")


def test_threads_that_commit_at_the_same_time_share_one_thread_that_writes(orders: klamm.Store) -> None:
    with orders.consumer("orders", group="g", wait=0) as consumer:
        together = threading.Barrier(8)

        def commit() -> None:
            together.wait()
            consumer.commit_async().result()

        committing = [threading.Thread(target=commit) for _ in range(8)]
        for thread in committing:
            thread.start()
        for thread in committing:
            thread.join()
        assert sum(thread.name.startswith("klamm-commit") for thread in threading.enumerate()) == 1
