"""A store's directory that is replaced under a process that has it open: neither store ever gets a byte of the other.

The store at the path is another one by now: an older copy was renamed into its place, a new one was made where it was
moved away, or the files of a backup were copied into the same directory. A process that has the old one open is told,
and whatever it still does goes to the old one: no file of the new one changes, and no record of it is read.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import klamm
from klamm.errors import HELD, KlammError, NotAStore, readable
from tests.descriptors import descriptors, opened_since
from tests.procs import PATIENCE, Flag, children, until
from tests.serving import KLAMM, Serving

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere files are opened by their path")

ROLLS: dict[str, int | float | str] = {"segment.bytes": 4096}
SETTINGS: dict[str, dict[str, int | float | str]] = {
    "plain": {**ROLLS, "retention.bytes": 8192},
    "keyed": {**ROLLS, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.0, "delete.retention.ms": 0},
    "gone": {},
    "open": {},
}
HOWS = ["renamed", "moved", "copied"]


def fill(store: klamm.Store, text: str, count: int) -> None:
    for number in range(count):
        for topic in SETTINGS:
            store.append(topic, f"{text} {number}".encode() + b"." * 40, key=b"%d" % (number % 5), acks=1)


def values(store: klamm.Store, topic: str = "plain") -> list[bytes]:
    with store.consumer(topic, start="earliest", wait=0, form="values") as consumer:
        return [value[:-40] for value in consumer if value is not None]


def files_of(path: Path) -> dict[str, str]:
    """The content of each file, but for what a reader of klamm.db writes."""
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in path.rglob("*")
        if file.is_file() and file.name != "klamm.db-shm"
    }


class Replaced:
    """A store that is open here, and another one at its path. `path` leads to the other one, `old` to this one."""

    def __init__(self, where: Path, how: str) -> None:
        self.path, self.old = where / "store", where / "old"
        backup = where / "backup"
        self.store = klamm.open(self.path)
        self.core = self.store._acquired()
        if how == "copied":  # nothing is done in the background while files are removed one by one
            self.core.look_after = lambda: None  # type: ignore[method-assign]
        for topic, settings in SETTINGS.items():
            self.store.topics.create(topic, settings=settings)
        fill(self.store, "first", 20)
        self.store.backup(backup)
        with klamm.open(backup) as copy:  # it is in use: its heads are trusted
            fill(copy, "other", 30)
            self.other = values(copy)
        fill(self.store, "second", 60)
        self.table = self.store.table("open")
        assert len(self.table) == 5
        self.consumer = self.store.consumer("plain", start="latest", wait=None)
        assert not self.consumer.poll(timeout=0)
        self.own = values(self.store)
        if how == "copied":
            shutil.copytree(self.path, self.old)
            for name in os.listdir(self.path):  # as `rm -r store/*`, and `cp -r backup/* store`
                shutil.rmtree(self.path / name) if (self.path / name).is_dir() else os.unlink(self.path / name)
            for name in sorted(os.listdir(backup)):
                copy_tree = (backup / name).is_dir()
                (shutil.copytree if copy_tree else shutil.copy2)(backup / name, self.path / name)
        else:
            os.rename(self.path, self.old)
            if how == "renamed":
                os.rename(backup, self.path)
            else:
                with klamm.open(self.path) as new:
                    for topic, settings in SETTINGS.items():
                        new.topics.create(topic, settings=settings)
                    fill(new, "other", 30)
                    self.other = values(new)
        self.how = how
        self.files = files_of(self.path)

    def check(self) -> None:
        """Nothing of the other store has changed, and it is whole."""
        assert files_of(self.path) == self.files
        with klamm.open(self.path) as other:
            assert other.check().breaches == []
            assert values(other) == self.other
            other.append("plain", b"goes on")


@pytest.fixture(params=HOWS)
def replaced(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Replaced]:
    found = Replaced(tmp_path, request.param)
    yield found
    with suppress(KlammError):
        found.store.close()


def append_after_idle(replaced: Replaced) -> None:
    for partition in replaced.core.opened():
        partition.log.close_idle()
    for _ in range(200):
        replaced.store.append("plain", b"late" + b"." * 60, acks=1)
        replaced.store.append("open", b"late", acks="all")


def commit(replaced: Replaced) -> None:
    with replaced.store.transaction() as tx:
        tx.send("open", b"late")


def delete(replaced: Replaced) -> None:
    replaced.store.topics.delete("gone")


def read_on(replaced: Replaced) -> None:
    replaced.consumer.poll(timeout=PATIENCE)


def read_all(replaced: Replaced) -> None:
    assert values(replaced.store) == replaced.own


def scan(replaced: Replaced) -> None:
    assert [value.as_py()[:-40] for value in replaced.store.scan("plain").to_table()["value"]] == replaced.own


def wait_for_table(replaced: Replaced) -> None:
    time.sleep(0.11)
    replaced.table.get(b"1")


ACTIONS: dict[str, Callable[[Replaced], object]] = {
    "append": append_after_idle,
    "roll": lambda each: [each.store.append("keyed", b"." * 80, key=b"q", acks=1) for _ in range(300)],
    "commit": commit,
    "maintain": lambda each: each.store.maintain(),
    "compact": lambda each: each.store.compact(force=True),
    "delete": delete,
    "create": lambda each: each.store.topics.create("more"),
    "read on": read_on,
    "read all": read_all,
    "scan": scan,
    "table": wait_for_table,
}


@pytest.mark.parametrize("action", ACTIONS)
def test_what_a_process_does_to_its_store_never_reaches_the_one_at_its_path(replaced: Replaced, action: str) -> None:
    time.sleep(0.11)  # so late it may be told
    with pytest.raises(NotAStore, match="removed or replaced while") as refused:
        ACTIONS[action](replaced)
    assert str(replaced.path) in refused.value.message and refused.value.hint is not None
    replaced.check()


def test_the_time_until_a_process_is_told_is_used_on_its_own_store_alone(replaced: Replaced) -> None:
    heads = replaced.core.heads
    for action in ACTIONS.values():
        with suppress(NotAStore):
            action(replaced)
    assert not heads.is_in_place()
    replaced.store.close()
    replaced.check()
    if replaced.how != "copied":
        with klamm.open(replaced.old) as old:  # acknowledged records are where the directory is
            assert old.check().breaches == []
            assert set(replaced.own[-20:]) <= set(values(old))


def test_an_append_opens_no_file_that_was_put_into_its_directory(tmp_path: Path) -> None:
    with klamm.open(tmp_path / "store") as store:
        store.topics.create("t")
        store.append("t", b"first")
        store.backup(tmp_path / "backup")
        (log,) = (tmp_path / "backup").rglob("*.log")
        before = log.read_bytes()
        place = tmp_path / "store" / log.relative_to(tmp_path / "backup")
        store.append("t", b"looked at its place just now", acks=1)
        store._acquired().topic("t").partition(0).log.close_idle()
        os.replace(tmp_path / "backup" / "heads", tmp_path / "store" / "heads")
        os.replace(log, place)
        with pytest.raises(NotAStore, match="removed or replaced while"):
            store.append("t", b"late", acks=1)
        assert place.read_bytes() == before


def test_chores_that_were_left_to_do_are_done_on_the_old_store(replaced: Replaced) -> None:
    for partition in replaced.core.opened():
        for chore in (
            partition.checkpoint,
            partition.cleanup.expire,
            lambda p=partition: p.cleanup.rebuild_indexes(lambda: False),
            lambda p=partition: p.cleanup.delete_before(15),
        ):
            with suppress(KlammError):
                chore()
    replaced.store.close()
    replaced.check()


def test_a_log_of_catalog_changes_that_is_not_ours_survives_our_close(tmp_path: Path) -> None:
    """SQLite removes the log of a database by its name, when the last connection is closed."""
    replaced = Replaced(tmp_path, "renamed")
    done, closed = Flag(tmp_path / "done"), Flag(tmp_path / "closed")

    def change() -> int:
        with klamm.open(replaced.path) as other:
            other.topics.create("new")
            done.up()
            closed.wait()
            other.topics.create("newer")
            return len(list(other.topics))

    with children() as start:
        child = start(change)
        done.wait()
        replaced.store.close()
        closed.up()
        assert child.answer() == len(SETTINGS) + 2
    with klamm.open(replaced.path) as other:
        assert {"new", "newer"} <= set(other.topics)


def test_a_consumer_that_waits_is_told_and_does_not_wait_for_ever(tmp_path: Path) -> None:
    replaced = Replaced(tmp_path, "moved")
    begin = time.monotonic()
    with pytest.raises(NotAStore, match="removed or replaced while"):
        list(replaced.consumer)
    assert time.monotonic() - begin < 30
    replaced.store.close()


def test_a_store_that_is_put_back_goes_on(tmp_path: Path) -> None:
    with klamm.open(tmp_path / "store") as store:
        store.topics.create("t")
        store.append("t", b"1")
        os.rename(tmp_path / "store", tmp_path / "away")
        time.sleep(0.11)
        with pytest.raises(NotAStore, match="removed or replaced while"):
            store.append("t", b"2")
        os.rename(tmp_path / "away", tmp_path / "store")
        until(store._acquired().heads.is_in_place, "the store is back")
        assert store.append("t", b"2") == 1
    assert klamm.check(tmp_path / "store").ok


def test_two_stores_of_one_path_are_open_in_one_process_side_by_side(tmp_path: Path) -> None:
    first = klamm.open(tmp_path / "store")
    first.topics.create("t")
    first.append("t", b"first")
    old = first._acquired().topic("t").partition(0)
    os.rename(tmp_path / "store", tmp_path / "old")
    with klamm.open(tmp_path / "store") as second:
        second.topics.create("t")
        second.append("t", b"second")
        new = second._acquired().topic("t").partition(0)
        assert readable(old.directory).startswith(str(tmp_path / "store"))
        assert not os.path.samefile(old.directory, new.directory)
        first.close()
        second.append("t", b"third")
    for name, count in (("old", 1), ("store", 2)):
        with klamm.open(tmp_path / name) as store:
            assert len(list(store.consumer("t", start="earliest", wait=0))) == count and store.check().ok


def test_a_server_ends_when_its_store_is_replaced_and_leaves_the_other_alone(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with klamm.open(path) as store:
        store.topics.create("t")
        store.append("t", b"1")
        store.backup(tmp_path / "copy")
    server = Serving(path, "--kafka", "0", where=tmp_path / "logs", environment={})
    try:
        until((path / "server").exists, "the server is there")
        os.rename(path, tmp_path / "old")
        (tmp_path / "copy" / "server").write_text("another server's")
        os.rename(tmp_path / "copy", path)
        before = files_of(path)
        assert server.process.wait(60) == 1
        assert "removed or replaced while it is open" in (tmp_path / "logs" / "stderr").read_text()
        assert files_of(path) == before and not (tmp_path / "old" / "server").exists()
    finally:
        server.kill()


def test_paths_of_a_descriptor_are_never_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with klamm.open(tmp_path / "store") as store:
        store.topics.create("t")
        for _ in range(3):
            store.append("t", b"x")
        log = next((tmp_path / "store").rglob("*.log"))
        data = bytearray(log.read_bytes())
        data[100] ^= 1
        log.write_bytes(data)
        with pytest.raises(klamm.CorruptBatch) as damaged:
            values(store, "t")
        assert damaged.value.path == str(log) and str(log) in str(damaged.value)
        assert [breach.path for breach in store.check().breaches] == [str(log)]
    shown = subprocess.run([KLAMM, "check", tmp_path / "store"], capture_output=True, text=True, check=False)
    assert str(log) in shown.stdout and HELD not in shown.stdout + shown.stderr
    assert HELD not in caplog.text


def test_a_closed_store_leaves_nothing_open_and_its_partitions_name_the_path(tmp_path: Path) -> None:
    before = descriptors()
    store = klamm.open(tmp_path / "store")
    store.topics.create("t")
    store.append("t", b"x")
    partition = store._acquired().topic("t").partition(0)
    assert partition.directory.startswith(HELD) and opened_since(before)
    store.close()
    assert not opened_since(before)
    assert Path(partition.directory) == next((tmp_path / "store" / "topics").glob("*/0"))
