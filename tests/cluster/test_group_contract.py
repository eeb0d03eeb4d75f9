"""What groups, transactions, workers, pipes and asyncio do, whether the store is a directory, a server or a cluster."""

from __future__ import annotations

import itertools
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import klamm
from klamm.batch import partition_for
from klamm.errors import CommitGap, Fenced, GroupBusy, GroupError, NotOwner, TransactionError, UnknownGroup
from tests.interop.brokers import fresh
from tests.procs import PATIENCE, until


def values(records: Any) -> list[bytes]:
    return [record.value for record in records]


def take(consumer: klamm.Consumer[Any], count: int) -> list[Any]:
    """Poll until there are so many records."""
    found: list[Any] = []
    until(lambda: found.extend(consumer.poll(timeout=0.2)) or len(found) >= count, f"{count} records")
    return found


@pytest.fixture
def one(store: klamm.Store) -> klamm.Topic:
    """A topic of one partition, with ten records."""
    topic = store.topics.create(fresh("ten"))
    topic.append_many([(b"k%d" % (n % 3), b"%d" % n) for n in range(10)])
    return topic


# ---- groups


def test_a_group_goes_on_where_it_has_committed(store: klamm.Store, one: klamm.Topic) -> None:
    group = fresh("billing")
    with store.consumer(one.name, group=group, wait=0) as consumer:
        batch = consumer.poll(4)
        assert values(batch) == [b"0", b"1", b"2", b"3"]
        consumer.commit(batch, metadata="so far")
        assert consumer.committed(one.name, 0) == klamm.Committed(4, batch.leader_epoch, "so far")
        assert len(consumer.poll(3)) == 3  # and not committed
    with store.consumer(one.name, group=group, wait=0) as consumer:
        records = list(consumer)
        assert values(records) == [b"%d" % n for n in range(4, 10)]
        consumer.commit(records[1])
        assert consumer.committed(one.name, 0).offset == 6  # type: ignore[union-attr]
        consumer.commit({(one.name, 0): 9})
        consumer.commit_async().result(PATIENCE)
        assert consumer.committed(one.name, 0).offset == 10  # type: ignore[union-attr]
    with store.consumer(one.name, group=group, wait=0) as consumer:
        assert list(consumer) == []


def test_where_a_new_group_starts(store: klamm.Store, one: klamm.Topic) -> None:
    group = fresh("late")
    with store.consumer(one.name, group=group, auto_offset_reset="latest", wait=0) as consumer:
        assert consumer.poll() == []
    one.append(b"new")
    with store.consumer(one.name, group=group, auto_offset_reset="latest", wait=0) as consumer:
        assert values(consumer) == [b"new"]
    strict = store.consumer(one.name, group=fresh("strict"), auto_offset_reset="error", wait=0)
    with strict, pytest.raises(GroupError):
        strict.poll()


def test_auto_commit_commits_what_was_handed_out_before_the_last_poll(store: klamm.Store, one: klamm.Topic) -> None:
    group = fresh("auto")
    with store.consumer(one.name, group=group, enable_auto_commit=True, auto_commit_interval_ms=0, wait=0) as consumer:
        assert len(consumer.poll(4)) == 4
        assert len(consumer.poll(3)) == 3
        assert consumer.committed(one.name, 0).offset == 4  # type: ignore[union-attr]
    assert store.groups.describe(group).offsets[0].committed.offset == 4  # type: ignore[union-attr]


