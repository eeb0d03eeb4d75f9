"""A pipe for asyncio: a function between topics, exactly once. It and the function run in a thread of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from klamm.aio.threads import Threads, await_end, run_alone

if TYPE_CHECKING:
    from klamm.client.pipe.pipe import Pipe as SyncPipe
    from klamm.times import Duration
    from klamm.types import PipeReport

__all__ = ["Pipe"]


class Pipe:
    """Made by `store.pipe()` of klamm.aio. One task awaits `run`; others may `stop` and `close`."""

    def __init__(self, pipe: SyncPipe) -> None:
        self._sync = pipe
        self._threads = Threads(1, "klamm-aio-pipe")

    def __repr__(self) -> str:
        return f"<aio {self._sync!r}>"

    @property
    def topic(self) -> str:
        """What it reads."""
        return self._sync.topic

    @property
    def group(self) -> str:
        """As which group it reads."""
        return self._sync.group

    async def run(self, wait: Duration | None = None) -> PipeReport:
        """Take records until `stop`; with `wait`, until none comes for so long.

        Cancelled, it ends after the record that is at hand, for good, and what is done is committed; then
        CancelledError is raised.
        """
        return await await_end(self._threads.submit(lambda: self._sync.run(wait)), self._sync.stop)

    def stop(self) -> None:
        """End `run` after the record that is at hand, and every later one. May be called from any task or thread."""
        self._sync.stop()

    async def close(self) -> None:
        """End `run`, as `stop` does, wait for it, and leave the group. Cancelled, it does so all the same."""
        self._threads.close()
        await run_alone(self._sync.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
