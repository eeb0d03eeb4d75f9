"""Names that people know from other libraries: `store.create_topic`, `consumer.subscribe`, `future.get`.

They are not attributes here. The AttributeError says what to use instead.
"""

from __future__ import annotations

from typing import Any, TypeVar

__all__ = ["NAMES", "explains_names", "unknown_attribute"]

_C = TypeVar("_C", bound=type)

# By class: what to use, and the names of others for it.
_WORDS: dict[str, dict[str, str]] = {
    "Store": {
        "store.append(…)": "add insert produce publish push put send write xadd",
        "store.consumer(…)": "consume create_consumer get_consumer listen read stream subscribe xread",
        "store.groups": "consumer_groups list_consumer_groups list_groups",
        "store.maintain()": "cleanup vacuum",
        "store.producer(…)": "create_producer get_producer",
        "store.sql(…)": "execute query",
        "store.tail(…)": "head last records",
        "store.topics": "list_topics",
        "store.topics.add_partitions(…)": "add_partitions create_partitions",
        "store.topics.create(…)": "add_topic create create_topic create_topics new_topic",
        "store.topics.delete(…)": "delete_topic delete_topics drop_topic",
        "store.topics.describe(…)": "describe_topic describe_topics",
        "store.transaction(…)": "atomic begin begin_transaction",
        'store["name"]': "get get_topic topic",
    },
    "Topics": {
        "list(store.topics)": "keys list names",
        "store.topics.create(…)": "add new",
        "store.topics.describe(…)": "info show",
        "name in store.topics": "exists has",
        'store["name"]': "get topic",
    },
    "Groups": {
        "list(store.groups)": "keys list names",
        "name in store.groups": "exists has",
        "store.groups.describe(…)": "get info lag members offsets show",
        "store.groups.reset(…)": "alter_offsets rewind seek set_offsets",
    },
    "Topic": {
        "topic.append(…)": "add insert produce publish push put send write",
        "topic.consumer(…)": "consume listen read records stream subscribe",
        "topic.info().count": "count size",
        "topic.info().partitions": "partitions",
        "topic.scan()": "to_pandas to_polars to_table",
        "topic.tail(…)": "head last",
    },
    "Consumer": {
        "consumer.assignment()": "partitions",
        "consumer.commit(…)": "ack acknowledge store_offsets",
        "consumer.poll(…)": "consume get getmany getone read receive",
        "consumer.seek_to(…)": "seek_to_beginning seek_to_end seek_to_timestamp",
        "store.consumer(topics)": "assign subscribe",
        "store.groups.describe(group).lag": "lag",
        'store["name"].info()': "beginning_offsets end_offsets get_watermark_offsets",
        'store["name"].offset_at(…)': "offsets_for_times",
    },
    "Producer": {
        "producer.flush()": "poll wait",
        "producer.send(…)": "append produce publish put send_and_wait write",
        "store.transaction(…)": "begin_transaction commit_transaction init_transactions",
    },
    "Delivery": {"delivery.add_done_callback(…)": "add_callback add_errback", "delivery.result()": "get wait"},
    "Transaction": {
        "tx.abort()": "abort_transaction rollback",
        "tx.commit()": "commit_transaction",
        "tx.commit_offsets(…)": "send_offsets send_offsets_to_transaction",
        "tx.send(…)": "append produce publish put write",
    },
    "Table": {
        "table.changes(…)": "listen subscribe watch",
        "table.delete(key)": "pop remove",
        "table.put(key, value)": "append insert set setdefault update",
    },
    "Scan": {
        "scan.to_pandas()": "df",
        "scan.to_polars()": "pl",
        "scan.to_table()": "arrow fetchall read_all to_arrow to_pylist",
    },
    "SqlResult": {
        "list(result)": "fetchall fetchmany fetchone to_pylist",
        "result.to_pandas()": "df",
        "result.to_polars()": "pl",
    },
    "Record": {
        "record.value": "body data message msg payload",
        "record.datetime": "time ts",
        "record.timestamp": "date",
    },
    "Batch": {
        "batch.begin, batch.end": "offsets",
        "store.scan(…)": "to_pandas to_polars",
        "the batch: it is a list": "records",
    },
}
NAMES = {kind: {word: use for use, words in uses.items() for word in words.split()} for kind, uses in _WORDS.items()}


def unknown_attribute(owner: Any, name: str) -> AttributeError:
    """Return the error for an attribute that an object does not have; it says what to use instead."""
    kind = type(owner)
    message = f"{kind.__name__!r} object has no attribute {name!r}"
    for each in kind.__mro__:
        if use := NAMES.get(each.__name__, {}).get(name):
            return AttributeError(f"{message} (use {use})")
    return AttributeError(message, name=name, obj=owner)  # from these, Python finds the nearest name


def _getattr(self: Any, name: str) -> Any:
    if hasattr(type(self), name):  # a property of ours raised AttributeError: that is the error to be seen
        return object.__getattribute__(self, name)
    raise unknown_attribute(self, name)


def explains_names(kind: _C) -> _C:
    """Let the AttributeErrors of a class say what to use. (No `__getattr__` that checkers see: they would accept any
    name.)
    """
    kind.__getattr__ = _getattr  # type: ignore[attr-defined]
    return kind
