"""The head: commits that are seen whole or not at all, whoever is stopped or dies while they are made or copied."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from collections.abc import Callable

import pytest

from klamm.disk import _os
from klamm.errors import Closed, CorruptBatch, KlammError, UnknownTopic
from klamm.log import head
from klamm.log.partition import Partition
from tests.procs import Child, asleep, children, until
from tests.rig import Rig, batch, dies, index_is_true, read_all, scan_files

RING, RING_AT, COMMIT_SIZE = 8, 128, 64  # where a slot's commits lie, see slot.h
LARGE = {"segment_bytes": 1 << 20, "index_interval_bytes": 1 << 20}


def poke(rig: Rig, slot: int, at: int, change: Callable[[bytes], bytes], size: int = 1) -> None:
    """Change bytes of a slot in the file; mappings see it."""
    fd = os.open(f"{rig.path}/heads", os.O_RDWR)
    at += slot * head.SLOT_BYTES
    os.pwrite(fd, change(os.pread(fd, size, at)), at)
    os.close(fd)


# ---- the ring


def test_each_commit_takes_the_next_place_and_the_latest_is_the_one_that_counts(rig: Rig) -> None:
    partition = rig.partition(1, **LARGE)
    for number in range(3 * RING):
        before = partition.log.seq
        assert partition.append(batch(0, number)) == number
        now = partition.snapshot()
        assert now.seq == before + 1 == partition.log.seq
        assert now.next_offset == now.stable_offset == number + 1
        assert now.position == os.path.getsize(f"{partition.directory}/{0:020}.log")


@pytest.mark.parametrize("appended", [1, 7, 8, 13])
def test_any_damaged_byte_of_the_latest_commit_is_noticed_by_readers_and_writers(rig: Rig, appended: int) -> None:
    partition = rig.partition(1, **LARGE)
    for number in range(appended):
        partition.append(batch(0, number))
    place = RING_AT + partition.log.seq % RING * COMMIT_SIZE
    for at in range(place, place + COMMIT_SIZE):
        poke(rig, 1, at, lambda old: bytes([old[0] ^ 0x10]))
        with pytest.raises(CorruptBatch) as caught:
            partition.snapshot()
        assert caught.value.path == f"{rig.path}/heads"
        assert caught.value.position == head.SLOT_BYTES
        with pytest.raises(CorruptBatch):
            partition.append(batch(9, 9))
        with pytest.raises(CorruptBatch):
            partition.ends()
        with pytest.raises(CorruptBatch):
            partition.reader(0).read()
        with pytest.raises(KlammError):
            partition.sync(appended)
        partition.log.flushing = False
        partition.log.clear_flags(head.SYNC_FAILED)
        poke(rig, 1, at, lambda old: bytes([old[0] ^ 0x10]))
    assert read_all(partition) == scan_files(partition) == [(0, number) for number in range(appended)]


def test_another_seq_than_the_commits_own_is_noticed(rig: Rig) -> None:
    partition = rig.partition(1, **LARGE)
    for number in range(20):
        partition.append(batch(0, number))
    for shift in (1, 7, 8, 100, 248):
        poke(rig, 1, 0, lambda old, shift=shift: bytes([old[0] + shift & 255]))  # type: ignore[misc]
        with pytest.raises(CorruptBatch):
            partition.snapshot()
        with pytest.raises(CorruptBatch):
            partition.append(batch(9, 9))
        poke(rig, 1, 0, lambda old, shift=shift: bytes([old[0] - shift & 255]))  # type: ignore[misc]
    partition.append(batch(0, 20))
    assert len(read_all(partition)) == 21


@pytest.mark.parametrize("back", range(1, RING))
def test_a_seq_that_went_back_hides_nothing_that_was_synced_and_makes_no_writer_cut_it_off(rig: Rig, back: int) -> None:
    """Seven older commits are whole, so it looks like one of them; but less than that was never on disk."""
    partition = rig.partition(1, **LARGE)
    for number in range(20):
        partition.append(batch(0, number))
    partition.sync(20)
    poke(rig, 1, 0, lambda old: bytes([old[0] - back]))
    for each in (partition, rig.child().partition(1, **LARGE)):
        with pytest.raises(CorruptBatch):
            each.append(batch(9, 9))
        with pytest.raises(CorruptBatch):
            each.snapshot()
    poke(rig, 1, 0, lambda old: bytes([old[0] + back]))
    partition.append(batch(0, 20))
    assert len(read_all(partition)) == 21


@pytest.mark.parametrize("back", range(2, RING))
def test_a_seq_that_went_back_by_more_than_a_commit_makes_no_writer_cut_off_what_was_not_synced(
    rig: Rig, back: int
) -> None:
    partition = rig.partition(1, **LARGE)
    for number in range(20):
        partition.append(batch(0, number))
    poke(rig, 1, 0, lambda old: bytes([old[0] - back]))
    with pytest.raises(CorruptBatch):
        rig.child().partition(1, **LARGE).append(batch(9, 9))
    poke(rig, 1, 0, lambda old: bytes([old[0] + back]))
    partition.append(batch(0, 20))
    assert len(read_all(partition)) == 21


def test_damage_in_older_places_of_the_ring_harms_nobody(rig: Rig) -> None:
    partition = rig.partition(1, **LARGE)
    for number in range(20):
        partition.append(batch(0, number))
    for back in range(1, RING):
        place = RING_AT + (partition.log.seq - back) % RING * COMMIT_SIZE
        poke(rig, 1, place, lambda _: b"\xff" * COMMIT_SIZE, COMMIT_SIZE)
    for number in range(20, 40):
        assert partition.snapshot().next_offset == number
        partition.append(batch(0, number))
    assert len(read_all(partition)) == 40


def test_any_flipped_bit_of_the_store_s_slot_is_noticed_or_leaves_the_clock_right(rig: Rig) -> None:
    heads, boot = rig.heads, bytes(range(16))
    heads.trust(boot)
    for bit in range(8 * head.SLOT_BYTES):
        at = bit // 8
        poke(rig, 0, at, flip := functools.partial(_flipped, bit % 8))
        right = abs(heads.clock_ms() - heads.wall_ms()) < 60_000
        assert right or not heads.is_trusted(boot), f"bit {bit}: the clock is wrong, and believed"
        poke(rig, 0, at, flip)
    assert heads.is_trusted(boot)


def _flipped(bit: int, old: bytes) -> bytes:
    return bytes([old[0] ^ 1 << bit])


def test_a_copied_head_can_be_made_anew_from_an_empty_commit(rig: Rig) -> None:
    partition = rig.partition(1, **LARGE)
    partition.append(batch(0, 0))
    now = partition.snapshot()
    poke(rig, 1, RING_AT + now.seq % RING * COMMIT_SIZE, lambda _: bytes(COMMIT_SIZE), COMMIT_SIZE)
    partition.log.lock()
    with pytest.raises(head.HeadResult, match="DAMAGED_HEAD"):
        partition.log.publish(next_offset=1)
    partition.log.publish(
        reset=True, next_offset=1, position=now.position, stable_offset=1, max_timestamp=now.max_timestamp
    )
    partition.log.unlock()
    assert partition.append(batch(0, 1)) == 1
    assert read_all(partition) == [(0, 0), (0, 1)]


# ---- readers stopped while they copy


class Stopper:
    """A process that takes a snapshot whenever told, stopped by a trap at a step of the copy."""

    def __init__(self, rig: Rig, slot: int, start: Callable[[Callable[[], object]], Child]) -> None:
        self._orders, orders = os.pipe()[::-1]
        answers, self._answers = os.pipe()

        def serve() -> None:
            log = rig.child().partition(slot, **LARGE).log
            while step := os.read(orders, 1):
                _os.trap(step[0], kinds=_os.READ, signal=signal.SIGSTOP)
                found: tuple[int | str, ...]
                try:
                    found = tuple(log.snapshot())
                except head.HeadResult as error:
                    found = (str(error),)
                _os.trap(0)
                os.write(self._answers, repr(found).encode())

        self._read = answers
        self.child = start(serve)
        os.close(orders)

    def stop_at(self, step: int) -> None:
        os.write(self._orders, bytes([step]))
        assert self.child.stopped(), "the trap was not met"

    def finish(self) -> tuple[int, ...]:
        self.child.go_on()
        return eval(os.read(self._read, 1000))  # written by ourselves just above


STEPS_OF_A_COPY = 8


def test_a_reader_stopped_anywhere_in_its_copy_never_accepts_a_torn_commit(rig: Rig) -> None:
    """While it is stopped, 0 to 24 commits go by. What it then says is one of them, as it was committed."""
    partition = rig.partition(1, **LARGE)
    partition.append(batch(0, 0))
    history = {partition.log.seq: tuple(partition.snapshot())}
    with children() as start:
        reader = Stopper(rig, 1, start)
        for commits in (*range(12), 15, 16, 17, 24):
            for step in range(1, STEPS_OF_A_COPY + 1):
                first = partition.log.seq
                reader.stop_at(step)
                for number in range(commits):
                    partition.append(batch(0, number, number % 7))
                    history[partition.log.seq] = tuple(partition.snapshot())
                found = reader.finish()
                assert found in [history[seq] for seq in range(first, first + commits + 1)], (
                    f"{commits} commits at step {step}"
                )


def test_a_reader_stopped_in_its_copy_is_not_fooled_by_a_writer_that_died_filling_the_same_place(rig: Rig) -> None:
    partition = rig.partition(1, **LARGE)
    partition.append(batch(0, 0))
    deaths = 0
    with children() as start:
        reader = Stopper(rig, 1, start)
        for commits in (6, 7, 8):
            for step in (1, 2, 5, 8):
                for store in (2, 4, 6, 8, 9, 10):  # of intent, the eight words of a commit, seq

                    def write(store: int = store) -> None:
                        mine = rig.child().partition(1, **LARGE)
                        mine.append(batch(1, 0, 50))
                        _os.trap(store, kinds=_os.STORE, signal=signal.SIGKILL)
                        mine.append(batch(2, 0, 90))

                    first = partition.log.seq
                    history = [tuple(partition.snapshot())]
                    reader.stop_at(step)
                    for number in range(commits - 1):
                        partition.append(batch(0, number))
                        history.append(tuple(partition.snapshot()))
                    deaths += dies(write)
                    assert partition.log.seq == first + commits
                    history.append(tuple(partition.snapshot()))
                    found = reader.finish()
                    assert found in history, f"{commits} commits at step {step}, then death at store {store}"
    assert deaths == 72
    partition.append(batch(3, 0))
    assert read_all(partition) == scan_files(partition)


# ---- writers stopped while they write


def test_a_writer_stopped_anywhere_holds_up_writers_but_no_reader(rig: Rig) -> None:
    """Stopped at every step of an append that rolls; others read at once; after it goes on, all is right."""
    step, done, held = 0, False, 0
    while not done:
        step += 1
        partition = rig.partition(rig.fresh_slot())
        for number in range(3):
            partition.append(batch(0, number))

        def write(slot: int = partition.slot, step: int = step) -> None:
            mine = rig.child().partition(slot)
            _os.trap(step, signal=signal.SIGSTOP)
            mine.append(batch(1, 0, 90))

        with children() as start:
            writer = start(write)
            done = not writer.stopped()
            committed = partition.ends().end == 4
            want = [(0, 0), (0, 1), (0, 2)] + [(1, 0)] * committed
            assert read_all(partition) == want  # though it is stopped
            assert partition.offset_at(0) == 0
            if partition.try_append(batch(2, 0)) is None:
                held += 1
                other = start(lambda slot=partition.slot: rig.child().partition(slot).append(batch(2, 0)))  # type: ignore[misc]
                asleep(other)
                assert read_all(partition) == want
                writer.go_on()
                other.answer()
            else:
                writer.go_on()
            writer.answer()
        seen = read_all(partition)
        assert sorted(seen) == [(0, 0), (0, 1), (0, 2), (1, 0), (2, 0)]
        assert seen[: len(want)] == want
        assert seen == scan_files(partition)
        index_is_true(partition)
        partition.append(batch(3, 0))
        assert read_all(partition) == [*seen, (3, 0)]
    assert held > 15


def test_a_killed_writer_lets_the_waiting_one_go_on(rig: Rig) -> None:
    partition = rig.partition(1)

    def write() -> None:
        mine = rig.child().partition(1)
        mine.append(batch(0, 0))
        _os.trap(2, kinds=_os.WRITE, signal=signal.SIGSTOP)
        mine.append(batch(1, 0))

    with children() as start:
        writer = start(write)
        assert writer.stopped()
        waiting = [start(lambda n=n: rig.child().partition(1).append(batch(2, n))) for n in range(3)]  # type: ignore[misc]
        for child in waiting:
            asleep(child)
        writer.kill()
        assert sorted(child.answer() for child in waiting) == [1, 2, 3]
    assert sorted(read_all(partition)) == [(0, 0), (2, 0), (2, 1), (2, 2)]
    assert read_all(partition) == scan_files(partition)


@pytest.mark.parametrize("step", [1, 2])
def test_what_a_killed_writer_wrote_is_cut_off_by_one_who_had_the_file_open_all_along(rig: Rig, step: int) -> None:
    """The next batch is shorter: it would not cover what is left of the other."""
    partition = rig.partition(1, **LARGE)
    partition.append(batch(0, 0))

    def write() -> None:
        mine = rig.child().partition(1, **LARGE)
        mine.append(batch(1, 0))
        _os.trap(step, kinds=_os.WRITE, signal=signal.SIGKILL)
        mine.append(batch(2, 0, 500))

    assert dies(write)
    partition.append(batch(0, 1, 0))
    assert read_all(partition) == scan_files(partition) == [(0, 0), (1, 0), (0, 1)]


def test_control_c_ends_a_wait_for_the_append_lock(rig: Rig) -> None:
    partition = rig.partition(1)

    def wait() -> str:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            rig.child().partition(1).append(batch(1, 0))
        except KeyboardInterrupt:
            return "interrupted"
        return "appended"

    partition.append(batch(0, 0))
    with children() as start:
        partition.log.lock()
        child = start(wait)
        asleep(child)
        child.signal(signal.SIGINT)
        assert child.answer() == "interrupted"
        partition.log.unlock()
    assert read_all(partition) == [(0, 0)]


# ---- threads, flags, closing


def test_threads_of_one_process_append_one_after_the_other(rig: Rig) -> None:
    partition = rig.partition(1, **LARGE)
    offsets: list[tuple[int, int, int]] = []

    def work(writer: int) -> None:
        for number in range(200):
            offsets.append((partition.append(batch(writer, number)), writer, number))

    threads = [threading.Thread(target=work, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    seen = read_all(partition)
    assert [seen[offset] for offset, _, _ in offsets] == [(writer, number) for _, writer, number in offsets]
    assert sorted(offset for offset, _, _ in offsets) == list(range(800))
    for writer in range(4):
        assert [number for name, number in seen if name == writer] == list(range(200))


def test_a_thread_that_waits_for_the_append_lock_lets_other_threads_run(rig: Rig) -> None:
    mine, other = rig.partition(1), rig.child().partition(1)
    other.append(batch(0, 0))
    other.log.lock()
    done: list[int] = []
    thread = threading.Thread(target=lambda: done.append(mine.append(batch(1, 0))), daemon=True)
    thread.start()
    time.sleep(0.05)
    assert done == []
    assert mine.try_append(batch(2, 0)) is None
    other.log.unlock()
    thread.join(20)
    assert done == [1]


def test_whoever_only_tries_is_told_that_the_byte_is_taken(rig: Rig) -> None:
    mine, other = rig.partition(1), rig.child().partition(1)
    assert mine.try_append(batch(0, 0)) == 0
    other.log.lock()
    assert mine.try_append(batch(0, 1)) is None
    other.log.unlock()
    assert mine.try_append(batch(0, 1)) == 1


def test_flags_refuse_appends_and_are_seen_by_all(rig: Rig) -> None:
    mine, other = rig.partition(1), rig.child().partition(1)
    mine.append(batch(0, 0))
    other.log.set_flags(head.READ_ONLY)
    with pytest.raises(KlammError, match="read"):
        mine.append(batch(0, 1))
    other.log.clear_flags(head.READ_ONLY)
    assert mine.append(batch(0, 1)) == 1
    other.mark_deleted()
    for partition in (mine, other):
        with pytest.raises(UnknownTopic):
            partition.append(batch(0, 2))
        with pytest.raises(UnknownTopic):
            partition.ends()


def test_a_closed_partition_refuses_and_its_last_commit_stays(rig: Rig) -> None:
    partition = rig.partition(1)
    partition.append(batch(0, 0))
    partition.close()
    for use in (
        lambda: partition.append(batch(0, 1)),
        lambda: partition.sync(2),
        lambda: partition.try_append(batch(0, 1)),
    ):
        with pytest.raises(Closed):
            use()
    assert read_all(rig.child().partition(1)) == [(0, 0)]


def test_an_append_that_waits_while_the_log_is_closed_is_done_or_refused(rig: Rig) -> None:
    """Its bytes never go to whatever file gets the descriptor's number next."""
    partition = rig.partition(1)
    partition.append(batch(0, 0))
    other = rig.child().partition(1)
    other.log.lock()
    done: list[int | str] = []

    def append() -> None:
        try:
            done.append(partition.append(batch(0, 1)))
        except Closed:
            done.append("refused")

    appender = threading.Thread(target=append, daemon=True)
    appender.start()
    asleep(appender)  # it waits for the byte
    closer = threading.Thread(target=partition.log.abandon, daemon=True)
    closer.start()
    closer.join(0.05)  # it may have ended, or wait for the append
    other.log.unlock()
    appender.join(20)
    closer.join(20)
    assert done in ([1], ["refused"])
    assert partition.log.open_files == 0
    assert read_all(other) == [(0, number) for number in range(2 if done == [1] else 1)]


