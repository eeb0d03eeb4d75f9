"""Roles that let workers handle records: members of a group whose processes are killed, stopped and terminated.

SIGTERM is to end them well: a process that has begun to run and dies of it is a failure, and so is one that ends
without having committed what is done. `record_run` writes down what the reader does: its polls and its commits.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import klamm
from klamm.client.consume.consumer import session_of
from klamm.types import Batch, Position, TopicPartition
from tests.crash.history import Recorder, now
from tests.crash.jepsen_workload import Life, joined, record_poll
from tests.procs import Flag

RUNNERS = "runners"  # a group
RUNNING = "running"  # the event after which SIGTERM must end a process well


class Handler:
    """Writes down what it has processed. Now and then it fails, or takes longer than a member may. Can be pickled."""

    def __init__(self, life: Life, hang_share: float = 0.02) -> None:
        self._hang_share = hang_share
        self._directory, self._process = life.directory, life.name
        self._patience_s = life.patience_ms / 1000
        self._dice = random.Random(life.dice.random())
        self._record: Recorder | None = life.record

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_record": None}

    def delay_s(self) -> float:
        luck = self._dice.random()
        if luck < self._hang_share:
            return self._patience_s * self._dice.choice([0.5, 1.5])
        return self._dice.random() * 0.004 if luck < 0.3 else 0

    def finish(self, record: klamm.Record) -> None:
        if self._dice.random() < 0.05:
            raise ConnectionError("bad luck")
        if self._record is None:  # a worker process: it may outlive the reader, so it has a history of its own
            self._record = Recorder(self._directory, f"{self._process}-{os.getpid()}")
            self._record("started", role="handler", group=RUNNERS)
        self._record("processed", topic=record.topic, partition=record.partition, offsets=[record.offset])

    def __call__(self, record: klamm.Record) -> None:
        time.sleep(self.delay_s())
        self.finish(record)


def runner(life: Life) -> None:
    """Threads, or coroutines."""
    handler = Handler(life)

    async def handle(record: klamm.Record) -> None:
        await asyncio.sleep(handler.delay_s())
        handler.finish(record)

    handlers: list[Callable[[Any], object]] = [handler, handle]
    _run(life, life.dice.choice(handlers), processes=False)


def process_runner(life: Life) -> None:
    """Worker processes. A timeout costs one of them, and it takes a second to start another."""
    _run(life, Handler(life, 0.001), processes=True)


def _run(life: Life, handler: Callable[[Any], object], *, processes: bool) -> None:
    dice = life.dice
    with joined(life, RUNNERS, None) as consumer, stopped_when_drained(life, consumer):
        record_run(life, consumer)
        try:
            consumer.run(
                handler,
                dice.choice([1, 3, 8]),
                processes=processes,
                queue=dice.choice([10, 1000]),
                order=dice.choice(["key", "partition"]),
                commit_every=dice.choice([0.005, 0.1]),
                timeout=dice.choice([None, 0.75 * life.patience_ms / 1000]),
                grace=dice.choice([0.05, 1.0]),
                on_error="retry",
                retries=None,
                backoff=0.002,
            )
        except (
            TimeoutError
        ):  # a busy machine: so many handlers took too long that the run gave up; another life goes on
            os.kill(os.getpid(), signal.SIGKILL)
        check_committed(life, consumer)


@contextmanager
def stopped_when_drained(life: Life, consumer: klamm.Consumer) -> Iterator[None]:
    over = threading.Event()

    def watch() -> None:
        drained = Flag(life.directory / "drained")
        while not over.wait(0.02) and not drained:
            pass
        consumer.stop()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def check_committed(life: Life, consumer: klamm.Consumer) -> None:
    """When a run has ended, its last record before a consumer's position is committed, unless the partition is lost."""
    member = session_of(consumer).member
    assert member is not None
    for (topic, partition), position in consumer.positions().items():
        committed = consumer.committed(topic, partition)
        offset = 0 if committed is None else committed.offset
        if offset < position.offset and member.owns(topic, partition):  # behind markers of transactions, it may be
            with life.store.consumer(topic, partitions=[partition], start=offset, wait=0) as rest:
                batch = rest.poll(1)
            assert not batch or batch[0].offset >= position.offset, (
                f"{topic}/{partition}: done up to {position.offset}, committed up to {offset}"
            )


def record_run(life: Life, consumer: klamm.Consumer) -> None:
    """Write down the polls and the commits of a run, and when it gives its partitions up."""
    session: Any = session_of(consumer)
    next_batch, commits = session.next_batch, session.commits
    commit = commits.commit
    has_begun = False

    def poll(*arguments: Any) -> Batch | None:
        nonlocal has_begun
        if not has_begun:
            has_begun = True
            life.record(RUNNING)
        since = now()
        batch: Batch | None = next_batch(*arguments)
        if batch:
            record_poll(life.record, since, batch)
        return batch

    def store(done: Mapping[TopicPartition, Position], metadata: str) -> None:
        def note(kind: str) -> None:
            for (topic, partition), position in done.items():
                life.record(kind, group=RUNNERS, topic=topic, partition=partition, end=position.offset, tx=None)

        note("storing")
        try:
            commit(done, metadata)
        except klamm.NotOwner:
            note("refused")
            raise
        except klamm.KlammError:
            note("unsettled")
            raise
        note("stored")

    withdraw = session.sharing.withdraw

    def leave(*arguments: Any) -> None:
        """From its first step on others may have the partitions; the callback is called after the last one."""
        life.record("lost", places=session.member.owned())
        withdraw(*arguments)

    session.next_batch = poll
    commits.commit = store
    session.sharing.withdraw = leave


__all__ = ["RUNNERS", "RUNNING", "process_runner", "runner"]
