"""klamm.db as a file: who may write when, what a fork leaves, what stays when everybody has gone."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

import klamm
from klamm.errors import KlammError, NewerFormat, NotAStore, StoreError
from klamm.spark import batches as spark_batches
from klamm.spark.batches import BatchId
from klamm.store import database as database_module
from klamm.store import once, transaction_table
from klamm.store.catalog import Catalog
from klamm.store.database import APPLICATION_ID, FORMAT_VERSION
from klamm.store.rows import crc
from klamm.store.transaction_state import PROCESS, SERVER, Row
from tests.store.conftest import lock_of, nothing

ROOT = Path(__file__).parent.parent.parent


def in_child(code: str, *arguments: str) -> str:
    """What a Python process prints that runs `code`."""
    prelude = (
        "import os, sys\nfrom klamm.store.catalog import Catalog\nfrom tests.store.conftest import lock_of, nothing\n"
    )
    return subprocess.run(
        [sys.executable, "-c", prelude + textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    ).stdout


# Creating and opening


def test_creating_again_keeps_what_is_there(tmp_path: Path, path: str) -> None:
    for store_id in ("first", "second"):
        with closing(Catalog.create(path, lock_of(tmp_path), store_id)) as catalog:
            assert catalog.store_id == "first"
            if store_id == "first":
                catalog.create_topic("orders", 1, {}, nothing)
            assert [topic.name for topic in catalog.topics()] == ["orders"]


def test_a_creator_killed_at_any_step_is_finished_by_the_next(tmp_path: Path) -> None:
    code = """
        import signal, sqlite3
        from klamm.store import database
        left = [int(sys.argv[2])]
        def step(*_):
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        class Connection(sqlite3.Connection):
            def execute(self, *arguments):
                step()
                cursor = super().execute(*arguments)
                step()
                return cursor
        sqlite3.connect = lambda *a, connect=sqlite3.connect, **k: connect(*a, factory=Connection, **k)
        for n in range(int(sys.argv[2]), 1000, 3):
            pid = os.fork()
            if pid == 0:
                left[0] = n
                os.mkdir(f"{sys.argv[1]}/{n}")
                Catalog.create(f"{sys.argv[1]}/{n}/klamm.db", lock_of(f"{sys.argv[1]}/{n}"), "first")
                os._exit(0)
            if os.waitpid(pid, 0)[1] == 0:
                break
        print(n)
    """
    last = int(in_child(code, str(tmp_path), "0"))
    assert last > 20
    whole = 0
    for n in range(last % 3, last + 1, 3):
        path = tmp_path / str(n) / "klamm.db"
        if path.exists():
            with suppress(NotAStore):
                Catalog(str(path), lock_of(path.parent)).close()
                whole += 1
        with closing(Catalog.create(str(path), lock_of(path.parent), "second")) as catalog:
            assert catalog.store_id in ("first", "second")
            catalog.create_topic("orders", 1, {}, nothing)
            assert catalog.check() == []
    assert 0 < whole < last / 3 - 3


def test_what_is_no_database_is_no_store(tmp_path: Path, path: str) -> None:
    db_lock = lock_of(tmp_path)
    with pytest.raises(NotAStore, match=r"klamm\.db: there is no such file"):
        Catalog(path, db_lock)
    Path(path).write_bytes(b"not a database " * 100)
    for make in (Catalog, lambda path, db_lock: Catalog.create(path, db_lock, "x")):
        with pytest.raises(NotAStore, match=r"klamm\.db: file is not a database"):
            make(path, db_lock)
    Path(path).unlink()
    Path(path).mkdir()
    with pytest.raises(NotAStore):
        Catalog.create(path, db_lock, "x")


def test_a_database_of_another_program_is_no_store_and_stays_as_it_is(tmp_path: Path, path: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE songs (title)")
    before = Path(path).read_bytes()
    for make in (Catalog, lambda path, db_lock: Catalog.create(path, db_lock, "x")):
        with pytest.raises(NotAStore, match="of another program"):
            make(path, lock_of(tmp_path))
    assert Path(path).read_bytes() == before


def test_a_newer_format_is_refused(catalog: Catalog, tmp_path: Path, path: str) -> None:
    catalog.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        connection.execute("PRAGMA user_version = 99")
    for make in (Catalog, lambda path, db_lock: Catalog.create(path, db_lock, "x")):
        with pytest.raises(NewerFormat, match=f"has format 99, this Klamm knows formats up to {FORMAT_VERSION}"):
            make(path, lock_of(tmp_path))


def to_format_1(path: str) -> None:
    """As the first version wrote it: no groups, no transactions."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            if name not in ("meta", "topics", "partitions"):
                connection.execute(f"DROP TABLE {name}")
        connection.execute("DELETE FROM meta WHERE key IN ('next_group', 'settings', 'changes', 'features')")
        connection.execute("PRAGMA user_version = 1")
    forget_new_fields(path)


