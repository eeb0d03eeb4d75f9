"""What a reading engine promises (E1 to E5 in read_engine.py), of the one that reads files and of one in memory.

tests/cluster/test_read_engine_contract.py has the same tests for the engine that reads a cluster.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import klamm
from klamm.batch import BAD_RAISE, BAD_RAW, BAD_SKIP, RECORDS, TUPLES, VALUES
from klamm.client.consume.log_engine import LogEngine
from klamm.client.consume.read_engine import ReadEngine, ReadFormat, Records
from klamm.cluster.cluster_engine import ClusterEngine
from klamm.disk import _os
from klamm.errors import StoreBusy, StoreError
from klamm.types import Position, TopicPartition
from tests.client.memory_engine import MemoryEngine, MemoryLog
from tests.procs import PATIENCE, until

TOPIC = "orders"
COUNT = 12  # partitions
PLAIN = ReadFormat(VALUES, None, None)


class World(Protocol):
    """Partitions, and engines that read them."""

    def append(self, number: int, values: list[bytes]) -> None: ...
    def engine(self, read_format: ReadFormat = PLAIN, *, turn_s: float = 30.0) -> ReadEngine: ...


class Memory:
    def __init__(self) -> None:
        self.log = MemoryLog()

    def append(self, number: int, values: list[bytes]) -> None:
        self.log.append(TopicPartition(TOPIC, number), values)

    def engine(self, read_format: ReadFormat = PLAIN, *, turn_s: float = 30.0) -> ReadEngine:
        return MemoryEngine(self.log, read_format, turn_s=turn_s)


class Files:
    def __init__(self, store: klamm.Store) -> None:
        self.store = store
        store.topics.create(TOPIC, COUNT)

    def append(self, number: int, values: list[bytes]) -> None:
        self.store.append_many(TOPIC, values, partition=number, acks=1)

    def engine(self, read_format: ReadFormat = PLAIN, *, turn_s: float = 30.0) -> ReadEngine:
        return LogEngine(self.store._acquired(), read_format, turn_s=turn_s, max_bytes=200)


@pytest.fixture(params=["files", "memory"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    if request.param == "memory":
        yield Memory()
    else:
        with klamm.open(tmp_path / "events") as store:
            yield Files(store)


def starts(*numbers: int, at: int = 0) -> dict[TopicPartition, Position]:
    return {TopicPartition(TOPIC, number): Position(at) for number in numbers}


def offset(engine: ReadEngine, number: int) -> int:
    handed = engine.handed_out(TopicPartition(TOPIC, number))
    assert handed is not None
    return handed.position.offset


def values(first: int, count: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, first + count)]


def read(engine: ReadEngine, most: int = 1000, timeout_s: float | None = 0) -> list[Any]:
    """Return what one call hands out."""
    records = engine.next_records(most, timeout_s)
    return [] if records is None else list(records.batch())


def read_all(engine: ReadEngine, most: int = 1000) -> list[Any]:
    found: list[Any] = []
    while batch := read(engine, most):
        found += batch
    return found


@contextmanager
def reading(engine: ReadEngine, most: int = 1000) -> Iterator[dict[str, Any]]:
    """Let a thread call `next_records`, without a limit, until it has records or an error, or the engine is closed."""
    outcome: dict[str, Any] = {"calls": 0}

    def run() -> None:
        try:
            while not outcome.get("over"):
                outcome["calls"] += 1
                records = engine.next_records(most, None)
                outcome["returned"] = outcome.get("returned", 0) + 1
                if records is not None:
                    outcome["records"] = list(records.batch())
                    return
        except BaseException as error:
            outcome["error"] = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        until(lambda: outcome["calls"], "the thread reads")
        time.sleep(0.01)  # it waits by now; if not, the test is easier to pass
        yield outcome
    finally:
        outcome["over"] = True
    thread.join(PATIENCE)
    assert not thread.is_alive(), "the reading thread did not come back"


# E1: any thread may change what is read


def test_partitions_come_and_go_while_a_thread_waits(world: World) -> None:
    engine = world.engine()
    world.append(1, values(0, 3))
    with reading(engine) as outcome:
        engine.assign(starts(0))
        engine.assign(starts(1, at=1))
        until(lambda: "records" in outcome, "the new partition is read")
    assert outcome["records"] == values(1, 2)
    assert set(engine.positions()) == {(TOPIC, 0), (TOPIC, 1)}
    engine.unassign([TopicPartition(TOPIC, 1)])
    world.append(1, values(3, 1))
    assert read_all(engine) == [] and engine.handed_out(TopicPartition(TOPIC, 1)) is None
    engine.close()


def test_a_partition_that_is_assigned_again_is_read_from_its_new_position(world: World) -> None:
    engine = world.engine()
    world.append(0, values(0, 5))
    engine.assign(starts(0))
    assert read(engine, 2) == values(0, 2)
    engine.assign(starts(0, at=4))
    assert read_all(engine) == values(4, 1)
    engine.close()


def test_a_move_reaches_a_thread_that_waits(world: World) -> None:
    engine = world.engine()
    world.append(0, values(0, 5))
    engine.assign(starts(0))
    assert read_all(engine) == values(0, 5)
    with reading(engine) as outcome:
        engine.move({**starts(0, at=3), **starts(7)})  # 7 is not assigned
        until(lambda: "records" in outcome, "it reads on at 3")
    assert outcome["records"] == values(3, 2)
    assert list(engine.positions()) == [(TOPIC, 0)]
    engine.close()


def test_nothing_is_returned_of_a_partition_that_is_paused(world: World) -> None:
    engine = world.engine()
    for number in (0, 1):
        world.append(number, values(0, 6))
    engine.assign(starts(0, 1))
    first = read(engine, 2)
    paused = next(name for name, position in engine.positions().items() if position.offset)
    engine.pause([paused])
    assert first == values(0, 2) and read_all(engine, 4) == values(0, 6)
    world.append(paused.partition, values(6, 1))
    assert read_all(engine) == []
    with reading(engine) as outcome:
        engine.resume([paused])
        until(lambda: "records" in outcome, "it goes on")
    assert outcome["records"] + read_all(engine) == values(2, 5)
    engine.close()


def test_another_form_holds_for_what_was_not_handed_out(world: World) -> None:
    engine = world.engine()
    world.append(0, values(0, 4))
    engine.assign(starts(0))
    assert read(engine, 1) == [b"0"]
    records = engine.next_records(2, 0)
    assert records is not None and next(iter(records)) == b"1"
    assert engine.use(ReadFormat(TUPLES, None, int)) == PLAIN
    assert read_all(engine) == [(None, 2), (None, 3)]
    engine.close()


@pytest.mark.parametrize("call", ["assign", "unassign", "move", "pause", "resume", "use"])
def test_a_call_waits_for_the_reading_thread_no_longer_than_it_says(world: World, call: str) -> None:
    entered, leave = threading.Event(), threading.Event()

    def hang(value: bytes) -> bytes:
        entered.set()
        assert leave.wait(PATIENCE)
        return value

    engine = world.engine(ReadFormat(VALUES, None, hang), turn_s=0.1)
    world.append(0, values(0, 1))
    engine.assign(starts(0))
    name = TopicPartition(TOPIC, 0)
    argument: Any = {"assign": starts(1), "move": starts(0, at=1), "use": PLAIN}.get(call, [name])
    with reading(engine) as outcome:
        try:
            assert entered.wait(PATIENCE)
            began = time.monotonic()
            with pytest.raises(StoreBusy):
                getattr(engine, call)(argument)
            assert time.monotonic() - began < PATIENCE / 2
        finally:
            leave.set()
        until(lambda: "records" in outcome, "it goes on")
    assert outcome["records"] == [b"0"] and list(engine.positions()) == [name]
    getattr(engine, call)(argument)
    engine.close()


@pytest.mark.parametrize("call", ["next_records", "assign", "unassign", "move", "pause", "resume", "use"])
def test_an_engine_is_not_used_inside_of_a_serde(world: World, call: str) -> None:
    arguments: dict[str, tuple[Any, ...]] = {
        "next_records": (1, 0),
        "assign": (starts(1),),
        "move": (starts(0, at=1),),
        "use": (PLAIN,),
    }

    def use(value: bytes) -> bytes:
        with pytest.raises(StoreError, match=r"serde|decodes"):
            getattr(engine, call)(*arguments.get(call, ([TopicPartition(TOPIC, 0)],)))
        return value + b"!"

    engine = world.engine(ReadFormat(VALUES, None, use))
    world.append(0, values(0, 1))
    engine.assign(starts(0))
    assert read_all(engine) == [b"0!"]
    engine.close()


# E2: positions


def test_records_count_as_handed_out_one_by_one_or_all_at_once(world: World) -> None:
    engine = world.engine()
    world.append(0, values(0, 6))
    engine.assign(starts(0))
    records = engine.next_records(4, 0)
    assert records is not None and offset(engine, 0) == 0
    for n, value in enumerate(records, 1):
        assert value == b"%d" % (n - 1) and offset(engine, 0) == n
    assert offset(engine, 0) == 4
    records = engine.next_records(4, 0)
    assert records is not None and offset(engine, 0) == 4
    batch = records.batch()
    assert (batch.begin, batch.end, offset(engine, 0)) == (4, 6, 6) and list(records) == []
    engine.close()


def test_what_was_not_handed_out_is_returned_again(world: World) -> None:
    engine = world.engine()
    world.append(0, values(0, 6))
    engine.assign(starts(0))
    records = engine.next_records(4, 0)
    assert records is not None and [next(iter(records)) for _ in range(2)] == values(0, 2)
    assert read(engine, 1) == values(2, 1)
    assert engine.next_records(2, 0) is not None
    assert read_all(engine) == values(3, 3)
    engine.close()


def test_a_position_seen_by_another_thread_is_never_ahead_of_what_was_handed_out(world: World) -> None:
    engine = world.engine()
    total = 20_000
    world.append(0, values(0, total))
    engine.assign(starts(0))
    handed, ahead, looks = [0], list[tuple[int, int]](), [0]

    def look() -> None:
        while handed[0] < total and not ahead:
            at = offset(engine, 0)
            known = handed[0]  # after the look: what is handed out meanwhile only makes it easier
            if at > known + 1:  # one record is between the iterator and the count
                ahead.append((at, known))
            looks[0] += 1

    watcher = threading.Thread(target=look)
    watcher.start()
    while handed[0] < total:
        records = engine.next_records(500, 0)
        assert records is not None
        for _ in records:
            handed[0] += 1
    watcher.join(PATIENCE)
    assert ahead == [] and looks[0] > 10
    engine.close()


@given(st.integers(0, 100), st.lists(st.integers(1, 4), max_size=30), st.data())
def test_a_position_follows_the_iterator_over_gaps(begin: int, gaps: list[int], data: st.DataObject) -> None:
    offsets = [begin + sum(gaps[: n + 1]) - 1 for n in range(len(gaps))]
    end = Position((offsets[-1] + 1 if offsets else begin) + data.draw(st.integers(0, 3)), 7)
    in_a_row = end.offset - begin == len(offsets)
    records = Records(TopicPartition(TOPIC, 0), Position(begin, 5), end, offsets, None if in_a_row else offsets)
    iterator = iter(records)
    for n in range(len(offsets)):
        assert records.position == (Position(begin, 5) if n == 0 else Position(offsets[n], 7))
        assert (records.index, records.has_more, records.offset) == (n, True, records.position.offset)
        part = records.part(records.offset, 3)
        assert (part.begin, list(part)) == (records.offset, offsets[n : n + 3])
        assert part.position == (Position(offsets[n + 3], 7) if n + 3 < len(offsets) else end)
        assert next(iterator) == offsets[n]
    assert records.position == end and not records.has_more and next(iterator, None) is None


@pytest.mark.parametrize(
    ("on_bad", "expected"), [(BAD_SKIP, [0, 1, 3, 5]), (BAD_RAW, [0, 1, b"x", 3, b"y", 5])], ids=["skip", "raw"]
)
def test_a_bad_record_is_skipped_or_stays_bytes(world: World, on_bad: int, expected: list[object]) -> None:
    for most in (1, 2, 1000):
        engine = world.engine(ReadFormat(VALUES, None, int, on_bad))
        if most == 1:
            world.append(0, [b"0", b"1", b"x", b"3", b"y", b"5"])
        engine.assign(starts(0))
        found = []
        while (records := engine.next_records(most, 0)) is not None:
            for value in records:
                found.append(value)
                assert expected[: len(found)] == found
                if isinstance(value, int):
                    assert offset(engine, 0) in (value + 1, value + 2)
        assert found == expected and offset(engine, 0) == 6
        engine.close()


def test_a_bad_record_is_raised_each_time_until_it_is_passed_and_those_before_it_are_not_lost(world: World) -> None:
    engine = world.engine(ReadFormat(VALUES, None, int, BAD_RAISE))
    world.append(0, [b"0", b"1", b"x", b"3"])
    engine.assign(starts(0))
    assert read(engine) == [0, 1]
    for _ in range(3):
        with pytest.raises(ValueError):
            engine.next_records(10, 0)
        assert offset(engine, 0) == 2
    engine.move(starts(0, at=3))
    assert read_all(engine) == [3]
    engine.close()


def test_a_move_ends_the_iteration_of_records_that_were_returned_before_it(world: World) -> None:
    engine = world.engine()
    world.append(0, [b"%d" % n for n in range(6)])
    engine.assign(starts(0))
    for at in (1, 4):
        records = engine.next_records(10, 0)
        assert records is not None
        iterator = iter(records)
        next(iterator)
        engine.move(starts(0, at=at))
        assert list(iterator) == [] and offset(engine, 0) == at
    assert len(read_all(engine)) == 2
    engine.close()


# E3: turns


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.data())
def test_of_k_partitions_that_are_fed_for_ever_each_is_returned_within_k_chunks(
    world: World, data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, COUNT), "partitions")
    engine = world.engine()
    chunk = values(0, 8) if isinstance(world, Memory) else [b"x" * 200]  # as much as an engine reads at once
    ends = [0] * k
    for number in range(k):
        last = engine_end(world, number)
        engine.assign(starts(number, at=last))
        ends[number] = last
    reads, waited = list(ends), [0] * k

    def feed(number: int) -> None:
        world.append(number, chunk)
        ends[number] += len(chunk)

    busy = data.draw(st.sets(st.integers(0, k - 1), min_size=1), "always fed")
    for _ in range(data.draw(st.integers(1, 6 * k), "steps")):
        for number in busy | data.draw(st.sets(st.integers(0, k - 1), max_size=2), "also fed"):
            while ends[number] < reads[number] + 2 * len(chunk):
                feed(number)
        if data.draw(st.integers(0, 9)) == 0:  # whatever changes meanwhile, turns stay
            number = data.draw(st.integers(0, k - 1))
            engine.pause([TopicPartition(TOPIC, number)])
            engine.resume([TopicPartition(TOPIC, number)])
        waiting = [number for number in range(k) if reads[number] < ends[number]]
        records = engine.next_records(1000, 0)
        assert records is not None and waiting
        batch = records.batch()
        assert batch.begin == reads[batch.partition]
        reads[batch.partition] = batch.end
        for number in waiting:
            waited[number] = 0 if number == batch.partition else waited[number] + 1
            assert waited[number] < k, f"partition {number} of {k} was not returned within {k} chunks"
    engine.close()


def engine_end(world: World, number: int) -> int:
    """Return where a partition ends."""
    if isinstance(world, Files):
        return world.store.topics.describe(TOPIC).partitions[number].end
    assert isinstance(world, Memory)
    return len(world.log.read(TopicPartition(TOPIC, number), 0, 1 << 30))


def test_with_a_timeout_of_0_everything_that_is_there_is_returned(world: World) -> None:
    engine = world.engine()
    for number in range(COUNT):
        world.append(number, values(0, 30))
    engine.assign(starts(*range(COUNT)))
    assert sorted(read_all(engine, 7)) == sorted(values(0, 30) * COUNT)
    engine.close()


# E4: the end


def test_close_ends_a_wait_and_later_calls_raise(world: World) -> None:
    engine = world.engine()
    engine.assign(starts(0))
    with reading(engine) as outcome:
        engine.close()
        outcome["over"] = True
    assert "records" not in outcome
    for call in (lambda: engine.next_records(1, 0), lambda: engine.move(starts(0)), lambda: engine.assign(starts(1))):
        with pytest.raises(StoreError):
            call()
    engine.close()


def test_close_does_not_wait_for_ever_and_the_reading_thread_closes_what_is_open(world: World) -> None:
    entered, leave = threading.Event(), threading.Event()

    def hang(value: bytes) -> bytes:
        entered.set()
        assert leave.wait(PATIENCE)
        return value

    engine = world.engine(ReadFormat(VALUES, None, hang), turn_s=0.1)
    world.append(0, values(0, 3))
    engine.assign(starts(0))
    with reading(engine) as outcome:
        try:
            assert entered.wait(PATIENCE)
            engine.close()
            assert "returned" not in outcome
            outcome["over"] = True
        finally:
            leave.set()
    assert "records" not in outcome and offset(engine, 0) == 0
    if isinstance(engine, LogEngine):
        assert open_readers(engine) == 0


def test_close_in_a_serde_ends_the_call_it_is_in(world: World) -> None:
    def close(value: bytes) -> bytes:
        engine.close()
        return value

    engine = world.engine(ReadFormat(VALUES, None, close))
    world.append(0, values(0, 3))
    engine.assign(starts(0))
    assert engine.next_records(10, None) is None
    assert offset(engine, 0) == 0
    if isinstance(engine, LogEngine):
        assert open_readers(engine) == 0


def open_readers(engine: LogEngine) -> int:
    return sum(cursor.reader.is_open for cursor in engine._cursors.values())


# E5: waiting


def test_an_interrupt_ends_a_wait_and_is_not_lost_if_it_comes_before(world: World) -> None:
    engine = world.engine()
    engine.assign(starts(0))
    with reading(engine) as outcome:
        outcome["over"] = True
        engine.interrupt()
        until(lambda: "returned" in outcome, "the call returns")
    began = time.monotonic()
    for _ in range(40):  # an engine may look up now and then by itself; not as often as this
        engine.interrupt()
        assert engine.next_records(1, None) is None
    assert time.monotonic() - began < 10
    engine.close()


def test_a_wait_ends_with_records_or_with_its_time(world: World) -> None:
    engine = world.engine()
    engine.assign(starts(0, 1))
    began = time.monotonic()
    assert engine.next_records(1, 0.05) is None
    assert time.monotonic() - began < PATIENCE / 2
    with reading(engine) as outcome:
        world.append(1, values(0, 2))
        until(lambda: "records" in outcome, "the append is seen")
    assert outcome["records"] == values(0, 2)
    engine.close()


# The engine that reads files


def test_offsets_that_are_missing_are_not_positions_of_records(tmp_path: Path) -> None:
    with klamm.open(tmp_path / "events") as store:
        store.topics.create(TOPIC, settings={"cleanup.policy": "compact", "segment.bytes": 1 << 14})
        for begin in range(0, 3_000, 100):
            store.append_many(TOPIC, [(b"%d" % (n % 70), b"%d" % n) for n in range(begin, begin + 100)], acks=1)
        store[TOPIC].compact()
        engine = LogEngine(store._acquired(), ReadFormat(RECORDS, None, None), max_bytes=1 << 12)
        engine.assign(starts(0))
        seen = []
        while (records := engine.next_records(7, 0)) is not None:
            for record in records:
                assert offset(engine, 0) > record.offset
                seen.append(record.offset)
                engine_at = offset(engine, 0)
                if len(seen) % 5 == 0:  # what is left is returned again, from its own offset on
                    break
            assert engine_at <= 3_000
        engine.close()
        with store.consumer(TOPIC, wait=0) as consumer:
            assert seen == [record.offset for record in consumer]
        assert len(seen) < 3_000


@pytest.mark.parametrize("start", range(18))
def test_a_position_is_right_behind_the_record_though_markers_come_first(tmp_path: Path, start: int) -> None:
    with klamm.open(tmp_path / "events") as store:
        store.topics.create(TOPIC)
        for _ in range(3):  # markers at offsets 5, 11 and 17
            with store.transaction() as tx:
                for number in range(5):
                    tx.send(TOPIC, b"%d" % number)
        engine = LogEngine(store._acquired(), ReadFormat(RECORDS, None, None))
        engine.assign({TopicPartition(TOPIC, 0): Position(start)})
        seen = []
        while (records := engine.next_records(4, 0)) is not None:
            for record in records:
                seen.append(record.offset)
                assert offset(engine, 0) == record.offset + 1 or record.offset + 1 in (5, 11, 17)
                if len(seen) % 3 == 0:
                    break
        engine.close()
        assert seen == [at for at in range(start, 17) if at not in (5, 11)]


@pytest.mark.skipif(not _os.HAS_BYTE_LOCKS, reason="counts descriptors in /proc")
def test_few_files_are_open_at_the_same_time(tmp_path: Path) -> None:
    with klamm.open(tmp_path / "events") as store:
        store.topics.create(TOPIC, 200)
        for number in range(200):
            store.append(TOPIC, b"x", partition=number, acks=1)
        engine = LogEngine(store._acquired(), PLAIN)
        engine.assign(starts(*range(200)))
        assert len(read_all(engine)) == 200 and open_readers(engine) == 64
        store.append(TOPIC, b"y", partition=0, acks=1)
        assert read_all(engine) == [b"y"]
        engine.close()
        assert open_readers(engine) == 0


def test_every_implementation_is_one() -> None:
    engines: list[Callable[..., ReadEngine]] = [LogEngine, MemoryEngine, ClusterEngine]  # for mypy
    assert len(engines) == 3
