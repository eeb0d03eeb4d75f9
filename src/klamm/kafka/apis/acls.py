"""DescribeAcls, CreateAcls and DeleteAcls: what clients may do, as `kafka-acls` sees and changes it.

Without `authorizer.class.name` all three are SECURITY_DISABLED, as in Kafka. What is wrong with one of the ACLs to
create is an error of that one, and the others are created; all that a request deletes is deleted in one write. A number
that stands for no resource type, operation and so on is INVALID_REQUEST; Kafka closes the connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.errors import InvalidSetting, KlammError
from klamm.kafka.api_error import ApiError, code_and_message
from klamm.kafka.call import ADMIN, CATALOG, LARGE, LOOP, SupportedApi
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.wire.messages import CREATE_ACLS, DELETE_ACLS, DESCRIBE_ACLS
from klamm.store.acl import (
    CLUSTER_NAME,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    validate_acl,
)

if TYPE_CHECKING:
    from klamm.kafka.broker import Broker
    from klamm.kafka.call import Call
    from klamm.kafka.wire.structs import Struct

__all__ = ["HANDLERS"]

_OFF = ApiError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured: see authorizer.class.name")


def _error(broker: Broker, call: Call, operation: Operation) -> ApiError | None:
    """Return what is in the way of the whole request."""
    if broker.authorizer is None:
        return _OFF
    return call.denied(operation, ResourceType.CLUSTER, CLUSTER_NAME)


# ---- DescribeAcls


async def describe_acls(broker: Broker, call: Call) -> Struct:
    response = DESCRIBE_ACLS.response
    try:
        error = _error(broker, call, Operation.DESCRIBE)
        if error is not None:
            raise error
        acls: list[Acl] = await broker.catalog(broker.acls.find, _filter(call.request))
    except (ApiError, KlammError) as failure:
        code, message = code_and_message(failure)
        return response(error_code=code, error_message=message)
    resources: dict[tuple[int, str, int], Struct] = {}
    turn = broker.large_requests.turn(call)
    for acl in acls:
        if turn.is_over:
            await turn.next()
        key = acl.resource_type, acl.resource_name, acl.pattern_type
        if key not in resources:
            resources[key] = response.Resource(resource_type=key[0], resource_name=key[1], pattern_type=key[2])
        resources[key].acls.append(
            response.Acl(
                principal=acl.principal, host=acl.host, operation=acl.operation, permission_type=acl.permission
            )
        )
    return response(error_message=None, resources=list(resources.values()))


def _filter(requested: Struct) -> AclFilter:
    try:
        return AclFilter(
            ResourceType(requested.resource_type_filter),
            requested.resource_name_filter,
            PatternType(requested.pattern_type_filter),
            requested.principal_filter,
            requested.host_filter,
            Operation(requested.operation),
            Permission(requested.permission_type),
        )
    except ValueError as error:
        raise ApiError(ErrorCode.INVALID_REQUEST, str(error)) from None


# ---- CreateAcls


async def create_acls(broker: Broker, call: Call) -> Struct:
    creations = call.request.creations
    error = _error(broker, call, Operation.ALTER)
    outcomes: list[Acl | ApiError] = []
    acls: list[Acl] = []
    turn = broker.large_requests.turn(call, to_the_end=True)
    for creation in creations:
        if turn.is_over:
            await turn.next()
        outcome = error or _acl(creation)
        outcomes.append(outcome)
        if isinstance(outcome, Acl):
            acls.append(outcome)
    failed: ApiError | None = None
    if acls:
        try:
            await broker.administer(broker.acls.add, acls)
        except KlammError as failure:
            failed = ApiError(*code_and_message(failure))
    response, results = CREATE_ACLS.response, []
    for outcome in outcomes:
        if turn.is_over:
            await turn.next()
        wrong = outcome if isinstance(outcome, ApiError) else failed
        if wrong is not None:
            results.append(response.Result(error_code=wrong.code, error_message=wrong.message))
        else:
            results.append(response.Result(error_code=0, error_message=None))
    return response(results=results)


def _acl(creation: Struct) -> Acl | ApiError:
    try:
        return validate_acl(
            Acl(
                ResourceType(creation.resource_type),
                creation.resource_name,
                PatternType(creation.resource_pattern_type),
                creation.principal,
                creation.host,
                Operation(creation.operation),
                Permission(creation.permission_type),
            )
        )
    except (ValueError, InvalidSetting) as error:
        return ApiError(ErrorCode.INVALID_REQUEST, str(error))


# ---- DeleteAcls


async def delete_acls(broker: Broker, call: Call) -> Struct:
    error = _error(broker, call, Operation.ALTER)
    outcomes: list[AclFilter | ApiError] = []
    filters: list[AclFilter] = []
    turn = broker.large_requests.turn(call, to_the_end=True)
    for each in call.request.filters:
        if turn.is_over:
            await turn.next()
        try:
            if error is not None:
                raise error
            filters.append(_filter(each))
            outcomes.append(filters[-1])
        except ApiError as refused:
            outcomes.append(refused)
    removed: list[list[Acl]] = []
    failed: ApiError | None = None
    if filters:
        try:
            removed = await broker.administer(broker.acls.remove, filters)
        except KlammError as failure:
            failed = ApiError(*code_and_message(failure))
    response, matched, results = DELETE_ACLS.response, iter(removed), []
    for outcome in outcomes:
        if turn.is_over:
            await turn.next()
        wrong = outcome if isinstance(outcome, ApiError) else failed
        if wrong is not None:
            results.append(response.FilterResult(error_code=wrong.code, error_message=wrong.message))
            continue
        result = response.FilterResult(error_code=0, error_message=None, matching_acls=[])
        results.append(result)
        for acl in next(matched):
            if turn.is_over:
                await turn.next()
            result.matching_acls.append(_matching(acl))
    return response(filter_results=results)


def _matching(acl: Acl) -> Struct:
    return DELETE_ACLS.response.MatchingAcl(
        error_code=0,
        error_message=None,
        resource_type=acl.resource_type,
        resource_name=acl.resource_name,
        pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


HANDLERS = (
    SupportedApi(
        DESCRIBE_ACLS,
        1,
        3,
        describe_acls,
        runs=(LOOP, CATALOG),
        rights=("Describe Cluster",),
        max_response_bytes=LARGE,
        needs_catalog=False,
    ),
    SupportedApi(
        CREATE_ACLS,
        1,
        3,
        create_acls,
        runs=(LOOP, ADMIN),
        rights=("Alter Cluster",),
        max_response_bytes=LARGE,
        needs_catalog=False,
    ),
    SupportedApi(
        DELETE_ACLS,
        1,
        3,
        delete_acls,
        runs=(LOOP, ADMIN),
        rights=("Alter Cluster",),
        max_response_bytes=LARGE,
        needs_catalog=False,
    ),
)
