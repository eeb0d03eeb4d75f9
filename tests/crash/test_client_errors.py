"""The table of errors (client_errors.py) is sound, and roles follow it in cases that are brought about on purpose."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

import klamm
from klamm.kafka.wire.messages import JOIN_GROUP, PRODUCE
from klamm.store.groups import OffsetRow
from tests.crash import jepsen_workload, run_roles, session_reader, wire_life, wire_workload
from tests.crash.client_errors import RULES, TABLE, Action, Unexpected, keys, rule_for
from tests.crash.history import Event, History, read
from tests.crash.jepsen_workload import IN
from tests.crash.wire_life import SERVER_LIVES, MustAbort, MustEnd, WireLife
from tests.crash.wire_tally import SHARES, Tally
from tests.crash.wire_workload import WIRE_WORKERS, Transactions, wire_worker
from tests.interop.proxy import Proxy
from tests.procs import Flag, children, until
from tests.serving import Serving, restartable

ILLEGAL = {("commit", "ILLEGAL_GENERATION"), ("async commit", "ILLEGAL_GENERATION")}
ELSEWHERE = {"final", "hasty", "careless", "copyist"}  # roles that are no functions of these two modules


def test_each_case_has_one_rule() -> None:
    assert [case for case, count in Counter(key for rule in RULES for key in keys(rule)).items() if count > 1] == []


def test_rules_are_of_roles_and_errors_that_exist() -> None:
    for rule in RULES:
        for role in set(rule.roles) - ELSEWHERE:
            modules = (wire_workload, jepsen_workload, run_roles, session_reader)
            assert any(hasattr(module, role) for module in modules), role
        for error in rule.errors:
            known = (
                getattr(klamm, error.removeprefix("klamm."), None) if "." in error else getattr(KafkaError, error, None)
            )
            assert known is not None, error


def test_no_call_of_a_transaction_is_passed_over() -> None:
    """Its outcome would be written down as a success."""
    calls = {"init_transactions", "begin_transaction", "send_offsets_to_transaction", "commit_transaction"}
    calls |= {"abort_transaction", "produce", "state"}
    assert not any(call in calls and rule.action is Action.GO_ON for (_, call, _), rule in TABLE.items())


@pytest.mark.parametrize(
    ("role", "call", "code"),
    [
        ("wire_idempotent", "delivery", KafkaError._MSG_TIMED_OUT),
        ("wire_plain", "delivery", KafkaError.UNKNOWN),
        ("wire_worker", "commit", KafkaError.UNKNOWN),
        ("wire_reader", "poll", KafkaError._AUTO_OFFSET_RESET),
        ("wire_reader", "poll", KafkaError.UNKNOWN_MEMBER_ID),
        ("wire_idempotent", "delivery", KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER),
        ("wire_transactional", "commit_transaction", KafkaError.INVALID_TXN_STATE),
    ],
)
def test_an_error_without_a_rule_fails_and_is_named(role: str, call: str, code: int) -> None:
    error = KafkaError(code)
    with pytest.raises(Unexpected, match=f"{role}: {call} reported {error.name()}, which no rule allows"):
        rule_for(role, call, error)


def test_an_embedded_producer_without_a_name_may_not_be_fenced() -> None:
    assert rule_for("transactional", "named transaction", klamm.Fenced("x")).action is Action.END
    with pytest.raises(Unexpected):
        rule_for("transactional", "transaction", klamm.Fenced("x"))


# ---- roles follow it


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    with klamm.open(tmp_path / "store") as store:
        store.topics.create(IN, 1)
    with restartable(tmp_path / "store") as made:
        yield made


def life_of(server: Serving, directory: Path, role: str) -> WireLife:
    (directory / SERVER_LIVES).write_text("1")
    return WireLife(directory, str(server.store), f"{role}-0", 0, 0, 500, server.port)


def met(directory: Path) -> list[tuple[str, str]]:
    """What was looked up, but for news of a server that is away."""
    events = [event for path in sorted(directory.glob("*.history")) for event in read(path) if event.kind == "met"]
    return [(event["call"], event["error"]) for event in events if event["call"] not in ("event", "delivery")]


def values(server: Serving) -> list[str]:
    with klamm.open(server.store) as store, store.consumer(IN, start="earliest", wait=0) as reader:
        return [record.value.decode() for record in reader]


def produce_until_it_fails(transactions: Transactions, limit_s: float = 60) -> None:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        transactions.produce(IN, b"more", 0)
        time.sleep(0.005)
    raise AssertionError("produce did not fail")


def run_all(transactions: Transactions, name: str, fill: Callable[[], None]) -> bool:
    """Run a transaction that is not aborted by dice."""
    transactions._life.dice.random = lambda: 0.5  # type: ignore[method-assign]
    return transactions.run(name, fill)


def test_a_transaction_that_fails_before_a_produce_is_aborted_and_the_next_one_is_committed(
    server: Serving, tmp_path: Path
) -> None:
    """The server is away for longer than a record may take. When it is back, librdkafka sees that, and the transaction
    has failed: produce() raises _STATE and does not say why.
    """
    life = life_of(server, tmp_path, "wire_transactional")
    transactions = Transactions(life, message_timeout_ms=300, transaction_timeout_ms=60_000)

    def fill() -> None:
        server.kill()
        transactions.produce(IN, b"lost", 0)
        time.sleep(0.4)
        server.start()
        produce_until_it_fails(transactions)

    def send(name: str) -> bool:
        """On a busy machine a record may take too long at other times as well."""
        return run_all(transactions, name, lambda: transactions.produce(IN, name.encode(), 0))

    until(lambda: send("first"), "a transaction is committed")
    assert run_all(transactions, "second", fill) is False
    until(lambda: send("third"), "another one is committed")
    assert values(server) == ["first", "third"]
    reasons = {"abortable _TIMED_OUT", "abortable OUT_OF_ORDER_SEQUENCE_NUMBER"}  # by when it sees the server again
    assert ("produce", "_STATE") in met(tmp_path)
    assert reasons & {error for call, error in met(tmp_path) if call == "state"}


def test_a_producer_that_is_fenced_before_a_produce_ends(server: Serving, tmp_path: Path) -> None:
    """produce() raises _FATAL and does not say why."""
    life = life_of(server, tmp_path, "wire_transactional")
    transactions = Transactions(life)

    def fill() -> None:
        transactions.produce(IN, b"lost", 0)
        successor = Transactions(life)
        produce_until_it_fails(transactions)
        del successor

    with pytest.raises(MustEnd):
        run_all(transactions, "first", fill)
    assert ("produce", "_FATAL") in met(tmp_path) and ("state", "fatal _FENCED") in met(tmp_path)
    assert values(server) == []


def test_a_producer_whose_sequence_numbers_may_be_given_out_again_is_renewed(server: Serving, tmp_path: Path) -> None:
    """Else the last record would be refused, and the producer fail: tests/interop/test_librdkafka_flaws.py."""
    life = life_of(server, tmp_path, "wire_transactional")
    with Proxy(server.address) as proxy:
        life.address = proxy.address
        transactions = Transactions(life, transaction_timeout_ms=60_000)

        def fill() -> None:
            proxy.muted.add(PRODUCE.key)
            transactions.produce(IN, b"second", 0)
            until(lambda: end_of(server) == 3, "the server has appended it")
            proxy.cut(refuse=True)
            (tmp_path / SERVER_LIVES).write_text("2")
            rewrite_unsynced.start()
            raise MustAbort

        def let_it_back() -> None:
            until(lambda: transactions._purged, "the abort takes the record from the queue")
            proxy.muted.clear()
            proxy.refuses = False

        rewrite_unsynced = threading.Thread(target=let_it_back)
        assert run_all(transactions, "first", lambda: transactions.produce(IN, b"first", 0)) is True
        assert run_all(transactions, "second", fill) is False
        rewrite_unsynced.join()
        assert run_all(transactions, "third", lambda: transactions.produce(IN, b"third", 0)) is True
    assert values(server) == ["first", "third"]


def test_a_worker_commits_again_what_it_was_refused_and_keeps(
    server: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commit is of the generation before, as it has not been told of the next one: nobody reads the records again,
    and the group would never be drained. tests/interop/test_librdkafka_flaws.py has the same with Apache Kafka.
    """
    monkeypatch.setattr(wire_workload, "SESSION_MS", 10_000)
    with klamm.open(server.store) as store, Proxy(server.address) as proxy, children() as start:
        core = store._acquired()
        group = core.groups.claim_door(WIRE_WORKERS, "kafka").number
        core.groups.commit(group, [OffsetRow(core.topic(IN).topic.id, 0, 0)])

        def work() -> None:
            life = life_of(server, tmp_path, "wire_worker")
            life.address, life.strategy, life.patience_ms = proxy.address, "cooperative-sticky", 0
            wire_worker(life)

        def committed() -> int:
            return max(row.offset for row in core.groups.offsets(group).values())

        worker = start(work)
        store.append(IN, b"first", partition=0)
        until(lambda: committed() == 1, "the worker has committed")
        proxy.held.add(JOIN_GROUP.key)
        settings = {"group.id": WIRE_WORKERS, "partition.assignment.strategy": "cooperative-sticky"}
        other = Consumer({"bootstrap.servers": server.address, "log_level": 0, **settings})
        other.subscribe([IN])
        until(lambda: other.poll(0.01) is None and proxy.holds, "the next generation has begun")
        store.append(IN, b"second", partition=0)
        until(lambda: ILLEGAL & set(met(tmp_path)), "the worker is refused its commit")
        proxy.release()
        until(lambda: other.poll(0.01) is None and committed() == 2, "the worker commits again")
        Flag(tmp_path / "drained").up()
        worker.answer()
        other.close()
    told = [event.kind for event in read(tmp_path / "wire_worker-0-0.history")]
    assert not {"revoked", "lost"} & set(told[: told.index("closing")])  # it has kept the partition


