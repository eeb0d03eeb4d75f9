"""Tasks write to a server, each in a transaction of its own, and the driver decides once for all. Without Spark."""

from __future__ import annotations

import os
import random
import signal
import socket
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

import klamm
from klamm.batch import Builder
from klamm.errors import BatchConflict, Fenced, InvalidSetting, KlammError, StoreError, UnknownTopic, Unsupported
from klamm.kafka.apis import TABLE
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.settings import STANDARD_AUTHORIZER
from klamm.kafka.transaction_coordinator import TransactionCoordinator
from klamm.kafka.wire.messages import DECIDE_TRANSACTIONS
from klamm.spark.batches import BatchId
from klamm.spark.options import ReadOptions
from klamm.spark.planner import Planner
from klamm.spark.range_reader import Task, forget_store, read, schema_for
from klamm.spark.server import decision
from klamm.spark.server.address import ServerAddress
from klamm.spark.server.attempt import Attempt, TaskTransaction
from klamm.spark.server.client import client_of
from klamm.spark.server.decision import Scope, commit, discard
from klamm.spark.sink import StreamWriter, WritePlan, _Stager
from klamm.spark.sink_options import WriteOptions
from klamm.spark.staged_batches import TaskCommit
from klamm.spark.staged_files import StagedName
from klamm.store.acl import Acl, Operation, PatternType, Permission, ResourceType
from klamm.store.acls import Acls
from klamm.store.joint_decision import Decision
from klamm.store.users import Users
from tests.crash.cases import seed_of
from tests.interop.proxy import Proxy
from tests.kafka.connect import served
from tests.procs import children, until
from tests.serving import restartable, serving
from tests.store.open_transactions import server_names

QUERY = "0b1c8ab6-5b3e-4bd5-9d9d-5a3e0b0f8a11"
SCOPE = Scope(f"query {QUERY}", "topic orders")
pytestmark = pytest.mark.usefixtures("clients")
SCHEMA = StructType([StructField("key", BinaryType()), StructField("value", BinaryType())])


@pytest.fixture
def address(store: klamm.Store) -> Iterator[str]:
    store.topics.create("orders", 3)
    with klamm.server(store) as found:
        yield found


def plan_of(address: str, more: dict[str, str] | None = None, *, schema: StructType = SCHEMA) -> WritePlan:
    given = {"server": address, "topic": "orders", **(more or {})}
    return WritePlan(schema, WriteOptions.parse({name: each for name, each in given.items() if each}, streaming=True))


def write(plan: WritePlan, values: list[bytes], *, task: int = 0, number: int | None = None) -> TaskCommit:
    """As a task does it. `number`: of the batch, for a task that asks whether it is decided."""
    columns = [pa.array([value[:1] for value in values], pa.binary()), pa.array(values, pa.binary())]
    rows = pa.record_batch(columns, names=["key", "value"])
    return _Stager(plan, StagedName(QUERY, 0, task, 0), SCOPE, number).run(iter([rows]))


def batch_id(number: int = 0, plan: str = "offsets a") -> BatchId:
    return BatchId(SCOPE.writer, "topic orders", number, plan, f'{{"in": {{"0": {number}}}}}')


def put(address: str, staged: list[TaskCommit], batch: BatchId | None = None) -> bool:
    transactions = [each.transaction for each in staged if each.transaction is not None]
    topics = sorted({topic.id for each in staged for topic in each.topics})
    client = client_of(ServerAddress.parse({"server": address}))
    is_whole = all(each.transaction is not None for each in staged if each.rows)
    return commit(client, SCOPE, transactions, topics, batch, is_whole=is_whole)


def contents(store: klamm.Store, topic: str = "orders") -> list[bytes]:
    with store.consumer(topic, start="earliest", wait=0) as consumer:
        return sorted(bytes(record.value) for record in consumer)


def is_open(store: klamm.Store) -> bool:
    partitions = store._acquired().topic("orders").partitions()
    return any(partition.ends().stable < partition.ends().end for partition in partitions)


