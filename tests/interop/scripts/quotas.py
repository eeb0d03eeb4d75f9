"""Quotas of clients: set, described, removed, and refused."""

from __future__ import annotations

from typing import Any

from klamm.kafka.wire.messages import ALTER_CLIENT_QUOTAS, DESCRIBE_CLIENT_QUOTAS
from tests.interop.scripts import ScriptContext, script

EXACT, DEFAULT, ANY = range(3)
RATE = "producer_byte_rate"


def alter(
    context: ScriptContext, what: str, parts: list[tuple[str, str | None]], *operations: tuple[str, float | None],
    version: int = 1, **fields: Any,
) -> None:  # fmt: skip
    request = ALTER_CLIENT_QUOTAS.request
    entity = [request.Entity(entity_type=kind, entity_name=name) for kind, name in parts]
    ops = [request.Operation(key=key, value=value or 0.0, remove=value is None) for key, value in operations]
    context.ask(what, ALTER_CLIENT_QUOTAS, version, entries=[request.Entry(entity=entity, ops=ops)], **fields)


def describe(
    context: ScriptContext,
    what: str,
    *components: tuple[str, int, str | None],
    strict: bool = False,
    version: int = 1,
    count: int | None = None,
) -> None:
    """Note the response, once it has so many quotas: Kafka's brokers hear of changes a moment later."""
    request = DESCRIBE_CLIENT_QUOTAS.request
    wanted = [request.Component(entity_type=kind, match_type=how, match=name) for kind, how, name in components]
    response = context.until(
        DESCRIBE_CLIENT_QUOTAS,
        version,
        lambda response: count is None or sum(len(entry.values) for entry in response.entries) == count,
        components=wanted,
        strict=strict,
    )
    for entry in response.entries or ():
        entry.entity.sort(key=lambda part: part.entity_type)
        entry.values.sort(key=lambda value: value.key)
    if response.entries:
        response.entries.sort(key=lambda entry: len(entry.entity))
    context.note(what, response)


@script
def quotas_are_set_and_described(context: ScriptContext) -> None:
    user, client_id = context.name("user"), context.name("client")
    for version in (0, 1):
        alter(context, f"set v{version}", [("user", user)], (RATE, 1e6), ("request_percentage", 12.5), version=version)
        both: list[tuple[str, str | None]] = [("user", user), ("client-id", client_id)]
        alter(context, f"set both v{version}", both, ("consumer_byte_rate", 5e6), version=version)
        describe(context, f"by user v{version}", ("user", EXACT, user), version=version, count=3)
        describe(context, f"strictly v{version}", ("user", EXACT, user), strict=True, version=version)
        describe(context, f"both v{version}", ("user", EXACT, user), ("client-id", ANY, None), version=version)
        describe(context, f"default v{version}", ("user", EXACT, user), ("client-id", DEFAULT, None), version=version)
        alter(context, f"tried v{version}", [("user", user)], (RATE, 7.0), version=version, validate_only=True)
        alter(context, f"removed v{version}", [("user", user)], (RATE, None), version=version)
        describe(context, f"what is left v{version}", ("user", EXACT, user), strict=True, version=version, count=1)
        alter(context, f"nothing to remove v{version}", [("user", user)], (RATE, None), version=version)
        alter(context, f"removed both v{version}", both, ("consumer_byte_rate", None), version=version)
        alter(context, f"removed all v{version}", [("user", user)], ("request_percentage", None), version=version)
        describe(context, f"nothing is left v{version}", ("user", EXACT, user), version=version, count=0)


@script
def quotas_that_cannot_be(context: ScriptContext) -> None:
    user = context.name("user")
    alter(context, "no entity", [], (RATE, 1.0))
    alter(context, "no such type", [("group", user)], (RATE, 1.0))
    alter(context, "empty name", [("user", "")], (RATE, 1.0))
    alter(context, "an address and a user", [("ip", "127.0.0.9"), ("user", user)], ("connection_creation_rate", 1.0))
    alter(context, "no address", [("ip", "example.invalid")], ("connection_creation_rate", 1.0))
    alter(context, "no such quota", [("user", user)], ("records_rate", 1.0))
    alter(context, "of addresses", [("user", user)], ("connection_creation_rate", 1.0))
    alter(context, "of users", [("ip", "127.0.0.9")], (RATE, 1.0))
    alter(context, "zero", [("user", user)], (RATE, 0.0))
    alter(context, "negative", [("user", user)], ("request_percentage", -1.0))
    alter(context, "a fraction", [("user", user)], (RATE, 1.5))
    alter(context, "too large", [("ip", "127.0.0.9")], ("connection_creation_rate", 2.0**31))
    describe(context, "nothing was set", ("user", EXACT, user))


@script
def filters_of_quotas_that_cannot_be(context: ScriptContext) -> None:
    describe(context, "no type", ("", EXACT, "x"))
    describe(context, "twice", ("user", EXACT, "x"), ("user", DEFAULT, None))
    describe(context, "an address and a user", ("user", ANY, None), ("ip", ANY, None))
