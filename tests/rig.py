"""A store without a catalog, for tests of the log: heads, lock bytes, and as many partitions as one likes.

Laying out a real store syncs a dozen files; tests that kill a process at every step want thousands of fresh logs. So a
rig lays out thousands of slots once and uses each for one case. Children open a rig of their own.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from klamm.batch import RECORDS, Builder, decode
from klamm.disk import _os
from klamm.disk.locks import LockFile
from klamm.log import head, segment
from klamm.log.index import Index
from klamm.log.partition import Partition
from tests.procs import children, how_ended

BOOT = b"0123456789abcdef"


@dataclass(frozen=True)
class Sizes:
    """Settings of a log, small enough that everything happens soon."""

    segment_bytes: int = 400
    segment_ms: int = 1 << 40
    segment_records: int = -1
    index_interval_bytes: int = 100
    producer_id_expiration_ms: int = 1 << 40
    max_message_bytes: int = 1 << 20
    message_timestamp_type: str = "CreateTime"
    compression_type: str = "producer"
    compression_levels: Mapping[str, int] = field(default_factory=dict)
    timestamp_limits_ms: tuple[int, int] = ((1 << 63) - 1, (1 << 63) - 1)
    retention_ms: int = -1
    retention_bytes: int = -1
    cleanup_policy: str = "delete"
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = (1 << 63) - 1
    delete_retention_ms: int = 24 * 3600 * 1000


class Rig:
    def __init__(self, path: Path | str, slots: int = 4000, heads: head.Heads | None = None) -> None:
        self.path = str(path)
        self.slots = slots
        self._next = 1
        fresh = not os.path.exists(f"{self.path}/heads")
        if fresh:
            os.makedirs(f"{self.path}/logs", exist_ok=True)
            Path(self.path, "heads").touch()
        self.heads = heads or head.Heads(f"{self.path}/heads")
        if fresh:
            self.heads.initialise()
            self.heads.lay_out(1, slots)
            self.heads.trust(BOOT)
        self.lock = LockFile(f"{self.path}/lock")
        self.lock.record_in(self.heads)
        self.life = head.Life(self.heads, LockFile(f"{self.path}/heads"))
        self.events: list[int] = []

    def child(self) -> Rig:
        """The same rig as another process opens it; on Windows, where none can, another user of the same heads."""
        return Rig(self.path, self.slots, self.heads if sys.platform == "win32" else None)

    def fresh_slot(self) -> int:
        self._next += 1
        return self._next - 1

    def partition(self, slot: int, sizes: Sizes | None = None, /, **changes: float | str) -> Partition:
        return Partition(
            self.heads,
            self.lock,
            topic="orders",
            number=slot,
            slot=slot,
            bell_bit=1 << slot % 32,
            directory=f"{self.path}/logs/{slot}",
            settings=replace(sizes or Sizes(), **changes),  # type: ignore[arg-type]
            catalog_version=self.heads.catalog_version,
            reload=lambda partition: partition.configure(partition.settings, self.heads.catalog_version),
            on_event=lambda partition, events: self.events.append(events),
            life=self.life,
        )


def batch(
    writer: int,
    number: int,
    padding: int = 20,
    *,
    producer: int = -1,
    epoch: int = 0,
    sequence: int = -1,
    timestamp: int = 0,
) -> bytearray:
    """A batch of one record that names its writer."""
    builder = Builder(1 << 20)
    builder.add(b"%d" % writer, b"%d" % number + b"." * padding, None, timestamp)
    if producer < 0:
        return bytearray(builder.seal())
    return bytearray(builder.seal(producer_id=producer, producer_epoch=epoch, base_sequence=sequence))


def wait_any(heads: head.Heads, logs: list[head.Log], seqs: list[int], timeout_us: int, spin_us: int = 0) -> bool:
    """Wait until the head of one of `logs` has moved on from its `seqs`; whether one has in time."""
    poller = head.Poller(heads)
    poller.watch(logs)
    for index, seq in enumerate(seqs):
        poller.seen(index, seq)
    return poller.wait(timeout_us, spin_us) is not None


Seen = list[tuple[int, int]]


def names(data: memoryview | bytes) -> Seen:
    """(writer, number) of every record in verified batches."""
    return [(int(r.key), int(r.value.rstrip(b"."))) for r in decode(data, form=RECORDS)]


def read_all(partition: Partition, start: int = 0) -> Seen:
    """What a reader sees, offsets checked."""
    seen: Seen = []
    with partition.reader(start) as reader:
        while data := reader.read(200):
            records = decode(data, form=RECORDS, from_offset=start + len(seen))
            assert [r.offset for r in records] == list(range(start + len(seen), start + len(seen) + len(records)))
            seen += [(int(r.key), int(r.value.rstrip(b"."))) for r in records]
    return seen


def scan_files(partition: Partition) -> Seen:
    """What recovery would find: every batch in the files, whatever the head says, and nothing beyond the commit."""
    now = partition.snapshot()
    seen: Seen = []
    for base in segment.bases(partition.directory):
        data = Path(segment.path_of(partition.directory, base)).read_bytes()
        assert base == len(seen), f"segment {base} should start at {len(seen)}"
        if base == now.active_base:
            assert len(data) == now.position, f"{len(data) - now.position} bytes beyond the commit"
        seen += names(data)
    return seen


def index_of(partition: Partition, base: int) -> Index:
    """The index of a segment, as a reader opens it."""
    now = partition.snapshot()
    return Index(partition.directory, base, end_position=now.position if base == now.active_base else None)


def index_is_true(partition: Partition) -> int:
    """Every entry of every index points at a batch and tells the truth. How many there are."""
    from klamm.batch import walk

    count = 0
    for base in partition.segments():
        positions = {}
        at, youngest = 0, -1
        for header in walk(Path(segment.path_of(partition.directory, base)).read_bytes()):
            positions[at] = (header.base_offset, youngest)
            at += header.size
            youngest = max(youngest, header.max_timestamp)
            end = header.next_offset
        if positions:
            positions[at] = (end, youngest)
        with index_of(partition, base) as index:
            for number in range(index.count):
                entry = index.entry(number)
                assert entry is not None, f"{index.path}: entry {number} is broken"
                assert positions[entry.position] == (entry.offset, entry.max_timestamp)
                count += 1
    return count


def run_child(action: Callable[[], object]) -> int:
    """Run `action` in a forked child and return its status, as os.waitpid returns it."""
    with children() as start:
        return start(action).ended()


def dies(action: Callable[[], object]) -> bool:
    """Run `action` in a child and return whether SIGKILL ended it. Its own failure is the test's, too."""
    with children() as start:
        child = start(action)
        status = child.ended()
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        assert killed or status == 0, f"a child ended by {how_ended(status)}\n{child.error}"
        return killed


def killed_at(step: int, action: Callable[[], object]) -> Callable[[], None]:
    """`action`, in a process that gets SIGKILL at its n-th step."""

    def run() -> None:
        _os.trap(step, signal=signal.SIGKILL)
        action()
        _os.trap(0)

    return run


__all__ = [
    "BOOT",
    "Rig",
    "Sizes",
    "batch",
    "dies",
    "index_is_true",
    "index_of",
    "killed_at",
    "names",
    "read_all",
    "run_child",
    "scan_files",
]
