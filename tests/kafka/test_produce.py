"""Produce: what is taken, what is refused and with which code, and what then lies in the log."""

from __future__ import annotations

import errno
import random
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.batch import codecs, crc32c, decode, parse
from klamm.batch.header import CONTROL, DELETE_HORIZON, HEADER_SIZE, LOG_APPEND_TIME, TRANSACTIONAL
from klamm.disk import _os
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.wire.frames import read_response, request_frame
from klamm.kafka.wire.messages import API_VERSIONS, FETCH, INIT_PRODUCER_ID, PRODUCE
from tests.crash.cases import seed_of
from tests.kafka.connect import ConnectionEnded, Raw, Served, served
from tests.kafka.requests import (
    FOREVER_MS,
    altered,
    batches_of,
    fetch,
    fetching,
    produce,
    produce_many,
    producing,
    sealed,
    values,
)
from tests.procs import until

LENGTH, EPOCH, CRC, ATTRIBUTES, LAST_DELTA, PRODUCER, SEQUENCE, COUNT = 8, 12, 17, 21, 23, 43, 53, 57


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("produce") / "events") as running:
        with running.dial() as raw:
            raw.create("orders", 4)
            raw.create("compacted", 1, cleanup_policy="compact")
            raw.create("small", 1, max_message_bytes="1000")
            raw.create("stamped", 1, message_timestamp_type="LogAppendTime")
        yield running


def end_of(raw: Raw, topic: str, partition: int = 0) -> int:
    return int(fetch(raw, topic, 0, partition).high_watermark)


def body_replaced(batch: bytes | bytearray, body: bytes, codec: int) -> bytearray:
    """Other records behind the same header."""
    made = bytearray(batch[:HEADER_SIZE]) + body
    struct.pack_into(">i", made, LENGTH, len(made) - 12)
    attributes = struct.unpack_from(">h", made, ATTRIBUTES)[0]
    return altered(made, ATTRIBUTES, ">h", attributes & ~7 | codec)


