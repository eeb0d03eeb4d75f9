"""How long does it take to decode a request, and to encode its response, beside kio?

Produce, Fetch and Metadata, each in a version of today and with one topic: Produce with one batch of 16 KiB, Fetch of
eight partitions, of which one has records, Metadata of 50 topics. Beside it kio, whose classes are generated from
Kafka's own definitions: it decodes natively, copying records, and encodes in Python. Both are given and give the same
bytes. Goals are for what is hot: a Produce request is decoded in 3 µs, and responses are encoded in a quarter of kio's
time. Also, what the first use of a version costs, for that is when its functions are compiled.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

import _harness as harness
from klamm.kafka.wire import Message
from klamm.kafka.wire.decoder import make_decoder
from klamm.kafka.wire.encoder import make_encoder
from klamm.kafka.wire.messages import APIS, FETCH, METADATA, PRODUCE

BATCH = bytes(16 * 1024)
TOPIC_ID = bytes(range(16))


def produce_request() -> Any:
    part = PRODUCE.request.Partition(index=3, records=BATCH)
    return PRODUCE.request(
        acks=1, timeout_ms=30_000, topic_data=[PRODUCE.request.Topic(name="orders", partition_data=[part])]
    )


def produce_response() -> Any:
    part = PRODUCE.response.Partition(index=3, base_offset=123_456_789, log_start_offset=0)
    return PRODUCE.response(responses=[PRODUCE.response.Topic(name="orders", partition_responses=[part])])


def fetch_request() -> Any:
    parts = [FETCH.request.Partition(partition=n, fetch_offset=1000, partition_max_bytes=1 << 20) for n in range(8)]
    topic = FETCH.request.Topic(topic_id=TOPIC_ID, partitions=parts)
    return FETCH.request(max_wait_ms=500, min_bytes=1, max_bytes=50 << 20, topics=[topic])


def fetch_response() -> Any:
    parts = [
        FETCH.response.Partition(partition_index=n, high_watermark=1000, records=BATCH if n == 0 else b"")
        for n in range(8)
    ]
    return FETCH.response(responses=[FETCH.response.Topic(topic_id=TOPIC_ID, partitions=parts)])


def metadata_request() -> Any:
    return METADATA.request(topics=[METADATA.request.Topic(name=f"topic-{n}") for n in range(50)])


def metadata_response() -> Any:
    def topic(number: int) -> Any:
        part = METADATA.response.Partition(leader_id=1, leader_epoch=0, replica_nodes=[1], isr_nodes=[1])
        return METADATA.response.Topic(name=f"topic-{number}", topic_id=TOPIC_ID, partitions=[part])

    broker = METADATA.response.Broker(node_id=1, host="localhost", port=9092)
    return METADATA.response(brokers=[broker], cluster_id="klamm", topics=[topic(n) for n in range(50)])


PARTS: list[tuple[str, Message, int, Callable[[], Any], int]] = [
    ("decode", PRODUCE.request, 9, produce_request, 20_000),
    ("encode", PRODUCE.response, 9, produce_response, 20_000),
    ("decode", FETCH.request, 16, fetch_request, 5_000),
    ("encode", FETCH.response, 16, fetch_response, 5_000),
    ("decode", METADATA.request, 12, metadata_request, 2_000),
    ("encode", METADATA.response, 12, metadata_response, 1_000),
]


def sides(action: str, message: Message, version: int, value: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """The same thing, done by us and by kio."""
    data = b"".join(message.encode(value, version))
    load = load_request_schema if message is message.api.request else load_response_schema
    theirs = load(message.api.key, version)
    read, write = entity_reader(theirs), entity_writer(theirs)
    found = read(data, 0)[0]

    def kio_encode() -> bytes:
        out = io.BytesIO()
        write(out, found)
        return out.getvalue()

    assert kio_encode() == data
    if action == "encode":
        return lambda: message.encode(value, version), kio_encode
    view = memoryview(data)  # as a server has it, in its receive buffer
    return lambda: message.decode(view, version), lambda: read(data, 0)


def microseconds(run: Callable[[], Any], count: int) -> float:
    with harness.clock(count) as sample:
        for _ in range(count):
            run()
    return sample.wall / count * 1e6


def compile_everything() -> float:
    """Milliseconds for one direction of one version."""
    begin = time.perf_counter()
    for api in APIS.values():
        version = api.max_version
        for make, message in ((make_decoder, api.request), (make_encoder, api.response)):
            make("bench", message.shape, version, api.is_flexible(version), message.classes)
    return (time.perf_counter() - begin) / len(APIS) / 2 * 1e3


def main() -> None:
    options = harness.arguments(__doc__.splitlines()[0])
    for action, message, version, make, count in PARTS:
        question = f"{action} {message.name} v{version}"
        if options.only not in question:
            continue
        if options.quick:
            count = 10
        ours, theirs = sides(action, message, version, make())
        found = harness.interleave(
            {
                "klamm": lambda ours=ours, count=count: microseconds(ours, count),
                "kio": lambda theirs=theirs, count=count: microseconds(theirs, count),
            },
            options.rounds,
        )
        want = (
            harness.at_most(0.25)
            if action == "encode"
            else harness.at_most(3, "figure")
            if "Produce" in question
            else None
        )
        harness.answer(question, found["klamm"], "kio", found["kio"], want, unit="µs a message", count=count)
    if options.only in "compile a version":
        harness.answer("compile a version", [compile_everything() for _ in range(options.rounds)], unit="ms")


if __name__ == "__main__":
    main()
