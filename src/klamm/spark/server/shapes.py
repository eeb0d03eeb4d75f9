"""The shapes of topics that tasks write to, asked of the server before there is a job."""

from __future__ import annotations

from typing import Any

from klamm.arrow.encoding import Shape
from klamm.errors import UnknownTopic
from klamm.spark.server.client import Client, TopicInfo
from klamm.spark.server.topic_catalog import read_configs
from klamm.store.names import nearest
from klamm.types import TopicId

__all__ = ["read_shapes"]

_MAX_BYTES, _POLICY = "max.message.bytes", "cleanup.policy"
_SMALLEST_MAX_BYTES = 1 << 20
"""For a user without the right to read a topic's settings. The server checks each batch by them anyway."""


def read_shapes(client: Client, topic: str | None) -> dict[str, tuple[TopicId, Shape]]:
    """Return id and shape of the topic, or of all topics that the user may see. Raise UnknownTopic."""
    found = client.topics(None if topic is None else [topic])
    if topic is not None and topic not in found:
        raise UnknownTopic(f"Topic {topic!r} does not exist", hint=nearest(topic, client.topics()))
    configs = {
        name: {each.name: each.value for each in entries}
        for name, entries in read_configs(client, sorted(found), (_MAX_BYTES, _POLICY)).items()
    }
    return {name: (info.id, _shape(info, configs.get(name, {}))) for name, info in found.items()}


def _shape(info: TopicInfo, config: dict[str, Any]) -> Shape:
    is_keyed = "compact" in (config.get(_POLICY) or "")
    return Shape(info.name, len(info.leaders), int(config.get(_MAX_BYTES) or _SMALLEST_MAX_BYTES), is_keyed)
