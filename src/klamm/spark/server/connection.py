"""One connection to a server: it says which versions it knows, the client logs in, then it sends requests.

A request may be sent before the one before is answered. A server answers in the order of the requests.

ConnectionLost is for the caller to try again, on another connection; nothing is known then of the request that was
under way. What will not get better by itself (a wrong password, a certificate of a stranger) is a StoreError.
"""

from __future__ import annotations

import itertools
import socket
import ssl
import time
from importlib.metadata import version as version_of
from typing import Any

from klamm.errors import StoreError, Unsupported
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.wire import Api, MalformedMessage, Struct
from klamm.kafka.wire.frames import SIZE_BYTES, frame_size, read_response, request_frame
from klamm.kafka.wire.messages import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from klamm.spark.server.address import ServerAddress, spelled
from klamm.spark.server.scram import BadServer, ScramClient, plain

__all__ = ["Connection", "ConnectionLost"]

CLIENT_ID = "klamm-spark"
_CONNECT_TIMEOUT_S = 10.0
_RESPONSE_TIMEOUT_S = 40.0  # longer than a server takes for a request that it answers with a timeout
_MAX_FRAME = (1 << 31) - 1
_PARTS_AT_ONCE = 512  # less than IOV_MAX
_LIFETIME = 0.8  # of a login, after which another connection is used

_LOGIN_HINT = "check security.protocol, sasl.mechanism, sasl.username and sasl.password"


class ConnectionLost(Exception):
    """The server does not answer, or has closed the connection."""


