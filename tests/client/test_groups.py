"""Groups: who gets which partitions, when members come, go, hang, fork or are forgotten. In one process."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import klamm
from tests.client.conftest import fill
from tests.client.groups import settled, shared, turn
from tests.procs import until

Places = list[tuple[str, int]]


@pytest.fixture
def users(store: klamm.Store) -> klamm.Store:
    """The store, with a topic `users` of 7 partitions."""
    store.topics.create("users", partitions=7)
    return store


def spread(store: klamm.Store, count: int, topic: str = "users") -> set[bytes]:
    values = [b"%d" % n for n in range(count)]
    store.append_many(topic, [(value, value) for value in values], acks=1)
    return set(values)


# GroupSession


def test_one_member_has_everything_and_the_next_goes_on_where_it_committed(users: klamm.Store) -> None:
    values = spread(users, 100)
    seen: list[bytes] = []
    with users.consumer("users", group="g", form="values", wait=0) as first:
        for batch in first.batches(max_records=5):
            seen += batch
            first.commit(batch)
            if len(seen) > 50:
                break
    with users.consumer("users", group="g", form="values", wait=0) as second:
        seen += [value for batch in second.batches() for value in batch]
    assert sorted(seen) == sorted(values)


def test_members_share_fairly_as_they_come_and_go(users: klamm.Store) -> None:
    members: list[klamm.Consumer] = []
    for count in (1, 2, 3, 4, 7, 5, 2, 1):
        while len(members) < count:
            members.append(users.consumer("users", group="g"))
        while len(members) > count:
            members.pop(len(members) // 2).close()
        shared(members, 7)
    members[0].close()


def test_two_groups_do_not_know_each_other(users: klamm.Store) -> None:
    values = spread(users, 50)
    with users.consumer("users", group="a", wait=0) as a, users.consumer("users", group="b", wait=0) as b:
        for each in (a, b):
            assert {record.value for record in each} == values
            assert len(each.assignment()) == 7


def test_more_members_than_partitions_wait_and_take_over(users: klamm.Store) -> None:
    members = [users.consumer("users", group="g") for _ in range(9)]
    settled(members, lambda: sum(len(each.assignment()) for each in members) == 7)
    idle = [each for each in members if not each.assignment()]
    assert len(idle) == 2
    busy = next(each for each in members if each.assignment())
    (place,) = busy.assignment()
    members.remove(busy)
    busy.close()
    settled(members, lambda: any(place in each.assignment() for each in idle))
    for each in members:
        each.close()


def test_a_waiting_member_is_woken_when_another_leaves(orders: klamm.Store) -> None:
    fill(orders, 3)
    first, second = (orders.consumer("orders", group="g") for _ in range(2))
    assert len(first.poll()) == 3
    got: list[klamm.Batch] = []
    thread = threading.Thread(target=lambda: got.append(second.poll(timeout=30)))
    thread.start()
    first.close()
    thread.join(30)
    assert [len(batch) for batch in got] == [3]  # nothing was committed
    second.close()


def test_threads_share_a_group_and_each_record_is_read_once(users: klamm.Store) -> None:
    # Each commits before it polls again, so what moves between them moves with its offset.
    values = spread(users, 3000)
    seen: list[bytes] = []
    failed: list[BaseException] = []

    def read(rounds: int) -> None:
        try:
            while len(seen) < len(values):
                with users.consumer("users", group="g", form="values", max_bytes=2000) as consumer:
                    for _ in range(rounds):
                        batch = consumer.poll(20, timeout=0.02)
                        seen.extend(batch)
                        consumer.commit(batch)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=read, args=(rounds,)) for rounds in (3, 7, 20, 50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []
    assert sorted(seen) == sorted(values)


def test_a_partition_has_one_owner_among_threads(users: klamm.Store) -> None:
    owners: dict[tuple[str, int], int] = {}
    twice: list[Any] = []
    mutex = threading.Lock()

    def read(me: int) -> None:
        def take(places: Places) -> None:
            with mutex:
                twice.extend((place, owners[place], me) for place in places if place in owners)
                owners.update(dict.fromkeys(places, me))

        def give(places: Places) -> None:
            with mutex:
                for place in places:
                    assert owners.pop(place) == me

        for _ in range(6):
            with users.consumer("users", group="g", on_assigned=take, on_revoked=give) as consumer:
                for _ in range(4):
                    consumer.poll(timeout=0.002)

    threads = [threading.Thread(target=read, args=(me,)) for me in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert twice == [] and owners == {}


def test_members_with_other_topics_share_what_they_have_in_common(store: klamm.Store) -> None:
    for name, count in (("orders", 4), ("users", 4), ("alone", 2)):
        store.topics.create(name, partitions=count)
    a = store.consumer(["orders", "users"], group="g")
    b = store.consumer(["users", "alone"], group="g")
    c = store.consumer({"users": [3]}, group="g")
    settled([a, b, c], lambda: sum(len(each.assignment()) for each in (a, b, c)) == 10)
    assert [place for place in a.assignment() if place[0] == "orders"] == [("orders", n) for n in range(4)]
    assert [place for place in b.assignment() if place[0] == "alone"] == [("alone", 0), ("alone", 1)]
    assert len([place for place in a.assignment() if place[0] == "users"]) == 2 + (c.assignment() == [])
    for each in (a, b, c):
        each.close()


def test_new_partitions_and_topics_are_shared_out_and_deleted_ones_are_lost(store: klamm.Store) -> None:
    store.topics.create("orders-de", partitions=2)
    lost: Places = []
    members = [store.consumer(pattern="orders-.*", group="g", auto_offset_reset="latest", on_lost=lost.extend)
               for _ in range(2)]  # fmt: skip
    shared(members, 2)
    store.topics.add_partitions("orders-de", 6)
    store.append_many("orders-de", [b"new"] * 3, partition=5, acks=1)  # before anybody has taken it
    found: list[klamm.Batch] = []
    until(lambda: found.extend(turn(members)) or found, "a record of a new partition")
    assert [(batch.partition, len(batch)) for batch in found] == [(5, 3)]
    shared(members, 6)
    store.topics.create("orders-fr", partitions=4)
    shared(members, 10)
    store.topics.delete("orders-de")
    shared(members, 4)
    assert sorted(lost) == [("orders-de", n) for n in range(6)]
    for each in members:
        each.close()
    assert store.check().ok


def test_a_function_of_ones_own_shares_partitions_out(users: klamm.Store) -> None:
    asked: list[Any] = []

    def evens_to_first(members: list[str], partitions: Places) -> dict[str, Places]:
        asked.append((members, partitions))
        return {
            members[0]: [place for place in partitions if place[1] % 2 == 0],
            members[-1]: [place for place in partitions if place[1] % 2],
        }

    a = users.consumer("users", group="g", member="a", assignor=evens_to_first)
    b = users.consumer("users", group="g", member="b", assignor=evens_to_first)
    settled([a, b], lambda: len(a.assignment()) + len(b.assignment()) == 7)
    assert [number for _, number in a.assignment()] == [0, 2, 4, 6]
    assert asked[-1] == (["a", "b"], [("users", number) for number in range(7)])
    a.close(), b.close()


def test_an_assignor_that_raises_is_asked_again(users: klamm.Store) -> None:
    wrong = True

    def moody(members: list[str], partitions: Places) -> dict[str, Places]:
        if wrong:
            raise ValueError("not today")
        return {members[0]: partitions}

    with users.consumer("users", group="g", assignor=moody) as consumer:
        for _ in range(2):
            with pytest.raises(ValueError, match="not today"):
                consumer.poll(timeout=0)
        wrong = False
        until(lambda: (consumer.poll(timeout=0), consumer.assignment())[1], "it gets its share")


# Names, sizes, doors


def test_a_named_member_that_is_gone_keeps_its_share_until_it_is_late(users: klamm.Store) -> None:
    other = users.consumer("users", group="g")
    named = users.consumer("users", group="g", member="m", rejoin_timeout=60)
    shared([other, named], 7)
    had = named.assignment()
    named.close()
    for _ in range(5):
        other.poll(timeout=0.05)
        assert len(other.assignment()) == 7 - len(had)
    named = users.consumer("users", group="g", member="m", rejoin_timeout=0.3)
    settled([other, named], named.assignment)
    assert named.assignment() == had
    named.close()
    settled([other], lambda: len(other.assignment()) == 7, "its share is taken")
    other.close()


def test_a_name_belongs_to_one_member_that_lives(users: klamm.Store) -> None:
    with users.consumer("users", group="g", member="m"):
        with pytest.raises(klamm.GroupBusy, match="'m'"):
            users.consumer("users", group="g", member="m")
        users.consumer("users", group="other", member="m").close()
    users.consumer("users", group="g", member="m").close()


def test_a_group_has_no_more_members_than_the_store_allows(users: klamm.Store) -> None:
    assert users.settings()["group.max.size"] == "1000"
    assert users.alter({"group.max.size": 2})["group.max.size"] == "2"
    with users.consumer("users", group="g"), users.consumer("users", group="g"):
        with pytest.raises(klamm.GroupBusy, match=r"group\.max\.size"):
            users.consumer("users", group="g")
        users.consumer("users", group="other").close()
        users.alter(reset="group.max.size")
        users.consumer("users", group="g").close()


def test_a_store_opened_for_reading_only_has_no_members(users: klamm.Store, path: Path) -> None:
    with klamm.open(path, read_only=True) as reading:
        with pytest.raises(klamm.ReadOnly):
            reading.consumer("users", group="g")
        with users.consumer("users", group="g") as consumer:
            consumer.poll(timeout=0)
            info = reading.groups.describe("g")
        assert info.state == "active" and len(info.members) == 1


# Callbacks


def test_callbacks_tell_before_a_partition_goes_and_after_it_came(users: klamm.Store) -> None:
    spread(users, 70)
    message: list[tuple[str, Places]] = []
    first: klamm.Consumer

    def revoked(places: Places) -> None:
        message.append(("revoked", places))
        assert set(places) <= set(first.assignment())
        first.commit(dict.fromkeys(places, 1))

    first = users.consumer(
        "users", group="g", on_assigned=lambda places: message.append(("assigned", places)), on_revoked=revoked
    )
    turn([first])
    assert message == [("assigned", [("users", number) for number in range(7)])]
    second = users.consumer("users", group="g")
    shared([first, second], 7)
    ((what, gone),) = message[1:]
    assert what == "revoked" and gone == second.assignment()
    assert all(second.committed(*place) == klamm.Committed(1) for place in gone)
    second.close()
    shared([first], 7)
    assert message[2] == ("assigned", gone)
    first.close()
    assert message[3] == ("revoked", [("users", number) for number in range(7)])
    assert len(message) == 4


def test_an_error_in_a_callback_is_raised_and_the_partitions_go_all_the_same(users: klamm.Store) -> None:
    def refuse(places: Places) -> None:
        raise RuntimeError("not now")

    first = users.consumer("users", group="g", on_revoked=refuse)
    turn([first])
    second = users.consumer("users", group="g")
    with pytest.raises(RuntimeError, match="not now"):
        turn([first])
    shared([first, second], 7)
    with pytest.raises(RuntimeError, match="not now"):
        first.close()
    shared([second], 7)
    second.close()


# Members that hang, or are forgotten


@pytest.fixture
def hanging(
    orders: klamm.Store, caplog: pytest.LogCaptureFixture
) -> Iterator[tuple[klamm.Store, klamm.Consumer, Places]]:
    """A member that has read a batch and was not heard of for too long; what it was told it lost."""
    fill(orders, 10)
    lost: Places = []
    consumer = orders.consumer("orders", group="g", max_poll_interval_ms=500, on_lost=lost.extend)
    yield orders, consumer, lost
    consumer.close()


def test_a_member_that_hangs_loses_its_partitions_and_cannot_commit(
    hanging: tuple[klamm.Store, klamm.Consumer, Places],
) -> None:
    store, consumer, lost = hanging
    batch = consumer.poll(4)
    with store.consumer("orders", group="g") as other:
        assert len(other.poll(timeout=30)) == 10  # when the watchdog has given it up
        with pytest.raises(klamm.NotOwner):
            consumer.commit(batch)
        other.commit()
        assert not consumer.poll(timeout=0)
        assert lost == [("orders", 0)] and consumer.assignment() == []
    settled([consumer], consumer.assignment)
    assert consumer.position("orders", 0).offset == 10


def test_a_batch_from_before_a_loss_cannot_be_committed_when_the_partition_is_back(
    hanging: tuple[klamm.Store, klamm.Consumer, Places],
) -> None:
    store, consumer, lost = hanging
    batch = consumer.poll(4)
    until(lambda: store.groups.describe("g").state == "empty", "the watchdog")
    again = consumer.poll(4)
    assert lost == [("orders", 0)] and list(again) == list(batch)
    with pytest.raises(klamm.NotOwner, match="came back"):
        consumer.commit(batch)
    consumer.commit(again)
    assert consumer.committed("orders", 0) == klamm.Committed(4, 0)


def test_a_member_that_waits_for_records_is_not_hanging(orders: klamm.Store) -> None:
    with orders.consumer("orders", group="g", max_poll_interval_ms=1000) as consumer:
        assert not consumer.poll(timeout=2.2)
        assert consumer.assignment() == [("orders", 0)]


def test_a_member_that_is_forgotten_leaves(orders: klamm.Store) -> None:
    consumer = orders.consumer("orders", group="g")
    turn([consumer])
    del consumer
    gc.collect()
    with orders.consumer("orders", group="g") as other:
        shared([other], 1)
    assert orders.groups.describe("g").members == ()


@pytest.mark.parametrize("loop", ["batches", "__iter__"])
def test_closing_a_member_ends_the_loop_of_another_thread_quietly(orders: klamm.Store, loop: str) -> None:
    for _ in range(10):
        outcome: list[Any] = []
        consumer = orders.consumer("orders", group="g")

        def read(consumer: klamm.Consumer = consumer, outcome: list[Any] = outcome) -> None:
            try:
                outcome.append(list(getattr(consumer, loop)()))
            except BaseException as error:
                outcome.append(error)

        thread = threading.Thread(target=read)
        thread.start()
        until(consumer.assignment, "it reads")
        consumer.close()
        thread.join(30)
        assert outcome == [[]]


def test_closing_the_store_leaves_the_group(path: Path) -> None:
    first, second = klamm.open(path), klamm.open(path)
    first.topics.create("orders")
    mine, other = first.consumer("orders", group="g"), second.consumer("orders", group="g")
    turn([mine])
    first.close()
    shared([other], 1)
    second.close()
    with klamm.open(path) as third:
        assert third.groups.describe("g").state == "empty"


def test_a_deleted_topic_that_was_named_is_unknown_to_its_members(orders: klamm.Store) -> None:
    fill(orders, 5)
    with orders.consumer("orders", group="g") as consumer:
        batch = consumer.poll()
        orders.topics.delete("orders")
        with pytest.raises(klamm.UnknownTopic):
            consumer.commit(batch)
        with pytest.raises(klamm.UnknownTopic):
            consumer.poll(timeout=0)
    assert orders.check().ok
