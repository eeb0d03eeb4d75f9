"""SCRAM credentials (RFC 5802): derive them from passwords, and check passwords and proofs against them.

    salted password   PBKDF2-HMAC(password, salt, iterations)
    client key        HMAC(salted password, "Client Key")
    stored key        H(client key)                           stored
    server key        HMAC(salted password, "Server Key")     stored

Neither the password nor the salted password is stored. A stored credential is enough to check a password, and to prove
to a client that the server has it, but not to log in. A password is used as its UTF-8 bytes, as Kafka and its clients
use it: it is not normalized (SASLprep).
"""

from __future__ import annotations

import hashlib
import hmac
import os
from typing import NamedTuple

__all__ = [
    "DEFAULT_ITERATIONS",
    "MAX_ITERATIONS",
    "MECHANISMS",
    "MIN_ITERATIONS",
    "SALT_BYTES",
    "Credential",
    "derive",
    "derive_from_salted",
    "hash_name",
]

MECHANISMS = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""By Kafka's name, with the hash."""
MIN_ITERATIONS = 4096
MAX_ITERATIONS = 16384
"""Kafka's bounds."""
DEFAULT_ITERATIONS = MAX_ITERATIONS
SALT_BYTES = 20


class Credential(NamedTuple):
    """The stored credential of one password, for one mechanism."""

    mechanism: str
    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        return f"Credential({self.mechanism}, {self.iterations} iterations)"  # so that no log shows the keys

    def fits(self, password: str) -> bool:
        """Return whether this is the password. It takes as long as the iterations say."""
        name = hash_name(self.mechanism)
        salted = hashlib.pbkdf2_hmac(name, password.encode(), self.salt, self.iterations)
        return hmac.compare_digest(_stored_key(name, salted), self.stored_key)

    def proves(self, proof: bytes, auth_message: bytes) -> bool:
        """Return whether the client that sent `proof` has the password."""
        name = hash_name(self.mechanism)
        signature = hmac.digest(self.stored_key, auth_message, name)
        if len(proof) != len(signature):
            return False
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        return hmac.compare_digest(hashlib.new(name, client_key).digest(), self.stored_key)

    def sign(self, auth_message: bytes) -> bytes:
        """Return the proof for the client that the server has its credential."""
        return hmac.digest(self.server_key, auth_message, hash_name(self.mechanism))


def hash_name(mechanism: str) -> str:
    """Return the name of the mechanism's hash, for hashlib."""
    return MECHANISMS[mechanism]


def derive(
    mechanism: str, password: str, *, iterations: int = DEFAULT_ITERATIONS, salt: bytes | None = None
) -> Credential:
    """Return the credential of a password, by default with a new salt."""
    salt = os.urandom(SALT_BYTES) if salt is None else salt
    salted = hashlib.pbkdf2_hmac(hash_name(mechanism), password.encode(), salt, iterations)
    return derive_from_salted(mechanism, salted, salt, iterations)


def derive_from_salted(mechanism: str, salted_password: bytes, salt: bytes, iterations: int) -> Credential:
    """Like `derive`, from a password that a client has salted already (AlterUserScramCredentials)."""
    name = hash_name(mechanism)
    server_key = hmac.digest(salted_password, b"Server Key", name)
    return Credential(mechanism, salt, iterations, _stored_key(name, salted_password), server_key)


def _stored_key(name: str, salted_password: bytes) -> bytes:
    return hashlib.new(name, hmac.digest(salted_password, b"Client Key", name)).digest()
