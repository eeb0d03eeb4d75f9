"""Every byte flipped, every file cut at every length: an error or the truth; no wrong record, none fewer, no hang.

The same after a restart of the process ("same boot": the head is believed) and of the machine ("other boot": the log is
recovered from its files). After the damage the log is read, from several places, and appended to. Unless an error says
what is wrong, every record that was written is read, at its offset, and no offset is given again; only what was not yet
synced may be cut off, and that is logged. Whatever bytes the damage had left must still be there, or set aside.
"""

from __future__ import annotations

import logging
import os
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

import klamm
from klamm.batch import RECORDS, Builder, decode
from klamm.errors import KlammError
from klamm.log import head, point
from klamm.log.partition import Partition
from klamm.store.directory import boot_id
from tests.crash.cases import memory_directory, run_cases, seed_of
from tests.crash.stores import without_maintenance
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
BATCHES = 10


class Written(NamedTuple):
    records: Records
    synced: int
    """How many of them, from the start, were on disk when the damage came."""


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


def fill(log: Partition, *, producer: bool, synced: int = BATCHES) -> Written:
    """Three segments; a recovery point in the middle, and batches beyond it, the first `synced` of all on disk."""
    now = time.time_ns() // 1_000_000
    records: Records = []
    for number in range(BATCHES):
        values = [f"record {number}.{part}" for part in range(1 + number % 3)]
        log.append(batch(values, now + 10 * number, sequence=0 if number == 2 and producer else -1))
        records += [(value, now + 10 * number + part) for part, value in enumerate(values)]
        if number == 6:  # in the middle of a segment, and of what lies between two entries of its index
            log.checkpoint()
        if number == synced - 1:
            log.sync(len(records))
            on_disk = len(records)
    return Written(records, on_disk)


def snapshot_of(root: Path) -> Files:
    """Every file below, by its name from there. (Not by pathlib, which would take a third of a case.)"""
    found = {}
    for directory, _, names in os.walk(root):
        for name in names:
            path = f"{directory}/{name}"
            with open(path, "rb", buffering=0) as file:
                found[path.removeprefix(f"{root}/")] = file.read()
    return found


def lay(root: Path, files: Files, case: Case) -> None:
    """Make the directory anew, struck by the damage."""
    shutil.rmtree(root, ignore_errors=True)
    for directory in {os.path.dirname(name) for name in files}:
        os.makedirs(f"{root}/{directory}", exist_ok=True)
    for name, data in files.items():
        with open(f"{root}/{name}", "wb", buffering=0) as file:
            file.write(data)
    if "klamm.db" in files and case.boot == "same":
        head.Heads(str(root / "heads")).trust(boot_id())
    with open(f"{root}/{case.file}", "r+b", buffering=0) as file:  # the same inode
        struck = case.strike(file.read())
        file.seek(0)
        file.write(struck)
        file.truncate()


def read_some(log: Partition, records: Records, offset: int) -> KlammError | None:
    """Read to the end, or to an error, which is returned: every record must be the one that was written, and none may
    be missing.
    """
    with log.reader(offset) as reader:
        try:
            while data := reader.read(250):
                for record in decode(data, form=RECORDS, from_offset=offset):
                    assert record.offset == offset, f"offset {record.offset} comes where {offset} should"
                    assert offset < len(records), "an invented record"
                    assert (record.value.decode(), record.timestamp) == records[offset], "a wrong record"
                    offset += 1
        except KlammError as error:
            return error
    assert offset == len(records), f"the log ends at {offset}, without an error, and not at {len(records)}"
    return None


def check_names(error: KlammError, root: Path, case: Case) -> None:
    """Check that the error names the damaged file; or its directory, where offsets are missing."""
    path = f"{root}/{case.file}"
    assert path in str(error) or f"{os.path.dirname(path)}:" in str(error), f"the error names another file: {error}"


def use(log: Partition, written: Written, told: list[str], dice: random.Random) -> list[KlammError]:
    """Read, look up, append, roll, clean, sync, and read again. Return the errors of reading."""
    ends = log.ends()
    assert ends.start == 0 and written.synced <= ends.end <= len(written.records), f"{ends}: less than was synced"
    known = written.records[: ends.end]
    if len(known) < len(written.records):
        assert any(" are lost: " in line for line in told), f"a tail was cut in silence: {told}"
    errors = [read_some(log, known, offset) for offset in (0, dice.randrange(len(known)), len(known) - 1)]
    at = dice.randrange(len(known))
    assert log.offset_at(known[at][1]) == at, "a wrong time"
    after = written.records[-1][1] + 1
    for _ in range(3):
        base = log.append(batch([NEW, NEW], after))
        assert base == len(known), "an offset that was acknowledged is given again"
        known += [(NEW, after), (NEW, after + 1)]
        log.sync(base + 2)
    if ends.end < len(written.records):
        assert log.ends().leader_epoch > 0, "what took the place of the tail belongs to another epoch"
    log.cleanup.expire()
    errors += [read_some(log, known, offset) for offset in (0, dice.randrange(len(known)), base)]
    return [error for error in errors if error is not None]


