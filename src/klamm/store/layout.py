"""The layout of a store's directory, and the checks before anything in it is touched."""

from __future__ import annotations

import os

from klamm.disk import copy_on_write, files
from klamm.errors import NotAStore, ReadOnly

__all__ = ["DAMAGED", "LOST", "check_before", "has_topics", "no_catalog"]

DAMAGED = "klamm.db.damaged-"
"""What a damaged klamm.db is called when it is set aside, before the time."""

LOST = "settings, offsets of groups, numbers of writers, users, ACLs, quotas and lineage"
"""What a klamm.db that is made again does not have."""

_OURS = frozenset(
    {
        "klamm.db",
        "klamm.db-wal",
        "klamm.db-shm",
        "klamm.db-journal",
        "heads",
        "lock",
        "members",
        "orphans",
        "pipelines",
        "reserve",
        "server",
        "staging",
        "tables",
        "topics",
    }
)


def has_topics(path: str) -> bool:
    return os.path.isdir(f"{path}/topics") and bool(os.listdir(f"{path}/topics"))


def no_catalog(path: str) -> NotAStore:
    return NotAStore(
        f"{path}/klamm.db: is missing, but there are topics in {path}/topics",
        hint="put klamm.db back; or run `klamm check --repair`, which makes a new one from the directories in topics/: "
        f"no record is lost, but {LOST} are",
    )


def check_before(path: str, *, read_only: bool, create: bool, force_filesystem: bool) -> None:
    """Raise if the directory is neither a store nor can become one, before anything is touched."""
    if not os.path.exists(path):
        if read_only or not create:
            raise NotAStore(
                f"{path}: there is nothing here", hint="open it with create=True, for writing", code="nothing_here"
            )
        try:
            os.makedirs(path, mode=0o700, exist_ok=True)  # synced before klamm.db is made
        except OSError as error:
            raise ReadOnly(f"{path}: cannot be created: {error.strerror}") from error
    if not os.path.isdir(path):
        raise NotAStore(f"{path}: is a file; a store is a directory")
    if not read_only:
        copy_on_write.try_to_avoid(path)
    if not force_filesystem:
        files.check_trusted(path)
    try:
        names = set(os.listdir(path))
    except PermissionError as error:
        raise ReadOnly(
            f"{path}: may not be read by this user", hint="a store is its owner's; to share it, change its mode"
        ) from error
    if "klamm.db" in names:
        return
    strangers = sorted(name for name in names - _OURS if not name.endswith(".new") and not name.startswith(DAMAGED))
    if strangers:
        raise NotAStore(
            f"{path}: is not a store: it has no klamm.db, but {strangers[0]}", hint="use a new or empty directory"
        )
    if has_topics(path):
        return  # `no_catalog`, or it is rebuilt
    if read_only or not create:
        raise NotAStore(f"{path}: is not a store: it has no klamm.db", hint="open it with create=True, for writing")
