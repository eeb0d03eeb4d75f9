"""Consumers that read and set the offsets of groups without being members of them.

librdkafka's admin client asks for offsets, too. It ends the process, though, by an assertion or a pointer to no group,
if the coordinator that it asks loses its connection or its office: these are made for that.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from klamm.cluster.address import consumer_options, import_confluent_kafka
from klamm.cluster.kafka_errors import translated

__all__ = ["GroupClients"]

_MAX_IDLE = 32  # each has some threads, and a connection


class GroupClients:
    """Consumers by group; for any thread."""

    def __init__(self, config: Mapping[str, Any], name: str, logger: Any) -> None:
        self._config = config
        self._name = name
        self._logger = logger
        self._mutex = threading.Lock()
        self._idle: list[tuple[str, Any]] = []  # the one that was used last comes last

    @contextmanager
    def of(self, group: str) -> Iterator[Any]:
        """Use a consumer of librdkafka that has the name of the group; no other thread does meanwhile."""
        client = self._take(group)
        try:
            yield client
        finally:
            with self._mutex:
                self._idle.append((group, client))
                surplus = self._idle.pop(0)[1] if len(self._idle) > _MAX_IDLE else None
            if surplus is not None:
                surplus.close()

    def _take(self, group: str) -> Any:
        with self._mutex:
            for number, (name, client) in enumerate(self._idle):
                if name == group:
                    del self._idle[number]
                    return client
        options = {
            **consumer_options(self._config),
            "group.id": group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
        }
        with translated(f"{self._name}: group {group!r}"):
            return import_confluent_kafka().Consumer(options, logger=self._logger)

    def close(self) -> None:
        """Close those that are idle."""
        with self._mutex:
            idle, self._idle = self._idle, []
        for _, client in idle:
            client.close()
