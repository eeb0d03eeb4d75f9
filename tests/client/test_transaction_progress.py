"""Progress of groups as a part of transactions: with the records or not at all, and rewound when they are aborted."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

import pytest

import klamm
from klamm.client.consume.consumer import session_of
from klamm.client.consume.log_engine import LogEngine
from klamm.errors import Aborted, CommitGap, GroupError, NotOwner, TransactionError
from klamm.store.groups import OffsetRow
from tests.client.conftest import values_in
from tests.client.test_transaction import commits_to_disk, stands, store
from tests.procs import until

__all__ = ["store"]  # a fixture


def test_records_and_progress_go_together(store: klamm.Store) -> None:
    store.append_many("orders", [b"%d" % n for n in range(10)])
    with store.consumer("orders", group="g", wait=0) as orders:
        for batch in orders.batches(3):
            with orders.transaction() as tx:
                for record in batch:
                    tx.send("invoices", record.value)
                tx.commit_offsets(batch)
                assert stands(orders) == (batch.begin or -1)
            assert stands(orders) == batch.end
    assert len(values_in(store, "invoices")) == 10


def test_an_aborted_transaction_gives_the_same_batch_again(store: klamm.Store) -> None:
    store.append_many("orders", [b"%d" % n for n in range(10)])
    with store.consumer("orders", group="g", wait=0) as orders:
        first = orders.poll(4)
        with orders.transaction() as tx:
            tx.commit_offsets(first)
        for fail_after_commit_offsets in (False, True):
            batch = orders.poll(4)
            tx = orders.transaction()
            tx.send("invoices", b"no")
            if fail_after_commit_offsets:
                tx.commit_offsets(batch)
            with pytest.raises(ZeroDivisionError), tx:
                raise ZeroDivisionError
            assert (batch.begin, batch.end) == (4, 8) and stands(orders) == 4
        batch = orders.poll(4)
        assert (batch.begin, batch.end) == (4, 8)
        with orders.transaction() as tx:
            tx.commit_offsets(batch)
        assert orders.poll(4).begin == 8
        assert stands(orders) == 8
    assert values_in(store, "invoices") == []


def test_others_end_a_transaction_before_it_commits_offsets_and_no_record_is_lost(store: klamm.Store) -> None:
    """It fails in a `send`. The next one commits all that the consumer gave, which is what came after and no more."""
    store.append_many("orders", [b"%d" % n for n in range(9)])
    is_ended = False
    refused = []
    with store.consumer("orders", group="g", wait=0) as orders:
        for batch in orders.batches(3):
            try:
                with orders.transaction(batch_bytes=1) as tx:
                    for record in batch:
                        tx.send("invoices", record.value)
                        if not is_ended:
                            is_ended = store.transactions.abort(next(iter(store.transactions)).producer_id)
                    tx.commit_offsets(orders)
            except Aborted:
                assert tx.state == "aborted" and stands(orders) == -1
                refused.append(batch.begin)
        assert refused == [0] and stands(orders) == 9
    assert sorted(values_in(store, "invoices")) == [b"%d" % n for n in range(9)]


def test_a_transaction_that_was_forgotten_is_aborted(store: klamm.Store) -> None:
    """Else the consumer's next transaction would commit past records that are in no output."""
    store.append_many("orders", [b"%d" % n for n in range(9)])
    with store.consumer("orders", group="g", wait=0) as orders:
        for record in orders.poll(3):
            orders_forgotten = orders.transaction().send("invoices", record.value)
            break
        del orders_forgotten
        orders.poll(3)
        with pytest.raises(TransactionError, match=r"neither committed nor aborted .*gone back: poll again"):
            orders.transaction()
        assert list(store.transactions) == []
        for batch in orders.batches(2):
            with orders.transaction() as tx:
                for record in batch:
                    tx.send("invoices", record.value)
                tx.commit_offsets(orders)
        assert stands(orders) == 9
    assert sorted(values_in(store, "invoices")) == [b"%d" % n for n in range(9)]


def test_a_consumer_that_commits_by_itself_takes_part_in_no_transaction(store: klamm.Store) -> None:
    with (
        store.consumer("orders", group="g", enable_auto_commit=True) as orders,
        pytest.raises(GroupError, match=r"commits its offsets itself .*without enable_auto_commit"),
    ):
        orders.transaction()


