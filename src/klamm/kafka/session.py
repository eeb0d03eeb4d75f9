"""One client: its address, the request that is being handled, and what is allowed to it.

A session has no socket. It gets whole requests from its channel, lets admission check them, runs their handlers, and
gives responses to the channel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from klamm.kafka.call import SMALL, Call, Pause, ResponseTooLarge
from klamm.kafka.large_requests import LARGE_FRAME, LARGE_RESPONSE, Turn
from klamm.kafka.request_meter import RequestMeter, throttle_ms
from klamm.kafka.response_errors import codes_in
from klamm.kafka.security.login import Login
from klamm.kafka.tasks import Begun
from klamm.kafka.wire.errors import MalformedMessage, UnsupportedVersion
from klamm.kafka.wire.frames import framed_response, joined, response_frame
from klamm.kafka.wire.messages import API_VERSIONS, PRODUCE
from klamm.kafka.wire.structs import Struct
from klamm.log.head import Reply

if TYPE_CHECKING:
    from klamm.kafka.api_error import ApiError
    from klamm.kafka.call import SupportedApi
    from klamm.kafka.channel import Channel
    from klamm.kafka.listener import Listener
    from klamm.kafka.security.login import LoginFailed
    from klamm.kafka.wire.codec import Api
    from klamm.kafka.wire.frames import RequestHeader
    from klamm.store.acl import Operation, ResourceType

__all__ = ["ANONYMOUS", "Session"]

ANONYMOUS = "User:ANONYMOUS"
"""A client of a listener without authentication."""


class Session:
    """The client of one channel."""

    __slots__ = (
        "_channel",
        "_copied",
        "_listener",
        "_meter",
        "_waits",
        "call",
        "certificate_user",
        "endpoint",
        "local_address",
        "login",
        "peer_host",
        "peer_port",
        "reply",
    )  # fmt: skip

    def __init__(
        self, channel: Channel, listener: Listener, peer: tuple[str, int], local_address: tuple[str, int]
    ) -> None:
        self._channel = channel
        self._listener = listener
        self._copied = 0  # bytes of the budget, for the call
        self._meter: RequestMeter | None = None
        self._waits: asyncio.Future[Any] | None = None  # what its handler waits for, as long as the client is there
        self.call: object | None = None
        """The request that is being handled: a Call, or what an ordinary handler waits with."""
        self.reply: Reply | None = None
        """The response to it, if the thread that syncs may send it."""
        self.peer_host, self.peer_port = peer
        self.local_address = local_address
        """The address of the server that the client connected to."""
        self.endpoint = endpoint = channel.endpoint
        self.certificate_user = ""
        """Whom the certificate of the client stands for."""
        self.login: Login | None = None
        """Of a client that has to log in."""
        if endpoint.uses_sasl:
            self.login = Login(listener.broker, channel.close)
            channel.reader.max_request = listener.broker.settings.sasl_server_max_receive_size

    def __repr__(self) -> str:
        return f"{self.peer_host}:{self.peer_port}"

    @property
    def is_closed(self) -> bool:
        return self._channel.is_closed

    def close(self) -> None:
        """Close the session with its connection."""
        if self.login is not None:
            failure = self.login.give_up()
            if failure is not None:
                self.login_failed(failure)
            self.login.close()
        self._release_copies()
        if self.reply is not None:
            self._listener.broker.sync_queue.withdraw(self.reply)
        if self._waits is not None:
            self._waits.cancel()

    def disconnect(self, why: str) -> None:
        """Close the connection; log `why`."""
        self._channel.close(why)

    # ---- in

    def handle(self, frame: memoryview) -> None:
        """Handle one request. Raise MalformedMessage if the bytes are not one."""
        listener = self._listener
        if listener.is_closing:
            self._channel.close()
            return
        if self.login is not None and not self.login.permits(frame):
            return
        if listener.request_log is not None:
            listener.request_log.add(self, frame)
        admission = listener.admission
        done: tuple[Any, ...] = ()
        ordinary = admission.ordinary(self, frame)
        if ordinary is not None:
            try:
                rest = ordinary(listener.broker, self, frame)
            except Exception:  # noqa: BLE001  # as in `_go_on`
                self.fail("an ordinary request")
                return
            if rest is None:
                return
            done = rest
        try:
            header, row = admission.look_up(frame)
        except UnsupportedVersion as error:
            self._reject_version(error)
            return
        if len(frame) > LARGE_FRAME and header.api is not PRODUCE:
            self._wait_for_turn(row, header, frame)
            return
        request = admission.decode_now(header, row, frame)
        if request is None:
            self.call = call = Call(self, row, header, header.api.request(), self._channel.active, done)
            self._spawn(call, self._run_decoded(call, header, self.copy(frame)))
        elif admission.needs_catalog(row, header.version, request):
            request = admission.decode(header, row, self.copy(frame))
            self.call = call = Call(self, row, header, request, self._channel.active, done)
            self._spawn(call, self._run_after_refresh(call))
        elif self._is_large(row, header.version, request):
            self._wait_for_turn(row, header, frame)
        else:
            self.call = call = Call(self, row, header, request, self._channel.active, done)
            self._run(call)

    def debt(self, frame: memoryview) -> float:
        """Return how many seconds a request has to wait before it is handled, while there are quotas."""
        if self._meter is None:
            self._meter = RequestMeter(self._listener.broker)
        return self._meter.debt(self, frame) if self._is_known else 0.0

    def handle_metered(self, frame: memoryview) -> None:
        """Like `handle`, while there are quotas; after `debt`."""
        assert self._meter is not None
        self._meter.begin(len(frame))
        try:
            self.handle(frame)
        finally:
            self._meter.stop()

    def charge(self, api: Api, client_id: str, sent: int = 0) -> float:
        """Return how many seconds the client has to wait after the response of `sent` bytes (quotas.py)."""
        if self._meter is None or not self._is_known:
            return 0.0
        return self._meter.charge(self, api, client_id, sent)

    def _is_large(self, row: SupportedApi, version: int, request: Struct) -> bool:
        """Return whether the response is large: see large_requests.py."""
        return row.cost is not None and row.cost(self._listener.broker, version, request) > LARGE_RESPONSE

    def _wait_for_turn(self, row: SupportedApi, header: RequestHeader, frame: memoryview) -> None:
        """Handle a request that takes long in its turn: see large_requests.py."""
        self.call = call = Call(self, row, header, header.api.request(), self._channel.active)
        call.is_large = True
        turn = partial(self._handle_large, call, header, self.copy(frame))
        self._listener.broker.large_requests.run(turn)

    def _handle_large(self, call: Call, header: RequestHeader, frame: memoryview) -> None:
        if self.is_closed:
            return
        listener = self._listener
        try:
            request = listener.admission.decode_now(header, call.row, frame)
        except MalformedMessage as error:
            self._channel.reject(error)
            return
        except Exception:  # noqa: BLE001  # as in `_go_on`
            self.fail(call)
            return
        if request is None:
            self._spawn(call, self._run_decoded(call, header, frame))
            return
        call.request = request
        if listener.admission.needs_catalog(call.row, call.version, request):
            self._spawn(call, self._run_after_refresh(call))
        else:
            self._run_in_turn(call)

    def _run_in_turn(self, call: Call) -> None:
        if not self.is_closed:
            self._run(call)
            self._channel.go_on()

    def _reject_version(self, error: UnsupportedVersion) -> None:
        """Reject an unknown version. ApiVersions gets the list of versions; clients know other APIs from that list."""
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
                else:
                    self._respond_later(call, end.value)
                return
        except Exception as error:  # noqa: BLE001  # logged, and the connection closed: other clients are not affected
            self._failed(call, error)
            return
        except asyncio.CancelledError:
            self._cancelled(call)
            return
        if isinstance(waits_for, Pause):
            waits_for.then = partial(self._go_on, call, work, True)
        else:
            self._spawn(call, self._run_to_end(call, Begun(work, waits_for)))

    def _spawn(self, call: Call, work: Coroutine[Any, Any, None]) -> None:
        self._listener.broker.tasks.spawn(self._run_task(call, work))

    async def _run_task(self, call: Call, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except asyncio.CancelledError:
            self._cancelled(call)
            raise

    def _cancelled(self, call: Call) -> None:
        """Close the connection of a client that is still there, and would wait forever."""
        if not self.is_closed:
            self.fail(call)

    async def _run_decoded(self, call: Call, header: RequestHeader, frame: memoryview) -> None:
        """Decode a request of many elements in a thread: on the loop, other clients would wait for that."""
        call.is_large = True
        admission, broker = self._listener.admission, self._listener.broker
        try:
            call.request = await broker.pools.decode(
                admission.decode, header, call.row, frame, broker.settings.request_max_elements
            )
            if admission.needs_catalog(call.row, call.version, call.request):
                await broker.topics.refresh()
        except MalformedMessage as error:
            self._channel.reject(error)
            return
        except Exception:  # noqa: BLE001  # as in `_run`
            self.fail(call)
            return
        broker.large_requests.run(partial(self._run_in_turn, call))

    async def _run_after_refresh(self, call: Call) -> None:
        """Read the catalog, which has changed, then handle the request."""
        try:
            await self._listener.broker.topics.refresh()
        except Exception:  # noqa: BLE001  # as in `_run`
            self.fail(call)
            return
        if self._is_large(call.row, call.version, call.request):
            call.is_large = True
            self._listener.broker.large_requests.run(partial(self._run_in_turn, call))
        else:
            self._run_in_turn(call)

    async def _run_to_end(self, call: Call, work: Begun[Struct | None]) -> None:
        try:
            self._respond_later(call, await work)
        except Exception as error:  # noqa: BLE001  # as in `_go_on`
            self._failed(call, error)

    def _failed(self, call: Call, error: Exception) -> None:
        if isinstance(error, ResponseTooLarge):
            self.call = None
            self._channel.close(f"connection closed: {error}")
        else:
            self.fail(call)

    # ---- who it is

    @property
    def principal(self) -> str:
        """The client, in the words of Kafka's ACLs."""
        user = self.login.user if self.login is not None else self.certificate_user
        return f"User:{user}" if user else ANONYMOUS

    @property
    def _is_known(self) -> bool:
        """Whether quotas count for it: not before its login, for all who log in would share them."""
        return self.login is None or self.login.is_logged_in

    @property
    def is_guarded(self) -> bool:
        """Whether ACLs say what the client may do; else it may do everything."""
        return self._listener.broker.authorizer is not None

    def may(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Return whether the client may do that, without a word: for what is left out of a response."""
        authorizer = self._listener.broker.authorizer
        return authorizer is None or authorizer.allows(self.principal, self.peer_host, operation, kind, name)

    def may_some(self, operation: Operation, kind: ResourceType) -> bool:
        """Return whether the client may do that with some resource of that type."""
        authorizer = self._listener.broker.authorizer
        return authorizer is None or authorizer.allows_some(self.principal, self.peer_host, operation, kind)

    def deny(self, api: str, operation: Operation, kind: ResourceType, name: str) -> ApiError:
        """Count and log that the client may not do that; return what it is told."""
        broker = self._listener.broker
        authorizer = broker.authorizer
        assert authorizer is not None
        broker.audit.denied(self, api, operation.name, kind.name, name)
        return authorizer.deny(self.principal, self.peer_host, api, operation, kind, name)

    def certified(self, user: str) -> None:
        """Record that the TLS handshake is done; `user`: the one that the client's certificate stands for, if any."""
        self.certificate_user = user
        if user:
            self._listener.broker.audit.authenticated(self, "TLS", user)

    def log_event(self, what: str) -> None:
        """Write one line about this client to the log."""
        self._listener.log_connection_event(self._channel, what)

    def login_failed(self, failure: LoginFailed) -> None:
        """Record that the client has failed to log in."""
        self.log_event(failure.why)
        self._listener.broker.audit.authenticated(self, failure.mechanism, failure.user, failure.why)

    def logged_in(self) -> None:
        """Record that the client has logged in: it may send requests of any size."""
        self._channel.reader.max_request = self._listener.max_request

    # ---- for ordinary handlers

    @property
    def received_at(self) -> float:
        """When the request was read, on the loop's clock."""
        return self._channel.active

    def respond(self, api: str, started: float, response: list[Any] | None, wait_s: float = 0.0) -> None:
        """Send the parts of a response, if the client expects one. The request was handled without a Call. The client
        has to wait then, by its quotas.
        """
        self.call = None
        listener = self._listener
        listener.metrics.observe(api, listener.now() - started)
        if response is not None:
            self._channel.send(response, listener.max_response)
        if wait_s:
            self._channel.mute(wait_s)

    def respond_later(self, api: str, started: float, response: bytes, wait_s: float = 0.0) -> None:
        """Like `respond`, after the loop has done other things: the next request may be here already. What a thread has
        sent of the response is not sent again.
        """
        reply, self.reply = self.reply, None
        if self.is_closed:
            return
        sent = 0 if reply is None else reply.sent
        self._channel.sent(sent)
        if reply is not None and sent == len(response):
            self.call = None
            self._listener.metrics.observe(api, reply.ended - started)
        else:
            self.respond(api, started, [response[sent:]], wait_s)
        self._channel.go_on()

    def resume(self, api: str, started: float, response: list[Any]) -> None:
        """Like `respond`, after the loop has done other things: the next request may be here already."""
        if not self.is_closed:
            self.respond(api, started, response)
            self._channel.go_on()

    def make_reply(self, response: bytes) -> Reply | None:
        """Return the response as one that a thread may send, if it may."""
        fd = self._channel.fd
        if fd >= 0:
            self.reply = Reply(fd, response)
        return self.reply

    def want_reply(self) -> None:
        """Ask for the reply's result, because the client sends more: it may have the response already."""
        assert self.reply is not None
        self._listener.broker.sync_queue.want(self.reply)

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

    def fail(self, what: object) -> None:
        """Log the exception that is being handled, and close the connection."""
        self._listener.metrics.failed += 1
        self._listener.failures.exception("%r: %s failed; the connection is closed", self, what)
        self.call = None
        self._channel.close()

    # ---- out

    def max_response(self, call: Call) -> int:
        """Return how many bytes a response may take."""
        return min(call.row.max_response_bytes, self._listener.max_response)

    def _respond(self, call: Call, response: Struct | None) -> None:
        if call.is_large and response is not None:
            self._spawn(call, self._respond_in_turns(call, response))
            return
        metrics, frame = self._listener.metrics, None
        if response is not None:
            for code in codes_in(call.api, response):
                if code:
                    metrics.error(call.api.name, int(code))
            frame = response_frame(call.api, call.version, call.correlation_id, response)
        wait_s = self._charge(call, frame or []) if self._listener.broker.quotas.is_active else 0.0
        if response is not None and wait_s and hasattr(response, "throttle_time_ms"):
            response.throttle_time_ms = throttle_ms(wait_s)
            frame = response_frame(call.api, call.version, call.correlation_id, response)
        self._audit(call, response)
        self._send(call, frame, wait_s)

    async def _respond_in_turns(self, call: Call, response: Struct) -> None:
        """Like `_respond`, for a response that takes milliseconds: others have the loop in between."""
        broker, metrics = self._listener.broker, self._listener.metrics
        try:
            await self._audit_in_turns(call, response)
            turn = broker.large_requests.turn(call)
            for code in codes_in(call.api, response):
                if code:
                    metrics.error(call.api.name, int(code))
                if turn.is_over:
                    await turn.next()
            frame = await self._encode(call, response, turn)
            wait_s = self._charge(call, frame) if broker.quotas.is_active else 0.0
            if wait_s and hasattr(response, "throttle_time_ms"):
                response.throttle_time_ms = throttle_ms(wait_s)
                frame = await self._encode(call, response, turn)
        except asyncio.CancelledError:  # the client is gone, or the server stops
            if broker.quotas.is_active:
                self._charge(call, [])
            raise
        except Exception as error:  # noqa: BLE001  # as in `_go_on`
            self._failed(call, error)
            return
        self._send(call, frame, wait_s)
        self._channel.go_on()

    async def _encode(self, call: Call, response: Struct, turn: Turn) -> list[Any]:
        """Encode the response. Raise ResponseTooLarge as soon as it is."""
        limit, size, parts = self.max_response(call), 0, list[Any]()
        for encoded in call.api.response.encode_in_steps(response, call.version):
            if turn.is_over:
                pieces = joined(encoded)
                encoded.clear()
                parts += pieces
                size += sum(len(piece) for piece in pieces if type(piece) is bytes)
                if size > limit:
                    raise ResponseTooLarge(limit)
                await turn.next()
        return framed_response(call.api, call.version, call.correlation_id, parts + joined(encoded))

    def _send(self, call: Call, frame: list[Any] | None, wait_s: float) -> None:
        self.call = self._waits = None
        if self._copied:
            self._release_copies()
        self._listener.metrics.observe(call.api.name, self._listener.now() - call.started)
        if frame is not None:
            self._channel.send(frame, self.max_response(call))
        if wait_s:
            self._channel.mute(wait_s)

    def _respond_later(self, call: Call, response: Struct | None) -> None:
        """Like `_respond`, after the loop has done other things. What was done for a client that is gone counts."""
        if not self.is_closed:
            self._respond(call, response)
            self._channel.go_on()
        else:
            self._complete_without_client(call, response)

    def _complete_without_client(self, call: Call, response: Struct | None) -> None:
        """Record what was done for a client that is gone."""
        if response is not None and call.is_large:
            self._spawn(call, self._audit_in_turns(call, response))
        else:
            self._audit(call, response)
        if self._listener.broker.quotas.is_active:
            self._charge(call, [])

    def _audit(self, call: Call, response: Struct | None) -> None:
        """Record in the audit log what a request has changed."""
        audit = self._listener.broker.audit
        if response is not None and audit.is_active:
            for _ in audit.responded(call, response):
                pass

    async def _audit_in_turns(self, call: Call, response: Struct) -> None:
        """Like `_audit`, for a response that takes milliseconds, also of a client that is gone."""
        broker = self._listener.broker
        if broker.audit.is_active:
            turn = broker.large_requests.turn(call, to_the_end=True)
            changes = broker.audit.responded(call, response)
            try:
                for _ in changes:
                    if turn.is_over:
                        await turn.next()
            except asyncio.CancelledError:  # the server stops
                for _ in changes:
                    pass
                raise

    def _charge(self, call: Call, frame: list[Any]) -> float:
        return max(call.wait_s, self.charge(call.api, call.client_id or "", sum(map(len, frame))))

    def _release_copies(self) -> None:
        copied, self._copied = self._copied, 0
        self._listener.budget.give_back(None, copied)
