"""One request, and how it is answered.

A handler is given the broker and a call. It gives the answer back; or, as a coroutine, gives it later; or keeps the
call, returns LATER and replies when the time has come. None is no answer at all: Produce without acks.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from klamm.kafka.wire.codec import Api
from klamm.kafka.wire.structs import Struct

if TYPE_CHECKING:
    from klamm.kafka.broker import Broker
    from klamm.kafka.connection import Connection

__all__ = ["LATER", "Answer", "Call", "Handler", "Honoured", "Put"]


class _Later(Enum):
    LATER = "later"


LATER: Final = _Later.LATER
"""What a handler returns that has kept the call and will reply."""

Put = Struct | Literal[_Later.LATER] | None
Answer = Put | Coroutine[Any, Any, Put]
Handler = Callable[["Broker", "Call"], Answer]


class Honoured(NamedTuple):
    """A line of the dispatch table: what is advertised, and who does it."""

    api: Api
    min_version: int
    max_version: int
    handler: Handler
    notes: str = ""


class Call:
    """A request that is being handled. A connection has one at a time."""

    __slots__ = ("api", "client_id", "connection", "correlation_id", "request", "started", "version")

    def __init__(
        self,
        connection: Connection,
        api: Api,
        version: int,
        correlation_id: int,
        client_id: str | None,
        request: Struct,
        started: float,
    ) -> None:
        self.connection = connection
        self.api = api
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.request = request
        self.started = started
        """When it was read, on the loop's clock."""

    @property
    def host(self) -> str:
        """The address of the client."""
        return self.connection.peer_host

    @property
    def is_gone(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return self.connection.is_closed

    def keep(self, view: memoryview) -> memoryview:
        """A copy of what lies in the receive buffer, for as long as the call takes; the server counts its bytes."""
        return self.connection.keep(view)

    def reply(self, response: Struct | None) -> None:
        """Answer it, after LATER; on the loop."""
        self.connection.reply(self, response)

    def fail(self) -> None:
        """Where an error was caught that nobody foresaw, after LATER: it is logged, and the connection closed."""
        self.connection.failed(self)
