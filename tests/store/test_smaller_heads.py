"""`heads` gets smaller when a store is opened by a process that has it alone: slots that deleted partitions left go."""

from __future__ import annotations

import gc
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import klamm
from klamm.disk import _os
from klamm.errors import UnknownTopic
from klamm.log import head
from klamm.store.directory import acquire, release
from tests.crash.cases import seed_of
from tests.crash.lock_words import fork_unhandled
from tests.crash.stores import values, without_maintenance
from tests.procs import Flag, asleep, children, until

pytestmark = [
    pytest.mark.skipif(not _os.HAS_BYTE_LOCKS, reason="one process at a time"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning"),
]
MANY = 100


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with one partition in use, and many slots behind it that are free."""
    path = tmp_path / "events"
    with klamm.open(path) as store:
        store.topics.create("stays")
        store.append("stays", b"stays")
        store.topics.create("goes", MANY)
        store.append("goes", b"goes", partition=MANY - 1)
        assert slots_in(path) == 1 + 1 + MANY
        store.topics.delete("goes")
    return path


def open_alone(path: Path) -> None:
    """Open and close the store as a process does that has just started."""
    gc.collect()  # what is left of a store that was closed before has its mapping
    klamm.open(path).close()


def slots_in(path: Path) -> int:
    return os.path.getsize(path / "heads") // head.SLOT_BYTES


def is_whole(path: Path) -> bool:
    """The store has what was in it, and room for new partitions."""
    with klamm.open(path) as store:
        assert values(store, "stays") == [b"stays"]
        store.topics.create("new", MANY // 2)
        for number in range(MANY // 2):
            store.append("new", b"%d" % number, partition=number, acks=1)
        assert sorted(values(store, "new")) == sorted(b"%d" % number for number in range(MANY // 2))
        assert store.check().ok
        store.topics.delete("new")
    return klamm.check(path).ok


def test_free_slots_at_the_end_go_when_the_store_is_opened_alone(path: Path) -> None:
    open_alone(path)
    assert slots_in(path) == 2
    assert is_whole(path)


def test_a_few_free_slots_and_those_before_a_partition_stay(path: Path) -> None:
    with klamm.open(path) as store:
        for name, count in (("a", MANY), ("b", 1), ("c", 20)):
            store.topics.create(name, count)
        for name in ("a", "c"):
            store.topics.delete(name)
    before = slots_in(path)
    open_alone(path)
    with klamm.open(path) as store:
        assert slots_in(path) == before == 2 + MANY + 1 + 20
        store.topics.create("again", MANY)
        assert slots_in(path) == before
        assert store.check().ok


def read_only(path: Path, ready: Flag, end: Flag) -> None:
    with klamm.open(path, read_only=True) as store, store.consumer("goes", wait=0, start="earliest") as consumer:
        assert [record.value for record in consumer] == [b"goes"]
        ready.up()
        end.wait()
        with pytest.raises(UnknownTopic):
            consumer.poll(timeout=0)
        Flag(path.with_name("fine")).up()


def forked(path: Path, ready: Flag, end: Flag) -> None:
    """End, but for a child that no handler has seen, and that has closed every descriptor."""
    with klamm.open(path) as store:
        partition = store._acquired().topic("goes").partition(MANY - 1)
        without_maintenance(store._acquired())
        if fork_unhandled():
            os._exit(0)
        signal.alarm(60)
        os.closerange(3, 1000)
        ready.up()
        end.wait()
        if partition.log.flags & head.DELETED:
            Flag(path.with_name("fine")).up()
        os._exit(0)


@pytest.mark.parametrize("other", [read_only, forked])
def test_no_slot_goes_while_another_process_has_the_file_mapped(
    tmp_path: Path, other: Callable[[Path, Flag, Flag], None]
) -> None:
    """A process that looks at a slot that was cut off would get a SIGBUS."""
    path, ready, end = tmp_path / "events", Flag(tmp_path / "ready"), Flag(tmp_path / "end")
    with klamm.open(path) as store:
        store.topics.create("goes", MANY)
        store.append("goes", b"goes", partition=MANY - 1)
    with children() as start:
        child = start(lambda: other(path, ready, end))
        ready.wait()
        with klamm.open(path) as store:
            store.topics.delete("goes")
        open_alone(path)
        assert slots_in(path) == 1 + MANY
        end.up()
        assert child.ended() == 0

    def is_smaller() -> bool:
        open_alone(path)
        return slots_in(path) == 1

    until(is_smaller, "the other process is gone, and so are the slots")
    assert Flag(tmp_path / "fine")


def test_a_process_killed_at_any_step_of_making_it_smaller_leaves_a_whole_store(path: Path) -> None:
    dice = random.Random(seed_of())
    alive, step, seen = False, 0, set()
    with children() as start:
        while not alive:
            step += 1 + dice.randrange(6)
            with klamm.open(path) as store:
                store.topics.create("goes", MANY)
                store.topics.delete("goes")
            gc.collect()

            def open_and_die(step: int = step) -> None:
                _os.trap(step, signal=signal.SIGKILL)
                store = klamm.open(path)
                _os.trap(0)
                without_maintenance(store._acquired())
                store.close()

            alive = not os.WIFSIGNALED(start(open_and_die).ended())
            seen.add(slots_in(path))
            assert is_whole(path)
    assert seen == {2, 2 + MANY}


def test_slots_that_klamm_db_does_not_know_any_more_stay(path: Path) -> None:
    """An older klamm.db was put back: they may have partitions that a repair finds again."""
    open_alone(path)
    before = (path / "klamm.db").read_bytes()
    with klamm.open(path) as store:
        store.topics.create("later", MANY)
        store.append("later", b"later", partition=MANY - 1)
    os.unlink(path / "klamm.db")
    (path / "klamm.db").write_bytes(before)
    size = slots_in(path)
    gc.collect()
    release(acquire(str(path), read_only=False, create=False, force_filesystem=False, rebuild=True))  # as a repair does
    assert slots_in(path) == size
    assert klamm.check(path, repair=True).ok
    with klamm.open(path) as store:
        assert values(store, "later") == [b"later"]
        assert len(store.topics.describe("later").partitions) == MANY


def test_a_process_waits_until_the_file_is_as_small_as_it_will_be(path: Path) -> None:
    gc.collect()
    heads = head.Heads(str(path / "heads"))
    with children() as start:
        with head.SoleMapping(heads) as is_sole:
            assert is_sole
            waiting = start(lambda: klamm.open(path, read_only=True).close())
            asleep(waiting)
        assert waiting.ended() == 0
    with klamm.open(path, read_only=True), head.SoleMapping(heads) as is_sole:
        assert not is_sole


def test_heads_is_never_sparse_though_free_slots_were_lost_with_it(path: Path) -> None:
    with klamm.open(path) as store:
        store.topics.create("goes", 30)
        store.topics.delete("goes")
    os.unlink(path / "heads")
    with klamm.open(path) as store:
        store.topics.create("more", 40)
        status = os.stat(path / "heads")
        assert status.st_blocks * 512 >= status.st_size
        for slot in range(1, slots_in(path)):
            store._acquired().heads.flags_of(slot)
    assert is_whole(path)
