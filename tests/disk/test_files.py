"""Durable replacement, and which file systems are trusted."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.disk import _os, files
from klamm.errors import DiskFull, UnsupportedFilesystem
from klamm.store import directory
from tests.rig import dies, killed_at


@pytest.fixture(autouse=True)
def _no_trap() -> Iterator[None]:
    yield
    _os.trap(0)


# ---- replacing a file


@pytest.mark.parametrize("old", [b"old " * 50, None], ids=["replaced", "new"])
def test_a_replacement_killed_at_any_step_leaves_the_old_file_or_the_new_one_whole(
    tmp_path: Path, old: bytes | None
) -> None:
    new = b"new " * 70
    step, alive, seen = 0, False, set()
    while not alive:
        step += 1
        path = tmp_path / f"{step}"
        if old is not None:
            path.write_bytes(old)
        alive = not dies(killed_at(step, lambda path=path: files.replace(str(path), new)))  # type: ignore[misc]
        found = path.read_bytes() if path.exists() else None
        assert found in (old, new)
        seen.add(found)
        files.replace(str(path), b"newer")  # what the dead one left behind is in nobody's way
        assert path.read_bytes() == b"newer"
        assert sorted(entry.name for entry in tmp_path.iterdir() if entry.name.startswith(f"{step}.")) == []
    assert seen == {old, new}
    assert step > 6


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_replacement_that_fails_at_any_step_leaves_the_old_file_or_the_new_one_and_no_litter(
    tmp_path: Path, code: int
) -> None:
    path = tmp_path / "file"
    failures = 0
    for step in range(1, 20):
        files.replace(str(path), b"old")
        _os.trap(step, error=code)
        failed: Exception | None = None
        try:
            files.replace(str(path), b"new and longer")
        except (DiskFull, OSError) as error:
            failed = error
        _os.trap(0)
        failures += failed is not None
        assert failed is not None or path.read_bytes() == b"new and longer"
        assert not isinstance(failed, DiskFull) or code == errno.ENOSPC
        assert path.read_bytes() in (b"old", b"new and longer")
        assert os.listdir(tmp_path) == ["file"]
    assert failures > 5


def test_a_full_disk_is_told_apart_from_other_errors() -> None:
    for code in (errno.ENOSPC, errno.EDQUOT):
        assert isinstance(files.disk_full(OSError(code, "full"), "/x"), DiskFull)
    other = OSError(errno.EIO, "bad")
    assert files.disk_full(other, "/x") is other


def test_directories_and_removals_may_be_repeated(tmp_path: Path) -> None:
    for _ in range(2):
        files.make_directory(str(tmp_path / "a"))
        files.remove(str(tmp_path / "none"))
    files.sync_directory(str(tmp_path))
    (tmp_path / "a" / "file").write_bytes(b"x" * 100_000)
    files.sync_file(str(tmp_path / "a" / "file"))
    assert files.read(str(tmp_path / "a" / "file")) == b"x" * 100_000


def test_a_file_of_any_size_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    assert files.read(str(path), max_size=100) == b"x" * 100
    with pytest.raises(files.TooLarge, match="has 100 bytes, expected at most 99"):
        files.read(str(path), max_size=99)
    os.truncate(path, 1 << 40)
    with pytest.raises(files.TooLarge):
        files.read(str(path))


def test_pieces_are_the_file_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PIECE", 7)
    path, copy, data = str(tmp_path / "file"), str(tmp_path / "copy"), bytes(range(100))
    files.replace(path, data)
    for start, end in ((0, None), (0, 100), (3, 50), (50, 1000), (100, None), (9, 9)):
        pieces = list(files.pieces(path, start, end))
        assert b"".join(pieces) == data[start:end] and all(len(piece) <= 7 for piece in pieces)
    files.replace(copy, files.pieces(path, 3, 50))
    assert files.read(copy) == data[3:50]


@pytest.mark.parametrize(
    "name", ["", "-1", "+1", " 1", "1_0", "\u00b2", "\u0663", "9" * 20, "9" * 5000, str(2**63), "01"]
)
def test_what_is_no_number_in_a_name_is_none(name: str) -> None:
    assert files.number_in_name(name) is None


@given(st.integers(0, 2**63 - 1), st.integers(1, 20))
def test_a_number_in_a_name_is_named_by_one_name_only(number: int, digits: int) -> None:
    assert files.number_in_name(f"{number:0{digits}}", digits) == number
    assert files.number_in_name(f"0{number:0{digits}}", digits) is None


# ---- file systems

MOUNTS = (
    r"""21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw
