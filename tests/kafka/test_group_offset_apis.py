"""Offsets of groups over a real socket: every version, both doors, batches and their order, restarts and kills."""

from __future__ import annotations

from pathlib import Path

import pytest

import klamm
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.wire.messages import JOIN_GROUP, LEAVE_GROUP, OFFSET_COMMIT, OFFSET_DELETE, OFFSET_FETCH, SYNC_GROUP
from klamm.kafka.wire.structs import Struct
from tests.kafka.connect import Served, served
from tests.kafka.member import GROUP, Client, Joined, address_in, every, hold_writes, serve_for_ever
from tests.procs import children, until

E = ErrorCode
TOO_LONG = "x" * 250
FIRST, SECOND = ("orders", 0), ("orders", 1)


def topic_id(store: klamm.Store) -> bytes:
    return bytes.fromhex(store.topics.describe("orders").id)


# ---- committing


@every(OFFSET_COMMIT)
def test_every_version_of_offset_commit_commits_partitions_that_are_there(
    store: klamm.Store, client: Client, version: int
) -> None:
    member = client.become_member()
    make = OFFSET_COMMIT.request
    numbers = {0: 5, 3: 6, 4: 7, -1: 8}
    partitions = [
        make.Partition(partition_index=n, committed_offset=at, committed_leader_epoch=2, committed_metadata=None)
        for n, at in numbers.items()
    ]
    known = make.Topic(name="orders", topic_id=topic_id(store), partitions=partitions)
    unknown = make.Topic(name="none", topic_id=b"?" * 16, partitions=partitions[:1])
    asked = {"group_id": GROUP, "member_id": member.member_id, "generation_id_or_member_epoch": member.generation}
    answer = client.ask(OFFSET_COMMIT, version, topics=[known, unknown], **asked)
    nowhere = E.UNKNOWN_TOPIC_OR_PARTITION
    errors = [[each.error_code for each in topic.partitions] for topic in answer.topics]
    assert errors == [[0, 0, nowhere, nowhere], [E.UNKNOWN_TOPIC_ID if version >= 10 else nowhere]]
    assert answer.topics[0].name == ("" if version >= 10 else "orders")
    assert answer.topics[0].topic_id == (topic_id(store) if version >= 10 else bytes(16))
    stored = {each.partition: each.committed for each in store.groups.describe(GROUP).offsets}
    epoch = 2 if version >= 6 else -1
    assert stored == {0: klamm.Committed(5, epoch, ""), 3: klamm.Committed(6, epoch, "")}


def test_who_may_not_commit_stores_nothing(server: Served, client: Client) -> None:
    member = client.become_member()
    assert client.commit({FIRST: 1}) == [E.UNKNOWN_MEMBER_ID]
    assert client.commit({FIRST: 1}, member._replace(generation=9)) == [E.ILLEGAL_GENERATION]
    assert client.commit({FIRST: 1, SECOND: 1}, member._replace(member_id="m")) == [E.UNKNOWN_MEMBER_ID] * 2
    assert client.commit({FIRST: 1}, group="") == client.commit({FIRST: 1}, group=TOO_LONG) == [E.INVALID_GROUP_ID]
    with Client(server.address) as other:
        other.begin_join()
        other_id = other.answer().member_id
        other.begin_join(other_id)
        until(lambda: client.heartbeat(member) == E.REBALANCE_IN_PROGRESS, "the group rebalances")
        generation = client.join(member.member_id).generation_id
        assert client.commit({FIRST: 1}, member._replace(generation=generation)) == [E.REBALANCE_IN_PROGRESS]
    assert client.offsets() == {}


