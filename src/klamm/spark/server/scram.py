"""The client's side of one SASL exchange: SCRAM (RFC 5802, 7677) and PLAIN (RFC 4616). No socket.

    client → server   n,,n=alice,r=<nonce>                             `first`
    server → client   r=<nonce><more>,s=<salt>,i=<iterations>
    client → server   c=biws,r=<nonce><more>,p=<proof>                 `final`
    server → client   v=<signature>                                    `check`: the server knows the password, too

The server's side: kafka/security/scram.py.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os

from klamm.store.scram import hash_name

__all__ = ["BadServer", "ScramClient", "plain"]

_NONCE_BYTES = 24
_HEADER = b"n,,"
_MAX_ITERATIONS = 10_000_000  # a server that asks for more keeps a client busy for minutes


class BadServer(Exception):
    """The server's message does not follow the mechanism, or the server does not know the password."""


def plain(user: str, password: str) -> bytes:
    """Return the one message of PLAIN."""
    return b"\0".join((b"", user.encode(), password.encode()))


class ScramClient:
    """One exchange, step by step."""

    def __init__(self, mechanism: str, user: str, password: str, *, nonce: bytes | None = None) -> None:
        self._hash = hash_name(mechanism)
        self._password = password
        self._nonce = nonce or base64.b64encode(os.urandom(_NONCE_BYTES))
        name = user.replace("=", "=3D").replace(",", "=2C").encode()
        self._first = b"n=%b,r=%b" % (name, self._nonce)
        self._signature = b""

    def first(self) -> bytes:
        return _HEADER + self._first

    def final(self, challenge: bytes) -> bytes:
        """Return the proof, for the server's challenge. Raise BadServer."""
        fields = dict(_fields(challenge))
        nonce = fields.get(b"r", b"")
        try:
            salt, iterations = base64.b64decode(fields[b"s"], validate=True), int(fields[b"i"])
        except (KeyError, ValueError, binascii.Error):
            raise BadServer("the server's challenge is not one of SCRAM") from None
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise BadServer("the server's nonce does not begin with that of this exchange")
        if not 0 < iterations <= _MAX_ITERATIONS:
            raise BadServer(f"the server asks for {iterations} iterations")
        salted = hashlib.pbkdf2_hmac(self._hash, self._password.encode(), salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", self._hash)
        without_proof = b"c=%b,r=%b" % (base64.b64encode(_HEADER), nonce)
        message = b",".join((self._first, challenge, without_proof))
        signature = hmac.digest(hashlib.new(self._hash, client_key).digest(), message, self._hash)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._signature = hmac.digest(hmac.digest(salted, b"Server Key", self._hash), message, self._hash)
        return without_proof + b",p=" + base64.b64encode(proof)

    def check(self, message: bytes) -> None:
        """Raise BadServer unless the server has proved that it knows the password."""
        fields = dict(_fields(message))
        try:
            signature = base64.b64decode(fields[b"v"], validate=True)
        except (KeyError, binascii.Error):
            raise BadServer("the server's last message is not one of SCRAM") from None
        if not self._signature or not hmac.compare_digest(signature, self._signature):
            raise BadServer("the server does not know the password")


def _fields(message: bytes) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, _, value in (each.partition(b"=") for each in message.split(b","))]
