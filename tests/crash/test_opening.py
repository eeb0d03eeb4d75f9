"""Opening: together, twice, after a kill, after another boot, and beside somebody who deletes."""

from __future__ import annotations

import errno
import gc
import hashlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import klamm
from klamm.disk import _os
from klamm.errors import Closed, KlammError, ReadOnly, StoreError, TopicExists, UnknownTopic
from klamm.log.head import HeadResult
from klamm.log.partition import Partition
from klamm.store import directory
from klamm.store.catalog import Topic
from tests.crash.stores import held_in, open_on_another_boot, values
from tests.descriptors import descriptors, opened_since
from tests.interrupts import Interrupted, interrupt_at
from tests.procs import Child, Flag, asleep, children

# ---- interrupted


def test_a_process_whose_open_or_close_was_interrupted_has_the_store_open_no_more(path: Path) -> None:
    def held() -> list[tuple[str, tuple[int, int]]]:
        return [(name, each) for name in ("lock", "members", "heads") for each in held_in(path / name)]

    struck = []  # what holds the exception holds all that its frames refer to
    for where in ("transaction_resolver.py", "store/deletion.py"):
        with pytest.raises(Interrupted) as caught, interrupt_at(1, within=where):
            klamm.open(path)
        struck.append(caught)
        assert held() == [], where
    store = klamm.open(path)
    store.topics.create("orders")
    store.append("orders", b"x")
    assert held()
    with pytest.raises(Interrupted) as caught, interrupt_at(1, within="log/partition.py"):
        store.close()
    struck.append(caught)
    assert held() == []
    with klamm.open(path, busy_timeout=5) as store:
        assert values(store) == [b"x"]


# ---- one core a process


def test_two_opens_of_one_directory_share_a_core_and_the_last_one_closes_it(path: Path, tmp_path: Path) -> None:
    first = klamm.open(path)
    first.topics.create("orders")
    (tmp_path / "link").symlink_to(path)
    second = klamm.open(str(tmp_path / "link"))
    assert first._core is second._core
    first.append("orders", b"0")
    first.close()
    assert second.append("orders", b"1") == 1
    with pytest.raises(StoreError):
        first.append("orders", b"x")
    third = klamm.open(path)
    assert third._core is second._core
    second.close()
    third.close()
    with children() as start:
        assert start(lambda: open_on_another_boot(path)).answer() == repr([b"0", b"1"]), "nobody is present any more"


def test_a_read_only_open_beside_a_writable_one_in_the_same_process_follows_it(store: klamm.Store, path: Path) -> None:
    with klamm.open(path, read_only=True) as reader:
        for number in range(5):
            store.append("orders", b"%d" % number, acks=1)
            assert values(reader) == [b"%d" % n for n in range(number + 1)]
        for use in (
            lambda: reader.append("orders", b"x"),
            lambda: reader.topics.create("more"),
            lambda: reader.topics.delete("orders"),
        ):
            with pytest.raises(ReadOnly):
                use()
    assert store.append("orders", b"5") == 5


