"""DescribeClientQuotas and AlterClientQuotas: what is set, what is refused, what a filter finds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from klamm.kafka.apis import quotas as quota_apis
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.wire.messages import ALTER_CLIENT_QUOTAS, DESCRIBE_CLIENT_QUOTAS
from klamm.store.quotas import Entity, make_entity
from tests.interop.raw import Raw

ANYONE = make_entity([("user", "ANONYMOUS")])
ADDRESS = make_entity([("ip", "127.0.0.1")])


def entity(**parts: str | None) -> Entity:
    return make_entity([(kind.replace("_", "-"), name) for kind, name in parts.items()])


def alter(
    raw: Raw, changes: Mapping[Entity, Mapping[str, float | None]], version: int = 1, **options: Any
) -> list[Any]:
    request = ALTER_CLIENT_QUOTAS.request
    entries = [
        request.Entry(
            entity=[request.Entity(entity_type=kind, entity_name=name) for kind, name in each],
            ops=[request.Operation(key=key, value=value or 0.0, remove=value is None) for key, value in values.items()],
        )
        for each, values in changes.items()
    ]
    response = raw.ask(ALTER_CLIENT_QUOTAS, version, entries=entries, **options)
    return [(entry.error_code, entry.error_message) for entry in response.entries]


def describe(raw: Raw, *components: tuple[str, int, str | None], strict: bool = False, version: int = 1) -> Any:
    request = DESCRIBE_CLIENT_QUOTAS.request
    wanted = [request.Component(entity_type=kind, match_type=how, match=what) for kind, how, what in components]
    response = raw.ask(DESCRIBE_CLIENT_QUOTAS, version, components=wanted, strict=strict)
    if response.error_code:
        assert response.entries is None and response.error_message
        return response.error_code
    return {
        tuple((part.entity_type, part.entity_name) for part in entry.entity): {
            value.key: value.value for value in entry.values
        }
        for entry in response.entries
    }


def test_quotas_are_altered_described_and_removed(raw: Raw) -> None:
    named, default, both = entity(user="alice"), entity(user=None), entity(user="alice", client_id=None)
    for version in (0, 1):
        assert describe(raw, version=version) == {}
        changes: Any = {named: {"producer_byte_rate": 10.0}, default: {"request_percentage": 90.5}, both: {}}
        assert alter(raw, changes, version) == [(0, None)] * 3
        assert alter(raw, {both: {"consumer_byte_rate": 5.0}, ADDRESS: {"connection_creation_rate": 99.0}}) == (
            [(0, None)] * 2
        )
        assert set(describe(raw, version=version)) == {named, default, both, ADDRESS}
        assert describe(raw, ("user", 0, "alice")) == {
            named: {"producer_byte_rate": 10.0},
            both: {"consumer_byte_rate": 5.0},
        }
        assert set(describe(raw, ("user", 0, "alice"), strict=True)) == {named}
        assert set(describe(raw, ("user", 1, None))) == {default}
        assert set(describe(raw, ("user", 2, None))) == {named, default, both}
        assert set(describe(raw, ("client-id", 1, None), ("user", 2, None), strict=True)) == {both}
        assert set(describe(raw, strict=True)) == set()
        assert set(describe(raw, ("ip", 2, None))) == {ADDRESS}
        alter(raw, {named: {"producer_byte_rate": None}, default: {"request_percentage": None}})
        alter(raw, {both: {"consumer_byte_rate": None}, ADDRESS: {"connection_creation_rate": None}})


def test_what_is_only_validated_is_not_changed(raw: Raw) -> None:
    assert alter(raw, {ANYONE: {"producer_byte_rate": 1.0}}, validate_only=True) == [(0, None)]
    assert describe(raw) == {}


def test_a_quota_that_cannot_be_is_an_error_of_its_entity_alone(raw: Raw) -> None:
    changes: dict[Entity, dict[str, float | None]] = {
        (): {"producer_byte_rate": 1.0},
        (("group", "g"),): {"producer_byte_rate": 1.0},
        (("user", ""),): {"producer_byte_rate": 1.0},
        (("user", "a"), ("user", "b")): {"producer_byte_rate": 1.0},
        (("ip", "1.2.3.4"), ("user", "b")): {"connection_creation_rate": 1.0},
        (("ip", "example.invalid"),): {"connection_creation_rate": 1.0},
        (("user", "a"),): {"connection_creation_rate": 1.0},
        (("user", "b"),): {"producer_byte_rate": 0.0},
        (("user", "c"),): {"producer_byte_rate": float("nan")},
        (("user", "d"),): {"producer_byte_rate": 1.5},
        (("user", "e"),): {"consumer_byte_rate": 1e30},
        (("ip", "1.2.3.4"),): {"connection_creation_rate": 2.0**31},
        (("user", "f"),): {"request_percentage": float("inf")},
        (("user", "h"),): {"request_percentage": 1e-323},
        (("user", "i"),): {"producer_byte_rate": 1e-320},
        (("user", "g"),): {"consumer_byte_rate": 7.0},
    }
    codes = [code for code, _ in alter(raw, changes)]
    assert codes == [ErrorCode.INVALID_REQUEST] * (len(changes) - 1) + [0]
    assert describe(raw) == {(("user", "g"),): {"consumer_byte_rate": 7.0}}


class Compared(tuple[Any, ...]):
    """An entity that counts how often it is compared."""

    comparisons = 0
    __slots__ = ()
    __hash__ = tuple.__hash__

    def __eq__(self, other: object) -> bool:
        Compared.comparisons += 1
        return tuple.__eq__(self, other)


def test_each_entity_of_a_request_is_looked_up_once(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not compared with each one before it: a request may have many thousands."""
    monkeypatch.setattr(quota_apis, "make_entity", lambda parts: Compared(make_entity(parts)))
    changes = {entity(user=str(number)): {"producer_byte_rate": 1.0} for number in range(300)}
    assert alter(raw, changes, validate_only=True) == [(0, None)] * 300
    assert Compared.comparisons < 300


def test_an_entity_that_is_named_twice_is_changed_once(raw: Raw) -> None:
    request = ALTER_CLIENT_QUOTAS.request
    entries = [
        request.Entry(
            entity=[request.Entity(entity_type="user", entity_name="a")],
            ops=[request.Operation(key="consumer_byte_rate", value=value)],
        )
        for value in (1.0, 2.0)
    ]
    response = raw.ask(ALTER_CLIENT_QUOTAS, 1, entries=entries)
    assert [each.error_code for each in response.entries] == [0, ErrorCode.INVALID_REQUEST]
    assert describe(raw, ("user", 0, "a")) == {entity(user="a"): {"consumer_byte_rate": 1.0}}


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("", 0, "x")], ErrorCode.INVALID_REQUEST),
        ([("group", 0, "x")], ErrorCode.UNSUPPORTED_VERSION),
        ([("user", 0, "x"), ("user", 1, None)], ErrorCode.INVALID_REQUEST),
        ([("user", 0, None)], ErrorCode.INVALID_REQUEST),
        ([("user", 1, "x")], ErrorCode.INVALID_REQUEST),
        ([("user", 7, None)], ErrorCode.INVALID_REQUEST),
        ([("user", 2, None), ("ip", 2, None)], ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_filter_that_cannot_be_is_refused(raw: Raw, components: list[Any], code: ErrorCode) -> None:
    assert describe(raw, *components) == code
