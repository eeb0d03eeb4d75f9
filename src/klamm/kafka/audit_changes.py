"""Derive, for the audit log, what a request has changed from the request and its response."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from klamm.store.acl import Operation, PatternType, Permission, ResourceType

if TYPE_CHECKING:
    from klamm.kafka.wire.structs import Struct

__all__ = ["CHANGING", "Change", "changes_in"]

_TYPES = {2: "Topic", 3: "Group", 4: "Broker", 32: "Group"}  # of resources of AlterConfigs


class Change(NamedTuple):
    """One thing that was changed, or should have been."""

    activity: str
    """create, alter or delete."""
    resource_type: str
    resource: str
    error_code: int = 0
    error_message: str | None = None
    detail: str = ""
    """Which settings, or what an ACL says."""


def _created_topics(version: int, request: Struct, response: Struct) -> Iterator[Change]:
    if not request.validate_only:
        for topic in response.topics:
            yield Change("create", "Topic", topic.name, topic.error_code, topic.error_message)


def _deleted_topics(version: int, request: Struct, response: Struct) -> Iterator[Change]:
    for topic in response.responses:
        name = topic.name if topic.name is not None else topic.topic_id.hex()
        yield Change("delete", "Topic", name, topic.error_code, topic.error_message)


def _grown_topics(version: int, request: Struct, response: Struct) -> Iterator[Change]:
    if not request.validate_only:
        for topic in response.results:
            yield Change("alter", "Topic", topic.name, topic.error_code, topic.error_message)


def _deleted_records(version: int, request: Struct, response: Struct) -> Iterator[Change]:
    for topic in response.topics:
        for partition in topic.partitions:
            yield Change("delete", "Records", f"{topic.name}-{partition.partition_index}", partition.error_code)


def _altered_configs(version: int, request: Struct, response: Struct) -> Iterator[Change]:
    if not request.validate_only:
        settings = {(each.resource_type, each.resource_name): each.configs for each in request.resources}
        for each in response.responses:
            kind = _TYPES.get(each.resource_type, str(each.resource_type))
            configs = settings.get((each.resource_type, each.resource_name), ())
            names = ",".join(config.name for config in configs)
            yield Change("alter", f"{kind}Config", each.resource_name, each.error_code, each.error_message, names)


def _altered_users(version: int, request: Struct, response: Struct) -> Iterator[Change]:
    removed = {each.name for each in request.deletions} - {each.name for each in request.upsertions}
    for each in response.results:
        activity = "delete" if each.user in removed else "alter"
        yield Change(activity, "User", each.user, each.error_code, each.error_message)


def _altered_quotas(version: int, request: Struct, response: Struct) -> Iterator[Change]:
    if not request.validate_only:
        for each in response.entries:
            parts = (f"{part.entity_type}={part.entity_name or '<default>'}" for part in each.entity)
            yield Change("alter", "ClientQuota", ",".join(parts), each.error_code, each.error_message)


def _created_acls(version: int, request: Struct, response: Struct) -> Iterator[Change]:
    for acl, each in zip(request.creations, response.results, strict=False):
        detail = _detail(acl, acl.resource_pattern_type)
        yield Change("create", "Acl", _name(acl), each.error_code, each.error_message, detail)


def _deleted_acls(version: int, request: Struct, response: Struct) -> Iterator[Change]:
    for each in response.filter_results:
        if each.error_code:
            yield Change("delete", "Acl", "", each.error_code, each.error_message)
        for acl in each.matching_acls:
            detail = _detail(acl, acl.pattern_type)
            yield Change("delete", "Acl", _name(acl), acl.error_code, acl.error_message, detail)


def _name(acl: Struct) -> str:
    return f"{acl.principal} {acl.resource_name}"


def _detail(acl: Struct, pattern: int) -> str:
    """Return the rest of an ACL: ALLOW READ on LITERAL TOPIC from *."""
    rule = f"{_named(Permission, acl.permission_type)} {_named(Operation, acl.operation)}"
    return f"{rule} on {_named(PatternType, pattern)} {_named(ResourceType, acl.resource_type)} from {acl.host}"


def _named(kind: type[IntEnum], number: int) -> str:
    """Return the name of a number that a client may have made up."""
    try:
        return kind(number).name
    except ValueError:
        return str(number)


def _deleted_groups(version: int, request: Struct, response: Struct) -> Iterator[Change]:
    for each in response.results:
        yield Change("delete", "Group", each.group_id, each.error_code)


def _deleted_offsets(version: int, request: Struct, response: Struct) -> Iterator[Change]:
    if response.error_code:
        yield Change("delete", "Offsets", request.group_id, response.error_code)
    for topic in response.topics:
        for each in topic.partitions:
            resource = f"{request.group_id} {topic.name}-{each.partition_index}"
            yield Change("delete", "Offsets", resource, each.error_code)


CHANGING: dict[int, Callable[[int, Struct, Struct], Iterable[Change]]] = {
    19: _created_topics,
    20: _deleted_topics,
    21: _deleted_records,
    30: _created_acls,
    31: _deleted_acls,
    33: _altered_configs,
    37: _grown_topics,
    42: _deleted_groups,
    44: _altered_configs,
    47: _deleted_offsets,
    49: _altered_quotas,
    51: _altered_users,
}
"""By the key of the API."""


def changes_in(key: int, version: int, request: Struct, response: Struct) -> Iterable[Change]:
    """Return what a request has changed, or has failed to change."""
    find = CHANGING.get(key)
    return () if find is None else find(version, request, response)
