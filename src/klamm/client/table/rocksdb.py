"""A table on disk: RocksDB, through rocksdict.

    tables/<topic>-<topic id>/<generation>/     one RocksDB; the highest generation counts, the others are to be removed

      column family `default`    key -> value, as they are in the log; no key has a prefix or an encoding
      column family `applied`    partition, 4 bytes big-endian -> next offset and leader epoch, `<qi`
                                 "kept" -> when the table last had everything, ms of the store's clock, `<q`
                                 "format" -> "1"

Promises
  1  Records and how far they go are written in one write batch, and flushed together (`atomic_flush`): a table never
     has a record beyond the offsets it names, nor misses one below them.
  2  Nothing is synced: the log is the truth. After a power cut a table is an older one, or none; both are put right by
     reading the log.

RocksDB does not survive a fork: its threads are gone in the child, where opening for writing, and even closing, waits
for them forever, and its destructors at the end of the process crash. So whatever is open is leaked in a child, which
then ends without C++'s destructors, and which can follow a table, but not maintain one.

Nor does it survive the end of a process: its destructors take from its threads what those work with, and a thread that
comes back from `close` when Python is gone aborts. So everything is closed before: `close_all` in materialised.py.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Protocol

from klamm.disk import files
from klamm.errors import DiskFull, KlammError, LogError, NewerFormat, NotInstalled, ReadOnly
from klamm.types import Position

if TYPE_CHECKING:
    from rocksdict import Options, Rdict

__all__ = [
    "EmptyTable",
    "RocksTable",
    "TableBusy",
    "TableCorrupt",
    "Tree",
    "can_maintain",
    "generations",
    "leak",
    "open_follower",
    "open_maintainer",
    "require",
    "skip_destructors",
]

_FORMAT = b"1"
_APPLIED = struct.Struct("<qi")
_PARTITION = struct.Struct(">I")
_COMPLETE = struct.Struct("<q")
_CACHE_BYTES = 16 << 20
_BUFFER_BYTES = 8 << 20
_MAX_OPEN = 128  # files; a follower needs all of them open, for the maintainer may remove them at any time

# When Python is done: flush, and that is all. What is registered last runs first, before RocksDB's destructors. All is
# looked up here, since a child must not wait for the loader, which another thread of the parent may have held.
_libc: Any = ctypes.CDLL(None) if hasattr(os, "fork") else None
_AT_EXIT = (_libc._exit, _libc.fcloseall) if hasattr(_libc, "on_exit") and hasattr(_libc, "fcloseall") else ()

_used = False  # RocksDB, by this process
_used_before_fork = False


class TableBusy(Exception):
    """Another process has the files open for writing."""


class TableCorrupt(Exception):
    """The files are not a usable table: it has to be rebuilt."""


class Tree(Protocol):
    """The RocksDB operations that a table reads with."""

    def get(self, key: Any) -> Any: ...
    def items(self, start: bytes | None = None, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]: ...
    def keys(self) -> Iterator[bytes]: ...


class EmptyTable:
    """A table that does not exist yet."""

    def get(self, key: Any) -> Any:
        return None

    def items(self, start: bytes | None = None, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        return iter(())

    def keys(self) -> Iterator[bytes]:
        return iter(())


class RocksTable:
    """An open RocksDB. `get` is its own, for that is what is called most."""

    def __init__(self, db: Rdict) -> None:
        self._db = db
        self._applied = db.get_column_family("applied")
        self.get = db.get
        self.failed = False  # a write has: RocksDB takes no more until it is opened again

    def items(self, start: bytes | None = None, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield the items as of now, in the order of the keys' bytes, from `start` up to, not including, `stop`."""
        found: Any = self._db.items(from_key=start)
        # Not by a read option: rocksdict 0.3.29 frees that bound while the iterator still uses it.
        return found if stop is None else takewhile(lambda pair: pair[0] < stop, found)

    def keys(self) -> Iterator[bytes]:
        return self._db.keys()  # type: ignore[return-value]  # raw: bytes

    def position(self, partition: int) -> Position | None:
        """Return the position up to which that partition was applied; None: not at all."""
        found = self._applied.get(_PARTITION.pack(partition))
        return None if found is None else Position(*_APPLIED.unpack(found))

    def complete_ms(self) -> int | None:
        found = self._applied.get(b"kept")
        return None if found is None else int(_COMPLETE.unpack(found)[0])

    def write(self, records: dict[bytes, bytes | None], partition: int, position: Position, complete_ms: int) -> None:
        """Take over the latest values of a part of a partition, and where that part ends. None deletes."""
        batch = require().WriteBatch(raw_mode=True)
        put, delete = batch.put, batch.delete
        for key, value in records.items():
            if value is None:
                delete(key)
            else:
                put(key, value)
        applied = self._db.get_column_family_handle("applied")
        put(_PARTITION.pack(partition), _APPLIED.pack(*position), applied)
        put(b"kept", _COMPLETE.pack(complete_ms), applied)
        try:
            self._db.write(batch)
        except Exception as error:
            self.failed = True
            raise _translate_error(error, self._db.path()) from error

    def record_complete(self, now_ms: int) -> None:
        """Note that the table has everything as of now."""
        self._applied[b"kept"] = _COMPLETE.pack(now_ms)

    def catch_up(self) -> None:
        """Read what the maintainer has written since. For a follower."""
        self._db.try_catch_up_with_primary()

    def close(self) -> None:
        """Close the table. What cannot be written any more, as when the topic was deleted, the log has."""
        for each in (self._applied, self._db):
            with suppress(Exception):
                each.close()