def forget_new_fields(path: str) -> None:
    """In slot 0 of `heads`, what formats before 4 did not have: inodes of lock files, changes, store id (slot.h)."""
    with open(f"{os.path.dirname(path)}/heads", "r+b") as heads:
        heads.seek(208)
        heads.write(bytes(56))


def test_a_store_of_format_1_is_brought_up_to_date_when_it_is_opened_for_writing(tmp_path: Path) -> None:
    with klamm.open(tmp_path / "store") as store:
        store.topics.create("orders", 2)
        store.append_many("orders", [b"%d" % n for n in range(10)], partition=0)
    to_format_1(f"{tmp_path}/store/klamm.db")
    with pytest.raises(StoreError, match="open it for writing once"):
        klamm.open(tmp_path / "store", read_only=True)
    with klamm.open(tmp_path / "store") as store:
        with store.consumer("orders", group="g", wait=0) as consumer, consumer.transaction() as tx:
            batch = consumer.poll()
            assert len(batch) == 10
            tx.send("orders", b"after", partition=1)
            tx.commit_offsets(batch)
        assert store.check().breaches == [] and store.settings()["group.max.size"] == "1000"
    with klamm.open(tmp_path / "store", read_only=True) as store:
        assert list(store.groups) == ["g"]


def to_format_4(path: str) -> None:
    """As the version with two machines for transactions wrote it: two tables."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript(
            """
            DROP TABLE free_slots;
            ALTER TABLE members RENAME COLUMN member_index TO place;
            DELETE FROM meta WHERE key = 'features';
            DROP TABLE once;
            DROP TABLE lineage;
            CREATE TABLE spark_batches (
                writer TEXT PRIMARY KEY, batch INTEGER NOT NULL, committed_ms INTEGER NOT NULL, crc INTEGER NOT NULL,
                plan TEXT NOT NULL DEFAULT '', ends TEXT NOT NULL DEFAULT ''
            ) WITHOUT ROWID;
            DROP TABLE transactions;
            CREATE TABLE transactions (
                producer_id INTEGER NOT NULL, epoch INTEGER NOT NULL, state TEXT NOT NULL, name TEXT,
                timeout_ms INTEGER NOT NULL, boot_id TEXT NOT NULL, started_boot_ms INTEGER NOT NULL,
                partitions TEXT NOT NULL, crc INTEGER NOT NULL, PRIMARY KEY (producer_id, epoch)
            ) WITHOUT ROWID;
            CREATE TABLE wire_producers (
                producer_id INTEGER PRIMARY KEY, name TEXT NOT NULL, epoch INTEGER NOT NULL,
                last_epoch INTEGER NOT NULL, previous_id INTEGER NOT NULL, state TEXT NOT NULL,
                ended_epoch INTEGER NOT NULL, timeout_ms INTEGER NOT NULL, boot_id TEXT NOT NULL,
                started_boot_ms INTEGER NOT NULL, started_ms INTEGER NOT NULL, used_ms INTEGER NOT NULL,
                partitions TEXT NOT NULL, groups TEXT NOT NULL, crc INTEGER NOT NULL
            );
            PRAGMA user_version = 4;
            """
        )


def put_row(path: str, table: str, *values: object) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        marks = ", ".join("?" * (len(values) + 1))
        connection.execute(f"INSERT INTO {table} VALUES ({marks})", (*values, crc(*values)))


def test_a_store_of_format_4_keeps_its_transactions(tmp_path: Path) -> None:
    with klamm.open(tmp_path / "store") as store:
        store.topics.create("orders", 2)
        topic_id = store.topics.describe("orders").id
    path, where = f"{tmp_path}/store/klamm.db", f'{{"{topic_id}": [0, 1]}}'
    to_format_4(path)
    embedded, wire = (60_000, "boot", 7), (60_000, "boot", 7, 8, 9)
    rows = [
        Row(1, 3, PROCESS, "ongoing", None, 3, -1, -1, *embedded),
        Row(1, 2, PROCESS, "prepared_commit", None, 3, -1, -1, *embedded),
        Row(2, 0, PROCESS, "prepared_abort", "billing", 1, -1, -1, *embedded),
        Row(3, 0, SERVER, "empty", "a", 0, -1, -1, *wire),
        Row(4, 5, SERVER, "ongoing", "b", 5, 4, -1, *wire),
        Row(5, 5, SERVER, "prepared_commit", "c", 6, 5, 2, *wire),
        Row(6, 5, SERVER, "prepared_abort", "d", 5, -1, -1, *wire),
        Row(7, 9, SERVER, "complete_commit", "e", 9, 8, -1, *wire),
    ]
    for row in rows:
        name, times = (row.producer_id, row.name), (row.timeout_ms, row.boot_id, row.started_boot_ms)
        if row.owner == PROCESS:
            put_row(path, "transactions", row.producer_id, row.epoch, row.state, row.name, *times, where)
            continue
        ended = row.epoch if row.is_prepared else -1
        more = (row.next_epoch, row.last_epoch, row.previous_id, row.state, ended)
        put_row(path, "wire_producers", *name, *more, *times, row.started_ms, row.used_ms, where, '["g"]')
        put_row(path, "transaction_names", row.name, row.producer_id)
    with closing(Catalog(path, lock_of(tmp_path))) as catalog:
        assert catalog.format_version == FORMAT_VERSION
        with catalog.database.reading() as execute:
            both = frozenset({(topic_id, 0), (topic_id, 1)})
            groups = {PROCESS: frozenset[str](), SERVER: frozenset({"g"})}
            expected = [row._replace(partitions=both, groups=groups[row.owner]) for row in rows]
            assert transaction_table.rows(execute) == sorted(expected, key=lambda row: row.key)
            assert transaction_table.check(execute) == []
    with klamm.open(tmp_path / "store") as store:
        assert list(store.transactions) == [], "those of processes that are gone, and of another boot"


def test_a_store_of_format_4_keeps_its_batches_of_spark(tmp_path: Path) -> None:
    klamm.open(tmp_path / "store").close()
    path = f"{tmp_path}/store/klamm.db"
    to_format_4(path)
    rows = [
        ("query 1 to topic orders", 4, 1, "offsets a", '{"in": {}}'),
        ("app a to b to topics by column", 5, 2, "records 1/1", ""),
        ("query 2", 6, 3, "", ""),
    ]
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for row in rows:
            checksum = crc(*row) if row[3] else crc(*row[:3])
            connection.execute("INSERT INTO spark_batches VALUES (?, ?, ?, ?, ?, ?)", (*row[:3], checksum, *row[3:]))
    with klamm.open(tmp_path / "store") as store:
        assert store.check().ok
        database = store._acquired().catalog.database
        with database.reading() as execute:
            found = once.find(execute, "query 1", "topic orders"), once.find(execute, "app a to b", "topics by column")
        assert found[0] == ("query 1", "topic orders", 4, "offsets a", '{"in": {}}')
        assert found[1] == ("app a to b", "topics by column", 5, "records 1/1", "")
        assert spark_batches.is_committed(database, BatchId("query 2", "topic any", 6, "offsets z"))


def test_a_store_of_format_4_keeps_its_named_members(tmp_path: Path) -> None:
    with klamm.open(tmp_path / "store") as store:
        store.topics.create("orders", 2)
        with store.consumer("orders", group="g", wait=0, member="named") as consumer:
            consumer.poll()
        before = store._acquired().groups.rows(0)
        assert [row.name for row in before] == ["named"]
    to_format_4(f"{tmp_path}/store/klamm.db")
    with klamm.open(tmp_path / "store") as store:
        assert store._acquired().groups.rows(0) == before


def test_a_damaged_transaction_of_an_older_format_is_not_dropped(tmp_path: Path) -> None:
    klamm.open(tmp_path / "store").close()
    path = f"{tmp_path}/store/klamm.db"
    to_format_4(path)
    put_row(path, "transactions", 1, 2, "prepared_commit", None, 60_000, "boot", 7, "{}")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE transactions SET epoch = 3")
    with pytest.raises(NotAStore, match="producer id 1 is damaged"):
        klamm.open(tmp_path / "store")


def to_format_2(path: str) -> None:
    """As the version before the Kafka server wrote it: no transactions over the wire."""
    to_format_4(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for name in ("wire_producers", "pending_offsets", "wire_groups", "spark_batches", "deleted"):
            connection.execute(f"DROP TABLE {name}")
        connection.execute("DELETE FROM meta WHERE key = 'changes'")
        connection.execute("PRAGMA user_version = 2")
    forget_new_fields(path)


def test_a_store_of_format_2_keeps_its_groups_and_transactions(tmp_path: Path) -> None:
    with klamm.open(tmp_path / "store") as store:
        store.topics.create("orders", 2)
        store.append_many("orders", [b"%d" % n for n in range(10)], partition=0)
        with store.consumer("orders", group="g", wait=0) as consumer, consumer.transaction("name") as tx:
            tx.send("orders", b"one", partition=1)
            tx.commit_offsets(consumer.poll())
    to_format_2(f"{tmp_path}/store/klamm.db")
    with pytest.raises(StoreError, match="open it for writing once"):
        klamm.open(tmp_path / "store", read_only=True)
    with klamm.open(tmp_path / "store") as store:
        assert list(store.groups) == ["g"] and store.check().breaches == [] and list(store.transactions) == []
        with store.consumer("orders", group="g", wait=0) as consumer:
            assert [record.value for record in consumer.poll()] == [b"one"]


def to_format_3(path: str) -> None:
    """As the version before fingerprints of batches wrote it."""
    to_format_4(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for name in ("plan", "ends"):
            connection.execute(f"ALTER TABLE spark_batches DROP COLUMN {name}")
        row = ("query 1", 4, 1)
        connection.execute("INSERT INTO spark_batches VALUES (?, ?, ?, ?)", (*row, crc(*row)))
        connection.execute("DROP TABLE deleted")
        connection.execute("DELETE FROM meta WHERE key = 'changes'")
        connection.execute("PRAGMA user_version = 3")
    forget_new_fields(path)


def test_a_store_of_format_3_keeps_its_batches_of_spark(tmp_path: Path) -> None:
    klamm.open(tmp_path / "store").close()
    to_format_3(f"{tmp_path}/store/klamm.db")
    with klamm.open(tmp_path / "store") as store:
        assert store.check().breaches == []
        database = store._acquired().catalog.database
        assert spark_batches.is_committed(database, BatchId("query 1", "topic orders", 4, "offsets a"))
        assert not spark_batches.is_committed(database, BatchId("query 1", "topic orders", 5, "offsets a"))


def test_a_path_of_odd_characters_is_opened(tmp_path: Path) -> None:
    odd = tmp_path / "a?b#c%41 ü"
    odd.mkdir()
    with closing(Catalog.create(str(odd / "klamm.db"), lock_of(odd), "x")):
        assert (odd / "klamm.db").exists()


# The klamm.db lock and the write-ahead log


def test_every_write_and_every_checkpoint_is_under_the_klamm_db_lock(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = [False]
    real = lock_of(tmp_path)

    @contextmanager
    def db_lock() -> Iterator[None]:
        with real():
            held[0] = True
            try:
                yield
            finally:
                held[0] = False

    seen: list[str] = []

    class Connection(sqlite3.Connection):
        def execute(self, sql: str, *arguments: object) -> sqlite3.Cursor:
            if sql.lstrip().startswith(
                ("BEGIN IMMEDIATE", "INSERT", "UPDATE", "DELETE", "CREATE", "COMMIT", "PRAGMA wal_check")
            ):
                assert held[0], sql
                seen.append(sql.split(maxsplit=1)[0])
            return super().execute(sql, *arguments)  # type: ignore[arg-type]

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, factory=Connection, **k))
    monkeypatch.setattr(database_module, "WAL_LIMIT", 20_000)
    with closing(Catalog.create(path, db_lock, "x")) as catalog:
        for number in range(5):
            catalog.create_topic(f"t{number}", 10, {}, nothing)
            catalog.add_partitions(f"t{number}", 11, nothing)
            catalog.alter_settings(f"t{number}", {"retention.ms": 1})
            catalog.delete_topic(f"t{number}")
            catalog.allocate_producer_id()
    assert set(seen) == {"BEGIN", "INSERT", "UPDATE", "DELETE", "CREATE", "COMMIT", "PRAGMA"}


def test_the_write_ahead_log_stays_bounded(catalog: Catalog, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "WAL_LIMIT", 50_000)
    catalog.database._wal_limit = 50_000
    catalog.create_topic("orders", 1, {}, nothing)
    largest = 0
    for number in range(60):
        catalog.alter_settings("orders", {"retention.ms": number})
        largest = max(largest, os.stat(path + "-wal").st_size)
    assert largest < 200_000  # sixteen commits of two or three pages, and then some


def test_a_reader_that_stands_still_lets_the_log_grow_but_stops_nobody(
    catalog: Catalog, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "WAL_LIMIT", 20_000)
    catalog.database._wal_limit = 20_000
    catalog.create_topic("orders", 1, {}, nothing)
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM topics").fetchall()
        for number in range(30):
            catalog.alter_settings("orders", {"retention.ms": number})
        assert os.stat(path + "-wal").st_size > 100_000
    for number in range(60):
        catalog.alter_settings("orders", {"retention.ms": number})
    assert os.stat(path + "-wal").st_size < 100_000


def test_nothing_but_us_makes_checkpoints(catalog: Catalog) -> None:
    assert catalog.database.read("PRAGMA wal_autocheckpoint") == [(database_module.CHECKPOINT_PAGES,)]
    assert catalog.database.read("PRAGMA synchronous") == [(2,)]  # FULL


def test_a_writer_that_closes_empties_the_log_for_those_who_stay(catalog: Catalog, tmp_path: Path, path: str) -> None:
    with closing(Catalog(path, lock_of(tmp_path))) as staying:
        catalog.create_topic("orders", 1, {}, nothing)
        assert os.stat(path + "-wal").st_size > 0
        catalog.close()
        assert os.stat(path + "-wal").st_size == 0
        assert staying.topic("orders")


def test_closing_leaves_one_whole_file(catalog: Catalog, tmp_path: Path) -> None:
    catalog.create_topic("orders", 1, {}, nothing)
    catalog.close()
    assert sorted(name.name for name in tmp_path.iterdir()) == ["klamm.db", "lock"]


def test_what_was_written_survives_a_kill_of_the_writer(tmp_path: Path, path: str) -> None:
    code = """
        catalog = Catalog.create(sys.argv[1], lock_of(os.path.dirname(sys.argv[1])), "x")
        catalog.create_topic("orders", 3, {}, nothing)
        print("done", flush=True)
        os.kill(os.getpid(), 9)
    """
    with pytest.raises(subprocess.CalledProcessError) as killed:
        in_child(code, path)
    assert killed.value.stdout == "done\n"
    with closing(Catalog(path, lock_of(tmp_path))) as catalog:
        assert catalog.topic("orders").partitions == (1, 2, 3)


# Forks


LOCKS = """
def locked(path):
    "The bytes of the file that this process holds by its own locks."
    inode = os.stat(path).st_ino
    rows = [line.split() for line in open("/proc/locks") if "->" not in line]
    return [row[-2] for row in rows if int(row[-3].split(":")[2]) == inode and int(row[-4]) == os.getpid()]
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/locks")
def test_a_forked_child_holds_sqlites_locks_itself(tmp_path: Path, path: str) -> None:
    code = """
        path = sys.argv[1]
        catalog = Catalog.create(path, lock_of(os.path.dirname(path)), "x")
        first = catalog.allocate_producer_id()
        catalog.create_topic("orders", 1, {}, nothing)
        if os.fork() == 0:
            assert catalog.topic("orders")  # by a connection of its own
            catalog.database.db_lock = lock_of(os.path.dirname(path))
            assert catalog.allocate_producer_id() > first + 1
            catalog.close()
            mine = Catalog(path, lock_of(os.path.dirname(path)))
            assert mine.topic("orders")
            assert locked(path) and locked(path + "-shm")
            assert mine.allocate_producer_id() != first
            mine.create_topic("child", 1, {}, nothing)
            mine.close()
            os._exit(0)
        assert os.wait()[1] == 0
        assert catalog.topic("child").partitions == (2,)
        catalog.close()
        print("fine")
    """
    assert in_child(LOCKS + textwrap.dedent(code), path) == "fine\n"


