"""Access to /metrics, /status and /connections: the HTTP port has the security of a listener.

It is that of the strictest one, or what `metrics.security.protocol` says.

    SSL, SASL_SSL    HTTPS, with the certificate of the server; SSL with ssl.client.auth: a client brings its own
    SASL_…           a user of the store, by Basic; with OAUTHBEARER among the mechanisms, a token by Bearer
    an authorizer    the client has to have DESCRIBE on the cluster, for what is shown names topics and groups

/healthz is for everyone who connects: it says ready or not. The console that this server starts has a token of its own,
which is as good as a user's from this machine.

Promise
  MON2  A client that a listener of that protocol would not let in reads nothing but /healthz, waits as long for its
        answer, and is counted, logged and recorded as one of that listener is.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import secrets
import socket
import ssl
import time
from collections.abc import Callable
from concurrent.futures import TimeoutError as TooLate
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from klamm.errors import KlammError
from klamm.kafka.addresses import is_loopback
from klamm.kafka.security.certificates import Certificates
from klamm.kafka.security.decoys import ANY, Decoys
from klamm.kafka.security.principals import distinguished_name
from klamm.kafka.security.scram import BadExchange
from klamm.store.acl import CLUSTER_NAME, Operation, ResourceType

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from klamm.kafka.broker import Broker
    from klamm.kafka.settings import ServerSettings

__all__ = ["Access", "DeniedResponse", "Request"]

_T = TypeVar("_T")
_LOOP_S = 5.0  # how long the loop may take
_RELOAD_S = 1.0


class Request(NamedTuple):
    """A client, as far as it is known."""

    connection: socket.socket
    host: str
    port: int
    authorization: str
    """The header."""


class DeniedResponse(NamedTuple):
    """The response to a client that is not let in."""

    status: int
    why: str
    asks: str = ""
    """The header WWW-Authenticate."""


class _Client(NamedTuple):
    """As audit.py and authorizer.py want it."""

    peer_host: str
    peer_port: int
    local_address: tuple[str, int]
    principal: str = ""


class _Login(NamedTuple):
    mechanism: str
    user: str


_NOBODY = _Login("", "")


class Access:
    """The access to one HTTP port. Thread-safe."""

    def __init__(self, settings: ServerSettings, protocol: str) -> None:
        """Raise InvalidSetting if there is no certificate that a protocol with TLS needs."""
        self._settings = settings
        self._protocol = protocol
        self._certificates = Certificates(settings) if protocol.endswith("SSL") else None
        self._looked_at = time.monotonic()
        self._decoys: Decoys | None = None
        self.token = secrets.token_urlsafe(32)
        """Of the console that the server starts."""
        self.broker: Broker | None = None
        """Until it is there, no one is let in."""

    # ---- connections

    def wrap(self, connection: socket.socket) -> socket.socket:
        """Return what stands for the connection, before a handshake (see `begin`) if the port has TLS."""
        if self._certificates is None:
            return connection
        if time.monotonic() - self._looked_at > _RELOAD_S:
            self._looked_at = time.monotonic()
            self._certificates.reload_if_changed()
        context = self._certificates.context(self._protocol)
        return context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)

    def begin(self, connection: socket.socket) -> None:
        """Do the handshake. Raise OSError if it fails."""
        if isinstance(connection, ssl.SSLSocket):
            outcome = "failure"
            try:
                connection.do_handshake()
                outcome = "success"
            finally:
                self._count(lambda broker: broker.metrics.tls_handshake(outcome))

    # ---- requests

    def check(self, request: Request) -> DeniedResponse | None:
        """Return why a client may not read; None if it may."""
        broker = self.broker
        if broker is None:
            return DeniedResponse(503, "starting")
        if is_loopback(request.host) and self._has_own_token(request.authorization):
            return None
        host, port = request.connection.getsockname()[:2]
        client = _Client(request.host, request.port, (host, port))
        try:
            login = self._log_in(broker, request) if self._protocol.startswith("SASL_") else self._certified(request)
        except _Wrong as wrong:
            if wrong.mechanism:
                self._failed(broker, client, wrong)
            asks = self._asks()
            return DeniedResponse(401 if asks else 403, "credentials are missing or invalid", asks)
        client = client._replace(principal=f"User:{login.user or 'ANONYMOUS'}")
        if login.user:
            self._count(lambda broker: _record_login(broker, client, login))
        try:
            is_allowed = self._on_loop(broker, _may_describe(broker, client))
        except (KlammError, TooLate):
            return DeniedResponse(503, "the server does not answer")
        return None if is_allowed else DeniedResponse(403, f"{client.principal} is not allowed DESCRIBE on CLUSTER")

    def _has_own_token(self, authorization: str) -> bool:
        return hmac.compare_digest(authorization.encode("utf-8", "replace"), f"Bearer {self.token}".encode())

    @property
    def scheme(self) -> str:
        """Return how URLs of the port begin."""
        return "http" if self._certificates is None else "https"

    def _asks(self) -> str:
        if not self._protocol.startswith("SASL_"):
            return ""
        is_token = self._settings.sasl_enabled_mechanisms.strip() == "OAUTHBEARER"
        return 'Bearer realm="klamm"' if is_token else 'Basic realm="klamm", charset="UTF-8"'

    def _certified(self, request: Request) -> _Login:
        """Return the user that the certificate of the client stands for; none if it has none."""
        if not isinstance(request.connection, ssl.SSLSocket) or self._certificates is None:
            return _NOBODY
        certificate = request.connection.getpeercert(binary_form=True)
        fields = request.connection.getpeercert()
        if not certificate or not fields:
            return _NOBODY
        user = self._certificates.rules.apply(distinguished_name(certificate))
        if not user or ssl.cert_time_to_seconds(str(fields["notAfter"])) <= time.time():
            raise _Wrong("TLS", "", "its certificate has expired, or no rule of ssl.principal.mapping.rules fits it")
        return _Login("TLS", user)

    def _log_in(self, broker: Broker, request: Request) -> _Login:
        """Return the user. Raise _Wrong."""
        scheme, _, given = request.authorization.partition(" ")
        if scheme.lower() == "bearer" and broker.tokens is not None:
            try:
                return _Login("OAUTHBEARER", broker.tokens.verify(given.strip()).user)
            except BadExchange as error:
                raise _Wrong("OAUTHBEARER", "", str(error)) from None
        if scheme.lower() != "basic" or set(broker.mechanisms) == {"OAUTHBEARER"}:
            raise _Wrong("", "", "")
        try:
            user, colon, password = base64.b64decode(given.strip(), validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            raise _Wrong("PLAIN", "", "the header Authorization cannot be read") from None
        decoys = self._decoys = self._decoys or Decoys(broker.users)
        try:
            credentials = decoys.find(user)
        except KlammError as error:  # damaged: it lets no one in
            raise _Wrong("PLAIN", user, str(error)) from None
        credential = credentials.get("SCRAM-SHA-512") or credentials.get("SCRAM-SHA-256")
        fits = (credential or decoys.decoy(user, ANY)).fits(password)
        if credential is None or not fits or not colon:
            raise _Wrong("PLAIN", user, f"wrong password of {user[:100]!r}, or no such user")
        return _Login("PLAIN", user)

    def _failed(self, broker: Broker, client: _Client, wrong: _Wrong) -> None:
        why = f"login by {wrong.mechanism} at the metrics port failed: {wrong.why}"

        def record(broker: Broker) -> None:
            broker.metrics.login(wrong.mechanism, "failure")
            broker.monitor_log.warning("%s:%s: %s", client.peer_host, client.peer_port, why)
            broker.audit.authenticated(client, wrong.mechanism, wrong.user, why)

        self._count(record)
        time.sleep(self._settings.connection_failed_authentication_delay_ms / 1000)

    # ---- the loop

    def _count(self, record: Callable[[Broker], None]) -> None:
        """Have the loop, which alone writes metrics, record something."""
        broker = self.broker
        if broker is not None:
            try:
                broker.loop.call_soon_threadsafe(record, broker)
            except RuntimeError:
                pass  # the loop has ended

    @staticmethod
    def _on_loop(broker: Broker, work: Coroutine[Any, Any, _T]) -> _T:
        try:
            return asyncio.run_coroutine_threadsafe(work, broker.loop).result(_LOOP_S)
        except RuntimeError:
            work.close()
            raise TooLate from None


class _Wrong(Exception):
    """The credentials are not right, or there are none (`mechanism` is empty)."""

    def __init__(self, mechanism: str, user: str, why: str) -> None:
        super().__init__(why)
        self.mechanism = mechanism
        self.user = user
        self.why = why


def _record_login(broker: Broker, client: _Client, login: _Login) -> None:
    """Record that a client has shown who it is. On the loop."""
    if login.mechanism != "TLS":  # of which the handshake counts
        broker.metrics.login(login.mechanism, "success")
    broker.audit.authenticated(client, login.mechanism, login.user)


async def _may_describe(broker: Broker, client: _Client) -> bool:
    """Return whether a client may read what names topics and groups. On the loop."""
    authorizer = broker.authorizer
    if authorizer is None:
        return True
    await broker.topics.refresh()
    right = Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME
    if authorizer.allows(client.principal, client.peer_host, *right):
        return True
    broker.audit.denied(client, "metrics", Operation.DESCRIBE.name, ResourceType.CLUSTER.name, CLUSTER_NAME)
    authorizer.deny(client.principal, client.peer_host, "metrics", *right)
    return False
