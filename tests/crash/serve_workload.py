"""`klamm serve` with three clients at once, to be recorded by test_serve_power_cut.py.

    serve_workload.py ROOT LIFE SEED

The server runs in the main thread, as on the command line; the clients are threads of the same process and speak the
protocol by hand. So a client can note in the recorder's trace what it is about to ask for, and, once the response has
come, what it was promised:

    creating, created (topic)
    sending (client, its producer id and epoch, batches: {log: [sequence, values]})
    acked (client, bases: {log: offset})       the response to a request with acks=all: all of it is on disk
    producer (transactional id, id, epoch)     whom a response has made of the transactional producer
    committing, committed (number)             a transaction, with an offset of the group
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from klamm.batch.header import TRANSACTIONAL
from klamm.cli.main import main
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.wire.messages import (
    CREATE_TOPICS,
    END_TXN,
    INIT_PRODUCER_ID,
    OFFSET_FETCH,
    PRODUCE,
    TXN_OFFSET_COMMIT,
)
from klamm.kafka.wire.structs import Struct
from tests.crash.workload import note
from tests.interop.raw import Raw
from tests.kafka.requests import produce_many, producing, sealed
from tests.procs import until

TOPICS = {"orders": 3, "events": 1, "moved": 2}
LOGS = [("orders", 0), ("orders", 1), ("orders", 2), ("events", 0)]
SETTINGS = {"segment.bytes": "1500", "index.interval.bytes": "200"}
MOVER, GROUP = "mover", "movers"
ROUNDS = 7
TRANSACTIONS = 5


def create(raw: Raw, name: str, partitions: int) -> None:
    """Create a topic, unless an earlier life of the store has."""
    note(creating=name)
    configs = [CREATE_TOPICS.request.Config(name=key, value=value) for key, value in SETTINGS.items()]
    topic = CREATE_TOPICS.request.Topic(
        name=name, num_partitions=partitions, replication_factor=1, configs=configs, assignments=[]
    )
    (created,) = raw.ask(CREATE_TOPICS, 7, topics=[topic], timeout_ms=30_000, validate_only=False).topics
    assert created.error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS), created
    note(created=name)


def codec_of(client: str) -> int:
    """One client compresses its batches: other code of the server takes them than those of the other."""
    return 1 if client.endswith("b") else 0


class Client:
    """An idempotent producer that sends to several partitions in one request."""

    def __init__(self, raw: Raw, name: str, seed: int) -> None:
        self._raw, self._name, self._dice = raw, name, random.Random(seed)
        response = raw.ask(INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout_ms=60_000)
        assert response.error_code == 0
        self._id, self._epoch = response.producer_id, response.producer_epoch
        self._sequences = dict.fromkeys(LOGS, 0)
        self._count = 0

    def run(self) -> None:
        for _ in range(ROUNDS):
            self._send(acks=self._dice.choice([-1, -1, -1, 1]))

    def _send(self, acks: int) -> None:
        values = {log: self._values() for log in self._dice.sample(LOGS, self._dice.randint(1, len(LOGS)))}
        batches = {
            log: sealed(
                [value.encode() for value in values[log]],
                codec=codec_of(self._name),
                producer_id=self._id,
                producer_epoch=self._epoch,
                base_sequence=self._sequences[log],
            )
            for log in values
        }
        sent = {_text(log): [self._sequences[log], values[log]] for log in values}
        note(sending=self._name, producer=self._id, epoch=self._epoch, batches=sent)
        responses = produce_many(self._raw, batches, acks=acks)
        assert all(response.error_code == 0 for response in responses.values()), responses
        for log, appended in values.items():
            self._sequences[log] += len(appended)
        if acks == -1:
            note(acked=self._name, bases={_text(log): response.base_offset for log, response in responses.items()})

    def _values(self) -> list[str]:
        values = []
        for _ in range(self._dice.choice([1, 1, 2, 4])):
            self._count += 1
            values.append(f"{self._name} {self._count} " + "." * self._dice.choice([5, 40, 700]))
        return values


def _text(log: tuple[str, int]) -> str:
    return f"{log[0]}/{log[1]}"


class Mover:
    """A transactional producer: number after number to both partitions of `moved`, each with the group's offset."""

    def __init__(self, raw: Raw) -> None:
        self._raw = raw
        response = raw.ask(INIT_PRODUCER_ID, 5, transactional_id=MOVER, transaction_timeout_ms=60_000)
        assert response.error_code == 0, response
        self._become(response)

    def _become(self, response: Struct) -> None:
        self._id, self._epoch, self._sequence = response.producer_id, response.producer_epoch, 0
        note(producer=MOVER, id=self._id, epoch=self._epoch)

    def run(self) -> None:
        number = self._committed()
        end, aborted = number + TRANSACTIONS, False
        while number < end:
            aborted = number % 3 == 1 and not aborted  # then it comes again
            self._transaction(number, commit=not aborted)
            number += not aborted

    def _committed(self) -> int:
        group = OFFSET_FETCH.request.Group(
            group_id=GROUP, topics=[OFFSET_FETCH.request.GroupTopic(name="orders", partition_indexes=[0])]
        )
        (response,) = self._raw.ask(OFFSET_FETCH, 8, groups=[group], require_stable=True).groups
        return max(0, int(response.topics[0].partitions[0].committed_offset))

    def _transaction(self, number: int, *, commit: bool) -> None:
        me: dict[str, Any] = {"transactional_id": MOVER, "producer_id": self._id, "producer_epoch": self._epoch}
        batch = sealed(
            [b"%d" % number if commit else b"aborted %d" % number],
            producer_id=self._id,
            producer_epoch=self._epoch,
            base_sequence=self._sequence,
            attributes=TRANSACTIONAL,
        )
        self._sequence += 1
        fields = producing({("moved", 0): batch, ("moved", 1): batch}, acks=(1, -1)[number % 2])
        (topic,) = self._raw.ask(PRODUCE, 12, transactional_id=MOVER, **fields).responses
        assert [each.error_code for each in topic.partition_responses] == [0, 0]
        offset = TXN_OFFSET_COMMIT.request.Partition(
            partition_index=0, committed_offset=number + 1, committed_metadata=""
        )
        topics = [TXN_OFFSET_COMMIT.request.Topic(name="orders", partitions=[offset])]
        (topic,) = self._raw.ask(TXN_OFFSET_COMMIT, 5, **me, group_id=GROUP, topics=topics).topics
        assert topic.partitions[0].error_code == 0
        if commit:
            note(committing=number)
        response = self._raw.ask(END_TXN, 5, **me, committed=commit)
        assert response.error_code == 0, response
        if commit:
            note(committed=number)
        self._become(response)


