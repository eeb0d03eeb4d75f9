"""Produce, Fetch, ListOffsets, DeleteRecords, OffsetForLeaderEpoch: what they answer, and how they refuse."""

from __future__ import annotations

from klamm.kafka.wire.messages import (
    API_VERSIONS,
    DELETE_RECORDS,
    FETCH,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    OFFSET_FOR_LEADER_EPOCH,
    PRODUCE,
)
from tests.interop.records import NOW
from tests.interop.scripts import RECORDS, ScriptContext, batch_of, script, tampered

NOWHERE = "00" * 15 + "07"  # a topic id that nobody has


def old_message(magic: int) -> bytes:
    """One message in the format before batches: CRC, magic, attributes, a time from magic 1 on, key, value."""
    import zlib

    time = NOW.to_bytes(8, "big") if magic else b""
    body = bytes([magic, 0]) + time + (-1).to_bytes(4, "big", signed=True) + (5).to_bytes(4, "big") + b"value"
    message = zlib.crc32(body).to_bytes(4, "big") + body
    return bytes(8) + len(message).to_bytes(4, "big") + message


@script
def produce_in_every_version(context: ScriptContext) -> None:
    topic = context.topic()
    for version in range(3, 14):
        context.produce(f"v{version}", topic, batch_of(RECORDS), version=version)


@script
def produce_in_every_codec(context: ScriptContext) -> None:
    topic = context.topic()
    for codec in range(5):
        context.produce(f"codec {codec}", topic, batch_of(RECORDS, codec))
    context.fetch("read", topic, 0)
    context.produce("zstd before its time", topic, batch_of(RECORDS, 4), version=6)
    context.produce("a codec that is not there", topic, tampered(batch_of(RECORDS), 22, b"\x05"))


@script
def produce_to_what_is_not_there(context: ScriptContext) -> None:
    topic, missing = context.topic(), context.name("missing")
    context.produce("topic", missing, batch_of(RECORDS))
    context.produce("partition", topic, batch_of(RECORDS), 1)
    context.produce("negative", topic, batch_of(RECORDS), -1)
    context.produce("id", NOWHERE, batch_of(RECORDS), version=13)


@script
def produce_with_odd_acks(context: ScriptContext) -> None:
    topic = context.topic()
    for acks in (0, 1, 2, -2):
        if acks:
            context.produce(f"acks {acks}", topic, batch_of(RECORDS), acks=acks)
    # Without an answer to send, an error ends the connection.
    part = PRODUCE.request.Partition(index=7, records=batch_of(RECORDS))
    data = [PRODUCE.request.Topic(name=topic, partition_data=[part])]
    context.raw.send(PRODUCE, 9, acks=0, timeout_ms=1000, topic_data=data)
    context.ask("after an error without acks", API_VERSIONS, 0)


@script
def produce_what_is_not_a_batch(context: ScriptContext) -> None:
    topic = context.topic()
    good = batch_of(RECORDS)
    context.produce("nothing", topic, b"")
    context.produce("half a header", topic, good[:30])
    context.produce("half a batch", topic, good[:-5])
    context.produce("two batches", topic, good + good)
    context.produce("wrong checksum", topic, good[:17] + b"\0\0\0\0" + good[21:])
    context.produce("flipped value", topic, good[:-3] + b"\xff" + good[-2:])
    context.produce("magic 3", topic, good[:16] + b"\x03" + good[17:])
    context.produce("magic 1", topic, old_message(1))
    context.produce("magic 0", topic, old_message(0))
    context.produce("no length", topic, good[:8] + bytes(4) + good[12:])
    context.produce("negative length", topic, good[:8] + b"\xff\xff\xff\xff" + good[12:])
    context.fetch("nothing was written", topic, 0)
    context.produce("bytes behind it", topic, good + b"rubbish")


