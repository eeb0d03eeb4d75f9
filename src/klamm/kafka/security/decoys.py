"""Credentials for users that do not exist: what a stranger is challenged with who tries names.

A decoy looks like the credentials that there are: as many iterations, a salt of the same length and alphabet. Which of
them it looks like depends on its name, and each kind is as frequent among decoys as among credentials (`klamm user`
makes others than kafka-configs does). The salt is made from the name and a secret of the store, so that it is the same
each time, also after a restart. No password fits a decoy.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import string
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from klamm.store.scram import DEFAULT_ITERATIONS, MECHANISMS, SALT_BYTES, Credential, hash_name

if TYPE_CHECKING:
    from klamm.store.users import Users

__all__ = ["ANY", "Decoys"]

ANY = ""
"""In place of a mechanism: the one that a password is checked with."""
_REFRESH_S = 60.0
_LETTERS = (string.digits + string.ascii_lowercase).encode()  # of the salts of Kafka's tools


class _Shape(NamedTuple):
    """The part of a credential that a client sees, its salt aside."""

    mechanism: str
    iterations: int
    salt_bytes: int
    is_text: bool


class Decoys:
    """The decoys of one server, for its threads for logins."""

    def __init__(self, users: Users, now: Callable[[], float] = time.monotonic) -> None:
        self._users = users
        self._now = now
        self._read_at = float("-inf")
        self._shapes: dict[str, list[tuple[_Shape, int]]] = {}
        self._secret = os.urandom(32)

    def find(self, user: str) -> dict[str, Credential]:
        """Return the credentials of a user, none if there is no such user. It takes as long in both cases."""
        if self._now() - self._read_at > _REFRESH_S:
            self._read_at = self._now()
            self._secret = self._users.decoy_secret() or self._secret
            self._shapes = _count(self._users.credentials())
        return self._users.find(user)

    def decoy(self, user: str, mechanism: str) -> Credential:
        """Return what stands in for a credential that the user does not have."""
        name = f"{mechanism or 'PLAIN'} {user}".encode()
        shape = self._shape(mechanism, hmac.digest(self._secret, name, "sha256"))
        salt = hashlib.shake_256(self._secret + name).digest(shape.salt_bytes)
        if shape.is_text:
            salt = bytes(_LETTERS[byte % len(_LETTERS)] for byte in salt)
        key = hashlib.new(hash_name(shape.mechanism), os.urandom(32)).digest()
        return Credential(shape.mechanism, salt, shape.iterations, key, key)

    def _shape(self, mechanism: str, chance: bytes) -> _Shape:
        shapes = self._shapes.get(mechanism)
        if not shapes:
            return _Shape(mechanism or "SCRAM-SHA-512", DEFAULT_ITERATIONS, SALT_BYTES, False)
        left = int.from_bytes(chance[:8], "big") * sum(count for _, count in shapes) >> 64
        for shape, count in shapes[:-1]:
            if left < count:
                return shape
            left -= count
        return shapes[-1][0]


def _count(credentials: Iterable[tuple[str, Credential]]) -> dict[str, list[tuple[_Shape, int]]]:
    """Return the shapes of each mechanism, and of the credentials that passwords are checked with (ANY)."""
    strongest: dict[str, _Shape] = {}
    counts: dict[str, Counter[_Shape]] = {mechanism: Counter() for mechanism in (ANY, *MECHANISMS)}
    for user, credential in credentials:
        is_text = all(byte in _LETTERS for byte in credential.salt)
        shape = _Shape(credential.mechanism, credential.iterations, len(credential.salt), is_text)
        counts[credential.mechanism][shape] += 1
        strongest[user] = max(strongest.get(user, shape), shape)
    counts[ANY].update(strongest.values())
    return {mechanism: sorted(shapes.items()) for mechanism, shapes in counts.items()}
