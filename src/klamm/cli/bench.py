"""`klamm bench`: hammers producers and consumers against a directory or a Kafka address, with live rates.

Every worker is a process of its own, and counts in shared memory; the parent only looks at the counters, four times a
second, and starts no clock of its own in a worker's loop. Producers send until the records or the time are up;
consumers read from the topic's end on, until they have seen everything that was sent. Each record carries the time at
which it was sent, and one in a hundred is used to measure how long it took to its reader.
"""

from __future__ import annotations

import os
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from klamm.cli.output import count_of, facts, is_terminal, size_of
from klamm.cli.stores import path_of
from klamm.errors import InvalidSetting, KlammError

__all__ = ["bench"]

_LOOK_S = 0.25
_SAMPLE = 100  # one of so many records tells how long it took
_SAMPLES = 100_000  # a reader keeps at most
_CHUNK = 500
_STAMP = struct.Struct("<d")
_PATIENCE_S = 30.0


@dataclass(frozen=True)
class Load:
    """What a worker is told."""

    target: str
    topic: str
    size: int
    count: int
    seconds: float
    acks: str
    compression: str | None

    @property
    def is_kafka(self) -> bool:
        return self.target.startswith("kafka://")

    @property
    def address(self) -> str:
        return self.target.removeprefix("kafka://").rstrip("/")


def bench(
    target: Annotated[
        str | None, typer.Argument(metavar="[PATH|kafka://HOST:PORT]", help="What to hammer. [default: the store]")
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option("-t", "--topic", metavar="TOPIC", help="This one, and leave it. [default: a new one]"),
    ] = None,
    producers: Annotated[int, typer.Option(metavar="N", help="So many processes that send.", min=0)] = 1,
    consumers: Annotated[int, typer.Option(metavar="N", help="So many that read everything.", min=0)] = 1,
    partitions: Annotated[int, typer.Option(metavar="N", help="Of a new topic.", min=1)] = 1,
    count: Annotated[
        int, typer.Option("-n", "--count", metavar="N", help="Records a producer sends.", min=1)
    ] = 1_000_000,
    seconds: Annotated[float, typer.Option(metavar="S", help="At most so long.", min=0.1)] = 30.0,
    size: Annotated[int, typer.Option(metavar="BYTES", help="Of a value.", min=8)] = 100,
    acks: Annotated[str, typer.Option(metavar="all|1", help="What producers wait for.")] = "1",
    compression: Annotated[str | None, typer.Option(metavar="CODEC", help="gzip, snappy, lz4 or zstd.")] = None,
) -> None:
    """Measure how fast records go in and out, end to end."""
    if acks not in ("all", "1"):
        raise InvalidSetting(f"--acks {acks}: does not fit", hint="want all or 1")
    if producers + consumers == 0:
        raise InvalidSetting("bench: nothing to do", hint="want at least one producer or consumer")
    where = path_of(None) if target is None else target
    name = topic or f"bench-{os.urandom(4).hex()}"
    load = Load(where, name, size, count, seconds, acks, compression)
    _prepare(load, partitions, new=topic is None)
    try:
        rows = _hammer(load, producers, consumers)
    finally:
        if topic is None:
            _tidy(load)
    facts(rows)


# ---- the topic


def _admin(load: Load) -> Any:
    return _confluent().admin.AdminClient({"bootstrap.servers": load.address})


def _confluent() -> Any:
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError:
        raise KlammError("confluent-kafka is not installed", hint="pip install confluent-kafka") from None
    return confluent_kafka


def _prepare(load: Load, partitions: int, *, new: bool) -> None:
    if load.is_kafka:
        if new:
            kafka = _confluent()
            made = _admin(load).create_topics([kafka.admin.NewTopic(load.topic, partitions, 1)], request_timeout=10)
            try:
                made[load.topic].result(15)
            except kafka.KafkaException as error:
                raise KlammError(f"{load.target}: cannot make a topic: {error}", hint="does it listen there?") from None
        return
    import klamm

    with klamm.open(load.target) as store:
        if new:
            store.create_topic(load.topic, partitions)
        else:
            store.topic(load.topic)


def _tidy(load: Load) -> None:
    if load.is_kafka:
        _admin(load).delete_topics([load.topic], request_timeout=10)[load.topic].result(15)
        return
    import klamm

    with klamm.open(load.target) as store:
        store.delete_topic(load.topic)


# ---- the workers


class Counters:
    """Of one worker, in shared memory: records, bytes, whether it is ready and over; and samples of latency in ms."""

    def __init__(self, context: Any) -> None:
        self.records = context.RawValue("q", 0)
        self.ready = context.Event()
        self.samples = context.RawArray("f", _SAMPLES)
        self.sampled = context.RawValue("q", 0)
        self.cpu = context.RawValue("d", 0.0)

    def sample(self, milliseconds: float) -> None:
        number = self.sampled.value
        if number < _SAMPLES:
            self.samples[number] = milliseconds
            self.sampled.value = number + 1


def _produce(load: Load, mine: Counters, go: Any) -> None:
    put, finish = _putter(load)
    filler = os.urandom(load.size - _STAMP.size)
    mine.ready.set()
    go.wait()
    end = time.monotonic() + load.seconds
    done = 0
    while done < load.count and time.monotonic() < end:
        value = _STAMP.pack(time.time()) + filler  # of a chunk: stamping each would cost more than sending it
        for _ in range(min(_CHUNK, load.count - done)):
            put(value)
        done += min(_CHUNK, load.count - done)
        mine.records.value = done
    finish()
    mine.cpu.value = time.process_time()


