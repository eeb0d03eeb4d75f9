"""System calls are steps that tests can count, fail, and die at."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from klamm.disk import _os
from tests.procs import children
from tests.rig import Rig, batch, wait_any

KINDS = {
    "LOCK": _os.LOCK,
    "OPEN": _os.OPEN,
    "WRITE": _os.WRITE,
    "TRUNCATE": _os.TRUNCATE,
    "SYNC": _os.SYNC,
    "RENAME": _os.RENAME,
    "UNLINK": _os.UNLINK,
    "MKDIR": _os.MKDIR,
    "READ": _os.READ,
}
UNSEEN = {"LOCK", "SYNC", "READ"}  # steps that leave nothing to see in a directory


@pytest.fixture(autouse=True)
def _no_trap() -> Iterator[None]:
    yield
    _os.trap(0)


def act(kind: str, path: Path) -> Callable[[], object]:
    """One step of that kind, on files made beforehand."""
    (path / "old").write_bytes(b"0123456789")
    fd = _os.open_file(path / "old", os.O_RDWR)
    return {
        "LOCK": lambda: _os.lock_byte(fd, 7),
        "OPEN": lambda: os.close(_os.open_file(path / "new", os.O_RDWR | os.O_CREAT)),
        "WRITE": lambda: _os.pwrite(fd, b"ABCD", 2),
        "TRUNCATE": lambda: _os.truncate(fd, 3),
        "SYNC": lambda: (_os.fsync(fd), _os.fdatasync(fd)),
        "RENAME": lambda: _os.rename(path / "old", path / "new"),
        "UNLINK": lambda: _os.unlink(path / "old"),
        "MKDIR": lambda: _os.mkdir(path / "new"),
        "READ": lambda: _os.pread(fd, 4, 0),
    }[kind]


def look(path: Path) -> dict[str, bytes | None]:
    return {entry.name: entry.read_bytes() if entry.is_file() else None for entry in path.iterdir()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_trapped_step_fails_once_with_its_errno_and_does_nothing(tmp_path: Path, kind: str) -> None:
    action = act(kind, tmp_path)
    before = look(tmp_path)
    _os.trap(1, kinds=KINDS[kind], error=errno.EIO)
    with pytest.raises(OSError) as caught:
        action()
    assert caught.value.errno == errno.EIO
    assert look(tmp_path) == before
    action()
    assert look(tmp_path) != before or kind in UNSEEN


@pytest.mark.parametrize("kind", KINDS)
def test_a_trap_lets_steps_of_other_kinds_pass(tmp_path: Path, kind: str) -> None:
    action = act(kind, tmp_path)
    _os.trap(1, kinds=_os.ALL & ~KINDS[kind], error=errno.EIO, repeat=True)
    action()
    assert _os.steps_taken() == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_trap_with_a_signal_kills_the_process_before_the_step(tmp_path: Path, kind: str) -> None:
    action = act(kind, tmp_path)
    before = look(tmp_path)

    def run() -> None:
        _os.trap(1, kinds=KINDS[kind], signal=signal.SIGKILL)
        action()

    with children() as start:
        status = start(run).ended()
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert look(tmp_path) == before


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_step_is_made_again_unnoticed(tmp_path: Path, kind: str) -> None:
    action = act(kind, tmp_path)
    _os.trap(1, kinds=KINDS[kind], error=errno.EINTR)
    action()
    assert _os.steps_taken() >= 1
    if kind == "WRITE":
        assert (tmp_path / "old").read_bytes() == b"01ABCD6789"


def test_every_kind_is_in_the_table_of_kinds() -> None:
    assert sum(KINDS.values()) | _os.STORE | _os.WAKE == _os.ALL


def test_a_trap_springs_at_the_nth_step_and_no_other(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    _os.trap(3, kinds=_os.SYNC, error=errno.ENOSPC)
    failed = []
    for number in range(1, 7):
        try:
            _os.fsync(fd)
        except OSError as error:
            failed.append((number, error.errno))
    assert failed == [(3, errno.ENOSPC)]


def test_a_repeated_trap_fails_every_later_step_until_it_is_lifted(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    _os.trap(2, kinds=_os.SYNC, error=errno.EIO, repeat=True)
    _os.fsync(fd)
    for _ in range(5):
        with pytest.raises(OSError):
            _os.fsync(fd)
    _os.trap(0)
    _os.fsync(fd)


def test_a_trap_without_signal_and_error_only_counts(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.pwrite(fd, b"0123456789", 0)
    _os.trap(1 << 60, kinds=_os.SYNC | _os.READ)
    for number in range(4):
        _os.fsync(fd)
        _os.pread(fd, 10, 0)
        _os.pwrite(fd, b"x", number)
    assert _os.steps_taken() == 8


def test_a_write_killed_halfway_leaves_the_first_half(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)

    def run() -> None:
        _os.trap(2, kinds=_os.WRITE, signal=signal.SIGKILL)
        _os.pwrite(fd, b"0123456789", 0)

    with children() as start:
        assert os.WIFSIGNALED(start(run).ended())
    assert (tmp_path / "file").read_bytes() == b"01234"


def test_a_write_that_fails_halfway_has_written_the_first_half(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    _os.trap(2, kinds=_os.WRITE, error=errno.ENOSPC)
    with pytest.raises(OSError) as caught:
        _os.pwrite(fd, b"0123456789", 0)
    assert caught.value.errno == errno.ENOSPC
    assert (tmp_path / "file").read_bytes() == b"01234"
    _os.pwrite(fd, b"0123456789", 0)
    assert (tmp_path / "file").read_bytes() == b"0123456789"


def test_a_read_at_the_end_of_the_file_gives_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    assert _os.pread(fd, 100, 4) == b"456789"
    assert _os.pread(fd, 100, 10) == b""
    assert _os.pread(fd, 0, 0) == b""


def test_errors_name_the_path(tmp_path: Path) -> None:
    for action in (_os.unlink, lambda path: _os.rename(path, path), lambda path: _os.open_file(path, os.O_RDONLY)):
        with pytest.raises(FileNotFoundError) as caught:
            action(tmp_path / "none")
        assert caught.value.filename == tmp_path / "none"


def test_descriptors_are_not_inherited_by_programs(tmp_path: Path) -> None:
    assert not os.get_inheritable(_os.open_file(tmp_path / "file", os.O_RDWR | os.O_CREAT))


def test_stores_into_mapped_files_are_steps_too(tmp_path: Path) -> None:
    """Killed at a store, the process has not made it; the native modules share one trap."""
    rig = Rig(tmp_path, slots=2)
    before = rig.heads.catalog_version

    def bump() -> None:
        _os.trap(2, kinds=_os.STORE, signal=signal.SIGKILL)
        for _ in range(3):
            rig.heads.bump_catalog_version()

    with children() as start:
        assert os.WIFSIGNALED(start(bump).ended())
    assert rig.heads.catalog_version == before + 1


def test_ringing_the_bell_is_a_step_when_somebody_listens(tmp_path: Path) -> None:
    rig = Rig(tmp_path, slots=2)
    partition = rig.partition(1)
    _os.trap(1 << 60, kinds=_os.WAKE)
    partition.append(batch(0, 0))
    assert _os.steps_taken() == 0
    assert not wait_any(rig.heads, [partition.log], [partition.log.seq], 1000)
    partition.append(batch(0, 1))
    assert _os.steps_taken() == 1