def test_forks_beside_busy_threads_neither_hang_nor_lose(tmp_path: Path, path: str) -> None:
    code = """
        import threading
        path = sys.argv[1]
        catalog = Catalog.create(path, lock_of(os.path.dirname(path)), "x")
        stop = threading.Event()
        def work():
            number = 0
            while not stop.is_set():
                catalog.create_topic(f"t{number}", 1, {}, nothing)
                assert catalog.topics()
                number += 1
            print(number)
        thread = threading.Thread(target=work)
        thread.start()
        for n in range(15):
            if os.fork() == 0:
                mine = Catalog(path, lock_of(os.path.dirname(path)))
                mine.create_topic(f"c{n}", 1, {}, nothing)
                mine.close()
                os._exit(0)
            assert os.wait()[1] == 0
        stop.set()
        thread.join()
    """
    made = int(in_child(code, path))
    with closing(Catalog(path, lock_of(tmp_path))) as catalog:
        names = {topic.name for topic in catalog.topics()}
        assert names == {f"c{n}" for n in range(15)} | {f"t{n}" for n in range(made)}
        assert catalog.check() == []


def test_an_abandoned_connection_is_kept_and_never_closed(catalog: Catalog) -> None:
    connection = catalog.database._connection
    catalog.abandon()
    assert connection in database_module._abandoned
    assert catalog.topics() == []  # by a connection of its own
    database_module._abandoned.remove(connection)
    connection.close()


