"""The state of a pipe: a value for each key, kept in memory by partition, and in a topic, its changelog.

    orders/0  →  f  →  invoices            a record of orders/n reads and changes the state of its key in partition n;
               ↕   →  totals/0             the last change of each key is a record of totals/n, in the transaction that
              {key: value}                 has the outputs and the progress

Promises
  PST1  The state of a partition is the fold of the records that the group has committed: the changelog is written in
        the transaction that commits them. A value of None removes its key.
  PST2  A partition that is taken over is read from its changelog, after every transaction that was open there has
        ended: the last owner cannot commit any more, and what it had committed is read.
  PST3  After a transaction that did not commit, nothing of memory is used again.

The changelog has as many partitions as the input, and it is compacted. `store.table` of it is the state, for everybody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from klamm.client.consume.range_reader import read_ranges
from klamm.client.consume.stable_end import await_stable
from klamm.errors import InvalidRecord, InvalidSetting, TopicExists, UnknownTopic
from klamm.types import TopicPartition

if TYPE_CHECKING:
    from klamm.batch import Record
    from klamm.client.serde import Pair
    from klamm.store.directory import Core

__all__ = ["State", "States"]


class State:
    """The state of one key, for one call of a pipe's function."""

    __slots__ = ("_after", "_before", "_is_read", "_pair", "_record")

    def __init__(self, record: Record, before: bytes | None, pair: Pair) -> None:
        self._record = record
        self._before = before
        self._pair = pair
        self._after: Any = None
        self._is_read = False

    def __repr__(self) -> str:
        return f"<State of {self._record.key!r}: {self._after if self._is_read else self._before!r}>"

    @property
    def value(self) -> Any:
        """What was last set for the key; None if nothing was. What it holds may be changed in place."""
        if not self._is_read:
            before, from_bytes = self._before, self._pair.from_bytes
            self.value = before if before is None or from_bytes is None else from_bytes(before)
        return self._after

    @value.setter
    def value(self, value: Any) -> None:
        if self._record.key is None:
            raise InvalidRecord("a record without a key has no state", hint="drop it before the state is used")
        self._after, self._is_read = value, True

    def _encoded(self) -> bytes | None:
        """Return the state in bytes, as the function has left it."""
        if not self._is_read:
            return self._before
        if self._after is None:
            return None
        to_bytes = self._pair.to_bytes
        value = self._after if to_bytes is None else to_bytes(self._after)
        if not isinstance(value, bytes | bytearray | memoryview):
            raise TypeError(f"the state of a pipe is bytes, not {type(value).__name__}: name a serde for other values")
        return bytes(value)


class States:
    """The state of the partitions that a pipe owns, and the changes of its open transaction. For one thread."""

    def __init__(self, core: Core, changelog: str, topic: str, pair: Pair, on_progress: Callable[[], object]) -> None:
        """Prepare state. `on_progress` is called again and again while a changelog is read, which may take long."""
        self._core = core
        self.changelog = changelog
        self._topic = topic
        self._pair = pair
        self._on_progress = on_progress
        self._partitions: dict[int, dict[bytes, bytes]] = {}
        self._changes: dict[tuple[int, bytes], bytes | None] = {}
        _create(core, changelog, topic)
        self._check_partitions()

    def of(self, record: Record) -> State:
        """Return the state of the record's key."""
        values = self._partitions.get(record.partition)
        if values is None:
            values = self._partitions[record.partition] = self._load(record.partition)
        return State(record, values.get(record.key), self._pair)

    def put(self, record: Record, state: State) -> None:
        """Store the state that the function has left for the record's key."""
        value, values = state._encoded(), self._partitions[record.partition]
        if value == values.get(record.key):
            return
        self._changes[record.partition, record.key] = value
        if value is None:
            del values[record.key]
        else:
            values[record.key] = value

    def changes(self) -> Iterator[tuple[int, bytes, bytes | None]]:
        """Yield partition, key and value of what the open transaction has changed."""
        return ((number, key, value) for (number, key), value in self._changes.items())

    def committed(self) -> None:
        """Record that the changes are in the log."""
        self._changes.clear()

    def forget(self) -> None:
        """Read everything again: the changes are not, or may not be, in the log."""
        self._changes.clear()
        self._partitions.clear()

    def drop(self, numbers: Iterable[int]) -> None:
        """Drop partitions that belong to another member; nothing of them is changed."""
        for number in numbers:
            self._partitions.pop(number, None)

    def _load(self, number: int) -> dict[bytes, bytes]:
        self._check_partitions()
        log = self._core.topic(self.changelog).partition(number)
        await_stable(self._core, [log])
        values: dict[bytes, bytes] = {}
        everything = {TopicPartition(self.changelog, number): range(log.ends().end)}
        for batch in read_ranges(self._core, everything):
            self._on_progress()
            for record in batch:
                if record.value is None:
                    values.pop(record.key, None)
                else:
                    values[record.key] = record.value
        return values

    def _check_partitions(self) -> None:
        changelog, topic = self._core.topic(self.changelog), self._core.topic(self._topic)
        if changelog.count != topic.count:
            raise InvalidSetting(
                f"{self.changelog}: {changelog.count} partitions, but {self._topic} has {topic.count}",
                hint="the state of a pipe has as many partitions as its input: name another topic with state=",
            )
        policy = changelog.topic.settings.cleanup_policy
        if policy != "compact":
            raise InvalidSetting(
                f"{self.changelog}: cleanup.policy is {policy}, which removes state that is still in use",
                hint="set it to compact, or name another topic with state=",
            )


def _create(core: Core, changelog: str, topic: str) -> None:
    """Create the changelog, if there is none."""
    try:
        core.topic(changelog)
    except UnknownTopic:
        try:
            core.create_topic(changelog, core.topic(topic).count, {"cleanup.policy": "compact"})
        except TopicExists:
            pass
