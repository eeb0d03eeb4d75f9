"""A slow loop of klamm.aio: it stays a member of its group, gives others their share, and ends when it is out."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from klamm import aio
from klamm.client.consume.consumer import session_of
from klamm.client.groups.membership import Member
from tests.aio.rig import in_loop, until


def member_of(consumer: aio.Consumer) -> Member:
    member = session_of(consumer._sync).member
    assert member is not None
    return member


def test_a_slow_loop_polls_between_its_records_and_so_stays_a_member(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    polls: list[None] = []

    async def test(store: aio.Store) -> None:
        await store.append_many("orders", [b"x"] * 20)
        async with store.consumer("orders", group="g", wait=0) as consumer:
            polled = Member.polled
            seen: list[int] = []
            async for record in consumer:
                if not seen:
                    monkeypatch.setattr(Member, "polled", lambda member: (polls.append(None), polled(member)))
                seen.append(record.offset)
                if record.offset < 19:
                    await asyncio.sleep(0.02)
                else:
                    monkeypatch.undo()
            assert seen == list(range(20))
        assert len(polls) >= 3  # in 0.38 s, or more

    in_loop(path, test)


def test_a_slow_loop_gives_a_new_member_its_share(path: Path) -> None:
    async def test(store: aio.Store) -> None:
        await store.topics.create("shared", partitions=2)
        for number in (0, 1):
            await store.append_many("shared", [b"x"] * 600, partition=number, acks=1)

        async def slowly() -> None:
            async for _ in first:
                await asyncio.sleep(0.05)

        async with store.consumer("shared", group="g") as first:
            task = asyncio.create_task(slowly())
            try:
                await until(lambda: len(first.assignment()) == 2, "the first has both")
                async with store.consumer("shared", group="g") as second:
                    assert await second.poll(timeout=15), "it gets nothing while the other one works on its chunk"
            finally:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    in_loop(path, test)


def test_a_slow_loop_that_lost_its_partition_returns_no_more_of_it(path: Path) -> None:
    async def test(store: aio.Store) -> None:
        await store.append_many("orders", [b"x"] * 100)
        lost: list[tuple[str, int]] = []
        async with store.consumer("orders", group="g", max_poll_interval_ms=500, wait=0, on_lost=lost.extend) as first:
            seen: list[int] = []
            second: aio.Consumer | None = None
            async for record in first:
                seen.append(record.offset)
                if record.offset == 5:
                    await until(lambda: not member_of(first).owns("orders", 0), "the watchdog gives it up")
                    second = await store.consumer("orders", group="g")
                    assert (await second.poll(3)).begin == 0
            assert seen == list(range(6)) and lost == [("orders", 0)]
            assert second is not None
            await second.close()

    in_loop(path, test)
