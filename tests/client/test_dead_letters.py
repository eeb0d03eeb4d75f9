"""Dead letters: what they say, that none is lost, and that each goes back once."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.client.work import dead_letters
from klamm.client.work.dead_letters import Origin
from klamm.disk import _os
from klamm.store import once
from tests.crash.cases import seed_of
from tests.procs import children


def refuse(values: set[bytes]) -> Any:
    def handle(record: klamm.Record) -> None:
        if record.value in values:
            raise KeyError(record.value.decode())

    return handle


def kill_letters(store: klamm.Store, count: int = 3, **options: Any) -> None:
    """Ten more records in `orders`; those below `count` become dead letters."""
    if "group" not in options:
        options["start"] = store.topics.describe("orders").partitions[0].end
    store.append_many("orders", [(b"k%d" % n, b"%d" % n, [("kept", b"yes")], 1000 + n) for n in range(10)], acks=1)
    with store.consumer("orders", wait=0, **options) as consumer:
        dead = {b"%d" % n for n in range(count)}
        consumer.run(refuse(dead), 1, on_error="dead-letter", retries=0)


def read(store: klamm.Store, topic: str = "orders", start: int = 0) -> list[klamm.Record]:
    with store.consumer(topic, start=start, wait=0) as consumer:
        return list(consumer)


SEED = seed_of()


def steps() -> Iterator[int]:
    """Every fifth system call of the store; another fifth each time."""
    print(f"KLAMM_SEED={SEED}")
    return itertools.count(1 + SEED % 5, 5)


# Letters


def test_a_letter_tells_where_it_was_and_why_it_died(orders: klamm.Store) -> None:
    kill_letters(orders, 1, group="billing")
    [letter] = orders.dead_letters("orders.dlq")
    assert letter.origin == Origin("orders", 0, 0, 1000)
    assert (letter.attempts, letter.error, letter.reason) == (1, "KeyError", "'0'")
    assert (letter.record.topic, letter.record.key, letter.record.value) == ("orders.dlq", b"k0", b"0")
    assert letter.record.headers == (("kept", b"yes"),)
    [raw] = read(orders, "orders.dlq")
    assert dict(raw.headers) == {
        "kept": b"yes",
        "klamm.dlq.topic": b"orders",
        "klamm.dlq.partition": b"0",
        "klamm.dlq.offset": b"0",
        "klamm.dlq.timestamp": b"1000",
        "klamm.dlq.attempts": b"1",
        "klamm.dlq.error": b"KeyError",
        "klamm.dlq.reason": b"'0'",
        "klamm.dlq.group": b"billing",
    }


def test_the_topic_of_letters_keeps_them_and_takes_the_largest_record(orders: klamm.Store) -> None:
    orders.topics.alter("orders", {"max.message.bytes": 20_000})
    orders.append("orders", b"x" * 19_000)
    with orders.consumer("orders", wait=0) as consumer:
        assert consumer.run(refuse({b"x" * 19_000}), on_error="dead-letter", retries=0).dead_lettered == 1
    info = orders.topics.describe("orders.dlq")
    assert len(info.partitions) == 1
    assert info.settings["retention.ms"] == "-1"


def test_a_reason_may_be_anything(orders: klamm.Store) -> None:
    orders.append("orders", b"1")

    def handle(record: klamm.Record) -> None:
        raise RuntimeError("\ud800" + "ä" * 100_000)

    with orders.consumer("orders", wait=0) as consumer:
        consumer.run(handle, on_error="dead-letter", retries=0)
    [letter] = orders.dead_letters("orders.dlq")
    assert letter.reason.endswith("ä" * 900) and len(letter.reason) == 1000


def test_letters_of_others_are_shown_as_far_as_they_tell(orders: klamm.Store) -> None:
    orders.topics.create("orders.dlq")
    orders.append("orders.dlq", b"1", headers=[("klamm.dlq.attempts", b"many"), ("klamm.dlq.reason", b"\xff")])
    [letter] = orders.dead_letters("orders.dlq")
    assert (letter.origin, letter.attempts, letter.reason) == (None, 0, "\ufffd")
    with pytest.raises(klamm.InvalidSetting, match="does not say where it was"):
        orders.redrive("orders.dlq")
    assert orders.redrive("orders.dlq", to="orders") == 1
    with pytest.raises(klamm.UnknownTopic):
        orders.dead_letters("nothing.dlq")


def test_a_run_killed_at_any_step_has_no_record_that_is_neither_handled_nor_a_letter(store: klamm.Store) -> None:
    def work(name: str, step: int) -> None:
        with klamm.open(store.path) as opened, opened.consumer(name, group="g", wait=0) as consumer:
            _os.trap(step, signal=signal.SIGKILL)
            consumer.run(refuse({b"0", b"1"}), 1, on_error="dead-letter", retries=0, commit_every=0)
            _os.trap(0)

    core = store._acquired()
    with children() as start:
        for step in steps():
            name = f"t{step}"
            store.topics.create(name)
            store.append_many(name, [b"0", b"1", b"2"], acks=1)
            child = start(lambda name=name, step=step: work(name, step))  # type: ignore[misc]
            killed = os.WIFSIGNALED(child.ended())
            row = core.groups.offsets(core.groups.get("g").number).get((core.topic(name).topic.id, 0))
            done = 0 if row is None else row.offset
            letters = list(store.dead_letters(f"{name}.dlq")) if f"{name}.dlq" in store.topics else []
            origins = {each.origin.offset for each in letters if each.origin is not None}
            assert set(range(min(done, 2))) <= origins, f"killed at step {step}"
            if not killed:
                break
        assert done == 3 and step > 10
        first = f"t{1 + SEED % 5}"
        work(first, 0)
        assert {each.record.value for each in store.dead_letters(f"{first}.dlq")} == {b"0", b"1"}


# Redriven


def test_redriven_letters_are_back_as_they_were_and_count_on(orders: klamm.Store) -> None:
    kill_letters(orders, 2)
    assert orders.redrive("orders.dlq") == 2
    assert list(orders.dead_letters("orders.dlq")) == []
    assert orders.redrive("orders.dlq") == 0
    back = read(orders, start=10)
    assert [(record.key, record.value, tuple(record.headers)) for record in back] == [
        (b"k%d" % n, b"%d" % n, (("kept", b"yes"), ("klamm.attempts", b"1"))) for n in range(2)
    ]
    with orders.consumer("orders", start=10, wait=0) as consumer:
        consumer.run(refuse({b"1"}), on_error="dead-letter", retries=2, backoff=0.001)
    [letter] = orders.dead_letters("orders.dlq")
    assert (letter.record.value, letter.attempts, tuple(letter.record.headers)) == (b"1", 4, (("kept", b"yes"),))


def test_any_letters_may_be_chosen_in_any_order(orders: klamm.Store) -> None:
    kill_letters(orders, 6)
    assert orders.redrive("orders.dlq", where=lambda letter: letter.record.value in (b"4", b"1")) == 2
    assert [letter.record.value for letter in orders.dead_letters("orders.dlq")] == [b"0", b"2", b"3", b"5"]
    assert orders.redrive("orders.dlq", limit=1) == 1
    assert orders.redrive("orders.dlq", limit=0) == 0
    orders.topics.create("elsewhere", partitions=3)
    assert orders.redrive("orders.dlq", "elsewhere") == 3
    assert [record.value for record in read(orders, start=10)] == [b"1", b"4", b"0"]
    assert sorted(record.value for record in read(orders, "elsewhere")) == [b"2", b"3", b"5"]


def test_a_letter_goes_back_with_the_value_that_edit_returns(orders: klamm.Store) -> None:
    kill_letters(orders, 3)
    values = {b"0": b"fixed", b"1": None, b"2": b"2"}
    assert orders.redrive("orders.dlq", edit=lambda letter: values[letter.record.value]) == 3
    back = [(record.key, record.value, tuple(record.headers)) for record in read(orders, start=10)]
    headers = (("kept", b"yes"), ("klamm.attempts", b"1"))
    assert back == [(b"k0", b"fixed", headers), (b"k1", None, headers), (b"k2", b"2", headers)]
    assert list(orders.dead_letters("orders.dlq")) == []


def test_letters_go_back_no_faster_than_they_may(orders: klamm.Store) -> None:
    kill_letters(orders, 4)
    done: list[tuple[int, int]] = []
    began = time.monotonic()
    assert orders.redrive("orders.dlq", per_second=10, progress=lambda *counts: done.append(counts)) == 4
    assert time.monotonic() - began >= 0.3 and done == [(1, 4), (2, 4), (3, 4), (4, 4)]
    for rate in (0, -1, float("inf"), float("nan")):
        with pytest.raises(klamm.InvalidSetting, match="per_second"):
            orders.redrive("orders.dlq", per_second=rate)
    with pytest.raises(TypeError, match="per_second is a number"):
        orders.redrive("orders.dlq", per_second="fast")  # type: ignore[arg-type]


def test_a_dry_run_tells_what_is_in_the_way_and_changes_nothing(orders: klamm.Store) -> None:
    kill_letters(orders, 5)
    before = orders["orders.dlq"].info(), orders["orders"].info()
    assert orders.redrive("orders.dlq", dry_run=True) == 5
    assert orders.redrive("orders.dlq", dry_run=True, limit=3) == 3
    assert orders.redrive("orders.dlq", dry_run=True, where=lambda letter: letter.record.value == b"1") == 1
    with pytest.raises(klamm.UnknownTopic, match="elsewhere"):
        orders.redrive("orders.dlq", "elsewhere", dry_run=True)
    orders.append("orders.dlq", b"of others", headers={"klamm.dlq.error": "ValueError"}, acks=1)
    with pytest.raises(klamm.InvalidSetting, match="does not say where it was"):
        orders.redrive("orders.dlq", dry_run=True)
    assert orders["orders"].info() == before[1] and orders["orders.dlq"].info().count == before[0].count + 1


def test_letters_go_back_to_their_partition(store: klamm.Store) -> None:
    store.topics.create("orders", partitions=3)
    for number in range(3):
        store.append("orders", b"%d" % number, partition=number)
    with store.consumer("orders", wait=0) as consumer:
        consumer.run(refuse({b"0", b"1", b"2"}), on_error="dead-letter", retries=0)
    assert store.redrive("orders.dlq") == 3
    with store.consumer("orders", start=1, wait=0) as consumer:
        assert sorted((record.partition, record.value) for record in consumer) == [(0, b"0"), (1, b"1"), (2, b"2")]


@pytest.mark.timeout(100)
def test_a_redrive_killed_at_any_step_puts_each_letter_back_once(orders: klamm.Store) -> None:
    def redrive(step: int) -> None:
        with klamm.open(orders.path) as store:
            _os.trap(step, signal=signal.SIGKILL)
            store.redrive("orders.dlq")
            _os.trap(0)

    with children() as start:
        for step in steps():
            kill_letters(orders)
            at = orders.topics.describe("orders").partitions[0].end
            killed = os.WIFSIGNALED(start(lambda step=step: redrive(step)).ended())  # type: ignore[misc]
            orders.redrive("orders.dlq")
            values = [record.value for record in read(orders, start=at)]
            assert values == [b"0", b"1", b"2"], f"killed at step {step}"
            assert list(orders.dead_letters("orders.dlq")) == []
            if not killed:
                break
        assert step > 10


def test_a_letter_that_another_redrive_took_meanwhile_is_left_alone(orders: klamm.Store, path: Path) -> None:
    kill_letters(orders)
    by_the_other: list[int] = []

    def where(letter: klamm.DeadLetter) -> bool:
        if not by_the_other:
            with klamm.open(path) as other:
                by_the_other.append(other.redrive("orders.dlq", limit=2))
        return True

    assert orders.redrive("orders.dlq", where=where) == 1
    assert [record.value for record in read(orders, start=10)] == [b"0", b"1", b"2"]
    assert by_the_other == [2]


def test_redrives_at_the_same_time_put_each_letter_back_once(orders: klamm.Store, path: Path) -> None:
    kill_letters(orders, 10)
    gate = threading.Barrier(4, timeout=30)
    counts: list[int] = []

    def redrive() -> None:
        with klamm.open(path) as store:
            gate.wait()
            counts.extend(store.redrive("orders.dlq", limit=1) for _ in range(5))

    threads = [threading.Thread(target=redrive) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    left = orders.redrive("orders.dlq")
    values = [record.value for record in read(orders, start=10)]
    assert sorted(values) == sorted(set(values)) == [b"%d" % n for n in range(10)]
    assert sum(counts) + left == 10


def test_a_redrive_that_was_overtaken_puts_back_nothing_that_the_other_did(
    orders: klamm.Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one commits after the notes were read and before the commit: the number is taken."""
    kill_letters(orders, 3)
    by_the_other: list[int] = []
    put_back = dead_letters._put_back

    def overtaken(*arguments: Any) -> None:
        if not by_the_other:
            by_the_other.append(-1)
            with klamm.open(path) as other:
                by_the_other.append(other.redrive("orders.dlq", limit=2))
        put_back(*arguments)

    monkeypatch.setattr(dead_letters, "_put_back", overtaken)
    assert orders.redrive("orders.dlq") == 1
    assert by_the_other == [-1, 2]
    assert sorted(record.value for record in read(orders, start=10)) == [b"0", b"1", b"2"]
    assert list(orders.dead_letters("orders.dlq")) == []
    assert once.last(orders._acquired().catalog.database, "klamm.redrive", "orders.dlq") == 1, "two of them"