def test_files_that_are_not_used_can_be_closed_and_are_opened_again(rig: Rig) -> None:
    partition: Partition = rig.partition(1)
    for number in range(5):
        partition.append(batch(0, number))
        partition.sync(number + 1)
        assert partition.log.open_files >= 2
        partition.log.close_idle()
        assert partition.log.open_files == 0
    assert read_all(partition) == [(0, number) for number in range(5)]


def test_a_segment_that_somebody_cut_is_noticed_by_writers(rig: Rig) -> None:
    partition = rig.partition(1)
    partition.append(batch(0, 0))
    os.truncate(f"{partition.directory}/{0:020}.log", 10)
    with pytest.raises(CorruptBatch, match="shorter"):
        rig.child().partition(1).append(batch(0, 1))
    os.unlink(f"{partition.directory}/{0:020}.log")
    with pytest.raises(CorruptBatch, match="shorter"):
        rig.child().partition(1).append(batch(0, 1))


def test_a_writer_that_waits_dies_quietly(rig: Rig) -> None:
    """A killed waiter leaves the byte to the others."""
    partition = rig.partition(1)
    partition.append(batch(0, 0))
    with children() as start:
        partition.log.lock()
        waiting = [start(lambda: rig.child().partition(1).append(batch(1, 0))) for _ in range(3)]
        for child in waiting:
            asleep(child)
        waiting[1].kill()
        partition.log.unlock()
        assert sorted(waiting[n].answer() for n in (0, 2)) == [1, 2]
    until(lambda: partition.try_append(batch(2, 0)) == 3, "the byte is free")
