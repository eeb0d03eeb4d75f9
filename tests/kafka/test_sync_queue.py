"""Syncs for producers: those who come while one runs share the next, and each is told what became of it."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from klamm.disk import _os
from klamm.errors import Closed, SyncFailed, UnknownTopic
from klamm.kafka.pools import Pools
from klamm.kafka.sync_queue import SyncQueue
from klamm.log.head import Reply
from klamm.log.partition import Partition
from tests.crash.cases import memory_directory
from tests.procs import PATIENCE
from tests.rig import Rig, batch


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with memory_directory(tmp_path) as path:
        yield Rig(path, slots=100)
    _os.trap(0)


def run(work: Any) -> None:
    asyncio.run(asyncio.wait_for(work, PATIENCE))


@asynccontextmanager
async def queue() -> AsyncIterator[SyncQueue]:
    loop = asyncio.get_running_loop()
    pools = Pools(loop)
    made = SyncQueue(loop, pools)
    try:
        yield made
    finally:
        made.close()
        pools.close()


class Told:
    """What those who wait are told, in order."""

    def __init__(self, syncs: SyncQueue) -> None:
        self._syncs = syncs
        self.order: list[str] = []
        self.errors: dict[str, BaseException | None] = {}

    def wait(self, partition: Partition, end_offset: int, name: str) -> None:
        self._syncs.wait(partition, end_offset, lambda error: self._tell(name, error))

    def _tell(self, name: str, error: BaseException | None) -> None:
        assert name not in self.errors, "told twice"
        self.order.append(name)
        self.errors[name] = error

    async def all(self, count: int) -> None:
        while len(self.errors) < count:
            await asyncio.sleep(0.001)


@contextmanager
def held(partition: Partition) -> Iterator[Callable[[], None]]:
    """Somebody else syncs it, until the block ends or what it gives is called."""
    begun, enough = threading.Event(), threading.Event()

    def hold() -> None:
        with partition.log.flush_lock():
            begun.set()
            assert enough.wait(PATIENCE)

    thread = threading.Thread(target=hold)
    thread.start()
    assert begun.wait(PATIENCE)
    try:
        yield enough.set
    finally:
        enough.set()
        thread.join(PATIENCE)


def test_those_who_come_while_a_sync_runs_share_the_next(rig: Rig) -> None:
    partition = rig.partition(1, segment_bytes=1 << 20)
    partition.append(batch(0, 0))
    partition.sync(1)

    async def main() -> None:
        async with queue() as syncs:
            told = Told(syncs)
            with held(partition) as let_go:
                for number in range(1, 5):
                    partition.append(batch(0, number))
                    told.wait(partition, number + 1, f"{number}")
                assert len(syncs) == 1
                await asyncio.sleep(0.02)
                assert told.errors == {}
                _os.trap(1 << 60, kinds=_os.SYNC)
                let_go()
                await told.all(4)
            assert told.order == ["1", "2", "3", "4"]
            assert set(told.errors.values()) == {None}
            assert partition.log.flushed_offset == 5
            assert _os.steps_taken() == 1  # the first found all of them; the next had nothing left to do
            assert len(syncs) == 0

    run(main())


def test_nobody_is_told_before_it_is_on_disk(rig: Rig) -> None:
    """Many partitions, some in one sync, each with its own offset."""
    partitions = [rig.partition(slot) for slot in range(1, 25)]

    async def main() -> None:
        async with queue() as syncs:
            missing: list[str] = []
            left = 0

            def done(partition: Partition, end_offset: int, error: BaseException | None) -> None:
                nonlocal left
                left -= 1
                if error is not None or partition.log.flushed_offset < end_offset:
                    missing.append(f"{partition}: {end_offset}: {error}")

            for turn in range(30):
                for partition in partitions:
                    for _ in range(turn % 3 + 1):
                        end_offset = partition.append(batch(0, turn)) + 1
                        left += 1
                        syncs.wait(partition, end_offset, lambda e, p=partition, o=end_offset: done(p, o, e))  # type: ignore[misc]
                await asyncio.sleep(0)
            while left:
                await asyncio.sleep(0.001)
            assert missing == []

    run(main())


def test_a_failed_sync_that_can_be_made_good_is_told_to_nobody(rig: Rig) -> None:
    partition = rig.partition(1)
    partition.append(batch(0, 0))

    async def main() -> None:
        async with queue() as syncs:
            told = Told(syncs)
            _os.trap(1, kinds=_os.SYNC, error=errno.EIO)
            told.wait(partition, 1, "a")
            await told.all(1)
            assert told.errors == {"a": None}
            assert partition.log.flushed_offset == 1

    run(main())


def test_a_failed_sync_is_told_to_all_it_was_for_and_to_nobody_else(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, good = rig.partition(1), rig.partition(2)
    for partition in (bad, good):
        partition.append(batch(0, 0))

    async def main() -> None:
        async with queue() as syncs:
            told = Told(syncs)
            failing = threading.Event()

            def fail(end_offset: int) -> None:
                assert failing.wait(PATIENCE)
                raise SyncFailed("no")

            monkeypatch.setattr(bad, "sync", fail)
            _os.trap(1, kinds=_os.SYNC, error=errno.EIO)
            told.wait(bad, 1, "first")
            while _os.steps_taken() < 1:
                await asyncio.sleep(0.001)
            _os.trap(0)
            bad.append(batch(0, 1))
            told.wait(bad, 2, "second")
            told.wait(good, 1, "good")
            await told.all(1)
            assert told.errors == {"good": None}
            failing.set()
            await told.all(3)
            assert isinstance(told.errors["first"], SyncFailed)
            assert isinstance(told.errors["second"], SyncFailed)  # it was tried, and failed, too
            assert bad.log.flushed_offset == 0

    run(main())


def test_a_partition_that_was_deleted_or_closed_is_an_error_for_its_own(rig: Rig) -> None:
    closed, deleted, good = rig.partition(1), rig.partition(2), rig.partition(3)
    for partition in (closed, deleted, good):
        partition.append(batch(0, 0))
    closed.log.abandon()
    successor = rig.partition(2)
    deleted.mark_deleted()
    with successor.log.append_lock():
        successor.log.use_again(bytes(16), 7)

    async def main() -> None:
        async with queue() as syncs:
            told = Told(syncs)
            for name, partition in (("closed", closed), ("deleted", deleted), ("good", good)):
                told.wait(partition, 1, name)
            await told.all(3)
            assert isinstance(told.errors["closed"], Closed)
            assert isinstance(told.errors["deleted"], UnknownTopic)
            assert told.errors["good"] is None
            assert len(syncs) == 0

    run(main())


def test_a_partition_that_another_process_syncs_delays_no_other(rig: Rig) -> None:
    stuck, others = rig.partition(1), [rig.partition(slot) for slot in range(2, 42)]
    for partition in (stuck, *others):
        partition.append(batch(0, 0))

    async def main() -> None:
        async with queue() as syncs:
            told = Told(syncs)
            with held(stuck):
                told.wait(stuck, 1, "stuck")
                for partition in others:
                    told.wait(partition, 1, partition.directory)
                await told.all(len(others))
                assert "stuck" not in told.errors
            await told.all(len(others) + 1)
            assert set(told.errors.values()) == {None}

    run(main())


def test_who_still_waits_when_it_is_closed_is_told_so(rig: Rig) -> None:
    partition = rig.partition(1)
    partition.append(batch(0, 0))

    async def main() -> None:
        async with queue() as syncs:
            told = Told(syncs)
            with held(partition):
                told.wait(partition, 1, "first")
                told.wait(partition, 1, "second")
                syncs.close()
                told.wait(partition, 1, "late")
                assert {name: type(error) for name, error in told.errors.items()} == {
                    "first": Closed,
                    "second": Closed,
                    "late": Closed,
                }
            await asyncio.sleep(0.02)
            assert len(told.errors) == 3

    run(main())


def test_a_reply_is_sent_without_the_loop_and_who_waits_is_told_with_the_next_look(rig: Rig) -> None:
    partition = rig.partition(1)
    server, client = socket.socketpair()
    client.settimeout(PATIENCE)

    async def main() -> None:
        async with queue() as syncs:
            told: list[tuple[BaseException | None, int]] = []
            for number in range(10):
                partition.append(batch(0, number))
                reply = Reply(server.fileno(), b"done")
                syncs.wait(partition, number + 1, lambda error, reply=reply: told.append((error, reply.sent)), reply)  # type: ignore[misc]
                assert client.recv(100) == b"done"  # the loop does nothing meanwhile
                assert partition.log.flushed_offset == number + 1
                assert len(told) == number
                while len(told) == number:
                    syncs.look()
            assert told == [(None, 4)] * 10
            assert len(syncs) == 0

    with server, client:
        run(main())


def test_a_sync_whose_reply_was_sent_keeps_nobody_waiting(rig: Rig) -> None:
    partition = rig.partition(1)
    server, client = socket.socketpair()
    client.settimeout(PATIENCE)

    async def main() -> None:
        async with queue() as syncs:
            told = Told(syncs)
            for number in range(0, 20, 2):
                partition.append(batch(0, number))
                reply = Reply(server.fileno(), b"done")
                syncs.wait(partition, number + 1, lambda error, n=number: told._tell(f"{n}", error), reply)  # type: ignore[misc]
                is_over = number % 4 > 0
                if is_over:
                    assert client.recv(4) == b"done"
                partition.append(batch(0, number + 1))
                told.wait(partition, number + 2, f"{number + 1}")
                await told.all(number + 2)
                assert is_over or client.recv(4) == b"done"
            assert told.order == [f"{number}" for number in range(20)]
            assert set(told.errors.values()) == {None}

    with server, client:
        run(main())