def test_a_transaction_that_is_open_among_the_letters_is_told_and_nothing_is_redriven(orders: klamm.Store) -> None:
    kill_letters(orders)
    lock = orders._acquired().lock
    assert lock is not None
    lock.timeout_ms = 200
    with orders.transaction(batch_bytes=1) as transaction:
        for _ in range(2):
            transaction.send("orders.dlq", b"x" * 1000)
        with pytest.raises(klamm.TransactionError, match="a transaction is open there"):
            orders.redrive("orders.dlq")
    assert orders.redrive("orders.dlq", where=lambda letter: letter.origin is not None) == 3
    assert [record.value for record in read(orders, start=10)] == [b"0", b"1", b"2"]


# Read, and removed


def write_letters(store: klamm.Store, count: int, topic: str = "orders.dlq") -> None:
    """As many letters as that, of `orders`, without a run."""
    headers = [("klamm.dlq.topic", b"orders"), ("klamm.dlq.error", b"KeyError")]
    store.topics.create(topic, exist_ok=True)
    store.append_many(topic, [(b"k", b"%d" % n, headers) for n in range(count)], acks=1)


def test_letters_are_read_as_they_are_asked_for(orders: klamm.Store) -> None:
    write_letters(orders, 20_000)
    letters = orders.dead_letters("orders.dlq")
    assert next(letters).record.value == b"0"
    assert [letter.record.value for letter in orders.dead_letters("orders.dlq", limit=2)] == [b"0", b"1"]
    orders.append("orders.dlq", b"new", headers=[("klamm.dlq.topic", b"orders")])
    tracemalloc.start()
    try:
        assert sum(1 for _ in letters) == 19_999  # those that were there when it was called
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20_000 * 400  # bytes: a list of the letters has 1,000 for each