@every(OFFSET_COMMIT)
def test_a_member_of_a_group_that_has_none_is_told_whether_there_is_one(
    store: klamm.Store, client: Client, version: int
) -> None:
    """As Kafka has it. A topic that is not there is wrong by itself, and the group is not looked at for it."""
    assert client.commit({FIRST: 1}, group="stored") == [0]
    make = OFFSET_COMMIT.request

    def commit(group: str, *names: str) -> list[int]:
        partition = make.Partition(partition_index=0, committed_offset=1)
        ids = {"orders": topic_id(store), "none": b"?" * 16}
        topics = [make.Topic(name=name, topic_id=ids[name], partitions=[partition]) for name in names]
        member = {"member_id": "m", "generation_id_or_member_epoch": 3}
        answer = client.ask(OFFSET_COMMIT, version, group_id=group, topics=topics, **member)
        return [topic.partitions[0].error_code for topic in answer.topics]

    nowhere = E.UNKNOWN_TOPIC_ID if version >= 10 else E.UNKNOWN_TOPIC_OR_PARTITION
    missing = E.GROUP_ID_NOT_FOUND if version >= 9 else E.ILLEGAL_GENERATION
    assert commit("stored", "orders", "none") == [E.UNKNOWN_MEMBER_ID, nowhere]
    assert commit("missing", "orders", "none") == [missing, nowhere]
    assert commit("missing", "none") == [nowhere]
    assert client.offsets("stored") == {FIRST: 1}


def test_a_text_that_is_too_long_and_an_offset_below_0(client: Client) -> None:
    assert client.commit({FIRST: 1}, metadata="ä" * 2048) == [0]
    assert client.commit({FIRST: 2}, metadata="ä" * 2048 + "x") == [E.OFFSET_METADATA_TOO_LARGE]
    assert client.commit({FIRST: -1, SECOND: 3}) == [E.INVALID_REQUEST, 0]
    assert client.offsets() == {FIRST: 1, SECOND: 3}


def test_the_largest_offset_and_leader_epoch_are_committed_as_they_are(store: klamm.Store, client: Client) -> None:
    assert client.commit({FIRST: 2**63 - 1}, epoch=2**31 - 1) == [0]
    assert client.offsets() == {FIRST: 2**63 - 1}
    assert store.groups.describe(GROUP).offsets[0].committed == klamm.Committed(2**63 - 1, 2**31 - 1, "")


def test_a_topic_that_is_deleted_while_its_commit_waits(store: klamm.Store, server: Served, client: Client) -> None:
    store.topics.create("users")
    go_on = hold_writes(server)
    client.begin_commit({FIRST: 1, ("users", 0): 1})
    until(lambda: waiting(server) == 1, "the commit waits")
    store.topics.delete("users")
    go_on.set()
    assert client.committed() == [0, E.UNKNOWN_TOPIC_OR_PARTITION]
    assert client.offsets() == {FIRST: 1}
    assert store.check().breaches == []


# ---- order and batches


def waiting(server: Served) -> int:
    """How many commits are in the batch that is open."""
    batch = server.broker.group_store._batch
    return 0 if batch is None else len(batch._commits)


def test_commits_that_wait_are_one_write_and_each_has_its_own_answer(
    store: klamm.Store, server: Served, client: Client
) -> None:
    database = store._acquired().catalog.database
    clients = [Client(server.address) for _ in range(64)]
    with store.consumer("orders", group="embedded"):
        go_on = hold_writes(server)
        before = database._generation
        for number, each in enumerate(clients):
            group = "embedded" if number == 7 else f"group-{number % 5}"
            each.begin_commit({("orders", number % 4): number, ("none", 0): 1}, group=group)
            until(lambda at=number + 1: waiting(server) == at, "the commit waits")  # type: ignore[misc]
        go_on.set()
        errors = [each.committed() for each in clients]
        assert database._generation == before + 1
    nowhere = E.UNKNOWN_TOPIC_OR_PARTITION
    assert errors.pop(7) == [E.UNKNOWN_MEMBER_ID, nowhere]
    assert errors == [[0, nowhere]] * 63
    for number in range(5):
        last = {("orders", n % 4): n for n in range(64) if n % 5 == number and n != 7}
        assert client.offsets(f"group-{number}") == last
    assert client.offsets("embedded") == {}
    for each in clients:
        each.close()


