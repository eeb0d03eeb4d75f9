"""Files: durable replacement, directories, and which file systems are trusted.

A name is durable when its directory is synced; bytes are durable when their file is. `replace` does both, in an order
that leaves either the old file or the new one, complete, after a power cut at any point.

Modes: a new file or directory of a store gets the permissions of its parent directory (disk/os.h). So a store that
Klamm creates, with mode 0700, is its owner's, and one in a directory of mode 2770 is shared by a group.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress

from klamm.disk import _os, copy_on_write
from klamm.errors import DiskFull, StoreError, UnsupportedFilesystem

__all__ = [
    "PIECE",
    "TooLarge",
    "check_trusted",
    "disk_full",
    "filesystem_of",
    "make_directories",
    "make_directory",
    "most_open",
    "number_in_name",
    "pieces",
    "read",
    "remove",
    "rename_directory",
    "replace",
    "set_times",
    "sync_ancestors",
    "sync_directory",
    "sync_file",
]

# File systems on which byte-range locks, mapped files and fsync work between processes of one machine, a full disk
# included: tests run on ext4, xfs, tmpfs and overlay. btrfs is trusted where files are written in place.
TRUSTED = frozenset(
    {"ext2", "ext3", "ext4", "overlay", "ramfs", "tmpfs", "xfs"} if sys.platform != "win32" else {"ntfs"}
)
_NETWORK = re.compile(r"nfs|cifs|smb|9p|ceph|gluster|lustre|afs|fuse\.sshfs")
_LOCAL = frozenset({"bcachefs", "f2fs", "hfs", "hfsplus", "jfs", "nilfs2", "reiserfs", "zfs"})
_MAX_DIGITS = 20
_MAX_SIZE = 256 << 20
PIECE = 4 << 20


class TooLarge(StoreError):
    """A file is larger than the one that belongs there can be."""


def read(path: str, *, max_size: int = _MAX_SIZE) -> bytes:
    """Return the contents of a file. Raise TooLarge beyond `max_size` bytes: a sparse file may claim any size."""
    fd = _os.open_file(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        if size > max_size:
            raise TooLarge(
                f"{path}: has {size} bytes, expected at most {max_size}",
                hint="put the file back from a backup: Klamm did not write this one",
            )
        return _os.pread(fd, size, 0)
    finally:
        os.close(fd)


def pieces(path: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
    """Yield the bytes [start, end) of a file, as far as it has them, in pieces of PIECE bytes."""
    fd = _os.open_file(path, os.O_RDONLY)
    try:
        end = os.fstat(fd).st_size if end is None else end
        while start < end and (data := _os.pread(fd, min(PIECE, end - start), start)):
            yield data
            start += len(data)
    finally:
        os.close(fd)


def number_in_name(name: str, digits: int = 1) -> int | None:
    """Return the number that a file or directory is named by, with zeros before it up to `digits`.

    None for every other name: names may be anybody's. So no two names are one number, and each number fits an int64.
    """
    if not name.isascii() or not name.isdigit() or len(name) > _MAX_DIGITS:
        return None
    number = int(name)
    return number if number < 1 << 63 and f"{number:0{digits}}" == name else None


def replace(path: str, data: bytes | Iterable[bytes]) -> None:
    """Replace the file at `path` by `data`, or pieces of it, durably.

    A crash leaves either the old file or the new one, complete.
    """
    temporary = f"{path}.new"
    try:
        fd = _os.open_file(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            position = 0
            for piece in (data,) if isinstance(data, bytes) else data:
                _os.pwrite(fd, piece, position)
                position += len(piece)
            _os.fsync(fd)
        finally:
            os.close(fd)
        _os.rename(temporary, path)
    except OSError as error:
        with suppress(OSError):
            os.unlink(temporary)
        raise disk_full(error, path) from error
    sync_directory(os.path.dirname(path))


def disk_full(error: OSError, path: str) -> Exception:
    """Return ENOSPC and EDQUOT as DiskFull, every other error as it is."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"{path}: no space left on the device", hint="free some space and try again")
    return error


def sync_file(path: str) -> None:
    fd = _os.open_file(path, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)
    try:
        _os.fsync(fd)
    finally:
        os.close(fd)