def test_letters_are_those_of_the_moment_of_the_call(orders: klamm.Store) -> None:
    kill_letters(orders, 4)
    letters = orders.dead_letters("orders.dlq")
    assert orders.redrive("orders.dlq", limit=2) == 2
    orders.purge_dead_letters("orders.dlq")
    assert [letter.record.value for letter in letters] == [b"2", b"3"]


def test_what_is_not_a_dead_letter_topic_is_refused_and_nothing_is_written(orders: klamm.Store) -> None:
    kill_letters(orders, 1)
    for use in (
        lambda: orders.redrive("orders", to="orders"),
        lambda: orders.dead_letters("orders"),
        lambda: orders.purge_dead_letters("orders"),
    ):
        with pytest.raises(klamm.InvalidSetting, match=r"orders: not a dead-letter topic.*did you mean 'orders.dlq'"):
            use()
    assert orders.topics.describe("orders").count == 10
    orders.topics.create("empty")
    assert (list(orders.dead_letters("empty")), orders.redrive("empty"), orders.purge_dead_letters("empty")) == (
        [],
        0,
        0,
    )


def test_a_redriven_record_has_the_time_it_had(orders: klamm.Store) -> None:
    kill_letters(orders, 2)
    orders.append("orders.dlq", b"x", headers=[("klamm.dlq.topic", b"orders")], timestamp=77)
    assert orders.redrive("orders.dlq") == 3
    assert [record.timestamp for record in read(orders, start=10)] == [1000, 1001, 77]


