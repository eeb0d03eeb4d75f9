"""The table of producers as a hash: it grows, it forgets the longest unseen, and a killed writer leaves it whole."""

from __future__ import annotations

import os
import random
import signal
import struct
from collections.abc import Iterator
from contextlib import suppress
from itertools import count, islice
from pathlib import Path

import pytest

from klamm.batch import Builder
from klamm.disk import _os
from klamm.errors import KlammError, LogError, OutOfOrderSequence
from klamm.log import _head, point, producer_recovery, producers
from klamm.log.partition import Partition
from tests.crash.cases import run_cases, seed_of
from tests.log.logs import batch_of, power_cut
from tests.rig import Rig, dies, killed_at

LARGE = {"segment_bytes": 1 << 24, "index_interval_bytes": 4096}
HEADER, ENTRY = 2048, 192
TRANSACTIONAL = 0x10


@pytest.fixture(autouse=True)
def limits() -> Iterator[None]:
    yield
    _head.limit_tables()


def send(partition: Partition, producer: int, sequence: int = 0, epoch: int = 0) -> int:
    return partition.append(batch_of([0], producer=producer, epoch=epoch, sequence=sequence))


def send_open(partition: Partition, producer: int, epoch: int = 0, sequence: int = 0) -> int:
    builder = Builder(4096)
    builder.add(b"k", b"v", None, 5)
    return partition.append(bytearray(builder.seal(0, None, producer, epoch, sequence, TRANSACTIONAL)))


def table(partition: Partition) -> Path:
    return Path(partition.directory, "producers")


def wrong_in(partition: Partition) -> tuple[int, str] | None:
    """The first thing wrong in the table, links included, once a dead writer's batch is made up for."""
    partition.producers()
    end = partition.snapshot().next_offset
    return producers.wrong_in_table(table(partition).read_bytes(), lambda: end, is_at_rest=True)


def is_mapped(partition: Partition) -> bool:
    return partition.log.has_producers


def known(partition: Partition) -> set[int]:
    return {producer_id for producer_id, *_ in partition.producers()}


# ---- hash


def test_every_producer_of_thousands_is_found_however_the_table_grew(rig: Rig) -> None:
    partition, other = rig.partition(1, **LARGE), rig.child().partition(1, **LARGE)
    dice = random.Random(seed_of())
    ids = [dice.randrange(1 << 62) for _ in range(700)] + list(range(700)) + [n << 40 for n in range(1, 700)]
    for number, producer in enumerate(ids):
        assert send(partition if number % 3 else other, producer) == number
    for number, producer in enumerate(ids):
        assert send(other if number % 3 else partition, producer) == number, "known"
    assert partition.ends().end == len(ids)
    assert wrong_in(partition) is None
    assert known(partition) == set(ids)


def test_a_client_that_guessed_the_key_of_the_hash_gets_another_one(rig: Rig) -> None:
    """Ids that all fall into one bucket: the table is made again, and goes on."""
    partition = rig.partition(1, **LARGE)
    send(partition, 1)
    (key,) = struct.unpack_from("<Q", table(partition).read_bytes(), 24)
    ids = list(islice((n for n in count(2) if producers._hash(key, n) % 4096 == 77), 60))
    for number, producer in enumerate(ids, 1):
        assert send(partition, producer) == number
    assert struct.unpack_from("<Q", table(partition).read_bytes(), 24)[0] != key
    assert [send(partition, producer) for producer in ids] == list(range(1, 61)), "all are known"
    assert wrong_in(partition) is None


# ---- what is forgotten


def test_a_full_table_forgets_the_longest_unseen_producer_without_an_open_transaction(rig: Rig) -> None:
    _head.limit_tables(producers=64)
    partition = rig.partition(1, **LARGE)
    send_open(partition, 0)
    for producer in range(1, 64):
        send(partition, producer)
    send(partition, 1, 1)  # seen again: 2 is the longest unseen now
    send(partition, 100)
    assert known(partition) == {*range(64), 100} - {2}
    send(partition, 101)
    assert known(partition) == {*range(64), 100, 101} - {2, 3}
    assert send(partition, 1, 1) == 64, "still known"
    partition.append_marker(0, 1, commit=True)  # seen just now, and nothing is open any more
    for producer in range(200, 263):
        send(partition, producer)
    assert known(partition) == {0, *range(200, 263)}
    send(partition, 300)
    assert known(partition) == {300, *range(200, 263)}
    assert table(partition).stat().st_size == HEADER + 64 * ENTRY
    assert wrong_in(partition) is None


