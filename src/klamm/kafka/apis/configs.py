"""Settings, shown and changed: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs.

Topics         What is set is of source DYNAMIC_TOPIC_CONFIG, the rest DEFAULT_CONFIG.
Brokers        By its number, or "" for "all brokers". The settings of the store can be changed, by either name; those
               of the server are read when it starts, and a change of them is refused.
AlterConfigs   replaces all that is set; IncrementalAlterConfigs changes what it names. Both do a resource whole or not
               at all.

Other resources (loggers, client metrics, groups) have no settings here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

from klamm.errors import InvalidSetting, KlammError
from klamm.kafka.api_error import ApiError, code_and_message, unknown_topic
from klamm.kafka.call import ADMIN, CATALOG, LARGE, LOOP, SupportedApi
from klamm.kafka.config_entries import STATIC_NAMES, Entry, Source, is_list, of_broker, of_topic, supported
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.repeats import distinct
from klamm.kafka.wire.messages import ALTER_CONFIGS, DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS
from klamm.store.acl import CLUSTER_NAME, Operation, ResourceType
from klamm.store.settings import SETTINGS, Settings
from klamm.store.store_settings import STORE_SETTINGS, StoreSettings

if TYPE_CHECKING:
    from klamm.kafka.broker import Broker
    from klamm.kafka.call import Call
    from klamm.kafka.wire.structs import Struct

__all__ = ["HANDLERS"]

_TOPIC, _BROKER, _LOGGER, _CLIENT_METRICS, _GROUP = 2, 4, 8, 16, 32  # types of resources
_RESOURCES = {
    _TOPIC: ResourceType.TOPIC,
    _GROUP: ResourceType.GROUP,
    _BROKER: ResourceType.CLUSTER,
    _LOGGER: ResourceType.CLUSTER,
    _CLIENT_METRICS: ResourceType.CLUSTER,
}
"""Whose rights count."""
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)  # operations

_CONFIG_BYTES = 16  # of a setting in a response, at least

Changes = tuple[dict[str, str], list[str]]
"""What is set, and what goes back to its default."""


# ---- DescribeConfigs


async def describe_configs(broker: Broker, call: Call) -> Struct:
    if any(resource.resource_type == _BROKER for resource in call.request.resources):
        return await _describe(broker, call, await broker.catalog(broker.core.catalog.settings))
    return await _describe(broker, call, StoreSettings())


async def _describe(broker: Broker, call: Call, store: StoreSettings) -> Struct:
    response = DESCRIBE_CONFIGS.response
    details = call.request.include_synonyms, call.request.include_documentation
    response_data = response()
    turn = broker.large_requests.turn(call)
    for resource in call.request.resources:
        if turn.is_over:
            await turn.next()
        code, message = ErrorCode.NONE, None
        entries: tuple[Entry, ...] = ()
        try:
            _check_rights(call, resource, Operation.DESCRIBE_CONFIGS)
            entries = _entries(broker, resource, store)
        except (ApiError, KlammError) as error:
            code, message = code_and_message(error)
        keys = set(resource.configuration_keys or ())
        configs = [_config(each, *details) for each in entries if not keys or each.name in keys]
        call.expect(_CONFIG_BYTES * len(configs))
        response_data.results.append(
            response.Resource(
                error_code=code,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=configs,
            )
        )
    return response_data


def _check_rights(call: Call, resource: Struct, operation: Operation) -> None:
    """Raise ApiError if the client may not do that. Topics and groups have rights of their own, the rest has the
    cluster's.
    """
    kind = _RESOURCES.get(resource.resource_type)
    if kind is ResourceType.CLUSTER:
        call.check(operation, kind, CLUSTER_NAME)
    elif kind is not None:
        call.check(operation, kind, resource.resource_name)


def _entries(broker: Broker, resource: Struct, store: StoreSettings) -> tuple[Entry, ...]:
    name = resource.resource_name
    if resource.resource_type == _TOPIC:
        found = broker.topics.find(name)
        if found is None:
            raise unknown_topic(name)
        return of_topic(found.topic.settings)
    _check_broker(broker, resource)
    entries = of_broker(broker.settings, store, broker.core.path)
    if name:
        return entries
    return tuple(  # "all brokers": what was set for them, and nothing else
        each._replace(
            source=Source.DYNAMIC_DEFAULT_BROKER, synonyms=((each.name, each.value, Source.DYNAMIC_DEFAULT_BROKER),)
        )
        for each in entries
        if each.source == Source.DYNAMIC_BROKER
    )


def _check_broker(broker: Broker, resource: Struct) -> None:
    if resource.resource_type != _BROKER:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"resources of type {resource.resource_type} have no settings here; expected 2 or 4",
        )
    if resource.resource_name not in ("", str(broker.node_id)):
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"there is no broker {resource.resource_name!r}; this is {broker.node_id}"
        )


@lru_cache(1000)
def _config(entry: Entry, with_synonyms: bool, with_doc: bool) -> Struct:
    """Return a setting for the response, made once: topics have most of theirs in common."""
    response = DESCRIBE_CONFIGS.response
    return response.Config(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        synonyms=[
            response.Synonym(name=name, value=value, source=source)
            for name, value, source in (entry.synonyms if with_synonyms else ())
        ],
        config_type=entry.type,
        documentation=entry.doc if with_doc else None,
    )


# ---- AlterConfigs, IncrementalAlterConfigs


async def alter_configs(broker: Broker, call: Call) -> Struct:
    return await _alter(broker, call, _replacing)


async def incremental_alter_configs(broker: Broker, call: Call) -> Struct:
    return await _alter(broker, call, _changing)


async def _alter(
    broker: Broker, call: Call, changes_of: Callable[[Struct, Settings | StoreSettings], Changes]
) -> Struct:
    response = call.api.response
    times = Counter((resource.resource_type, resource.resource_name) for resource in call.request.resources)
    response_data = response()
    turn = broker.large_requests.turn(call, to_the_end=True)
    for resource in call.request.resources:
        if turn.is_over:
            await turn.next()
        kind, name = resource.resource_type, resource.resource_name
        code, message = ErrorCode.NONE, None
        try:
            if times[kind, name] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, f"{name}: is in the request more than once")
            _check_rights(call, resource, Operation.ALTER_CONFIGS)
            if kind == _TOPIC:
                await _alter_topic(broker, call, resource, changes_of)
            else:
                _check_broker(broker, resource)
                await _alter_store(broker, call, resource, changes_of)
        except (ApiError, KlammError) as error:
            code, message = code_and_message(error)
        response_data.responses.append(
            response.Resource(error_code=code, error_message=message, resource_type=kind, resource_name=name)
        )
    return response_data


async def _alter_topic(
    broker: Broker, call: Call, resource: Struct, changes_of: Callable[[Struct, Settings | StoreSettings], Changes]
) -> None:
    name = resource.resource_name
    found = broker.topics.find(name)
    if found is None:
        raise unknown_topic(name)
    settings = found.topic.settings
    changes, resets = changes_of(resource, settings)
    changes = supported(changes)
    settings.changed(changes, resets, where=name)
    if not call.request.validate_only:
        await broker.administer(broker.core.catalog.alter_settings, name, changes, resets)
        await broker.topics.refresh()


async def _alter_store(
    broker: Broker, call: Call, resource: Struct, changes_of: Callable[[Struct, Settings | StoreSettings], Changes]
) -> None:
    catalog = broker.core.catalog
    settings: StoreSettings = await broker.catalog(catalog.settings)
    changes, resets = changes_of(resource, settings)
    for name in (*changes, *resets):
        if name in STATIC_NAMES:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"{name}: cannot be changed while the server runs; set it when it is started"
            )
    settings.changed(changes, resets)
    if not call.request.validate_only:
        settings = await broker.administer(catalog.alter, changes, resets)
        broker.group_coordinator.config = broker.group_coordinator.config._replace(max_size=settings.group_max_size)


def _replacing(resource: Struct, settings: Settings | StoreSettings) -> Changes:
    """Return the changes that set what is given, and reset all else to its default."""
    _check_distinct(resource.configs)
    for each in resource.configs:
        _check_value(each)
    changes = {each.name: each.value for each in resource.configs}
    return changes, [name for name in settings.to_dict() if name not in changes]


def _changing(resource: Struct, settings: Settings | StoreSettings) -> Changes:
    """Return the changes that set or reset what is named, or add words to it or remove some."""
    _check_distinct(resource.configs)
    changes: dict[str, str] = {}
    resets: list[str] = []
    for each in resource.configs:
        operation = each.config_operation
        if operation == _DELETE:
            if each.name in SETTINGS or each.name in STORE_SETTINGS or each.name in STATIC_NAMES:
                resets.append(each.name)
            continue
        _check_value(each)
        if operation == _SET:
            changes[each.name] = each.value
        elif operation not in (_APPEND, _SUBTRACT):
            raise ApiError(ErrorCode.INVALID_REQUEST, f"{each.name}: there is no operation {operation}")
        elif not is_list(each.name):
            raise InvalidSetting(f"{each.name}: is not a list, so nothing can be added or taken out")
        else:
            words = settings[each.name].split(",")
            given = [word.strip() for word in each.value.split(",")]
            if operation == _APPEND:
                words += [word for word in given if word not in words]
            else:
                words = [word for word in words if word not in given]
            changes[each.name] = ",".join(words)
    return changes, resets


def _check_distinct(configs: Iterable[Struct]) -> None:
    for name, times in Counter(each.name for each in configs).items():
        if times > 1:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"{name}: is in the request {times} times")


def _check_value(config: Struct) -> None:
    if config.value is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{config.name}: has no value")


def _merge(request: Struct) -> None:
    request.resources = distinct(request.resources, "resource_type", "resource_name")


HANDLERS = (
    SupportedApi(
        DESCRIBE_CONFIGS,
        1,
        4,
        describe_configs,
        merge=_merge,
        runs=(LOOP, CATALOG),
        rights=("DescribeConfigs Topic", "DescribeConfigs Cluster"),
        max_response_bytes=LARGE,
    ),
    SupportedApi(
        ALTER_CONFIGS,
        0,
        2,
        alter_configs,
        runs=(LOOP, CATALOG, ADMIN),
        rights=("AlterConfigs Topic", "AlterConfigs Cluster"),
        max_response_bytes=LARGE,
    ),
    SupportedApi(
        INCREMENTAL_ALTER_CONFIGS,
        0,
        1,
        incremental_alter_configs,
        runs=(LOOP, CATALOG, ADMIN),
        rights=("AlterConfigs Topic", "AlterConfigs Cluster"),
        max_response_bytes=LARGE,
    ),
)
