"""Tokens for tests: an issuer with keys of its own, and what attackers make of its tokens."""

from __future__ import annotations

import base64
import hmac
import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey

__all__ = ["AUDIENCE", "ISSUER", "Issuer", "bearer", "settings_of", "token_endpoint"]

ISSUER, AUDIENCE = "https://issuer.example", "klamm"


class Issuer:
    """Who signs tokens."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.keys: dict[str, Any] = {"first": ECKey.generate_key("P-256", {"kid": "first"})}
        self.publish()

    def publish(self) -> None:
        """Write the JWKS."""
        keys = [key.as_dict(private=False) for key in self.keys.values()]
        self.path.write_text(json.dumps({"keys": keys}))

    def add(self, kid: str, *, rsa: bool = False) -> None:
        made: Any = RSAKey.generate_key(2048, {"kid": kid}) if rsa else ECKey.generate_key("P-256", {"kid": kid})
        self.keys[kid] = made

    def token(self, kid: str | None = "first", alg: str = "ES256", key: Any = None, **claims: Any) -> str:
        """Return a token, right but for what is said."""
        now = int(time.time())
        right = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": now + 300, "iat": now}
        merged = {name: value for name, value in {**right, **claims}.items() if value is not None}
        header = {"alg": alg} if kid is None else {"alg": alg, "kid": kid}
        return jwt.encode(header, merged, key or self.keys[kid or "first"], algorithms=[alg])

    def unsigned(self, alg: str = "none") -> str:
        """Return a token that nobody has signed."""
        _, payload, _ = self.token().split(".")
        header = base64.urlsafe_b64encode(json.dumps({"alg": alg, "kid": "first"}).encode()).rstrip(b"=").decode()
        return f"{header}.{payload}."

    def signed_with_the_public_key(self) -> str:
        """Return a token of HS256, for which the public key was taken as the secret."""
        secret = self.keys["first"].as_pem(private=False)
        message = self.unsigned("HS256").rstrip(".")
        signature = base64.urlsafe_b64encode(hmac.digest(secret, message.encode(), "sha256")).rstrip(b"=")
        return f"{message}.{signature.decode()}"


@contextmanager
def token_endpoint(make_token: Callable[[], str]) -> Iterator[str]:
    """The URL of an authorization server, which gives tokens to every client that asks."""

    class Endpoint(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.dumps({"access_token": make_token(), "token_type": "bearer", "expires_in": 300}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endpoint) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/token"
        finally:
            server.shutdown()
            thread.join()


def bearer(token: str) -> bytes:
    """Return the message of OAUTHBEARER."""
    return b"n,,\x01auth=Bearer " + token.encode() + b"\x01\x01"


def settings_of(issuer: Issuer) -> dict[str, str]:
    return {
        "sasl.enabled.mechanisms": "OAUTHBEARER,SCRAM-SHA-256",
        "sasl.oauthbearer.jwks.endpoint.url": issuer.path.as_uri(),
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": f"other, {AUDIENCE}",
    }
