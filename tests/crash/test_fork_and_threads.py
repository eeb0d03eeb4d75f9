"""Threads, forks, and many processes at one store: nobody is blocked by a copy, and nobody loses a record."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

import klamm
from klamm.disk import _os
from klamm.errors import Closed, KlammError
from klamm.log import head
from klamm.store import directory
from tests.crash.cases import seed_of
from tests.crash.stores import open_on_another_boot, values
from tests.procs import Flag, asleep, children, until

# Python 3.12 warns of forks with threads; that they are safe here is what is tested.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")

SEED = seed_of()


def in_threads(count: int, work: Callable[[int], object], seconds: float = 60) -> None:
    """Run work(n) in threads of its own; the first error is the test's."""
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


# ---- threads


def test_threads_append_to_one_partition_and_each_finds_its_records_in_order(store: klamm.Store) -> None:
    offsets: dict[int, list[int]] = {}

    def work(number: int) -> None:
        acks: Literal["all", 1] = 1 if number % 2 else "all"
        appended = [store.append("orders", b"%d %d" % (number, n), acks=acks) for n in range(60)]
        offsets[number] = [offset for offset in appended if offset is not None]

    in_threads(6, work)
    log = values(store)
    assert sorted(offset for found in offsets.values() for offset in found) == list(range(360))
    for number, found in offsets.items():
        assert [log[offset] for offset in found] == [b"%d %d" % (number, n) for n in range(60)]


def test_threads_share_a_producer_and_read_meanwhile(store: klamm.Store) -> None:
    seen: list[bytes] = []
    done = threading.Event()

    def read() -> None:
        with store.consumer("orders", start="earliest") as consumer:
            while len(seen) < 2000:
                seen.extend(record.value for record in consumer.poll(timeout=0.1))
                assert not done.is_set() or len(seen) >= 2000 or consumer.poll(timeout=5) is not None

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    with store.producer(linger_ms=1) as producer:
        in_threads(4, lambda number: [producer.send("orders", b"%d %d" % (number, n)) for n in range(500)])
    reader.join(30)
    assert not reader.is_alive()
    assert Counter(seen) == Counter(b"%d %d" % (number, n) for number in range(4) for n in range(500))
    for number in range(4):
        mine = [value for value in seen if value.startswith(b"%d " % number)]
        assert mine == [b"%d %d" % (number, n) for n in range(500)]


def test_threads_open_create_append_and_close_without_order(path: Path) -> None:
    def work(number: int) -> None:
        for turn in range(6):
            with klamm.open(path) as store:
                store.topics.create(f"topic-{turn}", exist_ok=True)
                store.append(f"topic-{turn}", b"%d" % number, acks=1)

    in_threads(5, work)
    with klamm.open(path) as store:
        for turn in range(6):
            assert sorted(values(store, f"topic-{turn}")) == [b"%d" % number for number in range(5)]


def test_a_store_closed_while_threads_append_refuses_them_and_keeps_what_it_took(path: Path) -> None:
    for _ in range(5):
        store = klamm.open(path)
        store.topics.create("orders", exist_ok=True)
        before = len(values(store))
        taken: list[int] = []
        started = threading.Barrier(4)

        def work(number: int, store: klamm.Store = store, started: threading.Barrier = started) -> None:
            started.wait(30)
            try:
                while True:
                    taken.append(store.append("orders", b"%d" % number, acks=1))  # noqa: B023
            except Closed:
                pass

        def close(store: klamm.Store = store, started: threading.Barrier = started) -> None:
            started.wait(30)
            time.sleep(0.01)
            store.close()

        in_threads(4, lambda number: close() if number == 3 else work(number))
        with klamm.open(path) as again:
            assert sorted(taken) == list(range(before, len(values(again))))


# ---- forks


def test_a_child_forked_while_a_thread_appends_blocks_nobody_when_its_parent_is_killed(
    path: Path, tmp_path: Path
) -> None:
    """The parent dies in the middle of an append; its child lives on with a copy of every descriptor."""
    forked = Flag(tmp_path / "forked")
    with klamm.open(path) as store:
        store.topics.create("orders")

    def parent() -> None:
        store = klamm.open(path)

        def append() -> None:
            while True:
                store.append("orders", b"parent", acks=1)

        threading.Thread(target=append, daemon=True).start()
        until(lambda: store.topics.describe("orders").partitions[0].end > 100, "it appends")
        pid = os.fork()
        if not pid:
            (tmp_path / "pid").write_text(str(os.getpid()))
            forked.up()
            time.sleep(60)
            os._exit(0)
        forked.wait()
        _os.trap(random.Random(SEED).randrange(1, 200), signal=signal.SIGKILL)
        time.sleep(60)

    print(f"KLAMM_SEED={SEED}")
    with children() as start:
        child = start(parent)
        assert os.WIFSIGNALED(child.ended())
        grandchild = int((tmp_path / "pid").read_text())
        try:
            with klamm.open(path) as store:
                offset = store.append("orders", b"third")
                os.kill(grandchild, 0)
                log = values(store)
                assert log == [b"parent"] * (len(log) - 1) + [b"third"]
                assert offset == len(log) - 1
        finally:
            os.kill(grandchild, signal.SIGKILL)


