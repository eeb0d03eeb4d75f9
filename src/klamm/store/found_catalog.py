"""The state of klamm.db when a store is opened: damaged, replaced, or older than the logs beside it.

Each is an error that says what to do. With `rebuild`, which is `klamm check --repair`, the store is opened
nevertheless: a damaged klamm.db is renamed to klamm.db.damaged-<time>, and a new one is made as if it were missing; an
older one is accepted, and its consequences are repaired. Nothing in it is deleted. What a new one does not have is
reported and logged.
"""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING

from klamm.disk import _os, files
from klamm.errors import NotAStore, StoreError
from klamm.store import layout, slots, upgrade
from klamm.store.catalog import Catalog
from klamm.store.database import DbLock, Unfinished

if TYPE_CHECKING:
    from klamm.store.directory import Core

__all__ = ["check_age", "made_again", "open_found"]

_log = logging.getLogger("klamm")


def open_found(core: Core, database: str, db_lock: DbLock, *, rebuild: bool, is_in_place: bool) -> Catalog | None:
    """Open klamm.db. Return None if it is missing or unfinished, or if it was damaged and renamed.

    `is_in_place`: its other files are where they were, so the store is not a copy, which may reuse inode numbers.
    """
    assert core.presence is not None
    presence = core.presence
    if not os.path.exists(database) or not os.path.getsize(database):
        return None
    is_another = _check_not_replaced(core, database) and is_in_place

    def before_upgrade() -> None:
        presence.be_alone(upgrade.WHY)
        if is_another and not rebuild:
            raise _another(database)

    try:
        catalog = Catalog(database, db_lock, before_upgrade=before_upgrade)
    except Unfinished:
        return None
    except NotAStore as error:
        if not rebuild:
            raise
        problem = error.message
    else:
        try:
            problems = catalog.check() if rebuild else []
            if is_another and not problems:
                _accept_another(core, catalog, rebuild=rebuild)
        except BaseException:
            catalog.close()
            raise
        if not problems:
            return catalog
        catalog.close()
        problem = f"{database}: {problems[0]}"
    _set_aside(core, database, problem)
    return None


def _check_not_replaced(core: Core, database: str) -> bool:
    """Return whether klamm.db was replaced, while `heads` was not. Raise if other processes use the old file, or if the
    WAL belongs to that.
    """
    assert core.presence is not None
    known, inode = core.heads.database_inode, os.stat(database).st_ino
    if known in (0, inode):
        return False
    core.presence.be_alone("klamm.db was replaced")
    log = f"{database}-wal"
    if os.path.exists(log) and os.path.getsize(log):
        raise StoreError(
            f"{log}: belongs to another klamm.db than the one beside it, which was replaced",
            hint="put both back, or move klamm.db-wal aside and run `klamm check --repair`",
        )
    return True


def _accept_another(core: Core, catalog: Catalog, *, rebuild: bool) -> None:
    """Refuse a klamm.db that is another file than before, unless `rebuild`. `check_age` says so of an older one."""
    try:
        if catalog.changes() < core.heads.changes:
            return
        if not rebuild:
            raise _another(catalog.path)
    except BaseException:
        catalog.close()
        raise
    core.rebuilt.append(("klamm.db was replaced by another file", "accepted"))


def _another(database: str) -> StoreError:
    return _too_old(f"{database}: is another file than the one that was used with the logs beside it")


def _too_old(what: str) -> StoreError:
    return StoreError(
        f"{what}; it may have been restored from a backup",
        hint="run `klamm check --repair`: it keeps every log, and puts back topics that klamm.db does not know; or "
        "restore the whole backup elsewhere",
    )


def _set_aside(core: Core, database: str, problem: str) -> None:
    """Rename klamm.db and its log. No connection to it may be open: closing one removes a log by its name."""
    assert core.presence is not None
    core.presence.be_alone("klamm.db is damaged")
    target = f"{core.path}/{layout.DAMAGED}{time.time_ns() // 1_000_000}"
    for suffix in ("-wal", "-shm", ""):  # the WAL first: SQLite removes one that has no database beside it
        if os.path.exists(f"{database}{suffix}"):
            _os.rename(f"{database}{suffix}", f"{target}{suffix}")
    files.sync_directory(core.path)
    made_again(core, problem, f"set it aside as {target}, and made a new one")


def made_again(core: Core, problem: str, repaired: str) -> None:
    """Report that klamm.db is made again, and what is lost with it."""
    core.rebuilt.append((problem, f"{repaired}: {layout.LOST} are lost"))
    _log.warning("%s/klamm.db: %s: %s are lost; set again what is needed", core.path, repaired, layout.LOST)


def check_age(core: Core, *, rebuild: bool) -> None:
    """Refuse a klamm.db that is older than `heads`; with `rebuild`, repair the consequences."""
    assert core.presence is not None
    known = core.heads.changes  # first: other processes change both, klamm.db before `heads`
    changes = core.catalog.changes()
    if changes < known and not core.rebuilt:
        if not rebuild:
            raise _too_old(f"{core.path}/klamm.db: is older than the logs beside it")
        core.presence.be_alone("klamm.db is older than the logs")
        core.rebuilt.append(("klamm.db is older than the logs beside it", "accepted"))
    if core.rebuilt:
        core.catalog.skip_numbers(core.heads.size())
        _drop_deleted(core)
        core.heads.changes = core.catalog.changes()
    else:
        core.record_changes(changes)
    core.heads.store_id = core.catalog.store_id
    core.heads.database_inode = os.stat(core.catalog.path).st_ino
    core.catalog.on_change = core.changed
    core.catalog.database.on_count = core.record_changes


def _drop_deleted(core: Core) -> None:
    """Drop the topics that an older klamm.db has and that were deleted since, as `heads` shows."""
    for topic in slots.deleted(core.heads, core.catalog.topics()):
        core.catalog.delete_topic(topic.name)
        core.catalog.forget_slots(topic.id)  # they may be another topic's, which klamm.db does not know yet
        core.rebuilt.append((f"topic {topic.name} had been deleted since", "forgotten again"))
