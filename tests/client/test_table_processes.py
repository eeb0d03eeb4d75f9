"""Tables among processes: one maintains, others follow and take over; kills, stops, forks."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import klamm
from klamm.client.table.table import Table
from tests.client.conftest import directory_of, put
from tests.client.spawned import spawned
from tests.crash.cases import seed_of
from tests.procs import STRICT, children, until


def test_followers_see_what_was_committed_before_they_read(path: Path) -> None:
    with klamm.open(path) as store, spawned() as start:
        store.topics.create("users", partitions=2)
        first, second = start(path, "users"), start(path, "users")
        assert sorted([first("table.maintains"), second("table.maintains")]) == [False, True]
        for n in range(50):
            store.append("users", b"%d" % n, key=b"k%d" % (n % 7), acks=1)
            for each in (first, second):
                assert each(f"table[b'k{n % 7}']") == b"%d" % n
                assert each("len(table)") == min(n + 1, 7)
            assert second(f"(store.append('users', b'x', key=b'x{n % 7}', acks=1), table[b'x{n % 7}'])[1]") == b"x"
            second(f"store.append('users', None, key=b'x{n % 7}', acks=1)")


def test_a_killed_maintainer_is_replaced_and_nothing_is_lost(path: Path) -> None:
    seed = seed_of()
    chance = random.Random(seed)
    model: dict[bytes, bytes] = {}
    with klamm.open(path) as store, spawned() as start:
        store.topics.create("users", partitions=2)
        processes = [start(path, "users"), start(path, "users")]
        for number in range(5):
            victim, survivor = sorted(processes, key=lambda each: -each("table.maintains"))
            victim.send("len(table)")  # it is killed in the middle of something
            killing = threading.Timer(chance.random() * 0.05, victim.kill)
            killing.start()
            for _ in range(chance.randrange(1, 60)):
                changes: dict[bytes, bytes | None] = {
                    b"k%d" % chance.randrange(3000): chance.choice([None, b"%d" % number, b"x" * 2000])
                    for _ in range(chance.randrange(1, 200))
                }
                put(store, changes)
                model.update(changes)  # type: ignore[arg-type]  # the deleted ones go next
                model = {key: value for key, value in model.items() if value is not None}
            killing.join()
            key = chance.choice(list(model))
            assert survivor(f"table.get({key!r})") == model[key]
            until(lambda: survivor("table.maintains"), "the survivor takes over")  # noqa: B023  # called at once
            assert dict(survivor("list(table.items())")) == model
            processes = [survivor, start(path, "users")]
        applied = processes[1]("(len(table), table._shared.updater.count)")
        assert applied == (len(model), 0)


def test_a_follower_that_does_not_read_takes_over_too(path: Path) -> None:
    with klamm.open(path) as store, spawned() as start:
        store.topics.create("users")
        put(store, {b"a": b"1"})
        first = start(path, "users")
        assert first("table[b'a']") == b"1"
        second = start(path, "users")
        assert not second("table.maintains")
        first.kill()
        until(lambda: second("table.maintains"), "it takes over")


def test_a_stopped_maintainer_makes_followers_wait_and_say_so(path: Path) -> None:
    with klamm.open(path) as store, spawned() as start:
        store.topics.create("users")
        put(store, {b"a": b"1"})
        first = start(path, "users")
        assert first("table[b'a']") == b"1"
        second = start(path, "users")
        assert second("table[b'a']") == b"1"
        first.stop()
        put(store, {b"a": b"2"})
        with pytest.raises(klamm.StoreBusy, match="1 of 2 records were not applied in time"):
            second("store.table('users', wait=0.05)[b'a']")
        assert second("table.get(b'a', wait=0)") == b"1"
        first.signal(signal.SIGCONT)
        until(lambda: second("table.get(b'a', wait=0)") == b"2", "the maintainer goes on")
        assert second("table[b'a']") == b"2"


def test_a_follower_waits_while_the_maintainer_gets_further(path: Path) -> None:
    with klamm.open(path) as store, spawned() as start:
        store.topics.create("users")
        first = start(path, "users")
        assert first("table.maintains")
        second = start(path, "users", wait=2)
        first(
            "exec('import time, klamm.client.table.table_updater as a; b = a.TableUpdater.apply; '"
            "'a.TableUpdater.apply = lambda *c: (b(*c), time.sleep(0.4))', {})"
        )
        store.append_many("users", ((b"%d" % n, b"x" * 1000) for n in range(8_000)), acks=1)
        assert second("len(table)") == 8_000 and not second("table.maintains")


def test_a_generation_made_anew_is_followed(path: Path) -> None:
    with klamm.open(path) as store, spawned() as start:
        store.topics.create("users")
        put(store, {b"a": b"1", b"b": b"1"})
        first, second = start(path, "users"), start(path, "users")
        maintainer, follower = sorted([first, second], key=lambda each: -each("table.maintains"))
        assert follower("len(table)") == 2
        maintainer("table._shared._renew('a test wants it')")
        put(store, {b"c": b"1"})
        assert maintainer("len(table)") == follower("len(table)") == 3


def test_a_follower_sees_that_the_topic_was_deleted(path: Path) -> None:
    with klamm.open(path) as store, spawned() as start:
        store.topics.create("users")
        put(store, {b"a": b"1"})
        processes = [start(path, "users"), start(path, "users")]
        assert [each("table[b'a']") for each in processes] == [b"1", b"1"]
        directory = directory_of(store)
        store.topics.delete("users")
        for each in processes:
            with pytest.raises(klamm.UnknownTopic):
                each("table[b'a']")
        until(lambda: not directory.exists(), "the maintainer lets go")


def test_an_empty_log_that_does_not_start_at_0_is_a_table_too(path: Path) -> None:
    with klamm.open(path) as store, spawned() as start:
        store.topics.create("users")
        put(store, {b"a": b"1"})
        store["users"].delete_records({0: 1})
        first, second = start(path, "users"), start(path, "users")
        assert first("len(table)") == second("len(table)") == 0


def test_open_and_aborted_transactions_are_not_in_the_table(path: Path) -> None:
    big = b"x" * 100_000  # more than a batch, so that it is in the log before the end of the transaction
    with klamm.open(path) as store, spawned() as start:
        store.topics.create("users")
        put(store, {b"a": b"1"})
        first, second = start(path, "users"), start(path, "users")
        tx = store.transaction(batch_bytes=1000)
        tx.send("users", big, key=b"a")
        tx.send("users", big, key=b"b")
        tx.send("users", big, key=b"c")
        assert store.topics.describe("users").partitions[0].end > 1
        put(store, {b"d": b"1"})  # behind what is not decided
        assert [each("dict(table)") for each in (first, second)] == [{b"a": b"1"}] * 2
        tx.abort()
        assert [each("dict(table)") for each in (first, second)] == [{b"a": b"1", b"d": b"1"}] * 2
        with store.transaction(batch_bytes=1000) as tx:
            tx.send("users", big, key=b"a")
            tx.send("users", None, key=b"d")
        assert [each("dict(table)") for each in (first, second)] == [{b"a": big}] * 2


# Forks


def test_a_forked_child_cannot_use_the_table_but_opens_one_that_follows(store: klamm.Store, users: Table) -> None:
    put(store, {b"a": b"1"})
    assert users[b"a"] == b"1"

    def action() -> object:
        for use in (lambda: users[b"a"], lambda: users.get(b"a", wait=0), lambda: len(users), users.offsets):
            with pytest.raises(klamm.Forked):
                use()
        users.close()
        with store.table("users") as mine:
            store.append("users", b"2", key=b"a", acks=1)
            return mine[b"a"], mine.maintains

    with children() as start:
        assert start(action).answer() == (b"2", False)
    put(store, {b"b": b"1"})
    assert dict(users) == {b"a": b"2", b"b": b"1"} and users.maintains


def test_a_forked_child_without_a_maintainer_says_why_it_cannot_be_one(store: klamm.Store, users: Table) -> None:
    put(store, {b"a": b"1"})
    assert users[b"a"] == b"1"
    users.close()

    def action() -> object:
        with store.table("users", wait=0.05) as mine:
            there = mine[b"a"]
            store.append("users", b"2", key=b"a", acks=1)
            with pytest.raises(klamm.StoreBusy, match="forked from one that used tables"):
                mine.refresh()
        with klamm.open(store.path, read_only=True) as read_only, pytest.raises(klamm.Forked):
            read_only.table("users")
        return there

    with children() as start:
        assert start(action).answer() == b"1"
    with store.table("users") as again:
        assert again[b"a"] == b"2"


@pytest.mark.parametrize("follows", [False, True])
def test_a_forked_child_ends_as_usual(path: Path, follows: bool) -> None:
    code = f"""
import klamm, os, sys
store = klamm.open({os.fspath(path)!r})
store.topics.create("users")
store.append_many("users", [(b"%d" % n, b"v" * 1000) for n in range(30000)], acks=1)
users = store.table("users")
iteration = iter(users.items())
next(iteration)
pid = os.fork()
if not pid:
    if {follows}:
        mine = store.table("users")
        store.append("users", b"2", key=b"1", acks=1)
        assert mine[b"1"] == b"2" and not mine.maintains and len(mine) == 30000
    sys.exit(7)  # with all that Python does at its end
_, status = os.waitpid(pid, 0)
print(os.waitstatus_to_exitcode(status), len(users))
"""
    run = subprocess.run([sys.executable, *STRICT, "-c", code], capture_output=True, text=True, timeout=100)
    assert run.stdout == "7 30000\n" and run.stderr == ""
