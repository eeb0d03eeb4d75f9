"""A server that has a record already, and no longer knows where, says so: it is delivered, and its offset unknown.

A cluster answers so when a leader is lost between a record and its acknowledgement. Here `klamm serve` is made to.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import klamm
from klamm.errors import Unreachable
from klamm.kafka.broker import Broker
from klamm.kafka.call import Call
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.wire.messages import PRODUCE
from klamm.kafka.wire.structs import Struct
from klamm.transfer.kafka_target import KafkaTarget
from tests.kafka.connect import Served, served
from tests.procs import PATIENCE


class Forgetful:
    """A server that appends, and for the next `left` requests answers what it would if it had forgotten where."""

    def __init__(self, running: Served) -> None:
        self.address = f"kafka://{running.address}"
        self.left = 0
        admission = running.server.listener.admission
        row = admission.table[PRODUCE.key]

        async def handler(broker: Broker, call: Call) -> Struct | None:
            response = await row.handler(broker, call)
            if self.left and response is not None:
                self.left -= 1
                for topic in response.responses:
                    for partition in topic.partition_responses:
                        partition.error_code, partition.base_offset = ErrorCode.DUPLICATE_SEQUENCE_NUMBER, -1
            return response

        def use() -> None:
            admission.table[PRODUCE.key] = row._replace(handler=handler)
            del admission._ordinary[PRODUCE.key]

        running.call(use)


@pytest.fixture
def local(path: Path) -> Iterator[klamm.Store]:
    with klamm.open(path) as opened:
        yield opened


@pytest.fixture
def forgetful(local: klamm.Store) -> Iterator[Forgetful]:
    local.topics.create("orders")
    with served(Path(local.path)) as running:
        yield Forgetful(running)


def values(store: klamm.Store, topic: str = "orders") -> list[bytes | None]:
    with store.consumer(topic, wait=0) as consumer:
        return [record.value for record in consumer]


def test_appends_go_on_behind_a_record_whose_offset_is_not_known(local: klamm.Store, forgetful: Forgetful) -> None:
    with klamm.open(forgetful.address) as cluster:
        forgetful.left = 1
        assert cluster.append("orders", b"0") is None
        assert cluster.append("orders", b"1") == 1
        forgetful.left = 1
        appended = cluster.append_many("orders", [b"2"])
        assert (appended.count, appended.ranges) == (1, {})
        assert cluster.append_many("orders", [b"3"]).ranges == {0: (range(3, 4),)}
        with cluster.producer() as producer:
            forgetful.left = 1
            delivery = producer.send("orders", b"4")
            assert delivery.result(PATIENCE) is None and delivery.done and delivery.error is None
            assert producer.send("orders", b"5").result(PATIENCE) == 5
    assert values(local) == [b"%d" % number for number in range(6)]


def test_a_transaction_commits_records_whose_offsets_are_not_known(local: klamm.Store, forgetful: Forgetful) -> None:
    with klamm.open(forgetful.address) as cluster:
        forgetful.left = 1
        with cluster.transaction() as tx:
            delivery = tx.send("orders", b"0")
        assert delivery.result() is None
        with cluster.transaction() as tx:
            delivery = tx.send("orders", b"1")
        assert delivery.result() == 2
    assert values(local) == [b"0", b"1"]


def test_a_copy_that_is_not_told_where_its_records_are_sends_them_again(
    tmp_path: Path, local: klamm.Store, forgetful: Forgetful
) -> None:
    source = tmp_path / "source"
    with klamm.open(source) as opened:
        opened.topics.create("payments")
        opened.append_many("payments", [b"%d" % number for number in range(10)])
    forgetful.left = 1
    klamm.copy(source, forgetful.address)
    assert forgetful.left == 0
    assert values(local, "payments") == [b"%d" % number for number in range(10)]


def test_a_copy_that_is_never_told_where_its_records_are_ends(
    tmp_path: Path, forgetful: Forgetful, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = iter([False, True])  # instead of a minute
    monkeypatch.setattr(KafkaTarget, "_fails_for_long", lambda _: next(asked))
    source = tmp_path / "source"
    with klamm.open(source) as opened:
        opened.topics.create("payments")
        opened.append("payments", b"0")
    forgetful.left = 1000
    with pytest.raises(Unreachable, match="where records are"):
        klamm.copy(source, forgetful.address)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_interrupt_in_a_callback_does_not_end_deliveries(local: klamm.Store, forgetful: Forgetful) -> None:
    def interrupted(_: klamm.Delivery) -> None:
        raise SystemExit

    with klamm.open(forgetful.address) as cluster, cluster.producer() as producer:
        called = threading.Event()
        first = producer.send("orders", b"0")
        first.add_done_callback(interrupted)
        first.add_done_callback(lambda _: called.set())
        assert called.wait(PATIENCE)
        assert producer.send("orders", b"1").result(PATIENCE) == 1
    assert values(local) == [b"0", b"1"]
