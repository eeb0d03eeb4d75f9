"""Transactions over a real socket: every version, codes as each knows them, servers killed between any two calls."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.batch.header import TRANSACTIONAL
from klamm.disk import files
from klamm.kafka.apis.produce import _ProduceRequest
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.transaction_coordinator import Identified
from klamm.kafka.wire.codec import Api
from klamm.kafka.wire.frames import read_response
from klamm.kafka.wire.messages import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    DESCRIBE_PRODUCERS,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    INIT_PRODUCER_ID,
    LIST_TRANSACTIONS,
    OFFSET_FETCH,
    PRODUCE,
    TXN_OFFSET_COMMIT,
)
from klamm.kafka.wire.structs import Struct
from klamm.store.catalog import Catalog
from klamm.store.transaction_state import Add
from tests.interop.raw import Raw
from tests.kafka.connect import served
from tests.kafka.member import address_in, hold_writes, serve_for_ever
from tests.kafka.producing import offset_of
from tests.kafka.requests import produce, producing, sealed
from tests.procs import PATIENCE, children, until
from tests.store.open_transactions import seen

E = ErrorCode
NAME = "billing"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[klamm.Store]:
    with klamm.open(tmp_path / "events") as opened:
        opened.topics.create("t", partitions=2)
        yield opened


def every(api: Api) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("version", range(api.min_version, api.max_version + 1))


class Producer:
    """By hand. `bumps`: as clients of KIP-890 do it."""

    def __init__(self, raw: Raw, *, bumps: bool, name: str = NAME) -> None:
        self.raw, self.bumps, self.name = raw, bumps, name
        self.producer_id, self.epoch, self.sequence = -1, -1, 0

    def init(self, version: int = 5, timeout_ms: int = 60_000) -> int:
        answer = self.raw.ask(INIT_PRODUCER_ID, version, transactional_id=self.name, transaction_timeout_ms=timeout_ms)
        if not answer.error_code:
            self.producer_id, self.epoch, self.sequence = answer.producer_id, answer.producer_epoch, 0
        return int(answer.error_code)

    @property
    def me(self) -> dict[str, Any]:
        return {"transactional_id": self.name, "producer_id": self.producer_id, "producer_epoch": self.epoch}

    def add(self, *numbers: int, topic: str = "t", version: int = 3) -> dict[int, int]:
        topics = [ADD_PARTITIONS_TO_TXN.request.Topic(name=topic, partitions=list(numbers))]
        if version < 4:
            answer = self.raw.ask(
                ADD_PARTITIONS_TO_TXN,
                version,
                v3_and_below_transactional_id=self.name,
                v3_and_below_producer_id=self.producer_id,
                v3_and_below_producer_epoch=self.epoch,
                v3_and_below_topics=topics,
            )
            found = answer.results_by_topic_v3_and_below
        else:
            found = self.batched(topics, version=version, verify_only=False)
        return {
            each.partition_index: each.partition_error_code for topic in found for each in topic.results_by_partition
        }

    def batched(self, topics: list[Any], *, version: int, verify_only: bool) -> list[Any]:
        transaction = ADD_PARTITIONS_TO_TXN.request.Transaction(**self.me, verify_only=verify_only, topics=topics)
        answer = self.raw.ask(ADD_PARTITIONS_TO_TXN, version, transactions=[transaction])
        assert answer.error_code == 0
        (result,) = answer.results_by_transaction
        assert result.transactional_id == self.name
        return list(result.topic_results)

    def send(self, value: bytes, number: int = 0) -> int:
        batch = sealed(
            [value],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.sequence,
            attributes=TRANSACTIONAL,
        )
        fields = producing({("t", number): batch}, acks=-1)
        answer = self.raw.ask(PRODUCE, 12 if self.bumps else 11, transactional_id=self.name, **fields)
        (topic,) = answer.responses
        error = int(topic.partition_responses[0].error_code)
        self.sequence += not error
        return error

    def commit_offset(self, offset: int, group: str = "g", version: int | None = None, **more: Any) -> int:
        self.begin_commit_offset(offset, group, version, **more)
        version = self._offset_version(version)
        return int(read_response(TXN_OFFSET_COMMIT, version, self.raw.receive())[1].topics[0].partitions[0].error_code)

    def _offset_version(self, version: int | None) -> int:
        return (5 if self.bumps else 4) if version is None else version

    def begin_commit_offset(self, offset: int, group: str = "g", version: int | None = None, **more: Any) -> None:
        """Send it, and do not wait."""
        partition = TXN_OFFSET_COMMIT.request.Partition(
            partition_index=more.pop("number", 0), committed_offset=offset, committed_metadata=more.pop("text", "")
        )
        topics = [TXN_OFFSET_COMMIT.request.Topic(name=more.pop("topic", "t"), partitions=[partition])]
        version = self._offset_version(version)
        self.raw.send(TXN_OFFSET_COMMIT, version, **self.me, group_id=group, topics=topics, **more)

    def add_group(self, group: str = "g", version: int = 4) -> int:
        return int(self.raw.ask(ADD_OFFSETS_TO_TXN, version, **self.me, group_id=group).error_code)

    def end(self, *, commit: bool = True, version: int | None = None) -> int:
        answer = self.raw.ask(
            END_TXN, (5 if self.bumps else 4) if version is None else version, **self.me, committed=commit
        )
        if self.bumps and not answer.error_code:
            assert answer.producer_epoch >= 0
            if (answer.producer_id, answer.producer_epoch) != (self.producer_id, self.epoch):
                self.sequence = 0
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        return int(answer.error_code)


# ---- both kinds


@pytest.mark.parametrize("bumps", [False, True], ids=["older", "kip-890"])
def test_transactions_of_both_kinds(store: klamm.Store, raw: Raw, bumps: bool) -> None:
    producer = Producer(raw, bumps=bumps)
    assert producer.init() == 0
    for number, commit in enumerate((True, False, True)):
        if bumps:
            assert producer.send(b"%d" % number) == 0, "a batch adds its partition by itself"
        else:
            assert producer.send(b"%d" % number) == E.INVALID_TXN_STATE
            assert producer.add(0, 1) == {0: 0, 1: 0}
            assert producer.send(b"%d" % number) == 0
            assert producer.commit_offset(number) == E.INVALID_TXN_STATE and producer.add_group() == 0
        assert producer.commit_offset(number) == 0
        assert producer.end(commit=commit) == 0
    assert seen(store, 0) == [[b"0", b"2"]] and offset_of(store, "g") == 2
    assert producer.epoch == (3 if bumps else 0)
    assert store.check().breaches == []


@pytest.mark.parametrize("bumps", [False, True], ids=["older", "kip-890"])
def test_the_end_of_a_transaction_takes_little_where_it_wrote_nothing(
    store: klamm.Store, raw: Raw, monkeypatch: pytest.MonkeyPatch, bumps: bool
) -> None:
    """It may have thousands of partitions: older clients need no marker there; others one, which waits with all."""
    count = 40
    for number in range(count):
        store.topics.create(f"unused-{number}")
    producer = Producer(raw, bumps=bumps)
    assert producer.init() == 0
    for number in range(count):
        assert producer.add(0, topic=f"unused-{number}") == {0: 0}
    syncs, lists = list[str](), list[Catalog]()
    replace, list_topics = files.replace, Catalog.topics

    def record_sync(path: str, data: Any) -> None:
        syncs.append(path)
        replace(path, data)

    def record_list(self: Catalog) -> Any:
        lists.append(self)
        return list_topics(self)

    monkeypatch.setattr(files, "replace", record_sync)
    monkeypatch.setattr(Catalog, "topics", record_list)
    assert producer.end() == 0
    assert [path for path in syncs if "/topics/" in path] == []
    assert len(lists) < count, "no list of all topics for each partition"
    monkeypatch.undo()
    ends = [store.topics[f"unused-{number}"].info().partitions[0].end for number in range(count)]
    assert ends == [int(bumps)] * count


@every(INIT_PRODUCER_ID)
def test_init_producer_id_gives_new_ids_and_bumps_the_epoch_of_a_transactional_one(raw: Raw, version: int) -> None:
    ids = set()
    for _ in range(2):
        answer = raw.ask(INIT_PRODUCER_ID, version, transactional_id=None, transaction_timeout_ms=1)
        assert (answer.error_code, answer.producer_epoch) == (0, 0)
        ids.add(answer.producer_id)
    assert len(ids) == 2
    producer = Producer(raw, bumps=False)
    assert producer.init(version) == 0 and producer.init(version) == 0 and producer.epoch == 1
    assert producer.init(version, timeout_ms=900_001) == E.INVALID_TRANSACTION_TIMEOUT
    if version >= 3:
        answer = raw.ask(
            INIT_PRODUCER_ID,
            version,
            transactional_id=NAME,
            transaction_timeout_ms=1000,
            producer_id=producer.producer_id,
            producer_epoch=0,
        )
        assert answer.error_code == (E.PRODUCER_FENCED if version >= 4 else E.INVALID_PRODUCER_EPOCH)
        assert (answer.producer_id, answer.producer_epoch) == (-1, -1)
        for half in ({"producer_id": 7}, {"producer_epoch": 0}):
            answer = raw.ask(INIT_PRODUCER_ID, version, transactional_id=None, transaction_timeout_ms=1000, **half)
            assert answer.error_code == E.INVALID_REQUEST


@every(ADD_PARTITIONS_TO_TXN)
def test_no_partition_is_added_to_a_transaction_if_one_is_unknown(raw: Raw, version: int) -> None:
    producer = Producer(raw, bumps=False)
    assert producer.init() == 0
    assert producer.add(0, 7, version=version) == {0: E.OPERATION_NOT_ATTEMPTED, 7: E.UNKNOWN_TOPIC_OR_PARTITION}
    assert producer.add(0, topic="nowhere", version=version) == {0: E.UNKNOWN_TOPIC_OR_PARTITION}
    assert producer.add(0, -1, version=version)[-1] == E.UNKNOWN_TOPIC_OR_PARTITION
    assert producer.end() == E.INVALID_TXN_STATE, "nothing has begun"
    if version >= 4:
        topics = [ADD_PARTITIONS_TO_TXN.request.Topic(name="t", partitions=[0, 1])]
        assert producer.add(1, version=version) == {1: 0}
        (found,) = producer.batched(topics, version=version, verify_only=True)
        missing = E.TRANSACTION_ABORTABLE if version >= 5 else E.INVALID_TXN_STATE
        assert [each.partition_error_code for each in found.results_by_partition] == [missing, 0]
    assert producer.add(0, 1, version=version) == {0: 0, 1: 0}
    producer.epoch += 1
    fenced = E.PRODUCER_FENCED if version >= 2 else E.INVALID_PRODUCER_EPOCH
    assert producer.add(0, version=version) == {0: fenced}


@every(ADD_OFFSETS_TO_TXN)
def test_a_group_is_added_to_a_transaction_unless_its_producer_is_fenced(raw: Raw, version: int) -> None:
    producer = Producer(raw, bumps=False)
    assert producer.init() == 0 and producer.add_group("", version) == E.INVALID_GROUP_ID
    assert producer.add_group("g", version) == 0 and producer.end() == 0
    producer.epoch += 1
    assert producer.add_group("g", version) == (E.PRODUCER_FENCED if version >= 2 else E.INVALID_PRODUCER_EPOCH)
    producer.name = ""
    assert producer.add_group("g", version) == E.INVALID_REQUEST


@every(TXN_OFFSET_COMMIT)
def test_a_transaction_commits_offsets_of_known_partitions_only(store: klamm.Store, raw: Raw, version: int) -> None:
    producer = Producer(raw, bumps=version >= 5)
    assert producer.init() == 0
    if version < 5:
        assert producer.add_group() == 0
    assert producer.commit_offset(3, version=version) == 0
    assert producer.commit_offset(3, group="", version=version) == E.INVALID_GROUP_ID
    assert producer.commit_offset(3, topic="nowhere", version=version) == E.UNKNOWN_TOPIC_OR_PARTITION
    assert producer.commit_offset(3, number=2, version=version) == E.UNKNOWN_TOPIC_OR_PARTITION
    assert producer.commit_offset(-2, version=version) == E.INVALID_REQUEST
    assert producer.commit_offset(3, text="x" * 4097, version=version) == E.OFFSET_METADATA_TOO_LARGE
    if version >= 3:
        assert producer.commit_offset(3, version=version, generation_id=5, member_id="m") == E.UNKNOWN_MEMBER_ID
        if version == 5:  # which adds the group to the transaction by itself
            other: dict[str, Any] = {"group": "none", "generation_id": 5, "member_id": "m"}
            assert producer.commit_offset(3, version=version, **other) == E.ILLEGAL_GENERATION
    producer.epoch += 1
    assert producer.commit_offset(4, version=version) == E.INVALID_PRODUCER_EPOCH
    producer.epoch -= 1
    assert fetched(raw) == (E.UNSTABLE_OFFSET_COMMIT, -1) and offset_of(store, "g") is None
    assert producer.end() == 0
    assert fetched(raw) == (0, 3)


STABLE = {
    "group_id": "g",
    "topics": [OFFSET_FETCH.request.Topic(name="t", partition_indexes=[0])],
    "require_stable": True,
}


def fetched(raw: Raw) -> tuple[int, int]:
    """Where the group stands, for who wants to know for certain."""
    return standing(raw.ask(OFFSET_FETCH, 7, **STABLE))


def standing(answer: Struct) -> tuple[int, int]:
    found = answer.topics[0].partitions[0]
    return int(found.error_code), int(found.committed_offset)


def test_offsets_that_a_checked_commit_is_about_to_make_pending_are_not_stable(store: klamm.Store) -> None:
    """The new owner of a partition asks while the TxnOffsetCommit of the old one, let through, waits to be written."""
    with served(Path(store.path)) as server, server.dial() as raw, server.dial() as other:
        producer = Producer(raw, bumps=True)
        assert producer.init() == 0 and producer.commit_offset(3) == 0 and producer.end() == 0
        waiting = server.broker.pools._write._work_queue.qsize
        go_on = hold_writes(server)
        producer.begin_commit_offset(4)
        until(lambda: waiting() == 1, "the commit waits")
        number = other.send(OFFSET_FETCH, 7, **STABLE)
        until(lambda: waiting() == 2, "the question waits behind it")
        go_on.set()
        answered, answer = read_response(OFFSET_FETCH, 7, other.receive())
        assert answered == number and standing(answer) == (E.UNSTABLE_OFFSET_COMMIT, -1)
        raw.receive()
        assert producer.end() == 0 and fetched(raw) == (0, 4)


def test_a_transaction_that_ends_while_offsets_are_read_does_not_hide(
    store: klamm.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(Path(store.path)) as server, server.dial() as raw, server.dial() as other:
        producer = Producer(raw, bumps=True)
        assert producer.init() == 0 and producer.commit_offset(3) == 0
        groups = server.broker.group_store.groups
        read = groups.offsets

        def end_then(*wanted: Any) -> Any:
            found = read(*wanted)
            assert producer.end() == 0
            return found

        monkeypatch.setattr(groups, "offsets", end_then)
        assert fetched(other) == (E.UNSTABLE_OFFSET_COMMIT, -1)
        monkeypatch.undo()
        assert fetched(other) == (0, 3)


@every(END_TXN)
def test_a_transaction_ends_unless_it_has_not_begun_or_its_producer_is_fenced(
    store: klamm.Store, raw: Raw, version: int
) -> None:
    producer = Producer(raw, bumps=version >= 5)
    assert producer.init() == 0 and producer.end(version=version) == E.INVALID_TXN_STATE
    assert producer.add(0) == {0: 0} and producer.send(b"x") == 0
    producer.epoch += 1
    fenced = E.PRODUCER_FENCED if version >= 2 else E.INVALID_PRODUCER_EPOCH
    assert producer.end(version=version) == fenced
    producer.epoch -= 1
    name, producer.name = producer.name, "nobody"
    assert producer.end(version=version) == E.INVALID_PRODUCER_ID_MAPPING
    producer.name = ""
    assert producer.end(version=version) == E.INVALID_REQUEST
    producer.name = name
    before = producer.epoch
    assert producer.end(version=version) == 0
    producer.epoch = before
    assert producer.end(version=version) == 0, "the answer was lost"
    producer.epoch = before
    assert producer.end(version=version, commit=False) == E.INVALID_TXN_STATE
    assert seen(store, 0) == [[b"x"]]


def test_a_batch_of_a_stranger_is_refused(raw: Raw) -> None:
    producer = Producer(raw, bumps=True)
    assert producer.init() == 0
    producer.epoch += 1
    assert producer.send(b"x") == E.INVALID_PRODUCER_EPOCH
    producer.producer_id += 1
    assert producer.send(b"x") == E.INVALID_PRODUCER_ID_MAPPING


# ---- for people


def test_what_people_are_told(raw: Raw) -> None:
    producer, idle = Producer(raw, bumps=True), Producer(raw, bumps=True, name="idle")
    assert producer.init(timeout_ms=5000) == 0 and idle.init() == 0
    assert producer.send(b"x") == 0
    described = raw.ask(DESCRIBE_TRANSACTIONS, 0, transactional_ids=[NAME, "idle", "nobody", ""]).transaction_states
    assert [each.error_code for each in described] == [0, 0, E.TRANSACTIONAL_ID_NOT_FOUND, E.INVALID_REQUEST]
    assert [each.transaction_state for each in described[:2]] == ["Ongoing", "Empty"]
    assert (described[0].producer_id, described[0].transaction_timeout_ms) == (producer.producer_id, 5000)
    assert described[0].transaction_start_time_ms > 0 and described[1].transaction_start_time_ms == -1
    assert [(each.topic, each.partitions) for each in described[0].topics] == [("t", [0])]

    def listed(version: int = 1, **filters: Any) -> list[str]:
        answer = raw.ask(LIST_TRANSACTIONS, version, **filters)
        assert answer.unknown_state_filters == [each for each in filters.get("state_filters", ()) if each == "Odd"]
        return [each.transactional_id for each in answer.transaction_states]

    assert listed() == listed(0) == [NAME, "idle"]
    assert listed(state_filters=["Ongoing", "Odd"]) == [NAME] and listed(state_filters=["Odd"]) == []
    assert listed(producer_id_filters=[idle.producer_id]) == ["idle"]
    assert listed(duration_filter=0) in ([NAME], []) and listed(duration_filter=1 << 40) == []

    topics = [DESCRIBE_PRODUCERS.request.Topic(name="t", partition_indexes=[0, 9])]
    (topic,) = raw.ask(DESCRIBE_PRODUCERS, 0, topics=topics).topics
    assert [each.error_code for each in topic.partitions] == [0, E.UNKNOWN_TOPIC_OR_PARTITION]
    (active,) = topic.partitions[0].active_producers
    assert (active.producer_id, active.producer_epoch, active.last_sequence) == (producer.producer_id, 0, 0)
    assert active.current_txn_start_offset == 0 and active.last_timestamp > 0
    assert producer.end() == 0
    (topic,) = raw.ask(DESCRIBE_PRODUCERS, 0, topics=topics[:1]).topics
    (active,) = topic.partitions[0].active_producers
    assert (active.producer_epoch, active.last_sequence, active.current_txn_start_offset) == (1, -1, -1)


# ---- killed


@pytest.mark.parametrize("bumps", [False, True], ids=["older", "kip-890"])
def test_a_client_goes_on_though_the_server_is_killed_after_every_call(tmp_path: Path, bumps: bool) -> None:
    path, told = tmp_path / "events", tmp_path / "told"
    with klamm.open(path) as opened:
        opened.topics.create("t", partitions=2)
    with children() as start, ExitStack() as stack:
        producer: Producer | None = None

        def next_life() -> Producer:
            nonlocal producer
            stack.close()
            process = start(lambda: serve_for_ever(path, told))
            raw = stack.enter_context(Raw(address_in(told)))
            stack.callback(process.kill)
            if producer is None:
                producer = Producer(raw, bumps=bumps)
            producer.raw = raw
            return producer

        assert next_life().init() == 0
        for number, commit in enumerate((True, False, True)):
            if not bumps:
                assert next_life().add(0) == {0: 0}
            assert next_life().send(b"%d" % number) == 0
            if not bumps:
                assert next_life().add_group() == 0
            assert next_life().commit_offset(number) == 0
            before = next_life().epoch
            assert next_life().end(commit=commit) == 0
            after = next_life().epoch
            next_life().epoch = before
            assert next_life().end(commit=commit) == 0 and next_life().epoch == after
    with klamm.open(path) as opened:
        assert seen(opened, 0) == [[b"0", b"2"]] and offset_of(opened, "g") == 2
        assert list(opened.transactions) == [] and opened.check().breaches == []


@pytest.mark.parametrize("are_open", [True, False])
def test_the_partitions_of_a_produce_request_are_added_to_their_transaction_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, are_open: bool
) -> None:
    """Those that are open in one write; those that have to be opened first, while the first of them is added, in the
    next.
    """
    with klamm.open(tmp_path / "events") as store:
        store.topics.create("many", partitions=32)
    with served(tmp_path / "events") as server, server.dial() as raw:
        for number in range(32 if are_open else 0):
            assert produce(raw, "many", sealed(1), number).error_code == 0  # open from now on
        coordinator, added = server.broker.transaction_coordinator, list[int]()
        apply, register = coordinator.apply_together, _ProduceRequest._register
        wanted, all_wanted = list[Any](), threading.Event()

        def noted(self: Any, header: Any, place: Any) -> Any:
            wanted.append(place)
            if len(wanted) == 32:
                server.loop.call_soon(all_wanted.set)  # when this one waits, too
            return register(self, header, place)

        def counted(asked: list[tuple[str, Add]]) -> list[Identified | None]:
            ((_, event),) = asked
            added.append(len(event.partitions))
            assert all_wanted.wait(PATIENCE)
            return apply(asked)

        monkeypatch.setattr(_ProduceRequest, "_register", noted)

        monkeypatch.setattr(coordinator, "apply_together", counted)
        producer = Producer(raw, bumps=True)
        assert producer.init() == 0
        identity = {"producer_id": producer.producer_id, "producer_epoch": producer.epoch, "base_sequence": 0}
        batches = {("many", n): sealed(1, attributes=TRANSACTIONAL, **identity) for n in range(32)}
        fields = {**producing(batches), "transactional_id": NAME}
        (told,) = raw.ask(PRODUCE, 12, **fields).responses
        assert {each.error_code for each in told.partition_responses} == {0}
        assert sum(added) == 32 and len(added) <= (1 if are_open else 2)
