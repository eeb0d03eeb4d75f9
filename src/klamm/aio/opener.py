"""An opener: opens an object in a thread when it is awaited, or entered by `async with`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

__all__ = ["Opener"]


class AsyncContext(Protocol):
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


T = TypeVar("T", bound=AsyncContext)


class Opener(Generic[T]):
    """Opens an object by `x = await opener`, or by `async with opener as x`, which also closes it."""

    def __init__(self, start: Callable[[], Awaitable[T]]) -> None:
        self._start = start
        self._opened: T | None = None

    def __await__(self) -> Generator[Any, None, T]:
        return self._start().__await__()

    async def __aenter__(self) -> T:
        self._opened = await self._start()
        return self._opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._opened is not None:
            await self._opened.__aexit__(kind, error, trace)
