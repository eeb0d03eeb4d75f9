"""Decide by the ACLs of a store what a principal may do, by the rules of Kafka's StandardAuthorizer.

    1. A super user may do everything.
    2. Of the ACLs that are for this resource, this principal (or everyone), this address (or all) and this operation
       (or ALL), one that denies wins.
    3. Else one that allows wins. An ACL that allows READ, WRITE, DELETE or ALTER allows DESCRIBE, too, and one that
       allows ALTER_CONFIGS allows DESCRIBE_CONFIGS; one that denies them does not deny the other.
    4. Else it is denied. Only if no ACL at all is for this resource, `allow.everyone.if.no.acl.found` decides.

An index is immutable: when ACLs change, a new one replaces it. The cost of a look-up grows with the number of ACLs of
this principal and of everyone for this resource, and with the number of different lengths of prefixes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from klamm.store.acl import ANYONE, ANYWHERE, Acl, Operation, PatternType, Permission, ResourceType, plain_host

__all__ = ["AclIndex", "Decision"]

_IMPLIED_BY: dict[Operation, frozenset[Operation]] = {
    Operation.DESCRIBE: frozenset(
        {Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
    ),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS}),
}
"""Operations of ACLs that allow another operation, too."""

_SAMPLE = "hardcode"  # as in Kafka: a name that stands for "some topic", of which there may be no ACL


class Decision(NamedTuple):
    is_allowed: bool
    reason: str
    """super_user, acl, missing (no ACL allows it) or no_acl (the resource has none)."""
    acl: Acl | None = None
    """The one that has decided."""


class _Patterns:
    """Names of resources, literal and prefixed, each with its ACLs."""

    __slots__ = ("lengths", "literal", "prefixed")

    def __init__(self) -> None:
        self.literal: dict[str, list[Acl]] = {}
        self.prefixed: dict[str, list[Acl]] = {}
        self.lengths: list[int] = []
        """Of the prefixes, the longest first."""

    def add(self, acl: Acl) -> None:
        if acl.pattern_type is PatternType.LITERAL:
            self.literal.setdefault(acl.resource_name, []).append(acl)
        else:
            self.prefixed.setdefault(acl.resource_name, []).append(acl)
            if len(acl.resource_name) not in self.lengths:
                self.lengths = sorted([*self.lengths, len(acl.resource_name)], reverse=True)

    def find(self, name: str) -> Iterator[Acl]:
        """Yield the ACLs for a resource of that name, the most specific first."""
        yield from self.literal.get(name, ())
        for length in self.lengths:
            if length <= len(name):
                yield from self.prefixed.get(name[:length], ())
        if name != "*":
            yield from self.literal.get("*", ())


class AclIndex:
    """The ACLs of a store, and the settings that decide beside them."""

    def __init__(
        self, acls: Iterable[Acl] = (), *, super_users: Iterable[str] = (), allow_everyone: bool = False
    ) -> None:
        """Index ACLs. `super_users` are principals; `allow_everyone` allows what no ACL covers."""
        self.acls = tuple(acls)
        self.super_users = frozenset(super_users)
        self.allow_everyone = allow_everyone
        self._by_principal: dict[tuple[ResourceType, str], _Patterns] = {}
        self._by_type: dict[ResourceType, _Patterns] = {}
        for acl in self.acls:
            self._by_principal.setdefault((acl.resource_type, acl.principal), _Patterns()).add(acl)
            self._by_type.setdefault(acl.resource_type, _Patterns()).add(acl)

    def allows(self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str) -> bool:
        return self.decide(principal, host, operation, kind, name).is_allowed

    def decide(self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str) -> Decision:
        """Return whether a principal at that address may do this, and why."""
        if principal in self.super_users:
            return Decision(True, "super_user")
        allowed: Acl | None = None
        for acl in self._candidates(principal, host, kind, name):
            if acl.permission is Permission.DENY:
                if acl.operation in (operation, Operation.ALL):
                    return Decision(False, "acl", acl)
            elif allowed is None and _allows(acl.operation, operation):
                allowed = acl
        if allowed is not None:
            return Decision(True, "acl", allowed)
        patterns = self._by_type.get(kind)
        if patterns is None or next(patterns.find(name), None) is None:
            return Decision(self.allow_everyone, "no_acl")
        return Decision(False, "missing")

    def allows_some(self, principal: str, host: str, operation: Operation, kind: ResourceType) -> bool:
        """Return whether a principal may do this with any resource of that type, existing or not."""
        if self.allows(principal, host, operation, kind, _SAMPLE):
            return True
        denied: dict[PatternType, set[str]] = {PatternType.LITERAL: set(), PatternType.PREFIXED: set()}
        allowed: list[Acl] = []
        for acl in self._all_of(principal, kind):
            if _is_from(acl, host) and acl.operation in (operation, Operation.ALL):
                if acl.permission is Permission.ALLOW:
                    allowed.append(acl)
                else:
                    denied[acl.pattern_type].add(acl.resource_name)
        if "*" in denied[PatternType.LITERAL]:
            return False
        return any(not _is_denied(acl, denied) for acl in allowed)

    def _candidates(self, principal: str, host: str, kind: ResourceType, name: str) -> Iterator[Acl]:
        for someone in {principal: None, ANYONE: None}:
            patterns = self._by_principal.get((kind, someone))
            if patterns is not None:
                for acl in patterns.find(name):
                    if _is_from(acl, host):
                        yield acl

    def _all_of(self, principal: str, kind: ResourceType) -> Iterator[Acl]:
        for someone in {principal: None, ANYONE: None}:
            patterns = self._by_principal.get((kind, someone))
            if patterns is not None:
                for acls in (*patterns.literal.values(), *patterns.prefixed.values()):
                    yield from acls


def _allows(granted: Operation, operation: Operation) -> bool:
    if granted is operation or granted is Operation.ALL:
        return True
    return granted in _IMPLIED_BY.get(operation, ())


def _is_from(acl: Acl, host: str) -> bool:
    return acl.host in (ANYWHERE, host) or (":" in acl.host and plain_host(acl.host) == plain_host(host))


def _is_denied(acl: Acl, denied: dict[PatternType, set[str]]) -> bool:
    """Return whether other ACLs deny everything that an ACL allows. Checks only what Kafka checks."""
    name = acl.resource_name
    if acl.pattern_type is PatternType.LITERAL:
        if name == "*":
            return False
        if name in denied[PatternType.LITERAL]:
            return True
    return any(name[:length] in denied[PatternType.PREFIXED] for length in range(1, len(name) + 1))
