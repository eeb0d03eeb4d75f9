"""Small disks: a tmpfs that fills up, and a loop device on one whose writes fail late, at fsync. Both need root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

BLOCK = 4096


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise OSError(f"{command}: {done.stderr}")


class Disk:
    """A tmpfs at `path` with room for `size` bytes, which `fill` takes away."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ballast = path / "ballast"

    def free(self) -> int:
        status = os.statvfs(self.path)
        return status.f_bavail * status.f_bsize

    def fill(self, leave: int = 0) -> None:
        """Leave room for `leave` bytes."""
        self.release()
        with self.ballast.open("wb", buffering=0) as file:
            while (room := self.free() - leave) > 0:
                file.write(bytes(min(room, 1 << 20)))

    def release(self) -> None:
        self.ballast.unlink(missing_ok=True)

    def resize(self, size: int) -> None:
        _run("mount", "-o", f"remount,size={size}", self.path)


@contextmanager
def small_disk(path: Path, size: int) -> Iterator[Disk]:
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small tmpfs")
    path.mkdir()
    try:
        _run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path)
    except OSError as error:
        pytest.skip(f"cannot mount a tmpfs: {error}")
    try:
        yield Disk(path)
    finally:
        _run("umount", "-l", path)


class LateDisk:
    """An ext4 without a journal on a loop device on a small tmpfs: writes are taken, and fail when they are synced.

    With a journal, ext4 would go read-only instead.
    """

    def __init__(self, below: Disk, path: Path) -> None:
        self.below = below
        self.path = path
        self.image = below.path / "image"

    def mount(self) -> None:
        _run("mount", "-o", "loop", self.image, self.path)

    def unmount(self) -> None:
        """What was in memory only is gone then, for whoever mounts it again."""
        _run("umount", self.path)


@contextmanager
def late_disk(path: Path, size: int) -> Iterator[LateDisk]:
    path.mkdir()
    with small_disk(path / "below", size) as below:
        disk = LateDisk(below, path / "disk")
        disk.path.mkdir()
        with disk.image.open("wb") as file:
            file.truncate(64 << 20)
        try:
            _run("mkfs.ext4", "-q", "-O", "^has_journal", "-E", "lazy_itable_init=1,nodiscard", disk.image)
            disk.mount()
        except (OSError, FileNotFoundError) as error:
            pytest.skip(f"cannot mount ext4 on a loop device: {error}")
        try:
            yield disk
        finally:
            below.resize(80 << 20)  # so that unmounting succeeds
            below.release()
            disk.unmount()


@contextmanager
def loop_disk(path: Path, kind: str, size: int) -> Iterator[Disk]:
    """A file system of that kind on a loop device, on an image in memory."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a loop device")
    path.mkdir()
    image = Path("/dev/shm", f"klamm-{os.getpid()}-{kind}")
    quiet = {"ext4": ["-q", "-F"], "xfs": ["-q"], "btrfs": ["-q"]}[kind]
    try:
        with image.open("wb") as file:
            file.truncate(size)
        try:
            _run(f"mkfs.{kind}", *quiet, image)
            _run("mount", "-o", "loop", image, path)
        except (OSError, FileNotFoundError) as error:
            pytest.skip(f"cannot mount {kind} on a loop device: {error}")
        try:
            yield Disk(path)
        finally:
            _run("umount", "-l", path)
    finally:
        image.unlink()
