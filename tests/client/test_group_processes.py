"""Groups across processes: members that are killed, stopped, forked; and that nothing is lost or has two owners."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.disk.locks import SERVER
from tests.client.conftest import fill
from tests.client.groups import shared, turn
from tests.procs import Flag, children, until

# Python 3.12 warns of forks with threads; that they are safe here is what is tested.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


@pytest.fixture
def users(store: klamm.Store) -> klamm.Store:
    """The store, with a topic `users` of 6 partitions."""
    store.topics.create("users", partitions=6)
    return store


def member(store: klamm.Store, topic: str, has: Flag, *, count: int, commit: bool = False) -> Callable[[], None]:
    """A process that joins, takes `count` partitions, says so, and goes on polling."""

    def run() -> None:
        consumer = store.consumer(topic, group="g")
        while True:
            batch = consumer.poll(timeout=0.02)
            if commit and batch:
                consumer.commit(batch)
            if len(consumer.assignment()) == count:
                has.up()

    return run


def test_the_partitions_of_a_killed_member_go_to_a_member_that_waits_in_poll(
    users: klamm.Store, tmp_path: Path
) -> None:
    fill(users, 60, "users", partition=0)
    fill(users, 60, "users", partition=5)
    has = Flag(tmp_path / "has")
    mine = users.consumer("users", group="g")
    with children() as start:
        child = start(member(users, "users", has, count=3))
        until(lambda: (turn([mine]), has)[1], "the other has its share")
        theirs = {("users", number) for number in range(6)} - set(mine.assignment())
        until(lambda: not turn([mine]), "everything of ours is read")
        child.signal(signal.SIGKILL)
        batch = mine.poll(timeout=60)
    assert (batch.topic, batch.partition) in theirs and batch.begin == 0
    shared([mine], 6)  # the kernel frees a dead process's locks one after the other
    mine.close()


def test_a_stopped_member_keeps_its_partitions(orders: klamm.Store, tmp_path: Path) -> None:
    has = Flag(tmp_path / "has")
    with children() as start:
        child = start(member(orders, "orders", has, count=1, commit=True))
        has.wait()
        child.signal(signal.SIGSTOP)
        assert child.stopped()
        fill(orders, 5)
        with orders.consumer("orders", group="g") as waiting:
            assert not waiting.poll(timeout=0.7)
            assert waiting.assignment() == []
            child.go_on()
            until(lambda: orders.groups.describe("g").lag == 0, "it reads on")
            child.signal(signal.SIGKILL)
            shared([waiting], 1)
            assert waiting.position("orders", 0).offset == 5


def test_processes_that_come_and_go_read_every_record_once(users: klamm.Store, tmp_path: Path) -> None:
    # Each commits before it polls again; ownership moves with the offset.
    total = 1200
    users.append_many("users", [(b"%d" % n, b"%d" % n) for n in range(total)], acks=1)
    seen = tmp_path / "seen"

    def offsets() -> tuple[klamm.GroupOffset, ...]:
        return users.groups.describe("g").offsets if "g" in users.groups else ()

    def run(rounds: int) -> None:
        log = os.open(seen, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        while sum(each.committed.offset for each in offsets() if each.committed) < total:
            with users.consumer("users", group="g", form="values", max_bytes=1000) as consumer:
                for _ in range(rounds):
                    batch = consumer.poll(10, timeout=0.02)
                    if batch:
                        os.write(log, b"".join(value + b"\n" for value in batch))
                        consumer.commit(batch)
        users.close()

    with children() as start:
        for child in [start(lambda rounds=rounds: run(rounds)) for rounds in (5, 11, 30)]:  # type: ignore[misc]
            child.answer()
    assert sorted(seen.read_bytes().split(), key=int) == [b"%d" % n for n in range(total)]


def has_memory(pid: int) -> bool:
    """Whether it lives. One that was killed loses its memory before its locks."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_killing_members_loses_no_record_and_no_partition_has_two_owners(users: klamm.Store, tmp_path: Path) -> None:
    total = 1500
    seen, twice = tmp_path / "seen", Flag(tmp_path / "twice")

    def run() -> None:
        log = os.open(seen, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        held: dict[tuple[str, int], int] = {}

        def take(places: list[tuple[str, int]]) -> None:
            # A classic lock, which dies with its process, as ownership does. The kernel frees a dead process's locks
            # one after the other, so it may still be held: by one that has no memory any more.
            for place in places:
                held[place] = os.open(tmp_path / f"{place[1]}.owner", os.O_RDWR | os.O_CREAT)
                deadline = time.monotonic() + 0.5
                while True:
                    try:
                        fcntl.flock(held[place], fcntl.LOCK_EX | fcntl.LOCK_NB)
                        os.pwrite(held[place], b"%10d" % os.getpid(), 0)
                        break
                    except BlockingIOError:
                        if time.monotonic() > deadline and has_memory(int(os.pread(held[place], 10, 0) or 0)):
                            twice.up()
                            raise

        def give(places: list[tuple[str, int]]) -> None:
            for place in places:
                os.close(held.pop(place))

        consumer = users.consumer(
            "users", group="g", form="values", max_bytes=500, on_assigned=take, on_revoked=give, on_lost=give
        )
        for batch in consumer.batches(max_records=5):
            os.write(log, b"".join(value + b"\n" for value in batch))
            consumer.commit(batch)

    def lines() -> list[int]:
        return [int(line) for line in seen.read_bytes().splitlines()] if seen.exists() else []

    kills = 6
    with children() as start:
        running = [start(run) for _ in range(3)]
        for n in range(kills):
            records = range(n * total // kills, (n + 1) * total // kills)
            users.append_many("users", [(b"%d" % each, b"%d" % each) for each in records], acks=1)
            until(lambda n=n: len(set(lines())) > n * total // kills + 50, "they come further")  # type: ignore[misc]
            running.pop(n % 3).kill()
            running.append(start(run))
        until(lambda: len(set(lines())) == total, "everything is read")
    assert not twice
    # At least once: a kill comes between writing down and committing, of a batch of 5.
    assert set(lines()) == set(range(total)) and len(lines()) <= total + 5 * (kills + 3)


def test_a_forked_child_neither_holds_nor_frees_anything(orders: klamm.Store, tmp_path: Path) -> None:
    fill(orders, 5)
    consumer = orders.consumer("orders", group="g")
    turn([consumer])

    def child() -> Any:
        for action in (consumer.poll, consumer.commit):
            with pytest.raises(klamm.Forked):
                action()
        consumer.close()
        with orders.consumer("orders", group="g") as mine:
            mine.poll(timeout=0)
            return mine.assignment(), len(orders.groups.describe("g").members)

    with children() as start:
        assert start(child).answer() == ([], 2)
        start(lambda: None).answer()
    consumer.commit()
    assert consumer.committed("orders", 0) == klamm.Committed(5, 0)
    assert orders.groups.describe("g").members[0].assignment == (("orders", 0),)
    consumer.close()


def test_a_killed_parents_partitions_are_free_though_its_child_lives(orders: klamm.Store, tmp_path: Path) -> None:
    has, forked = Flag(tmp_path / "has"), tmp_path / "forked"

    def parent() -> None:
        consumer = orders.consumer("orders", group="g")
        until(lambda: (consumer.poll(timeout=0.01), consumer.assignment())[1], "it has the partition")
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
            os._exit(0)
        forked.write_text(str(pid))
        has.up()
        time.sleep(60)

    with children() as start:
        child = start(parent)
        has.wait()
        child.kill()
        try:
            with orders.consumer("orders", group="g") as mine:
                shared([mine], 1)
                os.kill(int(forked.read_text()), 0)  # it lives
        finally:
            os.kill(int(forked.read_text()), signal.SIGKILL)


def test_a_group_has_its_members_at_one_door(orders: klamm.Store, tmp_path: Path) -> None:
    serving, over = Flag(tmp_path / "serving"), Flag(tmp_path / "over")

    def serve() -> str:
        core = orders._acquired()
        assert core.members is not None
        assert core.members.try_hold(SERVER)
        core.groups.claim_door("theirs", "kafka")
        with pytest.raises(klamm.GroupBusy, match="have the store open") as refused:
            core.groups.claim_door("ours", "kafka")
        serving.up()
        over.wait()
        return refused.value.message

    with children() as start, orders.consumer("orders", group="ours"):
        server = start(serve)
        serving.wait()
        with pytest.raises(klamm.GroupBusy, match="Kafka server"):
            orders.consumer("orders", group="theirs")
        with pytest.raises(klamm.GroupBusy, match="Kafka server"):
            orders.groups.delete("theirs")
        assert orders.groups.describe("theirs").door == "kafka"
        over.up()
        server.answer()
        with orders.consumer("orders", group="theirs"):  # its server is gone
            assert orders.groups.describe("theirs").door == "klamm"
