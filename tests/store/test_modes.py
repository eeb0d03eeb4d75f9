"""Permissions: a store is its owner's alone, unless the directory it is made in says otherwise."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

import klamm
from tests.procs import children

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has other permissions")

GROUP, ALICE, BOB, EVE = 54_000, 54_001, 54_002, 54_003


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events"


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def fill(path: Path | str) -> None:
    """Have every kind of file."""
    with klamm.open(path) as store:
        store.topics.create("orders", 2, exist_ok=True, settings={"segment.bytes": 500})
        store.append_many("orders", [(b"k", b"v" * 100)] * 20)
        with store.transaction() as transaction:
            transaction.send("orders", b"v")
        with store.consumer("orders", group="g", wait=0) as consumer:
            consumer.poll()
            consumer.commit()
        store.maintain()


def modes(path: Path) -> dict[str, int]:
    """Return the permissions of everything below a directory. The store may be open: temporary files come and go."""
    found = {}
    for root, folders, names in os.walk(path):
        for each in (Path(root, name) for name in folders + names):
            with suppress(FileNotFoundError):
                found[str(each.relative_to(path))] = stat.S_IMODE(each.lstat().st_mode)
    return found


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_a_store_is_readable_by_its_owner_only(path: Path, tmp_path: Path, mask: int) -> None:
    with umask(mask):
        fill(path)
        with klamm.open(path) as store:
            store.backup(tmp_path / "backup")
            store.append("orders", b"v")
            for each in (path, tmp_path / "backup"):
                assert stat.S_IMODE(each.stat().st_mode) == 0o700
                found = modes(each)
                assert "klamm.db" in found and "heads" in found
                wrong = {name: oct(mode) for name, mode in found.items() if mode & 0o077}
                assert not wrong, wrong


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
@pytest.mark.parametrize("shared", [0o750, 0o770, 0o755])
def test_a_store_in_a_directory_that_was_made_for_others_is_as_open_as_that(path: Path, mask: int, shared: int) -> None:
    path.mkdir()
    path.chmod(shared)
    with umask(mask):
        fill(path)
        with klamm.open(path) as store:
            store.append("orders", b"v")
            found = modes(path)
    for name, mode in found.items():
        wanted = shared if (path / name).is_dir() else shared & 0o666
        assert mode == wanted, (name, oct(mode), oct(wanted))


@contextmanager
def shared_directory() -> Iterator[Path]:
    """A directory that a group owns, where other users can reach it: pytest's are its own."""
    path = Path(tempfile.mkdtemp(prefix="klamm-shared-", dir="/tmp"))
    try:
        os.chown(path, 0, GROUP)
        path.chmod(0o2770)
        yield path
    finally:
        shutil.rmtree(path)


def as_user(user: int, group: int, act: Callable[[], object]) -> object:
    """In a child: be another user, with the strictest umask."""
    os.umask(0o077)
    os.setgroups([])
    os.setgid(group)
    os.setuid(user)
    return act()


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() != 0, reason="only root can become other users")
def test_two_users_of_a_group_share_a_store_and_others_cannot_read_it(tmp_path: Path) -> None:
    def use(path: Path) -> int:
        fill(path)
        with klamm.open(path) as store:
            assert store.check().ok
            with store.consumer("orders", wait=0) as consumer:
                return sum(1 for _ in consumer)

    def peep(path: Path) -> str:
        found = []
        for read_only in (False, True):
            try:
                klamm.open(path, read_only=read_only)
            except (klamm.KlammError, OSError) as error:
                found.append(type(error).__name__)
        for root, _, names in os.walk(path):
            found += [str(Path(root, name)) for name in names if os.access(Path(root, name), os.R_OK)]
        return ", ".join(found)

    use(tmp_path / "events")  # imports what other users may not be able to read
    with shared_directory() as path, children() as start:
        for user, count in ((ALICE, 21), (BOB, 42), (ALICE, 63)):
            answer = start(partial(as_user, user, GROUP, partial(use, path))).answer()
            assert answer == count, answer
        refused = start(lambda: as_user(EVE, EVE, lambda: peep(path))).answer()
        assert refused == "ReadOnly, ReadOnly", "and it can read no file"
