"""The authorizer: decide what clients may do by the ACLs of the store, as `authorizer.class.name` asks for.

    allows    on the loop, for every request; decisions are remembered
    deny      counts and logs a denial, and returns the ApiError
    read      in a thread, when the catalog has changed

Topics.refresh (topic_cache.py) reads the ACLs with the topics. With an authorizer, a request waits for that if anything
has changed, also one that needs no topics (admission.py).

Promises
  AUT1  A request is decided by ACLs that are at least as new as those that were there when it came.
  AUT2  No more than MAX_DECISIONS decisions are remembered, about names of up to MAX_NAME characters, and none longer
        than the ACLs that it was made by.
  AUT3  Denials of one principal are one line of the log a second; the next says how many were left out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from klamm.errors import NotAStore
from klamm.kafka.api_error import ApiError
from klamm.kafka.error_codes import ErrorCode
from klamm.store.acl import Operation, ResourceType
from klamm.store.acl_index import AclIndex
from klamm.store.acls import Acls

if TYPE_CHECKING:
    from klamm.kafka.metrics import Metrics
    from klamm.kafka.settings import ServerSettings
    from klamm.store.catalog import Catalog

__all__ = ["MAX_DECISIONS", "MAX_NAME", "Authorizer", "VersionedIndex"]

MAX_DECISIONS = 50_000
MAX_NAME = 256
_MAX_LOGGED = 1000  # principals, of which the log remembers the second

_CODES = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}

_log = logging.getLogger("klamm.kafka")


class VersionedIndex(NamedTuple):
    version: int
    """Of the ACLs, as of which it was made; -1: they could not be read."""
    acls: AclIndex


class Authorizer:
    """The authorizer of one server, on its loop; `read` is called in a thread."""

    def __init__(self, catalog: Catalog, settings: ServerSettings, metrics: Metrics, now: Callable[[], float]) -> None:
        self._acls = Acls(catalog)
        self._super_users = settings.super_user_names
        self._allow_everyone = settings.allow_everyone_if_no_acl_found
        self._metrics = metrics
        self._now = now
        self._version = -1
        self._decisions: dict[tuple[str, str, int, int, str], bool] = {}
        self._logged: dict[str, tuple[int, int]] = {}  # by principal: the second of its last line, and denials since
        self.index = AclIndex(super_users=self._super_users)

    # ---- reading

    def read(self) -> VersionedIndex | None:
        """Return the ACLs if they are others than those in use. In a thread."""
        if self._acls.version() == self._version:
            return None
        try:
            version, acls = self._acls.read()
        except NotAStore as error:
            _log.error("ACLs cannot be read: %s; until they can, super.users alone may do anything", error)
            return VersionedIndex(-1, AclIndex(super_users=self._super_users))
        index = AclIndex(acls, super_users=self._super_users, allow_everyone=self._allow_everyone)
        return VersionedIndex(version, index)

    def use(self, versioned: VersionedIndex) -> None:
        """Decide by these from now on."""
        self._version, self.index = versioned
        self._decisions = {}

    # ---- deciding

    def allows(self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Return whether a client may do that. Nothing is logged: it may be a filter."""
        key = principal, host, operation, kind, name
        decision = self._decisions.get(key)
        if decision is None:
            decision = self.index.allows(*key)
            if len(name) <= MAX_NAME:  # clients choose names, and may choose long ones
                if len(self._decisions) >= MAX_DECISIONS:
                    self._decisions.clear()
                self._decisions[key] = decision
        return decision

    def allows_some(self, principal: str, host: str, operation: Operation, kind: ResourceType) -> bool:
        """Return whether a client may do that with some resource of that type."""
        return self.index.allows_some(principal, host, operation, kind)

    def deny(
        self, principal: str, host: str, api: str, operation: Operation, kind: ResourceType, name: str
    ) -> ApiError:
        """Count a denial, log it, and return what the client is told."""
        self._metrics.denial(operation.name, kind.name)
        what = f"{operation.name} on {kind.name} {name[:MAX_NAME]!r}"
        second = int(self._now())
        last, count = self._logged.get(principal, (-1, 0))
        if last == second:
            self._logged[principal] = last, count + 1
        else:
            more = f" ({count} more denials of this principal were left out)" if count else ""
            who = principal if principal.isprintable() else repr(principal)
            _log.warning("%s at %s: denied %s (%s)%s", who, host, what, api, more)
            if len(self._logged) >= _MAX_LOGGED:
                self._logged.clear()
            self._logged[principal] = second, 0
        return ApiError(_CODES[kind], f"{principal} is not allowed {what}")
