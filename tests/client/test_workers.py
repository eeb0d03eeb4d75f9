"""One reader, many workers: order within a key, progress, what becomes of errors, and how it ends."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.client.consume.consumer import session_of
from klamm.client.work.workers import _Run
from klamm.types import RunReport
from tests.client.conftest import fill
from tests.client.handlers import Holding, LoadsNot, Noting, refuse
from tests.procs import children, until

KEYS = [b"k%d" % n for n in range(7)]


@pytest.fixture
def keyed(store: klamm.Store) -> klamm.Store:
    """A topic of 3 partitions, with 700 records of 7 keys."""
    store.topics.create("orders", partitions=3)
    store.append_many("orders", [(KEYS[n % 7], b"%d" % n) for n in range(700)], acks=1)
    return store


@contextmanager
def running(consumer: klamm.Consumer, handler: Any, *args: Any, **options: Any) -> Iterator[dict[str, Any]]:
    """`run` in a thread; what it gave back or raised, once the block is left."""
    outcome: dict[str, Any] = {}

    def go() -> None:
        try:
            outcome["report"] = consumer.run(handler, *args, **options)
        except BaseException as error:
            outcome["error"] = error

    thread = threading.Thread(target=go, daemon=True)
    thread.start()
    yield outcome
    thread.join(30)
    assert not thread.is_alive(), "run did not end"


# Order


@pytest.mark.parametrize("workers", [1, 3, 16])
def test_every_record_is_handled_once_and_in_order_within_its_key(keyed: klamm.Store, workers: int) -> None:
    seen: dict[bytes, list[int]] = defaultdict(list)
    active: set[bytes] = set()
    dice = random.Random(workers)

    def handle(record: klamm.Record) -> None:
        assert record.key not in active
        active.add(record.key)
        for _ in range(dice.randrange(2000)):
            pass
        seen[record.key].append(int(record.value))
        active.discard(record.key)

    with keyed.consumer("orders", wait=0) as consumer:
        assert consumer.run(handle, workers) == RunReport(700, 0, 0)
    assert seen == {key: list(range(n, 700, 7)) for n, key in enumerate(KEYS)}


def test_records_of_different_keys_are_handled_at_the_same_time(keyed: klamm.Store) -> None:
    together = threading.Barrier(7, timeout=30)

    def handle(record: klamm.Record) -> None:
        if int(record.value) < 7:
            together.wait()  # passes only if seven are here

    with keyed.consumer("orders", wait=0) as consumer:
        assert consumer.run(handle, 7).done == 700


def test_records_without_a_key_wait_for_nobody(orders: klamm.Store) -> None:
    fill(orders, 8)
    together = threading.Barrier(8, timeout=30)
    with orders.consumer("orders", wait=0) as consumer:
        assert consumer.run(lambda record: together.wait(), 8).done == 8


def test_order_partition_keeps_the_order_of_the_log(keyed: klamm.Store) -> None:
    keyed.append_many("orders", [b"%d" % n for n in range(300)], acks=1)
    seen: dict[int, list[int]] = defaultdict(list)
    with keyed.consumer("orders", wait=0) as consumer:
        consumer.run(lambda record: seen[record.partition].append(record.offset), 8, order="partition")
    assert sum(map(len, seen.values())) == 1000
    assert all(offsets == sorted(offsets) for offsets in seen.values())


def test_no_more_than_queue_records_are_read_ahead(keyed: klamm.Store) -> None:
    go, begun = threading.Event(), threading.Semaphore(0)

    def handle(record: klamm.Record) -> None:
        begun.release()
        assert go.wait(30)

    with keyed.consumer("orders", wait=0) as consumer:
        with running(consumer, handle, 2, queue=50):
            assert begun.acquire(timeout=30) and begun.acquire(timeout=30)
            until(lambda: sum(each.offset for each in consumer.positions().values()) == 50, "50 are read")
            go.set()
        assert sum(each.offset for each in consumer.positions().values()) == 700


def test_a_handler_gets_what_the_consumer_would_give(orders: klamm.Store) -> None:
    orders.append("orders", b'{"id": 1}', key=b"a")
    seen: list[Any] = []
    with orders.consumer("orders", wait=0, serde="json") as consumer:
        consumer.run(seen.append)
        assert (seen[0].key, seen[0].value) == ("a", {"id": 1})
    with orders.consumer("orders", wait=0, serde="json", form="tuples") as consumer:
        consumer.run(seen.append)
        assert seen[1] == ("a", {"id": 1})
        consumer.seek("orders", 0, 0)
        assert list(consumer.poll()) == [("a", {"id": 1})]  # and the consumer is as it was


# Errors


def fail_at(value: bytes, times: int = 1 << 30) -> Any:
    left = [times]

    def handle(record: klamm.Record) -> None:
        if record.value == value and left[0] > 0:
            left[0] -= 1
            raise ValueError(f"no {value!r}")

    return handle


def test_stop_raises_the_error_and_the_consumer_stands_at_its_record(orders: klamm.Store) -> None:
    fill(orders, 100)
    with orders.consumer("orders", wait=0) as consumer:
        with pytest.raises(ValueError, match="no b'30'") as caught:
            consumer.run(fail_at(b"30"), 4)
        assert any("orders/0 at offset 30" in note for note in caught.value.__notes__)
        assert consumer.position("orders", 0).offset == 30
        assert consumer.run(lambda record: None).done == 70


def test_an_error_ends_a_run_that_waits_for_more(orders: klamm.Store) -> None:
    with orders.consumer("orders") as consumer, running(consumer, fail_at(b"x")) as outcome:
        orders.append("orders", b"x", acks=1)
    assert isinstance(outcome["error"], ValueError)


def test_an_error_of_the_reader_is_raised_when_what_runs_is_done(orders: klamm.Store) -> None:
    fill(orders, 10)
    go, begun, seen = threading.Event(), [], []

    def handle(record: klamm.Record) -> None:
        begun.append(record.offset)
        assert go.wait(30)
        seen.append(record.offset)

    with orders.consumer("orders", group="g") as consumer, running(consumer, handle, 10) as outcome:
        until(lambda: len(begun) == 10, "each worker has a record")
        orders.topics.delete("orders")

        def failure() -> BaseException | None:
            runner = getattr(session_of(consumer).sharing, "runner", None)
            return runner._tasks.error if isinstance(runner, _Run) else None

        until(failure, "the reader fails")
        go.set()
    assert isinstance(outcome["error"], klamm.UnknownTopic)
    assert len(seen) == 10


def test_retry_tries_again_and_then_stops(orders: klamm.Store) -> None:
    fill(orders, 10)
    with orders.consumer("orders", wait=0) as consumer:
        report = consumer.run(fail_at(b"5", 3), on_error="retry", retries=3, backoff=0.001)
        assert report == RunReport(10, 3, 0)
        consumer.seek("orders", 0, 0)
        with pytest.raises(ValueError, match="no b'5'"):
            consumer.run(fail_at(b"5"), on_error="retry", retries=3, backoff=0.001)
        assert consumer.position("orders", 0).offset == 5


def test_a_retry_blocks_its_key_and_nobody_else(orders: klamm.Store) -> None:
    orders.append_many("orders", [(b"a", b"1"), (b"a", b"2"), (b"b", b"3"), (b"b", b"4")], acks=1)
    seen: list[int] = []

    def handle(record: klamm.Record) -> None:
        if record.value == b"1" and 4 not in seen:
            raise ValueError
        seen.append(int(record.value))

    with orders.consumer("orders", wait=0) as consumer:  # one worker: it cannot wait for the back-off itself
        consumer.run(handle, 1, on_error="retry", retries=None, backoff=0.001)
    assert seen == [3, 4, 1, 2]


def test_waits_between_retries_double_up_to_their_bound(orders: klamm.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from klamm.client.work.tasks import Tasks

    fill(orders, 1)
    waits: list[float] = []
    plain = Tasks.again

    def again(self: Tasks, task: Any, delay_s: float) -> None:
        waits.append(delay_s)
        plain(self, task, 0)

    monkeypatch.setattr(Tasks, "again", again)
    with orders.consumer("orders", wait=0) as consumer, pytest.raises(ValueError, match="no"):
        consumer.run(fail_at(b"0"), on_error="retry", retries=6, backoff=0.1, max_backoff=1)
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_a_dead_letter_is_written_and_the_key_goes_on(orders: klamm.Store) -> None:
    orders.append_many("orders", [(b"a", b"%d" % n) for n in range(10)], acks=1)
    with orders.consumer("orders", wait=0) as consumer:
        report = consumer.run(fail_at(b"5"), on_error="dead-letter", retries=2, backoff=0.001)
    assert report == RunReport(9, 3, 1)
    [letter] = orders.dead_letters("orders.dlq")
    assert (letter.record.key, letter.record.value, letter.attempts) == (b"a", b"5", 3)
    assert (letter.error, letter.reason) == ("ValueError", "no b'5'")


def test_what_does_not_suit_the_serde_becomes_a_dead_letter_as_it_was(orders: klamm.Store) -> None:
    for value in (b"1", b"{not json", b"3"):
        orders.append("orders", value, acks=1)
    seen: list[Any] = []
    with orders.consumer("orders", wait=0, serde="json", form="values") as consumer:
        consumer.run(seen.append, on_error="dead-letter", retries=0, dead_letter_topic="broken")
    assert sorted(seen) == [1, 3]
    [letter] = orders.dead_letters("broken")
    assert letter.record.value == b"{not json" and letter.error == "json.decoder.JSONDecodeError"


def test_a_dead_letter_that_cannot_be_written_ends_the_run(orders: klamm.Store, path: Path) -> None:
    fill(orders, 3)
    with orders.consumer("orders", wait=0) as consumer:
        with pytest.raises(klamm.InvalidTopic):
            consumer.run(fail_at(b"1"), on_error="dead-letter", retries=0, dead_letter_topic="not a name")
        assert consumer.position("orders", 0).offset == 1
    with klamm.open(path, read_only=True) as other:
        consumer = other.consumer("orders", wait=0)
        with pytest.raises(klamm.ReadOnly):
            consumer.run(fail_at(b"1"), on_error="dead-letter")


# The end


def test_stop_finishes_what_is_in_flight_and_leaves_the_rest(orders: klamm.Store) -> None:
    fill(orders, 100)
    go, begun = threading.Event(), threading.Semaphore(0)

    def handle(record: klamm.Record) -> None:
        begun.release()
        assert go.wait(30)

    consumer = orders.consumer("orders")
    with running(consumer, handle, 3) as outcome:
        for _ in range(3):
            assert begun.acquire(timeout=30)
        consumer.stop()
        go.set()
    done = outcome["report"].done
    assert 3 <= done <= 100
    assert consumer.position("orders", 0).offset <= done


# Processes


def test_processes_handle_records_elsewhere(keyed: klamm.Store, tmp_path: Path) -> None:
    handler = Noting(tmp_path)
    with keyed.consumer("orders", wait=0) as consumer:
        assert consumer.run(handler, 2, processes=True).done == 700
    notes = handler.notes()
    assert os.getpid() not in {pid for pid, _, _ in notes}
    assert sorted(int(value) for _, _, value in notes) == list(range(700))


def test_a_worker_that_is_killed_is_an_error_of_its_record(orders: klamm.Store, tmp_path: Path) -> None:
    fill(orders, 20)
    with orders.consumer("orders", wait=0) as consumer:
        with pytest.raises(ChildProcessError, match="killed by signal 9 while it handled orders/0 at offset 7"):
            consumer.run(Noting(tmp_path, fatal=b"7"), 1, processes=True)
        assert consumer.position("orders", 0).offset == 7
        (tmp_path / "died").unlink()
        again = Noting(tmp_path, fatal=b"7")
        assert consumer.run(again, 1, processes=True, on_error="retry", backoff=0.001) == RunReport(13, 1, 0)
        assert sorted(int(value) for _, _, value in again.notes()) == list(range(20))
        consumer.seek("orders", 0, 0)
        options: Any = {"on_error": "dead-letter", "retries": 1, "backoff": 0.001}
        report = consumer.run(Noting(tmp_path, fatal=b"7", always=True), 1, processes=True, **options)
        assert report == RunReport(19, 2, 1)
    [letter] = orders.dead_letters("orders.dlq")
    assert letter.error == "ChildProcessError" and letter.record.value == b"7"


def test_errors_come_back_from_processes_with_their_trace(orders: klamm.Store) -> None:
    orders.append("orders", b"1")
    with orders.consumer("orders", wait=0) as consumer:
        with pytest.raises(ValueError, match="no b'1'") as caught:
            consumer.run(refuse, 1, processes=True)
        assert "in refuse" in str(caught.value.__cause__)
        orders.append("orders", b"strange")
        consumer.seek("orders", 0, 1)
        with pytest.raises(RuntimeError, match=r"CannotBePickled: .'first'"):
            consumer.run(refuse, 1, processes=True)


def test_a_handler_that_cannot_go_to_a_process_is_refused_at_once(orders: klamm.Store) -> None:
    orders.append("orders", b"1")
    with orders.consumer("orders", wait=0) as consumer:
        with pytest.raises(TypeError, match="cannot be sent to a process"):
            consumer.run(lambda record: None, processes=True)
        with pytest.raises(klamm.StoreError, match="this module is not there"):
            consumer.run(LoadsNot(), 1, processes=True, on_error="retry", retries=None)


def test_workers_of_a_killed_reader_end(orders: klamm.Store, path: Path, tmp_path: Path) -> None:
    fill(orders, 2)
    code = """
