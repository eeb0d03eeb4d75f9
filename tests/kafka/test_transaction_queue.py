"""Requests of one transactional id have one thread; those of others are not kept waiting by them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pytest

from klamm.errors import Closed, KlammError
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.transaction_coordinator import Identified
from klamm.kafka.transaction_queue import TransactionQueue
from klamm.kafka.wire.frames import read_response
from klamm.kafka.wire.messages import ADD_OFFSETS_TO_TXN, INIT_PRODUCER_ID
from klamm.store.transaction_state import Add, End
from tests.kafka.connect import Served
from tests.procs import PATIENCE, until

THREADS = 16
NONE = ErrorCode.NONE
ADD, END = Add((1, 1), frozenset()), End((1, 1), True, True)


async def until_true(condition: Callable[[], bool]) -> None:
    """Within the time that the test has."""
    while not condition():
        await asyncio.sleep(0.001)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, PATIENCE))


class Coordinator:
    """Says yes to everybody, and counts. `alone`: names that cannot go together with others."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.together: list[list[str]] = []
        self.alone: set[str] = set()
        self.held: set[str] = set()
        """Names whose calls wait for the gate, alone or together."""

    def apply(self, name: str, event: Add | End) -> Identified:
        if name in self.held:
            assert self.gate.wait(PATIENCE)
        return Identified(NONE, 1)

    def apply_together(self, asked: Sequence[tuple[str, Add | End]]) -> list[Identified | None]:
        names = [name for name, _ in asked]
        self.together.append(names)
        if self.held & {*names} - self.alone:
            assert self.gate.wait(PATIENCE)
        if "broken" in names:
            raise ValueError
        return [None if name in self.alone else Identified(NONE, 2) for name in names]


@contextmanager
def queue_of(
    threads: int, coordinator: Coordinator | None = None
) -> Iterator[tuple[TransactionQueue, threading.Event]]:
    """A queue, and an event that calls may wait for: it is set in the end."""
    loop, coordinator = asyncio.get_running_loop(), coordinator or Coordinator()
    with ThreadPoolExecutor(threads) as pool:
        try:
            yield TransactionQueue(loop, partial(loop.run_in_executor, pool), coordinator), coordinator.gate
        finally:
            coordinator.gate.set()


def test_calls_of_one_id_run_one_at_a_time_in_order() -> None:
    async def main() -> None:
        with queue_of(4) as (queue, _):
            order: list[int] = []
            running = [0]

            def call(number: int) -> int:
                running[0] += 1
                assert running[0] == 1
                order.append(number)
                running[0] -= 1
                return number

            given = [queue.run("a", partial(call, number)) for number in range(200)]
            assert len(queue) == 1
            assert await asyncio.gather(*given) == order == list(range(200))
            assert len(queue) == 0

    run(main())


def test_calls_of_one_id_that_are_stuck_keep_no_other_waiting() -> None:
    async def main() -> None:
        with queue_of(2) as (queue, gate):
            stuck = [queue.run("stuck", gate.wait) for _ in range(THREADS)]
            assert await asyncio.gather(*(queue.run(f"{n}", lambda n=n: n) for n in range(50))) == list(range(50))  # type: ignore[misc]
            assert not any(each.done() for each in stuck)
            gate.set()
            assert await asyncio.gather(*stuck) == [True] * THREADS

    run(main())


def test_a_busy_id_is_behind_others_after_each_call() -> None:
    async def main() -> None:
        order = list[str]()

        def call(name: str, wait: Callable[[], object] = bool) -> None:
            wait()
            order.append(name)

        with queue_of(1) as (queue, gate):
            calls = [queue.run("busy", partial(call, "busy", gate.wait))]
            calls += [queue.run("busy", partial(call, "busy")) for _ in range(3)]
            calls += [queue.run(name, partial(call, name)) for name in ("b", "c")]
            gate.set()
            await asyncio.gather(*calls)
        assert order == ["busy", "b", "c", "busy", "busy", "busy"]

    run(main())


def test_a_call_runs_whatever_became_of_those_before_it() -> None:
    async def main() -> None:
        ran = list[int]()

        def fails() -> None:
            raise KlammError("no")

        with queue_of(2) as (queue, gate):
            first, second, third, fourth = (
                queue.run("a", each) for each in (gate.wait, fails, partial(ran.append, 3), partial(ran.append, 4))
            )
            first.cancel()
            third.cancel()
            for _ in range(10):
                await asyncio.sleep(0)
            assert len(queue._waiting["a"]) == 3, "the first one still has its thread"
            gate.set()
            with pytest.raises(KlammError):
                await second
            await fourth
        assert ran == [4] and len(queue) == 0

    run(main())


def test_calls_that_have_not_begun_are_refused_when_the_server_stops() -> None:
    async def main() -> None:
        with queue_of(2) as (queue, gate):
            first, second, third = (queue.run("a", gate.wait) for _ in range(3))
            third.cancel()
            queue.close()
            gate.set()
            assert await first
            with pytest.raises(Closed):
                await second
        assert len(queue) == 0

    run(main())


