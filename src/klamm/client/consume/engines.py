"""The engine that reads the topics of a store: that of its files, or the one that a Kafka cluster brings."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from klamm.client.consume.log_engine import LogEngine

if TYPE_CHECKING:
    from klamm.client.consume.read_engine import ReadEngine, ReadFormat
    from klamm.store.directory import Core

__all__ = ["open_engine"]


def open_engine(core: Core, read_format: ReadFormat, **options: Any) -> ReadEngine:
    """Return an engine for `core`."""
    make: Callable[..., ReadEngine] = LogEngine if core.elsewhere is None else core.elsewhere.engine
    return make(core, read_format, **options)