@contextmanager
def what_is_logged() -> Iterator[list[str]]:
    """What is said to the operator meanwhile."""
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("klamm")
    logger.addHandler(handler)
    try:
        yield told
    finally:
        logger.removeHandler(handler)


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
        both = min(len(old), len(new))
        kept = both if old[:both] == new[:both] else next(at for at in range(both) if old[at] != new[at])
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

    def __init__(self, root: Path, *, synced: int = BATCHES) -> None:
        self.root = root
        rig = Rig(root / "whole", slots=2)
        log = rig.partition(1, SIZES)
        self.written = fill(log, producer=True, synced=synced)
        self.files = snapshot_of(root / "whole")

    def run(self, case: Case, worker: int) -> None:
        root = self.root / f"case{worker}"
        lay(root, self.files, case)
        rig = Rig(root, slots=2)
        if case.boot == "other":
            rig.heads.mark_all(head.NEEDS_RECOVERY)
        try:
            with what_is_logged() as told:
                log = rig.partition(1, SIZES)
                for error in use(log, self.written, told, random.Random(str(case))):
                    check_names(error, root, case)
                log.close()
        except KlammError as error:
            check_names(error, root, case)
        finally:
            rig.lock.close()
        nothing_is_lost(root, self.files, case)


class OneStore:
    """A store with one log: for `heads` and klamm.db."""

    def __init__(self, root: Path) -> None:
        self.root = root
        with klamm.open(root / "whole") as store:
            store.topics.create("orders", 1, SETTINGS)
            without_maintenance(store._acquired())
            self.written = fill(log_of(store, "orders/0"), producer=False)
            self.files = {
                name: data for name, data in snapshot_of(root / "whole").items() if not name.endswith(("-shm", "-wal"))
            }
        # The catalog as it is after closing, the rest as it was before: nobody has left a recovery point.
        self.files["klamm.db"] = (root / "whole/klamm.db").read_bytes()

    def run(self, case: Case, worker: int) -> None:
        root = self.root / f"case{worker}"
        lay(root, self.files, case)
        for read_only in (True, False):
            try:
                with what_is_logged() as told, klamm.open(root, read_only=read_only) as store:
                    log = log_of(store, "orders/0")
                    if read_only:
                        errors = [read_some(log, self.written.records, log.ends().start)]
                    else:
                        errors = [*use(log, self.written, told, random.Random(str(case)))]
                for error in errors:
                    if error is not None:
                        check_names(error, root, case)
            except KlammError as error:
                check_names(error, root, case)
        nothing_is_lost(root, self.files, case)


def test_damage_to_a_log_or_its_index_is_an_error_or_harmless(scratch: Path) -> None:
    """At every byte of an index, of which few mislead a reader, and at some of the others, which ones is random.

    `test_damage_to_every_bit` takes all, in soak.
    """
    one = OneLog(scratch)
    dice = random.Random(seed_of())
    indexes = [name for name in one.files if name.endswith(".index")]
    others = [name for name in one.files if name.endswith((".log", "/recovery", ".snapshot"))]
    assert len(indexes) >= 3 and len(others) >= 4
    cases = cases_of(one.files, indexes, dice, Shares(1, 0.2)) + cases_of(one.files, others, dice, Shares(0.2, 0.2))
    run_cases(cases, one.run)


def test_damage_above_what_was_synced_is_a_cut_that_is_logged(scratch: Path) -> None:
    one = OneLog(scratch, synced=8)
    [last] = sorted(name for name in one.files if name.endswith(".log"))[-1:]
    run_cases(cases_of(one.files, [last], random.Random(seed_of()), Shares()), one.run)


def test_damage_to_the_table_of_producers_hurts_no_record(scratch: Path) -> None:
    one = OneLog(scratch)
    run_cases(cases_of(one.files, ["logs/1/producers"], random.Random(seed_of()), Shares(0.1, 0.02, 0.1)), one.run)


def test_damage_to_heads_is_an_error_or_harmless(scratch: Path) -> None:
    """At some of the bytes, which ones is random; `test_damage_to_every_bit` takes all, in soak."""
    one = OneStore(scratch)
    run_cases(cases_of(one.files, ["heads"], random.Random(seed_of()), Shares(0.2, 0.05, 0.1)), one.run)


def test_damage_to_the_flags_of_a_head_is_an_error_or_harmless(scratch: Path) -> None:
    """No mark that a flipped bit makes is taken for a deletion, or for a store that is opened for reading only."""
    one = OneStore(scratch)
    flags = head.SLOT_BYTES + 8  # of slot 1
    run_cases([Case("heads", "flip", flags, bit, boot) for bit in range(8) for boot in ("same", "other")], one.run)


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
