"""One attempt of a task that writes to a server: a transaction of its own, which the driver decides (decision.py).

    DescribeTransactions   which of its transactional ids has no open transaction
    InitProducerId         under that id, which another attempt may have used before: that one is fenced
    DecideTransactions     whether the micro-batch is decided: only asked; if it is, nothing is written
    Produce                batch after batch; the first to a partition makes it part of the transaction
    EndTxn                 only if the attempt fails: aborted

Two attempts of a task may have the same number: when executors are lost, Spark runs a stage again, counts its attempts
from 0 once more, and takes the result of an earlier one if that is done first. A task that was stopped may go on while
a later micro-batch is written. So an attempt takes no id from another one whose transaction is open, but the next of
`_IDS`; from the one that began first, if all of them are.

An attempt that is killed leaves its transaction open. The driver's decision aborts it, the next attempt that uses its
transactional id, or the server when `transaction.timeout.ms` have passed.

The connection is that of the attempts before, in a process that Spark uses again.

One Produce is under way while rows for the next are encoded. The next is sent when all of its batches are answered, so
batches of a partition come in their order whatever fails, and no more than two requests are in memory.

A request that was cut by a lost connection is sent again: a server knows a batch by its number, and has it once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import NamedTuple

from klamm.batch import parse, patch
from klamm.errors import Aborted, UnknownTopic
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.wire import Struct
from klamm.kafka.wire.messages import DESCRIBE_TRANSACTIONS, END_TXN, INIT_PRODUCER_ID, PRODUCE
from klamm.spark.server.address import ServerAddress
from klamm.spark.server.client import Client, Sent, client_of
from klamm.spark.server.connection import ConnectionLost
from klamm.spark.server.errors import NotNow, check
from klamm.types import TopicId, TopicPartition

__all__ = ["Attempt", "TaskTransaction"]

_MAX_BYTES = 4 << 20  # of batches in one request
_IDS_SINCE = 13  # of Produce: a topic by its id
_BUMPS_SINCE = 5  # of EndTxn: the next transaction has another epoch
_TIMEOUT_MS = 30_000
_ACKS = 1  # the server syncs before the decision
_IDS = 4  # of attempts of one number
_ONGOING = "Ongoing"
_DUPLICATE = (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)


class TaskTransaction(NamedTuple):
    """The transaction of an attempt that has written all its rows, as it is sent to the driver."""

    transactional_id: str
    producer_id: int
    epoch: int


class Attempt:
    """An attempt of one task. It writes nothing, and has no transaction, before the first batch."""

    def __init__(
        self,
        address: ServerAddress,
        transactional_id: str,
        timeout_ms: int,
        is_decided: Callable[[Client], bool] | None = None,
    ) -> None:
        """Prepare. `is_decided`: whether the batch is in the log; None if that cannot be asked."""
        self.size = 0
        """Bytes of batches."""
        self._client = client_of(address)
        self._ids = [transactional_id, *(f"{transactional_id}.{number}" for number in range(1, _IDS))]
        self._id = transactional_id
        self._timeout_ms = timeout_ms
        self._is_decided = is_decided
        self._is_too_late = False
        self._producer: TaskTransaction | None = None
        self._topics: dict[int, tuple[str, TopicId]] = {}
        self._sequences: dict[tuple[int, int], int] = {}
        self._waiting: dict[tuple[int, int], bytearray] = {}
        """For the next request: by topic and partition."""
        self._waiting_bytes = 0
        self._unanswered: dict[tuple[int, int], bytearray] = {}
        """Of the request before: the server may not have them yet."""
        self._under_way: list[Sent] = []
        """To each leader, with batches of `_unanswered`."""

    @property
    def transaction(self) -> TaskTransaction | None:
        """What the driver decides; None: there were no rows, or they are in the log."""
        return self._producer

    def name_topic(self, number: int, name: str, topic_id: TopicId) -> None:
        """Say which topic batches of that number are for."""
        self._topics[number] = name, topic_id

    def add(self, topic: int, partition: int, batch: memoryview) -> None:
        """Send a batch, which may be used again when this returns."""
        if self._producer is None and not self._is_too_late:
            self._producer = self._client.patiently(self._begin)
        if self._producer is None:
            return
        key = topic, partition
        if key in self._waiting or self._waiting_bytes + len(batch) > _MAX_BYTES:
            self._send()
        copied = bytearray(batch)
        sequence = self._sequences.get(key, 0)
        patch.enrol(copied, self._producer.producer_id, self._producer.epoch, sequence)
        self._sequences[key] = (sequence + parse(copied).record_count) & 0x7FFFFFFF
        self._waiting[key] = copied
        self._waiting_bytes += len(copied)
        self.size += len(copied)

    def finish(self) -> None:
        """Send what is left, and leave the transaction to the driver."""
        self._send()
        self._complete()

    def discard(self) -> None:
        """Abort: what was written is never read. If that fails, others abort it."""
        producer = self._producer
        if producer is not None:
            request = END_TXN.request(
                transactional_id=self._id,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                committed=False,
            )
            with contextlib.suppress(Exception):  # the error that led here is the one to raise
                for sent in self._under_way:  # on its way to another address, it could come after the end
                    self._client.receive(sent)
            with contextlib.suppress(Exception):
                self._client.ask(END_TXN, request, at_least=_BUMPS_SINCE)
        self._client.close()

    def _begin(self) -> TaskTransaction | None:
        """Take a transactional id. Return None if the batch is decided: the transaction would stay open.

        A decision that comes after the question finds the id, and fences it.
        """
        self._id = self._find_unused_id()
        request = INIT_PRODUCER_ID.request(transactional_id=self._id, transaction_timeout_ms=self._timeout_ms)
        response = self._client.ask(INIT_PRODUCER_ID, request)
        check(f"{self._client.address}: {self._id}", response.error_code)
        if self._is_decided is not None and self._is_decided(self._client):
            self._is_too_late = True
            return None
        return TaskTransaction(self._id, response.producer_id, response.producer_epoch)

    def _find_unused_id(self) -> str:
        request = DESCRIBE_TRANSACTIONS.request(transactional_ids=self._ids)
        response = self._client.ask(DESCRIBE_TRANSACTIONS, request)
        began_ms: dict[str, int] = {}
        for each in response.transaction_states:
            if each.error_code != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                check(f"{self._client.address}: {each.transactional_id}", each.error_code)
            if each.transaction_state == _ONGOING:
                began_ms[each.transactional_id] = each.transaction_start_time_ms
        return min(self._ids, key=lambda name: began_ms.get(name, -1))

    def _send(self) -> None:
        """Send what waits, once the server has what was sent before."""
        self._complete()
        self._unanswered, self._waiting, self._waiting_bytes = self._waiting, {}, 0
        with contextlib.suppress(ConnectionLost, NotNow):  # `_complete` sends it again
            self._start()

    def _complete(self) -> None:
        """Wait until the server has all that was sent."""
        while self._unanswered:
            self._client.patiently(self._complete_once)

    def _start(self) -> None:
        """Send what is unanswered. Raise NotNow or ConnectionLost if a part of it cannot be sent now."""
        by_leader: dict[int, list[tuple[int, int]]] = {}
        for key in self._unanswered:
            name = self._topics[key[0]][0]
            by_leader.setdefault(self._client.leader(TopicPartition(name, key[1])), []).append(key)
        for broker, keys in by_leader.items():
            sent = self._client.send(PRODUCE, self._request(keys), broker=broker, at_least=_IDS_SINCE)
            self._under_way.append(sent)

    def _complete_once(self) -> None:
        """Receive what is under way, and keep what the server does not have yet. Raise NotNow for that, or
        ConnectionLost.
        """
        if not self._under_way:
            self._start()
        under_way, self._under_way = self._under_way, []
        numbers = {topic_id: number for number, (_, topic_id) in self._topics.items()}
        for sent in under_way:
            response = self._client.receive(sent)
            failed: tuple[str, int, str | None] | None = None
            for topic in response.responses:
                number = numbers[TopicId(bytes(topic.topic_id).hex())]
                name = self._topics[number][0]
                for each in topic.partition_responses:
                    if each.error_code in _DUPLICATE:
                        del self._unanswered[number, each.index]
                    else:
                        failed = f"{self._client.address}: {name}/{each.index}", each.error_code, each.error_message
            if failed is not None:
                if failed[1] == ErrorCode.UNKNOWN_TOPIC_ID:
                    raise UnknownTopic(f"{failed[0]}: the topic was deleted while it was being written to")
                if failed[1] == ErrorCode.INVALID_TXN_STATE:
                    raise Aborted(f"{failed[0]}: {self._id}: the transaction is over", hint="nothing of it is read")
                check(*failed)

    def _request(self, keys: list[tuple[int, int]]) -> Struct:
        kind = PRODUCE.request
        topics: dict[int, list[Struct]] = {}
        for number, partition in keys:
            batch = kind.Partition(index=partition, records=self._unanswered[number, partition])
            topics.setdefault(number, []).append(batch)
        data = [
            kind.Topic(topic_id=bytes.fromhex(self._topics[number][1]), partition_data=batches)
            for number, batches in topics.items()
        ]
        return kind(transactional_id=self._id, acks=_ACKS, timeout_ms=_TIMEOUT_MS, topic_data=data)