def test_what_all_tasks_have_written_is_there_once_with_its_number(
    store: klamm.Store, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    plan = plan_of(address, {"compression": "zstd"})
    staged = [write(plan, [b"%d of %d" % (n, task) for n in range(50)], task=task) for task in range(3)]
    assert contents(store) == []
    assert put(address, staged, batch_id())
    whole = contents(store)
    assert len(whole) == 150 == len({*whole})
    # The same once more, by a driver that has not heard of it: its tasks have written again.
    assert not put(address, [write(plan, [b"again"], task=0)], batch_id())
    assert "Skipping query" in caplog.text and contents(store) == whole and not is_open(store)
    with pytest.raises(BatchConflict, match=r"batch 0 is in the log .topic orders., but was planned again"):
        put(address, [write(plan, [b"other"], task=0)], batch_id(plan="offsets b"))
    discard(client_of(ServerAddress.parse({"server": address})), SCOPE)  # as Spark has the writer abort
    assert put(address, [write(plan, [b"next"], task=0)], batch_id(1))
    with pytest.raises(BatchConflict, match="batch 0 comes after 1"):
        put(address, [write(plan, [b"old"], task=0)], batch_id(0))
    assert contents(store) == sorted([*whole, b"next"])
    assert len(server_names(store)) == 3, "a query uses the same ids again"
    assert klamm.check(store.path).ok


def test_a_driver_asks_once_for_each_batch_and_notices_one_that_another_has_committed(
    store: klamm.Store, address: str
) -> None:
    """It expects the row that it has written itself."""
    with Proxy(address) as proxy:

        def decisions(number: int, plan: str) -> int:
            before = len(proxy.of(DECIDE_TRANSACTIONS))
            assert put(proxy.address, staged, batch_id(number, plan)) == (number != 2)
            return len(proxy.of(DECIDE_TRANSACTIONS)) - before

        plan, mine = plan_of(address), ServerAddress.parse({"server": proxy.address})
        for number, requests in enumerate((2, 1)):
            staged = [write(plan, [b"%d" % number])]
            assert decisions(number, f"offsets {number}") == requests
        assert put(address, [write(plan, [b"2"])], batch_id(2, "offsets 2")), "another driver"
        assert decision._recorded[mine, SCOPE].number == 1
        staged = [write(plan, [b"2"])]
        assert decisions(2, "offsets 2") == 3, "one that fails, one that looks, and one that aborts"
        with pytest.raises(BatchConflict, match="was planned again with other offsets"):
            put(proxy.address, staged, batch_id(2, "offsets other"))
    assert contents(store) == [b"0", b"1", b"2"] and not is_open(store)


def test_a_task_that_comes_back_after_the_decision_is_fenced(store: klamm.Store, address: str) -> None:
    plan = plan_of(address)
    server = ServerAddress.parse({"server": address})
    info = store.topics.describe("orders")

    def begun(attempt: int, value: bytes) -> tuple[Attempt, memoryview]:
        made = Attempt(server, SCOPE.transactional_id(0, attempt), 60_000)
        made.name_topic(0, "orders", info.id)
        builder = Builder(1 << 20)
        builder.add(None, value)
        batch = memoryview(bytes(builder.seal()))
        made.add(0, 0, batch)
        made._send()
        return made, batch

    (slow, batch), (too_slow, _) = begun(1, b"speculative"), begun(2, b"speculative, too")
    chosen = write(plan, [b"chosen"], task=0)
    assert put(address, [chosen], batch_id())
    assert contents(store) == [b"chosen"] and not is_open(store)
    slow.add(0, 0, batch)
    with pytest.raises(Fenced, match="another attempt of this task has taken over"):
        slow.finish()
    slow.discard()
    # Nor can what it had written be decided by a driver that was asleep.
    too_slow.finish()
    assert too_slow.transaction is not None
    with pytest.raises(Fenced):
        commit(client_of(server), SCOPE, [too_slow.transaction], [], batch_id(1))


def test_an_attempt_takes_no_transaction_from_another_of_its_number(store: klamm.Store, address: str) -> None:
    """Spark counts attempts from 0 again when it runs a stage again, and may choose one of the first run."""
    plan = plan_of(address)
    first, second, third = (write(plan, [name], task=0) for name in (b"first", b"second", b"third"))
    assert put(address, [second], batch_id())
    assert contents(store) == [b"second"] and not is_open(store)
    for late in (first, third):
        with pytest.raises(Fenced):
            put(address, [late], batch_id(1))
    # Each that is killed keeps its id until the next decision. There are so many of them.
    killed = [write(plan, [b"killed %d" % n], task=0) for n in range(6)]
    assert len(server_names(store)) == 4
    with pytest.raises(Fenced):
        put(address, [killed[1]], batch_id(1))
    assert put(address, [killed[2]], batch_id(1))
    assert contents(store) == [b"killed 2", b"second"] and not is_open(store)


def test_a_task_that_begins_when_its_batch_is_in_the_log_writes_nothing(store: klamm.Store, address: str) -> None:
    """Nobody would end its transaction, and readers would wait behind it."""
    plan = plan_of(address)
    assert put(address, [write(plan, [b"chosen"], number=3)], batch_id(3))
    for number in (2, 3):
        late = write(plan, [b"late"], number=number)
        assert (late.rows, late.transaction) == (1, None) and not is_open(store)
    assert not put(address, [late], batch_id(3))
    with pytest.raises(BatchConflict, match="was planned again"):
        put(address, [late], batch_id(3, "offsets b"))
    # A driver that does not find it there any more has nothing to commit.
    with pytest.raises(KlammError, match="was in the log when a task began, and is no longer: nothing was written"):
        put(address, [late, write(plan, [b"x"], task=1)], batch_id(4))
    assert put(address, [write(plan, [b"next"], number=4)], batch_id(4))
    assert contents(store) == [b"chosen", b"next"] and not is_open(store)


def test_a_task_that_is_stopped_and_goes_on_after_the_decision_changes_nothing(path: Path) -> None:
    """Neither of its own micro-batch, nor of the next one. One task is stopped before it sends anything, one later."""

    def run(number: int) -> TaskTransaction | None:
        def rows() -> Iterator[Any]:
            for part in range(2):
                if part == number:
                    os.kill(os.getpid(), signal.SIGSTOP)
                values = pa.array([b"late" + bytes(600_000)] * 4, pa.binary())
                yield pa.record_batch([pa.array([b"k"] * 4, pa.binary()), values], names=["key", "value"])

        return _Stager(plan_of(server.address), StagedName(QUERY, 0, number, 0), SCOPE, 0).run(rows()).transaction

    with klamm.open(path) as store, serving(path) as server, children() as start:
        store.topics.create("orders", 3)
        server.ready()
        late = []
        for number in range(2):
            late.append(start(partial(run, number)))
            assert late[-1].stopped() and is_open(store) == bool(number)
        plan = plan_of(server.address)
        assert put(server.address, [write(plan, [b"chosen %d" % task], task=task) for task in range(2)], batch_id())
        following = [write(plan, [b"following %d" % task], task=task) for task in range(2)]
        for child in late:
            child.go_on()
        assert late[0].answer() is None, "it has written nothing"
        late[1].ended()
        assert "another attempt of this task has taken over" in late[1].error
        assert put(server.address, following, batch_id(1))
        assert contents(store) == [b"chosen 0", b"chosen 1", b"following 0", b"following 1"] and not is_open(store)


def test_a_task_that_fails_aborts_and_a_job_that_fails_leaves_nothing(store: klamm.Store, address: str) -> None:
    plan = plan_of(address)

    def rows() -> Iterator[Any]:
        values = pa.array([b"v" * 600_000] * 4, pa.binary())
        yield pa.record_batch([pa.array([b"k"] * 4, pa.binary()), values], names=["key", "value"])
        assert is_open(store), "some of it is written"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        _Stager(plan, StagedName(QUERY, 0, 0, 0), SCOPE).run(rows())
    assert not is_open(store)
    write(plan, [b"x"], task=1)
    assert is_open(store)
    job = Scope(SCOPE.writer, SCOPE.target, is_last=True)
    for _ in range(2):
        discard(client_of(ServerAddress.parse({"server": address})), job)
    assert not is_open(store) and contents(store) == []
    assert server_names(store) == [], "the ids of a job that is over are forgotten"


def test_what_a_job_leaves_is_aborted_though_its_connection_was_closed_or_the_server_is_busy(
    store: klamm.Store, address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else readers wait behind it until it times out."""
    plan = plan_of(address)
    client = client_of(ServerAddress.parse({"server": address}))
    write(plan, [b"x"])
    client.knows(DECIDE_TRANSACTIONS)
    for connection in client._connections.values():
        connection._socket.shutdown(socket.SHUT_RDWR)  # as a server does with one that is idle for long
    discard(client, SCOPE)
    assert not is_open(store)

    def decide(self: TransactionCoordinator, decision: Decision) -> Any:
        answers = codes.pop(0) if codes else ErrorCode.NONE
        return (answers, None) if answers else original(self, decision)

    original = TransactionCoordinator.decide
    monkeypatch.setattr(TransactionCoordinator, "decide", decide)
    write(plan, [b"x"])
    codes = [ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_NOT_AVAILABLE]
    discard(client, SCOPE)
    assert not codes and not is_open(store) and not caplog.records
    codes = [ErrorCode.INVALID_TXN_STATE]
    discard(client, SCOPE)
    assert "could not be aborted, and will time out: " in caplog.text


def test_a_stream_that_fails_before_any_task_is_done_leaves_no_transaction_open(
    store: klamm.Store, address: str, tmp_path: Path
) -> None:
    """Spark has no message of a task then, so the checkpoint says whose transactions they are."""
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text(f'{{"id": "{QUERY}"}}')
    options = {"server": address, "topic": "orders", "checkpointLocation": f"file://{checkpoint}"}
    write(plan_of(address), [b"x"])
    assert is_open(store)
    StreamWriter(SCHEMA, options, False).abort([None, None], 0)
    assert not is_open(store) and contents(store) == []


def test_a_task_without_rows_has_no_transaction(store: klamm.Store, address: str) -> None:
    plan = plan_of(address)
    nothing = _Stager(plan, StagedName(QUERY, 0, 0, 0), SCOPE).run(iter([]))
    assert nothing.transaction is None and nothing.rows == 0
    assert put(address, [nothing], batch_id())
    assert server_names(store) == []


def test_a_topic_that_was_deleted_meanwhile_is_told_and_nothing_is_committed(store: klamm.Store, address: str) -> None:
    store.topics.create("other")
    both = StructType([*SCHEMA.fields, StructField("topic", StringType())])
    plan = plan_of(address, {"topic": ""}, schema=both)
    rows = pa.record_batch([[b"k", b"k"], [b"1", b"2"], ["orders", "other"]], names=["key", "value", "topic"])
    staged = _Stager(plan, StagedName(QUERY, 0, 0, 0), SCOPE).run(iter([rows]))
    store.topics.delete("other")
    with pytest.raises(UnknownTopic, match="was deleted"):
        put(address, [staged], batch_id())
    assert contents(store) == []
    store.topics.create("other")
    with pytest.raises(UnknownTopic, match="other/0: the topic was deleted while it was being written to"):
        _Stager(plan, StagedName(QUERY, 0, 0, 0), SCOPE).run(iter([rows]))


def test_a_server_that_is_not_klamms_is_refused_before_anything_is_written(
    store: klamm.Store, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(TABLE, DECIDE_TRANSACTIONS.key)
    with pytest.raises(Unsupported, match=r"it is not klamm serve .*at least once; nothing was written"):
        plan_of(address)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"acks": "1"}, "acks: 1 is for a directory"),
        ({"transaction.timeout.ms": "0"}, "transaction.timeout.ms: '0' is invalid"),
        ({"transaction.timeout.ms": str(1 << 40)}, "is invalid"),
        ({"server": "", "path": "/a", "transaction.timeout.ms": "1"}, "transaction.timeout.ms: is for a server"),
        ({"path": "/a"}, "path and server are both given"),
    ],
)
def test_options_that_a_server_does_not_honour_are_refused(given: dict[str, str], sentence: str) -> None:
    options = {"server": "h:1", "topic": "t", **given}
    with pytest.raises(InvalidSetting, match=sentence):
        WriteOptions.parse({name: value for name, value in options.items() if value}, streaming=True)


def test_a_timeout_beyond_the_servers_is_one_sentence(address: str) -> None:
    plan = plan_of(address, {"transaction.timeout.ms": "900001"})
    with pytest.raises(InvalidSetting, match=r"raise the server.s transaction\.max\.timeout\.ms"):
        write(plan, [b"x"])


def test_a_user_needs_the_right_to_decide(store: klamm.Store) -> None:
    store.topics.create("orders", 3)
    users = Users(store._acquired().catalog)
    users.add("spark", "secret")
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl_enabled_mechanisms": "PLAIN",
        "authorizer_class_name": STANDARD_AUTHORIZER,
    }

    def allow(kind: ResourceType, name: str, operation: Operation, pattern: PatternType = PatternType.LITERAL) -> None:
        acl = Acl(kind, name, pattern, "User:spark", "*", operation, Permission.ALLOW)
        Acls(store._acquired().catalog).add([acl])

    for operation in (Operation.WRITE, Operation.DESCRIBE):
        allow(ResourceType.TOPIC, "orders", operation)
    allow(ResourceType.TRANSACTIONAL_ID, "query ", Operation.WRITE, PatternType.PREFIXED)
    with served(Path(store.path), **settings) as server:
        login = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "spark",
            "sasl.password": "secret",
        }
        host = f"127.0.0.1:{server.server.endpoints[0].port}"
        plan = plan_of(host, login)
        staged = write(plan, [b"x"])
        client = client_of(ServerAddress.parse({"server": host, **login}))
        assert staged.transaction is not None
        with pytest.raises(StoreError, match=r"the user may not do that .TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
            commit(client, SCOPE, [staged.transaction], [], batch_id())
        assert contents(store) == []
        allow(ResourceType.TRANSACTIONAL_ID, "query ", Operation.TWO_PHASE_COMMIT, PatternType.PREFIXED)

        def decided() -> bool:
            try:
                return commit(client, SCOPE, [staged.transaction], [], batch_id())  # type: ignore[list-item]
            except KlammError:
                return False

        until(decided, "the right is known")
        reading = ReadOptions.parse({"server": host, "subscribe": "orders", **login}, streaming=False)
        with closing(Planner(reading)) as planner:
            ranges, store_id = planner.batch(), planner.store_id
        (task,) = [Task(reading.path, store_id, each, "read_committed", True, reading.server) for each in ranges]
        with pytest.raises(StoreError, match=r"may not do that .TOPIC_AUTHORIZATION_FAILED"):
            list(read(task, schema_for(reading.columns)))
        allow(ResourceType.TOPIC, "orders", Operation.READ)

        def read_values() -> list[Any]:
            try:
                return [value for each in read(task, schema_for(["value"])) for value in each.column(0).to_pylist()]
            except StoreError:
                return []

        assert until(read_values, "the right is known") == [b"x"]
        forget_store()
    assert contents(store) == [b"x"]


def test_a_server_that_is_killed_between_any_two_requests_is_a_pause(path: Path) -> None:
    with klamm.open(path) as store:
        store.topics.create("orders", 3)
        with restartable(path) as server:
            plan = plan_of(server.address)
            staged = write(plan, [b"%d" % n for n in range(100)], task=0)
            server.kill()
            server.begin()
            staged_too = write(plan, [b"%d" % n for n in range(100, 200)], task=1)
            server.kill()
            server.begin()
            assert put(server.address, [staged, staged_too], batch_id())
            server.kill()
            server.begin()
            assert not put(server.address, [staged, staged_too], batch_id()), "as if the response had been lost"
            server.ready()
        assert contents(store) == sorted(b"%d" % n for n in range(200))
        assert not is_open(store)
    assert klamm.check(path).ok


@pytest.mark.parametrize("rounds", [4, pytest.param(100, marks=pytest.mark.soak)])
def test_tasks_drivers_and_the_server_killed_at_random_leave_each_record_once(path: Path, rounds: int) -> None:
    dice = random.Random(seed_of())
    with klamm.open(path) as store:
        store.topics.create("orders", 3)
        with restartable(path) as server:
            server.ready()
            address, wanted = server.address, []
            for number in range(rounds):
                values = [b"%d %d" % (number, n) for n in range(60)]
                wanted += values
                is_done = False
                while not is_done:
                    is_done = _run_batch(address, number, values, dice, server)
        assert contents(store) == sorted(wanted)
        assert not is_open(store)
        assert klamm.check(path).ok


def _run_batch(address: str, number: int, values: list[bytes], dice: random.Random, server: Any) -> bool:
    """As Spark runs a micro-batch, whose processes may be killed anywhere. Return whether it is known to be done."""
    with children() as start:
        staged: list[TaskTransaction] = []
        for task in range(2):
            mine = values[task::2]
            child = start(lambda task=task, mine=mine: write(plan_of(address), mine, task=task).transaction)  # type: ignore[misc]
            if dice.random() < 0.3:
                child.kill()
                return False
            staged.append(TaskTransaction(*child.answer()))
        if dice.random() < 0.4:
            server.kill()
            server.begin()

        def decide() -> bool:
            client = client_of(ServerAddress.parse({"server": address}))
            return commit(client, SCOPE, staged, [], batch_id(number, f"offsets {number}"))

        driver = start(decide)
        if dice.random() < 0.5:
            while driver.running and dice.random() < 0.97:
                pass
            driver.kill()
            return False
        driver.answer()
        return True