def test_a_thread_that_read_the_topics_earlier_puts_no_older_settings_back(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with klamm.open(path) as store:
        store.topics.create("orders", 2)
        store.topics.create("gone")
        core = store._acquired()
        read = core.catalog.topics

        def read_and_be_slow() -> list[Topic]:
            found = read()
            monkeypatch.undo()
            store.topics.alter("orders", {"segment.bytes": 12345})
            store.topics.add_partitions("orders", 4)
            store.topics.delete("gone")
            store.topics.create("gone", 3)
            core.all_topics()
            return found

        monkeypatch.setattr(core.catalog, "topics", read_and_be_slow)
        core.all_topics()
        orders, gone = core._topics["orders"], core._topics["gone"]
        assert (orders.count, orders.topic.settings.segment_bytes, gone.count) == (4, 12345, 3)


def test_open_close_open_loses_nothing_and_leaks_no_descriptor(path: Path) -> None:
    with klamm.open(path) as store:
        store.topics.create("orders", partitions=1)
    before = descriptors()
    for number in range(20):
        with klamm.open(path) as store:
            assert store.append("orders", b"%d" % number, acks=1 if number % 2 else "all") == number
            assert values(store)[-1] == b"%d" % number
    gc.collect()
    assert not opened_since(before)
    with klamm.open(path) as store:
        assert values(store) == [b"%d" % number for number in range(20)]


def test_an_open_that_fails_at_any_step_leaks_no_descriptor(path: Path) -> None:
    klamm.open(path).close()
    before = descriptors()
    failures = 0
    for step in range(1, 40):
        _os.trap(step, kinds=_os.ALL & ~_os.STORE & ~_os.LOCK, error=errno.EIO)
        try:
            klamm.open(path).close()
        except (KlammError, OSError):
            failures += 1
        finally:
            _os.trap(0)
        assert not opened_since(before), f"after step {step}"
    assert failures > 2


def test_a_store_that_is_dropped_without_being_closed_lets_go(path: Path) -> None:
    store = klamm.open(path)
    store.topics.create("orders")
    store.append("orders", b"0")
    del store
    with children() as start:
        assert start(lambda: open_on_another_boot(path)).answer() == repr([b"0"])


# ---- opening together


def test_sixteen_processes_that_make_the_same_store_make_one(path: Path, tmp_path: Path) -> None:
    go = Flag(tmp_path / "go")

    def race(number: int) -> tuple[str, int]:
        go.wait()
        with klamm.open(path) as store:
            try:
                store.topics.create("orders", partitions=1)
            except TopicExists:
                created = 0
            else:
                created = 1
            store.append("orders", b"%d" % number, acks=1)
            return store.store_id, created

    with children() as start:
        racers = [start(lambda number=number: race(number)) for number in range(16)]  # type: ignore[misc]
        go.up()
        answers = [racer.answer(60) for racer in racers]
    assert len({store_id for store_id, _ in answers}) == 1
    assert sum(created for _, created in answers) == 1
    with klamm.open(path) as store:
        assert sorted(values(store)) == sorted(b"%d" % number for number in range(16))
        assert klamm.check(path).ok


def test_a_creator_killed_at_any_step_is_finished_by_the_next(tmp_path: Path) -> None:
    step, alive = 0, False
    with children() as start:
        while not alive:
            step += 7  # of some hundreds
            path = str(tmp_path / str(step))

            def create(path: str = path, step: int = step) -> None:
                _os.trap(step, signal=signal.SIGKILL)
                store = klamm.open(path)
                store.topics.create("orders")
                store.append("orders", b"0")
                _os.trap(0)
                store.close()

            alive = not os.WIFSIGNALED(start(create).ended())
            with klamm.open(path) as store:
                store.topics.create("orders", exist_ok=True)
                store.append("orders", b"1")
                assert values(store)[-1] == b"1"
                assert values(store)[:-1] in ([], [b"0"])
    assert step > 20


# ---- deleted topics


def test_a_deleted_topic_that_another_process_still_writes_to_is_unknown_and_costs_nothing_else(
    store: klamm.Store, tmp_path: Path
) -> None:
    store.topics.create("doomed")
    started, path = Flag(tmp_path / "started"), store.path

    def write() -> tuple[int, int, str]:
        with klamm.open(path) as mine:
            kept = doomed = 0
            while True:
                mine.append("orders", b"%d" % kept, acks=1)
                kept += 1
                try:
                    mine.append("doomed", b"x", acks=1)
                except UnknownTopic as error:
                    mine.append("orders", b"%d" % kept)
                    return kept + 1, doomed, str(error)
                doomed += 1
                if doomed == 50:
                    started.up()

    def send() -> str:
        with klamm.open(path) as mine, mine.producer(acks=1, linger_ms=0) as producer:
            try:
                while True:
                    producer.send("doomed", b"y")
            except UnknownTopic:
                return "UnknownTopic"
        raise AssertionError

    with children() as start:
        writer, sender = start(write), start(send)
        started.wait()
        store.topics.delete("doomed")
        kept, doomed, error = writer.answer(30)
        assert doomed >= 50 and "doomed" in error
        status = sender.ended(30)
        assert os.WIFEXITED(status)
    assert values(store) == [b"%d" % n for n in range(kept)]
    assert list(store.topics) == ["orders"]
    assert [name for name in os.listdir(f"{path}/topics") if name.startswith("doomed")] == []


def test_a_reader_of_a_topic_that_is_deleted_is_told_or_ends_and_does_not_hang(store: klamm.Store) -> None:
    store.append("orders", b"0")
    path = store.path

    def read() -> str:
        with klamm.open(path) as mine, mine.consumer("orders", start="earliest") as consumer:
            try:
                for _ in consumer:
                    pass
            except UnknownTopic:
                return "UnknownTopic"
            return "ended"

    with children() as start:
        reader = start(read)
        asleep(reader)
        store.topics.delete("orders")
        assert reader.answer(20) in ("UnknownTopic", "ended")


def test_a_topic_made_anew_starts_empty_and_old_handles_do_not_write_to_it(store: klamm.Store) -> None:
    path = store.path
    core = store._acquired()
    with children() as start:
        for turn in range(3):
            store.append("orders", b"old")
            old = core.topic("orders").partition(0)
            reader = old.reader(0)

            def renew() -> None:
                with klamm.open(path) as other:
                    other.topics.delete("orders")
                    other.topics.create("orders")
                    other.append("orders", b"new")

            start(renew).answer()
            with pytest.raises(UnknownTopic):
                old.append_one(None, b"stray")
            with pytest.raises(UnknownTopic):
                reader.read()
            assert values(store) == [b"new"]
            assert store.append("orders", b"newer %d" % turn, acks=1) == 1
            assert values(store) == [b"new", b"newer %d" % turn]
            fork_and_use(old, start)
    assert klamm.check(path).ok


def fork_and_use(old: Partition, start: Callable[[Callable[[], object]], Child]) -> None:
    """A handle of a topic that is gone is let go of in a child, too."""

    def use() -> str:
        try:
            old.append_one(None, b"x")
        except KlammError as error:
            return type(error).__name__
        return "worked"

    assert start(use).answer() in ("Forked", "UnknownTopic")


def test_a_handle_of_a_deleted_topic_uses_no_descriptor_after_the_store_was_closed(path: Path) -> None:
    """Its number may be another file's by then, and that file's locks are not ours to take."""
    store = klamm.open(path)
    store.topics.create("orders")
    store.append("orders", b"0")
    old = store._acquired().topic("orders").partition(0)
    store.topics.delete("orders")
    store.close()
    with pytest.raises((Closed, UnknownTopic)):
        old.append_one(None, b"x")
    with pytest.raises(HeadResult, match="ABANDONED"):
        old.log.lock()


# ---- another boot


def test_after_another_boot_a_store_is_refused_while_somebody_has_it_open_and_recovered_when_not(
    store: klamm.Store, path: Path
) -> None:
    """A process that survived a boot is one of another machine on the same volume."""
    for number in range(10):
        store.append("orders", b"%d" % number, acks=1)
    with children() as start:
        assert start(lambda: open_on_another_boot(path)).answer() == "StoreBusy"
        assert store.append("orders", b"10") == 10, "and nothing has changed"
        store.close()
        want = [b"%d" % number for number in range(11)]
        assert start(lambda: open_on_another_boot(path)).answer() == repr(want)
    with klamm.open(path) as again:  # this boot is another one, seen from there
        assert values(again) == want
        assert again.topics.describe("orders").partitions[0].leader_epoch >= 2


def test_a_torn_tail_after_another_boot_is_cut_off(path: Path) -> None:
    with klamm.open(path) as store:
        store.topics.create("orders")
        for number in range(10):
            store.append("orders", b"%d" % number, acks=1)
        (log,) = Path(path, "topics").rglob("*.log")
        directory_of = log.parent
    with log.open("ab") as file:
        file.write(b"torn")
    with children() as start:
        assert start(lambda: open_on_another_boot(path)).answer() == repr([b"%d" % number for number in range(10)])
    assert [entry.read_bytes() for entry in directory_of.glob("*.cut-*")] == [b"torn"]


def fingerprint(path: Path) -> dict[str, str]:
    """Every file that holds something. (SQLite makes an empty log and its index even to read.)"""
    return {
        str(entry): hashlib.sha256(entry.read_bytes()).hexdigest()
        for entry in sorted(Path(path).rglob("*"))
        if entry.is_file() and entry.stat().st_size and not entry.name.endswith("-shm")
    }


def test_a_read_only_open_recovers_in_memory_and_leaves_every_file_as_it_was(path: Path) -> None:
    with klamm.open(path) as store:
        store.topics.create("orders")
        for number in range(10):
            store.append("orders", b"%d" % number, acks=1)
        (log,) = Path(path, "topics").rglob("*.log")
    with log.open("ab") as file:
        file.write(b"torn")
    before = fingerprint(path)
    want = repr([b"%d" % number for number in range(10)])
    with children() as start:
        assert start(lambda: open_on_another_boot(path, read_only=True)).answer() == want
        assert fingerprint(path) == before
        assert start(lambda: open_on_another_boot(path)).answer() == want
        assert log.read_bytes()[-4:] != b"torn"


def test_a_read_only_open_of_a_store_that_is_being_recovered_partition_by_partition_reads_both_kinds(
    path: Path,
) -> None:
    with klamm.open(path) as store:
        for topic in ("orders", "users"):
            store.topics.create(topic)
            store.append(topic, b"0")

    def work() -> tuple[list[bytes], ...]:
        directory.boot_id = lambda: b"another boot, 16"
        with klamm.open(path) as writer:
            writer.append("orders", b"1", acks=1)  # recovered; `users` is not yet
            with klamm.open(path, read_only=True) as reader:
                first = values(reader), values(reader, "users")
                writer.append("orders", b"2", acks=1)
                writer.append("users", b"1", acks=1)
                with klamm.open(path, read_only=True) as another:
                    return *first, values(another), values(another, "users")

    with children() as start:
        orders, users, later_orders, later_users = start(work).answer()
    assert (orders, users) == ([b"0", b"1"], [b"0"])
    assert later_orders == [b"0", b"1", b"2"]
    assert later_users[:1] == [b"0"]
