"""The rules of ACLs: the index decides as a model does that looks at every ACL; filters; what decided."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.errors import InvalidSetting
from klamm.store.acl import Acl, AclFilter, Operation, PatternType, Permission, ResourceType, validate_acl
from klamm.store.acl_index import AclIndex

NAMES = ["a", "ab", "abc", "b", "*"]
USERS = ["User:alice", "User:bob", "User:*"]
HOSTS = ["127.0.0.1", "0:0:0:0:0:0:0:1", "::1", "*", "*"]
KINDS = [ResourceType.TOPIC, ResourceType.GROUP]
OPERATIONS = [
    Operation.ALL,
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DESCRIBE,
    Operation.ALTER_CONFIGS,
    Operation.DESCRIBE_CONFIGS,
]

ACLS = st.builds(
    Acl,
    st.sampled_from(KINDS),
    st.sampled_from(NAMES),
    st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    st.sampled_from(USERS),
    st.sampled_from(HOSTS),
    st.sampled_from(OPERATIONS),
    st.sampled_from([Permission.ALLOW, Permission.ALLOW, Permission.DENY]),
)
IMPLIED = {
    Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}
LOOPBACK = {"::1", "0:0:0:0:0:0:0:1"}


def rule(text: str, *, permission: Permission = Permission.ALLOW, user: str = "User:alice", host: str = "*") -> Acl:
    """READ ab, or READ ab… for a prefix."""
    operation, _, name = text.partition(" ")
    pattern = PatternType.PREFIXED if name.endswith("…") else PatternType.LITERAL
    return Acl(ResourceType.TOPIC, name.rstrip("…"), pattern, user, host, Operation[operation], permission)


def is_for(acl: Acl, kind: ResourceType, name: str) -> bool:
    if acl.pattern_type is PatternType.PREFIXED:
        fits = name.startswith(acl.resource_name)
    else:
        fits = acl.resource_name in (name, "*")
    return acl.resource_type is kind and fits


def allows(acls: list[Acl], user: str, host: str, operation: Operation, kind: ResourceType, name: str) -> bool | None:
    """Return what every ACL, looked at by itself, comes to; None: there is none for the resource."""
    about = [acl for acl in acls if is_for(acl, kind, name)]
    mine = [
        acl
        for acl in about
        if acl.principal in (user, "User:*")
        and (acl.host in ("*", host) or (acl.host in LOOPBACK and host in LOOPBACK))
    ]
    if any(acl.permission is Permission.DENY and acl.operation in (operation, Operation.ALL) for acl in mine):
        return False
    granting = {operation, Operation.ALL} | IMPLIED.get(operation, set())
    if any(acl.permission is Permission.ALLOW and acl.operation in granting for acl in mine):
        return True
    return False if about else None


@given(
    st.lists(ACLS, max_size=12),
    st.sampled_from(["User:alice", "User:bob"]),
    st.sampled_from([host for host in HOSTS if host != "*"]),
    st.sampled_from(OPERATIONS[1:]),
    st.sampled_from(KINDS),
    st.sampled_from([*NAMES, "abcd", "c"]),
    st.booleans(),
)
def test_the_index_decides_as_each_acl_by_itself(
    acls: list[Acl], user: str, host: str, operation: Operation, kind: ResourceType, name: str, everyone: bool
) -> None:
    index = AclIndex(acls, super_users=["User:root"], allow_everyone=everyone)
    expected = allows(acls, user, host, operation, kind, name)
    decision = index.decide(user, host, operation, kind, name)
    assert decision.is_allowed == index.allows(user, host, operation, kind, name)
    assert decision.is_allowed == (everyone if expected is None else expected)
    if decision.acl is not None:
        assert decision.acl in acls and is_for(decision.acl, kind, name)
        assert (decision.acl.permission is Permission.ALLOW) == decision.is_allowed
    else:
        assert decision.reason == ("no_acl" if expected is None else "missing")
    assert index.decide("User:root", host, operation, kind, name) == (True, "super_user", None)


@given(st.lists(ACLS, max_size=8), st.sampled_from(["User:alice", "User:carol"]), st.booleans())
def test_whether_some_topic_may_be_written_is_whether_there_could_be_one(
    acls: list[Acl], user: str, everyone: bool
) -> None:
    """Tried with every name that the ACLs tell apart. Where a longer prefix or a literal is denied within one that is
    allowed, Kafka does not look closer, and neither do we: then nothing is claimed.
    """
    index = AclIndex(acls, allow_everyone=everyone)
    host, write, topic = "127.0.0.1", Operation.WRITE, ResourceType.TOPIC
    names = [name + more for name in [*NAMES, "hardcode", "zz"] for more in ("", "z", "b", "c")]
    could = any(index.allows(user, host, write, topic, name) for name in names)
    is_some = index.allows_some(user, host, write, topic)
    if not everyone:
        assert is_some or not could or any(acl.permission is Permission.DENY for acl in acls)
        assert could or not is_some
    else:
        assert could or not is_some


def test_a_denial_wins_over_what_is_more_specific() -> None:
    acls = [rule("READ orders"), rule("READ *", permission=Permission.DENY)]
    decision = AclIndex(acls).decide("User:alice", "h", Operation.READ, ResourceType.TOPIC, "orders")
    assert (decision.is_allowed, decision.acl) == (False, acls[1])


def test_a_denial_for_an_address_within_ipv6_is_one_for_the_address() -> None:
    index = AclIndex([rule("READ a"), rule("READ a", permission=Permission.DENY, host="::ffff:10.0.0.1")])
    assert not index.allows("User:alice", "10.0.0.1", Operation.READ, ResourceType.TOPIC, "a")
    assert index.allows("User:alice", "10.0.0.2", Operation.READ, ResourceType.TOPIC, "a")


def test_the_most_specific_rule_is_named() -> None:
    acls = [rule("READ *"), rule("READ or…"), rule("READ orders"), rule("READ orde…")]
    for name, expected in {"orders": acls[2], "order": acls[3], "orange": acls[1], "x": acls[0]}.items():
        assert AclIndex(acls).decide("User:alice", "h", Operation.READ, ResourceType.TOPIC, name).acl == expected


def test_a_denied_operation_denies_no_other() -> None:
    index = AclIndex([rule("DESCRIBE a"), rule("READ a", permission=Permission.DENY)])
    assert index.allows("User:alice", "h", Operation.DESCRIBE, ResourceType.TOPIC, "a")
    assert not index.allows("User:alice", "h", Operation.READ, ResourceType.TOPIC, "a")


@given(ACLS, st.data())
def test_filters_choose_as_their_fields_say(acl: Acl, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([None, *NAMES]))
    pattern = data.draw(st.sampled_from(PatternType))
    rest = {
        "resource_type": data.draw(st.sampled_from([ResourceType.ANY, *KINDS])),
        "principal": data.draw(st.sampled_from([None, *USERS])),
        "host": data.draw(st.sampled_from([None, *HOSTS])),
        "operation": data.draw(st.sampled_from(Operation)),
        "permission": data.draw(st.sampled_from(Permission)),
    }
    anything = {None, ResourceType.ANY, Operation.ANY, Permission.ANY}
    fits = all(getattr(acl, field) == value or value in anything for field, value in rest.items())
    if pattern is PatternType.MATCH:
        fits &= name is None or is_for(acl, acl.resource_type, name)
    else:
        fits &= pattern in (PatternType.ANY, acl.pattern_type) and name in (None, acl.resource_name)
    assert AclFilter(resource_name=name, pattern_type=pattern, **rest).matches(acl) == fits


@pytest.mark.parametrize(
    "wrong",
    [
        {"resource_type": ResourceType.ANY},
        {"resource_name": ""},
        {"resource_type": ResourceType.CLUSTER, "resource_name": "other"},
        {"pattern_type": PatternType.MATCH},
        {"principal": "alice"},
        {"principal": "User:"},
        {"host": ""},
        {"operation": Operation.ANY},
        {"permission": Permission.ANY},
    ],
)
def test_what_cannot_be_an_acl_is_refused(wrong: dict[str, object]) -> None:
    assert validate_acl(rule("READ a")) == rule("READ a")
    with pytest.raises(InvalidSetting, match=r"acl: .* is invalid"):
        validate_acl(rule("READ a")._replace(**wrong))  # type: ignore[arg-type]
