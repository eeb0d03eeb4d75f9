"""Access control: checks before every request, and headers on every response.

SEC1  A request whose Host is not the console's own address is refused (a page elsewhere that resolves its name to
      127.0.0.1 reads nothing). So is one that a browser sends on behalf of another site, as an image or a frame of
      a page elsewhere: only a link may lead here.
SEC2  A request that changes something needs an Origin that is the console's own, and the CSRF token of its session.
SEC3  With a token or users, nothing but the login page and its style is served before the visitor has logged in. A
      password is looked at only where it decides, and _PASSWORDS at a time: to check one takes CPU on purpose.
SEC4  Pages run no script and show no style, image or frame but the console's own files, and are not cached.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import time
from base64 import b64decode
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse

from klamm.console.options import is_address, is_every_address, is_loopback

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from klamm.console.options import ConsoleOptions

__all__ = ["SESSION", "Guard", "Sessions"]

SESSION = "klamm_console"
_WRONG_S = 0.5
_log = logging.getLogger("klamm.console")
_PASSWORDS = 2
_OPEN_PATHS = ("/login", "/static/")
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Sessions:
    """Sessions are signed, not stored: a cookie is a random name and its signature, the CSRF token another one."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)

    def create(self, *, is_logged_in: bool) -> str:
        """Return the cookie of a new session."""
        name = f"{'in' if is_logged_in else 'out'}-{secrets.token_urlsafe(16)}"
        return f"{name}.{self._sign('session', name)}"

    def is_valid(self, cookie: str) -> bool:
        name, _, signature = cookie.rpartition(".")
        return bool(name) and hmac.compare_digest(signature.encode(), self._sign("session", name).encode())

    def is_logged_in(self, cookie: str) -> bool:
        return cookie.startswith("in-") and self.is_valid(cookie)

    def csrf_token(self, cookie: str) -> str:
        return self._sign("csrf", cookie)

    def _sign(self, purpose: str, text: str) -> str:
        return hmac.digest(self._secret, f"{purpose}:{text}".encode(), "sha256").hex()


class Guard:
    """The application with these checks in front of it."""

    def __init__(
        self, app: ASGIApp, options: ConsoleOptions, sessions: Sessions, is_password: Callable[[str, str], bool]
    ) -> None:
        self._app = app
        self._is_password = is_password
        self._options = options
        self._sessions = sessions
        self._places = asyncio.Semaphore(_PASSWORDS)
        self._failed_logins = 0
        self._quiet_until = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        cookie = _cookie(headers)
        if not self._sessions.is_valid(cookie):
            cookie = ""
        scope["state"] = {**scope.get("state", {}), "session": cookie or self._sessions.create(is_logged_in=False)}

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    added.setdefault(name, value)
                added.setdefault("cache-control", "no-store")
                if not cookie and SESSION not in added.get("set-cookie", ""):
                    value = scope["state"]["session"]
                    added.append("set-cookie", f"{SESSION}={value}; Path=/; HttpOnly; SameSite=Strict")
            await send(message)

        response = self._refusal(scope, headers)
        if response is None and not await self._may_look(scope, headers, cookie):
            response = self._login_first(scope)
            if headers.get("authorization"):
                self.log_failed_login(scope)
        await (response or self._app)(scope, receive, with_headers)

    def _refusal(self, scope: Scope, headers: Headers) -> ASGIApp | None:
        """Return the response to a request that is not for this console, or comes from another site."""
        host = headers.get("host", "")
        if not self._is_own_host(host):
            return PlainTextResponse(
                f"klamm console: the Host {host!r} is not this console's (--allow-host adds a name)\n", 421
            )
        origin = headers.get("origin")
        if origin is not None and _netloc(origin) != host:
            return PlainTextResponse("klamm console: the request comes from another site\n", 403)
        is_foreign = headers.get("sec-fetch-site") in ("cross-site", "same-site")  # another port is the same site
        if is_foreign and headers.get("sec-fetch-dest") != "document":
            return PlainTextResponse("klamm console: a page of another site asks for this\n", 403)
        if scope["method"] not in ("GET", "HEAD") and origin is None:
            return PlainTextResponse("klamm console: a request that changes something needs an Origin header\n", 403)
        return None

    async def _may_look(self, scope: Scope, headers: Headers, cookie: str) -> bool:
        if not self._options.needs_login or scope["path"].startswith(_OPEN_PATHS):
            return True
        is_known = self._sessions.is_logged_in(cookie) or self._has_token(headers)
        return is_known or await self._has_password(headers)

    def _login_first(self, scope: Scope) -> ASGIApp:
        if scope["path"].startswith(("/api/", "/events/")):
            kind, words = ("Basic", "a user and password") if self._options.has_users else ("Bearer", "Bearer TOKEN")
            text = f"klamm console: not logged in (send Authorization: {words})\n"
            return PlainTextResponse(text, 401, headers={"www-authenticate": kind})
        return RedirectResponse("/login", 303)

    def _is_own_host(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if is_every_address(self._options.host) and is_address(name):
            return True  # it has a token, and the cookie of a session is sent to no other name
        own = {self._options.host, *self._options.allow_hosts}
        if is_loopback(self._options.host):
            own |= {"localhost", "127.0.0.1", "::1"}
        return name in own

    def _has_token(self, headers: Headers) -> bool:
        kind, _, token = headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and self.is_token(token.strip())

    async def _has_password(self, headers: Headers) -> bool:
        """Return whether a program has sent the name and password of a user."""
        kind, _, encoded = headers.get("authorization", "").partition(" ")
        if not self._options.has_users or kind.lower() != "basic":
            return False
        try:
            user, colon, password = b64decode(encoded.strip(), validate=True).decode().partition(":")
        except ValueError:
            return False
        return bool(colon) and await self.is_user(user, password)

    async def is_user(self, user: str, password: str) -> bool:
        """Return whether that is a user's password; slowly, if it is not."""
        if self._options.has_users:
            async with self._places:
                if await run_in_threadpool(self._is_password, user, password):
                    return True
        await asyncio.sleep(_WRONG_S)
        return False

    def log_failed_login(self, scope: Scope) -> None:
        """Count a failed login; log it, a line a second at most."""
        self._failed_logins += 1
        if time.monotonic() >= self._quiet_until:
            self._quiet_until = time.monotonic() + 1.0
            host = (scope.get("client") or ("an unknown address",))[0]
            _log.warning("klamm console: %s: login failed (%d since the start)", host, self._failed_logins)

    def is_token(self, given: str) -> bool:
        expected = self._options.token
        return expected is not None and hmac.compare_digest(given.encode(), expected.encode())


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def _cookie(headers: Headers) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(SESSION)
    except CookieError:
        return ""
    return "" if found is None else found.value