@pytest.mark.parametrize("step", ["append lock", "flush byte"])
def test_a_copy_of_a_descriptor_does_not_keep_a_lock_of_the_dead(path: Path, tmp_path: Path, step: str) -> None:
    """Deterministic: the parent is killed exactly while it holds the byte, with a child forked before."""
    with klamm.open(path) as store:
        store.topics.create("orders")
        store.append("orders", b"first", acks="all")

    def parent() -> None:
        store = klamm.open(path)
        store.append("orders", b"parent", acks=1)
        pid = os.fork()
        if not pid:
            time.sleep(60)
            os._exit(0)
        (tmp_path / "pid").write_text(str(pid))
        _os.trap(1, kinds=_os.WRITE if step == "append lock" else _os.SYNC, signal=signal.SIGKILL)
        store.append("orders", b"killed", acks="all")

    with children() as start:
        assert os.WIFSIGNALED(start(parent).ended())
        grandchild = int((tmp_path / "pid").read_text())
        try:
            with klamm.open(path) as store:
                store.append("orders", b"third", acks="all")
                assert values(store) == [b"first", b"parent", *([b"killed"] if step == "flush byte" else []), b"third"]
        finally:
            os.kill(grandchild, signal.SIGKILL)


def test_forks_at_any_moment_while_threads_use_the_store_leave_children_that_can(store: klamm.Store) -> None:
    """Threads append, sync, create topics and look them up; children of those moments append and read."""
    stop = threading.Event()
    sent: Counter[int] = Counter()

    def append(number: int) -> None:
        while not stop.is_set():
            store.append("orders", b"%d %d" % (number, sent[number]), acks=1 if number else "all")
            sent[number] += 1

    def manage() -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            store.topics.create(f"other-{turn}")
            store.topics.describe("orders")
            store.topics.delete(f"other-{turn}")

    def look() -> None:
        while not stop.is_set():
            store.topics.describe("orders")
            with (
                store.consumer("orders", start="last 3", wait=0) as consumer,
                klamm.open(store.path, read_only=True),
            ):
                consumer.poll(timeout=0)

    errors: list[BaseException] = []

    def guarded(action: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            try:
                action()
            except BaseException as error:
                errors.append(error)

        return run

    store.append("orders", b"9 0")
    actions = [lambda: append(0), lambda: append(1), manage, look]
    threads = [threading.Thread(target=guarded(action), daemon=True) for action in actions]
    for thread in threads:
        thread.start()

    def child(number: int) -> None:
        for n in range(3):
            store.append("orders", b"%d %d" % (100 + number, n), acks="all" if n else 1)
        with store.consumer("orders", start="earliest", wait=0) as consumer:
            assert consumer.poll(max_records=1)[0].value == b"9 0"
        store.close()

    made = 25
    try:
        with children() as start:
            for number in range(made):
                start(lambda number=number: child(number)).answer(20)  # type: ignore[misc]
    finally:
        stop.set()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), "a thread hangs after a fork"
    assert not errors, errors
    log = [tuple(map(int, value.split())) for value in values(store)]
    by_writer: dict[int, list[int]] = {}
    for writer, number in log:
        by_writer.setdefault(writer, []).append(number)
    for writer in (0, 1):
        assert by_writer[writer] == list(range(sent[writer]))
    for number in range(made):
        assert by_writer[100 + number] == [0, 1, 2]


def test_the_parents_handles_refuse_in_the_child_and_go_on_in_the_parent(store: klamm.Store) -> None:
    partition = store._acquired().topic("orders").partition(0)
    producer = store.producer()
    producer.send("orders", b"0").result(10)
    consumer = store.consumer("orders", start="earliest")

    def child() -> list[str]:
        found = []
        for use in (
            lambda: partition.append_one(None, b"x"),
            lambda: partition.sync(10),
            lambda: producer.send("orders", b"x"),
            lambda: consumer.poll(timeout=0),
        ):
            try:
                use()
                found.append("worked")
            except KlammError as error:
                found.append(type(error).__name__)
        return found

    with children() as start:
        assert start(child).answer() == ["Forked"] * 4
    producer.send("orders", b"1").result(10)
    assert partition.append_one(None, b"2") == 2
    producer.close()
    consumer.close()
    assert values(store) == [b"0", b"1", b"2"]


