"""An asynchronous iterator over a blocking one: a thread takes some items at a time.

A task that is cancelled while it waits loses nothing: the next task gets the items.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from itertools import islice
from typing import Generic, Self, TypeVar

from klamm.aio.threads import Threads

__all__ = ["Pieces"]

T = TypeVar("T")


class Pieces(AsyncIterator[T], Generic[T]):
    """An asynchronous iterator over a blocking one, for one task at a time."""

    def __init__(self, threads: Threads, begin: Callable[[], Iterator[T]], size: int) -> None:
        """Prepare. `begin` is called in a thread, too; `size` items are taken at a time."""
        self._threads = threads
        self._begin = begin
        self._size = size
        self._iterator: Iterator[T] | None = None
        self._items: deque[T] = deque()
        self._error: BaseException | None = None  # raised after the items before it
        self._coming: Future[bool] | None = None
        self._is_over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        while not self._items:
            if self._error is not None:
                error, self._error, self._is_over = self._error, None, True
                raise error
            if self._is_over:
                raise StopAsyncIteration
            if self._coming is None:
                self._coming = self._threads.submit(self._take)
            self._is_over = not await asyncio.shield(asyncio.wrap_future(self._coming))
            self._coming = None
        return self._items.popleft()

    def _take(self) -> bool:
        """Take the next items; return whether there may be more."""
        count = 0
        try:
            if self._iterator is None:
                self._iterator = self._begin()
            for item in islice(self._iterator, self._size):
                self._items.append(item)
                count += 1
        except Exception as error:  # noqa: BLE001  # __anext__ raises it
            self._error = error
            return True
        return count == self._size

    async def aclose(self) -> None:
        """End the iteration, and close what the iterator has open."""
        self._is_over = True
        if self._coming is not None:
            await asyncio.wait([asyncio.wrap_future(self._coming)])
            self._coming = None
        self._items.clear()
        self._error = None
        iterator, self._iterator = self._iterator, None
        close = getattr(iterator, "close", None)
        if close is not None:
            await self._threads.finish(close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
