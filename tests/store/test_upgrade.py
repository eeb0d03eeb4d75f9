"""A store of an older format is upgraded by a process that is alone, whatever happens; a newer one is refused."""

from __future__ import annotations

import gc
import os
import random
import shutil
import signal
import sqlite3
import struct
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.cli.main import run
from klamm.disk import _os
from klamm.disk.locks import PRESENCE, LockFile
from klamm.errors import KlammError, NewerFormat, StoreBusy, StoreError
from klamm.log import head
from klamm.store import catalog, database, directory
from klamm.store.catalog import Catalog
from klamm.store.features import Features
from klamm.store.presence import IN_LOCK
from klamm.store.upgrade import TODAY, Formats, formats_of
from tests.crash.cases import memory_directory, seed_of
from tests.crash.stores import held_in, values
from tests.golden.make import found_in, name_of_format
from tests.golden.test_golden import GOLDEN, unpacked
from tests.interrupts import HOWS, Injected, interrupt_at, points_of, steps_of, struck_at
from tests.procs import children, until

OLD = [name for name in GOLDEN if name != name_of_format()]


def trusted(path: Path) -> None:
    """As if the store had been used on this machine, under this boot: its heads are believed."""
    status = os.stat(path / "heads")
    with open(path / "heads", "r+b") as file:
        file.seek(16)
        file.write(directory.boot_id() + struct.pack("<QQ", status.st_dev, status.st_ino))
        file.seek(208)
        file.write(struct.pack("<QQQ", *(os.stat(path / name).st_ino for name in ("lock", "members", "klamm.db"))))
        for slot in range(1, status.st_size // 1024):  # format 1 had a note here, where now the owner of a lock is
            file.seek(1024 * slot + 712)
            file.write(struct.pack("<I", 4711))


@pytest.mark.parametrize("boot", ["this boot", "another boot"])
@pytest.mark.parametrize("every", [25, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", OLD)
def test_an_upgrade_killed_at_any_step_is_finished_by_the_next_one(
    name: str, every: int, boot: str, tmp_path: Path
) -> None:
    dice = random.Random(seed_of())
    alive, step, deaths = False, 0, 0
    golden, found = unpacked(name, tmp_path / "golden")
    with children() as start:
        while not alive:
            step += 1 + dice.randrange(every)
            store = shutil.copytree(golden, tmp_path / str(step))
            if boot == "this boot":
                trusted(store)

            def open_and_die(store: Path = store, step: int = step) -> None:
                _os.trap(step, signal=signal.SIGKILL)
                klamm.open(store).close()
                _os.trap(0)

            alive = not os.WIFSIGNALED(start(open_and_die).ended())
            deaths += not alive
            assert found_in(store) == found, f"killed at step {step}"
            assert formats_of(str(store)) == TODAY
            assert klamm.check(store).ok
            shutil.rmtree(store)
    assert deaths > 5


def strikes_at(golden: Path, scratch: Path, most: int | None) -> list[Callable[[], AbstractContextManager[object]]]:
    """Ways to interrupt the upgrade of a copy: at its steps, and at points where Python may run a signal handler."""
    dice = random.Random(seed_of())
    counts = []
    for count in (steps_of, points_of):
        store = shutil.copytree(golden, scratch)
        trusted(store)
        counts.append(count(lambda store=store: klamm.open(store).close()))  # type: ignore[misc]
        shutil.rmtree(store)
    limits = (most, most) if most else (counts[0], 1000)
    steps, points = (
        sorted(dice.sample(range(1, count + 1), min(count, limit))) for count, limit in zip(counts, limits, strict=True)
    )
    hows = list(HOWS)
    if most is not None:
        hows = [dice.choice(hows)]
    return [
        *(partial(struck_at, step, how) for how in hows for step in steps),
        *(partial(interrupt_at, point) for point in points),
    ]


def is_left(store: Path) -> bool:
    """Whether no process has the store open; if one has, drop what nobody uses: a thread may just have ended."""
    if not any(held_in(store / name) for name in ("lock", "members", "heads")):
        return True
    gc.collect()
    return False


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # CPython drops it in a __del__
@pytest.mark.parametrize("most", [5, pytest.param(None, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", OLD)
def test_an_interrupted_upgrade_holds_no_lock_and_the_next_open_finishes_it(
    name: str, most: int | None, tmp_path: Path
) -> None:
    """In `make soak` at every step, and at a thousand of the points."""
    with memory_directory(tmp_path) as scratch:
        golden, found = unpacked(name, scratch / "golden")
        old = formats_of(str(golden))
        interrupted, seen, where = 0, set(), ""
        for number, strike in enumerate(strikes_at(golden, scratch / "counted", most)):
            store = shutil.copytree(golden, scratch / str(number))
            trusted(store)
            try:
                with strike():
                    klamm.open(store).close()
            except (KeyboardInterrupt, Injected) as error:
                interrupted += 1
                where = "".join(traceback.format_exception(error))
                error.__traceback__ = None  # which refers to all that was being opened
            seen.add(formats_of(str(store)))
            until(lambda store=store: is_left(store), f"{strike}: no lock is held\n{where}")  # type: ignore[misc]
            with klamm.open(store, busy_timeout=5) as opened:
                assert opened.check().ok, strike
            assert formats_of(str(store)) == TODAY
            assert found_in(store) == found, strike
            shutil.rmtree(store)
        assert interrupted > 3
        assert seen <= {old, TODAY, Formats(TODAY.database, old.heads)}


@pytest.mark.parametrize("name", OLD)
def test_an_upgrade_waits_until_every_process_has_closed_the_store(name: str, tmp_path: Path) -> None:
    store, found = unpacked(name, tmp_path)
    trusted(store)
    before = (store / "heads").read_bytes(), formats_of(str(store))
    for file, byte in ((store / "lock", IN_LOCK), (store / "members", PRESENCE), (store / "heads", 1 << 40)):
        with closing(LockFile(str(file), create=False)) as other:
            assert other.try_hold(byte, shared=True)  # as a process of the older Klamm does
            with pytest.raises(StoreBusy, match="older format"):
                klamm.open(store)
    assert ((store / "heads").read_bytes(), formats_of(str(store))) == before
    assert found_in(store) == found


@pytest.mark.parametrize("name", OLD)
def test_klamm_upgrade_tells_what_it_would_do_and_does_it(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, found = unpacked(name, tmp_path)
    old = formats_of(str(store))
    assert old != TODAY
    with pytest.raises(StoreError, match="an older Klamm wrote"):
        klamm.open(store, read_only=True)
    assert run(["upgrade", str(store), "--check"]) == 1
    assert f"format {old.database}; this Klamm writes {TODAY.database}" in capsys.readouterr().out
    assert formats_of(str(store)) == old
    assert run(["upgrade", str(store)]) == 0
    assert f"format {TODAY.database}, was {old.database}" in capsys.readouterr().out
    assert run(["upgrade", str(store), "--check"]) == 0
    assert formats_of(str(store)) == TODAY
    assert found_in(store) == found


@pytest.mark.parametrize("name", OLD)
def test_the_progress_of_an_upgrade_ends_with_the_last_partition(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, found = unpacked(name, tmp_path)
    seen: list[tuple[int, int | None]] = []
    monkeypatch.setattr("klamm.cli.upgrade.progress", lambda *_: nullcontext(lambda *each: seen.append(each)))
    assert run(["upgrade", str(store)]) == 0
    count = sum(len(topic["partitions"]) for topic in found["topics"].values())
    assert seen == [(done, count) for done in range(count + 1)]


@pytest.mark.parametrize("name", OLD)
def test_slots_of_topics_that_were_deleted_before_an_upgrade_are_used_again(name: str, tmp_path: Path) -> None:
    store, found = unpacked(name, tmp_path)
    klamm.open(store).close()
    size = os.path.getsize(store / "heads")
    with klamm.open(store) as opened:
        opened.topics.create("new", 2)  # as many as had the topic that was deleted
        assert os.path.getsize(store / "heads") == size and opened.check().ok
        opened.topics.delete("new")
    assert found_in(store) == found


def newer_database(store: Path) -> None:
    with closing(sqlite3.connect(store / "klamm.db")) as connection:
        connection.execute(f"PRAGMA user_version={TODAY.database + 1}")


def newer_heads(store: Path) -> None:
    head.Heads(str(store / "heads")).set_format(TODAY.heads + 1, (0, 0, 0))


@pytest.mark.parametrize("newer", [newer_database, newer_heads])
def test_a_newer_format_is_refused_and_nothing_is_changed(tmp_path: Path, newer: Any) -> None:
    store = tmp_path / "store"
    with klamm.open(store) as opened:
        opened.topics.create("orders")
        opened.append("orders", b"x")
    newer(store)
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file() and path.suffix != ".db-shm"}
    for read_only in (False, True):
        with pytest.raises(NewerFormat, match="knows formats up to"):
            klamm.open(store, read_only=read_only)
    with pytest.raises(NewerFormat):
        formats_of(str(store))
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize("where", ["heads", "klamm.db"])
@pytest.mark.parametrize("kind", Features._fields)
def test_a_feature_that_is_not_known_is_refused_as_its_kind_says(
    tmp_path: Path, where: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    with klamm.open(store) as opened:
        opened.topics.create("orders")
        opened.append("orders", b"x")
        features = Features()._replace(**{kind: 1 << 40})
        if where == "heads":
            opened._acquired().heads.set_format(TODAY.heads, features)
        else:
            catalog = opened._acquired().catalog
            with catalog.database.db_lock(), catalog.database.transaction() as execute:
                catalog.set_meta(execute, "features", str(features))
    for read_only in (False, True):
        if kind == "compatible" or (kind == "read_compatible" and read_only):
            with klamm.open(store, read_only=read_only) as opened:
                assert opened.topics.describe("orders").partitions[0].end == 1
        else:
            with pytest.raises(NewerFormat, match="0x10000000000"):
                klamm.open(store, read_only=read_only)
    for command in (["--check"], []):
        assert (run(["upgrade", str(store), *command]) == 0) is (kind == "compatible")
        assert ("0x10000000000" in capsys.readouterr().err) is (kind != "compatible")
    assert (run(["info", str(store)]) == 0) is (kind != "incompatible")


def test_formats_of_a_new_store_are_todays(tmp_path: Path) -> None:
    klamm.open(tmp_path / "store").close()
    assert formats_of(str(tmp_path / "store")) == TODAY == Formats(TODAY.database, head.FORMAT)


@pytest.mark.parametrize("name", OLD)
def test_no_owner_of_an_older_format_is_left_with_klamm_db_or_without_it(name: str, tmp_path: Path) -> None:
    for is_lost in (False, True):
        store, _ = unpacked(name, tmp_path / str(is_lost))
        trusted(store)
        assert head.Heads(str(store / "heads"), writable=False).owners()
        if is_lost:
            for path in store.glob("klamm.db*"):
                path.unlink()
            klamm.check(store, repair=True)
        else:
            klamm.open(store).close()
        assert formats_of(str(store)) == TODAY
        assert head.Heads(str(store / "heads"), writable=False).owners() == []


def become(by: int) -> None:
    """Make this process one of a later (1) or of an earlier (-1) Klamm: the same but for the numbers of its formats."""
    for module in (database, catalog):
        setattr(module, "FORMAT_VERSION", TODAY.database + by)  # noqa: B010  # one has it of the other
    head.FORMAT = TODAY.heads + by

    def upgrade_database(self: Catalog, before: Callable[[], None]) -> None:
        before()
        with self.database.db_lock(), self.database.transaction() as execute:
            execute(f"PRAGMA user_version={TODAY.database + by}")

    Catalog._upgrade = upgrade_database  # type: ignore[method-assign]


def append(store: Path, value: bytes, by: int = 0, read_only: bool = False) -> str:
    """In a process of such a Klamm: append a record; why not, if it is refused."""
    if by:
        become(by)
    try:
        with klamm.open(store, read_only=read_only) as opened:
            if not read_only:
                opened.append("orders", value)
            return ""
    except KlammError as error:
        return str(error)


def test_processes_of_other_formats_on_one_store_each_get_a_sentence(tmp_path: Path) -> None:
    """A process that has the store open, an older one, a newer one and one whose klamm.db is another program's."""
    store = tmp_path / "store"

    def ask(value: bytes, by: int = 0, read_only: bool = False) -> str:
        with children() as start:
            return str(start(lambda: append(store, value, by, read_only)).answer())

    with klamm.open(store) as opened:
        opened.topics.create("orders")
        opened.append("orders", b"ours")
        assert "has to be upgraded, but another process has the store open" in ask(b"newer", 1)
        for read_only in (False, True):
            said = ask(b"older", -1, read_only)
            assert f"has format {TODAY.heads}, this Klamm knows formats up to {TODAY.heads - 1}" in said
            assert "open it with a newer Klamm" in said
        opened.append("orders", b"ours, too")
        assert values(opened, "orders") == [b"ours", b"ours, too"]
    assert ask(b"newer", 1) == ""
    for read_only in (False, True):
        said = ask(b"ours", 0, read_only)
        assert f"has format {TODAY.heads + 1}, this Klamm knows formats up to {TODAY.heads}" in said
    assert ask(b"newer again", 1) == "", "none of those that were refused changed anything"

    def look() -> list[bytes]:
        become(1)
        with klamm.open(store) as opened:
            return values(opened, "orders")

    with children() as start:
        assert start(look).answer() == [b"ours", b"ours, too", b"newer", b"newer again"]
    with closing(
        sqlite3.connect(tmp_path / "theirs")
    ) as connection:  # its inode is another, as klamm.db is still there
        connection.execute("CREATE TABLE theirs (x)")
        connection.commit()
    for path in store.glob("klamm.db*"):
        path.unlink()
    os.replace(tmp_path / "theirs", store / "klamm.db")
    said = ask(b"foreign", 1)
    assert "of another program" in said
    assert (store / "klamm.db").exists()
