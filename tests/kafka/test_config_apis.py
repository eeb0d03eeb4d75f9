"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, in every version."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.kafka.config_entries import FIXED_TOPIC_CONFIGS
from klamm.kafka.error_codes import ErrorCode as E
from klamm.kafka.settings import SERVER_SETTINGS
from klamm.kafka.wire.messages import ALTER_CONFIGS, CREATE_TOPICS, DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS
from klamm.kafka.wire.structs import Struct
from klamm.store.settings import SETTINGS
from klamm.store.store_settings import STORE_SETTINGS
from tests.kafka.connect import Raw, Served, served

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)
DYNAMIC_TOPIC, DYNAMIC_BROKER, DYNAMIC_DEFAULT_BROKER, STATIC, DEFAULT = 1, 2, 3, 4, 5
BOOLEAN, STRING, INT, LONG, DOUBLE, LIST = 1, 2, 3, 5, 6, 7


@pytest.fixture
def store(tmp_path: Path) -> Iterator[klamm.Store]:
    with klamm.open(tmp_path / "events") as store:
        store.topics.create("orders", settings={"retention.ms": 1000, "segment.ms": 604800000})
        yield store


@pytest.fixture
def server(store: klamm.Store) -> Iterator[Served]:
    with served(Path(store.path), node_id=7, default_partitions=3) as server:
        yield server


def describe(raw: Raw, kind: int, name: str, keys: list[str] | None = None, version: int = 4, **fields: Any) -> Struct:
    wanted = DESCRIBE_CONFIGS.request.Resource(resource_type=kind, resource_name=name, configuration_keys=keys)
    (answer,) = raw.ask(DESCRIBE_CONFIGS, version, resources=[wanted], **fields).results
    assert (answer.resource_type, answer.resource_name) == (kind, name)
    return answer


def by_name(answer: Struct) -> dict[str, Struct]:
    assert (answer.error_code, answer.error_message) == (0, None)
    return {each.name: each for each in answer.configs}


def alter(raw: Raw, kind: int, name: str, values: dict[str, str | None], version: int = 2, **fields: Any) -> Struct:
    request = ALTER_CONFIGS.request
    configs = [request.Config(name=key, value=value) for key, value in values.items()]
    wanted = request.Resource(resource_type=kind, resource_name=name, configs=configs)
    (answer,) = raw.ask(ALTER_CONFIGS, version, resources=[wanted], **fields).responses
    assert (answer.resource_type, answer.resource_name) == (kind, name)
    return answer


def change(
    raw: Raw, kind: int, name: str, *changes: tuple[str, int, str | None], version: int = 1, **fields: Any
) -> Struct:
    request = INCREMENTAL_ALTER_CONFIGS.request
    configs = [request.Config(name=key, config_operation=operation, value=value) for key, operation, value in changes]
    wanted = request.Resource(resource_type=kind, resource_name=name, configs=configs)
    (answer,) = raw.ask(INCREMENTAL_ALTER_CONFIGS, version, resources=[wanted], **fields).responses
    assert (answer.resource_type, answer.resource_name) == (kind, name)
    return answer


# ---- DescribeConfigs: topics


@pytest.mark.parametrize("version", range(1, 5))
def test_every_setting_of_a_topic_is_shown_with_where_it_comes_from(raw: Raw, version: int) -> None:
    found = by_name(describe(raw, TOPIC, "orders", version=version))
    assert list(found) == sorted([*SETTINGS, *FIXED_TOPIC_CONFIGS])
    assert (found["retention.ms"].value, found["retention.ms"].config_source) == ("1000", DYNAMIC_TOPIC)
    # What was set is set, though it was set to the default.
    assert (found["segment.ms"].value, found["segment.ms"].config_source) == ("604800000", DYNAMIC_TOPIC)
    assert (found["segment.bytes"].value, found["segment.bytes"].config_source) == ("1073741824", DEFAULT)
    assert (found["min.insync.replicas"].value, found["min.insync.replicas"].config_source) == ("1", DEFAULT)
    assert {name for name, each in found.items() if each.read_only} == set(FIXED_TOPIC_CONFIGS)
    assert not any(each.is_sensitive for each in found.values())
    assert all(each.synonyms == [] and not each.documentation for each in found.values())
    kinds = {
        "cleanup.policy": LIST,
        "retention.ms": LONG,
        "segment.bytes": INT,
        "min.cleanable.dirty.ratio": DOUBLE,
        "message.timestamp.type": STRING,
        "preallocate": BOOLEAN,
        "leader.replication.throttled.replicas": LIST,
    }
    assert {name: found[name].config_type for name in kinds} == (kinds if version >= 3 else dict.fromkeys(kinds, 0))


