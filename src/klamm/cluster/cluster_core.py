"""The core of a store on a Kafka cluster: what a directory's core is to the layers above, as far as a cluster has it.

It is one by class, so that consumers, workers, pipes, scans and `SqlOffsets` take it as they take a directory's. It has
none of that core's parts, though: what is not set here raises Unsupported.

Topics are described when they are first used, and again in a thread once what is known of them is MAX_AGE_S old: then
`catalog_version` tells what has changed. So a topic that others delete or enlarge is noticed after that time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from klamm.cluster.address import client_config, public_name
from klamm.cluster.cluster_partition import ClusterPartition
from klamm.cluster.cluster_topics import ClusterTopics
from klamm.cluster.group_store import ClusterGroups
from klamm.cluster.kafka_admin import KafkaAdmin
from klamm.errors import Closed, Unsupported
from klamm.store.catalog import Topic
from klamm.store.directory import Core, OpenTopic
from klamm.store.settings import Value

__all__ = ["ClusterCore", "ClusterTopic", "unsupported"]

_TIMEOUT_MS = 30_000


def unsupported(name: str, what: str, hint: str) -> Unsupported:
    """Return the error for a call that a cluster does not have."""
    return Unsupported(f"{name}: {what} is for a store in a directory", hint=hint)


class ClusterTopic(OpenTopic):
    """A topic of a cluster, and its partitions."""

    def __init__(self, core: ClusterCore, topic: Topic) -> None:
        self._core = core
        self.topic = topic
        self.version = 0
        self.name = topic.name
        self.open_partitions: dict[int, Any] = {}

    def __getattr__(self, name: str) -> Any:
        raise _missing(self._core.path, name)


class _Heads:
    """Time and changes, as the heads of a directory tell them."""

    groups_version = 0
    """Members are looked after by librdkafka."""

    def __init__(self, topics: ClusterTopics) -> None:
        self._topics = topics

    @property
    def catalog_version(self) -> int:
        return self._topics.version

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def boot_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def check_place(self) -> None:
        """Do nothing: no other store can be put in the place of a cluster."""

    def is_in_place(self) -> bool:
        return True


class _Transactions:
    """Transactions that are open: those that die are ended by the cluster, after their timeout."""

    def __init__(self, name: str) -> None:
        self._name = name

    def resolve(self, *_: object, **__: object) -> None:
        """Do nothing: the cluster does that."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise unsupported(self._name, "a list of transactions", "kafka-transactions.sh lists and aborts them")


class ClusterCore(Core):
    """See the top of this module. For any thread."""

    def __init__(self, address: str, *, read_only: bool = False, busy_timeout_ms: int | None = None) -> None:
        from klamm.cluster.parts import Parts

        self.config = client_config(address)
        self.path = public_name(address)
        self.read_only = read_only
        self.users = 1
        self.closed = False
        timeout_ms = _TIMEOUT_MS if busy_timeout_ms is None or busy_timeout_ms < 0 else busy_timeout_ms
        self.lock: Any = SimpleNamespace(timeout_ms=timeout_ms)  # how long calls wait for others
        self.admin = KafkaAdmin(self.config, self.path)
        self.catalog: Any = ClusterTopics(self.admin)
        self.heads: Any = _Heads(self.catalog)
        self.groups: Any = ClusterGroups(self)
        self.transactions: Any = _Transactions(self.path)
        self.elsewhere = Parts(self)
        self._mutex = threading.RLock()
        self._opened: dict[str, ClusterTopic] = {}  # type: ignore[assignment]  # no method of a directory's core

    def __getattr__(self, name: str) -> Any:
        raise _missing(self.__dict__.get("path", "kafka://"), name)

    # ---- topics

    def topic(self, name: str) -> OpenTopic:
        self.check_open()
        topic = self.catalog.topic(name)
        with self._mutex:
            opened = self._opened.get(name)
            if opened is None or opened.topic.id != topic.id:
                opened = self._opened[name] = ClusterTopic(self, topic)
            opened.topic = topic
        return opened

    def open_partition(self, opened: OpenTopic, number: int) -> Any:
        ClusterPartition.check(opened, number)
        with self._mutex:
            found: Any = opened.open_partitions.get(number)
            if found is None:
                found = opened.open_partitions[number] = ClusterPartition(self, opened, number)  # type: ignore[assignment]
        return found

    def create_topic(self, name: str, partitions: int, settings: Mapping[str, Value]) -> Topic:
        self.check_open()
        created: Topic = self.catalog.create_topic(name, partitions, settings)
        return created

    def lay_out(self, *_: object) -> tuple[int, ...]:
        """Return nothing: for callers that create topics."""
        return ()

    # ---- the end

    def look_after(self, *_: object) -> None:
        """Do nothing: the cluster does that."""

    def is_in_place(self) -> bool:
        return True

    def check_open(self) -> None:
        if self.closed:
            raise Closed(f"{self.path}: the store is closed", hint="open it again")

    def close(self) -> None:
        self.closed = True
        self.elsewhere.close()
        self.admin.close()


def _missing(path: str, name: str) -> Exception:
    if name.startswith("__"):  # Python asks whether it is there
        return AttributeError(name)
    return unsupported(path, f"what needs its {name.strip('_')}", "klamm.copy copies topics into a directory")
