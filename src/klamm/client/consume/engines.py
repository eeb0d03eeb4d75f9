"""The engine that reads the topics of a store: that of its files, or the one that a Kafka cluster brings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from klamm.client.consume.log_engine import LogEngine

if TYPE_CHECKING:
    from klamm.client.consume.read_engine import ReadFormat
    from klamm.store.directory import Core

__all__ = ["open_engine"]


def open_engine(core: Core, read_format: ReadFormat, **options: Any) -> LogEngine:
    """Return an engine for `core`. That of a cluster has what a LogEngine has for its session, too."""
    make = LogEngine if core.elsewhere is None else core.elsewhere.engine
    engine: LogEngine = make(core, read_format, **options)
    return engine
