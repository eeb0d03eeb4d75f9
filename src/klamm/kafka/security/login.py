"""The login of one connection of a SASL listener: what it may send before, and when it has to log in again (KIP-368).

                 SaslHandshake             SaslAuthenticate, …            after connections.max.reauth.ms
    new ───────────────────────► chosen ─────────────────────► logged in ────────────► expired
     │                              │ wrong                       │ ▲                     │
     └──► closed after              ▼                             └─┘ SaslHandshake,      ▼ closed with the next request
          connection.setup          failed: the response comes         SaslAuthenticate     that is not one of SASL
          .timeout.ms               late, then the connection is closed

Promises
  LOG1  Before a connection has logged in, nothing but ApiVersions, SaslHandshake and SaslAuthenticate is decoded, and
        no frame of more than sasl.server.max.receive.size bytes is read. A request of SASL is never larger.
  LOG2  A connection that has not logged in within connection.setup.timeout.ms is closed.
  LOG3  The response to a wrong password, to a user that does not exist and to a message that is not one of the
        mechanism is the same, and comes connection.failed.authentication.delay.ms late. What a user is challenged with
        that does not exist could be that of one that does (decoys.py).
  LOG4  A connection that logs in again stays the same principal, and does so by the same mechanism.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from klamm.errors import KlammError
from klamm.kafka.security.decoys import ANY
from klamm.kafka.security.oauth import INVALID_TOKEN, parse_bearer
from klamm.kafka.security.scram import BadExchange, ScramExchange, parse_plain

if TYPE_CHECKING:
    import asyncio

    from klamm.kafka.broker import Broker
    from klamm.store.scram import Credential

__all__ = ["LOGIN_KEYS", "Login", "LoginFailed"]

_API_VERSIONS, _SASL_HANDSHAKE, _SASL_AUTHENTICATE = 18, 17, 36
LOGIN_KEYS = frozenset({_API_VERSIONS, _SASL_HANDSHAKE, _SASL_AUTHENTICATE})
"""Of the APIs that a connection may use before it has logged in."""
_SASL_KEYS = LOGIN_KEYS - {_API_VERSIONS}
_LINGER_S = 1.0  # a client that has failed gets the response, and closes the connection itself; or this long


class LoginFailed(Exception):
    """The login did not succeed. `message` is what the client is sent; the log gets the reason, too."""

    def __init__(self, message: str, why: str, mechanism: str, user: str) -> None:
        super().__init__(message)
        self.message = message
        self.why = why
        self.mechanism = mechanism
        self.user = user
        """Who the client says it is, as far as that is known."""


class Login:
    """The login of one connection."""

    __slots__ = ("_broker", "_disconnect", "_exchange", "_expires", "_first_mechanism", "_is_failed", "_max_bytes",
                 "_mechanism", "_timer", "lifetime_ms", "user")  # fmt: skip

    def __init__(self, broker: Broker, disconnect: Callable[[str], None]) -> None:
        """Prepare a login. `disconnect` closes the connection, and logs why."""
        self._broker = broker
        self._disconnect = disconnect
        self._mechanism = ""
        self._first_mechanism = ""  # by which it has logged in
        self._exchange: ScramExchange | str | None = None  # str: why a token is not valid
        self._expires = 0.0  # on the loop's clock; 0: it has not logged in
        self._is_failed = False
        self._max_bytes = broker.settings.sasl_server_max_receive_size
        self.lifetime_ms = 0
        """How long the login is valid; 0: as long as the connection lasts."""
        self.user = ""
        limit_s = broker.settings.connection_setup_timeout_ms / 1000
        self._timer: asyncio.TimerHandle | None = broker.loop.call_later(limit_s, self._time_out)

    # ---- what may be sent

    def permits(self, frame: memoryview) -> bool:
        """Return whether the request may be handled now. If not, the connection is closed."""
        if self._expires:
            if self._broker.loop.time() < self._expires:
                return len(frame) <= self._max_bytes or self._may_be_large(frame)
            keys, why = _SASL_KEYS, "its login has expired (connections.max.reauth.ms)"
        else:
            keys, why = LOGIN_KEYS, "it has not logged in"
        key = int.from_bytes(frame[:2], "big") if len(frame) >= 2 else -1
        if key in keys and not self._is_failed:
            return True
        metrics = self._broker.metrics
        if self._is_failed:
            self._disconnect("")
        else:
            metrics.unauthenticated_requests += 1
            self._disconnect(f"connection closed: a request of API {key}, and {why}")
        return False

    def _may_be_large(self, frame: memoryview) -> bool:
        """Return whether a request may be larger than before the login: one of SASL may not."""
        if int.from_bytes(frame[:2], "big") not in _SASL_KEYS:
            return True
        self._disconnect(f"connection closed: a request of SASL of {len(frame)} bytes (sasl.server.max.receive.size)")
        return False

    @property
    def is_logged_in(self) -> bool:
        return bool(self._expires)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_out(self) -> None:
        self._broker.metrics.login_timeouts += 1
        self._disconnect("connection closed: it has not logged in within connection.setup.timeout.ms")

    # ---- the exchange

    def choose(self, mechanism: str) -> bool:
        """Begin to log in, for the first time or again. Return whether there is that mechanism."""
        is_there = mechanism in self._broker.mechanisms
        if not isinstance(self._exchange, str):  # else it fails with the next message, whatever that is
            self._exchange = None
            self._mechanism = mechanism if is_there else ""
        return is_there

    @property
    def mechanism(self) -> str:
        """What the client has chosen; empty: nothing, or it has logged in."""
        return self._mechanism

    @property
    def has_mechanism(self) -> bool:
        return bool(self._mechanism)

    async def step(self, message: bytes) -> tuple[bytes, bool]:
        """Take a message of the client. Return what it is sent, and whether it has logged in. Raise LoginFailed."""
        mechanism = self._mechanism
        exchange = self._exchange
        if isinstance(exchange, str):  # the client has heard that its token is invalid, and says so
            self._exchange = None
            raise self._failed(exchange)
        if self._first_mechanism and mechanism != self._first_mechanism:
            raise self._failed(
                f"it has logged in by {self._first_mechanism}",
                message=f"SASL mechanism '{mechanism}' requested by client is not supported for re-authentication of"
                f" mechanism '{self._first_mechanism}'",
            )
        try:
            if mechanism == "PLAIN":
                plain = parse_plain(message)
                await self._check_password(plain.user, plain.password)
                self._finish(plain.user)
                return b"", True
            if mechanism == "OAUTHBEARER":
                return await self._take_token(message)
            if exchange is None:
                exchange = ScramExchange(mechanism)
                user = exchange.begin(message)
                credentials = await self._find(user)
                self._exchange = exchange
                credential = credentials.get(mechanism) or self._broker.decoys.decoy(user, mechanism)
                return exchange.challenge(credential), False
            self._exchange = None
            response = exchange.finish(message)
            if response is None:
                raise self._failed(f"wrong password of {exchange.user[:100]!r}, or no such user", exchange.user)
            self._finish(exchange.user)
            return response, True
        except BadExchange as error:
            raise self._failed(str(error)) from None

    def give_up(self) -> LoginFailed | None:
        """Return that the login has failed, if the client is gone before it could be told so: its token was refused."""
        why, self._exchange = self._exchange, None
        return self._failed(why) if isinstance(why, str) else None

    async def _take_token(self, message: bytes) -> tuple[bytes, bool]:
        tokens = self._broker.tokens
        assert tokens is not None
        bearer = parse_bearer(message)
        try:
            verified = await self._broker.authenticate(tokens.verify, bearer.token)
        except BadExchange as error:
            self._exchange = str(error)
            return INVALID_TOKEN, False
        if bearer.identity and bearer.identity != verified.user:
            raise self._failed("the authorization id is not the user of the token", verified.user)
        self._finish(verified.user, max(1, int((verified.expires - time.time()) * 1000)))
        return b"", True

    async def _find(self, user: str) -> dict[str, Credential]:
        try:
            return await self._broker.authenticate(self._broker.decoys.find, user)
        except KlammError as error:  # damaged, or the disk does not answer: no one gets in
            raise self._failed(str(error)) from None

    async def _check_password(self, user: str, password: str) -> None:
        credentials = await self._find(user)
        credential = credentials.get("SCRAM-SHA-512") or credentials.get("SCRAM-SHA-256")
        candidate = credential or self._broker.decoys.decoy(user, ANY)
        fits = await self._broker.authenticate(candidate.fits, password)
        if credential is None or not fits:
            raise self._failed(f"wrong password of {user[:100]!r}, or no such user", user)

    def _finish(self, user: str, credential_ms: int = 0) -> None:
        """Accept the client as that user, for `credential_ms` at most; 0: its credential does not expire."""
        if self.user and user != self.user:
            raise self._failed(f"it was {self.user!r}, and logs in again as {user[:100]!r}", user)
        self.user = user
        self._mechanism, mechanism = "", self._mechanism
        self._first_mechanism = mechanism
        lifetimes = [each for each in (self._broker.settings.connections_max_reauth_ms, credential_ms) if each]
        self.lifetime_ms = min(lifetimes, default=0)
        self._expires = self._broker.loop.time() + self.lifetime_ms / 1000 if lifetimes else float("inf")
        self.close()
        self._broker.metrics.login(mechanism, "success")

    def _failed(self, why: str, user: str = "", message: str = "") -> LoginFailed:
        """Return the error; from now on the connection may send nothing. `message`: what the client is sent, if that is
        not that its credentials are invalid.
        """
        mechanism = self._mechanism
        self._is_failed = True
        self._expires = 0.0
        self.close()
        delay_s = self._broker.settings.connection_failed_authentication_delay_ms / 1000
        self._timer = self._broker.loop.call_later(delay_s + _LINGER_S, self._disconnect, "")
        self._broker.metrics.login(mechanism, "failure")
        said = f"Authentication failed during authentication due to invalid credentials with SASL mechanism {mechanism}"
        return LoginFailed(
            message or said,
            f"login by {mechanism} failed: {why}",
            mechanism,
            user or self.user,
        )
