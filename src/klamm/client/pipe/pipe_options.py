"""What can be said when a pipe is made, for Store, which passes it on.

`Pipe.__init__` has the defaults; a test keeps the names the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

from klamm.client.serde import Serde

__all__ = ["PipeOptions"]


class PipeOptions(TypedDict, total=False):
    to: str | Iterable[str]
    state: str | None
    group: str | None
    serde: Serde | None
    key_serde: Serde | None
    on_error: str
    max_records: int
    max_poll_interval_ms: int