def test_a_forgotten_producer_may_start_anywhere_again(rig: Rig) -> None:
    _head.limit_tables(producers=64)
    partition = rig.partition(1, **LARGE)
    for producer in range(70):
        send(partition, producer, 7)
    assert send(partition, 0, 12) == 70
    with pytest.raises(OutOfOrderSequence):
        send(partition, 69, 12)


def test_a_table_in_which_each_producer_has_an_open_transaction_refuses_one_more_and_forgets_none(rig: Rig) -> None:
    _head.limit_tables(producers=64)
    partition = rig.partition(1, **LARGE)
    for producer in range(64):
        send_open(partition, producer)
    for _ in range(2):
        with pytest.raises(LogError, match="open transaction"):
            send(partition, 100)
    partition.checkpoint()
    assert partition.append(batch_of([0])) == 64, "others go on"
    assert partition.snapshot().stable_offset == 0
    partition.append_marker(0, 1, commit=True)
    assert partition.snapshot().stable_offset == 1
    assert send(partition, 100) == 66
    assert known(partition) == {*range(1, 64), 100}


def test_recovery_knows_the_same_producers_as_the_table_that_forgot_some(rig: Rig) -> None:
    _head.limit_tables(producers=64)
    partition = rig.partition(1, **LARGE)
    send_open(partition, 7)
    for producer in range(100, 250):
        send(partition, producer)
        if producer == 180:
            partition.checkpoint()
    send(partition, 200, 1)
    before = [(*state[:2], state[3]) for state in partition.producers()]
    power_cut(partition)
    again = rig.child().partition(1, **LARGE)
    assert sorted((*state[:2], state[3]) for state in again.producers()) == sorted(before)
    assert wrong_in(again) is None
    send(again, 300)
    gone = {state[0] for state in before} - known(again)
    assert gone == {187}, "the order in which they were seen is known, too"


# ---- open transactions


def test_the_oldest_open_transaction_is_known_however_they_begin_and_end(rig: Rig) -> None:
    """Against a model: the stable offset after each step, through other processes, recovery and a lost table."""
    partition = rig.partition(1, **LARGE)
    dice = random.Random(seed_of())
    began: dict[int, int] = {}
    epochs = dict.fromkeys(range(12), 0)
    for step in range(600):
        producer = dice.randrange(12)
        if producer in began and dice.random() < 0.6:
            partition.append_marker(producer, epochs[producer] + 1, commit=dice.random() < 0.5)
            epochs[producer] += 1
            del began[producer]
        else:
            offset = send_open(partition, producer, epochs[producer], -1)
            began.setdefault(producer, offset)
        assert partition.snapshot().stable_offset == min(began.values(), default=partition.ends().end)
        if step % 50 == 0:
            assert [first for *_, first in partition.open_transactions()] == sorted(began.values())
            assert wrong_in(partition) is None
            if step % 150 == 50:
                table(partition).unlink()
                partition = rig.child().partition(1, **LARGE)
            if step % 150 == 100:
                power_cut(partition)
                partition = rig.child().partition(1, **LARGE)


# ---- killed at every step


def full(rig: Rig, slot: int) -> Partition:
    """A table of 64 producers, the first with an open transaction."""
    partition = rig.partition(slot, **LARGE)
    send_open(partition, 0)
    for producer in range(1, 64):
        send(partition, producer)
    return partition


ACTIONS = {
    "grows, and splits a bucket": lambda mine: send(mine, 1000),
    "forgets one for another": lambda mine: (_head.limit_tables(producers=64), send(mine, 1000)),
    "is seen again": lambda mine: send(mine, 5, 1),
    "begins a transaction": lambda mine: send_open(mine, 5, 0, 1),
    "ends a transaction": lambda mine: mine.append_marker(0, 1, commit=True),
}