def test_a_child_that_ends_or_closes_leaves_its_parents_locks(store: klamm.Store, path: Path) -> None:
    store.append("orders", b"0")
    with children() as start:
        start(store.close).answer()
        start(lambda: store.append("orders", b"child")).answer()
        start(lambda: None).answer()
        # The parent is still present: nobody may recover the store under it.
        assert start(lambda: open_on_another_boot(path)).answer() == "StoreBusy"
    assert store.append("orders", b"1") == 2


# ---- multiprocessing


def append_from(store: klamm.Store, number: int) -> int:
    for n in range(20):
        store.append("orders", b"%d %d" % (number, n), acks=1)
    store.append("orders", b"%d 20" % number, acks="all")
    return len(values(store))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing_hands_a_store_to_its_workers(store: klamm.Store, method: str) -> None:
    context: Any = multiprocessing.get_context(method)
    processes = [context.Process(target=append_from, args=(store, number)) for number in range(3)]
    for process in processes:
        process.start()
    store.append("orders", b"9 0")
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    log = values(store)
    assert len(log) == 64
    for number in range(3):
        assert [value for value in log if value.startswith(b"%d " % number)] == [
            b"%d %d" % (number, n) for n in range(21)
        ]


def test_a_pool_of_forked_workers_appends_in_turn(store: klamm.Store) -> None:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        result = pool.starmap_async(append_from, [(store, number) for number in range(6)])
        counts = result.get(60)
    assert max(counts) == 6 * 21
    assert len(values(store)) == 6 * 21


# ---- stopped and killed


def test_a_stopped_process_holds_up_nobody_but_those_who_want_its_lock(store: klamm.Store, path: Path) -> None:
    store.topics.create("other")
    store.append("orders", b"0")

    def hold() -> None:
        mine = klamm.open(path)
        _os.trap(1, kinds=_os.WRITE, signal=signal.SIGSTOP)
        mine.append("orders", b"stopped", acks=1)
        _os.trap(0)
        mine.close()

    with children() as start:
        holder = start(hold)
        assert holder.stopped()
        waiter = start(lambda: klamm.open(path).append("orders", b"waited", acks=1))
        assert store.append("other", b"x") == 0
        assert values(store) == [b"0"]
        with klamm.open(path, read_only=True) as reader:
            assert values(reader) == [b"0"]
        assert start(lambda: klamm.open(path).append("other", b"y")).answer() == 1
        asleep(waiter)
        holder.go_on()
        holder.answer()
        waiter.answer()
    assert sorted(values(store)) == [b"0", b"stopped", b"waited"]


def test_killed_processes_leave_a_store_that_opens_at_once_and_is_all_right(path: Path) -> None:
    print(f"KLAMM_SEED={SEED}")
    dice = random.Random(SEED)
    with klamm.open(path) as store:
        store.topics.create("orders", settings={"segment.bytes": 2000})

    def work(seed: int) -> None:
        mine = random.Random(seed)
        store = klamm.open(path)
        _os.trap(mine.randrange(1, 3000), signal=signal.SIGKILL)
        number = 0
        while True:
            store.append("orders", b"%d %d" % (seed, number), acks=mine.choice([1, "all"]))
            number += 1

    with children() as start:
        for _ in range(12):
            seeds = [dice.randrange(1 << 30) for _ in range(3)]
            workers = [start(lambda seed=seed: work(seed)) for seed in seeds]  # type: ignore[misc]
            for worker in workers:
                assert os.WIFSIGNALED(worker.ended(30))
    with klamm.open(path) as store:
        by_writer: dict[int, list[int]] = {}
        for writer, number in (map(int, value.split()) for value in values(store)):
            by_writer.setdefault(writer, []).append(number)
        assert by_writer
        for numbers in by_writer.values():
            assert numbers == list(range(len(numbers)))
        assert store._acquired().heads.is_trusted(directory.boot_id())
        partition = store._acquired().topic("orders").partition(0)
        assert partition.log.flags & head.NEEDS_RECOVERY == 0
    assert klamm.check(path).ok


DROPPED = """
import os, sys, klamm
from klamm.disk import fork

class Other:  # a thread, say, that lets go of the store while this one forks
    def in_child(self): pass
    def before(self, take): take(self)
    def acquire(self): pass
    def release(self): self.store = None

for number in range(20):
    other = Other()
    fork.register(other, Other.in_child, Other.before, order=2)
    other.store = klamm.open(f"{sys.argv[1]}/{number}")
    other.store.topics.create("t")
    other.store.append("t", b"x", acks=1)
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_a_store_that_is_dropped_while_the_process_forks_does_not_wait_for_itself(tmp_path: Path) -> None:
    assert subprocess.run([sys.executable, "-c", DROPPED, tmp_path], timeout=60).returncode == 0