# Reading only where nothing may be written


READ_ONLY = """
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
from contextlib import closing, nullcontext
with closing(Catalog(sys.argv[1], nullcontext, read_only=True)) as catalog:
    print(*[topic.name for topic in catalog.topics()])
    print(*[topic.name for topic in catalog.topics()])
"""


@pytest.mark.parametrize("left", ["nothing", "a log", "a log and shared memory"])
def test_a_directory_that_cannot_be_written_is_read_without_missing_anything(left: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        path = directory / "klamm.db"
        with closing(Catalog.create(str(path), lock_of(directory), "x")) as catalog:
            catalog.create_topic("before", 1, {}, nothing)
        code = """
            catalog = Catalog(sys.argv[1], lock_of(os.path.dirname(sys.argv[1])))
            catalog.create_topic("after", 1, {}, nothing)
            os.kill(os.getpid(), 9)
        """
        if left != "nothing":
            with pytest.raises(subprocess.CalledProcessError):
                in_child(code, str(path))
            assert (directory / "klamm.db-wal").stat().st_size > 0
        if left == "a log":
            (directory / "klamm.db-shm").unlink()
        for file in directory.iterdir():
            file.chmod(0o444)
        directory.chmod(0o555)
        try:
            expected = "before\n" if left == "nothing" else "after before\n"
            assert in_child(READ_ONLY, str(path)) == expected * 2
            assert (directory / "klamm.db-shm").exists() == (left == "a log and shared memory")
        finally:
            directory.chmod(0o755)


def test_errors_of_the_disk_are_errors_of_ours(catalog: Catalog) -> None:
    for name in (
        "SQLITE_FULL",
        "SQLITE_IOERR_FSYNC",
        "SQLITE_BUSY",
        "SQLITE_READONLY",
        "SQLITE_CORRUPT",
        "SQLITE_CANTOPEN",
    ):
        error = sqlite3.OperationalError(f"injected {name}")
        error.sqlite_errorcode = getattr(sqlite3, name)
        with pytest.raises(KlammError, match=r"klamm\.db: .*injected"), database_module._explained(catalog.path):
            raise error
