"""Three Kafka clients behind one interface, so that one test asks the same of each.

    CLIENTS: confluent-kafka (librdkafka), kafka-python, aiokafka

A place is (topic, partition). An error that a test expects is raised as `Refused`, with Kafka's name for it, from the
client's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, TopicPartition

from tests.interop import aiokafkas, confluents, kafka_pythons
from tests.interop.aiokafkas import aiokafka
from tests.interop.kafka_pythons import kafka
from tests.interop.records import CODECS, Written
from tests.messages import offset_of, place_of

__all__ = ["CLIENTS", "Client", "Message", "Place", "Reader", "Refused", "Where", "Writer"]

Place = tuple[str, int]


class Refused(Exception):
    """MESSAGE_TOO_LARGE, PRODUCER_FENCED or OFFSET_OUT_OF_RANGE."""


class Where(NamedTuple):
    """Where a record was written, as far as the producer knows."""

    offset: int | None  # None without acks
    timestamp: int


class Message(NamedTuple):
    record: Written
    partition: int
    offset: int
    has_append_time: bool


class Writer(Protocol):
    def produce(self, topic: str, records: Iterable[Written], partition: int = 0) -> list[Where]:
        """Write the records and wait."""

    def begin(self) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...

    def send_position(self, reader: Any, place: Place) -> None:
        """Commit the reader's position with the transaction."""


class Reader(Protocol):
    def read(self, count: int) -> list[Message]:
        """The next `count` messages."""

    def assign(self, places: Mapping[Place, int | None]) -> None:
        """Read these partitions from an offset, or from where the group is."""

    def seek(self, place: Place, offset: int) -> None: ...
    def pause(self, place: Place) -> None: ...
    def resume(self, place: Place) -> None: ...
    def position(self, place: Place) -> int: ...

    def bounds(self, place: Place) -> tuple[int, int]:
        """The first offset, and the one after the last."""

    def offset_at(self, place: Place, timestamp: int) -> int | None: ...

    def commit_read(self, place: Place) -> None:
        """Commit what was read."""

    def commit(self, place: Place, offset: int, metadata: str) -> None: ...
    def committed(self, place: Place) -> int | None: ...

    def committed_metadata(self, place: Place) -> str | None:
        """None: this client does not return it."""


class Client(NamedTuple):
    name: str
    codecs: list[str]
    odd_codec: str
    """The one to try records of every kind with."""
    writer: Callable[..., contextlib.AbstractContextManager[Writer]]
    """(address, *, acks, codec, max_request_bytes, batch_records, transactional_id)"""
    reader: Callable[..., contextlib.AbstractContextManager[Reader]]
    """(address, *topics, group_id, isolation_level, auto_offset_reset, auto_commit_ms)"""
    can_write: Callable[[Written], bool] = lambda record: True
    reads_stable_offsets: bool = False
    """Whether it asks for committed offsets that no open transaction may still change."""

    def all_of(self, address: str, topic: str, count: int, partition: int = 0, **config: Any) -> list[Message]:
        """The first `count` messages of a partition."""
        with self.reader(address, **config) as reader:
            reader.assign({(topic, partition): 0})
            return reader.read(count)


# ---- confluent-kafka


@contextlib.contextmanager
def _confluent_errors() -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        told = error.args[0]
        if told.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            raise Refused("MESSAGE_TOO_LARGE") from error
        if told.code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED) and told.fatal():
            raise Refused("PRODUCER_FENCED") from error
        if told.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            raise Refused("OFFSET_OUT_OF_RANGE") from error
        raise


class _ConfluentWriter:
    def __init__(self, made: Any) -> None:
        self._made = made

    def produce(self, topic: str, records: Iterable[Written], partition: int = 0) -> list[Where]:
        with _confluent_errors():
            reports = confluents.produce(self._made, topic, records, partition)
        return [Where(report.offset(), report.timestamp()[1]) for report in reports]

    def begin(self) -> None:
        self._made.begin_transaction()

    def commit(self) -> None:
        with _confluent_errors():
            self._made.commit_transaction(20)

    def abort(self) -> None:
        self._made.abort_transaction(20)

    def send_position(self, reader: _ConfluentReader, place: Place) -> None:
        made = reader.made
        self._made.send_offsets_to_transaction(
            made.position([TopicPartition(*place)]), made.consumer_group_metadata(), 20
        )