def test_offsets_of_a_consumer_that_does_not_take_part_are_refused(store: klamm.Store) -> None:
    store.append_many("orders", [b"%d" % n for n in range(9)])
    with (
        store.consumer("orders", group="a", wait=0) as first,
        store.consumer("orders", group="b", wait=0) as second,
    ):
        for begin, theirs in (
            (store.transaction, first),
            (second.transaction, first),
            (lambda: store.transaction(consumers=[first]), second),
        ):
            for read in (theirs.poll(1), theirs):
                tx = begin()
                tx.send("invoices", b"no")
                with pytest.raises(GroupError, match=r"consumer\.transaction\(\), or with .*consumers="), tx:
                    tx.commit_offsets(read)
                assert tx.state == "aborted"
        assert (stands(first), stands(second)) == (-1, -1)
    assert values_in(store, "invoices") == []


def test_an_abort_puts_back_the_consumers_that_take_part_and_no_others(store: klamm.Store) -> None:
    store.append_many("orders", [b"%d" % n for n in range(9)])
    with (
        store.consumer("orders", group="a", wait=0) as first,
        store.consumer("orders", group="b", wait=0) as second,
        store.consumer("orders", group="c", wait=0) as third,
    ):
        for consumer in (first, second, third):
            assert consumer.poll(4).begin == 0
        store.transaction().abort()
        assert [consumer.poll(1).begin for consumer in (first, second, third)] == [4, 4, 4]
        store.transaction(consumers=iter((first, second))).abort()
        assert [consumer.poll(1).begin for consumer in (first, second, third)] == [0, 0, 5]
        third.transaction().abort()
        assert [consumer.poll(1).begin for consumer in (first, second, third)] == [1, 1, 0]


def test_a_transaction_that_commits_no_offsets_leaves_its_consumer_where_it_is(store: klamm.Store) -> None:
    store.append_many("orders", [b"%d" % n for n in range(9)])
    with store.consumer("orders", group="g", wait=0) as orders:
        with orders.transaction() as tx:
            tx.send("invoices", b"begun")
            assert orders.poll(4).begin == 0
        before = commits_to_disk(store)
        with orders.transaction():
            pass
        assert commits_to_disk(store) == before, "there is nothing to write"
        assert stands(orders) == -1 and orders.position("orders", 0).offset == 4
        with orders.transaction() as tx:
            assert orders.poll(2).begin == 4
            tx.commit_offsets(orders)
        assert stands(orders) == 6, "all that was handed out since the last commit"
    assert values_in(store, "invoices") == [b"begun"]


def test_a_loop_over_records_goes_back_too(store: klamm.Store) -> None:
    """Whatever the loop had ready: records after the one that failed would be sent twice."""
    store.append_many("orders", [b"%d" % n for n in range(9)])
    failed = False
    with store.consumer("orders", group="g", wait=0) as orders:
        for record in orders:
            with suppress(ZeroDivisionError), orders.transaction() as tx:
                tx.send("invoices", record.value)
                if record.offset == 3 and not failed:
                    failed = True
                    raise ZeroDivisionError
                tx.commit_offsets(orders)
        assert failed and stands(orders) == 9
    assert sorted(values_in(store, "invoices")) == [b"%d" % n for n in range(9)]


def test_a_consumer_that_cannot_go_back_at_once_does_so_before_it_reads_on(store: klamm.Store) -> None:
    """Another thread reads it and does not give its turn; the second consumer goes back all the same."""
    store.append_many("orders", [b"%d" % n for n in range(9)])
    reads, may_go_on = threading.Event(), threading.Event()

    def value_of(data: bytes) -> bytes:
        if data == b"3":
            reads.set()
            assert may_go_on.wait(20)
        return data

    with (
        store.consumer("orders", group="a", wait=0, serde=(None, value_of)) as first,
        store.consumer("orders", group="b", wait=0) as second,
    ):
        engine = session_of(first).engine
        assert isinstance(engine, LogEngine)
        engine._turn_s = 0.05
        tx = store.transaction(consumers=(first, second))
        assert (first.poll(3).begin, second.poll(3).begin) == (0, 0)
        other = threading.Thread(target=lambda: first.poll(3))
        other.start()
        assert reads.wait(20)
        with pytest.raises(klamm.StoreBusy):
            tx.abort()
        may_go_on.set()
        other.join()
        assert tx.state == "aborted"
        assert (first.poll(3).begin, second.poll(3).begin) == (0, 0)


def test_offsets_alone_are_one_write(store: klamm.Store) -> None:
    store.append_many("orders", [b"%d" % n for n in range(4)])
    with store.consumer("orders", group="g", wait=0) as orders:
        batch = orders.poll(2)
        before = commits_to_disk(store)
        with orders.transaction() as tx:
            tx.commit_offsets(batch)
        assert commits_to_disk(store) == before + 1 and list(store.transactions) == []
        assert stands(orders) == 2


