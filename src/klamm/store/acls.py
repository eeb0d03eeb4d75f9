"""The ACLs of a store's Kafka server, in klamm.db.

    acls    resource_type, resource_name, pattern_type, principal, host, operation, permission, changed_ms, crc

The table is made with the first ACL, and with it the compatible feature ACLS: a Klamm that does not know it can use the
store. (Its server does not know `authorizer.class.name`, either, and does not start with it.) acl_index.py has what
they mean. Each change increases the number in the row `acls` of `meta`; a server that sees another number reads the
ACLs again.

Promises
  ACL1  All changes of one call are one durable write. Every process is notified, as after a change of the catalog: a
        server reads the ACLs again before it handles the next request.
  ACL2  A row whose checksum is wrong is an error. As long as there is one, only super users may do anything.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from klamm.errors import NotAStore
from klamm.store.acl import Acl, AclFilter, Operation, PatternType, Permission, ResourceType, validate_acl
from klamm.store.database import REBUILD_BY_HAND
from klamm.store.features import ACLS
from klamm.store.later_table import LaterTable
from klamm.store.rows import crc

if TYPE_CHECKING:
    from klamm.store.catalog import Catalog
    from klamm.store.database import Database, Execute

__all__ = ["Acls", "check"]

_TABLE = LaterTable(
    "acls",
    """
    resource_type TEXT NOT NULL, resource_name TEXT NOT NULL, pattern_type TEXT NOT NULL, principal TEXT NOT NULL,
    host TEXT NOT NULL, operation TEXT NOT NULL, permission TEXT NOT NULL, changed_ms INTEGER NOT NULL,
    crc INTEGER NOT NULL,
    PRIMARY KEY (resource_type, resource_name, pattern_type, principal, host, operation, permission)
    """,
    ACLS,
)
_KEY = "resource_type, resource_name, pattern_type, principal, host, operation, permission"
_ALL = f"SELECT {_KEY}, changed_ms, crc FROM acls ORDER BY {_KEY}"
_DELETE = f"DELETE FROM acls WHERE ({_KEY}) = (?, ?, ?, ?, ?, ?, ?)"


class Acls:
    """The ACLs of one store. Thread-safe."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._database: Database = catalog.database

    def version(self) -> int:
        """Return a number that every change makes larger; 0 if there have never been ACLs."""
        with self._database.reading() as execute:
            return int(self._catalog.meta(execute, "acls", 0))

    def all(self) -> list[Acl]:
        """Return all ACLs, by resource."""
        return self.read()[1]

    def read(self) -> tuple[int, list[Acl]]:
        """Return `version` and `all`, as of one moment. Raise NotAStore if a row is damaged."""
        with self._database.reading() as execute:
            version = int(self._catalog.meta(execute, "acls", 0))
            return version, _read(execute)

    def find(self, chosen: AclFilter) -> list[Acl]:
        """Return the ACLs that a filter matches."""
        return [acl for acl in self.all() if chosen.matches(acl)]

    def add(self, acls: Iterable[Acl]) -> int:
        """Add ACLs, and return how many of them are new. Raise InvalidSetting if one is invalid."""
        added = [validate_acl(acl) for acl in acls]
        now_ms = time.time_ns() // 1_000_000
        with self._database.db_lock():
            with self._database.transaction() as execute:
                _TABLE.make(self._catalog, execute)
                known = set(_read(execute))
                new = [acl for acl in dict.fromkeys(added) if acl not in known]
                for acl in new:
                    values = (*_columns(acl), now_ms)
                    execute("INSERT INTO acls VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*values, crc(*values)))
                if new:
                    self._count_change(execute)
            if new:
                self._catalog.on_change()
        return len(new)

    def remove(self, filters: Sequence[AclFilter]) -> list[list[Acl]]:
        """Remove the ACLs that the filters match, and return those of each filter; one may be in several lists."""
        with self._database.db_lock():
            with self._database.transaction() as execute:
                acls = _read(execute)
                by_name: dict[str, list[Acl]] = {}
                for acl in acls:
                    by_name.setdefault(acl.resource_name, []).append(acl)
                removed = []
                for chosen in filters:  # thousands of them mostly name a resource each, as there are ACLs
                    is_named = chosen.resource_name is not None and chosen.pattern_type is not PatternType.MATCH
                    candidates = by_name.get(chosen.resource_name or "", []) if is_named else acls
                    removed.append([acl for acl in candidates if chosen.matches(acl)])
                gone = {acl for matched in removed for acl in matched}
                for acl in gone:
                    execute(_DELETE, _columns(acl))
                if gone:
                    self._count_change(execute)
            if gone:
                self._catalog.on_change()
        return removed

    def _count_change(self, execute: Execute) -> None:
        self._catalog.set_meta(execute, "acls", int(self._catalog.meta(execute, "acls", 0)) + 1)


def check(database: Database) -> list[str]:
    """Return what is wrong with the rows."""
    with database.reading() as execute:
        if not _TABLE.exists(execute):
            return []
        rows = execute(_ALL).fetchall()
    return [f"acls: the row of {row[3]!r} for {row[1]!r}: the checksum is wrong" for row in rows if not _is_valid(row)]


def _is_valid(row: Sequence[object]) -> bool:
    return crc(*row[:-1]) == row[-1]


def _read(execute: Execute) -> list[Acl]:
    if not _TABLE.exists(execute):
        return []
    return [_acl(row) for row in execute(_ALL).fetchall()]


def _acl(row: Sequence[str]) -> Acl:
    try:
        if not _is_valid(row):
            raise KeyError
        kind, name, pattern, principal, host, operation, permission, *_ = row
        return Acl(
            ResourceType[kind],
            name,
            PatternType[pattern],
            principal,
            host,
            Operation[operation],
            Permission[permission],
        )
    except KeyError:
        raise NotAStore(f"klamm.db: the ACL of {row[3]!r} for {row[1]!r} is damaged", hint=REBUILD_BY_HAND) from None


def _columns(acl: Acl) -> tuple[str, ...]:
    return (
        acl.resource_type.name,
        acl.resource_name,
        acl.pattern_type.name,
        acl.principal,
        acl.host,
        acl.operation.name,
        acl.permission.name,
    )
