"""Find the store of a command: --store, else $KLAMM_STORE, else the current directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from klamm.api.store import looks_like_address
from klamm.errors import KlammError, NotAStore, ReadOnly, Unsupported

if TYPE_CHECKING:
    from klamm.api import Store
    from klamm.store.directory import Core

__all__ = [
    "CreateOption",
    "FromOption",
    "OffsetResetOption",
    "PartitionOption",
    "PathArgument",
    "StoreOption",
    "TopicArgument",
    "check_directory",
    "core_of",
    "found_path",
    "is_store",
    "opened",
    "path_of",
    "some_groups",
    "some_topics",
]


_COPY = "klamm copy brings topics of a server or cluster into a directory"


def some_topics(context: typer.Context, incomplete: str) -> list[str]:
    """Return topics whose names start with `incomplete`, for completion in a shell."""
    return _names(context, lambda store: store.topics, incomplete)


def some_groups(context: typer.Context, incomplete: str) -> list[str]:
    """Like `some_topics`, for groups."""
    return _names(context, lambda store: store.groups, incomplete)


def _names(context: typer.Context, names_of: Callable[[Store], Iterable[str]], incomplete: str) -> list[str]:
    try:
        with opened(context.params.get("store"), read_only=True) as store:
            return [name for name in names_of(store) if name.startswith(incomplete)]
    except (KlammError, OSError):
        return []  # errors between two key strokes are not shown


StoreOption = Annotated[
    str | None,
    typer.Option("--store", "-s", metavar="PATH", envvar="KLAMM_STORE", help="The store. [default: this directory]"),
]
TopicArgument = Annotated[
    str, typer.Argument(metavar="TOPIC", help="The topic.", show_default=False, autocompletion=some_topics)
]
PathArgument = Annotated[
    str | None, typer.Argument(metavar="[PATH]", help="The store. [default: $KLAMM_STORE, else this directory]")
]
CreateOption = Annotated[bool, typer.Option("--create", help="Create the store and the topic if absent.")]
FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        "--since",
        metavar="WHERE",
        help="Start: earliest, latest, 4711 (an offset), 15m (ago), 2026-11-15T10:00, 'last 10'.",
    ),
]
OffsetResetOption = Annotated[
    str | None,
    typer.Option(
        metavar="earliest|latest|error",
        help="Where to start if the group has no offset, or one that is gone. [default: earliest; gone: an error]",
    ),
]
PartitionOption = Annotated[
    int | None, typer.Option("-p", "--partition", metavar="N", help="Only this partition.", min=0)
]


def path_of(given: str | None) -> str:
    """Return the path of the store, as it was given."""
    return given or os.environ.get("KLAMM_STORE") or "."


def check_directory(given: str | None, command: str, hint: str = _COPY) -> None:
    """Raise Unsupported if the store is a server or a cluster, and the command is for a directory."""
    path = path_of(given)
    if path.startswith(("kafka://", "klamm://")):
        raise Unsupported(f"{command}: {path.partition('?')[0]}: this command is for a store in a directory", hint=hint)


def is_store(path: str | Path) -> bool:
    return Path(path, "klamm.db").exists()


def found_path(given: str | None) -> str:
    """Like `path_of`, but raise NotAStore, which says how to name one, if no store is there."""
    path = path_of(given)
    if "://" not in path and not is_store(path):
        what = "this directory: is not a store" if path == "." else f"{path}: is not a store"
        if not Path(path).exists():
            what = f"{path}: no such directory"
        elif not Path(path).is_dir():
            what = f"{path}: is a file, and a store is a directory"
        hint = "name one by --store or KLAMM_STORE; klamm topic create makes one, and so does klamm serve"
        usual = path_of(None)
        if given is not None and os.sep not in given and is_store(usual):
            hint = f"a path of a store is expected here; without it: {usual}"
        if looks_like_address(path):
            hint = f"for the server, say kafka://{path}"
        raise NotAStore(what, hint=hint)
    return path


@contextmanager
def opened(given: str | None, *, create: bool = False, looks: bool = False, read_only: bool = False) -> Iterator[Store]:
    """Open the store. Only commands that create things create it; those that only read need no right to write it."""
    import klamm

    path = path_of(given) if create else found_path(given)
    try:
        store = klamm.open(path, create=create, read_only=read_only)
    except ReadOnly:
        if not looks:
            raise
        store = klamm.open(path, read_only=True)
    with store:
        yield store


def core_of(store: Store) -> Core:
    """Return what the layers below the API work with."""
    return store._acquired()
