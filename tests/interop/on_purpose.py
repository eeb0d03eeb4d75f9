"""What we answer otherwise than Apache Kafka, on purpose: script and note of tests/interop/scripts, the reason, and our
answer. test_differential.py fails when our answer is another one, and when Kafka's is the same.
"""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["ON_PURPOSE", "Pinned"]


class Pinned(NamedTuple):
    reason: str
    ours: Any


def _refused(code: str, *indexes: int, topic: str = "<topic>") -> dict[str, Any]:
    """Of a Produce; because of these records."""
    listed = {"record_errors": [{"batch_index": index} for index in indexes]} if indexes else {}
    return _produced({"error_code": code, "log_append_time_ms": False, **listed}, topic)


def _appended(base_offset: int) -> dict[str, Any]:
    fields = {"base_offset": base_offset, "log_append_time_ms": False, "log_start_offset": 0}
    return _produced({"error_code": "NONE", **fields})


def _produced(partition: dict[str, Any], topic: str = "<topic>") -> dict[str, Any]:
    return {
        "responses": [{"name": topic, "topic_id": False, "partition_responses": [{"index": 0, **partition}]}],
    }


def _fetched(*partitions: dict[str, Any]) -> dict[str, Any]:
    topics = [{"topic": "<topic>", "topic_id": False, "partitions": [each]} for each in partitions]
    return {"error_code": "NONE", "session_id": 0, "responses": topics}


def _records(partition: int, end: int, batches: list[Any], records: list[Any]) -> dict[str, Any]:
    return {
        "partition_index": partition,
        "error_code": "NONE",
        "high_watermark": end,
        "last_stable_offset": end,
        "log_start_offset": 0,
        "records": {"batches": batches, "records": records},
    }


def _committed(code: str) -> dict[str, Any]:
    partitions = [{"partition_index": 0, "error_code": code}]
    return {"topics": [{"name": "<topic>", "topic_id": False, "partitions": partitions}]}


def _tried(name: str, partitions: int) -> dict[str, Any]:
    codes = {"error_code": "NONE", "topic_config_error_code": "NONE"}
    counts = {"num_partitions": partitions, "replication_factor": 1}
    return {"topics": [{"name": name, "topic_id": False, **codes, **counts}]}


NAMELESS = "a group without a name is refused everywhere, not only by some requests"
TRIED = "a topic that is only tried has no id"
DAMAGED = "a batch that contradicts itself was damaged: Kafka blames its writer"
DUPLICATE = "Kafka gives the time of the records as that of the append, when a batch comes again"
REUSED = "Kafka acknowledges other records under used sequences as duplicates, and they are lost without an error"
UNWRITTEN = "where a transaction has written nothing, its end is not written either"
BITS = "what a batch must not say is refused as such, whoever sends it"
UNKNOWN = "Kafka answers that it does not know what went wrong"
NOTHING = _fetched(_records(1, 0, [], []))

_NO_SESSION = {"error_code": "FETCH_SESSION_ID_NOT_FOUND", "session_id": 0}

