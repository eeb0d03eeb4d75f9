"""An opener: opens an object in a thread when it is awaited, entered by `async with`, or read by `async for`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from klamm.aio.consumer import Consumer

__all__ = ["Opener"]


class AsyncContext(Protocol):
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


T = TypeVar("T", bound=AsyncContext)
R = TypeVar("R")


class Opener(Generic[T]):
    """Opens an object by `x = await opener`, or by `async with opener as x`, which also closes it.

    `async for item in opener` reads the object, if it can be read, and closes it after the last item. (After a `break`,
    asyncio closes it together with the iterator, with CPython at once.)
    """

    def __init__(self, start: Callable[[], Awaitable[T]]) -> None:
        self._start = start
        self._opened: T | None = None

    def __await__(self) -> Generator[Any, None, T]:
        return self._start().__await__()

    if not TYPE_CHECKING:  # a checker that saw it would accept every name

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}"
                " (await the call first, or use async with: it opens in a thread)"
            )

    async def __aiter__(self: Opener[Consumer[R]]) -> AsyncGenerator[R, None]:
        async with self as opened:
            async for item in opened:
                yield item

    async def __aenter__(self) -> T:
        self._opened = await self._start()
        return self._opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._opened is not None:
            await self._opened.__aexit__(kind, error, trace)
