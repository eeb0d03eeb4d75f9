"""The options of a consumer that do not decide on the type of what it gives: for overloads of `store.consumer`.

`Consumer.__init__` and, for groups, `GroupSession.__init__` have the defaults; a test keeps the names the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from klamm.choices import Isolation, OffsetReset
from klamm.client.groups.group_session import GroupOptions
from klamm.client.groups.offsets import Offsets
from klamm.times import Duration
from klamm.where import WhereLike

__all__ = ["ConsumerOptions", "TopicConsumerOptions"]


class TopicConsumerOptions(GroupOptions, total=False):
    partitions: Iterable[int] | None
    start: WhereLike | None
    wait: Duration | None
    auto_offset_reset: OffsetReset | None
    max_bytes: int
    spin: Duration
    isolation: Isolation
    group: str | None
    offsets: Offsets | None


class ConsumerOptions(TopicConsumerOptions, total=False):
    pattern: str | re.Pattern[str] | None
