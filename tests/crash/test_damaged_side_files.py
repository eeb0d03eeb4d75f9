"""Damage beside a log: every byte of what tells of aborted transactions and of compaction flipped, every length cut to.

After a restart of the process ("same boot") and of the machine ("other boot"), a reader of committed records gets what
it got before, or an error that names the damaged file, or the log's directory. No aborted record is read, none that was
committed is missing.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from klamm.batch import RECORDS, decode
from klamm.errors import KlammError
from klamm.log import head
from klamm.log.partition import Partition
from tests.crash.cases import memory_directory, run_cases, seed_of
from tests.crash.test_damage import SIZES, Case, Files, Shares, cases_of, check_names, lay, snapshot_of
from tests.log.compacted import in_transaction, sealed
from tests.rig import Rig

Found = list[tuple[int, bytes | None, bytes | None]]


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    with memory_directory(tmp_path) as path:
        yield path


def abort_some(log: Partition) -> None:
    """Ten transactions in several segments, of which every other one is aborted; a recovery point in the middle."""
    for epoch in range(10):
        log.append(in_transaction(7, epoch, [(b"k", b"%d" % epoch + b"." * 50)]))
        log.append_marker(7, epoch + 1, commit=epoch % 2 == 1)
        if epoch == 5:
            log.checkpoint()
    log.sync(log.ends().end)


def compact_some(log: Partition) -> None:
    """Records of four keys, of which compaction leaves the latest, and others after it."""
    for part in range(2):
        for number in range(12):
            log.append(sealed([(b"%d" % (number % 4), b"%d.%d" % (part, number) + b"." * 50)]))
        if part == 0:
            log.cleanup.compact(force=True)
    log.checkpoint()
    log.sync(log.ends().end)


def read(log: Partition) -> Found:
    found: Found = []
    with log.reader(log.ends().start) as reader:
        while data := reader.read(250):
            found += [(record.offset, record.key, record.value) for record in decode(data, form=RECORDS)]
    return found


class OneLog:
    def __init__(self, root: Path, fill: str) -> None:
        self.root = root
        self.changes = {"cleanup_policy": "compact" if fill == "compacted" else "delete"}
        log = Rig(root / "whole", slots=2).partition(1, SIZES, **self.changes)
        (compact_some if fill == "compacted" else abort_some)(log)
        self.truth = read(log)
        self.files: Files = snapshot_of(root / "whole")

    def run(self, case: Case, worker: int) -> None:
        root = self.root / f"case{worker}"
        lay(root, self.files, case)
        rig = Rig(root, slots=2)
        if case.boot == "other":
            rig.heads.mark_all(head.NEEDS_RECOVERY)
        try:
            log = rig.partition(1, SIZES, **self.changes)
            found = read(log)
            assert found == self.truth, f"{len(found)} records, expected {len(self.truth)}"
            log.close()
        except KlammError as error:
            check_names(error, root, case)
        finally:
            rig.lock.close()


@pytest.mark.parametrize(("fill", "suffix"), [("aborted", ".aborted"), ("compacted", "cleaner-checkpoint")])
def test_damage_beside_a_log_is_an_error_that_names_it_or_harmless(scratch: Path, fill: str, suffix: str) -> None:
    one = OneLog(scratch, fill)
    names = [name for name in one.files if name.endswith(suffix)]
    assert len(names) >= (3 if fill == "aborted" else 1)
    run_cases(cases_of(one.files, names, random.Random(seed_of()), Shares(0.5, 0.5)), one.run)