def test_members_share_partitions_and_give_them_back(store: klamm.Store, topic: klamm.Topic, address: str) -> None:
    group = fresh("shared")
    topic.append_many([(b"%d" % n, b"%d" % n) for n in range(200)])
    told: list[str] = []
    seen: list[bytes] = []
    first = store.consumer(
        topic.name,
        group=group,
        on_assigned=lambda tps: told.append(f"assigned {len(tps)}"),
        on_revoked=lambda tps: told.append(f"revoked {len(tps)}"),
    )
    with first, klamm.open(address) as other:
        seen += values(take(first, 200))
        first.commit()
        assert sorted(first.assignment()) == [(topic.name, n) for n in range(4)] and told == ["assigned 4"]
        with other.consumer(topic.name, group=group) as second:
            until(
                lambda: (
                    [first.poll(timeout=0.05), second.poll(timeout=0.05)]
                    and len(first.assignment()) == len(second.assignment()) == 2
                ),
                "each has two",
                2 * PATIENCE,
            )
            assert told == ["assigned 4", "revoked 2"]
            about = store.groups.describe(group)
            assert (about.state, len(about.members), about.lag) == ("active", 2, 0)
            assert sorted(tp for member in about.members for tp in member.assignment) == [
                (topic.name, n) for n in range(4)
            ]
            is_kafka = address.startswith("kafka://")
            assert {member.host for member in about.members} == {"127.0.0.1" if is_kafka else None}
            assert all(bool(member.client_id) == is_kafka for member in about.members)
            (lost, _) = set(second.assignment())
            with pytest.raises(NotOwner):
                first.commit({lost: 1})
            with pytest.raises(GroupBusy):
                store.groups.delete(group)
            topic.append_many([(b"%d" % n, b"%d" % (n + 200)) for n in range(200)])
            more: list[bytes] = []
            until(
                lambda: (
                    more.extend(values(first.poll(timeout=0.05)) + values(second.poll(timeout=0.05)))
                    or len(more) >= 200
                ),
                "the new ones are read",
            )
            seen += more
            second.commit()
        until(lambda: first.poll(timeout=0.05) == [] and len(first.assignment()) == 4, "all are the first's", 60)
    assert sorted(map(int, seen)) == list(range(400))
    until(lambda: store.groups.describe(group).state == "empty", "nobody is left")


def test_groups_are_described_reset_exported_and_deleted(store: klamm.Store, topic: klamm.Topic) -> None:
    group, twin = fresh("reports"), fresh("twin")
    for number in range(4):
        topic.append_many([b"%d" % n for n in range(10)], partition=number)
    with store.consumer(topic.name, group=group, wait=0) as consumer:
        assert len(list(consumer)) == 40
        consumer.commit()
    assert group in store.groups and group in list(store.groups)
    about = store.groups.describe(group)
    assert (about.state, about.lag, len(about.offsets)) == ("empty", 0, 4)
    plan = store.groups.plan_reset(group, to=("last", 3))
    assert [(move.partition, move.before, move.after) for move in plan] == [(n, 10, 7) for n in range(4)]
    assert store.groups.describe(group).lag == 0
    store.groups.apply(plan)
    assert store.groups.describe(group).lag == 12
    with pytest.raises(GroupBusy):
        store.groups.apply(plan)  # it has moved since
    store.groups.reset(group, {topic.name: [1]}, by=-2)
    assert [each.committed.offset for each in store.groups.describe(group).offsets] == [7, 5, 7, 7]  # type: ignore[union-attr]
    store.groups.import_(store.groups.export(group), twin)
    assert store.groups.describe(twin).lag == 14
    store.groups.reset(twin, to="earliest")
    with store.consumer(topic.name, group=twin, wait=0) as consumer:
        assert len(list(consumer)) == 40
    store.groups.delete(group)
    assert group not in store.groups
    for call in (lambda: store.groups.describe(group), lambda: store.groups.delete(group)):
        with pytest.raises(UnknownGroup):
            call()


def test_a_paused_consumer_stays_a_member_and_reads_on(store: klamm.Store, one: klamm.Topic) -> None:
    with store.consumer(one.name, group=fresh("paused"), wait=0) as consumer:
        assert len(consumer.poll(2)) == 2
        consumer.pause()
        assert consumer.poll(timeout=0.1) == []
        consumer.resume()
        assert values(consumer.poll(2)) == [b"2", b"3"]


