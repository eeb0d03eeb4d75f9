"""Transactions between the doors: embedded ones and those of the wire, for readers of either; and over restarts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

import klamm
from tests.interop.both_doors import QUICK, embedded
from tests.interop.confluents import WAITS_LONG, all_of, consumer, produce, producer, read
from tests.interop.records import Written
from tests.messages import value_of
from tests.procs import Flag, children, until
from tests.serving import Serving

AT_ONCE: Any = {"batch_bytes": 1}  # a transaction whose records are appended before its end
BOUND = 30.0


@pytest.fixture
def store(server: Serving) -> Iterator[klamm.Store]:
    with klamm.open(server.store) as opened:
        opened.topics.create("ledger")
        yield opened


def wire_values(server: Serving, isolation: str, count: int) -> list[str]:
    """At the wire: `count` values, and what comes behind them at once."""
    with consumer(server.address, isolation_level=isolation) as reader:
        reader.assign([TopicPartition("ledger", 0, 0)])
        found = [value_of(message).decode() for message in read(reader, count)]
        return found + [value_of(message).decode() for message in reader.consume(10, 0.1)]


def both_see(server: Serving, store: klamm.Store, *wanted: str, soon: bool = False) -> None:
    """Who reads what is committed, at either door."""
    if soon:
        until(lambda: len(embedded(store, "ledger")) >= len(wanted), "nothing that is open is in the way")
    assert [record.value for record in embedded(store, "ledger")] == list(wanted)
    assert wire_values(server, "read_committed", len(wanted)) == list(wanted)


def transactional(server: Serving, name: str) -> Producer:
    made = Producer({"bootstrap.servers": server.address, "transactional.id": name, "linger.ms": 1, **QUICK})
    made.init_transactions(BOUND)
    return made


def send(made: Producer, *values: str) -> None:
    """On their way, and there."""
    for value in values:
        made.produce("ledger", value.encode(), partition=0)
    assert made.flush(BOUND) == 0


# ---- of embedded processes


def test_what_is_committed_and_aborted_is_so_at_both_doors(server: Serving, store: klamm.Store) -> None:
    store.append("ledger", b"before", acks=1)
    with store.transaction(**AT_ONCE) as committed:
        committed.send("ledger", b"one")
        committed.send("ledger", b"two")
        both_see(server, store, "before")
        assert wire_values(server, "read_uncommitted", 3) == ["before", "one", "two"]
    both_see(server, store, "before", "one", "two")
    aborted = store.transaction(**AT_ONCE)
    aborted.send("ledger", b"three")
    aborted.abort()
    produce(producer(server.address), "ledger", [Written(None, b"after", (), 0)])
    both_see(server, store, "before", "one", "two", "after")
    assert wire_values(server, "read_uncommitted", 5) == ["before", "one", "two", "three", "after"]


def test_a_consumer_of_the_wire_waits_for_the_end_of_a_transaction_and_for_no_more(
    server: Serving, store: klamm.Store
) -> None:
    with consumer(server.address, isolation_level="read_committed", **WAITS_LONG) as reader:
        reader.assign([TopicPartition("ledger", 0, 0)])
        with store.transaction(**AT_ONCE) as transaction:
            transaction.send("ledger", b"mine")
            store.append("ledger", b"behind", acks=1)
            assert not reader.consume(1, 0.3)
        assert [message.value() for message in read(reader, 2)] == [b"mine", b"behind"]


def test_the_transaction_of_a_killed_process_is_aborted_by_the_server(server: Serving, store: klamm.Store) -> None:
    """Nobody else opens the store: the server looks now and then."""
    store.close()

    def die() -> None:
        with klamm.open(server.store) as opened, opened.transaction(**AT_ONCE) as transaction:
            transaction.send("ledger", b"half")
            open(f"{server.store}/../flushed", "wb").close()
            time.sleep(60)

    with children() as fork:
        child = fork(die)
        Flag(server.store.parent / "flushed").wait()
        child.kill()
    produce(producer(server.address), "ledger", [Written(None, b"whole", (), 0)])
    (message,) = all_of(server.address, "ledger", 1, isolation_level="read_committed")
    assert message.value() == b"whole"


# ---- of the wire


def test_what_clients_commit_and_abort_is_so_at_both_doors(server: Serving, store: klamm.Store) -> None:
    made = transactional(server, "clerk")
    store.append("ledger", b"before", acks=1)
    made.begin_transaction()
    send(made, "one", "two")
    both_see(server, store, "before")
    assert [record.value for record in embedded(store, "ledger", "read_uncommitted")] == ["before", "one", "two"]
    made.commit_transaction(BOUND)
    both_see(server, store, "before", "one", "two")
    made.begin_transaction()
    send(made, "three")
    made.abort_transaction(BOUND)
    store.append("ledger", b"after", acks=1)
    both_see(server, store, "before", "one", "two", "after")


def test_the_end_of_a_transaction_wakes_embedded_consumers(server: Serving, store: klamm.Store) -> None:
    made = transactional(server, "clerk")
    with store.consumer("ledger", start="earliest") as reader:
        made.begin_transaction()
        send(made, "one")
        assert not reader.poll(timeout=0.2)
        made.commit_transaction(BOUND)
        assert [each.value for each in reader.poll()] == [b"one"]


@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_goes_on_over_a_restart(server: Serving, store: klamm.Store, how: str, commit: bool) -> None:
    """With the records and the offsets that it had."""
    made = transactional(server, "clerk")
    made.begin_transaction()
    send(made, "one")
    with consumer(server.address, group_id="readers") as alone:
        membership = alone.consumer_group_metadata()
        made.send_offsets_to_transaction([TopicPartition("ledger", 0, 1)], membership, BOUND)
    server.restart(how)
    assert embedded(store, "ledger") == []
    send(made, "two")
    if commit:
        made.commit_transaction(BOUND)
    else:
        made.abort_transaction(BOUND)
    store.append("ledger", b"after", acks=1)
    both_see(server, store, *(["one", "two", "after"] if commit else ["after"]))
    stands = store.groups.describe("readers").offsets
    assert [each.committed.offset for each in stands if each.committed] == ([1] if commit else [])


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_restart_forgets_nobody_who_was_fenced(server: Serving, store: klamm.Store, how: str) -> None:
    older = transactional(server, "clerk")
    older.begin_transaction()
    send(older, "older")
    newer = transactional(server, "clerk")
    server.restart(how)
    with pytest.raises(KafkaException) as failed:
        older.commit_transaction(BOUND)
    assert failed.value.args[0].code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED)
    newer.begin_transaction()
    send(newer, "newer")
    newer.commit_transaction(BOUND)
    both_see(server, store, "newer")


def test_a_name_is_one_at_both_doors(server: Serving, store: klamm.Store) -> None:
    """Whoever comes later has it, and the other one is fenced."""
    outside = transactional(server, "clerk")
    outside.begin_transaction()
    send(outside, "outside")
    with store.transaction("clerk") as inside:
        inside.send("ledger", b"inside")
    with pytest.raises(KafkaException) as failed:
        outside.commit_transaction(BOUND)
    assert failed.value.args[0].code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED)
    both_see(server, store, "inside", soon=True)  # the server marks what was taken from its client, in a second or so
    inside = store.transaction("clerk", **AT_ONCE)
    inside.send("ledger", b"inside, too")
    again = transactional(server, "clerk")
    with pytest.raises(klamm.Fenced):
        inside.commit()
    again.begin_transaction()
    send(again, "outside again")
    again.commit_transaction(BOUND)
    both_see(server, store, "inside", "outside again")


def test_offsets_of_an_open_transaction_are_seen_at_neither_door(server: Serving, store: klamm.Store) -> None:
    store.append_many("ledger", [b"%d" % n for n in range(10)], partition=0, acks=1)
    made = transactional(server, "clerk")
    with consumer(server.address, group_id="readers") as alone:
        alone.commit(offsets=[TopicPartition("ledger", 0, 3)], asynchronous=False)
        made.begin_transaction()
        made.send_offsets_to_transaction([TopicPartition("ledger", 0, 7)], alone.consumer_group_metadata(), BOUND)
        (stands,) = store.groups.describe("readers").offsets
        assert stands.committed is not None and stands.committed.offset == 3
        made.commit_transaction(BOUND)
        (stands,) = store.groups.describe("readers").offsets
        assert stands.committed is not None and stands.committed.offset == 7
        assert alone.committed([TopicPartition("ledger", 0)])[0].offset == 7
    with store.consumer("ledger", group="readers") as member:
        assert member.poll(timeout=10).begin == 7