def test_a_time_that_the_topic_no_longer_takes_is_told_with_the_letter_and_nothing_goes_back(
    orders: klamm.Store,
) -> None:
    kill_letters(orders, 2)
    orders.topics.alter("orders", {"message.timestamp.before.max.ms": 1000})
    with pytest.raises(klamm.InvalidTimestamp) as caught:
        orders.redrive("orders.dlq")
    assert caught.value.__notes__ == ["the letter at orders.dlq/0/0 keeps the time it had"]
    assert orders.topics.describe("orders").count == 10
    orders.topics.alter("orders", reset=["message.timestamp.before.max.ms"])
    assert orders.redrive("orders.dlq") == 2


def test_purge_removes_what_was_redriven_up_to_the_first_letter_that_was_not(orders: klamm.Store) -> None:
    kill_letters(orders, 6)
    assert orders.purge_dead_letters("orders.dlq") == 0
    assert orders.redrive("orders.dlq", where=lambda letter: letter.record.value in (b"0", b"1", b"3")) == 3
    assert orders.purge_dead_letters("orders.dlq") == 2
    assert orders.topics.describe("orders.dlq").partitions[0].start == 2
    assert [letter.record.value for letter in orders.dead_letters("orders.dlq")] == [b"2", b"4", b"5"]
    assert orders.redrive("orders.dlq") == 3
    assert orders.purge_dead_letters("orders.dlq") == 4
    assert list(orders.dead_letters("orders.dlq")) == []
    assert orders.purge_dead_letters("orders.dlq") == orders.redrive("orders.dlq") == 0
    assert read(orders, "orders.dlq", start=orders.topics.describe("orders.dlq").partitions[0].start) == []
    kill_letters(orders, 1)
    assert orders.redrive("orders.dlq") == 1
    back = [record.value for record in read(orders, start=10)]
    assert sorted(back[:6]) == [b"%d" % n for n in range(6)]


