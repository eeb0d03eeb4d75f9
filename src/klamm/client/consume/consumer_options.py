"""What can be said when a consumer is made, for those who pass it on: Store.consumer, and klamm.aio's.

`Consumer.__init__` and, for groups, `GroupSession.__init__` have the defaults; a test keeps the names the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from klamm.client.groups.group_session import GroupOptions
from klamm.client.groups.offsets import Offsets
from klamm.client.serde import Serde
from klamm.times import Duration
from klamm.where import WhereLike

__all__ = ["ConsumerOptions"]


class ConsumerOptions(GroupOptions, total=False):
    pattern: str | re.Pattern[str] | None
    partitions: Iterable[int] | None
    start: WhereLike | None
    wait: Duration | None
    serde: Serde | None
    key_serde: Serde | None
    form: str
    auto_offset_reset: str | None
    on_bad_record: str
    max_bytes: int
    spin: Duration
    isolation: str
    group: str | None
    offsets: Offsets | None
