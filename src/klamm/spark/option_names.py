"""The names of the options of format("klamm"): options.py and sink_options.py say what they mean.

A table of a catalog (CREATE TABLE orders USING klamm OPTIONS (…)) has one list of options, for reading and for writing;
Spark adds some of its own, by one of which, `location`, a table is recognised.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from klamm.errors import InvalidSetting
from klamm.spark.server.address import SECURITY_OPTIONS, SERVER
from klamm.store.names import nearest

__all__ = ["SINK_OPTIONS", "SOURCE_OPTIONS", "TRANSACTION_TIMEOUT", "check_names", "is_table"]

TRANSACTION_TIMEOUT = "transaction.timeout.ms"

SOURCE_OPTIONS = (
    "path",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "columns",
    "includeHeaders",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "failOnDataLoss",
    "isolation",
    "groupId",
    SERVER,
    *SECURITY_OPTIONS,
)

SINK_OPTIONS = (
    "path",
    "topic",
    "columns",
    "compression",
    "compressionLevel",
    "acks",
    "includeHeaders",
    "keepTimestamps",
    "txnAppId",
    "txnVersion",
    "checkpointLocation",
    "onConflict",
    SERVER,
    *SECURITY_OPTIONS,
    TRANSACTION_TIMEOUT,
)

_OF_TABLES = "location"
_SPARKS_OWN = ("queryname", "serialization.format")  # passed on by Spark, of no use here
_RESERVED = (_OF_TABLES, "provider", "owner", "comment", "external", "is_managed_location", "collation")  # of a table
_AGAIN = "option."  # Spark passes each option of a table twice, once with this before it


def is_table(given: Mapping[str, str]) -> bool:
    """Return whether these are the options of a table in a catalog."""
    return any(name.lower() == _OF_TABLES for name in given)


def check_names(given: Mapping[str, str], known: Iterable[str], *, other: Iterable[str] = ()) -> dict[str, str]:
    """Return the options by the names they are known by; InvalidSetting, with the nearest name, for one that is not.

    `other`: those of the other direction, which a table may have, too.
    """
    names = {name.lower(): name for name in known}
    table = is_table(given)
    passed_over = {*_SPARKS_OWN, *((*_RESERVED, *(name.lower() for name in other)) if table else ())} - names.keys()
    found: dict[str, str] = {}
    for name, value in given.items():
        if name.lower() in passed_over or (table and name.lower().startswith(_AGAIN)):
            continue
        if name.lower() not in names:
            near = nearest(name.lower(), names)
            for lower, spelled in names.items():
                near = near and near.replace(repr(lower), repr(spelled))
            if name.lower().startswith("kafka."):
                near = 'options of Kafka clients are for format("kafka")'
            raise InvalidSetting(
                f"format klamm has no option {name!r}", hint=near or f"there are {', '.join(names.values())}"
            )
        found[names[name.lower()]] = value
    return found
