"""The parts that client/ asks a core for that is not a directory: `core.elsewhere`."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from klamm.cluster.cluster_engine import ClusterEngine
from klamm.cluster.cluster_group_session import ClusterGroupSession
from klamm.cluster.cluster_producer import STICKY_BYTES, compression_config
from klamm.cluster.cluster_transaction import ClusterPool
from klamm.cluster.group_member import ClusterMember
from klamm.cluster.record_stream import RecordStream

if TYPE_CHECKING:
    from klamm.client.transaction import Pool
    from klamm.cluster.cluster_core import ClusterCore

__all__ = ["Parts"]

_APPEND_MS = 30_000  # how long an append is tried
_CLOSING_S = 10.0


class Parts:
    """The parts of one core, for any thread."""

    engine = ClusterEngine
    member = ClusterMember
    group_session = ClusterGroupSession

    def __init__(self, core: ClusterCore) -> None:
        self._core = core
        self._mutex = threading.Lock()
        self._streams: dict[tuple[Any, ...], RecordStream] = {}

    def stream(
        self, acks: int, compression: str | None = None, level: int | None = None, *, lingers: bool = False
    ) -> RecordStream:
        """Return a stream that appends share, for these options."""
        key = acks, compression, level, lingers
        with self._mutex:
            found = self._streams.get(key)
            if found is None or found.is_broken:
                config = {
                    "linger.ms": 5 if lingers else 0,
                    "message.timeout.ms": _APPEND_MS,
                    **(
                        {"message.timeout.ms": self._core.config[name]}
                        if (name := "message.timeout.ms") in self._core.config
                        else {}
                    ),
                    **compression_config(compression, level),
                }
                found = self._streams[key] = RecordStream(
                    self._core, config, acks=acks, sticky_bytes=STICKY_BYTES if lingers else 1
                )
        return found

    def append(self, topic: str, key: bytes | None, value: bytes | None, headers: Any) -> int:
        """Append one record, acknowledged by all replicas in sync, and return its offset; -1 if it is not known."""
        offset = self.stream(-1).send(topic, value, key=key, headers=headers).result()
        return -1 if offset is None else offset

    def pool(self) -> Pool:
        """Return what begins transactions."""
        return ClusterPool(self._core)

    def close(self) -> None:
        """End the streams."""
        with self._mutex:
            streams, self._streams = list(self._streams.values()), {}
        for stream in streams:
            stream.close(_CLOSING_S)