GOOD = sealed(3)
REFUSED = {
    "null": (None, ErrorCode.INVALID_RECORD),
    "nothing": (b"", ErrorCode.INVALID_RECORD),
    "half a header": (GOOD[:40], ErrorCode.INVALID_RECORD),
    "cut": (GOOD[:-1], ErrorCode.INVALID_RECORD),
    "only a header": (GOOD[:HEADER_SIZE], ErrorCode.INVALID_RECORD),
    "magic 0": (altered(GOOD, 16, ">b", 0), ErrorCode.INVALID_RECORD),
    "magic 1": (altered(GOOD, 16, ">b", 1), ErrorCode.INVALID_RECORD),
    "magic 3": (altered(GOOD, 16, ">b", 3), ErrorCode.CORRUPT_MESSAGE),
    "wrong CRC": (altered(GOOD, CRC, ">I", 4711, crc=False), ErrorCode.CORRUPT_MESSAGE),
    "a flipped bit": (altered(GOOD, len(GOOD) - 1, ">B", 77, crc=False), ErrorCode.CORRUPT_MESSAGE),
    "too short a length": (altered(GOOD, LENGTH, ">i", len(GOOD) - 13), ErrorCode.INVALID_RECORD),
    "a length of nothing": (altered(GOOD, LENGTH, ">i", 0), ErrorCode.CORRUPT_MESSAGE),
    "a negative length": (altered(GOOD, LENGTH, ">i", -1), ErrorCode.CORRUPT_MESSAGE),
    "too long a length": (altered(GOOD, LENGTH, ">i", len(GOOD)), ErrorCode.INVALID_RECORD),
    "two batches": (GOOD + GOOD, ErrorCode.INVALID_RECORD),
    "a batch and a byte": (GOOD + b"\0", ErrorCode.INVALID_RECORD),
    "fewer records than offsets": (altered(GOOD, LAST_DELTA, ">i", 7), ErrorCode.INVALID_RECORD),
    "more records than offsets": (altered(GOOD, LAST_DELTA, ">i", 1), ErrorCode.CORRUPT_MESSAGE),
    "a record more than said": (
        altered(altered(GOOD, LAST_DELTA, ">i", 1), COUNT, ">i", 2),
        ErrorCode.INVALID_RECORD,
    ),
    "a record less than said": (
        altered(altered(GOOD, LAST_DELTA, ">i", 3), COUNT, ">i", 4),
        ErrorCode.INVALID_RECORD,
    ),
    "no record": (altered(altered(GOOD, LAST_DELTA, ">i", 0), COUNT, ">i", 0), ErrorCode.INVALID_RECORD),
    "a negative count": (altered(GOOD, COUNT, ">i", -1), ErrorCode.CORRUPT_MESSAGE),
    "a negative offset": (altered(GOOD, 0, ">q", -1), ErrorCode.CORRUPT_MESSAGE),
    "control": (altered(GOOD, ATTRIBUTES, ">h", CONTROL), ErrorCode.INVALID_RECORD),
    "control in a transaction": (
        altered(sealed(1, producer_id=5, producer_epoch=0, base_sequence=0), ATTRIBUTES, ">h", CONTROL | TRANSACTIONAL),
        ErrorCode.INVALID_RECORD,
    ),
    "a base offset": (altered(GOOD, 0, ">q", 1), ErrorCode.INVALID_RECORD),
    "delete horizon": (altered(GOOD, ATTRIBUTES, ">h", DELETE_HORIZON), ErrorCode.INVALID_RECORD),
    "an unknown bit": (altered(GOOD, ATTRIBUTES, ">h", 0x80), ErrorCode.INVALID_RECORD),
    "the sign bit": (altered(GOOD, ATTRIBUTES, ">h", -0x8000), ErrorCode.INVALID_RECORD),
    "codec 5": (altered(GOOD, ATTRIBUTES, ">h", 5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    "codec 7": (altered(GOOD, ATTRIBUTES, ">h", 7), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    "a transaction of nobody": (altered(GOOD, ATTRIBUTES, ">h", TRANSACTIONAL), ErrorCode.INVALID_RECORD),
    "no transaction": (
        sealed(1, producer_id=77, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL),
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ),
    "a producer without a sequence": (altered(GOOD, PRODUCER, ">q", 5), ErrorCode.INVALID_RECORD),
    "garbage for records": (body_replaced(GOOD, b"\xff" * 40, 0), ErrorCode.INVALID_RECORD),
    **{
        f"garbage for {codecs.NAMES[codec]}": (body_replaced(GOOD, b"\xff" * 40, codec), ErrorCode.INVALID_RECORD)
        for codec in range(1, 5)
    },
    **{
        f"nothing for {codecs.NAMES[codec]}": (body_replaced(GOOD, b"", codec), ErrorCode.INVALID_RECORD)
        for codec in range(1, 5)
    },
    **{
        f"{codecs.NAMES[codec]} around garbage": (
            body_replaced(GOOD, codecs.compress(codec, memoryview(b"\xff" * 40)), codec),
            ErrorCode.INVALID_RECORD,
        )
        for codec in range(1, 5)
    },
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_batch_is_refused_with_its_code_and_nothing_is_appended(raw: Raw, what: str) -> None:
    batch, code = REFUSED[what]
    before = end_of(raw, "orders")
    answered = produce(raw, "orders", batch)
    assert (ErrorCode(answered.error_code), answered.base_offset) == (code, -1)
    assert answered.error_message
    assert end_of(raw, "orders") == before
    assert produce(raw, "orders", GOOD).base_offset == before, "the connection goes on"


def test_a_timestamp_type_that_a_producer_sets_is_refused_where_the_server_stamps_and_else_ignored(raw: Raw) -> None:
    """As in Apache Kafka: INVALID_TIMESTAMP, with each record named, or records with their own timestamps."""
    batch = altered(sealed([(None, b"a", None, 1000), (None, b"b", None, 3000)]), ATTRIBUTES, ">h", LOG_APPEND_TIME)
    refused = produce(raw, "stamped", batch)
    assert (refused.error_code, refused.base_offset) == (ErrorCode.INVALID_TIMESTAMP, -1)
    assert [each.batch_index for each in refused.record_errors] == [0, 1]
    assert "LogAppendTime" in refused.record_errors[0].batch_index_error_message
    taken = produce(raw, "orders", batch)
    assert taken.error_code == 0
    (stored,) = batches_of(fetch(raw, "orders", taken.base_offset).records)
    assert [record.timestamp for record in decode(stored)] == [1000, 3000]
    assert parse(stored).max_timestamp == 3000


@pytest.mark.parametrize("codec", [0, 4])
def test_records_without_a_key_are_named_where_keys_are_needed(raw: Raw, codec: int) -> None:
    raw.create(f"compacted{codec}", cleanup_policy="compact")
    now = int(time.time() * 1000)
    records = [(b"k", b"v", None, now), (None, b"v", None, now), (b"", b"v", None, now), (None, b"v", None, now)]
    for more in ([], [(b"k", bytes(2 << 20), None, now)]):  # on the loop, and by a thread
        refused = produce(raw, f"compacted{codec}", sealed(records + more, codec=codec))
        if not codec and more:
            assert refused.error_code == ErrorCode.MESSAGE_TOO_LARGE
            continue
        assert (refused.error_code, refused.base_offset) == (ErrorCode.INVALID_RECORD, -1)
        assert [each.batch_index for each in refused.record_errors] == [1, 3]
        assert "without a key" in refused.record_errors[0].batch_index_error_message
    assert end_of(raw, f"compacted{codec}") == 0


def test_old_clients_are_told_that_their_format_is_not_taken(raw: Raw) -> None:
    answered = produce(raw, "orders", altered(GOOD, 16, ">b", 1), version=2)
    assert answered.error_code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


def test_zstd_is_for_those_who_know_it(raw: Raw) -> None:
    batch = sealed(3, codec=4)
    assert produce(raw, "orders", batch, version=6).error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert produce(raw, "orders", batch, version=7).error_code == ErrorCode.NONE


@pytest.mark.parametrize("version", range(3, PRODUCE.max_version))
def test_every_version_appends(raw: Raw, version: int) -> None:
    answered = produce(raw, "orders", sealed([b"version %d" % version]), 1, version=version)
    assert answered.error_code == 0
    assert values(fetch(raw, "orders", answered.base_offset, 1)) == [b"version %d" % version]


def test_a_batch_goes_to_the_topic_of_its_id(server: Served, raw: Raw) -> None:
    uuid = server.call(lambda: server.broker.topics.uuid(server.broker.topics.find("orders")))  # type: ignore[arg-type]
    fields = producing({("orders", 0): GOOD, ("other", 0): GOOD}, ids={"orders": uuid, "other": b"?" * 16})
    found, unknown = raw.ask(PRODUCE, 13, **fields).responses
    assert (found.topic_id, found.partition_responses[0].error_code) == (uuid, 0)
    assert unknown.partition_responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("codec", range(5))
def test_what_is_stored_is_what_was_sent_but_for_offset_and_epoch(raw: Raw, codec: int) -> None:
    batch = sealed(50, codec=codec, padding=30)
    base = produce(raw, "orders", batch, 2).base_offset
    (stored,) = batches_of(fetch(raw, "orders", base, 2).records)
    assert stored[16:] == batch[16:]
    assert stored[8:12] == batch[8:12]
    assert (parse(stored).base_offset, parse(stored).leader_epoch) == (base, 0)


@pytest.mark.parametrize("codec", range(1, 5))
def test_a_bomb_is_refused_soon_and_without_its_memory(raw: Raw, codec: int) -> None:
    """Some kilobytes that claim to be more than is ever decoded."""
    zeros = memoryview(bytes(4 << 20))
    if codec == 1:
        packed = codecs.compress(1, zeros) * 70
    elif codec == 2:
        packed = codecs.compress(2, zeros[: 32 << 10])
        packed = packed[:16] + packed[16:] * ((300 << 20) // (32 << 10) // 16)
    elif codec == 3:
        one = codecs.compress(3, zeros[: 64 << 10])
        packed = one[:7] + one[7:-4] * ((300 << 20) // (64 << 10)) + one[-4:]
    else:
        header = b"\x28\xb5\x2f\xfd\x00\x58"  # a window of 2 MB, no content size
        blocks = [struct.pack("<I", 1 << 1 | (128 << 10) << 3)[:3] + b"\0"] * 2500
        blocks[-1] = struct.pack("<I", 1 | 1 << 1 | (128 << 10) << 3)[:3] + b"\0"
        packed = header + b"".join(blocks)
    batch = body_replaced(GOOD, packed, codec)
    if len(batch) > 1 << 20:
        batch = batch[: 1 << 20]
    answered = produce(raw, "orders", batch)
    assert answered.error_code in (ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE)


def test_a_compacted_topic_wants_keys(raw: Raw) -> None:
    assert produce(raw, "compacted", sealed([(b"key", b"value")])).error_code == 0
    for codec in range(5):
        keyless = sealed([(b"key", b"value"), (None, b"value")], codec=codec)
        assert produce(raw, "compacted", keyless).error_code == ErrorCode.INVALID_RECORD


def test_a_batch_may_be_as_large_as_the_topic_allows(raw: Raw) -> None:
    padding = 1000 - len(sealed(1))
    largest = sealed(1, padding=padding - 2)
    while len(largest) < 1000:
        padding += 1
        largest = sealed(1, padding=padding - 2)
    assert len(largest) == 1000
    assert produce(raw, "small", largest).error_code == 0
    assert produce(raw, "small", sealed(1, padding=padding - 1)).error_code == ErrorCode.MESSAGE_TOO_LARGE


def test_append_time_is_told_and_stored(raw: Raw) -> None:
    before = time.time_ns() // 1_000_000
    answered = produce(raw, "stamped", sealed(3))
    after = time.time_ns() // 1_000_000
    assert before - 1 <= answered.log_append_time_ms <= after + 1
    (stored,) = batches_of(fetch(raw, "stamped", answered.base_offset).records)
    header = parse(stored)
    assert (header.max_timestamp, header.log_append_time) == (answered.log_append_time_ms, True)
    assert header.crc == crc32c(stored[21:])


def test_append_time_is_that_of_the_batch_though_the_log_has_later_records(tmp_path: Path) -> None:
    with klamm.open(tmp_path / "events") as store, served(tmp_path / "events") as server, server.dial() as raw:
        store.topics.create("orders", 1, {"message.timestamp.after.max.ms": 2**63 - 1})
        later = time.time_ns() // 1_000_000 + 10**9
        assert produce(raw, "orders", sealed([(None, b"later", None, later)])).error_code == 0
        store.topics.alter("orders", {"message.timestamp.type": "LogAppendTime"})
        assert produce(raw, "orders", sealed(1)).log_append_time_ms < later


def test_create_time_is_not_told(raw: Raw) -> None:
    assert produce(raw, "orders", GOOD).log_append_time_ms == -1


# ---- acks


BOTH = pytest.mark.parametrize("batch", [GOOD, sealed(3, codec=1)], ids=["ordinary", "compressed"])


@BOTH
@pytest.mark.parametrize("acks", [1, -1])
def test_acks_all_is_answered_when_the_batch_is_on_disk(server: Served, raw: Raw, acks: int, batch: bytes) -> None:
    base = produce(raw, "orders", batch, 3, acks=acks).base_offset
    found = server.broker.core.topic("orders").partition(3).ends()
    assert found.end == base + 3
    if acks == -1:
        assert found.flushed == found.end


@BOTH
def test_acks_all_syncs_every_partition_of_a_request(server: Served, raw: Raw, batch: bytes) -> None:
    responses = produce_many(raw, {("orders", number): batch for number in range(4)}, acks=-1)
    assert {response.error_code for response in responses.values()} == {0}
    for (topic, number), response in responses.items():
        ends = server.broker.core.topic(topic).partition(number).ends()
        assert ends.flushed == ends.end == response.base_offset + 3


@BOTH
def test_acks_all_is_refused_when_the_sync_fails_and_accepted_when_the_disk_works_again(raw: Raw, batch: bytes) -> None:
    base = produce(raw, "orders", batch, acks=-1).base_offset
    _os.trap(1, kinds=_os.SYNC, error=errno.EIO, repeat=True)
    try:
        response = produce(raw, "orders", batch, acks=-1)
    finally:
        _os.trap(0)
    assert (response.error_code, response.base_offset) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
    assert "sync" in response.error_message
    again = produce(raw, "orders", batch, acks=-1)
    assert again.error_code == 0
    assert again.base_offset > base


def test_other_acks_are_refused_and_nothing_is_appended(raw: Raw) -> None:
    before = end_of(raw, "orders")
    for acks in (2, -2, 100):
        assert produce(raw, "orders", GOOD, acks=acks).error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert end_of(raw, "orders") == before


def test_without_acks_there_is_no_answer_and_the_next_request_is_answered(raw: Raw) -> None:
    before = end_of(raw, "orders")
    for _ in range(3):
        raw.send(PRODUCE, 9, **producing({("orders", 0): GOOD}, acks=0))
    assert raw.ask(API_VERSIONS, 0).error_code == 0
    assert end_of(raw, "orders") == before + 9


@pytest.mark.parametrize("place", [("orders", 0), ("orders", 99), ("nowhere", 0)])
def test_what_is_refused_without_acks_closes_the_connection(server: Served, place: tuple[str, int]) -> None:
    batch = GOOD if place != ("orders", 0) else GOOD[:-1]
    with server.dial() as raw:
        raw.send(PRODUCE, 9, **producing({place: batch}, acks=0))
        with pytest.raises(ConnectionEnded):
            raw.receive()


# ---- ordinary requests: see _produce.pyx


def test_what_is_appended_before_another_partition_has_to_wait_is_appended_once(server: Served, raw: Raw) -> None:
    produce_many(raw, {("orders", number): GOOD for number in range(4)})
    before = {number: end_of(raw, "orders", number) for number in range(4)}
    waits = server.broker.core.topic("orders").partition(2)
    executors = server.broker.partition_executors
    with waits.log.append_lock():
        number = raw.send(PRODUCE, 9, **producing({("orders", number): GOOD for number in range(4)}, acks=-1))
        until(lambda: server.call(lambda: executors.is_busy(waits)), "it waits for the lock")
    answered, response = read_response(PRODUCE, 9, raw.receive())
    assert answered == number
    (topic,) = response.responses
    assert {each.index: (each.error_code, each.base_offset) for each in topic.partition_responses} == {
        number: (0, end) for number, end in before.items()
    }
    assert {number: end_of(raw, "orders", number) for number in range(4)} == {n: end + 3 for n, end in before.items()}
    ends = [server.broker.core.topic("orders").partition(number).ends() for number in range(4)]
    assert all(each.flushed == each.end for each in ends)


def test_a_batch_that_the_disk_does_not_take_is_refused_with_the_error_of_the_disk(server: Served) -> None:
    """It had its offset by then: it is not taken for one that a client should not have sent."""
    with server.dial() as raw:
        end = produce(raw, "orders", GOOD).base_offset + 3
        _os.trap(1, kinds=_os.WRITE, error=errno.ENOSPC, repeat=True)
        try:
            response = produce(raw, "orders", GOOD)
        finally:
            _os.trap(0)
        assert response.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert produce(raw, "orders", GOOD).base_offset == end


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("at_once", [1, 2, 50])
def test_requests_are_answered_in_order_however_many_are_sent_at_once(raw: Raw, acks: int, at_once: int) -> None:
    end = produce(raw, "orders", GOOD).base_offset + 3
    for _ in range(100 // at_once):
        sent = [raw.send(PRODUCE, 9, **producing({("orders", 0): GOOD}, acks=acks)) for _ in range(at_once)]
        for number in sent:
            answered, response = read_response(PRODUCE, 9, raw.receive())
            assert answered == number
            assert response.responses[0].partition_responses[0].base_offset == end
            end += 3


def frames_of(count: int, **given: Any) -> bytes:
    return b"".join(
        b"".join(request_frame(PRODUCE, 9, number, "raw", PRODUCE.request(**producing({("orders", 0): GOOD}, **given))))
        for number in range(count)
    )


@contextmanager
def no_beat(server: Served) -> Iterator[None]:
    """Whatever is found out with the next beat of the server is not found out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server.broker.sync_queue, "look", lambda: None)
        yield


@pytest.mark.parametrize("at_once", [2, 7])
def test_requests_that_arrive_together_do_not_wait_for_the_beat(server: Served, raw: Raw, at_once: int) -> None:
    """A thread sends the response to a request, if the loop hears of it by the next one; that is here already."""
    produce(raw, "orders", GOOD)
    frames = frames_of(at_once, acks=-1)
    with no_beat(server):
        for cut in (len(frames), len(frames) - 1, len(frames) // at_once + 1):
            raw.send_bytes(frames[:cut])
            answered = [read_response(PRODUCE, 9, raw.receive())[0] for _ in range(cut * at_once // len(frames))]
            raw.send_bytes(frames[cut:])
            answered += [read_response(PRODUCE, 9, raw.receive())[0] for _ in range(at_once - len(answered))]
            assert answered == list(range(at_once))


def test_a_request_behind_one_that_arrived_during_a_sync_does_not_wait_for_the_beat(server: Served, raw: Raw) -> None:
    """Nothing is received while a request waits that arrived during another one: so its end wakes the loop."""
    produce(raw, "orders", GOOD)
    partition, connections = server.broker.core.topic("orders").partition(0), server.server.listener.connections

    def is_here() -> bool:
        return any(each.reader.behind_bytes for each in connections)

    with no_beat(server):
        for _ in range(3):
            with partition.log.flush_lock():
                end = partition.ends().end
                raw.send_bytes(frames_of(1, acks=-1))
                until(lambda end=end: partition.ends().end > end, "it is appended")  # type: ignore[misc]
                raw.send_bytes(frames_of(1, acks=-1))
                until(lambda: server.call(is_here), "the next one is received")
            for _ in range(2):
                raw.receive()
            assert produce(raw, "orders", GOOD, acks=-1).error_code == 0


def test_clients_that_leave_before_their_response_disturb_nobody(server: Served, raw: Raw) -> None:
    for _ in range(100):
        with server.dial() as leaves:
            leaves.send(PRODUCE, 9, **producing({("orders", 0): GOOD}, acks=-1))
        with server.dial() as comes:
            assert comes.ask(API_VERSIONS, 0).error_code == 0
    assert produce(raw, "orders", GOOD, acks=-1).error_code == 0


def test_a_response_that_a_thread_has_sent_is_counted_though_the_client_sends_no_more(server: Served) -> None:
    def count() -> int:
        return server.call(lambda: server.server.metrics.requests["Produce"].count)

    with server.dial() as raw:
        produce(raw, "orders", GOOD)
        before = count()
        produce(raw, "orders", GOOD, acks=-1)
        until(lambda: count() == before + 1, "it is counted")
        assert server.call(lambda: server.server.listener.is_quiet)


def test_who_waits_for_records_gets_those_of_a_client_that_sends_no_more(server: Served, raw: Raw) -> None:
    end = produce(raw, "orders", GOOD).base_offset + 3
    with server.dial() as reads:
        reads.send(FETCH, 12, **fetching({("orders", 0): end}, wait_ms=FOREVER_MS))
        until(lambda: server.call(lambda: len(server.broker.purgatory)) == 1, "it waits")
        produce(raw, "orders", GOOD, acks=-1)
        _, response = read_response(FETCH, 12, reads.receive())
        assert len(response.responses[0].partitions[0].records)


# ---- idempotent producers


def test_a_batch_sent_twice_is_there_once_and_a_gap_is_refused(raw: Raw) -> None:
    topic = raw.create("idempotent")
    producer = raw.ask(INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout_ms=60_000)

    def send(sequence: int, epoch: int = 0) -> tuple[int, int]:
        made = sealed(
            [b"%d" % sequence] * 2,
            producer_id=producer.producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        answered = produce(raw, topic, made, acks=-1)
        return answered.error_code, answered.base_offset

    assert [send(sequence) for sequence in (0, 2, 4)] == [(0, 0), (0, 2), (0, 4)]
    assert [send(sequence) for sequence in (4, 2, 0)] == [(0, 4), (0, 2), (0, 0)], "where they are already"
    assert send(8) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert send(6) == (0, 6)
    assert send(0, epoch=1) == (0, 8)
    assert send(8, epoch=0) == (ErrorCode.INVALID_PRODUCER_EPOCH, -1)
    assert values(fetch(raw, topic, 0)) == [b"0", b"0", b"2", b"2", b"4", b"4", b"6", b"6", b"0", b"0"]


# ---- several partitions


def test_each_partition_of_a_request_has_its_own_answer(raw: Raw) -> None:
    raw.create("mixed", 3)
    batches = {
        ("mixed", 0): sealed([b"zero"]),
        ("mixed", 1): GOOD[:-1],
        ("mixed", 2): sealed([b"two"]),
        ("mixed", 3): GOOD,
        ("mixed", -1): GOOD,
        ("nowhere", 0): GOOD,
        ("small", 0): sealed(1, padding=5000),
        ("compacted", 0): GOOD,
    }
    for acks, offset in ((1, 0), (-1, 1)):
        codes = {place: ErrorCode(each.error_code) for place, each in produce_many(raw, batches, acks=acks).items()}
        assert codes == {
            ("mixed", 0): ErrorCode.NONE,
            ("mixed", 1): ErrorCode.INVALID_RECORD,
            ("mixed", 2): ErrorCode.NONE,
            ("mixed", 3): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("mixed", -1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("nowhere", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("small", 0): ErrorCode.MESSAGE_TOO_LARGE,
            ("compacted", 0): ErrorCode.INVALID_RECORD,
        }
        assert values(fetch(raw, "mixed", offset)) == [b"zero"]
        assert values(fetch(raw, "mixed", offset, 2)) == [b"two"]


def test_a_hundred_new_partitions_at_once(raw: Raw) -> None:
    raw.create("wide", 100)
    batches = {("wide", number): sealed([b"%d" % number]) for number in range(100)}
    answered = produce_many(raw, batches, acks=-1)
    assert {(each.error_code, each.base_offset) for each in answered.values()} == {(0, 0)}
    assert list(answered) == list(batches)
    for number in (0, 50, 99):
        assert values(fetch(raw, "wide", 0, number)) == [b"%d" % number]


def test_settings_that_another_process_changes_hold_for_the_next_batch(server: Served, raw: Raw) -> None:
    raw.create("changing")
    assert produce(raw, "changing", GOOD).error_code == 0
    with klamm.open(server.broker.core.path) as store:
        store.topics.alter("changing", {"max.message.bytes": 100})
        until(lambda: produce(raw, "changing", sealed(50)).error_code == ErrorCode.MESSAGE_TOO_LARGE, "it holds")
        store.topics.delete("changing")
        assert produce(raw, "changing", GOOD).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_random_batches_come_back_as_they_were(raw: Raw) -> None:
    seed = seed_of()
    chance = random.Random(seed)
    topic, sent = raw.create("random"), []
    for _ in range(150):
        batch = sealed(chance.randrange(1, 40), codec=chance.randrange(5), padding=chance.choice([0, 10, 3000]))
        sent.append(batch[16:])
        assert produce(raw, topic, batch, acks=chance.choice([1, -1])).error_code == 0
    found: list[bytes] = []
    offset = 0
    while data := fetch(raw, topic, offset, partition_max_bytes=chance.randrange(1, 200_000)).records:
        found += [batch[16:] for batch in batches_of(data)]
        offset = parse(batches_of(data)[-1]).next_offset
    assert found == sent


def test_a_store_that_this_process_has_open_as_well(tmp_path: Path) -> None:
    with klamm.open(tmp_path / "events") as store:
        store.topics.create("orders")
        store.append("orders", b"embedded")
        with served(tmp_path / "events") as server, server.dial() as raw:
            assert produce(raw, "orders", sealed([b"wire"])).base_offset == 1
            assert values(fetch(raw, "orders", 0)) == [b"embedded", b"wire"]