def test_a_batch_that_cannot_be_written_fails_for_all(
    server: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise klamm.DiskFull("no space")

    with monkeypatch.context() as patch, Client(server.address) as other:
        patch.setattr(server.broker.group_store.groups, "commit", fail)
        go_on = hold_writes(server)
        for each in (client, other):
            each.begin_commit({FIRST: 1})
        until(lambda: waiting(server) == 2, "both wait")
        go_on.set()
        assert client.committed() == other.committed() == [E.KAFKA_STORAGE_ERROR]
    assert client.commit({FIRST: 1}) == [0]


def test_the_new_owners_commit_is_written_after_the_old_ones(server: Served, client: Client) -> None:
    """The old owner's commit is checked, and has to wait; meanwhile the group rebalances, and the new one owns nothing
    until that is written.
    """
    old = client.become_member()
    coming = server.broker.group_store.coming(GROUP)
    server.call(
        coming.__enter__
    )  # else a beat may have the group leave its door, and the next member waits for a write
    go_on = hold_writes(server)
    with Client(server.address) as other:
        client.begin_commit({FIRST: 10}, old)
        until(lambda: waiting(server) == 1, "the old owner's commit waits")
        leaving = [LEAVE_GROUP.request.Member(member_id=old.member_id)]
        assert other.ask(LEAVE_GROUP, 5, group_id=GROUP, members=leaving).members[0].error_code == 0
        joined = other.join()
        new = Joined(joined.member_id, joined.generation_id)
        assert new.generation > old.generation
        other.begin(SYNC_GROUP, 4, group_id=GROUP, generation_id=new.generation, member_id=new.member_id)
        with Client(server.address) as third:
            assert third.commit({FIRST: 5}, new) == [E.REBALANCE_IN_PROGRESS]
        go_on.set()
        assert client.committed() == [0]
        assert other.answer().error_code == 0
        assert other.offsets() == {FIRST: 10}
        assert other.commit({FIRST: 5}, new) == [0]
        assert other.offsets() == {FIRST: 5}
        assert client.commit({FIRST: 11}, old) == [E.UNKNOWN_MEMBER_ID]
        assert other.offsets() == {FIRST: 5}
        server.call(lambda: coming.__exit__(None, None, None))


def test_a_commit_does_not_overtake_what_was_asked_for_before(server: Served, client: Client) -> None:
    with Client(server.address) as second, Client(server.address) as third:
        client.commit({FIRST: 1})
        store_of = server.broker.group_store
        go_on = hold_writes(server)
        client.begin_commit({FIRST: 2})
        until(lambda: waiting(server) == 1, "the first commit waits")
        second.begin(OFFSET_DELETE, 0, group_id=GROUP, topics=[deletion("orders", 0)])
        until(lambda: store_of._batch is None, "the deletion waits")
        third.begin_commit({FIRST: 3})
        until(lambda: waiting(server) == 1, "the second commit waits")
        go_on.set()
        assert client.committed() == third.committed() == [0]
        assert second.answer().error_code == 0
        assert third.offsets() == {FIRST: 3}


def test_whoever_fetches_sees_what_was_committed_before_though_it_is_not_written_yet(
    server: Served, client: Client
) -> None:
    client.commit({FIRST: 1})
    go_on = hold_writes(server)
    with Client(server.address) as other:
        client.begin_commit({FIRST: 2})
        until(lambda: waiting(server) == 1, "the commit waits")
        other.begin_fetch()
        until(
            lambda: sum(each.session.call is not None for each in server.server.listener.connections) == 2,
            "the fetch waits",
        )
        go_on.set()
        assert other.fetched() == {FIRST: 2}
        assert client.committed() == [0]


# ---- fetching


def standing(partition: Struct) -> tuple[int, int, int, str]:
    return partition.partition_index, partition.committed_offset, partition.error_code, partition.metadata


@every(OFFSET_FETCH)
def test_every_version_of_offset_fetch_returns_what_was_committed(
    store: klamm.Store, client: Client, version: int
) -> None:
    client.commit({FIRST: 5}, epoch=3, metadata="note")
    client.commit({("orders", 3): 7}, group="other")
    make = OFFSET_FETCH.request
    if version >= 8:
        topics = [
            make.GroupTopic(name="orders", topic_id=topic_id(store), partition_indexes=[1, 0, 9]),
            make.GroupTopic(name="none", topic_id=b"?" * 16, partition_indexes=[0]),
        ]
        names = [GROUP, "other", "nobody", TOO_LONG]
        wanted = [make.Group(group_id=name, topics=topics, member_id="m", member_epoch=4) for name in names]
        answer = client.ask(OFFSET_FETCH, version, groups=wanted)
        assert [each.group_id for each in answer.groups] == names
        assert [each.error_code for each in answer.groups] == [0, 0, 0, E.INVALID_GROUP_ID]
        found, *others, refused = (each.topics for each in answer.groups)
        assert refused == []
        assert all(standing(each)[1] == -1 for other in others for topic in other for each in topic.partitions)
    else:
        asked = [make.Topic(name="orders", partition_indexes=[1, 0, 9]), make.Topic(name="none", partition_indexes=[0])]
        answer = client.ask(OFFSET_FETCH, version, group_id=GROUP, topics=asked)
        assert answer.error_code == 0
        found = answer.topics
        refused = client.ask(OFFSET_FETCH, version, group_id=TOO_LONG, topics=asked[1:])
        if version >= 2:
            assert (refused.error_code, refused.topics) == (E.INVALID_GROUP_ID, [])
        else:
            assert standing(refused.topics[0].partitions[0]) == (0, -1, E.INVALID_GROUP_ID, "")
    orders, none = found
    assert [standing(each) for each in orders.partitions] == [(1, -1, 0, ""), (0, 5, 0, "note"), (9, -1, 0, "")]
    assert [each.committed_leader_epoch for each in orders.partitions] == [-1, 3 if version >= 5 else -1, -1]
    assert standing(none.partitions[0]) == (0, -1, E.UNKNOWN_TOPIC_ID if version >= 10 else 0, "")
    assert orders.name == ("" if version >= 10 else "orders")
    assert version < 10 or (orders.topic_id, none.topic_id) == (topic_id(store), b"?" * 16)


@pytest.mark.parametrize("version", range(2, 11))
def test_fetching_all_that_a_group_has(store: klamm.Store, client: Client, version: int) -> None:
    store.topics.create("users")
    client.commit({("users", 0): 1, FIRST: 5, ("orders", 3): 7})
    make = OFFSET_FETCH.request
    for group, expected in ((GROUP, {("orders", 0): 5, ("orders", 3): 7, ("users", 0): 1}), ("nobody", {})):
        if version >= 8:
            (found,) = client.ask(OFFSET_FETCH, version, groups=[make.Group(group_id=group, topics=None)]).groups
        else:
            found = client.ask(OFFSET_FETCH, version, group_id=group, topics=None)
        names = {bytes.fromhex(store.topics.describe(name).id): name for name in ("orders", "users")}
        seen = {
            (names[topic.topic_id] if version >= 10 else topic.name, each.partition_index): each.committed_offset
            for topic in found.topics
            for each in topic.partitions
        }
        assert (found.error_code, seen) == (0, expected)


@pytest.mark.parametrize("everything", [True, False])
def test_an_offset_that_a_transaction_is_about_to_move_is_not_told_to_who_wants_it_stable(
    store: klamm.Store, server: Served, client: Client, monkeypatch: pytest.MonkeyPatch, everything: bool
) -> None:
    client.commit({FIRST: 5, SECOND: 6})
    moving = (GROUP, store.topics.describe("orders").id, 1)
    monkeypatch.setattr(server.broker.transaction_coordinator, "pending_offsets", lambda groups: {moving})
    make = OFFSET_FETCH.request
    topics = None if everything else [make.GroupTopic(name="orders", partition_indexes=[0, 1])]
    for stable in (False, True):
        wanted = [make.Group(group_id=GROUP, topics=topics), make.Group(group_id="other", topics=topics)]
        found, _ = client.ask(OFFSET_FETCH, 9, groups=wanted, require_stable=stable).groups
        unstable = (1, -1, E.UNSTABLE_OFFSET_COMMIT, "")
        assert [standing(each) for each in found.topics[0].partitions] == [
            (0, 5, 0, ""),
            unstable if stable else (1, 6, 0, ""),
        ]


# ---- deleting


def deletion(topic: str, *numbers: int) -> Struct:
    make = OFFSET_DELETE.request
    return make.Topic(name=topic, partitions=[make.Partition(partition_index=number) for number in numbers])


def test_offsets_of_a_topic_that_a_member_subscribes_to_are_not_deleted(store: klamm.Store, client: Client) -> None:
    def forget(*topics: Struct, group: str = GROUP) -> tuple[int, list[int]]:
        answer = client.ask(OFFSET_DELETE, 0, group_id=group, topics=list(topics))
        return answer.error_code, [each.error_code for topic in answer.topics for each in topic.partitions]

    store.topics.create("users")
    metadata = b"\0\1\0\0\0\1\0\6orders" + b"\xff" * 4
    protocols = [JOIN_GROUP.request.Protocol(name="range", metadata=metadata)]
    member = client.become_member(protocols=protocols)
    client.commit({FIRST: 1, SECOND: 2, ("users", 0): 3}, member)
    consumed, nowhere = E.GROUP_SUBSCRIBED_TO_TOPIC, E.UNKNOWN_TOPIC_OR_PARTITION
    assert forget(deletion("orders", 0, 4), deletion("users", 0)) == (0, [consumed, nowhere, 0])
    assert client.offsets() == {FIRST: 1, SECOND: 2}
    client.ask(LEAVE_GROUP, 0, group_id=GROUP, member_id=member.member_id)
    assert forget(deletion("orders", 1, 2), deletion("none", 0)) == (0, [0, 0, nowhere])
    assert client.offsets() == {FIRST: 1}
    assert forget(deletion("orders", 0), group="nobody") == (E.GROUP_ID_NOT_FOUND, [])
    assert forget(deletion("orders", 0), group=TOO_LONG) == (E.INVALID_GROUP_ID, [])
    client.commit({FIRST: 1}, group="embedded")
    with store.consumer("orders", group="embedded"):
        assert forget(deletion("orders", 0), group="embedded") == (E.NON_EMPTY_GROUP, [])
    assert client.offsets("embedded") == {FIRST: 1}


# ---- the other door


def test_offsets_are_the_same_at_both_doors(store: klamm.Store, server: Served, client: Client) -> None:
    for _ in range(10):
        store.append("orders", b"x", partition=0)
    assert client.commit({FIRST: 4}, epoch=0, metadata="note") == [0]
    with store.consumer("orders", group=GROUP) as consumer:
        batch = until(lambda: consumer.poll(timeout=0.01), "a batch comes")
        assert batch.begin == 4
        assert client.commit({FIRST: 2}) == [E.UNKNOWN_MEMBER_ID]
        consumer.commit(batch)
        assert client.offsets() == {FIRST: 10}
    assert client.commit({FIRST: 6}) == [0]
    with store.consumer("orders", group=GROUP) as consumer:  # who is no member moves no door
        assert until(lambda: consumer.poll(timeout=0.01), "a batch comes").begin == 6
    member = client.become_member()
    assert client.commit({FIRST: 8}, member) == [0]
    assert store.groups.describe(GROUP).door == "kafka"
    with pytest.raises(klamm.GroupBusy):
        store.groups.reset(GROUP, to="earliest")
    assert client.offsets() == {FIRST: 8}


# ---- restarts


def test_a_restart_keeps_offsets(store: klamm.Store) -> None:
    with served(Path(store.path)) as running, Client(running.address) as client:
        client.commit({FIRST: 5}, client.become_member())
        client.commit({SECOND: 6}, group="simple")
    with served(Path(store.path)) as running, Client(running.address) as client:
        assert (client.offsets(), client.offsets("simple")) == ({FIRST: 5}, {SECOND: 6})
    with store.consumer("orders", group=GROUP):  # no server: it may be taken over
        pass


def test_what_was_answered_is_there_after_a_kill(tmp_path: Path) -> None:
    path, told = tmp_path / "events", tmp_path / "address"
    with klamm.open(path) as opened:
        opened.topics.create("orders", partitions=4)
    with children() as start:
        for life in range(3):
            process = start(lambda: serve_for_ever(path, told, group_min_session_timeout_ms=100))
            with Client(address_in(told)) as client:
                assert client.offsets() == ({FIRST: life * 100} if life else {})
                member = client.become_member()
                for offset in range((life * 100) + 1, (life + 1) * 100 + 1):
                    assert client.commit({FIRST: offset}, member) == [0]
                client.shorten_session(member)
                process.kill()
    with klamm.open(path) as opened:
        assert opened.check().breaches == []
        assert [each.committed for each in opened.groups.describe(GROUP).offsets] == [klamm.Committed(300)]