def sync_directory(path: str) -> None:
    """Make the names in a directory durable. On Windows there is nothing to do: renames are written through."""
    if sys.platform == "win32":
        return
    fd = _os.open_file(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        _os.fsync(fd)
    finally:
        os.close(fd)


def sync_ancestors(path: str) -> None:
    """Make the names in the path durable, where this user may, up to the root of the file system."""
    parent = os.path.dirname(os.path.abspath(path))
    with suppress(OSError):
        while parent != path and os.stat(parent).st_dev == os.stat(path).st_dev:
            sync_directory(parent)
            path, parent = parent, os.path.dirname(parent)


def make_directory(path: str) -> None:
    """Create a directory unless it exists; its name is durable once its parent is synced."""
    with suppress(FileExistsError):
        _os.mkdir(path)


def make_directories(path: str) -> None:
    """Create a directory of a store, and missing ones above it, each with the permissions of its parent."""
    if not os.path.isdir(path):
        make_directories(os.path.dirname(path))
        make_directory(path)


def remove(path: str) -> None:
    """Unlink the file if it exists."""
    with suppress(FileNotFoundError):
        _os.unlink(path)


def rename_directory(path: str, to: str) -> str:
    """Rename a directory and return its path: on Windows the old one while a file in it is open."""
    try:
        _os.rename(path, to)
    except PermissionError:
        if sys.platform == "win32":
            return path
        raise
    return to


def set_times(fd: int, status: os.stat_result) -> None:
    """Make an open file as old as another one."""
    if sys.platform == "win32":
        _set_times(fd, status)
    else:
        os.utime(fd, ns=(status.st_atime_ns, status.st_mtime_ns))


def most_open() -> int:
    """Return how many descriptors this process may have open."""
    if sys.platform == "win32":
        return 8192  # of the C runtime
    import resource

    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def filesystem_of(path: str) -> str:
    """Return the type of the file system of `path`, as /proc/self/mountinfo or Windows names it, or "unknown"."""
    if sys.platform == "win32":
        return _volume_of(path)
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape", newline="\n") as file:
            lines = file.readlines()
    except OSError:
        return "unknown"
    path = os.path.realpath(path)
    best, kind = "", "unknown"
    for line in lines:
        mount, _, rest = line.partition(" - ")
        field = mount.split(" ")[4]  # the kernel escapes spaces, but not everything that Python takes for white space
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), field)
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):  # a later mount on the same point hides the earlier one
            best, kind = point, rest.split()[0]
    return kind


if sys.platform == "win32":

    def _volume_of(path: str) -> str:
        import ctypes

        kernel = ctypes.windll.kernel32
        root, kind = ctypes.create_unicode_buffer(1024), ctypes.create_unicode_buffer(64)
        if not kernel.GetVolumePathNameW(os.path.realpath(path), root, 1024):
            return "unknown"
        if kernel.GetDriveTypeW(root) == 4:  # DRIVE_REMOTE
            return "smb"
        kernel.GetVolumeInformationW(root, None, 0, None, None, None, kind, 64)
        return kind.value.lower() or "unknown"

    def _set_times(fd: int, status: os.stat_result) -> None:
        """Set times through this descriptor: after a call by name, its writes would change them again."""
        import ctypes
        import msvcrt

        times = status.st_atime_ns, status.st_mtime_ns
        accessed, written = (ctypes.c_uint64(ns // 100 + 116_444_736_000_000_000) for ns in times)  # since 1601
        handle = ctypes.c_void_p(msvcrt.get_osfhandle(fd))
        if not ctypes.windll.kernel32.SetFileTime(handle, None, ctypes.byref(accessed), ctypes.byref(written)):
            raise ctypes.WinError()


def check_trusted(path: str) -> None:
    """Raise UnsupportedFilesystem unless the directory `path` is on a local file system that Klamm was tested on."""
    kind = filesystem_of(path)
    unknowable = sys.platform != "win32" and not os.path.exists("/proc/self/mountinfo")
    if kind in TRUSTED or (kind == "unknown" and unknowable):
        return
    if kind == "btrfs":
        if copy_on_write.is_avoided(path):
            return
        raise UnsupportedFilesystem(
            f"{path}: on btrfs, the files of this directory are copied when they are written to: on a full disk, the"
            " kernel ends a process that appends (SIGBUS)",
            hint="let klamm.open make a new directory, which it marks so that they are not (as chattr +C does), and"
            " copy the store into it; with force_filesystem=True the risk is yours, and nothing acknowledged is lost",
        )
    if _NETWORK.match(kind):
        raise UnsupportedFilesystem(
            f"{path}: the file system {kind!r} is a network file system: locks and mapped files may not hold between"
            " processes there",
            hint="use a local disk; force_filesystem=True opens it all the same, and then only one process at a time"
            " may use the store: Klamm cannot notice a second one",
        )
    why = "was not tested" if kind in _LOCAL else "is unknown to us"
    raise UnsupportedFilesystem(
        f"{path}: the file system {kind!r} {why}: locks, mapped files or a full disk may not be handled there",
        hint="use ext4 or xfs; force_filesystem=True opens it all the same: use the store from one process at a time,"
        " and keep the disk from filling up",
    )