@script
def produce_a_batch_that_lies(context: ScriptContext) -> None:
    topic = context.topic()
    good, packed = batch_of(RECORDS), batch_of(RECORDS, 1)
    context.produce("more records than told", topic, tampered(good, 57, (2).to_bytes(4, "big")))
    context.produce("fewer records than told", topic, tampered(good, 57, (4).to_bytes(4, "big")))
    context.produce("no records", topic, tampered(good, 57, bytes(4)))
    context.produce("negative count", topic, tampered(good, 57, b"\xff\xff\xff\xff"))
    context.produce("last offset delta", topic, tampered(good, 23, (9).to_bytes(4, "big")))
    context.produce("packed, more than told", topic, tampered(packed, 57, (2).to_bytes(4, "big")))
    context.produce("packed, last offset delta", topic, tampered(packed, 23, (9).to_bytes(4, "big")))
    context.produce("packed, rubbish", topic, tampered(packed, 70, b"\xff" * 8))
    context.produce("a leader epoch", topic, good[:12] + (99).to_bytes(4, "big") + good[16:])
    context.fetch("read", topic, 0)
    context.produce("a base offset", topic, batch_of(RECORDS, 0, 1234))


@script
def produce_what_only_a_broker_may_write(context: ScriptContext) -> None:
    topic = context.topic()
    producer = context.raw.ask(INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout_ms=10_000)
    own = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch, "base_sequence": 0}
    marker = [(b"\0\0\0\1", bytes(6), (), NOW)]
    context.produce("control", topic, batch_of(marker, attributes=0x20))
    context.produce("a marker", topic, batch_of(marker, attributes=0x30, **own))
    context.produce("transactional without a producer", topic, batch_of(RECORDS, attributes=0x10))
    context.produce("transactional without a transaction", topic, batch_of(RECORDS, attributes=0x10, **own))
    context.fetch("read", topic, 0)
    context.produce("append time", topic, batch_of(RECORDS, attributes=0x08))
    stamped = context.topic(message_timestamp_type="LogAppendTime")
    context.produce("append time, where the broker stamps", stamped, batch_of(RECORDS, attributes=0x08))


@script
def produce_more_than_the_topic_takes(context: ScriptContext) -> None:
    topic = context.topic(max_message_bytes="500")
    context.produce("fits", topic, batch_of([(None, b"x" * 400, (), NOW)]))
    context.produce("too large", topic, batch_of([(None, b"x" * 500, (), NOW)]))
    context.produce("packed, it fits", topic, batch_of([(None, b"x" * 5000, (), NOW)], 1))


@script
def produce_to_a_compacted_topic(context: ScriptContext) -> None:
    topic = context.topic(cleanup_policy="compact")
    context.produce("with keys", topic, batch_of(RECORDS))
    context.produce("without a key", topic, batch_of([RECORDS[0], (None, b"v", (), NOW), RECORDS[1]]))
    context.produce("packed, without a key", topic, batch_of([RECORDS[0], (None, b"v", (), NOW)], 2))


@script
def produce_from_other_times(context: ScriptContext) -> None:
    topic = context.topic(retention_ms="-1")
    for what, time in (("long ago", 1), ("at the beginning", 0), ("tomorrow", NOW + 24 * 3_600_000)):
        context.produce(what, topic, batch_of([(b"k", b"v", (), time)]))
    day = 24 * 3_600_000
    mixed = [(b"k", b"v", (), NOW + time) for time in (0, day, 0, 2 * day)]
    context.produce("two of four tomorrow", topic, batch_of(mixed))
    context.produce("two of four tomorrow, packed", topic, batch_of(mixed, 1))
    context.produce("so many that nobody reads all of it", topic, batch_of([(b"k", b"v", (), NOW + day)] * 150))
    limited = context.topic(word="limited", message_timestamp_before_max_ms="60000", cleanup_policy="compact")
    context.produce("an hour ago", limited, batch_of([(b"k", b"v", (), NOW + time) for time in (0, -3_600_000)]))
    context.produce(
        "an hour ago, and one without a key",
        limited,
        batch_of([(b"k", b"v", (), NOW - 3_600_000), (None, b"v", (), NOW), (b"k", b"v", (), NOW)]),
    )
    appended = context.topic(word="appended", message_timestamp_type="LogAppendTime")
    context.produce("append time", appended, batch_of([(b"k", b"v", (), NOW + 24 * 3_600_000)]))
    context.fetch("read", appended, 0)