class _ConfluentReader:
    def __init__(self, made: Any, answers: list[Any]) -> None:
        self.made, self._answers = made, answers

    def read(self, count: int) -> list[Message]:
        with _confluent_errors():
            messages = confluents.read(self.made, count)
        return [
            Message(
                confluents.record(each),
                place_of(each)[1],
                offset_of(each),
                each.timestamp()[0] == TIMESTAMP_LOG_APPEND_TIME,
            )
            for each in messages
        ]

    def assign(self, places: Mapping[Place, int | None]) -> None:
        parts = [
            TopicPartition(*place) if offset is None else TopicPartition(*place, offset)
            for place, offset in places.items()
        ]
        self.made.assign(parts)

    def seek(self, place: Place, offset: int) -> None:
        self.made.seek(TopicPartition(*place, offset))

    def pause(self, place: Place) -> None:
        self.made.pause([TopicPartition(*place)])

    def resume(self, place: Place) -> None:
        self.made.resume([TopicPartition(*place)])

    def position(self, place: Place) -> int:
        (found,) = self.made.position([TopicPartition(*place)])
        return int(found.offset)

    def bounds(self, place: Place) -> tuple[int, int]:
        low, high = self.made.get_watermark_offsets(TopicPartition(*place), timeout=10)
        return low, high

    def offset_at(self, place: Place, timestamp: int) -> int | None:
        (found,) = self.made.offsets_for_times([TopicPartition(*place, timestamp)], timeout=10)
        return None if found.offset < 0 else int(found.offset)

    def commit_read(self, place: Place) -> None:
        (kept,) = self.made.commit(offsets=self.made.position([TopicPartition(*place)]), asynchronous=False)
        assert kept.error is None

    def commit(self, place: Place, offset: int, metadata: str) -> None:
        self._answers.clear()
        self.made.commit(offsets=[TopicPartition(*place, offset, metadata)], asynchronous=True)
        confluents.drive([self.made], lambda: bool(self._answers), "the commit is answered")
        assert self._answers == [(None, [offset])]

    def committed(self, place: Place) -> int | None:
        (found,) = self.made.committed([TopicPartition(*place)], timeout=20)
        return None if found.offset < 0 else int(found.offset)

    def committed_metadata(self, place: Place) -> str | None:
        (found,) = self.made.committed([TopicPartition(*place)], timeout=20)
        return str(found.metadata)


@contextlib.contextmanager
def _confluent_writer(
    address: str,
    *,
    acks: str = "all",
    codec: str = "none",
    max_request_bytes: int | None = None,
    batch_records: int | None = None,
    transactional_id: str | None = None,
) -> Iterator[Writer]:
    config: dict[str, Any] = {"acks": acks, "compression_type": codec}
    if max_request_bytes:
        config["message_max_bytes"] = max_request_bytes
    if batch_records:
        config |= {"enable_idempotence": True, "batch_num_messages": batch_records}
    if transactional_id:
        config["transactional_id"] = transactional_id
    made = confluents.producer(address, **config)
    if transactional_id:
        made.init_transactions(20)
    yield _ConfluentWriter(made)


@contextlib.contextmanager
def _confluent_reader(
    address: str, *topics: str, auto_offset_reset: str = "earliest", auto_commit_ms: int = 0, **config: Any
) -> Iterator[Reader]:
    answers: list[Any] = []
    config["auto_offset_reset"] = {"none": "error"}.get(auto_offset_reset, auto_offset_reset)
    config["on_commit"] = lambda error, parts: answers.append((error, [part.offset for part in parts]))
    if auto_commit_ms:
        config |= {"enable_auto_commit": True, "auto_commit_interval_ms": auto_commit_ms}
    with confluents.consumer(address, **config) as made:
        if topics:
            made.subscribe(list(topics))
        yield _ConfluentReader(made, answers)


# ---- kafka-python


@contextlib.contextmanager
def _kafka_python_errors() -> Iterator[None]:
    try:
        yield
    except kafka.errors.MessageSizeTooLargeError as error:
        raise Refused("MESSAGE_TOO_LARGE") from error
    except kafka.errors.OffsetOutOfRangeError as error:
        raise Refused("OFFSET_OUT_OF_RANGE") from error
    except kafka.errors.KafkaError as error:
        if type(error).__name__ in ("ProducerFencedError", "InvalidProducerEpochError"):
            raise Refused("PRODUCER_FENCED") from error
        raise


class _KafkaPythonWriter:
    def __init__(self, made: Any) -> None:
        self._made = made
        self.begin, self.abort = made.begin_transaction, made.abort_transaction

    def produce(self, topic: str, records: Iterable[Written], partition: int = 0) -> list[Where]:
        with _kafka_python_errors():
            reports = kafka_pythons.produce(self._made, topic, records, partition)
        return [Where(report.offset, report.timestamp) for report in reports]

    def commit(self) -> None:
        with _kafka_python_errors():
            self._made.commit_transaction()

    def send_position(self, reader: _KafkaPythonReader, place: Place) -> None:
        at = kafka.structs.OffsetAndMetadata(reader.position(place), "", -1)
        self._made.send_offsets_to_transaction({kafka.TopicPartition(*place): at}, reader.made.group_metadata())