def end_of(server: Serving) -> int:
    with klamm.open(server.store) as store:
        return store.topics.describe(IN).partitions[0].end


# ---- what might hide a fault is written down, counted and bounded


def clients(lives: int, *events: Event) -> History:
    starts = [Event(0, f"wire_worker-0-{life}", "started", {"role": "member"}) for life in range(lives)]
    return History([*starts, *events])


def odd(kind: str, number: int) -> Event:
    """What is counted as `kind`."""
    error = {"call": "state", "error": "fatal OUT_OF_ORDER_SEQUENCE_NUMBER"}
    return Event(1, f"wire_worker-0-{number}", *(("met", error) if kind == "out_of_order" else (kind, {})))


@pytest.mark.parametrize("kind", SHARES)
def test_what_might_hide_a_fault_is_bounded(kind: str) -> None:
    few, many = Tally(), Tally()
    few.add(clients(100, *(odd(kind, number) for number in range(4))))
    many.add(clients(100, *(odd(kind, number) for number in range(8))))
    assert few.exceeded() == [] and len(many.exceeded()) == 1
    for number in range(4):
        few.add(clients(0, odd(kind, number)))
    assert len(few.exceeded()) == 1 and kind in few.exceeded()[0]


def test_a_call_that_hangs_is_written_down_before_its_process_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire_life, "HANGS_S", 0.05)

    def hang() -> None:
        WireLife(tmp_path, "", "wire_worker-0", 0, 0, 0, 1).call("commit", time.sleep, 60)

    with children() as start:
        assert os.WTERMSIG(start(hang).ended()) == signal.SIGKILL
    assert [(event.kind, event["call"]) for event in read(tmp_path / "wire_worker-0-0.history")] == [("hung", "commit")]


def test_a_consumer_that_goes_back_writes_that_down_before_it_kills_itself(server: Serving, tmp_path: Path) -> None:
    with klamm.open(server.store) as store:
        store.append_many(IN, [b"a", b"b"], partition=0)

    def go_back() -> None:
        life = life_of(server, tmp_path, "wire_reader")
        consumer = life.consumer(group_id="g")
        consumer.assign([TopicPartition(IN, 0, 0)])
        life.positions[IN, 0] = 2
        while True:
            life.wire_poll(consumer)

    with children() as start:
        assert os.WTERMSIG(start(go_back).ended()) == signal.SIGKILL
    went = [event.facts for event in read(tmp_path / "wire_reader-0-0.history") if event.kind == "went_back"]
    assert went == [{"topic": IN, "partition": 0, "begin": 0, "end": 2}]
