"""Progress in the user's database: the rows, the transaction they are part of, and who is refused."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.client.groups.sql_offsets import SqlOffsets
from klamm.types import Position
from tests.client.conftest import fill
from tests.databases import Database, Postgres, Server, Sqlite, all_of, run
from tests.procs import until

PLACE = ("orders", 0)


@pytest.fixture
def connection(database: Database) -> Iterator[Any]:
    with closing(database.connect()) as opened:
        yield opened


@pytest.fixture(autouse=True)
def filled(orders: klamm.Store) -> None:
    fill(orders, 200)


@pytest.fixture
def offsets(orders: klamm.Store, connection: Any) -> SqlOffsets:
    return bound(orders, connection)


def bound(store: klamm.Store, connection: Any, name: str = "billing") -> SqlOffsets:
    offsets = SqlOffsets(connection, name)
    offsets.bind(store._acquired())
    return offsets


def rows(database: Database) -> list[Any]:
    return all_of(database, 'SELECT topic, "partition", "offset", leader_epoch FROM klamm_offsets ORDER BY 1, 2')


def entry(begin: int, end: int, epoch: int = 0) -> list[tuple[str, int, int, int, int]]:
    return [(*PLACE, begin, end, epoch)]


@contextmanager
def rolled_back(database: Database, connection: Any) -> Iterator[None]:
    """A transaction that does not come to its end."""
    with suppress(ZeroDivisionError), database.transaction(connection):
        yield
        raise ZeroDivisionError


# Rows


def test_progress_is_there_with_the_results_or_not_at_all(
    offsets: SqlOffsets, database: Database, connection: Any
) -> None:
    offsets.begin({PLACE: Position(0)})
    with database.transaction(connection):
        offsets.commit(entry(0, 10))
    assert rows(database) == [("orders", 0, 10, 0)]
    with rolled_back(database, connection):
        offsets.commit(entry(10, 20))
    assert rows(database) == [("orders", 0, 10, 0)]
    assert offsets.load([PLACE]) == {PLACE: Position(10, 0)}


def test_where_a_consumer_starts_is_stored_before_its_first_batch(offsets: SqlOffsets, database: Database) -> None:
    assert offsets.load([PLACE]) == {}
    offsets.begin({PLACE: Position(7)})
    assert rows(database) == [("orders", 0, 7, -1)]


def test_a_first_batch_cannot_be_skipped_though_the_row_was_rolled_back(
    offsets: SqlOffsets, database: Database, connection: Any
) -> None:
    with rolled_back(database, connection):
        offsets.begin({PLACE: Position(0)})
        assert run(connection, "SELECT count(*) FROM klamm_offsets").fetchone() == (0,)
        assert offsets.load([PLACE]) == {PLACE: Position(0)}
    with pytest.raises(klamm.CommitGap) as caught, database.transaction(connection):
        offsets.commit(entry(10, 20))
    assert (caught.value.expected, caught.value.begin) == (0, 10)
    with database.transaction(connection):
        offsets.commit(entry(0, 10))
    assert rows(database) == [("orders", 0, 10, 0)]


@pytest.mark.parametrize("begin", [0, 5, 11, 20])
def test_a_batch_that_does_not_begin_where_the_row_stands_is_refused(
    offsets: SqlOffsets, database: Database, connection: Any, begin: int
) -> None:
    offsets.begin({PLACE: Position(0)})
    with database.transaction(connection):
        offsets.commit(entry(0, 10))
    with pytest.raises(klamm.CommitGap) as caught, database.transaction(connection):
        offsets.commit(entry(begin, 30))
    assert (caught.value.expected, caught.value.begin) == (10, begin)
    assert rows(database) == [("orders", 0, 10, 0)]


def test_several_batches_may_share_a_transaction(offsets: SqlOffsets, database: Database, connection: Any) -> None:
    offsets.begin({PLACE: Position(0)})
    with database.transaction(connection):
        offsets.commit([*entry(0, 10), *entry(10, 20)])
        offsets.commit(entry(20, 30, epoch=3))
    assert rows(database) == [("orders", 0, 30, 3)]


def test_names_and_partitions_and_stores_do_not_mix(
    orders: klamm.Store, tmp_path: Path, database: Database, connection: Any
) -> None:
    orders.topics.add_partitions("orders", 2)
    with klamm.open(tmp_path / "other") as other:
        other.topics.create("orders", partitions=2)
        all_offsets = [bound(orders, connection), bound(orders, connection, "audit"), bound(other, connection)]
        for number, offsets in enumerate(all_offsets):
            offsets.begin({PLACE: Position(number), ("orders", 1): Position(10 + number)})
        for number, offsets in enumerate(all_offsets):
            assert offsets.load([PLACE, ("orders", 1)]) == {
                PLACE: Position(number),
                ("orders", 1): Position(10 + number),
            }
            with database.transaction(connection):
                offsets.commit(entry(number, 100))
        assert sorted(rows(database))[:3] == [("orders", 0, 100, 0)] * 3
        with pytest.raises(klamm.GroupError, match="goes with the store"):
            all_offsets[0].bind(other._acquired())


def test_a_topic_made_anew_starts_anew(offsets: SqlOffsets, orders: klamm.Store) -> None:
    offsets.begin({PLACE: Position(7)})
    orders.topics.delete("orders")
    orders.topics.create("orders")
    assert offsets.load([PLACE]) == {}


# The log may have lost what the row knows


def test_a_row_ahead_of_the_log_is_set_from_exactly_what_was_loaded(
    orders: klamm.Store, database: Database, connection: Any
) -> None:
    with closing(database.connect()) as connected:
        first, second = bound(orders, connection), bound(orders, connected)
        first.begin({PLACE: Position(0)})
        with database.transaction(connection):
            first.commit(entry(0, 100))
        # Then a power cut: epoch 0 ended at 90, so both go on there. What is stored is 100 still.
        for offsets in (first, second):
            assert offsets.load([PLACE]) == {PLACE: Position(100, 0)}
        with database.transaction(connection):
            first.commit(entry(100, 100, epoch=1))
        assert rows(database) == [("orders", 0, 100, 1)]  # the same offset, of other records
        with pytest.raises(klamm.CommitGap), database.transaction(connected):
            second.commit(entry(100, 100, epoch=1))
        assert second.load([PLACE]) == {PLACE: Position(100, 1)}
        with database.transaction(connected):
            second.commit(entry(100, 110, epoch=1))
    assert rows(database) == [("orders", 0, 110, 1)]


# Transactions of the user's


def test_a_commit_outside_of_a_transaction_is_refused_and_nothing_is_written(
    offsets: SqlOffsets, database: Database
) -> None:
    offsets.begin({PLACE: Position(0)})
    with pytest.raises(klamm.GroupError, match="no transaction is open") as caught:
        offsets.commit(entry(0, 10))
    assert caught.value.hint
    assert rows(database) == [("orders", 0, 0, -1)]


@pytest.mark.parametrize("isolation_level", ["", None, "IMMEDIATE", "EXCLUSIVE"])
def test_every_way_to_open_a_transaction_of_sqlite_is_known(
    orders: klamm.Store, tmp_path: Path, isolation_level: Any
) -> None:
    with closing(sqlite3.connect(tmp_path / "results.db", isolation_level=isolation_level)) as connection:
        connection.execute("CREATE TABLE results (value)")
        offsets = bound(orders, connection)
        offsets.begin({PLACE: Position(0)})
        with pytest.raises(klamm.GroupError, match="no transaction"), connection:
            offsets.commit(entry(0, 10))
        with connection:
            connection.execute("BEGIN")
            offsets.commit(entry(0, 10))
        if isolation_level is not None:  # then Python begins before the first change
            with connection:
                connection.execute("INSERT INTO results VALUES (1)")
                offsets.commit(entry(10, 20))
    assert rows(Sqlite(tmp_path / "results.db"))[0][2] == (10 if isolation_level is None else 20)


def test_what_a_sqlite_connection_makes_of_rows_and_text_does_not_matter(orders: klamm.Store, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "results.db")) as connection:
        connection.row_factory = lambda cursor, row: {"only": "this"}
        connection.text_factory = bytes
        offsets = bound(orders, connection)
        offsets.begin({PLACE: Position(3)})
        assert offsets.load([PLACE]) == {PLACE: Position(3)}


@pytest.fixture
def postgres(postgres_server: Server) -> Postgres:
    return postgres_server.fresh()


def test_every_way_to_open_a_transaction_of_psycopg_is_known(orders: klamm.Store, postgres: Postgres) -> None:
    from psycopg.rows import dict_row

    with closing(postgres.connect(row_factory=dict_row)) as connection:
        connection.autocommit = False
        offsets = bound(orders, connection)
        offsets.begin({PLACE: Position(0)})
        assert offsets.load([PLACE]) == {PLACE: Position(0)}
        assert connection.info.transaction_status == 0  # nothing is left open
        with pytest.raises(klamm.GroupError, match="no transaction"):
            offsets.commit(entry(0, 10))
        connection.execute("SELECT 1")  # begins one, without autocommit
        offsets.commit(entry(0, 10))
        connection.commit()
        with connection.transaction():
            offsets.commit(entry(10, 20))
        connection.autocommit = True
        with connection.transaction():
            offsets.commit(entry(20, 30))
            with pytest.raises(klamm.CommitGap), connection.transaction():  # a savepoint
                offsets.commit(entry(20, 30))
            offsets.commit(entry(30, 40))
        with pytest.raises(klamm.GroupError, match="no transaction"):
            offsets.commit(entry(40, 50))
    assert rows(postgres) == [("orders", 0, 40, 0)]


def test_a_table_made_in_a_transaction_that_is_rolled_back_is_made_again(
    orders: klamm.Store, database: Database, connection: Any
) -> None:
    with rolled_back(database, connection):
        offsets = bound(orders, connection)
    assert offsets.load([PLACE]) == {}
    offsets.begin({PLACE: Position(1)})
    assert rows(database) == [("orders", 0, 1, -1)]


def test_a_table_may_have_a_name_of_its_own_in_a_schema(
    orders: klamm.Store, postgres: Postgres, database: Database, connection: Any
) -> None:
    if database.kind == "sqlite":
        table = "main.Progress"
    else:
        run(connection, "CREATE SCHEMA IF NOT EXISTS own")
        table = "own.Progress"
    offsets = SqlOffsets(connection, "billing", table=table)
    offsets.bind(orders._acquired())
    offsets.begin({PLACE: Position(1)})
    assert offsets.load([PLACE]) == {PLACE: Position(1)}


# Two at once


def both(database: Database, store: klamm.Store, act: Callable[[SqlOffsets, Any], None]) -> list[Any]:
    """`act` in two connections at once, as far as the database lets them: what became of each."""
    outcomes: list[Any] = ["nothing", "nothing"]
    connections = [database.connect(), database.connect()]
    all_offsets = [bound(store, connection) for connection in connections]
    entered, leave = threading.Event(), threading.Event()

    def first() -> None:
        with database.transaction(connections[0]):
            act(all_offsets[0], connections[0])
            entered.set()
            assert leave.wait(30)
        outcomes[0] = "committed"

    def second() -> None:
        try:
            with database.transaction(connections[1]):
                act(all_offsets[1], connections[1])
            outcomes[1] = "committed"
        except Exception as error:
            outcomes[1] = type(error).__name__

    def waits_for_the_first() -> bool:
        query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        return database.kind == "sqlite" or all_of(database, query) != [(0,)]

    # sqlite3 would not let a thread use another's connection; here only one thread at a time does.
    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    assert entered.wait(30)
    threads[1].start()
    until(waits_for_the_first, "the second process meets the first one's lock")
    leave.set()
    for thread in threads:
        thread.join()
    for connection in connections:
        connection.close()
    return outcomes


@pytest.fixture
def threaded(database: Database, monkeypatch: pytest.MonkeyPatch) -> Database:
    plain: Any = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **options: plain(*args, check_same_thread=False, **options))
    return database


def test_of_two_that_commit_the_same_batch_one_goes_on(orders: klamm.Store, threaded: Database) -> None:
    with closing(threaded.connect()) as connection:
        bound(orders, connection).begin({PLACE: Position(0)})
    assert both(threaded, orders, lambda offsets, _: offsets.commit(entry(0, 10))) == ["committed", "CommitGap"]
    assert rows(threaded) == [("orders", 0, 10, 0)]


def test_of_two_that_commit_the_first_batch_without_a_row_one_goes_on(orders: klamm.Store, threaded: Database) -> None:
    def act(offsets: SqlOffsets, connection: Any) -> None:
        offsets.begin({PLACE: Position(0)})  # in the transaction: it is not stored
        offsets.commit(entry(0, 10))

    assert both(threaded, orders, act) == ["committed", "CommitGap"]
    assert rows(threaded) == [("orders", 0, 10, 0)]


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_under_stricter_isolation_the_drivers_error_passes(orders: klamm.Store, postgres: Postgres, level: str) -> None:
    with closing(postgres.connect()) as connection:
        bound(orders, connection).begin({PLACE: Position(0)})

    def act(offsets: SqlOffsets, connection: Any) -> None:
        connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        offsets.commit(entry(0, 10))

    assert both(postgres, orders, act) == ["committed", "SerializationFailure"]
    assert rows(postgres) == [("orders", 0, 10, 0)]


def test_many_may_make_the_table_at_once(orders: klamm.Store, threaded: Database) -> None:
    gate, failed = threading.Barrier(8), []

    def make() -> None:
        with closing(threaded.connect()) as connection:
            gate.wait(30)
            try:
                SqlOffsets(connection, "billing")
            except Exception as error:
                failed.append(error)

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


# With a consumer


def make_results(connection: Any) -> None:
    run(connection, 'CREATE TABLE results ("partition" INTEGER, "offset" INTEGER)')


def save(connection: Any, batch: klamm.Batch) -> None:
    for record in batch:
        run(connection, "INSERT INTO results VALUES (?, ?)", (record.partition, record.offset))


def results(database: Database) -> list[Any]:
    return all_of(database, 'SELECT "partition", "offset" FROM results ORDER BY 1, 2')


def test_a_consumer_goes_on_where_the_database_stands(orders: klamm.Store, database: Database, connection: Any) -> None:
    make_results(connection)
    for _ in range(3):  # each time another process, as it were
        offsets = SqlOffsets(connection, "billing")
        with orders.consumer("orders", offsets=offsets, wait=0) as consumer:
            for _ in range(2):
                batch = consumer.poll(max_records=40)
                with database.transaction(connection):
                    save(connection, batch)
                    consumer.commit(batch)
    assert results(database) == [(0, n) for n in range(200)]
    assert rows(database) == [("orders", 0, 200, 0)]


@pytest.mark.parametrize("stored", [True, False], ids=["start is stored", "start is not stored"])
@pytest.mark.parametrize("fails", ["before the commit", "after the commit"])
def test_after_a_rollback_the_consumer_is_put_back_and_nothing_is_missing_or_twice(
    orders: klamm.Store, database: Database, connection: Any, fails: str, stored: bool
) -> None:
    make_results(connection)
    failing = [0, 3, 4, 9]  # of the batches that are tried
    gaps, tries = [], 0
    if stored:
        consumer = orders.consumer("orders", offsets=SqlOffsets(connection, "billing"), wait=0)
    else:
        with database.transaction(connection):
            consumer = orders.consumer("orders", offsets=SqlOffsets(connection, "billing"), wait=0)
    while batch := consumer.poll(max_records=20):
        try:
            with database.transaction(connection):
                save(connection, batch)
                if tries in failing and fails == "before the commit":
                    raise ZeroDivisionError
                consumer.commit(batch)
                if tries in failing:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            pass
        except klamm.CommitGap as gap:
            gaps.append(gap.expected < gap.begin == batch.begin)
        tries += 1
    assert gaps and all(gaps)
    assert results(database) == [(0, n) for n in range(200)]


def test_the_same_batch_may_be_tried_again_in_another_transaction(
    orders: klamm.Store, database: Database, connection: Any
) -> None:
    make_results(connection)
    with orders.consumer("orders", offsets=SqlOffsets(connection, "billing"), wait=0) as consumer:
        while batch := consumer.poll(max_records=70):
            with rolled_back(database, connection):
                save(connection, batch)
                consumer.commit(batch)
            with database.transaction(connection):
                save(connection, batch)
                consumer.commit(batch)
    assert results(database) == [(0, n) for n in range(200)]


def test_of_two_consumers_that_read_the_same_one_goes_on_and_the_other_is_put_behind_it(
    orders: klamm.Store, database: Database, connection: Any
) -> None:
    make_results(connection)
    with closing(database.connect()) as connected:
        pair = [
            (each, orders.consumer("orders", offsets=SqlOffsets(each, "billing"), wait=0))
            for each in (connection, connected)
        ]
        gaps, turn = [], 0
        while len(results(database)) < 200:
            own, consumer = pair[turn % 2]
            batch = consumer.poll(max_records=30)
            turn += 1
            try:
                with database.transaction(own):
                    save(own, batch)
                    consumer.commit(batch)
            except klamm.CommitGap as gap:
                gaps.append(gap.expected > gap.begin)
    assert gaps and all(gaps)
    assert results(database) == [(0, n) for n in range(200)]


def test_a_group_shares_partitions_and_the_database_knows_where_they_stand(
    store: klamm.Store, database: Database, connection: Any
) -> None:
    make_results(connection)
    store.topics.create("shared", partitions=4)
    for n in range(400):
        store.append("shared", b"%d" % n, partition=n % 4, acks=1)
    with closing(database.connect()) as connected:

        def step(own: Any, consumer: klamm.Consumer) -> None:
            batch = consumer.poll(max_records=10, timeout=0)
            with database.transaction(own):
                save(own, batch)
                consumer.commit(batch)

        first = store.consumer("shared", group="g", offsets=SqlOffsets(connection, "billing"))
        while len(first.assignment()) < 4 or len(results(database)) < 100:
            step(connection, first)
        second = store.consumer("shared", group="g", offsets=SqlOffsets(connected, "billing"))
        until(lambda: step(connection, first) or step(connected, second) or second.assignment(), "the second joins")
        assert not set(first.assignment()) & set(second.assignment())
        second.close()  # what it had goes back, from where the database stands
        until(lambda: step(connection, first) or len(results(database)) == 400, "all is read")
        first.close()
    assert results(database) == [(number, n) for number in range(4) for n in range(100)]


def test_a_row_ahead_of_the_log_goes_on_where_its_epoch_ended(
    orders: klamm.Store, database: Database, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = orders.consumer("orders", offsets=SqlOffsets(connection, "billing"), wait=0)
    with consumer, database.transaction(connection):
        consumer.commit(consumer.poll(max_records=150))
    partition = orders._acquired().topic("orders").partition(0)
    monkeypatch.setattr(partition, "epochs", lambda: ((0, 0), (1, 120)))  # a power cut: epoch 0 ended at 120
    with orders.consumer("orders", offsets=SqlOffsets(connection, "billing"), wait=0) as consumer:
        assert consumer.position("orders", 0).offset == 120
        batch = consumer.poll(max_records=10)
        with rolled_back(database, connection):
            consumer.commit(batch)
        lost = consumer.poll(max_records=10)
        with pytest.raises(klamm.CommitGap), database.transaction(connection):
            consumer.commit(lost)
        batch = consumer.poll(max_records=10)
        assert (batch.begin, batch.end) == (120, 130)
        with database.transaction(connection):
            consumer.commit(batch)
    assert rows(database)[0][:3] == ("orders", 0, 130)


# Refused


@pytest.mark.parametrize("table", ["", "a b", "a.b.c", "x; DROP TABLE y", "1x", 'x"'])
def test_a_table_is_a_plain_name(table: str) -> None:
    with closing(sqlite3.connect(":memory:")) as connection, pytest.raises(klamm.InvalidSetting, match="table"):
        SqlOffsets(connection, "billing", table=table)


def test_only_connections_of_the_two_drivers_are_taken() -> None:
    for stranger in [object(), sqlite3, None, threading.Lock()]:
        with pytest.raises(TypeError, match="expected a connection of sqlite3, or of psycopg"):
            SqlOffsets(stranger, "billing")


def test_a_name_is_wanted() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        with pytest.raises(klamm.InvalidSetting, match="name"):
            SqlOffsets(connection, "")
        with pytest.raises(TypeError, match="name"):
            SqlOffsets(connection, 7)  # type: ignore[arg-type]
