"""Mutants of a log's Python code and of the directory: sync, recovery, reading, retention."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

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
TRANSACTIONS = ("tests/log/test_transactions.py",)
WRITING = ("tests/crash/test_killed_writer.py", "tests/crash/test_random_kills.py", "tests/log")

MUTANTS = [
    Mutant(
        "recovery forgets what is open",
        "a transaction is read whole or not at all",
        ((RECOVERY, "            stable = oldest if oldest >= 0 else end", "            stable = end"),),
        TRANSACTIONS,
    ),
    Mutant(
        "recovery forgets what was aborted since the snapshot",
        "log/aborted.py A3",
        ((RECOVERY, "            aborted.write(directory, base, entries)", "            pass"),),
        TRANSACTIONS,
    ),
    Mutant(
        "a reader looks beyond the stable offset",
        "a transaction is read whole or not at all",
        ((READER, "            if done and following > limit:", "            if False:"),),
        TRANSACTIONS,
    ),
    Mutant(
        "a failed sync is forgotten",
        "promise 6",
        (
            (
                HEAD,
                "        log.set_flags(SYNC_FAILED)\n        log.flushing = False\n",
                "        log.flushing = False\n",
            ),
        ),
        (
            "tests/log",
            FAILED_SYNC,
        ),
    ),
    Mutant(
        "a syncer that died is taken for one that succeeded",
        "promise 4",
        ((HEAD, "if log.flags & SYNC_FAILED or log.flushing:", "if log.flags & SYNC_FAILED:"),),
        (
            "tests/log",
            KILLS,
        ),
    ),
    Mutant(
        "the directory is not synced",
        "promise 4",
        ((HEAD, "                segment.sync_names(log.directory)\n", "                pass\n"),),
        (POWER_CUT,),
    ),
    Mutant(
        "recovery starts no new epoch",
        "internals/recovery.md: epochs",
        (
            (
                RECOVERY,
                "epoch = max(boots, epochs[-1][0] + 1 if epochs else 1)",
                "epoch = epochs[-1][0] if epochs else 0",
            ),
        ),
        (
            "tests/log",
            POWER_CUT,
        ),
    ),
    Mutant(
        "damage below the recovery point is cut like a tail",
        "promise 7",
        ((RECOVERY, "        if min(scanned.position, scanned.size) < limit:", "        if False:"),),
        (
            "tests/log",
            DAMAGE,
        ),
    ),
    Mutant(
        "a log that was lost altogether starts again in its old epoch",
        "internals/recovery.md: epochs",
        ((RECOVERY, "    epoch = boots\n", "    epoch = 0\n"),),
        (POWER_CUT,),
    ),
    Mutant(
        "nobody misses the first segments of a log without a recovery point",
        "promise 7",
        ((RECOVERY, "start = found[0] if damaged else 0", "start = found[0] if found else 0"),),
        (POWER_CUT,),
    ),
    Mutant(
        "a torn tail stays",
        "promise 5",
        ((RECOVERY, "            _os.truncate(fd, good.position)\n", ""),),
        (POWER_CUT,),
    ),
    Mutant(
        "an ack does not wait for the sync",
        "promise 4",
        (
            (
                PARTITION,
                "            head.sync(self.log, upto)\n",
                "            self.log.flushed_offset = max(upto, self.log.flushed_offset)\n",
            ),
        ),
        (POWER_CUT,),
    ),
    Mutant(
        "a recovery point says more than was synced",
        "promise 5",
        ((PARTITION, "            now = head.flush(log)\n", "            now = log.snapshot()\n"),),
        (POWER_CUT,),
    ),
    Mutant(
        "only the active segment is synced",
        "promise 5",
        ((HEAD, "if first <= base <= now.active_base:", "if base == now.active_base:"),),
        (POWER_CUT,),
    ),
    Mutant(
        "files go before the new start of the log is on disk",
        "promise 8",
        ((CLEANING, "        point.store(directory, known._replace(log_start=offset))\n", ""),),
        (POWER_CUT,),
    ),
    Mutant(
        "the directories above a new store are not synced",
        "promise 5",
        ((DIRECTORY, "        files.sync_ancestors(self.path)", "        ..."),),
        (POWER_CUT,),
    ),
    Mutant(
        "the catalog is not synced",
        "promise 5",
        (
            (
                "src/klamm/store/database.py",
                'connection.execute("PRAGMA synchronous=FULL")\n                if not self.read_only',
                'connection.execute("PRAGMA synchronous=OFF")\n                if not self.read_only',
            ),
        ),
        (POWER_CUT,),
    ),
    Mutant(
        "heads are believed after another boot",
        "promise 5",
        ((DIRECTORY, "        if not self.heads.is_trusted(boot):", "        if False:"),),
        (POWER_CUT,),
    ),
    Mutant(
        "the CRC of index entries is not checked",
        "promise 9",
        (("src/klamm/log/index.py", "if crc == crc32c(data[:-4]) else None", "if crc >= 0 else None"),),
        (DAMAGE,),
    ),
    Mutant(
        "retention takes damaged segments away",
        "promise 7",
        ((CLEANING, "_DAMAGED = (1 << 63) - 1", "_DAMAGED = 0"),),
        (DAMAGE,),
    ),
    Mutant(
        "a torn tail is not set aside",
        "promise 7",
        (
            (
                RECOVERY,
                ("            files.replace(path + suffix, _os.pread(fd, good.size - good.position, good.position))\n"),
                "",
            ),
        ),
        (DAMAGE,),
    ),
    Mutant(
        "healing only syncs again",
        "promise 6",
        ((RECOVERY, "            if base >= first and flushed < ends[base]:", "            if False:"),),
        (FAILED_SYNC,),
    ),
    Mutant(
        "healing writes in place",
        "promise 6",
        ((RECOVERY, "                _os.truncate(fd, self.position)\n", ""),),
        (FAILED_SYNC,),
    ),
    Mutant(
        "readers do not wait for a healer",
        "promise 6",
        (
            (
                READER,
                "        if self.partition.log.flags & SYNC_FAILED and",
                "        if self._patience:\n            return False\n        if",
            ),
        ),
        (FAILED_SYNC,),
    ),
    Mutant(
        "a reader looks beyond the commit",
        "promise 1",
        (
            (
                READER,
                "size = min(max_bytes, now.position - self._position) if active else max_bytes",
                "size = max_bytes",
            ),
            (READER, "            if done and following > limit:", "            if False:"),
        ),
        WRITING,
    ),
]
