"""One request, and a row of the dispatch table.

A handler is a coroutine function that takes the broker and a call. Its result is the response; None: the client expects
none (Produce with acks=0). It runs at once until it first has to wait, and then as a task, unless it waits for a Pause
(session.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from klamm.kafka.wire.codec import Api
from klamm.kafka.wire.structs import Struct

if TYPE_CHECKING:
    from klamm.kafka.broker import Broker
    from klamm.kafka.session import Session
    from klamm.kafka.wire.frames import RequestHeader

__all__ = [
    "ADMIN",
    "AUTHENTICATE",
    "CATALOG",
    "CODEC",
    "DISK",
    "LARGE",
    "LOOP",
    "SMALL",
    "TRANSACT",
    "WRITE",
    "Call",
    "ExecutionContext",
    "Handler",
    "OrdinaryHandler",
    "Pause",
    "PausedReply",
    "Reply",
    "SupportedApi",
]

SMALL = 64 * 1024
LARGE = 100 * 1024 * 1024
"""Bounds of responses: of one fact, and of a list of what the store has (as large as the largest request)."""

Value = TypeVar("Value")
Handler = Callable[["Broker", "Call"], Coroutine[Any, Any, Struct | None]]
OrdinaryHandler = Callable[["Broker", "Session", memoryview], tuple[int, ...] | None]


class ExecutionContext(Enum):
    """Where the work of a request is done. Each place but the loop is a bounded set of threads of its own."""

    LOOP = "loop"
    """The event loop: memory, and system calls that do not wait."""
    CATALOG = "catalog"
    """Reads of SQLite: topics, groups, offsets."""
    DISK = "disk"
    """Segment files: cold reads, seeks, recovery, locks of partitions."""
    CODEC = "codec"
    """Decompression and checks of large batches."""
    WRITE = "write"
    """The one thread that writes groups and offsets, in order."""
    TRANSACT = "transact"
    """Transactions: their rows, the syncs of their logs, their markers."""
    ADMIN = "admin"
    """Changes of the catalog, which may take long."""
    AUTHENTICATE = "authenticate"
    """Logins: look-ups of users, hashes of passwords."""


LOOP, CATALOG, DISK, CODEC, WRITE, TRANSACT, ADMIN, AUTHENTICATE = ExecutionContext


class SupportedApi(NamedTuple):
    """A row of the dispatch table: what ApiVersions advertises, who handles it, and what a request may take."""

    api: Api
    min_version: int
    max_version: int
    handler: Handler
    runs: tuple[ExecutionContext, ...] = (LOOP,)
    """Where the handler may work. LOOP alone: it has no way to reach a thread, and nothing that may block."""
    rights: tuple[str, ...] = ()
    """Operation and resource, in the words of Kafka's ACLs."""
    max_response_bytes: int = SMALL
    """The most memory that a response may take; a larger one is not sent. Ranges of files do not count."""
    merge: Callable[[Struct], None] | None = None
    """Leaves in the request each thing once that it names: see repeats.py."""
    needs_catalog: bool | Callable[[Broker, int, Struct], bool] = True
    """Whether a request, of that version, waits until changes of the catalog have been read."""
    cost: Callable[[Broker, int, Struct], int] | None = None
    """How many things the response to a request of that version tells of that the request does not name: see
    large_requests.py."""
    ordinary: OrdinaryHandler | None = None
    """Handles the frame of a request as most are, natively, and returns None. Else it returns what it has done of it,
    and the request is decoded for `handler`, which does the rest: see ordinary_produce.py."""
    notes: str = ""


class Reply(Generic[Value]):
    """What a handler waits for: called with a value, once, at once or later. If the client is gone, nothing happens."""

    __slots__ = ("_value",)

    def __init__(self, value: asyncio.Future[Value]) -> None:
        self._value = value

    def __call__(self, value: Value) -> None:
        if not self._value.done():
            self._value.set_result(value)

    def fail(self, error: Exception) -> None:
        """Raise the error in the handler."""
        if not self._value.done():
            self._value.set_exception(error)

    def drop(self) -> None:
        """Nothing comes; the handler is cancelled when its client disconnects."""

    def __await__(self) -> Generator[Any, None, Value]:
        return self._value.__await__()


class Pause:
    """What a handler that has no task yet waits for: it continues within `resume`, so it needs none."""

    __slots__ = ("_is_over", "then")

    def __init__(self) -> None:
        self._is_over = False
        self.then: Callable[[], None] | None = None
        """Called by `resume`: goes on with the handler (session.py)."""

    def resume(self) -> None:
        """Once, on the loop."""
        self._is_over = True
        if self.then is not None:
            self.then()

    def __await__(self) -> Generator[Pause, None, None]:
        if not self._is_over:
            yield self


class PausedReply(Pause, Generic[Value]):
    """Like Reply, for a handler that has no task yet."""

    __slots__ = ("_error", "_value")

    def __init__(self) -> None:
        super().__init__()
        self._value: Value | None = None
        self._error: Exception | None = None

    def __call__(self, value: Value) -> None:
        self._value = value
        self.resume()

    def fail(self, error: Exception) -> None:
        """Raise the error in the handler."""
        self._error = error
        self.resume()

    def drop(self) -> None:
        """Nothing comes: the handler, which nothing else refers to, ends where it waits."""
        self.then = None

    def __await__(self) -> Generator[Any, None, Value]:  # type: ignore[override]  # a Pause gives nothing
        yield from super().__await__()
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]


class Call:
    """A request that is being handled. A session has one at a time."""

    __slots__ = ("api", "client_id", "correlation_id", "done", "request", "row", "session", "started", "version")

    def __init__(
        self,
        session: Session,
        row: SupportedApi,
        header: RequestHeader,
        request: Struct,
        started: float,
        done: tuple[int, ...] = (),
    ) -> None:
        self.session = session
        self.row = row
        self.api, self.version, self.correlation_id, self.client_id, _ = header
        self.request = request
        self.started = started
        """When it was read, on the loop's clock."""
        self.done = done
        """What the ordinary handler has done of it (Produce: offsets of its first partitions)."""

    def __str__(self) -> str:
        return f"{self.api.name} v{self.version}"

    @property
    def host(self) -> str:
        """The address of the client."""
        return self.session.peer_host

    @property
    def is_gone(self) -> bool:
        """Whether the client has disconnected."""
        return self.session.is_closed

    def copy(self, view: memoryview) -> memoryview:
        """Copy what lies in the receive buffer, for as long as the call takes; the copy counts in the budget."""
        return self.session.copy(view)

    def reply(self) -> Reply[Any]:
        """Return something to wait for; when the client disconnects, the handler is cancelled there."""
        return Reply(self.session.wait())