class _KafkaPythonReader:
    def __init__(self, made: Any) -> None:
        self.made = made

    def read(self, count: int) -> list[Message]:
        with _kafka_python_errors():
            messages = kafka_pythons.read(self.made, count)
        return [
            Message(kafka_pythons.record(each), each.partition, each.offset, each.timestamp_type == 1)
            for each in messages
        ]

    def assign(self, places: Mapping[Place, int | None]) -> None:
        self.made.assign([kafka.TopicPartition(*place) for place in places])
        for place, offset in places.items():
            if offset is not None:
                self.seek(place, offset)

    def seek(self, place: Place, offset: int) -> None:
        self.made.seek(kafka.TopicPartition(*place), offset)

    def pause(self, place: Place) -> None:
        self.made.pause(kafka.TopicPartition(*place))

    def resume(self, place: Place) -> None:
        self.made.resume(kafka.TopicPartition(*place))

    def position(self, place: Place) -> int:
        return int(self.made.position(kafka.TopicPartition(*place)))

    def bounds(self, place: Place) -> tuple[int, int]:
        part = kafka.TopicPartition(*place)
        return self.made.beginning_offsets([part])[part], self.made.end_offsets([part])[part]

    def offset_at(self, place: Place, timestamp: int) -> int | None:
        part = kafka.TopicPartition(*place)
        found = self.made.offsets_for_times({part: timestamp})[part]
        assert found is None or found.timestamp >= timestamp
        return None if found is None else int(found.offset)

    def commit_read(self, place: Place) -> None:
        self.made.commit()

    def commit(self, place: Place, offset: int, metadata: str) -> None:
        answers: list[Any] = []
        at = kafka.structs.OffsetAndMetadata(offset, metadata, -1)
        self.made.commit_async({kafka.TopicPartition(*place): at}, callback=lambda *said: answers.append(said))
        kafka_pythons.drive([self.made], lambda: bool(answers), "the commit is answered")
        assert not isinstance(answers[0][1], Exception)

    def committed(self, place: Place) -> int | None:
        found: int | None = self.made.committed(kafka.TopicPartition(*place))
        return found

    def committed_metadata(self, place: Place) -> str | None:
        return str(self.made.committed(kafka.TopicPartition(*place), metadata=True)[1])


def _python_config(
    acks: str, codec: str, max_request_bytes: int | None, transactional_id: str | None
) -> dict[str, Any]:
    config: dict[str, Any] = {"acks": acks if acks == "all" else int(acks)}
    config["compression_type"] = None if codec == "none" else codec
    if max_request_bytes:
        config["max_request_size"] = max_request_bytes
    if transactional_id:
        config["transactional_id"] = transactional_id
    return config


@contextlib.contextmanager
def _kafka_python_writer(
    address: str,
    *,
    acks: str = "all",
    codec: str = "none",
    max_request_bytes: int | None = None,
    batch_records: int | None = None,
    transactional_id: str | None = None,
) -> Iterator[Writer]:
    config = _python_config(acks, codec, max_request_bytes, transactional_id)
    if acks != "all":
        config["enable_idempotence"] = False
    if batch_records:
        config |= {"enable_idempotence": True, "batch_size": batch_records * 40}
    with kafka_pythons.producer(address, **config) as made:
        if transactional_id:
            made.init_transactions()
        yield _KafkaPythonWriter(made)


@contextlib.contextmanager
def _kafka_python_reader(address: str, *topics: str, auto_commit_ms: int = 0, **config: Any) -> Iterator[Reader]:
    if auto_commit_ms:
        config |= {"enable_auto_commit": True, "auto_commit_interval_ms": auto_commit_ms}
    with kafka_pythons.consumer(address, *topics, **config) as made:
        yield _KafkaPythonReader(made)


# ---- aiokafka


class _Loop:
    """An event loop in a thread of its own: a member's heartbeats go on while the test does something else."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="aiokafka")

    def __call__(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result(100)
        except aiokafka.errors.MessageSizeTooLargeError as error:
            raise Refused("MESSAGE_TOO_LARGE") from error
        except aiokafka.errors.OffsetOutOfRangeError as error:
            raise Refused("OFFSET_OUT_OF_RANGE") from error
        except aiokafka.errors.ProducerFenced as error:
            raise Refused("PRODUCER_FENCED") from error

    @contextlib.contextmanager
    def entered(self, manager: contextlib.AbstractAsyncContextManager[Any]) -> Iterator[Any]:
        """Enter and leave a context in the loop, and end the loop."""
        self._thread.start()
        try:
            made = self(_await(manager.__aenter__))
            try:
                yield made
            finally:
                self(_await(manager.__aexit__, None, None, None))
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(100)
            self._loop.close()


async def _await(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call it in the loop, where clients are made; await what it returns, if that can be awaited."""
    found = function(*arguments)
    return await found if asyncio.iscoroutine(found) else found


