"""OAUTHBEARER (RFC 7628): logins by signed tokens (JWT), checked with the public keys of who issues them (JWKS).

    client → server   n,,^Aauth=Bearer <token>^A^A
    server → client   nothing: it has logged in; or {"status":"invalid_token"}
    client → server   ^A                            after which the login has failed

    sasl.oauthbearer.jwks.endpoint.url      where the keys are: file:///…, https://… or http://… (key_download.py)

Promises
  OAU1  A token counts if one of the issuer's keys has signed it, by an algorithm of sasl.oauthbearer.algorithms that
        fits the key: the key that the token names, or, if it or the key has no id, any that fits. There is no `none`,
        and no key that both sides share (HS256), for which a public key could be taken.
  OAU2  Issuer, audience and expiry are checked. A login lasts as long as its token, and the clock skew.
  OAU3  While the keys cannot be fetched, the last ones count, until they are older than
        sasl.oauthbearer.jwks.max.age.ms; from then on no one logs in.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from klamm.errors import InvalidSetting, NotInstalled
from klamm.kafka.addresses import is_this_machine
from klamm.kafka.security.key_download import download
from klamm.kafka.security.scram import BadExchange, unescape_name

if TYPE_CHECKING:
    from klamm.kafka.settings import ServerSettings

__all__ = ["ALGORITHMS", "INVALID_TOKEN", "Tokens", "algorithms_of", "check_key_url", "parse_bearer"]

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519")
"""Those with a public key."""
INVALID_TOKEN = b'{"status":"invalid_token"}'

_KEY_TYPES = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
_MAX_BYTES = 1024 * 1024  # of a JWKS
_MAX_KEYS = 100
_RETRY_S = 10.0  # after a failure, and at most so often because of a key that is not known
_LAST_S = 1e12  # a time beyond is none: of a token, in seconds since 1970
_MAX_FIELDS = 64  # of a message: extensions are passed over
_SCHEMES = ("https://", "http://", "file:///")
_URL = "sasl.oauthbearer.jwks.endpoint.url"

_log = logging.getLogger("klamm.kafka")


class Bearer(NamedTuple):
    """The first message of a client."""

    identity: str
    """The authorization id: empty, or the user that the client wants to be."""
    token: str


class Verified(NamedTuple):
    """The content of a verified token."""

    user: str
    expires: float
    """When it is not valid any more, in seconds since 1970."""


def algorithms_of(settings: ServerSettings) -> tuple[str, ...]:
    """Return the algorithms that are allowed. Raise InvalidSetting for one that there is not, or may not be."""
    names = tuple(each.strip() for each in settings.sasl_oauthbearer_algorithms.split(",") if each.strip())
    for name in names or ("",):
        if name not in ALGORITHMS:
            raise InvalidSetting(
                f"{name!r} is invalid", setting="sasl.oauthbearer.algorithms", hint=f"expected {', '.join(ALGORITHMS)}"
            )
    return names


def check_key_url(settings: ServerSettings) -> None:
    """Raise InvalidSetting if the URL of the keys has a password: the log and DescribeConfigs show the URL."""
    if "@" in urlsplit(settings.sasl_oauthbearer_jwks_endpoint_url).netloc:
        raise InvalidSetting("has a user or a password", setting=_URL, hint="public keys need none: leave it out")


def parse_bearer(message: bytes) -> Bearer:
    """Return what the first message of a client says. Raise BadExchange, which does not show the token."""
    header, *fields = message.split(b"\x01", _MAX_FIELDS)
    binding, _, identity = header.partition(b",")
    if binding not in (b"n", b"y") or (identity != b"," and not identity.startswith(b"a=")):
        raise BadExchange("the message of the client is not one of OAUTHBEARER")
    if fields[-2:] != [b"", b""]:
        raise BadExchange("the message of the client does not end as one of OAUTHBEARER does")
    tokens = [value for name, _, value in (field.partition(b"=") for field in fields) if name == b"auth"]
    if len(tokens) != 1 or tokens[0][:7].lower() != b"bearer ":
        raise BadExchange("the message of the client has no token")
    try:
        return Bearer(unescape_name(identity[2:-1]), tokens[0][7:].decode("ascii").strip())
    except UnicodeDecodeError:
        raise BadExchange("the token is not ASCII") from None


class Tokens:
    """Checks tokens for one server. Safe for threads."""

    def __init__(
        self, settings: ServerSettings, now: Callable[[], float], steady: Callable[[], float] = time.monotonic
    ) -> None:
        """Fetch the keys. Raise InvalidSetting or NotInstalled if no token could be checked.

        `now` returns seconds since 1970, `steady` those of a clock that is never set: for the age of the keys.
        """
        try:
            import joserfc  # noqa: F401  # optional: said now rather than at the first login
        except ImportError:
            raise NotInstalled(
                "sasl.enabled.mechanisms: OAUTHBEARER needs joserfc, which is not installed",
                name="joserfc",
                hint="pip install 'klamm[oauth]'",
            ) from None
        self._now = now
        self._steady = steady
        self._url = settings.sasl_oauthbearer_jwks_endpoint_url
        self._issuer = settings.sasl_oauthbearer_expected_issuer
        self._audiences = {each.strip() for each in settings.sasl_oauthbearer_expected_audience.split(",")} - {""}
        self._claim = settings.sasl_oauthbearer_sub_claim_name
        self._skew_s = settings.sasl_oauthbearer_clock_skew_seconds
        self._refresh_s = settings.sasl_oauthbearer_jwks_endpoint_refresh_ms / 1000
        self._max_age_s = settings.sasl_oauthbearer_jwks_max_age_ms / 1000
        self._algorithms = algorithms_of(settings)
        for value, setting in (
            (self._url, _URL),
            (self._issuer, "sasl.oauthbearer.expected.issuer"),
            (self._audiences, "sasl.oauthbearer.expected.audience"),
        ):
            if not value:
                raise InvalidSetting("is empty, and OAUTHBEARER is enabled", setting=setting)
        if not self._url.startswith(_SCHEMES):
            raise InvalidSetting(
                f"{self._url!r} is invalid",
                setting=_URL,
                hint=f"expected one that begins with {', '.join(_SCHEMES)}",
            )
        if self._url.startswith("http://") and not is_this_machine(urlsplit(self._url).hostname or ""):
            _log.warning(
                "%s: there is no encryption, so everyone on the way can replace the keys of tokens, and log in as any"
                " user (use https://)",
                self._url,
            )
        self._keys: list[tuple[str | None, Any]] = []  # each with its id, if it has one
        self._fetched = float("-inf")
        self._tried = float("-inf")
        self._is_wanted = False
        self._mutex = threading.Lock()
        self.failed_fetches = 0
        self.refresh()

    # ---- keys

    def is_due(self) -> bool:
        """Return whether the keys should be fetched: they are old, or a token names one that is not known."""
        since = self._steady() - self._tried
        return since >= self._refresh_s or (since >= _RETRY_S and (self._is_wanted or self._tried != self._fetched))

    def refresh(self) -> None:
        """Fetch the keys. If that fails, those from before stay, and the log says so. In a thread."""
        with self._mutex:
            self._tried = now = self._steady()
            self._is_wanted = False
            try:
                keys = self._fetch()
            except (OSError, ValueError) as error:
                self.failed_fetches += 1
                _log.error("%s: the keys of tokens cannot be fetched: %s", self._url, error)
                return
            self._keys, self._fetched = keys, now

    def _fetch(self) -> list[tuple[str | None, Any]]:
        """Return the keys, each with its id. Raise OSError or ValueError."""
        from joserfc.errors import JoseError
        from joserfc.jwk import JWKRegistry

        document = json.loads(download(self._url, _MAX_BYTES))
        listed = document.get("keys") if isinstance(document, dict) else None
        if not isinstance(listed, list) or not listed or len(listed) > _MAX_KEYS:
            raise ValueError(f"expected a JWKS with 1 to {_MAX_KEYS} keys")
        keys = []
        for entry in listed:
            if not isinstance(entry, dict) or entry.get("use", "sig") != "sig":
                continue
            if entry.get("kty") not in _KEY_TYPES.values():  # no keys that both sides share
                continue
            try:
                keys.append((_id(entry), JWKRegistry.import_key(entry)))
            except (JoseError, ValueError, TypeError, KeyError):
                continue  # of a kind that is not supported
        if not keys:
            raise ValueError("none of the keys can be used")
        return keys

    # ---- tokens

    def verify(self, token: str) -> Verified:
        """Return what a token says. Raise BadExchange, with what is wrong with it. In a thread."""
        from joserfc import jwt
        from joserfc.errors import JoseError

        header = _header(token)
        algorithm = header.get("alg")
        if algorithm not in self._algorithms:
            raise BadExchange(f"the token is signed by {str(algorithm)[:20]!r}, which is not allowed")
        problem = ""
        for key in self._fitting(header, str(algorithm)):
            try:
                claims = jwt.decode(token, key, algorithms=[str(algorithm)]).claims
            except (JoseError, ValueError, TypeError) as error:
                problem = type(error).__name__
            else:
                return self._check(claims)
        kid = _id(header)
        if kid is None or all(kid != name for name, _ in self._keys):
            self._is_wanted = True  # by a key without an id: there may be a new one
        raise BadExchange(f"the token cannot be verified: {problem}")

    def _fitting(self, header: dict[str, Any], algorithm: str) -> list[Any]:
        """Return the keys that may have signed a token, by its header: at least one."""
        if self._steady() - self._fetched > self._max_age_s:
            raise BadExchange(
                "the keys of tokens are older than sasl.oauthbearer.jwks.max.age.ms, or were never fetched"
            )
        keys, kid = self._keys, _id(header)
        named = [key for name, key in keys if kid is not None and name == kid]
        candidates = named or [key for name, key in keys if kid is None or name is None]
        if not candidates:
            self._is_wanted = True
            raise BadExchange(f"the token names the key {str(kid)[:50]!r}, which is not known")
        kind = _KEY_TYPES[algorithm[:2]]
        fitting = [key for key in candidates if key.key_type == kind and key.alg in (None, algorithm)]
        if not fitting:
            raise BadExchange(f"the token is signed by {algorithm}, for which its key is not")
        return fitting

    def _check(self, claims: dict[str, Any]) -> Verified:
        now = self._now()
        if claims.get("iss") != self._issuer:
            raise BadExchange("the issuer of the token is another one")
        audience = claims.get("aud")
        named = audience if isinstance(audience, list) else [audience]
        if not any(isinstance(each, str) and each in self._audiences for each in named):
            raise BadExchange("the token is for another audience")
        expires = _number(claims, "exp")
        if expires is None:
            raise BadExchange("the token has no expiry")
        if expires + self._skew_s <= now:
            raise BadExchange("the token has expired")
        for name in ("nbf", "iat"):
            begins = _number(claims, name)
            if begins is not None and begins - self._skew_s > now:
                raise BadExchange(f"the token is not valid yet ({name})")
        user = claims.get(self._claim)
        if not isinstance(user, str) or not user or len(user) > 255 or not user.isprintable():
            raise BadExchange(f"the token names no user in {self._claim!r}")
        return Verified(user, expires + self._skew_s)


def _header(token: str) -> dict[str, Any]:
    """Return the header, which nothing vouches for yet."""
    try:
        text = token.split(".", 1)[0]
        header = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        header = None
    if not isinstance(header, dict) or token.count(".") != 2:
        raise BadExchange("what was sent is not a token")
    return header


def _id(fields: dict[str, Any]) -> str | None:
    """Return the id in a key or in the header of a token, which it may leave out (RFC 7517)."""
    kid = fields.get("kid")
    return None if kid is None else str(kid)


def _number(claims: dict[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not -_LAST_S < value < _LAST_S:
        raise BadExchange(f"{name} of the token is not a time")
    return float(value)