def test_partitions_are_purged_by_themselves(orders: klamm.Store) -> None:
    orders.topics.create("orders.dlq", partitions=2)
    for number in (0, 1):
        orders.append("orders.dlq", b"%d" % number, partition=number, headers=[("klamm.dlq.topic", b"orders")])
    assert orders.redrive("orders.dlq", where=lambda letter: letter.record.partition == 1) == 1
    assert orders.purge_dead_letters("orders.dlq") == 1
    assert [letter.record.value for letter in orders.dead_letters("orders.dlq")] == [b"0"]


def test_a_letter_that_was_redriven_and_purged_meanwhile_is_left_alone(
    orders: klamm.Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one's notes are gone, too, when the letters that were read before are to go back."""
    kill_letters(orders)
    by_the_other: list[int] = []
    put_back = dead_letters._put_back

    def overtaken(*arguments: Any) -> None:
        if not by_the_other:
            by_the_other.append(-1)
            with klamm.open(path) as other:
                by_the_other.append(other.redrive("orders.dlq"))
                by_the_other.append(other.purge_dead_letters("orders.dlq"))
        put_back(*arguments)

    monkeypatch.setattr(dead_letters, "_put_back", overtaken)
    assert orders.redrive("orders.dlq") == 0
    assert by_the_other == [-1, 3, 3]
    assert [record.value for record in read(orders, start=10)] == [b"0", b"1", b"2"]


def test_a_note_is_a_record_without_key_and_value_that_its_header_tells_apart(orders: klamm.Store) -> None:
    kill_letters(orders, 1)
    orders.redrive("orders.dlq")
    letter, note = read(orders, "orders.dlq")
    assert (note.key, note.value, tuple(note.headers)) == (None, None, (("klamm.dlq.redriven", b"0:0"),))
    assert "klamm.dlq.redriven" not in dict(letter.headers)


REDRIVE = """
import os, random, signal, sys, threading, time
import klamm
store = klamm.open(sys.argv[1])
rng = random.Random(int(sys.argv[2]))
delays = sorted(rng.random() * float(sys.argv[3]) for _ in range(2))
def press():
    began = time.monotonic()
    for delay in delays:
        time.sleep(max(0, began + delay - time.monotonic()))
        os.kill(os.getpid(), signal.SIGINT)
    done.set()
done = threading.Event()
threading.Thread(target=press, daemon=True).start()
try:
    store.redrive("orders.dlq")
    done.wait()
except KeyboardInterrupt:
    pass
os._exit(0)
"""


@pytest.mark.timeout(100)
def test_two_ctrl_c_in_a_redrive_put_no_letter_back_twice(orders: klamm.Store) -> None:
    write_letters(orders, 10_000)
    began = time.monotonic()
    assert orders.redrive("orders.dlq") == 10_000
    took = time.monotonic() - began
    expected = [b"%d" % n for n in range(10_000)]
    for turn in range(5):
        start = orders.topics.describe("orders").partitions[0].end
        orders.purge_dead_letters("orders.dlq")
        write_letters(orders, 10_000)
        arguments = [orders.path, str(SEED + turn), str(took)]
        subprocess.run([sys.executable, "-c", REDRIVE, *arguments], check=True, timeout=60)
        orders.redrive("orders.dlq")
        back = sorted((record.value for record in read(orders, start=start)), key=int)
        assert back == expected, f"KLAMM_SEED={SEED}, turn {turn}"


@pytest.mark.parametrize(("limit", "error"), [(-1, klamm.InvalidSetting), ("1", TypeError), (True, TypeError)])
def test_a_limit_is_a_count(orders: klamm.Store, limit: Any, error: type[Exception]) -> None:
    kill_letters(orders)
    for use in (orders.redrive, orders.dead_letters):
        with pytest.raises(error, match="limit"):
            use("orders.dlq", limit=limit)
