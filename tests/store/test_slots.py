"""Slots that are used again: whoever still has the deleted partition is told so, and touches nothing of the new one."""

from __future__ import annotations

import gc
import mmap
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

import klamm
from klamm.disk import _os
from klamm.errors import KlammError, UnknownTopic
from klamm.log.partition import Partition
from klamm.store.deletion import sweep
from tests.crash.cases import seed_of
from tests.crash.stores import values, without_maintenance
from tests.crash.workload import log_of, sealed
from tests.procs import Flag, children, until

SOAK_S = float(os.environ.get("KLAMM_SOAK_SECONDS", "3600"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events"


def slots_of(store: klamm.Store, topic: str) -> tuple[int, ...]:
    return store._acquired().catalog.topic(topic).partitions


def test_a_store_that_makes_and_deletes_topics_does_not_wear_out(path: Path) -> None:
    with klamm.open(path) as store:
        store.topics.create("stays", 2)
        for number in range(30):
            store.topics.create("passes", 1 + number % 4)
            store.append("passes", b"%d" % number)
            assert values(store, "passes") == [b"%d" % number]
            store.topics.delete("passes")
        store.append("stays", b"x")
        assert os.path.getsize(path / "heads") == 1024 * (1 + 2 + 4)
        assert store.check().ok
    with klamm.open(path) as store:
        store.topics.create("again", 5)
        assert slots_of(store, "again") == (3, 4, 5, 6, 7)
        assert store.check().ok


class Use(NamedTuple):
    """What a process has of the machine."""

    memory: int
    maps: int
    files: int

    @classmethod
    def now(cls) -> Use:
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        maps = Path("/proc/self/maps").read_text().count("\n")
        return cls(pages * os.sysconf("SC_PAGESIZE"), maps, len(os.listdir("/proc/self/fd")))


class Churn(NamedTuple):
    """Topics that came and went in one process, partitions a second, and what it used early and at the end."""

    topics: int
    rate: float
    early: Use
    late: Use


@pytest.mark.parametrize("seconds", [4, pytest.param(SOAK_S, marks=pytest.mark.soak)])
def test_heads_and_memory_stay_as_they_are_whatever_comes_and_goes(path: Path, tmp_path: Path, seconds: float) -> None:
    """Two processes make and delete topics, a third reads what it finds: the truth, or that the topic is gone."""
    with klamm.open(path):
        pass
    over = Flag(tmp_path / "over")
    board = memoryview(mmap.mmap(-1, 64)).cast("q")  # topics that each made, and how often one was gone

    def come_and_go(name: str) -> Churn:
        made, early, begin = 0, Use.now(), time.monotonic()
        with klamm.open(path) as store:
            while not over:
                topic = f"{name}-{made}"
                store.topics.create(topic, 5)
                for partition in range(5):
                    store.append(topic, topic.encode(), partition=partition, acks=1)
                if made:
                    store.topics.delete(f"{name}-{made - 1}")
                made += 1
                board[name == "b"] = made
                if made == 10:
                    early = Use.now()
            return Churn(made, 5 * made / (time.monotonic() - begin), early, Use.now())

    def look() -> tuple[int, int]:
        """Return how many records were seen, and how often a topic was gone that was still being read."""
        seen = gone = 0
        held: dict[str, klamm.Consumer] = {}
        with klamm.open(path) as store:
            while not over:
                for topic in store.topics:
                    with suppress(UnknownTopic):
                        if topic not in held:
                            held[topic] = store.consumer(topic, start="earliest", wait=0)
                for topic, consumer in list(held.items()):
                    try:
                        found = [record.value for record in consumer.poll(timeout=0)]
                    except UnknownTopic:
                        held.pop(topic).close()
                        gone += 1
                        board[2] = gone
                        continue
                    assert set(found) <= {topic.encode()}, f"{topic}: {found}"
                    seen += len(found)
            for consumer in held.values():
                consumer.close()
        return seen, gone

    with children() as start:
        workers = [start(lambda name=name: come_and_go(name)) for name in ("a", "b")]  # type: ignore[misc]
        reader = start(look)
        time.sleep(seconds)
        until(lambda: min(board[:3]) > 20, "all of them have come so far")
        over.up()
        churns: list[Churn] = [worker.answer() for worker in workers]
        seen, gone = reader.answer()
    print(churns, seen, gone)
    assert seen > 20
    for churn in churns:
        assert churn.late.memory - churn.early.memory < 16 << 20
        assert churn.late.maps - churn.early.maps < 50 and churn.late.files - churn.early.files < 50
    if seconds >= 60:
        assert sum(churn.rate for churn in churns) > 100
    assert os.path.getsize(path / "heads") <= 1024 * (1 + 2 * (3 * 5))  # at most three topics of each at a time
    assert klamm.check(path).ok


def old_partition(store: klamm.Store) -> Partition:
    """One whose slot is another topic's by now."""
    store.topics.create("old", settings={"segment.bytes": 300})
    for number in range(9):
        store.append("old", b"old %d" % number * 10)
    partition = log_of(store, "old/0")
    slot = partition.slot
    store.topics.delete("old")
    store.topics.create("new")
    store.append("new", b"new")
    assert slots_of(store, "new") == (slot,)
    return partition


USES: dict[str, Callable[[Partition], object]] = {
    "append": lambda partition: partition.append(sealed(["x"])),
    "sync": lambda partition: partition.sync(9),
    "sync beyond": lambda partition: partition.sync(10_000),
    "ends": lambda partition: partition.ends(),
    "snapshot": lambda partition: partition.snapshot(),
    "read": lambda partition: partition.reader(0).read(),
    "checkpoint": lambda partition: partition.checkpoint(),
    "expire": lambda partition: partition.cleanup.expire(),
    "delete_before": lambda partition: partition.cleanup.delete_before(5),
    "rewrite_unsynced": lambda partition: partition.rewrite_unsynced(),
    "mark_deleted": lambda partition: partition.mark_deleted(),
    "compact": lambda partition: partition.cleanup.compact(),
    "offset_at": lambda partition: partition.offset_at(0),
    "append_marker": lambda partition: partition.append_marker(1, 0, commit=True),
    "producers": lambda partition: partition.producers(),
    "set_flags": lambda partition: partition.log.set_flags(2**31),
    "clear_flags": lambda partition: partition.log.clear_flags(2**31),
    "close": lambda partition: partition.close(),
}


@pytest.mark.parametrize("use", USES)
def test_a_log_of_a_deleted_partition_does_nothing_to_the_one_that_has_its_slot(path: Path, use: str) -> None:
    with klamm.open(path) as store:
        without_maintenance(store._acquired())
        partition = old_partition(store)
        slot = partition.slot * 1024
        before = (path / "heads").read_bytes()[slot : slot + 704]  # without who held its locks last
        with suppress(UnknownTopic):
            USES[use](partition)
        assert (path / "heads").read_bytes()[slot : slot + 704] == before
        assert values(store, "new") == [b"new"]
        assert store.append("new", b"newer") == 1
        assert store.check().ok


def test_consumers_and_producers_of_a_deleted_topic_are_told(path: Path) -> None:
    with klamm.open(path) as store, klamm.open(path, read_only=True) as reader:
        store.topics.create("old")
        store.append("old", b"old")
        consumers = [each.consumer("old", wait=0) for each in (store, reader)]
        assert [record.value for each in consumers for record in each.poll(timeout=0)] == [b"old", b"old"]
        producer = store.producer(linger_ms=0)
        producer.send("old", b"more").result(10)
        store.topics.delete("old")
        store.topics.create("new")
        store.append_many("new", [b"new"] * 5)
        for consumer in consumers:
            with pytest.raises(UnknownTopic):
                consumer.poll(timeout=0)
        with pytest.raises(UnknownTopic):
            producer.send("old", b"too late").result(10)
        assert values(store, "new") == [b"new"] * 5


@pytest.mark.parametrize("inside", [_os.WRITE, _os.SYNC], ids=["append", "sync"])
def test_a_slot_whose_lock_a_stopped_process_holds_is_not_used_again_before_it_is_free(
    path: Path, tmp_path: Path, inside: int
) -> None:
    with klamm.open(path) as store:
        store.topics.create("old")
        (slot,) = slots_of(store, "old")
        ready = Flag(tmp_path / "ready")

        def append() -> None:
            with klamm.open(path) as mine:
                mine.append("old", b"first")
                without_maintenance(mine._acquired())
                _os.trap(1, kinds=inside, signal=signal.SIGSTOP)
                ready.up()
                mine.append("old", b"second")
                with pytest.raises(UnknownTopic):
                    mine.append("old", b"third", acks=1)

        with children() as start:
            child = start(append)
            ready.wait()
            assert child.stopped()
            core = store._acquired()
            core.catalog.delete_topic("old")  # a deleter that was killed here
            sweep(core, with_all_topics=True)
            store.topics.create("new")
            assert slots_of(store, "new") != (slot,)
            child.go_on()
            child.answer()
            sweep(core, with_all_topics=True)
            store.topics.create("newer")
            assert slots_of(store, "newer") == (slot,)
            assert values(store, "newer") == []


def test_a_creator_killed_at_any_step_leaves_the_slot_free_or_used(path: Path, tmp_path: Path) -> None:
    """And one that is killed while it deletes."""
    seed = seed_of()

    def work(step: int) -> None:
        with klamm.open(path) as store:
            without_maintenance(store._acquired())
            _os.trap(step, signal=signal.SIGKILL)
            store.topics.create("new", 2)
            store.append("new", b"new", partition=1)
            store.topics.delete("new")
            _os.trap(0)

    with klamm.open(path) as store:
        store.topics.create("stays")
        store.append("stays", b"stays")
        store.topics.create("old", 2)
        store.append("old", b"old", partition=0)
        store.append("old", b"old", partition=1)
        store.topics.delete("old")
    alive, step, deaths = False, 0, 0
    dice = random.Random(seed)
    with children() as start:
        while not alive:
            step += 1 + dice.randrange(9)
            child = start(lambda step=step: work(step))  # type: ignore[misc]
            alive = not os.WIFSIGNALED(child.ended())
            deaths += not alive
            with klamm.open(path) as store:
                assert values(store, "stays") == [b"stays"]
                if "new" in store.topics:
                    assert values(store, "new") in ([], [b"new"])
                    store.topics.delete("new")
                store.maintain()
                assert store.check().ok
            assert os.path.getsize(path / "heads") <= 1024 * (1 + 1 + 2 + 2)
    assert deaths > 20
    with klamm.open(path) as store:
        assert store._acquired().catalog.deleted() == {}


def test_heads_from_a_backup_knows_no_partition_that_came_after_it(path: Path, tmp_path: Path) -> None:
    with klamm.open(path) as store:
        store.topics.create("old", 2)
        store.append_many("old", [b"old"] * 9, partition=0)
    before = (path / "heads").read_bytes()
    with klamm.open(path) as store:
        store.topics.delete("old")
        store.topics.create("new", 2)
        store.append_many("new", [b"%d" % number for number in range(20)], partition=0)
    os.unlink(path / "heads")
    (path / "heads").write_bytes(before)
    with klamm.open(path) as store:
        assert values(store, "new") == [b"%d" % number for number in range(20)]
        assert store.append("new", b"20", partition=0) == 20
        assert store.check().ok


@pytest.mark.parametrize("how", ["in place", "replaced"])
def test_klamm_db_from_a_backup_does_not_bring_a_topic_back_whose_slot_has_another(path: Path, how: str) -> None:
    with klamm.open(path) as store:
        store.topics.create("old", 2)
        store.append("old", b"old", partition=0)
    before = (path / "klamm.db").read_bytes()
    with klamm.open(path) as store:
        store.topics.delete("old")
        store.topics.create("new", 2)
        store.append("new", b"new", partition=0)
    if how == "in place":
        (path / "klamm.db").write_bytes(before)
    else:
        (path / "put-back").write_bytes(before)  # beside the old one, so its inode is another
        os.replace(path / "put-back", path / "klamm.db")
    with pytest.raises(KlammError, match="is older than the logs"):
        klamm.open(path)
    assert klamm.check(path, repair=True).ok
    with klamm.open(path) as store:
        assert list(store.topics) == ["new"]
        assert values(store, "new") == [b"new"]
        store.topics.create("newer", 2)
        assert not set(slots_of(store, "newer")) & set(slots_of(store, "new"))
        assert store.check().ok


def test_slots_that_a_repair_knows_nothing_of_are_used_again(path: Path) -> None:
    with klamm.open(path) as store:
        store.topics.create("passes", 2)
        store.topics.create("stays", 2)
        store.append("stays", b"stays", partition=0)  # partition 1 has no directory
        store.append("passes", b"passes")
        store.topics.delete("passes")
    for file in path.glob("klamm.db*"):
        file.unlink()
    gc.collect()  # what is left of the closed store has its mapping
    assert klamm.check(path, repair=True).ok
    gc.collect()
    with klamm.open(path) as store:
        store.topics.create("new", 2)
        assert slots_of(store, "stays") == (3, 4) and slots_of(store, "new") == (1, 2)
        assert values(store, "stays") == [b"stays"] and values(store, "new") == []
        assert store.check().ok


def test_after_a_boot_nothing_of_a_deleted_partition_is_evidence_for_the_next_one(path: Path) -> None:
    """Its offsets, its start, what was synced of it: all of it was larger."""
    with klamm.open(path) as store:
        store.topics.create("old")
        store.append_many("old", [b"old"] * 900)
        store["old"].delete_records({0: 800})
        store.topics.delete("old")
        store.topics.create("new")
        store.append_many("new", [b"%d" % number for number in range(3)])
        assert slots_of(store, "new") == (1,)
        shutil.copytree(path, path.with_name("copy"))  # believed no more than a store after a boot
    with klamm.open(path.with_name("copy")) as store:
        assert store.topics.describe("new").partitions[0].start == 0
        assert values(store, "new") == [b"0", b"1", b"2"]
        assert store.check().ok