import sys
from pathlib import Path
import klamm
from tests.client.handlers import Holding
if __name__ == "__main__":
    with klamm.open(sys.argv[1]) as store, store.consumer("orders") as consumer:
        consumer.run(Holding(Path(sys.argv[2])), 2, processes=True)
"""
    process = subprocess.Popen([sys.executable, "-c", code, str(path), str(tmp_path)])
    handler = Holding(tmp_path)
    try:
        until(lambda: (tmp_path / "notes").exists() and len(handler.notes()) == 2, "two workers have a record each")
    finally:
        process.kill()
        process.wait()
    pids = {pid for pid, _, _ in handler.notes()}
    assert len(pids) == 2
    (tmp_path / "go").touch()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "the workers end")


# Groups


def committed(store: klamm.Store, group: str, number: int = 0) -> int:
    core = store._acquired()
    known = core.groups.find(group)
    rows = {} if known is None else core.groups.offsets(known.number)
    row = rows.get((core.topic("orders").topic.id, number))
    return 0 if row is None else row.offset


def test_what_is_committed_is_the_lowest_that_is_not_done(orders: klamm.Store) -> None:
    fill(orders, 100)
    go, done = threading.Event(), set()

    def handle(record: klamm.Record) -> None:
        if record.offset == 40:
            assert go.wait(30)
        done.add(record.offset)

    with orders.consumer("orders", group="g", wait=0) as consumer:
        with running(consumer, handle, 4, commit_every=0.001):
            until(lambda: committed(orders, "g") == 40, "what is below is committed")
            until(lambda: len(done) == 99, "the others are done")
            assert committed(orders, "g") == 40
            go.set()
        assert committed(orders, "g") == 100


def test_an_error_that_stops_leaves_committed_what_is_done_before_it(orders: klamm.Store) -> None:
    fill(orders, 100)
    with orders.consumer("orders", group="g", wait=0) as consumer, pytest.raises(ValueError, match="no b'30'"):
        consumer.run(fail_at(b"30"), 4)
    assert committed(orders, "g") == 30
    seen: list[int] = []
    with orders.consumer("orders", group="g", wait=0) as consumer:
        consumer.run(lambda record: seen.append(record.offset))
    assert sorted(seen) == list(range(30, 100))


def test_a_partition_that_is_taken_away_is_finished_and_committed_first(store: klamm.Store) -> None:
    store.topics.create("orders", partitions=4)
    seen: list[tuple[int, int]] = []

    def handle(record: klamm.Record) -> None:
        seen.append((record.partition, record.offset))

    total = 0

    def append(count: int) -> None:
        nonlocal total
        for number in range(4):
            store.append_many("orders", [(b"a", b"x")] * count, partition=number, acks=1)
        total += 4 * count

    append(500)
    first, second = [store.consumer("orders", group="g") for _ in range(2)]
    with running(first, handle, 3, commit_every=0.005) as one:
        until(lambda: len(seen) > 500, "the first works")
        with running(second, handle, 3, commit_every=0.005) as other:
            until(lambda: len(second.assignment()) == 2, "the second has a half")
            append(500)
            until(lambda: len(seen) >= total, "all is handled")
            second.stop()
        second.close()
        append(100)
        until(lambda: len(seen) >= total, "the first has everything again")
        first.stop()
    assert one["report"].done + other["report"].done == len(seen) == len(set(seen)) == total  # nothing died: none twice
    assert [committed(store, "g", number) for number in range(4)] == [1100] * 4


def test_a_partition_goes_to_another_member_when_what_runs_of_it_is_done(orders: klamm.Store) -> None:
    orders.topics.add_partitions("orders", 2)
    for number in range(2):
        orders.append("orders", b"x", partition=number, acks=1)
    go, seen = threading.Event(), []

    def handle(record: klamm.Record) -> None:
        seen.append(record.partition)
        assert go.wait(30)

    first = orders.consumer("orders", group="g")
    with running(first, handle, 2, commit_every=600):  # so it is the revocation that commits
        until(lambda: len(seen) == 2, "both are at hand")
        second = orders.consumer("orders", group="g")
        assert second.poll(timeout=0.5) == [] and second.assignment() == []
        go.set()
        again: list[klamm.Record] = []
        until(lambda: again.extend(second.poll(timeout=0.01)) or second.assignment(), "the second has its share")
        assert [*again, *second.poll(timeout=0)] == []  # and what it gets is done
        first.stop()
    assert sorted(seen) == [0, 1]


def test_a_partition_that_is_lost_while_a_handler_hangs_is_done_by_its_new_owner(orders: klamm.Store) -> None:
    orders.topics.add_partitions("orders", 2)
    for number in range(2):
        orders.append("orders", b"x", partition=number, acks=1)
    go, seen = threading.Event(), []

    def hang(record: klamm.Record) -> None:
        seen.append(record.partition)
        assert go.wait(30)

    first = orders.consumer("orders", group="g", max_poll_interval_ms=200)
    with running(first, hang, 2, commit_every=0.001) as outcome:
        until(lambda: len(seen) == 2, "both hang")
        again: list[int] = []
        second = orders.consumer("orders", group="g")  # the first cannot give up what it has, and loses it
        with running(second, lambda record: again.append(record.partition)):
            until(lambda: again, "the second does it")
            go.set()
            until(lambda: committed(orders, "g", 0) == committed(orders, "g", 1) == 1, "both are committed")
            second.stop()
        first.stop()
    assert "error" not in outcome, outcome
    assert outcome["report"].done + outcome["report"].lost == len(seen) >= 2  # more, if it got one back in between
    assert set(again) <= {0, 1}


def test_offsets_elsewhere_and_auto_commit_do_not_go_with_run(orders: klamm.Store) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        consumer = orders.consumer("orders", offsets=klamm.SqlOffsets(connection, "billing"))
        with pytest.raises(klamm.InvalidSetting, match="a group's own offsets"):
            consumer.run(print)
    consumer = orders.consumer("orders", group="g", enable_auto_commit=True)
    with pytest.raises(klamm.InvalidSetting, match="auto-commit"):
        consumer.run(print)


def test_a_handler_may_close_the_consumer(orders: klamm.Store) -> None:
    fill(orders, 10)
    consumer = orders.consumer("orders", group="g")

    def handle(record: klamm.Record) -> None:
        if record.offset == 5:
            consumer.close()

    with running(consumer, handle, 1) as outcome:
        pass
    assert "error" not in outcome
    assert committed(orders, "g") <= 6


def test_runs_killed_at_any_instant_handle_everything_at_least_once(orders: klamm.Store, path: Path) -> None:
    fill(orders, 3000)
    notes = path.parent / "notes"
    notes.touch()

    def note(record: klamm.Record) -> None:
        with open(notes, "ab") as file:
            file.write(b"%7d\n" % record.offset)  # none over the end of a page: a kill may leave its half

    def work() -> None:
        with klamm.open(path) as store, store.consumer("orders", group="g", wait=0) as consumer:
            consumer.run(note, 4, commit_every=0.002)

    with children() as start:
        kills = 0
        while committed(orders, "g") < 3000:
            before = notes.stat().st_size
            child = start(work)
            if kills < 10:
                until(lambda: not child.running or notes.stat().st_size > before + 1000, "it works")  # noqa: B023
                child.kill()
                kills += 1
            child.ended()
            handled = {int(line) for line in notes.read_bytes().split()}
            assert set(range(committed(orders, "g"))) <= handled
    assert handled == set(range(3000))


# Refused


NOT_FITTING = [{"workers": 0}, {"queue": 0}, {"on_error": "ignore"}, {"order": "none"}, {"retries": -1}]
NOT_FITTING += [
    {"backoff": -1},
    {"timeout": 0},
    {"grace": -1},
    {"retry_on": ValueError},
    {"commit_every": float("nan")},
]


@pytest.mark.parametrize("options", NOT_FITTING, ids=repr)
def test_settings_that_do_not_fit_are_refused(orders: klamm.Store, options: dict[str, Any]) -> None:
    with orders.consumer("orders") as consumer, pytest.raises(klamm.InvalidSetting):
        consumer.run(print, **options)


@pytest.mark.parametrize("options", [{"workers": "8"}, {"queue": 1.5}, {"backoff": "1"}], ids=repr)
def test_settings_of_the_wrong_type_are_refused(orders: klamm.Store, options: dict[str, Any]) -> None:
    with orders.consumer("orders") as consumer:
        with pytest.raises(TypeError):
            consumer.run(print, **options)
        with pytest.raises(TypeError, match="handler"):
            consumer.run(None)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"consumer.run\(\) has no option 'worker' \(did you mean 'workers'"):
            consumer.run(print, worker=8)  # type: ignore[arg-type]
