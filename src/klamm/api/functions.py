"""`klamm.open` and `klamm.check`: the functions that take a path."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Never, Unpack, overload

from klamm.api.store import Store
from klamm.client.options import check_options
from klamm.errors import InvalidSetting, Unsupported

if TYPE_CHECKING:
    from klamm.api.call_options import OpenOptions
    from klamm.client.serde import Serde, SerdePair
    from klamm.store.check import Report
    from klamm.times import Duration
    from klamm.typevars import BytesKey, BytesValue, TextKey

__all__ = ["check", "open"]

_ADDRESS = "kafka://"


@overload
def open(  # noqa: A001
    path: str | os.PathLike[str],
    *,
    read_only: bool = False,
    create: bool = True,
    force_filesystem: bool = False,
    maintain_every: Duration | None = None,
    busy_timeout: Duration | None = None,
    serde: Literal["bytes"] | None = None,
    key_serde: SerdePair[BytesKey] | Literal["bytes"] | None = None,
) -> Store[BytesKey, bytes]: ...
@overload
def open(  # noqa: A001
    path: str | os.PathLike[str],
    *,
    serde: Literal["json"],
    key_serde: SerdePair[TextKey] | Literal["str"] | None = None,
    **options: Unpack[OpenOptions],
) -> Store[TextKey, Any]: ...
@overload
def open(  # noqa: A001
    path: str | os.PathLike[str],
    *,
    serde: Literal["str"],
    key_serde: SerdePair[TextKey] | Literal["str"] | None = None,
    **options: Unpack[OpenOptions],
) -> Store[TextKey, str]: ...
@overload
def open(  # noqa: A001
    path: str | os.PathLike[str],
    *,
    serde: SerdePair[BytesValue],
    key_serde: SerdePair[BytesKey] | Literal["bytes"] | None = None,
    **options: Unpack[OpenOptions],
) -> Store[BytesKey, BytesValue]: ...
@overload
def open(  # noqa: A001
    path: str | os.PathLike[str],
    *,
    serde: SerdePair[BytesValue] | Literal["bytes"] | None = None,
    key_serde: Literal["str"],
    **options: Unpack[OpenOptions],
) -> Store[str, BytesValue]: ...
@overload
def open(  # noqa: A001
    path: str | os.PathLike[str],
    *,
    serde: Serde | None = None,
    key_serde: Serde | None = None,
    **options: Unpack[OpenOptions],
) -> Store[Any, Any]: ...
def open(  # noqa: A001  # klamm.open is what a store is opened with, as a file is with open
    path: str | os.PathLike[str],
    *,
    read_only: bool = False,
    create: bool = True,
    force_filesystem: bool = False,
    maintain_every: Duration | None = None,
    busy_timeout: Duration | None = None,
    serde: Serde | None = None,
    key_serde: Serde | None = None,
    **unknown: Never,
) -> Store[Any, Any]:
    """Open the store in a directory, creating it if needed. kafka://host:port opens a server or cluster.

    `read_only` changes nothing and takes no lock of Klamm's. (SQLite may leave an empty klamm.db-wal and -shm.)
    `force_filesystem` opens a store on a file system that is not trusted, a network one for example: with one
    process at a time, and at your own risk. `maintain_every` lets a thread call `maintain()` that often, until the
    store is closed: that compacts topics. `busy_timeout`: how long a call waits for a lock before it raises StoreBusy;
    0: not at all, math.inf: without limit, None: 30 s, or the value of another open of the store in this process. Both
    are seconds, or a timedelta. `serde` and `key_serde` are for every call of this store that has none of its own:
    "json", "str", "bytes" (the default), or a pair of callables (to bytes, from bytes).
    """
    check_options("open()", unknown, open.__kwdefaults__ or ())
    if isinstance(path, str) and path.startswith(_ADDRESS):
        from klamm.api.cluster_store import ClusterStore

        if maintain_every is not None or force_filesystem:
            which = "force_filesystem" if maintain_every is None else "maintain_every"
            raise InvalidSetting(f"{which}: is for a store in a directory", hint="leave it out")
        return ClusterStore(path, read_only=read_only, busy_timeout=busy_timeout, serde=serde, key_serde=key_serde)
    return Store(
        path,
        read_only=read_only,
        create=create,
        force_filesystem=force_filesystem,
        maintain_every=maintain_every,
        busy_timeout=busy_timeout,
        serde=serde,
        key_serde=key_serde,
    )


def check(
    path: str | os.PathLike[str], *, repair: bool = False, progress: Callable[[int, int], object] | None = None
) -> Report:
    """Verify the store at `path`; with `repair`, repair everything that can be without losing a record.

    `progress` is called with the bytes checked, and the bytes in all.
    """
    from klamm.store.check import check as check_store

    if isinstance(path, str) and path.startswith(_ADDRESS):
        raise Unsupported(
            f"{path.partition('?')[0]}: check() is for a store in a directory",
            hint="the servers of a cluster check their logs when they start",
        )
    return check_store(path, repair=repair, progress=progress)
