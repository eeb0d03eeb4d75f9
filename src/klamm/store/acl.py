"""One ACL, in Kafka's terms: a principal at an address may, or may not, do an operation on a resource.

    Acl(TOPIC, "orders", LITERAL, "User:alice", "*", READ, ALLOW)

A resource is named as it is (LITERAL; `*` is all of its type) or by how its name begins (PREFIXED). The principal
`User:*` is everyone, the host `*` every address. There is one resource of type CLUSTER, CLUSTER_NAME.

The numbers are those of Kafka's protocol. ANY and MATCH are for filters alone.
"""

from __future__ import annotations

import ipaddress
from enum import IntEnum
from typing import NamedTuple

from klamm.errors import InvalidSetting

__all__ = [
    "ANYONE",
    "ANYWHERE",
    "CLUSTER_NAME",
    "SUPPORTED",
    "Acl",
    "AclFilter",
    "Operation",
    "PatternType",
    "Permission",
    "ResourceType",
    "plain_host",
    "validate_acl",
]

CLUSTER_NAME = "kafka-cluster"
ANYONE = "User:*"
ANYWHERE = "*"


class ResourceType(IntEnum):
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    ANY = 1
    DENY = 2
    ALLOW = 3


SUPPORTED: dict[ResourceType, tuple[Operation, ...]] = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
    ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE, Operation.TWO_PHASE_COMMIT),
    ResourceType.DELEGATION_TOKEN: (Operation.DESCRIBE,),
    ResourceType.USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
}
"""The operations that mean something for a resource of that type."""


class Acl(NamedTuple):
    resource_type: ResourceType
    resource_name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: Operation
    permission: Permission

    def __str__(self) -> str:
        """ALLOW User:alice READ on TOPIC LITERAL orders from *."""
        return (
            f"{self.permission.name} {self.principal} {self.operation.name} on {self.resource_type.name}"
            f" {self.pattern_type.name} {self.resource_name} from {self.host}"
        )


class AclFilter(NamedTuple):
    """A filter of ACLs. None matches anything; MATCH matches the patterns that cover a resource of that name."""

    resource_type: ResourceType = ResourceType.ANY
    resource_name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def matches(self, acl: Acl) -> bool:
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self._matches_pattern(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )

    def _matches_pattern(self, acl: Acl) -> bool:
        name = self.resource_name
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        if name is None:
            return True
        if self.pattern_type is not PatternType.MATCH:
            return name == acl.resource_name
        if acl.pattern_type is PatternType.PREFIXED:
            return name.startswith(acl.resource_name)
        return acl.resource_name in (name, "*")


def validate_acl(acl: Acl) -> Acl:
    """Return the ACL, or raise InvalidSetting if it is invalid."""
    if acl.resource_type is ResourceType.ANY:
        raise _invalid("resource type", acl.resource_type.name, "name one")
    if acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise _invalid("pattern type", acl.pattern_type.name, "expected LITERAL or PREFIXED")
    if acl.operation is Operation.ANY:
        raise _invalid("operation", acl.operation.name, "name one; ALL is all of them")
    if acl.permission is Permission.ANY:
        raise _invalid("permission", acl.permission.name, "expected ALLOW or DENY")
    if not acl.resource_name:
        raise _invalid("resource name", "", "it must not be empty; * is all of its type")
    if acl.resource_type is ResourceType.CLUSTER and acl.resource_name != CLUSTER_NAME:
        raise _invalid("resource name", acl.resource_name, f"the only one of type CLUSTER is {CLUSTER_NAME}")
    kind, colon, name = acl.principal.partition(":")
    if not (kind and colon and name):
        raise _invalid("principal", acl.principal, "expected a type and a name, as User:alice; User:* is everyone")
    if not acl.host:
        raise _invalid("host", "", "expected an address; * is all of them")
    return acl


def _invalid(what: str, value: str, hint: str) -> InvalidSetting:
    return InvalidSetting(f"acl: {what}: {value[:100]!r} is invalid", hint=hint)


def plain_host(host: str) -> str:
    """Return the canonical form of an address: Java writes 0:0:0:0:0:0:0:1 where others write ::1,
    and ::ffff:10.0.0.1 is 10.0.0.1.
    """
    if ":" not in host:
        return host
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    return str(getattr(address, "ipv4_mapped", None) or address)
