"""A record as it lies in the log, made into the form that a consumer wants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from klamm.batch import RECORDS, TUPLES, Record

if TYPE_CHECKING:
    from klamm.client.consume.read_engine import ReadFormat

__all__ = ["converted"]


def converted(record: Record, read_format: ReadFormat) -> Any:
    """Make a record that was read without serdes into the requested form."""
    value = record.value if record.value is None or read_format.value_of is None else read_format.value_of(record.value)
    if read_format.form not in (RECORDS, TUPLES):
        return value
    key = record.key if record.key is None or read_format.key_of is None else read_format.key_of(record.key)
    if read_format.form == TUPLES:
        return key, value
    return Record(
        record.topic, record.partition, record.offset, record.timestamp, key, value, record.headers, record.leader_epoch
    )