# ---- transactions


def test_records_and_offsets_are_committed_together(store: klamm.Store, one: klamm.Topic) -> None:
    group, target = fresh("invoices"), store.topics.create(fresh("invoices"))
    with store.consumer(one.name, group=group, wait=0) as consumer:
        batch = consumer.poll(4)
        tx = consumer.transaction()
        tx.send(target.name, b"lost")
        tx.commit_offsets(batch)
        tx.abort()
        batch = consumer.poll(6)  # the same again
        assert values(batch) == [b"0", b"1", b"2", b"3", b"4", b"5"]
        with consumer.transaction() as tx:
            for record in batch:
                tx.send(target.name, b"got " + record.value, key=record.key)
            tx.commit_offsets(batch)
        assert consumer.committed(one.name, 0).offset == 6  # type: ignore[union-attr]
        last = consumer.poll()
        with store.transaction(consumers=consumer) as tx:
            with pytest.raises(CommitGap):
                tx.commit_offsets(batch)
            tx.commit_offsets(last)
        assert tx.state == "committed"
    with store.consumer(target.name, wait=0) as reader:
        assert values(reader) == [b"got %d" % n for n in range(6)]
    with store.consumer(one.name, group=group, wait=0) as consumer:
        assert list(consumer) == []


def test_a_newer_transaction_of_the_same_name_fences_the_older(
    store: klamm.Store, topic: klamm.Topic, address: str
) -> None:
    name = fresh("writer")
    with store.transaction(name) as tx:
        tx.send(topic.name, b"1", partition=0)
    old = store.transaction(name)
    old.send(topic.name, b"old", partition=0)
    with klamm.open(address) as other:
        with other.transaction(name) as tx:
            tx.send(topic.name, b"2", partition=0)
        with pytest.raises((Fenced, TransactionError)):
            old.commit()
        with pytest.raises(Fenced):
            store.transaction(name)
        with store.consumer(topic.name, wait=0) as reader:
            assert values(reader) == [b"1", b"2"]


# ---- workers, pipes, and databases of one's own


def test_workers_handle_each_record_and_dead_letters_tell_why(store: klamm.Store, one: klamm.Topic) -> None:
    group, done, lock = fresh("work"), list[bytes](), threading.Lock()

    def handle(record: Any) -> None:
        if record.value == b"4":
            raise ValueError("four")
        with lock:
            done.append(record.value)

    ended = itertools.count(1)
    with store.consumer(one.name, group=group) as consumer:

        def note(attempt: klamm.Attempt) -> None:
            if next(ended) == 10:
                consumer.stop()

        hooks: Any = {"on_done": note, "on_dead_letter": note}
        report = consumer.run(handle, workers=3, on_error="dead-letter", retries=1, backoff=0.01, **hooks)
    assert (report.done, report.dead_lettered) == (9, 1)
    assert sorted(done) == sorted(b"%d" % n for n in range(10) if n != 4)
    (letter,) = store.dead_letters(f"{one.name}.dlq")
    assert (letter.record.value, letter.attempts, letter.reason) == (b"4", 2, "four")
    assert letter.origin is not None and (letter.origin.topic, letter.origin.offset) == (one.name, 4)
    assert store.groups.describe(group).lag == 0


