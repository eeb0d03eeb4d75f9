"""Topics that a store knows to be there, though the server that it asks has not learned of them yet."""

from __future__ import annotations

from typing import Any

import pytest

from klamm.cluster import cluster_topics
from klamm.cluster.cluster_topics import ClusterTopics
from klamm.cluster.kafka_admin import TopicDescription
from klamm.errors import TopicExists, UnknownTopic


class Admin:
    """A cluster where another client has just created a topic, of which the servers learn one after the other."""

    name, cluster_id = "here", "cluster"

    def __init__(self, late: int) -> None:
        self._late = late

    def create(self, *_: object, **__: object) -> None:
        raise TopicExists("orders: exists")

    def describe(self, name: str) -> TopicDescription:
        self._late -= 1
        if self._late >= 0:
            raise UnknownTopic(name)
        return TopicDescription(name, "6f3e0fb4a2f34f6c9a3f0d6e1c2b3a49", 2, True)

    def settings(self, name: str) -> tuple[dict[str, str], dict[str, str]]:
        return {}, {}

    def partition_counts(self) -> dict[str, int]:
        return {}


def test_a_topic_that_another_client_was_first_to_create_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_topics, "_RETRY_S", 0)
    admin: Any = Admin(late=3)
    topics = ClusterTopics(admin)
    with pytest.raises(UnknownTopic):
        topics.topic("orders")
    with pytest.raises(TopicExists):
        topics.create_topic("orders", 1, {})
    assert topics.topic("orders").partitions == (0, 1)
