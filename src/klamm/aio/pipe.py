"""A pipe for asyncio: a function between topics, exactly once. Both run in a thread of their own."""

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
        """The topic that it reads."""
        return self._sync.topic

    @property
    def group(self) -> str:
        """The group that it reads as."""
        return self._sync.group

    async def run(self, wait: Duration | None = None) -> PipeReport:
        """Process records until `stop`; with `wait`, until none comes for this long.

        If cancelled, finish the current record, commit, end for good, and raise CancelledError.
        """
        return await await_end(self._threads.submit(lambda: self._sync.run(wait)), self._sync.stop)

    def stop(self) -> None:
        """End `run` after the current record, and later calls at once. May be called from any task or thread."""
        self._sync.stop()

    async def close(self) -> None:
        """End `run`, as `stop` does, wait for it, and leave the group. Cancelling the call does not stop that."""
        self._threads.close()
        await run_alone(self._sync.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