def test_several_batches_of_several_groups_are_one_progress(store: klamm.Store) -> None:
    store.append_many("orders", [b"%d" % n for n in range(9)])
    with (
        store.consumer("orders", group="a", wait=0) as first,
        store.consumer("orders", group="b", wait=0) as second,
    ):
        with store.transaction(consumers=(first, second)) as tx:
            for _ in range(3):
                tx.commit_offsets(first.poll(2))
            tx.commit_offsets(second.poll(5))
            tx.commit_offsets(second.poll(500))
            tx.commit_offsets(second.poll(500))  # nothing more is there
        assert (stands(first), stands(second)) == (6, 9)


def test_a_consumer_stands_for_all_that_it_gave(store: klamm.Store) -> None:
    store.append_many("orders", [b"%d" % n for n in range(9)])
    with store.consumer("orders", group="g", wait=0) as orders:
        for record in orders:
            if record.offset == 4:
                break
        with orders.transaction() as tx:
            tx.commit_offsets(orders)
        assert stands(orders) == 5
        assert orders.poll(1)[0].offset == 5


def test_a_batch_that_was_skipped_is_an_error_not_a_hole(store: klamm.Store) -> None:
    store.append_many("orders", [b"%d" % n for n in range(10)])
    with store.consumer("orders", group="g", wait=0) as orders:
        orders.poll(3)
        second = orders.poll(3)
        tx = orders.transaction()
        tx.send("invoices", b"no")
        with pytest.raises(CommitGap), tx:
            tx.commit_offsets(second)
        assert stands(orders) == -1
        assert orders.poll(3).begin == 0, "it was rewound"
    assert values_in(store, "invoices") == []


def test_whoever_commits_in_between_makes_the_transaction_fail(store: klamm.Store) -> None:
    store.append_many("orders", [b"%d" % n for n in range(10)])
    with store.consumer("orders", group="g", wait=0) as orders:
        batch = orders.poll(3)
        tx = orders.transaction()
        tx.send("invoices", b"no")
        tx.commit_offsets(batch)
        orders.commit({("orders", 0): 7})
        with pytest.raises(CommitGap):
            tx.commit()
        assert tx.state == "aborted" and stands(orders) == 7
    assert values_in(store, "invoices") == []


def test_a_group_that_somebody_moved_goes_on_where_it_stands(store: klamm.Store) -> None:
    store.append_many("orders", [b"%d" % n for n in range(10)])
    with store.consumer("orders", group="g", wait=0) as orders:
        tx = orders.transaction()
        tx.commit_offsets(orders.poll(3))
        core, member = store._acquired(), session_of(orders).member
        assert member is not None
        row = OffsetRow(core.topic("orders").topic.id, 0, 5)
        core.groups.commit(member.group_number, [row])
        with pytest.raises(CommitGap):
            tx.commit()
        batch = orders.poll(3)
        assert batch.begin == 5
        with orders.transaction() as tx:
            tx.commit_offsets(batch)
        assert stands(orders) == 8


def test_a_partition_that_was_lost_meanwhile_makes_the_transaction_fail(store: klamm.Store) -> None:
    store.append_many("orders", [b"%d" % n for n in range(10)])
    with store.consumer("orders", group="g", wait=0, max_poll_interval_ms=500) as orders:
        batch = orders.poll(3)
        tx = orders.transaction()
        tx.send("invoices", b"no")
        tx.commit_offsets(batch)
        member = session_of(orders).member
        assert member is not None
        until(lambda: not member.owns("orders", 0), "the watchdog gives it up")
        with pytest.raises(NotOwner):
            tx.commit()
        assert tx.state == "aborted" and stands(orders) == -1
    assert values_in(store, "invoices") == []


def test_only_consumers_of_a_group_of_this_store_take_part(store: klamm.Store, tmp_path: Path) -> None:
    store.append("orders", b"1")
    with store.consumer("orders", wait=0) as alone:
        for begin in (alone.transaction, lambda: store.transaction(consumers=alone)):
            with pytest.raises(GroupError, match="no group"):
                begin()
        with store.transaction() as tx:
            for what in (alone.poll(), alone):
                with pytest.raises(GroupError):
                    tx.commit_offsets(what)
            with pytest.raises(TypeError):
                tx.commit_offsets([])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not str"):
        store.transaction(consumers=["orders"])  # type: ignore[list-item]
    with klamm.open(tmp_path / "other") as other, store.consumer("orders", group="g", wait=0) as orders:
        with pytest.raises(GroupError, match="does not read"):
            other.transaction(consumers=orders)
        with pytest.raises(GroupError):
            other.transaction().commit_offsets(orders.poll())
    with pytest.raises(klamm.StoreError):
        store.transaction("billing", consumers=orders)  # it is closed
    assert list(store.transactions) == []