def test_letters_go_back_once_though_redrives_run_at_the_same_time(store: klamm.Store, address: str) -> None:
    name = fresh("orders")
    topic = store.topics.create(name, 2, retention_ms=-1)
    topic.append_many([(b"%d" % n, b"%d" % n) for n in range(30)])

    def refuse(record: Any) -> None:
        raise ValueError(record.value)

    with store.consumer(name, group=fresh("work"), wait=1.0) as consumer:
        consumer.run(refuse, workers=2, on_error="dead-letter", retries=0)
    letters = f"{name}.dlq"
    assert store.redrive(letters, dry_run=True) == 30

    def redrive() -> None:
        with klamm.open(address) as other:
            try:
                other.redrive(letters, where=lambda letter: letter.record.value != b"7", per_second=50)
            except Fenced:  # on a cluster: by the one that began later
                pass

    threads = [threading.Thread(target=redrive) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE)
        assert not thread.is_alive()
    redrive()
    assert store.redrive(letters, edit=lambda letter: b"edited " + letter.record.value) == 1
    assert store.redrive(letters) == 0 and list(store.dead_letters(letters)) == []
    with store.consumer(name, wait=0) as reader:
        records = list(reader)
    back = [record for record in records if dict(record.headers).get("klamm.attempts") == b"1"]
    assert len(records) == 60 and len(back) == 30
    wanted = {b"%d" % n for n in range(30)} - {b"7"} | {b"edited 7"}
    assert {record.value for record in back} == wanted
    assert all(record.partition == partition_for(record.key, 2) for record in records)


def test_a_pipe_with_state_has_each_effect_once(store: klamm.Store, one: klamm.Topic) -> None:
    counts, changelog = store.topics.create(fresh("counts")), fresh("changelog")

    def count(record: Any, state: Any) -> bytes:
        state.value = b"%d" % (int(state.value or b"0") + 1)
        return b"%s:%s" % (record.key, state.value)

    def counted() -> list[bytes]:
        with store.consumer(counts.name, wait=0) as reader:
            return values(reader)

    for rounds in (1, 2):
        with store.pipe(one.name, count, to=counts.name, state=changelog) as pipe, ThreadPoolExecutor(1) as pool:
            running = pool.submit(pipe.run)
            try:
                until(lambda run=running, n=rounds: run.done() or len(counted()) >= 10 * n, "all are there")  # type: ignore[misc]
            finally:
                pipe.stop()
            assert running.result(PATIENCE).records == 10
        found = counted()
        assert len(found) == 10 * rounds
        one.append_many([(b"k%d" % (n % 3), b"%d" % n) for n in range(10)])
    assert found[-1] == b"k0:8"


def test_offsets_in_a_database_of_the_user(store: klamm.Store, one: klamm.Topic) -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute("create table saved (value blob)")

    def save(limit: int) -> int:
        offsets = klamm.SqlOffsets(connection, "billing")
        count = 0
        with store.consumer(one.name, offsets=offsets, wait=0) as consumer:
            for batch in consumer.batches(max_records=3):
                connection.execute("begin")
                connection.executemany("insert into saved values (?)", [(record.value,) for record in batch])
                consumer.commit(batch)
                connection.execute("commit")
                count += len(batch)
                if count >= limit:
                    break
        return count

    assert save(6) == 6 and save(100) == 4 and save(100) == 0
    assert [row[0] for row in connection.execute("select value from saved")] == [b"%d" % n for n in range(10)]
    connection.close()


def test_asyncio(address: str) -> None:
    import asyncio

    async def main() -> None:
        async with klamm.aio.open(address) as store:
            name = fresh("aio")
            await store.topics.create(name, 2)
            assert await store.append(name, b"0", partition=0) == 0
            async with store.producer() as producer:
                deliveries = [await producer.send(name, b"%d" % n, partition=0) for n in range(1, 5)]
                assert await producer.result(deliveries[0]) == 1
            async with store.consumer(name, group=fresh("aio"), wait=0) as consumer:
                batch = await consumer.poll()
                assert values(batch) == [b"%d" % n for n in range(5)]
                async with consumer.transaction() as tx:
                    await tx.send(name, b"done", partition=1)
                    tx.commit_offsets(batch)
            async with store.consumer(name, start="earliest", wait=0) as reader:
                assert len([record async for record in reader]) == 6
            assert [record.value async for record in store.tail(name, 1)] == [b"done"]

    asyncio.run(main())
