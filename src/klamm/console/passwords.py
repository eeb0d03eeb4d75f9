"""Log in as a user of the store: those that `klamm user` makes for the Kafka server."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from klamm.errors import KlammError
from klamm.store.scram import DEFAULT_ITERATIONS, Credential
from klamm.store.users import Users

if TYPE_CHECKING:
    from klamm.api import Store

__all__ = ["has_users", "is_password"]

_STRONGEST = ("SCRAM-SHA-512", "SCRAM-SHA-256")


def has_users(store: Store) -> bool:
    """Return whether the store has users."""
    return bool(Users(store._acquired().catalog).all())


def is_password(store: Store, user: str, password: str) -> bool:
    """Return whether that is the user's password. It takes as long for a user that does not exist."""
    try:
        credentials = Users(store._acquired().catalog).find(user)
    except KlammError:  # damaged: it lets no one log in
        credentials = {}
    credential = next((credentials[name] for name in _STRONGEST if name in credentials), None)
    decoy = Credential(_STRONGEST[0], os.urandom(20), DEFAULT_ITERATIONS, bytes(64), bytes(64))
    fits = (credential or decoy).fits(password)
    return credential is not None and fits
