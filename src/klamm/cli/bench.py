"""`klamm bench`: hammers producers and consumers against a directory or a Kafka address, with live rates.

Every worker is a process of its own, and counts in shared memory; the parent only looks at the counters, four times a
second. Producers send until the records or the time are up; consumers read from the topic's end on, until they have
seen everything that was sent, or, without producers, from its start to its end. Each record carries the time at which
it was sent, and some are used to measure how long it took to their reader. A store that is made for it is removed.
"""

from __future__ import annotations

import os
import signal
import struct
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from klamm.cli.output import Cell, OutputOption, count_of, size_of
from klamm.cli.records import parse_seconds
from klamm.cli.stores import StoreOption, found_path
from klamm.errors import InvalidSetting, KlammError, NotAStore, NotInstalled

__all__ = ["bench"]

_LOOK_S = 0.25
_LEAST_S = 0.1  # of a run
_SAMPLE = 100  # one of so many records tells how long it took
_SAMPLES = 100_000  # a reader keeps at most
_CHUNK = 500
_STAMP = struct.Struct("<d")
_TIMEOUT_S = 30.0
_WAIT_S = 0.1
_SILENCE_S = 5.0
_OLDEST_MS = 3_600_000
_FAILURE_BYTES = 500


@dataclass(frozen=True)
class Load:
    """The load that a worker generates."""

    target: str
    topic: str
    size: int
    count: int
    seconds: float
    acks: str
    compression: Any  # a codec, or None
    from_start: bool

    @property
    def is_kafka(self) -> bool:
        return self.target.startswith("kafka://")

    @property
    def client(self) -> dict[str, Any]:
        """Options of a client of librdkafka, from the address."""
        from klamm.cluster.address import client_config

        return {**client_config(self.target), **_QUIET}


def bench(
    target: Annotated[
        str | None,
        typer.Argument(metavar="[PATH|kafka://HOST:PORT]", help="Store or broker to benchmark. [default: the store]"),
    ] = None,
    store: StoreOption = None,
    topic: Annotated[
        str | None,
        typer.Option(
            "-t", "--topic", metavar="TOPIC", help="Topic to use; it is kept. [default: a new one, deleted at the end]"
        ),
    ] = None,
    producers: Annotated[int, typer.Option(metavar="N", help="Number of producer processes.", min=0)] = 1,
    consumers: Annotated[
        int, typer.Option(metavar="N", help="Number of consumer processes; each reads all records.", min=0)
    ] = 1,
    partitions: Annotated[int, typer.Option(metavar="N", help="Partitions of a new topic.", min=1)] = 1,
    count: Annotated[int, typer.Option("-n", "--count", metavar="N", help="Records per producer.", min=1)] = 1_000_000,
    seconds: Annotated[str, typer.Option(metavar="TIME", help="Time limit: 500ms, 90s, 5m.")] = "30s",
    size: Annotated[int, typer.Option(metavar="BYTES", help="Size of a value, in bytes.", min=8)] = 100,
    acks: Annotated[str, typer.Option(metavar="all|1", help="Acknowledgement that producers wait for.")] = "1",
    compression: Annotated[str | None, typer.Option(metavar="CODEC", help="gzip, snappy, lz4 or zstd.")] = None,
    *,
    out: OutputOption,
) -> None:
    """Measure how fast records go in and out, end to end."""
    if acks not in ("all", "1"):
        raise InvalidSetting(f"--acks {acks}: invalid", hint="expected all or 1")
    limit_s = parse_seconds(seconds, "--seconds")
    if limit_s < _LEAST_S:
        raise InvalidSetting(f"{seconds!r} is invalid", setting="--seconds", hint="expected at least 100ms")
    if producers + consumers == 0:
        raise InvalidSetting("bench: nothing to do", hint="expected at least one producer or consumer")
    if producers == 0 and topic is None:
        raise InvalidSetting(
            "bench: there are no producers, and no --topic to read", hint="give --topic, or at least one producer"
        )
    if target is not None and "://" in target and not target.startswith("kafka://"):
        raise InvalidSetting(f"{target}: is neither a directory nor kafka://host:port")
    try:
        where = found_path(store) if target is None else target
    except NotAStore as error:
        raise NotAStore(
            f"bench: {error.message}", hint="klamm bench PATH makes a store for it, and removes it"
        ) from None
    name = topic or f"bench-{os.urandom(4).hex()}"
    load = Load(where, name, size, count, limit_s, acks, compression, from_start=producers == 0)
    if not load.is_kafka:
        from klamm.client.produce.target import codec_of

        codec_of(compression, None)  # said here, not by a worker
    is_ours = not load.is_kafka and (not Path(where).exists() or not any(Path(where).iterdir()))
    _prepare(load, partitions, new=topic is None)
    try:
        rows = _hammer(load, producers, consumers)
    finally:
        if is_ours:
            import shutil

            shutil.rmtree(where, ignore_errors=True)
        elif topic is None:
            _tidy(load)
    out.print_rows(_spoken(rows) if out.is_table else rows)