class Connection:
    """A connection, for one thread at a time. Raises StoreError for a login that fails."""

    def __init__(self, address: ServerAddress, host: str, port: int) -> None:
        self.name = spelled(host, port)
        self._numbers = itertools.count(1)
        self._unanswered: dict[int, tuple[Api, int]] = {}
        """By number, in the order in which they were sent: API and version."""
        self._responses: dict[int, Struct] = {}
        """By number: received, and not taken yet."""
        self._ends_s: float | None = None
        """When the login ends; of a clock that only grows."""
        self._socket = self._connect(address, host, port)
        try:
            self._versions = self._ask_versions()
            if address.uses_sasl:
                self._log_in(address)
        except BaseException:
            self.close()
            raise

    @property
    def is_due(self) -> bool:
        """Whether the login ends soon: use another connection."""
        return self._ends_s is not None and time.monotonic() > self._ends_s

    def close(self) -> None:
        self._socket.close()

    def version(self, api: Api, at_most: int | None = None) -> int | None:
        """Return the newest version that both know, but none above `at_most`; None: there is none."""
        lowest, highest = self._versions.get(api.key, (0, -1))
        newest = min(highest, api.max_version if at_most is None else at_most)
        return newest if newest >= max(lowest, api.min_version) else None

    def ask(self, api: Api, request: Struct, *, at_least: int = 0, at_most: int | None = None) -> Struct:
        """Send a request in the newest version that both know, and return the response.

        Raise Unsupported, without sending anything, if that is older than `at_least`.
        """
        return self.receive(self.send(api, request, at_least=at_least, at_most=at_most))

    def send(self, api: Api, request: Struct, *, at_least: int = 0, at_most: int | None = None) -> int:
        """Send a request, and return its number, for `receive`. Raise Unsupported as `ask` does."""
        version = self.version(api, at_most)
        if version is None or version < at_least:
            raise Unsupported(f"{self.name}: the server has no {api.name}, version {at_least} or newer")
        return self._send(api, version, request)

    def receive(self, number: int) -> Struct:
        """Return the response to request `number`. Call it once for each."""
        while number not in self._responses:
            self._receive_next()
        return self._responses.pop(number)

    def _ask(self, api: Api, version: int, request: Struct) -> Struct:
        return self.receive(self._send(api, version, request))

    def _send(self, api: Api, version: int, request: Struct) -> int:
        number = next(self._numbers)
        try:
            self._write(request_frame(api, version, number, CLIENT_ID, request))
        except OSError as error:
            raise self._lost(error) from None
        self._unanswered[number] = api, version
        return number

    def _receive_next(self) -> None:
        if not self._unanswered:
            raise ConnectionLost(f"{self.name}: the connection was closed")
        number, (api, version) = next(iter(self._unanswered.items()))
        try:
            answered, response = read_response(api, version, self._read_frame())
        except OSError as error:
            raise self._lost(error) from None
        except MalformedMessage as error:
            self.close()
            raise StoreError(f"{self.name}: the response is malformed: {error.message}") from None
        if answered != number:
            self.close()
            raise StoreError(f"{self.name}: request {number} was answered as {answered}")
        del self._unanswered[number]
        self._responses[number] = response

    def _lost(self, error: OSError) -> ConnectionLost:
        self.close()
        return ConnectionLost(f"{self.name}: {error.strerror or error}")

    # ---- bytes

    def _connect(self, address: ServerAddress, host: str, port: int) -> socket.socket:
        context = address.tls() if address.uses_tls else None
        try:
            connected = socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S)
        except OSError as error:
            raise ConnectionLost(f"{self.name}: {error.strerror or error}") from None
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context is not None:
                connected = context.wrap_socket(connected, server_hostname=host)
            connected.settimeout(_RESPONSE_TIMEOUT_S)
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionError, TimeoutError) as error:
            connected.close()
            raise ConnectionLost(f"{self.name}: the connection was closed in the TLS handshake: {error}") from None
        except OSError as error:
            connected.close()
            raise StoreError(
                f"{self.name}: the TLS handshake failed: {error}",
                hint="check security.protocol, ssl.ca.location, and that the certificate names the host",
            ) from None
        return connected

    def _write(self, parts: list[Any]) -> None:
        """Send all parts: records are not copied first, but for TLS."""
        if isinstance(self._socket, ssl.SSLSocket):
            self._socket.sendall(b"".join(parts))
            return
        views = [memoryview(part) for part in parts]
        while views:
            sent = self._socket.sendmsg(views[:_PARTS_AT_ONCE])
            while views and sent >= len(views[0]):
                sent -= len(views.pop(0))
            if views:
                views[0] = views[0][sent:]

    def _read_frame(self) -> memoryview:
        size = frame_size(self._read(SIZE_BYTES), limit=_MAX_FRAME)
        return self._read(size)

    def _read(self, size: int) -> memoryview:
        data = memoryview(bytearray(size))
        done = 0
        while done < size:
            count = self._socket.recv_into(data[done:])
            if not count:
                raise ConnectionResetError("the server has closed the connection")
            done += count
        return data

    # ---- what comes first

    def _ask_versions(self) -> dict[int, tuple[int, int]]:
        request = API_VERSIONS.request(client_software_name="klamm", client_software_version=version_of("klamm"))
        number = next(self._numbers)
        try:
            self._write(request_frame(API_VERSIONS, 3, number, CLIENT_ID, request))
            frame = self._read_frame()
        except ssl.SSLError as error:  # a server of TLS 1.3 says only now that it wants a certificate
            raise StoreError(
                f"{self.name}: TLS: {error.reason or error}",
                hint="check ssl.certificate.location and security.protocol",
            ) from None
        except (OSError, MalformedMessage) as error:
            raise ConnectionLost(
                f"{self.name}: {error} (the first request was not answered: check security.protocol)"
            ) from None
        try:
            response: Any = read_response(API_VERSIONS, 3, frame)[1]
        except MalformedMessage:  # answered in version 0: it does not know this one
            raise Unsupported(f"{self.name}: the server is older than Kafka 2.4") from None
        if response.error_code:
            raise Unsupported(f"{self.name}: ApiVersions: {ErrorCode(response.error_code).name}")
        return {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}

    def _log_in(self, address: ServerAddress) -> None:
        assert address.mechanism is not None
        greeting = self._ask(SASL_HANDSHAKE, 1, SASL_HANDSHAKE.request(mechanism=address.mechanism))
        if greeting.error_code:
            there = f"; it has {', '.join(greeting.mechanisms)}" if greeting.mechanisms else ""
            raise StoreError(
                f"{self.name}: sasl.mechanism {address.mechanism}: {ErrorCode(greeting.error_code).name}{there}",
                hint=_LOGIN_HINT,
            )
        began_s = time.monotonic()
        if address.mechanism == "PLAIN":
            response = self._authenticate(plain(address.user, address.password))
        else:
            exchange = ScramClient(address.mechanism, address.user, address.password)
            try:
                challenge = self._authenticate(exchange.first())
                response = self._authenticate(exchange.final(bytes(challenge.auth_bytes)))
                exchange.check(bytes(response.auth_bytes))
            except BadServer as error:
                raise StoreError(f"{self.name}: the login failed: {error}", hint=_LOGIN_HINT) from None
        if response.session_lifetime_ms > 0:
            self._ends_s = began_s + response.session_lifetime_ms / 1000 * _LIFETIME

    def _authenticate(self, message: bytes) -> Struct:
        version = self.version(SASL_AUTHENTICATE) or 0
        response = self._ask(SASL_AUTHENTICATE, version, SASL_AUTHENTICATE.request(auth_bytes=message))
        if response.error_code:
            what = response.error_message or ErrorCode(response.error_code).name
            raise StoreError(f"{self.name}: the login failed: {what}", hint=_LOGIN_HINT)
        return response
