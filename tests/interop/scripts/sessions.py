"""Fetch sessions (KIP-227): who gets one, what requests may say, what incremental responses have in them."""

from __future__ import annotations

from typing import Any

from klamm.kafka.wire.frames import read_response
from klamm.kafka.wire.messages import DELETE_RECORDS, DELETE_TOPICS, FETCH, PRODUCE
from tests.interop.raw import Raw
from tests.interop.scripts import RECORDS, ScriptContext, batch_of, script
from tests.procs import until

SIZE = len(batch_of(RECORDS))


def asked(
    topic: str,
    offsets: dict[int, int],
    session_id: int,
    epoch: int,
    forget: tuple[int, ...] = (),
    **fields: Any,
) -> dict[str, Any]:
    """The fields of a request for these offsets of the partitions of a topic."""
    most = fields.pop("partition_max_bytes", 1 << 20)
    parts = [
        FETCH.request.Partition(partition=n, fetch_offset=offset, partition_max_bytes=most)
        for n, offset in offsets.items()
    ]
    forgotten = [FETCH.request.ForgottenTopic(topic=topic, partitions=list(forget))] if forget else []
    return {
        "max_wait_ms": 0,
        "min_bytes": 1,
        "topics": [FETCH.request.Topic(topic=topic, partitions=parts)] if parts else [],
        "session_id": session_id,
        "session_epoch": epoch,
        "forgotten_topics_data": forgotten,
        **fields,
    }


class Session:
    """Requests of one session, each with the epoch after the last."""

    def __init__(
        self, context: ScriptContext, topic: str, offsets: dict[int, int], what: str = "begin", **fields: Any
    ) -> None:
        self.context = context
        self.topic = topic
        self.epoch = 0
        self.id = 0
        self.id = self.ask(what, offsets, **fields).session_id

    def ask(self, what: str, offsets: dict[int, int] | None = None, **fields: Any) -> Any:
        answer = self.context.ask(what, FETCH, 12, **asked(self.topic, offsets or {}, self.id, self.epoch, **fields))
        self.epoch += 1
        return answer


@script
def fetch_sessions_by_id_and_epoch(context: ScriptContext) -> None:
    topic = context.topic(2)
    for session_id, epoch in ((0, 1), (0, 3), (12345, 1), (12345, -2)):
        context.ask(f"no session {session_id}, {epoch}", FETCH, 12, **asked(topic, {}, session_id, epoch))
    context.ask("full, of one that is not there", FETCH, 12, **asked(topic, {0: 0}, 12345, -1))
    session = Session(context, topic, {0: 0, 1: 0})
    session.ask("the first")
    for epoch in (1, 0x7FFFFFFF, -2, 3):
        context.ask(f"another epoch, {epoch}", FETCH, 12, **asked(topic, {}, session.id, epoch))
    session.ask("the second, after all")
    by_id = [FETCH.request.Topic(topic_id=context.topic_id(topic), partitions=[])]
    context.ask("by id", FETCH, 13, **{**asked(topic, {}, session.id, 3), "topics": by_id})
    session.ask("by name, after that")
    old = session.id
    session.epoch = 0
    session.id = session.ask("begin again", {0: 0}).session_id
    context.ask("the old one", FETCH, 12, **asked(topic, {}, old, 4))
    context.ask("end", FETCH, 12, **asked(topic, {1: 0}, session.id, -1))
    context.ask("after the end", FETCH, 12, **asked(topic, {}, session.id, 1))


@script
def fetch_sessions_without_partitions(context: ScriptContext) -> None:
    topic = context.topic(2)
    empty = Session(context, topic, {})
    empty.ask("the first of an empty one")
    session = Session(context, topic, {0: 0, 1: 0}, what="full")
    session.ask("one is forgotten", forget=(0, 7))
    session.ask("the other one, too", forget=(1,))
    session.ask("and then")


