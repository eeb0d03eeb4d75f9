"""Compaction beside a model: whatever is appended, rolled, compacted, deleted, cut and opened again, in any order.

The model remembers every record at its offset, and the state of every transaction. A log must then hold

    nothing but records of the model, each as it was, in the order of offsets,
    for each key the latest committed record, unless that is a tombstone; then nothing older of the key,
    everything from where the last compaction ended.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from klamm.log import cleaner_checkpoint
from klamm.log.partition import Partition
from tests.crash.cases import memory_directory
from tests.log.compacted import Sent, append, in_transaction, indexes_are_true, roll, seen
from tests.log.logs import move_clock, power_cut
from tests.rig import Rig

KEYS = st.sampled_from([b"", b"a", b"b", b"c", b"d", b"e" * 300])
VALUES = st.none() | st.binary(max_size=40)
BATCHES = st.lists(
    st.tuples(KEYS, VALUES, st.sampled_from([None, [("h", b"1")], [("n", None)]]), st.integers(0, 1 << 40)),
    min_size=1,
    max_size=8,
)
RETENTION_MS = 1000
_rig: Rig | None = None


class Compacting(RuleBasedStateMachine):
    @initialize(segment_bytes=st.sampled_from([200, 1000, 1 << 20]), interval=st.sampled_from([0, 100, 4096]))
    def open(self, segment_bytes: int, interval: int) -> None:
        assert _rig is not None
        self.rig = _rig
        self.slot = self.rig.fresh_slot()
        self.options = {"segment_bytes": segment_bytes, "index_interval_bytes": interval}
        self.log = self.opened(self.rig)
        self.sent: dict[int, Sent] = {}
        self.doomed: set[int] = set()  # offsets of aborted transactions
        self.open_ones: dict[int, list[int]] = {}  # producer: offsets
        self.epochs: dict[int, int] = {}
        self.sequences: dict[int, int] = {}
        self.append([(b"a", b"first", None, 0)], 0)

    def opened(self, rig: Rig) -> Partition:
        return rig.partition(
            self.slot,
            cleanup_policy="compact",
            delete_retention_ms=RETENTION_MS,
            min_cleanable_dirty_ratio=0.3,
            **self.options,
        )

    @rule(given=BATCHES, codec=st.integers(0, 4))
    def append(self, given: list[tuple[bytes, bytes | None, object, int]], codec: int) -> None:
        self.sent |= {record.offset: record for record in append(self.log, given, codec=codec)}

    @rule(given=BATCHES, producer=st.integers(1, 2))
    def append_in_transaction(self, given: list[tuple[bytes, bytes | None, object, int]], producer: int) -> None:
        epoch = self.epochs.setdefault(producer, 0)
        batch = in_transaction(producer, epoch, given, self.sequences.get(producer, 0))
        base = self.log.append(batch)
        self.sequences[producer] = self.sequences.get(producer, 0) + len(given)
        for number, (key, value, headers, timestamp) in enumerate(given):
            offset = base + number
            self.sent[offset] = Sent(offset, key, value, timestamp, tuple(headers or ()))  # type: ignore[arg-type]
            self.open_ones.setdefault(producer, []).append(offset)

    @rule(producer=st.integers(1, 2), commit=st.booleans())
    def end_transaction(self, producer: int, commit: bool) -> None:
        if producer in self.open_ones:
            self.epochs[producer] += 1
            self.sequences[producer] = 0
            assert self.log.append_marker(producer, self.epochs[producer], commit=commit) is not None
            offsets = self.open_ones.pop(producer)
            if not commit:
                self.doomed.update(offsets)

    @rule()
    def roll(self) -> None:
        roll(self.log)

    @rule(force=st.booleans(), memory_bytes=st.sampled_from([1, 1 << 20]))
    def compact(self, force: bool, memory_bytes: int) -> None:
        self.log.cleanup.compact(force=force, memory_bytes=memory_bytes)

    @rule(ms=st.sampled_from([10, RETENTION_MS + 1]))
    def pass_time(self, ms: int) -> None:
        move_clock(self.rig, ms)

    @rule(part=st.floats(0, 1))
    def delete_before(self, part: float) -> None:
        ends = self.log.ends()
        self.log.cleanup.delete_before(ends.start + int(part * (ends.stable - ends.start)))

    @rule()
    def reopen(self) -> None:
        self.log = self.opened(self.rig.child())

    @rule(checkpoint=st.booleans(), without_index=st.booleans())
    def lose_power(self, checkpoint: bool, without_index: bool) -> None:
        if checkpoint:
            self.log.checkpoint()
        for path in Path(self.log.directory).glob("*.index") if without_index else ():
            path.unlink()
        power_cut(self.log)
        self.log = self.opened(self.rig.child())

    @invariant()
    def it_is_what_it_should_be(self) -> None:
        ends = self.log.ends()
        found = seen(self.log, max_bytes=150)
        committed = {
            offset: record
            for offset, record in self.sent.items()
            if ends.start <= offset < ends.stable and offset not in self.doomed
        }
        offsets = [record.offset for record in found]
        assert offsets == sorted(set(offsets))
        for record in found:
            assert record == committed[record.offset]
        last = {record.key: record.offset for record in committed.values()}
        for key, offset in last.items():
            mine = [record.offset for record in found if record.key == key]
            if committed[offset].value is not None or mine:
                assert mine[-1:] == [offset], f"the latest of {key!r} is at {offset}, found {mine}"
        untouched = cleaner_checkpoint.load(self.log.directory).gaps_below
        assert [o for o in offsets if o >= untouched] == sorted(o for o in committed if o >= untouched)
        if not self.open_ones:
            assert ends.stable == ends.end

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.cleanup.compact(force=True)
            self.it_is_what_it_should_be()
            indexes_are_true(self.log)
            keys = [record.key for record in seen(self.log)]
            assert len(keys) == len(set(keys)) or self.open_ones


@pytest.fixture
def _a_rig(tmp_path: Path) -> Iterator[None]:
    global _rig
    with memory_directory(tmp_path) as path:
        _rig = Rig(path, slots=20_000)
        yield
        _rig = None


@pytest.mark.usefixtures("_a_rig")
def test_every_log_holds_the_latest_of_each_key_and_nothing_that_was_not_appended() -> None:
    examples = int(os.environ.get("KLAMM_EXAMPLES", "60"))
    run_state_machine_as_test(
        Compacting, settings=settings(max_examples=examples, stateful_step_count=40, deadline=None)
    )
