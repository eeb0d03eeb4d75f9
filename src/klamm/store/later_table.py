"""Tables that a store's klamm.db gets when they are first written to: users.py, acls.py, quotas.py.

With its table the store gets a compatible feature: a Klamm that does not know it can use the store all the same.

Promises
  LAT1  The table and the feature are made in the transaction that writes the first row: both are there, or neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from klamm.store.features import Features

if TYPE_CHECKING:
    from klamm.store.catalog import Catalog
    from klamm.store.database import Execute

__all__ = ["LaterTable"]


class LaterTable(NamedTuple):
    """A table that may not be there yet."""

    name: str
    schema: str
    """What follows its name in CREATE TABLE."""
    feature: int

    def exists(self, execute: Execute) -> bool:
        query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
        return execute(query, (self.name,)).fetchone() is not None

    def make(self, catalog: Catalog, execute: Execute) -> None:
        """Make the table, if it is not there."""
        if self.exists(execute):
            return
        execute(f"CREATE TABLE {self.name} ({self.schema}) WITHOUT ROWID")
        features = Features.parse(str(catalog.meta(execute, "features")))
        catalog.set_meta(execute, "features", str(features._replace(compatible=features.compatible | self.feature)))
