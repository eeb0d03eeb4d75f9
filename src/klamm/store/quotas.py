"""Quotas of clients of a store's Kafka server, in klamm.db.

    client_quotas    entity, name, value, changed_ms, crc

An entity is the subject of a quota: a user, a client id, both, or an address. Each has a name, or is the default (None)
for all without a quota of their own. In the table it is JSON: {"client-id": null, "user": "alice"}.

    user, client-id    producer_byte_rate, consumer_byte_rate, request_percentage, controller_mutation_rate
    ip                 connection_creation_rate

The table is made with the first quota, and with it the compatible feature QUOTAS: a Klamm that does not know it can use
the store, and throttles no one.

Promises
  QTA1  All changes of one call are one durable write: all of them are there, or none.
  QTA2  A row whose checksum is wrong is an error.
"""

from __future__ import annotations

import ipaddress
import json
import math
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from klamm.errors import InvalidSetting, NotAStore
from klamm.store.database import REBUILD_BY_HAND
from klamm.store.features import QUOTAS
from klamm.store.later_table import LaterTable
from klamm.store.rows import crc

if TYPE_CHECKING:
    from klamm.store.catalog import Catalog
    from klamm.store.database import Database

__all__ = [
    "CLIENT_ID",
    "CONNECTION_CREATION_RATE",
    "CONSUMER_BYTE_RATE",
    "CONTROLLER_MUTATION_RATE",
    "IP",
    "MAX_NAME_BYTES",
    "PRODUCER_BYTE_RATE",
    "REQUEST_PERCENTAGE",
    "USER",
    "Entity",
    "Quotas",
    "check",
    "make_entity",
    "validate_quota",
]

USER, CLIENT_ID, IP = "user", "client-id", "ip"
PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"

Entity = tuple[tuple[str, str | None], ...]
"""Type and name of each part, by type. The name None is the default."""

_INT32, _INT64 = 2**31 - 1, 2**63 - 1
_LARGEST_WHOLE = {PRODUCER_BYTE_RATE: _INT64, CONSUMER_BYTE_RATE: _INT64, CONNECTION_CREATION_RATE: _INT32}
_OF_CLIENTS = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE)
_OF_ADDRESSES = (CONNECTION_CREATION_RATE,)
_FRACTION = 1e-6
_SMALLEST = 1e-6  # with a smaller rate, a debt would outlast the range of the clock
MAX_NAME_BYTES = 1024

_TABLE = LaterTable(
    "client_quotas",
    """
    entity TEXT NOT NULL, name TEXT NOT NULL, value REAL NOT NULL, changed_ms INTEGER NOT NULL, crc INTEGER NOT NULL,
    PRIMARY KEY (entity, name)
    """,
    QUOTAS,
)
_COLUMNS = "entity, name, value, changed_ms"


def make_entity(parts: Iterable[tuple[str, str | None]]) -> Entity:
    """Return the entity of these parts. Raise InvalidSetting, in Kafka's words, if they are invalid."""
    by_type: dict[str, str | None] = {}
    for kind, name in parts:
        if kind in by_type:
            raise InvalidSetting(f"Invalid client quota entity, duplicate entity entry {kind}")
        if kind not in (USER, CLIENT_ID, IP):
            raise InvalidSetting(f"Unhandled client quota entity type: {kind}")
        if name is not None and not name:
            raise InvalidSetting(f"Empty {kind} not supported")
        if name is not None and len(name.encode()) > MAX_NAME_BYTES:
            raise InvalidSetting(f"{kind}: a name of {len(name.encode())} bytes, where {MAX_NAME_BYTES} are allowed")
        by_type[kind] = name
    if not by_type:
        raise InvalidSetting("Invalid empty client quota entity")
    if IP in by_type:
        if len(by_type) > 1:
            raise InvalidSetting(
                "Invalid quota entity combination, IP entity should not be combined with User or ClientId"
            )
        by_type[IP] = _address(by_type[IP])
    return tuple(sorted(by_type.items()))


def _address(text: str | None) -> str | None:
    """Return an address in the form that connections have. Host names are not resolved: their addresses may change."""
    if text is None:
        return None
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise InvalidSetting(f"{text[:100]} is not a valid IP or resolvable host.") from None
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def validate_quota(entity: Entity, name: str, value: float | None) -> None:
    """Raise InvalidSetting, in Kafka's words, if the entity cannot have that quota. `value` None: it is removed."""
    if name not in (_OF_ADDRESSES if entity[0][0] == IP else _OF_CLIENTS):
        raise InvalidSetting(f"Invalid configuration key {name[:100]}")
    if value is None:
        return
    if not value > 0 or math.isinf(value):
        raise InvalidSetting(f"Quota {name} must be greater than 0")
    if value < _SMALLEST:
        raise InvalidSetting(f"Quota {name} must be {_SMALLEST} or more")
    largest = _LARGEST_WHOLE.get(name)
    if largest is not None:
        if value > largest:
            kind = "an INT" if largest == _INT32 else "a LONG"
            raise InvalidSetting(f"Proposed value for {name} is too large for {kind}.")
        if value % 1.0 > _FRACTION:
            raise InvalidSetting(f"{name} cannot be a fractional value.")


class Quotas:
    """The quotas of one store. Thread-safe."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._database: Database = catalog.database

    def version(self) -> object:
        """Return a value that changes whenever quotas may have changed."""
        return self._database.version()

    def all(self) -> dict[Entity, dict[str, float]]:
        """Return the quotas of each entity, by name."""
        with self._database.reading() as execute:
            if not _TABLE.exists(execute):
                return {}
            rows = execute(f"SELECT {_COLUMNS}, crc FROM client_quotas ORDER BY entity, name").fetchall()
        quotas: dict[Entity, dict[str, float]] = {}
        for *values, checksum in rows:
            if checksum != crc(*values):
                raise NotAStore(f"klamm.db: the quota of {values[0]} is damaged", hint=REBUILD_BY_HAND)
            quotas.setdefault(_parse(values[0]), {})[values[1]] = values[2]
        return quotas

    def alter(self, changes: Iterable[tuple[Entity, Mapping[str, float | None]]]) -> None:
        """Set quotas; remove those with the value None. Raise InvalidSetting if one is invalid."""
        changes = list(changes)
        for entity, values in changes:
            for name, value in values.items():
                validate_quota(entity, name, value)
        now_ms = time.time_ns() // 1_000_000
        with self._database.db_lock(), self._database.transaction() as execute:
            _TABLE.make(self._catalog, execute)
            for entity, values in changes:
                text = json.dumps(dict(entity), ensure_ascii=False)
                for name, value in values.items():
                    if value is None:
                        execute("DELETE FROM client_quotas WHERE entity = ? AND name = ?", (text, name))
                        continue
                    row = (text, name, float(value), now_ms)
                    statement = f"INSERT OR REPLACE INTO client_quotas ({_COLUMNS}, crc) VALUES (?, ?, ?, ?, ?)"
                    execute(statement, (*row, crc(*row)))


def check(database: Database) -> list[str]:
    """Return what is wrong with the rows."""
    with database.reading() as execute:
        if not _TABLE.exists(execute):
            return []
        rows = execute(f"SELECT {_COLUMNS}, crc FROM client_quotas").fetchall()
    return [f"client_quotas: the row of {row[0]}: the checksum is wrong" for row in rows if crc(*row[:-1]) != row[-1]]


def _parse(text: str) -> Entity:
    return tuple(sorted(json.loads(text).items()))
