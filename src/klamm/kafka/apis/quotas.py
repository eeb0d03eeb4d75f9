"""DescribeClientQuotas and AlterClientQuotas: quotas, as `kafka-configs` sees them.

Describe    Entities that each component of the filter fits; with `strict`, those that have no other part.
Alter       What is wrong with one entity is an error of that entity, and the others are changed, as in Kafka. Quotas
            count from the response on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.errors import InvalidSetting
from klamm.kafka.api_error import ApiError
from klamm.kafka.call import ADMIN, CATALOG, LARGE, LOOP, SupportedApi
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.wire.messages import ALTER_CLIENT_QUOTAS, DESCRIBE_CLIENT_QUOTAS
from klamm.store.acl import CLUSTER_NAME, Operation, ResourceType
from klamm.store.quotas import CLIENT_ID, IP, USER, make_entity, validate_quota

if TYPE_CHECKING:
    from klamm.kafka.broker import Broker
    from klamm.kafka.call import Call
    from klamm.kafka.wire.structs import Struct
    from klamm.store.quotas import Entity

__all__ = ["HANDLERS"]

_EXACT, _DEFAULT, _ANY = range(3)  # match types


# ---- DescribeClientQuotas


async def describe_client_quotas(broker: Broker, call: Call) -> Struct:
    response = DESCRIBE_CLIENT_QUOTAS.response
    request = call.request
    try:
        call.check(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME)
        _check_filter(request)
    except ApiError as error:
        return response(error_code=error.code, error_message=error.message, entries=None)
    quotas = await broker.catalog(broker.quota_table.all)
    entries = []
    turn = broker.large_requests.turn(call)
    for entity, values in quotas.items():
        if turn.is_over:
            await turn.next()
        if _fits(entity, request):
            parts = [response.Entity(entity_type=kind, entity_name=name) for kind, name in entity]
            found = [response.Value(key=key, value=value) for key, value in values.items()]
            entries.append(response.Entry(entity=parts, values=found))
    return response(error_code=0, error_message=None, entries=entries)


def _check_filter(request: Struct) -> None:
    seen = set[str]()
    for component in request.components:
        kind = component.entity_type
        if not kind:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Invalid empty entity type.")
        if kind in seen:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in (USER, CLIENT_ID, IP):
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}.")
        if component.match_type not in (_EXACT, _DEFAULT, _ANY):
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown match type {component.match_type}")
        if (component.match_type == _EXACT) == (component.match is None):
            raise ApiError(ErrorCode.INVALID_REQUEST, "An exact match, and no other, names what it matches.")
        seen.add(kind)
    if IP in seen and len(seen) > 1:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            "Invalid entity filter component combination: IP filter component should not be used with user or clientId"
            " filter component.",
        )


def _fits(entity: Entity, request: Struct) -> bool:
    parts = dict(entity)
    if request.strict and len(parts) != len(request.components):
        return False
    return all(
        component.entity_type in parts
        and (component.match_type == _ANY or parts[component.entity_type] == component.match)
        for component in request.components
    )


# ---- AlterClientQuotas


async def alter_client_quotas(broker: Broker, call: Call) -> Struct:
    response = ALTER_CLIENT_QUOTAS.response
    results: list[Struct] = []
    changes: dict[Entity, dict[str, float | None]] = {}
    denied = call.denied(Operation.ALTER_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME)
    turn = broker.large_requests.turn(call, to_the_end=True)
    for entry in call.request.entries:
        if turn.is_over:
            await turn.next()
        code, message = ErrorCode.NONE, None
        try:
            if denied is not None:
                raise denied
            entity, values = _change(entry)
            if entity in changes:
                raise InvalidSetting("Ignoring duplicate entity")
            changes[entity] = values
        except ApiError as error:
            code, message = error.code, error.message
        except InvalidSetting as error:
            code, message = ErrorCode.INVALID_REQUEST, error.message
        parts = [response.Entity(entity_type=each.entity_type, entity_name=each.entity_name) for each in entry.entity]
        results.append(response.Result(error_code=code, error_message=message, entity=parts))
    if changes and not call.request.validate_only:
        await broker.administer(broker.quota_table.alter, changes.items())
        await broker.reload_quotas()
    return response(entries=results)


def _change(entry: Struct) -> tuple[Entity, dict[str, float | None]]:
    entity = make_entity((each.entity_type, each.entity_name) for each in entry.entity)
    values: dict[str, float | None] = {}
    for operation in entry.ops:
        value = None if operation.remove else operation.value
        validate_quota(entity, operation.key, value)
        if operation.key in values:
            raise InvalidSetting(f"Duplicate quota key {operation.key}")
        values[operation.key] = value
    return entity, values


HANDLERS = (
    SupportedApi(
        DESCRIBE_CLIENT_QUOTAS,
        0,
        1,
        describe_client_quotas,
        runs=(LOOP, CATALOG),
        rights=("DescribeConfigs Cluster",),
        max_response_bytes=LARGE,
        needs_catalog=False,
    ),
    SupportedApi(
        ALTER_CLIENT_QUOTAS,
        0,
        1,
        alter_client_quotas,
        runs=(LOOP, CATALOG, ADMIN),
        rights=("AlterConfigs Cluster",),
        max_response_bytes=LARGE,
        needs_catalog=False,
    ),
)
