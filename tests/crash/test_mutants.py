"""Break the code in known ways: each break must fail a test. In `make soak`, for each one builds the natives anew.

A promise without a test that fails when it is broken is a hope. Every mutant names the promise it breaks, the text it
changes, and the tests that must notice.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
APPEND = "src/klamm/log/_append.pxi"
PRODUCERS = "src/klamm/log/_producers.pxi"
HEAD = "src/klamm/log/head.py"
RECOVERY = "src/klamm/log/recovery.py"
READER = "src/klamm/log/reader.py"
PARTITION = "src/klamm/log/partition.py"
CLEANING = "src/klamm/log/cleaning.py"
DIRECTORY = "src/klamm/store/directory.py"
KILLS = "tests/crash/test_killed_writer.py"
POWER_CUT = "tests/crash/test_power_cut.py"
DAMAGE = "tests/crash/test_damage.py"
FAILED_SYNC = "tests/crash/test_failed_sync.py"


class Mutant(NamedTuple):
    name: str
    file: str
    changes: tuple[tuple[str, str], ...]
    tests: tuple[str, ...] = (KILLS, "tests/crash/test_random_kills.py", "tests/log")


TRANSACTIONS = ("tests/log/test_transactions.py",)

MUTANTS = [
    Mutant(
        "what is aborted is written down after the marker's commit",
        APPEND,
        (
            (
                "        error = note_aborted(w, &now, batch)\n        if error:\n            return error\n",
                "        pass\n",
            ),
            (
                "    publish(w.slot, &now)\n    if producer_id",
                (
                    "    publish(w.slot, &now)\n"
                    "    if attributes & KLAMM_CONTROL and batch[MARKER_TYPE_AT + 1] == 0:\n"
                    "        note_aborted(w, &before, batch)\n"
                    "    if producer_id"
                ),
            ),
        ),
        TRANSACTIONS,
    ),
    Mutant(
        "a marker makes everything stable, whatever else is open",
        APPEND,
        (("        now.stable_offset = oldest if oldest >= 0 else end", "        now.stable_offset = end"),),
        TRANSACTIONS,
    ),
    Mutant(
        "an open transaction does not hold the stable offset back",
        APPEND,
        ((" and not attributes & KLAMM_TRANSACTIONAL:", ":"),),
        TRANSACTIONS,
    ),
    Mutant(
        "a late marker ends a later transaction",
        PRODUCERS,
        (("    if epoch <= last:\n        return R_ENDED\n", "    if epoch <= last:\n        return R_IN_ORDER\n"),),
        TRANSACTIONS,
    ),
    Mutant(
        "a marker of the same epoch is written though nothing is open",
        PRODUCERS,
        (("if epoch == last and entry.first_open_offset >= 0 else R_ENDED", "if epoch == last else R_ENDED"),),
        TRANSACTIONS,
    ),
    Mutant(
        "after a marker of the same epoch the sequence begins anew",
        PRODUCERS,
        (("            place.last_sequence = last.last_sequence\n", "            pass\n"),),
        TRANSACTIONS,
    ),
    Mutant(
        "a marker ends an older transaction, whatever became of that",
        PRODUCERS,
        ((" if entry.first_open_offset < 0 or epoch == last + 1 else R_OUT_OF_ORDER", ""),),
        TRANSACTIONS,
    ),
    Mutant(
        "a marker does not end the transaction in the table",
        PRODUCERS,
        (("        store_i64(&entry.first_open_offset, -1)\n    elif", "        pass\n    elif"),),
        TRANSACTIONS,
    ),
    Mutant(
        "recovery forgets what is open",
        RECOVERY,
        (("            stable = oldest if oldest >= 0 else end", "            stable = end"),),
        TRANSACTIONS,
    ),
    Mutant(
        "recovery forgets what was aborted since the snapshot",
        RECOVERY,
        (("            aborted.write(directory, base, entries)", "            pass"),),
        TRANSACTIONS,
    ),
    Mutant(
        "a reader looks beyond the stable offset",
        READER,
        (("            if done and following > limit:", "            if False:"),),
        TRANSACTIONS,
    ),
    Mutant(
        "a dead writer's bytes stay",
        APPEND,
        (
            ("    if w.slot.intent != now.seq:", "    if False:"),
            ("        if status.st_size > now.position:", "        if False:"),
        ),
    ),
    Mutant(
        "intent is stored after the write",
        APPEND,
        (
            ("    store64(&w.slot.intent, now.seq + 1)\n    while done < size:", "    while done < size:"),
            ("    before = now\n", "    before = now\n    store64(&w.slot.intent, now.seq + 1)\n"),
            ("        if status.st_size > now.position:", "        if False:"),
        ),
    ),
    Mutant(
        "seq is stored before the commit is filled",
        APPEND,
        (
            (
                "    store_commit(&slot.ring[next.seq % RING], next)\n    store64(&slot.seq, next.seq)",
                "    store64(&slot.seq, next.seq)\n    store_commit(&slot.ring[next.seq % RING], next)",
            ),
        ),
    ),
    Mutant("no append byte", APPEND, (("if os_lock(w.lock_fd, w.append_byte, F_WRLCK, 0) == 0:", "if True:"),)),
    Mutant("a failed write is not cut off", APPEND, (("            cut(w, &now)\n", ""),)),
    Mutant(
        "a short write is taken for a whole one",
        APPEND,
        (("            done += written\n", "            done = size\n"),),
    ),
    Mutant("the reader does not look at seq again", APPEND, (("if load64(&slot.seq) - seq < RING - 1:", "if True:"),)),
    Mutant(
        "the reader's bound is too wide, and it checks no seq and CRC",
        APPEND,
        (
            ("if load64(&slot.seq) - seq < RING - 1:", "if load64(&slot.seq) - seq < RING:"),
            ("return 0 if out.seq == seq and out.crc == commit_crc(out) else R_DAMAGED_HEAD", "return 0"),
        ),
    ),
    Mutant(
        "a damaged commit is believed",
        APPEND,
        (("return 0 if out.seq == seq and out.crc == commit_crc(out) else R_DAMAGED_HEAD", "return 0"),),
    ),
    Mutant(
        "nobody makes up for a writer that died before the table of producers",
        PRODUCERS,
        (("    if w.slot.redo_seq == now.seq:", "    if False:"),),
    ),
    Mutant(
        "producers are remembered before the commit",
        APPEND,
        (
            (
                "    publish(w.slot, &now)\n    if producer_id >= 0:\n        remember(w, batch, base_offset)",
                (
                    "    if producer_id >= 0:\n        remember(w, batch, base_offset)\n    "
                    "publish(w.slot, &now)\n    if producer_id >= 0:"
                ),
            ),
        ),
    ),
    Mutant(
        "an index entry is written before its batch is committed",
        APPEND,
        (
            ("    before = now\n", "    before = now\n    maybe_index(w, &before, base_offset)\n"),
            ("    while done < size:", "    maybe_index(w, &now, base_offset + 1)\n    while done < size:"),
        ),
    ),
    Mutant(
        "the bell is rung before the commit",
        APPEND,
        (
            ("    if result >= 0:\n        klamm_ring(&w.store.bell, w.bell_bit)\n", ""),
            (
                "    publish(w.slot, &now)\n    if producer_id",
                "    klamm_ring(&w.store.bell, w.bell_bit)\n    publish(w.slot, &now)\n    if producer_id",
            ),
        ),
        ("tests/disk", "tests/log", "tests/client"),
    ),
    Mutant(
        "a failed sync is forgotten",
        HEAD,
        (("        log.set_flags(SYNC_FAILED)\n        log.flushing = False\n", "        log.flushing = False\n"),),
        ("tests/log", "tests/crash/test_failed_sync.py"),
    ),
    Mutant(
        "a syncer that died is taken for one that succeeded",
        HEAD,
        (("if log.flags & SYNC_FAILED or log.flushing:", "if log.flags & SYNC_FAILED:"),),
        ("tests/log", KILLS),
    ),
    Mutant(
        "the directory is not synced",
        HEAD,
        (
            (
                "                segment.sync_names(log.directory)\n",
                "                pass\n",
            ),
        ),
        ("tests/crash/test_power_cut.py",),
    ),
    Mutant(
        "a sync does not reach the disk",
        "src/klamm/disk/os.h",
        (("    return klamm_step(STEP_SYNC) ? -1 : fdatasync(fd);", "    return klamm_step(STEP_SYNC) ? -1 : 0;"),),
        ("tests/crash/test_power_cut.py",),
    ),
    Mutant(
        "recovery starts no new epoch",
        RECOVERY,
        (("epoch = max(boots, epochs[-1][0] + 1 if epochs else 1)", "epoch = epochs[-1][0] if epochs else 0"),),
        ("tests/log", "tests/crash/test_power_cut.py"),
    ),
    Mutant(
        "damage below the recovery point is cut like a tail",
        RECOVERY,
        (("        if min(scanned.position, scanned.size) < limit:", "        if False:"),),
        ("tests/log", "tests/crash/test_damage.py"),
    ),
    Mutant(
        "a log that was lost altogether starts again in its old epoch",
        RECOVERY,
        (("    epoch = boots\n", "    epoch = 0\n"),),
        (POWER_CUT,),
    ),
    Mutant(
        "nobody misses the first segments of a log without a recovery point",
        RECOVERY,
        (("start = found[0] if damaged else 0", "start = found[0] if found else 0"),),
        (POWER_CUT,),
    ),
    Mutant(
        "a torn tail stays",
        RECOVERY,
        (("            _os.truncate(fd, good.position)\n", ""),),
        (POWER_CUT,),
    ),
    Mutant(
        "an ack does not wait for the sync",
        PARTITION,
        (
            (
                "            head.sync(self.log, upto)\n",
                "            self.log.flushed_offset = max(upto, self.log.flushed_offset)\n",
            ),
        ),
        (POWER_CUT,),
    ),
    Mutant(
        "a recovery point says more than was synced",
        PARTITION,
        (("            now = head.flush(log)\n", "            now = log.snapshot()\n"),),
        (POWER_CUT,),
    ),
    Mutant(
        "only the active segment is synced",
        HEAD,
        (("if first <= base <= now.active_base:", "if base == now.active_base:"),),
        (POWER_CUT,),
    ),
    Mutant(
        "files go before the new start of the log is on disk",
        CLEANING,
        (("        point.store(directory, known._replace(log_start=offset))\n", ""),),
        (POWER_CUT,),
    ),
    Mutant(
        "the directories above a new store are not synced",
        DIRECTORY,
        (("        files.sync_ancestors(self.path)", "        ..."),),
        (POWER_CUT,),
    ),
    Mutant(
        "the catalog is not synced",
        "src/klamm/store/database.py",
        (
            (
                '                connection.execute("PRAGMA synchronous=FULL")\n            except',
                '                connection.execute("PRAGMA synchronous=OFF")\n            except',
            ),
        ),
        (POWER_CUT,),
    ),
    Mutant(
        "heads are believed after another boot",
        DIRECTORY,
        (("        if not self.heads.is_trusted(boot):", "        if False:"),),
        (POWER_CUT,),
    ),
    Mutant(
        "the CRC of batches is not checked",
        "src/klamm/batch/record.h",
        (("        if (batch.crc != klamm_crc32c(", "        if (0 && batch.crc != klamm_crc32c("),),
        (DAMAGE,),
    ),
    Mutant(
        "the CRC of index entries is not checked",
        "src/klamm/log/index.py",
        (("if crc == crc32c(data[:-4]) else None", "if crc >= 0 else None"),),
        (DAMAGE,),
    ),
    Mutant(
        "a damaged clock is believed",
        "src/klamm/log/_head.pyx",
        (("        if store.anchor_check != ", "        if False and store.anchor_check != "),),
        (DAMAGE,),
    ),
    Mutant(
        "retention takes damaged segments away",
        CLEANING,
        (("_DAMAGED = (1 << 63) - 1", "_DAMAGED = 0"),),
        (DAMAGE,),
    ),
    Mutant(
        "a torn tail is not set aside",
        RECOVERY,
        (
            (
                "            files.replace(path + suffix, _os.pread(fd, good.size - good.position, good.position))\n",
                "",
            ),
        ),
        (DAMAGE,),
    ),
    Mutant(
        "healing only syncs again",
        RECOVERY,
        (("            if base >= first and flushed < ends[base]:", "            if False:"),),
        (FAILED_SYNC,),
    ),
    Mutant(
        "healing writes in place",
        RECOVERY,
        (("                _os.truncate(fd, self.position)\n", ""),),
        (FAILED_SYNC,),
    ),
    Mutant(
        "readers do not wait for a healer",
        READER,
        (
            (
                "        if self.partition.log.flags & SYNC_FAILED and",
                "        if self._patience:\n            return False\n        if",
            ),
        ),
        (FAILED_SYNC,),
    ),
    Mutant(
        "a reader looks beyond the commit",
        READER,
        (("size = min(max_bytes, now.position - self._position) if active else max_bytes", "size = max_bytes"),),
    ),
]


@pytest.mark.soak
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_a_broken_promise_fails_a_test(mutant: Mutant, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "_*.c"))
    shutil.copytree(ROOT / "tests", copy / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    path = copy / mutant.file
    text = path.read_text()
    for old, new in mutant.changes:
        assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times"
        text = text.replace(old, new)
    path.write_text(text)
    if path.suffix != ".py":
        for built in (copy / "src").rglob("_*.so"):
            if built.parent.name == "log" or path.suffix == ".h":
                built.unlink()
        build = "from setuptools import setup; setup()"
        subprocess.run(
            [sys.executable, "-c", build, "-q", "build_ext", "--inplace"], cwd=copy, check=True, capture_output=True
        )
    env = {**os.environ, "PYTHONPATH": f"{copy / 'src'}{os.pathsep}{copy}"}
    tests = [name for name in mutant.tests if (copy / name).exists()]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--timeout", "60", *tests]
    result = subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True, timeout=900, check=False)
    print(result.stdout[-3000:])
    assert result.returncode == 1, f"nobody noticed: {mutant.name}"