def require() -> Any:
    """Return the package, or raise an error that says how to install it."""
    try:
        import rocksdict
    except ImportError:
        raise NotInstalled.package("rocksdict", "'klamm[table]'") from None
    return rocksdict


def generations(directory: str) -> list[int]:
    """Return the generations that exist; the last one counts."""
    try:
        return sorted(int(name) for name in os.listdir(directory) if name.isdecimal())
    except FileNotFoundError:
        return []


def can_maintain() -> bool:
    """Return whether RocksDB can write in this process."""
    return not _used_before_fork


def open_maintainer(path: str) -> RocksTable:
    """Open for writing, or create. Raise TableBusy, TableCorrupt, NewerFormat, or another of our errors."""
    global _used
    assert can_maintain()
    _used = True
    try:
        files.make_directories(path)
        options = _options(_MAX_OPEN)
        table = RocksTable(require().Rdict(path, options, column_families={"applied": options}))
    except OSError as error:
        raise _translate_error(error, path) from error
    except KlammError:
        raise
    except Exception as error:
        raise _translate_error(error, path, opening=True) from error
    known = table._applied.get(b"format")
    if known is None:
        table._applied[b"format"] = _FORMAT
    elif known != _FORMAT:
        table.close()
        _check_not_newer(known, path)
        raise TableCorrupt(f"{path}: has format {known!r}")
    return table


def _check_not_newer(known: bytes, path: str) -> None:
    """Raise NewerFormat if a newer Klamm made the table: it is not damaged, and not ours to rebuild."""
    if known.isdigit() and int(known) > int(_FORMAT):
        raise NewerFormat(
            f"{path}: the table has format {int(known)}, this Klamm knows formats up to {int(_FORMAT)}",
            hint="open it with a newer Klamm; or remove the directory: the table is made again from the log",
        )


def open_follower(path: str) -> RocksTable | None:
    """Open what another process writes; None while there is not enough of it."""
    global _used
    if not os.path.exists(f"{path}/CURRENT"):
        return None
    _used = True
    rocksdict = require()
    own = tempfile.mkdtemp(prefix="klamm-table-")  # RocksDB writes a log of its own there, and wants nothing else of it
    try:
        options = _options(-1)
        db = rocksdict.Rdict(
            path, options, column_families={"applied": options}, access_type=rocksdict.AccessType.secondary(own)
        )
        table = RocksTable(db)
        known = table._applied.get(b"format")
        if known != _FORMAT:
            table.close()
            _check_not_newer(known or b"", path)
            return None
        return table
    except NewerFormat:
        raise
    except Exception:  # noqa: BLE001  # it is being made, removed or repaired; its user tries again
        return None
    finally:
        shutil.rmtree(own, ignore_errors=True)  # at once: a process that is killed leaves nothing behind


def _options(max_open: int) -> Options:
    """Return RocksDB's options: little memory, few files, no chatter."""
    rocksdict = require()
    blocks = rocksdict.BlockBasedOptions()
    blocks.set_bloom_filter(10, False)
    blocks.set_block_cache(rocksdict.Cache(_CACHE_BYTES))
    blocks.set_cache_index_and_filter_blocks(True)
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_atomic_flush(True)
    options.set_block_based_table_factory(blocks)
    options.set_compression_type(rocksdict.DBCompressionType.lz4())
    options.set_write_buffer_size(_BUFFER_BYTES)
    options.set_max_total_wal_size(4 * _BUFFER_BYTES)
    options.set_max_open_files(max_open)
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(1)
    options.set_max_log_file_size(1 << 20)
    options.set_max_manifest_file_size(1 << 20)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    return options  # type: ignore[no-any-return]  # rocksdict is imported when it is needed


def _translate_error(error: Exception, path: str, *, opening: bool = False) -> Exception:
    """Translate RocksDB's message into an error to act on."""
    text = str(error)
    if isinstance(error, OSError):
        message = files.disk_full(error, path)
        return message if isinstance(message, DiskFull) else ReadOnly(f"{path}: cannot be written: {error.strerror}")
    if "/LOCK" in text and ("temporarily unavailable" in text or "lock hold by" in text):
        return TableBusy(text)
    if "No space left" in text or "Disk quota" in text:
        return DiskFull(f"{path}: no space left on the device", hint="the log is whole; free some space for the table")
    if "Permission denied" in text or "Read-only file system" in text:
        return ReadOnly(f"{path}: cannot be written: {text}")
    if "Too many open files" in text or not opening:
        return LogError(f"{path}: {text}")
    return TableCorrupt(text)


def leak(thing: object) -> None:
    """Leak it on purpose: to free it in a forked child would wait for threads that do not exist there."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def skip_destructors() -> None:
    """End the process without the destructors of C++, but with its status, and with what it printed."""
    for handler in _AT_EXIT:
        _libc.on_exit(handler, None)


def _in_child() -> None:
    global _used, _used_before_fork
    if _used:
        skip_destructors()
    _used, _used_before_fork = False, _used or _used_before_fork


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
