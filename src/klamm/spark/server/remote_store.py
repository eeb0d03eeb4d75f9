"""A store behind a server, as planner.py and range_reader.py ask it of a directory: topics by id, logs, batches.

Batches come as they lie in the log, by raw fetches that name the topic by its id, so a topic that was re-created is
never read in the place of another. Each batch is checked by its CRC here. Of transactions that were aborted the server
sends the list; their batches are left out here.

What differs from a directory
  The server does not say what is on disk. So an offset may be handed to Spark that a power cut of the server's machine
  takes back, if it was written with acks=1. The log then has another leader epoch there, and the query reports data
  loss (planner.py, PLN5).
"""

from __future__ import annotations

import time
from functools import cached_property
from typing import Any, Self

from klamm.batch import HEADER_SIZE, decode, patch, verify, walk
from klamm.errors import CorruptBatch, OffsetOutOfRange, UnknownTopic, Unreachable
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.wire.messages import FETCH
from klamm.log.lookup import TimestampLookup
from klamm.log.partition import Ends
from klamm.spark.server.address import ServerAddress
from klamm.spark.server.client import RETRY_TIMEOUT_S, Client, TopicInfo
from klamm.spark.server.errors import NotNow, check
from klamm.spark.server.topic_catalog import TopicCatalog, read_settings
from klamm.store.names import nearest
from klamm.store.settings import Settings
from klamm.types import TopicPartition

__all__ = ["DescribedTopic", "ServerPartition", "ServerStore", "ServerTopic"]

_MAX_WAIT_MS = 500
_READ_BYTES = 1 << 20
_IDS_SINCE = 13  # of Fetch
_NEVER = 2**63 - 1


class ServerStore:
    """In the place of a store's Core, for readers. Not for several threads at a time."""

    read_only = False
    closed = False

    def __init__(self, address: ServerAddress) -> None:
        """Connect. Raise Unreachable if no server answers."""
        self.path = str(address)
        self.client = Client(address)
        try:
            self.client.topics([])
        except BaseException:
            self.client.close()
            raise
        self.catalog = TopicCatalog(self.client)

    def topic(self, name: str) -> ServerTopic:
        """Return a topic as it is now. Raise UnknownTopic if there is none."""
        found = self.client.topics([name]).get(name)
        if found is None:
            raise UnknownTopic(
                f"Topic {name!r} does not exist", hint=nearest(name, self.client.topics().keys() - {name})
            )
        return ServerTopic(self.client, found)

    def all_topics(self) -> tuple[int, list[ServerTopic]]:
        """Return a number that means nothing, and the topics that the user may see, but for those of Kafka itself."""
        found = self.client.topics()
        return 0, [ServerTopic(self.client, each) for _, each in sorted(found.items()) if not each.is_internal]

    def is_in_place(self) -> bool:
        """Return whether the server still serves the store that it served first."""
        return self.client.cluster_id == self.catalog.store_id

    def lay_out(self, *_: object) -> tuple[int, ...]:
        """Return nothing: for callers that create topics."""
        return ()

    def close(self) -> None:
        self.closed = True
        self.client.close()


class DescribedTopic:
    """A topic as the catalog has it. Its settings are asked for when they are needed."""

    def __init__(self, client: Client, info: TopicInfo) -> None:
        self._client = client
        self.name = info.name
        self.id = info.id

    @cached_property
    def settings(self) -> Settings:
        return read_settings(self._client, self.name)


class ServerTopic:
    """A topic as it was when it was asked for: its ends are read once, of all partitions together."""

    def __init__(self, client: Client, info: TopicInfo) -> None:
        self.client = client
        self.name = info.name
        self.topic = DescribedTopic(client, info)
        self.count = len(info.leaders)
        self._epochs = info.leader_epochs
        self._ends: dict[int, Ends] = {}

    def partition(self, number: int) -> ServerPartition:
        """Return a partition. Raise UnknownTopic if there is none of that number."""
        if not 0 <= number < self.count:
            raise UnknownTopic(
                f"{self.name}: there is no partition {number}", hint=f"it has {self.count}, numbered from 0"
            )
        return ServerPartition(self, number)

    def partitions(self) -> list[ServerPartition]:
        return [ServerPartition(self, number) for number in range(self.count)]

    def ends(self, number: int, *, again: bool = False) -> Ends:
        if again or not self._ends:
            tps = [TopicPartition(self.name, each) for each in range(self.count)]
            start, stable, end = self.client.bounds(tps)
            self._ends = {
                tp.partition: Ends(
                    start[tp].offset,
                    end[tp].offset,
                    min(stable[tp].offset, end[tp].offset),
                    end[tp].offset,
                    max(end[tp].leader_epoch, self._epochs[tp.partition]),
                )
                for tp in tps
            }
        return self._ends[number]


