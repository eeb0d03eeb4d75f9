"""Which store a command is about: --store, else $KLAMM_STORE, else the current directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from klamm.errors import NotAStore

if TYPE_CHECKING:
    from klamm.api import Store

__all__ = ["CreateOption", "PartitionOption", "PathArgument", "StoreOption", "opened", "path_of"]

StoreOption = Annotated[
    str | None,
    typer.Option("--store", "-s", metavar="PATH", envvar="KLAMM_STORE", help="The store. [default: this directory]"),
]
PathArgument = Annotated[
    str | None, typer.Argument(metavar="[PATH]", help="The store. [default: $KLAMM_STORE, else this directory]")
]
CreateOption = Annotated[bool, typer.Option("--create", help="Make the store and the topic if they are not there.")]
PartitionOption = Annotated[
    int | None, typer.Option("-p", "--partition", metavar="N", help="Only this partition.", min=0)
]


def path_of(given: str | None) -> str:
    """Where the store is, as it was said."""
    return given or os.environ.get("KLAMM_STORE") or "."


@contextmanager
def opened(given: str | None, *, create: bool = False, read_only: bool = False) -> Iterator[Store]:
    """The store. It is made only by commands that make things; NotAStore says how to name one."""
    import klamm

    path = path_of(given)
    if not create and "://" not in path and not Path(path, "klamm.db").exists():
        what = "this directory" if path == "." else path
        raise NotAStore(
            f"{what}: is not a store",
            hint="name one by --store or KLAMM_STORE; klamm topic create makes one, and so does klamm serve",
        )
    with klamm.open(path, create=create, read_only=read_only) as store:
        yield store
