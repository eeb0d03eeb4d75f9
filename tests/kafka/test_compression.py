"""compression.type of a topic: in the log batches have its codec, whatever they had when they came."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

import klamm
from klamm.batch import CODECS, codecs, parse, recompress
from klamm.kafka.apis import produce as produce_api
from klamm.kafka.error_codes import ErrorCode
from tests.kafka.connect import Raw, Served, served
from tests.kafka.requests import batches_of, fetch, produce, sealed, values

MIB = 1024 * 1024
VALUE = b"." * 5000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("compression") / "events", decompression_max_bytes=2 * MIB) as running:
        yield running


@pytest.fixture
def raw(server: Served) -> Iterator[Raw]:
    with server.dial() as local_address:
        yield local_address


def codecs_in(raw: Raw, topic: str) -> list[int]:
    return [parse(batch).codec for batch in batches_of(fetch(raw, topic, 0).records)]


@pytest.mark.parametrize("wanted", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_batches_of_every_codec_get_the_topics_and_keep_their_records(raw: Raw, wanted: str) -> None:
    topic = raw.create(f"to-{wanted}", compression_type=wanted)
    for codec in CODECS.values():
        answer = produce(raw, topic, sealed([VALUE, b"%d" % codec], codec=codec), acks=-1)
        assert (answer.error_code, answer.base_offset) == (0, 2 * codec)
    assert codecs_in(raw, topic) == [0 if wanted == "uncompressed" else CODECS[wanted]] * 5
    assert values(fetch(raw, topic, 0)) == [value for codec in range(5) for value in (VALUE, b"%d" % codec)]


def test_batches_stay_as_they_come_unless_the_topic_says_otherwise(raw: Raw) -> None:
    topic = raw.create("as-they-come")
    for codec in CODECS.values():
        produce(raw, topic, sealed([VALUE], codec=codec))
    assert codecs_in(raw, topic) == list(CODECS.values())


def test_a_batch_of_the_topics_codec_is_not_touched(raw: Raw) -> None:
    topic = raw.create("same", compression_type="zstd", compression_zstd_level="19")
    batch = sealed([VALUE], codec=CODECS["zstd"])
    produce(raw, topic, batch)
    (stored,) = batches_of(fetch(raw, topic, 0).records)
    assert stored[16:] == batch[16:]


def test_the_level_of_the_topic_is_used(raw: Raw) -> None:
    text = b" ".join(b"%d" % (n * n) for n in range(20_000))
    sizes = {}
    for level in ("1", "9"):
        topic = raw.create(f"level-{level}", compression_type="gzip", compression_gzip_level=level)
        assert produce(raw, topic, sealed([text])).error_code == 0
        (stored,) = batches_of(fetch(raw, topic, 0).records)
        sizes[level] = len(stored)
    assert sizes["9"] < sizes["1"] < len(text)


def test_it_is_done_by_a_thread_for_codecs(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def watched(*given: object, **options: object) -> object:
        seen.append(threading.current_thread().name)
        return recompress(*given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(produce_api, "recompress", watched)
    produce(raw, raw.create("by-a-thread", compression_type="lz4"), sealed([b"small"]))
    assert len(seen) == 1 and "codec" in seen[0], seen


def test_the_time_of_the_append_is_told_and_stored(raw: Raw) -> None:
    topic = raw.create("stamped", compression_type="zstd", message_timestamp_type="LogAppendTime")
    answer = produce(raw, topic, sealed([VALUE]))
    (stored,) = batches_of(fetch(raw, topic, 0).records)
    assert answer.log_append_time_ms == parse(stored).max_timestamp > 0 and parse(stored).log_append_time


def test_a_batch_that_another_codec_makes_too_large_is_refused(raw: Raw) -> None:
    topic = raw.create("small", compression_type="uncompressed", max_message_bytes="2000")
    refused = produce(raw, topic, sealed([VALUE], codec=CODECS["zstd"]))
    assert (
        refused.error_code == ErrorCode.MESSAGE_TOO_LARGE
        and "exceeds the maximum configured value of 2000." in refused.error_message
    )
    assert produce(raw, topic, sealed([b"." * 1000], codec=CODECS["zstd"])).error_code == 0


def test_what_is_in_memory_meanwhile_is_bounded(raw: Raw) -> None:
    topic = raw.create("bombed", compression_type="zstd")
    for size, code in ((MIB, ErrorCode.NONE), (3 * MIB, ErrorCode.MESSAGE_TOO_LARGE)):
        assert produce(raw, topic, sealed([bytes(size)], codec=CODECS["gzip"])).error_code == code


def test_a_setting_that_is_changed_holds_for_the_next_batch(server: Served, raw: Raw) -> None:
    topic = raw.create("changed")
    produce(raw, topic, sealed([VALUE]))
    with klamm.open(server.server._path) as store:
        store.topics.alter(topic, compression_type="snappy")
    produce(raw, topic, sealed([VALUE]))
    assert codecs_in(raw, topic) == [0, CODECS["snappy"]]


@pytest.mark.parametrize("acks", [1, "all"])
def test_the_embedded_door_compresses_too(tmp_path: Path, acks: Literal[1, "all"]) -> None:
    with klamm.open(tmp_path / "events") as store:
        store.topics.create("t", compression_type="zstd")
        store.append("t", b"one", acks=acks)
        store.append("t", b"headers", headers={"a": b"b"}, acks=acks)
        store.append_many("t", [VALUE] * 3, compression="gzip")
        with store.producer(compression="lz4", acks=acks) as producer:
            assert producer.send("t", VALUE).result() == 5
        with store.transaction() as tx:
            tx.send("t", VALUE)
        log = store._acquired().topic("t").partition(0)
        with log.reader(0, committed=False) as reader:
            data = reader.read()
        found = []
        while data:
            header = parse(data)
            found += [] if header.is_control else [header.codec]
            data = data[header.size :]
        assert found == [codecs.CODECS["zstd"]] * 5
        assert [record.value for record in store["t"].tail(7)] == [b"one", b"headers", *[VALUE] * 5]