def _spoken(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows for people: no more columns than a terminal has space for."""
    names = {"records_per_s": "records/s", "bytes_per_s": "bytes/s", "cpu_s": "CPU s", "p50_ms": "p50 ms"}
    return [{names.get(name, name): value for name, value in row.items()} for row in rows]


# ---- the topic


_QUIET = {"log_level": 0}  # what librdkafka has to say about a broker that is not there, we say ourselves


def _admin(load: Load) -> Any:
    from klamm.cluster.address import client_options

    return _confluent().admin.AdminClient(client_options(load.client))


def _confluent() -> Any:
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError:
        raise NotInstalled.package("confluent-kafka", "confluent-kafka") from None
    return confluent_kafka


def _prepare(load: Load, partitions: int, *, new: bool) -> None:
    if load.is_kafka:
        if new:
            kafka = _confluent()
            admin = _admin(load)
            made = admin.create_topics([kafka.admin.NewTopic(load.topic, partitions, -1)], request_timeout=10)
            try:
                made[load.topic].result(15)
            except (kafka.KafkaException, TimeoutError) as error:
                what = error.args[0].str() if error.args and hasattr(error.args[0], "str") else str(error)
                raise KlammError(
                    f"{load.target}: cannot make a topic: {what}", hint="check that it listens there"
                ) from None
        return
    import klamm

    with klamm.open(load.target) as store:
        if new:
            store.topics.create(load.topic, partitions)
        else:
            store.topics.describe(load.topic)


def _tidy(load: Load) -> None:
    if load.is_kafka:
        admin = _admin(load)
        admin.delete_topics([load.topic], request_timeout=10)[load.topic].result(15)
        return
    import klamm

    with klamm.open(load.target) as store:
        store.topics.delete(load.topic)


# ---- the workers


class Counters:
    """The counters of one worker, in shared memory: records, bytes, ready, over; and samples of latency in ms."""

    def __init__(self, context: Any) -> None:
        self.records = context.RawValue("q", 0)
        self.ready = context.Event()
        self.samples = context.RawArray("f", _SAMPLES)
        self.sampled = context.RawValue("q", 0)
        self.cpu = context.RawValue("d", 0.0)
        self.ended = context.RawValue("d", 0.0)
        self.failure = context.RawArray("c", _FAILURE_BYTES)

    def end(self) -> None:
        self.ended.value = time.monotonic()  # one clock for all processes

    def sample(self, milliseconds: float) -> None:
        number = self.sampled.value
        if number < _SAMPLES and 0 <= milliseconds < _OLDEST_MS:  # else it is not a time stamp of ours, or an old one
            self.samples[number] = milliseconds
            self.sampled.value = number + 1


def _work(what: Callable[..., None], load: Load, mine: Counters, *more: Any) -> None:
    """Run one worker, in a process of its own. Errors there are reported by the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, too
    try:
        what(load, mine, *more)
        mine.cpu.value = time.process_time()
    except Exception as error:  # noqa: BLE001
        failure = error.message if isinstance(error, KlammError) else f"{type(error).__name__}: {error}"
        mine.failure.value = failure.encode()[: _FAILURE_BYTES - 1]
        os._exit(1)


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
    mine.end()


def _putter(load: Load) -> tuple[Callable[[bytes], object], Callable[[], object]]:
    if load.is_kafka:
        from klamm.cluster.address import producer_options

        failed: list[str] = []
        producer = _confluent().Producer(
            {
                **producer_options(load.client),
                "acks": load.acks,
                "compression.type": load.compression or "none",
                "linger.ms": 5,
                "delivery.report.only.error": True,
                "queue.buffering.max.messages": 500_000,
            }
        )

        def on_delivery(error: Any, _: Any) -> None:
            if error is not None:
                failed.append(error.str())

        def put(value: bytes) -> None:
            while True:
                try:
                    return producer.produce(load.topic, value, on_delivery=on_delivery)  # type: ignore[no-any-return]
                except BufferError:
                    producer.poll(0.01)

        def finish() -> None:
            if producer.flush(_TIMEOUT_S) or failed:
                raise KlammError(
                    f"{load.target}: not every record was acknowledged: {failed[0] if failed else 'no response'}"
                )

        return put, finish
    import klamm

    store = klamm.open(load.target)
    sender = store.producer(acks="all" if load.acks == "all" else 1, compression=load.compression)
    return partial(sender.send, load.topic), store.close


def _consume(load: Load, mine: Counters, go: Any, sent: Any, over: Any) -> None:
    """Consume until it has as many records as were sent, once all are; or as many as there are."""
    poll, close, there = _poller(load)
    mine.ready.set()
    go.wait()
    done = 0
    quiet = time.monotonic()
    mine.end()
    while not (over.is_set() and done >= (there if load.from_start else sent.value)):
        values = poll()
        if values:
            done += len(values)
            mine.records.value = done
            now = time.time()
            for value in values[:: max(1, min(_SAMPLE, len(values)))]:
                if value is not None and len(value) >= _STAMP.size and not load.from_start:
                    mine.sample((now - _STAMP.unpack_from(value)[0]) * 1000)
            mine.end()
            quiet = mine.ended.value
        elif load.from_start and time.monotonic() - quiet > load.is_kafka * _SILENCE_S:
            break  # of a compacted topic there are fewer than its offsets say
        elif time.monotonic() - quiet > _TIMEOUT_S:
            raise KlammError(f"{load.target}: {done:,} records came, then nothing for {_TIMEOUT_S:.0f} s")
    close()


def _poller(load: Load) -> tuple[Callable[[], Sequence[bytes | None]], Callable[[], object], int]:
    """Return functions to get values and to end, and how many values there are to be read from the start."""
    if load.is_kafka:
        from klamm.cluster.address import consumer_options

        kafka = _confluent()
        consumer = kafka.Consumer(
            {
                **consumer_options(load.client),
                "group.id": load.topic,
                "enable.auto.commit": False,
            }
        )
        found = consumer.list_topics(load.topic, 10).topics[load.topic]
        tps = [kafka.TopicPartition(load.topic, number) for number in found.partitions]
        there = 0
        for tp in tps:
            low, high = consumer.get_watermark_offsets(tp, 10)
            tp.offset = low if load.from_start else high
            there += high - low
        consumer.assign(tps)

        def poll() -> Sequence[bytes | None]:
            return [message.value() for message in consumer.consume(10_000, 0.1) if message.error() is None]

        return poll, consumer.close, there
    import klamm

    store = klamm.open(load.target)
    reader = store.consumer(load.topic, start="earliest" if load.from_start else "latest", form="values", wait=_WAIT_S)
    return (
        partial(reader.poll, 10_000),
        store.close,
        store.topics.describe(load.topic).count,
    )


# ---- the parent


def _hammer(load: Load, producers: int, consumers: int) -> list[dict[str, Any]]:
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    go, over, sent = context.Event(), context.Event(), context.RawValue("q", 0)
    senders = [Counters(context) for _ in range(producers)]
    readers = [Counters(context) for _ in range(consumers)]
    workers = [context.Process(target=_work, args=(_produce, load, each, go), daemon=True) for each in senders]
    workers += [
        context.Process(target=_work, args=(_consume, load, each, go, sent, over), daemon=True) for each in readers
    ]
    everybody = list(zip(workers, [*senders, *readers], strict=True))
    _start(workers)
    try:
        for worker, each in everybody:
            while not each.ready.wait(0.1):
                if not worker.is_alive():
                    _check_workers(everybody)
        begin = time.monotonic()
        go.set()
        _watch(workers[:producers], senders, readers, begin, producers * load.count)
        _check_workers(everybody)
        sent.value = sum(each.records.value for each in senders)
        over.set()
        _watch(workers[producers:], senders, readers, begin, sent.value)
    finally:  # processes that still run were interrupted, or are not needed any more
        for worker in workers:
            if worker.is_alive():
                worker.kill()
            worker.join()
    _check_workers(everybody)
    rows = []
    if senders:
        rows.append(_row("producer", senders, load, begin))
    if readers:
        rows.append(_row("consumer", readers, load, begin))
    return rows


def _start(workers: list[Any]) -> None:
    """Start processes that ignore Ctrl-C from their first moment on."""
    heard = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        for worker in workers:
            worker.start()
    finally:
        signal.signal(signal.SIGINT, heard)


def _check_workers(workers: list[tuple[Any, Counters]]) -> None:
    failed = [each for worker, each in workers if worker.exitcode]
    if failed:
        why = next((each.failure.value.decode("utf-8", "replace") for each in failed if each.failure.value), "killed")
        raise KlammError(f"bench: {count_of(len(failed), 'worker')} failed: {why}")


def _watch(
    workers: list[Any],
    senders: list[Counters],
    readers: list[Counters],
    begin: float,
    total: int,
) -> None:
    """Wait until these workers have ended; show live rates on a terminal."""
    from multiprocessing import connection

    before, then = (0, 0), begin
    while any(worker.is_alive() for worker in workers):
        connection.wait([worker.sentinel for worker in workers], _LOOK_S)
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


def _row(who: str, counters: list[Counters], load: Load, begin: float) -> dict[str, Any]:
    seconds = max(each.ended.value for each in counters) - begin
    records = sum(each.records.value for each in counters)
    samples = sorted(value for each in counters for value in each.samples[: each.sampled.value])
    rate = records / seconds
    row: dict[str, Any] = {
        "who": count_of(len(counters), who),
        "records": records,
        "seconds": round(seconds, 2),
        "records_per_s": round(rate),
        "bytes_per_s": Cell(round(rate * load.size), size_of(rate * load.size)),
        "cpu_s": round(sum(each.cpu.value for each in counters), 2),
    }
    for name, share in (("p50_ms", 0.5), ("p99_ms", 0.99)):
        row[name] = round(samples[min(len(samples) - 1, int(share * len(samples)))], 2) if samples else None
    return row