@pytest.mark.parametrize("action", ACTIONS)
def test_a_writer_killed_at_any_step_leaves_a_table_that_is_whole_and_knows_its_batch(rig: Rig, action: str) -> None:
    step, slot = 0, rig.fresh_slot()
    full(rig, slot)
    killed = True
    while killed:
        step += 1
        slot = rig.fresh_slot()
        partition = full(rig, slot)

        def act(slot: int = slot, step: int = step) -> None:
            mine = rig.child().partition(slot, **LARGE)
            mine.producers()
            killed_at(step, lambda: ACTIONS[action](mine))()

        killed = dies(act)
        other = rig.child().partition(slot, **LARGE)
        for each in (partition, other):
            ACTIONS[action](each)  # again: it is known, or done now
            assert each.ends().end == 65
            assert wrong_in(each) is None, step
        began = {first for *_, first in partition.open_transactions()}
        assert began == {"begins a transaction": {0, 64}, "ends a transaction": set()}.get(action, {0}), step
        assert partition.snapshot().stable_offset == min(began, default=65)
        for producer in range(10, 64):
            assert send(partition, producer) == producer, "nobody else was forgotten"
        _head.limit_tables()
    assert step > 25


def test_a_dead_writer_s_change_is_taken_back_however_often_that_is_interrupted(rig: Rig) -> None:
    """Killed while it changes the table, then the next while it makes up for that, and so on."""
    tried = 0
    for number, first in enumerate([*range(20, 80, 8), *range(16, 160, 3)]):
        if number >= 8 and tried >= 3:  # which step is in the middle of a change depends on the key of the hash
            break
        slot = rig.fresh_slot()
        partition = full(rig, slot)

        def act(step: int, slot: int = slot) -> None:
            mine = rig.child().partition(slot, **LARGE)
            mine.log.lock()  # as an append does, before it makes up for a dead one
            mine.log.map_producers()
            mine.log.unlock()
            _os.trap(step, kinds=_os.STORE, signal=signal.SIGKILL)
            send(mine, 1000)
            _os.trap(0)

        dies(lambda: act(first))  # noqa: B023
        (journal,) = struct.unpack_from("<I", table(partition).read_bytes(), 56)
        step = 1
        while dies(lambda: act(step)):  # noqa: B023
            step += 1
        tried += journal > 0
        assert partition.ends().end == 65
        assert wrong_in(partition) is None
        assert [send(partition, producer) for producer in (1000, *range(1, 64))] == [64, *range(1, 64)]
    assert tried >= 3, "in the middle of a change"


def test_a_process_killed_while_it_makes_the_table_again_leaves_none_that_is_believed(rig: Rig) -> None:
    step, killed = 0, True
    while killed:
        step += 1
        slot = rig.fresh_slot()
        partition = full(rig, slot)

        def act(slot: int = slot, step: int = step) -> None:
            log = rig.child().partition(slot, **LARGE).log
            with log.append_lock():
                _os.trap(step, kinds=_os.ALL & ~_os.STORE, signal=signal.SIGKILL)
                producer_recovery.restore(log, 64, point.load(log.directory), whole=True)
                _os.trap(0)

        killed = dies(act)
        assert [send(partition, producer) for producer in range(1, 64)] == list(range(1, 64)), step
        assert wrong_in(partition) is None
    assert step > 10


def test_what_a_dead_writer_had_not_committed_is_not_in_a_table_made_again(rig: Rig) -> None:
    partition = rig.partition(1, **LARGE)
    send(partition, 7)

    def act() -> None:
        mine = rig.child().partition(1, **LARGE)
        mine.producers()
        _os.trap(1, kinds=_os.WRITE, signal=signal.SIGKILL)
        send(mine, 7, 1)

    size = os.path.getsize(f"{partition.directory}/{0:020}.log")
    dies(act)
    with open(f"{partition.directory}/{0:020}.log", "r+b") as file:  # it had written all of it
        torn = bytearray(batch_of([0], producer=7, epoch=0, sequence=1))
        torn[:8] = (1).to_bytes(8, "big")
        file.seek(size)
        file.write(torn)
    table(partition).unlink()
    other = rig.child().partition(1, **LARGE)
    assert [batch[0] for batch in other.producers()[0][3]] == [0]
    assert send(other, 7, 1) == 1
    assert not other.log.was_duplicate


# ---- mappings


