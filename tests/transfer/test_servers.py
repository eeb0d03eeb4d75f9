"""Copies to and from servers that are killed, refuse, stall or send nothing; and copies that are killed themselves."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError

import klamm
from klamm.errors import RecordTooLarge, Unreachable
from klamm.log.partition import Ends
from klamm.transfer import kafka_source
from klamm.transfer.chunk import Chunk, records_of
from klamm.transfer.copier import _Copy
from klamm.transfer.directory_source import DirectorySource
from klamm.transfer.kafka_source import KafkaSource
from klamm.transfer.kafka_target import KafkaTarget
from tests.procs import until
from tests.serving import Serving, serving
from tests.transfer.conftest import ORDERS, contents, contents_at

KILLED = """
import os, signal, sys
import klamm
from klamm.transfer import directory_source, kafka_source, kafka_target
directory_source._CHUNK_BYTES, kafka_source._AT_ONCE, kafka_target._COMMIT_RECORDS = 500, 20, 30
source, target, steps = *sys.argv[1:3], int(sys.argv[3])
def killed(done, total):
    global steps
    steps -= 1
    if not steps:
        os.kill(os.getpid(), signal.SIGKILL)
klamm.copy(source, target, progress=killed)
"""


@pytest.mark.parametrize("kinds", ["directory to server", "server to directory", "server to server"])
def test_a_copy_between_servers_and_directories_goes_on_where_it_was_killed(
    kinds: str, source: klamm.Store, tmp_path: Path
) -> None:
    kind_from, _, kind_to = kinds.split()
    with ExitStack() as opened:

        def address_of(path: Path, kind: str) -> str:
            return f"kafka://{opened.enter_context(serving(path)).address}" if kind == "server" else str(path)

        copied_from = address_of(Path(source.path), kind_from)
        copied_to = address_of(tmp_path / "target", kind_to)
        ended = subprocess.run(
            [sys.executable, "-c", KILLED, copied_from, copied_to, "4"], stderr=subprocess.PIPE, timeout=60
        )
        assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
        assert 0 < sum(map(len, contents_at(tmp_path / "target").values())) < sum(map(len, contents(source).values()))
        report = klamm.copy(copied_from, copied_to)
        assert report.groups == ["billing"]
        assert klamm.copy(copied_from, copied_to).offsets == 0
        with klamm.open(tmp_path / "target") as target:
            with_offsets = kind_to == "directory"
            assert contents(target, with_offsets=with_offsets) == contents(source, with_offsets=with_offsets)


class StallingSource(DirectorySource):
    """Reads nothing for a while, behind its first chunk."""

    def __init__(self, store: klamm.Store, stalls: Callable[[], object]) -> None:
        super().__init__(store)
        self._stalls = stalls

    def chunks(self, positions: Any, *, follow: bool) -> Iterator[Chunk | None]:
        for number, chunk in enumerate(super().chunks(positions, follow=follow)):
            if number == 1:
                self._stalls()
            yield chunk


def test_a_transaction_that_was_open_for_too_long_is_begun_again(source: klamm.Store, server: Serving) -> None:
    with klamm.open(server.store) as there:
        timed_out = 0

        def time_out() -> None:
            nonlocal timed_out
            timed_out += 1
            if timed_out == 1:
                until(lambda: list(there.transactions), "the transaction is open")
                klamm.testing.advance(there, seconds=120)
                until(lambda: not list(there.transactions), "the server has ended it")

        stalling = StallingSource(source, time_out)
        target = KafkaTarget(f"kafka://{server.address}", stalling)
        target._transaction_s = 0  # as if it had taken so long
        _Copy(stalling, target, None, None).run("orders", None, follow=False, with_groups=False)
        target.close()
        assert timed_out == 2
        assert contents(there, with_offsets=False) == contents(source, with_offsets=False)


def test_what_the_target_does_not_take_is_the_error(source: klamm.Store, server: Serving) -> None:
    source["orders"].append(bytes(5000), key=b"large")
    with klamm.open(server.store) as there:
        there.topics.create("orders", 2, {"max.message.bytes": 1000})
        with pytest.raises(RecordTooLarge):
            klamm.copy(source, f"kafka://{server.address}")


def test_groups_with_members_on_a_server_are_left_alone(source: klamm.Store, server: Serving) -> None:
    address = f"kafka://{server.address}"
    klamm.copy(source, address)
    source["orders"].append_many([b"more"] * 10, partition=0)
    with source["orders"].consumer(group="billing", wait=0) as consumer:
        list(consumer)
        consumer.commit()
    with klamm.open(address) as there, there["orders"].consumer(group="billing", wait=0) as member:
        until(lambda: member.poll(timeout=0.1) or member.assignment(), "it is a member")
        report = klamm.copy(source, address)
        assert (report.groups, report.busy_groups) == ([], ["billing"])
    assert klamm.copy(source, address).groups == ["billing"]


# ---- what a consumer of librdkafka reports


class Message:
    """What librdkafka returns: a record, the end of a partition, or an error there."""

    def __init__(self, offset: int, *, is_end: bool = False, code: str = "") -> None:
        self._offset, self._code = offset, "_PARTITION_EOF" if is_end else code

    def topic(self) -> str:
        return ORDERS[0].topic

    def partition(self) -> int:
        return ORDERS[0].partition

    def offset(self) -> int:
        return self._offset

    def error(self) -> Any:
        return KafkaError(getattr(KafkaError, self._code)) if self._code else None

    def key(self) -> None: ...
    def headers(self) -> None: ...
    def value(self) -> bytes:
        return b"%d" % self._offset

    def leader_epoch(self) -> None: ...
    def timestamp(self) -> tuple[int, int]:
        return 1, 1000


class Consumer:
    """Stands for one of librdkafka's, which reads one partition."""

    def __init__(self, *batches: list[Message]) -> None:
        self._batches = list(batches)
        self.assigned: list[int] = []

    def consume(self, most: int, wait_s: float) -> list[Message]:
        return self._batches.pop(0)

    def incremental_assign(self, partitions: list[Any]) -> None:
        self.assigned += [each.offset for each in partitions]

    assign = incremental_assign

    def incremental_unassign(self, partitions: list[Any]) -> None: ...
    def close(self) -> None: ...


