"""The end of a log, waited for: what open transactions hide there is decided and can be read."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from klamm.errors import TransactionError

if TYPE_CHECKING:
    from klamm.log.partition import Partition
    from klamm.store.directory import Core

__all__ = ["await_stable"]

_FIRST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 0.25


def await_stable(core: Core, partitions: Iterable[Partition]) -> None:
    """Wait until every transaction has ended that was open in these partitions when this was called.

    Those of processes that are gone, or that have timed out, are ended here. Raise TransactionError after the store's
    busy_timeout.
    """
    ends = [(partition, partition.ends().end) for partition in partitions]
    timeout_ms = core.lock.timeout_ms if core.lock is not None else 0
    begun, pause_s = time.monotonic(), _FIRST_PAUSE_S
    core.transactions.resolve()  # a killed process may have left markers to be written, elsewhere too
    while hidden := [partition for partition, end in ends if partition.ends().stable < end]:
        core.transactions.resolve(hidden)
        if 0 <= timeout_ms < (time.monotonic() - begun) * 1000:
            raise TransactionError(
                f"{hidden[0].topic}/{hidden[0].number}: a transaction is open there, which hides what was written",
                hint="try again when it is over: see store.transactions",
                code="open_transaction",
            )
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
