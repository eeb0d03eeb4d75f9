"""The end of a process that has not closed its tables: its own exit status, and nothing on stderr."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import klamm
from tests.procs import PATIENCE, STRICT

COUNT = 300_000
OPEN = """
import contextlib, shutil, sys, threading, pyarrow, klamm

def opened():
    return klamm.open(sys.argv[1]).table("users", wait=None)

def drop():
    store = klamm.open(sys.argv[1])
    table = store.table("users", wait=None)

@contextlib.contextmanager
def thread(work):
    began = threading.Event()
    def run():
        with contextlib.suppress(klamm.StoreError):  # it is closed
            began.set()
            work()
    threading.Thread(target=run, daemon=True).start()
    began.wait()
    yield
"""
ENDS = {
    "after a table was dropped": "drop()",
    "with a table that is being made": "table = opened()",
    "in the middle of an iteration": "table = opened(); len(table); pairs = iter(table.items()); next(pairs)",
    "while a thread opens a table": "with thread(opened): pass",
    "while a thread opens and drops tables": "with thread(lambda: [drop() for _ in range(1000)]): drop()",
    "while a thread reads": "table = opened()\nwith thread(table.refresh): pass",
}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("end") / "events"
    with klamm.open(path) as store:
        store.topics.create("users", settings={"cleanup.policy": "compact"})
        store.append_many("users", ((b"user-%d" % n, b"x" * 40) for n in range(COUNT)), acks=1)
    return path


def end_of(code: str, path: Path) -> tuple[int, str]:
    command = [sys.executable, *STRICT, "-c", OPEN + code, str(path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    return run.returncode, run.stderr


@pytest.mark.parametrize("how", ENDS)
def test_a_process_that_does_not_close_its_tables_ends_as_usual(filled: Path, how: str) -> None:
    for status in range(10 if how == "after a table was dropped" else 2):
        shutil.rmtree(filled / "tables", ignore_errors=True)  # so that RocksDB is at work at the end
        assert end_of(f"{ENDS[how]}\nsys.exit({status})", filled) == (status, "")


def test_a_process_that_ends_by_an_error_shows_only_that(filled: Path) -> None:
    shutil.rmtree(filled / "tables", ignore_errors=True)
    status, message = end_of("table = opened()\nraise ValueError('mine')", filled)
    assert status == 1 and message.count("Traceback") == 1 and message.endswith("ValueError: mine\n")


def test_the_end_does_not_wait_for_ever_for_a_thread_that_holds_the_table(filled: Path) -> None:
    code = """
from klamm.client.table import materialised
materialised._CLOSING_S = 0.1
table = opened()
with thread(lambda: (table._shared._mutex.acquire(), held.set(), threading.Event().wait())): held.wait()
sys.exit(7)
"""
    assert end_of("held = threading.Event()" + code, filled) == (7, "")


def test_the_end_of_a_process_whose_store_is_gone_is_quiet(tmp_path: Path) -> None:
    code = """
store = klamm.open(sys.argv[1])
store.topics.create("users")
store.append_many("users", [(b"a", b"1")] * 20_000, acks=1)
table, producer = store.table("users"), store.producer()
assert table[b"a"] == b"1"
producer.send("users", b"2", key=b"a")
shutil.rmtree(sys.argv[1])
"""
    assert end_of(code, tmp_path / "events") == (0, "")


def test_a_table_and_a_producer_keep_their_store(tmp_path: Path) -> None:
    path = tmp_path / "events"
    with klamm.open(path) as store:
        store.topics.create("users")
    table, producer = klamm.open(path).table("users"), klamm.open(path).producer()
    producer.send("users", b"1", key=b"a").result()
    assert table[b"a"] == b"1"
    assert [record.value for record in klamm.open(path).consumer("users", wait=0)] == [b"1"]
    table.close()
    producer.close()