def chunks_of(start: int, *batches: list[Message]) -> list[Chunk]:
    """Return the chunks of messages that are received one list after the other, and check that they follow on."""
    reader: Any = KafkaSource.__new__(KafkaSource)
    reader._kafka, reader.name = confluent_kafka, "here"
    reader._consumer = lambda: Consumer(*batches, [])
    chunks: list[Chunk] = list(
        iter(reader.chunks({ORDERS[0]: start}, follow=True, limits={ORDERS[0]: 0}).__next__, None)
    )
    assert [chunk.start for chunk in chunks] == [start, *(chunk.end for chunk in chunks[:-1])]
    return chunks


def test_records_behind_an_end_and_a_marker_keep_their_offsets() -> None:
    messages = [Message(5), Message(7, is_end=True), Message(7), Message(8), Message(11), Message(13, is_end=True)]
    chunks = chunks_of(4, messages)
    assert chunks[-1].end == 13
    assert [(record.offset, record.value) for chunk in chunks for record in records_of(chunk)] == [
        (5, b"5"),
        (7, b"7"),
        (8, b"8"),
        (11, b"11"),
    ]


def test_what_librdkafka_reads_again_is_copied_once() -> None:
    """Its position may go back when the leader of a partition has changed; also in the middle of what it returns."""
    chunks = chunks_of(0, [Message(0), Message(1), Message(0), Message(1), Message(2)], [Message(1), Message(2)])
    chunks += chunks_of(3, [Message(2), Message(3), Message(4)])
    assert [record.offset for chunk in chunks for record in records_of(chunk)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "code", ["NOT_LEADER_FOR_PARTITION", "_TRANSPORT", "OFFSET_OUT_OF_RANGE", "_AUTO_OFFSET_RESET"]
)
def test_a_partition_whose_leader_moves_is_not_at_its_end(code: str) -> None:
    reader: Any = KafkaSource.__new__(KafkaSource)
    reader._kafka, reader.name = confluent_kafka, "here"
    reader._admin = SimpleNamespace(ends=lambda partitions: {ORDERS[0]: Ends(0, 5, 5, 5, 0)})
    moved = Message(-1, code=code)
    consumer = Consumer([Message(0), Message(1), moved], [], [Message(2), Message(3), Message(5, is_end=True)])
    reader._consumer = lambda: consumer
    chunks = list(reader.chunks({ORDERS[0]: 0}, follow=False, limits={ORDERS[0]: 5}))
    assert [chunk and (chunk.start, chunk.end) for chunk in chunks] == [(0, 2), None, (2, 4), (4, 5)]
    assert consumer.assigned == ([0, 2] if "OFFSET" in code else [0])


def test_a_server_that_sends_nothing_ends_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_source, "_SILENCE_S", 0)
    reader: Any = KafkaSource.__new__(KafkaSource)
    reader._kafka, reader.name = confluent_kafka, "here"
    reader._consumer = lambda: Consumer([Message(0)], [], [])
    chunks = reader.chunks({ORDERS[0]: 0}, follow=False, limits={ORDERS[0]: 5})
    assert next(chunks).end == 1
    with pytest.raises(Unreachable, match="sent no records"):
        list(chunks)
    reader._consumer = lambda: Consumer([Message(0)], [], [])
    follows = reader.chunks({ORDERS[0]: 0}, follow=True, limits={ORDERS[0]: 5})
    assert [chunk if chunk is None else chunk.end for chunk in islice(follows, 3)] == [1, None, None]
