"""The dispatch table: which APIs are supported, in which versions, and by whom. Nothing else is advertised."""

from __future__ import annotations

from klamm.kafka.apis import (
    acls,
    cluster,
    configs,
    decisions,
    fetch,
    group_offsets,
    groups,
    list_offsets,
    produce,
    quotas,
    sasl,
    topics,
    transactions,
    users,
)
from klamm.kafka.call import SupportedApi

__all__ = ["TABLE"]

_MODULES = (
    produce,
    fetch,
    list_offsets,
    cluster,
    group_offsets,
    groups,
    transactions,
    decisions,
    topics,
    configs,
    sasl,
    users,
    acls,
    quotas,
)

TABLE: dict[int, SupportedApi] = {
    each.api.key: each
    for each in sorted((row for module in _MODULES for row in module.HANDLERS), key=lambda row: row.api.key)
}
"""By API key."""
