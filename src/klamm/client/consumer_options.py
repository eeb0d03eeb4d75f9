"""What can be said when a consumer is made, for those who pass it on: Store.consumer, and klamm.aio's.

`Consumer.__init__` and, for groups, `Sharing.__init__` have the defaults; a test keeps the names the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from klamm.client.offsets import Offsets
from klamm.client.serde import Serde
from klamm.client.sharing import SharingOptions
from klamm.client.start import Start

__all__ = ["ConsumerOptions"]


class ConsumerOptions(SharingOptions, total=False):
    pattern: str | re.Pattern[str] | None
    partitions: Iterable[int] | None
    start: Start | None
    last: int | None
    wait_ms: float | None
    serde: Serde | None
    key_serde: Serde | None
    form: str
    on_out_of_range: str
    on_bad_record: str
    max_bytes: int
    spin_us: int
    isolation: str
    group: str | None
    offsets: Offsets | None
