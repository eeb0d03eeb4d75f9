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
from klamm.store.acl import SUPPORTED

if TYPE_CHECKING:
    from klamm.kafka.api_error import ApiError
    from klamm.kafka.broker import Broker
    from klamm.kafka.session import Session
    from klamm.kafka.wire.frames import RequestHeader
    from klamm.store.acl import Operation, ResourceType

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
    "ResponseTooLarge",
    "SupportedApi",
]

SMALL = 64 * 1024
LARGE = 100 * 1024 * 1024
"""Bounds of responses: of one fact, and of a list of what the store has (as large as the largest request)."""

_ALL_OPERATIONS = {kind: sum(1 << operation for operation in operations) for kind, operations in SUPPORTED.items()}

Value = TypeVar("Value")
Handler = Callable[["Broker", "Call"], Coroutine[Any, Any, Struct | None]]
OrdinaryHandler = Callable[["Broker", "Session", memoryview], tuple[Any, ...] | None]


class ExecutionContext(Enum):
    """The threads in which the work of a request is done. Each but the loop is a bounded pool of its own."""

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
    and the request is decoded for `handler`, which does the rest: see ordinary_produce.py, fetch.py."""
    notes: str = ""


class ResponseTooLarge(Exception):
    """A response would be larger than its row, or socket.response.max.bytes, permits."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"a response of more than {limit} bytes, where {limit} are sent")


class Reply(Generic[Value]):
    """A reply that a handler waits for: called with a value, once, now or later. Ignored if the client is gone."""

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
        """Drop the call: no response follows; the handler is cancelled when its client disconnects."""

    def __await__(self) -> Generator[Any, None, Value]:
        return self._value.__await__()


class Pause:
    """An awaitable for a handler that has no task yet: it continues within `resume`, so it needs none."""

    __slots__ = ("_is_over", "then")

    def __init__(self) -> None:
        self._is_over = False
        self.then: Callable[[], None] | None = None
        """Called by `resume`: goes on with the handler (session.py)."""

    def resume(self) -> None:
        """Resume the handler: once, on the loop."""
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
        """Drop the call: no response follows, and the handler, which nothing else refers to, ends where it waits."""
        self.then = None

    def __await__(self) -> Generator[Any, None, Value]:  # type: ignore[override]  # a Pause gives nothing
        yield from super().__await__()
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]


class Call:
    """A request that is being handled. A session has one at a time."""

    __slots__ = ("_expected", "api", "client_id", "correlation_id", "done", "is_large", "request", "row", "session",
                 "started", "version", "wait_s")  # fmt: skip

    def __init__(
        self,
        session: Session,
        row: SupportedApi,
        header: RequestHeader,
        request: Struct,
        started: float,
        done: tuple[Any, ...] = (),
    ) -> None:
        self.session = session
        self.row = row
        self.api, self.version, self.correlation_id, self.client_id, _ = header
        self.request = request
        self.started = started
        """When it was read, on the loop's clock."""
        self.done = done
        """What the ordinary handler has done of it: offsets of the first partitions (Produce), an attempt (Fetch)."""
        self.wait_s = 0.0
        """How long the client has to wait after the response, by a quota that its handler has looked at."""
        self.is_large = False
        """Whether its response is encoded in turns: see large_requests.py."""
        self._expected = 0

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

    def may(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Return whether the client may do that, without a word: for what is left out of a response."""
        return self.session.may(operation, kind, name)

    def denied(self, operation: Operation, kind: ResourceType, name: str) -> ApiError | None:
        """Return why the client may not do that, which is logged; None if it may."""
        if self.session.may(operation, kind, name):
            return None
        return self.session.deny(self.api.name, operation, kind, name)

    def check(self, operation: Operation, kind: ResourceType, name: str) -> None:
        """Raise ApiError, and log it, if the client may not do that."""
        error = self.denied(operation, kind, name)
        if error is not None:
            raise error

    def operations(self, kind: ResourceType, name: str) -> int:
        """Return what the client may do with a resource, as bits of Kafka's numbers of operations."""
        if not self.session.is_guarded:
            return _ALL_OPERATIONS[kind]
        return sum(1 << operation for operation in SUPPORTED[kind] if self.session.may(operation, kind, name))

    def copy(self, view: memoryview) -> memoryview:
        """Copy what lies in the receive buffer, for as long as the call takes; the copy counts in the budget."""
        return self.session.copy(view)

    def expect(self, size: int) -> None:
        """Record that the response takes so many bytes more, at least, before it is made. Raise ResponseTooLarge if it
        takes more than it may.
        """
        self._expected += size
        limit = self.session.max_response(self)
        if self._expected > limit:
            raise ResponseTooLarge(limit)

    def reply(self) -> Reply[Any]:
        """Return something to wait for; when the client disconnects, the handler is cancelled there."""
        return Reply(self.session.wait())
