"""The server's side of one SASL exchange: SCRAM (RFC 5802, 7677) and PLAIN (RFC 4616). No socket, no store.

    client → server   n,,n=alice,r=<nonce>                             1  `begin`: the user
    server → client   r=<nonce><more>,s=<salt>,i=<iterations>             `challenge`, with the user's credential
    client → server   c=biws,r=<nonce><more>,p=<proof>                 2  `finish`
    server → client   v=<signature>

A user that does not exist gets a challenge like any other, with the same salt each time, and fails at the end: so one
cannot find out who is a user. Channel binding is not supported, as in Kafka.
"""

from __future__ import annotations

import base64
import binascii
import os
from typing import NamedTuple

from klamm.store.scram import Credential

__all__ = ["BadExchange", "ScramExchange", "parse_plain", "unescape_name"]

_NONCE_BYTES = 24
_MAX_FIELDS = 16  # of a message: those that are not known are passed over


class BadExchange(Exception):
    """The client's message does not follow the mechanism."""


class Plain(NamedTuple):
    """The message of PLAIN."""

    user: str
    password: str


def parse_plain(message: bytes) -> Plain:
    """Return user and password. Raise BadExchange, which shows neither."""
    try:
        identity, user, password = message.decode().split("\0", 3)
    except (ValueError, UnicodeDecodeError):
        raise BadExchange("the message of PLAIN has three parts, separated by a zero byte") from None
    if not user or not password:
        raise BadExchange("user or password is empty")
    if identity and identity != user:
        raise BadExchange("the authorization id is not the user")
    return Plain(user, password)


class ScramExchange:
    """One exchange, step by step."""

    def __init__(self, mechanism: str) -> None:
        self.mechanism = mechanism
        self.user = ""
        self._header = b""
        self._first = b""
        self._nonce = b""
        self._challenge = b""
        self._credential: Credential | None = None

    def begin(self, message: bytes) -> str:
        """Read the first message of the client, and return the user."""
        try:
            binding, identity, bare = message.split(b",", 2)
        except ValueError:
            raise BadExchange("the first message of the client is not one of SCRAM") from None
        if binding not in (b"n", b"y"):
            raise BadExchange("channel binding is not supported")
        fields = _fields(bare)
        if len(fields) < 2 or [name for name, _ in fields[:2]] != [b"n", b"r"]:
            raise BadExchange("the first message of the client names no user, or no nonce")
        if any(name == b"tokenauth" and value == b"true" for name, value in fields[2:]):
            raise BadExchange("delegation tokens are not supported")
        self.user = unescape_name(fields[0][1])
        nonce = fields[1][1]
        if not self.user or not nonce or not all(0x21 <= byte <= 0x7E for byte in nonce):
            raise BadExchange("the user or the nonce is empty, or not to be read")
        if identity and (not identity.startswith(b"a=") or unescape_name(identity[2:]) != self.user):
            raise BadExchange("the authorization id is not the user")
        self._header = binding + b"," + identity + b","
        self._first = bare
        self._nonce = nonce + base64.b64encode(os.urandom(_NONCE_BYTES))
        return self.user

    def challenge(self, credential: Credential) -> bytes:
        """Return what the client is sent: nonce, salt and iterations."""
        self._credential = credential
        salt = base64.b64encode(credential.salt)
        self._challenge = b"r=%b,s=%b,i=%d" % (self._nonce, salt, credential.iterations)
        return self._challenge

    def finish(self, message: bytes) -> bytes | None:
        """Read the last message of the client: return what it is sent, or None if its password is another one."""
        without_proof, separator, proof = message.rpartition(b",p=")
        fields = _fields(without_proof)
        if not separator or len(fields) < 2 or [name for name, _ in fields[:2]] != [b"c", b"r"]:
            raise BadExchange("the last message of the client is not one of SCRAM")
        if _decoded(fields[0][1]) != self._header:
            raise BadExchange("the channel binding is not that of the first message")
        if not fields[1][1].endswith(
            self._nonce
        ):  # librdkafka before 2.3 repeats its own before it; Kafka lets it, too
            raise BadExchange("the nonce is not that of this exchange")
        credential = self._credential
        assert credential is not None
        auth_message = b",".join((self._first, self._challenge, without_proof))
        if not credential.proves(_decoded(proof), auth_message):
            return None
        return b"v=" + base64.b64encode(credential.sign(auth_message))


def _fields(message: bytes) -> list[tuple[bytes, bytes]]:
    """Return the fields of a message, which a stranger may have sent: name and value of each."""
    fields = message.split(b",", _MAX_FIELDS)
    if len(fields) > _MAX_FIELDS:
        raise BadExchange("the message has too many fields")
    return [(name, value) for name, _, value in (each.partition(b"=") for each in fields)]


def _decoded(text: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise BadExchange("what should be base64 is not") from None


def unescape_name(name: bytes) -> str:
    """Return a saslname as text: =2C is a comma, =3D an equals sign, and = stands for nothing else."""
    try:
        text = name.decode()
    except UnicodeDecodeError:
        raise BadExchange("the user is not UTF-8") from None
    if "=" in text.replace("=2C", "").replace("=3D", ""):
        raise BadExchange("the user has an = that is not escaped")
    return text.replace("=2C", ",").replace("=3D", "=")