@pytest.mark.parametrize("version", range(1, 5))
def test_synonyms_and_documentation_are_told_when_asked_for(raw: Raw, version: int) -> None:
    found = by_name(describe(raw, TOPIC, "orders", version=version, include_synonyms=True, include_documentation=True))
    synonyms = {name: [(each.name, each.value, each.source) for each in found[name].synonyms] for name in found}
    assert synonyms["retention.ms"] == [
        ("retention.ms", "1000", DYNAMIC_TOPIC),
        ("retention.ms", "604800000", DEFAULT),
    ]
    assert synonyms["cleanup.policy"] == [("cleanup.policy", "delete", DEFAULT)]
    assert synonyms["preallocate"] == [("preallocate", "false", DEFAULT)]
    for name, each in found.items():
        row = SETTINGS.get(name) or FIXED_TOPIC_CONFIGS[name]
        assert each.documentation == (row.doc if version >= 3 else "")


def test_only_the_settings_that_are_named_are_shown(raw: Raw) -> None:
    assert list(by_name(describe(raw, TOPIC, "orders", ["segment.ms", "nonsense"]))) == ["segment.ms"]
    assert len(by_name(describe(raw, TOPIC, "orders", []))) == len(by_name(describe(raw, TOPIC, "orders")))


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "nobody", E.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "a/b", E.INVALID_TOPIC_EXCEPTION),
        (BROKER, "8", E.INVALID_REQUEST),
        (BROKER, "seven", E.INVALID_REQUEST),
        (8, "7", E.INVALID_REQUEST),
        (32, "group", E.INVALID_REQUEST),
        (0, "", E.INVALID_REQUEST),
    ],
)
def test_what_has_no_settings_is_told(raw: Raw, kind: int, name: str, code: int) -> None:
    for answer in (
        describe(raw, kind, name),
        alter(raw, kind, name, {}),
        change(raw, kind, name, ("retention.ms", SET, "5")),
    ):
        assert answer.error_code == code and answer.error_message
    assert describe(raw, kind, name).configs == []


def test_facts_are_in_the_reference(store: klamm.Store) -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "reference" / "settings.md").read_text()
    for fixed_config in FIXED_TOPIC_CONFIGS.values():
        value = f"`{fixed_config.value}`" if fixed_config.value else "(empty)"
        assert f"| `{fixed_config.name}` | {value} | {fixed_config.doc} |\n" in page
    assert not FIXED_TOPIC_CONFIGS.keys() & SETTINGS.keys()


# ---- DescribeConfigs: brokers


@pytest.mark.parametrize("version", range(1, 5))
def test_settings_of_the_server_are_shown_and_cannot_be_changed(raw: Raw, version: int) -> None:
    found = by_name(describe(raw, BROKER, "7", version=version, include_synonyms=True))
    assert set(SERVER_SETTINGS) - {"node-id", "default-partitions"} <= set(found)
    assert {name for name, each in found.items() if not each.read_only} == set(STORE_SETTINGS)
    parts = found["num.partitions"]
    assert (parts.value, parts.config_source) == ("3", STATIC)
    assert [(each.name, each.value, each.source) for each in parts.synonyms] == [
        ("default-partitions", "3", STATIC),
        ("default-partitions", "1", DEFAULT),
    ]
    known = {"node.id": "7", "broker.id": "7", "delete.topic.enable": "true", "default.replication.factor": "1"}
    assert {name: found[name].value for name in known} == known
    enabled = found["auto.create.topics.enable"]
    assert (enabled.value, enabled.config_source, enabled.config_type) == ("true", 5, BOOLEAN if version >= 3 else 0)
    size = found["group.max.size"]
    assert (size.value, size.config_source, size.read_only) == ("1000", DEFAULT, False)


