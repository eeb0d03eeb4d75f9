"""The topics of a server as a catalog has them: their settings, and how one is created."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from klamm.errors import StoreError, TopicExists
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.wire.messages import CREATE_TOPICS, DESCRIBE_CONFIGS
from klamm.spark.server.client import Client
from klamm.spark.server.errors import check
from klamm.store.settings import Settings, Value

__all__ = ["TopicCatalog", "read_configs", "read_settings"]

_TOPIC = 2  # the type of a resource
_SET_FOR_TOPIC = 1  # the source of a value that was set for this topic
_TIMEOUT_MS = 30_000


class TopicCatalog:
    """In the place of a store's Catalog, for what creates topics."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.store_id = client.cluster_id

    def create_topic(self, name: str, partitions: int, settings: Mapping[str, Value], *_: object) -> None:
        """Create a topic. TopicExists if its name is taken."""
        kind = CREATE_TOPICS.request
        topic = kind.Topic(
            name=name,
            num_partitions=partitions,
            replication_factor=-1,
            configs=[kind.Config(name=setting, value=str(value)) for setting, value in settings.items()],
        )
        request = kind(topics=[topic], timeout_ms=_TIMEOUT_MS)

        def attempt() -> None:
            for each in self._client.ask(CREATE_TOPICS, request, at_least=4).topics:
                if each.error_code == ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise TopicExists(f"{self._client.address}: topic {name!r} already exists")
                check(f"{self._client.address}: {name}", each.error_code, each.error_message)

        self._client.patiently(attempt)


def read_configs(client: Client, names: Iterable[str], keys: Iterable[str] | None = None) -> dict[str, list[Any]]:
    """Return settings of topics, all or those of `keys`, as the server sends them; without topics whose settings the
    user may not read.
    """
    kind = DESCRIBE_CONFIGS.request
    wanted = None if keys is None else list(keys)
    resources = [kind.Resource(resource_type=_TOPIC, resource_name=name, configuration_keys=wanted) for name in names]

    def attempt() -> dict[str, list[Any]]:
        found = {}
        for each in client.ask(DESCRIBE_CONFIGS, kind(resources=resources)).results:
            if each.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                continue
            check(f"{client.address}: {each.resource_name}", each.error_code, each.error_message)
            found[each.resource_name] = list(each.configs)
        return found

    return client.patiently(attempt) if resources else {}


def read_settings(client: Client, name: str) -> Settings:
    """Return the settings of a topic that Klamm knows. Raise UnknownTopic; StoreError if the user may not read them."""
    configs = read_configs(client, [name]).get(name)
    if configs is None:
        raise StoreError(
            f"{client.address}: {name}: the user may not read the topic's settings",
            hint="give it the right DescribeConfigs: klamm acl add",
        )
    was_set = {each.name for each in configs if each.config_source == _SET_FOR_TOPIC}
    return Settings.described(was_set, {each.name: each.value for each in configs if each.value is not None})
