"""`klamm.aio.open` and `klamm.aio.check`: the functions that take a path."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Never, Unpack, overload

from klamm import api
from klamm.aio.opener import Opener
from klamm.aio.store import Store
from klamm.aio.threads import Threads, check_limit, run_alone
from klamm.client.options import check_options

if TYPE_CHECKING:
    from klamm.api.call_options import OpenOptions
    from klamm.client.serde import Serde, SerdePair
    from klamm.store.check import Report
    from klamm.times import Duration
    from klamm.typevars import BytesKey, BytesValue, TextKey

__all__ = ["check", "open"]


@overload
def open(  # noqa: A001
    path: str | os.PathLike[str],
    *,
    threads: int = 8,
    read_only: bool = False,
    create: bool = True,
    force_filesystem: bool = False,
    maintain_every: Duration | None = None,
    busy_timeout: Duration | None = None,
    serde: Literal["bytes"] | None = None,
    key_serde: SerdePair[BytesKey] | Literal["bytes"] | None = None,
) -> Opener[Store[BytesKey, bytes]]: ...
@overload
def open(  # noqa: A001
    path: str | os.PathLike[str],
    *,
    threads: int = 8,
    serde: Literal["json"],
    key_serde: SerdePair[TextKey] | Literal["str"] | None = None,
    **options: Unpack[OpenOptions],
) -> Opener[Store[TextKey, Any]]: ...
@overload
def open(  # noqa: A001
    path: str | os.PathLike[str],
    *,
    threads: int = 8,
    serde: Literal["str"],
    key_serde: SerdePair[TextKey] | Literal["str"] | None = None,
    **options: Unpack[OpenOptions],
) -> Opener[Store[TextKey, str]]: ...
@overload
def open(  # noqa: A001
    path: str | os.PathLike[str],
    *,
    threads: int = 8,
    serde: SerdePair[BytesValue],
    key_serde: SerdePair[BytesKey] | Literal["bytes"] | None = None,
    **options: Unpack[OpenOptions],
) -> Opener[Store[BytesKey, BytesValue]]: ...
@overload
def open(  # noqa: A001
    path: str | os.PathLike[str],
    *,
    threads: int = 8,
    serde: SerdePair[BytesValue] | Literal["bytes"] | None = None,
    key_serde: Literal["str"],
    **options: Unpack[OpenOptions],
) -> Opener[Store[str, BytesValue]]: ...
@overload
def open(  # noqa: A001
    path: str | os.PathLike[str],
    *,
    threads: int = 8,
    serde: Serde | None = None,
    key_serde: Serde | None = None,
    **options: Unpack[OpenOptions],
) -> Opener[Store[Any, Any]]: ...
def open(  # noqa: A001  # as klamm.open
    path: str | os.PathLike[str],
    *,
    threads: int = 8,
    read_only: bool = False,
    create: bool = True,
    force_filesystem: bool = False,
    maintain_every: Duration | None = None,
    busy_timeout: Duration | None = None,
    serde: Serde | None = None,
    key_serde: Serde | None = None,
    **unknown: Never,
) -> Opener[Store[Any, Any]]:
    """Open the store in a directory: `store = await open(…)`, or `async with open(…) as store`.

    At most `threads` calls that write, and as many that only read, run at a time; others wait for their turn.
    The other options are those of `klamm.open`.
    """
    check_options("open()", unknown, open.__kwdefaults__ or ())
    limit = check_limit(threads)

    open_store: Callable[..., api.Store[Any, Any]] = api.open

    async def start() -> Store[Any, Any]:
        reads, writes = Threads(limit, "klamm-aio-reads"), Threads(limit, "klamm-aio-writes")
        store = await writes.make(
            open_store,
            path,
            read_only=read_only,
            create=create,
            force_filesystem=force_filesystem,
            maintain_every=maintain_every,
            busy_timeout=busy_timeout,
            serde=serde,
            key_serde=key_serde,
        )
        return Store(store, reads, writes)

    return Opener(start)


async def check(
    path: str | os.PathLike[str], *, repair: bool = False, progress: Callable[[int, int], object] | None = None
) -> Report:
    """Verify the store at `path`; see `klamm.check`. `progress` is called in a thread."""
    return await run_alone(api.check, path, repair=repair, progress=progress)