@script
def fetch_sessions_tell_what_is_new(context: ScriptContext) -> None:
    topic = context.topic(3)
    session = Session(context, topic, {0: 0, 1: 0, 2: 0})
    session.ask("nothing")
    context.produce(None, topic, batch_of(RECORDS), 1)
    session.ask("records")
    session.ask("the same records, from the same offset")
    session.ask("behind them", {1: 3})
    session.ask("nothing again")
    context.produce(None, topic, batch_of(RECORDS), 0)
    context.produce(None, topic, batch_of(RECORDS), 2)
    session.ask("two of them", {1: 3})
    session.ask("one is forgotten, one is read", {0: 3}, forget=(2,))
    session.ask("it is added again", {2: 1})
    session.ask("and behind that", {2: 3})
    session.ask("beyond the end", {0: 4})
    session.ask("an error is told again")
    session.ask("back", {0: 3})
    session.ask("nothing after that")
    upto = DELETE_RECORDS.request.Partition(partition_index=1, offset=2)
    one = DELETE_RECORDS.request.Topic(name=topic, partitions=[upto])
    context.raw.ask(DELETE_RECORDS, 2, topics=[one], timeout_ms=10_000)
    session.ask("the log start offset has moved")
    session.ask("which is known then")
    session.ask("before the start", {1: 1})
    session.ask("a partition that is not there", {1: 3, 9: 0})
    session.ask("still not there")
    session.ask("it is forgotten", forget=(9,))


@script
def fetch_sessions_wait(context: ScriptContext) -> None:
    topic = context.topic(3)
    session = Session(context, topic, {0: 0, 1: 0, 2: 0})
    other: Raw = context.other()
    raw = context.raw
    for turn, (number, offset) in enumerate(((1, 3), (2, 3), (1, 6))):
        raw.send(FETCH, 12, **asked(topic, {}, session.id, session.epoch, max_wait_ms=20_000))
        session.epoch += 1
        part = PRODUCE.request.Partition(index=number, records=batch_of(RECORDS))
        data = [PRODUCE.request.Topic(name=topic, partition_data=[part])]
        other.ask(PRODUCE, 9, acks=-1, timeout_ms=10_000, topic_data=data)
        context.note(f"{turn}: woken by {number}", read_response(FETCH, 12, raw.receive())[1])
        session.ask(f"{turn}: behind", {number: offset})
    session.ask("its time is over", max_wait_ms=200)


@script
def fetch_sessions_take_turns(context: ScriptContext) -> None:
    topic = context.topic(3)
    for number in range(3):
        for _ in range(2):
            context.produce(None, topic, batch_of(RECORDS), number)
    session = Session(context, topic, {0: 0, 1: 0, 2: 0}, max_bytes=SIZE)
    offsets = dict.fromkeys(range(3), 0)
    for turn in range(5):
        answer = session.ask(f"turn {turn}", {turn % 3: offsets[turn % 3]} if turn else {}, max_bytes=SIZE)
        for each in (each for found in answer.responses for each in found.partitions if len(each.records)):
            offsets[each.partition_index] += 3


@script
def fetch_sessions_of_a_topic_that_is_deleted(context: ScriptContext) -> None:
    topic = context.topic(1)
    session = Session(context, topic, {0: 0})
    context.raw.ask(DELETE_TOPICS, 5, topic_names=[topic], timeout_ms=10_000)

    def gone() -> bool:
        answer = context.raw.ask(FETCH, 12, **asked(topic, {}, session.id, session.epoch))
        session.epoch += 1
        codes = [each.error_code for found in answer.responses for each in found.partitions]
        return codes not in ([], [0])

    until(gone, "it is gone")
    session.ask("deleted")
    session.ask("and again")


@script
def fetch_sessions_on_two_connections(context: ScriptContext) -> None:
    topic = context.topic(1)
    session = Session(context, topic, {0: 0})
    answer = context.other().ask(FETCH, 12, **asked(topic, {}, session.id, 1))
    context.note("on another connection", answer)
    second = context.ask("a second one on this", FETCH, 12, **asked(topic, {0: 0}, 0, 0))
    context.ask("the first of both", FETCH, 12, **asked(topic, {}, session.id, 1))
    context.ask("the second of both", FETCH, 12, **asked(topic, {}, second.session_id, 1))
