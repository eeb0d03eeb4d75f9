"""The client's side of SASL, by hand: each message can be made wrong. SCRAM's proofs are those of scramp."""

from __future__ import annotations

from typing import Any

from scramp import ScramClient

from klamm.kafka.wire.messages import SASL_AUTHENTICATE, SASL_HANDSHAKE
from klamm.kafka.wire.structs import Struct
from tests.interop.raw import Raw

__all__ = ["authenticate", "choose", "log_in", "plain"]


def choose(raw: Raw, mechanism: str) -> Struct:
    """Send SaslHandshake."""
    return raw.ask(SASL_HANDSHAKE, 1, mechanism=mechanism)


def authenticate(raw: Raw, message: bytes) -> Struct:
    """Send SaslAuthenticate."""
    return raw.ask(SASL_AUTHENTICATE, 2, auth_bytes=message)


def plain(user: str, password: str, identity: str = "") -> bytes:
    """Return the message of PLAIN."""
    return f"{identity}\0{user}\0{password}".encode()


def log_in(raw: Raw, user: str, password: str, mechanism: str = "SCRAM-SHA-256") -> Struct:
    """Log in, and return the last response; what the server proves is checked."""
    assert choose(raw, mechanism).error_code == 0
    if mechanism == "PLAIN":
        return authenticate(raw, plain(user, password))
    client: Any = ScramClient([mechanism], user, password)
    challenge = authenticate(raw, client.get_client_first().encode())
    if challenge.error_code:
        return challenge
    client.set_server_first(bytes(challenge.auth_bytes).decode())
    response = authenticate(raw, client.get_client_final().encode())
    if response.error_code == 0:
        client.set_server_final(bytes(response.auth_bytes).decode())
    return response
