"""Every byte flipped, every file cut at every length: an error or a cut tail, never a wrong record, never a hang.

The same after a restart of the process ("same boot": the head is believed) and of the machine ("other boot": the log is
recovered from its files). After the damage the log is read, from several places, and appended to. Whatever is read must
have been written, at that offset. Whatever bytes the damage had left must still be there, or in a file set aside.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import klamm
from klamm.batch import RECORDS, Builder, decode
from klamm.disk.threads import DaemonThread
from klamm.errors import KlammError
from klamm.log import _head, head, point
from klamm.log.partition import Partition
from klamm.store import directory
from tests.crash.cases import memory_directory, run_cases, seed_of
from tests.crash.workload import log_of
from tests.rig import Rig, Sizes

NEW = "appended afterwards"
SIZES = Sizes(segment_bytes=350, index_interval_bytes=100, retention_ms=10**9)
SETTINGS = {"segment.bytes": "350", "index.interval.bytes": "100"}


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    with memory_directory(tmp_path) as path:
        yield path


class Case(NamedTuple):
    file: str
    kind: str  # flip: the bit `bit` of byte `position`; cut: the file ends at `position`
    position: int
    bit: int
    boot: str  # same, other

    def strike(self, data: bytes) -> bytes:
        if self.kind == "cut":
            return data[: self.position]
        flipped = bytearray(data)
        flipped[self.position] ^= 1 << self.bit
        return bytes(flipped)


Files = dict[str, bytes]
Records = list[tuple[str, int]]  # value and timestamp, by offset


class Shares(NamedTuple):
    """How many of the cases are run."""

    flips: float = 1
    cuts: float = 1
    alike: float = 1  # of the bytes within long runs of zeros


def cases_of(files: Files, names: list[str], dice: random.Random, shares: Shares, *, bits: int = 1) -> list[Case]:
    """Bytes of the files named flipped, in one random bit or more, and lengths cut to."""
    cases = []
    for name in names:
        data = files[name]
        for boot in ("same", "other"):
            for position in range(len(data)):
                zeros = not any(data[max(0, position - 32) : position + 32])
                if dice.random() < shares.flips * (shares.alike if zeros else 1):
                    cases += [Case(name, "flip", position, bit, boot) for bit in dice.sample(range(8), bits)]
                if dice.random() < shares.cuts:
                    cases.append(Case(name, "cut", position, 0, boot))
    dice.shuffle(cases)
    return cases


def batch(values: list[str], timestamp: int, *, sequence: int = -1) -> bytearray:
    builder = Builder(1 << 20)
    for number, value in enumerate(values):
        builder.add(None, value.encode(), None, timestamp + number)
    return bytearray(builder.seal(producer_id=3 if sequence >= 0 else -1, producer_epoch=0, base_sequence=sequence))


def fill(log: Partition, *, producer: bool) -> Records:
    """Three segments; a recovery point in the middle, and records beyond it, all of them on disk."""
    now = time.time_ns() // 1_000_000
    records: Records = []
    for number in range(10):
        values = [f"record {number}.{part}" for part in range(1 + number % 3)]
        log.append(batch(values, now + 10 * number, sequence=0 if number == 2 and producer else -1))
        records += [(value, now + 10 * number + part) for part, value in enumerate(values)]
        if number == 6:  # in the middle of a segment, and of what lies between two entries of its index
            log.checkpoint()
    log.sync(len(records))
    return records


def snapshot_of(root: Path) -> Files:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def lay(root: Path, files: Files, case: Case, inodes: dict[str, int]) -> None:
    """Make the directory anew, struck by the damage. An index names its log's inode, and so must the copy's."""
    shutil.rmtree(root, ignore_errors=True)
    moved = dict(files)
    for name in sorted(files, key=lambda name: name.endswith(".index")):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".index"):
            log = name.removesuffix(".index") + ".log"
            base = int(Path(log).stem)
            assert files[name].startswith(_head.index_header(inodes[log], base))
            moved[name] = _head.index_header(os.stat(root / log).st_ino, base) + files[name][32:]
        path.write_bytes(moved[name])
    if "klamm.db" in files and case.boot == "same":
        head.Heads(str(root / "heads")).trust(directory.boot_id())
    struck = case.strike((root / case.file).read_bytes())
    with (root / case.file).open("r+b") as file:  # the same inode
        file.write(struck)
        file.truncate()


def read_some(log: Partition, records: Records, offset: int) -> int:
    """Read to the end: every record must be the one that was written. How far that was, however it ended."""
    with log.reader(offset) as reader:
        try:
            while data := reader.read(250):
                for record in decode(data, form=RECORDS, from_offset=offset):
                    assert record.offset == offset, f"offset {record.offset} comes where {offset} should"
                    if offset < len(records):
                        value, timestamp = records[offset]
                        assert (record.value.decode(), record.timestamp) == (value, timestamp), "a wrong record"
                    else:
                        assert record.value.decode() == NEW, "an invented record"
                    offset += 1
        except KlammError:
            pass
    return offset


def use(log: Partition, records: Records, dice: random.Random) -> None:
    """Read, look up, append, roll, clean, sync, and read again."""
    ends = log.ends()
    for offset in (ends.start, dice.randrange(len(records)), len(records) - 1):
        read_some(log, records, offset)
    at = dice.randrange(len(records))
    found = log.offset_at(records[at][1])
    assert found == at or (found is None and ends.end <= at) or (ends.start > at and found == ends.start), (
        "a wrong time"
    )
    known = list(records)
    for _ in range(3):
        base = log.append(batch([NEW, NEW], records[-1][1] + 1))
        if base < len(known):  # a tail was cut off, and what took its place belongs to another epoch
            assert log.ends().leader_epoch > 0
            del known[base:]
        known += [(NEW, records[-1][1] + 1), (NEW, records[-1][1] + 2)]
        log.sync(base + 2)
    log.expire()
    for offset in (log.ends().start, dice.randrange(len(known)), base):
        read_some(log, known, offset)


def nothing_is_lost(root: Path, before: Files, struck: Case) -> None:
    """What the damage had left of the logs is there still, or set aside; all of it below the recovery point."""
    [known] = [point.parse(data) for name, data in before.items() if name.endswith("/recovery")]
    assert isinstance(known, point.Point)
    now = snapshot_of(root)
    for name, data in before.items():
        if not name.endswith(".log"):
            continue
        old = struck.strike(data) if name == struck.file else data
        new = now.get(name, b"")
        kept = next((at for at in range(min(len(old), len(new))) if old[at] != new[at]), min(len(old), len(new)))
        aside = [content for other, content in now.items() if other.startswith(f"{name}.cut-")]
        assert kept == len(old) or any(old.endswith(part) and len(part) >= len(old) - kept for part in aside), (
            f"{name}: {len(old) - kept} bytes are gone"
        )
        if struck.file.endswith(".log"):  # without the point, nobody knows what was below it
            base = int(Path(name).stem)
            synced = len(old) if base < known.base else known.position if base == known.base else 0
            assert kept >= min(synced, len(old)), f"{name}: damage below the recovery point was cut off like a tail"


class OneLog:
    """A log without a store, for what is in its own directory: a case takes a millisecond."""

    def __init__(self, root: Path) -> None:
        self.root = root
        rig = Rig(root / "whole", slots=2)
        log = rig.partition(1, SIZES)
        self.records = fill(log, producer=True)
        self.files = snapshot_of(root / "whole")
        self.inodes = {name: os.stat(root / "whole" / name).st_ino for name in self.files}

    def run(self, case: Case, worker: int) -> None:
        root = self.root / f"case{worker}"
        lay(root, self.files, case, self.inodes)
        rig = Rig(root, slots=2)
        if case.boot == "other":
            rig.heads.mark_all(head.NEEDS_RECOVERY)
        try:
            log = rig.partition(1, SIZES)
            use(log, self.records, random.Random(str(case)))
            log.close()
        except KlammError:
            pass
        finally:
            rig.lock.close()
        nothing_is_lost(root, self.files, case)


def with_no_janitor(core: directory.Core) -> None:
    """Whoever has one starts no other: nobody leaves recovery points while we look."""
    core._janitor = DaemonThread(lambda: None, "none")
    core._janitor.join()


class OneStore:
    """A store with one log: for `heads` and klamm.db."""

    def __init__(self, root: Path) -> None:
        self.root = root
        with klamm.open(root / "whole") as store:
            store.create_topic("orders", 1, SETTINGS)
            with_no_janitor(store._acquired())
            self.records = fill(log_of(store, "orders/0"), producer=False)
            self.files = {
                name: data for name, data in snapshot_of(root / "whole").items() if not name.endswith(("-shm", "-wal"))
            }
            self.inodes = {name: os.stat(root / "whole" / name).st_ino for name in self.files}
        # The catalog as it is after closing, the rest as it was before: nobody has left a recovery point.
        self.files["klamm.db"] = (root / "whole/klamm.db").read_bytes()

    def run(self, case: Case, worker: int) -> None:
        root = self.root / f"case{worker}"
        lay(root, self.files, case, self.inodes)
        for read_only in (True, False):
            try:
                with klamm.open(root, read_only=read_only) as store:
                    log = log_of(store, "orders/0")
                    if read_only:
                        read_some(log, self.records, log.ends().start)
                    else:
                        use(log, self.records, random.Random(str(case)))
            except KlammError:
                pass
        nothing_is_lost(root, self.files, case)


def test_damage_to_a_log_or_its_index_is_an_error_or_a_cut_tail(scratch: Path) -> None:
    """At half of the bytes, which ones is random; `test_damage_to_every_bit` takes all, in soak."""
    one = OneLog(scratch)
    names = [name for name in one.files if name.endswith((".log", ".index", "/recovery", ".snapshot"))]
    assert len(names) >= 7
    run_cases(cases_of(one.files, names, random.Random(seed_of()), Shares(0.5, 0.5)), one.run)


def test_damage_to_the_table_of_producers_hurts_no_record(scratch: Path) -> None:
    one = OneLog(scratch)
    run_cases(cases_of(one.files, ["logs/1/producers"], random.Random(seed_of()), Shares(0.1, 0.02, 0.1)), one.run)


def test_damage_to_heads_is_an_error_or_harmless(scratch: Path) -> None:
    """At half of the bytes, which ones is random; `test_damage_to_every_bit` takes all, in soak."""
    one = OneStore(scratch)
    run_cases(cases_of(one.files, ["heads"], random.Random(seed_of()), Shares(0.5, 0.05, 0.1)), one.run)


def test_damage_to_the_catalog_is_an_error_or_harmless(scratch: Path) -> None:
    one = OneStore(scratch)
    run_cases(cases_of(one.files, ["klamm.db"], random.Random(seed_of()), Shares(0.01, 0.003, 0.05)), one.run)


@pytest.mark.soak
def test_damage_to_every_bit(scratch: Path) -> None:
    seed = seed_of()
    (scratch / "log").mkdir()
    (scratch / "store").mkdir()
    log, store = OneLog(scratch / "log"), OneStore(scratch / "store")
    run_cases(cases_of(log.files, list(log.files), random.Random(seed), Shares(), bits=8), log.run)
    run_cases(cases_of(store.files, ["heads", "klamm.db"], random.Random(seed), Shares(), bits=8), store.run)
