"""How many transactions a second do clients of the Kafka door make, one and eight at once, beside Apache Kafka?

A transaction is: add the partitions, a record (100 B) in each with acks=all, commit; each producer has a connection and
partitions of its own. By bare sockets, in one process. All is on disk when it is answered here; Kafka's topics are told
to flush every message (flush.messages=1), while its own log of transactions is not.

    8 producers            beside one producer of an earlier commit (--before), and beside Apache Kafka
    1 producer             beside the same

`offset_commit_ms` is p50 and the most of a plain OffsetCommit meanwhile, from one more connection.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass

import _before
import _harness as harness
import _kafka as kafka
from _processes import together
from klamm.batch import Builder
from klamm.batch.header import TRANSACTIONAL
from klamm.kafka.wire.messages import (
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    OFFSET_COMMIT,
    PRODUCE,
)

RETRIED = (14, 15, 16, 51)  # the coordinator is loading, or not there yet; the last transaction is not over


@dataclass
class Done:
    rate: float
    cpu_ms: float
    commit_p50_ms: float
    commit_max_ms: float


class Producer:
    """A transactional producer on a bare socket."""

    def __init__(self, address: str, name: str, topic: str, partitions: list[int]) -> None:
        self.raw = kafka.Raw(address)
        self.name, self.topic, self.partitions = name, topic, partitions
        self.sequence = 0
        asked = {"transactional_id": name, "transaction_timeout_ms": 60_000, "producer_id": -1, "producer_epoch": -1}
        while self.ask(FIND_COORDINATOR, 3, key=name, key_type=1).error_code:
            time.sleep(0.05)
        while (made := self.ask(INIT_PRODUCER_ID, 4, **asked)).error_code in RETRIED:
            time.sleep(0.05)
        assert not made.error_code, made
        self.id, self.epoch = made.producer_id, made.producer_epoch

    def ask(self, api, version, **fields):
        return self.raw.ask(api, version, **fields)

    def transact(self) -> None:
        who = {"transactional_id": self.name, "producer_id": self.id, "producer_epoch": self.epoch}
        add, produce = ADD_PARTITIONS_TO_TXN.request, PRODUCE.request
        while True:
            added = self.ask(
                ADD_PARTITIONS_TO_TXN,
                3,
                **{f"v3_and_below_{key}": value for key, value in who.items()},
                v3_and_below_topics=[add.Topic(name=self.topic, partitions=self.partitions)],
            )
            codes = {
                each.partition_error_code
                for topic in added.results_by_topic_v3_and_below
                for each in topic.results_by_partition
            }
            if not codes & set(RETRIED):
                break
        assert codes == {0}, added
        data = []
        for partition in self.partitions:
            batch = Builder(1 << 16)
            batch.add(None, bytes(100), None, int(time.time() * 1000))
            sealed = bytes(batch.seal(0, None, self.id, self.epoch, self.sequence, TRANSACTIONAL))
            data.append(produce.Partition(index=partition, records=sealed))
        answer = self.ask(
            PRODUCE,
            9,
            transactional_id=self.name,
            acks=-1,
            timeout_ms=30_000,
            topic_data=[produce.Topic(name=self.topic, partition_data=data)],
        )
        assert not any(each.error_code for each in answer.responses[0].partition_responses), answer
        self.sequence += 1
        while (ended := self.ask(END_TXN, 3, **who, committed=True)).error_code in RETRIED:
            pass
        assert not ended.error_code, ended


def committing(address: str, topic: str, over: threading.Event, times: list[float]) -> None:
    request = OFFSET_COMMIT.request
    with kafka.Raw(address) as raw:
        number = 0
        while not over.is_set():
            number += 1
            one = request.Partition(partition_index=0, committed_offset=number, committed_metadata="")
            began = time.perf_counter()
            answer = raw.ask(
                OFFSET_COMMIT,
                7,
                group_id="bench",
                generation_id_or_member_epoch=-1,
                member_id="",
                topics=[request.Topic(name=topic, partitions=[one])],
            )
            if not answer.topics[0].partitions[0].error_code:
                times.append((time.perf_counter() - began) * 1000)
            over.wait(0.005)


def load(start, address: str, pid: int, topic: str, producers: int, width: int, seconds: float) -> Done:
    made = [
        Producer(address, f"{topic}-{number}", topic, list(range(number * width, (number + 1) * width)))
        for number in range(producers)
    ]
    for producer in made:
        producer.transact()
    over, times, counts = threading.Event(), [], [0] * producers
    start()

    def work(number: int) -> None:
        while not over.is_set():
            made[number].transact()
            counts[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(producers)]
    threads.append(threading.Thread(target=committing, args=(address, topic, over, times)))
    began, cpu = time.perf_counter(), kafka.cpu_of(pid)
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    total, took, used = sum(counts), time.perf_counter() - began, kafka.cpu_of(pid) - cpu
    over.set()
    for thread in threads:
        thread.join()
    for producer in made:
        producer.raw.close()
    p50, most = (harness.percentile(times, 50), max(times)) if times else (0.0, 0.0)
    return Done(total / took, used / max(total, 1) * 1000, p50, most)


def one_round(server: kafka.Server, producers: int, width: int, seconds: float) -> Done:
    settings = {} if server.name == "Klamm" else {"flush_messages": "1"}
    topic = server.topic(producers * width, **settings)
    (done,) = together([(load, (server.address, server.pid, topic, producers, width, seconds))])
    server.delete(topic)
    return done


def answer(question: str, ours: list[Done], peer: str, theirs: list[Done], want: harness.Want | None) -> None:
    meanwhile = [harness.digits(harness.median([each.commit_p50_ms for each in ours]))]
    meanwhile.append(harness.digits(max(each.commit_max_ms for each in ours)))
    harness.answer(
        question,
        [each.rate for each in ours],
        peer,
        [each.rate for each in theirs],
        want,
        unit="transactions/s",
        cpu_ms=harness.digits(harness.median([each.cpu_ms for each in ours])),
        peer_cpu_ms=harness.digits(harness.median([each.cpu_ms for each in theirs])),
        offset_commit_ms=meanwhile,
    )


def main() -> None:
    options = kafka.arguments(
        __doc__.splitlines()[0],
        seconds=(4.0, "of transactions, a round"),
        before=("", "compare with one producer at that commit"),
        without_kafka=(0, "1: do not start Apache Kafka"),
    )
    seconds = 0.3 if options.quick else options.seconds
    with contextlib.ExitStack() as stack:
        if options.without_kafka:
            path = stack.enter_context(harness.folder())
            started = {"klamm": kafka.start_klamm(path)}
            stack.callback(started["klamm"].stop)
            started["klamm"].wait()
        else:
            started = stack.enter_context(kafka.servers(quick=options.quick))
        before = None
        if options.before:
            before = _before.build(options.before)
            started["before"] = kafka.start_klamm(stack.enter_context(harness.folder()), before)
            stack.callback(started["before"].stop)
            started["before"].wait()
        for width in (1, 8):
            sides = {}
            for name, server in started.items():
                for producers in (8,) if name == "kafka" else (1, 8):
                    sides[f"{name} {producers}"] = lambda server=server, producers=producers, width=width: one_round(
                        server, producers, width, seconds
                    )
            found = harness.interleave(sides, options.rounds)
            what = f"{width} partition{'s' * (width > 1)} each"
            eight = f"transactions of 8 producers, {what}"
            if "kafka" in started:
                peer = f"Apache Kafka {kafka.version()}, flush.messages=1"
                answer(eight, found["klamm 8"], peer, found["kafka 8"], harness.at_least(1))
            if before is not None:
                one = f"1 producer, {before.name}"
                answer(eight, found["klamm 8"], one, found["before 1"], harness.at_least(4))
                answer(eight, found["klamm 8"], f"8 producers, {before.name}", found["before 8"], None)
                answer(f"transactions of 1 producer, {what}", found["klamm 1"], one, found["before 1"], None)
            else:
                answer(eight, found["klamm 8"], "1 producer", found["klamm 1"], None)


if __name__ == "__main__":
    main()
