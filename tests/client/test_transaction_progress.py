"""Progress of groups as a part of transactions: with the records or not at all, and rewound when they are aborted."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import klamm
from klamm.client.consumer import session_of
from klamm.errors import CommitGap, GroupError, NotOwner
from klamm.store.groups import OffsetRow
from tests.client.conftest import values_in
from tests.client.test_transaction import commits_to_disk, stands, store
from tests.procs import until

__all__ = ["store"]  # a fixture


def test_records_and_progress_go_together(store: klamm.Store) -> None:
    store.append_many("orders", [b"%d" % n for n in range(10)])
    with store.consumer("orders", group="g", wait_ms=0) as orders:
        for batch in orders.batches(3):
            with store.transaction() as tx:
                for record in batch:
                    tx.send("invoices", record.value)
                tx.commit_offsets(batch)
                assert stands(orders) == (batch.begin or -1)
            assert stands(orders) == batch.end
    assert len(values_in(store, "invoices")) == 10


def test_an_aborted_transaction_gives_the_same_batch_again(store: klamm.Store) -> None:
    store.append_many("orders", [b"%d" % n for n in range(10)])
    with store.consumer("orders", group="g", wait_ms=0) as orders:
        first = orders.poll(4)
        with store.transaction() as tx:
            tx.commit_offsets(first)
        for fail_after_commit_offsets in (False, True):
            batch = orders.poll(4)
            tx = store.transaction() if fail_after_commit_offsets else orders.transaction()
            tx.send("invoices", b"no")
            if fail_after_commit_offsets:
                tx.commit_offsets(batch)
            with pytest.raises(ZeroDivisionError), tx:
                raise ZeroDivisionError
            assert (batch.begin, batch.end) == (4, 8) and stands(orders) == 4
        batch = orders.poll(4)
        assert (batch.begin, batch.end) == (4, 8)
        with store.transaction() as tx:
            tx.commit_offsets(batch)
        assert orders.poll(4).begin == 8
        assert stands(orders) == 8
    assert values_in(store, "invoices") == []


def test_a_consumer_that_another_thread_polled_is_left_where_it_is(store: klamm.Store) -> None:
    store.append_many("orders", [b"%d" % n for n in range(10)])
    with store.consumer("orders", group="g", wait_ms=0) as orders:
        polled = threading.Thread(target=lambda: orders.poll(4))
        polled.start()
        polled.join()
        store.transaction().abort()
        assert orders.poll(4).begin == 4


def test_offsets_alone_are_one_write(store: klamm.Store) -> None:
    store.append_many("orders", [b"%d" % n for n in range(4)])
    with store.consumer("orders", group="g", wait_ms=0) as orders:
        batch = orders.poll(2)
        before = commits_to_disk(store)
        with store.transaction() as tx:
            tx.commit_offsets(batch)
        assert commits_to_disk(store) == before + 1 and store.transactions() == []
        assert stands(orders) == 2


def test_several_batches_of_several_groups_are_one_progress(store: klamm.Store) -> None:
    store.append_many("orders", [b"%d" % n for n in range(9)])
    with (
        store.consumer("orders", group="a", wait_ms=0) as first,
        store.consumer("orders", group="b", wait_ms=0) as second,
    ):
        with store.transaction() as tx:
            for _ in range(3):
                tx.commit_offsets(first.poll(2))
            tx.commit_offsets(second.poll(5))
            tx.commit_offsets(second.poll(500))
            tx.commit_offsets(second.poll(500))  # nothing more is there
        assert (stands(first), stands(second)) == (6, 9)


def test_a_consumer_stands_for_all_that_it_gave(store: klamm.Store) -> None:
    store.append_many("orders", [b"%d" % n for n in range(9)])
    with store.consumer("orders", group="g", wait_ms=0) as orders:
        for record in orders:
            if record.offset == 4:
                break
        with store.transaction() as tx:
            tx.commit_offsets(orders)
        assert stands(orders) == 5
        assert orders.poll(1)[0].offset == 5


def test_a_batch_that_was_skipped_is_an_error_not_a_hole(store: klamm.Store) -> None:
    store.append_many("orders", [b"%d" % n for n in range(10)])
    with store.consumer("orders", group="g", wait_ms=0) as orders:
        orders.poll(3)
        second = orders.poll(3)
        tx = store.transaction()
        tx.send("invoices", b"no")
        with pytest.raises(CommitGap), tx:
            tx.commit_offsets(second)
        assert stands(orders) == -1
        assert orders.poll(3).begin == 0, "it was rewound"
    assert values_in(store, "invoices") == []


def test_whoever_commits_in_between_makes_the_transaction_fail(store: klamm.Store) -> None:
    store.append_many("orders", [b"%d" % n for n in range(10)])
    with store.consumer("orders", group="g", wait_ms=0) as orders:
        batch = orders.poll(3)
        tx = store.transaction()
        tx.send("invoices", b"no")
        tx.commit_offsets(batch)
        orders.commit({("orders", 0): 7})
        with pytest.raises(CommitGap):
            tx.commit()
        assert tx.state == "aborted" and stands(orders) == 7
    assert values_in(store, "invoices") == []


def test_a_group_that_somebody_moved_goes_on_where_it_stands(store: klamm.Store) -> None:
    store.append_many("orders", [b"%d" % n for n in range(10)])
    with store.consumer("orders", group="g", wait_ms=0) as orders:
        tx = store.transaction()
        tx.commit_offsets(orders.poll(3))
        core, member = store._acquired(), session_of(orders).member
        assert member is not None
        row = OffsetRow(core.topic("orders").topic.id, 0, 5)
        core.groups.commit(member.group_number, [row])
        with pytest.raises(CommitGap):
            tx.commit()
        batch = orders.poll(3)
        assert batch.begin == 5
        with store.transaction() as tx:
            tx.commit_offsets(batch)
        assert stands(orders) == 8


def test_a_partition_that_was_lost_meanwhile_makes_the_transaction_fail(store: klamm.Store) -> None:
    store.append_many("orders", [b"%d" % n for n in range(10)])
    with store.consumer("orders", group="g", wait_ms=0, max_poll_interval_ms=50) as orders:
        batch = orders.poll(3)
        tx = store.transaction()
        tx.send("invoices", b"no")
        tx.commit_offsets(batch)
        member = session_of(orders).member
        assert member is not None
        until(lambda: not member.owns("orders", 0), "the watchdog gives it up")
        with pytest.raises(NotOwner):
            tx.commit()
        assert tx.state == "aborted" and stands(orders) == -1
    assert values_in(store, "invoices") == []


def test_only_what_a_group_of_this_store_read_can_be_progress(store: klamm.Store, tmp_path: Path) -> None:
    store.append("orders", b"1")
    with store.consumer("orders", wait_ms=0) as alone, store.transaction() as tx:
        for what in (alone.poll(), alone):
            with pytest.raises(GroupError):
                tx.commit_offsets(what)
        with pytest.raises(TypeError):
            tx.commit_offsets([])  # type: ignore[arg-type]
    with klamm.open(tmp_path / "other") as other, store.consumer("orders", group="g", wait_ms=0) as orders:
        tx = other.transaction()
        with pytest.raises(GroupError):
            tx.commit_offsets(orders.poll())