def test_a_process_maps_a_bounded_number_of_tables_and_every_producer_is_known_all_the_same(rig: Rig) -> None:
    before, _ = _head.mapped_tables()
    _head.limit_tables(tables=5)
    partitions = [rig.partition(rig.fresh_slot(), **LARGE) for _ in range(20)]
    for sequence in range(3):
        for partition in partitions:
            assert send(partition, 7, sequence) == sequence
            assert _head.mapped_tables()[0] <= 5
    for partition in partitions:
        assert send(partition, 7, 1) == 1
    busy = partitions[0]
    for partition in partitions[1:]:
        send(busy, 8)
        send(partition, 8)
        assert busy.log.has_producers, "the one that was used last stays mapped"
    assert _head.mapped_tables()[0] == 5 >= min(before, 5)


def test_mapped_tables_are_bounded_in_bytes(rig: Rig) -> None:
    for_one = 64 << 10
    _head.limit_tables(most_bytes=3 * for_one)
    partitions = [rig.partition(rig.fresh_slot(), **LARGE) for _ in range(6)]
    for sequence in range(2):
        for partition in partitions:
            send(partition, 7, sequence)
            assert _head.mapped_tables()[1] <= 3 * for_one
    for producer in range(1000):
        send(partitions[0], producer + 100)
    assert _head.mapped_tables() == (1, 256 << 10), "one that is larger than the bound is mapped alone"
    assert [send(partition, 7, 1) for partition in partitions] == [1] * 6


def test_a_closed_partition_maps_nothing(rig: Rig) -> None:
    partition = rig.partition(rig.fresh_slot(), **LARGE)
    send(partition, 7)
    assert is_mapped(partition)
    count, size = _head.mapped_tables()
    partition.close()
    assert not is_mapped(partition)
    assert _head.mapped_tables()[0] < count and _head.mapped_tables()[1] < size


# ---- files from elsewhere


def spoil(data: bytearray, dice: random.Random) -> None:
    """Change some words: numbers of the header, the journal, links, counts and offsets, which would lead astray."""
    used = struct.unpack_from("<I", data, 32)[0]
    for _ in range(dice.choice((1, 1, 3, 40))):
        entry = HEADER + ENTRY * dice.randrange(used + 2)
        in_header = (12, 24, 32, 36, 40, 44, 48, 52, 56, 128, 136)
        in_entry = (0, 8, 16, 32, 36, 40, 44, 64)
        anywhere = 4 * dice.randrange(len(data) // 4)
        at = dice.choice((dice.choice(in_header), entry + dice.choice(in_entry), anywhere))
        word = dice.choice((0, 1, 2, used, used + 1, 63, 64, 65, 2**31, 2**32 - 1, dice.randrange(2**32)))
        struct.pack_into("<I", data, min(at, len(data) - 4), word)


def test_no_table_of_producers_crashes_a_process_that_uses_it(rig: Rig) -> None:
    seed = seed_of()
    slots = [rig.fresh_slot() for _ in range(min(120, int(os.environ.get("KLAMM_EXAMPLES", "120"))))]

    def use(number: int, worker: int) -> None:
        dice = random.Random(seed + number)
        many = dice.choice((3, 64, 200))
        if dice.random() < 0.5:
            _head.limit_tables(producers=dice.choice((64, 256)))
        partition = rig.child().partition(slots[number], **LARGE)
        for producer in range(many):
            (send_open if producer % 4 == 0 else send)(partition, producer)
        if dice.random() < 0.5:
            partition.log.lock()  # a writer that died: what the journal says is undone
            heads = Path(rig.path, "heads")
            with heads.open("r+b") as file:
                file.seek(slots[number] * 1024 + 112)
                file.write(struct.pack("<Q", partition.snapshot().seq))
            partition.log.unlock()
        data = bytearray(table(partition).read_bytes())
        spoil(data, dice)
        if dice.random() < 0.1:
            del data[dice.randrange(len(data)) :]
        table(partition).write_bytes(data)
        again = rig.child().partition(slots[number], **LARGE)
        for producer in [*range(0, many, 7), *range(many, many + 70)]:
            try:
                send(again, producer, 1 if producer < many else 0)
                again.append_marker(producer, 1, commit=False)
                again.producers()
                again.open_transactions()
            except KlammError:
                pass
        with suppress(KlammError):
            again.checkpoint()

    run_cases(range(len(slots)), use)
