"""`cp -r` of a store in use: the copy opens, or says that it is torn. What it holds was written, without a hole."""

from __future__ import annotations

import itertools
import mmap
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import klamm
from klamm.errors import KlammError
from tests.crash.cases import memory_directory
from tests.crash.oracle import read_all
from tests.crash.workload import log_of, sealed
from tests.procs import children, until
from tests.rig import run_child

SETTINGS = {"segment.bytes": "3000", "index.interval.bytes": "300", "retention.bytes": "100000"}
LOGS = ["orders/0", "orders/1"]


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    with memory_directory(tmp_path) as path:
        yield path


def write_for_ever(path: Path, acked: mmap.mmap) -> None:
    """Append records that tell their offset, and tell how far they are on disk; make topics now and then."""
    with klamm.open(path) as store:
        round_number = 0
        while True:
            round_number += 1
            for number, name in enumerate(LOGS):
                log = log_of(store, name)
                end = log.ends().end
                base = log.append(sealed([f"{name} {end + n} " + "." * (end % 90) for n in range(1 + end % 4)]))
                if round_number % 3 == 0:
                    log.sync(log.ends().end)
                    struct.pack_into("q", acked, 8 * number, base + 1)
            if round_number % 40 == 0 and round_number < 4000:
                store.topics.create(f"other{round_number}", 3, SETTINGS)


def look_at(copy: Path, acked: list[int]) -> None:
    with klamm.open(copy) as store:
        for name, least in zip(LOGS, acked, strict=True):
            log = log_of(store, name)
            ends = log.ends()
            assert ends.end >= least, (
                f"{name}: {least} were on disk before the copy was begun, and it ends at {ends.end}"
            )
            for _ in range(2):
                start, values = read_all(log)
                for offset, value in enumerate(values, start):
                    assert value.startswith(f"{name} {offset} ")
                log.append(sealed([f"{name} {start + len(values)} "]))


def copy_many(scratch: Path, times: int) -> tuple[int, int]:
    """Copy so many times, and more until a copy opens. Return how many opened, and how many said that they are torn."""
    path = scratch / "store"
    with klamm.open(path) as store:
        store.topics.create("orders", len(LOGS), SETTINGS)
    acked = mmap.mmap(-1, 8 * len(LOGS))
    opened = torn = 0
    with children() as start:
        writer = start(lambda: write_for_ever(path, acked))
        until(lambda: struct.unpack_from("q", acked)[0], "the writer writes")
        for number in itertools.count():
            if number >= times and opened:
                break
            assert number < 20 * times, "no copy opens"
            copy = scratch / "copy"
            shutil.rmtree(copy, ignore_errors=True)
            before = [struct.unpack_from("q", acked, 8 * n)[0] for n in range(len(LOGS))]
            if subprocess.run(["cp", "-r", path, copy], stderr=subprocess.DEVNULL).returncode:
                before = [0] * len(LOGS)  # retention took files away that cp was about to copy, and it has said so

            def look(copy: Path = copy, before: list[int] = before) -> None:
                try:
                    look_at(copy, before)
                except KlammError as error:
                    print(error)
                    os._exit(3)

            status = run_child(look)
            assert os.WIFEXITED(status) and os.WEXITSTATUS(status) in (0, 3), f"copy {number}: {status:#x}"
            torn += os.WEXITSTATUS(status) == 3
            opened += os.WEXITSTATUS(status) == 0
        assert writer.running, f"the writer gave up\n{writer.error}"
    print(f"{opened} copies opened, {torn} were torn")
    return opened, torn


def test_a_copy_of_a_store_in_use_opens_or_says_that_it_is_torn(scratch: Path) -> None:
    """Twenty copies; soak makes thousands."""
    opened, torn = copy_many(scratch, 20)
    assert opened > 0 and opened + torn >= 20


@pytest.mark.soak
def test_thousands_of_copies_open_or_say_that_they_are_torn(scratch: Path) -> None:
    opened, torn = copy_many(scratch, 3000)
    assert opened > 0 and torn > 0