@script
def produce_in_sequence(context: ScriptContext) -> None:
    topic = context.topic()
    producer = context.ask("a producer", INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout_ms=10_000)

    def batch(sequence: int, epoch: int = 0, number: int | None = None, *, reverse: bool = False) -> bytes:
        number = producer.producer_id if number is None else number
        records = RECORDS[::-1] if reverse else RECORDS
        return batch_of(records, producer_id=number, producer_epoch=epoch, base_sequence=sequence)

    context.produce("first", topic, batch(0))
    context.produce("second", topic, batch(3))
    context.produce("the sequences of the second with other records", topic, batch(3, reverse=True))
    context.produce("first again", topic, batch(0))
    context.produce("second again", topic, batch(3))
    context.produce("a gap", topic, batch(9))
    context.produce("overlapping", topic, batch(4))
    context.produce("a later epoch, not from its start", topic, batch(6, 1))
    context.produce("a later epoch", topic, batch(0, 1))
    context.produce("an earlier epoch", topic, batch(6, 0))
    context.produce("a stranger, not from the start", topic, batch(5, 0, producer.producer_id + 1_000_000))
    context.produce("a stranger", topic, batch(0, 0, producer.producer_id + 1_000_000))
    context.produce("no sequence", topic, batch(-1))
    context.produce("negative epoch", topic, batch(0, -1))
    for n in range(7):
        context.produce(None, topic, batch(3 + 3 * n, 1))
    context.produce("one of the last five, again", topic, batch(3 + 3 * 4, 1))
    context.produce("older than the last five, again", topic, batch(3, 1))


@script
def fetch_from_everywhere(context: ScriptContext) -> None:
    topic = context.topic()
    context.fetch("empty", topic, 0)
    for _ in range(3):
        context.produce(None, topic, batch_of(RECORDS))
    for offset in (0, 4, 8, 9, 10, -1, -5):
        context.fetch(f"from {offset}", topic, offset)
    context.fetch("partition", topic, 0, 3)
    context.fetch("topic", context.name("missing"), 0)
    context.fetch("id", NOWHERE, 0, version=13)


@script
def fetch_in_every_version(context: ScriptContext) -> None:
    topic = context.topic()
    context.produce(None, topic, batch_of(RECORDS))
    for version in range(4, 19):
        context.fetch(f"v{version}", topic, 0, version=version)


@script
def fetch_little(context: ScriptContext) -> None:
    topic = context.topic()
    for _ in range(3):
        context.produce(None, topic, batch_of(RECORDS))
    context.fetch("a byte of the partition", topic, 3, partition_max_bytes=1)
    context.fetch("a byte of all", topic, 3, max_bytes=1)
    context.fetch("nothing of the partition", topic, 3, partition_max_bytes=0)
    context.fetch("two batches and a bit", topic, 0, partition_max_bytes=2 * len(batch_of(RECORDS)) + 10)
    parts = [FETCH.request.Partition(partition=0, fetch_offset=n, partition_max_bytes=1) for n in (0,)]
    topics = [FETCH.request.Topic(topic=topic, partitions=parts)] * 2
    context.ask("the same partition twice", FETCH, 12, max_wait_ms=0, min_bytes=0, topics=topics)


@script
def fetch_waits(context: ScriptContext) -> None:
    import time

    topic = context.topic()
    began = time.monotonic()
    context.fetch("nothing comes", topic, 0, max_wait_ms=300, min_bytes=1)
    context.note("waited", time.monotonic() - began > 0.25)
    other = context.other()
    part = FETCH.request.Partition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    asked = {"max_wait_ms": 20_000, "min_bytes": 1, "topics": [FETCH.request.Topic(topic=topic, partitions=[part])]}
    other.send(FETCH, 12, **asked)
    context.produce(None, topic, batch_of(RECORDS))
    from klamm.kafka.wire.frames import read_response

    context.note("something comes", read_response(FETCH, 12, other.receive())[1])
    context.fetch("an error is told at once", topic, 100, max_wait_ms=600_000, min_bytes=1)  # a client would not wait


@script
def fetch_sessions(context: ScriptContext) -> None:
    topic = context.topic()
    context.produce(None, topic, batch_of(RECORDS))
    context.fetch("no session", topic, 0, session_id=0, session_epoch=-1)
    empty = {"max_wait_ms": 0, "min_bytes": 0, "topics": []}
    context.ask("empty, no session", FETCH, 12, session_id=0, session_epoch=-1, **empty)
    context.ask("a session that is not there", FETCH, 12, session_id=12345, session_epoch=1, **empty)
    context.ask("end of a session that is not there", FETCH, 12, session_id=12345, session_epoch=-1, **empty)