def _putter(load: Load) -> tuple[Callable[[bytes], object], Callable[[], object]]:
    if load.is_kafka:
        producer = _confluent().Producer(
            {
                "bootstrap.servers": load.address,
                "acks": load.acks,
                "compression.type": load.compression or "none",
                "linger.ms": 5,
                "queue.buffering.max.messages": 500_000,
            }
        )

        def put(value: bytes) -> None:
            while True:
                try:
                    return producer.produce(load.topic, value)  # type: ignore[no-any-return]
                except BufferError:
                    producer.poll(0.01)

        return put, lambda: producer.flush(_PATIENCE_S)
    import klamm

    store = klamm.open(load.target)
    sender = store.producer(acks="all" if load.acks == "all" else 1, compression=load.compression)
    topic = load.topic
    return lambda value: sender.send(topic, value), store.close


def _consume(load: Load, mine: Counters, go: Any, sent: Any, over: Any) -> None:
    """Until it has as many as were sent, once all are."""
    poll, close = _poller(load)
    mine.ready.set()
    go.wait()
    done = 0
    quiet = time.monotonic()
    while not (over.is_set() and done >= sent.value):
        values = poll()
        if values:
            done += len(values)
            mine.records.value = done
            now = time.time()
            for value in values[:: max(1, min(_SAMPLE, len(values)))]:
                mine.sample((now - _STAMP.unpack_from(value)[0]) * 1000)
            quiet = time.monotonic()
        elif time.monotonic() - quiet > _PATIENCE_S:
            break
    close()
    mine.cpu.value = time.process_time()


def _poller(load: Load) -> tuple[Callable[[], list[bytes]], Callable[[], object]]:
    if load.is_kafka:
        kafka = _confluent()
        consumer = kafka.Consumer(
            {
                "bootstrap.servers": load.address,
                "group.id": load.topic,
                "enable.auto.commit": False,
            }
        )
        found = consumer.list_topics(load.topic, 10).topics[load.topic]
        places = [kafka.TopicPartition(load.topic, number) for number in found.partitions]
        for place in places:
            place.offset = consumer.get_watermark_offsets(place, 10)[1]
        consumer.assign(places)

        def poll() -> list[bytes]:
            return [message.value() for message in consumer.consume(10_000, 0.1) if message.error() is None]

        return poll, consumer.close
    import klamm

    store = klamm.open(load.target)
    reader = store.consumer(load.topic, start="latest", form="values", wait_ms=100)
    return lambda: reader.poll(max_records=10_000), store.close


# ---- the parent


def _hammer(load: Load, producers: int, consumers: int) -> list[dict[str, Any]]:
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    go, over, sent = context.Event(), context.Event(), context.RawValue("q", 0)
    senders = [Counters(context) for _ in range(producers)]
    readers = [Counters(context) for _ in range(consumers)]
    workers = [context.Process(target=_produce, args=(load, each, go), daemon=True) for each in senders]
    workers += [context.Process(target=_consume, args=(load, each, go, sent, over), daemon=True) for each in readers]
    for worker in workers:
        worker.start()
    try:
        for each, worker in zip([*senders, *readers], workers, strict=True):
            while not each.ready.wait(0.1):
                if not worker.is_alive():
                    raise KlammError("bench: a worker could not start", hint="what it said is above")
        begin = time.monotonic()
        go.set()
        _watch(load, workers[:producers], senders, readers, begin, producers * load.count)
        wrote = time.monotonic() - begin
        sent.value = sum(each.records.value for each in senders)
        over.set()
        _watch(load, workers[producers:], senders, readers, begin, sent.value)
        read = time.monotonic() - begin
    except KeyboardInterrupt:
        over.set()
        raise
    finally:
        for worker in workers:
            worker.join(2)
            if worker.is_alive():
                worker.kill()
    failed = [worker for worker in workers if worker.exitcode]
    if failed:
        raise KlammError(f"bench: {count_of(len(failed), 'worker')} failed", hint="what they said is above")
    rows = []
    if senders:
        rows.append(_row("producers", senders, load, wrote))
    if readers:
        rows.append(_row("consumers", readers, load, read))
    return rows


def _watch(
    load: Load,
    workers: list[Any],
    senders: list[Counters],
    readers: list[Counters],
    begin: float,
    total: int,
) -> None:
    """Until these workers have ended; live rates on a terminal."""
    before, then = (0, 0), begin
    while any(worker.is_alive() for worker in workers):
        time.sleep(_LOOK_S)
        now = time.monotonic()
        counts = (sum(each.records.value for each in senders), sum(each.records.value for each in readers))
        if sys.stderr.isatty():
            rates = [(new - old) / (now - then) for new, old in zip(counts, before, strict=True)]
            share = f"{counts[0] / total:4.0%}" if total else ""
            line = f"{now - begin:5.1f} s {share}  in {rates[0]:>12,.0f}/s  out {rates[1]:>12,.0f}/s"
            sys.stderr.write(f"\r{line}\x1b[K")
            sys.stderr.flush()
        before, then = counts, now
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")


def _row(who: str, counters: list[Counters], load: Load, seconds: float) -> dict[str, Any]:
    records = sum(each.records.value for each in counters)
    samples = sorted(value for each in counters for value in each.samples[: each.sampled.value])
    rate = records / seconds
    row: dict[str, Any] = {
        "who": f"{len(counters)} {who}",
        "records": records,
        "seconds": round(seconds, 2),
        "records_per_s": round(rate),
        "bytes_per_s": f"{size_of(rate * load.size)}" if is_terminal() else round(rate * load.size),
        "cpu_s": round(sum(each.cpu.value for each in counters), 2),
    }
    for name, share in (("p50_ms", 0.5), ("p99_ms", 0.99)):
        row[name] = round(samples[min(len(samples) - 1, int(share * len(samples)))], 2) if samples else None
    return row
