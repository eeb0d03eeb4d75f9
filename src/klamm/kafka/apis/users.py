"""DescribeUserScramCredentials and AlterUserScramCredentials: users, as `kafka-configs --entity-type users` sees them.

Describe    Mechanisms and iterations, never keys.
Alter       The client sends salt and salted password; what is stored is derived from it (store/scram.py). What is wrong
            with one user is an error of that user, and the others are changed, as in Kafka.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from klamm.errors import InvalidSetting
from klamm.kafka.api_error import ApiError
from klamm.kafka.call import ADMIN, CATALOG, LARGE, LOOP, SupportedApi
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.wire.messages import ALTER_USER_SCRAM_CREDENTIALS, DESCRIBE_USER_SCRAM_CREDENTIALS
from klamm.store.acl import CLUSTER_NAME, Operation, ResourceType
from klamm.store.scram import MAX_ITERATIONS, MIN_ITERATIONS, Credential, derive_from_salted
from klamm.store.users import User, validate_user

if TYPE_CHECKING:
    from klamm.kafka.broker import Broker
    from klamm.kafka.call import Call
    from klamm.kafka.wire.structs import Struct
    from klamm.store.users import Users

__all__ = ["HANDLERS"]

_NUMBERS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
_NAMES = {number: name for name, number in _NUMBERS.items()}
_MAX_SALT_BYTES = 1024
_SIZES = {"SCRAM-SHA-256": 32, "SCRAM-SHA-512": 64}  # of a salted password


# ---- DescribeUserScramCredentials


async def describe_user_scram_credentials(broker: Broker, call: Call) -> Struct:
    results = []
    turn = broker.large_requests.turn(call)
    error = call.denied(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    if error is not None:
        response = DESCRIBE_USER_SCRAM_CREDENTIALS.response
        denied = {"error_code": error.code, "error_message": error.message}
        for _ in call.request.users or ():
            if turn.is_over:
                await turn.next()
            results.append(response.Result(user="", **denied))  # nameless, as in Kafka
        return response(**denied, results=results)
    users = await broker.catalog(_by_name, broker.users)
    requested = Counter(each.name for each in call.request.users or ())
    for name in requested or users:
        if turn.is_over:
            await turn.next()
        results.append(_described(name, users, requested[name]))
    return DESCRIBE_USER_SCRAM_CREDENTIALS.response(error_code=0, error_message=None, results=results)


def _by_name(users: Users) -> dict[str, User]:
    """Return all users. In a thread."""
    return {user.name: user for user in users.all()}


def _described(name: str, users: dict[str, User], times: int) -> Struct:
    """Return what is said of one user, who is named so many times in the request."""
    response = DESCRIBE_USER_SCRAM_CREDENTIALS.response
    if times > 1:
        message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
        return response.Result(
            user=name, error_code=ErrorCode.DUPLICATE_RESOURCE, error_message=message, credential_infos=[]
        )
    user = users.get(name)
    if user is None:
        message = f"Attempt to describe a user credential that does not exist: {name}"
        return response.Result(
            user=name, error_code=ErrorCode.RESOURCE_NOT_FOUND, error_message=message, credential_infos=[]
        )
    infos = [
        response.Credential(mechanism=_NUMBERS[mechanism], iterations=iterations)
        for mechanism, iterations in user.mechanisms
    ]
    return response.Result(user=name, error_code=0, error_message=None, credential_infos=infos)


# ---- AlterUserScramCredentials


async def alter_user_scram_credentials(broker: Broker, call: Call) -> Struct:
    denied = call.denied(Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)
    errors: dict[str, ApiError | None]
    if denied is not None:
        errors = {each.name: denied for each in (*call.request.deletions, *call.request.upsertions)}
    else:
        errors = await broker.administer(_alter, broker.users, call.request)
    response, results = ALTER_USER_SCRAM_CREDENTIALS.response, []
    turn = broker.large_requests.turn(call, to_the_end=True)
    for name, error in errors.items():
        if turn.is_over:
            await turn.next()
        code, message = (0, None) if error is None else (error.code, str(error))
        results.append(response.Result(user=name, error_code=code, error_message=message))
    return response(results=results)


def _alter(users: Users, request: Struct) -> dict[str, ApiError | None]:
    """Return what is wrong with each user that the request names. In a thread."""
    errors: dict[str, ApiError | None] = {}
    seen = set[tuple[str, int]]()
    for each in (*request.deletions, *request.upsertions):
        errors.setdefault(each.name, None)
        if (each.name, each.mechanism) in seen:
            errors[each.name] = ApiError(
                ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request"
            )
        seen.add((each.name, each.mechanism))
    for name, error in _check(users, request):
        errors[name] = errors[name] or error
    removals = [(each.name, _NAMES[each.mechanism]) for each in request.deletions if errors[each.name] is None]
    additions = [(each.name, _credential(each)) for each in request.upsertions if errors[each.name] is None]
    if removals or additions:
        users.alter(removals, additions)
    return errors


def _check(users: Users, request: Struct) -> Iterator[tuple[str, ApiError]]:
    """Yield what is wrong, with the user."""
    for each in (*request.deletions, *request.upsertions):
        try:
            validate_user(each.name)
        except InvalidSetting as error:
            message = str(error) if each.name else "Username must not be empty"
            yield each.name, ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, message)
        if each.mechanism not in _NAMES:
            yield each.name, ApiError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    for each in request.deletions:
        if each.mechanism in _NAMES and _NAMES[each.mechanism] not in users.find(each.name):
            yield (
                each.name,
                ApiError(ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist"),
            )
    for each in request.upsertions:
        message = _unacceptable(each)
        if message:
            yield each.name, ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, message)


def _unacceptable(upsertion: Struct) -> str:
    """Return what is wrong with a new credential; empty if nothing is."""
    if upsertion.iterations < MIN_ITERATIONS:
        return "Too few iterations"
    if upsertion.iterations > MAX_ITERATIONS:
        return "Too many iterations"
    if not 0 < len(upsertion.salt) <= _MAX_SALT_BYTES:
        return f"The salt has {len(upsertion.salt)} bytes, where 1 to {_MAX_SALT_BYTES} are allowed"
    size = _SIZES.get(_NAMES.get(upsertion.mechanism, ""), len(upsertion.salted_password))
    if len(upsertion.salted_password) != size:
        return f"The salted password has {len(upsertion.salted_password)} bytes, where the mechanism has {size}"
    return ""


def _credential(upsertion: Struct) -> Credential:
    return derive_from_salted(
        _NAMES[upsertion.mechanism], bytes(upsertion.salted_password), bytes(upsertion.salt), upsertion.iterations
    )


HANDLERS = (
    SupportedApi(
        DESCRIBE_USER_SCRAM_CREDENTIALS,
        0,
        0,
        describe_user_scram_credentials,
        runs=(LOOP, CATALOG),
        rights=("Describe Cluster",),
        max_response_bytes=LARGE,
        needs_catalog=False,
    ),
    SupportedApi(
        ALTER_USER_SCRAM_CREDENTIALS,
        0,
        0,
        alter_user_scram_credentials,
        runs=(LOOP, ADMIN),
        rights=("Alter Cluster",),
        max_response_bytes=LARGE,
        needs_catalog=False,
    ),
)