def test_requests_that_come_while_others_run_go_together() -> None:
    async def main() -> None:
        coordinator = Coordinator()
        with queue_of(THREADS, coordinator) as (queue, gate):
            first = [queue.apply(name, ADD) for name in ("a", "b")]
            coordinator.held = {"c", "d", "e"}
            held = []
            for name in ("c", "d"):  # as many groups as there may be
                await asyncio.gather(*first)
                held.append(queue.apply(name, ADD))
                await until_true(lambda name=name: coordinator.together[-1] == [name])  # type: ignore[misc]
            later = [queue.apply(f"{number}", ADD) for number in range(100)]
            ended = [queue.apply(name, END) for name in ("x", "y")]  # of another kind
            assert await asyncio.gather(*ended) == [Identified(NONE, 2)] * 2
            assert not any(each.done() for each in [*held, *later])
            gate.set()
            assert {*await asyncio.gather(*held, *later)} == {Identified(NONE, 2)}
        names = [f"{number}" for number in range(100)]
        assert coordinator.together == [["a", "b"], ["c"], ["d"], ["x", "y"], names[:64], names[64:]]
        assert len(queue) == 0

    run(main())


def test_of_one_id_requests_do_not_go_together() -> None:
    async def main() -> None:
        coordinator = Coordinator()
        with queue_of(THREADS, coordinator) as (queue, _):
            await asyncio.gather(*(queue.apply("a", each) for each in (ADD, ADD, END)))
        assert coordinator.together == [["a"], ["a"], ["a"]]

    run(main())


def test_a_request_that_has_to_wait_does_so_alone() -> None:
    async def main() -> None:
        coordinator = Coordinator()
        coordinator.alone = coordinator.held = {"slow"}
        with queue_of(THREADS, coordinator) as (queue, gate):
            slow, *others = [queue.apply(name, END) for name in ("slow", "a", "b")]
            behind = queue.apply("slow", ADD)
            assert await asyncio.gather(*others) == [Identified(NONE, 2)] * 2
            assert await queue.apply("c", END) == Identified(NONE, 2)
            assert not slow.done() and not behind.done()
            gate.set()
            assert await slow == await behind == Identified(NONE, 1)
        assert coordinator.together == [["slow", "a", "b"], ["c"], ["slow"]]

    run(main())


def test_an_error_of_a_group_is_told_to_each_and_the_next_group_runs() -> None:
    async def main() -> None:
        with queue_of(THREADS) as (queue, _):
            failed = [queue.apply(name, ADD) for name in ("a", "broken")]
            for each in failed:
                with pytest.raises(ValueError):
                    await each
            assert await queue.apply("a", ADD) == Identified(NONE, 2)
            assert len(queue) == 0

    run(main())


def test_requests_of_a_group_that_has_not_begun_are_refused_when_the_server_stops() -> None:
    async def main() -> None:
        with queue_of(THREADS) as (queue, _):
            ready, behind = queue.apply("a", ADD), queue.apply("a", END)
            queue.close()
            for each in (ready, behind):
                with pytest.raises(Closed):
                    await each
            assert len(queue) == 0

    run(main())


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_client_with_many_connections_keeps_no_other_transaction_waiting(
    server: Served, monkeypatch: pytest.MonkeyPatch, is_alone: bool
) -> None:
    """As many requests of one transactional id as there are threads for transactions, while the first has to wait."""
    coordinator, gate = server.broker.transaction_coordinator, threading.Event()
    apply, apply_together = coordinator.apply, coordinator.apply_together

    def held(name: str, event: Add | End) -> Identified:
        if name == "stuck":
            assert gate.wait(PATIENCE)
        return apply(name, event)

    def held_together(asked: Sequence[tuple[str, Add | End]]) -> list[Identified | None]:
        if not is_alone and "stuck" in dict(asked):
            assert gate.wait(PATIENCE)
        return apply_together(asked)

    monkeypatch.setattr(coordinator, "apply", held)
    monkeypatch.setattr(coordinator, "apply_together", held_together)
    asked = {"producer_id": 0, "producer_epoch": 0, "group_id": "g"}
    queue, unknown = server.broker.transaction_queue, ErrorCode.INVALID_PRODUCER_ID_MAPPING
    with ExitStack() as stack:
        stack.callback(gate.set)  # first of all, if the test fails
        raws = [stack.enter_context(server.dial()) for _ in range(2 * THREADS)]
        for raw in raws:
            raw.send(ADD_OFFSETS_TO_TXN, 4, transactional_id="stuck", **asked)
        until(lambda: len(queue._waiting.get("stuck", ())) == 2 * THREADS - 1, "all but one wait")
        with server.dial() as raw:
            assert raw.ask(ADD_OFFSETS_TO_TXN, 4, transactional_id="other", **asked).error_code == unknown
        gate.set()
        for raw in raws:
            _, answer = read_response(ADD_OFFSETS_TO_TXN, 4, raw.receive())
            assert answer.error_code == unknown
    until(lambda: len(queue) == 0, "nothing is left")


def test_an_init_of_a_transactional_id_waits_for_the_one_before_it(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator, gate = server.broker.transaction_coordinator, threading.Event()
    init = coordinator.init_producer_id

    def held(*args: Any) -> Identified:
        assert gate.wait(PATIENCE)
        return init(*args)

    monkeypatch.setattr(coordinator, "init_producer_id", held)
    queue = server.broker.transaction_queue
    with ExitStack() as stack:
        stack.callback(gate.set)  # first of all, if the test fails
        raws = [stack.enter_context(server.dial()) for _ in range(3)]
        for raw in raws:
            raw.send(
                INIT_PRODUCER_ID,
                4,
                transactional_id="one",
                transaction_timeout_ms=60_000,
                producer_id=-1,
                producer_epoch=-1,
            )
        until(lambda: len(queue._waiting.get("one", ())) == 2, "all but one wait")
        gate.set()
        epochs = [read_response(INIT_PRODUCER_ID, 4, raw.receive())[1].producer_epoch for raw in raws]
    assert sorted(epochs) == [0, 1, 2]