30 21 0:5 / /proc rw,nosuid - proc proc rw
31 21 0:40 / /mnt/nas rw,relatime shared:7 master:2 - nfs4 host:/export rw,vers=4.2
32 31 8:2 / /mnt/nas/local rw,relatime - xfs /dev/sdb1 rw
33 21 0:41 / /mnt/with\040space\134and\011tab rw,relatime - cifs //host/share rw
34 21 0:42 / /mnt/twice rw - ext4 /dev/sdc1 rw
35 34 0:43 / /mnt/twice rw - fuse.sshfs host: rw
36 21 0:44 / /mnt/odd rw - wonderfs none rw
37 21 0:45 /sub /mnt/bind rw - btrfs /dev/sdd rw
""".replace("/mnt", "/no-such-mnt")
    + "38 21 0:46 / /no-such-mnt/non\u00a0breaking\u2003wide rw - 9p tag rw\n"
)


@pytest.fixture
def mounts(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(path: str, *args: object, **kwargs: object) -> io.StringIO:
        assert path == "/proc/self/mountinfo"
        return io.StringIO(MOUNTS)

    monkeypatch.setattr(files, "open", fake, raising=False)


@pytest.mark.usefixtures("mounts")
@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/no-such-home/me", "ext4"),
        ("/no-such-mnt", "ext4"),
        ("/no-such-mnt/nas", "nfs4"),
        ("/no-such-mnt/nas/deep/down", "nfs4"),
        ("/no-such-mnt/nasty", "ext4"),
        ("/no-such-mnt/nas/local/store", "xfs"),
        ("/no-such-mnt/nas/locality", "nfs4"),
        ("/no-such-mnt/with space\\and\ttab/x", "cifs"),
        ("/no-such-mnt/with", "ext4"),
        ("/no-such-mnt/twice/x", "fuse.sshfs"),
        ("/no-such-mnt/odd", "wonderfs"),
        ("/no-such-mnt/bind/a", "btrfs"),
        ("/no-such-mnt/non\u00a0breaking\u2003wide/x", "9p"),
    ],
)
def test_the_innermost_and_latest_mount_says_the_type(path: str, kind: str) -> None:
    assert files.filesystem_of(path) == kind


@pytest.mark.usefixtures("mounts")
def test_network_and_unknown_file_systems_are_refused_with_the_reason() -> None:
    files.check_trusted("/no-such-home")
    files.check_trusted("/no-such-mnt/nas/local")
    for path, why in (
        ("nas", "network"),
        ("with space\\and\ttab", "network"),
        ("twice", "network"),
        ("odd", "unknown"),
    ):
        with pytest.raises(UnsupportedFilesystem, match=why) as caught:
            files.check_trusted(f"/no-such-mnt/{path}/store")
        assert "force_filesystem" in (caught.value.hint or "")


def test_a_link_is_judged_by_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/proc")
    assert files.filesystem_of(str(tmp_path / "link" / "self")) == "proc"


def test_a_real_tmpfs_is_trusted_and_kernel_file_systems_are_not() -> None:
    assert files.filesystem_of("/dev/shm") == "tmpfs"
    files.check_trusted("/dev/shm/store")
    for path in ("/proc", "/sys"):
        with pytest.raises(UnsupportedFilesystem):
            files.check_trusted(path)


def test_a_refused_file_system_is_left_alone_and_force_opens_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "filesystem_of", lambda path: "nfs4")
    path = tmp_path / "store"
    path.mkdir()
    with pytest.raises(UnsupportedFilesystem, match="network"):
        directory.acquire(str(path), read_only=False, create=True, force_filesystem=False)
    assert os.listdir(path) == []
    core = directory.acquire(str(path), read_only=False, create=True, force_filesystem=True)
    directory.release(core)
    assert (path / "klamm.db").exists()
