"""Transactions by hand: their states, their errors, and what readers see of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from klamm.kafka.wire.messages import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    DESCRIBE_PRODUCERS,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    LIST_TRANSACTIONS,
    OFFSET_FETCH,
    TXN_OFFSET_COMMIT,
)
from tests.interop.scripts import RECORDS, ScriptContext, batch_of, script
from tests.interop.scripts.groups import member_of
from tests.procs import until

CONCURRENT = 51


@dataclass
class Writer:
    """A transactional producer, one request at a time. A request that comes while another ends is asked again."""

    context: ScriptContext
    name: str
    number: int = -1
    epoch: int = -1
    sequence: int = 0

    @classmethod
    def of(cls, context: ScriptContext, word: str = "txn", **fields: Any) -> Writer:
        made = cls(context, context.name(word))
        made.init(None, **fields)
        return made

    def init(self, what: str | None, **fields: Any) -> Any:
        asked = {"transactional_id": self.name, "transaction_timeout_ms": 60_000, **fields}

        def answer() -> Any:
            told = self.context.raw.ask(INIT_PRODUCER_ID, 4, **asked)
            return told if told.error_code != CONCURRENT else None

        told = until(answer, "a producer")
        if what:
            self.context.note(what, told)
        if told.error_code == 0:
            self.number, self.epoch, self.sequence = told.producer_id, told.producer_epoch, 0
        return told

    @property
    def own(self) -> dict[str, Any]:
        return {"transactional_id": self.name, "producer_id": self.number, "producer_epoch": self.epoch}

    def add(self, what: str | None, *parts: tuple[str, int], **changed: Any) -> Any:
        own = {**self.own, **changed}
        names = dict.fromkeys(topic for topic, _ in parts)
        kind = ADD_PARTITIONS_TO_TXN.request.Topic
        topics = [kind(name=name, partitions=[number for topic, number in parts if topic == name]) for name in names]
        fields = {f"v3_and_below_{name}": value for name, value in {**own, "topics": topics}.items()}

        def answer() -> Any:
            told = self.context.raw.ask(ADD_PARTITIONS_TO_TXN, 3, **fields)
            codes = [
                each.partition_error_code
                for topic in told.results_by_topic_v3_and_below
                for each in topic.results_by_partition
            ]
            return told if CONCURRENT not in codes else None

        told = until(answer, "partitions are added")
        if what:
            self.context.note(what, told)
        return told

    def write(
        self, what: str | None, topic: str, partition: int = 0, records: list[Any] | None = None, **changed: Any
    ) -> Any:
        own = {"producer_id": self.number, "producer_epoch": self.epoch, "base_sequence": self.sequence, **changed}
        batch = batch_of(records or RECORDS, attributes=0x10, **own)
        told = self.context.produce(what, topic, batch, partition, transactional_id=self.name)
        if told and told.responses[0].partition_responses[0].error_code == 0:
            self.sequence += len(RECORDS)
        return told

    def end(self, what: str | None, committed: bool, version: int = 3, **changed: Any) -> Any:
        fields = {**self.own, "committed": committed, **changed}

        def answer() -> Any:
            told = self.context.raw.ask(END_TXN, version, **fields)
            return told if told.error_code != CONCURRENT else None

        told = until(answer, "it ends")
        if what:
            self.context.note(what, told)
        return told

    def ended(self) -> None:
        """Wait until nothing of it is open any more: markers may come a moment after the answer."""

        def state() -> bool:
            (told,) = self.context.raw.ask(DESCRIBE_TRANSACTIONS, 0, transactional_ids=[self.name]).transaction_states
            return told.transaction_state in ("CompleteCommit", "CompleteAbort", "Empty")

        until(state, "it is complete")


@script
def producers_are_named(context: ScriptContext) -> None:
    def init(what: str, version: int = 4, **fields: Any) -> Any:
        asked = {"transactional_id": None, "transaction_timeout_ms": 60_000, **fields}
        return context.ask(what, INIT_PRODUCER_ID, version, **asked)

    for version in range(5):
        init(f"v{version}", version)
    init("no name", transactional_id="")
    init("no time", transactional_id=context.name("t0"), transaction_timeout_ms=0)
    init("negative time", transactional_id=context.name("t1"), transaction_timeout_ms=-1)
    init("too long a time", transactional_id=context.name("t2"), transaction_timeout_ms=1_000_000_000)
    init("half of a producer", transactional_id=context.name("t3"), producer_id=5)
    init("half of a producer, the other", transactional_id=context.name("t4"), producer_epoch=5)
    init("a producer of somebody else", transactional_id=context.name("t5"), producer_id=10**9, producer_epoch=0)
    writer = Writer(context, context.name("writer"))
    first = writer.init("a writer")
    writer.init("again")
    writer.init("with what it has", producer_id=writer.number, producer_epoch=writer.epoch)
    writer.init("with what it had", producer_id=first.producer_id, producer_epoch=first.producer_epoch)
    context.note("the same producer", first.producer_id == writer.number)


@script
def a_transaction_is_committed_and_one_aborted(context: ScriptContext) -> None:
    topic = context.topic(2)
    writer = Writer.of(context)
    for what, committed in (("commit", True), ("abort", False)):
        writer.add(f"{what}: partitions", (topic, 0), (topic, 1))
        writer.write(f"{what}: write", topic)
        context.fetch(f"{what}: read of what is committed, before", topic, 0, isolation_level=1)
        context.fetch(f"{what}: read of everything, before", topic, 0)
        writer.end(f"{what}: end", committed)
        writer.ended()
        context.fetch(f"{what}: read of what is committed", topic, 0, isolation_level=1)
        context.fetch(f"{what}: read of everything", topic, 0)
        context.fetch(f"{what}: the other partition", topic, 0, 1, isolation_level=1)
    for level in (0, 1):
        parts = [LIST_OFFSETS.request.Partition(partition_index=0, timestamp=-1)]
        asked = [LIST_OFFSETS.request.Topic(name=topic, partitions=parts)]
        context.ask(f"ends, isolation {level}", LIST_OFFSETS, 7, replica_id=-1, isolation_level=level, topics=asked)


@script
def an_open_transaction_holds_readers_back(context: ScriptContext) -> None:
    topic = context.topic()
    context.produce(None, topic, batch_of(RECORDS))
    first, second = Writer.of(context, "first"), Writer.of(context, "second")
    first.add(None, (topic, 0))
    first.write(None, topic)
    second.add(None, (topic, 0))
    second.write(None, topic)
    second.end("the second ends", True)
    second.ended()
    context.produce(None, topic, batch_of(RECORDS))
    context.fetch("what is committed", topic, 0, isolation_level=1)
    context.fetch("behind it", topic, 6, isolation_level=1)
    first.end("the first ends", False)
    first.ended()
    context.fetch("what is committed, after", topic, 0, isolation_level=1)
    context.fetch("from the middle of what was aborted", topic, 4, isolation_level=1)


@script
def transactions_that_are_refused(context: ScriptContext) -> None:
    topic = context.topic()
    writer = Writer.of(context)
    writer.init("its second epoch")
    writer.end("commit of nothing", True)
    writer.end("abort of nothing", False)
    writer.write("write without having said so", topic)
    writer.add("a topic that is not there", (topic, 0), (context.name("missing"), 0))
    writer.add("a partition that is not there", (topic, 9))
    writer.add("an older epoch", (topic, 0), producer_epoch=writer.epoch - 1)
    writer.add("a newer epoch", (topic, 0), producer_epoch=writer.epoch + 1)
    writer.add("another producer", (topic, 0), producer_id=writer.number + 1_000_000)
    writer.add("another name", (topic, 0), transactional_id=context.name("nobody"))
    writer.add("no name", (topic, 0), transactional_id="")
    writer.add("at last", (topic, 0))
    writer.write("an older epoch writes", topic, producer_epoch=writer.epoch - 1)
    writer.write("well", topic)
    writer.write("a gap", topic, base_sequence=50)
    plain = batch_of(RECORDS, producer_id=writer.number, producer_epoch=writer.epoch, base_sequence=writer.sequence)
    context.produce("not transactional, within one", topic, plain)
    writer.end("an older epoch ends", True, producer_epoch=writer.epoch - 1)
    writer.end("another producer ends", True, producer_id=writer.number + 1_000_000)
    writer.end("another name ends", True, transactional_id=context.name("nobody2"))
    writer.end("commit", True)
    writer.end("commit again", True)
    writer.end("abort after it", False)


@script
def sequences_of_an_aborted_transaction_are_used_again(context: ScriptContext) -> None:
    """As librdkafka does: tests/interop/test_librdkafka_flaws.py."""
    topic = context.topic()
    writer = Writer.of(context)
    writer.add(None, (topic, 0))
    writer.write("first", topic)
    writer.write("first again", topic, base_sequence=0)
    writer.end("abort", False)
    writer.ended()
    writer.add(None, (topic, 0))
    writer.write("other records", topic, records=RECORDS[::-1], base_sequence=0)
    writer.write("the same records", topic, base_sequence=0)
    writer.end("commit", True)


@script
def a_writer_is_fenced(context: ScriptContext) -> None:
    topic = context.topic()
    first = Writer.of(context)
    first.add(None, (topic, 0))
    first.write(None, topic)
    second = Writer(context, first.name)
    second.init("a second one comes")
    context.fetch("what the first wrote is aborted", topic, 0, isolation_level=1)
    first.write("the first writes", topic)
    first.add("the first adds", (topic, 0))
    first.end("the first commits", True)
    first.init("the first starts anew as what it was", producer_id=first.number, producer_epoch=first.epoch)
    second.add("the second adds", (topic, 0))
    second.write("the second writes", topic)
    second.end("the second commits", True)
    second.ended()
    context.fetch("read", topic, 0, isolation_level=1)


def offsets(
    context: ScriptContext, what: str, writer: Writer, group: str, topic: str, offset: int, **changed: Any
) -> Any:
    part = TXN_OFFSET_COMMIT.request.Partition(
        partition_index=changed.pop("partition", 0),
        committed_offset=offset,
        committed_metadata=changed.pop("metadata", ""),
    )
    topics = [TXN_OFFSET_COMMIT.request.Topic(name=topic, partitions=[part])]
    fields = {**writer.own, "group_id": group, "topics": topics, **changed}
    return context.ask(what, TXN_OFFSET_COMMIT, 3, **fields)


def committed(context: ScriptContext, what: str, group: str, topic: str, stable: bool = False) -> Any:
    asked = [OFFSET_FETCH.request.Topic(name=topic, partition_indexes=[0])]
    return context.ask(what, OFFSET_FETCH, 7, group_id=group, topics=asked, require_stable=stable)


@script
def offsets_in_a_transaction(context: ScriptContext) -> None:
    topic, group = context.topic(), context.name("group")
    writer = Writer.of(context)
    for what, end in (("commit", True), ("abort", False)):
        context.ask(f"{what}: the group", ADD_OFFSETS_TO_TXN, 3, group_id=group, **writer.own)
        offsets(context, f"{what}: offsets", writer, group, topic, 7 if end else 9)
        committed(context, f"{what}: before", group, topic)
        committed(context, f"{what}: before, if stable", group, topic, stable=True)
        writer.end(f"{what}: end", end)
        writer.ended()
        context.until(OFFSET_FETCH, 7, lambda told: not told.topics[0].partitions[0].error_code, group_id=group, topics=[OFFSET_FETCH.request.Topic(name=topic, partition_indexes=[0])], require_stable=True)  # fmt: skip  # noqa: E501
        committed(context, f"{what}: after", group, topic, stable=True)


@script
def offsets_that_a_transaction_cannot_commit(context: ScriptContext) -> None:
    topic, group = context.topic(), context.name("group")
    writer = Writer.of(context)
    own = writer.own
    context.ask("another producer", ADD_OFFSETS_TO_TXN, 3, group_id=group, **{**own, "producer_id": 10**9})
    context.ask("an older epoch", ADD_OFFSETS_TO_TXN, 3, group_id=group, **{**own, "producer_epoch": writer.epoch - 1})
    context.ask(
        "another name", ADD_OFFSETS_TO_TXN, 3, group_id=group, **{**own, "transactional_id": context.name("nobody")}
    )
    context.ask("the group", ADD_OFFSETS_TO_TXN, 3, group_id=group, **own)
    offsets(context, "a topic that is not there", writer, group, context.name("missing"), 1)
    offsets(context, "a partition that is not there", writer, group, topic, 1, partition=9)
    offsets(context, "too much metadata", writer, group, topic, 1, metadata="x" * 5000)
    offsets(context, "well", writer, group, topic, 1)
    offsets(context, "a member that is not there", writer, group, topic, 1, generation_id=3, member_id="nobody")
    nobody = {"generation_id": 3, "member_id": "nobody"}
    offsets(context, "a group that is not there", writer, context.name("missing-group"), topic, 1, **nobody)
    busy = context.name("busy")
    member, generation = member_of(context, busy)
    context.ask("a group with members", ADD_OFFSETS_TO_TXN, 3, group_id=busy, **own)
    offsets(context, "not as a member", writer, busy, topic, 1)
    offsets(context, "as a stranger", writer, busy, topic, 1, generation_id=generation, member_id="nobody")
    offsets(context, "of another generation", writer, busy, topic, 1, generation_id=generation + 1, member_id=member)
    offsets(context, "as a member", writer, busy, topic, 1, generation_id=generation, member_id=member)
    writer.end("abort", False)


@script
def transactions_are_described(context: ScriptContext) -> None:
    topic = context.topic(2)
    writer = Writer.of(context)
    names = [writer.name]

    def listed(what: str, **fields: Any) -> None:
        told = context.raw.ask(LIST_TRANSACTIONS, 1, **fields)
        told.transaction_states = [each for each in told.transaction_states if each.transactional_id == writer.name]
        context.note(what, told)

    context.ask("before", DESCRIBE_TRANSACTIONS, 0, transactional_ids=names)
    writer.add(None, (topic, 1))
    writer.write(None, topic, 1)
    context.ask("open", DESCRIBE_TRANSACTIONS, 0, transactional_ids=names)
    listed("listed")
    listed("by state", state_filters=["Ongoing"])
    listed("by another state", state_filters=["CompleteCommit"])
    listed("by no such state", state_filters=["Odd"])
    listed("by producer", producer_id_filters=[writer.number])
    listed("by another producer", producer_id_filters=[writer.number + 1_000_000])
    listed("by age", duration_filter=3_600_000)
    asked = [DESCRIBE_PRODUCERS.request.Topic(name=topic, partition_indexes=[0, 1, 5])]
    context.ask("producers", DESCRIBE_PRODUCERS, 0, topics=asked)
    missing = [DESCRIBE_PRODUCERS.request.Topic(name=context.name("missing"), partition_indexes=[0])]
    context.ask("producers of a topic that is not there", DESCRIBE_PRODUCERS, 0, topics=missing)
    writer.end(None, True)
    writer.ended()
    context.ask("committed", DESCRIBE_TRANSACTIONS, 0, transactional_ids=names)
    context.ask("producers, after", DESCRIBE_PRODUCERS, 0, topics=asked[:1])
    context.ask("not there", DESCRIBE_TRANSACTIONS, 0, transactional_ids=[context.name("nobody")])
    context.ask("no name", DESCRIBE_TRANSACTIONS, 0, transactional_ids=[""])


@script
def records_of_an_open_transaction_may_be_deleted(context: ScriptContext) -> None:
    from klamm.kafka.wire.messages import DELETE_RECORDS

    topic = context.topic()
    writer = Writer.of(context)
    writer.add(None, (topic, 0))
    writer.write(None, topic)
    part = DELETE_RECORDS.request.Partition(partition_index=0, offset=2)
    asked = [DELETE_RECORDS.request.Topic(name=topic, partitions=[part])]
    context.ask("deleted", DELETE_RECORDS, 2, topics=asked, timeout_ms=20_000)
    writer.end("committed", True)
    writer.ended()
    context.fetch("read", topic, 2, isolation_level=1)