def clients(path: str, life: int, seed: int) -> None:
    """Run all clients, and then stop the server."""

    def connect() -> Raw:
        return Raw(json.loads(Path(f"{path}/server").read_text())["address"])

    until(lambda: _is_ours(path), "the server listens")
    with connect() as raw:
        for name, partitions in TOPICS.items():
            create(raw, name, partitions)
    note(ready=life)
    work: list[Callable[[], None]] = [
        Client(connect(), f"{life}.a", seed).run,
        Client(connect(), f"{life}.b", seed + 1).run,
        Mover(connect()).run,
    ]
    threads = [threading.Thread(target=_or_die, args=[each]) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    note(over=life)
    os.kill(os.getpid(), signal.SIGTERM)


def _is_ours(path: str) -> bool:
    """Return whether the file that says where a server listens is of this process, not of one that lost its power."""
    try:
        return bool(json.loads(Path(f"{path}/server").read_text())["pid"] == os.getpid())
    except (OSError, ValueError):
        return False


def _or_die(work: Callable[[], None]) -> None:
    try:
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)


if __name__ == "__main__":
    store = f"{sys.argv[1]}/store"
    arguments = (store, int(sys.argv[2]), int(sys.argv[3]))
    threading.Thread(target=_or_die, args=[lambda: clients(*arguments)]).start()
    sys.argv = ["klamm", "serve", store, "--kafka", "0"]
    main()