class ServerPartition:
    """A partition, as the layers above ask it of a log."""

    def __init__(self, opened: ServerTopic, number: int) -> None:
        self._opened = opened
        self.client = opened.client
        self.topic = opened.name
        self.topic_id = opened.topic.id
        self.number = number
        self.name = TopicPartition(opened.name, number)
        self.directory = f"{opened.client.address}: {opened.name}/{number}"

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def ends(self) -> Ends:
        """Return where the log begins and ends: as of when the topic was asked for, all of it taken to be on disk."""
        return self._opened.ends(self.number)

    def sync(self, end_offset: int) -> None:
        """Do nothing: a server syncs by itself."""

    def out_of_range(self, offset: int) -> OffsetOutOfRange:
        ends = self._opened.ends(self.number, again=True)
        return OffsetOutOfRange(
            f"{self.directory}: offset {offset} is not in [{ends.start}, {ends.end})",
            offset=offset,
            start=ends.start,
            end=ends.end,
            hint="expected an offset in that range",
        )

    # ---- times

    def first_since(self, timestamp_ms: int) -> TimestampLookup | None:
        """Return the first record, or marker, with a timestamp of at least `timestamp_ms`; None if there is none."""
        found = self.client.offsets({self.name: timestamp_ms}, committed=False)[self.name]
        return None if found.offset < 0 else TimestampLookup(found.offset, timestamp_ms, found.leader_epoch)

    def offset_at(self, timestamp_ms: int) -> int | None:
        """Return the first offset of a committed record with a timestamp of at least `timestamp_ms`, or None.

        The server says where the first is in the log as it lies; from there on, records are looked at.
        """
        found = self.first_since(timestamp_ms)
        if found is None:
            return None
        with self.reader(found.offset) as reader:
            while data := reader.read(_READ_BYTES):
                at = 0
                for batch in walk(data):
                    if batch.max_timestamp >= timestamp_ms and not batch.is_control:
                        for record in decode(data[at : at + batch.size], from_offset=found.offset):
                            if record.timestamp >= timestamp_ms:
                                return record.offset
                    at += batch.size
        return None

    # ---- epochs

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch of the record at `offset`."""
        epoch = self.ends().leader_epoch
        while epoch > 0:
            before = self.client.ends_of_epochs({self.name: epoch - 1})[self.name]
            if before.offset < 0 or offset >= before.offset:
                return epoch
            epoch = min(epoch - 1, before.leader_epoch)
        return epoch

    def end_of_epoch(self, epoch: int) -> int:
        """Return where a leader epoch ended. A stored offset of that epoch beyond it refers to lost records."""
        ends = self.ends()
        if epoch == ends.leader_epoch:
            return ends.end
        found = self.client.ends_of_epochs({self.name: epoch})[self.name]
        if found.offset >= 0:
            return found.offset
        # Of an epoch that the log does not know, nothing is known: it is of a newer log, or its records expired.
        return ends.end if epoch > ends.leader_epoch else _NEVER

    def reader(self, offset: int, *, committed: bool = True) -> Reader:
        """Return what reads from an offset up to where the log ends now."""
        return Reader(self, offset, committed=committed)


class Reader:
    """Reads a partition by fetches. `offset` is the next one to read."""

    def __init__(self, partition: ServerPartition, offset: int, *, committed: bool) -> None:
        self._partition = partition
        self._committed = committed
        self._end: int | None = None  # of the log, when it was last read from
        self.offset = offset

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: the connection is the client's."""

    def read(self, max_bytes: int = _READ_BYTES) -> memoryview:
        """Return the next whole batches, verified: at least one, however large; empty at the end of the log.

        The first batch may hold records before `offset`. OffsetOutOfRange if `offset` is not in the log.
        """
        silent_s, wait_ms = time.monotonic() + RETRY_TIMEOUT_S, 0
        while self._end is None or self.offset < self._end:
            found = self._fetch(max_bytes, wait_ms)
            records = memoryview(found.records or b"")
            self._end = found.last_stable_offset if self._committed else found.high_watermark
            wait_ms = _MAX_WAIT_MS  # there are records, so they come
            if not records:
                if time.monotonic() > silent_s:
                    raise Unreachable(f"{self._partition.directory}: offset {self.offset} was not sent")
                continue
            data, self.offset = self._verified(records)
            silent_s = time.monotonic() + RETRY_TIMEOUT_S
            if self._committed and found.aborted_transactions:
                data = _without_aborted(data, found.aborted_transactions)
            if data:
                return data
        return memoryview(b"")

    def _fetch(self, max_bytes: int, wait_ms: int) -> Any:
        partition, client = self._partition, self._partition.client
        kind = FETCH.request
        wanted = kind.Partition(
            partition=partition.number, fetch_offset=self.offset, partition_max_bytes=max(max_bytes, HEADER_SIZE)
        )
        topic_id = bytes.fromhex(partition.topic_id)
        request = kind(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=max(max_bytes, HEADER_SIZE),
            isolation_level=int(self._committed),
            topics=[kind.Topic(topic_id=topic_id, partitions=[wanted])],
        )

        def attempt() -> Any:
            response = client.ask(FETCH, request, broker=client.leader(partition.name), at_least=_IDS_SINCE)
            check(partition.directory, response.error_code)
            try:
                ((found,),) = ([*topic.partitions] for topic in response.responses)
            except ValueError:
                raise NotNow(f"{partition.directory}: the server's response lacks it") from None
            if found.error_code in (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID):
                info = client.topics([partition.topic]).get(partition.topic)
                if info is None or info.id != partition.topic_id:
                    raise UnknownTopic(
                        f"{partition.topic}: the topic was deleted" + (" and re-created" if info else "")
                    )
                raise NotNow(f"{partition.directory}: {ErrorCode(found.error_code).name}")
            if found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                raise partition.out_of_range(self.offset)
            check(partition.directory, found.error_code)
            return found

        return client.patiently(attempt)

    def _verified(self, records: memoryview) -> tuple[memoryview, int]:
        """Return the whole batches, and the offset behind them. The last one may be cut; the first is not."""
        base = patch.base_offset_of(records) if len(records) >= HEADER_SIZE else -1
        try:
            size, next_offset = verify(records, max(base, 0), False)
        except CorruptBatch as error:
            raise self._corrupt(error.message) from None
        if not size or base < 0 or next_offset <= self.offset:
            raise self._corrupt(f"{len(records)} bytes without a batch of offset {self.offset} or later")
        return records[:size], next_offset

    def _corrupt(self, what: str) -> CorruptBatch:
        return CorruptBatch(
            f"{self._partition.directory}: offset {self.offset}: {what}",
            path=self._partition.directory,
            hint="run `klamm check` where the server is",
        )


def _without_aborted(data: memoryview, aborted: list[Any]) -> memoryview:
    """Leave out the batches of aborted transactions: from where each begins up to its marker."""
    begins: dict[int, list[int]] = {}
    for each in sorted(aborted, key=lambda each: each.first_offset):
        begins.setdefault(each.producer_id, []).append(each.first_offset)
    is_open: set[int] = set()
    kept: list[memoryview] = []
    at = 0
    for batch in walk(data):
        whole = data[at : at + batch.size]
        at += batch.size
        if batch.is_transactional:
            left = begins.get(batch.producer_id)
            if left and batch.next_offset > left[0]:
                left.pop(0)
                is_open.add(batch.producer_id)
            if batch.is_control:
                is_open.discard(batch.producer_id)
            elif batch.producer_id in is_open:
                continue
        kept.append(whole)
    return data if sum(map(len, kept)) == len(data) else memoryview(b"".join(kept))
