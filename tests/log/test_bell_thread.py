"""The bell thread: whoever moves a head, in whatever process, an event loop is told, and told once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from klamm.disk import _os
from klamm.log import _head
from klamm.log.head import BellThread
from tests.procs import PATIENCE, Flag, asleep, children, readable, until
from tests.rig import Rig, batch


class Bell:
    """A bell thread that runs, and what a loop would see of it."""

    def __init__(self, rig: Rig) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.bell_thread = BellThread(rig.heads, self.fd)
        self.thread = threading.Thread(target=self.bell_thread.run, daemon=True)
        self.thread.start()

    def rang(self, seconds: float = PATIENCE) -> bool:
        if not readable(self.fd, seconds):
            return False
        os.eventfd_read(self.fd)
        return True

    def close(self) -> None:
        self.bell_thread.stop()
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()
        os.close(self.fd)


@pytest.fixture
def no_nap() -> Iterator[None]:
    """Let a bell thread wake by the bell only: if it misses one, it sleeps for longer than a test waits."""
    _head.set_poll_interval(int(10 * PATIENCE * 1e9))
    yield
    _head.set_poll_interval()


@pytest.fixture
def bell(rig: Rig) -> Iterator[Bell]:
    made = Bell(rig)
    yield made
    made.close()


def test_it_is_told_of_an_append_once_until_it_is_armed_again(rig: Rig, bell: Bell) -> None:
    partition = rig.partition(1)
    place = bell.bell_thread.watch(partition.log)
    bell.bell_thread.arm()
    for number in range(20):
        partition.append(batch(0, number))
    assert bell.rang()
    assert bell.bell_thread.moved() == [place]
    partition.append(batch(0, 20))
    assert not bell.rang(0.05)
    bell.bell_thread.arm()
    assert bell.rang()
    assert bell.bell_thread.moved() == [place]
    assert bell.bell_thread.moved() == []


def test_what_came_between_watching_and_arming_is_told(rig: Rig, bell: Bell) -> None:
    partition = rig.partition(1)
    bell.bell_thread.watch(partition.log)
    partition.append(batch(0, 0))
    bell.bell_thread.arm()
    assert bell.rang()


def test_what_came_before_is_not(rig: Rig, bell: Bell) -> None:
    partition = rig.partition(1)
    partition.append(batch(0, 0))
    bell.bell_thread.watch(partition.log)
    bell.bell_thread.arm()
    assert not bell.rang(0.05)


def test_a_head_that_is_watched_while_it_is_armed_already(no_nap: None, rig: Rig, bell: Bell) -> None:
    """It sleeps for the bell of one topic, and must wake for that of another."""
    bell.bell_thread.watch(rig.partition(1).log)
    bell.bell_thread.arm()
    for slot in range(2, 34):
        partition = rig.partition(slot)
        place = bell.bell_thread.watch(partition.log)
        partition.append(batch(0, 0))
        assert bell.rang()
        assert bell.bell_thread.moved() == [place]
        bell.bell_thread.arm()


def test_a_head_that_is_watched_by_a_bell_thread_that_was_armed_with_nothing_to_watch(
    no_nap: None, rig: Rig, bell: Bell
) -> None:
    """It sleeps for no bell at all, and must listen to one."""
    bell.bell_thread.arm()
    for number in range(5):
        asleep(bell.thread)
        partition = rig.partition(rig.fresh_slot())
        place = bell.bell_thread.watch(partition.log)
        partition.append(batch(0, number))
        assert bell.rang()
        assert bell.bell_thread.moved() == [place]
        bell.bell_thread.unwatch(place)
        bell.bell_thread.arm()


def test_no_other_head_is_missed_while_one_is_watched_no_more(no_nap: None, rig: Rig, bell: Bell) -> None:
    """The bell thread is woken for each that comes, and goes back to sleep while they go."""
    partition, others = rig.partition(1), [rig.partition(slot).log for slot in range(2, 20)]
    place = bell.bell_thread.watch(partition.log)
    for number in range(300):
        bell.bell_thread.arm()
        for other in [bell.bell_thread.watch(log) for log in others]:
            bell.bell_thread.unwatch(other)
        partition.append(batch(1, number))
        assert bell.rang()
        assert bell.bell_thread.moved() == [place]


def test_another_process_is_heard(no_nap: None, rig: Rig, bell: Bell) -> None:
    partition = rig.partition(1)
    place = bell.bell_thread.watch(partition.log)
    turn = [Flag(f"{rig.path}/turn-{n}") for n in range(15)]

    def write() -> None:
        mine = rig.child().partition(1)
        for number, flag in enumerate(turn):
            flag.wait()
            mine.append(batch(1, number))

    with children() as start:
        child = start(write)
        for flag in turn:
            bell.bell_thread.arm()
            flag.up()
            assert bell.rang()
            assert bell.bell_thread.moved() == [place]
            seen = partition.snapshot()
        assert seen.next_offset == 15
        child.answer()


def test_a_writer_killed_before_it_rings_is_noticed_after_a_nap(rig: Rig, bell: Bell) -> None:
    partition = rig.partition(1)
    partition.append(batch(0, 0))
    bell.bell_thread.watch(partition.log)
    bell.bell_thread.arm()

    def write() -> None:
        mine = rig.child().partition(1)
        _os.trap(1, kinds=_os.WAKE, signal=signal.SIGKILL)
        mine.append(batch(1, 0))

    with children() as start:
        start(write).ended()
    assert bell.rang()


def test_a_deleted_topic_is_told(no_nap: None, rig: Rig, bell: Bell) -> None:
    partition = rig.partition(1)
    place = bell.bell_thread.watch(partition.log)
    bell.bell_thread.arm()
    partition.mark_deleted()
    assert bell.rang()
    assert bell.bell_thread.moved() == [place]


def test_a_change_the_loop_has_seen_is_not_signalled_again(rig: Rig, bell: Bell) -> None:
    partition = rig.partition(1)
    place = bell.bell_thread.watch(partition.log)
    partition.append(batch(0, 0))
    bell.bell_thread.seen(place)
    bell.bell_thread.arm()
    assert not bell.rang(0.05)
    partition.append(batch(0, 1))
    assert bell.rang()


def test_places_are_given_out_again_and_grow(rig: Rig, bell: Bell) -> None:
    logs = [rig.partition(slot) for slot in range(1, 300)]
    places = [bell.bell_thread.watch(each.log) for each in logs]
    assert places == list(range(299))
    assert len(bell.bell_thread) == 299
    for place in places[::2]:
        bell.bell_thread.unwatch(place)
    with pytest.raises(KeyError):
        bell.bell_thread.unwatch(0)
    with pytest.raises(KeyError):
        bell.bell_thread.seen(0)
    bell.bell_thread.arm()
    logs[0].append(batch(0, 0))
    assert not bell.rang(0.05), "nobody watches it"
    logs[1].append(batch(0, 0))
    assert bell.rang()
    assert bell.bell_thread.moved() == [1]
    again = {bell.bell_thread.watch(each.log) for each in logs[::2]}
    assert again == set(places[::2])
    bell.bell_thread.arm()
    logs[0].append(batch(0, 1))
    assert bell.rang()


def test_no_move_is_lost_while_heads_come_and_go(no_nap: None, rig: Rig, bell: Bell) -> None:
    """A writer that waits until its last append was heard: it would wait for ever."""
    partition = rig.partition(1)
    others = [rig.partition(slot) for slot in range(2, 40)]
    heard, rounds = threading.Semaphore(0), 400

    def write() -> None:
        for number in range(rounds):
            partition.append(batch(1, number))
            assert heard.acquire(timeout=PATIENCE)

    place = bell.bell_thread.watch(partition.log)
    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    count = 0
    watched: list[int] = []
    while count < rounds:
        bell.bell_thread.arm()
        watched.append(bell.bell_thread.watch(others[count % len(others)].log))
        if len(watched) > 5:
            bell.bell_thread.unwatch(watched.pop(0))
        assert bell.rang()
        if place in bell.bell_thread.moved():
            count += 1
            heard.release()
    writer.join(PATIENCE)
    assert not writer.is_alive()


def test_it_stops_whatever_it_does(no_nap: None, rig: Rig) -> None:
    for how in ("new", "watching", "armed", "rung"):
        bell = Bell(rig)
        if how != "new":
            partition = rig.partition(1)
            bell.bell_thread.watch(partition.log)
        if how in ("armed", "rung"):
            bell.bell_thread.arm()
        if how == "rung":
            partition.append(batch(0, 0))
            until(lambda b=bell: readable(b.fd, 0), "it rings")  # type: ignore[misc]
        bell.close()