class _AiokafkaWriter:
    def __init__(self, call: _Loop, made: Any) -> None:
        self._call, self._made = call, made

    def produce(self, topic: str, records: Iterable[Written], partition: int = 0) -> list[Where]:
        reports = self._call(aiokafkas.produce(self._made, topic, records, partition))
        return [Where(report.offset, report.timestamp) for report in reports if report is not None]

    def begin(self) -> None:
        self._call(self._made.begin_transaction())

    def commit(self) -> None:
        self._call(self._made.commit_transaction())

    def abort(self) -> None:
        self._call(self._made.abort_transaction())

    def send_position(self, reader: _AiokafkaReader, place: Place) -> None:
        offsets = {aiokafka.TopicPartition(*place): reader.position(place)}
        self._call(self._made.send_offsets_to_transaction(offsets, reader.group_id))


class _AiokafkaReader:
    def __init__(self, call: _Loop, made: Any, group_id: str | None) -> None:
        self._call, self._made, self.group_id = call, made, group_id

    def read(self, count: int) -> list[Message]:
        return [
            Message(aiokafkas.record(each), each.partition, each.offset, each.timestamp_type == 1)
            for each in self._call(aiokafkas.read(self._made, count))
        ]

    def assign(self, places: Mapping[Place, int | None]) -> None:
        self._call(_await(self._made.assign, [aiokafka.TopicPartition(*place) for place in places]))
        for place, offset in places.items():
            if offset is not None:
                self.seek(place, offset)

    def seek(self, place: Place, offset: int) -> None:
        self._call(_await(self._made.seek, aiokafka.TopicPartition(*place), offset))

    def pause(self, place: Place) -> None:
        self._call(_await(self._made.pause, aiokafka.TopicPartition(*place)))

    def resume(self, place: Place) -> None:
        self._call(_await(self._made.resume, aiokafka.TopicPartition(*place)))

    def position(self, place: Place) -> int:
        return int(self._call(self._made.position(aiokafka.TopicPartition(*place))))

    def bounds(self, place: Place) -> tuple[int, int]:
        part = aiokafka.TopicPartition(*place)
        low, high = self._call(self._made.beginning_offsets([part])), self._call(self._made.end_offsets([part]))
        return low[part], high[part]

    def offset_at(self, place: Place, timestamp: int) -> int | None:
        part = aiokafka.TopicPartition(*place)
        found = self._call(self._made.offsets_for_times({part: timestamp}))[part]
        assert found is None or found.timestamp >= timestamp
        return None if found is None else int(found.offset)

    def commit_read(self, place: Place) -> None:
        self._call(self._made.commit())

    def commit(self, place: Place, offset: int, metadata: str) -> None:
        self._call(self._made.commit({aiokafka.TopicPartition(*place): (offset, metadata)}))

    def committed(self, place: Place) -> int | None:
        found: int | None = self._call(self._made.committed(aiokafka.TopicPartition(*place)))
        return found

    def committed_metadata(self, place: Place) -> str | None:
        return None


@contextlib.contextmanager
def _aiokafka_writer(
    address: str,
    *,
    acks: str = "all",
    codec: str = "none",
    max_request_bytes: int | None = None,
    batch_records: int | None = None,
    transactional_id: str | None = None,
) -> Iterator[Writer]:
    config = _python_config(acks, codec, max_request_bytes, transactional_id)
    if batch_records:
        config |= {"enable_idempotence": True, "max_batch_size": batch_records * 40}
    call = _Loop()
    with call.entered(aiokafkas.producer(address, **config)) as made:
        yield _AiokafkaWriter(call, made)


@contextlib.contextmanager
def _aiokafka_reader(
    address: str, *topics: str, auto_commit_ms: int = 0, group_id: str | None = None, **config: Any
) -> Iterator[Reader]:
    if auto_commit_ms:
        config |= {"enable_auto_commit": True, "auto_commit_interval_ms": auto_commit_ms}
    call = _Loop()
    with call.entered(aiokafkas.consumer(address, *topics, group_id=group_id, **config)) as made:
        yield _AiokafkaReader(call, made, group_id)


def _has_key_or_value(record: Written) -> bool:
    return record[:2] != (None, None)


CLIENTS = [
    Client("confluent-kafka", CODECS, "zstd", _confluent_writer, _confluent_reader, reads_stable_offsets=True),
    Client(
        "kafka-python",
        # It can snappy only with a package that it does not bring.
        [codec for codec in CODECS if codec != "snappy" or kafka.codec.has_snappy()],
        "gzip",
        _kafka_python_writer,
        _kafka_python_reader,
        lambda record: _has_key_or_value(record) and None not in dict(record.headers).values(),
    ),
    Client("aiokafka", CODECS, "snappy", _aiokafka_writer, _aiokafka_reader, _has_key_or_value),
]
