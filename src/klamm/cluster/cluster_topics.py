"""The topics of a cluster, as far as they were asked for: a catalog that the cluster keeps."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from klamm.cluster.kafka_admin import KafkaAdmin
from klamm.cluster.own_changes import SPREAD_S, OwnChanges, Seen
from klamm.errors import InvalidSetting, InvalidTopic, KlammError, TopicExists, UnknownTopic
from klamm.store.catalog import Topic
from klamm.store.names import check_type, nearest, validate
from klamm.store.settings import SETTINGS, Settings, Value
from klamm.types import TopicId

__all__ = ["REPLICATION_FACTOR", "ClusterTopics", "plain_settings"]

MAX_AGE_S = 3.0  # after which topics are described again
_RETRY_S = 0.05
REPLICATION_FACTOR = "replication.factor"
"""A setting of `topics.create` that only a cluster has; -1: what its servers make by default."""
_log = logging.getLogger("klamm")


class ClusterTopics:
    """The topics of a cluster, for any thread."""

    def __init__(self, admin: KafkaAdmin) -> None:
        self._admin = admin
        self._mutex = threading.Lock()
        self._known: dict[str, Topic] = {}
        self._own = OwnChanges()
        self._names: frozenset[str] | None = None  # None: they were not asked for
        self._version = 1
        self._checked = time.monotonic()
        self._is_checking = False
        self.store_id = admin.cluster_id

    @property
    def version(self) -> int:
        """A number that grows when topics came, went or grew, as far as is known."""
        if time.monotonic() - self._checked > MAX_AGE_S and not self._is_checking:
            self._is_checking = True
            threading.Thread(target=self._check, name="klamm-cluster-topics", daemon=True).start()
        return self._version

    def _check(self) -> None:
        """Describe again what is known."""
        try:
            names = frozenset(self._admin.partition_counts())
            for name in list(self._known):
                try:
                    self.refresh(name)
                except UnknownTopic:
                    self._forget(name)
            with self._mutex:
                if self._names is not None and names != self._names:
                    self._names = names
                    self._version += 1
        except KlammError as error:  # the cluster does not answer: what is known stays
            _log.debug("%s: topics were not described again: %s", self._admin.name, error)
        finally:
            self._checked = time.monotonic()
            self._is_checking = False

    # ---- looking

    def topic(self, name: str) -> Topic:
        """Return a topic. UnknownTopic if the cluster has none of that name."""
        topic = self._known.get(check_type(name))
        return self.refresh(name) if topic is None else topic

    def looked_up(self, name: str) -> tuple[Topic, Mapping[str, str]]:
        """Return a topic as the cluster has it now, and the settings that were set, be they unknown to Klamm."""
        seen, everything = self._seen(name)
        topic = Topic(name, seen.id, tuple(range(seen.partitions)), Settings.described(seen.settings, everything), 0)
        return self._put(topic), seen.settings

    def _seen(self, name: str) -> tuple[Seen, Mapping[str, str]]:
        """Return a topic as the cluster has it now, and all its settings; no older than what this store has changed.
        UnknownTopic if there is none of that name.
        """
        deadline = time.monotonic() + SPREAD_S
        while True:
            seen, everything = self._ask(name)
            if not self._own.is_newer(name, seen):
                if seen is not None:
                    return seen, everything
                names = self._admin.partition_counts()
                if name not in names or self._own.is_gone(name) or time.monotonic() > deadline:
                    break
            time.sleep(_RETRY_S)  # another server knows the topic, or its newer settings
        self._forget(name)
        hint = nearest(name, set(names) - {name}) or "store.topics lists the topics"
        raise UnknownTopic(f"Topic {name!r} does not exist", hint=hint)

    def _ask(self, name: str) -> tuple[Seen | None, Mapping[str, str]]:
        """Return what some server knows of a topic."""
        try:
            about = self._admin.describe(name)
            changed, everything = self._admin.settings(name)
        except (InvalidTopic, UnknownTopic):
            return None, {}
        seen = Seen(TopicId(about.id), about.partitions, changed)
        return (None, {}) if self._own.was_deleted(seen) else (seen, everything)

    def _put(self, topic: Topic) -> Topic:
        with self._mutex:
            before = self._known.get(topic.name)
            if before is None or before != topic:
                self._known[topic.name] = topic
                self._version += before is not None
        return topic

    def _forget(self, name: str) -> None:
        with self._mutex:
            if self._known.pop(name, None) is not None:
                self._version += 1

    def refresh(self, name: str) -> Topic:
        """Return a topic as the cluster has it now."""
        return self.looked_up(name)[0]

    def names(self) -> list[str]:
        """Return the names of all topics, but for those that Kafka keeps for itself."""
        names = frozenset(self._admin.partition_counts())
        with self._mutex:
            self._names = names
        return sorted(name for name in names if not name.startswith("__") and self._is_there(name))

    def _is_there(self, name: str) -> bool:
        """Return whether a topic that is listed is there, and not one that this store has just deleted."""
        if not self._own.is_gone(name):
            return True
        try:
            self._seen(name)
        except UnknownTopic:
            return False
        return True

    def topics(self) -> list[Topic]:
        """Return all topics."""
        found = []
        for name in self.names():
            try:
                found.append(self.topic(name))
            except UnknownTopic:  # deleted since they were listed
                continue
        return found

    def name_of(self, topic_id: TopicId) -> str | None:
        """Return the name of a topic that was looked up before."""
        return next((topic.name for topic in list(self._known.values()) if topic.id == topic_id), None)

    # ---- changing

    def create_topic(self, name: str, partitions: int, settings: Mapping[str, Value], *_: object) -> Topic:
        """Create a topic and return it. TopicExists if its name is taken."""
        validate(name)
        if not isinstance(partitions, int) or partitions < 1:
            raise InvalidSetting(f"partitions: {partitions!r} is invalid", hint="expected at least 1")
        plain = plain_settings(settings)
        factor = plain.pop(REPLICATION_FACTOR, "-1")
        if not factor.removeprefix("-").isdigit():
            raise InvalidSetting(
                f"{factor!r} is invalid", setting=REPLICATION_FACTOR, hint="expected a number of servers"
            )
        try:
            self._admin.create(name, partitions, plain, replication_factor=int(factor), exist_ok=False)
        except TopicExists:
            self._own.found(name)
            raise
        self._own.created(name, partitions)
        return self.refresh(name)

    def alter_settings(self, name: str, changes: Mapping[str, Value], resets: Iterable[str]) -> Topic:
        """Change settings of a topic, and put others back to their defaults."""
        self.topic(name)
        plain, back = plain_settings(changes), list(resets)
        self._admin.alter(name, plain, back)
        self._own.altered(name, plain, back)
        return self.refresh(name)

    def add_partitions(self, name: str, total: int) -> Topic:
        """Let the topic have `total` partitions."""
        self.topic(name)
        self._admin.add_partitions(name, total)
        self._own.grown(name, total)
        return self.refresh(name)

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        topic = self.topic(name)
        self._admin.delete(name)
        self._own.deleted(name, topic.id)
        self._forget(name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        from klamm.cluster.cluster_core import unsupported

        raise unsupported(self._admin.name, f"what needs its {name}", "klamm.copy copies topics into a directory")


def plain_settings(settings: Mapping[str, Value]) -> dict[str, str]:
    """Return settings as Kafka takes them. Those that Klamm knows are checked here; the others, by the cluster."""
    if not isinstance(settings, Mapping):
        raise TypeError(f"settings are a mapping of names to values, not {type(settings).__name__}")
    plain = {}
    for name, value in settings.items():
        if not isinstance(name, str):
            raise TypeError(f"a setting's name is a str, not {type(name).__name__}")
        plain[name] = str(SETTINGS[name].parse(value)) if name in SETTINGS else str(value)
    return plain