@pytest.mark.parametrize("name", ["7", ""])
def test_settings_of_the_store_can_be_changed_and_count_at_once(
    store: klamm.Store, server: Served, raw: Raw, name: str
) -> None:
    assert change(raw, BROKER, name, ("group.max.size", SET, "5")).error_code == 0
    assert store.settings()["group.max.size"] == "5"
    assert server.broker.group_coordinator.config.max_size == 5
    one = by_name(describe(raw, BROKER, "7", include_synonyms=True))["group.max.size"]
    assert (one.value, one.config_source, len(one.synonyms)) == ("5", DYNAMIC_BROKER, 2)
    everybody = by_name(describe(raw, BROKER, ""))
    assert [(each.name, each.value, each.config_source) for each in everybody.values()] == [
        ("group.max.size", "5", DYNAMIC_DEFAULT_BROKER)
    ]
    assert change(raw, BROKER, name, ("group.max.size", DELETE, None)).error_code == 0
    assert server.broker.group_coordinator.config.max_size == 1000
    assert by_name(describe(raw, BROKER, "")) == {}
    assert alter(raw, BROKER, name, {"group.max.size": "6"}).error_code == 0
    assert store.settings()["group.max.size"] == "6"
    assert alter(raw, BROKER, name, {}).error_code == 0
    assert store.settings()["group.max.size"] == "1000"


@pytest.mark.parametrize("setting", ["max.connections", "num.partitions", "default-partitions", "log.dirs"])
def test_settings_of_the_server_are_not_changed_while_it_runs(store: klamm.Store, raw: Raw, setting: str) -> None:
    for answer in (
        change(raw, BROKER, "7", ("group.max.size", SET, "5"), (setting, SET, "9")),
        change(raw, BROKER, "", (setting, DELETE, None)),
        alter(raw, BROKER, "7", {setting: "9"}),
    ):
        assert answer.error_code == E.INVALID_REQUEST and setting in answer.error_message
    assert change(raw, BROKER, "7", ("no.such", SET, "9")).error_code == E.INVALID_CONFIG
    assert change(raw, BROKER, "7", ("group.max.size", SET, "0")).error_code == E.INVALID_CONFIG
    assert change(raw, BROKER, "7", ("group.max.size", SET, "5"), validate_only=True).error_code == 0
    assert store.settings()["group.max.size"] == "1000"


# ---- AlterConfigs


@pytest.mark.parametrize("version", range(3))
def test_altering_replaces_all_that_is_set(store: klamm.Store, raw: Raw, version: int) -> None:
    wanted: dict[str, str | None] = {"segment.bytes": "5000", "preallocate": "false"}
    assert alter(raw, TOPIC, "orders", wanted, version, validate_only=True).error_code == 0
    assert store.topics.describe("orders").settings == {"retention.ms": "1000", "segment.ms": "604800000"}
    assert alter(raw, TOPIC, "orders", wanted, version).error_code == 0
    assert store.topics.describe("orders").settings == {"segment.bytes": "5000"}
    assert by_name(describe(raw, TOPIC, "orders"))["segment.bytes"].value == "5000"
    assert alter(raw, TOPIC, "orders", {}, version).error_code == 0
    assert store.topics.describe("orders").settings == {}


@pytest.mark.parametrize("validate_only", [True, False])
@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"retention.ms": "soon"}, E.INVALID_CONFIG),
        ({"no.such": "1"}, E.INVALID_CONFIG),
        ({"remote.storage.enable": "true"}, E.INVALID_CONFIG),
        ({"segment.ms": "5", "retention.ms": None}, E.INVALID_REQUEST),
    ],
)
def test_what_does_not_fit_changes_nothing(
    store: klamm.Store, raw: Raw, values: dict[str, str | None], code: int, validate_only: bool
) -> None:
    answer = alter(raw, TOPIC, "orders", values, validate_only=validate_only)
    assert answer.error_code == code and list(values)[-1] in answer.error_message
    changes = [(name, SET, value) for name, value in values.items()]
    answer = change(raw, TOPIC, "orders", *changes, validate_only=validate_only)
    assert answer.error_code == code and list(values)[-1] in answer.error_message
    assert store.topics.describe("orders").settings == {"retention.ms": "1000", "segment.ms": "604800000"}


def test_a_resource_or_setting_that_is_there_twice_is_refused(store: klamm.Store, raw: Raw) -> None:
    for api in (ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS):
        config = api.request.Config(name="segment.ms", value="5")
        once = api.request.Resource(resource_type=TOPIC, resource_name="orders", configs=[config])
        twice = api.request.Resource(resource_type=TOPIC, resource_name="orders", configs=[config, config])
        for resources in ([once, once], [twice]):
            answers = raw.ask(api, 1, resources=resources).responses
            assert [each.error_code for each in answers] == [E.INVALID_REQUEST] * len(resources)
    assert store.topics.describe("orders").settings == {"retention.ms": "1000", "segment.ms": "604800000"}


# ---- IncrementalAlterConfigs


