"""The table of errors that a client may report while servers and clients are killed, and what its role then does.

Every role of wire_workload.py and jepsen_workload.py looks up each error here, by role, call and error. An error
without a rule fails the test: a server must not be able to answer anything it likes. Errors have names: of librdkafka
its own (`_TRANSPORT` is local, `UNKNOWN_MEMBER_ID` came from the server), of an embedded client the class
(`klamm.Fenced`). Those of librdkafka come with a class of their own, which says what the application is to do:

    retriable   call again; librdkafka goes on where it was
    abortable   the transaction has failed: abort it
    fatal       the client is done: make another
    (plain)     none of these: the call says what it means

An abortable or fatal state is kept, and every later call reports it. `produce` does not say why, it raises `_STATE` or
`_FATAL`: `Action.ASK` asks begin_transaction, which in either state does nothing and returns the reason. That is looked
up as an error of the call "state". (librdkafka: INTRODUCTION.md, "Transactional Producer"; rdkafka_txnmgr.c,
rd_kafka_txn_require_states0; rdkafka_msg.c, rd_kafka_check_produce.)
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import klamm

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

Error: TypeAlias = "KafkaError | klamm.KlammError"


class Action(Enum):
    AGAIN = "make the call again"
    GO_ON = "go on: what the call was for did not happen, or nobody knows, and the history says neither"
    ABORT = "abort the transaction; the next one follows"
    REFUSED = "go on: what the call was for certainly did not happen, and the history says so"
    END = "end this life; another one follows"
    ASK = "ask why, and do what is said of that"


class Rule(NamedTuple):
    roles: tuple[str, ...]
    calls: tuple[str, ...]
    kind: str  # "", "retriable", "abortable", "fatal"
    errors: tuple[str, ...]
    action: Action
    why: str


class Unexpected(AssertionError):
    """An error that no rule allows."""


READERS = ("wire_reader", "dirty_wire_reader", "final")
PRODUCERS = ("wire_plain", "wire_idempotent")
MEMBERS = ("wire_worker", "wire_transformer", "hasty")
TRANSACTIONAL = ("wire_transactional", "wire_transformer")
CLIENTS = ("wire_reader", "dirty_wire_reader", "session_reader", *PRODUCERS, *MEMBERS, "wire_transactional", "careless")

STATE = (
    "produce",
    "begin_transaction",
    "send_offsets_to_transaction",
    "commit_transaction",
    "abort_transaction",
    "state",
)
BLOCKING = ("init_transactions", "send_offsets_to_transaction", "commit_transaction", "abort_transaction")

AWAY = ("_TRANSPORT", "_ALL_BROKERS_DOWN")  # nobody listens at the port, or the connection broke
LATE = ("_TIMED_OUT", "_TIMED_OUT_QUEUE")
BUSY = ("COORDINATOR_NOT_AVAILABLE", "CONCURRENT_TRANSACTIONS")  # a transaction waits for a lock

RULES = [
    # ---- a server that is away
    Rule((*READERS, *MEMBERS), ("poll",), "", AWAY, Action.GO_ON, "told as news; librdkafka connects again by itself"),
    Rule(
        ("wire_plain",),
        ("delivery",),
        "",
        ("_TRANSPORT", "_MSG_TIMED_OUT", *LATE),
        Action.GO_ON,
        "it sends once (retries=0): the server may have died before or after it took the record",
    ),
    Rule(CLIENTS, ("event",), "", AWAY, Action.GO_ON, "told as news; librdkafka connects again by itself"),
    Rule(
        TRANSACTIONAL,
        ("event",),
        "fatal",
        ("_FATAL", "_FENCED", "INVALID_TXN_STATE", "OUT_OF_ORDER_SEQUENCE_NUMBER"),
        Action.GO_ON,
        "the next call reports it as well, and is looked up",
    ),
    # wire_idempotent has no rule for deliveries: it sends again for two minutes, and servers come back within seconds.
    # ---- members
    Rule(
        MEMBERS,
        ("poll",),
        "",
        ("_MAX_POLL_EXCEEDED",),
        Action.GO_ON,
        "it dawdled, or was stopped: it has left the group, and joins again with the next poll",
    ),
    Rule(
        MEMBERS,
        ("poll",),
        "",
        ("REBALANCE_IN_PROGRESS",),
        Action.GO_ON,
        "told as news: it asked to join once more before it was answered, and Klamm answers the earlier request so",
    ),
    Rule(
        MEMBERS,
        ("poll",),
        "",
        (*LATE, "_WAIT_COORD"),
        Action.GO_ON,
        "the server is away, and librdkafka has to ask again where the group stands",
    ),
    Rule(
        MEMBERS,
        ("committed",),
        "",
        (*AWAY, *LATE, "_WAIT_COORD"),
        Action.GO_ON,
        "the server is away: the position is learned from the first record",
    ),
    Rule(
        MEMBERS,
        ("committed", "async commit"),
        "",
        ("_DESTROY",),
        Action.GO_ON,
        "the consumer closes, and a rebalance or a commit that was under way calls back",
    ),
    Rule(
        MEMBERS,
        ("poll", "committed"),
        "",
        ("UNSTABLE_OFFSET_COMMIT",),
        Action.GO_ON,
        "the transaction of a killed client may still move the offset; librdkafka asks again",
    ),
    Rule(
        ("wire_worker", "hasty"),
        ("commit", "commit of a partition", "async commit"),
        "",
        (*AWAY, *LATE, "_WAIT_COORD", "REQUEST_TIMED_OUT"),
        Action.GO_ON,
        "the server is away, and may have stored it before",
    ),
    Rule(
        ("wire_worker", "hasty"),
        ("commit", "commit of a partition", "async commit"),
        "",
        ("UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS"),
        Action.GO_ON,
        "the group has gone on without it, or with it in a generation that it was not told of yet: what it keeps, it"
        " commits again. Not REFUSED: librdkafka may have sent it twice, and reports the last answer",
    ),
    Rule(
        ("wire_transformer",),
        ("seek",),
        "",
        ("_STATE",),
        Action.GO_ON,
        "the partition is not assigned to it any more: another member reads it again",
    ),
    Rule(
        MEMBERS,
        ("poll", "commit", "commit of a partition", "async commit", "committed", "seek", "close"),
        "",
        ("FENCED_INSTANCE_ID", "_FATAL"),
        Action.END,
        "its successor has the group.instance.id; _FATAL: said again by a later call",
    ),
    Rule(
        MEMBERS,
        ("poll", "commit", "async commit", "committed", "seek", "close"),
        "fatal",
        ("FENCED_INSTANCE_ID", "_FATAL"),
        Action.END,
        "its successor has the group.instance.id; _FATAL: said again by a later call",
    ),
    # ---- transactions
    Rule(TRANSACTIONAL, BLOCKING, "retriable", (*LATE, "_TRANSPORT"), Action.AGAIN, "the server is away"),
    Rule(TRANSACTIONAL, BLOCKING, "retriable", BUSY, Action.AGAIN, "a stopped process holds a lock that is needed"),
    Rule(
        TRANSACTIONAL,
        ("produce",),
        "",
        ("_STATE", "_FATAL"),
        Action.ASK,
        "the transaction failed, or the producer, after begin_transaction: produce does not say why",
    ),
    Rule(
        TRANSACTIONAL,
        ("send_offsets_to_transaction",),
        "abortable",
        ("_STATE",),
        Action.ASK,
        "the transaction failed between AddOffsetsToTxn and TxnOffsetCommit",
    ),
    Rule(
        TRANSACTIONAL,
        STATE,
        "abortable",
        (*LATE, "_TRANSPORT", "_MSG_TIMED_OUT"),
        Action.ABORT,
        "the server was away for longer than transaction.timeout.ms, which bounds message.timeout.ms",
    ),
    Rule(
        TRANSACTIONAL,
        STATE,
        "abortable",
        ("OUT_OF_ORDER_SEQUENCE_NUMBER",),
        Action.ABORT,
        "an abort took records from the queue, and librdkafka numbers the next ones wrongly: with Apache Kafka as well,"
        " without a kill, in one of some thousand transactions. The server refuses them, and the abort bumps the epoch."
        " Counted in wire_tally.py",
    ),
    Rule(
        TRANSACTIONAL,
        STATE,
        "fatal",
        ("OUT_OF_ORDER_SEQUENCE_NUMBER",),
        Action.END,
        "the same, if the numbers were used before, or no batch is under way. Counted in wire_tally.py",
    ),
    Rule(
        TRANSACTIONAL,
        ("commit_transaction",),
        "abortable",
        ("_INCONSISTENT",),
        Action.ABORT,
        "some records were not delivered; why not, their delivery reports say, and each is looked up",
    ),
    Rule(
        ("wire_transformer",),
        ("send_offsets_to_transaction",),
        "abortable",
        BUSY,
        Action.ABORT,
        "a stopped process held a lock for longer than the call may take",
    ),
    Rule(
        ("wire_transformer",),
        ("send_offsets_to_transaction",),
        "abortable",
        ("UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "FENCED_INSTANCE_ID"),
        Action.ABORT,
        "the group has gone on without it, and its partitions are read by others",
    ),
    Rule(
        TRANSACTIONAL,
        ("delivery",),
        "",
        (
            "_PURGE_QUEUE",
            "_MSG_TIMED_OUT",
            "_FENCED",
            "INVALID_PRODUCER_EPOCH",
            "OUT_OF_ORDER_SEQUENCE_NUMBER",
            "_FATAL",
        ),
        Action.GO_ON,
        "its transaction fails as well, and says so; _PURGE_QUEUE: the abort took it from the queue",
    ),
    Rule(
        TRANSACTIONAL,
        ("init_transactions", *STATE),
        "fatal",
        ("_FENCED",),
        Action.END,
        "its successor has the transactional id, or its transaction was out of time: both bump the epoch",
    ),
    Rule(
        TRANSACTIONAL,
        ("abort_transaction",),
        "fatal",
        ("INVALID_TXN_STATE",),
        Action.END,
        "the abort overtook AddPartitionsToTxn, or the server died before it heard of that: librdkafka does not know"
        " (txn_req_cnt), sends EndTxn, and is told that there is no transaction. Apache Kafka answers alike",
    ),
    # ---- embedded
    Rule(
        ("transactional", "transformer"),
        ("transaction", "named transaction"),
        "",
        ("klamm.Aborted",),
        Action.REFUSED,
        "it took longer than its timeout, and another process ended it",
    ),
    Rule(
        ("transactional",),
        ("named transaction",),
        "",
        ("klamm.Fenced",),
        Action.END,
        "its successor has the transactional id; without one nobody may fence it",
    ),
    Rule(
        ("transformer",),
        ("transaction",),
        "",
        ("klamm.NotOwner", "klamm.CommitGap"),
        Action.REFUSED,
        "the partition went to another member; or came back, and others have come further with it",
    ),
    Rule(
        ("worker", "hasty"),
        ("commit", "commit_async"),
        "",
        ("klamm.NotOwner",),
        Action.REFUSED,
        "the partition went to another member",
    ),
    Rule(
        ("worker", "transformer", "runner", "process_runner", "hasty", "copyist"),
        ("join",),
        "",
        ("klamm.GroupBusy",),
        Action.AGAIN,
        "its predecessor was stopped, and lives: join without a name",
    ),
    Rule(
        ("worker", "transformer", "runner", "process_runner", "hasty", "copyist"),
        ("poll",),
        "",
        ("klamm.GroupBusy",),
        Action.END,
        "it was stopped for too long, lost its place, and its successor has the name",
    ),
]


def describe(error: Error) -> str:
    """Return the class and the name of an error: "abortable _TIMED_OUT", "_TRANSPORT", "klamm.Fenced"."""
    if isinstance(error, klamm.KlammError):
        return f"klamm.{type(error).__name__}"
    kinds = {"fatal": error.fatal(), "retriable": error.retriable(), "abortable": error.txn_requires_abort()}
    return " ".join([*(kind for kind, holds in kinds.items() if holds), error.name()])


def keys(rule: Rule) -> Iterator[tuple[str, str, str]]:
    """Return role, call and described error of each case that a rule is for."""
    for role, call, error in itertools.product(rule.roles, rule.calls, rule.errors):
        yield role, call, f"{rule.kind} {error}".strip()


TABLE = {key: rule for rule in RULES for key in keys(rule)}


def rule_for(role: str, call: str, error: Error) -> Rule:
    """Return the rule of this error, or raise Unexpected."""
    rule = TABLE.get((role, call, describe(error)))
    if rule is None:
        raise Unexpected(f"{role}: {call} reported {describe(error)}, which no rule allows: {error}")
    return rule


__all__ = ["RULES", "TABLE", "Action", "Error", "Rule", "Unexpected", "describe", "keys", "rule_for"]