ON_PURPOSE: dict[str, dict[str, Pinned]] = {
    "fetch_sessions_on_two_connections": {
        "on another connection": Pinned("a session belongs to its connection, and ends with it", _NO_SESSION),
        "the first of both": Pinned("a connection has one session: the second takes its place", _NO_SESSION),
    },
    "strangers_are_refused": {"commit: no group": Pinned(NAMELESS, _committed("INVALID_GROUP_ID"))},
    "commits_without_members": {
        "negative": Pinned(
            "no record has an offset below zero; Kafka keeps it all the same", _committed("INVALID_REQUEST")
        ),
        "of no group": Pinned(NAMELESS, {"error_code": "NONE", "groups": [{"error_code": "INVALID_GROUP_ID"}]}),
    },
    "groups_are_listed_and_described": {
        "no name": Pinned(
            NAMELESS,
            {
                "groups": [
                    {"error_code": "INVALID_GROUP_ID", "group_state": "Dead", "authorized_operations": -2147483648}
                ]
            },
        )
    },
    "groups_are_deleted": {
        "deleted": Pinned(
            NAMELESS,
            {
                "results": [
                    {"error_code": "INVALID_GROUP_ID"},
                    {"group_id": "<busy>", "error_code": "NON_EMPTY_GROUP"},
                    {"group_id": "<idle>", "error_code": "NONE"},
                    {"group_id": "<missing>", "error_code": "GROUP_ID_NOT_FOUND"},
                ]
            },
        )
    },
    "produce_in_every_codec": {"a codec that is not there": Pinned(UNKNOWN, _refused("UNSUPPORTED_COMPRESSION_TYPE"))},
    "produce_what_is_not_a_batch": {
        "bytes behind it": Pinned("rubbish behind a batch is refused; Kafka does not look", _refused("INVALID_RECORD")),
    },
    "produce_a_batch_that_lies": {
        "fewer records than told": Pinned(DAMAGED, _refused("CORRUPT_MESSAGE")),
        "negative count": Pinned(DAMAGED, _refused("CORRUPT_MESSAGE")),
        "packed, rubbish": Pinned(UNKNOWN, _refused("INVALID_RECORD")),
    },
    "produce_what_only_a_broker_may_write": {
        "a marker": Pinned(BITS, _refused("INVALID_RECORD")),
        "transactional without a producer": Pinned(BITS, _refused("INVALID_RECORD")),
        "transactional without a transaction": Pinned(
            "without an authorizer nothing is denied; with one it is, as by Kafka",
            _refused("INVALID_PRODUCER_ID_MAPPING"),
        ),
    },
    "produce_from_other_times": {
        "so many that nobody reads all of it": Pinned(
            "a response lists a hundred records at most; clients fail the whole batch in any case",
            _refused("INVALID_TIMESTAMP", *range(100)),
        ),
        "an hour ago, and one without a key": Pinned(
            "records without a key are told before times are looked at; Kafka lists both",
            _refused("INVALID_RECORD", 1, topic="<limited>"),
        ),
    },
    "produce_in_sequence": {
        "first again": Pinned(DUPLICATE, _appended(0)),
        "second again": Pinned(DUPLICATE, _appended(3)),
        "the sequences of the second with other records": Pinned(REUSED, _refused("OUT_OF_ORDER_SEQUENCE_NUMBER")),
        "one of the last five, again": Pinned(DUPLICATE, _appended(24)),
        "negative epoch": Pinned(BITS, _refused("INVALID_RECORD")),
    },
    "topics_are_made": {
        "only tried": Pinned(TRIED, _tried("<dry>", 3)),
        "a long name": Pinned(TRIED, _tried("<x>" + "x" * 236, 1)),
    },
    "a_transaction_is_committed_and_one_aborted": {
        "commit: the other partition": Pinned(UNWRITTEN, NOTHING),
        "abort: the other partition": Pinned(UNWRITTEN, NOTHING),
    },
    "sequences_of_an_aborted_transaction_are_used_again": {
        "first again": Pinned(DUPLICATE, _appended(0)),
        "other records": Pinned(REUSED, _refused("OUT_OF_ORDER_SEQUENCE_NUMBER")),
        "the same records": Pinned(
            "what an ended transaction wrote is not in the next one, be it the same bytes",
            _refused("OUT_OF_ORDER_SEQUENCE_NUMBER"),
        ),
    },
    "transactions_that_are_refused": {
        "not transactional, within one": Pinned(
            "it is outside of the transaction, and read at once; nobody sends it", _appended(3)
        ),
    },
    "transactions_are_described": {
        "producers": Pinned(
            "there is one coordinator, which never changes: its epoch is 0, not unknown",
            {
                "topics": [
                    {
                        "name": "<topic>",
                        "partitions": [
                            {"partition_index": 0, "error_code": "NONE"},
                            {
                                "partition_index": 1,
                                "error_code": "NONE",
                                "active_producers": [
                                    {
                                        "producer_id": "<producer 0>",
                                        "producer_epoch": 0,
                                        "last_sequence": 2,
                                        "last_timestamp": True,
                                        "coordinator_epoch": 0,
                                        "current_txn_start_offset": 0,
                                    }
                                ],
                            },
                            {"partition_index": 5, "error_code": "UNKNOWN_TOPIC_OR_PARTITION"},
                        ],
                    }
                ]
            },
        ),
        "committed": Pinned(
            "when a transaction began is forgotten with its end",
            {
                "transaction_states": [
                    {
                        "error_code": "NONE",
                        "transactional_id": "<txn>",
                        "transaction_state": "CompleteCommit",
                        "transaction_timeout_ms": 60000,
                        "transaction_start_time_ms": False,
                        "producer_id": "<producer 0>",
                        "producer_epoch": 0,
                    }
                ]
            },
        ),
    },
    "settings_are_changed": {
        "an odd operation": Pinned(
            UNKNOWN,
            {"responses": [{"error_code": "INVALID_REQUEST", "resource_type": 2, "resource_name": "<topic>"}]},
        )
    },
}
"""Script and note."""
