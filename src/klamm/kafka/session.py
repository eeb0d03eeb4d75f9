"""One client: its address, the request that is being handled, and what is allowed to it.

A session has no socket. It gets whole requests from its channel, lets admission check them, runs their handlers, and
gives responses to the channel.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from klamm.kafka.call import SMALL, Call, Pause
from klamm.kafka.response_errors import errors_in
from klamm.kafka.tasks import Begun
from klamm.kafka.wire.errors import MalformedMessage, UnsupportedVersion
from klamm.kafka.wire.frames import response_frame
from klamm.kafka.wire.messages import API_VERSIONS
from klamm.kafka.wire.structs import Struct

if TYPE_CHECKING:
    from klamm.kafka.channel import Channel
    from klamm.kafka.listener import Listener
    from klamm.kafka.wire.frames import RequestHeader

__all__ = ["Session"]

_log = logging.getLogger("klamm.kafka")


class Session:
    """Of one channel."""

    __slots__ = ("_channel", "_copied", "_listener", "_waits", "call", "dialled", "peer_host", "peer_port")

    def __init__(self, channel: Channel, listener: Listener, peer: tuple[str, int], dialled: tuple[str, int]) -> None:
        self._channel = channel
        self._listener = listener
        self._copied = 0  # bytes of the budget, for the call
        self._waits: asyncio.Future[Any] | None = None  # what its handler waits for, as long as the client is there
        self.call: Call | None = None
        """The request that is being handled."""
        self.peer_host, self.peer_port = peer
        self.dialled = dialled
        """The address of the server that the client connected to."""

    def __repr__(self) -> str:
        return f"{self.peer_host}:{self.peer_port}"

    @property
    def is_closed(self) -> bool:
        return self._channel.is_closed

    def close(self) -> None:
        """The connection is closed."""
        self._release_copies()
        if self._waits is not None:
            self._waits.cancel()

    def disconnect(self, why: str) -> None:
        """Close the connection; log `why`."""
        self._channel.close(why)

    # ---- in

    def handle(self, frame: memoryview) -> None:
        """Handle one request. MalformedMessage: it is none."""
        listener = self._listener
        if listener.is_closing:
            self._channel.close()
            return
        admission = listener.admission
        try:
            header, row = admission.look_up(frame)
        except UnsupportedVersion as error:
            self._reject_version(error)
            return
        request = admission.decode_now(header, row, frame)
        if request is None:
            self.call = Call(self, row, header, header.api.request(), self._channel.active)
            listener.broker.tasks.spawn(self._run_decoded(self.call, header, self.copy(frame)))
        elif admission.needs_catalog(row, header.version, request):
            request = admission.decode(header, row, self.copy(frame))
            self.call = Call(self, row, header, request, self._channel.active)
            listener.broker.tasks.spawn(self._run_after_refresh(self.call))
        else:
            self.call = Call(self, row, header, request, self._channel.active)
            self._run(self.call)

    def _reject_version(self, error: UnsupportedVersion) -> None:
        """ApiVersions of an unknown version gets the list of versions; clients know other APIs from that list."""
        if error.key == API_VERSIONS.key:
            response = self._listener.admission.supported_versions()
            self._channel.send(response_frame(API_VERSIONS, 0, error.correlation_id, response), SMALL)
        else:
            self._channel.close(f"connection closed: {error.message}")

    def _run(self, call: Call) -> None:
        """Run the handler; most do not have to wait, and need no task."""
        self._go_on(call, call.row.handler(self._listener.broker, call))

    def _go_on(self, call: Call, work: Coroutine[Any, Any, Struct | None], is_later: bool = False) -> None:
        """Run the handler until it waits, or to its end. `is_later`: it has waited before."""
        try:
            try:
                waits_for = work.send(None)
            except StopIteration as end:
                if not is_later:
                    self._respond(call, end.value)
                elif not self.is_closed:
                    self._respond(call, end.value)
                    self._channel.go_on()
                return
        except Exception:  # noqa: BLE001  # logged, and the connection closed: other clients are not affected
            self._fail(call)
            return
        if isinstance(waits_for, Pause):
            waits_for.then = partial(self._go_on, call, work, True)
        else:
            self._listener.broker.tasks.spawn(self._run_to_end(call, Begun(work, waits_for)))

    async def _run_decoded(self, call: Call, header: RequestHeader, frame: memoryview) -> None:
        """A thread decodes a request of many elements: on the loop, other clients would wait for that."""
        admission, broker = self._listener.admission, self._listener.broker
        try:
            call.request = await broker.codec(admission.decode, header, call.row, frame)
            if admission.needs_catalog(call.row, call.version, call.request):
                await broker.topics.refresh()
        except MalformedMessage as error:
            self._channel.reject(error)
            return
        except Exception:  # noqa: BLE001  # as in `_run`
            self._fail(call)
            return
        if not self.is_closed:
            self._run(call)
            self._channel.go_on()

    async def _run_after_refresh(self, call: Call) -> None:
        """The catalog has changed: read it, then handle the request."""
        try:
            await self._listener.broker.topics.refresh()
        except Exception:  # noqa: BLE001  # as in `_run`
            self._fail(call)
            return
        self._run(call)
        self._channel.go_on()

    async def _run_to_end(self, call: Call, work: Begun[Struct | None]) -> None:
        try:
            response = await work
            if not self.is_closed:
                self._respond(call, response)
                self._channel.go_on()
        except Exception:  # noqa: BLE001  # as in `_run`
            self._fail(call)

    # ---- for calls

    def copy(self, view: memoryview) -> memoryview:
        """See Call."""
        moved = self._channel.reader.hand_over(len(view))
        self._listener.budget.charge(len(view) - moved)
        self._copied += len(view)
        return memoryview(bytearray(view))

    def wait(self) -> asyncio.Future[Any]:
        """Return a future that is cancelled when the client disconnects."""
        self._waits = self._listener.broker.loop.create_future()
        if self.is_closed:
            self._waits.cancel()
        return self._waits

    def _fail(self, call: Call) -> None:
        """Log the exception that is being handled, and close the connection."""
        self._listener.metrics.failed += 1
        _log.exception("%r: %s v%d failed; the connection is closed", self, call.api.name, call.version)
        self.call = None
        self._channel.close()

    # ---- out

    def _respond(self, call: Call, response: Struct | None) -> None:
        self.call = self._waits = None
        if self._copied:
            self._release_copies()
        metrics = self._listener.metrics
        metrics.observe(call.api.name, self._listener.now() - call.started)
        if response is not None:
            for code in errors_in(call.api, response):
                metrics.error(call.api.name, code)
            max_bytes = min(call.row.max_response_bytes, self._listener.max_response)
            self._channel.send(response_frame(call.api, call.version, call.correlation_id, response), max_bytes)

    def _release_copies(self) -> None:
        copied, self._copied = self._copied, 0
        self._listener.budget.give_back(None, copied)