@pytest.mark.parametrize("version", range(2))
def test_settings_are_changed_one_by_one(store: klamm.Store, raw: Raw, version: int) -> None:
    changes = [("segment.bytes", SET, "5000"), ("retention.ms", DELETE, None), ("never.set", DELETE, None)]
    assert change(raw, TOPIC, "orders", *changes, version=version, validate_only=True).error_code == 0
    assert store.topics.describe("orders").settings == {"retention.ms": "1000", "segment.ms": "604800000"}
    assert change(raw, TOPIC, "orders", *changes, version=version).error_code == 0
    assert store.topics.describe("orders").settings == {"segment.bytes": "5000", "segment.ms": "604800000"}
    assert change(raw, TOPIC, "orders", ("flush.ms", DELETE, None), version=version).error_code == 0


def test_words_are_added_to_a_list_and_taken_out(store: klamm.Store, raw: Raw) -> None:
    def policy() -> str | None:
        return store.topics.describe("orders").settings.get("cleanup.policy")

    for operation, words, want in (
        (APPEND, "compact", "delete,compact"),
        (APPEND, "compact, delete", "delete,compact"),
        (SUBTRACT, "delete", "compact"),
        (SUBTRACT, "delete", "compact"),
        (APPEND, "delete", "compact,delete"),
    ):
        assert change(raw, TOPIC, "orders", ("cleanup.policy", operation, words)).error_code == 0
        assert policy() == want
    for operation, words in ((SUBTRACT, "compact,delete"), (APPEND, "shred")):
        assert change(raw, TOPIC, "orders", ("cleanup.policy", operation, words)).error_code == E.INVALID_CONFIG
        assert policy() == "compact,delete"


@pytest.mark.parametrize("operation", [APPEND, SUBTRACT])
def test_nothing_is_added_to_what_is_no_list(raw: Raw, operation: int) -> None:
    for name in ("retention.ms", "compression.type", "no.such"):
        assert change(raw, TOPIC, "orders", (name, operation, "1")).error_code == E.INVALID_CONFIG


def test_operations_that_there_are_not_are_refused(raw: Raw) -> None:
    for operation in (-1, 4):
        assert change(raw, TOPIC, "orders", ("retention.ms", operation, "1")).error_code == E.INVALID_REQUEST


def test_one_bad_resource_does_not_stop_the_others(store: klamm.Store, raw: Raw) -> None:
    store.topics.create("other")
    request = INCREMENTAL_ALTER_CONFIGS.request
    resources = [
        request.Resource(
            resource_type=TOPIC, resource_name=name, configs=[request.Config(name="segment.ms", value="5")]
        )
        for name in ("nobody", "other", "orders")
    ]
    answers = raw.ask(INCREMENTAL_ALTER_CONFIGS, 1, resources=resources).responses
    assert [each.error_code for each in answers] == [E.UNKNOWN_TOPIC_OR_PARTITION, 0, 0]
    assert store.topics.describe("other").settings == {"segment.ms": "5"}


@pytest.mark.parametrize("name", FIXED_TOPIC_CONFIGS)
def test_each_fact_is_taken_with_its_value_and_with_others_only_if_they_change_nothing(
    store: klamm.Store, raw: Raw, name: str
) -> None:
    fixed_config = FIXED_TOPIC_CONFIGS[name]
    other = {"boolean": "true", "int": "7", "long": "7"}.get(fixed_config.type, "gzip")
    is_strict = fixed_config.least is None and not fixed_config.is_free
    right = [fixed_config.value] if is_strict else [fixed_config.value, other]
    wrong = (
        [other]
        if is_strict
        else []
        if fixed_config.type == "list"
        else ["maybe" if fixed_config.is_free else f"{fixed_config.least}x", "-1"]
    )
    for value, code in [*((each, E.NONE) for each in right), *((each, E.INVALID_CONFIG) for each in wrong)]:
        topic = CREATE_TOPICS.request.Topic(
            name="new",
            num_partitions=1,
            replication_factor=1,
            configs=[CREATE_TOPICS.request.Config(name=name, value=value)],
        )
        (made,) = raw.ask(CREATE_TOPICS, 7, topics=[topic], validate_only=True).topics
        assert made.error_code == code
        assert change(raw, TOPIC, "orders", (name, SET, value)).error_code == code
        assert alter(raw, TOPIC, "orders", {name: value}, validate_only=True).error_code == code
    assert store.topics.describe("orders").settings == {"retention.ms": "1000", "segment.ms": "604800000"}