@script
def fetch_by_epoch(context: ScriptContext) -> None:
    topic = context.topic()
    context.produce(None, topic, batch_of(RECORDS))
    context.fetch("of the future", topic, 0, current_leader_epoch=1000)
    asked = [OFFSET_FOR_LEADER_EPOCH.request.Partition(partition=0, leader_epoch=epoch) for epoch in (1000,)]
    topics = [OFFSET_FOR_LEADER_EPOCH.request.Topic(topic=topic, partitions=asked)]
    context.ask("end of a future epoch", OFFSET_FOR_LEADER_EPOCH, 4, replica_id=-1, topics=topics)
    missing = [OFFSET_FOR_LEADER_EPOCH.request.Partition(partition=5, leader_epoch=0)]
    topics = [OFFSET_FOR_LEADER_EPOCH.request.Topic(topic=topic, partitions=missing)]
    context.ask("end of a partition that is not there", OFFSET_FOR_LEADER_EPOCH, 4, replica_id=-1, topics=topics)


@script
def offsets_by_time(context: ScriptContext) -> None:
    topic = context.topic(retention_ms="-1")
    times = [1000, 3000, 2000, 5000, 4000]
    context.produce(None, topic, batch_of([(b"k", b"v", (), 1000 + time) for time in times[:3]]))
    context.produce(None, topic, batch_of([(b"k", b"v", (), 1000 + time) for time in times[3:]], 3))

    def listed(what: str, time: int, version: int = 9, partition: int = 0, name: str = topic, **fields: int) -> None:
        part = LIST_OFFSETS.request.Partition(partition_index=partition, timestamp=time, **fields)
        asked = [LIST_OFFSETS.request.Topic(name=name, partitions=[part])]
        context.ask(what, LIST_OFFSETS, version, replica_id=-1, isolation_level=0, topics=asked)

    for time in (0, 2000, 2500, 3001, 4001, 5001, 6000, 6001):
        listed(f"at {time}", time)
    for time, what in ((-1, "latest"), (-2, "earliest"), (-3, "latest time"), (-4, "earliest local"), (-5, "tiered")):
        listed(what, time)
    listed("-9", -9)
    for version in range(1, 10):
        listed(f"v{version}", 2500, version)
    listed("time of the last, before its version", -3, 6)
    listed("partition", -1, partition=9)
    listed("topic", -1, name=context.name("missing"))
    listed("a future epoch", -1, current_leader_epoch=1000)


@script
def records_are_deleted(context: ScriptContext) -> None:
    topic = context.topic()
    for _ in range(3):
        context.produce(None, topic, batch_of(RECORDS))

    def delete(what: str, offset: int, partition: int = 0, name: str = topic) -> None:
        part = DELETE_RECORDS.request.Partition(partition_index=partition, offset=offset)
        asked = [DELETE_RECORDS.request.Topic(name=name, partitions=[part])]
        context.ask(what, DELETE_RECORDS, 2, topics=asked, timeout_ms=20_000)

    delete("before 4", 4)
    delete("before 2, which is gone", 2)
    delete("beyond the end", 10)
    delete("negative", -2)
    delete("partition", 0, 5)
    delete("topic", 0, 0, context.name("missing"))
    context.fetch("what is gone", topic, 0)
    context.fetch("within a batch", topic, 4)
    delete("everything", -1)
    context.fetch("the end", topic, 9)
    context.produce("goes on", topic, batch_of(RECORDS))


@script
def records_of_a_compacted_topic_are_not_deleted(context: ScriptContext) -> None:
    topic = context.topic(cleanup_policy="compact")
    context.produce(None, topic, batch_of(RECORDS))
    part = DELETE_RECORDS.request.Partition(partition_index=0, offset=1)
    asked = [DELETE_RECORDS.request.Topic(name=topic, partitions=[part])]
    context.ask("refused", DELETE_RECORDS, 2, topics=asked, timeout_ms=20_000)
