"""Sequence numbers over the wire: a batch that comes again, and other records that come under its numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from klamm.batch import CODECS
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.wire.messages import INIT_PRODUCER_ID
from tests.kafka.connect import Raw, Served, served
from tests.kafka.requests import altered, fetch, produce, sealed, values
from tests.kafka.test_transaction_apis import Producer

E = ErrorCode
MAX_TIMESTAMP = 35


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("sequences") / "events") as running:
        yield running


def send(raw: Raw, topic: str, batch: bytearray) -> tuple[int, int]:
    response = produce(raw, topic, batch, acks=-1)
    return response.error_code, response.base_offset


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("setting", ["plain", "stamped", "compressed"])
def test_other_records_under_the_sequences_of_a_batch_are_out_of_order(
    server: Served, setting: str, codec: str
) -> None:
    """The server changes what it appends: max_timestamp, the time of the append, the codec. A retry is known anyway."""
    settings = {"stamped": {"message_timestamp_type": "LogAppendTime"}, "compressed": {"compression_type": "gzip"}}
    with server.dial() as raw:
        topic = raw.create(f"{setting}-{codec}", 1, **settings.get(setting, {}))
        who = raw.ask(INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout_ms=60_000)

        def batch(*names: bytes, sequence: int = 0) -> bytearray:
            numbers = {"producer_id": who.producer_id, "producer_epoch": 0, "base_sequence": sequence}
            made = sealed(
                [(name, bytes(70_000), None, 1_700_000_000_000) for name in names], codec=CODECS[codec], **numbers
            )
            return altered(made, MAX_TIMESTAMP, ">q", 5)

        assert send(raw, topic, batch(b"a", b"b")) == (0, 0)
        assert send(raw, topic, batch(b"c", sequence=2)) == (0, 2)
        assert send(raw, topic, batch(b"a", b"x")) == (E.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
        refused = produce(raw, topic, batch(b"x", sequence=2))
        assert refused.error_code == E.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert f"sequence 2 of producer {who.producer_id}, epoch 0, is at offset 2" in refused.error_message
        assert send(raw, topic, batch(b"a", b"b")) == (0, 0), "the same again"
        assert send(raw, topic, batch(b"c", sequence=2)) == (0, 2)
        assert send(raw, topic, batch(b"d", sequence=3)) == (0, 3)


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_that_uses_the_sequences_of_an_ended_one_again_is_told(tmp_path: Path, commit: bool) -> None:
    with served(tmp_path / "events") as server, server.dial() as raw:
        raw.create("t")
        producer = Producer(raw, bumps=False)
        assert producer.init(4) == 0
        assert producer.add(0) == {0: 0} and producer.send(b"first") == 0
        assert producer.end(commit=commit) == 0
        assert producer.add(0) == {0: 0}
        for value in (b"other", b"first"):
            producer.sequence = 0
            assert producer.send(value) == E.OUT_OF_ORDER_SEQUENCE_NUMBER
        producer.sequence = 1
        assert producer.send(b"second") == 0
        assert producer.end() == 0
        read = values(fetch(raw, "t", 0, committed=True))
        assert [value for value in read if value in (b"first", b"other", b"second")] == [b"first", b"second"]
