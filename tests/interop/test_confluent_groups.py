"""confluent-kafka: groups. Members come, leave, die, come back; partitions go to somebody all the time."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.interop.brokers import Broker, fresh
from tests.interop.confluents import drive, group_consumer, produce, producer, read
from tests.interop.records import plain

STRATEGIES = ["range", "roundrobin", "cooperative-sticky"]


class Member:
    """A consumer, and what its group has given it and taken from it."""

    def __init__(self, consumer: Consumer, topics: list[str]) -> None:
        self.consumer = consumer
        self.given: list[list[int]] = []
        self.taken: list[list[int]] = []
        self.lost: list[list[int]] = []
        consumer.subscribe(
            topics,
            on_assign=lambda _, parts: self.given.append(sorted(part.partition for part in parts)),
            on_revoke=lambda _, parts: self.taken.append(sorted(part.partition for part in parts)),
            on_lost=lambda _, parts: self.lost.append(sorted(part.partition for part in parts)),
        )

    @property
    def parts(self) -> list[int]:
        return sorted(part.partition for part in self.consumer.assignment())


def shared(members: list[Member], count: int) -> bool:
    """Whether all partitions are with somebody, each once, and nobody has more than another by two."""
    held = [member.parts for member in members]
    fair = max(map(len, held)) - min(map(len, held)) <= 1
    return fair and sorted(part for parts in held for part in parts) == list(range(count))


def run_due_work(members: list[Member], count: int, what: str, *, leaving: Member | None = None) -> None:
    """Poll until `members` share the partitions. One that leaves is polled, too: so it gives them back."""
    polled = members if leaving is None else [*members, leaving]
    drive([member.consumer for member in polled], lambda: shared(members, count), what)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_members_share_the_partitions_while_they_come_and_go(broker: Broker, strategy: str) -> None:
    topic, group = broker.topic(6), fresh("group")

    def member() -> Member:
        opened = group_consumer(broker.address, group, partition_assignment_strategy=strategy)
        return Member(stack.enter_context(opened), [topic])

    with contextlib.ExitStack() as stack:
        members = [member()]
        run_due_work(members, 6, "one has all")
        members += [member()]
        run_due_work(members, 6, "two share")
        members += [member()]
        run_due_work(members, 6, "three share")
        made = producer(broker.address)
        for partition in range(6):
            produce(made, topic, plain(5), partition)
        found = []
        for each in members:
            found += [(message.partition(), message.offset()) for message in read(each.consumer, 10)]
        assert sorted(found) == [(partition, offset) for partition in range(6) for offset in range(5)]
        first = members.pop(0)
        first.consumer.unsubscribe()  # leaves the group; the others go on
        run_due_work(members, 6, "the two that are left share", leaving=first)


def test_a_cooperative_member_keeps_what_it_need_not_give_away(broker: Broker) -> None:
    topic, group = broker.topic(4), fresh("group")
    with contextlib.ExitStack() as stack:

        def member() -> Member:
            opened = group_consumer(broker.address, group, partition_assignment_strategy="cooperative-sticky")
            return Member(stack.enter_context(opened), [topic])

        first = member()
        run_due_work([first], 4, "one has all")
        second = member()
        run_due_work([first, second], 4, "two share")
        assert first.given[0] == [0, 1, 2, 3] and not any(first.given[1:])
        assert first.taken == [second.parts], "only what the other has now was taken"
        assert not first.lost and not second.lost


def test_a_member_that_is_killed_is_replaced_after_its_session(broker: Broker) -> None:
    topic, group = broker.topic(4), fresh("group")
    program = (
        "import sys; from confluent_kafka import Consumer\n"
        "c = Consumer({'bootstrap.servers': sys.argv[1], 'group.id': sys.argv[2], 'session.timeout.ms': 1500,"
        " 'heartbeat.interval.ms': 200})\n"
        "c.subscribe([sys.argv[3]])\n"
        "while True: c.poll(0.1)\n"
    )
    with group_consumer(broker.address, group, session_timeout_ms=5000) as consumer:
        member = Member(consumer, [topic])
        run_due_work([member], 4, "one has all")
        arguments = [sys.executable, "-c", program, broker.address, group, topic]
        with subprocess.Popen(arguments, env={**os.environ}) as other:
            try:
                drive([consumer], lambda: len(member.parts) == 2, "the other has half")
            finally:
                other.send_signal(signal.SIGKILL)
        run_due_work([member], 4, "one has all again")


def test_a_static_member_that_comes_back_gets_what_it_had_without_a_rebalance(broker: Broker) -> None:
    topic, group = broker.topic(4), fresh("group")

    def opened(name: str) -> contextlib.AbstractContextManager[Consumer]:
        return group_consumer(broker.address, group, group_instance_id=name, session_timeout_ms=20_000)

    with opened("stays") as consumer:
        stays = Member(consumer, [topic])
        with opened("restarts") as other:
            restarts = Member(other, [topic])
            run_due_work([stays, restarts], 4, "two share")
            had = restarts.parts
        before = len(stays.given)
        with opened("restarts") as other:
            restarts = Member(other, [topic])
            drive([consumer, other], lambda: restarts.parts == had, "it has what it had")
            assert len(stays.given) == before and not stays.lost


def test_of_two_static_members_with_one_name_the_older_is_fenced(broker: Broker) -> None:
    topic, group = broker.topic(2), fresh("group")
    with (
        group_consumer(broker.address, group, group_instance_id="same") as first,
        group_consumer(broker.address, group, group_instance_id="same") as second,
    ):
        one = Member(first, [topic])
        run_due_work([one], 2, "the first has all")
        two = Member(second, [topic])
        drive([second], lambda: two.parts == [0, 1], "the second has all")
        with pytest.raises(KafkaException) as failed:
            drive([first], lambda: False, "the first is told")
        assert failed.value.args[0].code() in (KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID)


def test_topics_that_match_a_pattern_are_subscribed_to_when_they_appear(broker: Broker) -> None:
    word = fresh("pattern")
    topics = [broker.topic(2, word=word), broker.topic(1, word=word)]
    options = {"topic_metadata_refresh_interval_ms": 200, "metadata_max_age_ms": 2000}
    with group_consumer(broker.address, fresh("group"), **options) as consumer:
        consumer.subscribe([f"^{word}-.*"])

        def held() -> set[str]:
            return {part.topic for part in consumer.assignment()}

        drive([consumer], lambda: held() == set(topics), "both are assigned")
        topics.append(broker.topic(1, word=word))
        drive([consumer], lambda: held() == set(topics), "the third, too")


def test_a_commit_of_a_member_that_is_no_longer_one_fails(broker: Broker) -> None:
    topic, group = broker.topic(2), fresh("group")
    slow = {"session_timeout_ms": 6000, "max_poll_interval_ms": 6000}
    with (
        group_consumer(broker.address, group, **slow) as first,
        group_consumer(broker.address, group) as second,
    ):
        one, two = Member(first, [topic]), Member(second, [topic])
        run_due_work([one, two], 2, "two share")
        first.unsubscribe()
        run_due_work([two], 2, "the second has all", leaving=one)
        with pytest.raises(KafkaException) as failed:
            first.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
        assert failed.value.args[0].code() in (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION)
