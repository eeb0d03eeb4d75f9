"""The records that lie in partitions: the last ones, those from a position on, or the last of those.

`read_history` reads them, and says where it ended: a consumer that starts there goes on without a gap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import merge
from typing import TYPE_CHECKING, Any, NamedTuple

from klamm.batch import RECORDS
from klamm.client.consume.consumer import Consumer
from klamm.client.consume.range_reader import PLAIN, read_ranges
from klamm.client.consume.read_engine import ReadFormat
from klamm.client.serde import key_pair, value_pair
from klamm.client.subscription import Subscription
from klamm.errors import InvalidSetting, OffsetOutOfRange
from klamm.types import Position, TopicPartition
from klamm.where import Where, fixed, range_in

if TYPE_CHECKING:
    from klamm.client.serde import Serde
    from klamm.log.partition import Partition
    from klamm.store.directory import Core
    from klamm.where import WhereLike

__all__ = ["History", "read_history", "tail", "topic_history"]

_LAST = 10  # records, if neither a number nor a position is given
_LATEST = Where("latest")
_FILTERED = 1_000  # offsets to look back for records that are filtered, at first
_MOST = 100_000  # offsets to look back at a time
_WIDER = 4  # times as far back, each time


def tail(
    core: Core,
    topic: str,
    n: Any,
    *,
    start: WhereLike | None,
    follow: bool,
    serde: Serde | None,
    key_serde: Serde | None,
) -> Iterator[Any]:
    """Return an iterator over the last `n` records from `start` on; with `follow` it then waits for more."""
    history = topic_history(core, topic, n, start, serde, key_serde)

    def records() -> Iterator[Any]:
        for batch in history.batches:
            yield from batch
        if follow:
            with Consumer(core, topic, start=history.ends, serde=serde, key_serde=key_serde) as consumer:
                yield from consumer

    return records()


def topic_history(
    core: Core, topic: str, n: Any, start: WhereLike | None, serde: Serde | None, key_serde: Serde | None
) -> History:
    """Read the history of all partitions of a topic."""
    read_format = ReadFormat(RECORDS, key_pair(key_serde, serde).from_bytes, value_pair(serde).from_bytes)
    return read_history(core, Subscription(topic, None, None).partitions(core), n, start, read_format)


class History(NamedTuple):
    """Records that were there, and where those begin that come later."""

    batches: Iterator[Sequence[Any]]
    ends: dict[TopicPartition, Position]


def read_history(
    core: Core,
    partitions: Mapping[TopicPartition, Partition],
    n: Any = None,
    start: WhereLike | None = None,
    read_format: ReadFormat = PLAIN,
    *,
    keep: Callable[[Any], bool] | None = None,
    on_progress: Callable[[int, int], object] | None = None,
) -> History:
    """Read the last `n` committed records from `start` on, by time; only those that `keep` returns True for.

    Without `n`: all from `start` on, partitions taking turns; without either, the last ten. An offset that is not in a
    partition becomes the nearest one that is; OffsetOutOfRange if it lies behind all of them. `on_progress` is called
    while the last `n` are searched, with the number of records read, and of offsets to read at most.
    """
    _check(n)
    where = fixed(Where("earliest" if start is None else start, name="start"), core.heads.wall_ms())
    count = _LAST if n is None and start is None else n
    ranges = _ranges(partitions, where)
    ends = {name: Position(offsets.stop) for name, offsets in ranges.items()}
    if count is None:
        return History(_all_records(core, ranges, read_format, keep), ends)
    return History(iter([_last_records(core, ranges, count, read_format, keep, on_progress)]), ends)


def _ranges(partitions: Mapping[TopicPartition, Partition], start: Where) -> dict[TopicPartition, range]:
    try:
        return {name: range_in(partition, start, _LATEST) for name, partition in partitions.items()}
    except OffsetOutOfRange as error:
        if all(partition.ends().end < error.offset for partition in partitions.values()):
            error.hint = "start earlier: no partition goes that far"
            raise
        return {name: range_in(partition, start, _LATEST, clamp=True) for name, partition in partitions.items()}


def _all_records(
    core: Core,
    ranges: Mapping[TopicPartition, range],
    read_format: ReadFormat,
    keep: Callable[[Any], bool] | None,
) -> Iterator[Sequence[Any]]:
    for batch in read_ranges(core, ranges, read_format):
        yield batch if keep is None else list(filter(keep, batch))


def _last_records(
    core: Core,
    ranges: Mapping[TopicPartition, range],
    n: int,
    read_format: ReadFormat,
    keep: Callable[[Any], bool] | None,
    on_progress: Callable[[int, int], object] | None,
) -> list[Any]:
    """Look further and further back; hold no more than `n` records of each partition."""
    last: dict[TopicPartition, list[Any]] = {name: [] for name in ranges}
    stops = {name: offsets.stop for name, offsets in ranges.items() if offsets and n}
    reach = n if keep is None else max(n, _FILTERED)
    total, done = sum(map(len, ranges.values())), 0
    while stops:
        windows = {name: range(max(ranges[name].start, stop - reach), stop) for name, stop in stops.items()}
        newer = {name: last[name] for name in windows}
        last |= {name: [] for name in windows}
        for batch in read_ranges(core, windows, read_format):
            name = TopicPartition(batch.topic, batch.partition)
            last[name] = [*last[name], *(batch if keep is None else filter(keep, batch))][-n:]
            done += len(batch)
            if on_progress is not None:
                on_progress(done, total)
        last |= {name: [*last[name], *records][-n:] for name, records in newer.items()}
        stops = {
            name: window.start
            for name, window in windows.items()
            if len(last[name]) < n and window.start > ranges[name].start
        }
        reach = min(reach * _WIDER, max(n, _MOST))
    records = list(merge(*last.values(), key=lambda record: record.timestamp))
    return records[max(0, len(records) - n) :]


def _check(n: Any) -> None:
    if n is None:
        return
    if not isinstance(n, int) or isinstance(n, bool):
        raise TypeError(f"n is an int, not {type(n).__name__}")
    if n < 0:
        raise InvalidSetting(f"n: {n} is negative")
