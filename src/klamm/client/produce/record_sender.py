"""The part of `send` that producers and transactions share; the rest is native (batch/_accumulator.pxi)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.batch import Sending
from klamm.errors import RecordTooLarge
from klamm.times import to_ms
from klamm.typevars import K, V

if TYPE_CHECKING:
    from datetime import datetime

__all__ = ["RecordSender"]


class RecordSender(Sending[K, V]):
    """`send`, with errors and times as users know them."""

    def _too_large(self, topic: str, error: RecordTooLarge) -> RecordTooLarge:
        return RecordTooLarge(
            f"{topic}: {error.message}", hint="send smaller records, or raise the topic's max.message.bytes"
        )

    def _milliseconds(self, timestamp: datetime) -> int:
        return to_ms(timestamp)
